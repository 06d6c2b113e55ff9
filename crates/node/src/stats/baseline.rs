//! The groups `reset` and `stat-timings`, and what had been measured when a client had the stats begin again.
//!
//! Counters and histograms themselves are never set back: `/metrics` and the threads that write them know nothing of a
//! reset. What a reset takes away is subtracted when the stats are told.

use base::HistogramCounts;
use engine::StoreTimes;

use super::timings::{BucketTimes, QUEUES};

/// What had been measured in one bucket at some moment.
#[derive(Clone, Default)]
pub(crate) struct Baseline {
    /// By opcode.
    pub(super) commands: Vec<(u8, HistogramCounts)>,
    /// By opcode; none if nothing was reset.
    pub(super) requests: Vec<u64>,
    /// By level.
    pub(super) sync_writes: Vec<HistogramCounts>,
    /// By queue.
    pub(super) queues: Vec<HistogramCounts>,
    pub(super) store: Option<StoreTimes>,
    pub(super) pager_runs: u64,
    pub(super) ejects: u64,
    pub(super) not_my_vbuckets: u64,
}

fn since(now: HistogramCounts, then: Option<&HistogramCounts>) -> HistogramCounts {
    then.map_or_else(|| now.clone(), |then| now.since(then))
}

impl Baseline {
    /// How long requests of a command took since then.
    pub(crate) fn command(&self, times: &BucketTimes, opcode: u8) -> HistogramCounts {
        let then = self.commands.iter().find(|(code, _)| *code == opcode);
        since(times.command(opcode), then.map(|(_, counts)| counts))
    }

    /// Requests of a command since then, measured or not.
    pub(crate) fn requests(&self, times: &BucketTimes, opcode: u8) -> u64 {
        let then = self.requests.get(usize::from(opcode)).copied().unwrap_or(0);
        times.requests(opcode).saturating_sub(then)
    }

    /// How long sync writes took since then, by level.
    pub(super) fn sync_writes(&self, times: &BucketTimes) -> Vec<(&'static str, HistogramCounts)> {
        let levels = times.sync_writes().into_iter().enumerate();
        levels.map(|(at, level)| (level.timing, since(level.took, self.sync_writes.get(at)))).collect()
    }

    /// How long requests waited in each queue since then.
    pub(super) fn queues(&self, times: &BucketTimes) -> Vec<(&'static str, HistogramCounts)> {
        let queues = QUEUES.into_iter().zip(times.queues()).enumerate();
        queues.map(|(at, (name, waited))| (name, since(waited, self.queues.get(at)))).collect()
    }

    /// How long operations of the store took since then; those by kind from the start on.
    pub(super) fn store(&self, now: StoreTimes) -> StoreTimes {
        let Some(then) = &self.store else { return now };
        StoreTimes {
            ops: now.ops,
            fetch_wait: now.fetch_wait.since(&then.fetch_wait),
            fetch: now.fetch.since(&then.fetch),
            commit: now.commit.since(&then.commit),
        }
    }
}
