//! Documents and tombstones of which nothing is in memory: how they leave, and how filters of their keys stay right.

use std::ops::ControlFlow;

use base::{DocKey, VbId, Version};
use kvstore::Values;

use crate::evict::Eviction;
use crate::failure_log::Failed;
use crate::progress::Progress;
use crate::refusal::Refusal;
use crate::shard_guard::Holder;

/// Items that are counted under a vBucket's lock at once.
const SLICE_ITEMS: usize = 128;

impl Eviction {
    /// Takes whatever there is for a key out of memory, a tombstone too. False if it has to stay.
    pub fn evict_whole(&self, vb: VbId, key: DocKey<'_>) -> Result<bool, Refusal> {
        let hash = self.core.hash(key);
        let found = self
            .core
            .vbuckets
            .loaded(vb, Holder::FrontEnd)?
            .vb
            .find(hash, key)?
            .map(|version| version.clone());
        let version = found.ok_or(Refusal::NotFound)?;
        Ok(self.evict_document(vb, hash, &version))
    }

    /// Takes out exactly this version, if it may go.
    pub(crate) fn evict_document(&self, vb: VbId, hash: u64, version: &Version) -> bool {
        let now = self.core.now();
        let Ok(mut shard) = self.core.vbuckets.loaded(vb, Holder::Fetcher) else { return false };
        let taken = shard.vb.evict_whole(hash, version, now);
        self.count_single(&mut shard.ops, taken.is_some());
        drop(shard);
        taken.is_some()
    }

    /// Whether there may be something for a key, of which nothing is in memory.
    pub(crate) fn is_evicted(&self, vb: VbId, key: DocKey<'_>) -> Result<bool, Refusal> {
        let hash = self.core.hash(key);
        Ok(self.core.vbuckets.loaded(vb, Holder::FrontEnd)?.vb.find(hash, key).is_err())
    }

    /// Makes anew a filter of evicted keys that is stale or missing.
    pub(crate) fn filter_step(&self) -> Progress {
        for vb in (0..self.core.vbuckets()).map(VbId) {
            let incarnation = {
                let shard = self.core.vbuckets.hold(vb, Holder::Compactor);
                if !shard.exists || shard.unloaded.is_some() || !shard.vb.wants_recount() {
                    continue;
                }
                shard.incarnation
            };
            return if self.recount_evicted(vb, incarnation) { Progress::Worked } else { Progress::Failed };
        }
        Progress::Idle
    }

    /// Counts anew what of a vBucket is on disk alone, with a new filter, from all keys on disk. False if it failed;
    /// then the count is what it was.
    pub(crate) fn recount_evicted(&self, vb: VbId, incarnation: u64) -> bool {
        let ticket = {
            let mut shard = self.core.vbuckets.hold(vb, Holder::Compactor);
            let counts = shard.vb.counts();
            if shard.incarnation != incarnation || counts.evicted_documents + counts.evicted_tombstones == 0 {
                return true;
            }
            // What is dropped leaves memory first; the compaction that follows counts again.
            let Some(ticket) = shard.vb.begin_recount() else { return true };
            ticket
        };
        let counted = self.count_keys(vb, incarnation, ticket);
        if let Err(failure) = &counted {
            self.core.unreadable.note_served(self.core.name(), vb, failure);
            self.core.failure_log.failed(self.core.name(), vb, Failed::Recount, failure);
        }
        let mut shard = self.core.vbuckets.hold(vb, Holder::Compactor);
        let is_same = shard.incarnation == incarnation;
        let old = if is_same { shard.vb.end_recount(ticket, counted.is_ok()) } else { None };
        drop(shard);
        drop(old);
        counted.is_ok()
    }

    fn count_keys(&self, vb: VbId, incarnation: u64, ticket: u64) -> Result<(), kvstore::Failure> {
        let Some(snapshot) = self.core.store.snapshot(vb)? else { return Ok(()) };
        let newest = snapshot.high_seqno();
        let begun = {
            let mut shard = self.core.vbuckets.hold(vb, Holder::Compactor);
            shard.incarnation == incarnation && shard.vb.recount_through(ticket, newest)
        };
        let mut slice = Vec::with_capacity(SLICE_ITEMS);
        let show = |slice: &mut Vec<(u64, Version)>| {
            let mut shard = self.core.vbuckets.hold(vb, Holder::Compactor);
            let goes_on = shard.incarnation == incarnation && shard.vb.recount_slice(ticket, slice);
            drop(shard);
            slice.clear();
            if goes_on { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        };
        if !begun {
            return Ok(());
        }
        snapshot.scan_keys(&[], Values::Leave, &mut |version| {
            slice.push((self.core.hash(version.key()), version));
            if slice.len() == SLICE_ITEMS { show(&mut slice) } else { ControlFlow::Continue(()) }
        })?;
        let _ = show(&mut slice);
        Ok(())
    }
}
