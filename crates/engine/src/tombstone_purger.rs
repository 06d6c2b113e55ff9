//! Forgets old tombstones of ephemeral buckets, and frees stale copies.
//!
//! A pass goes over all vBuckets, in two stages for each: tombstones that are old enough leave the hash table and become
//! stale in the list of items, and stale copies that no range read needs are freed.
//! Tombstones are looked for as often as the setting says; passes in between do the second stage alone.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use base::{Seqno, VbId, Version};
use vbucket::{SeqList, TombstoneLimits};

use crate::bucket_core::Core;
use crate::checkpoint_recovery::Checkpoints;
use crate::keeper::{Chore, Next, Slice};
use crate::settings::Key;
use crate::shard_guard::Holder;

/// What is looked at under a vBucket's lock at once in the first stage: some tens of microseconds.
const FIRST_STAGE: TombstoneLimits = TombstoneLimits { looked: 128, found: 32 };
/// Stale copies that are looked at under a vBucket's lock at once in the second stage.
const SWEPT_AT_ONCE: usize = 64;
/// How long it rests in a bucket with a disk.
const NEVER: Duration = Duration::from_secs(24 * 3600);
/// How long it rests at most: stale copies are freed that long after the read they stayed for.
const REST: Duration = Duration::from_secs(1);

/// What was purged so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PurgeStats {
    /// Passes that looked for old tombstones and were begun.
    pub passes: u64,
    /// Tombstones that were forgotten for their age.
    pub tombstones: u64,
    /// Stale copies that were freed, those of forgotten tombstones included.
    pub stale_copies: u64,
}

/// The counts behind [`PurgeStats`].
#[derive(Default)]
pub(crate) struct PurgeCounters {
    passes: AtomicU64,
    tombstones: AtomicU64,
    stale_copies: AtomicU64,
}

/// Tombstones in memory that are old enough to be forgotten.
pub struct Tombstones {
    pub(crate) core: Arc<Core>,
    pub(crate) checkpoints: Arc<Checkpoints>,
    pub(crate) counters: PurgeCounters,
}

impl Tombstones {
    pub(crate) fn new(core: &Arc<Core>, checkpoints: &Arc<Checkpoints>) -> Tombstones {
        Tombstones {
            core: Arc::clone(core),
            checkpoints: Arc::clone(checkpoints),
            counters: PurgeCounters::default(),
        }
    }

    /// What was purged so far; nothing in a bucket with a disk, where compaction does it.
    pub fn purge_stats(&self) -> PurgeStats {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let PurgeCounters { passes, tombstones, stale_copies } = &self.counters;
        PurgeStats { passes: of(passes), tombstones: of(tombstones), stale_copies: of(stale_copies) }
    }
}

/// Forgets old tombstones of ephemeral buckets, and frees stale copies.
#[derive(Default)]
pub(crate) struct TombstonePurger {
    pass: Option<Pass>,
    /// When the last pass with a first stage began.
    last_purge: Option<Duration>,
}

/// How far a pass is.
struct Pass {
    vb: u16,
    /// Tombstones that were deleted before this are forgotten; nothing if there is no first stage.
    before_s: Option<u32>,
    /// Where the first stage is in the present vBucket; nothing once it is through.
    purging: Option<Seqno>,
    /// Where the second stage is.
    sweeping: Option<Seqno>,
    is_seconds_turn: bool,
}

impl Chore for TombstonePurger {
    type Of = Tombstones;

    fn step(&mut self, tombstones: &Tombstones, slice: &Slice<'_>) -> Next {
        if !tombstones.core.is_ephemeral() {
            return Next::After(NEVER);
        }
        let mut pass = self.pass.take().unwrap_or_else(|| self.begin(tombstones));
        while pass.vb < tombstones.core.vbuckets() {
            pass.work(tombstones);
            if slice.is_over() {
                self.pass = Some(pass);
                return Next::Again;
            }
        }
        Next::After(self.until_due(tombstones).map_or(REST, |left| left.min(REST)))
    }
}

impl TombstonePurger {
    fn begin(&mut self, tombstones: &Tombstones) -> Pass {
        let is_due = self.until_due(tombstones).is_some_and(|left| left.is_zero());
        let before_s = is_due.then(|| {
            tombstones.counters.passes.fetch_add(1, Ordering::Relaxed);
            self.last_purge = Some(tombstones.core.env.clock.monotonic());
            let age_s = u32::try_from(tombstones.core.settings.get(Key::PurgeAge)).unwrap_or(u32::MAX);
            tombstones.core.now().unix_s().saturating_sub(age_s).saturating_add(1)
        });
        let mut pass = Pass { vb: 0, before_s, purging: None, sweeping: None, is_seconds_turn: false };
        pass.begin_vbucket();
        pass
    }

    /// How long until tombstones are looked for again; nothing if they never are.
    fn until_due(&self, tombstones: &Tombstones) -> Option<Duration> {
        let interval = Duration::from_secs(tombstones.core.settings.get(Key::PurgeInterval));
        let last = self.last_purge.unwrap_or_default();
        let since = tombstones.core.env.clock.monotonic().saturating_sub(last);
        (!interval.is_zero())
            .then(|| if self.last_purge.is_none() { Duration::ZERO } else { interval.saturating_sub(since) })
    }
}

impl Pass {
    fn begin_vbucket(&mut self) {
        self.purging = self.before_s.map(|_| Seqno(0));
        self.sweeping = Some(Seqno(0));
        self.is_seconds_turn = false;
    }

    /// Takes one look at the present vBucket, or goes on to the next. While the first stage goes on the second follows
    /// behind it, so that there are never many stale copies because of it.
    fn work(&mut self, tombstones: &Tombstones) {
        // Dropped after the lock is released.
        let mut forgotten: Vec<Version> = Vec::new();
        let mut removed = None;
        match tombstones.core.vbuckets.find(VbId(self.vb), Holder::TombstonePurger) {
            Ok(mut shard) => match (self.purging, self.before_s) {
                (Some(from), Some(before_s)) if !self.is_seconds_turn => {
                    self.purging = shard.vb.purge_tombstones(from, before_s, FIRST_STAGE, &mut forgotten);
                    tombstones.counters.tombstones.fetch_add(forgotten.len() as u64, Ordering::Relaxed);
                    self.is_seconds_turn = true;
                }
                _ => {
                    let next = self.sweeping.and_then(|from| {
                        let is_needed =
                            from > Seqno(0) || shard.vb.seq_list().is_some_and(SeqList::needs_sweep);
                        is_needed.then(|| shard.vb.sweep_stale(from, SWEPT_AT_ONCE, &mut forgotten))?
                    });
                    tombstones.counters.stale_copies.fetch_add(forgotten.len() as u64, Ordering::Relaxed);
                    self.sweeping = next.or(self.purging);
                    self.is_seconds_turn = false;
                    removed = Some(shard.vb.remove_read_checkpoints());
                }
            },
            Err(_) => (self.purging, self.sweeping) = (None, None),
        }
        drop(forgotten);
        if let Some(removed) = removed {
            tombstones.checkpoints.dispose(removed);
        }
        if self.purging.is_none() && self.sweeping.is_none() {
            self.vb += 1;
            self.begin_vbucket();
        }
    }
}
