//! Where time comes from.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::planted::{self, Bug};

/// A source of time.
pub trait Clock: Send + Sync {
    /// Wall clock, nanoseconds since 1970. May jump.
    fn unix_ns(&self) -> u64;

    /// Nanoseconds since some fixed moment. Never goes back, and goes on while the machine is suspended: leases that
    /// others have granted run out meanwhile.
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
    start_ns: u64,
}

impl RealClock {
    /// Starts the monotonic clock at zero.
    pub fn new() -> RealClock {
        RealClock { start_ns: boot_ns() }
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

    fn monotonic_ns(&self) -> u64 {
        boot_ns().saturating_sub(self.start_ns)
    }
}

/// Whether the monotonic clock goes on while the machine is suspended; simulated clocks ask, too.
pub fn counts_suspension() -> bool {
    !planted::is(Bug::LeaseClockStops)
}

#[allow(clippy::disallowed_methods, reason = "this is the door itself")]
fn boot_ns() -> u64 {
    super::platform::since_boot_ns(counts_suspension())
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    #[allow(clippy::disallowed_methods, reason = "compared with the door itself")]
    fn counts_the_time_in_which_the_machine_is_suspended() {
        let clock = RealClock::new();
        let of_the_system = || rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
        let ns = |time: rustix::time::Timespec| time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64;
        let (before, read, after) = (ns(of_the_system()), clock.monotonic_ns(), ns(of_the_system()));
        let read = read + clock.start_ns;
        assert!((before..=after).contains(&read), "{before} {read} {after}");
        // On a machine that was never suspended the clocks cannot be told from each other.
        assert_eq!(crate::env::platform::BOOT, rustix::time::ClockId::Boottime);
    }
}
