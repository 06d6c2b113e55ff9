//! How long commands take, by bucket: a histogram for each command, written by one worker, read by anybody.
//!
//! Measured are the requests of one turn of a connection in [`SAMPLED_TURNS`]: from the end of the request before it
//! in the turn (from the start of the turn, for the first one) until its answer stands in the output, system calls not
//! included. If the answer comes later, because something from the disk was missing, the time until then is measured.
//! A turn that is not measured costs one addition, and no look at the clock: one for each request would cost more than
//! measuring is allowed to cost (record 0099).
//!
//! All requests are counted, so that the times of those that were measured can be told as those of all (record 0194).
//!
//! Sync writes whose clients wait are all measured, by level.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use base::{Histogram, HistogramCounts, TimeRange};
use engine::Bucket;
use parking_lot::Mutex;

use super::Sheet;
use super::baseline::Baseline;
use super::sync_writes::{SyncWriteCounters, SyncWriteStats, by_level};
use super::told_times::{ToldHistogram, ToldTimes};
use crate::slow::spans::WaitStep;
use crate::tally::{Counted, Tally};

/// How many groups of stats there are: each has a histogram. The table of groups is held to it by the compiler.
pub(super) const STAT_GROUPS: usize = 73;
/// One of so many turns is measured.
pub const SAMPLED_TURNS: u64 = 64;

/// What one thread measured of the requests of one bucket.
#[repr(align(128))]
pub struct ThreadTimes {
    by_opcode: [Histogram; 256],
    /// All requests, measured or not.
    requests: [AtomicU64; 256],
    /// What became of sync writes.
    pub(crate) sync_writes: SyncWriteCounters,
    /// What became of requests that are counted by kind.
    pub(crate) tally: Tally,
    /// How long requests waited that left their worker, by queue.
    queues: [Histogram; QUEUES.len()],
}

/// Queues in which requests wait that leave their worker: for a thread for long work, for the fetcher.
pub(super) const QUEUES: [&str; 2] = ["work_queue", "fetch_queue"];

impl Default for ThreadTimes {
    fn default() -> ThreadTimes {
        ThreadTimes {
            by_opcode: std::array::from_fn(|_| Histogram::default()),
            requests: std::array::from_fn(|_| AtomicU64::default()),
            sync_writes: SyncWriteCounters::default(),
            tally: Tally::default(),
            queues: Default::default(),
        }
    }
}

impl ThreadTimes {
    /// A measured request took so long. Called by the worker alone whose times these are.
    pub(crate) fn record(&self, opcode: u8, ns: u64) {
        self.by_opcode[usize::from(opcode)].record_alone(ns);
    }

    /// A request was handled. Called by the worker alone whose times these are: a load and a store are enough.
    #[inline]
    pub(crate) fn count(&self, opcode: u8) {
        let requests = &self.requests[usize::from(opcode)];
        requests.store(requests.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    }

    /// A request has come back to its worker, which it left then for the first time, after these steps. The wait of the last
    /// one is recorded: until its work began, from the end of the step before. Called by the worker alone whose times these
    /// are, and only for requests that have waited.
    pub(crate) fn waited(&self, left_ns: u64, steps: &[WaitStep]) {
        let Some((last, before)) = steps.split_last() else { return };
        let (queue, times) = match last {
            WaitStep::LongWork(times) => (0, times),
            WaitStep::Fetch(times) => (1, times),
            WaitStep::SyncWrite(_) => return,
        };
        // It is not known when it was.
        if times.work_until_ns == 0 {
            return;
        }
        let from_ns = before.iter().map(WaitStep::ended_ns).fold(left_ns, u64::max);
        self.queues[queue].record_alone(times.work_from_ns.saturating_sub(from_ns));
    }
}

/// What all threads measured of the requests of one bucket, or of those without a bucket.
pub struct BucketTimes {
    threads: Box<[ThreadTimes]>,
    /// How long each group of stats took, in the order of the table.
    stat_groups: Box<[Histogram]>,
    /// What had been measured when a client last had the stats begin again. `/metrics` does not know of it.
    baseline: Mutex<Arc<Baseline>>,
    /// What `/metrics` told of each command.
    told: Mutex<BTreeMap<u8, ToldTimes>>,
}

impl BucketTimes {
    pub(super) fn new(workers: usize) -> Arc<BucketTimes> {
        Arc::new(BucketTimes {
            threads: (0..workers.max(1)).map(|_| ThreadTimes::default()).collect(),
            stat_groups: (0..STAT_GROUPS).map(|_| Histogram::default()).collect(),
            baseline: Mutex::default(),
            told: Mutex::default(),
        })
    }

    /// Those of the worker with this number; threads for long work, which record no commands, have any.
    #[inline]
    pub(crate) fn of_worker(&self, number: usize) -> &ThreadTimes {
        // Each request comes here, and a division takes longer than the rest of what is counted.
        self.threads.get(number).unwrap_or_else(|| &self.threads[number % self.threads.len()])
    }

    /// All requests of a command, measured or not.
    pub(crate) fn requests(&self, opcode: u8) -> u64 {
        let of = |times: &ThreadTimes| times.requests[usize::from(opcode)].load(Ordering::Relaxed);
        self.threads.iter().map(of).sum()
    }

    /// How long the requests of a command took that were measured.
    pub fn command(&self, opcode: u8) -> HistogramCounts {
        HistogramCounts::sum(self.threads.iter().map(|times| &times.by_opcode[usize::from(opcode)]))
    }

    /// Adds how long the requests of a command took that were measured.
    pub(super) fn add_command_to(&self, opcode: u8, sum: &mut HistogramCounts) {
        self.threads.iter().for_each(|times| times.by_opcode[usize::from(opcode)].add_to(sum));
    }

    /// Commands of which requests were measured, with how long these took.
    pub fn commands(&self) -> impl Iterator<Item = (u8, HistogramCounts)> {
        let was_measured =
            |opcode: &u8| self.threads.iter().any(|times| !times.by_opcode[usize::from(*opcode)].is_unused());
        (0..=u8::MAX).filter(was_measured).map(|opcode| (opcode, self.command(opcode)))
    }

    /// How long all requests took of commands of which some were measured: see [`ToldTimes`].
    pub(super) fn of_all_requests(&self) -> Vec<(u8, ToldHistogram)> {
        let mut told = self.told.lock();
        let tell = |(opcode, measured): (u8, HistogramCounts)| {
            (opcode, told.entry(opcode).or_default().tell(&measured, self.requests(opcode)))
        };
        self.commands().map(tell).collect()
    }

    /// How long requests waited in each queue of [`QUEUES`]: all of them, not one turn in so many.
    pub(super) fn queues(&self) -> [HistogramCounts; QUEUES.len()] {
        std::array::from_fn(|at| HistogramCounts::sum(self.threads.iter().map(|times| &times.queues[at])))
    }

    /// How long a group of stats took, by its place in the table.
    pub(crate) fn stat_group(&self, group: usize) -> &Histogram {
        &self.stat_groups[group]
    }

    /// What had been measured when a client last had the stats begin again.
    pub(crate) fn baseline(&self) -> Arc<Baseline> {
        Arc::clone(&self.baseline.lock())
    }

    /// Has the stats begin again that look at the baseline.
    pub(crate) fn begin_again(&self, baseline: Baseline) {
        *self.baseline.lock() = Arc::new(baseline);
    }

    /// How many requests were counted as this.
    pub fn counted(&self, counted: Counted) -> u64 {
        self.threads.iter().map(|times| times.tally.get(counted)).sum()
    }

    /// What became of sync writes, level by level.
    pub fn sync_writes(&self) -> Vec<SyncWriteStats> {
        by_level(self.threads.iter().map(|times| &times.sync_writes))
    }
}

/// The times of all buckets of a node.
pub struct TimesByBucket {
    workers: usize,
    /// Of requests of connections without a bucket.
    none: Arc<BucketTimes>,
    /// Those whose bucket is gone are forgotten when another one comes.
    of: Mutex<Vec<(Weak<Bucket>, Arc<BucketTimes>)>>,
}

impl TimesByBucket {
    /// For a node with so many workers.
    pub(crate) fn new(workers: usize) -> TimesByBucket {
        TimesByBucket { workers, none: BucketTimes::new(workers), of: Mutex::default() }
    }

    /// The times of a bucket.
    pub fn of(&self, bucket: &Arc<Bucket>) -> Arc<BucketTimes> {
        let mut of = self.of.lock();
        if let Some((_, times)) = of.iter().find(|(owner, _)| owner.as_ptr() == Arc::as_ptr(bucket)) {
            return Arc::clone(times);
        }
        of.retain(|(owner, _)| owner.strong_count() > 0);
        let times = BucketTimes::new(self.workers);
        of.push((Arc::downgrade(bucket), Arc::clone(&times)));
        times
    }

    /// The times of requests without a bucket.
    pub fn none(&self) -> &Arc<BucketTimes> {
        &self.none
    }

    /// The times of all buckets that are there, and of requests without one.
    pub fn all(&self) -> Vec<Arc<BucketTimes>> {
        let of = self.of.lock();
        let there = of.iter().filter(|(owner, _)| owner.strong_count() > 0);
        there.map(|(_, times)| times).chain([&self.none]).map(Arc::clone).collect()
    }
}

/// Adds a histogram in the form of the field: `NAME_FROM,TO` for each bucket that is not empty, and `NAME_mean`, all in
/// microseconds; the mean with three decimals, as most commands take less than one.
pub(super) fn put_times(name: &str, counts: &HistogramCounts, sheet: &mut Sheet) {
    for TimeRange { from, to, count } in counts.ranges_us() {
        sheet.put(format_args!("{name}_{from},{to}"), count);
    }
    if counts.total() > 0 {
        sheet.put(
            format_args!("{name}_mean"),
            format_args!("{:.3}", counts.sum_ns() as f64 / counts.total() as f64 / 1000.0),
        );
    }
}

#[cfg(test)]
mod tests {
    use engine::StepTimes;

    use super::*;

    #[test]
    fn workers_are_added_up() {
        let times = BucketTimes::new(2);
        for (worker, opcode, ns) in [(0, 1, 5), (1, 1, 5), (1, 1, 1000), (3, 1, 7), (1, 2, 1)] {
            times.of_worker(worker).record(opcode, ns);
        }
        assert_eq!((times.command(1).total(), times.command(1).sum_ns()), (4, 1017));
        assert_eq!((times.command(2).total(), times.command(3).total()), (1, 0));
        [0, 1, 3].into_iter().for_each(|worker| times.of_worker(worker).count(1));
        assert_eq!((times.requests(1), times.requests(2)), (3, 0));
    }

    #[test]
    fn waits_in_queues_are_recorded_by_queue() {
        let at =
            |work_from_ns, work_until_ns| StepTimes { work_from_ns, work_until_ns, ..StepTimes::default() };
        let times = BucketTimes::new(1);
        let (fetch, work) = (WaitStep::Fetch(at(3_000, 5_000)), WaitStep::LongWork(at(9_000, 12_000)));
        let waited = |steps: &[WaitStep]| times.of_worker(0).waited(1_000, steps);
        waited(&[fetch]);
        waited(&[fetch, work]);
        let told = || times.queues().map(|counts| (counts.total(), counts.sum_ns()));
        assert_eq!(told(), [(1, 4_000), (1, 2_000)], "the second one begins when the first one has ended");
        // A moment that another thread noted may be a little before ours.
        waited(&[WaitStep::LongWork(at(900, 2_000))]);
        waited(&[WaitStep::LongWork(StepTimes::default())]);
        waited(&[WaitStep::SyncWrite(at(3_000, 5_000))]);
        waited(&[]);
        assert_eq!(told(), [(2, 4_000), (1, 2_000)], "what is not known is not recorded");
    }

    #[test]
    fn times_are_put_in_microseconds() {
        let histogram = Histogram::default();
        [800, 900, 1500, 40_000_000].into_iter().for_each(|ns| histogram.record(ns));
        let mut sheet = Sheet::default();
        put_times("Get", &histogram.counts(), &mut sheet);
        put_times("Set", &HistogramCounts::default(), &mut sheet);
        let put: Vec<_> = sheet.iter().collect();
        assert_eq!(
            put,
            [("Get_0,1", "2"), ("Get_1,2", "1"), ("Get_36864,40960", "1"), ("Get_mean", "10000.800")]
        );
    }
}
