//! What is done with each version that a pass comes across, under the vBucket's lock.

use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicU64, Ordering};

use base::{Cas, Moment, Version};

use super::walk::CHUNK_VERSIONS;
use crate::config::EvictionPolicy;
use crate::documents::Documents;
use crate::evict::EvictionCounters;
use crate::shard::Shard;
use crate::victims::Victims;

/// Smaller values stay: the heap's sizes are multiples of this, so nothing may be gained.
const LEAST_VALUE_BYTES: u64 = 16;

/// What the pager came across.
#[derive(Clone, Copy, Default)]
pub(super) struct Seen {
    pub(super) visited: u64,
    pub(super) bytes: u64,
    /// Bytes that value eviction cannot free.
    pub(super) metadata_bytes: u64,
    pub(super) saturated: u64,
    pub(super) dirty: u64,
    pub(super) held: u64,
    pub(super) locked: u64,
    pub(super) hot: u64,
    pub(super) young: u64,
}

impl Seen {
    pub(super) fn add(&mut self, other: &Seen) {
        self.visited += other.visited;
        self.bytes += other.bytes;
        self.metadata_bytes += other.metadata_bytes;
        self.saturated += other.saturated;
    }

    pub(super) fn add_to(&self, eviction: &EvictionCounters) {
        let add = |sum: &AtomicU64, count| {
            sum.fetch_add(count, Ordering::Relaxed);
        };
        add(&eviction.visited, self.visited);
        add(&eviction.kept_dirty, self.dirty);
        add(&eviction.kept_held, self.held);
        add(&eviction.kept_locked, self.locked);
        add(&eviction.kept_hot, self.hot);
        add(&eviction.kept_young, self.young);
    }
}

/// What is done with each version under the vBucket's lock.
pub(super) struct Look<'a> {
    policy: EvictionPolicy,
    now: Moment,
    pub(super) young: RangeInclusive<u64>,
    pub(super) learns_only: bool,
    victims: &'a mut Victims,
    pub(super) seen: Seen,
    pub(super) found: Vec<Version>,
}

impl Look<'_> {
    pub(super) fn new<'a>(
        documents: &Documents,
        young: RangeInclusive<u64>,
        victims: &'a mut Victims,
    ) -> Look<'a> {
        Look {
            policy: documents.core.eviction_policy(),
            now: documents.core.now(),
            young,
            learns_only: false,
            victims,
            seen: Seen::default(),
            found: Vec::with_capacity(2 * CHUNK_VERSIONS),
        }
    }

    pub(super) fn at(&mut self, shard: &Shard, version: &Version) {
        let bytes = version.allocated_bytes() as u64;
        let value_bytes = if version.is_resident() { u64::from(version.value_bytes()) } else { 0 };
        let frequency = version.frequency().load(Ordering::Relaxed);
        self.seen.visited += 1;
        self.seen.bytes += bytes;
        self.seen.saturated += u64::from(frequency == u8::MAX);
        self.seen.metadata_bytes += bytes - value_bytes;
        self.victims.visit(bytes);
        let freed = if self.policy == EvictionPolicy::ValueOnly { value_bytes } else { bytes };
        if freed < LEAST_VALUE_BYTES || version.is_deleted() {
            return;
        }
        let meta = version.meta();
        let goes_to_disk = self.policy != EvictionPolicy::AutoDelete;
        if goes_to_disk && meta.by_seqno > shard.vb.persisted_seqno() {
            self.seen.dirty += 1;
        } else if goes_to_disk && version.is_shared() {
            // The open checkpoint is one of those who may hold it; nothing would be gained.
            self.seen.held += 1;
        } else if shard.vb.is_locked(version.key(), self.now) {
            self.seen.locked += 1;
        } else {
            self.victims.learn(frequency, freed);
            if !self.learns_only {
                self.choose(version, frequency, meta.cas);
            }
        }
    }

    fn choose(&mut self, version: &Version, frequency: u8, cas: Cas) {
        // What is not used at all goes whatever its age. A CAS may be foreign and lie in the future.
        if frequency > 0 && self.young.contains(&cas.0) {
            self.seen.young += 1;
        } else if self.victims.is_cold(frequency) {
            self.found.push(version.clone());
        } else {
            self.seen.hot += 1;
        }
    }
}
