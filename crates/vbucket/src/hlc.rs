//! CAS values: a hybrid logical clock.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use base::Cas;
use base::planted::{self, Bug};

/// Low bits that count changes within one tick of the wall clock (65,536 ns).
const LOGICAL: u64 = 0xffff;
/// The highest CAS there is: a document that was brought with one five centuries ahead may get here by being changed.
const LAST: u64 = Cas::LOCKED.0 - 1;
/// A CAS further ahead of the wall clock than this does not move the clock, unless a setting says otherwise: 65 minutes,
/// the original's `hlc_max_future_threshold_us`.
const MAX_AHEAD_US: u64 = 3_900_000_000;
/// A foreign CAS further off than this is counted, unless a setting says otherwise (kv_engine's configuration).
const DRIFT_US: u64 = 5_000_000;

/// How far a bucket's clocks may be off; may be changed at any time. Microseconds.
#[derive(Debug)]
pub struct ClockLimits {
    ahead_us: AtomicU64,
    behind_us: AtomicU64,
    max_future_us: AtomicU64,
}

impl Default for ClockLimits {
    fn default() -> ClockLimits {
        ClockLimits {
            ahead_us: DRIFT_US.into(),
            behind_us: DRIFT_US.into(),
            max_future_us: MAX_AHEAD_US.into(),
        }
    }
}

impl ClockLimits {
    /// Counts a foreign CAS as ahead or behind if it is further off the wall clock than this; follows none that is
    /// further ahead than `max_future_us`.
    pub fn set(&self, ahead_us: u64, behind_us: u64, max_future_us: u64) {
        self.ahead_us.store(ahead_us, Ordering::Relaxed);
        self.behind_us.store(behind_us, Ordering::Relaxed);
        self.max_future_us.store(max_future_us, Ordering::Relaxed);
    }

    /// A foreign CAS further ahead of the wall clock than this is counted.
    pub fn ahead_us(&self) -> u64 {
        self.ahead_us.load(Ordering::Relaxed)
    }

    /// A foreign CAS further behind the wall clock than this is counted.
    pub fn behind_us(&self) -> u64 {
        self.behind_us.load(Ordering::Relaxed)
    }

    /// Whether a CAS lies so far ahead of the wall clock `now_ns` that no clock follows it.
    pub fn is_impossible(&self, cas: Cas, now_ns: u64) -> bool {
        Hlc::ahead_ns(cas, now_ns) > self.max_future_us.load(Ordering::Relaxed).saturating_mul(1000)
    }
}

/// What a vBucket's clock has seen since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClockCounts {
    /// How far foreign CAS values were from the wall clock, ahead or behind, all together, in microseconds.
    pub drift_us: u64,
    /// Foreign CAS values.
    pub foreign: u64,
    /// Those further ahead than [`ClockLimits::ahead_us`].
    pub ahead: u64,
    /// Those further behind than [`ClockLimits::behind_us`].
    pub behind: u64,
    /// CAS values that were counted on from the one before, because the wall clock was not beyond it.
    pub logical_ticks: u64,
}

/// Makes the CAS values of a vBucket: wall clock nanoseconds with the low 16 bits as a counter, strictly increasing.
///
/// While the wall clock stands still or lies behind, the counter runs on and carries into the clock bits.
///
/// A foreign CAS may lie as far ahead as [`crate::MAX_FOREIGN_CAS`], and its document keeps it. One that lies further
/// ahead of the wall clock than the limit does not move the clock: all later changes of the vBucket would only count.
/// The next change of that document gets a CAS one higher than the one that it replaces ([`Hlc::next_after`]): within a
/// document CAS values always rise, within a vBucket they rise but for such documents (record 0061).
#[derive(Clone, Debug, Default)]
pub struct Hlc {
    limits: Arc<ClockLimits>,
    counts: ClockCounts,
    max: u64,
    /// Whether what it stands at came from elsewhere, and was not compared with the wall clock.
    is_doubted: bool,
}

impl Hlc {
    /// A clock that has seen `max`: the highest CAS of the stored vBucket state, or 0. If that lies too far ahead, the
    /// first CAS that is made follows the wall clock again.
    pub fn new(max: Cas, limits: Arc<ClockLimits>) -> Hlc {
        let is_time = max != Cas::ANY && max != Cas::LOCKED;
        let max = if is_time { max.0 } else { 0 };
        Hlc { limits, counts: ClockCounts::default(), max, is_doubted: true }
    }

    /// What it has seen.
    pub fn counts(&self) -> ClockCounts {
        self.counts
    }

    /// What it stands at is compared with the wall clock once more: the vBucket becomes active.
    pub fn doubt(&mut self) {
        self.is_doubted = true;
    }

    /// The next CAS, higher than every one made or followed before; `now_ns` is the wall clock since 1970.
    #[inline]
    pub fn next(&mut self, now_ns: u64) -> Cas {
        let wall = now_ns & !LOGICAL;
        if self.is_doubted {
            self.is_doubted = false;
            if !self.follows(Cas(self.max), now_ns) {
                self.max = 0;
            }
        }
        self.counts.logical_ticks += u64::from(wall <= self.max);
        self.max = wall.max(self.max + 1).min(LAST);
        Cas(self.max)
    }

    /// The next CAS of a document whose present version has the CAS `present`: higher than that, too.
    #[inline]
    pub fn next_after(&mut self, present: Cas, now_ns: u64) -> Cas {
        let next = self.next(now_ns);
        if present < next || present == Cas::LOCKED { next } else { Cas((present.0 + 1).min(LAST)) }
    }

    /// Takes note of a CAS made elsewhere, unless it lies too far ahead of the wall clock `now_ns`. The two values with a
    /// special meaning are not times and count for nothing.
    #[inline]
    pub fn observe(&mut self, cas: Cas, now_ns: u64) {
        if cas == Cas::ANY || cas == Cas::LOCKED {
            return;
        }
        let ahead_us = Hlc::ahead_ns(cas, now_ns) / 1000;
        let behind_us = now_ns.saturating_sub(cas.0) / 1000;
        self.counts.foreign += 1;
        self.counts.drift_us = self.counts.drift_us.saturating_add(ahead_us + behind_us);
        self.counts.ahead += u64::from(ahead_us > self.limits.ahead_us());
        self.counts.behind += u64::from(behind_us > self.limits.behind_us());
        if self.follows(cas, now_ns) {
            self.max = self.max.max(cas.0);
        }
    }

    fn follows(&self, cas: Cas, now_ns: u64) -> bool {
        !self.limits.is_impossible(cas, now_ns) || planted::is(Bug::FarCasMovesClock)
    }

    /// The highest CAS made or followed.
    pub fn max(&self) -> Cas {
        Cas(self.max)
    }

    /// How far `cas` lies ahead of the wall clock `now_ns`; 0 if it does not.
    pub fn ahead_ns(cas: Cas, now_ns: u64) -> u64 {
        (cas.0 & !LOGICAL).saturating_sub(now_ns)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MAX_AHEAD_NS: u64 = MAX_AHEAD_US * 1000;

    fn clock(max: Cas) -> Hlc {
        Hlc::new(max, Arc::default())
    }

    proptest! {
        #[test]
        fn strictly_increases(steps in proptest::collection::vec((any::<u32>(), any::<Option<u32>>()), 1..200)) {
            let mut hlc = Hlc::default();
            for (now, seen) in steps {
                let seen = Cas(u64::from(seen.unwrap_or(0)));
                let before = hlc.max().max(seen);
                hlc.observe(seen, u64::from(now));
                let cas = hlc.next(u64::from(now));
                prop_assert!(cas > before && cas.0 >= u64::from(now) & !LOGICAL);
                prop_assert_eq!(hlc.max(), cas);
            }
        }
    }

    #[test]
    fn follows_the_wall_clock_and_counts_while_it_stands() {
        let mut hlc = Hlc::default();
        assert_eq!(hlc.next(0x12_3456), Cas(0x12_0000));
        assert_eq!(hlc.next(0x12_ffff), Cas(0x12_0001));
        assert_eq!(hlc.next(0x05_0000), Cas(0x12_0002), "a clock that jumps back is not followed");
        assert_eq!(hlc.next(0x13_0001), Cas(0x13_0000));
    }

    #[test]
    fn never_falls_behind_what_it_observed() {
        let mut hlc = clock(Cas(0x20_ffff));
        assert_eq!(hlc.next(0x10_0000), Cas(0x21_0000), "the counter carries into the clock bits");
        hlc.observe(Cas(0x10), 0x10_0000);
        hlc.observe(Cas::LOCKED, 0x10_0000);
        assert_eq!(hlc.max(), Cas(0x21_0000));
        hlc.observe(Cas(0x40_0007), 0x10_0000);
        assert_eq!(hlc.next(0x30_0000), Cas(0x40_0008));
        assert_eq!(Hlc::ahead_ns(Cas(0x40_0007), 0x30_0000), 0x10_0000);
        assert_eq!(Hlc::ahead_ns(Cas(0x10_0007), 0x30_0000), 0);
    }

    #[test]
    fn does_not_follow_what_lies_too_far_ahead() {
        let (now, far) = (0x30_0000, Cas(0x30_0000 + MAX_AHEAD_NS + LOGICAL + 1));
        let mut hlc = Hlc::default();
        hlc.observe(far, now);
        hlc.observe(Cas(u64::MAX - 1), now);
        assert_eq!(hlc.next(now), Cas(now), "the clock stays where it is");
        assert_eq!(hlc.next_after(far, now), Cas(far.0 + 1), "its document goes on from there");
        assert_eq!(hlc.next_after(Cas(far.0 + 1), now), Cas(far.0 + 2));
        assert_eq!(hlc.next(now), Cas(now + 3), "and others do not");
        assert_eq!(hlc.next_after(Cas(LAST), now), Cas(LAST), "hostile input does not stop the process");
        let near = Cas(now + MAX_AHEAD_NS);
        hlc.observe(near, now);
        assert_eq!(hlc.next(now), Cas(near.0 + 1));
    }

    #[test]
    fn one_that_was_carried_away_comes_back_when_it_begins_or_its_vbucket_becomes_active() {
        let (now, far) = (0x30_0000, Cas(i64::MAX as u64));
        assert_eq!(clock(far).next(now), Cas(now));
        let mut hlc = Hlc { max: far.0, ..Hlc::default() };
        assert_eq!(hlc.next(now), Cas(far.0 + 1), "not while it runs: a wall clock may have been set back");
        hlc.doubt();
        assert_eq!(hlc.next(now), Cas(now));
        assert_eq!(clock(Cas(now + 7)).next(now), Cas(now + 8), "what is near is believed");
    }
    #[test]
    fn what_is_far_off_is_counted_by_its_side() {
        let (now, us) = (1 << 50, 1000);
        let limits = Arc::new(ClockLimits::default());
        limits.set(1000, 2000, 3000);
        let mut hlc = Hlc::new(Cas::ANY, Arc::clone(&limits));
        let wall = Cas(now & !LOGICAL);
        hlc.observe(wall, now);
        assert_eq!((hlc.counts().foreign, hlc.counts().ahead, hlc.counts().behind), (1, 0, 0));
        hlc.observe(Cas(now + 2000 * us), now);
        hlc.observe(Cas(now - 1500 * us), now);
        hlc.observe(Cas(now - 2500 * us), now);
        hlc.observe(Cas::LOCKED, now);
        let counts = hlc.counts();
        assert_eq!((counts.foreign, counts.ahead, counts.behind, counts.logical_ticks), (4, 1, 1, 0));
        let ahead = (((now + 2000 * us) & !LOGICAL) - now) / us;
        assert_eq!(counts.drift_us, ahead + 1500 + 2500);
        assert_eq!(hlc.next(now), Cas(now + 2000 * us + 1), "it was followed");
        assert_eq!(hlc.counts().logical_ticks, 1);
        hlc.observe(Cas(now + 4000 * us), now);
        assert_eq!(hlc.next(now), Cas(now + 2000 * us + 2), "further ahead than the limit");
        limits.set(1000, 2000, 5000);
        hlc.observe(Cas(now + 4000 * us), now);
        assert_eq!(hlc.next(now), Cas(now + 4000 * us + 1), "the limit was raised");
    }
}
