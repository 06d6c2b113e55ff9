//! The vBuckets of a bucket, and the one way to take the lock of one: by saying what for.

use std::sync::Arc;

use base::env::Clock;
use base::version::prefetch_all;
use base::{HistogramCounts, VbId, VbState};
use parking_lot::Mutex;

use crate::change_marks::ChangeMarks;
use crate::refusal::Refusal;
use crate::shard::Shard;
use crate::shard_guard::{Holder, LockBook, LockClock, ShardGuard};

#[cfg(debug_assertions)]
thread_local! {
    static LOCKS_TAKEN: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

/// How often this thread has locked a vBucket for an operation: for tests that hold an operation to one lock.
#[cfg(debug_assertions)]
pub fn locks_taken() -> u64 {
    LOCKS_TAKEN.get()
}

/// The vBuckets of a bucket. Clones are of the same ones.
///
/// # Thread safety
///
/// A thread holds the lock of one vBucket at most, and takes no lock under it but those that ARCHITECTURE.md lists.
#[derive(Clone)]
pub(crate) struct VBuckets {
    shards: Arc<[Mutex<Shard>]>,
    book: Arc<LockBook>,
}

impl VBuckets {
    pub(crate) fn new(shards: impl Iterator<Item = Shard>, clock: &Arc<dyn Clock>) -> VBuckets {
        let shards: Arc<[Mutex<Shard>]> = shards.map(Mutex::new).collect();
        let count = u16::try_from(shards.len()).expect("vBuckets have numbers of 16 bits");
        let (marks, clock, times) = (ChangeMarks::new(count), Arc::clone(clock), LockClock::default());
        VBuckets { shards, book: Arc::new(LockBook { marks, clock, times }) }
    }

    /// A vBucket with its lock, for those who do not wait for that; `None` if the bucket has none of this number.
    pub(crate) fn shard(&self, vb: VbId) -> Option<&Mutex<Shard>> {
        self.shards.get(usize::from(vb.0))
    }

    /// Which of them changed since figures were made of them.
    pub(crate) fn marks(&self) -> &ChangeMarks {
        &self.book.marks
    }

    /// Locks a vBucket, there or deleted.
    ///
    /// # Panics
    ///
    /// If the bucket has no vBucket of this number.
    pub(crate) fn hold(&self, vb: VbId, holder: Holder) -> ShardGuard<'_> {
        ShardGuard::lock(&self.shards[usize::from(vb.0)], holder, &self.book)
    }

    /// Locks a vBucket, there or deleted; `None` if the bucket has none of this number.
    #[inline]
    pub(crate) fn any(&self, vb: VbId, holder: Holder) -> Option<ShardGuard<'_>> {
        let shard = self.shard(vb)?;
        Some(ShardGuard::lock(shard, holder, &self.book))
    }

    /// Locks a vBucket whatever its role, if it is there.
    #[inline]
    pub(crate) fn find(&self, vb: VbId, holder: Holder) -> Result<ShardGuard<'_>, Refusal> {
        #[cfg(debug_assertions)]
        if holder == Holder::FrontEnd {
            LOCKS_TAKEN.set(LOCKS_TAKEN.get() + 1);
        }
        let shard = self.any(vb, holder).ok_or(Refusal::NotMyVbucket)?;
        if shard.exists { Ok(shard) } else { Err(Refusal::NotMyVbucket) }
    }

    /// Locks a vBucket whose documents are loaded, whatever its role.
    pub(crate) fn loaded(&self, vb: VbId, holder: Holder) -> Result<ShardGuard<'_>, Refusal> {
        let shard = self.find(vb, holder)?;
        if shard.unloaded.is_none() { Ok(shard) } else { Err(Refusal::Loading) }
    }

    /// Locks a vBucket that must be active and whose documents are loaded.
    pub(crate) fn active(&self, vb: VbId, holder: Holder) -> Result<ShardGuard<'_>, Refusal> {
        let shard = self.find(vb, holder)?;
        if shard.unloaded.is_some() {
            // Another role is told at once: there is nothing to wait for.
            let is_active = shard.vb.state() == VbState::Active;
            return Err(if is_active { Refusal::Loading } else { Refusal::NotMyVbucket });
        }
        match shard.vb.state() {
            VbState::Active => Ok(shard),
            // It will be told soon who serves it.
            VbState::Pending => Err(Refusal::Pending),
            VbState::Replica | VbState::Dead => Err(Refusal::NotMyVbucket),
        }
    }

    /// Asks the processor to bring a vBucket closer that is worked on next.
    pub(crate) fn prefetch(&self, vb: Option<VbId>) {
        if let Some(shard) = vb.and_then(|vb| self.shard(vb)) {
            prefetch_all(shard);
        }
    }

    /// How long holders of this kind held the locks so far.
    pub(crate) fn lock_times_of(&self, holder: Holder) -> HistogramCounts {
        self.book.times.times(holder)
    }

    /// How long holders of this kind waited for the locks so far, if they had to.
    pub(crate) fn lock_waits_of(&self, holder: Holder) -> HistogramCounts {
        self.book.times.waits(holder)
    }
}
