//! From the checkpoints to the disk: one step writes what one vBucket has waiting.

use std::collections::VecDeque;
use std::time::Duration;

use base::{VbId, Version};
use kvstore::{FailoverEntry, SaveBatch, VbStateDoc};
use parking_lot::{Condvar, Mutex};
use vbucket::FlushBatch;

use crate::bucket::Bucket;

/// How long the flusher lets changes gather while nobody waits for them.
const GATHER: Duration = Duration::from_millis(100);
/// How long it pauses after a failure before it tries again.
const PAUSE_AFTER_FAILURE: Duration = Duration::from_secs(1);

#[derive(Default)]
struct Queue {
    waiting: VecDeque<VbId>,
    /// vBuckets that somebody waits for; each stands in `waiting` too, where it will be found done.
    urgent: VecDeque<VbId>,
    stopping: bool,
}

/// Which vBuckets have something to write.
#[derive(Default)]
pub struct FlushQueue {
    queue: Mutex<Queue>,
    wake: Condvar,
}

/// What a step did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// There is nothing to do.
    Idle,
    /// Something was done, and there may be more.
    Worked,
    /// The disk refused; what was taken stays queued.
    Failed,
}

impl FlushQueue {
    pub(crate) fn push(&self, vb: VbId) {
        let mut queue = self.queue.lock();
        queue.waiting.push_back(vb);
        if queue.waiting.len() == 1 {
            self.wake.notify_one();
        }
    }

    /// Somebody waits for this vBucket: it goes first, and nothing gathers any longer.
    pub(crate) fn hurry(&self, vb: VbId) {
        self.queue.lock().urgent.push_back(vb);
        self.wake.notify_one();
    }

    fn pop(&self) -> Option<VbId> {
        let mut queue = self.queue.lock();
        queue.urgent.pop_front().or_else(|| queue.waiting.pop_front())
    }

    /// vBuckets in the queue.
    pub fn len(&self) -> usize {
        self.queue.lock().waiting.len()
    }

    /// Whether no vBucket is queued.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Waits until there is something to write and a batch has gathered, or somebody is in a hurry.
    /// False if the flusher shall stop.
    fn wait_for_work(&self) -> bool {
        let mut queue = self.queue.lock();
        while queue.waiting.is_empty() && queue.urgent.is_empty() && !queue.stopping {
            self.wake.wait(&mut queue);
        }
        if queue.urgent.is_empty() && !queue.stopping {
            self.wake.wait_for(&mut queue, GATHER);
        }
        !queue.stopping
    }

    /// Waits a while, or until the flusher shall stop.
    fn pause(&self) {
        let mut queue = self.queue.lock();
        if !queue.stopping {
            self.wake.wait_for(&mut queue, PAUSE_AFTER_FAILURE);
        }
    }
}

impl Bucket {
    /// Writes what the next queued vBucket has waiting.
    pub fn flush_step(&self) -> Progress {
        match self.flush.pop() {
            Some(vb) => self.flush_vbucket(vb),
            None => Progress::Idle,
        }
    }

    /// Runs flush steps until the bucket is closed; for a thread of its own.
    pub fn run_flusher(&self) {
        while self.flush.wait_for_work() {
            loop {
                match self.flush_step() {
                    Progress::Worked => {}
                    Progress::Idle => break,
                    Progress::Failed => self.flush.pause(),
                }
            }
        }
    }

    /// Lets the flusher thread end after its present step.
    pub fn stop_flusher(&self) {
        self.flush.queue.lock().stopping = true;
        self.flush.wake.notify_all();
    }

    /// Writes everything that is queued now. False if the disk refused something.
    pub fn flush_all(&self) -> bool {
        loop {
            match self.flush_step() {
                Progress::Worked => {}
                Progress::Idle => return true,
                Progress::Failed => return false,
            }
        }
    }

    fn flush_vbucket(&self, vb: VbId) -> Progress {
        let _flushing = self.flushing.lock();
        let shard = &self.shards[usize::from(vb.0)];
        let batch = {
            let mut shard = shard.lock();
            shard.flush_queued = false;
            shard.vb.take_flush_batch(self.config.flush_batch_items as u64)
        };
        let Some(batch) = batch else { return Progress::Worked };
        let saved = self.save(&batch);
        let mut guard = shard.lock();
        match saved {
            Ok(()) => {
                let removed = guard.vb.flushed(batch.high_seqno);
                if guard.vb.has_unflushed() {
                    self.queue_flush(&mut guard);
                }
                drop(guard);
                drop(removed);
                self.waiters.persisted(vb, batch.high_seqno);
                Progress::Worked
            }
            Err(failure) => {
                tracing::error!(bucket = self.name(), %failure, "cannot write; the changes stay in memory, trying again");
                guard.vb.flush_failed();
                self.queue_flush(&mut guard);
                Progress::Failed
            }
        }
    }

    fn save(&self, batch: &FlushBatch) -> Result<(), kvstore::Failure> {
        let mut items: Vec<Version> = batch.range.iter().flat_map(|range| range.iter()).cloned().collect();
        // By key; of versions of one key the newest first, which then is the only one kept.
        items.sort_unstable_by(|a, b| {
            a.stored_key().cmp(b.stored_key()).then_with(|| b.meta().by_seqno.cmp(&a.meta().by_seqno))
        });
        items.dedup_by(|later, kept| later.stored_key() == kept.stored_key());
        let state = state_document(batch);
        self.store.save(batch.id, SaveBatch { items: &items, state: &state })?;
        Ok(())
    }
}

fn state_document(batch: &FlushBatch) -> VbStateDoc {
    let high_seqno = batch.high_seqno.0;
    VbStateDoc {
        failover_table: batch
            .failover
            .iter()
            .map(|e| FailoverEntry { id: e.uuid.0, seq: e.seqno.0 })
            .collect(),
        hlc_epoch: 1,
        max_cas: batch.max_cas.0,
        max_deleted_seqno: batch.max_deleted_rev.0,
        max_visible_seqno: high_seqno,
        might_contain_xattrs: batch.might_contain_xattrs,
        // The topology was checked when it was set.
        replication_topology: batch.topology.as_deref().and_then(|text| serde_json::from_str(text).ok()),
        snap_start: high_seqno,
        snap_end: high_seqno,
        state: batch.state,
        ..VbStateDoc::default()
    }
}
