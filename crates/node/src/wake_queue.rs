//! Where other threads leave wake-ups for the connections of a worker: many of them cost one wake of its thread.

use std::cell::RefCell;
use std::sync::Arc;
use std::task::{Poll, Wake, Waker};

use parking_lot::Mutex;

thread_local! {
    static OF_THIS_WORKER: RefCell<Option<Arc<WakeQueue>>> = const { RefCell::new(None) };
}

/// Wake-ups that were left for a worker; never more than its connections wait for things.
#[derive(Default)]
struct WakeQueue {
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    wakes: Vec<Arc<QueuedWake>>,
    /// Wakes the task of the worker that delivers.
    worker: Option<Waker>,
}

impl WakeQueue {
    fn push(&self, wake: Arc<QueuedWake>) {
        let worker = {
            let mut inner = self.inner.lock();
            inner.wakes.push(wake);
            if inner.wakes.len() == 1 { inner.worker.clone() } else { None }
        };
        if let Some(worker) = worker {
            worker.wake();
        }
    }
}

/// A waker of a task of this worker, for somebody on another thread.
struct QueuedWake {
    queue: Arc<WakeQueue>,
    task: Waker,
}

impl Wake for QueuedWake {
    fn wake(self: Arc<Self>) {
        let queue = Arc::clone(&self.queue);
        queue.push(self);
    }
}

/// Delivers what is left for this thread's tasks, for as long as it is polled.
pub async fn deliver() {
    let queue = Arc::new(WakeQueue::default());
    OF_THIS_WORKER.set(Some(Arc::clone(&queue)));
    std::future::poll_fn(|cx| {
        let wakes = {
            let mut inner = queue.inner.lock();
            inner.worker = Some(cx.waker().clone());
            std::mem::take(&mut inner.wakes)
        };
        wakes.into_iter().for_each(|wake| wake.task.wake_by_ref());
        Poll::<()>::Pending
    })
    .await;
}

/// A waker that does the same as `task`, but is cheap to call from another thread.
pub fn through(task: &Waker) -> Waker {
    let queue = OF_THIS_WORKER.with_borrow(Clone::clone);
    match queue {
        Some(queue) => Waker::from(Arc::new(QueuedWake { queue, task: task.clone() })),
        // Nobody delivers here: the task is woken as ever.
        None => task.clone(),
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::pin;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Context;

    use super::*;

    #[derive(Default)]
    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn many_wakes_cost_one_of_the_worker() {
        let (worker, task) = (Arc::new(Count::default()), Arc::new(Count::default()));
        let count = |of: &Arc<Count>| of.0.load(Ordering::Relaxed);
        let worker_waker = Waker::from(Arc::clone(&worker));
        let mut cx = Context::from_waker(&worker_waker);
        let mut delivering = pin!(deliver());
        assert!(delivering.as_mut().poll(&mut cx).is_pending());
        for round in 1..=2 {
            for _ in 0..10 {
                let wake = through(&Waker::from(Arc::clone(&task)));
                std::thread::scope(|scope| drop(scope.spawn(|| wake.wake())));
            }
            assert_eq!((count(&worker), count(&task)), (round, 10 * (round - 1)));
            assert!(delivering.as_mut().poll(&mut cx).is_pending());
            assert_eq!(count(&task), 10 * round);
        }
    }
}
