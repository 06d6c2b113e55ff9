//! The time at which turns of a worker's connections begin, by one look at the clock for each turn.
//!
//! A turn that comes behind another one begins when that ended. Only where the worker has waited in between is the clock
//! asked. The wall clock is asked then, too, and again once `WALL_CLOCK_FOR_NS` have passed: between two looks it goes on
//! as the other one does.

use std::cell::Cell;

use base::Moment;
use base::env::Clock;

/// A step of the wall clock is noticed after this time, even by a worker that never waits.
const WALL_CLOCK_FOR_NS: u64 = 1_000_000;

thread_local! {
    /// Whether this thread has waited since the last turn.
    static HAS_WAITED: Cell<bool> = const { Cell::new(true) };
}

/// The thread is about to wait for something to do.
pub fn note_wait() {
    HAS_WAITED.set(true);
}

/// When a turn began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TurnBegin {
    /// On the monotonic clock.
    pub at_ns: u64,
    /// On the wall clock.
    pub moment: Moment,
}

/// When the worker's last turn ended.
///
/// # Thread safety
///
/// It belongs to the worker's thread.
#[derive(Default)]
pub struct TurnClock {
    ended_ns: Cell<u64>,
    /// When both clocks were looked at, on each of them.
    looked_ns: Cell<u64>,
    looked_unix_ns: Cell<u64>,
}

impl TurnClock {
    /// A turn begins.
    pub fn begin(&self, clock: &dyn Clock) -> TurnBegin {
        if HAS_WAITED.take() {
            self.look(clock, clock.monotonic_ns());
        } else if self.ended_ns.get().saturating_sub(self.looked_ns.get()) >= WALL_CLOCK_FOR_NS {
            self.look(clock, self.ended_ns.get());
        }
        let at_ns = self.ended_ns.get();
        let since_ns = at_ns.saturating_sub(self.looked_ns.get());
        TurnBegin { at_ns, moment: Moment(self.looked_unix_ns.get().saturating_add(since_ns)) }
    }

    fn look(&self, clock: &dyn Clock, now_ns: u64) {
        self.ended_ns.set(now_ns);
        self.looked_ns.set(now_ns);
        self.looked_unix_ns.set(clock.unix_ns());
    }

    /// A turn ended that began then. How long it took.
    pub fn end(&self, clock: &dyn Clock, began: TurnBegin) -> u64 {
        let now_ns = clock.monotonic_ns();
        self.ended_ns.set(now_ns);
        now_ns.saturating_sub(began.at_ns)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    /// Goes on by a microsecond with each look; the wall clock is `ahead_ns` ahead.
    #[derive(Default)]
    struct CountingClock {
        looks: AtomicU64,
        now_ns: AtomicU64,
        ahead_ns: AtomicU64,
    }

    impl CountingClock {
        fn look(&self) -> u64 {
            self.looks.fetch_add(1, Ordering::Relaxed);
            self.now_ns.fetch_add(1_000, Ordering::Relaxed) + 1_000
        }
    }

    impl Clock for CountingClock {
        fn unix_ns(&self) -> u64 {
            self.look() - 1_000 + self.ahead_ns.load(Ordering::Relaxed)
        }

        fn monotonic_ns(&self) -> u64 {
            self.look()
        }
    }

    #[test]
    fn turns_without_a_wait_between_them_share_looks_at_the_clock() {
        let (turns, clock) = (TurnClock::default(), CountingClock::default());
        clock.ahead_ns.store(1_000_000_000, Ordering::Relaxed);
        let turn = || {
            let began = turns.begin(&clock);
            let looks = clock.looks.swap(0, Ordering::Relaxed);
            clock.now_ns.fetch_add(50_000, Ordering::Relaxed);
            (looks, began.moment.0 - began.at_ns, turns.end(&clock, began))
        };
        note_wait();
        assert_eq!(turn(), (2, 1_000_000_000, 52_000), "both clocks are asked, and one at the end");
        for _ in 0..5 {
            assert_eq!(turn(), (1, 1_000_000_000, 51_000), "the end of the one before is the begin");
        }
        // A step of the wall clock.
        clock.ahead_ns.store(2_000_000_000, Ordering::Relaxed);
        let looks: u64 = (0..20).map(|_| turn().0).sum();
        assert_eq!(looks, 21, "it is noticed within a millisecond");
        let (_, ahead, _) = turn();
        assert!(ahead.abs_diff(2_000_000_000) < 2_000, "{ahead}");
        note_wait();
        assert_eq!(turn().0, 3);
    }
}
