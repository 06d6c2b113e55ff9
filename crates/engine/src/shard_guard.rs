//! A vBucket's lock while somebody holds it: who, and for how long.
//!
//! Each hold by background work is timed; of those by operations of clients one in 64 of each vBucket, so that the
//! clock costs them next to nothing. A wait for the lock is timed always: who finds it free does not look at the clock.

use std::cell::Cell;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use base::env::Clock;
use base::{Histogram, HistogramCounts};
use parking_lot::{Mutex, MutexGuard};

use crate::change_marks::ChangeMarks;
use crate::shard::Shard;
use crate::wakes::{self, Wakes};

/// Who holds a vBucket's lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Holder {
    /// An operation of a client.
    FrontEnd,
    /// Takes batches, and notes what is on disk.
    Flusher,
    /// Brings values that readers wait for.
    Fetcher,
    /// Loads documents and values after a start.
    Loader,
    /// Looks for what a compaction left out or found expired.
    Compactor,
    /// Evicts what is cold.
    Pager,
    /// Makes tombstones of expired documents.
    ExpiryPager,
    /// Forgets old tombstones.
    TombstonePurger,
    /// Compresses cold values.
    Compressor,
    /// Moves aged versions together.
    Defragmenter,
    /// Recovers memory of checkpoints.
    CheckpointRecovery,
    /// Stats.
    Stats,
    /// Changes of roles, deletion, rollback.
    Roles,
    /// Erases documents of dropped collections.
    Eraser,
    /// Commits and aborts sync writes.
    SyncWrites,
}

/// All of them, in their order.
pub const HOLDERS: [Holder; 15] = [
    Holder::FrontEnd,
    Holder::Flusher,
    Holder::Fetcher,
    Holder::Loader,
    Holder::Compactor,
    Holder::Pager,
    Holder::ExpiryPager,
    Holder::TombstonePurger,
    Holder::Compressor,
    Holder::Defragmenter,
    Holder::CheckpointRecovery,
    Holder::Stats,
    Holder::Roles,
    Holder::Eraser,
    Holder::SyncWrites,
];

impl Holder {
    /// Its name in stats.
    pub fn name(self) -> &'static str {
        match self {
            Holder::FrontEnd => "front_end",
            Holder::Flusher => "flusher",
            Holder::Fetcher => "fetcher",
            Holder::Loader => "loader",
            Holder::Compactor => "compactor",
            Holder::Pager => "pager",
            Holder::ExpiryPager => "expiry_pager",
            Holder::TombstonePurger => "tombstone_purger",
            Holder::Compressor => "compressor",
            Holder::Defragmenter => "defragmenter",
            Holder::CheckpointRecovery => "checkpoint_recovery",
            Holder::Stats => "stats",
            Holder::Roles => "roles",
            Holder::Eraser => "eraser",
            Holder::SyncWrites => "sync_writes",
        }
    }
}

/// One in so many holds by the front end is timed.
pub const FRONT_END_SAMPLE: u8 = 64;

/// How long holders of each kind held the locks of a bucket's vBuckets, and waited for them.
#[derive(Default)]
pub(crate) struct LockClock {
    times: [Histogram; HOLDERS.len()],
    waits: [Histogram; HOLDERS.len()],
}

impl LockClock {
    fn note(&self, holder: Holder, held_ns: u64) {
        self.times[holder as usize].record(held_ns);
    }

    pub(crate) fn times(&self, holder: Holder) -> HistogramCounts {
        self.times[holder as usize].counts()
    }

    pub(crate) fn waits(&self, holder: Holder) -> HistogramCounts {
        self.waits[holder as usize].counts()
    }
}

/// A wait of a thread for the lock of a vBucket, in nanoseconds of the monotonic clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockWait {
    /// When it began.
    pub from_ns: u64,
    /// When the thread had the lock.
    pub until_ns: u64,
}

impl LockWait {
    const NONE: LockWait = LockWait { from_ns: 0, until_ns: 0 };

    fn ns(self) -> u64 {
        self.until_ns.saturating_sub(self.from_ns)
    }
}

/// Waits that a thread keeps: the longest of the last minute.
const KEPT_WAITS: usize = 8;
const KEPT_FOR_NS: u64 = 60_000_000_000;

thread_local! {
    static WAITS: Cell<[LockWait; KEPT_WAITS]> = const { Cell::new([LockWait::NONE; KEPT_WAITS]) };
}

/// The longest waits of this thread for locks of vBuckets that began at `since_ns` or later, in order: for the spans of
/// an operation that turned out to be slow.
pub fn lock_waits_since(since_ns: u64) -> Vec<LockWait> {
    let is_wanted = |wait: &LockWait| *wait != LockWait::NONE && wait.from_ns >= since_ns;
    let mut waits: Vec<LockWait> = WAITS.get().into_iter().filter(is_wanted).collect();
    waits.sort_unstable_by_key(|wait| wait.from_ns);
    waits
}

/// Keeps a wait of this thread in the place of the one that is worth least.
fn keep(wait: LockWait) {
    let mut waits = WAITS.get();
    let worth = |kept: LockWait| {
        let is_old = wait.from_ns.saturating_sub(kept.from_ns) > KEPT_FOR_NS;
        if is_old { 0 } else { kept.ns() }
    };
    let least = (0..KEPT_WAITS).min_by_key(|at| worth(waits[*at])).unwrap_or(0);
    if worth(waits[least]) <= wait.ns() {
        waits[least] = wait;
        WAITS.set(waits);
    }
}

/// Locks, and notes how long that took if another thread had the lock.
#[inline]
fn lock_noting<'a, T>(mutex: &'a Mutex<T>, waits: &Histogram, clock: &dyn Clock) -> MutexGuard<'a, T> {
    mutex.try_lock().unwrap_or_else(|| wait(mutex, waits, clock))
}

#[cold]
fn wait<'a, T>(mutex: &'a Mutex<T>, waits: &Histogram, clock: &dyn Clock) -> MutexGuard<'a, T> {
    let from_ns = clock.monotonic_ns();
    let guard = mutex.lock();
    let wait = LockWait { from_ns, until_ns: clock.monotonic_ns() };
    waits.record(wait.ns());
    keep(wait);
    guard
}

/// What all locks of a bucket's vBuckets have in common.
pub(crate) struct LockBook {
    /// Which vBuckets changed.
    pub(crate) marks: ChangeMarks,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) times: LockClock,
}

/// A vBucket that is locked; unlocked when it is dropped.
///
/// It is handed from function to function in each operation, so it is kept as small as it can be.
pub(crate) struct ShardGuard<'a> {
    shard: MutexGuard<'a, Shard>,
    after: AfterUnlock<'a>,
}

const _: () = assert!(size_of::<ShardGuard<'_>>() <= 40, "a guard is small");

/// What is done when the lock is released, and no part of the hold.
struct AfterUnlock<'a> {
    book: &'a LockBook,
    wakes: Wakes,
    /// When a timed hold began; when it is over, how long it took.
    timed_ns: u64,
    holder: Holder,
    is_timed: bool,
    /// Whether the vBucket is among [`LockBook::marks`]: it is noted there before the first change, so that a look that
    /// takes the mark waits for this lock then, and sees all changes.
    is_marked: bool,
}

impl<'a> ShardGuard<'a> {
    #[inline]
    pub(crate) fn lock(shard: &'a Mutex<Shard>, holder: Holder, book: &'a LockBook) -> ShardGuard<'a> {
        let mut shard = lock_noting(shard, &book.times.waits[holder as usize], &*book.clock);
        let is_timed = holder != Holder::FrontEnd || {
            shard.held = shard.held.wrapping_add(1);
            shard.held.is_multiple_of(FRONT_END_SAMPLE)
        };
        wakes::note_locked();
        let timed_ns = if is_timed { book.now_ns() } else { 0 };
        let wakes = Wakes::default();
        ShardGuard { shard, after: AfterUnlock { book, wakes, timed_ns, holder, is_timed, is_marked: false } }
    }
}

impl LockBook {
    #[cold]
    fn now_ns(&self) -> u64 {
        self.clock.monotonic_ns()
    }
}

impl Drop for ShardGuard<'_> {
    #[inline]
    fn drop(&mut self) {
        wakes::note_unlocked();
        if self.after.is_timed {
            // To wake a thread that waits for the lock is no part of the hold.
            self.after.timed_ns = self.after.book.now_ns().saturating_sub(self.after.timed_ns);
        }
        if !self.shard.wakes.is_empty() {
            self.after.wakes = std::mem::take(&mut self.shard.wakes);
        }
    }
}

impl Drop for AfterUnlock<'_> {
    #[inline]
    fn drop(&mut self) {
        if self.is_timed {
            self.book.times.note(self.holder, self.timed_ns);
        }
    }
}

impl Deref for ShardGuard<'_> {
    type Target = Shard;

    #[inline]
    fn deref(&self) -> &Shard {
        &self.shard
    }
}

impl DerefMut for ShardGuard<'_> {
    #[inline]
    fn deref_mut(&mut self) -> &mut Shard {
        if !std::mem::replace(&mut self.after.is_marked, true) {
            self.after.book.marks.mark(self.shard.vb.id());
        }
        &mut self.shard
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    /// Late, so that no wait of another test of this thread is taken for one of this.
    const LATE_NS: u64 = 1 << 60;

    /// Has the holder of a lock release it at the first look, and goes on by 500 ns with each look.
    struct ReleasingClock {
        release: Barrier,
        looks: AtomicU64,
    }

    impl Clock for ReleasingClock {
        fn unix_ns(&self) -> u64 {
            0
        }

        fn monotonic_ns(&self) -> u64 {
            let before = self.looks.fetch_add(1, Ordering::Relaxed);
            if before == 0 {
                self.release.wait();
            }
            LATE_NS + before * 500
        }
    }

    #[test]
    fn a_wait_is_timed_and_a_free_lock_costs_no_look_at_the_clock() {
        let (mutex, waits, is_held) = (Mutex::new(7), Histogram::default(), Barrier::new(2));
        let clock = ReleasingClock { release: Barrier::new(2), looks: AtomicU64::new(0) };
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let guard = mutex.lock();
                is_held.wait();
                clock.release.wait();
                drop(guard);
            });
            is_held.wait();
            assert_eq!(*lock_noting(&mutex, &waits, &clock), 7);
        });
        let wait = LockWait { from_ns: LATE_NS, until_ns: LATE_NS + 500 };
        assert_eq!((lock_waits_since(LATE_NS), lock_waits_since(LATE_NS + 1)), (vec![wait], vec![]));
        drop(lock_noting(&mutex, &waits, &clock));
        assert_eq!(clock.looks.load(Ordering::Relaxed), 2);
        assert_eq!((waits.counts().total(), waits.counts().sum_ns()), (1, 500));
    }

    #[test]
    fn the_longest_waits_are_kept_for_a_while() {
        let kept = || lock_waits_since(LATE_NS).iter().map(|wait| wait.ns()).collect::<Vec<_>>();
        let wait = |from_ns, ns| keep(LockWait { from_ns, until_ns: from_ns + ns });
        // On a thread of its own, which has waited for nothing else.
        std::thread::scope(|scope| {
            scope.spawn(|| {
                (0..20).for_each(|n| wait(LATE_NS + n * 1_000, 100 + n % 10));
                assert_eq!(kept(), [106, 107, 108, 109, 106, 107, 108, 109]);
                wait(LATE_NS + 30_000 + KEPT_FOR_NS, 1);
                assert_eq!(kept().len(), KEPT_WAITS);
                assert!(kept().ends_with(&[1]), "it replaces one that is a minute old: {:?}", kept());
            });
        });
    }

    #[test]
    fn a_hold_is_counted_for_its_holder() {
        let clock = LockClock::default();
        [700, 100_000].into_iter().for_each(|held_ns| clock.note(Holder::Pager, held_ns));
        let times = clock.times(Holder::Pager);
        assert_eq!((times.total(), times.sum_ns(), times.longest_ns()), (2, 100_700, 100_000));
        assert_eq!(clock.times(Holder::Flusher).total(), 0);
    }

    #[test]
    fn holders_stand_in_their_order() {
        for (at, holder) in HOLDERS.iter().enumerate() {
            assert_eq!(*holder as usize, at);
        }
    }
}
