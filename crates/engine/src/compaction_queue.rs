//! Which vBuckets are to be compacted because somebody asked, and what compactions came to.

use std::collections::{HashMap, VecDeque};
use std::ops::ControlFlow;
use std::time::Duration;

use base::{Seqno, VbId};
use kvstore::{Compacted, CompactionProgress};
use parking_lot::{Condvar, Mutex};

use crate::completion::{Completer, Completion, completion};

/// With so many waiting, others help with the short ones.
const LONG_LINE: usize = 16;

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
    /// Compactions that are under way.
    pub under_way: u64,
    /// The one of them that began first.
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
    /// Whether it is so short that it takes the disk less than it waits for it.
    pub(crate) is_short: bool,
    /// Who waits for it.
    pub(crate) completer: Option<Completer<CompactOutcome>>,
}

/// What is to be compacted.
#[derive(Default)]
pub(crate) struct CompactionQueue {
    queue: Mutex<Queue>,
    wake: Condvar,
    /// Wakes those that help with a long line of short ones.
    help: Condvar,
}

#[derive(Default)]
struct Queue {
    asked: VecDeque<Job>,
    stats: CompactionStats,
    /// In the order in which they began.
    running: Vec<CompactionRun>,
    /// vBuckets that could not be compacted, with the time until when they are left alone.
    left_alone: HashMap<VbId, Duration>,
    stopping: bool,
}

impl Queue {
    fn is_running(&self, vb: VbId) -> bool {
        self.running.iter().any(|run| run.vb == vb)
    }

    fn begins(&mut self, vb: VbId) {
        self.running.push(CompactionRun { vb, progress: CompactionProgress::default() });
    }

    fn ends(&mut self, vb: VbId) {
        self.running.retain(|run| run.vb != vb);
    }

    /// Whether the line is so long that others help.
    fn needs_help(&self) -> bool {
        self.asked.len() >= LONG_LINE
    }
}

impl CompactionQueue {
    /// Asks for one; nothing if the vBucket waits for one already, is being compacted, or the bucket is being closed.
    pub(crate) fn ask(
        &self,
        vb: VbId,
        request: CompactRequest,
        is_short: bool,
    ) -> Option<Completion<CompactOutcome>> {
        let mut queue = self.queue.lock();
        if queue.stopping || queue.is_running(vb) || queue.asked.iter().any(|job| job.vb == vb) {
            return None;
        }
        let (completer, promised) = completion();
        queue.asked.push_back(Job { vb, request, is_short, completer: Some(completer) });
        self.wake.notify_one();
        if queue.needs_help() {
            self.help.notify_all();
        }
        Some(promised)
    }

    /// Begins the next one that somebody asked for, or else the one that `choose` finds if none is running.
    pub(crate) fn begin(&self, choose: impl FnOnce() -> Option<Job>) -> Option<Job> {
        if let Some(job) = self.begin_with(None) {
            return Some(job);
        }
        let chosen = choose()?;
        self.begin_with(Some(chosen))
    }

    fn begin_with(&self, chosen: Option<Job>) -> Option<Job> {
        let mut queue = self.queue.lock();
        let chosen = chosen.filter(|_| queue.running.is_empty());
        if queue.stopping {
            return None;
        }
        let job = queue.asked.pop_front().or(chosen)?;
        queue.begins(job.vb);
        Some(job)
    }

    /// Begins a short one from the end of a long line, for whoever helps; waits until there is one. Nothing if the
    /// bucket is being closed.
    pub(crate) fn begin_to_help(&self) -> Option<Job> {
        let mut queue = self.queue.lock();
        loop {
            if queue.stopping {
                return None;
            }
            if queue.needs_help() && queue.asked.back().is_some_and(|job| job.is_short) {
                let job = queue.asked.pop_back()?;
                queue.begins(job.vb);
                return Some(job);
            }
            self.help.wait(&mut queue);
        }
    }

    /// How far one is that is running; tells it to end if the bucket is being closed.
    pub(crate) fn progress(&self, vb: VbId, progress: CompactionProgress) -> ControlFlow<()> {
        let mut queue = self.queue.lock();
        if let Some(running) = queue.running.iter_mut().find(|run| run.vb == vb) {
            running.progress = progress;
        }
        if queue.stopping { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    /// One that is running is done.
    pub(crate) fn done(&self, vb: VbId, compacted: &Compacted, expired: u64) {
        let mut queue = self.queue.lock();
        queue.left_alone.remove(&vb);
        queue.ends(vb);
        let stats = &mut queue.stats;
        stats.runs += 1;
        stats.before_bytes += compacted.before_bytes;
        stats.after_bytes += compacted.after_bytes;
        stats.tombstones_purged += compacted.tombstones_purged;
        stats.documents_expired += expired;
    }

    /// One that is running came to nothing.
    pub(crate) fn gave_up(&self, vb: VbId, now: Duration, has_failed: bool) {
        let mut queue = self.queue.lock();
        queue.ends(vb);
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
        CompactionStats {
            waiting: queue.asked.len() as u64,
            under_way: queue.running.len() as u64,
            running: queue.running.first().copied(),
            ..queue.stats
        }
    }

    /// Takes those out that wait because somebody asked; who waits for one is told that it has ended.
    pub(crate) fn cancel(&self) -> usize {
        let left = std::mem::take(&mut self.queue.lock().asked);
        let count = left.len();
        for job in left {
            if let Some(completer) = job.completer {
                completer.complete(CompactOutcome::Ended);
            }
        }
        count
    }

    /// Whether a compaction was asked for that has not begun.
    pub(crate) fn is_asked(&self) -> bool {
        !self.queue.lock().asked.is_empty()
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
        self.help.notify_all();
        drop(left);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn others_help_with_a_long_line_of_short_ones() {
        let queue = CompactionQueue::default();
        let ask = |vb, is_short| queue.ask(VbId(vb), CompactRequest::default(), is_short);
        let last = LONG_LINE as u16;
        let _promised: Vec<_> = (0..=last).map(|vb| ask(vb, true).expect("nobody asked before")).collect();
        let helped = queue.begin_to_help().expect("the line is long");
        let own = queue.begin(|| None).expect("somebody asked");
        assert_eq!((helped.vb, own.vb), (VbId(last), VbId(0)));
        assert!(ask(last, true).is_none() && ask(0, true).is_none(), "they are running");
        assert_eq!(queue.stats().under_way, 2);
        queue.gave_up(own.vb, Duration::ZERO, false);
        let stats = queue.stats();
        assert_eq!((stats.under_way, stats.running.map(|run| run.vb)), (1, Some(helped.vb)));
        queue.stop();
        assert!(queue.begin_to_help().is_none());
    }

    #[test]
    fn what_waits_is_given_up_and_what_runs_goes_on() {
        let queue = CompactionQueue::default();
        let ask = |vb| queue.ask(VbId(vb), CompactRequest::default(), false);
        let promised: Vec<_> = (0..3).map(|vb| ask(vb).expect("nobody asked before")).collect();
        let running = queue.begin(|| None).expect("somebody asked");
        assert!(queue.is_asked());
        assert_eq!((queue.cancel(), queue.cancel()), (2, 0));
        assert!(!queue.is_asked());
        let stats = queue.stats();
        assert_eq!((stats.waiting, stats.under_way), (0, 1));
        assert!(ask(running.vb.0).is_none() && ask(2).is_some());
        drop(promised);
    }

    #[test]
    fn what_wastes_most_is_compacted_when_nothing_else_is() {
        let queue = CompactionQueue::default();
        let job =
            |vb| Job { vb: VbId(vb), request: CompactRequest::default(), is_short: false, completer: None };
        assert!(queue.begin(|| Some(job(1))).is_some());
        assert!(queue.begin(|| Some(job(2))).is_none());
    }
}
