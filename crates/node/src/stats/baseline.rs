//! The groups `reset` and `stat-timings`, and what had been measured when a client had the stats begin again.
//!
//! Counters and histograms themselves are never set back: `/metrics` and the threads that write them know nothing of a
//! reset. What a reset takes away is subtracted when the stats are told.

use base::HistogramCounts;
use engine::StoreTimes;

use super::timings::{BucketTimes, QUEUES, put_times};
use super::{GROUPS, Inquiry, Refused, Sheet};
use crate::tally::Counted;

/// What had been measured in one bucket at some moment.
#[derive(Clone, Default)]
pub(crate) struct Baseline {
    /// By opcode.
    commands: Vec<(u8, HistogramCounts)>,
    /// By level.
    sync_writes: Vec<HistogramCounts>,
    /// By queue.
    queues: Vec<HistogramCounts>,
    store: Option<StoreTimes>,
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

/// `reset [timings]`: what the field's documents list of what there is here; with an argument the times of commands alone.
pub fn reset(inquiry: &Inquiry<'_>, args: &[&[u8]], _: &mut Sheet) -> Result<(), Refused> {
    let times = inquiry.node.times.of(inquiry.bucket);
    let commands = times.commands().collect();
    let sync_writes = times.sync_writes().into_iter().map(|level| level.took).collect();
    let queues = times.queues().into();
    let then = times.baseline();
    let baseline = match args.first() {
        Some(&b"timings") => Baseline { commands, sync_writes, queues, ..Baseline::clone(&then) },
        Some(_) => return Err(Refused::Invalid("The only argument of this stat group is `timings`")),
        None => {
            let evicted = inquiry.bucket.eviction().eviction_stats();
            Baseline {
                commands,
                sync_writes,
                queues,
                store: Some(StoreTimes::of(inquiry.bucket)),
                pager_runs: evicted.passes,
                ejects: evicted.evicted_values + evicted.evicted_documents,
                not_my_vbuckets: times.counted(Counted::NotMyVbucket),
            }
        }
    };
    times.begin_again(baseline);
    Ok(())
}

/// `stat-timings`: how long each group of stats took; `all` is the group without a name.
pub fn stat_timings(inquiry: &Inquiry<'_>, _: &[&[u8]], sheet: &mut Sheet) -> Result<(), Refused> {
    let times = inquiry.node.times.of(inquiry.bucket);
    for (at, group) in GROUPS.iter().enumerate().filter(|(at, _)| !times.stat_group(*at).is_unused()) {
        let name = if group.name.is_empty() { "all" } else { group.name };
        put_times(name, &times.stat_group(at).counts(), sheet);
    }
    Ok(())
}
