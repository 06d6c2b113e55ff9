//! Counts of each collection, kept in local documents `|0x<id>|` as the original keeps them.

use base::doc_key::DocKey;
use base::leb128::{decode_leb128, encode_leb128, put_leb128, take_leb128};
use base::{CollectionId, Seqno, Version};

use crate::manifest::StoredManifest;

/// Namespace of system events.
pub(crate) const SYSTEM: CollectionId = CollectionId::SYSTEM;
/// Namespace of prepares; a whole prefixed key follows.
pub(crate) const PREPARES: CollectionId = CollectionId::PREPARES;

/// What a vBucket holds of a collection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CollectionStats {
    /// Committed documents that are no tombstones.
    pub item_count: u64,
    /// Highest seqno of anything that belongs to the collection.
    pub high_seqno: Seqno,
    /// Bytes of ids, revision metadata and bodies on disk, tombstones and system events included.
    pub disk_bytes: u64,
}

impl CollectionStats {
    /// Name of the local document.
    pub(crate) fn document_id(collection: CollectionId) -> String {
        format!("|{:#x}|", collection.0)
    }

    /// The collection that a local document is about, if it is of this kind.
    pub(crate) fn collection_of(document_id: &[u8]) -> Option<CollectionId> {
        let hex = document_id.strip_prefix(b"|0x")?.strip_suffix(b"|")?;
        let hex = std::str::from_utf8(hex).ok()?;
        u32::from_str_radix(hex, 16).ok().map(CollectionId)
    }

    /// Three unsigned LEB128 numbers (read off files of the original).
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(12);
        for n in [self.item_count, self.high_seqno.0, self.disk_bytes] {
            put_leb128(&mut out, n);
        }
        out
    }

    pub(crate) fn decode(mut bytes: &[u8]) -> Option<CollectionStats> {
        let mut next = || take_leb128(&mut bytes);
        Some(CollectionStats { item_count: next()?, high_seqno: Seqno(next()?), disk_bytes: next()? })
    }
}

/// What a stored key belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Owner {
    /// A document of a collection.
    Document(CollectionId),
    /// A prepare of a collection's document.
    Prepare(CollectionId),
    /// The creation or, deleted, the drop of a collection.
    CollectionEvent(CollectionId),
    /// Anything else: belongs to no collection.
    Other,
}

/// Type of a collection's system event (kv_engine collections.md, "SystemEvent Key").
const COLLECTION_EVENT: u8 = 0;

pub(crate) fn owner(stored_key: &[u8]) -> Owner {
    match DocKey::parse(stored_key) {
        None => Owner::Other,
        Some(DocKey { collection: SYSTEM, key: [COLLECTION_EVENT, rest @ ..] }) => {
            decode_leb128(rest).map_or(Owner::Other, |(id, _)| Owner::CollectionEvent(CollectionId(id)))
        }
        Some(DocKey { collection: SYSTEM, .. }) => Owner::Other,
        Some(DocKey { collection: PREPARES, key }) => {
            DocKey::parse(key).map_or(Owner::Other, |inner| Owner::Prepare(inner.collection))
        }
        Some(DocKey { collection, .. }) => Owner::Document(collection),
    }
}

/// The collection that a stored key's document or prepare belongs to.
pub(crate) fn collection_of(stored_key: &[u8]) -> Option<CollectionId> {
    match owner(stored_key) {
        Owner::Document(collection) | Owner::Prepare(collection) => Some(collection),
        Owner::CollectionEvent(_) | Owner::Other => None,
    }
}

/// What the stored keys of all system events of collections begin with.
pub(crate) fn collection_events() -> [u8; 2] {
    [SYSTEM.0 as u8, COLLECTION_EVENT]
}

/// What the stored key of a collection's system event begins with.
pub(crate) fn event_prefix(collection: CollectionId) -> Vec<u8> {
    let (id, len) = encode_leb128(collection.0);
    [&collection_events(), &id[..len]].concat()
}

/// A record before or after a change.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Weight {
    pub(crate) seqno: Seqno,
    pub(crate) deleted: bool,
    pub(crate) disk_bytes: u64,
}

/// The collection that an event makes though it is there already: the former one was dropped meanwhile, by an event under
/// the same key.
pub(crate) fn former_of(event: &Version, manifest: &StoredManifest) -> Option<CollectionId> {
    let Owner::CollectionEvent(id) = owner(event.stored_key()) else { return None };
    (!event.is_deleted() && manifest.is_open_before(id, event.meta().by_seqno)).then_some(id)
}

/// Whether counts say that anything was ever saved in a collection that began at `start`.
pub(crate) fn is_counted(all: &[(CollectionId, CollectionStats)], of: CollectionId, start: Seqno) -> bool {
    let stats = all.binary_search_by_key(&of, |(id, _)| *id).ok().map(|at| &all[at].1);
    stats.is_some_and(|stats| stats.high_seqno > start || stats.item_count > 0)
}

/// Whether there is something of a collection among versions that are sorted by key.
pub(crate) fn holds(items: &[Version], id: CollectionId) -> bool {
    let (prefix, len) = encode_leb128(id.0);
    let from = items.partition_point(|version| version.stored_key() < &prefix[..len]);
    items.get(from).is_some_and(|version| version.key().collection == id)
}

/// Counts of all collections of a vBucket, brought up to date record by record.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tally {
    /// By id. Mostly the same one many times: the last place is remembered.
    collections: Vec<(CollectionId, CollectionStats)>,
    /// By id.
    changed: Vec<CollectionId>,
    dropped: Vec<CollectionId>,
    last: usize,
    /// What the default collection has below was in a former one under that number, and is not counted.
    default_start: Seqno,
}

impl Tally {
    pub(crate) fn load(&mut self, collection: CollectionId, stats: CollectionStats) {
        match self.place(collection) {
            Ok(at) => self.collections[at].1 = stats,
            Err(at) => self.insert(at, collection, stats),
        }
    }

    /// Where a collection is, or would be.
    fn place(&self, collection: CollectionId) -> Result<usize, usize> {
        self.collections.binary_search_by_key(&collection, |(id, _)| *id)
    }

    fn insert(&mut self, at: usize, collection: CollectionId, stats: CollectionStats) {
        if self.collections.len() == self.collections.capacity() {
            // Each of a thousand files has such a list: room for twice as many would cost megabytes.
            self.collections.reserve_exact(self.collections.len() / 8 + 1);
        }
        self.collections.insert(at, (collection, stats));
    }

    pub(crate) fn all(&self) -> &[(CollectionId, CollectionStats)] {
        &self.collections
    }

    pub(crate) fn documents(&self) -> u64 {
        self.collections.iter().map(|(_, stats)| stats.item_count).sum()
    }

    fn entry(&mut self, collection: CollectionId) -> &mut CollectionStats {
        if self.collections.get(self.last).is_none_or(|(id, _)| *id != collection) {
            self.last = match self.place(collection) {
                Ok(at) => at,
                Err(at) => {
                    self.insert(at, collection, CollectionStats::default());
                    at
                }
            };
        }
        if self.changed.last() != Some(&collection)
            && let Err(at) = self.changed.binary_search(&collection)
        {
            self.changed.insert(at, collection);
        }
        &mut self.collections[self.last].1
    }

    /// Notes that the record of a key changed; says what the key belongs to.
    pub(crate) fn change(
        &mut self,
        stored_key: &[u8],
        seqno: Seqno,
        new: Weight,
        old: Option<Weight>,
    ) -> Owner {
        let owner = owner(stored_key);
        let (Owner::Document(collection) | Owner::Prepare(collection) | Owner::CollectionEvent(collection)) =
            owner
        else {
            return owner;
        };
        if matches!(owner, Owner::CollectionEvent(_)) && new.deleted {
            self.drop_collection(collection);
            return owner;
        }
        let default_start = self.default_start;
        let is_former = |record: &Weight| collection == CollectionId::DEFAULT && record.seqno < default_start;
        if is_former(&new) {
            return owner;
        }
        let old = old.filter(|old| !is_former(old));
        let stats = self.entry(collection);
        stats.high_seqno = stats.high_seqno.max(seqno);
        let old_bytes = old.map_or(0, |old| old.disk_bytes);
        stats.disk_bytes = (stats.disk_bytes + new.disk_bytes).saturating_sub(old_bytes);
        if matches!(owner, Owner::Document(_)) {
            let was = old.is_some_and(|old| !old.deleted);
            stats.item_count = (stats.item_count + u64::from(!new.deleted)).saturating_sub(u64::from(was));
        }
        owner
    }

    /// Notes a seqno that a collection has had: the record with it may be gone. One that is not counted was dropped, or is
    /// the default one, of which nothing is left.
    pub(crate) fn raise(&mut self, collection: CollectionId, seqno: Seqno) {
        if collection != CollectionId::DEFAULT && self.place(collection).is_err() {
            return;
        }
        let stats = self.entry(collection);
        stats.high_seqno = stats.high_seqno.max(seqno);
    }

    /// Notes that the record of a key is left out of the next file. Records of a collection that is not counted any
    /// more never were in these counts.
    pub(crate) fn leave_out(&mut self, stored_key: &[u8], weight: Weight) {
        let owner = owner(stored_key);
        let (Owner::Document(collection) | Owner::Prepare(collection) | Owner::CollectionEvent(collection)) =
            owner
        else {
            return;
        };
        if matches!(owner, Owner::CollectionEvent(_)) && weight.deleted {
            return;
        }
        if self.place(collection).is_ok() {
            let stats = self.entry(collection);
            stats.disk_bytes = stats.disk_bytes.saturating_sub(weight.disk_bytes);
            let is_counted = matches!(owner, Owner::Document(_)) && !weight.deleted;
            stats.item_count = stats.item_count.saturating_sub(u64::from(is_counted));
        }
    }

    /// Takes over from `newest`, the counts of the same documents and more, which collections there are and their
    /// highest seqnos: these do not depend on what was left out.
    pub(crate) fn align(&mut self, newest: &Tally) {
        let own = |id| self.place(id).map_or(CollectionStats::default(), |at| self.collections[at].1);
        let aligned = |(id, stats): &(CollectionId, CollectionStats)| {
            (*id, CollectionStats { high_seqno: stats.high_seqno, ..own(*id) })
        };
        self.collections = newest.collections.iter().map(aligned).collect();
        self.changed = self.collections.iter().map(|(id, _)| *id).collect();
        self.dropped.clear();
        self.last = 0;
    }

    /// Whether anything was ever saved in a collection that began at `start`, or is among `items`, which are sorted by
    /// key.
    pub(crate) fn is_written(&self, id: CollectionId, start: Seqno, items: &[Version]) -> bool {
        is_counted(&self.collections, id, start) || holds(items, id)
    }

    /// Forgets the counts of collections that `events` drop: the same batch may have brought documents of them.
    pub(crate) fn end(&mut self, events: &[&Version], manifest: &StoredManifest) {
        for event in events.iter().filter(|event| event.is_deleted()) {
            if let Owner::CollectionEvent(id) = owner(event.stored_key())
                && !manifest.is_open(id)
            {
                self.drop_collection(id);
            }
        }
    }

    /// From now on the default collection is the one that began at this seqno.
    pub(crate) fn begin_default(&mut self, manifest: &StoredManifest) {
        self.default_start = manifest.default_start();
    }

    pub(crate) fn drop_collection(&mut self, collection: CollectionId) {
        if let Ok(at) = self.place(collection) {
            self.collections.remove(at);
        }
        if let Ok(at) = self.changed.binary_search(&collection) {
            self.changed.remove(at);
        }
        let (used, room) = (self.collections.len(), self.collections.capacity());
        if room > 2 * used + 8 {
            self.collections.shrink_to(used + used / 8);
        }
        self.dropped.push(collection);
        self.last = 0;
    }

    /// Local documents that are to be written (or, without value, removed) for the changes so far.
    pub(crate) fn take_changes(&mut self) -> Vec<(String, Option<Vec<u8>>)> {
        let mut changes: Vec<_> = Vec::with_capacity(self.changed.len() + self.dropped.len());
        // Lists that grew with one batch are not kept for the next.
        let (changed, mut dropped) = (std::mem::take(&mut self.changed), std::mem::take(&mut self.dropped));
        dropped.sort_unstable();
        dropped.dedup();
        dropped.retain(|id| changed.binary_search(id).is_err());
        for id in changed {
            let stats = self.place(id).ok().map(|at| self.collections[at].1.encode());
            changes.push((CollectionStats::document_id(id), stats));
        }
        changes.extend(dropped.into_iter().map(|id| (CollectionStats::document_id(id), None)));
        changes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stats_are_the_originals() {
        // `|0x0|` of vBucket 0 among the golden files
        let stats = CollectionStats { item_count: 26, high_seqno: Seqno(71), disk_bytes: 44_195 };
        assert_eq!(stats.encode(), [0x1a, 0x47, 0xa3, 0xd9, 0x02]);
        assert_eq!(CollectionStats::decode(&stats.encode()), Some(stats));
        assert_eq!(CollectionStats::decode(&[0x80]), None);
        assert_eq!(CollectionStats::decode(&[0xff; 40]), None);
        assert_eq!(CollectionStats::collection_of(b"|0xb|"), Some(CollectionId(11)));
        assert_eq!(CollectionStats::document_id(CollectionId(11)), "|0xb|");
    }
}
