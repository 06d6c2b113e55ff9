//! CAS values: a hybrid logical clock.

use base::Cas;

/// Low bits that count changes within one tick of the wall clock (65,536 ns).
const LOGICAL: u64 = 0xffff;
/// The highest CAS there is; only a foreign CAS five centuries ahead brings the clock here, and here it stays.
const LAST: u64 = Cas::LOCKED.0 - 1;

/// Makes the CAS values of a vBucket: wall clock nanoseconds with the low 16 bits as a counter, strictly increasing.
///
/// While the wall clock stands still or lies behind, the counter runs on and carries into the clock bits.
/// A foreign CAS may lie as far ahead as [`crate::MAX_FOREIGN_CAS`]: like the original with its defaults
/// (`hlc_invalid_strategy` "ignore") we accept it, and from then on the clock only counts. [`Hlc::ahead_ns`] tells how
/// far ahead one lies.
#[derive(Clone, Copy, Debug, Default)]
pub struct Hlc {
    max: u64,
}

impl Hlc {
    /// A clock that has seen `max`: the highest CAS of the stored vBucket state, or 0.
    pub fn new(max: Cas) -> Hlc {
        let mut hlc = Hlc::default();
        hlc.observe(max);
        hlc
    }

    /// The next CAS, higher than every one made or observed before; `now_ns` is the wall clock since 1970.
    #[inline]
    pub fn next(&mut self, now_ns: u64) -> Cas {
        let wall = now_ns & !LOGICAL;
        self.max = wall.max(self.max + 1).min(LAST);
        Cas(self.max)
    }

    /// Takes note of a CAS made elsewhere. The two values with a special meaning are not times and count for nothing.
    #[inline]
    pub fn observe(&mut self, cas: Cas) {
        if cas != Cas::ANY && cas != Cas::LOCKED {
            self.max = self.max.max(cas.0);
        }
    }

    /// The highest CAS made or observed.
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

    proptest! {
        #[test]
        fn strictly_increases(steps in proptest::collection::vec((any::<u32>(), any::<Option<u32>>()), 1..200)) {
            let mut hlc = Hlc::default();
            for (now, seen) in steps {
                let seen = Cas(u64::from(seen.unwrap_or(0)));
                let before = hlc.max().max(seen);
                hlc.observe(seen);
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
        hlc.observe(Cas(0x10));
        hlc.observe(Cas::LOCKED);
        assert_eq!(hlc.max(), Cas(0x21_0000));
        hlc.observe(Cas(0x40_0007));
        assert_eq!(hlc.next(0x30_0000), Cas(0x40_0008));
        assert_eq!(Hlc::ahead_ns(Cas(0x40_0007), 0x30_0000), 0x10_0000);
        assert_eq!(Hlc::ahead_ns(Cas(0x10_0007), 0x30_0000), 0);
        hlc.observe(Cas(u64::MAX - 1));
        assert_eq!(hlc.next(0x30_0000), Cas(u64::MAX - 1), "hostile input does not stop the process");
    }
}
