//! Copies that nodes without a share have kept of vBuckets that no node with a share has. Each of them may be the last one:
//! no command lets such a node leave, or lets it come back without its copies, unless an administrator names the node as
//! one that leaves with a rebalance.

use std::collections::BTreeSet;

use super::Refused;
use crate::state::{NodeId, Status};
use crate::view::View;

/// Nodes that have no share now.
pub(super) fn without_share(view: &View) -> impl Iterator<Item = NodeId> + use<'_> {
    view.state.nodes.iter().filter(|(_, node)| node.status != Status::Active).map(|(id, _)| *id)
}

/// Whether a node may have kept its copy of a vBucket. A node that is alive reports which ones it has kept. Of a new node
/// this is known only if it has belonged to the cluster before and says so.
fn may_have(view: &View, id: NodeId, bucket: &str, vb: u16) -> bool {
    let is_new = view.state.nodes.get(&id).is_none_or(|node| node.status == Status::New);
    view.has_kept(id, bucket, vb) || (!is_new && view.report(id).is_none())
}

/// Refuses to go on without the copies of `lost`, if one of these nodes may have the last copy of a vBucket: no node with a
/// share has the vBucket, and none of `saved` says that it has kept it.
pub(super) fn check(view: &View, lost: &[NodeId], saved: &[NodeId]) -> Result<(), Refused> {
    let (mut vbuckets, mut nodes) = (0, BTreeSet::new());
    for (name, bucket) in &view.state.buckets {
        let is_saved =
            |vb: u16| saved.iter().any(|id| view.has_kept(*id, name, vb) && !view.is_unusable(*id, name, vb));
        for vb in bucket.vbuckets().filter(|vb| bucket.has_no_copy(*vb) && !is_saved(*vb)) {
            let holders: Vec<NodeId> =
                lost.iter().copied().filter(|id| may_have(view, *id, name, vb)).collect();
            vbuckets += usize::from(!holders.is_empty());
            nodes.extend(holders);
        }
    }
    match vbuckets {
        0 => Ok(()),
        vbuckets => Err(Refused::WouldBeEmpty { vbuckets, nodes: nodes.into_iter().collect() }),
    }
}

/// The same for one node whose copies go, while all others keep theirs.
pub(super) fn check_one(view: &View, id: NodeId) -> Result<(), Refused> {
    let saved: Vec<NodeId> = without_share(view).filter(|other| *other != id).collect();
    check(view, &[id], &saved)
}
