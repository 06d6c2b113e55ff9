//! Evicts what is cold above the high watermark, down to the low one.
//!
//! A pass learns from some documents what is cold, goes through the vBuckets, replicas first, the largest first, a few documents at a time, and takes from each
//! the share of its coldest bytes that has to go. [`crate::victims`] says which those are.

mod look;
mod walk;

use std::ops::RangeInclusive;
use std::sync::atomic::Ordering;
use std::time::Duration;

use base::Part;

use self::look::{Look, Seen};
use self::walk::{Class, Walk};
use crate::bucket_core::admit_log;
use crate::config::EvictionPolicy;
use crate::documents::Documents;
use crate::keeper::{Chore, ChoreId, Next, Slice};
use crate::settings::Key;
use crate::victims::Victims;

/// How long it waits, after a pass that freed little, for the flusher and for those who hold what was evicted; twice as
/// long after the next one,
const FIRST_PAUSE: Duration = Duration::from_millis(5);
/// but not longer than this.
const LONGEST_PAUSE: Duration = Duration::from_millis(100);
/// A pass takes at most so many times the share that it began with, so that no vBucket pays for the others.
const MOST_OF_FAIR_SHARE: f64 = 2.0;
/// It is content when such a part of the way from the high watermark to the low one is left.
const NEAR_LOW_ONE_IN: u64 = 16;
/// When slack that cannot be moved together is in the way, such a part of the quota goes at once.
const SQUEEZED_ONE_IN: u64 = 32;
/// Frequencies are lowered by [`Key::FreqDecayPercent`] when one in so many documents has the highest there is.
const SATURATED_ONE_IN: u64 = 16;
/// What is in memory has been exchanged so many times when all frequencies are lowered to this: what was popular once is
/// forgotten, and what is read steadily is not (docs/adr/0022-eviction.md has the figures).
const EXCHANGES_PER_AGING: u64 = 3;
const AGED_PERCENT: u64 = 75;

/// Evicts what is cold above the high watermark, down to the low one.
#[derive(Default)]
pub(crate) struct Pager {
    work: Work,
    /// What is known of each class.
    victims: [Victims; 2],
    /// When the last pass began; what was written between two passes is young in the second.
    last_pass_ns: u64,
    /// The last pass helped, and did not come down to the low watermark.
    is_unfinished: bool,
    /// Documents evicted since frequencies were last lowered.
    evicted_since_aging: u64,
    /// Nothing is done before that.
    rest_until_ns: u64,
    /// The last pause after passes that freed little.
    pause: Duration,
    has_warned: bool,
}

#[derive(Default)]
enum Work {
    #[default]
    Nothing,
    /// Not enough is known of one class of vBuckets: some documents are looked at first.
    Learn(Pass),
    Pass(Pass),
    /// All frequencies are lowered to so many percent.
    Decay(Walk, u64),
}

struct Pass {
    walk: Walk,
    /// Bytes of each class that are still to be looked at.
    bytes_ahead: [u64; 2],
    /// The most of what is evictable that is taken from a class, once it is known.
    most_ratio: [Option<f64>; 2],
    /// Documents written in this time are young.
    young: RangeInclusive<u64>,
    used_at_begin: u64,
    /// How much is to be in use when it ends.
    target: u64,
    /// Documents that were in memory with their values when it began.
    residents: u64,
    freed_bytes: u64,
    seen: Seen,
}

impl Chore for Pager {
    type Of = Documents;

    fn step(&mut self, documents: &Documents, slice: &Slice<'_>) -> Next {
        documents.core.context.frequency.set(documents.core.settings.get(Key::FreqCounterIncrementFactor));
        let now_ns = documents.core.env.clock.monotonic_ns();
        if now_ns < self.rest_until_ns {
            return Next::After(Duration::from_nanos(self.rest_until_ns - now_ns));
        }
        loop {
            match std::mem::take(&mut self.work) {
                Work::Nothing if !self.begin(documents) => {
                    return self.rest(documents, documents.core.keeper.look_again_after());
                }
                Work::Nothing => {}
                Work::Learn(mut pass) => {
                    self.work =
                        if self.learn(documents, &mut pass) { Work::Learn(pass) } else { Work::Pass(pass) };
                }
                Work::Pass(mut pass) => {
                    if !self.chunk(documents, &mut pass) {
                        self.work = Work::Pass(pass);
                    } else if let Some(pause) = self.end(documents, &pass) {
                        self.rest_until_ns =
                            documents.core.env.clock.monotonic_ns() + pause.as_nanos() as u64;
                        return Next::After(pause);
                    }
                }
                Work::Decay(mut walk, percent) => {
                    if decay(documents, &mut walk, percent) {
                        self.work = Work::Decay(walk, percent);
                    }
                }
            }
            if slice.is_over() {
                let pause = Duration::from_millis(documents.core.settings.get(Key::PagerVisitPause));
                return if pause.is_zero() { Next::Again } else { Next::After(pause) };
            }
        }
    }
}

impl Pager {
    /// Begins a pass if there is a need for one.
    fn begin(&mut self, documents: &Documents) -> bool {
        let used_at_begin = documents.core.memory.used_bytes();
        let (low, high) =
            (documents.core.memory.low_watermark_bytes(), documents.core.memory.high_watermark_bytes());
        let is_room_wanted = documents.eviction.counters.is_room_wanted.swap(false, Ordering::Relaxed);
        let is_short = if self.is_unfinished || is_room_wanted {
            used_at_begin >= low + high.saturating_sub(low) / NEAR_LOW_ONE_IN
        } else {
            documents.core.memory.is_above_high_watermark()
        };
        self.is_unfinished = false;
        // One small pass each time that the defragmenter says so, and not without end.
        let is_squeezed = documents.eviction.counters.is_squeezed.swap(false, Ordering::Relaxed);
        let target = if is_short || !is_squeezed {
            low
        } else {
            used_at_begin.saturating_sub(documents.core.memory.quota_bytes() / SQUEEZED_ONE_IN).max(low / 2)
        };
        let is_short = is_short || used_at_begin > target && is_squeezed;
        if documents.core.eviction_policy() == EvictionPolicy::FailNewData || !is_short {
            return false;
        }
        documents.eviction.counters.is_awake.store(true, Ordering::Relaxed);
        documents.eviction.counters.passes.fetch_add(1, Ordering::Relaxed);
        let walk = Walk::new(documents);
        let mut bytes_ahead = [0; 2];
        walk.vbuckets.iter().for_each(|stop| bytes_ahead[stop.class as usize] += stop.bytes);
        let residents = walk.vbuckets.iter().map(|stop| stop.residents).sum();
        self.victims.iter_mut().for_each(Victims::begin_pass);
        let now_ns = documents.core.now().0;
        let before_ns = std::mem::replace(&mut self.last_pass_ns, now_ns);
        // At the first pass nobody knows what is young.
        let young = if before_ns == 0 { RangeInclusive::new(1, 0) } else { before_ns..=now_ns };
        self.work = Work::Learn(Pass {
            walk,
            bytes_ahead,
            most_ratio: [None; 2],
            young,
            used_at_begin,
            target,
            residents,
            freed_bytes: 0,
            seen: Seen::default(),
        });
        true
    }

    fn rest(&mut self, documents: &Documents, pause: Duration) -> Next {
        documents.eviction.counters.is_awake.store(false, Ordering::Relaxed);
        documents.eviction.counters.is_full_of_metadata.store(false, Ordering::Relaxed);
        // Whoever passed the watermark before that has not woken anybody.
        let is_short = documents.core.memory.is_above_high_watermark()
            || documents.eviction.counters.is_room_wanted.load(Ordering::Relaxed);
        if is_short && documents.core.eviction_policy() != EvictionPolicy::FailNewData {
            return Next::Again;
        }
        Next::After(pause)
    }

    /// Learns from some documents, if more has to be known. Whether it did.
    fn learn(&mut self, documents: &Documents, pass: &mut Pass) -> bool {
        while let Some(stop) = pass.walk.stop() {
            let victims = &mut self.victims[stop.class as usize];
            if victims.knows_enough() {
                pass.walk.at += 1;
                continue;
            }
            let mut look = Look::new(documents, pass.young.clone(), victims);
            look.learns_only = true;
            pass.walk.look(documents, stop, |shard, version| look.at(shard, version));
            return true;
        }
        (pass.walk.at, pass.walk.cursor) = (0, 0);
        false
    }

    /// Evicts from some documents. Whether the pass is over.
    fn chunk(&mut self, documents: &Documents, pass: &mut Pass) -> bool {
        let left = pass.left_to_free(documents);
        let Some(stop) = pass.walk.stop().filter(|_| left > 0) else { return true };
        let policy = documents.core.eviction_policy();
        if policy == EvictionPolicy::AutoDelete && stop.class != Class::Active {
            // They follow the deletions of their active vBuckets.
            pass.skip_vbucket();
            return false;
        }
        let victims = &mut self.victims[stop.class as usize];
        victims.aim(pass.ratio(victims, stop.class, left));
        let mut look = Look::new(documents, pass.young.clone(), victims);
        pass.walk.look(documents, stop, |shard, version| look.at(shard, version));
        let Look { seen, found, .. } = look;
        seen.add_to(&documents.eviction.counters);
        let below = u64::from(victims.threshold().below);
        match stop.class {
            Class::Active => documents.eviction.counters.active_threshold.store(below, Ordering::Relaxed),
            Class::Replica => documents.eviction.counters.replica_threshold.store(below, Ordering::Relaxed),
        }
        let ahead = &mut pass.bytes_ahead[stop.class as usize];
        *ahead = ahead.saturating_sub(seen.bytes);
        pass.seen.add(&seen);
        let evicted = documents.evict(policy, stop.vb, &found);
        pass.freed_bytes += evicted.freed_bytes;
        self.evicted_since_aging += evicted.documents;
        false
    }

    /// What comes after a pass: a pause if it did not help, or what the next round of the loop finds to do.
    fn end(&mut self, documents: &Documents, pass: &Pass) -> Option<Duration> {
        let used = documents.core.memory.used_bytes();
        let has_seen_all = pass.walk.stop().is_none();
        if pass.seen.saturated * SATURATED_ONE_IN > pass.seen.visited {
            self.lower(documents, documents.core.settings.get(Key::FreqDecayPercent));
        } else if self.evicted_since_aging >= EXCHANGES_PER_AGING * pass.residents {
            self.lower(documents, AGED_PERCENT);
        }
        // What was freed may not be to be seen: the heap has it in pages that it cannot give back, or others were
        // quicker.
        let has_helped = pass.freed_bytes > 0 && used + pass.freed_bytes / 2 <= pass.used_at_begin;
        self.is_unfinished = has_helped;
        if has_helped {
            self.pause = Duration::ZERO;
        }
        let is_above = documents.core.memory.is_above_high_watermark();
        if is_above && has_seen_all {
            self.check_metadata(documents, pass.seen.metadata_bytes);
        }
        if documents.core.memory.is_slack_in_the_way() || (!has_helped && is_above && pass.freed_bytes > 0) {
            documents.core.keeper.wake(ChoreId::Defragmenter);
        }
        if has_helped || !is_above {
            return None;
        }
        self.pause = (self.pause * 2).clamp(FIRST_PAUSE, LONGEST_PAUSE);
        Some(self.pause)
    }

    fn lower(&mut self, documents: &Documents, percent: u64) {
        documents.eviction.counters.decays.fetch_add(1, Ordering::Relaxed);
        self.evicted_since_aging = 0;
        self.victims = Default::default();
        self.work = Work::Decay(Walk::new(documents), percent);
    }

    /// Metadata alone that pass the high watermark are nothing that value eviction can do anything about.
    fn check_metadata(&mut self, documents: &Documents, metadata_bytes: u64) {
        let parts = documents.core.context.account().exact();
        let others = (parts.iter().sum::<i64>() - parts[Part::Documents as usize]).max(0) as u64;
        let is_value_eviction = documents.core.eviction_policy() == EvictionPolicy::ValueOnly;
        let is_full =
            is_value_eviction && metadata_bytes + others >= documents.core.memory.high_watermark_bytes();
        documents.eviction.counters.is_full_of_metadata.store(is_full, Ordering::Relaxed);
        if !is_full {
            return;
        }
        if documents.core.settings.is_on(Key::AutoEviction) {
            let left_out = admit_log(&documents.core, "full eviction");
            if let Some(left_out) = left_out {
                tracing::warn!(
                    event = "full_eviction_forced",
                    bucket = documents.core.name(),
                    metadata_bytes,
                    left_out,
                    "metadata alone fill the memory: the bucket changes to full eviction, as its setting auto_eviction has it"
                );
            }
            if let Err(error) = documents.core.set_param("item_eviction_policy", "full_eviction")
                && let Some(left_out) = left_out
            {
                tracing::error!(
                    event = "full_eviction_failed", bucket = documents.core.name(), %error, left_out,
                    "cannot change to full eviction"
                );
            }
        } else if !std::mem::replace(&mut self.has_warned, true) {
            tracing::warn!(
                event = "metadata_fill_memory",
                bucket = documents.core.name(),
                metadata_bytes,
                "metadata alone fill the memory, and value eviction cannot help: raise max_size, or set item_eviction_policy to full_eviction"
            );
        }
    }
}

impl Pass {
    /// Bytes that are still to be freed.
    fn left_to_free(&self, documents: &Documents) -> u64 {
        // What was evicted may still be held by a reader, or be waste of the heap for a while.
        let planned = self.used_at_begin.saturating_sub(self.target).saturating_sub(self.freed_bytes);
        documents.core.memory.used_bytes().saturating_sub(self.target).min(planned)
    }

    /// The share of what is evictable in the rest of a class that has to go.
    fn ratio(&mut self, victims: &Victims, class: Class, left: u64) -> f64 {
        let evictable = victims.evictable_of(self.bytes_ahead[class as usize]);
        let ratio = if evictable > 0.0 { left as f64 / evictable } else { 1.0 };
        let most = self.most_ratio[class as usize].get_or_insert(ratio * MOST_OF_FAIR_SHARE);
        ratio.min(*most)
    }

    fn skip_vbucket(&mut self) {
        if let Some(stop) = self.walk.stop() {
            self.bytes_ahead[stop.class as usize] -= stop.bytes;
        }
        (self.walk.at, self.walk.cursor) = (self.walk.at + 1, 0);
    }
}

/// Lowers the frequencies of some documents, with their values or without. Whether there are more.
fn decay(documents: &Documents, walk: &mut Walk, percent: u64) -> bool {
    let Some(stop) = walk.stop() else { return false };
    walk.look(documents, stop, |_, version| {
        let frequency = version.frequency();
        let count = frequency.load(Ordering::Relaxed);
        let lowered = u64::from(count) * percent / 100;
        frequency.store(count.saturating_sub(1).min(lowered as u8), Ordering::Relaxed);
    });
    true
}
