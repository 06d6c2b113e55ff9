//! When the chores of a bucket are due: background steps over memory, each within its time slice.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use base::env::Clock;
use parking_lot::{Condvar, Mutex};

use crate::tasks::{TaskClock, TaskKind, TaskStats};
use crate::wakes::{Ring, assert_unlocked};

/// The longest a step works before it lets others run.
pub const TIME_SLICE: Duration = Duration::from_millis(25);
/// How often a chore looks whether there is something to do, if it has to look,
pub(crate) const LOOK_EVERY: Duration = Duration::from_secs(1);
/// and while the bucket is at rest. The longest, too, that the thread sleeps while nobody wakes it.
pub(crate) const LOOK_AT_REST_EVERY: Duration = Duration::from_secs(5);
/// A chore waits for others that are due later by this part of the time until then,
const TOGETHER_ONE_IN: u64 = 50;
/// and no longer than this: the thread wakes once for all that look every second.
const TOGETHER_WITHIN: Duration = Duration::from_millis(20);
/// Chores that look, and are not told of all that they must see.
const LOOKING: [ChoreId; 4] =
    [ChoreId::CheckpointRecovery, ChoreId::Pager, ChoreId::AccountCheck, ChoreId::RangeScans];

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
///
/// *Rest.* A node has 30 buckets, and most of them do nothing: a thread of each that wakes every second is most of what an idle
/// node costs. So the thread of the chores rests once the memory of its bucket has not changed for a while, and what changes
/// memory ends the rest ([`Keeper::rouse`]). Where no thread runs the chores, no bucket rests.
pub(crate) struct Keeper {
    pub(crate) posts: Vec<Post>,
    pub(crate) is_stopping: AtomicBool,
    pub(crate) is_woken: Mutex<bool>,
    pub(crate) wake: Condvar,
    pub(crate) is_at_rest: AtomicBool,
    /// The rest was ended since the thread looked last.
    pub(crate) is_roused: AtomicBool,
}

impl Default for Keeper {
    fn default() -> Keeper {
        let post = |_| Post { due_ns: AtomicU64::new(0), clock: TaskClock::default() };
        Keeper {
            posts: CHORES.iter().map(post).collect(),
            is_stopping: AtomicBool::new(false),
            is_woken: Mutex::new(false),
            wake: Condvar::new(),
            is_at_rest: AtomicBool::new(false),
            is_roused: AtomicBool::new(false),
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

    /// After how long a chore that found nothing to do looks again.
    pub(crate) fn look_again_after(&self) -> Duration {
        if self.is_at_rest.load(Ordering::Relaxed) { LOOK_AT_REST_EVERY } else { LOOK_EVERY }
    }

    /// Ends the rest of a bucket that begins to work. Cheap if it does not rest. Not to be called under a vBucket's lock.
    #[inline]
    pub(crate) fn rouse(&self) {
        if self.is_at_rest.load(Ordering::Relaxed) {
            self.end_rest();
        }
    }

    #[cold]
    fn end_rest(&self) {
        // The thread looks at what is set last first: it does not miss that it was roused.
        self.is_roused.store(true, Ordering::Relaxed);
        if self.is_at_rest.swap(false, Ordering::Release) {
            self.ring();
        }
    }

    /// Has chores that look do so as often as while there is work.
    pub(crate) fn look_soon(&self, now_ns: u64) {
        let at_ns = now_ns.saturating_add(LOOK_EVERY.as_nanos() as u64);
        for chore in LOOKING {
            self.posts[chore as usize].due_ns.fetch_min(at_ns, Ordering::Relaxed);
        }
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

    /// How long the thread sleeps from `now_ns` on while nobody wakes it: until the first chore is due, and those that are
    /// due soon after it.
    pub(crate) fn pause(&self, now_ns: u64) -> Duration {
        let left = |post: &Post| post.due_ns.load(Ordering::Relaxed).saturating_sub(now_ns);
        let first = self.posts.iter().map(left).min().unwrap_or(u64::MAX);
        let together = first.saturating_add((first / TOGETHER_ONE_IN).min(TOGETHER_WITHIN.as_nanos() as u64));
        let last = self.posts.iter().map(left).filter(|left| *left <= together).max().unwrap_or(first);
        Duration::from_nanos(last).min(LOOK_AT_REST_EVERY)
    }
}

impl Ring for Keeper {
    fn ring(&self) {
        assert_unlocked();
        *self.is_woken.lock() = true;
        self.wake.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn due(all_ms: &[(ChoreId, u64)]) -> Keeper {
        let keeper = Keeper::default();
        keeper.posts.iter().for_each(|post| post.due_ns.store(u64::MAX, Ordering::Relaxed));
        for (chore, at_ms) in all_ms {
            keeper.posts[*chore as usize].due_ns.store(at_ms * MS, Ordering::Relaxed);
        }
        keeper
    }

    #[test]
    fn the_thread_wakes_once_for_chores_that_are_due_at_about_the_same_time() {
        let pause = |all: &[(ChoreId, u64)], now_ms: u64| due(all).pause(now_ms * MS);
        let ms = Duration::from_millis;
        assert_eq!(pause(&[], 0), LOOK_AT_REST_EVERY, "it looks now and then, whatever is due");
        let all = [(ChoreId::Pager, 1_000), (ChoreId::AccountCheck, 1_019), (ChoreId::SyncWrites, 1_021)];
        assert_eq!(pause(&all, 0), ms(1_019));
        assert_eq!(pause(&all, 500), ms(500), "what is due soon waits for less");
        assert_eq!(pause(&all, 1_005), ms(0), "nothing waits for others once it is due");
        assert_eq!(pause(&[(ChoreId::Pager, 4_000), (ChoreId::SyncWrites, 4_030)], 0), ms(4_000));
    }

    #[test]
    fn a_bucket_that_begins_to_work_is_looked_at_soon() {
        let keeper =
            due(&[(ChoreId::Pager, 5_000), (ChoreId::SyncWrites, 9_000), (ChoreId::RangeScans, 300)]);
        keeper.rouse();
        assert!(!*keeper.is_woken.lock(), "it did not rest");
        assert_eq!(keeper.look_again_after(), LOOK_EVERY);
        keeper.is_at_rest.store(true, Ordering::Relaxed);
        assert_eq!(keeper.look_again_after(), LOOK_AT_REST_EVERY);
        keeper.rouse();
        assert!(*keeper.is_woken.lock() && keeper.is_roused.load(Ordering::Relaxed));
        assert_eq!(keeper.look_again_after(), LOOK_EVERY);
        keeper.look_soon(100 * MS);
        let due_ms = |chore: ChoreId| keeper.posts[chore as usize].due_ns.load(Ordering::Relaxed) / MS;
        let all = [ChoreId::Pager, ChoreId::AccountCheck, ChoreId::RangeScans, ChoreId::SyncWrites];
        assert_eq!(all.map(due_ms), [1_100, 1_100, 300, 9_000]);
    }
}
