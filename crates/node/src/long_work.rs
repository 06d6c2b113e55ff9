//! Work that takes long leaves its worker, so that its other connections go on: a bounded number of threads, which are
//! there only while there is such work.
//!
//! Until it is done, the connection waits as for the disk. What does not fit into the queue is refused.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use base::env::Env;
use engine::{Completion, completion};
use parking_lot::{Condvar, Mutex};

use crate::counters::WorkerCounters;

/// Jobs that may wait for a thread.
const MOST_WAITING: usize = 256;

/// An operation that reads or writes this number of bytes leaves its worker: less takes at most five milliseconds.
pub(crate) const LONG_BYTES: usize = 1 << 20;

type Job = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct Queue {
    running: usize,
    waiting: VecDeque<Job>,
}

/// The threads of a node for long work.
#[derive(Default)]
pub struct LongWork {
    queue: Mutex<Queue>,
    idle: Condvar,
    /// Threads at the same time; none: work is done where it is given away.
    most_running: usize,
    /// One for each thread, which counts answers there.
    counters: Vec<Arc<WorkerCounters>>,
    free_counters: Mutex<Vec<Arc<WorkerCounters>>>,
    done: AtomicU64,
    refused: AtomicU64,
}

impl LongWork {
    /// With this number of threads at the same time.
    pub(crate) fn new(most_running: usize) -> LongWork {
        let counters: Vec<_> = (0..most_running).map(|_| Arc::default()).collect();
        let free_counters = Mutex::new(counters.clone());
        LongWork { most_running, counters, free_counters, ..LongWork::default() }
    }

    /// Whether there are threads for it.
    pub(crate) fn is_on(&self) -> bool {
        self.most_running > 0
    }

    /// What its threads have counted.
    pub(crate) fn counters(&self) -> &[Arc<WorkerCounters>] {
        &self.counters
    }

    /// Works with counters that no other thread writes meanwhile.
    pub(crate) fn counting<T>(&self, work: impl FnOnce(&WorkerCounters) -> T) -> T {
        let counters = self.free_counters.lock().pop().unwrap_or_default();
        let done = work(&counters);
        self.free_counters.lock().push(counters);
        done
    }

    /// Jobs that were done.
    pub fn done(&self) -> u64 {
        self.done.load(Ordering::Relaxed)
    }

    /// Jobs that were refused because too many waited.
    pub fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// Jobs that are under way or wait.
    pub fn under_way(&self) -> usize {
        let queue = self.queue.lock();
        queue.running + queue.waiting.len()
    }

    /// Has something done elsewhere; `None` if too much waits.
    pub(crate) fn begin<T: Send + 'static>(
        self: &Arc<LongWork>,
        env: &Env,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Option<Completion<T>> {
        let (completer, outcome) = completion();
        // If the client has gone meanwhile, no one awaits this; the work is done all the same.
        let is_begun = self.submit(env, Box::new(move || completer.complete(work())));
        if !is_begun {
            self.refused.fetch_add(1, Ordering::Relaxed);
        }
        is_begun.then_some(outcome)
    }

    fn submit(self: &Arc<LongWork>, env: &Env, job: Job) -> bool {
        let mut queue = self.queue.lock();
        if self.most_running == 0 {
            drop(queue);
            job();
            return true;
        }
        if queue.running >= self.most_running {
            let fits = queue.waiting.len() < MOST_WAITING;
            if fits {
                queue.waiting.push_back(job);
            }
            return fits;
        }
        queue.running += 1;
        drop(queue);
        let pool = Arc::clone(self);
        let is_begun = env.spawn.spawn("long-work", Box::new(move || pool.work(job))).is_ok();
        if !is_begun {
            self.leave();
        }
        is_begun
    }

    fn work(&self, first: Job) {
        let mut next = Some(first);
        while let Some(job) = next {
            job();
            self.done.fetch_add(1, Ordering::Relaxed);
            next = self.queue.lock().waiting.pop_front();
        }
        self.leave();
    }

    fn leave(&self) {
        let mut queue = self.queue.lock();
        queue.running -= 1;
        if queue.running == 0 {
            self.idle.notify_all();
        }
    }

    /// Waits until nothing is under way any more: the buckets are about to be closed.
    pub fn wait_until_idle(&self) {
        let mut queue = self.queue.lock();
        while queue.running > 0 {
            self.idle.wait(&mut queue);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn no_more_threads_than_allowed_and_no_more_jobs_than_fit() {
        let env = Env::real();
        let pool = Arc::new(LongWork::new(2));
        let (done, finished) = mpsc::channel();
        let gates: Vec<_> = (0..2)
            .map(|_| {
                let (open, gate) = mpsc::channel::<()>();
                let done = done.clone();
                let job = move || {
                    let _ = gate.recv();
                    done.send(()).expect("the caller waits");
                };
                assert!(pool.submit(&env, Box::new(job)));
                open
            })
            .collect();
        for _ in 0..MOST_WAITING {
            let done = done.clone();
            assert!(pool.submit(&env, Box::new(move || done.send(()).expect("the caller waits"))));
        }
        assert!(!pool.submit(&env, Box::new(|| {})), "the queue is full");
        assert_eq!(pool.under_way(), 2 + MOST_WAITING);
        drop(gates);
        (0..2 + MOST_WAITING).for_each(|_| finished.recv().expect("all are done"));
        pool.wait_until_idle();
        assert_eq!((pool.under_way(), pool.done()), (0, 2 + MOST_WAITING as u64));
        assert!(pool.submit(&env, Box::new(|| {})));
        pool.wait_until_idle();
    }
}
