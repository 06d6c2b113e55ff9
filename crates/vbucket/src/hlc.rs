//! CAS values: a hybrid logical clock.

use base::Cas;
use base::planted::{self, Bug};

/// Low bits that count changes within one tick of the wall clock (65,536 ns).
const LOGICAL: u64 = 0xffff;
/// The highest CAS there is: a document that was brought with one five centuries ahead may get here by being changed.
const LAST: u64 = Cas::LOCKED.0 - 1;
/// A CAS further ahead of the wall clock than this does not move the clock: 65 minutes, the original's
/// `hlc_max_future_threshold`.
const MAX_AHEAD_NS: u64 = 3_900_000_000_000;

/// Makes the CAS values of a vBucket: wall clock nanoseconds with the low 16 bits as a counter, strictly increasing.
///
/// While the wall clock stands still or lies behind, the counter runs on and carries into the clock bits.
///
/// A foreign CAS may lie as far ahead as [`crate::MAX_FOREIGN_CAS`], and its document keeps it. One that lies further
/// ahead of the wall clock than 65 minutes does not move the clock: all later changes of the vBucket would only count.
/// The next change of that document gets a CAS one higher than the one that it replaces ([`Hlc::next_after`]): within a
/// document CAS values always rise, within a vBucket they rise but for such documents (record 0061).
#[derive(Clone, Copy, Debug, Default)]
pub struct Hlc {
    max: u64,
    /// Whether what it stands at came from elsewhere, and was not compared with the wall clock.
    is_doubted: bool,
}

impl Hlc {
    /// A clock that has seen `max`: the highest CAS of the stored vBucket state, or 0. If that lies too far ahead, the
    /// first CAS that is made follows the wall clock again.
    pub fn new(max: Cas) -> Hlc {
        let is_time = max != Cas::ANY && max != Cas::LOCKED;
        Hlc { max: if is_time { max.0 } else { 0 }, is_doubted: true }
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
            if !is_followed(self.max, now_ns) {
                self.max = 0;
            }
        }
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
        if cas != Cas::ANY && cas != Cas::LOCKED && is_followed(cas.0, now_ns) {
            self.max = self.max.max(cas.0);
        }
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

fn is_followed(cas: u64, now_ns: u64) -> bool {
    Hlc::ahead_ns(Cas(cas), now_ns) <= MAX_AHEAD_NS || planted::is(Bug::FarCasMovesClock)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

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
        let mut hlc = Hlc::new(Cas(0x20_ffff));
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
        assert_eq!(Hlc::new(far).next(now), Cas(now));
        let mut hlc = Hlc { max: far.0, is_doubted: false };
        assert_eq!(hlc.next(now), Cas(far.0 + 1), "not while it runs: a wall clock may have been set back");
        hlc.doubt();
        assert_eq!(hlc.next(now), Cas(now));
        assert_eq!(Hlc::new(Cas(now + 7)).next(now), Cas(now + 8), "what is near is believed");
    }
}
