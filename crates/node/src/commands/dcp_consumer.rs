//! DCP: what a producer sends to a consumer, when the client is the producer.
//!
//! Replicas are filled over links that the node itself opens, so a consumer that a client opened never has a stream: what
//! belongs to one is answered as the original answers it then.
//! Sources: `docs/dcp/documentation/commands/`, and the recorded answers.

use protocol::dcp::StreamFlags;
use protocol::extras::{decode_u32, decode_u64};
use protocol::{Request, Status, opcode};

use super::dcp::NOT_DCP;
use crate::close_reason::CloseReason;
use crate::context::{Context, Outcome};

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
    no_stream(cx, request)
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
    no_stream(cx, request)
}

/// A consumer's client shows that it lives.
pub fn noop(cx: &mut Context<'_>, request: &Request<'_>) -> Outcome {
    if consumes(cx) { cx.status(Status::Success) } else { no_stream(cx, request) }
}

/// A consumer is asked to follow a vBucket: an active vBucket follows no node, and the rest follows over the node's links.
pub fn add_stream(cx: &mut Context<'_>, request: &Request<'_>) -> Outcome {
    if let Some(fault) = fault(request) {
        return cx.invalid(fault);
    }
    if !consumes(cx) {
        return no_stream(cx, request);
    }
    match cx.bucket().state_of(request.vbucket) {
        None | Some(base::VbState::Active) => cx.not_my_vbucket(),
        Some(_) => {
            let what = "Replicas follow over links between nodes: declare them with PUT \
                        /v1/buckets/BUCKET/replication";
            cx.error(Status::NotSupported, what)
        }
    }
}

/// A consumer is to close a stream.
pub fn close_stream(cx: &mut Context<'_>) -> Outcome {
    if cx.infos.stream_id.is_some() {
        return cx.invalid("Internal consumer does not support stream-id");
    }
    cx.status(Status::KeyEnoent)
}

fn consumes(cx: &mut Context<'_>) -> bool {
    cx.session.dcp.as_mut().is_some_and(|connection| connection.producer().is_none())
}

/// There is no stream that a message could belong to; a producer is never sent any.
fn no_stream(cx: &mut Context<'_>, _: &Request<'_>) -> Outcome {
    if cx.session.dcp.is_none() {
        return cx.invalid(NOT_DCP);
    }
    if consumes(cx) {
        return match cx.infos.stream_id {
            Some(_) => cx.invalid("Internal consumer does not support stream-id"),
            None => cx.status(Status::KeyEnoent),
        };
    }
    Outcome::Close(CloseReason::Violation("a producer was sent a message of a stream"))
}
