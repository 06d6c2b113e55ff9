//! Buckets that go to another store: how far the nodes are, and when it is over.

use crate::state::{NodeId, State, Status};
use crate::store_report::{StoreReport, StoreStage};
use crate::view::View;

/// How far a node with a share in a bucket is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MemberMove {
    /// It does not answer. It moves what it has when it is back.
    Away,
    /// Its version does not move buckets in a cluster: what it has stays where it is until another version runs there.
    Older,
    /// It has not read yet what was asked for.
    Unread,
    /// As it says itself.
    Says(StoreReport),
}

impl MemberMove {
    /// Whether all that the node has is in the store that the bucket goes to.
    pub fn is_done(&self) -> bool {
        matches!(self, MemberMove::Says(report) if report.stage == StoreStage::Done)
    }
}

/// How far each node is that has a share in a bucket; empty if the bucket goes to no other store.
pub fn store_moves(view: &View, name: &str) -> Vec<(NodeId, MemberMove)> {
    let Some(since) = view.state.buckets.get(name).and_then(|bucket| bucket.store_move.as_ref()) else {
        return Vec::new();
    };
    let of = |id: NodeId| {
        let Some(member) = view.alive(id) else { return MemberMove::Away };
        if !member.moves_stores {
            return MemberMove::Older;
        }
        let report = view.bucket_since(id, name, since.since).and_then(|report| report.stores.get(name));
        report.map_or(MemberMove::Unread, |report| MemberMove::Says(report.clone()))
    };
    let active = view.state.nodes.iter().filter(|(_, node)| node.status == Status::Active);
    active.map(|(id, _)| (*id, of(*id))).collect()
}

/// The document in which buckets go to another store no more that every node with a share has there. A node that comes back
/// from a failover later goes by the bucket's settings.
pub(super) fn end_store_moves(view: &View) -> Option<State> {
    let moving = view.state.buckets.iter().filter(|(_, bucket)| bucket.store_move.is_some());
    let done: Vec<&String> = moving
        .map(|(name, _)| name)
        .filter(|name| {
            let members = store_moves(view, name);
            !members.is_empty() && members.iter().all(|(_, member)| member.is_done())
        })
        .collect();
    if done.is_empty() {
        return None;
    }
    let mut state = view.state.next();
    for name in done {
        state.buckets.get_mut(name)?.store_move = None;
    }
    Some(state)
}
