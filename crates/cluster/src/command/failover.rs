//! Hard failover: a node has no share any more, and for what it was active for the best copy is looked for.

use std::collections::BTreeSet;

use base::planted::{self, Bug};

use super::{Refused, node_of};
use crate::state::{Bucket, Finished, NodeId, Outcome, State, Status, Step};
use crate::state::{majority, present};
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
    match losses(&view.state, view, id) {
        Losses { last: last @ 1.., .. } => Err(Refused::LastCopy(last)),
        Losses { unsafe_: unsafe_ @ 1.., .. } => Err(Refused::Unsafe(unsafe_)),
        Losses { behind: behind @ 1.., followers, .. } => {
            let followers = followers.into_iter().collect();
            Err(Refused::NotFollowed { node: id, vbuckets: behind, followers })
        }
        _ => Ok(()),
    }
}

/// Of how many vBuckets a failover would lose something.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Losses {
    /// The last copy.
    last: usize,
    /// Durable writes, perhaps.
    unsafe_: usize,
    /// What changed while no copy that is left had a connection to the node.
    behind: usize,
    /// The nodes with these copies.
    followers: BTreeSet<NodeId>,
}

impl Losses {
    /// Whether nothing would be lost that is known.
    pub(crate) fn is_nothing(&self) -> bool {
        *self == Losses::default()
    }
}

/// What the vBuckets of a document would lose without a node, those being alive that the view says.
pub(crate) fn losses(state: &State, view: &View, id: NodeId) -> Losses {
    let mut losses = Losses::default();
    for (name, bucket) in &state.buckets {
        for vb in bucket.vbuckets().filter(|vb| bucket.chain(*vb).contains(&Some(id))) {
            let (chain, step) = (bucket.chain(vb), bucket.steps.get(&vb));
            let is_open = matches!(step, Some(Step::Choose { .. }));
            let active = bucket.active(vb);
            // What is active on a node that is gone may be chosen anew: whoever is there counts then.
            let is_led =
                active.is_some_and(|active| view.alive(active).is_some()) || view.alive(id).is_none();
            if active != Some(id) && is_led && !is_open {
                continue;
            }
            let is_live = |other: &NodeId| {
                let is_there = *other != id && state.is_active(*other) && view.alive(*other).is_some();
                is_there && !view.is_unusable(*other, name, vb)
            };
            let live: Vec<NodeId> = present(chain).filter(is_live).collect();
            let sure = live.iter().filter(|other| !bucket.has_forgotten(vb, **other)).count();
            let is_needed = match step {
                Some(Step::Choose { needs, .. }) => *needs == Some(id),
                Some(Step::Settle { .. }) => true,
                _ => false,
            };
            losses.last += usize::from(live.is_empty());
            let too_few = present(chain).count() - sure >= majority(chain);
            losses.unsafe_ += usize::from(!live.is_empty() && (is_needed || too_few));
            let follows = |other: &NodeId| !bucket.is_link_down(*other, id);
            let is_active = active == Some(id) && !is_open && !planted::is(Bug::CutOffCopyCounts);
            if is_active && !live.is_empty() && !live.iter().any(follows) {
                losses.behind += 1;
                losses.followers.extend(live);
            }
        }
    }
    losses
}

/// The document in which a node is failed over. What was being moved stops.
pub(crate) fn fail_over(state: &State, id: NodeId, force: bool) -> State {
    let mut state = state.next();
    state.epoch += 1;
    if let Some(node) = state.nodes.get_mut(&id) {
        node.stopped &= node.status == Status::FailedOver;
        node.status = Status::FailedOver;
    }
    interrupt(&mut state);
    let since = state.revision;
    for bucket in state.buckets.values_mut() {
        forget(bucket, id);
        for vb in bucket.vbuckets() {
            leave(bucket, vb, id, since, force);
        }
    }
    state
}

/// The document in which a node that was failed over is said to have stopped.
pub(super) fn has_stopped(state: &State, id: NodeId) -> Result<State, Refused> {
    match node_of(state, id)?.status {
        Status::FailedOver => {}
        status => return Err(Refused::WrongStatus(id, status)),
    }
    let mut state = state.next();
    if let Some(node) = state.nodes.get_mut(&id) {
        node.stopped = true;
    }
    Ok(state)
}

/// Whatever is being moved stops.
pub(super) fn interrupt(state: &mut State) {
    let since = state.revision;
    state.buckets.values_mut().for_each(|bucket| stop_moving(bucket, since));
    if let Some(rebalance) = state.rebalance.take() {
        state.finished = Some(Finished {
            id: rebalance.id,
            purpose: rebalance.purpose,
            outcome: Outcome::Interrupted,
            why: None,
        });
    }
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
                Some((vb, Step::Choose { since, taker, needs: None, forced: false }))
            }
            stays @ (Step::Choose { .. } | Step::Settle { .. }) => Some((vb, stays)),
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
        let needs = matches!(bucket.steps.get(&vb), Some(Step::Settle { .. })).then_some(id);
        bucket.steps.insert(vb, Step::Choose { since, taker: None, needs, forced: force });
        return;
    }
    bucket.leave_chain(vb, id, since);
}
