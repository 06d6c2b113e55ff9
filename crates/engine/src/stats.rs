//! What a bucket can tell about itself: each vBucket, all of them by role, and what its store holds.

use base::{VbId, VbState};

use crate::bucket::Bucket;
use crate::bucket_core::Core;
use crate::failure::Failure;
use crate::figures::StateSums;
use crate::shard_guard::Holder;
use crate::vb_stats::{StateStats, VbStats};

pub use kvstore::{Counts as DiskCounts, Stats as StoreStats};

/// What a bucket can tell, without a look at the disk.
#[derive(Clone, Copy, Debug, Default)]
pub struct BucketStats {
    /// What was counted in vBuckets before they were deleted is among them: counters of the bucket do not go down by that.
    by_state: StateSums,
    /// vBuckets in the flusher's queue.
    pub flush_queue_vbuckets: u64,
    /// Bytes charged to the bucket.
    pub used_bytes: u64,
    /// The most that may be charged.
    pub quota_bytes: u64,
    /// Up to here values are loaded ahead of their readers.
    pub low_watermark_bytes: u64,
    /// Up to here fetched values stay.
    pub high_watermark_bytes: u64,
}

impl Bucket {
    /// What one vBucket can tell; nothing if there is no such vBucket here.
    pub fn vbucket_stats(&self, vb: VbId) -> Option<VbStats> {
        self.vbuckets
            .find(vb, Holder::Stats)
            .ok()
            .filter(|shard| shard.is_told())
            .map(|shard| VbStats::of(&shard))
    }

    /// What the bucket can tell; locks vBuckets that changed since this was asked last, and their neighbours, one after the
    /// other.
    pub fn stats(&self) -> BucketStats {
        BucketStats {
            flush_queue_vbuckets: self.flush.len() as u64,
            used_bytes: self.memory.used_bytes(),
            quota_bytes: self.memory.quota_bytes(),
            low_watermark_bytes: self.memory.low_watermark_bytes(),
            high_watermark_bytes: self.memory.high_watermark_bytes(),
            by_state: self.figures.by_state(&self.vbuckets),
        }
    }

    /// What the store has done so far.
    pub fn store_stats(&self) -> StoreStats {
        self.store.stats()
    }

    /// What the store holds for a vBucket; may read from disk.
    pub fn disk_counts(&self, vb: VbId) -> Result<DiskCounts, Failure> {
        Ok(self.store.counts(vb)?)
    }

    /// What the file of a vBucket holds, without what is in the journal alone; may read from disk, and waits for no
    /// filing.
    pub fn filed_counts(&self, vb: VbId) -> Result<DiskCounts, Failure> {
        Ok(self.store.filed_counts(vb)?)
    }
}

/// What a bucket's files take. What is in the journal alone is not counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FileTotals {
    /// Bytes of the files.
    pub file_bytes: u64,
    /// Bytes in them that are in use.
    pub used_bytes: u64,
    /// Bytes of prepares.
    pub prepare_bytes: u64,
    /// vBuckets whose file could not be looked at.
    pub unreadable_vbuckets: u64,
}

/// Bytes of a bucket's files and bytes in them that are in use, as the store knows them from its last look at each: reads
/// nothing, and leaves out files that have not been looked at since the start. One that is being written at the moment counts
/// as it was at the look before.
pub fn file_usage(bucket: &Core) -> (u64, u64) {
    bucket.figures.file_usage(&*bucket.store, bucket.vbuckets())
}

/// The same of one vBucket; `None` if the store knows nothing of it, or has no files.
pub fn file_usage_of(bucket: &Core, vb: VbId) -> Option<(u64, u64)> {
    bucket.store.usage(vb).map(|usage| (usage.file_bytes, usage.used_bytes))
}

/// What a bucket's files take; reads from disk, and waits for no filing.
pub fn file_totals(bucket: &Core) -> FileTotals {
    let mut totals = FileTotals::default();
    for vb in (0..bucket.vbuckets()).map(VbId) {
        let filed = bucket.store.filed_snapshot(vb);
        match filed.and_then(|filed| filed.map_or(Ok(0), |filed| filed.prepare_bytes())) {
            Ok(bytes) => totals.prepare_bytes += bytes,
            Err(_) => totals.unreadable_vbuckets += 1,
        }
        let usage = bucket.store.usage(vb).unwrap_or_default();
        totals.file_bytes += usage.file_bytes;
        totals.used_bytes += usage.used_bytes;
    }
    totals
}

impl BucketStats {
    /// The vBuckets of one role.
    pub fn of(&self, state: VbState) -> &StateStats {
        &self.by_state[state as usize - 1]
    }

    /// All vBuckets, and what was counted in those that are deleted.
    pub fn all(&self) -> StateStats {
        let mut sum = StateStats::default();
        self.by_state.iter().for_each(|state| sum.add(state));
        sum
    }
}
