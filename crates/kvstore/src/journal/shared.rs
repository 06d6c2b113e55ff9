//! One change in many vBuckets as one record: a change of the manifest puts the same system event into each of them.
//!
//! *Guarantee:* every save that is read is the one that was given. Each vBucket's part is a whole save, so that a list
//! may be cut between any two, and a reader has nothing to put together.

use base::{DocKey, Heap, NewVersion, RevSeqno, Seqno, SyncWrite, VbId, Version, VersionMeta};

use super::decode::SavePart;
use super::layout::Cursor;
use super::{Record, ReplayedState, State};
use crate::collections::SYSTEM;
use crate::state::StateNumbers;

/// The largest value that is shared. A reader makes a copy for each vBucket, so a small record must not become large.
const MOST_VALUE_BYTES: usize = 4096;
/// The least bytes of a vBucket: number, CAS, seqno, revision, state.
const LEAST_ENTRY: usize = 2 + 3 * 8 + StateNumbers::LEAST_SPARSE_BYTES;
/// The most.
const MOST_ENTRY: usize = LEAST_ENTRY + StateNumbers::BYTES;

/// A save that may share its record: of one system event, whose state's structure is known.
fn sharable<'a>(record: &'a Record<'_>) -> Option<(VbId, StateNumbers, &'a Version)> {
    let Record::Save { vb, state: State::Numbers(doc), items: [version], is_repeat: false } = record else {
        return None;
    };
    let is_event = version.stored_key().first() == Some(&(SYSTEM.0 as u8));
    let is_small = version.value().len() <= MOST_VALUE_BYTES;
    let is_plain = version.meta().sync_write == SyncWrite::No;
    (is_event && is_small && is_plain).then(|| (*vb, StateNumbers::of(doc), version))
}

/// Whether two versions differ in their numbers alone.
fn is_same(a: &Version, b: &Version) -> bool {
    let of = |version: &Version| {
        let meta = version.meta();
        (meta.kind, meta.datatype, meta.flags, meta.expiry)
    };
    a.stored_key() == b.stored_key() && of(a) == of(b) && a.value() == b.value()
}

/// Appends the body of a record with as many of the first saves as share an event, and fit; answers their vBuckets.
/// Appends nothing, and answers none, if fewer than two do.
pub(super) fn encode(records: &[Record<'_>], bytes: &mut Vec<u8>, limit: usize) -> Vec<VbId> {
    let Some((_, _, event)) = records.first().and_then(sharable) else { return Vec::new() };
    let start = bytes.len();
    let meta = event.meta();
    bytes.extend_from_slice(&[0; 4]);
    bytes.extend_from_slice(&(event.value().len() as u32).to_le_bytes());
    bytes.extend_from_slice(&[event.stored_key().len() as u8, meta.kind as u8 | meta.datatype.0 << 4]);
    bytes.extend_from_slice(&meta.flags.to_le_bytes());
    bytes.extend_from_slice(&meta.expiry.to_le_bytes());
    bytes.extend_from_slice(event.stored_key());
    bytes.extend_from_slice(event.value());
    let mut vbs = Vec::new();
    for (vb, numbers, version) in records.iter().map_while(sharable) {
        if bytes.len() + MOST_ENTRY > limit || !is_same(event, version) {
            break;
        }
        let meta = version.meta();
        bytes.extend_from_slice(&vb.0.to_le_bytes());
        bytes.extend_from_slice(&meta.cas.0.to_le_bytes());
        bytes.extend_from_slice(&meta.by_seqno.0.to_le_bytes());
        bytes.extend_from_slice(&meta.rev_seqno.0.to_le_bytes());
        numbers.encode_sparse(bytes);
        vbs.push(vb);
    }
    if vbs.len() < 2 {
        bytes.truncate(start);
        return Vec::new();
    }
    bytes[start..start + 4].copy_from_slice(&(vbs.len() as u32).to_le_bytes());
    vbs
}

/// The saves of a record; `None` if its body is not of the form that [`encode`] writes.
pub(super) fn decode(heap: &Heap, body: &[u8]) -> Option<Vec<SavePart>> {
    let mut at = Cursor(body);
    let (count, value, key, form) = (at.u32()? as usize, at.u32()? as usize, at.u8()?, at.u8()?);
    let (flags, expiry) = (at.u32()?, at.u32()?);
    let (kind, datatype) = super::decode::form(form)?;
    let (key, value) = (at.take(key.into())?, at.take(value)?);
    let key = DocKey::parse(key).filter(|key| key.collection == SYSTEM)?;
    if value.len() > MOST_VALUE_BYTES
        || form & super::decode::SYNC_WRITE != 0
        || count > at.0.len() / LEAST_ENTRY
    {
        return None;
    }
    let mut save = || {
        let vb = VbId(at.u16()?);
        let cas = base::Cas(at.u64()?);
        let (by_seqno, rev_seqno) = (super::decode::seqno(at.u64()?)?, super::decode::seqno(at.u64()?)?);
        let (numbers, rest) = StateNumbers::decode_sparse(at.0)?;
        at = Cursor(rest);
        let meta = VersionMeta {
            cas,
            by_seqno: Seqno(by_seqno),
            rev_seqno: RevSeqno(rev_seqno),
            flags,
            expiry,
            datatype,
            kind,
            sync_write: SyncWrite::No,
        };
        let items = vec![NewVersion::new(heap, meta, key, &[value]).publish()];
        let state = Some(ReplayedState::Numbers(numbers));
        Some(SavePart { vb, state, items, is_last: true, is_repeat: false })
    };
    let saves = (0..count).map(|_| save()).collect::<Option<Vec<_>>>()?;
    at.0.is_empty().then_some(saves)
}
