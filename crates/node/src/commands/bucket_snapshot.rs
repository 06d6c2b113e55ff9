//! Snapshots of a bucket: a client holds changes on all nodes, has each take the moment, and streams what each has kept
//! (docs/adr/0197).
//!
//! The value of a request is a JSON object with `do`: `hold`, `take`, `release`, `look`, `drop` or `list`; but for the last,
//! with `id`, a UUID that the client makes up.

use std::time::Duration;

use base::Datatype;
use engine::{BucketSnapshotFigures, BucketSnapshotRefusal, LONGEST_HOLD, VbMoment};
use protocol::{Request, Status, uuid};
use serde_json::{Value, json};

use super::file_snapshot::object_of;
use crate::context::{Context, Outcome};
use crate::privilege::Privilege;

/// Bucket snapshot.
pub fn bucket_snapshot(cx: &mut Context<'_>, request: &Request<'_>) -> Outcome {
    if request.datatype != Datatype::JSON.0 {
        return cx.invalid("Datatype must be JSON");
    }
    let Some(wanted) = object_of(request.value) else {
        return cx.invalid("The value must be a JSON object");
    };
    let step = wanted.get("do").and_then(Value::as_str).unwrap_or_default();
    let bucket = cx.bucket();
    let snapshots = bucket.snapshots();
    if step == "list" {
        let all: Vec<Value> = snapshots.figures().iter().map(figures_json).collect();
        return answer(cx, &json!({ "snapshots": all }));
    }
    // Who may stream one collection may neither hold the changes of others nor end what others copy.
    if let Err(denied) = cx.require(Privilege::DcpStream) {
        return denied;
    }
    let id = wanted.get("id").and_then(Value::as_str).and_then(uuid::parse);
    let Some(id) = id else { return cx.invalid("id must be a UUID") };
    let done = match step {
        "hold" => {
            let most_ms = wanted.get("most_ms").and_then(Value::as_u64).filter(|most| *most > 0);
            let Some(most_ms) = most_ms else { return cx.invalid("most_ms must be a number above 0") };
            let most = Duration::from_millis(most_ms).min(LONGEST_HOLD);
            snapshots.hold(id, most).map(|vbuckets| json!({ "vbuckets": moments_json(&vbuckets) }))
        }
        "take" => {
            let manifest = bucket.collections().manifest();
            snapshots.take(id, manifest).map(|vbuckets| json!({ "vbuckets": moments_json(&vbuckets) }))
        }
        "release" => Ok(json!({ "held": snapshots.release(id) })),
        "look" => snapshots.look(id).map(|figures| {
            let mut told = figures_json(&figures);
            told["manifest"] = figures.manifest.to_json();
            told
        }),
        "drop" => snapshots.end(id).map(|()| json!({})),
        _ => return cx.invalid("do must be hold, take, release, look, drop or list"),
    };
    match done {
        Ok(told) => answer(cx, &told),
        Err(refusal) => refuse(cx, refusal),
    }
}

fn answer(cx: &mut Context<'_>, told: &Value) -> Outcome {
    cx.reply.json(Status::Success, told.to_string().as_bytes());
    Outcome::Done
}

/// vBucket, history and seqno of each.
fn moments_json(moments: &[VbMoment]) -> Vec<Value> {
    moments.iter().map(|one| json!([one.vb.0, one.uuid.0, one.seqno.0])).collect()
}

fn figures_json(figures: &BucketSnapshotFigures) -> Value {
    json!({
        "id": uuid::text(figures.id),
        "age_ms": figures.age.as_millis() as u64,
        "ends_after_ms": figures.ends_after.as_millis() as u64,
        "held_us": figures.held.as_micros() as u64,
        "vbuckets": moments_json(&figures.vbuckets),
        "waiting": figures.waiting,
        "lost": figures.lost.iter().map(|vb| vb.0).collect::<Vec<u16>>(),
    })
}

fn refuse(cx: &mut Context<'_>, refusal: BucketSnapshotRefusal) -> Outcome {
    match refusal {
        BucketSnapshotRefusal::NoDisk => {
            cx.error(Status::NotSupported, "The bucket is ephemeral: it has no disk")
        }
        BucketSnapshotRefusal::Busy => {
            cx.error(Status::Etmpfail, "Changes are or were just held for another snapshot: try again")
        }
        BucketSnapshotRefusal::HoldOver => {
            cx.error(Status::Etmpfail, "The hold is over: hold changes again, for longer")
        }
        BucketSnapshotRefusal::TooMany => cx.error(
            Status::Ebusy,
            "The node may not open a file for each vBucket: end other snapshots, or let it have more open files",
        ),
        BucketSnapshotRefusal::NotReady => cx.status(Status::Etmpfail),
        BucketSnapshotRefusal::Unknown | BucketSnapshotRefusal::Lost => cx.status(Status::KeyEnoent),
    }
}
