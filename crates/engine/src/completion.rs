//! A promise between a background step and whoever awaits it, for any runtime or none.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use parking_lot::Mutex;

use crate::wakes::assert_unlocked;

/// The most replicas of a chain.
pub const MAX_REPLICAS: usize = vbucket::MAX_CHAIN - 1;

/// When the steps of what is awaited came about, in nanoseconds of the monotonic clock; 0: a step was not needed, or it is
/// not known when it was.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepTimes {
    /// The work began: a read, a write to the disk, a request on another thread.
    pub work_from_ns: u64,
    /// The work ended.
    pub work_until_ns: u64,
    /// Replicas acknowledged, in the order of the vBucket's first replication chain.
    pub replicas_ns: [u64; MAX_REPLICAS],
}

struct State<T> {
    value: Option<T>,
    times: StepTimes,
    abandoned: bool,
    waker: Option<Waker>,
}

/// What is awaited: `Some(value)`, or `None` if the other side went away.
pub struct Completion<T>(Arc<Mutex<State<T>>>);

/// Whether both are one and the same promise.
impl<T> PartialEq for Completion<T> {
    fn eq(&self, other: &Completion<T>) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl<T> Eq for Completion<T> {}

impl<T> std::fmt::Debug for Completion<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Completion")
    }
}

/// The side that keeps the promise.
pub struct Completer<T> {
    state: Arc<Mutex<State<T>>>,
    is_kept: bool,
}

/// Makes both sides.
pub fn completion<T>() -> (Completer<T>, Completion<T>) {
    let state = Arc::new(Mutex::new(State {
        value: None,
        times: StepTimes::default(),
        abandoned: false,
        waker: None,
    }));
    (Completer { state: state.clone(), is_kept: false }, Completion(state))
}

impl<T> Completer<T> {
    /// Keeps the promise.
    pub fn complete(self, value: T) {
        self.complete_after(value, StepTimes::default());
    }

    /// Keeps the promise, and says when what led to it was done.
    pub fn complete_after(mut self, value: T, times: StepTimes) {
        self.is_kept = true;
        self.end(Some(value), times);
    }

    fn end(&self, value: Option<T>, times: StepTimes) {
        let waker = {
            let mut state = self.state.lock();
            state.value = value;
            state.times = times;
            state.abandoned = true;
            state.waker.take()
        };
        if let Some(waker) = waker {
            assert_unlocked();
            waker.wake();
        }
    }

    /// Whether nobody awaits it any more.
    pub fn is_unwanted(&self) -> bool {
        Arc::strong_count(&self.state) == 1
    }
}

impl<T> Drop for Completer<T> {
    fn drop(&mut self) {
        if !self.is_kept {
            self.end(None, StepTimes::default());
        }
    }
}

impl<T> Completion<T> {
    /// The value, if it is there already.
    pub fn try_take(&self) -> Option<T> {
        self.0.lock().value.take()
    }

    /// When the steps that led to the value were done.
    pub fn times(&self) -> StepTimes {
        self.0.lock().times
    }

    /// Whether the other side went away without a value.
    pub fn is_abandoned(&self) -> bool {
        let state = self.0.lock();
        state.abandoned && state.value.is_none()
    }
}

impl<T> Future for Completion<T> {
    type Output = Option<T>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<T>> {
        let mut state = self.0.lock();
        if let Some(value) = state.value.take() {
            return Poll::Ready(Some(value));
        }
        if state.abandoned {
            return Poll::Ready(None);
        }
        match &state.waker {
            Some(there) if there.will_wake(cx.waker()) => {}
            _ => state.waker = Some(cx.waker().clone()),
        }
        Poll::Pending
    }
}
