//! What the background tasks of a bucket did, and how long operations of its store took.

use base::HistogramCounts;

use crate::bucket_core::Core;
use crate::tasks::{STORE_OPS, StoreOp, TASKS, TaskId, TaskStats, Tasks};

/// What each background task of a bucket did so far, chores last.
pub fn task_stats(bucket: &Core) -> Vec<TaskStats> {
    let with_threads = std::iter::zip(&bucket.tasks.tasks, TASKS);
    let with_threads =
        with_threads.map(|(clock, (name, kind, does))| clock.stats(name, kind, does, u64::MAX));
    with_threads.chain(bucket.keeper.task_stats()).collect()
}

/// How long operations of a bucket's store took so far.
#[derive(Clone, Debug)]
pub struct StoreTimes {
    /// By kind of operation.
    pub ops: Vec<(&'static str, HistogramCounts)>,
    /// How long clients waited until a fetcher began to read what they had asked for.
    pub fetch_wait: HistogramCounts,
    /// How long it read.
    pub fetch: HistogramCounts,
    /// How long it took to make groups of changes durable.
    pub commit: HistogramCounts,
}

impl StoreTimes {
    /// The times of a bucket.
    pub fn of(bucket: &Core) -> StoreTimes {
        let Tasks { tasks, store, .. } = &bucket.tasks;
        StoreTimes {
            ops: std::iter::zip(STORE_OPS, store).map(|(name, times)| (name, times.counts())).collect(),
            fetch_wait: tasks[TaskId::Fetcher as usize].wait.counts(),
            fetch: store[StoreOp::Fetch as usize].counts(),
            commit: store[StoreOp::Commit as usize].counts(),
        }
    }
}
