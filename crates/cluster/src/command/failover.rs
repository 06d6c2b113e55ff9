//! Hard failover: a node has no share any more, and for what it was active for the best copy is looked for.

use super::{Refused, node_of};
use crate::state::{majority, present};
use crate::state::{Bucket, Finished, NodeId, Outcome, State, Status, Step};
use crate::view::View;

/// Whether a node can be failed over without losing documents.
pub(super) fn check(view: &View, id: NodeId, force: bool) -> Result<(), Refused> {
    match node_of(&view.state, id)?.status {
        Status::Active => {}
        // Again with force: vBuckets may be waiting for nodes that never come back.
        Status::FailedOver if force => {}
        status => return Err(Refused::WrongStatus(id, status)),
    }
    if force {
        return Ok(());
    }
    if view.state.nodes.keys().all(|other| *other == id || !view.state.is_active(*other)) {
        return Err(Refused::LastNode);
    }
    let (mut last, mut unsafe_) = (0, 0);
    for bucket in view.state.buckets.values() {
        let is_open = |vb: &u16| matches!(bucket.steps.get(vb), Some(Step::Choose { .. }));
        let needs = |vb: &u16| bucket.active(*vb) == Some(id) || is_open(vb) && bucket.chain(*vb).contains(&Some(id));
        for vb in bucket.vbuckets().filter(needs) {
            let chain = bucket.chain(vb);
            let live = present(chain).filter(|other| {
                *other != id && view.state.is_active(*other) && view.alive(*other).is_some()
            });
            let live = live.count();
            last += usize::from(live == 0);
            unsafe_ += usize::from(live > 0 && present(chain).count() - live >= majority(chain));
        }
    }
    if last > 0 {
        return Err(Refused::LastCopy(last));
    }
    if unsafe_ > 0 { Err(Refused::Unsafe(unsafe_)) } else { Ok(()) }
}

/// The document in which a node is failed over. What was being moved stops.
pub(crate) fn fail_over(state: &State, id: NodeId, force: bool) -> State {
    let mut state = state.next();
    state.epoch += 1;
    if let Some(node) = state.nodes.get_mut(&id) {
        node.status = Status::FailedOver;
    }
    let since = state.revision;
    for bucket in state.buckets.values_mut() {
        stop_moving(bucket, since);
        forget(bucket, id);
        for vb in bucket.vbuckets() {
            leave(bucket, vb, id, since, force);
        }
    }
    if let Some(rebalance) = state.rebalance.take() {
        state.finished =
            Some(Finished { id: rebalance.id, purpose: rebalance.purpose, outcome: Outcome::Interrupted });
    }
    state
}

/// A node that is failed over gets nothing back by itself.
fn forget(bucket: &mut Bucket, id: NodeId) {
    bucket.missing.values_mut().for_each(|missing| missing.retain(|other| *other != id));
    bucket.missing.retain(|_, missing| !missing.is_empty());
}

/// Ends all moves of a bucket: what had not begun to change hands stays where it was.
fn stop_moving(bucket: &mut Bucket, since: u64) {
    let target = std::mem::take(&mut bucket.target);
    let steps = std::mem::take(&mut bucket.steps);
    bucket.steps = steps
        .into_iter()
        .filter_map(|(vb, step)| match step {
            Step::Build | Step::Both { .. } => None,
            Step::TakeOver { .. } => {
                let taker = target.get(usize::from(vb)).and_then(|chain| chain.first().copied().flatten());
                Some((vb, Step::Choose { since, taker, forced: false }))
            }
            choose @ Step::Choose { .. } => Some((vb, choose)),
        })
        .collect();
}

/// A node leaves the chain of a vBucket. What it was active for keeps it in its chain until the choice is made, since
/// until then it may still serve.
fn leave(bucket: &mut Bucket, vb: u16, id: NodeId, since: u64, force: bool) {
    if let Some(Step::Choose { forced, .. }) = bucket.steps.get_mut(&vb) {
        *forced |= force;
        return;
    }
    if !bucket.chain(vb).contains(&Some(id)) {
        return;
    }
    if bucket.active(vb) == Some(id) {
        bucket.steps.insert(vb, Step::Choose { since, taker: None, forced: force });
        return;
    }
    let chain = &mut bucket.map[usize::from(vb)];
    let places = chain.len();
    chain.retain(|place| *place != Some(id) && place.is_some());
    chain.resize(places, None);
}
