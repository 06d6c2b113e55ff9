//! A clock that stands still until it is told to move.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::env::{Clock, counts_suspension};

/// 2025-01-01, so that expiry times in tests look like real ones.
const FIRST_UNIX_NS: u64 = 1_735_689_600_000_000_000;

/// Simulated time: wall clock and monotonic clock, moved by hand.
#[derive(Debug)]
pub struct SimClock {
    unix_ns: AtomicU64,
    monotonic_ns: AtomicU64,
}

impl SimClock {
    /// A clock at 2025-01-01, monotonic zero.
    pub fn new() -> SimClock {
        SimClock { unix_ns: AtomicU64::new(FIRST_UNIX_NS), monotonic_ns: AtomicU64::new(0) }
    }

    /// Time passes on both clocks.
    pub fn advance(&self, by: Duration) {
        let by_ns = u64::try_from(by.as_nanos()).expect("simulated steps are shorter than centuries");
        self.unix_ns.fetch_add(by_ns, Ordering::SeqCst);
        self.monotonic_ns.fetch_add(by_ns, Ordering::SeqCst);
    }

    /// Time passes while the machine is suspended: on the monotonic clock only if that counts it.
    pub fn suspend(&self, by: Duration) {
        let before = self.monotonic_ns.load(Ordering::SeqCst);
        self.advance(by);
        if !counts_suspension() {
            self.monotonic_ns.store(before, Ordering::SeqCst);
        }
    }

    /// The wall clock jumps, forwards or back; the monotonic clock does not notice.
    pub fn set_unix_ns(&self, unix_ns: u64) {
        self.unix_ns.store(unix_ns, Ordering::SeqCst);
    }
}

impl Default for SimClock {
    fn default() -> Self {
        SimClock::new()
    }
}

impl Clock for SimClock {
    fn unix_ns(&self) -> u64 {
        self.unix_ns.load(Ordering::SeqCst)
    }

    fn monotonic_ns(&self) -> u64 {
        self.monotonic_ns.load(Ordering::SeqCst)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moves_only_when_told() {
        let clock = SimClock::new();
        let before = (clock.unix_ns(), clock.monotonic_ns());
        assert_eq!((clock.unix_ns(), clock.monotonic_ns()), before);
        clock.advance(Duration::from_millis(1500));
        assert_eq!(clock.unix_s(), 1_735_689_601);
        assert_eq!(clock.monotonic(), Duration::from_millis(1500));
        clock.suspend(Duration::from_millis(500));
        assert_eq!(clock.monotonic(), Duration::from_secs(2), "leases run out meanwhile");
        clock.set_unix_ns(5_000_000_000);
        assert_eq!(clock.unix_s(), 5);
        assert_eq!(clock.monotonic(), Duration::from_secs(2));
    }
}
