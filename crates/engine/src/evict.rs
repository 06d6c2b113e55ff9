//! Taking documents out of memory: values, whole documents, or for good, as the bucket's policy says.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use base::frequency::copy_frequency;
use base::{DocKey, NewVersion, VbId, Version};

use crate::bucket_core::Core;
use crate::config::EvictionPolicy;
use crate::counters::OpCounts;
use crate::keeper::ChoreId;
use crate::refusal::Refusal;
use crate::shard_guard::Holder;

/// What eviction did so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EvictionStats {
    /// Passes of the pager over the table, ended or not.
    pub passes: u64,
    /// Versions that it looked at.
    pub visited: u64,
    /// Values taken out of memory.
    pub evicted_values: u64,
    /// Whole documents taken out of memory.
    pub evicted_documents: u64,
    /// Values and documents taken out of memory one by one: a client asked for it, or there was no room for what was read.
    pub evicted_singly: u64,
    /// Documents deleted for good, of an ephemeral bucket.
    pub deleted_documents: u64,
    /// Bytes that all this gave back.
    pub freed_bytes: u64,
    /// Documents that stayed because they are not on disk yet.
    pub kept_dirty: u64,
    /// that stayed because somebody else holds them in memory anyway: a checkpoint, the store until its files are up to
    /// date, a stream, a reader.
    pub kept_held: u64,
    /// that stayed because they are locked.
    pub kept_locked: u64,
    /// that stayed because they are used too often.
    pub kept_hot: u64,
    /// that stayed because they were written since the pass before.
    pub kept_young: u64,
    /// Times that all frequencies were lowered, with time or because too many were as high as can be.
    pub decays: u64,
    /// Documents used less often than this went last, in active vBuckets
    pub active_threshold: u64,
    /// and in others.
    pub replica_threshold: u64,
    /// The longest that the pager held a vBucket's lock, in nanoseconds.
    pub longest_hold_ns: u64,
    /// Changes that were refused because memory ran short, below the quota
    pub refused_below_quota: u64,
    /// and at or above it.
    pub refused_above_quota: u64,
}

impl EvictionStats {
    /// Values and documents that left memory, and are still on disk.
    pub fn ejects(&self) -> u64 {
        self.evicted_values + self.evicted_documents + self.evicted_singly
    }
}

/// Counts of what eviction does.
#[derive(Default)]
pub(crate) struct EvictionCounters {
    /// The pager knows that memory runs short; nobody has to wake it.
    pub(crate) is_awake: AtomicBool,
    /// A value was fetched that there is no room for: it is lent, and goes again before the pager looks.
    pub(crate) is_room_wanted: AtomicBool,
    /// Changes are refused because of slack that cannot be moved together: fewer documents need fewer slabs.
    pub(crate) is_squeezed: AtomicBool,
    /// The defragmenter knows that slack is in the way.
    pub(crate) is_defragmenter_called: AtomicBool,
    /// The pager's last look at all documents found metadata alone above the high watermark, and may evict values only.
    pub(crate) is_full_of_metadata: AtomicBool,
    pub(crate) passes: AtomicU64,
    pub(crate) visited: AtomicU64,
    pub(crate) evicted_values: AtomicU64,
    pub(crate) evicted_documents: AtomicU64,
    pub(crate) evicted_singly: AtomicU64,
    pub(crate) deleted_documents: AtomicU64,
    pub(crate) freed_bytes: AtomicU64,
    pub(crate) kept_dirty: AtomicU64,
    pub(crate) kept_held: AtomicU64,
    pub(crate) kept_locked: AtomicU64,
    pub(crate) kept_hot: AtomicU64,
    pub(crate) kept_young: AtomicU64,
    pub(crate) decays: AtomicU64,
    pub(crate) active_threshold: AtomicU64,
    pub(crate) replica_threshold: AtomicU64,
    pub(crate) refused_below_quota: AtomicU64,
    pub(crate) refused_above_quota: AtomicU64,
}

impl EvictionCounters {
    /// Refuses a change because memory runs short.
    #[cold]
    pub(crate) fn refuse(&self, is_above_quota: bool) -> Refusal {
        let refused = if is_above_quota { &self.refused_above_quota } else { &self.refused_below_quota };
        refused.fetch_add(1, Ordering::Relaxed);
        Refusal::OverQuota
    }
}

/// What evicting some documents came to.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Evicted {
    pub(crate) documents: u64,
    pub(crate) freed_bytes: u64,
}

/// What leaves memory when it runs short, and who is called then.
pub struct Eviction {
    pub(crate) core: Arc<Core>,
    pub(crate) counters: EvictionCounters,
}

impl Eviction {
    pub(crate) fn new(core: &Arc<Core>) -> Eviction {
        Eviction { core: Arc::clone(core), counters: EvictionCounters::default() }
    }

    /// What eviction did so far.
    pub fn eviction_stats(&self) -> EvictionStats {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let e = &self.counters;
        EvictionStats {
            passes: of(&e.passes),
            visited: of(&e.visited),
            evicted_values: of(&e.evicted_values),
            evicted_documents: of(&e.evicted_documents),
            evicted_singly: of(&e.evicted_singly),
            deleted_documents: of(&e.deleted_documents),
            freed_bytes: of(&e.freed_bytes),
            kept_dirty: of(&e.kept_dirty),
            kept_held: of(&e.kept_held),
            kept_locked: of(&e.kept_locked),
            kept_hot: of(&e.kept_hot),
            kept_young: of(&e.kept_young),
            decays: of(&e.decays),
            active_threshold: of(&e.active_threshold),
            replica_threshold: of(&e.replica_threshold),
            refused_below_quota: of(&e.refused_below_quota),
            refused_above_quota: of(&e.refused_above_quota),
            longest_hold_ns: self.core.lock_times_of(Holder::Pager).longest_ns(),
        }
    }

    /// Whether metadata alone fill the memory, so that evicting values cannot make room.
    pub fn is_full_of_metadata(&self) -> bool {
        self.counters.is_full_of_metadata.load(Ordering::Relaxed)
            && self.core.eviction_policy() == EvictionPolicy::ValueOnly
            && self.core.memory.is_above_high_watermark()
    }

    /// Somebody saw that memory is short: those are called who can do something about it.
    #[cold]
    pub(crate) fn make_room(&self) {
        if self.core.memory.is_above_high_watermark() {
            self.wake_pager();
        }
        let called = &self.counters.is_defragmenter_called;
        if self.core.memory.is_slack_in_the_way()
            && !called.load(Ordering::Relaxed)
            && !called.swap(true, Ordering::Relaxed)
        {
            self.core.keeper.wake(ChoreId::Defragmenter);
        }
    }

    /// Changes are refused because of slack, and moving versions together does not help: there are too few of a size to
    /// fill a slab. Some more have to go.
    pub(crate) fn squeeze(&self) {
        self.counters.is_squeezed.store(true, Ordering::Relaxed);
        self.core.keeper.wake(ChoreId::Pager);
    }

    /// Somebody saw that the bucket is above the high watermark.
    #[cold]
    pub(crate) fn wake_pager(&self) {
        let has_victims = self.core.eviction_policy() != EvictionPolicy::FailNewData;
        if has_victims && !self.counters.is_awake.load(Ordering::Relaxed) {
            self.counters.is_awake.store(true, Ordering::Relaxed);
            self.core.keeper.wake(ChoreId::Pager);
        }
    }

    /// Takes the value of a key out of memory; its metadata stay, unless whole documents are evicted.
    /// False if it has to stay: it is not on disk yet,
    /// locked, or empty. Fine if it is out already.
    pub fn evict_value(&self, vb: VbId, key: DocKey<'_>) -> Result<bool, Refusal> {
        let hash = self.core.hash(key);
        let now = self.core.now();
        let version = {
            let shard = self.core.vbuckets.loaded(vb, Holder::FrontEnd)?;
            if !shard.vb.collections().is_open(key.collection) {
                return Err(Refusal::UnknownCollection);
            }
            let found = shard.vb.find(hash, key)?.filter(|version| !version.is_deleted());
            let version = found.ok_or(Refusal::NotFound)?;
            if self.core.evicts_whole() {
                let version = version.clone();
                drop(shard);
                return Ok(self.evict_document(vb, hash, &version));
            }
            if !version.is_resident() {
                return Ok(true);
            }
            if !shard.vb.is_evictable(&version, now) {
                return Ok(false);
            }
            version.clone()
        };
        Ok(self.evict_version(vb, hash, &version))
    }

    /// Takes out the value of exactly this version, or all of it, as the policy has it, if it may go.
    pub(crate) fn evict_version(&self, vb: VbId, hash: u64, version: &Version) -> bool {
        if self.core.evicts_whole() {
            return self.evict_document(vb, hash, version);
        }
        let hollow = self.hollow_of(version);
        let now = self.core.now();
        let Ok(mut shard) = self.core.vbuckets.loaded(vb, Holder::Fetcher) else { return false };
        let taken = shard.vb.take_value(hash, hollow, now);
        self.count_single(&mut shard.ops, taken.is_some());
        drop(shard);
        taken.is_some()
    }

    /// Counts one that left by itself, if it did.
    pub(crate) fn count_single(&self, ops: &mut OpCounts, has_left: bool) {
        if has_left {
            ops.ejects += 1;
            self.counters.evicted_singly.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn hollow_of(&self, version: &Version) -> NewVersion {
        let (meta, key) = (version.meta(), version.key());
        let hollow = NewVersion::without_value(&self.core.context.heap, meta, key, version.value_bytes());
        copy_frequency(version.frequency(), hollow.frequency());
        hollow
    }

    /// Takes values out: what is left of each version is made before the lock is taken, and what went is freed after.
    pub(crate) fn evict_values(&self, vb: VbId, versions: &[Version]) -> Evicted {
        let hollows: Vec<(u64, NewVersion)> =
            versions.iter().map(|version| (self.core.hash(version.key()), self.hollow_of(version))).collect();
        let mut taken: Vec<Option<Version>> = Vec::with_capacity(versions.len());
        let mut left = Vec::with_capacity(versions.len());
        let now = self.core.now();
        {
            let Ok(mut shard) = self.core.vbuckets.loaded(vb, Holder::Pager) else {
                return Evicted::default();
            };
            for (hash, hollow) in hollows {
                left.push(hollow.allocated_bytes());
                taken.push(shard.vb.take_value(hash, hollow, now));
            }
            shard.ops.ejects += taken.iter().flatten().count() as u64;
        }
        let mut evicted = Evicted::default();
        for (old, left) in std::iter::zip(&taken, left) {
            if let Some(old) = old {
                evicted.documents += 1;
                evicted.freed_bytes += (old.allocated_bytes() - left) as u64;
            }
        }
        evicted
    }

    /// Takes whole documents out, under one lock.
    pub(crate) fn evict_documents(&self, vb: VbId, versions: &[Version]) -> Evicted {
        let hashes: Vec<u64> = versions.iter().map(|version| self.core.hash(version.key())).collect();
        let mut taken = Vec::with_capacity(versions.len());
        let now = self.core.now();
        {
            let Ok(mut shard) = self.core.vbuckets.loaded(vb, Holder::Pager) else {
                return Evicted::default();
            };
            for (hash, version) in std::iter::zip(hashes, versions) {
                taken.extend(shard.vb.evict_whole(hash, version, now));
            }
            shard.ops.ejects += taken.len() as u64;
        }
        let freed_bytes = taken.iter().map(|version: &Version| version.allocated_bytes() as u64).sum();
        Evicted { documents: taken.len() as u64, freed_bytes }
    }
}
