//! A page of metrics in Prometheus' text format, and what is told of each bucket.

use std::fmt::{self, Display, Write};
use std::sync::{Arc, LazyLock};

use base::{HistogramCounts, VbState};
use engine::{
    AccountFigures, Blocked, Bucket, BucketStats, CheckpointMemoryStats, CompactionStats, CompressionStats,
    DefragmenterStats, EvictionStats, ExpiryStats, FetchStats, PurgeStats, STATES, SaveStats, StateStats,
    StoreStats, WarmupStats, blocked_threads,
};
use kvstore::HistoryUsage;

use super::disk::history_of;
use super::timings::BucketTimes;
use super::told_times::{END_POWERS, ToldHistogram};
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
    /// Of its threads.
    pub(super) blocked: Vec<Blocked>,
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
            blocked: blocked_threads(&bucket),
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

/// They as labels have them, in seconds.
static ENDS: LazyLock<Vec<String>> =
    LazyLock::new(|| END_POWERS.iter().map(|power| ((1_u64 << power) as f64 / 1e6).to_string()).collect());

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
        // A page of many buckets has tens of thousands of lines: what is text already is not formatted.
        self.0.push_str(name);
        if !labels.is_empty() {
            self.0.push('{');
            push_labels(labels, self.0);
            self.0.push('}');
        }
        writeln!(self.0, " {value}")
    }

    /// A sample with labels that are text already: see [`labels_text`].
    pub(super) fn sample_of(&mut self, name: &str, labels: &str, value: impl Display) -> fmt::Result {
        self.0.push_str(name);
        self.0.push('{');
        self.0.push_str(labels);
        writeln!(self.0, "}} {value}")
    }

    /// The lines of one histogram.
    pub(super) fn histogram(
        &mut self,
        name: &str,
        labels: &[(&str, &str)],
        counts: &HistogramCounts,
    ) -> fmt::Result {
        self.histogram_told(name, labels, &ToldHistogram::of(counts))
    }

    /// The same of what is told already.
    pub(super) fn histogram_told(
        &mut self,
        name: &str,
        labels: &[(&str, &str)],
        told: &ToldHistogram,
    ) -> fmt::Result {
        let text = labels_text(labels);
        let begin = format!("{name}_bucket{{{text}{}le=\"", if text.is_empty() { "" } else { "," });
        let ends = ENDS.iter().map(|end| &**end).zip(told.below);
        for (end, count) in ends.chain([("+Inf", told.total)]) {
            self.0.push_str(&begin);
            self.0.push_str(end);
            writeln!(self.0, "\"}} {count}")?;
        }
        self.sample(&format!("{name}_sum"), labels, told.sum_ns / 1e9)?;
        self.sample(&format!("{name}_count"), labels, told.total)
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

    /// A metric with a number for each bucket and each of the things of one kind that it has, under the label `what`;
    /// `things` are those of the buckets, in their order.
    pub(super) fn each_of<I, T: Display>(
        &mut self,
        buckets: &[Numbers],
        (what, things): (&str, &[Vec<(&'static str, I)>]),
        (name, kind, help): (&str, Kind, &str),
        value: impl Fn(&I) -> T,
    ) -> fmt::Result {
        self.head(name, kind, help)?;
        for (numbers, things) in buckets.iter().zip(things) {
            for (thing, of) in things {
                self.sample(name, &[("bucket", numbers.bucket.name()), (what, thing)], value(of))?;
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

/// Labels as a sample has them: for those that many samples have.
pub(super) fn labels_text(labels: &[(&str, &str)]) -> String {
    let mut text = String::new();
    push_labels(labels, &mut text);
    text
}

fn push_labels(labels: &[(&str, &str)], out: &mut String) {
    for (at, (label, value)) in labels.iter().enumerate() {
        if at > 0 {
            out.push(',');
        }
        out.push_str(label);
        out.push_str("=\"");
        push_escaped(value, out);
        out.push('"');
    }
}

/// A label's value: backslash, quote and line feed are escaped.
fn push_escaped(value: &str, out: &mut String) {
    let mut rest = value;
    while let Some(at) = rest.find(['\\', '"', '\n']) {
        out.push_str(&rest[..at]);
        out.push_str(match rest.as_bytes()[at] {
            b'\n' => "\\n",
            b'"' => "\\\"",
            _ => "\\\\",
        });
        rest = &rest[at + 1..];
    }
    out.push_str(rest);
}

pub(super) fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

#[cfg(test)]
mod tests {
    use base::Histogram;

    use super::*;

    #[test]
    fn labels_are_escaped() {
        let mut text = String::new();
        let labels = [("a", "plain"), ("b", "q\"b\\n\nö"), ("c", "")];
        Page(&mut text).sample("name", &labels, 7).expect("text takes all");
        Page(&mut text).sample("name", &[], 0.5).expect("text takes all");
        assert_eq!(text, "name{a=\"plain\",b=\"q\\\"b\\\\n\\nö\",c=\"\"} 7\nname 0.5\n");
    }

    #[test]
    fn a_histogram_counts_what_is_below_each_end() {
        let histogram = Histogram::default();
        [500, 3_000, 3_000, 70_000_000_000].into_iter().for_each(|ns| histogram.record(ns));
        let mut text = String::new();
        Page(&mut text).histogram("h", &[("of", "x")], &histogram.counts()).expect("text takes all");
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 24);
        assert_eq!(lines[0], r#"h_bucket{of="x",le="0.000001"} 1"#);
        assert_eq!(lines[1], r#"h_bucket{of="x",le="0.000002"} 1"#);
        assert_eq!(lines[2], r#"h_bucket{of="x",le="0.000004"} 3"#);
        assert_eq!(lines[14], r#"h_bucket{of="x",le="0.016384"} 3"#);
        assert_eq!(lines[20], r#"h_bucket{of="x",le="67.108864"} 3"#);
        assert_eq!(
            lines[21..],
            [r#"h_bucket{of="x",le="+Inf"} 4"#, r#"h_sum{of="x"} 70.0000065"#, r#"h_count{of="x"} 4"#]
        );
        text.clear();
        Page(&mut text).histogram("h", &[], &histogram.counts()).expect("text takes all");
        assert!(text.starts_with("h_bucket{le=\"0.000001\"} 1\n"), "{text}");
    }
}
