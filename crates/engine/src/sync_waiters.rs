//! What a client asks of a sync write, what becomes of it, and who waits for that.

use std::collections::VecDeque;
use std::time::Duration;

use base::planted::{self, Bug};
use base::{DurabilityLevel, Seqno};

use crate::completion::Completer;

/// How long a sync write may take if nobody says.
pub const DEFAULT_SYNC_WRITE_TIMEOUT: Duration = Duration::from_secs(30);

/// What a client asks of a sync write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Durable {
    /// How safe it must be before it is told of.
    pub level: DurabilityLevel,
    /// How long that may take; then it is aborted.
    pub timeout: Duration,
}

/// What became of a sync write. A [`Completion`] that is abandoned means [`SyncOutcome::GivenUp`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SyncOutcome {
    /// It is as safe as asked for, and readers see it.
    Committed,
    /// Its time was over: readers will not see it, unless another node becomes active that has it.
    Aborted,
    /// Nobody here decides about it any more, or not before its time was over: it may be committed or aborted later, or
    /// elsewhere.
    GivenUp,
}

/// Who waits for the prepares of a vBucket, in seqno order; kept under its lock.
#[derive(Default)]
pub(crate) struct SyncWaiters {
    pub(crate) waiting: VecDeque<(Seqno, Completer<SyncOutcome>)>,
    /// When the vBucket is looked through for overdue prepares, on the monotonic clock; 0: never.
    pub(crate) due_ns: u64,
}

impl SyncWaiters {
    pub(crate) fn take(&mut self, prepared: Seqno) -> Option<Completer<SyncOutcome>> {
        let at = match self.waiting.front()?.0 == prepared {
            true => 0,
            false => self.waiting.binary_search_by_key(&prepared, |(seqno, _)| *seqno).ok()?,
        };
        self.waiting.remove(at).map(|(_, completer)| completer)
    }

    /// All who wait: dropped outside the lock they hear that nobody decides any more.
    pub(crate) fn give_up(&mut self) -> GivenUp {
        if planted::is(Bug::WaitersForgotten) {
            return GivenUp::default();
        }
        GivenUp(std::mem::take(&mut self.waiting))
    }
}

/// Those who wait for something that nobody decides any more; to be dropped outside the vBucket's lock.
#[must_use = "drop it after the vBucket's lock is released"]
#[derive(Default)]
pub(crate) struct GivenUp(VecDeque<(Seqno, Completer<SyncOutcome>)>);

impl Drop for GivenUp {
    fn drop(&mut self) {
        for (_, completer) in self.0.drain(..) {
            completer.complete(SyncOutcome::GivenUp);
        }
    }
}
