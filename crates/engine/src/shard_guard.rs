//! A vBucket's lock while somebody holds it: who, and for how long.
//!
//! Each hold by background work is timed; of those by operations of clients one in 64 of each vBucket, so that the
//! clock costs them next to nothing.

use std::ops::{Deref, DerefMut};

use base::env::Clock;
use base::{Histogram, HistogramCounts};
use parking_lot::{Mutex, MutexGuard};

use crate::shard::Shard;

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

/// How long holders of each kind held the locks of a bucket's vBuckets.
#[derive(Default)]
pub(crate) struct LockClock {
    times: [Histogram; HOLDERS.len()],
}

impl LockClock {
    fn note(&self, holder: Holder, held_ns: u64) {
        self.times[holder as usize].record(held_ns);
    }

    pub(crate) fn times(&self, holder: Holder) -> HistogramCounts {
        self.times[holder as usize].counts()
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
