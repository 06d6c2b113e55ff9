//! Stat: a packet for each stat of a group, and an empty one behind the last.

use base::DocKey;
use engine::Bucket;
use protocol::{Request, Status};

use crate::context::{Context, Outcome};
use crate::privilege::{Privilege, Privileges};
use crate::reply::Answer;
use crate::stats::inquiry::Refused;
use crate::stats::{self, Question};

/// Stat: the group is the first word of the key, what follows are its arguments.
pub fn stat(cx: &mut Context<'_>, request: &Request<'_>) -> Outcome {
    let is_json = |value: &[u8]| serde_json::from_slice::<serde::de::IgnoredAny>(value).is_ok();
    if !request.value.is_empty() && !is_json(request.value) {
        return cx.invalid("The value must be JSON");
    }
    let bucket = cx.session.bucket.clone();
    let bucket = bucket.as_deref();
    let mut question = Question { node: cx.node, bucket, rights: cx.session.rights.clone(), now: cx.now };
    if let Some(bucket) = bucket.filter(|bucket| waits_for_disk(cx.session.main_group_asked, request, bucket))
    {
        bucket.flushing().drain();
    }
    let mut produced = stats::produce(question.clone(), request.key);
    // One privilege after the other, so that each is told.
    while let Err(Refused::Denied(privilege)) = produced
        && !question.rights.node.has(privilege)
        && cx.lets_through(privilege)
    {
        question.rights = question.rights.with(Privileges::of(&[privilege]));
        produced = stats::produce(question.clone(), request.key);
    }
    match produced {
        Ok(sheet) if !cx.reply.has_room(sheet.bytes()) => cx.status(Status::Etmpfail),
        Ok(sheet) => {
            for (name, value) in sheet.iter() {
                cx.reply.send(&Answer { key: name.as_bytes(), value: value.as_bytes(), ..Answer::default() });
            }
            cx.reply.ok();
            Outcome::Done
        }
        // The bucket is gone that was selected.
        Err(Refused::Status(Status::NoBucket)) if cx.session.lost_bucket.is_some() => {
            cx.status(Status::Eaccess)
        }
        Err(refused) => refuse(cx, request.key, refused),
    }
}

/// Whether a client seems to wait until all is written: it asks again and again for the main group, as `cbepctl drain` does
/// until `ep_queue_size` is 0. As long as changes gather, that is never so while anything is written.
fn waits_for_disk(asked: u32, request: &Request<'_>, bucket: &Bucket) -> bool {
    asked > 1 && request.key.is_empty() && bucket.stats().all().unpersisted_items > 0
}

/// What is told to a user who lacks a privilege for the group that the key of a request names.
pub(crate) fn denied_group(privilege: Privilege, asked: &[u8], bucket: Option<&str>) -> String {
    let (name, grants) = (privilege.name(), stats::grants_for(asked, bucket));
    format!("The stat group needs the privilege {name} (of roles like {grants})")
}

fn refuse(cx: &mut Context<'_>, asked: &[u8], refused: Refused) -> Outcome {
    match refused {
        Refused::Status(status) => cx.status(status),
        Refused::Invalid(context) => cx.invalid(context),
        Refused::Engine(vb, key, refusal) => match DocKey::parse(&key) {
            Some(key) => cx.refuse_key(vb, key, refusal),
            None => cx.refuse(refusal),
        },
        Refused::NoCollection(status) => crate::context::unknown(cx, status),
        Refused::Denied(privilege) => {
            let bucket = cx.session.bucket.as_ref().map(|bucket| bucket.name());
            let context = denied_group(privilege, asked, bucket);
            cx.error(Status::Eaccess, &context)
        }
    }
}
