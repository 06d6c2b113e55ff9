//! What a bucket can tell about itself: each vBucket, all of them by role, and what its store holds.

use base::{Cas, RevSeqno, Seqno, VbId, VbState, VbUuid};
use vbucket::{ClockCounts, Written};

use crate::bucket::Bucket;
use crate::bucket_core::Core;
use crate::checkpoint_stats::CheckpointStats;
use crate::counters::OpCounts;
use crate::failure::Failure;
use crate::shard::Shard;
use crate::shard_guard::Holder;

pub use kvstore::{Counts as DiskCounts, Stats as StoreStats};

/// The roles in the order of their wire numbers.
pub const STATES: [VbState; 4] = [VbState::Active, VbState::Replica, VbState::Pending, VbState::Dead];

/// What one vBucket can tell, read in one piece under its lock.
#[derive(Clone, Copy, Debug)]
pub struct VbStats {
    /// Its number.
    pub id: VbId,
    /// Its role.
    pub state: VbState,
    /// Its present history.
    pub uuid: VbUuid,
    /// The last change.
    pub high_seqno: Seqno,
    /// The last change that is on disk, synced.
    pub persisted_seqno: Seqno,
    /// Tombstones up to here may have been forgotten.
    pub purge_seqno: Seqno,
    /// The largest CAS given out or seen.
    pub max_cas: Cas,
    /// The largest revision a tombstone had.
    pub max_deleted_rev: RevSeqno,
    /// What its clock has seen.
    pub clock: ClockCounts,
    /// Whether any document may have xattrs.
    pub might_contain_xattrs: bool,
    /// Documents, expired ones included until somebody notices; those on disk while they are not loaded.
    pub documents: u64,
    /// Tombstones, in memory or not.
    pub tombstones: u64,
    /// Documents whose value is not in memory.
    pub without_value: u64,
    /// Those of them of which nothing is in memory.
    pub evicted_documents: u64,
    /// Tombstones of which nothing is in memory.
    pub evicted_tombstones: u64,
    /// Bytes of the filter of keys of which nothing is in memory.
    pub filter_bytes: u64,
    /// Bytes of the versions that the hash table points at.
    pub item_bytes: u64,
    /// Documents and tombstones in the hash table, with or without their values.
    pub table_items: u64,
    /// Bytes of the hash table without the versions.
    pub table_bytes: u64,
    /// Its checkpoints.
    pub checkpoints: CheckpointStats,
    /// What clients did.
    pub ops: OpCounts,
    /// Changes that brought documents.
    pub written: Written,
    /// The last change that clients may see.
    pub visible_seqno: Seqno,
    /// The last prepare.
    pub prepared_seqno: Seqno,
    /// The last prepare that was committed or aborted.
    pub completed_seqno: Seqno,
    /// Whether it waits for the flusher.
    pub flush_queued: bool,
    /// Its list of items in seqno order; nothing if it has a disk.
    pub seq_list: Option<vbucket::SeqListCounts>,
}

/// Sums over the vBuckets of one role.
#[derive(Clone, Copy, Debug, Default)]
pub struct StateStats {
    /// vBuckets.
    pub vbuckets: u64,
    /// Documents, in memory or not.
    pub documents: u64,
    /// Tombstones, in memory or not.
    pub tombstones: u64,
    /// Documents whose value is not in memory.
    pub without_value: u64,
    /// Those of them of which nothing is in memory.
    pub evicted_documents: u64,
    /// Tombstones of which nothing is in memory.
    pub evicted_tombstones: u64,
    /// Bytes of the filters of keys of which nothing is in memory.
    pub filter_bytes: u64,
    /// Bytes of the versions that the hash tables point at.
    pub item_bytes: u64,
    /// Bytes of the hash tables without the versions.
    pub table_bytes: u64,
    /// Checkpoints in memory.
    pub checkpoints: u64,
    /// Changes in checkpoints.
    pub checkpoint_items: u64,
    /// Bytes of the versions queued.
    pub checkpoint_item_bytes: u64,
    /// Bytes of everything else that checkpoints and cursors need.
    pub checkpoint_overhead_bytes: u64,
    /// Changes that the flusher has not written yet.
    pub unpersisted_items: u64,
    /// Changes that a later one of the same document replaced in checkpoints.
    pub merged_items: u64,
    /// How far the disk is behind: high seqno less persisted seqno.
    pub seqno_lag: u64,
    /// What the clocks have seen.
    pub clock: ClockCounts,
    /// What clients did.
    pub ops: OpCounts,
    /// Changes that brought documents. Those of a vBucket leave with it.
    pub written: Written,
    /// Items in the lists of an ephemeral bucket.
    pub seq_list_items: u64,
    /// Stale copies in them.
    pub stale_items: u64,
    /// Bytes of the stale copies.
    pub stale_bytes: u64,
    /// Bytes of the lists without the versions.
    pub seq_list_bytes: u64,
}

/// What a bucket can tell, without a look at the disk.
#[derive(Clone, Copy, Debug, Default)]
pub struct BucketStats {
    by_state: [StateStats; 4],
    /// What was counted in vBuckets before they were deleted: counters of the bucket do not go down by that.
    deleted: StateStats,
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
    /// What one vBucket can tell; nothing if there is no such vBucket.
    pub fn vbucket_stats(&self, vb: VbId) -> Option<VbStats> {
        Some(VbStats::of(&*self.vbuckets.find(vb, Holder::Stats).ok()?))
    }

    /// What the bucket can tell; locks each vBucket once, one after the other.
    pub fn stats(&self) -> BucketStats {
        let mut stats = BucketStats {
            flush_queue_vbuckets: self.flush.len() as u64,
            used_bytes: self.memory.used_bytes(),
            quota_bytes: self.memory.quota_bytes(),
            low_watermark_bytes: self.memory.low_watermark_bytes(),
            high_watermark_bytes: self.memory.high_watermark_bytes(),
            ..BucketStats::default()
        };
        for id in 0..self.vbuckets() {
            let Some(shard) = self.vbuckets.any(VbId(id), Holder::Stats) else { continue };
            if shard.exists {
                stats.by_state[shard.vb.state() as usize - 1].enter(&VbStats::of(&shard));
            } else {
                stats.deleted.count_deleted(&shard.ops);
            }
        }
        stats
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
/// nothing, and leaves out files that are being written at the moment or have not been looked at since the start.
pub fn file_usage(bucket: &Core) -> (u64, u64) {
    let usages = (0..bucket.vbuckets()).filter_map(|vb| bucket.store.usage(VbId(vb)));
    usages.fold((0, 0), |(file, used), usage| (file + usage.file_bytes, used + usage.used_bytes))
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

impl VbStats {
    /// Changes that came into the disk queue.
    pub fn enqueued(&self) -> u64 {
        self.ops.drained + self.ops.discarded + self.checkpoints.unpersisted_items
    }

    fn of(shard: &Shard) -> VbStats {
        let vb = &shard.vb;
        let counts = vb.counts();
        let (documents, tombstones) = shard.item_counts();
        let mut checkpoints = CheckpointStats::of(vb.checkpoints());
        checkpoints.merged += shard.ops.merged_before;
        VbStats {
            id: vb.id(),
            state: vb.state(),
            uuid: vb.uuid(),
            high_seqno: vb.high_seqno(),
            persisted_seqno: vb.persisted_seqno(),
            purge_seqno: vb.purge_seqno(),
            max_cas: vb.max_cas(),
            clock: vbucket::clock_counts(vb),
            max_deleted_rev: vb.max_deleted_rev(),
            might_contain_xattrs: vb.might_contain_xattrs(),
            documents,
            tombstones,
            without_value: match shard.unloaded {
                Some(_) => documents,
                None => counts.without_value + counts.evicted_documents,
            },
            evicted_documents: counts.evicted_documents,
            evicted_tombstones: counts.evicted_tombstones,
            filter_bytes: vb.filter_bytes() as u64,
            item_bytes: counts.bytes,
            table_items: vb.table().len() as u64,
            table_bytes: vb.table().allocated_bytes() as u64,
            checkpoints,
            ops: shard.ops,
            written: vbucket::written(vb),
            visible_seqno: vb.max_visible_seqno(),
            prepared_seqno: vb.sync_writes().high_prepared_seqno(),
            completed_seqno: vb.sync_writes().high_completed_seqno(),
            flush_queued: shard.flush_queued,
            seq_list: vb.seq_list().map(vbucket::SeqList::counts),
        }
    }
}

impl StateStats {
    /// Changes that ever came into the disk queue: those that left it saved or with their vBucket, and those that are in
    /// it. One that replaced another one there did not make it longer.
    pub fn enqueued(&self) -> u64 {
        self.ops.drained + self.ops.discarded + self.unpersisted_items
    }

    fn count_deleted(&mut self, ops: &OpCounts) {
        self.ops.add(ops);
        self.merged_items += ops.merged_before;
    }

    fn enter(&mut self, vb: &VbStats) {
        let CheckpointStats {
            checkpoints,
            items,
            item_bytes,
            overhead_bytes,
            unpersisted_items,
            merged: merged_items,
            ..
        } = vb.checkpoints;
        let list = vb.seq_list.unwrap_or_default();
        self.add(&StateStats {
            vbuckets: 1,
            documents: vb.documents,
            tombstones: vb.tombstones,
            without_value: vb.without_value,
            evicted_documents: vb.evicted_documents,
            evicted_tombstones: vb.evicted_tombstones,
            filter_bytes: vb.filter_bytes,
            item_bytes: vb.item_bytes,
            table_bytes: vb.table_bytes,
            checkpoints,
            checkpoint_items: items,
            checkpoint_item_bytes: item_bytes,
            checkpoint_overhead_bytes: overhead_bytes,
            unpersisted_items,
            merged_items,
            seqno_lag: if vb.seq_list.is_some() {
                0
            } else {
                vb.high_seqno.0.saturating_sub(vb.persisted_seqno.0)
            },
            clock: vb.clock,
            ops: vb.ops,
            written: vb.written,
            seq_list_items: list.items,
            stale_items: list.stale_items,
            stale_bytes: list.stale_bytes,
            seq_list_bytes: list.bytes,
        });
    }

    fn add(&mut self, other: &StateStats) {
        self.vbuckets += other.vbuckets;
        self.documents += other.documents;
        self.tombstones += other.tombstones;
        self.without_value += other.without_value;
        self.evicted_documents += other.evicted_documents;
        self.evicted_tombstones += other.evicted_tombstones;
        self.filter_bytes += other.filter_bytes;
        self.item_bytes += other.item_bytes;
        self.table_bytes += other.table_bytes;
        self.checkpoints += other.checkpoints;
        self.checkpoint_items += other.checkpoint_items;
        self.checkpoint_item_bytes += other.checkpoint_item_bytes;
        self.checkpoint_overhead_bytes += other.checkpoint_overhead_bytes;
        self.unpersisted_items += other.unpersisted_items;
        self.merged_items += other.merged_items;
        self.seqno_lag += other.seqno_lag;
        self.clock.drift_us = self.clock.drift_us.saturating_add(other.clock.drift_us);
        self.clock.foreign += other.clock.foreign;
        self.clock.ahead += other.clock.ahead;
        self.clock.behind += other.clock.behind;
        self.clock.logical_ticks += other.clock.logical_ticks;
        self.ops.add(&other.ops);
        self.written.created += other.written.created;
        self.written.updated += other.written.updated;
        self.seq_list_items += other.seq_list_items;
        self.stale_items += other.stale_items;
        self.stale_bytes += other.stale_bytes;
        self.seq_list_bytes += other.seq_list_bytes;
    }
}

impl BucketStats {
    /// The vBuckets of one role.
    pub fn of(&self, state: VbState) -> &StateStats {
        &self.by_state[state as usize - 1]
    }

    /// All vBuckets, and what was counted in those that are deleted.
    pub fn all(&self) -> StateStats {
        let mut sum = StateStats::default();
        self.by_state.iter().chain([&self.deleted]).for_each(|state| sum.add(state));
        sum
    }
}
