//! Values that leave memory and come back, and tables that are filled before anybody uses them.

use std::sync::atomic::Ordering;

use base::planted::{self, Bug};
use base::{Datatype, DocKey, Moment, NewVersion, Seqno, Version, VersionMeta};

use crate::bucket_context::BucketContext;
use crate::collections::Collections;
use crate::durability::NO_DEADLINE;
use crate::evicted::Evicted;
use crate::hash_table::HashTable;
use crate::vbucket::{Contents, Counts, VBucket};

/// Documents on their way from disk into a vBucket: filled without its lock, put in place at once.
pub struct Loaded {
    table: HashTable,
    counts: Counts,
    /// What of each collection was met.
    collections: Collections,
    evicted: Evicted,
    /// About how many are still to come.
    to_come: u64,
    /// In seqno order.
    prepares: Vec<Version>,
}

impl Loaded {
    /// An empty one with room for so many items.
    pub fn new(context: &BucketContext, items: usize) -> Loaded {
        Loaded {
            table: HashTable::with_room(context, items),
            counts: Counts::default(),
            collections: Collections::default(),
            evicted: Evicted::new(context),
            to_come: 0,
            prepares: Vec::new(),
        }
    }

    /// Puts in a prepare in flight, with its value; later than those before. There must be no other one of its key.
    /// Its document must be put in, too, if there is one.
    pub fn insert_prepare(&mut self, prepare: Version) {
        self.collections.meet(prepare.document_key(), prepare.meta().by_seqno);
        self.prepares.push(prepare);
    }

    /// Notes about how many versions there will be, with those that are left out.
    pub fn expect(&mut self, items: u64) {
        self.to_come = items;
    }

    /// Puts in a version read from disk, unless a newer one of its key is there.
    pub fn insert(&mut self, hash: u64, version: Version) {
        self.to_come = self.to_come.saturating_sub(1);
        let slot = self.table.find_slot(hash, version.key());
        if slot.get().is_some_and(|there| there.meta().by_seqno >= version.meta().by_seqno) {
            return;
        }
        self.collections.meet(version.key(), version.meta().by_seqno);
        self.counts.enter(&version);
        self.collections.enter(&version);
        if let Some(old) = slot.set(version) {
            self.counts.leave(&old);
            self.collections.leave(&old);
        }
    }

    /// Notes a version on disk that there is no room for. There must be no other one of its key.
    pub fn leave_out(&mut self, hash: u64, version: &Version) {
        self.collections.meet(version.key(), version.meta().by_seqno);
        self.collections.evict(version);
        self.evicted.enter(hash, version, self.to_come);
        self.to_come = self.to_come.saturating_sub(1);
    }

    /// What is in it, and what was left out.
    pub fn counts(&self) -> Counts {
        self.counts.with(self.evicted.out())
    }
}

/// What became of a value that was read from disk.
pub enum Placed {
    /// It is in memory now; the version without it is to be dropped outside the lock.
    Placed(Version),
    /// The version that it belongs to has a value already, was replaced, or is gone.
    NotNeeded,
    /// The present version has no value, and what was read belongs to another change of the document.
    Other,
}

/// Metadata without the mark of compression, which is about the form of a value and not about the document.
fn plain(meta: VersionMeta) -> VersionMeta {
    VersionMeta { datatype: meta.datatype.without(Datatype::SNAPPY), ..meta }
}

impl VBucket {
    /// Puts loaded documents in place, before anybody has written any. Drop what is returned outside the lock.
    pub fn install(&mut self, loaded: Loaded) -> Loaded {
        assert_eq!(self.contents.table.len(), 0, "documents are loaded before any is written");
        let Loaded { table, counts, collections, evicted, prepares, .. } = loaded;
        for prepare in prepares {
            self.sync_writes.prepares_mut(self.contents.table.context()).insert(prepare, NO_DEADLINE, true);
        }
        self.contents.history.collections.found(&collections);
        Loaded {
            to_come: 0,
            prepares: Vec::new(),
            collections,
            evicted: std::mem::replace(&mut self.contents.evicted, evicted),
            table: std::mem::replace(&mut self.contents.table, table),
            counts: std::mem::replace(&mut self.contents.history.counts, counts),
        }
    }
}

impl Contents {
    /// Puts a value that was read from disk into the version that it belongs to.
    ///
    /// `whole` is that version with its value: same seqno and same metadata, as [`Contents::hollow`] shows them, but in
    /// the form that the disk has, compressed or not.
    pub fn put_value(&mut self, hash: u64, whole: &Version) -> Placed {
        assert!(whole.is_resident(), "a value is what is brought");
        let slot = self.table.find_slot(hash, whole.key());
        let Some(there) = slot.get().filter(|there| !there.is_resident()) else { return Placed::NotNeeded };
        if plain(there.meta()) != plain(whole.meta()) {
            return Placed::Other;
        }
        whole.frequency().store(there.frequency().load(Ordering::Relaxed), Ordering::Relaxed);
        self.history.leave(&there);
        self.history.enter(whole);
        Placed::Placed(slot.replace(whole.clone()))
    }

    /// The version of a key if its value is not in memory.
    pub fn hollow(&self, hash: u64, key: DocKey<'_>) -> Option<Version> {
        self.table.find(hash, key).filter(|version| !version.is_resident()).map(|version| version.clone())
    }

    /// Tombstones up to here may have been forgotten, by whoever keeps the documents on disk.
    pub fn raise_purge_seqno(&mut self, purged: Seqno) {
        assert!(purged <= self.history.high_seqno, "what was purged has been there");
        self.purge_seqno = self.purge_seqno.max(purged);
        self.evicted.purges += 1;
    }

    /// Forgets exactly this tombstone, which is not on disk any more; nothing if there is another version by now, or
    /// it has to stay. Drop what is returned outside the lock.
    pub fn forget_tombstone(&mut self, hash: u64, tombstone: &Version) -> Option<Version> {
        let slot = self.table.find_slot(hash, tombstone.key());
        let there = slot.get()?;
        let is_it = there.is_deleted() && there.meta().by_seqno == tombstone.meta().by_seqno;
        if !is_it || there.meta().by_seqno > self.persisted_seqno {
            return None;
        }
        self.history.leave(&there);
        Some(slot.remove())
    }

    /// Whether the value of a key's version could leave memory: it is on disk, and nothing rests on it.
    pub fn is_evictable(&self, version: &Version, now: Moment) -> bool {
        version.is_resident()
            && version.value_bytes() > 0
            && version.meta().by_seqno != Seqno(0)
            && self.is_saved(&version.meta())
            && !self.is_locked(version.key(), now)
    }

    /// Whether a version is on disk.
    pub(super) fn is_saved(&self, meta: &VersionMeta) -> bool {
        meta.by_seqno <= self.persisted_seqno || planted::is(Bug::DirtyDocumentEvicted)
    }

    /// Takes the value of a key's version out of memory: `hollow` is that version without its value.
    ///
    /// Returns what was there, to be dropped outside the lock; nothing if it is another version by now, or has to stay.
    pub fn take_value(&mut self, hash: u64, hollow: NewVersion, now: Moment) -> Option<Version> {
        let there = self.table.find(hash, hollow.key())?.clone();
        if there.meta() != hollow.meta() || !self.is_evictable(&there, now) {
            return None;
        }
        assert!(!hollow.is_resident(), "the value is what goes");
        let hollow = hollow.publish();
        self.history.leave(&there);
        self.history.enter(&hollow);
        Some(self.table.find_slot(hash, there.key()).replace(hollow))
    }
}
