//! What monitoring agents read of this node's buckets, kept in the process: every 5 seconds of the last minute, and every
//! minute of the last hour.
//!
//! Kept are levels and counters (`node::stats::monitored`); told are levels and rates. A request is told a row of now,
//! which is not kept, too. A row is some 1.3 KiB, 100 KiB a bucket.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Weak};

use ::node::Node;
use ::node::stats::history::History;
use ::node::stats::monitored::{self, FigureKind, MONITORED_STATES, MachineLook, MonitoredName};
use engine::Bucket;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::samples::EVERY;

/// Between two rows of the last hour.
const MINUTE_S: u64 = 60;
/// Rows of the last minute, and one before them.
const MOST_FINE: usize = (MINUTE_S / EVERY.as_secs()) as usize + 2;
/// Rows of the last hour, and one before them.
const MOST_COARSE: usize = 62;
/// Rates of now are of at least this time, if rows go back so far.
const LEAST_NS: u64 = EVERY.as_nanos() as u64 / 2;
/// What was counted in less time than this counts as that of a second: a rate of less is chance.
const SECOND_NS: u64 = 1_000_000_000;

/// How much time is told of, beside now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Span {
    /// None.
    Now,
    /// The last minute.
    Minute,
    /// The last hour.
    Hour,
}

impl Span {
    pub(super) fn name(self) -> &'static str {
        match self {
            Span::Now => "now",
            Span::Minute => "minute",
            Span::Hour => "hour",
        }
    }

    /// How long it is, and between two rows of it; in seconds.
    pub(super) fn seconds(self) -> (u64, u64) {
        match self {
            Span::Now => (0, EVERY.as_secs()),
            Span::Minute => (MINUTE_S, EVERY.as_secs()),
            Span::Hour => (3_600, MINUTE_S),
        }
    }
}

/// What there was and what was counted at a moment.
struct Row {
    at_s: u64,
    at_ns: u64,
    figures: Box<[f64]>,
}

/// Levels and rates at a time, in the order of [`AgentFigures::names`]; what is not known is `None`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Point {
    /// In seconds since 1970.
    pub(super) at_s: u64,
    pub(super) figures: Vec<Option<f64>>,
}

/// What a node tells of a bucket.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct AgentFigures {
    /// Another version of Stave may have others.
    pub(super) names: Vec<String>,
    /// The oldest first.
    pub(super) points: Vec<Point>,
    pub(super) now: Point,
}

#[derive(Default)]
struct BucketRows {
    owner: Weak<Bucket>,
    fine: VecDeque<Arc<Row>>,
    coarse: VecDeque<Arc<Row>>,
}

/// The rows of a node's buckets.
pub(super) struct AgentRows {
    names: Vec<MonitoredName>,
    queues: Vec<Queue>,
    rows: Mutex<BTreeMap<String, BucketRows>>,
}

/// Where the figures of a disk queue are.
#[derive(Clone, Copy)]
struct Queue {
    size: usize,
    fill: usize,
}

impl Default for AgentRows {
    fn default() -> AgentRows {
        let names = monitored::names();
        let at = |name: String| names.iter().position(|of| of.name == name).expect("it is monitored");
        let queue = |role: &str| Queue {
            size: at(format!("vb_{role}_queue_size")),
            fill: at(format!("vb_{role}_queue_fill")),
        };
        let queues = MONITORED_STATES.iter().map(|state| queue(state.name())).collect();
        AgentRows { queues, names, rows: Mutex::default() }
    }
}

impl AgentRows {
    /// Takes a row of each bucket, and forgets buckets that are gone.
    pub(super) fn take(&self, node: &Node, kept: &History) {
        let buckets = node.buckets();
        let machine = MachineLook::of(node, kept.machine(node.env()));
        let taken: Vec<_> = buckets.iter().map(|(_, bucket)| (bucket, row(node, bucket, &machine))).collect();
        let mut of = self.rows.lock();
        of.retain(|name, _| taken.iter().any(|(bucket, _)| bucket.name() == name));
        for (bucket, row) in taken {
            of.entry(bucket.name().to_owned()).or_default().of(bucket).keep(row);
        }
    }

    /// What this node has of a bucket now, and had over some time.
    pub(super) fn tell(&self, node: &Node, kept: &History, bucket: &Arc<Bucket>, span: Span) -> AgentFigures {
        let machine = MachineLook::of(node, kept.machine(node.env()));
        let now = Arc::new(row(node, bucket, &machine));
        let (fine, coarse) = {
            let mut of = self.rows.lock();
            let rows = of.entry(bucket.name().to_owned()).or_default().of(bucket);
            (rows.fine.clone(), rows.coarse.clone())
        };
        let all = merged(&coarse, &fine);
        let point = |row: &Row, before: Option<&Row>| self.point(row, before, &all);
        let told = match span {
            Span::Now => &VecDeque::new(),
            Span::Minute => &fine,
            Span::Hour => &coarse,
        };
        let pairs = told.iter().zip(told.iter().skip(1));
        let points = pairs.map(|(before, row)| point(row, Some(&**before))).collect();
        let is_old = |row: &&Arc<Row>| now.at_ns.saturating_sub(row.at_ns) >= LEAST_NS;
        let before = fine.iter().rev().find(is_old).or(fine.front());
        AgentFigures { names: self.told_names(), points, now: point(&now, before.map(|row| &**row)) }
    }

    /// Of the figures of points: those that are kept, and the ages of queues.
    fn told_names(&self) -> Vec<String> {
        let ages = MONITORED_STATES.iter().map(|state| format!("vb_{}_queue_age", state.name()));
        self.names.iter().map(|of| of.name.clone()).chain(ages).collect()
    }

    /// Names of figures that are the node's and the machine's.
    pub(super) fn of_node(&self) -> impl Iterator<Item = &str> {
        self.names.iter().filter(|of| of.is_of_node).map(|of| of.name.as_str())
    }

    fn point(&self, row: &Row, before: Option<&Row>, all: &[Arc<Row>]) -> Point {
        let figure = |(at, name): (usize, &MonitoredName)| {
            let now = *row.figures.get(at)?;
            let figure = match name.kind {
                FigureKind::Level => now,
                FigureKind::Counter => before.map_or(0.0, |before| rate(row, before, at)),
            };
            figure.is_finite().then_some(figure)
        };
        let ages = self.queues.iter().map(|queue| Some(age_ms(row, all, *queue)));
        Point { at_s: row.at_s, figures: self.names.iter().enumerate().map(figure).chain(ages).collect() }
    }
}

impl BucketRows {
    /// The rows of this bucket: those of another one of the same name are forgotten.
    fn of(&mut self, bucket: &Arc<Bucket>) -> &mut BucketRows {
        if !std::ptr::eq(self.owner.as_ptr(), Arc::as_ptr(bucket)) {
            *self = BucketRows { owner: Arc::downgrade(bucket), ..BucketRows::default() };
        }
        self
    }

    fn keep(&mut self, row: Row) {
        let row = Arc::new(row);
        let minute = |row: &Row| row.at_s / MINUTE_S;
        if self.coarse.back().is_none_or(|last| minute(last) != minute(&row)) {
            push(&mut self.coarse, Arc::clone(&row), MOST_COARSE);
        }
        push(&mut self.fine, row, MOST_FINE);
    }
}

fn push(rows: &mut VecDeque<Arc<Row>>, row: Arc<Row>, most: usize) {
    // Behind a clock that was set back times begin again.
    while rows.back().is_some_and(|last| last.at_s >= row.at_s) {
        rows.pop_back();
    }
    if rows.len() == most {
        rows.pop_front();
    }
    rows.push_back(row);
}

fn row(node: &Node, bucket: &Arc<Bucket>, machine: &MachineLook) -> Row {
    let clock = &node.env().clock;
    let figures = monitored::look(node, bucket, machine);
    Row { at_s: clock.unix_ns() / SECOND_NS, at_ns: clock.monotonic_ns(), figures }
}

/// In each second since a row before. A counter that went down, with a vBucket or a connection that left, counted nothing.
fn rate(row: &Row, before: &Row, at: usize) -> f64 {
    let of = |row: &Row| row.figures.get(at).copied().unwrap_or(f64::NAN);
    let took_ns = row.at_ns.saturating_sub(before.at_ns).max(SECOND_NS);
    let counted = of(row) - of(before);
    if counted < 0.0 { 0.0 } else { counted * SECOND_NS as f64 / took_ns as f64 }
}

/// The rows of both, in their order.
fn merged(coarse: &VecDeque<Arc<Row>>, fine: &VecDeque<Arc<Row>>) -> Vec<Arc<Row>> {
    let first = fine.front().map_or(u64::MAX, |row| row.at_ns);
    coarse.iter().filter(|row| row.at_ns < first).chain(fine).cloned().collect()
}

/// The ages of all that is in a disk queue together, in milliseconds: what is there came last, and what came between two
/// rows came evenly. What is older than the rows is as old as they are.
fn age_ms(row: &Row, all: &[Arc<Row>], queue: Queue) -> f64 {
    let of = |row: &Row, at: usize| row.figures.get(at).copied().unwrap_or(0.0);
    let (mut left, mut sum_ns) = (of(row, queue.size), 0.0);
    let mut later = row;
    for before in all.iter().rev().filter(|before| before.at_ns < row.at_ns) {
        if left <= 0.0 {
            break;
        }
        let came = (of(later, queue.fill) - of(before, queue.fill)).max(0.0);
        let counted = came.min(left);
        if counted > 0.0 {
            let since_ns = row.at_ns.saturating_sub(later.at_ns) as f64;
            let between_ns = later.at_ns.saturating_sub(before.at_ns) as f64;
            sum_ns += counted * (since_ns + between_ns * counted / came / 2.0);
            left -= counted;
        }
        later = before;
    }
    let oldest_ns = row.at_ns.saturating_sub(later.at_ns) as f64;
    (sum_ns + left.max(0.0) * oldest_ns) / 1_000_000.0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(at_s: u64, figures: &[f64]) -> Row {
        Row { at_s, at_ns: at_s * SECOND_NS, figures: figures.into() }
    }

    #[test]
    fn a_minute_and_an_hour_are_kept() {
        let mut rows = BucketRows::default();
        (0..10_000).for_each(|tick| rows.keep(at(tick * 5, &[])));
        let (fine, coarse) = (&rows.fine, &rows.coarse);
        assert_eq!((fine.len(), coarse.len()), (MOST_FINE, MOST_COARSE));
        let span = |rows: &VecDeque<Arc<Row>>| rows[rows.len() - 1].at_s - rows[1].at_s;
        assert!(span(fine) >= MINUTE_S && span(coarse) >= 3_600);
        let all = merged(coarse, fine);
        assert!(all.is_sorted_by_key(|row| row.at_ns) && all.len() > MOST_COARSE);
        rows.keep(at(49_970, &[]));
        assert_eq!(rows.fine.back().map(|row| row.at_s), Some(49_970), "the clock was set back");
        assert!(rows.fine.iter().is_sorted_by_key(|row| row.at_s));
    }

    #[test]
    fn rates_are_of_a_second() {
        assert_eq!(rate(&at(14, &[50.0]), &at(4, &[20.0]), 0), 3.0);
        assert_eq!(rate(&at(4, &[50.0]), &at(4, &[20.0]), 0), 30.0, "no more than in a second");
        assert_eq!(rate(&at(14, &[5.0]), &at(4, &[20.0]), 0), 0.0);
        assert!(rate(&at(14, &[5.0]), &at(4, &[f64::NAN]), 0).is_nan());
    }

    #[test]
    fn what_waits_is_as_old_as_what_came_last() {
        let queue = Queue { size: 0, fill: 1 };
        let rows: Vec<Arc<Row>> =
            [(0, 0.0), (10, 100.0), (20, 100.0)].map(|(s, fill)| Arc::new(at(s, &[0.0, fill]))).into();
        let age = |size, fill, rows: &[Arc<Row>]| age_ms(&at(30, &[size, fill]), rows, queue);
        assert_eq!(age(0.0, 150.0, &rows), 0.0);
        assert_eq!(age(50.0, 150.0, &rows), 50.0 * 5_000.0, "all that came in the last 10 seconds");
        assert_eq!(age(10.0, 150.0, &rows), 10.0 * 1_000.0, "the last fifth of it");
        assert_eq!(age(60.0, 150.0, &rows), 50.0 * 5_000.0 + 10.0 * 20_500.0, "nothing came in between");
        assert_eq!(age(160.0, 150.0, &rows), 50.0 * 5_000.0 + 100.0 * 25_000.0 + 10.0 * 30_000.0);
        assert_eq!(age(5.0, 5.0, &[]), 0.0, "nobody knows when it came");
    }
}
