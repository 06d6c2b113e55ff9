//! What clients ask as frames, and what the answers say.

use base::{Cas, CollectionId, DocKey, DurabilityLevel, VbId};
use protocol::frame_info::Durability;
use protocol::response::ResponseView;
use protocol::{FrameInfos, RequestParts, Status, opcode, write_request};

use crate::ops::{Class, Key, Kind, Op, Outcome, body, mark};

/// How long a sync write may take.
const DURABLE_TIMEOUT_MS: u16 = 1_200;

/// A request of an operation: most have one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// The first one.
    First,
    /// What is appended to is not there yet, and is made.
    Made,
}

/// What a request and its answer are known by.
pub fn opaque_of(number: usize, part: Part) -> u32 {
    number as u32 * 2 + u32::from(part == Part::Made)
}

/// Which request an answer is for.
pub fn part_of(opaque: u32) -> (usize, Part) {
    ((opaque / 2) as usize, if opaque.is_multiple_of(2) { Part::First } else { Part::Made })
}

/// The document of an operation.
pub fn document<'a>(op: &Op, key: &'a Key) -> DocKey<'a> {
    DocKey { collection: CollectionId(op.collection), key: &key.name }
}

/// Command, CAS, extras and value.
fn command(number: usize, op: &Op, class: Class, padding: usize, part: Part) -> (u8, u64, Vec<u8>, Vec<u8>) {
    let expiry = if class == Class::Expiring { 1 + number as u32 % 3 } else { 0 };
    let extras = [(number as u32).to_be_bytes(), expiry.to_be_bytes()].concat();
    match op.kind {
        Kind::Read => (opcode::GET, 0, Vec::new(), Vec::new()),
        Kind::Set => (opcode::SET, 0, extras, body(number, padding)),
        Kind::Replace(cas) => (opcode::REPLACE, cas, extras, body(number, padding)),
        Kind::Delete => (opcode::DELETE, 0, Vec::new(), Vec::new()),
        Kind::Count => {
            let (by, first, never) = (1u64.to_be_bytes(), 1u64.to_be_bytes(), 0u32.to_be_bytes());
            (opcode::INCREMENT, 0, [&by[..], &first, &never].concat(), Vec::new())
        }
        Kind::Append if part == Part::First => (opcode::APPEND, 0, Vec::new(), mark(number).into_bytes()),
        // Somebody else may be the first meanwhile.
        Kind::Append => (opcode::ADD, 0, extras, mark(number).into_bytes()),
    }
}

/// The bytes of a request.
pub fn frame(number: usize, op: &Op, key: &Key, padding: usize, part: Part) -> Vec<u8> {
    let (opcode, cas, extras, value) = command(number, op, key.class, padding, part);
    let mut frame_infos = Vec::new();
    if let Some(level) = op.level {
        let durability = Some(durable(level));
        FrameInfos { durability, ..FrameInfos::default() }.encode(&mut frame_infos);
    }
    let (prefix, len) = base::leb128::encode_leb128(op.collection);
    let encoded = [&prefix[..len], &key.name].concat();
    let parts = RequestParts {
        opcode,
        vbucket: VbId(key.vb),
        opaque: opaque_of(number, part),
        cas: Cas(cas),
        frame_infos: &frame_infos,
        extras: &extras,
        key: &encoded,
        value: &value,
        ..RequestParts::default()
    };
    let mut bytes = Vec::new();
    assert!(write_request(&mut bytes, &parts), "the simulation's requests are short");
    bytes
}

fn durable(level: DurabilityLevel) -> Durability {
    Durability { level, timeout_ms: Some(DURABLE_TIMEOUT_MS) }
}

/// How an operation ended, by its answer.
pub fn outcome(op: &Op, answer: &ResponseView<'_>) -> Outcome {
    match answer.status() {
        Some(Status::Success) => {
            let body = match (op.kind, <[u8; 8]>::try_from(answer.value)) {
                (Kind::Read, _) => answer.value.to_vec(),
                (Kind::Count, Ok(count)) => u64::from_be_bytes(count).to_string().into_bytes(),
                _ => Vec::new(),
            };
            Outcome::Done(answer.cas.0, body)
        }
        Some(Status::KeyEnoent) => Outcome::NotFound,
        Some(Status::SyncWriteAmbiguous) => Outcome::Ambiguous,
        Some(Status::NotMyVbucket) => Outcome::Refused(true),
        _ => Outcome::Refused(false),
    }
}

/// The seqno that an answer to a change tells: of its prepare, if it was a sync write.
pub fn seqno(answer: &ResponseView<'_>) -> Option<u64> {
    Some(u64::from_be_bytes(answer.extras.get(8..16)?.try_into().ok()?))
}
