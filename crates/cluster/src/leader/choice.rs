//! Who becomes active where nobody is: the best copy, once all who may have served have surely stopped.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use base::planted::{self, Bug};

use super::Leader;
use crate::report::{Report, VbReport};
use crate::state::{Bucket, Chain, Node, NodeId, State, Status, Step, majority, present};
use crate::view::View;

/// What has become of a choice.
enum Choice {
    /// Something is not known yet.
    Open,
    /// Not without this node, which was failed over and is there again.
    TakeBack(NodeId),
    /// All who belong to the vBucket have lost it; this node, which was failed over, has kept it.
    Kept(NodeId),
    /// This is the chain now.
    Made {
        /// Who has the vBucket.
        chain: Chain,
        /// Who belongs to them and has to follow first.
        missing: Vec<NodeId>,
    },
}

/// What nodes say that may have something of a vBucket.
#[derive(Default)]
struct Answers {
    /// Who has a copy, and how far it is.
    known: Vec<(NodeId, VbReport)>,
    /// Who has none.
    empty: Vec<NodeId>,
    /// Whether one that is alive has not said anything yet.
    silent: bool,
}

/// A node has not said yet what it has.
struct Silent;

/// One choice to be made.
struct Question<'a> {
    view: &'a View,
    name: &'a str,
    vb: u16,
    bucket: &'a Bucket,
    chain: &'a [Option<NodeId>],
    since: u64,
    taker: Option<NodeId>,
    needs: Option<NodeId>,
    forced: bool,
    /// Whether nodes that say nothing have been waited for long enough.
    is_late: bool,
}

impl Leader {
    /// The document in which all choices are made that can be made.
    pub(super) fn choose(&mut self, view: &View, now: Duration) -> Option<State> {
        let mut open = BTreeSet::new();
        let mut next: Option<State> = None;
        for (name, bucket) in &view.state.buckets {
            for (vb, step) in &bucket.steps {
                let Step::Choose { since, taker, needs, forced } = *step else { continue };
                open.insert(since);
                let first_seen = *self.choices.entry(since).or_insert(now);
                let is_late = now.saturating_sub(first_seen) >= self.config.choice_patience;
                let chain = bucket.chain(*vb);
                let question =
                    Question { view, name, vb: *vb, bucket, chain, since, taker, needs, forced, is_late };
                match question.answer() {
                    Choice::Open => {}
                    Choice::TakeBack(id) => {
                        let state = next.get_or_insert_with(|| view.state.next());
                        state.nodes.entry(id).and_modify(|node| node.status = Status::Active);
                    }
                    Choice::Kept(id) => {
                        let state = next.get_or_insert_with(|| view.state.next());
                        state.nodes.entry(id).and_modify(|node| node.status = Status::Active);
                        let since = view.state.revision + 1;
                        let step = Step::Choose { since, taker: Some(id), needs: None, forced };
                        if let Some(bucket) = state.buckets.get_mut(name) {
                            bucket.steps.insert(*vb, step);
                        }
                    }
                    Choice::Made { chain, missing } => {
                        let state = next.get_or_insert_with(|| view.state.next());
                        if let Some(bucket) = state.buckets.get_mut(name) {
                            settle(bucket, *vb, chain, missing, view.state.revision + 1);
                        }
                    }
                }
            }
        }
        self.choices.retain(|since, _| open.contains(since));
        if let Some(state) = &mut next {
            state.epoch += 1;
        }
        next
    }
}

fn settle(bucket: &mut Bucket, vb: u16, chain: Chain, missing: Vec<NodeId>, since: u64) {
    if present(&chain).count() > 1 && !planted::is(Bug::NotSettled) {
        bucket.steps.insert(vb, Step::Settle { since });
    } else {
        bucket.steps.remove(&vb);
        bucket.forgot.remove(&vb);
    }
    bucket.map[usize::from(vb)] = chain;
    bucket.note_missing(vb, missing);
}

/// Nodes that were failed over by force and may still serve, by bucket, with the number of vBuckets that no other node has
/// and that therefore wait for them.
pub fn awaited(view: &View) -> BTreeMap<(&str, NodeId), usize> {
    let mut awaited = BTreeMap::new();
    for (name, bucket) in &view.state.buckets {
        for (vb, step) in &bucket.steps {
            let Step::Choose { since, taker, needs, forced: true } = *step else { continue };
            let (vb, chain) = (*vb, bucket.chain(*vb));
            let question =
                Question { view, name, vb, bucket, chain, since, taker, needs, forced: true, is_late: true };
            let answers = |id: &NodeId| view.state.is_active(*id) && view.alive(*id).is_some();
            if present(chain).chain(taker).any(|id| answers(&id)) {
                continue;
            }
            for id in question.suspects().filter(|id| !question.is_over(*id)) {
                *awaited.entry((name.as_str(), id)).or_default() += 1;
            }
        }
    }
    awaited
}

/// Nodes that were started again and are not known to have everything since, by bucket, with the number of their vBuckets:
/// until they are, an active node may be alone with durable writes. vBuckets of which a node is down are left out, as they
/// wait for somebody who starts it.
pub fn settling(view: &View) -> BTreeMap<(&str, NodeId), usize> {
    let mut settling = BTreeMap::new();
    for (name, bucket) in &view.state.buckets {
        for (vb, step) in &bucket.steps {
            let all_live = present(bucket.chain(*vb)).all(|id| view.alive(id).is_some());
            if !matches!(step, Step::Settle { .. }) || !all_live {
                continue;
            }
            for id in bucket.forgot.get(vb).into_iter().flatten() {
                *settling.entry((name.as_str(), *id)).or_default() += 1;
            }
        }
    }
    settling
}

/// Nodes without which no copy becomes active, by bucket, with the number of vBuckets that wait for them: they do not answer,
/// and may be alone with durable writes.
pub fn missed(view: &View) -> BTreeMap<(&str, NodeId), usize> {
    let mut missed = BTreeMap::new();
    for (name, bucket) in &view.state.buckets {
        for (vb, step) in &bucket.steps {
            let Step::Choose { since, taker, needs, forced: false } = *step else { continue };
            let (vb, chain) = (*vb, bucket.chain(*vb));
            let question =
                Question { view, name, vb, bucket, chain, since, taker, needs, forced: false, is_late: true };
            if !matches!(question.answer(), Choice::Open) {
                continue;
            }
            let gone = present(chain).chain(needs).filter(|id| view.alive(*id).is_none());
            for id in gone.collect::<BTreeSet<_>>() {
                *missed.entry((name.as_str(), id)).or_default() += 1;
            }
        }
    }
    missed
}

/// Nodes that answer and say that they have no copy, and without which no copy becomes active, by bucket, with the number of
/// vBuckets that wait for them: what they had may be the only copy of durable writes.
pub fn lacking(view: &View) -> BTreeMap<(&str, NodeId), usize> {
    let mut lacking = BTreeMap::new();
    for (name, bucket) in &view.state.buckets {
        for (vb, step) in &bucket.steps {
            let Step::Choose { since, taker, needs: Some(needed), forced: false } = *step else { continue };
            let (vb, chain) = (*vb, bucket.chain(*vb));
            let of = |needs| Question {
                view,
                name,
                vb,
                bucket,
                chain,
                since,
                taker,
                needs,
                forced: false,
                is_late: true,
            };
            let question = of(Some(needed));
            let says_so = question.ask().empty.contains(&needed);
            // Without the need it would be made.
            let is_why =
                || matches!(question.answer(), Choice::Open) && !matches!(of(None).answer(), Choice::Open);
            if says_so && is_why() {
                *lacking.entry((name.as_str(), needed)).or_default() += 1;
            }
        }
    }
    lacking
}

impl Question<'_> {
    fn answer(&self) -> Choice {
        if self.suspects().any(|id| !self.view.has_stopped(id, self.name, self.since))
            && !planted::is(Bug::ChosenTooEarly)
        {
            return Choice::Open;
        }
        let Answers { known, empty, silent } = self.ask();
        if silent && !self.is_late {
            return Choice::Open;
        }
        let answered = || known.iter().map(|(id, _)| *id).chain(empty.iter().copied());
        if answered().any(|id| self.is_bound(id)) && !planted::is(Bug::PromisesNotWaitedFor) {
            return Choice::Open;
        }
        let is_unknown = |id: &NodeId| {
            let has_said = empty.contains(id) || known.iter().any(|(known, _)| known == id);
            !has_said && self.said_away(*id) != Some(false)
        };
        let unknown = present(self.chain).filter(is_unknown).count();
        // Whoever may have forgotten what it had acknowledged, as one without a copy has, says as little as one who is
        // silent. If nobody is silent there is nothing more to wait for.
        let forgetful = known.iter().filter(|(id, _)| self.bucket.has_forgotten(self.vb, *id)).count();
        let forgetful = forgetful + present(self.chain).filter(|id| empty.contains(id)).count();
        let are_few = unknown > 0 && unknown + forgetful >= majority(self.chain);
        if are_few && !self.forced && !planted::is(Bug::ChosenByFew) {
            return self
                .witness()
                .filter(|_| !planted::is(Bug::WitnessNotAsked))
                .map_or(Choice::Open, Choice::TakeBack);
        }
        if known.is_empty()
            && self.is_gone(&empty)
            && let Some(begun) = self.begin_empty(&empty)
        {
            return begun;
        }
        let is_needed_gone = self.needs.is_some_and(|needs| self.is_gone_for_good(needs, &known, &empty));
        if is_needed_gone || self.have_nothing(present(self.chain), &empty) {
            let best = known.iter().map(|(_, copy)| (copy.high_prepared, copy.high_seqno)).max();
            match self.kept_by_others() {
                Err(Silent) => return Choice::Open,
                Ok(Some((prepared, seqno, id))) if best < Some((prepared, seqno)) => return Choice::Kept(id),
                Ok(_) => {}
            }
        }
        let is_known = |id: NodeId| known.iter().any(|(known, _)| *known == id);
        let is_missed =
            |needs: NodeId| !is_known(needs) && !self.is_replaced(needs, &known) && !is_needed_gone;
        if self.needs.is_some_and(is_missed) && !self.forced {
            return Choice::Open;
        }
        let place = |id: NodeId| self.chain.iter().position(|at| *at == Some(id)).unwrap_or(self.chain.len());
        let best = known
            .iter()
            .max_by_key(|(id, copy)| (copy.high_prepared, copy.high_seqno, std::cmp::Reverse(place(*id))));
        let best = if planted::is(Bug::FirstIsChosen) { known.first() } else { best };
        match best {
            Some((best, _)) => self.chain_of(*best, &known),
            None if self.forced && !silent && self.is_given_up() => {
                Choice::Made { chain: vec![None; self.chain.len()], missing: Vec::new() }
            }
            None => Choice::Open,
        }
    }

    /// Whether the copy that the choice needs is damaged, and the others have every durable write all the same.
    ///
    /// The chain has not settled, so that nodes which left it count among those that may have been alone with a write:
    /// fewer than a majority of all places.
    fn is_replaced(&self, needs: NodeId, known: &[(NodeId, VbReport)]) -> bool {
        let is_sure = |id: &NodeId| {
            let has_answered = known.iter().any(|(known, _)| known == id);
            has_answered && !self.bucket.has_forgotten(self.vb, *id)
        };
        let sure = present(self.chain).filter(is_sure).count();
        let are_enough = sure > 0 && self.chain.len() - sure < majority(self.chain);
        self.is_unusable(needs) && (are_enough || planted::is(Bug::DamagedNotNeeded))
    }

    /// What the nodes say that may have something of the vBucket.
    fn ask(&self) -> Answers {
        let mut askable: Vec<NodeId> = present(self.chain).chain(self.taker).collect();
        askable.sort_unstable();
        askable.dedup();
        askable.retain(|id| self.view.state.is_active(*id) && self.view.alive(*id).is_some());
        let Answers { mut known, mut empty, mut silent } = Answers::default();
        for id in askable {
            // What it has proves nothing, and what it had is not known.
            if self.is_unusable(id) {
                continue;
            }
            match self.view.bucket_since(id, self.name, self.since) {
                // What it says of the vBucket may come a moment later than that it has stopped.
                Some(report) => match report.of(self.name, self.vb) {
                    Some(copy) if copy.state.is_some() => known.push((id, *copy)),
                    Some(_) => empty.push(id),
                    None => silent = true,
                },
                None => silent = true,
            }
        }
        Answers { known, empty, silent }
    }

    fn is_unusable(&self, id: NodeId) -> bool {
        self.view.is_unusable(id, self.name, self.vb) && !planted::is(Bug::DamagedMeansEmpty)
    }

    /// Who may have served the vBucket.
    fn suspects(&self) -> impl Iterator<Item = NodeId> {
        self.chain.first().copied().flatten().into_iter().chain(self.taker)
    }

    /// Whether a node that has answered has promised not to take over yet from one that may serve without its lease.
    fn is_bound(&self, id: NodeId) -> bool {
        let report = self.view.bucket_since(id, self.name, self.since);
        self.suspects().any(|suspect| {
            !self.view.has_ended(suspect, self.name, self.since)
                && report.is_some_and(|report| report.is_bound(self.name, suspect))
        })
    }

    /// Whether no node serves the vBucket any more that may be the only one with a copy: after this it may begin empty on
    /// any node, and the nodes that answer are not all that could have promised to wait for it.
    fn is_given_up(&self) -> bool {
        planted::is(Bug::GivenUpTooEarly) || self.suspects().all(|id| self.is_over(id))
    }

    fn is_over(&self, suspect: NodeId) -> bool {
        let is_said = self.view.state.nodes.get(&suspect).is_some_and(|node| node.stopped);
        is_said || self.view.has_ended(suspect, self.name, self.since) || self.has_no_majority(suspect)
    }

    /// Whether too few nodes can have promised a node anything that still holds: each of the others has seen this choice and
    /// is free of promises to it. Nodes that were failed over count, too, since the node may not know that they were.
    fn has_no_majority(&self, suspect: NodeId) -> bool {
        let counts = |status| matches!(status, Status::Active | Status::FailedOver);
        let nodes = self.view.state.nodes.iter();
        let others = nodes.filter(|(id, node)| **id != suspect && counts(node.status));
        let others: Vec<NodeId> = others.map(|(id, _)| *id).collect();
        let is_free = |id: &&NodeId| {
            let report = self.view.bucket_since(**id, self.name, self.since);
            report.is_some_and(|report| !report.is_bound(self.name, suspect))
        };
        others.iter().filter(is_free).count() > others.len() / 2
    }

    /// Whether nobody has anything of the vBucket any more, as all of an ephemeral bucket's nodes were started anew: all
    /// who belong to it have said so, and so has everybody else who may have kept a copy.
    fn is_gone(&self, empty: &[NodeId]) -> bool {
        if self.view.state.nodes.keys().any(|id| self.is_unusable(*id)) {
            return false;
        }
        let keeps = |(id, node): (&NodeId, &Node)| {
            let kept =
                |report: &Report| report.kept.get(self.name).is_some_and(|kept| kept.contains(&self.vb));
            let is_away = node.status.keeps_copies();
            // The memory of a process that is gone is gone, too.
            let is_dead = self.bucket.is_ephemeral() && self.is_late && self.view.alive(*id).is_none();
            is_away && !is_dead && self.view.bucket_since(*id, self.name, self.since).is_none_or(kept)
        };
        self.have_nothing(present(self.chain).chain(self.taker), empty)
            && !self.bucket.missing.contains_key(&self.vb)
            && !self.view.state.nodes.iter().any(keeps)
    }

    /// Whether all of these nodes have said that they have none of the vBucket.
    fn have_nothing(&self, mut of: impl Iterator<Item = NodeId>, empty: &[NodeId]) -> bool {
        of.all(|id| empty.contains(&id) || self.said_away(id) == Some(false))
    }

    /// Whether a node has said that it has none of the vBucket, and it is not waited for: its process was started again, and
    /// there is no disk that brings it back, or no other copy has anything either, as in a bucket that was just made.
    fn is_gone_for_good(&self, id: NodeId, known: &[(NodeId, VbReport)], empty: &[NodeId]) -> bool {
        let is_blank = |(_, copy): &(NodeId, VbReport)| copy.high_seqno == 0 && copy.high_prepared == 0;
        let is_over = self.bucket.is_ephemeral() || known.iter().all(is_blank);
        is_over && empty.contains(&id) && !planted::is(Bug::LoneBeginsEmpty)
    }

    /// The last prepare, the last change and the node of the best copy among those that nodes have kept which were failed
    /// over. Each of them that is alive is heard first.
    fn kept_by_others(&self) -> Result<Option<(u64, u64, NodeId)>, Silent> {
        let nodes = self.view.state.nodes.iter();
        let away = nodes.filter(|(id, node)| node.status.keeps_copies() && self.view.alive(**id).is_some());
        let mut best = None;
        for id in away.map(|(id, _)| *id).filter(|id| !self.is_unusable(*id)) {
            match self.view.bucket_since(id, self.name, self.since) {
                Some(report) => {
                    let copy = report.of(self.name, self.vb).filter(|copy| copy.state.is_some());
                    best = best.max(copy.map(|copy| (copy.high_prepared, copy.high_seqno, id)));
                }
                None if self.is_late => {}
                None => return Err(Silent),
            }
        }
        Ok(best)
    }

    /// The chain begins with nothing, and with a new history; `None` if none of its nodes is left.
    fn begin_empty(&self, empty: &[NodeId]) -> Option<Choice> {
        let members = present(self.chain).filter(|id| empty.contains(id));
        let mut chain: Chain = members.map(Some).collect();
        if chain.is_empty() {
            return None;
        }
        chain.resize(self.chain.len(), None);
        Some(Choice::Made { chain, missing: Vec::new() })
    }

    /// One of the chain who was failed over, is alive and still has a copy: others have forgotten since then what it may
    /// be alone with.
    fn witness(&self) -> Option<NodeId> {
        present(self.chain).find(|id| self.said_away(*id) == Some(true))
    }

    /// What one says who was failed over and is alive: whether it has a copy. It keeps what it has until all choices are
    /// made. What a damaged copy held is not known.
    fn said_away(&self, id: NodeId) -> Option<bool> {
        if self.is_unusable(id) && !planted::is(Bug::DamagedAwayIsEmpty) {
            return None;
        }
        let status = self.view.state.nodes.get(&id)?.status;
        let report = self.view.bucket_since(id, self.name, self.since)?;
        let is_away = status.keeps_copies();
        report.of(self.name, self.vb).filter(|_| is_away).map(|copy| copy.state.is_some())
    }

    /// The chain that `best` leads: whoever was in it, was not failed over, and said what it has, follows.
    ///
    /// None of those has a prepare that `best` does not have, so that whatever is prepared after this is newer than
    /// what any of them has: a later choice by the last prepare is right. Of others that is not known.
    fn chain_of(&self, best: NodeId, known: &[(NodeId, VbReport)]) -> Choice {
        let others = present(self.chain).filter(|id| *id != best && self.view.state.is_active(*id));
        let (rest, missing): (Vec<_>, Vec<_>) = others.partition(|id| {
            known.iter().any(|(known, _)| known == id) || planted::is(Bug::SilentStaysInChain)
        });
        let mut chain: Chain = std::iter::once(best).chain(rest).map(Some).collect();
        chain.resize(self.chain.len(), None);
        Choice::Made { chain, missing }
    }
}
