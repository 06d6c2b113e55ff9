//! Lives of nodes: one that lost its lease, or was started anew, serves again when it is written who it is.

use base::planted::{self, Bug};

use crate::state::{Bucket, NodeId, State, Status, Step, present};
use crate::view::View;

/// The document that lets new lives of nodes serve.
///
/// A new life may know less than the old one: whatever it was active for goes to the best copy, which may be its own.
pub(super) fn admit(view: &View) -> Option<State> {
    if view.state.is_choosing() && planted::is(Bug::AdmissionWaits) {
        return None;
    }
    let mut next: Option<State> = None;
    for (id, node) in &view.state.nodes {
        let Some(member) = view.members.get(&node.uuid) else { continue };
        let is_new_life = member.incarnation != node.incarnation;
        let limits = member.limits.or(node.limits);
        let has_moved = member.address.alternate != node.address.alternate;
        if !is_new_life && limits == node.limits && !has_moved {
            continue;
        }
        let state = next.get_or_insert_with(|| view.state.next());
        if let Some(node) = state.nodes.get_mut(id) {
            node.incarnation = member.incarnation;
            node.address = member.address.clone();
            node.limits = limits;
        }
        if !is_new_life {
            continue;
        }
        if node.status == Status::Active {
            question(state, *id);
        }
        note_forgotten(state, *id);
    }
    next
}

/// Asks again who has the best copy of what a node was active for, and has the other chains that it belongs to settle:
/// what it had acknowledged from memory may be on few of them.
fn question(state: &mut State, id: NodeId) {
    let since = state.revision;
    for bucket in state.buckets.values_mut() {
        for vb in bucket.vbuckets() {
            if let Some(step) = doubt(bucket, vb, id, since) {
                bucket.steps.insert(vb, step);
            }
        }
    }
}

/// Notes where the copies of a node prove nothing.
fn note_forgotten(state: &mut State, id: NodeId) {
    for bucket in state.buckets.values_mut() {
        for vb in bucket.vbuckets() {
            let in_target = || bucket.target_of(vb).is_some_and(|target| target.contains(&Some(id)));
            // In the other steps copies are looked at anew before anybody relies on them.
            let counts = match bucket.steps.get(&vb) {
                Some(Step::Choose { taker: Some(taker), .. }) if *taker == id => true,
                Some(Step::Choose { .. } | Step::Settle { .. }) => bucket.chain(vb).contains(&Some(id)),
                Some(Step::TakeOver { .. }) => bucket.chain(vb).contains(&Some(id)) || in_target(),
                _ => false,
            };
            if counts {
                bucket.forgot.entry(vb).or_default().insert(id);
            }
        }
    }
}

/// The step that a vBucket is in when one who has something to do with it begins a new life, if it is another one.
fn doubt(bucket: &mut Bucket, vb: u16, id: NodeId, since: u64) -> Option<Step> {
    let (chain, step) = (bucket.chain(vb), bucket.steps.get(&vb));
    let target = bucket.target_of(vb);
    let is_taking = matches!(step, Some(Step::TakeOver { .. }));
    let taker = target.and_then(|chain| chain.first().copied().flatten()).filter(|_| is_taking);
    let was_active = bucket.active(vb) == Some(id);
    let is_alone = present(chain).count() == 1;
    let forgets = bucket.is_ephemeral() && !planted::is(Bug::LoneBeginsEmpty);
    match step {
        Some(Step::Choose { .. }) => None,
        _ if was_active && is_alone && taker.is_none() && forgets => {
            // Its copy is gone. One that it was building, or that a node kept which was failed over, is not.
            let first = target.into_iter().flatten().flatten().find(|other| **other != id);
            Some(Step::Choose { since, taker: first.copied(), needs: None, forced: false })
        }
        Some(_) if was_active && is_alone && taker.is_none() => {
            // Nobody else can have it: the move begins anew.
            bucket.steps.remove(&vb);
            None
        }
        _ if (was_active && !is_alone) || (is_taking && (was_active || taker == Some(id))) => {
            let needs = matches!(step, Some(Step::Settle { .. })).then_some(id);
            Some(Step::Choose { since, taker, needs, forced: false })
        }
        Some(Step::TakeOver { .. }) => None,
        // A move begins anew when the chain has settled.
        _ if chain.contains(&Some(id)) && !is_alone => Some(Step::Settle { since }),
        Some(Step::Both { .. }) if target.is_some_and(|target| target.contains(&Some(id))) => {
            Some(Step::Both { since })
        }
        _ => None,
    }
}
