//! Whole documents and tombstones that leave memory, and come back for somebody who needs them.
//!
//! Whoever asks the disk for a key that is not in the table *ties* it first: from then on no version of the key leaves
//! the table, so what the disk answers later still fits. A key without a version in the table that the disk has
//! nothing for is *known* to be absent until the tie ends, which is when those who asked have looked again.

use base::{DocKey, Moment, Seqno, Version};

use crate::filter::Filter;
use crate::vbucket::{Contents, VBucket};

/// A filter is made for one of so many documents of a vBucket at first.
const FIRST_SHARE: u64 = 8;

/// Where the version of a key is that somebody waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    /// In the table, or nowhere: look there.
    InMemory,
    /// Its value, of so many bytes, is on disk.
    Value(u32),
    /// It may be on disk, all of it. The key is tied.
    OnDisk,
    /// It is known to be nowhere, as long as it is tied; it is tied once more.
    Nowhere,
}

impl VBucket {
    /// Takes a document or tombstone out of memory: exactly `version`, with its value or without.
    ///
    /// Returns what was there, to be dropped outside the lock; nothing if it is another version by now, or has to
    /// stay: it is not on disk yet, it is locked or its CAS is that of an earlier lock, or somebody looks for its key.
    pub fn evict_whole(&mut self, hash: u64, version: &Version, now: Moment) -> Option<Version> {
        // What is on disk is in no open checkpoint: that one is closed before its changes are taken.
        let is_saved = self.is_saved(&version.meta());
        let slot = self.contents.table.find_slot(hash, version.key());
        let there = slot.get()?;
        let meta = there.meta();
        let is_clean = meta.by_seqno != Seqno(0) && is_saved;
        let is_locked = self.contents.locks.holder(there.key(), now).is_some();
        // A commit replaces what is in the table.
        let is_prepared = self.sync_writes.of(there.key()).is_some();
        // What is dropped is erased instead.
        let is_clean = is_clean && !is_prepared && !self.contents.history.collections.hides(&there);
        if meta != version.meta() || !is_clean || is_locked || self.contents.evicted.keeps(&there) {
            return None;
        }
        self.contents.history.leave(&there);
        let gone = slot.remove();
        self.contents.history.collections.evict(&gone);
        self.contents.evicted.enter(hash, &gone, self.contents.table.len() as u64 / FIRST_SHARE);
        Some(gone)
    }

    /// Puts in the table what the disk holds of a tied key. Says whether it is there; otherwise ask again: the key is
    /// in the table already, or is about to be, or it is a tombstone that may have been purged since there were so many
    /// `purges`.
    pub fn bring_back(&mut self, hash: u64, version: &Version, purges: u64) -> (bool, Option<Filter>) {
        assert!(self.contents.evicted.ties.hold(version.key()), "a key is tied before the disk is asked");
        // The disk may have what was prepared alone a moment before anybody sees it.
        let is_about_to_be = self.sync_writes.of(version.key()).is_some_and(|one| one.is_alone());
        let slot = self.contents.table.find_slot(hash, version.key());
        if slot.get().is_some()
            || is_about_to_be
            || (version.is_deleted() && purges != self.contents.evicted.purges)
        {
            return (false, None);
        }
        let filter = self.contents.evicted.leave(version);
        self.contents.history.collections.bring_back(version);
        self.contents.history.enter(version);
        slot.insert(version.clone());
        self.contents.evicted.ties.found(version.key());
        (true, filter)
    }
}

impl Contents {
    /// Finds out where the version of a key is that somebody waits for. A key that may be on disk is tied: ask the
    /// disk, tell [`VBucket::bring_back`] or [`Contents::found_nothing`], and [`Contents::end_look`].
    pub fn begin_look(&mut self, hash: u64, key: DocKey<'_>) -> Look {
        match self
            .find(hash, key)
            .map(|found| found.map(|version| (version.is_resident(), version.value_bytes())))
        {
            Ok(Some((false, bytes))) => Look::Value(bytes),
            Ok(None) if self.evicted.ties.know(key) => {
                self.evicted.ties.look(key);
                Look::Nowhere
            }
            Ok(_) => Look::InMemory,
            Err(_) => {
                self.evicted.ties.look(key);
                Look::OnDisk
            }
        }
    }

    /// How often tombstones were purged: note it before the disk is asked, for [`VBucket::bring_back`].
    pub fn purges(&self) -> u64 {
        self.evicted.purges
    }

    /// The disk has nothing of a tied key.
    pub fn found_nothing(&mut self, key: DocKey<'_>) {
        self.evicted.ties.found(key);
    }

    /// Who looked for the key has seen what came of it.
    pub fn end_look(&mut self, key: DocKey<'_>) {
        self.evicted.ties.release(key);
    }
}
