//! A page of metrics in Prometheus' text format, and what is told of each bucket.

use std::fmt::{self, Display, Write};
use std::sync::Arc;

use base::{HistogramCounts, VbState};
use engine::{
    AccountFigures, Bucket, BucketStats, CheckpointMemoryStats, CompactionStats, CompressionStats,
    DefragmenterStats, EvictionStats, ExpiryStats, FetchStats, PurgeStats, STATES, SaveStats, StateStats,
    StoreStats, WarmupStats,
};
use kvstore::HistoryUsage;

use super::disk::history_of;
use super::timings::BucketTimes;
use crate::node::Node;

pub(super) struct Numbers {
    pub(super) bucket: Arc<Bucket>,
    pub(super) times: Arc<BucketTimes>,
    pub(super) stats: BucketStats,
    pub(super) all: StateStats,
    pub(super) store: StoreStats,
    pub(super) fetches: FetchStats,
    pub(super) compactions: CompactionStats,
    pub(super) saves: SaveStats,
    pub(super) warmup: WarmupStats,
    pub(super) eviction: EvictionStats,
    pub(super) checkpoints: CheckpointMemoryStats,
    pub(super) account: AccountFigures,
    pub(super) expiry: ExpiryStats,
    pub(super) compression: CompressionStats,
    pub(super) purged: PurgeStats,
    pub(super) moved: DefragmenterStats,
    /// Bytes of its files, and of what is in use in them.
    pub(super) files: (u64, u64),
    pub(super) history: HistoryUsage,
}

impl Numbers {
    pub(super) fn of(node: &Node, bucket: Arc<Bucket>) -> Numbers {
        let stats = bucket.stats();
        Numbers {
            all: stats.all(),
            stats,
            store: bucket.store_stats(),
            files: engine::file_usage(&bucket),
            history: history_of(&bucket),
            fetches: bucket.fetching().fetch_stats(),
            compactions: bucket.compaction().compaction_stats(),
            saves: bucket.flushing().save_stats(),
            warmup: bucket.loading().warmup_stats(),
            eviction: bucket.eviction().eviction_stats(),
            checkpoints: bucket.checkpoints().checkpoint_memory(),
            account: bucket.account_check(),
            expiry: bucket.documents().expiry_stats(),
            compression: bucket.compression().compression_stats(),
            purged: bucket.tombstones().purge_stats(),
            moved: bucket.defragmentation().defragmenter_stats(),
            times: node.times.of(&bucket),
            bucket,
        }
    }
}

/// Ends of the buckets of histograms are powers of four microseconds, up to this power of two: 67 seconds.
const LONGEST_END_POWER: u32 = 26;

/// Kinds of metrics.
#[derive(Clone, Copy)]
pub(super) enum Kind {
    Gauge,
    Counter,
    Histogram,
}

/// Whether a name ends as Prometheus wants it of such a family.
fn name_fits(name: &str, kind: Kind) -> bool {
    let is_total = name.ends_with("_total");
    is_total == matches!(kind, Kind::Counter)
        && !["_count", "_sum", "_bucket"].iter().any(|end| name.ends_with(end))
}

pub(super) struct Page<'a>(pub(super) &'a mut String);

impl Page<'_> {
    pub(super) fn head(&mut self, name: &str, kind: Kind, help: &str) -> fmt::Result {
        let kind = match kind {
            // Couchbase's names keep no rule of Prometheus' about endings, which holds for the types alone.
            Kind::Gauge | Kind::Counter if !name_fits(name, kind) => "untyped",
            Kind::Gauge => "gauge",
            Kind::Counter => "counter",
            Kind::Histogram => "histogram",
        };
        writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}")
    }

    pub(super) fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: impl Display) -> fmt::Result {
        self.0.write_str(name)?;
        for (at, (label, value)) in labels.iter().enumerate() {
            let open = if at == 0 { '{' } else { ',' };
            write!(self.0, "{open}{label}=\"{}\"", Escaped(value))?;
        }
        writeln!(self.0, "{} {value}", if labels.is_empty() { "" } else { "}" })
    }

    /// The lines of one histogram.
    pub(super) fn histogram(
        &mut self,
        name: &str,
        labels: &[(&str, &str)],
        counts: &HistogramCounts,
    ) -> fmt::Result {
        let bucket = format!("{name}_bucket");
        let mut line = |end: &str, count: u64| {
            let labels: Vec<(&str, &str)> = labels.iter().copied().chain([("le", end)]).collect();
            self.sample(&bucket, &labels, count)
        };
        for power in (0..=LONGEST_END_POWER).step_by(2) {
            let seconds = (1_u64 << power) as f64 / 1e6;
            line(&seconds.to_string(), counts.below_us_power(power))?;
        }
        let total = counts.total();
        line("+Inf", total)?;
        self.sample(&format!("{name}_sum"), labels, seconds(counts.sum_ns()))?;
        self.sample(&format!("{name}_count"), labels, total)
    }

    /// A metric with one number.
    pub(super) fn one(&mut self, name: &str, kind: Kind, help: &str, value: impl Display) -> fmt::Result {
        self.head(name, kind, help)?;
        self.sample(name, &[], value)
    }

    /// A metric with a number for each bucket.
    pub(super) fn each<T: Display>(
        &mut self,
        buckets: &[Numbers],
        name: &str,
        kind: Kind,
        help: &str,
        value: impl Fn(&Numbers) -> T,
    ) -> fmt::Result {
        self.head(name, kind, help)?;
        buckets
            .iter()
            .try_for_each(|numbers| self.sample(name, &[("bucket", numbers.bucket.name())], value(numbers)))
    }

    /// A metric with a number for each bucket and each of the things of one kind that it has, under the label `what`.
    pub(super) fn each_of<I, T: Display>(
        &mut self,
        buckets: &[Numbers],
        (what, things): (&str, impl Fn(&Numbers) -> Vec<(&'static str, I)>),
        (name, kind, help): (&str, Kind, &str),
        value: impl Fn(&I) -> T,
    ) -> fmt::Result {
        self.head(name, kind, help)?;
        for numbers in buckets {
            for (thing, of) in things(numbers) {
                self.sample(name, &[("bucket", numbers.bucket.name()), (what, thing)], value(&of))?;
            }
        }
        Ok(())
    }

    /// A metric with a number for each bucket and role of vBuckets.
    pub(super) fn by_state(
        &mut self,
        buckets: &[Numbers],
        name: &str,
        help: &str,
        value: impl Fn(&StateStats) -> u64,
    ) -> fmt::Result {
        self.head(name, Kind::Gauge, help)?;
        for numbers in buckets {
            for state in STATES {
                let labels = [("bucket", numbers.bucket.name()), ("state", VbState::name(state))];
                self.sample(name, &labels, value(numbers.stats.of(state)))?;
            }
        }
        Ok(())
    }
}

/// A label's value: backslash, quote and line feed are escaped.
struct Escaped<'a>(&'a str);

impl Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.chars().try_for_each(|c| match c {
            '\\' => f.write_str("\\\\"),
            '"' => f.write_str("\\\""),
            '\n' => f.write_str("\\n"),
            c => f.write_char(c),
        })
    }
}

pub(super) fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}
