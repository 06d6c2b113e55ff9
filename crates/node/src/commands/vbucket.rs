//! Administration of vBuckets: get, set and delete their state.

use std::sync::Arc;

use base::{Datatype, Seqno, VbState};
use engine::{CompactOutcome, CompactRequest, Topology};
use protocol::reader::Reader;
use protocol::{Request, Status, opcode};

use crate::commands::observe::{PERSISTENCE_TIMEOUT_MS, first_of};
use crate::context::{Context, LaterReply, Outcome};
use crate::file_fill;
use crate::reply::Answer;

/// Get vBucket: its state as a number of four bytes.
pub fn get_vbucket(cx: &mut Context<'_>, request: &Request<'_>) -> Outcome {
    match cx.bucket().state_of(request.vbucket) {
        Some(state) => {
            let value = u32::from(state as u8).to_be_bytes();
            cx.reply.send(&Answer { value: &value, ..Answer::default() });
            Outcome::Done
        }
        None => cx.not_my_vbucket(),
    }
}

/// Set vBucket: its state, and with it the replication topology.
pub fn set_vbucket(cx: &mut Context<'_>, request: &Request<'_>) -> Outcome {
    // One byte of state in the extras is today's form; four bytes there or in the value are older ones.
    let state = match (request.extras, request.value) {
        (&[state], _) => u32::from(state),
        (&[a, b, c, d], []) | (&[], &[a, b, c, d]) => u32::from_be_bytes([a, b, c, d]),
        _ => return cx.invalid("Invalid format. Use 1 byte state in extras, or 4 bytes in extras or value"),
    };
    let Some(state) = u8::try_from(state).ok().and_then(VbState::from_wire) else {
        return cx.invalid("Invalid vbucket state");
    };
    let has_topology = request.extras.len() == 1 && !request.value.is_empty();
    if has_topology && request.datatype != Datatype::JSON.0 {
        return cx.invalid("The value must have the datatype JSON");
    }
    let WantedRole { topology, by_file } = if has_topology {
        match wanted(request.value, state) {
            Ok(wanted) => wanted,
            Err(context) => return cx.invalid(&context),
        }
    } else {
        WantedRole::default()
    };
    if request.vbucket.0 >= cx.bucket().vbuckets() {
        return cx.error(Status::Erange, "There is no such vbucket");
    }
    let (node, bucket) = (cx.node, Arc::clone(&cx.bucket()));
    let is_wanted = || !node.lanes().is_stopping() && node.served().serves(&bucket);
    if by_file && let Err(failure) = file_fill::fill(&bucket, request.vbucket, &is_wanted) {
        return cx.error(failure.status(), &failure.to_string());
    }
    match cx.bucket().roles().set_vbucket_state(request.vbucket, state, topology) {
        Ok(()) => Outcome::Then(tell_set),
        Err(refusal) => cx.refuse(refusal),
    }
}

/// Whether a request may have a vBucket filled with a file, which takes long: its handler looks closer.
pub(crate) fn fills(request: &Request<'_>) -> bool {
    const NAME: &[u8] = b"use_snapshot";
    request.opcode == opcode::SET_VBUCKET && request.value.windows(NAME.len()).any(|part| part == NAME)
}

/// Answers when what was prepared alone in the vBucket is committed.
fn tell_set(cx: &mut Context<'_>) -> Outcome {
    match cx.bucket().durability().alone_committed(cx.vbucket) {
        Ok(None) => {
            cx.reply.ok();
            Outcome::Done
        }
        // Whoever sets a topology relies on it from the answer on.
        Ok(Some(waiting)) => {
            let timeout = cx.timeout(PERSISTENCE_TIMEOUT_MS);
            Outcome::Later(Box::pin(async move {
                let is_committed = first_of(waiting, timeout).await.is_some();
                LaterReply::status(if is_committed { Status::Success } else { Status::Etmpfail })
            }))
        }
        Err(refusal) => cx.refuse(refusal),
    }
}

/// What the JSON of a request says of a vBucket beside its state.
#[derive(Default)]
struct WantedRole {
    /// One or two chains of node names, the active node first.
    topology: Option<Topology>,
    /// Whether it is filled with the file that was downloaded for it.
    by_file: bool,
}

fn wanted(json: &[u8], state: VbState) -> Result<WantedRole, String> {
    const NOT_JSON: &str = "The value must be JSON";
    let value: serde_json::Value = serde_json::from_slice(json).map_err(|_| NOT_JSON.to_owned())?;
    // As recorded, something else than an object says nothing, and an object may be empty.
    let Some(object) = value.as_object().filter(|object| !object.is_empty()) else {
        return Ok(WantedRole::default());
    };
    let by_file = match object.get("use_snapshot") {
        None => false,
        Some(kind) if kind == "fbr" && state != VbState::Dead => true,
        Some(_) => return Err("use_snapshot must be \"fbr\", of a vBucket that is not dead".to_owned()),
    };
    let Some(topology) = object.get("topology") else {
        let refused = Err("The value must have a topology".to_owned());
        return if by_file { Ok(WantedRole { topology: None, by_file }) } else { refused };
    };
    if state != VbState::Active {
        return Err("A topology belongs to active vBuckets only".to_owned());
    }
    match engine::topology_from_json(topology) {
        Ok(topology) => Ok(WantedRole { topology: Some(topology), by_file }),
        Err(error) => Err(error.to_string()),
    }
}

/// Delete vBucket: drops a dead vBucket with its documents and its file.
pub fn delete_vbucket(cx: &mut Context<'_>, request: &Request<'_>) -> Outcome {
    match cx.bucket().roles().delete_vbucket(request.vbucket) {
        Ok(Ok(())) => {
            cx.reply.ok();
            Outcome::Done
        }
        Ok(Err(failure)) => {
            if let Some(left_out) = engine::admit_log(&cx.bucket(), "file not deleted") {
                let vb = request.vbucket;
                tracing::error!(
                    event = "vbucket_file_not_deleted", %vb, %failure, left_out,
                    "the file of a deleted vBucket is still there"
                );
            }
            cx.status(Status::Einternal)
        }
        Err(engine::Refusal::Invalid) => {
            cx.error(Status::Einval, "Only a dead vbucket can be deleted; set its state to dead first")
        }
        Err(refusal) => cx.refuse(refusal),
    }
}

/// Compact: rewrites the file of a vBucket, and answers when that is done.
///
/// The extras (BinaryProtocol.md, Compact DB): purge before this time, purge up to this seqno, whether all tombstones
/// go, and padding.
pub fn compact(cx: &mut Context<'_>, request: &Request<'_>) -> Outcome {
    let mut extras = Reader(request.extras);
    let fields = (|| Some((extras.u64()?, extras.u64()?, extras.u8()?)))();
    let Some((purge_before_s, purge_through, drop_deletes)) = fields else {
        return cx.invalid("Request must include extras of length 24");
    };
    let purge_before_s = match drop_deletes {
        0 => (purge_before_s > 0).then(|| u32::try_from(purge_before_s).unwrap_or(u32::MAX)),
        1 => Some(u32::MAX),
        _ => return cx.invalid("Whether to drop deletes is 0 or 1"),
    };
    let purge_through = (purge_through > 0).then_some(Seqno(purge_through));
    match cx.bucket().compaction().compact(request.vbucket, CompactRequest { purge_before_s, purge_through })
    {
        Ok(compacted) => Outcome::Later(Box::pin(async move {
            LaterReply::status(match compacted.await {
                Some(CompactOutcome::Done) => Status::Success,
                Some(CompactOutcome::Ended) | None => Status::Etmpfail,
                Some(CompactOutcome::Failed) => Status::Einternal,
            })
        })),
        Err(engine::Refusal::Busy) => cx.error(Status::Etmpfail, "The vbucket is being compacted already"),
        Err(refusal) => cx.refuse(refusal),
    }
}

/// Create checkpoint: closes the open one.
pub fn create_checkpoint(cx: &mut Context<'_>, request: &Request<'_>) -> Outcome {
    match cx.bucket().roles().create_checkpoint(request.vbucket) {
        Ok(()) => cx.status(Status::Success),
        Err(refusal) => cx.refuse(refusal),
    }
}

/// Last closed checkpoint: its number in the vBucket.
pub fn last_closed_checkpoint(cx: &mut Context<'_>, request: &Request<'_>) -> Outcome {
    match cx.bucket().with_vbucket(request.vbucket, |vb| vb.checkpoints().open_id() - 1) {
        Some(id) => {
            cx.reply.send(&Answer { value: &id.to_be_bytes(), ..Answer::default() });
            Outcome::Done
        }
        None => cx.not_my_vbucket(),
    }
}
