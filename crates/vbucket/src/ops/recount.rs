//! Counting what is on disk alone, and filtering it, anew: after a purge, or when the filter is stale or missing.
//!
//! Who counts takes a snapshot of the disk after [`Contents::begin_recount`], tells how new it is, shows all its keys
//! in order, a slice at a time, and ends the count. Meanwhile only versions that the snapshot has may leave memory.

use base::{CollectionId, Seqno, Version};

use crate::filter::Filter;
use crate::vbucket::{Contents, VBucket};

impl VBucket {
    /// Whether it is time to count anew.
    pub fn wants_recount(&self) -> bool {
        self.contents.evicted.wants_recount(!self.is_following())
            && !self.contents.history.collections.wants_erasing()
    }
}

impl Contents {
    /// Begins to count anew and says under which number; another count that is under way comes to nothing. Nothing if
    /// it cannot be counted before documents of dropped collections have left memory.
    pub fn begin_recount(&mut self) -> Option<u64> {
        (!self.history.collections.wants_erasing()).then(|| self.evicted.begin_recount())
    }

    /// Tells how new the snapshot is that is counted. False if the count was ended.
    pub fn recount_through(&mut self, ticket: u64, newest: Seqno) -> bool {
        self.evicted.recount(ticket).map(|recount| recount.set_newest(newest)).is_some()
    }

    /// Shows the next versions of the snapshot, with the hashes of their keys. False if the count was ended.
    pub fn recount_slice(&mut self, ticket: u64, slice: &[(u64, Version)]) -> bool {
        let Some(recount) = self.evicted.recount(ticket) else { return false };
        for (hash, version) in slice {
            let is_counted =
                version.key().collection != CollectionId::SYSTEM && !self.history.collections.hides(version);
            if is_counted && self.table.find(*hash, version.key()).is_none() {
                recount.note(*hash, version);
            }
        }
        if let Some((_, last)) = slice.last() {
            recount.pass(last.stored_key());
        }
        true
    }

    /// Ends a count; what was counted holds if it is `complete`. Drop what is returned outside the lock.
    pub fn end_recount(&mut self, ticket: u64, complete: bool) -> Option<Filter> {
        self.evicted.end_recount(ticket, complete)
    }
}
