//! Versions as items, and batches of them as the store takes them.

use std::path::Path;

use base::limits::MAX_STORED_KEY_BYTES;
use base::{
    Cas, Datatype, DocKey, Heap, ItemKind, NewVersion, RevSeqno, Seqno, SyncWrite, VbId, Version, VersionMeta,
};
use couchstore::is_snappy_block;
use logstore::{Batch, Entry, Item, KEPT, Replaced, Sealed, View};

use super::state::LogState;
use crate::change::document_key;
use crate::collections::{SYSTEM, Weight, former_of};
use crate::copying::take_copied;
use crate::failure::Failure;
use crate::manifest::events_in;
use crate::store::{SaveBatch, Values, in_history, is_gone};

/// Bit of an item's flags: a tombstone or an abort.
pub(crate) const GONE: u8 = 1;
/// Bit of an item's flags: a prepare.
pub(crate) const PREPARE: u8 = 2;

/// Bytes of metadata before the rest of a sync write: CAS, revision, flags, datatype, kind, part in a sync write.
const META_BYTES: usize = 23;

fn put_meta(meta: &VersionMeta, out: &mut Vec<u8>) {
    out.clear();
    out.extend_from_slice(&meta.cas.0.to_le_bytes());
    out.extend_from_slice(&meta.rev_seqno.0.to_le_bytes());
    out.extend_from_slice(&meta.flags.to_le_bytes());
    let (part, rest) = meta.sync_write.stored(meta.by_seqno).to_parts();
    out.extend_from_slice(&[meta.datatype.0, meta.kind as u8, part]);
    if part != 0 {
        out.extend_from_slice(&rest.to_le_bytes());
    }
}

fn take_meta(item: &Item<'_>) -> Option<VersionMeta> {
    let (fixed, rest) = item.meta.split_at_checked(META_BYTES)?;
    let word = |at: usize| Some(u64::from_le_bytes(fixed[at..at + 8].try_into().ok()?));
    let kind = match fixed[21] {
        0 => ItemKind::Mutation,
        1 => ItemKind::Deletion,
        2 => ItemKind::Expiration,
        3 => ItemKind::SystemEvent,
        _ => return None,
    };
    let sync_write = match (fixed[22], rest.len()) {
        (0, 0) => SyncWrite::No,
        (part, 8) => SyncWrite::from_parts(part, u64::from_le_bytes(rest.try_into().ok()?))?,
        _ => return None,
    };
    Some(VersionMeta {
        cas: Cas(word(0)?),
        by_seqno: Seqno(item.seqno),
        rev_seqno: RevSeqno(word(8)?),
        flags: u32::from_le_bytes(fixed[16..20].try_into().ok()?),
        expiry: item.time,
        datatype: Datatype::from_wire(fixed[20])?,
        kind,
        sync_write,
    })
}

/// Makes versions of items.
pub(crate) struct VersionMaker<'a> {
    pub(crate) vb: VbId,
    pub(crate) dir: &'a Path,
    pub(crate) heap: &'a Heap,
}

impl VersionMaker<'_> {
    fn makes_no_sense(&self, item: &Item<'_>, what: &'static str) -> Failure {
        Failure::Record { vb: self.vb, path: self.dir.to_owned(), seqno: Seqno(item.seqno), what }
    }

    /// What an item says, without the value.
    pub(crate) fn meta<'i>(&self, item: &Item<'i>) -> Result<(DocKey<'i>, VersionMeta), Failure> {
        let unknown = |what| self.makes_no_sense(item, what);
        let key = DocKey::parse(item.key).ok_or_else(|| unknown("the key has no collection prefix"))?;
        if item.key.len() > MAX_STORED_KEY_BYTES {
            return Err(unknown("the key is too long"));
        }
        document_key(key).ok_or_else(|| unknown("a prepare is of no document"))?;
        let meta = take_meta(item).ok_or_else(|| unknown("metadata"))?;
        // Some readers send a Snappy block on as it is.
        if meta.datatype.is_snappy() && !is_snappy_block(item.value) {
            return Err(unknown("the value is no Snappy block, as the datatype says"));
        }
        Ok((key, meta))
    }

    /// An item as a version.
    pub(crate) fn version(&self, item: &Item<'_>, values: Values) -> Result<Version, Failure> {
        let (key, meta) = self.meta(item)?;
        let new = if is_left(values, item, key) {
            NewVersion::without_value(self.heap, meta, key, item.value.len() as u32)
        } else {
            NewVersion::new(self.heap, meta, key, &[item.value])
        };
        Ok(new.publish())
    }
}

/// Whether the value of an item is left out. A system event is nothing without its value.
pub(crate) fn is_left(values: Values, item: &Item<'_>, key: DocKey<'_>) -> bool {
    values == Values::Leave && !item.value.is_empty() && key.collection != SYSTEM
}

/// A batch as the store takes it.
pub(super) struct LogBatch<'a> {
    pub(super) vb: VbId,
    pub(super) batch: SaveBatch<'a>,
}

fn flags(version: &Version) -> u8 {
    let is_prepare = matches!(version.meta().sync_write, SyncWrite::Prepare(_));
    let is_kept = u8::from(in_history(version)) * KEPT;
    (u8::from(is_gone(version)) * GONE) | (u8::from(is_prepare) * PREPARE) | is_kept
}

pub(crate) fn weigh(entry: &Entry) -> Weight {
    Weight { seqno: Seqno(entry.seqno), deleted: entry.flags & GONE != 0, disk_bytes: u64::from(entry.bytes) }
}

/// A version as an item; its metadata goes to `scratch`.
pub(crate) fn item_of<'s>(version: &'s Version, scratch: &'s mut Vec<u8>) -> Item<'s> {
    let meta = version.meta();
    put_meta(&meta, scratch);
    Item {
        key: version.stored_key(),
        seqno: meta.by_seqno.0,
        flags: flags(version),
        time: meta.expiry,
        meta: scratch,
        value: version.value(),
    }
}

impl Batch for LogBatch<'_> {
    fn vb(&self) -> u16 {
        self.vb.0
    }

    fn len(&self) -> usize {
        self.batch.items.len()
    }

    fn history_from(&self) -> u64 {
        match self.batch.state.history_from {
            0 => u64::MAX,
            from => from,
        }
    }

    fn key(&self, at: usize) -> &[u8] {
        self.batch.items[at].stored_key()
    }

    fn seqno(&self, at: usize) -> u64 {
        self.batch.items[at].meta().by_seqno.0
    }

    fn item<'s>(&'s self, at: usize, scratch: &'s mut Vec<u8>) -> Item<'s> {
        item_of(&self.batch.items[at], scratch)
    }

    fn seal(&mut self, before: Option<&View>, changes: &[Replaced]) -> Result<Sealed, String> {
        let now = before.map_or(Ok(LogState::default()), |before| LogState::decode(before.state()))?;
        let high = before.map_or(0, View::high_seqno);
        let (now, purged) = advance(now, self.batch, high, changes);
        let purge_seqno = before.map_or(0, View::purge_seqno).max(purged.0);
        Ok(Sealed { state: now.encode(), purge_seqno })
    }
}

/// What is stored beside the items of a vBucket once a batch is: `changes` are those of its items that are new, `high` the
/// highest seqno before. Also the seqno up to which tombstones were purged where the batch was copied from.
pub(crate) fn advance(
    mut now: LogState,
    batch: SaveBatch<'_>,
    high: u64,
    changes: &[Replaced],
) -> (LogState, Seqno) {
    let items = batch.items;
    // What is there already has been counted.
    let mut events = events_in(items);
    events.retain(|event| event.meta().by_seqno.0 > high);
    for event in &events {
        let former = former_of(event, &now.manifest);
        now.manifest.apply(event, |id, start| now.tally.is_written(id, start, items));
        former.into_iter().for_each(|id| now.tally.drop_collection(id));
    }
    now.tally.begin_default(&now.manifest);
    let mut scratch = Vec::new();
    for Replaced { at, old } in changes {
        let item = item_of(&items[*at], &mut scratch);
        let new = Entry { seqno: item.seqno, flags: item.flags, time: item.time, bytes: item.bytes() };
        now.tally.change(item.key, Seqno(item.seqno), weigh(&new), old.as_ref().map(weigh));
        let was_gone = old.is_some_and(|old| old.flags & GONE != 0);
        let is_gone = item.flags & GONE != 0;
        now.tombstones = (now.tombstones + u64::from(is_gone)).saturating_sub(u64::from(was_gone));
    }
    now.tally.end(&events, &now.manifest);
    let copied = take_copied(batch.state, &mut now.tally);
    now.tally.take_changes();
    let (state, purged) = copied.unwrap_or_else(|| (batch.state.clone(), Seqno(0)));
    now.state = state;
    (now, purged)
}
