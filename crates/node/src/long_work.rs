//! Work that takes long leaves its worker, so that its other connections go on: a bounded number of threads, which are
//! there only while there is such work.
//!
//! Until it is done, the connection waits as for the disk. Addresses have their turns, and what does not fit into the queue
//! is refused. What clients wait for to be quick has threads of its own ([`Lanes`]): it waits for no large document.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use base::env::Env;
use base::planted::{self, Bug};
use engine::{Completion, completion};
use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::counters::WorkerCounters;
use crate::fair_queue::FairQueue;
use crate::login_throttle::network;

/// Jobs that may wait for a thread.
const MOST_WAITING: usize = 256;

/// Passwords that are worked on at the same time, at most: each may need much memory.
const MOST_PASSWORDS: usize = 4;

/// vBuckets that are filled with files at the same time, at most: each reads a disk and fills memory.
const MOST_FILLS: usize = 2;

/// An operation that reads or writes this number of bytes leaves its worker: less takes at most five milliseconds.
pub(crate) const LONG_BYTES: usize = 1 << 20;

/// How often a stop that waits says so.
const SAY_EVERY: Duration = Duration::from_secs(1);

type Job = Box<dyn FnOnce() + Send>;

struct Queue {
    running: usize,
    /// By the address that asks.
    waiting: FairQueue<Option<IpAddr>, Job>,
}

/// Threads of a node for work of one kind.
pub struct LongWork {
    /// What they are called.
    thread: &'static str,
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

/// The threads of a node for work that leaves its worker, by kind.
pub struct Lanes {
    /// Large values and documents, and what waits for the disk.
    pub long_work: Arc<LongWork>,
    /// What looks at all vBuckets and takes milliseconds: stats, the collection manifest.
    pub overviews: Arc<LongWork>,
    /// Keys that are derived of passwords.
    pub passwords: Arc<LongWork>,
    /// vBuckets that are filled with files: each may take minutes, and ends with the node.
    pub fills: Arc<LongWork>,
    is_stopping: AtomicBool,
}

impl Lanes {
    /// Those of a node with this number of workers; of none, all is done where it is asked for.
    pub(crate) fn new(workers: usize) -> Lanes {
        let lane = |thread, most_running| Arc::new(LongWork::new(thread, most_running));
        Lanes {
            long_work: lane("long-work", workers),
            overviews: lane("overview", workers.min(1)),
            passwords: lane("password", workers.div_ceil(2).min(MOST_PASSWORDS)),
            fills: lane("fill", workers.min(MOST_FILLS)),
            is_stopping: AtomicBool::new(false),
        }
    }

    /// Those that figures tell of, by what they call them.
    pub fn named(&self) -> [(&'static str, &Arc<LongWork>); 3] {
        [("long_work", &self.long_work), ("overviews", &self.overviews), ("passwords", &self.passwords)]
    }

    /// Whether what takes minutes is to end: the buckets are about to be closed.
    pub(crate) fn is_stopping(&self) -> bool {
        self.is_stopping.load(Ordering::Relaxed)
    }

    /// What their threads have counted.
    pub(crate) fn counters(&self) -> impl Iterator<Item = &Arc<WorkerCounters>> + Clone {
        self.long_work.counters().iter().chain(self.overviews.counters()).chain(self.fills.counters())
    }

    /// Waits until nothing is under way any more: the buckets are about to be closed.
    pub fn wait_until_idle(&self) {
        self.is_stopping.store(true, Ordering::Relaxed);
        self.fills.wait_until_idle();
        self.named().into_iter().for_each(|(_, lane)| lane.wait_until_idle());
    }
}

impl LongWork {
    /// With this number of threads at the same time.
    pub(crate) fn new(thread: &'static str, most_running: usize) -> LongWork {
        let counters: Vec<_> = (0..most_running).map(|_| Arc::default()).collect();
        LongWork {
            thread,
            queue: Mutex::new(Queue { running: 0, waiting: FairQueue::new(MOST_WAITING) }),
            idle: Condvar::new(),
            most_running,
            free_counters: Mutex::new(counters.clone()),
            counters,
            done: AtomicU64::new(0),
            refused: AtomicU64::new(0),
        }
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

    /// Counts something that is refused before it comes here.
    pub(crate) fn refuse(&self) {
        self.refused.fetch_add(1, Ordering::Relaxed);
    }

    /// Whether half of those wait who may.
    pub(crate) fn is_half_full(&self) -> bool {
        self.queue.lock().waiting.len() >= MOST_WAITING / 2
    }

    /// Has something done elsewhere for a client; `None` if too much waits. It ends without a value if others with less
    /// of the queue come while it waits.
    pub fn begin<T: Send + 'static>(
        self: &Arc<LongWork>,
        env: &Env,
        client: Option<IpAddr>,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Option<Completion<T>> {
        let (completer, outcome) = completion();
        // If the client has gone meanwhile, no one awaits this; the work is done all the same.
        let is_begun = self.submit(env, client, Box::new(move || completer.complete(work())));
        is_begun.then_some(outcome)
    }

    fn submit(self: &Arc<LongWork>, env: &Env, client: Option<IpAddr>, job: Job) -> bool {
        let mut queue = self.queue.lock();
        if self.most_running == 0 {
            drop(queue);
            job();
            self.done.fetch_add(1, Ordering::Relaxed);
            return true;
        }
        if queue.running >= self.most_running {
            let pushed = queue.waiting.push(client.map(network), job);
            // What wakes those who waited for a refused job runs without the lock.
            drop(queue);
            let is_refused = !matches!(pushed, Ok(None));
            self.refused.fetch_add(is_refused.into(), Ordering::Relaxed);
            return pushed.is_ok();
        }
        queue.running += 1;
        drop(queue);
        let pool = Arc::clone(self);
        // A mistake is planted in the thread that looks for it.
        let leaves_late = planted::is(Bug::LaneLeavesLate);
        let is_begun = env.spawn.spawn(self.thread, Box::new(move || pool.work(job, leaves_late))).is_ok();
        if !is_begun {
            self.refused.fetch_add(1, Ordering::Relaxed);
            self.give_up_place();
        }
        is_begun
    }

    /// The queue as it is once something came that the thread does not look at any more.
    #[cold]
    fn queue_after_a_while<'a>(&'a self, mut queue: MutexGuard<'a, Queue>) -> MutexGuard<'a, Queue> {
        for _ in 0..100_000 {
            if queue.waiting.len() > 0 {
                break;
            }
            MutexGuard::unlocked(&mut queue, std::thread::yield_now);
        }
        queue
    }

    /// There is no thread for a place that was taken. What was left for it meanwhile is refused if no other one runs.
    fn give_up_place(&self) {
        let mut left = Vec::new();
        let mut queue = self.queue.lock();
        queue.running -= 1;
        if queue.running == 0 {
            left.extend(std::iter::from_fn(|| queue.waiting.pop()));
            self.idle.notify_all();
        }
        drop(queue);
        self.refused.fetch_add(left.len() as u64, Ordering::Relaxed);
    }

    fn work(&self, first: Job, leaves_late: bool) {
        let mut next = Some(first);
        while let Some(job) = next {
            job();
            self.done.fetch_add(1, Ordering::Relaxed);
            next = self.next_or_leave(leaves_late);
        }
    }

    /// What the thread does next, or nothing, and then it does not count any more. Both under one lock: whoever finds all
    /// threads running leaves a job for one that still looks.
    fn next_or_leave(&self, leaves_late: bool) -> Option<Job> {
        let mut queue = self.queue.lock();
        let next = queue.waiting.pop();
        if next.is_none() {
            if leaves_late {
                queue = self.queue_after_a_while(queue);
            }
            queue.running -= 1;
            if queue.running == 0 {
                self.idle.notify_all();
            }
        }
        next
    }

    /// Gives up what waits, of which nothing was acknowledged, and waits until nothing is under way any more: the buckets
    /// are about to be closed.
    pub fn wait_until_idle(&self) {
        let mut queue = self.queue.lock();
        let given_up: Vec<Job> = std::iter::from_fn(|| queue.waiting.pop()).collect();
        self.refused.fetch_add(given_up.len() as u64, Ordering::Relaxed);
        // What wakes the connections that waited for a job runs without the lock.
        MutexGuard::unlocked(&mut queue, || drop(given_up));
        while queue.running > 0 {
            if self.idle.wait_for(&mut queue, SAY_EVERY).timed_out() {
                let (thread, running) = (self.thread, queue.running);
                tracing::info!(
                    event = "stop_waits",
                    thread,
                    running,
                    "the stop waits for work of clients that is under way"
                );
            }
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn no_more_threads_than_allowed_and_no_more_jobs_than_fit() {
        let env = Env::real();
        let pool = Arc::new(LongWork::new("test", 2));
        let (done, finished) = mpsc::channel();
        let gates: Vec<_> = (0..2)
            .map(|_| {
                let (open, gate) = mpsc::channel::<()>();
                let done = done.clone();
                let job = move || {
                    let _ = gate.recv();
                    done.send(()).expect("the caller waits");
                };
                assert!(pool.submit(&env, None, Box::new(job)));
                open
            })
            .collect();
        for _ in 0..MOST_WAITING {
            let done = done.clone();
            assert!(pool.submit(&env, None, Box::new(move || done.send(()).expect("the caller waits"))));
        }
        assert!(!pool.submit(&env, None, Box::new(|| {})), "the queue is full");
        assert_eq!(pool.under_way(), 2 + MOST_WAITING);
        drop(gates);
        (0..2 + MOST_WAITING).for_each(|_| finished.recv().expect("all are done"));
        pool.wait_until_idle();
        assert_eq!((pool.under_way(), pool.done(), pool.refused()), (0, 2 + MOST_WAITING as u64, 1));
        assert!(pool.submit(&env, None, Box::new(|| {})));
        pool.wait_until_idle();
    }

    #[test]
    pub(crate) fn a_job_that_comes_while_the_last_thread_leaves_is_done() {
        let env = Env::real();
        let pool = Arc::new(LongWork::new("test", 1));
        let (done, is_done) = mpsc::channel();
        // Each comes at the moment at which the thread has nothing more to do.
        for n in 0..500 {
            let done = done.clone();
            assert!(pool.submit(&env, None, Box::new(move || done.send(n).expect("the test waits"))));
            assert_eq!(is_done.recv_timeout(Duration::from_secs(20)), Ok(n));
        }
        pool.wait_until_idle();
        assert_eq!((pool.under_way(), pool.done()), (0, 500));
    }

    #[test]
    fn a_stop_gives_up_what_waits() {
        let env = Env::real();
        let pool = Arc::new(LongWork::new("test", 1));
        let (open, gate) = mpsc::channel::<()>();
        let (begun, begins) = mpsc::channel();
        let running = move || {
            begun.send(()).expect("the test waits");
            let _ = gate.recv();
        };
        assert!(pool.submit(&env, None, Box::new(running)));
        begins.recv().expect("it begins");
        let (done, outcome) = mpsc::channel::<()>();
        for _ in 0..20 {
            let done = done.clone();
            assert!(pool.submit(&env, None, Box::new(move || done.send(()).expect("the test waits"))));
        }
        drop(done);
        let stopping = Arc::clone(&pool);
        let (over, is_over) = mpsc::channel();
        let stop = move || {
            stopping.wait_until_idle();
            over.send(()).expect("the test waits");
        };
        env.spawn.spawn("stop", Box::new(stop)).expect("a thread");
        assert!(outcome.recv().is_err(), "clients that wait are told, although another job is under way");
        assert_eq!((pool.under_way(), pool.done(), pool.refused()), (1, 0, 20));
        drop(open);
        is_over.recv().expect("it ends");
        assert_eq!((pool.under_way(), pool.done()), (0, 1));
    }
}
