//! A vBucket's lock while somebody holds it: who, and for how long.
//!
//! Each hold by background work is timed; of those by operations of clients one in 64 of each vBucket, so that the
//! clock costs them next to nothing.

use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU64, Ordering};

use base::env::Clock;
use parking_lot::{Mutex, MutexGuard};

use crate::bucket::Shard;

/// Who holds a vBucket's lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(usize)]
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
/// Buckets of a histogram: the n-th counts holds below 2^n ns that the one before does not count, the last all longer.
pub const LOCK_TIME_BUCKETS: usize = 32;

/// How long holders of one kind held a vBucket's lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockTimes {
    /// Who.
    pub holder: Holder,
    /// Holds that were timed: all of them, of the front end one in 64.
    pub holds: u64,
    /// Their time together, in nanoseconds.
    pub total_ns: u64,
    /// The longest, in nanoseconds.
    pub longest_ns: u64,
    /// The n-th counts holds of at least 2^(n-1) and less than 2^n nanoseconds, the last all longer ones.
    pub histogram: [u64; LOCK_TIME_BUCKETS],
}

impl LockTimes {
    /// The mean, in nanoseconds.
    pub fn mean_ns(&self) -> u64 {
        self.total_ns.checked_div(self.holds).unwrap_or(0)
    }

    /// So many of a thousand holds took no longer than this, in nanoseconds: the end of a bucket, so at most twice
    /// what is true.
    pub fn percentile_ns(&self, per_mille: u64) -> u64 {
        let wanted = (self.holds * per_mille).div_ceil(1000).max(1);
        let mut counted = 0;
        let bucket = self.histogram.iter().position(|holds| {
            counted += holds;
            counted >= wanted
        });
        let is_last = |at: &usize| *at == LOCK_TIME_BUCKETS - 1;
        let end = bucket.filter(|at| !is_last(at)).map_or(u64::MAX, |at| (1 << at) - 1);
        end.min(self.longest_ns)
    }
}

#[derive(Default)]
struct Times {
    total_ns: AtomicU64,
    longest_ns: AtomicU64,
    histogram: [AtomicU64; LOCK_TIME_BUCKETS],
}

/// How long whom held the locks of a bucket's vBuckets.
#[derive(Default)]
pub(crate) struct LockClock {
    times: [Times; HOLDERS.len()],
}

impl LockClock {
    fn note(&self, holder: Holder, held_ns: u64) {
        let times = &self.times[holder as usize];
        let bucket = (u64::BITS - held_ns.leading_zeros()) as usize;
        times.histogram[bucket.min(LOCK_TIME_BUCKETS - 1)].fetch_add(1, Ordering::Relaxed);
        times.total_ns.fetch_add(held_ns, Ordering::Relaxed);
        if held_ns > times.longest_ns.load(Ordering::Relaxed) {
            times.longest_ns.fetch_max(held_ns, Ordering::Relaxed);
        }
    }

    pub(crate) fn times(&self, holder: Holder) -> LockTimes {
        let times = &self.times[holder as usize];
        let histogram = std::array::from_fn(|at| times.histogram[at].load(Ordering::Relaxed));
        LockTimes {
            holder,
            holds: histogram.iter().sum(),
            total_ns: times.total_ns.load(Ordering::Relaxed),
            longest_ns: times.longest_ns.load(Ordering::Relaxed),
            histogram,
        }
    }
}

/// A vBucket that is locked; unlocked when it is dropped.
pub(crate) struct ShardGuard<'a> {
    shard: MutexGuard<'a, Shard>,
    /// Dropped after the lock is released.
    _timing: Option<Timing<'a>>,
}

struct Timing<'a> {
    locks: &'a LockClock,
    clock: &'a dyn Clock,
    holder: Holder,
    since_ns: u64,
}

impl<'a> ShardGuard<'a> {
    #[inline]
    pub(crate) fn lock(
        shard: &'a Mutex<Shard>,
        holder: Holder,
        times: &'a LockClock,
        clock: &'a dyn Clock,
    ) -> ShardGuard<'a> {
        let mut shard = shard.lock();
        let is_timed = holder != Holder::FrontEnd || {
            shard.held = shard.held.wrapping_add(1);
            shard.held.is_multiple_of(FRONT_END_SAMPLE)
        };
        let timing = if is_timed { Some(Timing::begin(times, clock, holder)) } else { None };
        ShardGuard { shard, _timing: timing }
    }
}

impl<'a> Timing<'a> {
    #[cold]
    fn begin(locks: &'a LockClock, clock: &'a dyn Clock, holder: Holder) -> Timing<'a> {
        Timing { locks, clock, holder, since_ns: clock.monotonic_ns() }
    }
}

impl Drop for Timing<'_> {
    #[cold]
    fn drop(&mut self) {
        self.locks.note(self.holder, self.clock.monotonic_ns().saturating_sub(self.since_ns));
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
        &mut self.shard
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hold_is_counted_by_its_power_of_two() {
        let clock = LockClock::default();
        for held_ns in [0, 1, 1023, 1024, 100_000, u64::MAX] {
            clock.note(Holder::Pager, held_ns);
        }
        let times = clock.times(Holder::Pager);
        let counted: Vec<usize> = (0..LOCK_TIME_BUCKETS).filter(|at| times.histogram[*at] > 0).collect();
        assert_eq!(counted, [0, 1, 10, 11, 17, LOCK_TIME_BUCKETS - 1]);
        assert_eq!((times.holds, times.longest_ns), (6, u64::MAX));
        assert_eq!(clock.times(Holder::Flusher).holds, 0);
    }

    #[test]
    fn percentiles_are_ends_of_buckets_and_never_above_the_longest() {
        let clock = LockClock::default();
        let of = |per_mille| clock.times(Holder::Pager).percentile_ns(per_mille);
        assert_eq!((of(500), clock.times(Holder::Pager).mean_ns()), (0, 0), "nothing was measured");
        (0..990).for_each(|_| clock.note(Holder::Pager, 700));
        (0..9).for_each(|_| clock.note(Holder::Pager, 5000));
        assert_eq!((of(500), of(990), of(991), of(999), of(1000)), (1023, 1023, 5000, 5000, 5000));
        clock.note(Holder::Pager, 1 << 40);
        assert_eq!((of(990), of(999), of(1000)), (1023, 8191, 1 << 40));
        assert_eq!(clock.times(Holder::Pager).mean_ns(), ((1 << 40) + 990 * 700 + 9 * 5000) / 1000);
    }

    #[test]
    fn holders_stand_in_their_order() {
        for (at, holder) in HOLDERS.iter().enumerate() {
            assert_eq!(*holder as usize, at);
        }
    }
}
