//! When operations are meant to begin, if a rate is given: whether or not the server is ready for them.
//!
//! Latency counts from that moment, so that what waits because of a slow answer is counted as slow, too (no coordinated
//! omission).

/// The moments at which a thread's operations are meant to begin.
#[derive(Clone, Copy, Debug)]
pub struct Schedule {
    begun_ns: u64,
    period_ns: f64,
    taken: u64,
}

impl Schedule {
    /// This number a second, from now on.
    pub fn new(now_ns: u64, per_second: f64) -> Schedule {
        Schedule { begun_ns: now_ns, period_ns: 1e9 / per_second, taken: 0 }
    }

    /// When the next one is meant to begin.
    #[inline]
    pub fn next_ns(&self) -> u64 {
        self.begun_ns + (self.taken as f64 * self.period_ns) as u64
    }

    /// The moment of the next one if it has come, whose turn it is then.
    #[inline]
    pub fn take(&mut self, now_ns: u64) -> Option<u64> {
        let next_ns = self.next_ns();
        (next_ns <= now_ns).then(|| self.taken += 1).map(|()| next_ns)
    }

    /// How many should have begun by now and have not.
    pub fn behind(&self, now_ns: u64) -> u64 {
        let due = (now_ns.saturating_sub(self.begun_ns) as f64 / self.period_ns) as u64;
        due.saturating_sub(self.taken)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_do_not_wait_for_those_before() {
        let mut schedule = Schedule::new(1_000, 1e6);
        assert_eq!((schedule.take(1_000), schedule.take(1_999)), (Some(1_000), None));
        // Late: each has the moment that was meant.
        assert_eq!((schedule.take(4_500), schedule.take(4_500)), (Some(2_000), Some(3_000)));
        assert_eq!((schedule.behind(6_000), schedule.next_ns()), (2, 4_000));
    }
}
