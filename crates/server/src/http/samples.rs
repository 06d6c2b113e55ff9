//! Figures of the last hour, kept in the process: what a console draws when no monitor is there.
//!
//! A sample of each bucket is taken every [`EVERY`]; the last [`MOST_SAMPLES`] of each are kept. They are lost with the
//! process, and Prometheus is for more than an hour (`/metrics`).

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Weak};
use std::time::Duration;

use ::node::Node;
use ::node::at_rest::progress;
use ::node::blocked;
use ::node::stats::agent_rows::{AGENT_ROWS_EVERY, AgentRows};
use ::node::stats::history::{self, History};
use ::node::stats::latency::{LatencyCounts, Percentiles};
use base::{HistogramCounts, VbState};
use engine::Bucket;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::node_figures::Rates;

/// Between two samples.
pub(super) const EVERY: Duration = AGENT_ROWS_EVERY;

/// Samples of a bucket that are kept: an hour.
const MOST_SAMPLES: usize = 720;

/// What a bucket did between two samples, and what it had at the end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Sample {
    /// When it was taken, in seconds since 1970.
    at_s: u64,
    /// What the counters are about, in milliseconds.
    over_ms: u64,
    gets: u64,
    misses: u64,
    stores: u64,
    deletes: u64,
    fetched: u64,
    written: u64,
    documents: u64,
    used_bytes: u64,
    quota_bytes: u64,
    disk_queue: u64,
    not_resident: u64,
    file_bytes: u64,
    data_bytes: u64,
    /// Of all commands, of one turn in 64; 0 without a time.
    p50_us: f64,
    p99_us: f64,
    p999_us: f64,
    /// Of reads and stores, and of sync writes that their clients waited for; `None` without a time.
    get: Option<Percentiles>,
    set: Option<Percentiles>,
    durable: Option<Percentiles>,
}

impl Rates {
    fn of(sample: &Sample) -> Rates {
        let rate = |count: u64| count as f64 * 1000.0 / sample.over_ms.max(1) as f64;
        Rates {
            gets: rate(sample.gets),
            misses: rate(sample.misses),
            stores: rate(sample.stores),
            deletes: rate(sample.deletes),
            fetched: rate(sample.fetched),
        }
    }
}

/// What was counted when a sample was taken.
#[derive(Clone, Default)]
struct Counted {
    at_ns: u64,
    gets: u64,
    misses: u64,
    stores: u64,
    deletes: u64,
    fetched: u64,
    written: u64,
    took: HistogramCounts,
    latency: LatencyCounts,
}

#[derive(Default)]
struct BucketSamples {
    owner: Weak<Bucket>,
    last: Counted,
    kept: VecDeque<Sample>,
}

/// The samples of a node's buckets.
#[derive(Default)]
pub(super) struct Samples(Mutex<BTreeMap<String, BucketSamples>>);

impl BucketSamples {
    fn push(&mut self, sample: Sample) {
        if self.kept.len() == MOST_SAMPLES {
            self.kept.pop_front();
        }
        self.kept.push_back(sample);
    }
}

impl Counted {
    /// A sample with what was counted since an earlier one. A count that went down, with a vBucket that left, is none.
    fn since(&self, earlier: &Counted, now: Sample) -> Sample {
        let all = Percentiles::of(&self.took.since(&earlier.took)).unwrap_or_default();
        let [get, set, durable] = self.latency.since(&earlier.latency);
        Sample {
            over_ms: self.at_ns.saturating_sub(earlier.at_ns) / 1_000_000,
            gets: self.gets.saturating_sub(earlier.gets),
            misses: self.misses.saturating_sub(earlier.misses),
            stores: self.stores.saturating_sub(earlier.stores),
            deletes: self.deletes.saturating_sub(earlier.deletes),
            fetched: self.fetched.saturating_sub(earlier.fetched),
            written: self.written.saturating_sub(earlier.written),
            p50_us: all.p50_us,
            p99_us: all.p99_us,
            p999_us: all.p999_us,
            get,
            set,
            durable,
            ..now
        }
    }
}

/// Looks at memory alone, at vBuckets that changed.
fn look(node: &Node, bucket: &Arc<Bucket>) -> (Counted, Sample) {
    let (stats, clock) = (bucket.stats(), &node.env().clock);
    let (all, active) = (stats.all(), stats.of(VbState::Active));
    let mut took = HistogramCounts::default();
    let times = node.times.of(bucket);
    times.commands().for_each(|(_, counts)| took.add(&counts));
    let counted = Counted {
        at_ns: clock.monotonic_ns(),
        gets: all.ops.get_hits + all.ops.get_misses,
        misses: all.ops.get_misses,
        stores: all.ops.stores,
        deletes: all.ops.deletes,
        fetched: all.ops.get_not_resident,
        written: bucket.store_stats().items_saved,
        took,
        latency: LatencyCounts::of(&times),
    };
    let (file_bytes, data_bytes) = engine::file_usage(bucket);
    let sample = Sample {
        at_s: clock.unix_ns() / 1_000_000_000,
        documents: active.documents,
        used_bytes: stats.used_bytes,
        quota_bytes: stats.quota_bytes,
        disk_queue: all.unpersisted_items,
        not_resident: active.without_value,
        file_bytes,
        data_bytes,
        ..Sample::default()
    };
    (counted, sample)
}

/// What is kept over time.
pub(super) struct Taken {
    pub(super) samples: Arc<Samples>,
    pub(super) agent_rows: Arc<AgentRows>,
    pub(super) kept: Arc<History>,
}

/// Takes samples as long as this is polled.
pub(super) async fn run(node: Arc<Node>, Taken { samples, agent_rows, kept }: Taken) {
    let mut next = tokio::time::interval(EVERY);
    next.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut ticks: u64 = 0;
    loop {
        next.tick().await;
        look_at_files(&node);
        // What is found is logged; `/healthz` and `/metrics` look again.
        let _ = blocked::look(&node);
        samples.take(&node);
        agent_rows.take(&node, &kept);
        if ticks.is_multiple_of(history::EVERY_S / EVERY.as_secs()) {
            kept.take(&node);
        }
        ticks += 1;
    }
}

/// Has the files of buckets looked at elsewhere that are being encrypted, or whose keys were changed.
fn look_at_files(node: &Arc<Node>) {
    let due = progress::due(node);
    if due.is_empty() {
        return;
    }
    let of = Arc::clone(node);
    // If too much waits there, the next tick tries again.
    let _ = node.lanes().long_work.begin(node.env(), None, move || progress::look_at(&of, &due));
}

impl Samples {
    /// Takes one of each bucket, and forgets buckets that are gone.
    pub(super) fn take(&self, node: &Node) {
        let buckets = node.buckets();
        let taken: Vec<_> =
            buckets.iter().map(|(spec, bucket)| (&spec.name, bucket, look(node, bucket))).collect();
        let mut of = self.0.lock();
        of.retain(|name, _| taken.iter().any(|(there, ..)| *there == name));
        for (name, bucket, (counted, sample)) in taken {
            let kept = of.entry(name.clone()).or_default();
            if !std::ptr::eq(kept.owner.as_ptr(), Arc::as_ptr(bucket)) {
                // Another one of the same name. Its counters begin here.
                *kept = BucketSamples { owner: Arc::downgrade(bucket), last: counted, kept: VecDeque::new() };
                continue;
            }
            let between = counted.since(&kept.last, sample);
            kept.last = counted;
            kept.push(between);
        }
    }

    /// What was done with a bucket in each second of its last sample; nothing before the first one.
    pub(super) fn rates(&self, bucket: &str) -> Rates {
        let of = self.0.lock();
        of.get(bucket).and_then(|of| of.kept.back()).map(Rates::of).unwrap_or_default()
    }

    /// Those of a bucket that were taken after a time.
    pub(super) fn after(&self, bucket: &str, since_s: u64) -> Vec<Sample> {
        let of = self.0.lock();
        let kept = of.get(bucket).map(|of| &of.kept);
        kept.into_iter().flatten().filter(|sample| sample.at_s > since_s).copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_hour_is_kept_and_no_more() {
        let mut of = BucketSamples::default();
        for at_s in 1..=5_000 {
            of.push(Sample { at_s, ..Sample::default() });
        }
        assert_eq!(of.kept.len(), MOST_SAMPLES);
        assert_eq!(
            (of.kept[0].at_s, of.kept[MOST_SAMPLES - 1].at_s),
            (5_000 - MOST_SAMPLES as u64 + 1, 5_000)
        );
        assert!(of.kept.capacity() <= 2 * MOST_SAMPLES);
        assert!(MOST_SAMPLES as u64 * EVERY.as_secs() >= 3_600, "an hour");
    }

    #[test]
    fn a_sample_is_what_was_counted_between() {
        let counted = |gets, at_ns| Counted { gets, at_ns, ..Counted::default() };
        let now = Sample { documents: 7, ..Sample::default() };
        let sample = counted(10, 6_000_000_000).since(&counted(4, 1_000_000_000), now);
        assert_eq!((sample.gets, sample.over_ms, sample.documents), (6, 5_000, 7));
        let rates = Rates::of(&Sample { stores: 10, ..sample });
        assert_eq!((rates.gets, rates.stores, rates.ops()), (1.2, 2.0, 3.2));
        assert_eq!(counted(1, 2).since(&counted(4, 1), now).gets, 0, "a vBucket left with its counts");
    }
}
