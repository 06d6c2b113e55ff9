//! When the chores of a bucket are due: background steps over memory, each within its time slice.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use base::env::Clock;
use parking_lot::{Condvar, Mutex};

use crate::tasks::{TaskClock, TaskKind, TaskStats};
use crate::wakes::{Ring, assert_unlocked};

/// The longest a step works before it lets others run.
pub const TIME_SLICE: Duration = Duration::from_millis(25);
/// The longest the thread sleeps while nobody wakes it.
pub(crate) const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// The end of a step's time.
pub struct Slice<'a> {
    pub(crate) clock: &'a dyn Clock,
    pub(crate) end_ns: u64,
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
    /// What it works on.
    type Of: Send + Sync;

    /// Works for at most one time slice.
    fn step(&mut self, of: &Self::Of, slice: &Slice<'_>) -> Next;
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

/// A row for each chore: its name in stats, and what it does.
static CHORES: &[(&str, &str)] = &[
    ("checkpoint_recovery", "Recovers memory of checkpoints"),
    ("pager", "Evicts what is cold"),
    ("expiry_pager", "Deletes expired documents"),
    ("tombstone_purger", "Forgets old tombstones in memory"),
    ("compressor", "Compresses cold values"),
    ("defragmenter", "Moves versions together"),
    ("account_check", "Compares the memory account with the heap"),
    ("eraser", "Erases documents of dropped collections"),
    ("sync_writes", "Ends sync writes whose time is over"),
    ("range_scans", "Ends range scans that are over"),
];

pub(crate) struct Post {
    /// Monotonic time at which it is due, in nanoseconds.
    pub(crate) due_ns: AtomicU64,
    pub(crate) clock: TaskClock,
}

/// When each chore of a bucket is due, and how long it took. It is woken here by those who know nothing of chores.
pub(crate) struct Keeper {
    pub(crate) posts: Vec<Post>,
    pub(crate) is_stopping: AtomicBool,
    pub(crate) is_woken: Mutex<bool>,
    pub(crate) wake: Condvar,
}

impl Default for Keeper {
    fn default() -> Keeper {
        let post = |_| Post { due_ns: AtomicU64::new(0), clock: TaskClock::default() };
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

    /// Makes a chore due at a monotonic time, if it is not due before; for a caller that holds a vBucket's lock. Whether the
    /// keeper is to be woken when that is released.
    #[must_use]
    pub(crate) fn note(&self, chore: ChoreId, at_ns: u64) -> bool {
        self.posts[chore as usize].due_ns.fetch_min(at_ns, Ordering::Relaxed) > at_ns
    }

    /// Makes all chores due now.
    pub(crate) fn wake_all(&self) {
        self.posts.iter().for_each(|post| post.due_ns.store(0, Ordering::Relaxed));
        self.ring();
    }

    /// What each chore did so far.
    pub(crate) fn task_stats(&self) -> impl Iterator<Item = TaskStats> {
        std::iter::zip(&self.posts, CHORES).map(|(post, (name, does))| {
            post.clock.stats(name, TaskKind::NonIo, does, post.due_ns.load(Ordering::Relaxed))
        })
    }

    /// The clock of each chore, with its name and what it does.
    pub(crate) fn clocks(&self) -> impl Iterator<Item = (&TaskClock, &'static str, &'static str)> {
        std::iter::zip(&self.posts, CHORES).map(|(post, (name, does))| (&post.clock, *name, *does))
    }

    pub(crate) fn earliest_ns(&self) -> u64 {
        self.posts.iter().map(|post| post.due_ns.load(Ordering::Relaxed)).min().unwrap_or(u64::MAX)
    }
}

impl Ring for Keeper {
    fn ring(&self) {
        assert_unlocked();
        *self.is_woken.lock() = true;
        self.wake.notify_all();
    }
}
