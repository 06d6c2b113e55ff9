//! What one vBucket can tell about itself, and sums of that over several of the same role.

use base::{Cas, RevSeqno, Seqno, VbId, VbState, VbUuid};
use vbucket::{ClockCounts, Written};

use crate::checkpoint_stats::CheckpointStats;
use crate::counters::OpCounts;
use crate::shard::Shard;

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
    /// Documents, expired ones included until they are met; those on disk while they are not loaded.
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

impl VbStats {
    /// Changes that came into the disk queue.
    pub fn enqueued(&self) -> u64 {
        self.ops.drained + self.ops.discarded + self.checkpoints.unpersisted_items
    }

    pub(crate) fn of(shard: &Shard) -> VbStats {
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

    pub(crate) fn count_deleted(&mut self, ops: &OpCounts) {
        self.ops.add(ops);
        self.merged_items += ops.merged_before;
    }

    pub(crate) fn enter(&mut self, vb: &VbStats) {
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

    pub(crate) fn add(&mut self, other: &StateStats) {
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
