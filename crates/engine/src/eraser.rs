//! Takes documents of dropped collections out of memory, and has their files compacted.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use base::{VbId, Version};
use vbucket::DroppedCollection;

use crate::bucket_core::Core;
use crate::collections::BucketCollections;
use crate::compaction_queue::CompactRequest;
use crate::compactor::Compaction;
use crate::durability::Durability;
use crate::keeper::{Chore, Next, Slice};
use crate::shard_guard::Holder;

/// Items that are looked at under a vBucket's lock at once.
const SLICE_ITEMS: usize = 256;
/// How long the eraser rests while nothing is dropped, unless somebody drops something.
const PAUSE: Duration = Duration::from_secs(60);
/// How long it rests while it waits for a compaction.
const PAUSE_FOR_DISK: Duration = Duration::from_secs(1);

/// What the eraser works with.
pub(crate) struct Erasing {
    pub(crate) core: Arc<Core>,
    pub(crate) collections: Arc<BucketCollections>,
    pub(crate) compaction: Arc<Compaction>,
    pub(crate) durability: Arc<Durability>,
}

impl Erasing {
    pub(crate) fn new(
        core: &Arc<Core>,
        collections: &Arc<BucketCollections>,
        compaction: &Arc<Compaction>,
        durability: &Arc<Durability>,
    ) -> Erasing {
        Erasing {
            core: Arc::clone(core),
            collections: Arc::clone(collections),
            compaction: Arc::clone(compaction),
            durability: Arc::clone(durability),
        }
    }

    /// Has documents of dropped collections leave memory, and then the disk. Says whether more may be done at once.
    fn erase_slice(&self, slice: &Slice<'_>) -> Next {
        if self.collections.manifest.is_undecided.load(Ordering::Relaxed)
            && let Some(next_ids) = self.collections.manifest.next_ids.try_lock()
            && self.collections.settle_manifest(&next_ids).is_err()
        {
            self.collections.manifest.is_dropping.store(true, Ordering::Relaxed);
            return Next::After(PAUSE_FOR_DISK);
        }
        if !self.collections.manifest.is_dropping.swap(false, Ordering::Relaxed) {
            return Next::After(PAUSE);
        }
        let mut is_left = false;
        for vb in (0..self.core.vbuckets()).map(VbId) {
            while self.erase_some(vb, &mut is_left) {
                if slice.is_over() {
                    self.collections.manifest.is_dropping.store(true, Ordering::Relaxed);
                    return Next::Again;
                }
            }
        }
        if !is_left {
            return Next::After(PAUSE);
        }
        self.collections.manifest.is_dropping.store(true, Ordering::Relaxed);
        Next::After(PAUSE_FOR_DISK)
    }

    /// Erases some documents of a vBucket, or has its file compacted. Says whether there may be more in memory.
    fn erase_some(&self, vb: VbId, is_left: &mut bool) -> bool {
        self.durability.end_dropped_prepares(vb);
        let mut freed: Vec<Version> = Vec::new();
        let (more, wants_compaction) = {
            let mut shard = self.core.vbuckets.hold(vb, Holder::Eraser);
            if !shard.exists || shard.vb.collections().dropped().is_empty() {
                return false;
            }
            *is_left = true;
            if shard.unloaded.is_some() {
                return false;
            }
            let more = shard.vb.erase_dropped(SLICE_ITEMS, &mut freed);
            let persisted = shard.vb.persisted_seqno();
            let is_ready = |dropped: &DroppedCollection| dropped.is_on_disk() && dropped.end <= persisted;
            (more, !more && shard.vb.collections().dropped().iter().any(is_ready))
        };
        drop(freed);
        if wants_compaction && !self.core.is_ephemeral() {
            let purge_before_s = self.core.now().unix_s().checked_sub(self.core.config.purge_age_s);
            // If one is waiting already it will do; it is asked for again until nothing is left.
            let request = CompactRequest { purge_before_s, ..CompactRequest::default() };
            let _ = self.compaction.queue.ask(vb, request, self.compaction.is_short(vb));
        }
        more
    }
}

/// Erases what is dropped.
#[derive(Default)]
pub(crate) struct Eraser;

impl Chore for Eraser {
    type Of = Erasing;

    fn step(&mut self, erasing: &Erasing, slice: &Slice<'_>) -> Next {
        erasing.erase_slice(slice)
    }
}
