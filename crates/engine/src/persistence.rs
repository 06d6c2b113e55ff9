//! Who waits until a change is on disk.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use base::{Seqno, VbId};
use parking_lot::Mutex;

use crate::completion::{Completer, Completion, completion};

/// The most waiters a bucket keeps; more are refused.
pub const MAX_WAITERS: usize = 100_000;

/// Who waits for which seqno of one vBucket.
type Waiting = Vec<(Seqno, Completer<()>)>;

/// Waiters by vBucket.
#[derive(Default)]
pub struct PersistenceWaiters {
    count: AtomicUsize,
    by_vbucket: Mutex<HashMap<VbId, Waiting>>,
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
        let mut by_vbucket = self.by_vbucket.lock();
        if self.count.load(Ordering::Relaxed) >= MAX_WAITERS {
            return None;
        }
        let (completer, waiting) = completion();
        by_vbucket.entry(vb).or_default().push((seqno, completer));
        self.count.fetch_add(1, Ordering::Relaxed);
        Some(waiting)
    }

    /// Tells all who wait for `seqno` or less.
    pub fn persisted(&self, vb: VbId, seqno: Seqno) {
        if !self.any() {
            return;
        }
        let mut ready = Vec::new();
        {
            let mut by_vbucket = self.by_vbucket.lock();
            let Some(waiters) = by_vbucket.get_mut(&vb) else { return };
            let mut at = 0;
            while at < waiters.len() {
                if waiters[at].0 <= seqno || waiters[at].1.is_unwanted() {
                    ready.push(waiters.swap_remove(at));
                } else {
                    at += 1;
                }
            }
            if waiters.is_empty() {
                by_vbucket.remove(&vb);
            }
            self.count.fetch_sub(ready.len(), Ordering::Relaxed);
        }
        for (_, completer) in ready {
            completer.complete(());
        }
    }
}
