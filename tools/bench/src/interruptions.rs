//! How long the machine itself keeps a thread from going on that never waits: interrupts, and the host of a virtual machine.
//!
//! A hold of a lock is timed by the clock on the wall, and the processor time of its thread counts interrupts as well. So
//! whether a long hold was work cannot be read from it; but an interruption comes at any moment, to a thread that only looks
//! at the clock as often as to one that holds a lock. Work that is long is so again and again, more often than that.

use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use rustix::thread::gettid;

use super::locks::Holds;

/// For so long at least, and at most, a thread looks at the clock,
const LEAST: Duration = Duration::from_secs(1);
const MOST: Duration = Duration::from_secs(300);
/// for so long at a time, and rests for as long.
const AT_ONCE: Duration = Duration::from_millis(5);
/// Two looks at the clock that are so far apart had an interruption between them: a look takes 20 to 100 ns.
const LEAST_NS: u64 = 2_000;
/// A number of long holds that interruptions come to less often than this is not theirs.
const CHANCE: f64 = 0.001;

/// What a thread that never waits was kept from going on by.
pub struct Interruptions {
    /// How long each was, in order.
    all_ns: Vec<u64>,
    watched_s: f64,
}

/// What the longest holds of a lock are.
#[derive(Debug, PartialEq)]
pub struct Longest {
    /// The end of the range of the longest hold that interruptions do not explain, in nanoseconds.
    pub work_ns: u64,
    /// The same of the longest one, interrupted or not.
    pub any_ns: u64,
}

impl Interruptions {
    /// Watches the machine while something is measured. The watching thread runs on as those of a measured node do, and leaves
    /// them its CPU half of the time.
    pub fn during<T>(work: impl FnOnce() -> Result<T>) -> Result<(T, Interruptions)> {
        let is_over = AtomicBool::new(false);
        let (done, seen) = thread::scope(|scope| {
            let watching = scope.spawn(|| watch(&is_over));
            let done = work();
            is_over.store(true, Ordering::Relaxed);
            (done, watching.join())
        });
        let (mut all_ns, watched) = seen.map_err(|_| anyhow::anyhow!("the watching thread ended"))?;
        ensure!(!watched.is_zero(), "the machine was not watched");
        all_ns.sort_unstable();
        Ok((done?, Interruptions { all_ns, watched_s: watched.as_secs_f64() }))
    }

    /// The longest one.
    pub fn longest_ns(&self) -> u64 {
        self.all_ns.last().copied().unwrap_or_default()
    }

    /// How many of at least this length a thread meets in so many seconds.
    pub fn expected(&self, ns: u64, in_s: f64) -> f64 {
        let from = self.all_ns.partition_point(|one| *one < ns);
        (self.all_ns.len() - from) as f64 / self.watched_s * in_s
    }

    /// Tells holds that were interrupted from those that took long: holds by the end of their range. In order from the
    /// longest one on, those count as interrupted that are not more than a thread is interrupted for so long in the time of
    /// all holds.
    pub fn longest(&self, holds: &Holds) -> Longest {
        let held_s = held_s(holds);
        let any_ns = holds.keys().next_back().copied().unwrap_or_default();
        let mut so_far = 0;
        for (to_ns, count) in holds.iter().rev() {
            so_far += count;
            // A range reaches from seven eighths of its end on, and the hold's own work is in it.
            let expected = self.expected((to_ns / 4 * 3).max(LEAST_NS), held_s);
            if *to_ns < LEAST_NS || chance_of(so_far, expected) < CHANCE {
                return Longest { work_ns: *to_ns, any_ns };
            }
        }
        Longest { work_ns: 0, any_ns }
    }
}

/// The time of all holds; each counts as if it were as long as its range allows.
pub fn held_s(holds: &Holds) -> f64 {
    holds.iter().map(|(to_ns, count)| *to_ns as f64 * *count as f64).sum::<f64>() / 1e9
}

fn watch(is_over: &AtomicBool) -> (Vec<u64>, Duration) {
    let tid = gettid().as_raw_nonzero().get().to_string();
    let mut chrt = Command::new("chrt");
    chrt.args(["--fifo", "--pid", "1", &tid]).stdout(Stdio::null()).stderr(Stdio::null());
    // Where that is not allowed the node's threads wait for a CPU as this one does.
    let _ = chrt.status();
    let (mut all_ns, mut watched) = (Vec::new(), Duration::ZERO);
    while watched < LEAST || watched < MOST && !is_over.load(Ordering::Relaxed) {
        watched += watch_once(&mut all_ns);
        thread::sleep(AT_ONCE);
    }
    (all_ns, watched)
}

fn watch_once(all_ns: &mut Vec<u64>) -> Duration {
    let begun = Instant::now();
    let mut before = begun;
    while before - begun < AT_ONCE {
        let now = Instant::now();
        let ns = (now - before).as_nanos() as u64;
        if ns >= LEAST_NS {
            all_ns.push(ns);
        }
        before = now;
    }
    before - begun
}

/// How likely at least so many are, if so many are expected and each comes without regard to others (Poisson).
fn chance_of(at_least: u64, expected: f64) -> f64 {
    // By its logarithm: of many that are expected, exactly none is too unlikely for a number.
    let (mut ln_of_n, mut fewer) = (-expected, 0.0);
    for n in 0..at_least {
        fewer += ln_of_n.exp();
        ln_of_n += expected.ln() - ((n + 1) as f64).ln();
    }
    (1.0 - fewer).max(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two of 100 us and twenty of 20 us in a second.
    fn some() -> Interruptions {
        let all_ns = [vec![20_000; 20], vec![100_000; 2]].concat();
        Interruptions { all_ns, watched_s: 1.0 }
    }

    #[test]
    fn as_many_as_are_expected_are_likely() {
        assert!((chance_of(1, 0.1) - 0.0952).abs() < 1e-3);
        assert!((chance_of(3, 0.1) - 0.000_155).abs() < 1e-5);
        assert!(chance_of(0, 0.0) > 0.999 && chance_of(1, 0.0) < 1e-9);
        assert!(chance_of(2_000, 1_000.0) < 1e-9 && chance_of(900, 1_000.0) > 0.99);
    }

    #[test]
    fn a_long_hold_is_work_if_it_comes_more_often_than_interruptions() {
        // A second of short holds.
        let short = (1_000, 1_000_000);
        let with = |long: &[(u64, u64)]| some().longest(&[&[short][..], long].concat().into_iter().collect());
        assert_eq!(with(&[(128_000, 2)]), Longest { work_ns: 1_000, any_ns: 128_000 });
        assert_eq!(with(&[(24_000, 20), (128_000, 3)]), Longest { work_ns: 1_000, any_ns: 128_000 });
        assert_eq!(with(&[(128_000, 20)]), Longest { work_ns: 128_000, any_ns: 128_000 });
        assert_eq!(with(&[(24_000, 100), (128_000, 1)]), Longest { work_ns: 24_000, any_ns: 128_000 });
        assert_eq!(with(&[(1_000_000, 1)]), Longest { work_ns: 1_000_000, any_ns: 1_000_000 });
        assert_eq!(some().longest(&Holds::new()), Longest { work_ns: 0, any_ns: 0 });
    }

    #[test]
    fn a_single_long_hold_in_little_time_is_work() {
        // A thread is interrupted twice a second for so long: once in a millisecond is not that.
        let holds = Holds::from([(1_000, 100), (128_000, 1)]);
        assert_eq!(some().longest(&holds).work_ns, 128_000);
    }
}
