//! Lives of nodes: one that lost its lease, or was started anew, serves again when it is written who it is.

use crate::state::{NodeId, State, Status, Step, present};
use crate::view::View;

/// The document that lets new lives of nodes serve.
///
/// A new life may know less than the old one: whatever it was active for goes to the best copy, which may be its own.
pub(super) fn admit(view: &View) -> Option<State> {
    let mut next: Option<State> = None;
    for (id, node) in &view.state.nodes {
        let Some(member) = view.members.get(&node.uuid) else { continue };
        if member.incarnation == node.incarnation {
            continue;
        }
        let state = next.get_or_insert_with(|| view.state.next());
        if let Some(node) = state.nodes.get_mut(id) {
            node.incarnation = member.incarnation;
            node.address = member.address.clone();
        }
        if node.status == Status::Active {
            question(state, *id);
        }
    }
    next
}

/// Asks again who has the best copy of what a node was active for.
fn question(state: &mut State, id: NodeId) {
    let since = state.revision;
    for bucket in state.buckets.values_mut() {
        for vb in bucket.vbuckets() {
            let taking = matches!(bucket.steps.get(&vb), Some(Step::TakeOver { .. }));
            let taker = bucket.target_of(vb).and_then(|chain| chain.first().copied().flatten());
            let taker = taker.filter(|_| taking);
            let was_active = bucket.active(vb) == Some(id);
            let alone = present(bucket.chain(vb)).count() == 1;
            match bucket.steps.get(&vb) {
                Some(Step::Choose { .. }) => {}
                Some(_) if was_active && alone && taker.is_none() => {
                    // Nobody else can have it: the move begins anew.
                    bucket.steps.remove(&vb);
                }
                _ if (was_active && !alone) || (taking && (was_active || taker == Some(id))) => {
                    let settles = matches!(bucket.steps.get(&vb), Some(Step::Settle { .. }));
                    let needs = settles.then_some(id);
                    bucket.steps.insert(vb, Step::Choose { since, taker, needs, forced: false });
                }
                _ => {}
            }
        }
    }
}
