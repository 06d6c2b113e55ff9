//! How far copies are that nodes fill: what nodes report of them, summed up by bucket and node.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::state::{NodeId, Step, present};
use crate::view::View;

/// The copies of a bucket that one node fills.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Filling {
    /// The bucket.
    pub bucket: String,
    /// The node.
    pub node: NodeId,
    /// vBuckets that the node fills now.
    pub vbuckets: usize,
    /// Changes of them that the node has: seqnos, which count each document as often as it was changed.
    pub has: u64,
    /// Changes that the active copies have.
    pub of: u64,
}

/// The copies that nodes fill now, by bucket and node. What is not reported yet counts as nothing.
pub fn fillings(view: &View) -> Vec<Filling> {
    let mut all = Vec::new();
    for (name, bucket) in &view.state.buckets {
        let mut by_node: BTreeMap<NodeId, Filling> = BTreeMap::new();
        let is_building = |step: &Step| matches!(step, Step::Build | Step::Both { .. });
        for (vb, _) in bucket.steps.iter().filter(|(_, step)| is_building(step)) {
            let seqno = |id: NodeId| {
                let copy = view.report(id).and_then(|report| report.of(name, *vb));
                copy.map_or(0, |copy| copy.high_seqno)
            };
            let target = bucket.target_of(*vb).map_or(&[][..], Vec::as_slice);
            let of = bucket.active(*vb).map_or(0, seqno);
            for node in present(target).filter(|id| !bucket.chain(*vb).contains(&Some(*id))) {
                let filling = by_node.entry(node).or_insert_with(|| Filling {
                    bucket: name.clone(),
                    node,
                    vbuckets: 0,
                    has: 0,
                    of: 0,
                });
                filling.vbuckets += 1;
                filling.has += seqno(node).min(of);
                filling.of += of;
            }
        }
        all.extend(by_node.into_values());
    }
    all
}
