//! How rebalances begin and are ended early; how they go on is the leader's work.

use std::collections::{BTreeMap, BTreeSet};

use super::{Refused, kept, limits, node_of};
use crate::placement;
use crate::state::present;
use crate::state::{Bucket, Chain, NodeId, Purpose, Rebalance, State, Status, Step};
use crate::view::View;

pub(super) fn quiet(state: &State) -> Result<(), Refused> {
    moves_nothing(state)?;
    if state.is_choosing() { Err(Refused::FailingOver) } else { Ok(()) }
}

/// No rebalance and no flush is under way.
pub(super) fn moves_nothing(state: &State) -> Result<(), Refused> {
    if state.rebalance.is_some() {
        return Err(Refused::Rebalancing);
    }
    state.flushing().map_or(Ok(()), |name| Err(Refused::Flushing(name.to_owned())))
}

/// All that leave with a rebalance: those that are named, and those that were failed over. Nobody loses a node by
/// naming another one.
fn leavers(state: &State, named: &[NodeId]) -> Result<Vec<NodeId>, Refused> {
    let failed = state.nodes.iter().filter(|(_, node)| node.status == Status::FailedOver);
    let failed: Vec<NodeId> = failed.map(|(id, _)| *id).collect();
    match failed.iter().find(|id| !named.contains(id)) {
        Some(id) if !named.is_empty() => Err(Refused::WouldLeave(*id)),
        Some(_) => Ok(failed),
        None => Ok(named.to_vec()),
    }
}

/// Refuses to begin a vBucket empty while a node that the request does not name as leaving may have kept a copy of it. Those
/// that were failed over leave, and those that are down are refused with advice to let them leave: neither saves a copy.
fn given_up(view: &View, named: &[NodeId]) -> Result<(), Refused> {
    let comes = |id: &NodeId| {
        let status = view.state.nodes.get(id).map(|node| node.status);
        status != Some(Status::FailedOver) && view.report(*id).is_some()
    };
    let unnamed = kept::without_share(view).filter(|id| !named.contains(id));
    let (saved, lost): (Vec<NodeId>, Vec<NodeId>) = unnamed.partition(comes);
    kept::check(view, &lost, &saved)
}

/// The nodes between which the vBuckets are spread, and which of those that come have kept copies that count.
type Comers = (BTreeSet<NodeId>, BTreeMap<String, BTreeMap<u16, Vec<NodeId>>>);

fn comers(view: &View, eject: &[NodeId]) -> Result<Comers, Refused> {
    let mut nodes = BTreeSet::new();
    let mut copies: BTreeMap<String, BTreeMap<u16, Vec<NodeId>>> = BTreeMap::new();
    for (id, node) in &view.state.nodes {
        let leaves = eject.contains(id);
        let has_copies = node.status == Status::Active;
        if (!leaves || has_copies) && view.alive(*id).is_none() {
            return Err(if has_copies { Refused::NodeDown(*id) } else { Refused::NewNodeDown(*id) });
        }
        if leaves {
            continue;
        }
        nodes.insert(*id);
        if has_copies {
            continue;
        }
        // A node that comes without its copies has them still: it keeps the last one of a vBucket.
        let is_last =
            |name: &str, vb: u16| view.state.buckets.get(name).is_some_and(|bucket| bucket.has_no_copy(vb));
        let kept = view.report(*id).map(|report| &report.kept);
        for (name, vbs) in kept.into_iter().flatten() {
            let counts = |vb: &&u16| node.status == Status::DeltaRecovery || is_last(name, **vb);
            let bucket = copies.entry(name.clone()).or_default();
            vbs.iter().filter(counts).for_each(|vb| bucket.entry(*vb).or_default().push(*id));
        }
    }
    if nodes.is_empty() {
        return Err(Refused::LastNode);
    }
    Ok((nodes, copies))
}

pub(super) fn begin(view: &View, named: &[NodeId]) -> Result<State, Refused> {
    quiet(&view.state)?;
    for id in named {
        node_of(&view.state, *id)?;
    }
    given_up(view, named)?;
    let eject = leavers(&view.state, named)?;
    let (nodes, copies) = comers(view, &eject)?;
    // Those that come get every bucket; those that are active have them already.
    let come = nodes.iter().copied().filter(|id| !view.state.is_active(*id));
    limits::check(view, &view.state, come)?;
    let mut state = view.state.next();
    for id in &nodes {
        if let Some(node) = state.nodes.get_mut(id) {
            node.status = Status::Active;
        }
    }
    for (name, bucket) in &mut state.buckets {
        bucket.missing.clear();
        let nothing = BTreeMap::new();
        let copies = copies.get(name).unwrap_or(&nothing);
        bucket.target = placement::target(&bucket.map, copies, &nodes, usize::from(bucket.replicas));
        for (vb, (chain, target)) in (0..).zip(bucket.map.iter_mut().zip(&mut bucket.target)) {
            // No node has it any more, or only one that has kept a copy: it begins with what that one has.
            if present(chain).next().is_none() {
                let holders = copies.get(&vb).map_or(&[][..], Vec::as_slice);
                let mut usable = present(target)
                    .filter(|id| holders.contains(id))
                    .chain(holders.iter().copied())
                    .chain(present(target))
                    .filter(|id| !view.is_unusable(*id, name, vb));
                chain[0] = usable.next();
            }
            if chain[0].is_none() {
                target.clone_from(chain);
            }
        }
    }
    state.auto_failover.count = 0;
    Ok(moving(state, Purpose::Rebalance { eject }))
}

pub(super) fn graceful(view: &View, id: NodeId) -> Result<State, Refused> {
    quiet(&view.state)?;
    let status = node_of(&view.state, id)?.status;
    if status != Status::Active {
        return Err(Refused::WrongStatus(id, status));
    }
    if view.alive(id).is_none() {
        return Err(Refused::CannotHandOver(id));
    }
    let mut state = view.state.next();
    let mut last = 0;
    for (name, bucket) in &mut state.buckets {
        let target = (0..).zip(&bucket.map).map(|(vb, chain)| {
            if chain.first() != Some(&Some(id)) {
                return Some(chain.clone());
            }
            let is_there = |other: NodeId| view.alive(other).is_some() && !view.is_unusable(other, name, vb);
            let next = present(chain).find(|other| *other != id && is_there(*other))?;
            let rest = chain.iter().copied().filter(|place| *place != Some(id) && *place != Some(next));
            let mut target: Chain = vec![Some(next), Some(id)];
            target.extend(rest);
            Some(target)
        });
        let target: Vec<Option<Chain>> = target.collect();
        last += target.iter().filter(|chain| chain.is_none()).count();
        bucket.target = target.into_iter().flatten().collect();
    }
    if last > 0 {
        return Err(Refused::LastCopy(last));
    }
    Ok(moving(state, Purpose::GracefulFailover { node: id }))
}

/// The document in which those that were away when active copies were chosen come back into their chains; nothing if
/// there is none that is alive and can build its copy. A node sets damaged files aside first.
pub(crate) fn repair(view: &View) -> Option<State> {
    if quiet(&view.state).is_err() {
        return None;
    }
    let comes_back = |name: &str, vb: u16, id: NodeId| {
        let is_there = view.state.is_active(id) && view.alive(id).is_some();
        is_there && !view.is_unusable(id, name, vb)
    };
    let can_come_back = |(name, bucket): (&String, &Bucket)| {
        bucket
            .missing
            .iter()
            .any(|(vb, ids)| bucket.active(*vb).is_some() && ids.iter().any(|id| comes_back(name, *vb, *id)))
    };
    if !view.state.buckets.iter().any(can_come_back) {
        return None;
    }
    let mut state = view.state.next();
    for (name, bucket) in &mut state.buckets {
        bucket.target = bucket.map.clone();
        for (vb, missing) in &mut bucket.missing {
            // No node has it any more: there is nothing to follow before a rebalance begins it empty.
            if bucket.map[usize::from(*vb)].first().copied().flatten().is_none() {
                continue;
            }
            let chain = &mut bucket.target[usize::from(*vb)];
            let places = chain.len();
            let back = missing.extract_if(.., |id| comes_back(name, *vb, *id));
            let back: Vec<NodeId> = back.filter(|id| !chain.contains(&Some(*id))).collect();
            chain.retain(Option::is_some);
            chain.extend(back.into_iter().map(Some));
            chain.resize(places, None);
        }
        bucket.missing.retain(|_, missing| !missing.is_empty());
    }
    Some(moving(state, Purpose::Repair))
}

fn moving(mut state: State, purpose: Purpose) -> State {
    let total = u32::try_from(state.to_move()).unwrap_or(u32::MAX);
    state.rebalance = Some(Rebalance { id: state.revision, purpose, total, cancelled: false, why: None });
    state
}

pub(super) fn cancel(state: &State) -> Result<State, Refused> {
    if state.rebalance.is_none() {
        return Err(Refused::NotRebalancing);
    }
    let mut state = state.next();
    give_up_moves(&mut state, None);
    Ok(state)
}

/// What was not handed over yet stays where it was: who would get it may be down, and then what is waited for never comes.
/// The chain has all durable writes, also those that waited for the target.
pub(crate) fn give_up_moves(state: &mut State, why: Option<String>) {
    let Some(rebalance) = &mut state.rebalance else { return };
    (rebalance.cancelled, rebalance.why) = (true, why);
    for bucket in state.buckets.values_mut() {
        bucket.steps.retain(|_, step| !matches!(step, Step::Build | Step::Both { .. }));
    }
}
