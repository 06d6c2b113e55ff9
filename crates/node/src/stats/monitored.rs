//! What monitoring agents read of a bucket under the field's names (`/pools/default/buckets/BUCKET/stats`), as one node
//! has it at a moment: levels, and counters that only rise.
//!
//! [`names`] and the figures of [`look`] have one order. Looks at memory alone: each vBucket is locked twice at most.
//! What is computed from several of these figures, or over time, is none of this module's business.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use base::VbState;
use engine::{Bucket, StateStats, StoreTimes};

use super::dcp;
use super::memory::used_bytes;
use super::page::Numbers;
use crate::cluster::serving;
use crate::counters::Totals;
use crate::machine::{CpuTimes, Machine};
use crate::node::Node;
use crate::tally;

/// What a figure says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FigureKind {
    /// What there is.
    Level,
    /// How often something was done; agents are told its rate.
    Counter,
}

use FigureKind::{Counter, Level};

/// A figure of a bucket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MonitoredName {
    /// The field's, but for parts of figures that are computed.
    pub name: String,
    /// What it says.
    pub kind: FigureKind,
    /// Whether it is the node's and the machine's, and not the bucket's alone.
    pub is_of_node: bool,
}

/// What is looked at.
struct Look<'a> {
    numbers: Numbers,
    times: StoreTimes,
    /// Of vBuckets that clients are served.
    active: StateStats,
    node: &'a MachineLook,
}

/// What all buckets of a node share at a moment.
pub struct MachineLook {
    totals: Totals,
    http_requests: u64,
    machine: Machine,
    cpu: Option<CpuTimes>,
}

impl MachineLook {
    /// As it is now.
    pub fn of(node: &Node, machine: Machine) -> MachineLook {
        MachineLook {
            totals: node.totals(),
            http_requests: node.workers().accepting().http_requests.load(Relaxed),
            machine,
            cpu: CpuTimes::read(&*node.env().disk),
        }
    }
}

type MonitoredOfBucket = (&'static str, FigureKind, fn(&Look<'_>) -> u64);

const OF_BUCKET: [MonitoredOfBucket; 42] = [
    ("get_hits", Counter, |of| of.numbers.all.ops.get_hits),
    ("get_misses", Counter, |of| of.numbers.all.ops.get_misses),
    ("cmd_set", Counter, |of| of.numbers.all.ops.stores),
    ("delete_hits", Counter, |of| of.numbers.all.ops.deletes),
    ("curr_items", Level, |of| of.active.documents),
    ("curr_items_tot", Level, |of| of.numbers.all.documents),
    ("mem_used", Level, |of| used_bytes(&of.numbers.bucket)),
    ("ep_max_size", Level, |of| of.numbers.stats.quota_bytes),
    ("ep_mem_high_wat", Level, |of| of.numbers.stats.high_watermark_bytes),
    ("ep_mem_low_wat", Level, |of| of.numbers.stats.low_watermark_bytes),
    ("ep_kv_size", Level, |of| of.numbers.all.item_bytes),
    ("ep_overhead", Level, |of| of.numbers.all.checkpoint_overhead_bytes),
    ("ep_meta_data_memory", Level, |of| of.numbers.all.table_bytes),
    ("ep_num_non_resident", Level, |of| of.numbers.all.without_value),
    ("ep_vb_total", Level, |of| of.numbers.all.vbuckets),
    ("ep_queue_size", Level, |of| of.numbers.all.unpersisted_items),
    ("ep_diskqueue_fill", Counter, |of| of.numbers.all.enqueued()),
    ("ep_diskqueue_drain", Counter, |of| of.numbers.all.ops.drained),
    ("ep_bg_fetched", Counter, |of| of.numbers.fetches.fetched),
    ("ep_num_value_ejects", Counter, |of| of.numbers.eviction.ejects()),
    ("ep_oom_errors", Counter, |of| of.numbers.eviction.refused_above_quota),
    ("ep_tmp_oom_errors", Counter, |of| of.numbers.eviction.refused_below_quota),
    ("ep_item_commit_failed", Counter, |of| of.numbers.saves.failed_saves),
    ("ep_data_read_failed", Level, |of| of.numbers.fetches.failed),
    ("ep_data_write_failed", Level, |of| of.numbers.saves.failed_saves + of.numbers.compactions.failed),
    ("ep_active_hlc_drift", Level, |of| of.numbers.stats.of(VbState::Active).clock.drift_us),
    ("ep_active_hlc_drift_count", Level, |of| of.numbers.stats.of(VbState::Active).clock.foreign),
    ("ep_active_ahead_exceptions", Level, |of| of.numbers.stats.of(VbState::Active).clock.ahead),
    ("ep_replica_hlc_drift", Level, |of| of.numbers.stats.of(VbState::Replica).clock.drift_us),
    ("ep_replica_hlc_drift_count", Level, |of| of.numbers.stats.of(VbState::Replica).clock.foreign),
    ("ep_replica_ahead_exceptions", Level, |of| of.numbers.stats.of(VbState::Replica).clock.ahead),
    ("couch_docs_actual_disk_size", Level, |of| of.numbers.files.0),
    ("couch_docs_data_size", Level, |of| of.numbers.files.1),
    ("disk_commit_count", Counter, |of| of.times.commit.total()),
    ("disk_commit_total", Counter, |of| of.times.commit.sum_ns() / 1_000),
    ("disk_update_count", Counter, |of| saved(of).0),
    ("disk_update_total", Counter, |of| saved(of).1),
    ("bg_wait_count", Counter, |of| of.times.fetch_wait.total()),
    ("bg_wait_total", Counter, |of| of.times.fetch_wait.sum_ns() / 1_000),
    ("vb_active_sync_write_accepted_count", Counter, |of| of.active.ops.sync_accepted),
    ("vb_active_sync_write_committed_count", Counter, |of| of.active.ops.sync_committed),
    ("vb_active_sync_write_aborted_count", Counter, |of| of.active.ops.sync_aborted),
];

/// Pieces of saves that brought files up to date, and how long they took together, in microseconds.
fn saved(of: &Look<'_>) -> (u64, u64) {
    let saves = of.times.ops.iter().find(|(name, _)| *name == "save");
    saves.map_or((0, 0), |(_, times)| (times.total(), times.sum_ns() / 1_000))
}

/// Roles that agents are told of.
pub const MONITORED_STATES: [VbState; 3] = [VbState::Active, VbState::Replica, VbState::Pending];

type OfState = (&'static str, FigureKind, fn(&StateStats) -> u64);

/// Behind `vb_ROLE_`.
const BY_STATE: [OfState; 11] = [
    ("num", Level, |of| of.vbuckets),
    ("curr_items", Level, |of| of.documents),
    ("num_non_resident", Level, |of| of.without_value),
    ("itm_memory", Level, |of| of.item_bytes),
    ("meta_data_memory", Level, |of| of.table_bytes),
    ("queue_size", Level, |of| of.unpersisted_items),
    ("queue_fill", Counter, StateStats::enqueued),
    ("queue_drain", Counter, |of| of.ops.drained),
    ("eject", Counter, |of| of.ops.ejects),
    ("ops_create", Counter, |of| of.written.created),
    ("ops_update", Counter, |of| of.written.updated),
];

/// Who streams changes, as the field tells them apart: by what the name of a connection begins with. The last one is
/// everybody else.
pub const STREAMERS: [(&str, &str); 8] = [
    ("replica", "replication"),
    ("xdcr", "xdcr"),
    ("views", "mapreduce_view"),
    ("2i", "secidx"),
    ("fts", "fts"),
    ("cbas", "cbas"),
    ("eventing", "eventing"),
    ("other", ""),
];

/// Behind `ep_dcp_WHO_`.
pub const OF_STREAMER: [(&str, FigureKind); 7] = [
    ("count", Level),
    ("producer_count", Level),
    ("items_remaining", Level),
    ("total_backlog_size", Level),
    ("items_sent", Counter),
    ("total_bytes", Counter),
    ("backoff", Counter),
];

type OfMachine = (&'static str, FigureKind, fn(&MachineLook) -> Option<f64>);

/// What the system does not say is `None`.
const OF_NODE: [OfMachine; 19] = [
    ("bytes_read", Counter, |of| Some(of.totals.received_bytes as f64)),
    ("bytes_written", Counter, |of| Some(of.totals.sent_bytes as f64)),
    ("curr_connections", Level, |of| Some(of.totals.connections as f64)),
    ("rest_requests", Counter, |of| Some(of.http_requests as f64)),
    ("cpu_local_ms", Counter, |of| Some(of.cpu?.milliseconds().total)),
    ("cpu_idle_ms", Counter, |of| Some(of.cpu?.milliseconds().idle)),
    ("cpu_user_ms", Counter, |of| Some(of.cpu?.milliseconds().user)),
    ("cpu_sys_ms", Counter, |of| Some(of.cpu?.milliseconds().system)),
    ("cpu_irq_ms", Counter, |of| Some(of.cpu?.milliseconds().interrupts)),
    ("cpu_stolen_ms", Counter, |of| Some(of.cpu?.milliseconds().stolen)),
    ("cpu_cores_available", Level, |of| known(of.machine.cores)),
    ("mem_total", Level, |of| known(of.machine.memory as f64)),
    ("mem_limit", Level, |of| known(of.machine.limit as f64)),
    ("mem_actual_free", Level, |of| of_memory(of, of.machine.free)),
    ("mem_actual_used", Level, |of| of_memory(of, of.machine.memory.saturating_sub(of.machine.free))),
    ("mem_used_sys", Level, |of| of_memory(of, of.machine.memory.saturating_sub(of.machine.unused))),
    ("swap_total", Level, |of| of_memory(of, of.machine.swap)),
    ("swap_used", Level, |of| of_memory(of, of.machine.swap_used)),
    ("allocstall", Level, |of| of_memory(of, of.machine.stalls)),
];

fn known(figure: f64) -> Option<f64> {
    (figure > 0.0).then_some(figure)
}

/// A figure that may be 0, of a machine that tells of its memory.
fn of_memory(of: &MachineLook, figure: u64) -> Option<f64> {
    (of.machine.memory > 0).then_some(figure as f64)
}

/// All figures.
pub fn names() -> Vec<MonitoredName> {
    let of = |name: String, kind, is_of_node| MonitoredName { name, kind, is_of_node };
    let mut all: Vec<MonitoredName> =
        OF_BUCKET.iter().map(|(name, kind, _)| of((*name).to_owned(), *kind, false)).collect();
    all.extend(tally::NAMES.iter().map(|(_, name)| of((*name).to_owned(), Counter, false)));
    for state in MONITORED_STATES {
        let name = state.name();
        all.extend(BY_STATE.iter().map(|(what, kind, _)| of(format!("vb_{name}_{what}"), *kind, false)));
    }
    for (who, _) in STREAMERS {
        all.extend(OF_STREAMER.iter().map(|(what, kind)| of(format!("ep_dcp_{who}_{what}"), *kind, false)));
    }
    all.extend(OF_NODE.iter().map(|(name, kind, _)| of((*name).to_owned(), *kind, true)));
    all
}

/// What they are at this moment; what is not known is no number. A node that may not serve has no documents for clients:
/// what it is active for others may have, too.
pub fn look(node: &Node, bucket: &Arc<Bucket>, machine: &MachineLook) -> Box<[f64]> {
    let numbers = Numbers::of(node, Arc::clone(bucket));
    let mut active = *numbers.stats.of(VbState::Active);
    if serving::why_not(node).is_some() {
        (active.documents, active.without_value) = (0, 0);
    }
    let look = Look { times: StoreTimes::of(bucket), numbers, active, node: machine };
    let mut figures: Vec<f64> = OF_BUCKET.iter().map(|(.., value)| value(&look) as f64).collect();
    figures.extend(tally::NAMES.iter().map(|(counted, _)| look.numbers.times.counted(*counted) as f64));
    for state in MONITORED_STATES {
        let of = if state == VbState::Active { &look.active } else { look.numbers.stats.of(state) };
        figures.extend(BY_STATE.iter().map(|(.., value)| value(of) as f64));
    }
    figures.extend(streamers(node, bucket).into_iter().flatten().map(|figure| figure as f64));
    figures.extend(OF_NODE.iter().map(|(.., value)| value(look.node).unwrap_or(f64::NAN)));
    figures.into()
}

/// The figures of each of [`STREAMERS`], in the order of [`OF_STREAMER`].
fn streamers(node: &Node, bucket: &Arc<Bucket>) -> [[u64; OF_STREAMER.len()]; STREAMERS.len()] {
    let mut all = [[0; OF_STREAMER.len()]; STREAMERS.len()];
    for of in dcp::figures(node, bucket) {
        let producers = u64::from(of.is_producer);
        let backlog = if of.is_producer { of.unacknowledged_bytes } else { 0 };
        let sums = [1, producers, of.items_remaining, backlog, of.items_sent, of.sent_bytes, of.backoffs];
        std::iter::zip(&mut all[kind_of(&of.name)], sums).for_each(|(sum, figure)| *sum += figure);
    }
    all
}

/// Which of [`STREAMERS`] a connection is of.
pub(super) fn kind_of(name: &str) -> usize {
    let name = name.strip_prefix("eq_dcpq:").unwrap_or(name);
    let is_of =
        |prefix: &str| name.strip_prefix(prefix).is_some_and(|rest| rest.starts_with([':', '-', '_', '/']));
    STREAMERS.iter().position(|(_, prefix)| prefix.is_empty() || is_of(prefix)).unwrap_or(STREAMERS.len() - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_figure_has_a_name_of_its_own() {
        let mut all: Vec<String> = names().into_iter().map(|of| of.name).collect();
        let count = all.len();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), count);
    }

    #[test]
    fn streams_are_told_apart_by_the_beginning_of_their_names() {
        for (name, expected) in [
            ("replication:a->b:c", "replica"),
            ("eq_dcpq:xdcr:x", "xdcr"),
            ("secidx:proj-1", "2i"),
            ("fts:x", "fts"),
            ("fts", "other"),
            ("replicationx", "other"),
            ("", "other"),
            ("mapreduce_view: b", "views"),
        ] {
            assert_eq!(STREAMERS[kind_of(name)].0, expected, "{name:?}");
        }
    }
}
