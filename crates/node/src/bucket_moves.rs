//! The stores of a node's buckets that can be moved, and what the threads wait for that move them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use base::RateLimit;
use kvstore::{Movable, MoveProgress, MoveStage, StorageBackend};
use parking_lot::{Condvar, Mutex};

/// How long a move waits for something else, or after a failure, before it goes on.
const PAUSE: Duration = Duration::from_secs(1);

/// A bucket's store, and what moves it.
pub(crate) struct BucketMove {
    pub(crate) movable: Arc<Movable>,
    is_stopping: Mutex<bool>,
    wake: Condvar,
    pub(crate) told_of_failure: RateLimit,
}

/// The move of a bucket that is in two stores.
pub(crate) struct MoveUnderWay {
    pub(crate) bucket: String,
    pub(crate) to: StorageBackend,
    pub(crate) vbuckets: u64,
    pub(crate) of_vbuckets: u64,
}

/// The stores of a node's buckets.
#[derive(Default)]
pub(crate) struct BucketMoves(Mutex<BTreeMap<String, Arc<BucketMove>>>);

impl BucketMoves {
    /// A bucket was opened.
    pub(crate) fn put(&self, name: &str, movable: Arc<Movable>) {
        let told_of_failure = RateLimit::new();
        let new =
            BucketMove { movable, is_stopping: Mutex::default(), wake: Condvar::new(), told_of_failure };
        self.0.lock().insert(name.to_owned(), Arc::new(new));
    }

    pub(crate) fn get(&self, name: &str) -> Option<Arc<BucketMove>> {
        self.0.lock().get(name).cloned()
    }

    /// A move that is not over.
    pub(crate) fn under_way(&self) -> Option<MoveUnderWay> {
        self.0.lock().iter().find_map(|(bucket, found)| {
            let MoveProgress { stage, to, vbuckets, of_vbuckets, .. } = found.movable.progress()?;
            let bucket = bucket.clone();
            (stage != MoveStage::Done).then_some(MoveUnderWay { bucket, to, vbuckets, of_vbuckets })
        })
    }

    /// Lets the thread that moves a bucket end; none begins any more.
    pub(crate) fn stop(&self, name: &str) {
        if let Some(found) = self.0.lock().remove(name) {
            *found.is_stopping.lock() = true;
            found.wake.notify_all();
        }
    }
}

impl BucketMove {
    pub(crate) fn is_stopping(&self) -> bool {
        *self.is_stopping.lock()
    }

    /// Ends a wait early.
    pub(crate) fn wake(&self) {
        self.wake.notify_all();
    }

    /// Waits a while, or until the bucket is closed.
    pub(crate) fn pause(&self) {
        let mut is_stopping = self.is_stopping.lock();
        if !*is_stopping {
            self.wake.wait_for(&mut is_stopping, PAUSE);
        }
    }
}
