//! Links to nodes that are alive, and do not come about: copies here miss what changes there, although all nodes are up.

use std::collections::BTreeMap;

use ::cluster::{NodeId, View};

use crate::node::Node;

/// The most links that are told of one node.
const MOST_TOLD: usize = 32;

/// Why links have been down for long, by bucket and by the node that is followed. Nodes that are not alive are told
/// otherwise.
pub fn links_down(node: &Node, view: &View) -> BTreeMap<String, BTreeMap<NodeId, String>> {
    let source = |name: &str| {
        let is_it = |of: &::cluster::Node| of.address.kv_by(false) == name || of.address.kv_by(true) == name;
        let found = view.state.nodes.iter().find(|(_, of)| is_it(of));
        found.map(|(id, _)| *id).filter(|id| view.alive(*id).is_some())
    };
    let down = node.replication().long_down().into_iter();
    let known = down.filter_map(|down| source(&down.node).map(|id| (down.bucket, id, down.why)));
    let mut told: BTreeMap<String, BTreeMap<NodeId, String>> = BTreeMap::new();
    for (bucket, id, why) in known.take(MOST_TOLD) {
        told.entry(bucket).or_default().insert(id, why);
    }
    told
}
