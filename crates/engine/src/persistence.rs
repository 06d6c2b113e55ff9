//! Who waits until a change is on disk.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use base::{Seqno, VbId};
use parking_lot::Mutex;

use crate::completion::{Completer, Completion, completion};

/// The most waiters a bucket keeps; more are refused.
pub const MAX_WAITERS: usize = 100_000;

/// Refusals between two looks for waiters whose clients have gone.
const SWEEP_EVERY: usize = 1000;

/// Waiters by vBucket.
#[derive(Default)]
pub struct PersistenceWaiters {
    count: AtomicUsize,
    waiting: Mutex<Waiting>,
}

type Waiter = (Seqno, Completer<()>);

#[derive(Default)]
struct Waiting {
    by_vbucket: HashMap<VbId, Vec<Waiter>>,
    /// Those who were refused since the last sweep.
    refused: usize,
}

impl Waiting {
    /// Takes out those whom `is_done` names; they are told by dropping or completing them.
    fn take(&mut self, vb: VbId, is_done: impl Fn(&Waiter) -> bool) -> Vec<Waiter> {
        let Some(waiters) = self.by_vbucket.get_mut(&vb) else { return Vec::new() };
        let mut taken = Vec::new();
        let mut at = 0;
        while at < waiters.len() {
            if is_done(&waiters[at]) {
                taken.push(waiters.swap_remove(at));
            } else {
                at += 1;
            }
        }
        if waiters.is_empty() {
            self.by_vbucket.remove(&vb);
        }
        taken
    }

    /// Forgets those whose clients have gone, wherever they wait; returns how many.
    fn sweep(&mut self) -> usize {
        let mut swept = 0;
        self.by_vbucket.retain(|_, waiters| {
            let before = waiters.len();
            waiters.retain(|(_, completer)| !completer.is_unwanted());
            swept += before - waiters.len();
            !waiters.is_empty()
        });
        swept
    }
}

impl PersistenceWaiters {
    /// Whether anybody waits.
    pub fn any(&self) -> bool {
        self.count.load(Ordering::Relaxed) > 0
    }

    /// Waits for `seqno`; nothing if too many wait already.
    ///
    /// Call it while holding the vBucket's lock, so that the flusher cannot pass between the check and the wait.
    pub fn wait(&self, vb: VbId, seqno: Seqno) -> Option<Completion<()>> {
        let mut waiting = self.waiting.lock();
        if self.count.load(Ordering::Relaxed) >= MAX_WAITERS {
            // Waiters of vBuckets that nobody changes are told nothing, so those who left are still in the list.
            if waiting.refused.is_multiple_of(SWEEP_EVERY) {
                self.count.fetch_sub(waiting.sweep(), Ordering::Relaxed);
            }
            waiting.refused += 1;
            if self.count.load(Ordering::Relaxed) >= MAX_WAITERS {
                return None;
            }
        }
        let (completer, promised) = completion();
        waiting.by_vbucket.entry(vb).or_default().push((seqno, completer));
        self.count.fetch_add(1, Ordering::Relaxed);
        Some(promised)
    }

    /// Tells all who wait for `seqno` or less.
    pub fn persisted(&self, vb: VbId, seqno: Seqno) {
        if !self.any() {
            return;
        }
        let done = |(wanted, completer): &Waiter| *wanted <= seqno || completer.is_unwanted();
        for (_, completer) in self.take(vb, done) {
            completer.complete(());
        }
    }

    /// Tells all who wait that it will never be: the vBucket is gone.
    pub fn forget(&self, vb: VbId) {
        drop(self.take(vb, |_| true));
    }

    fn take(&self, vb: VbId, is_done: impl Fn(&Waiter) -> bool) -> Vec<Waiter> {
        let taken = self.waiting.lock().take(vb, is_done);
        self.count.fetch_sub(taken.len(), Ordering::Relaxed);
        taken
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;

    use super::*;

    #[test]
    fn whoever_left_makes_room_for_others() {
        let waiters = PersistenceWaiters::default();
        let gone: Vec<_> = (0..MAX_WAITERS).map(|_| waiters.wait(VbId(1), Seqno(9)).expect("room")).collect();
        assert!(waiters.wait(VbId(2), Seqno(1)).is_none());
        drop(gone);
        let served = (0..=SWEEP_EVERY).find_map(|_| waiters.wait(VbId(2), Seqno(1))).expect("room again");
        waiters.persisted(VbId(2), Seqno(1));
        assert_eq!(served.try_take(), Some(()));
        assert!(!waiters.any());
    }

    #[test]
    fn a_deleted_vbucket_leaves_nobody_waiting() {
        let waiters = PersistenceWaiters::default();
        let mut waiting = Box::pin(waiters.wait(VbId(1), Seqno(9)).expect("room"));
        let other = waiters.wait(VbId(2), Seqno(9)).expect("room");
        waiters.forget(VbId(1));
        let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
        assert_eq!(waiting.as_mut().poll(&mut cx), std::task::Poll::Ready(None));
        assert!(waiters.any() && other.try_take().is_none());
    }
}
