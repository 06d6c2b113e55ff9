//! Which figures a node keeps over time, under the names and labels that `/metrics` has for them (`kv_...`).
//!
//! The names of [`of_bucket`] and the figures of [`bucket_figures`] have one order, and so have those of the node.

use std::sync::Arc;

use base::VbState;
use engine::Bucket;

use super::metrics::Numbers;
use super::metrics_field::{BY_STATE, FAMILIES, OF_NODE, OPS, OPS_NAME};
use crate::node::Node;

/// The roles of vBuckets whose figures are kept; vBuckets have the others for moments.
const KEPT_STATES: [VbState; 2] = [VbState::Active, VbState::Replica];

/// The name of a figure that is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptName {
    /// As in `/metrics`.
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
    families.chain(ops).chain(by_state).collect()
}

/// These figures now. Looks at memory alone: each vBucket is locked once.
pub fn bucket_figures(node: &Node, bucket: &Arc<Bucket>) -> Box<[f64]> {
    let numbers = Numbers::of(node, Arc::clone(bucket));
    let families = FAMILIES.iter().map(|(.., value)| value(&numbers));
    let ops = OPS.iter().map(|(.., count)| count(&numbers));
    let by_state = KEPT_STATES
        .iter()
        .flat_map(|state| BY_STATE.iter().map(|(.., value)| value(numbers.stats.of(*state))));
    families.chain(ops).chain(by_state).map(|figure| figure as f64).collect()
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
