//! Crashes at every moment of a run, and runs with a fault at every call.

mod faults;

use std::fmt;

use base::env::sim::{Recording, SimDisk, SplitMix64, Survival};

pub use faults::{FaultKind, every_fault, every_kind_of_fault};

/// How thoroughly to look.
#[derive(Clone, Copy, Debug)]
pub struct CrashPlan {
    /// Decides which unsynced bytes survive each crash.
    pub seed: u64,
    /// A crash after every so many disk changes; 1 for all of them.
    pub every: u64,
    /// Seeded crashes at each such moment, besides the one that loses and the one that keeps everything unsynced.
    pub seeds: u64,
}

impl CrashPlan {
    /// Every moment, a few seeds each.
    pub fn new(seed: u64) -> CrashPlan {
        CrashPlan { seed, every: 1, seeds: 6 }
    }

    fn survivals(&self, moment: u64) -> impl Iterator<Item = Survival> + use<> {
        let mut rng = SplitMix64::new(self.seed ^ moment.wrapping_mul(0x2545_f491_4f6c_dd1d));
        let seeded = (0..self.seeds).map(move |_| Survival::Seeded(rng.next_u64()));
        [Survival::Synced, Survival::Everything].into_iter().chain(seeded)
    }
}

/// The most violations that are kept as text.
const MOST_EXAMPLES: usize = 8;
/// The most of what is wrong with one of them.
const MOST_DETAILS: usize = 4;

/// What came of it.
#[derive(Clone, Debug, Default)]
pub struct Verdict {
    /// Moments at which the power went, or runs with a fault.
    pub moments: u64,
    /// Disks that a restart was tried on.
    pub states: u64,
    /// Restarts that broke a promise.
    pub violated: u64,
    /// What the first of them broke.
    pub examples: Vec<String>,
}

impl Verdict {
    /// Whether everything held, of at least one state.
    pub fn holds(&self) -> bool {
        self.states > 0 && self.violated == 0
    }

    /// Counts another verdict in.
    pub fn add(&mut self, other: Verdict) {
        self.moments += other.moments;
        self.states += other.states;
        self.violated += other.violated;
        let room = MOST_EXAMPLES.saturating_sub(self.examples.len());
        self.examples.extend(other.examples.into_iter().take(room));
    }

    /// Prints what came of `what`, and ends the test unless everything held.
    pub fn report(&self, what: &str) {
        println!("{what}: {self}");
        assert!(self.holds(), "{what}: {self}");
    }

    /// Counts one restart, at a moment of its own.
    pub fn tally(&mut self, moment: impl fmt::Display, violations: &[String]) {
        self.moments += 1;
        self.count(moment, violations);
    }

    fn count(&mut self, moment: impl fmt::Display, violations: &[String]) {
        self.states += 1;
        if violations.is_empty() {
            return;
        }
        self.violated += 1;
        if self.examples.len() < MOST_EXAMPLES {
            let some = &violations[..violations.len().min(MOST_DETAILS)];
            self.examples.push(format!("{moment}: {} wrong: {}", violations.len(), some.join("; ")));
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "moments={} states={} violations={}", self.moments, self.states, self.violated)?;
        self.examples.iter().try_for_each(|example| write!(f, "\n  {example}"))
    }
}

/// What `run` does to a disk that `prepare` made ready, and every change that it made there.
pub fn recorded<T>(prepare: impl Fn(&SimDisk), run: impl FnOnce(&SimDisk) -> T) -> (T, Recording) {
    let disk = SimDisk::new();
    prepare(&disk);
    disk.record();
    let done = run(&disk);
    (done, disk.recording().expect("it was started"))
}

/// Crashes after every `plan.every` changes of a recorded run and lets `check` restart from what is left;
/// it is given the disk and the number of changes that were done, and answers what is wrong.
pub fn every_crash(
    plan: &CrashPlan,
    recording: &Recording,
    mut check: impl FnMut(&SimDisk, u64) -> Vec<String>,
) -> Verdict {
    let mut verdict = Verdict::default();
    let mut replay = recording.replay();
    loop {
        let at = replay.done() as u64;
        if at.is_multiple_of(plan.every) {
            verdict.moments += 1;
            for survival in plan.survivals(at) {
                let violations = check(&replay.image(survival), at);
                verdict.count(format_args!("after {at} changes, {survival:?}"), &violations);
            }
        }
        if !replay.step() {
            return verdict;
        }
    }
}

/// After every `plan.every` changes of a recorded run the process dies, but not the machine: `restart` goes on from
/// what is there, synced or not, and answers what it claims. Then the power goes, and `check` restarts once more.
///
/// A restart that takes what it can read for what is durable claims too much.
pub fn every_kill<T>(
    plan: &CrashPlan,
    recording: &Recording,
    mut restart: impl FnMut(&SimDisk, u64) -> T,
    mut check: impl FnMut(&T, &SimDisk, u64) -> Vec<String>,
) -> Verdict {
    let mut verdict = Verdict::default();
    let mut replay = recording.replay();
    loop {
        let at = replay.done() as u64;
        if at.is_multiple_of(plan.every) {
            verdict.moments += 1;
            let disk = replay.killed();
            let claim = restart(&disk, at);
            for survival in plan.survivals(at) {
                let violations = check(&claim, &disk.image(survival), at);
                verdict.count(format_args!("killed after {at} changes, {survival:?}"), &violations);
            }
        }
        if !replay.step() {
            return verdict;
        }
    }
}
