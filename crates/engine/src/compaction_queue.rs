//! Which vBuckets are to be compacted because somebody asked, and what compactions came to.

use std::collections::{HashMap, VecDeque};
use std::ops::ControlFlow;
use std::time::Duration;

use base::{Seqno, VbId};
use kvstore::{Compacted, CompactionProgress};
use parking_lot::{Condvar, Mutex};

use crate::completion::{Completer, Completion, completion};

/// After a failure a vBucket is left alone for so long, unless somebody asks.
const LEAVE_AFTER_FAILURE: Duration = Duration::from_secs(600);

/// What somebody who asks for a compaction wants left out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CompactRequest {
    /// Tombstones deleted before this; nothing if all stay.
    pub purge_before_s: Option<u32>,
    /// Of them only those up to here; nothing if it does not matter.
    pub purge_through: Option<Seqno>,
}

/// What became of a compaction that somebody asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CompactOutcome {
    /// It is done.
    Done,
    /// The vBucket was deleted or rolled back, or the bucket is being closed.
    Ended,
    /// It failed; the reason is in the log.
    Failed,
}

/// What compactions came to since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CompactionStats {
    /// Compactions that were finished.
    pub runs: u64,
    /// Compactions that failed.
    pub failed: u64,
    /// Bytes of the files before they were compacted.
    pub before_bytes: u64,
    /// Bytes of them afterwards.
    pub after_bytes: u64,
    /// Tombstones left out for their age.
    pub tombstones_purged: u64,
    /// Expired documents found, which became tombstones.
    pub documents_expired: u64,
    /// Compactions that wait because somebody asked for them.
    pub waiting: u64,
    /// The one that is under way.
    pub running: Option<CompactionRun>,
}

/// A compaction that is under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompactionRun {
    /// Of which vBucket.
    pub vb: VbId,
    /// How far it is.
    pub progress: CompactionProgress,
}

/// A compaction to do.
pub(crate) struct Job {
    pub(crate) vb: VbId,
    pub(crate) request: CompactRequest,
    /// Who waits for it.
    pub(crate) completer: Option<Completer<CompactOutcome>>,
}

/// What is to be compacted.
#[derive(Default)]
pub(crate) struct CompactionQueue {
    queue: Mutex<Queue>,
    wake: Condvar,
}

#[derive(Default)]
struct Queue {
    asked: VecDeque<Job>,
    stats: CompactionStats,
    /// vBuckets that could not be compacted, with the time until when they are left alone.
    left_alone: HashMap<VbId, Duration>,
    stopping: bool,
}

impl CompactionQueue {
    /// Asks for one; nothing if the vBucket waits for one already, is being compacted, or the bucket is being closed.
    pub(crate) fn ask(&self, vb: VbId, request: CompactRequest) -> Option<Completion<CompactOutcome>> {
        let mut queue = self.queue.lock();
        let is_running = queue.stats.running.is_some_and(|running| running.vb == vb);
        if queue.stopping || is_running || queue.asked.iter().any(|job| job.vb == vb) {
            return None;
        }
        let (completer, promised) = completion();
        queue.asked.push_back(Job { vb, request, completer: Some(completer) });
        self.wake.notify_one();
        Some(promised)
    }

    /// Begins the next one that somebody asked for, or else the one that `choose` finds. Nothing while one is running.
    pub(crate) fn begin(&self, choose: impl FnOnce() -> Option<Job>) -> Option<Job> {
        if let Some(job) = self.begin_with(None) {
            return Some(job);
        }
        let chosen = choose()?;
        self.begin_with(Some(chosen))
    }

    fn begin_with(&self, chosen: Option<Job>) -> Option<Job> {
        let mut queue = self.queue.lock();
        if queue.stats.running.is_some() || queue.stopping {
            return None;
        }
        let job = queue.asked.pop_front().or(chosen)?;
        queue.stats.running = Some(CompactionRun { vb: job.vb, progress: CompactionProgress::default() });
        Some(job)
    }

    /// How far the one that is running is; tells it to end if the bucket is being closed.
    pub(crate) fn progress(&self, progress: CompactionProgress) -> ControlFlow<()> {
        let mut queue = self.queue.lock();
        if let Some(running) = &mut queue.stats.running {
            running.progress = progress;
        }
        if queue.stopping { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    /// The one that is running is done.
    pub(crate) fn done(&self, vb: VbId, compacted: &Compacted, expired: u64) {
        let mut queue = self.queue.lock();
        queue.left_alone.remove(&vb);
        let stats = &mut queue.stats;
        stats.running = None;
        stats.runs += 1;
        stats.before_bytes += compacted.before_bytes;
        stats.after_bytes += compacted.after_bytes;
        stats.tombstones_purged += compacted.tombstones_purged;
        stats.documents_expired += expired;
    }

    /// The one that is running came to nothing.
    pub(crate) fn gave_up(&self, vb: VbId, now: Duration, has_failed: bool) {
        let mut queue = self.queue.lock();
        queue.stats.running = None;
        if has_failed {
            queue.stats.failed += 1;
            queue.left_alone.insert(vb, now + LEAVE_AFTER_FAILURE);
        }
    }

    /// Whether a vBucket is to be left alone unless somebody asks.
    pub(crate) fn is_left_alone(&self, vb: VbId, now: Duration) -> bool {
        self.queue.lock().left_alone.get(&vb).is_some_and(|until| now < *until)
    }

    pub(crate) fn stats(&self) -> CompactionStats {
        let queue = self.queue.lock();
        CompactionStats { waiting: queue.asked.len() as u64, ..queue.stats }
    }

    /// Waits a while, or until somebody asks. False if the bucket is being closed.
    pub(crate) fn pause(&self, time: Duration) -> bool {
        let mut queue = self.queue.lock();
        if !queue.stopping && queue.asked.is_empty() {
            self.wake.wait_for(&mut queue, time);
        }
        !queue.stopping
    }

    /// Ends what is running soon; whoever waits is told that nobody comes.
    pub(crate) fn stop(&self) {
        let left = {
            let mut queue = self.queue.lock();
            queue.stopping = true;
            std::mem::take(&mut queue.asked)
        };
        self.wake.notify_all();
        drop(left);
    }
}
