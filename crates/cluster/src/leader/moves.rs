//! A rebalance's steps: copies are built, durable writes need both chains, the active one is taken over.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use base::VbState;
use base::planted::{self, Bug};

use super::{Leader, links};
use crate::command;
use crate::state::{
    Bucket, Chain, Finished, NodeId, Outcome, Purpose, Rebalance, State, Status, Step, present,
};
use crate::view::View;

/// What copies must have reached before a vBucket's next step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Goal {
    step: Step,
    /// The active copy's last change when it was first looked at in this step.
    seqno: u64,
}

/// One vBucket that is being moved.
pub(super) struct Move<'a> {
    pub(super) view: &'a View,
    pub(super) name: &'a str,
    pub(super) bucket: &'a Bucket,
    pub(super) vb: u16,
    pub(super) step: &'a Step,
}

impl Move<'_> {
    /// A node's role, as it said after it had become as `since` says.
    fn role_since(&self, id: NodeId, since: u64) -> Option<Option<VbState>> {
        let report = self.view.bucket_since(id, self.name, since)?;
        report.of(self.name, self.vb).map(|copy| copy.state)
    }
}

impl Leader {
    /// The document in which what is being moved has come on.
    pub(super) fn move_on(&mut self, view: &View, now: Duration) -> Option<State> {
        let Some(rebalance) = &view.state.rebalance else {
            self.stranded.clear();
            self.followed.1.clear();
            self.progress = None;
            return None;
        };
        if self.followed.0 != rebalance.id {
            self.followed = (rebalance.id, BTreeSet::new());
        }
        if let Some(why) = self.stalled(view, now) {
            let mut state = view.state.next();
            command::give_up_moves(&mut state, Some(why));
            finish(view, &mut state);
            return Some(state);
        }
        if !rebalance.cancelled && is_idle(&view.state) && is_needed(&rebalance.purpose, &view.state, view) {
            return None;
        }
        let mut state = view.state.next();
        for (name, bucket) in &view.state.buckets {
            let Some(next) = state.buckets.get_mut(name) else { continue };
            for (vb, step) in &bucket.steps {
                let a_move = Move { view, name, bucket, vb: *vb, step };
                if rebalance.purpose == Purpose::Repair && give_up_building(&a_move, next) {
                    continue;
                }
                self.advance(&a_move, next);
                self.give_up_stranded(&a_move, next, now);
            }
        }
        if !rebalance.cancelled {
            self.begin_moves(view, &mut state);
        }
        let begun_or_done = state.buckets != view.state.buckets;
        let over = finish(view, &mut state);
        (begun_or_done || over).then_some(state)
    }

    /// The document in which chains that lost a member are whole again, as far as they are.
    pub(super) fn settle(&mut self, view: &View) -> Option<State> {
        self.goals.retain(|(name, vb), _| {
            view.state.buckets.get(name).is_some_and(|bucket| bucket.steps.contains_key(vb))
        });
        let mut next: Option<State> = None;
        for (name, bucket) in &view.state.buckets {
            for (vb, step) in bucket.steps.iter().filter(|(_, step)| matches!(step, Step::Settle { .. })) {
                let Some(active) = bucket.active(*vb) else { continue };
                let a_move = Move { view, name, bucket, vb: *vb, step };
                let chain = &bucket.map[usize::from(*vb)];
                if self.have_caught_up(&a_move, active, chain) {
                    self.note_followed(name, chain);
                    let state = next.get_or_insert_with(|| view.state.next());
                    if let Some(bucket) = state.buckets.get_mut(name) {
                        bucket.steps.remove(vb);
                        bucket.forgot.remove(vb);
                    }
                }
            }
        }
        next
    }

    /// A vBucket's next step, if what this one is for is done.
    fn advance(&mut self, a_move: &Move<'_>, next: &mut Bucket) {
        let (Some(active), Some(target)) =
            (a_move.bucket.active(a_move.vb), a_move.bucket.target_of(a_move.vb))
        else {
            return;
        };
        let done = match a_move.step {
            Step::Build | Step::Both { .. } => self.have_caught_up(a_move, active, target),
            Step::TakeOver { since } => {
                let taker = target.first().copied().flatten();
                taker.and_then(|taker| a_move.role_since(taker, *since)) == Some(Some(VbState::Active))
            }
            Step::Choose { .. } | Step::Settle { .. } => false,
        };
        if !done {
            return;
        }
        let since = a_move.view.state.revision + 1;
        let stays = target.first() == Some(&Some(active));
        match a_move.step {
            Step::Build => {
                next.steps.insert(a_move.vb, Step::Both { since });
            }
            Step::Both { .. } if !stays && !self.may_take_over(a_move, next) => {}
            Step::Both { .. } if !stays => {
                next.steps.insert(a_move.vb, Step::TakeOver { since });
            }
            _ => {
                next.map[usize::from(a_move.vb)] = target.clone();
                next.note_present(a_move.vb);
                if next.forgot.contains_key(&a_move.vb) || self.is_unproven(a_move) {
                    next.steps.insert(a_move.vb, Step::Settle { since });
                } else {
                    next.steps.remove(&a_move.vb);
                }
                self.goals.remove(&(a_move.name.to_owned(), a_move.vb));
            }
        }
    }

    /// Whether all of a chain have, as safely as they can, what the active one had when this step was first looked at.
    /// Whatever was acknowledged before the step is safe with each of them then.
    fn have_caught_up(&mut self, a_move: &Move<'_>, active: NodeId, chain: &Chain) -> bool {
        let Move { view, name, vb, step, .. } = *a_move;
        let since = match step {
            Step::Both { since } | Step::Settle { since } => *since,
            _ => 0,
        };
        let Some(copy) = view.bucket_since(active, name, since).and_then(|report| report.of(name, vb)) else {
            return false;
        };
        if copy.state != Some(VbState::Active) {
            return false;
        }
        let seen = Goal { step: step.clone(), seqno: copy.high_seqno };
        let goal = self.goals.entry((name.to_owned(), vb)).or_insert_with(|| seen.clone());
        if goal.step != *step {
            *goal = seen;
        }
        let seqno = goal.seqno;
        // What an active copy cannot save, because it is damaged, is on the disks of all others then.
        let is_moved = matches!(step, Step::Build | Step::Both { .. });
        let is_beside_others = present(chain).any(|id| id != active);
        let needs_no_disk = is_moved && is_beside_others && view.is_damaged(active, name, vb);
        present(chain).all(|id| {
            let Some(of) = view.report(id).and_then(|report| report.of(name, vb)) else { return false };
            let follows = id == active || of.state == Some(VbState::Replica);
            let is_saved = of.persisted >= seqno
                || (id == active && needs_no_disk && !planted::is(Bug::MoveWaitsForDamaged));
            let has_all = of.uuid == copy.uuid && of.high_seqno >= seqno && is_saved;
            follows && (has_all || planted::is(Bug::MovedTooEarly))
        })
    }

    /// A takeover whose last message was lost leaves nobody active: then the better copy is looked for. So it is if the
    /// taker is gone and the rebalance is to end: as long as the other end serves, nothing was handed over.
    fn give_up_stranded(&mut self, a_move: &Move<'_>, next: &mut Bucket, now: Duration) {
        let Step::TakeOver { since } = *a_move.step else { return };
        let key = (a_move.name.to_owned(), a_move.vb, since);
        let taker = a_move.bucket.target_of(a_move.vb).and_then(|target| target.first().copied().flatten());
        let ends = [a_move.bucket.active(a_move.vb), taker];
        let is_stranded = ends
            .into_iter()
            .flatten()
            .all(|id| a_move.role_since(id, since).is_some_and(|role| role != Some(VbState::Active)));
        if !is_stranded && !is_left_by_taker(a_move, taker, since) {
            self.stranded.remove(&key);
            return;
        }
        let first_seen = *self.stranded.entry(key.clone()).or_insert(now);
        let is_late = now.saturating_sub(first_seen) >= self.config.choice_patience;
        if is_late && !planted::is(Bug::StrandedForEver) {
            self.stranded.remove(&key);
            let since = a_move.view.state.revision + 1;
            next.steps.insert(a_move.vb, Step::Choose { since, taker, needs: None, forced: false });
        }
    }

    /// Begins moves as long as the nodes that take part have few of them.
    fn begin_moves(&self, view: &View, state: &mut State) {
        let mut load: BTreeMap<NodeId, usize> = BTreeMap::new();
        for bucket in state.buckets.values() {
            for vb in bucket.steps.keys() {
                for id in takes_part(bucket, *vb) {
                    *load.entry(id).or_default() += 1;
                }
            }
        }
        for bucket in state.buckets.values_mut() {
            for vb in bucket.vbuckets() {
                let at = usize::from(vb);
                let differs = bucket.target.get(at).is_some_and(|target| *target != bucket.map[at]);
                if !differs || bucket.steps.contains_key(&vb) {
                    continue;
                }
                let nodes = takes_part(bucket, vb);
                let busy = |id: &NodeId| load.get(id).copied().unwrap_or(0) >= self.config.moves_per_node;
                if nodes.iter().any(|id| busy(id) || view.alive(*id).is_none()) {
                    continue;
                }
                for id in nodes {
                    *load.entry(id).or_default() += 1;
                }
                bucket.steps.insert(vb, Step::Build);
            }
        }
    }
}

/// Whether a rebalance that is to end waits for a taker that is gone, while the other end has handed nothing over.
fn is_left_by_taker(a_move: &Move<'_>, taker: Option<NodeId>, since: u64) -> bool {
    let is_to_end = a_move.view.state.rebalance.as_ref().is_some_and(|rebalance| rebalance.cancelled);
    let is_gone = taker.is_some_and(|taker| a_move.view.alive(taker).is_none());
    let serves = |id| a_move.role_since(id, since) == Some(Some(VbState::Active));
    is_to_end && is_gone && a_move.bucket.active(a_move.vb).is_some_and(serves)
}

/// A copy that its node cannot build does not come back now: it is missing again, and the others go on without it.
fn give_up_building(a_move: &Move<'_>, next: &mut Bucket) -> bool {
    let Move { view, name, bucket, vb, step } = *a_move;
    let (Step::Build, Some(target)) = (step, bucket.target_of(vb)) else { return false };
    let is_new = |id: &NodeId| !bucket.chain(vb).contains(&Some(*id));
    let new: Vec<NodeId> = present(target).filter(is_new).collect();
    if !new.iter().any(|id| view.is_unusable(*id, name, vb)) {
        return false;
    }
    let at = usize::from(vb);
    next.steps.remove(&vb);
    next.target[at].clone_from(&bucket.map[at]);
    next.note_missing(vb, new);
    true
}

/// Who has work with the move of a vBucket.
fn takes_part(bucket: &Bucket, vb: u16) -> Vec<NodeId> {
    let chain = bucket.chain(vb);
    let nothing = Chain::new();
    let target = bucket.target_of(vb).unwrap_or(&nothing);
    let new = present(target).filter(|id| !chain.contains(&Some(*id)));
    bucket.active(vb).into_iter().chain(new).collect()
}

/// Whether nothing is under way and nothing is left to do.
fn is_idle(state: &State) -> bool {
    state.buckets.values().all(|bucket| bucket.steps.is_empty()) && state.to_move() == 0
}

/// Whether a node that is to be failed over gracefully, and has handed over everything, has to stay: another one is
/// missing without which it may be the only one that has something.
fn is_needed(purpose: &Purpose, state: &State, view: &View) -> bool {
    match purpose {
        Purpose::GracefulFailover { node } => !command::losses(state, view, *node).is_nothing(),
        _ => false,
    }
}

/// Ends a rebalance that has nothing left to do.
fn finish(view: &View, state: &mut State) -> bool {
    let Some(rebalance) = &state.rebalance else { return false };
    // A chain that settles goes on to do so when a rebalance has ended early: nothing of it is being moved.
    let waits = |step: &Step| !rebalance.cancelled || !matches!(step, Step::Settle { .. });
    let under_way = state.buckets.values().any(|bucket| bucket.steps.values().any(waits));
    let left = state.to_move() > 0;
    let is_cut_off = || rebalance.purpose.lets_nobody_leave() && links::in_the_way(view, state).is_some();
    if under_way || (!rebalance.cancelled && (left || is_cut_off())) {
        return false;
    }
    let is_needed = !left && is_needed(&rebalance.purpose, state, view);
    if is_needed && !rebalance.cancelled {
        return false;
    }
    let rebalance = rebalance.clone();
    let outcome =
        if left || is_needed || rebalance.why.is_some() { Outcome::Cancelled } else { Outcome::Done };
    for bucket in state.buckets.values_mut() {
        bucket.target.clear();
    }
    state.rebalance = None;
    if outcome == Outcome::Done {
        match &rebalance.purpose {
            Purpose::Rebalance { eject } => {
                state.buckets.values_mut().for_each(|bucket| bucket.missing.clear());
                state.nodes.retain(|id, node| !eject.contains(id) && node.status != Status::FailedOver);
            }
            Purpose::Repair => {}
            Purpose::GracefulFailover { node } => {
                // Part of this very revision: what waits for a later one would wait for ever.
                state.revision -= 1;
                *state = command::fail_over(state, *node, false);
            }
        }
    }
    let Rebalance { id, purpose, why, .. } = rebalance;
    state.finished = Some(Finished { id, purpose, outcome, why: why.filter(|_| outcome != Outcome::Done) });
    true
}
