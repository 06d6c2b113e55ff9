//! What a client asks of a sync write, what becomes of it, and who waits for that.

use std::collections::VecDeque;
use std::time::Duration;

use base::planted::{self, Bug};
use base::{DurabilityLevel, Seqno};

use crate::completion::{Completer, Completion, MAX_REPLICAS, StepTimes, completion};

/// How long a sync write may take if the client does not say.
pub const DEFAULT_SYNC_WRITE_TIMEOUT: Duration = Duration::from_secs(30);

/// What a client asks of a sync write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Durable {
    /// How safe it must be before it is told of.
    pub level: DurabilityLevel,
    /// How long that may take; then it is aborted.
    pub timeout: Duration,
}

/// What became of a sync write. A [`Completion`](crate::Completion) that is abandoned means [`SyncOutcome::GivenUp`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SyncOutcome {
    /// It is as safe as asked for, and readers see it.
    Committed,
    /// Its time was over: readers will not see it, unless another node becomes active that has it.
    Aborted,
    /// This node does not decide about it any more, or not before its time was over: it may be committed or aborted later, or
    /// elsewhere.
    GivenUp,
}

/// A client that waits for a prepare.
pub(crate) struct SyncWaiter {
    prepared: Seqno,
    completer: Completer<SyncOutcome>,
    times: StepTimes,
}

impl SyncWaiter {
    pub(crate) fn tell(self, outcome: SyncOutcome) {
        self.completer.complete_after(outcome, self.times);
    }
}

/// What happens to a prepare on its way.
#[derive(Clone, Copy)]
pub(crate) enum SyncStep {
    /// It is on this node's disk, by a write that began then.
    Saved { from_ns: u64 },
    /// The replica in this place of the chain has it.
    Acknowledged(usize),
}

/// Waiting clients for which is noted under a vBucket's lock at once when a step was done.
const NOTED_AT_ONCE: usize = 256;

/// Who waits for the prepares of a vBucket, in seqno order; kept under its lock.
#[derive(Default)]
pub(crate) struct SyncWaiters {
    waiting: VecDeque<SyncWaiter>,
    /// Up to where the waiting were told when they were saved, and when each replica had them.
    noted: [Seqno; 1 + MAX_REPLICAS],
    /// When the vBucket is looked through for overdue prepares, on the monotonic clock; 0: never.
    pub(crate) due_ns: u64,
}

impl SyncWaiters {
    /// Waits from now on for a prepare that is later than all others.
    pub(crate) fn wait(&mut self, prepared: Seqno) -> Completion<SyncOutcome> {
        let (completer, promised) = completion();
        self.waiting.push_back(SyncWaiter { prepared, completer, times: StepTimes::default() });
        promised
    }

    pub(crate) fn take(&mut self, prepared: Seqno) -> Option<SyncWaiter> {
        let at = match self.waiting.front()?.prepared == prepared {
            true => 0,
            false => self.waiting.binary_search_by_key(&prepared, |one| one.prepared).ok()?,
        };
        self.waiting.remove(at)
    }

    /// Notes for clients that wait for prepares up to `upto` that a step is done, each prepare once, some at a time.
    pub(crate) fn note(&mut self, step: SyncStep, upto: Seqno, now_ns: u64) {
        let kind = match step {
            SyncStep::Saved { .. } => 0,
            SyncStep::Acknowledged(place) => 1 + place,
        };
        let Some(noted) = self.noted.get_mut(kind) else { return };
        let from = std::mem::replace(noted, upto.max(*noted));
        let first = self.waiting.partition_point(|one| one.prepared <= from);
        let reached = self.waiting.range_mut(first..).take_while(|one| one.prepared <= upto);
        for one in reached.take(NOTED_AT_ONCE) {
            match step {
                SyncStep::Saved { from_ns } => {
                    (one.times.work_from_ns, one.times.work_until_ns) = (from_ns, now_ns);
                }
                SyncStep::Acknowledged(place) => one.times.replicas_ns[place] = now_ns,
            }
        }
    }

    /// All who wait: dropped outside the lock they hear that it is not decided here any more.
    pub(crate) fn give_up(&mut self) -> GivenUp {
        if planted::is(Bug::WaitersForgotten) {
            return GivenUp::default();
        }
        self.noted = Default::default();
        GivenUp(std::mem::take(&mut self.waiting))
    }
}

/// Clients that wait for something that is not decided here any more; to be dropped outside the vBucket's lock.
#[must_use = "drop it after the vBucket's lock is released"]
#[derive(Default)]
pub(crate) struct GivenUp(VecDeque<SyncWaiter>);

impl Drop for GivenUp {
    fn drop(&mut self) {
        self.0.drain(..).for_each(|one| one.tell(SyncOutcome::GivenUp));
    }
}
