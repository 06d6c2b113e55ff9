//! The housekeeper of a bucket: one thread that runs the background steps over memory, each within its time slice.
//!
//! Production runs [`Bucket::run_keeper`] on a thread; tests run [`Bucket::keep_step`] in the order they choose.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use base::env::Clock;
use parking_lot::{Condvar, Mutex};

use crate::account_check::AccountCheck;
use crate::bucket::Bucket;
use crate::checkpoint_recovery::CheckpointRecovery;
use crate::compressor::Compressor;
use crate::defragmenter::Defragmenter;
use crate::durability::SyncWrites;
use crate::eraser::Eraser;
use crate::expiry_pager::ExpiryPager;
use crate::pager::Pager;
use crate::range_scan::StaleRangeScans;
use crate::tasks::{TaskClock, TaskKind, TaskStats};
use crate::tombstone_purger::TombstonePurger;

/// The longest a step works before it lets others run.
pub const TIME_SLICE: Duration = Duration::from_millis(25);
/// When it is told to end, so that what it has begun ends in time, too.
const END_AFTER: Duration = Duration::from_millis(22);
/// The longest the thread sleeps while nobody wakes it.
pub(crate) const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// The end of a step's time.
pub struct Slice<'a> {
    clock: &'a dyn Clock,
    end_ns: u64,
}

impl Slice<'_> {
    /// Whether the step shall end now. Cheap enough to ask before every few dozen items.
    pub fn is_over(&self) -> bool {
        self.clock.monotonic_ns() >= self.end_ns
    }
}

/// When a chore wants to run again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// At once: there is more to do.
    Again,
    /// After so long, or when somebody wakes it.
    After(Duration),
}

/// One kind of background work.
pub trait Chore: Send {
    /// Works for at most one time slice.
    fn step(&mut self, bucket: &Bucket, slice: &Slice<'_>) -> Next;
}

/// All chores, in the order in which those that are due run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(usize)]
pub enum ChoreId {
    /// Takes out closed checkpoints, and drops slow cursors, when checkpoints take more than their share.
    CheckpointRecovery,
    /// Evicts what is cold above the high watermark, down to the low one.
    Pager,
    /// Makes tombstones of documents whose expiry time has passed.
    ExpiryPager,
    /// Forgets old tombstones of ephemeral buckets, and frees stale copies.
    TombstonePurger,
    /// Compresses values that are cold.
    Compressor,
    /// Moves aged versions together when the heap wastes much.
    Defragmenter,
    /// Compares the account with what the heap says.
    AccountCheck,
    /// Takes documents of dropped collections out of memory, and has their files compacted.
    Eraser,
    /// Aborts sync writes whose time is over.
    SyncWrites,
    /// Ends range scans whose time is over or whose vBucket is gone.
    RangeScans,
}

/// A row for each chore: its name in stats, what it does, and how it is made.
type Row = (&'static str, &'static str, fn() -> Box<dyn Chore>);
static CHORES: &[Row] = &[
    ("checkpoint_recovery", "Recovers memory of checkpoints", || Box::new(CheckpointRecovery::default())),
    ("pager", "Evicts what is cold", || Box::new(Pager::default())),
    ("expiry_pager", "Deletes expired documents", || Box::new(ExpiryPager::default())),
    ("tombstone_purger", "Forgets old tombstones in memory", || Box::new(TombstonePurger::default())),
    ("compressor", "Compresses cold values", || Box::new(Compressor::default())),
    ("defragmenter", "Moves versions together", || Box::new(Defragmenter::default())),
    ("account_check", "Compares the memory account with the heap", || Box::new(AccountCheck::default())),
    ("eraser", "Erases documents of dropped collections", || Box::new(Eraser)),
    ("sync_writes", "Ends sync writes whose time is over", || Box::new(SyncWrites)),
    ("range_scans", "Ends range scans that are over", || Box::new(StaleRangeScans)),
];

/// What a chore did so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChoreStats {
    /// Its name.
    pub name: &'static str,
    /// Steps it ran.
    pub steps: u64,
    /// Time it took, in nanoseconds.
    pub total_ns: u64,
    /// Its longest step, in nanoseconds.
    pub longest_ns: u64,
}

struct Post {
    chore: Mutex<Box<dyn Chore>>,
    /// Monotonic time at which it is due, in nanoseconds.
    due_ns: AtomicU64,
    clock: TaskClock,
}

/// The chores of a bucket, and when each is due.
pub(crate) struct Keeper {
    posts: Vec<Post>,
    is_stopping: AtomicBool,
    is_woken: Mutex<bool>,
    wake: Condvar,
}

impl Default for Keeper {
    fn default() -> Keeper {
        let post = |(_, _, make): &Row| Post {
            chore: Mutex::new(make()),
            due_ns: AtomicU64::new(0),
            clock: TaskClock::default(),
        };
        Keeper {
            posts: CHORES.iter().map(post).collect(),
            is_stopping: AtomicBool::new(false),
            is_woken: Mutex::new(false),
            wake: Condvar::new(),
        }
    }
}

impl Keeper {
    /// Makes a chore due now. Cheap if it is due already.
    pub(crate) fn wake(&self, chore: ChoreId) {
        if self.posts[chore as usize].due_ns.swap(0, Ordering::Relaxed) != 0 {
            self.ring();
        }
    }

    /// Makes a chore due at a monotonic time, if it is not due before. Cheap then.
    pub(crate) fn wake_at(&self, chore: ChoreId, at_ns: u64) {
        if self.posts[chore as usize].due_ns.fetch_min(at_ns, Ordering::Relaxed) > at_ns {
            self.ring();
        }
    }

    /// Makes all chores due now.
    pub(crate) fn wake_all(&self) {
        self.posts.iter().for_each(|post| post.due_ns.store(0, Ordering::Relaxed));
        self.ring();
    }

    fn ring(&self) {
        *self.is_woken.lock() = true;
        self.wake.notify_all();
    }

    /// What each chore did so far.
    pub(crate) fn task_stats(&self) -> impl Iterator<Item = TaskStats> {
        std::iter::zip(&self.posts, CHORES).map(|(post, (name, does, _))| {
            post.clock.stats(name, TaskKind::NonIo, does, post.due_ns.load(Ordering::Relaxed))
        })
    }

    fn earliest_ns(&self) -> u64 {
        self.posts.iter().map(|post| post.due_ns.load(Ordering::Relaxed)).min().unwrap_or(u64::MAX)
    }
}

impl Bucket {
    /// Runs each chore that is due for one time slice. Says whether any was.
    pub fn keep_step(&self) -> bool {
        let mut any = false;
        for at in 0..self.keeper.posts.len() {
            any |= self.keep(at);
        }
        if any {
            self.replicas.tell_replica_room();
        }
        any
    }

    fn keep(&self, at: usize) -> bool {
        let post = &self.keeper.posts[at];
        let clock = &*self.env.clock;
        let begin = clock.monotonic_ns();
        let due_ns = post.due_ns.load(Ordering::Relaxed);
        if due_ns > begin || self.keeper.is_stopping.load(Ordering::Relaxed) {
            return false;
        }
        // Whoever wakes it during the step makes it due again.
        post.due_ns.store(u64::MAX, Ordering::Relaxed);
        let slice = Slice { clock, end_ns: begin + END_AFTER.as_nanos() as u64 };
        // Who woke it did not say when.
        let since_ns = (due_ns > 0).then_some(due_ns);
        let next = post.clock.time(clock, since_ns, || post.chore.lock().step(self, &slice));
        let end = clock.monotonic_ns();
        let due = match next {
            Next::Again => end,
            Next::After(pause) => end.saturating_add(pause.as_nanos() as u64),
        };
        // A wake during the step wrote 0, which stays.
        let _ = post.due_ns.compare_exchange(u64::MAX, due, Ordering::Relaxed, Ordering::Relaxed);
        true
    }

    /// Runs chores until the bucket is closed; for a thread of its own.
    pub fn run_keeper(&self) {
        while !self.keeper.is_stopping.load(Ordering::Relaxed) {
            self.keep_step();
            let now = self.env.clock.monotonic_ns();
            let pause =
                Duration::from_nanos(self.keeper.earliest_ns().saturating_sub(now)).min(LONGEST_PAUSE);
            let mut woken = self.keeper.is_woken.lock();
            if !std::mem::take(&mut *woken) && !pause.is_zero() {
                self.keeper.wake.wait_for(&mut woken, pause);
            }
        }
    }

    /// Lets the keeper's thread end after its present step.
    pub fn stop_keeper(&self) {
        self.keeper.is_stopping.store(true, Ordering::Relaxed);
        self.keeper.ring();
    }

    /// What each chore did so far.
    pub fn chore_stats(&self) -> Vec<ChoreStats> {
        let stats = |task: TaskStats| ChoreStats {
            name: task.name,
            steps: task.run.total(),
            total_ns: task.run.sum_ns(),
            longest_ns: task.run.longest_ns(),
        };
        self.keeper.task_stats().map(stats).collect()
    }
}
