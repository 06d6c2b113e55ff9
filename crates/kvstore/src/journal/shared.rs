//! The same changes in many vBuckets as one record: a change of the manifest puts the same system events into each.
//!
//! *Guarantee:* every save that is read is the one that was given. Each vBucket's part is a whole save, so that a list
//! may be cut between any two, and a reader has nothing to put together.

use base::{
    Cas, Datatype, DocKey, Heap, ItemKind, NewVersion, RevSeqno, Seqno, SyncWrite, VbId, Version, VersionMeta,
};

use super::decode::{SYNC_WRITE, SavePart, form, seqno};
use super::layout::Cursor;
use super::{Record, ReplayedState, State};
use crate::collections::SYSTEM;
use crate::state::StateNumbers;

/// The most bytes of values that are shared. A reader makes a copy for each vBucket, so a small record must not become
/// large.
const MOST_VALUE_BYTES: usize = 16 << 10;
/// The most events of a save.
const MOST_EVENTS: usize = 64;
/// The least bytes of an event: lengths, form, flags, expiry.
const LEAST_EVENT: usize = 14;
/// Bytes of a vBucket for each event: CAS, seqno, revision.
const EVENT_NUMBERS: usize = 3 * 8;
/// The least bytes of a vBucket beside those: its number, and the numbers of its state.
const LEAST_ENTRY: usize = 2 + StateNumbers::LEAST_SPARSE_BYTES;
/// The most.
const MOST_ENTRY: usize = LEAST_ENTRY + StateNumbers::BYTES;

/// A save that may share its record: of system events alone, and the structure of its state is known.
fn sharable<'a>(record: &'a Record<'_>) -> Option<(VbId, StateNumbers, &'a [Version])> {
    let Record::Save { vb, state: State::Numbers(doc), items, is_repeat: false } = record else {
        return None;
    };
    let is_event = |version: &Version| {
        version.stored_key().first() == Some(&(SYSTEM.0 as u8)) && version.meta().sync_write == SyncWrite::No
    };
    let is_sharable = (1..=MOST_EVENTS).contains(&items.len())
        && items.iter().all(is_event)
        && items.iter().map(|version| version.value().len()).sum::<usize>() <= MOST_VALUE_BYTES;
    is_sharable.then(|| (*vb, StateNumbers::of(doc), *items))
}

/// Whether two versions differ in their numbers alone.
fn is_same((a, b): (&Version, &Version)) -> bool {
    let of = |version: &Version| {
        let meta = version.meta();
        (meta.kind, meta.datatype, meta.flags, meta.expiry)
    };
    a.stored_key() == b.stored_key() && of(a) == of(b) && a.value() == b.value()
}

/// Appends the body of a record with as many of the first saves as share their events, and fit; answers their vBuckets.
/// Appends nothing, and answers none, if fewer than two do.
pub(super) fn encode(records: &[Record<'_>], bytes: &mut Vec<u8>, limit: usize) -> Vec<VbId> {
    let Some((_, _, events)) = records.first().and_then(sharable) else { return Vec::new() };
    let start = bytes.len();
    bytes.extend_from_slice(&[0; 4]);
    bytes.extend_from_slice(&(events.len() as u32).to_le_bytes());
    for event in events {
        let meta = event.meta();
        bytes.extend_from_slice(&(event.value().len() as u32).to_le_bytes());
        bytes.extend_from_slice(&[event.stored_key().len() as u8, meta.kind as u8 | meta.datatype.0 << 4]);
        bytes.extend_from_slice(&meta.flags.to_le_bytes());
        bytes.extend_from_slice(&meta.expiry.to_le_bytes());
        bytes.extend_from_slice(event.stored_key());
        bytes.extend_from_slice(event.value());
    }
    let most = MOST_ENTRY + events.len() * EVENT_NUMBERS;
    let mut vbs = Vec::new();
    for (vb, numbers, versions) in records.iter().map_while(sharable) {
        let is_like = versions.len() == events.len() && events.iter().zip(versions).all(is_same);
        if bytes.len() + most > limit || !is_like {
            break;
        }
        bytes.extend_from_slice(&vb.0.to_le_bytes());
        numbers.encode_sparse(bytes);
        for meta in versions.iter().map(|version| version.meta()) {
            bytes.extend_from_slice(&meta.cas.0.to_le_bytes());
            bytes.extend_from_slice(&meta.by_seqno.0.to_le_bytes());
            bytes.extend_from_slice(&meta.rev_seqno.0.to_le_bytes());
        }
        vbs.push(vb);
    }
    if vbs.len() < 2 {
        bytes.truncate(start);
        return Vec::new();
    }
    bytes[start..start + 4].copy_from_slice(&(vbs.len() as u32).to_le_bytes());
    vbs
}

/// What the vBuckets of a record share of an event.
struct Event<'a> {
    kind: ItemKind,
    datatype: Datatype,
    flags: u32,
    expiry: u32,
    key: DocKey<'a>,
    value: &'a [u8],
}

impl<'a> Event<'a> {
    fn read(at: &mut Cursor<'a>) -> Option<Event<'a>> {
        let (value, key, bits) = (at.u32()? as usize, at.u8()?, at.u8()?);
        let (flags, expiry) = (at.u32()?, at.u32()?);
        let (kind, datatype) = form(bits).filter(|_| bits & SYNC_WRITE == 0)?;
        let key = DocKey::parse(at.take(key.into())?).filter(|key| key.collection == SYSTEM)?;
        let value = at.take(value)?;
        Some(Event { kind, datatype, flags, expiry, key, value })
    }

    /// The event in the vBucket whose numbers of it come next.
    fn version(&self, heap: &Heap, at: &mut Cursor<'_>) -> Option<Version> {
        let meta = VersionMeta {
            cas: Cas(at.u64()?),
            by_seqno: Seqno(seqno(at.u64()?)?),
            rev_seqno: RevSeqno(seqno(at.u64()?)?),
            flags: self.flags,
            expiry: self.expiry,
            datatype: self.datatype,
            kind: self.kind,
            sync_write: SyncWrite::No,
        };
        Some(NewVersion::new(heap, meta, self.key, &[self.value]).publish())
    }
}

/// The saves of a record; `None` if its body is not of the form that [`encode`] writes.
pub(super) fn decode(heap: &Heap, body: &[u8]) -> Option<Vec<SavePart>> {
    let mut at = Cursor(body);
    let (count, events) = (at.u32()? as usize, at.u32()? as usize);
    if !(1..=MOST_EVENTS).contains(&events) || events > at.0.len() / LEAST_EVENT {
        return None;
    }
    let events = (0..events).map(|_| Event::read(&mut at)).collect::<Option<Vec<_>>>()?;
    let values: usize = events.iter().map(|event| event.value.len()).sum();
    if values > MOST_VALUE_BYTES || count > at.0.len() / (LEAST_ENTRY + events.len() * EVENT_NUMBERS) {
        return None;
    }
    let mut save = || {
        let vb = VbId(at.u16()?);
        let (numbers, rest) = StateNumbers::decode_sparse(at.0)?;
        at = Cursor(rest);
        let items = events.iter().map(|event| event.version(heap, &mut at)).collect::<Option<Vec<_>>>()?;
        let state = Some(ReplayedState::Numbers(numbers));
        Some(SavePart { vb, state, items, is_last: true, is_repeat: false })
    };
    let saves = (0..count).map(|_| save()).collect::<Option<Vec<_>>>()?;
    at.0.is_empty().then_some(saves)
}
