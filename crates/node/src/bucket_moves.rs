//! The stores of a node's buckets that can be moved, and what the threads wait for that move them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use base::RateLimit;
use kvstore::{Movable, MoveProgress, MoveStage, StorageBackend};
use parking_lot::{Condvar, Mutex};

/// How soon a move is tried again that could not begin.
const BEGIN_AGAIN: Duration = Duration::from_secs(10);
/// How long a move waits for something else, or after a failure, before it goes on.
const PAUSE: Duration = Duration::from_secs(1);

/// A bucket's store, and what moves it.
pub(crate) struct BucketMove {
    pub(crate) movable: Arc<Movable>,
    is_stopping: Mutex<bool>,
    wake: Condvar,
    /// Threads that move it: one that ends may be there beside the next one.
    movers: AtomicUsize,
    pub(crate) told_of_failure: RateLimit,
    /// Why a move that is wanted did not begin, and when that was tried.
    refused: Mutex<Option<(String, Duration)>>,
    /// How far the last move was when it ended.
    last: Mutex<Option<MoveProgress>>,
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
        let new = BucketMove {
            movable,
            is_stopping: Mutex::default(),
            wake: Condvar::new(),
            movers: AtomicUsize::new(0),
            told_of_failure,
            refused: Mutex::default(),
            last: Mutex::default(),
        };
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

/// A thread that moves a bucket, or is to be started for that.
pub(crate) struct Mover(Arc<BucketMove>);

impl Mover {
    pub(crate) fn of(found: &Arc<BucketMove>) -> Mover {
        found.movers.fetch_add(1, Ordering::Relaxed);
        Mover(Arc::clone(found))
    }

    pub(crate) fn bucket_move(&self) -> &BucketMove {
        &self.0
    }
}

impl Drop for Mover {
    fn drop(&mut self) {
        self.0.movers.fetch_sub(1, Ordering::Relaxed);
    }
}

impl BucketMove {
    /// Whether a thread moves it.
    pub(crate) fn has_mover(&self) -> bool {
        self.movers.load(Ordering::Relaxed) > 0
    }

    pub(crate) fn is_stopping(&self) -> bool {
        *self.is_stopping.lock()
    }

    /// Whether a move that could not begin is to be tried again.
    pub(crate) fn may_try(&self, now: Duration) -> bool {
        self.refused.lock().as_ref().is_none_or(|(_, at)| now.saturating_sub(*at) >= BEGIN_AGAIN)
    }

    /// Notes why a move that is wanted did not begin; `None` if it did, or none is wanted.
    pub(crate) fn note_refused(&self, why: Option<String>, now: Duration) {
        *self.refused.lock() = why.map(|why| (why, now));
    }

    /// Why a move that is wanted did not begin.
    pub(crate) fn refused(&self) -> Option<String> {
        self.refused.lock().as_ref().map(|(why, _)| why.clone())
    }

    /// Keeps how far the move is that ends now.
    pub(crate) fn keep_last(&self) {
        if let Some(progress) = self.movable.progress() {
            *self.last.lock() = Some(progress);
        }
    }

    pub(crate) fn forget_last(&self) {
        *self.last.lock() = None;
    }

    /// How far the last move was when it ended; `None` if the node was started since.
    pub(crate) fn last(&self) -> Option<MoveProgress> {
        self.last.lock().clone()
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
