//! What monitoring agents read of this node's buckets, kept in the process: every 5 seconds of the last minute, and every
//! minute of the last hour.
//!
//! Kept are levels and counters ([`monitored`]); told are levels and rates. A request is told a row of now,
//! which is not kept, too. A row is some 1.3 KiB, 100 KiB a bucket.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Weak};
use std::time::Duration;

use engine::Bucket;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::history::History;
use super::monitored::{self, FigureKind, MONITORED_STATES, MachineLook, MonitoredName};
use crate::node::Node;

/// Between two rows of the last minute.
pub const AGENT_ROWS_EVERY: Duration = Duration::from_secs(5);
/// Between two rows of the last hour.
const MINUTE_S: u64 = 60;
/// Rows of the last minute, and one before them.
const MOST_FINE: usize = (MINUTE_S / AGENT_ROWS_EVERY.as_secs()) as usize + 2;
/// Rows of the last hour, and one before them.
const MOST_COARSE: usize = 62;
/// Rates of now are of at least this time, if rows go back so far.
const LEAST_NS: u64 = AGENT_ROWS_EVERY.as_nanos() as u64 / 2;
/// What was counted in less time than this counts as that of a second: a rate of less is chance.
const SECOND_NS: u64 = 1_000_000_000;

/// How much time is told of, beside now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AgentSpan {
    /// None.
    Now,
    /// The last minute.
    Minute,
    /// The last hour.
    Hour,
}

impl AgentSpan {
    /// As a path has it.
    pub fn name(self) -> &'static str {
        match self {
            AgentSpan::Now => "now",
            AgentSpan::Minute => "minute",
            AgentSpan::Hour => "hour",
        }
    }

    /// How long it is, and between two rows of it; in seconds.
    pub fn seconds(self) -> (u64, u64) {
        match self {
            AgentSpan::Now => (0, AGENT_ROWS_EVERY.as_secs()),
            AgentSpan::Minute => (MINUTE_S, AGENT_ROWS_EVERY.as_secs()),
            AgentSpan::Hour => (3_600, MINUTE_S),
        }
    }
}

/// What there was and what was counted at a moment.
struct AgentRow {
    at_s: u64,
    at_ns: u64,
    figures: Box<[f64]>,
}

/// Levels and rates at a time, in the order of [`AgentFigures::names`]; what is not known is `None`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Point {
    /// In seconds since 1970.
    pub at_s: u64,
    /// In the order of the names.
    pub figures: Vec<Option<f64>>,
}

/// What a node tells of a bucket.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct AgentFigures {
    /// Another version of Stave may have others.
    pub names: Vec<String>,
    /// The oldest first.
    pub points: Vec<Point>,
    /// What there is now.
    pub now: Point,
}

#[derive(Default)]
struct BucketRows {
    owner: Weak<Bucket>,
    fine: VecDeque<Arc<AgentRow>>,
    coarse: VecDeque<Arc<AgentRow>>,
}

/// The rows of a node's buckets.
pub struct AgentRows {
    names: Vec<MonitoredName>,
    queues: Vec<QueuePlace>,
    rows: Mutex<BTreeMap<String, BucketRows>>,
}

/// Where the figures of a disk queue are.
#[derive(Clone, Copy)]
struct QueuePlace {
    size: usize,
    fill: usize,
}

impl Default for AgentRows {
    fn default() -> AgentRows {
        let names = monitored::names();
        let at = |name: String| names.iter().position(|of| of.name == name).expect("it is monitored");
        let queue = |role: &str| QueuePlace {
            size: at(format!("vb_{role}_queue_size")),
            fill: at(format!("vb_{role}_queue_fill")),
        };
        let queues = MONITORED_STATES.iter().map(|state| queue(state.name())).collect();
        AgentRows { queues, names, rows: Mutex::default() }
    }
}

impl AgentRows {
    /// Takes a row of each bucket, and forgets buckets that are gone.
    pub fn take(&self, node: &Node, kept: &History) {
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
    pub fn tell(&self, node: &Node, kept: &History, bucket: &Arc<Bucket>, span: AgentSpan) -> AgentFigures {
        let machine = MachineLook::of(node, kept.machine(node.env()));
        let now = Arc::new(row(node, bucket, &machine));
        let (fine, coarse) = {
            let mut of = self.rows.lock();
            let rows = of.entry(bucket.name().to_owned()).or_default().of(bucket);
            (rows.fine.clone(), rows.coarse.clone())
        };
        let all = merged(&coarse, &fine);
        let point = |row: &AgentRow, before: Option<&AgentRow>| self.point(row, before, &all);
        let told = match span {
            AgentSpan::Now => &VecDeque::new(),
            AgentSpan::Minute => &fine,
            AgentSpan::Hour => &coarse,
        };
        let pairs = told.iter().zip(told.iter().skip(1));
        let points = pairs.map(|(before, row)| point(row, Some(&**before))).collect();
        let is_old = |row: &&Arc<AgentRow>| now.at_ns.saturating_sub(row.at_ns) >= LEAST_NS;
        let before = fine.iter().rev().find(is_old).or(fine.front());
        AgentFigures { names: self.told_names(), points, now: point(&now, before.map(|row| &**row)) }
    }

    /// Of the figures of points: those that are kept, and the ages of queues.
    fn told_names(&self) -> Vec<String> {
        let ages = MONITORED_STATES.iter().map(|state| format!("vb_{}_queue_age", state.name()));
        self.names.iter().map(|of| of.name.clone()).chain(ages).collect()
    }

    /// Names of figures that are the node's and the machine's.
    pub fn of_node(&self) -> impl Iterator<Item = &str> {
        self.names.iter().filter(|of| of.is_of_node).map(|of| of.name.as_str())
    }

    fn point(&self, row: &AgentRow, before: Option<&AgentRow>, all: &[Arc<AgentRow>]) -> Point {
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

    fn keep(&mut self, row: AgentRow) {
        let row = Arc::new(row);
        let minute = |row: &AgentRow| row.at_s / MINUTE_S;
        if self.coarse.back().is_none_or(|last| minute(last) != minute(&row)) {
            push(&mut self.coarse, Arc::clone(&row), MOST_COARSE);
        }
        push(&mut self.fine, row, MOST_FINE);
    }
}

fn push(rows: &mut VecDeque<Arc<AgentRow>>, row: Arc<AgentRow>, most: usize) {
    // Behind a clock that was set back times begin again.
    while rows.back().is_some_and(|last| last.at_s >= row.at_s) {
        rows.pop_back();
    }
    if rows.len() == most {
        rows.pop_front();
    }
    rows.push_back(row);
}

fn row(node: &Node, bucket: &Arc<Bucket>, machine: &MachineLook) -> AgentRow {
    let clock = &node.env().clock;
    let figures = monitored::look(node, bucket, machine);
    AgentRow { at_s: clock.unix_ns() / SECOND_NS, at_ns: clock.monotonic_ns(), figures }
}

/// In each second since a row before. A counter that went down, with a vBucket or a connection that left, counted nothing.
fn rate(row: &AgentRow, before: &AgentRow, at: usize) -> f64 {
    let of = |row: &AgentRow| row.figures.get(at).copied().unwrap_or(f64::NAN);
    let took_ns = row.at_ns.saturating_sub(before.at_ns).max(SECOND_NS);
    let counted = of(row) - of(before);
    if counted < 0.0 { 0.0 } else { counted * SECOND_NS as f64 / took_ns as f64 }
}

/// The rows of both, in their order.
fn merged(coarse: &VecDeque<Arc<AgentRow>>, fine: &VecDeque<Arc<AgentRow>>) -> Vec<Arc<AgentRow>> {
    let first = fine.front().map_or(u64::MAX, |row| row.at_ns);
    coarse.iter().filter(|row| row.at_ns < first).chain(fine).cloned().collect()
}

/// The ages of all that is in a disk queue together, in milliseconds: what is there came last, and what came between two
/// rows came evenly. What is older than the rows is as old as they are.
fn age_ms(row: &AgentRow, all: &[Arc<AgentRow>], queue: QueuePlace) -> f64 {
    let of = |row: &AgentRow, at: usize| row.figures.get(at).copied().unwrap_or(0.0);
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

    fn at(at_s: u64, figures: &[f64]) -> AgentRow {
        AgentRow { at_s, at_ns: at_s * SECOND_NS, figures: figures.into() }
    }

    #[test]
    fn a_minute_and_an_hour_are_kept() {
        let mut rows = BucketRows::default();
        (0..10_000).for_each(|tick| rows.keep(at(tick * 5, &[])));
        let (fine, coarse) = (&rows.fine, &rows.coarse);
        assert_eq!((fine.len(), coarse.len()), (MOST_FINE, MOST_COARSE));
        let span = |rows: &VecDeque<Arc<AgentRow>>| rows[rows.len() - 1].at_s - rows[1].at_s;
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
        let queue = QueuePlace { size: 0, fill: 1 };
        let rows: Vec<Arc<AgentRow>> =
            [(0, 0.0), (10, 100.0), (20, 100.0)].map(|(s, fill)| Arc::new(at(s, &[0.0, fill]))).into();
        let age = |size, fill, rows: &[Arc<AgentRow>]| age_ms(&at(30, &[size, fill]), rows, queue);
        assert_eq!(age(0.0, 150.0, &rows), 0.0);
        assert_eq!(age(50.0, 150.0, &rows), 50.0 * 5_000.0, "all that came in the last 10 seconds");
        assert_eq!(age(10.0, 150.0, &rows), 10.0 * 1_000.0, "the last fifth of it");
        assert_eq!(age(60.0, 150.0, &rows), 50.0 * 5_000.0 + 10.0 * 20_500.0, "nothing came in between");
        assert_eq!(age(160.0, 150.0, &rows), 50.0 * 5_000.0 + 100.0 * 25_000.0 + 10.0 * 30_000.0);
        assert_eq!(age(5.0, 5.0, &[]), 0.0, "nobody knows when it came");
    }
}
