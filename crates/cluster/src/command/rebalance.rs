//! How rebalances begin and are ended early; how they go on is the leader's work.

use std::collections::{BTreeMap, BTreeSet};

use super::{Refused, limits, node_of};
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

/// Refuses to begin a vBucket empty while a failed over node, which the request does not name as leaving, may have kept a
/// copy of it. A node that is alive reports which copies it has kept.
fn given_up(view: &View, state: &State, named: &[NodeId]) -> Result<(), Refused> {
    let failed = view.state.nodes.iter().filter(|(_, node)| node.status == Status::FailedOver);
    let unnamed: Vec<NodeId> = failed.map(|(id, _)| *id).filter(|id| !named.contains(id)).collect();
    let (mut vbuckets, mut holders) = (0, BTreeSet::new());
    for (name, bucket) in &state.buckets {
        let was_unserved = |vb: u16| view.state.buckets.get(name).is_some_and(|was| was.has_no_copy(vb));
        for vb in bucket.vbuckets().filter(|vb| was_unserved(*vb)) {
            let begins_with = bucket.active(vb).filter(|id| view.has_kept(*id, name, vb));
            if begins_with.is_none() {
                let may_have = |id: &NodeId| view.alive(*id).is_none() || view.has_kept(*id, name, vb);
                let may_have: Vec<NodeId> = unnamed.iter().copied().filter(may_have).collect();
                vbuckets += usize::from(!may_have.is_empty());
                holders.extend(may_have);
            }
        }
    }
    match vbuckets {
        0 => Ok(()),
        vbuckets => Err(Refused::WouldBeEmpty { vbuckets, nodes: holders.into_iter().collect() }),
    }
}

pub(super) fn begin(view: &View, named: &[NodeId]) -> Result<State, Refused> {
    quiet(&view.state)?;
    for id in named {
        node_of(&view.state, *id)?;
    }
    let eject = leavers(&view.state, named)?;
    let mut nodes = BTreeSet::new();
    let mut kept: BTreeMap<String, BTreeMap<u16, Vec<NodeId>>> = BTreeMap::new();
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
        let copies = view.report(*id).map(|report| &report.kept);
        match node.status {
            Status::FullRecovery if copies.is_none_or(|kept| !kept.is_empty()) => {
                return Err(Refused::Dropping(*id));
            }
            Status::DeltaRecovery => {
                for (bucket, vbs) in copies.into_iter().flatten() {
                    let bucket = kept.entry(bucket.clone()).or_default();
                    vbs.iter().for_each(|vb| bucket.entry(*vb).or_default().push(*id));
                }
            }
            _ => {}
        }
    }
    if nodes.is_empty() {
        return Err(Refused::LastNode);
    }
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
        let kept = kept.get(name).unwrap_or(&nothing);
        bucket.target = placement::target(&bucket.map, kept, &nodes, usize::from(bucket.replicas));
        for (vb, (chain, target)) in (0..).zip(bucket.map.iter_mut().zip(&mut bucket.target)) {
            // Nobody has it any more, or only one who has kept a copy: it begins with what that one has.
            if present(chain).next().is_none() {
                chain[0] = present(target).find(|id| !view.is_unusable(*id, name, vb));
            }
            if chain[0].is_none() {
                target.clone_from(chain);
            }
        }
    }
    given_up(view, &state, named)?;
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
    state.rebalance = Some(Rebalance { id: state.revision, purpose, total, cancelled: false });
    state
}

pub(super) fn cancel(state: &State) -> Result<State, Refused> {
    let mut state = state.next();
    state.rebalance.as_mut().ok_or(Refused::NotRebalancing)?.cancelled = true;
    for bucket in state.buckets.values_mut() {
        bucket.steps.retain(|_, step| *step != Step::Build);
    }
    Ok(state)
}
