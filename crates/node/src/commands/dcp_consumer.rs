//! DCP: what a producer sends to a consumer, when the client is the producer, or stands between the two.
//!
//! A client that opened a consumer adds a stream; this node then asks the client for it, as a consumer asks a producer, and
//! applies what comes to a replica or pending vBucket. A message that is taken has no answer.
//! Sources: `docs/dcp/documentation/commands/`, and the recorded answers.

use protocol::dcp::StreamFlags;
use protocol::extras::{decode_u32, decode_u64};
use protocol::{Request, Status, opcode};

use super::dcp::NOT_DCP;
use crate::close_reason::CloseReason;
use crate::context::{Context, Outcome};
use crate::dcp_inbound::Inbound;
use crate::privilege::Privilege;

/// The highest number of a system event, and of a version of one.
const MOST_EVENT: (u32, u8) = (5, 2);
/// Length of a snapshot marker's value, by the version that its extras name; index 1 was never sent by a release.
const MARKER_VALUES: [Option<usize>; 3] = [Some(36), None, Some(52)];

/// What is wrong with a message whatever the connection is; `None` if nothing is.
type Fault = Option<&'static str>;

fn seqno_at(request: &Request<'_>, at: usize) -> u64 {
    request.extras.get(at..at + 8).and_then(decode_u64).unwrap_or(0)
}

fn fault(request: &Request<'_>) -> Fault {
    let extras = request.extras;
    match request.opcode {
        opcode::DCP_MUTATION if seqno_at(request, 0) == 0 => Some("Invalid seqno(0) for DCP mutation"),
        opcode::DCP_MUTATION if extras.get(28..30) != Some(&[0, 0]) => {
            Some("DCP does not support extended metadata")
        }
        opcode::DCP_PREPARE if seqno_at(request, 0) == 0 => Some("Invalid seqno(0) for DCP prepare"),
        opcode::DCP_PREPARE if !matches!(extras.get(30), Some(1..=3)) => Some("Invalid durability specifier"),
        opcode::DCP_SYSTEM_EVENT => system_event_fault(extras),
        opcode::DCP_SET_VBUCKET_STATE if !matches!(extras, [1..=4]) => Some("Request body state invalid"),
        opcode::DCP_ADD_STREAM => {
            let flags = StreamFlags(decode_u32(extras).unwrap_or(0));
            (!flags.are_known()).then_some("Request contains invalid flags")
        }
        _ => None,
    }
}

fn system_event_fault(extras: &[u8]) -> Fault {
    let event = extras.get(8..12).and_then(decode_u32);
    if event.is_none_or(|event| event > MOST_EVENT.0) {
        return Some("Invalid system event id");
    }
    extras.get(12).is_none_or(|version| *version > MOST_EVENT.1).then_some("Invalid system event version")
}

/// No stream of a consumer that a client opened has an id.
const NO_STREAM_IDS: &str = "Internal consumer does not support stream-id";

/// A snapshot marker; the original says nothing about one whose extras are malformed.
pub fn snapshot_marker(cx: &mut Context<'_>, request: &Request<'_>) -> Outcome {
    let value = match request.extras {
        extras if extras.len() == 20 => Some(0),
        &[version] => MARKER_VALUES.get(usize::from(version)).copied().flatten(),
        _ => None,
    };
    if value != Some(request.value.len()) || cx.session.dcp.is_none() {
        return cx.status(Status::Einval);
    }
    let bounds = if request.extras.len() == 20 { request.extras } else { request.value };
    let (start, end) = (bounds.get(..8).and_then(decode_u64), bounds.get(8..16).and_then(decode_u64));
    if consumes(cx) && start > end {
        return cx.status(Status::Einval);
    }
    take(cx, request)
}

/// What belongs to a stream.
pub fn of_stream(cx: &mut Context<'_>, request: &Request<'_>) -> Outcome {
    if let Some(fault) = fault(request) {
        return cx.invalid(fault);
    }
    // The original looks at these when it has found that it consumes.
    let seqno = match request.opcode {
        opcode::DCP_DELETION | opcode::DCP_EXPIRATION => seqno_at(request, 0),
        opcode::DCP_COMMIT | opcode::DCP_ABORT => seqno_at(request, 8),
        _ => 1,
    };
    if consumes(cx) && seqno == 0 {
        return cx.status(Status::Einval);
    }
    take(cx, request)
}

/// A consumer's client shows that it lives.
pub fn noop(cx: &mut Context<'_>, _: &Request<'_>) -> Outcome {
    match consumer(cx) {
        Ok(consumer) => {
            consumer.heard();
            cx.status(Status::Success)
        }
        Err(refused) => refused,
    }
}

/// A consumer is asked to follow a vBucket; the answer comes with the one of the producer.
pub fn add_stream(cx: &mut Context<'_>, request: &Request<'_>) -> Outcome {
    if let Some(fault) = fault(request) {
        return cx.invalid(fault);
    }
    let flags = StreamFlags(decode_u32(request.extras).unwrap_or(0));
    if let Err(refused) = consumer(cx) {
        return refused;
    }
    if cx.infos.stream_id.is_some() {
        return cx.invalid(NO_STREAM_IDS);
    }
    let bucket = cx.bucket();
    if cx.node.replication().follows(bucket.name(), request.vbucket) {
        return cx.error(Status::KeyEexists, "This node follows another node with the vbucket, over a link");
    }
    if flags.has(StreamFlags::TAKEOVER)
        && let Err(denied) = cx.require(Privilege::NodeSupervisor)
    {
        return denied;
    }
    if flags.has(StreamFlags::TAKEOVER) && cx.node.host().is_some_and(|host| host.config().is_member) {
        return cx.error(Status::NotSupported, "The nodes of a cluster hand vbuckets over themselves");
    }
    fed(cx, |consumer, out| consumer.add_stream(request.vbucket, request.opaque, flags, out))
}

/// A consumer is to close a stream.
pub fn close_stream(cx: &mut Context<'_>, request: &Request<'_>) -> Outcome {
    if cx.infos.stream_id.is_some() {
        return cx.invalid(NO_STREAM_IDS);
    }
    let mut said = Vec::new();
    let status = match consumer(cx) {
        Ok(consumer) => consumer.remove_stream(request.vbucket, &mut said),
        Err(refused) => return refused,
    };
    let outcome = cx.status(status.err().unwrap_or_default());
    cx.reply.append(&said);
    outcome
}

fn consumes(cx: &mut Context<'_>) -> bool {
    cx.session.dcp.as_mut().is_some_and(|connection| connection.consumer().is_some())
}

/// The consuming half of a connection; a producer is never sent what belongs to one.
fn consumer<'a>(cx: &'a mut Context<'_>) -> Result<&'a mut Inbound, Outcome> {
    if cx.session.dcp.is_none() {
        return Err(cx.invalid(NOT_DCP));
    }
    let producing = Outcome::Close(CloseReason::Violation("a producer was sent a message of a stream"));
    cx.session.dcp.as_mut().and_then(|connection| connection.consumer()).ok_or(producing)
}

/// Has the consuming half do something that may have it say something; a refusal is the answer.
fn fed(cx: &mut Context<'_>, act: impl FnOnce(&mut Inbound, &mut Vec<u8>) -> Result<(), Status>) -> Outcome {
    let mut said = Vec::new();
    let outcome = match consumer(cx) {
        Ok(consumer) => act(consumer, &mut said),
        Err(refused) => return refused,
    };
    let outcome = match outcome {
        Ok(()) => Outcome::Done,
        Err(Status::NotSupported) => {
            cx.error(Status::NotSupported, "Changes out of order were not agreed on")
        }
        Err(status) => cx.status(status),
    };
    cx.reply.append(&said);
    outcome
}

/// Takes a message of a stream. If there is none it could belong to, that is the answer.
fn take(cx: &mut Context<'_>, request: &Request<'_>) -> Outcome {
    if consumes(cx) && cx.infos.stream_id.is_some() {
        return cx.invalid(NO_STREAM_IDS);
    }
    fed(cx, |consumer, out| consumer.take(request, out))
}
