//! What became of sync writes, and how long those waited that were not safe enough at once, by level.

use std::sync::atomic::{AtomicU64, Ordering};

use base::{DurabilityLevel, Histogram, HistogramCounts};
use engine::SyncOutcome;

/// The levels, with their names, and the names of their times as the field writes them.
const LEVELS: [(DurabilityLevel, &str, &str); 3] = [
    (DurabilityLevel::Majority, "majority", "sync_write_commit_majority"),
    (
        DurabilityLevel::MajorityAndPersistOnActive,
        "majority_and_persist_on_active",
        "sync_write_commit_majority_and_persist_on_master",
    ),
    (DurabilityLevel::PersistToMajority, "persist_to_majority", "sync_write_commit_persist_to_majority"),
];

/// Sync writes of one level, of one thread.
#[derive(Default)]
struct OfLevel {
    committed: AtomicU64,
    aborted: AtomicU64,
    given_up: AtomicU64,
    took: Histogram,
}

/// Sync writes of one thread.
#[derive(Default)]
pub struct SyncWriteCounters([OfLevel; 3]);

impl SyncWriteCounters {
    fn of(&self, level: DurabilityLevel) -> &OfLevel {
        &self.0[level as usize - 1]
    }

    /// One was committed before its client had to wait.
    pub fn count_at_once(&self, level: DurabilityLevel) {
        self.of(level).committed.fetch_add(1, Ordering::Relaxed);
    }

    /// One was decided for which its client waited so long.
    pub fn count(&self, level: DurabilityLevel, outcome: SyncOutcome, ns: u64) {
        let of = self.of(level);
        let counter = match outcome {
            SyncOutcome::Committed => &of.committed,
            SyncOutcome::Aborted => &of.aborted,
            SyncOutcome::GivenUp => &of.given_up,
        };
        counter.fetch_add(1, Ordering::Relaxed);
        if outcome == SyncOutcome::Committed {
            of.took.record(ns);
        }
    }
}

/// Sync writes of one level, of all threads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SyncWriteStats {
    /// The level's name.
    pub level: &'static str,
    /// What its times are called.
    pub timing: &'static str,
    /// Those that were committed.
    pub committed: u64,
    /// Those whose time was over.
    pub aborted: u64,
    /// Those that nobody decides about here any more.
    pub given_up: u64,
    /// How long clients waited for those that were committed, but not at once.
    pub took: HistogramCounts,
}

/// Adds up what several threads counted, level by level.
pub fn by_level<'a>(threads: impl Iterator<Item = &'a SyncWriteCounters> + Clone) -> Vec<SyncWriteStats> {
    let stats = |(level, name, timing): (DurabilityLevel, &'static str, &'static str)| {
        let all = threads.clone().map(|thread| thread.of(level));
        let sum = |of: fn(&OfLevel) -> &AtomicU64| {
            all.clone().map(|level| of(level).load(Ordering::Relaxed)).sum::<u64>()
        };
        SyncWriteStats {
            level: name,
            timing,
            committed: sum(|of| &of.committed),
            aborted: sum(|of| &of.aborted),
            given_up: sum(|of| &of.given_up),
            took: HistogramCounts::sum(all.clone().map(|level| &level.took)),
        }
    };
    LEVELS.into_iter().map(stats).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_and_threads_are_told_apart_and_added_up() {
        let threads = [SyncWriteCounters::default(), SyncWriteCounters::default()];
        let [one, other] = &threads;
        one.count_at_once(DurabilityLevel::Majority);
        other.count(DurabilityLevel::Majority, SyncOutcome::Committed, 5);
        other.count(DurabilityLevel::PersistToMajority, SyncOutcome::Aborted, 5);
        one.count(DurabilityLevel::PersistToMajority, SyncOutcome::GivenUp, 5);
        let seen: Vec<_> = by_level(threads.iter())
            .into_iter()
            .map(|level| (level.committed, level.aborted, level.given_up, level.took.total()))
            .collect();
        assert_eq!(seen, [(2, 0, 0, 1), (0, 0, 0, 0), (0, 1, 1, 0)]);
    }
}
