//! Which figures a node keeps over time: those of `/metrics`, under its names and labels (`kv_...`), and percentiles of
//! latency, which Prometheus computes from histograms itself.
//!
//! The names of [`of_bucket`] and the figures of [`bucket_figures`] with those of [`latency_figures`] behind them have one
//! order, and so have those of the node.

use std::sync::Arc;

use base::VbState;
use engine::Bucket;

use super::latency::{KINDS, LatencyCounts, Percentiles};
use super::metrics_field::{BY_STATE, FAMILIES, OF_NODE, OPS, OPS_NAME};
use super::page::Numbers;
use crate::node::Node;

/// The roles of vBuckets whose figures are kept; vBuckets have the others for moments.
const KEPT_STATES: [VbState; 2] = [VbState::Active, VbState::Replica];

/// How long requests of a bucket took since the row before, in seconds.
const LATENCY_NAME: &str = "stave_latency_seconds";

type Quantile = (&'static str, fn(&Percentiles) -> f64);

/// The percentiles that are kept, as the label `quantile` has them.
const QUANTILES: [Quantile; 3] =
    [("0.5", |of| of.p50_us), ("0.99", |of| of.p99_us), ("0.999", |of| of.p999_us)];

/// The name of a figure that is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptName {
    /// As in `/metrics`, if that has it.
    pub name: &'static str,
    /// Labels beside the bucket.
    pub labels: Vec<(&'static str, &'static str)>,
}

/// Which figures are kept of each bucket.
pub fn of_bucket() -> Vec<KeptName> {
    let families = FAMILIES.iter().map(|(name, ..)| KeptName { name, labels: Vec::new() });
    let ops = OPS.iter().map(|(op, result, _)| KeptName {
        name: OPS_NAME,
        labels: [("op", *op)].into_iter().chain(result.map(|result| ("result", result))).collect(),
    });
    let by_state = KEPT_STATES.iter().flat_map(|state| {
        BY_STATE.iter().map(|(name, ..)| KeptName { name, labels: vec![("state", state.name())] })
    });
    let latency = KINDS.iter().flat_map(|kind| {
        QUANTILES.iter().map(|(quantile, _)| KeptName {
            name: LATENCY_NAME,
            labels: vec![("op", *kind), ("quantile", *quantile)],
        })
    });
    families.chain(ops).chain(by_state).chain(latency).collect()
}

/// These figures now, without those of latency. Looks at memory alone, at vBuckets that changed.
pub fn bucket_figures(node: &Node, bucket: &Arc<Bucket>) -> Box<[f64]> {
    let numbers = Numbers::of(node, Arc::clone(bucket));
    let families = FAMILIES.iter().map(|(.., value)| value(&numbers));
    let ops = OPS.iter().map(|(.., count)| count(&numbers));
    let by_state = KEPT_STATES
        .iter()
        .flat_map(|state| BY_STATE.iter().map(|(.., value)| value(numbers.stats.of(*state))));
    families.chain(ops).chain(by_state).map(|figure| figure as f64).collect()
}

/// The percentiles of latency between two moments; what is not known is no number.
pub fn latency_figures(now: &LatencyCounts, earlier: &LatencyCounts) -> impl Iterator<Item = f64> {
    let seconds = |of: Option<Percentiles>| {
        QUANTILES.iter().map(move |(_, value)| of.map_or(f64::NAN, |of| value(&of) / 1_000_000.0))
    };
    now.since(earlier).into_iter().flat_map(seconds)
}

/// Which figures are kept of the node.
pub fn of_node() -> Vec<KeptName> {
    OF_NODE.iter().map(|(name, ..)| KeptName { name, labels: Vec::new() }).collect()
}

/// These figures now.
pub fn node_figures(node: &Node) -> Box<[f64]> {
    let totals = node.totals();
    OF_NODE.iter().map(|(.., value)| value(node, &totals) as f64).collect()
}
