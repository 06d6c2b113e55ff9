//! A promise between a background step and whoever awaits it, for any runtime or none.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use parking_lot::Mutex;

struct State<T> {
    value: Option<T>,
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
    let state = Arc::new(Mutex::new(State { value: None, abandoned: false, waker: None }));
    (Completer { state: state.clone(), is_kept: false }, Completion(state))
}

impl<T> Completer<T> {
    /// Keeps the promise.
    pub fn complete(mut self, value: T) {
        self.is_kept = true;
        self.end(Some(value));
    }

    fn end(&self, value: Option<T>) {
        let waker = {
            let mut state = self.state.lock();
            state.value = value;
            state.abandoned = true;
            state.waker.take()
        };
        if let Some(waker) = waker {
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
            self.end(None);
        }
    }
}

impl<T> Completion<T> {
    /// The value, if it is there already.
    pub fn try_take(&self) -> Option<T> {
        self.0.lock().value.take()
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
