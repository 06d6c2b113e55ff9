//! Touch, and get-and-touch.

use base::planted::{self, Bug};
use engine::Found;
use protocol::extras::decode_u32;
use protocol::{Request, Status};

use crate::commands::{get, mutation};
use crate::context::{Context, Outcome};
use crate::reply::Answer;

/// Touch: gives a document another expiry time.
pub fn touch(cx: &mut Context<'_>, request: &Request<'_>) -> Outcome {
    if cx.infos.durability.is_some() {
        return cx.status(Status::NotSupported);
    }
    let Some(expiry) = decode_u32(request.extras) else {
        return cx.invalid("Request must include extras of length 4");
    };
    match cx.bucket().documents().touch(request.vbucket, cx.key, expiry, cx.now) {
        Ok((Some(mutated), _)) => {
            let answer = Answer { cas: mutated.cas, ..Answer::default() };
            if planted::is(Bug::TouchBeforeCommit) {
                cx.reply.send(&answer);
                return Outcome::Done;
            }
            mutation::tell(cx, mutated, &answer, None)
        }
        Ok((None, version)) => {
            cx.reply.send(&Answer { cas: version.meta().cas, ..Answer::default() });
            Outcome::Done
        }
        Err(refusal) => cx.refuse(refusal),
    }
}

/// Get-and-touch: the same, and returns the document.
pub fn get_and_touch(cx: &mut Context<'_>, request: &Request<'_>) -> Outcome {
    if cx.infos.durability.is_some() {
        return cx.status(Status::NotSupported);
    }
    let Some(expiry) = decode_u32(request.extras) else {
        return cx.invalid("Request must include extras of length 4");
    };
    match cx.bucket().documents().touch(request.vbucket, cx.key, expiry, cx.now) {
        Ok((Some(mutated), version)) => {
            let found = Found { cas: mutated.cas, version };
            get::show(cx, &found, |cx, answer, version| mutation::tell(cx, mutated, answer, version))
        }
        Ok((None, version)) => {
            let found = Found { cas: version.meta().cas, version };
            get::answer(cx, request, Ok(found))
        }
        Err(refusal) => cx.refuse(refusal),
    }
}
