//! Where time comes from.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// A source of time.
pub trait Clock: Send + Sync {
    /// Wall clock, nanoseconds since 1970. May jump.
    fn unix_ns(&self) -> u64;

    /// Nanoseconds since some fixed moment. Never goes back.
    fn monotonic_ns(&self) -> u64;

    /// Wall clock in whole seconds since 1970.
    fn unix_s(&self) -> u32 {
        (self.unix_ns() / 1_000_000_000) as u32
    }

    /// Time since some fixed moment. Never goes back.
    fn monotonic(&self) -> Duration {
        Duration::from_nanos(self.monotonic_ns())
    }
}

/// The machine's clocks.
pub struct RealClock {
    start: Instant,
}

impl RealClock {
    /// Starts the monotonic clock at zero.
    #[allow(clippy::disallowed_methods, reason = "this is the door itself")]
    pub fn new() -> RealClock {
        RealClock { start: Instant::now() }
    }
}

impl Default for RealClock {
    fn default() -> Self {
        RealClock::new()
    }
}

impl Clock for RealClock {
    #[allow(clippy::disallowed_methods, reason = "this is the door itself")]
    fn unix_ns(&self) -> u64 {
        SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64)
    }

    #[allow(clippy::disallowed_methods, reason = "this is the door itself")]
    fn monotonic_ns(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }
}
