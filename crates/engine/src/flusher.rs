//! From the checkpoints to the disk: one step writes what a group of vBuckets has waiting.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use base::planted::{self, Bug};
use base::{Seqno, SyncWrite, VbId, Version, VersionMeta};
use kvstore::{CheckpointType, FailoverEntry, SaveBatch, VbStateDoc};
use parking_lot::Mutex;
use vbucket::{FlushBatch, Pressure, RangeLimit, Removed, SnapshotKind};

use crate::bucket_core::{Core, hurry_flush};
use crate::bucket_snapshot::BucketSnapshots;
use crate::checkpoint_recovery::Checkpoints;
use crate::claims::Claims;
use crate::disk_state::SaveStats;
use crate::durability::{Durability, Settled};
use crate::filer::Filer;
use crate::flush_queue::{Due, LARGE_BACKLOG};
use crate::progress::Progress;
use crate::replica::Replicas;
use crate::shard_guard::Holder;
use crate::sync_waiters::SyncStep;
use crate::tasks::{StoreOp, TaskId};
use crate::topology::TopologyValues;

/// How long the flusher pauses after a failure before it tries again.
const PAUSE_AFTER_FAILURE: Duration = Duration::from_secs(1);
/// What was removed of so many vBuckets is freed together.
const FREED_TOGETHER: usize = 64;

/// From memory to the disk: the flusher, the filer behind it, and who keeps them from a vBucket.
pub struct Flushing {
    pub(crate) core: Arc<Core>,
    pub(crate) checkpoints: Arc<Checkpoints>,
    pub(crate) durability: Arc<Durability>,
    pub(crate) replicas: Arc<Replicas>,
    /// Held while the role of a vBucket changes. Taken before `space`.
    pub(crate) claims: Claims,
    /// Held while a batch is written. Taken before any vBucket's lock.
    pub(crate) space: Mutex<FlushSpace>,
    pub(crate) filer: Filer,
}

impl Flushing {
    pub(crate) fn new(
        core: &Arc<Core>,
        checkpoints: &Arc<Checkpoints>,
        durability: &Arc<Durability>,
        replicas: &Arc<Replicas>,
    ) -> Flushing {
        Flushing {
            core: Arc::clone(core),
            checkpoints: Arc::clone(checkpoints),
            durability: Arc::clone(durability),
            replicas: Arc::clone(replicas),
            claims: Claims::default(),
            space: Mutex::default(),
            filer: Filer::default(),
        }
    }

    /// How saving goes.
    pub fn save_stats(&self) -> SaveStats {
        self.core.disk.stats(self.core.flush.is_held())
    }

    /// Writes what the next queued vBuckets have waiting, those that somebody waits for first; gathers no longer.
    pub fn flush_step(&self) -> Progress {
        let mut group = Vec::new();
        self.core.flush.take(&mut group, Due::Now);
        if group.is_empty() { Progress::Idle } else { self.flush_group(&group, &mut self.space.lock()) }
    }

    /// Runs flush steps until the bucket is closed; for a thread of its own. Ends at once if there is no disk.
    pub fn run_flusher(&self) {
        if self.core.is_ephemeral() {
            return;
        }
        let mut group = Vec::new();
        while self.core.flush.wait_for_work(&*self.core.env.clock) {
            self.core.flush.take(&mut group, Due::Gathered(self.core.env.clock.monotonic()));
            if self.flush_group(&group, &mut self.space.lock()) == Progress::Failed {
                self.core.flush.pause(PAUSE_AFTER_FAILURE);
            }
            group.clear();
            if self.core.context.checkpoints.pressure() == Pressure::Calm {
                self.core.flush.hurry_no_longer();
            }
        }
    }

    /// Lets the flusher thread end after its present step.
    pub fn stop_flusher(&self) {
        self.core.flush.stop();
    }

    /// Lets the flusher write nothing, or go on; what it has begun is finished. For tests of clients.
    pub fn hold_flusher(&self, is_held: bool) {
        self.core.flush.hold(is_held);
    }

    /// A client waits until all is written: for some seconds the flusher lets nothing gather.
    pub fn drain(&self) {
        self.core.flush.drain(self.core.env.clock.monotonic());
    }

    /// Writes everything that is queued now. False if the disk refused something: a vBucket that cannot be saved keeps
    /// no other one from being saved, and stays queued.
    pub fn flush_all(&self) -> bool {
        let (mut group, mut refused) = (Vec::new(), BTreeSet::new());
        self.wait_for_claims();
        loop {
            group.clear();
            self.core.flush.take(&mut group, Due::Now);
            if group.is_empty() {
                break;
            }
            // each is tried once
            group.retain(|vb| !refused.contains(vb));
            let space = &mut self.space.lock();
            let mut note = |vb| {
                refused.insert(vb);
            };
            self.core.tasks.run(TaskId::Flusher, || self.flush_noting(&group, space, &mut note));
        }
        let now = self.core.env.clock.monotonic();
        refused.iter().for_each(|vb| self.core.flush.push(*vb, now));
        refused.is_empty()
    }

    /// Writes what a group of different vBuckets has waiting.
    pub(crate) fn flush_group(&self, group: &[VbId], space: &mut FlushSpace) -> Progress {
        self.core.tasks.run(TaskId::Flusher, || self.flush_noting(group, space, &mut |_| {}))
    }

    /// The same; `refused` is told of each vBucket that could not be saved.
    fn flush_noting(
        &self,
        group: &[VbId],
        space: &mut FlushSpace,
        refused: &mut dyn FnMut(VbId),
    ) -> Progress {
        assert!(group.len() <= self.core.flush.group_vbuckets(), "the queue gives no more");
        BucketSnapshots::of(&self.core).keep_saved(group);
        let take = |(i, vb): (usize, &VbId)| {
            self.core.vbuckets.prefetch(group.get(i + 1).copied());
            self.take_batch(*vb)
        };
        let batches: Vec<FlushBatch> = group.iter().enumerate().filter_map(take).collect();
        if batches.is_empty() {
            return Progress::Worked;
        }
        let (outcomes, worked_ns) = self.save(&batches, space);
        self.core.disk.note(self.core.name(), &*self.core.env.clock, &outcomes);
        // One vBucket that cannot be saved holds up no others.
        let mut progress = Progress::Failed;
        let mut settled = Settled::default();
        let mut removed = Vec::with_capacity(batches.len().min(FREED_TOGETHER));
        let mut rest = batches.into_iter().zip(outcomes).peekable();
        while let Some((batch, saved)) = rest.next() {
            self.core.vbuckets.prefetch(rest.peek().map(|(next, _)| next.id));
            match saved {
                _ if saved.is_ok() || planted::is(Bug::FailedSaveCounts) => {
                    removed.push(self.saved(batch, worked_ns, &mut settled));
                    progress = Progress::Worked;
                }
                saved => {
                    if let Err(failure) = &saved {
                        self.core.unreadable.note_served(self.core.name(), batch.id, failure);
                    }
                    self.not_saved(&batch);
                    refused(batch.id);
                }
            }
            if settled.is_large() {
                settled.tell();
            }
            if removed.len() >= FREED_TOGETHER {
                self.free(&mut removed);
            }
        }
        settled.tell();
        self.free(&mut removed);
        self.replicas.tell_replica_room();
        self.filer.saved();
        self.core.keeper.rouse();
        progress
    }

    fn take_batch(&self, vb: VbId) -> Option<FlushBatch> {
        let mut shard = self.core.vbuckets.hold(vb, Holder::Flusher);
        shard.flush_queued = false;
        if shard.is_claimed {
            // It is queued again when it is released.
            return None;
        }
        let through = shard.wanted_snapshot.map_or(Seqno(u64::MAX), |wanted| wanted.seqno);
        if shard.vb.persisted_seqno() >= through {
            // Wanted after this step has looked: the next one keeps it, before anything behind it is saved.
            self.core.queue_flush(&mut shard);
            hurry_flush(&self.core, &mut shard);
            return None;
        }
        let limit = RangeLimit::items(self.core.config.flush_batch_items as u64).through(through);
        shard.vb.take_flush_batch(limit)
    }

    /// Frees what nobody needs any more, which was not looked at for long.
    fn free(&self, removed: &mut Vec<Removed>) {
        for depth in 0..3 {
            removed.iter().for_each(|one| one.prefetch(depth));
        }
        removed.drain(..).for_each(|one| self.checkpoints.dispose(one));
    }

    /// Notes that a batch is on disk, written from one moment to another. Clients that waited for what is committed by
    /// that are in `settled`. Returns what is not needed any more.
    fn saved(&self, batch: FlushBatch, written: (u64, u64), settled: &mut Settled) -> Removed {
        let (from_ns, until_ns) = written;
        let (removed, has_more) = {
            let mut shard = self.core.vbuckets.hold(batch.id, Holder::Flusher);
            let prepared = shard.vb.sync_writes().high_prepared_seqno();
            let removed = shard.vb.flushed(batch.high_seqno);
            shard.ops.drained += batch.range.as_ref().map_or(0, |range| range.items());
            if shard.vb.sync_writes().high_prepared_seqno() > prepared
                && !planted::is(Bug::SavedPreparesNotTold)
            {
                shard.tell_prepare_followers();
            }
            shard.sync_waiters.note(SyncStep::Saved { from_ns }, batch.high_seqno, until_ns);
            let has_more = self.durability.settle_held(&mut shard, settled);
            if shard.vb.has_unflushed() || shard.wanted_snapshot.is_some() {
                self.core.queue_flush(&mut shard);
            }
            if shard.unflushed() > LARGE_BACKLOG || shard.wanted_snapshot.is_some() {
                hurry_flush(&self.core, &mut shard);
            }
            (removed, has_more)
        };
        if has_more {
            self.durability.settle(batch.id);
        }
        self.durability.waiters.persisted(batch.id, batch.high_seqno);
        // The batch holds what was removed: it goes first, so that not it is what frees everything.
        drop(batch);
        removed
    }

    fn not_saved(&self, batch: &FlushBatch) {
        let mut shard = self.core.vbuckets.hold(batch.id, Holder::Flusher);
        shard.vb.flush_failed();
        self.core.queue_flush(&mut shard);
        // It has waited already.
        hurry_flush(&self.core, &mut shard);
    }

    /// What became of each batch, and the moments from which and until which the store worked.
    fn save(
        &self,
        batches: &[FlushBatch],
        space: &mut FlushSpace,
    ) -> (Vec<Result<(), kvstore::Failure>>, (u64, u64)) {
        let FlushSpace { items, ends, states } = space;
        let mut topologies = TopologyValues::default();
        if states.len() < batches.len() {
            states.resize_with(batches.len(), VbStateDoc::default);
        }
        for (batch, state) in batches.iter().zip(states.iter_mut()) {
            let keeps_past = batch.history_from > Seqno(0) && self.core.store.keeps_history();
            let deduplicated = add_newest(batch, keeps_past, items);
            self.core.disk.deduplicated.fetch_add(deduplicated, Ordering::Relaxed);
            ends.push(items.len());
            set_state(state, batch, &mut topologies);
            if !keeps_past {
                // The store may begin to keep a history before it gets this.
                state.history_from = 0;
            }
        }
        let mut start = 0;
        let batch_of = |((batch, end), state): ((&FlushBatch, &usize), _)| {
            let items = &items[std::mem::replace(&mut start, *end)..*end];
            (batch.id, SaveBatch { items, state })
        };
        let group: Vec<(VbId, SaveBatch<'_>)> =
            batches.iter().zip(ends.iter()).zip(states.iter()).map(batch_of).collect();
        let saved = self.core.tasks.store_op_timed(StoreOp::Commit, || self.core.store.save_group(&group));
        space.clear();
        saved
    }
}

/// What a flush step needs while it works; what of it is not too large is used again by the next.
#[derive(Default)]
pub(crate) struct FlushSpace {
    /// What is saved, vBucket by vBucket,
    items: Vec<Version>,
    /// where each one's end,
    ends: Vec<usize>,
    /// and their states.
    states: Vec<VbStateDoc>,
}

impl FlushSpace {
    /// More versions than this are not provided for.
    const MOST_ITEMS: usize = 4096;

    fn clear(&mut self) {
        kvstore::release(&mut self.items);
        self.items.shrink_to(FlushSpace::MOST_ITEMS);
        self.ends.clear();
    }
}

/// Appends the changes of a batch by key, only the newest of each, or with `keeps_past` all that belong to the history of
/// changes, without prepares that are committed. How many others there were.
fn add_newest(batch: &FlushBatch, keeps_past: bool, items: &mut Vec<Version>) -> u64 {
    let Some(range) = &batch.range else { return 0 };
    let from = items.len();
    match keeps_past {
        true => kvstore::add_with_past_of(range.iter(), items),
        false => kvstore::add_newest_of(range.iter(), range.items(), items),
    }
    let deduplicated = range.items() - (items.len() - from) as u64;
    let mut completed = batch.sync_writes.high_completed;
    if planted::is(Bug::PreparesNotSaved) {
        completed = Seqno(u64::MAX);
    }
    // Without prepares since the last ones that are over there is nothing to look for.
    if completed >= range.start() {
        items.extract_if(from.., |version| is_committed(&version.meta(), completed)).for_each(drop);
    }
    deduplicated
}

/// Whether a version is a prepare that was committed, with all prepares up to `completed` committed or aborted.
pub(crate) fn is_committed(meta: &VersionMeta, completed: Seqno) -> bool {
    matches!(meta.sync_write, SyncWrite::Prepare(_)) && meta.by_seqno <= completed
}

/// The state document that goes with a batch.
pub(crate) fn state_document(batch: &FlushBatch, topologies: &mut TopologyValues) -> VbStateDoc {
    let mut state = VbStateDoc::default();
    set_state(&mut state, batch, topologies);
    state
}

/// Makes a document, of whatever vBucket it was, the one that goes with a batch.
fn set_state(state: &mut VbStateDoc, batch: &FlushBatch, topologies: &mut TopologyValues) {
    let sync_writes = batch.sync_writes;
    let mut failover_table = std::mem::take(&mut state.failover_table);
    failover_table.clear();
    let entries = batch.failover.entries().iter();
    failover_table.extend(entries.map(|entry| FailoverEntry { id: entry.uuid.0, seq: entry.seqno.0 }));
    *state = VbStateDoc {
        checkpoint_type: match batch.snapshot.kind {
            SnapshotKind::Memory => CheckpointType::Memory,
            SnapshotKind::Disk => CheckpointType::Disk,
            SnapshotKind::InitialDisk => CheckpointType::InitialDisk,
        },
        failover_table,
        hlc_epoch: 1,
        max_cas: batch.max_cas.0,
        max_deleted_seqno: batch.max_deleted_rev.0,
        max_visible_seqno: batch.max_visible().0,
        completed_seqno: sync_writes.high_completed.0,
        high_prepared_seqno: sync_writes.high_prepared.0,
        history_from: batch.history_from.0,
        prepared_seqno: sync_writes.last_prepared.0,
        on_disk_prepares: sync_writes.in_flight,
        on_disk_prepare_bytes: sync_writes.in_flight_bytes,
        might_contain_xattrs: batch.might_contain_xattrs,
        replication_topology: batch.topology.as_ref().map(|topology| topologies.of(topology)),
        purge_seqno: batch.purge_seqno.0,
        snap_start: batch.snapshot.start.0,
        snap_end: batch.snapshot.end.0,
        state: batch.state,
        ..VbStateDoc::default()
    };
}
