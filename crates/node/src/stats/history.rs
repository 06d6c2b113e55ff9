//! Figures of the last hour, most of them under the names of `/metrics`, kept in the process for `/pools/default/stats/range`.
//!
//! A row of each bucket and of the node is taken every [`EVERY_S`] seconds. What is asked for is told with a row of now,
//! which is not kept: requests cannot push the hour out.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Weak};

use base::env::{Disk, Env};
use engine::Bucket;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::kept::{KeptName, bucket_figures, latency_figures, node_figures, of_bucket, of_node};
use super::latency::LatencyCounts;
use crate::machine::{CpuShares, CpuTimes, LastLook, Machine};
use crate::node::Node;

/// Seconds between two rows: the step of requests that do not say another one.
pub const EVERY_S: u64 = 10;
/// Rows that are kept: an hour.
const MOST_ROWS: usize = 360;

/// Figures at one time, in the order of their names.
#[derive(Clone)]
struct HistoryRow {
    /// In seconds since 1970.
    at_s: u64,
    figures: Box<[f64]>,
}

/// The rows of a bucket, or of the node.
#[derive(Default)]
struct Rows {
    kept: VecDeque<HistoryRow>,
    /// One that a request had taken after the last of them.
    fresh: Option<HistoryRow>,
    /// What the histograms of a bucket had counted at the last of them; empty before the first one.
    latency: LatencyCounts,
}

/// What a bucket tells at a moment.
struct Taken {
    figures: Box<[f64]>,
    latency: LatencyCounts,
    bucket: Arc<Bucket>,
}

impl Taken {
    /// From each bucket.
    fn of_all(node: &Node) -> Vec<Taken> {
        let of = |bucket: Arc<Bucket>| Taken {
            figures: bucket_figures(node, &bucket),
            latency: LatencyCounts::of(&node.times.of(&bucket)),
            bucket,
        };
        node.buckets().into_iter().map(|(_, bucket)| of(bucket)).collect()
    }

    /// All figures of a row, with the latency since the last row that was kept.
    fn row(&self, at_s: u64, rows: &Rows) -> HistoryRow {
        let latency = latency_figures(&self.latency, &rows.latency);
        HistoryRow { at_s, figures: self.figures.iter().copied().chain(latency).collect() }
    }
}

impl Rows {
    /// Times rise: behind a clock that was set back those that it shows again are told as they are now.
    fn keep(&mut self, row: HistoryRow) {
        while self.kept.back().is_some_and(|last| last.at_s >= row.at_s) {
            self.kept.pop_back();
        }
        if self.kept.len() == MOST_ROWS {
            self.kept.pop_front();
        }
        self.kept.push_back(row);
        self.fresh = None;
    }

    /// A figure's values from a time on.
    fn since(&self, figure: usize, since_s: u64) -> Vec<(u64, f64)> {
        let fresh_s = self.fresh.as_ref().map_or(u64::MAX, |row| row.at_s);
        let kept = self.kept.iter().filter(|row| row.at_s < fresh_s);
        let rows = kept.chain(&self.fresh).filter(|row| row.at_s >= since_s);
        let values = rows.filter_map(|row| Some((row.at_s, *row.figures.get(figure)?)));
        values.filter(|(_, value)| !value.is_nan()).collect()
    }
}

#[derive(Default)]
struct AllRows {
    of_node: Rows,
    of_buckets: BTreeMap<String, (Weak<Bucket>, Rows)>,
}

impl AllRows {
    /// The rows of a bucket, which begin with it.
    fn of(&mut self, bucket: &Arc<Bucket>) -> &mut Rows {
        let (owner, rows) = self.of_buckets.entry(bucket.name().to_owned()).or_default();
        if !std::ptr::eq(owner.as_ptr(), Arc::as_ptr(bucket)) {
            // Another one of the same name.
            (*owner, *rows) = (Arc::downgrade(bucket), Rows::default());
        }
        rows
    }
}

/// A figure over time, with its labels: `name`, and `bucket` unless it is the node's.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Series {
    /// By name.
    pub labels: BTreeMap<String, String>,
    /// Seconds since 1970, and what it was then.
    pub values: Vec<(u64, f64)>,
}

/// The figures that a node keeps.
pub struct History {
    bucket_names: Vec<KeptName>,
    node_names: Vec<KeptName>,
    rows: Mutex<AllRows>,
    cpu: Mutex<Cpu>,
    machine: LastLook,
}

/// What the processors did.
#[derive(Default)]
struct Cpu {
    last: Option<CpuTimes>,
    /// Between the last two rows.
    shares: Option<CpuShares>,
}

type OfSystem = (&'static str, fn(&Machine, Option<&CpuShares>) -> f64);

/// Figures of the machine, under the field's names; what is not known is no number.
const SYSTEM: [OfSystem; 11] = [
    ("sys_cpu_utilization_rate", |_, cpu| cpu.map_or(f64::NAN, |cpu| cpu.busy)),
    ("sys_cpu_user_rate", |_, cpu| cpu.map_or(f64::NAN, |cpu| cpu.user)),
    ("sys_cpu_sys_rate", |_, cpu| cpu.map_or(f64::NAN, |cpu| cpu.system)),
    ("sys_cpu_stolen_rate", |_, cpu| cpu.map_or(f64::NAN, |cpu| cpu.stolen)),
    ("sys_cpu_cores_available", |machine, _| machine.cores),
    ("sys_mem_total", |machine, _| machine.memory as f64),
    ("sys_mem_actual_free", |machine, _| machine.free as f64),
    ("sys_mem_actual_used", |machine, _| machine.memory.saturating_sub(machine.free) as f64),
    ("sys_mem_limit", |machine, _| machine.limit as f64),
    ("sys_swap_total", |machine, _| machine.swap as f64),
    ("sys_swap_used", |machine, _| machine.swap_used as f64),
];

impl Default for History {
    fn default() -> History {
        let system = SYSTEM.iter().map(|(name, _)| KeptName { name, labels: Vec::new() });
        History {
            bucket_names: of_bucket(),
            node_names: of_node().into_iter().chain(system).collect(),
            rows: Mutex::default(),
            cpu: Mutex::default(),
            machine: LastLook::default(),
        }
    }
}

impl History {
    /// Takes a row of each bucket and of the node, and forgets buckets that are gone.
    pub fn take(&self, node: &Node) {
        let at_s = now_s(node);
        let taken = Taken::of_all(node);
        self.look_at_cpu(&*node.env().disk);
        let of_node = self.node_row(node);
        let mut rows = self.rows.lock();
        rows.of_buckets.retain(|name, _| taken.iter().any(|taken| taken.bucket.name() == name));
        rows.of_node.keep(HistoryRow { at_s, figures: of_node });
        for taken in taken {
            let rows = rows.of(&taken.bucket);
            rows.keep(taken.row(at_s, rows));
            rows.latency = taken.latency;
        }
    }

    fn node_row(&self, node: &Node) -> Box<[f64]> {
        let (machine, shares) = (self.machine(node.env()), self.cpu_shares(&*node.env().disk));
        let system = SYSTEM.iter().map(|(_, value)| value(&machine, shares.as_ref()));
        node_figures(node).into_iter().chain(system).collect()
    }

    /// What the machine has; requests of the same second share a look at it.
    pub fn machine(&self, env: &Env) -> Machine {
        self.machine.machine(env)
    }

    fn look_at_cpu(&self, disk: &dyn Disk) {
        let Some(now) = CpuTimes::read(disk) else { return };
        let mut cpu = self.cpu.lock();
        let since = cpu.last.and_then(|last| now.since(&last));
        (cpu.shares, cpu.last) = (since, Some(now));
    }

    /// What the processors did between the last two rows, or since the only one.
    pub fn cpu_shares(&self, disk: &dyn Disk) -> Option<CpuShares> {
        let cpu = self.cpu.lock();
        cpu.shares.or_else(|| CpuTimes::read(disk)?.since(&cpu.last?))
    }

    /// Has a row of now.
    fn refresh(&self, node: &Node) {
        let at_s = now_s(node);
        let taken = Taken::of_all(node);
        let figures = self.node_row(node);
        let mut rows = self.rows.lock();
        rows.of_node.fresh = Some(HistoryRow { at_s, figures });
        for taken in taken {
            let rows = rows.of(&taken.bucket);
            rows.fresh = Some(taken.row(at_s, rows));
        }
    }

    /// Whether figures of this name are kept.
    pub fn has(&self, name: &str) -> bool {
        self.bucket_names.iter().chain(&self.node_names).any(|kept| kept.name == name)
    }

    /// The figures of these names from a time on.
    pub fn tell(&self, node: &Node, names: &[&str], since_s: u64) -> Vec<Series> {
        self.refresh(node);
        let rows = self.rows.lock();
        let buckets = rows.of_buckets.iter().map(|(name, (_, rows))| (Some(name), &self.bucket_names, rows));
        let all = buckets.chain([(None, &self.node_names, &rows.of_node)]);
        let series = all.flat_map(|(bucket, kept, rows)| {
            let wanted = kept.iter().enumerate().filter(|(_, kept)| names.contains(&kept.name));
            wanted.map(move |(at, kept)| {
                let bucket = bucket.map(|bucket| ("bucket", bucket.as_str()));
                let labels = [("name", kept.name)].into_iter().chain(bucket).chain(kept.labels.clone());
                let labels = labels.map(|(label, value)| (label.to_owned(), value.to_owned())).collect();
                Series { labels, values: rows.since(at, since_s) }
            })
        });
        series.collect()
    }
}

fn now_s(node: &Node) -> u64 {
    node.env().clock.unix_ns() / 1_000_000_000
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_hour_is_kept_and_a_row_of_now_is_not() {
        let mut rows = Rows::default();
        let row = |at_s| HistoryRow { at_s, figures: [at_s as f64].into() };
        (0..1_000).for_each(|at_s| rows.keep(row(at_s)));
        assert_eq!((rows.kept.len(), rows.kept[0].at_s), (MOST_ROWS, 1_000 - MOST_ROWS as u64));
        assert!(MOST_ROWS as u64 * EVERY_S >= 3_600, "an hour");
        for at_s in [1_001, 1_002] {
            rows.fresh = Some(row(at_s));
        }
        assert_eq!(rows.since(0, 998), [(998, 998.0), (999, 999.0), (1_002, 1_002.0)]);
        assert_eq!(rows.since(1, 0), [], "there is no such figure");
        rows.keep(row(1_003));
        rows.fresh = Some(HistoryRow { at_s: 1_003, figures: [7.0].into() });
        assert_eq!(rows.since(0, 1_000), [(1_003, 7.0)], "it takes the place of one of the same second");
    }
}
