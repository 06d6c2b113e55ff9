//! Waiting on a thread for what the bucket has promised.

use std::future::Future;
use std::sync::Arc;
use std::task::{Context, Poll, Wake};
use std::thread::Thread;

use engine::Completion;

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Parks the thread until the promise is kept.
pub fn wait<T>(promise: Completion<T>) -> T {
    let waker = Arc::new(Unpark(std::thread::current())).into();
    let mut promise = std::pin::pin!(promise);
    loop {
        match promise.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(value) => return value.expect("nobody gives up"),
            Poll::Pending => std::thread::park(),
        }
    }
}
