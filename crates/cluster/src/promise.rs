//! Promises by which nodes go on serving while the coordination store is away: no node takes over from another one that
//! it has promised to wait for.
//!
//! A node holds its promises ([`Holder`]) for as long as each of them is surely kept: from every node that could become
//! active in its place, and from a majority of the cluster's nodes. What a node has promised ([`Granter`]) it reports
//! while the leader asks which node becomes active, and the leader waits until it is over.
//!
//! # Invariants
//!
//! - A node that has reported, as of a revision, that it is not bound to a node never promises anything to that node
//!   again before that node has become what the revision says: [`Granter::note_state`] comes before every report.
//! - A process does not know what the process before it promised: it counts as bound to every node for one whole promise.
//!
//! # Units
//!
//! Moments are nanoseconds of the caller's own clock, which must go on while the machine is suspended.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use base::planted::{self, Bug};
use serde::{Deserialize, Serialize};

use crate::fence::Fence;
use crate::membership::{Membership, is_other};
use crate::state::{Bucket, MAX_NODES, NodeId, State, Status, Step, present};
use crate::tenure::{Line, Place, Relation, Tenure};
use crate::view::View;

/// What a node asks of another one: not to take over from it for a time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ask {
    /// The identity of the cluster, and of the branch of its state that `applied` belongs to; empty if it has none.
    pub cluster: String,
    /// The node's identity.
    pub node: String,
    /// Which of its lives asks.
    pub incarnation: u64,
    /// The newest revision beyond which the node serves nothing, although buckets may not be what it says.
    pub applied: u64,
    /// The tenures up to that revision; empty from a version that did not send them. They are sent beside the other
    /// fields, whose proof a version without tenures understands.
    #[serde(skip)]
    pub tenures: Vec<Tenure>,
}

impl Ask {
    fn line(&self) -> Line {
        Line { tenures: self.tenures.clone(), revision: self.applied }
    }
}

/// Why a node promises nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unpromised {
    /// This node does not follow the state that the store holds.
    #[error("this node does not follow the state that the coordination store holds")]
    Stale,
    /// The asking node belongs to another cluster, or has let go as a state of another branch says.
    #[error("the asking node belongs to another cluster, or follows another branch of the cluster's state")]
    OtherCluster,
    /// The asking node goes by a state that neither was made from what this node has seen, nor is one of those that this
    /// was made from.
    #[error(
        "the asking node goes by a state of the cluster that was made without what this node has seen: the \
         coordination store was restored from an older state and has changed since"
    )]
    Diverged,
    /// This node knows a newer state by which others may take over from the asking node.
    #[error("the asking node has to let go of what a newer state of the cluster does not let it serve")]
    Behind,
    /// This node knows a state in which the asking life has no share.
    #[error("the cluster's state does not let the asking node serve")]
    NotServing,
    /// The store has missed the asking node for longer than a promise, and this node reaches the store.
    #[error("this node reaches the coordination store, and the asking node has no lease there")]
    Missed,
    /// The asking node goes by a newer state than this node, in whose state it is open which node serves in its place: the
    /// store may have been restored without the newer one, and this node may have said that it is free.
    #[error(
        "this node does not know the state that the asking node goes by, and knows one in which its place is open"
    )]
    Ahead,
    /// More nodes ask than a cluster can have.
    #[error("more nodes ask than a cluster can have")]
    TooMany,
}

/// The most revisions, seen and not applied yet, of which each is kept by itself.
const MOST_SEEN: usize = 16;

#[derive(Clone, Debug)]
struct Given {
    incarnation: u64,
    until_ns: u64,
    /// What the node went by that asked: it frees nobody, and is looked at by a planted mistake alone.
    applied: u64,
}

/// What is known of the newest state that was followed.
#[derive(Debug)]
struct Known {
    line: Line,
    /// The life of each node that has a share.
    serving: BTreeMap<String, u64>,
    /// The nodes in whose place another one may become active by a choice that is open.
    open: BTreeSet<String>,
}

impl Known {
    fn of(state: &State) -> Known {
        let serving = state.nodes.values().filter(|node| node.status == Status::Active);
        let serving = serving.map(|node| (node.uuid.clone(), node.incarnation)).collect();
        let open = state.buckets.values().flat_map(doubts).filter_map(|(id, _)| state.nodes.get(&id));
        Known { line: Line::of(state), serving, open: open.map(|node| node.uuid.clone()).collect() }
    }
}

/// What the state that an asking node goes by is to the newest state that the asked node has seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stand {
    /// One was made from the other: their revisions can be compared.
    OnLine,
    /// Each was made without the other.
    Elsewhere,
    /// A version without tenures wrote one of them.
    Unknown,
}

/// What one process of a node has promised to others.
#[derive(Debug)]
pub struct Granter {
    lasts: Duration,
    /// Until when what the process before has promised may hold.
    unknown_until_ns: u64,
    given: BTreeMap<String, Given>,
    /// Lives of nodes that said that they serve no more.
    released: BTreeMap<String, u64>,
    known: Option<Known>,
    /// The newest state that the process before has seen.
    seen: Place,
    /// The cluster and the branch of its state that all revisions here belong to.
    cluster: String,
    /// What the asking node must have become at least: what this node had seen before it started, or before it did not
    /// follow the store's state.
    floor: u64,
    /// The last revision that asked which node becomes active in a node's place.
    doubted: BTreeMap<String, u64>,
    is_stale: bool,
    /// When the store was read last.
    looked_ns: u64,
    /// Since when the store has had no member for a node.
    missed: BTreeMap<String, u64>,
}

impl Granter {
    /// Of a process that starts at `now_ns`, whose node has seen so much before; each promise `lasts` so long, as
    /// those of the process before did.
    pub fn new(seen: &Membership, now_ns: u64, lasts: Duration) -> Granter {
        let revision = seen.revision;
        // A node that has seen no state has promised nothing either.
        let unknown_until_ns = if revision == 0 { 0 } else { now_ns.saturating_add(ns(lasts)) };
        Granter {
            lasts,
            unknown_until_ns,
            given: BTreeMap::new(),
            released: BTreeMap::new(),
            known: None,
            seen: seen.place(),
            cluster: seen.cluster.clone(),
            floor: revision,
            doubted: BTreeMap::new(),
            is_stale: false,
            looked_ns: 0,
            missed: BTreeMap::new(),
        }
    }

    /// How long a promise lasts from the moment in which it is given.
    pub fn lasts(&self) -> Duration {
        self.lasts
    }

    /// A state that is followed was read: before the node does or reports anything that it says.
    pub fn note_state(&mut self, state: &State) {
        let is_other = is_other(&self.cluster, &state.cluster);
        let is_known = self.known.as_ref().is_some_and(|known| known.line.place() == state.place());
        if is_known && !is_other && !self.is_stale {
            return;
        }
        if is_other {
            // Revisions of the branch before say nothing about those of this one.
            self.doubted.clear();
            self.floor = state.revision;
        }
        if self.is_stale {
            // What is followed now may not descend from what others have seen.
            self.floor = self.floor.max(state.revision);
        }
        self.is_stale = false;
        for (id, since) in state.buckets.values().flat_map(doubts) {
            if let Some(node) = state.nodes.get(&id) {
                let doubted = self.doubted.entry(node.uuid.clone()).or_default();
                *doubted = since.max(*doubted);
            }
        }
        self.doubted.retain(|uuid, _| state.node_of(uuid).is_some());
        if !state.cluster.is_empty() {
            self.cluster.clone_from(&state.cluster);
        }
        self.known = Some(Known::of(state));
    }

    /// The store holds a state that this node does not follow: the store is not away.
    pub fn note_stale(&mut self) {
        self.is_stale = true;
    }

    /// The store was read at `now_ns`: which nodes it misses.
    pub fn note_members(&mut self, view: &View, now_ns: u64) {
        if !self.is_in_contact(now_ns) {
            self.missed.clear();
        }
        self.looked_ns = now_ns;
        let is_missed = |(id, _): &(&NodeId, _)| view.alive(**id).is_none();
        let missed = view.state.nodes.iter().filter(is_missed).map(|(_, node)| &node.uuid);
        let missed: BTreeSet<&String> = missed.collect();
        self.missed.retain(|uuid, _| missed.contains(uuid));
        self.released.retain(|uuid, _| view.state.node_of(uuid).is_some());
        for uuid in missed {
            self.missed.entry(uuid.clone()).or_insert(now_ns);
        }
    }

    /// The nodes that the store misses and that serve no more: they said so as they stopped, or they have been missed for so
    /// long that no promise of a node that reaches the store holds. The others have missed them for almost as long and
    /// refuse, and what they promised before is over.
    pub fn gone(&self, now_ns: u64) -> BTreeSet<String> {
        let is_long = |since: u64| now_ns >= since.saturating_add(ns(self.lasts).saturating_mul(5) / 2);
        let serving = |uuid: &String| self.known.as_ref().and_then(|known| known.serving.get(uuid));
        let has_ended =
            |uuid: &String| self.released.get(uuid).is_some_and(|life| serving(uuid) == Some(life));
        let is_gone = |uuid: &String, since: u64| has_ended(uuid) || is_long(since);
        let missed = self.missed.iter().filter(|_| self.is_in_contact(now_ns));
        missed.filter(|(uuid, since)| is_gone(uuid, **since)).map(|(uuid, _)| uuid.clone()).collect()
    }

    fn is_in_contact(&self, now_ns: u64) -> bool {
        now_ns < self.looked_ns.saturating_add(ns(self.lasts))
    }

    /// Promises at `now_ns` not to take over from a node for [`Granter::lasts`], or says why not.
    pub fn grant(&mut self, ask: &Ask, now_ns: u64) -> Result<(), Unpromised> {
        self.check(ask, now_ns)?;
        self.given.retain(|_, given| given.until_ns > now_ns);
        if self.given.len() >= MAX_NODES && !self.given.contains_key(&ask.node) {
            return Err(Unpromised::TooMany);
        }
        let before = self.given.get(&ask.node).map_or(0, |given| given.until_ns);
        let until_ns = before.max(now_ns.saturating_add(ns(self.lasts)));
        let (incarnation, applied) = (ask.incarnation, ask.applied);
        self.given.insert(ask.node.clone(), Given { incarnation, until_ns, applied });
        Ok(())
    }

    fn check(&self, ask: &Ask, now_ns: u64) -> Result<(), Unpromised> {
        if planted::is(Bug::PromisedToAnybody) {
            return Ok(());
        }
        if self.is_stale {
            return Err(Unpromised::Stale);
        }
        if self.known.is_none() && self.floor == 0 {
            return Err(Unpromised::Stale);
        }
        if is_other(&self.cluster, &ask.cluster) {
            return Err(Unpromised::OtherCluster);
        }
        let stand = self.stand(ask);
        if stand == Stand::Elsewhere {
            return Err(Unpromised::Diverged);
        }
        let doubted = self.doubted.get(&ask.node).copied().unwrap_or(0);
        if ask.applied < self.floor.max(doubted) {
            return Err(Unpromised::Behind);
        }
        let missed = self.missed.get(&ask.node).filter(|_| self.is_in_contact(now_ns));
        if missed.is_some_and(|since| now_ns >= since.saturating_add(ns(self.lasts))) {
            return Err(Unpromised::Missed);
        }
        let Some(known) = &self.known else { return Ok(()) };
        let serves = known.serving.get(&ask.node) == Some(&ask.incarnation);
        let is_ahead = ask.applied > known.line.revision;
        // Without tenures it is not known whether the store was restored without the state that the asking node goes by;
        // if it was not, this node will have read it before long.
        let is_in_doubt = !serves || self.doubted.contains_key(&ask.node);
        let is_unsure = stand == Stand::Unknown && is_in_doubt && self.is_in_contact(now_ns);
        let is_open = known.open.contains(&ask.node);
        if is_ahead && (is_unsure || is_open) && !planted::is(Bug::BranchesCompared) {
            return Err(Unpromised::Ahead);
        }
        // Who has become what a newer state says knows better.
        if serves || is_ahead { Ok(()) } else { Err(Unpromised::NotServing) }
    }

    /// What the state that a node goes by is to the newest one that this node has seen.
    fn stand(&self, ask: &Ask) -> Stand {
        let theirs = ask.line();
        let seen = self.known.as_ref().map_or(self.seen, |known| known.line.place());
        match theirs.relation_to(seen) {
            Relation::Unknown => return Stand::Unknown,
            Relation::Descends => return Stand::OnLine,
            Relation::Diverged | Relation::Forgotten => {}
        }
        let is_before = match &self.known {
            Some(known) => known.line.relation_to(theirs.place()) == Relation::Descends,
            // Of the process before no more is known than the revision: a node that is behind it is refused anyway.
            None => ask.applied < seen.revision,
        };
        if is_before { Stand::OnLine } else { Stand::Elsewhere }
    }

    /// A life of a node says that it serves no more: no node has to wait for it.
    pub fn release(&mut self, ask: &Ask) {
        if self.given.get(&ask.node).is_some_and(|given| given.incarnation == ask.incarnation) {
            self.given.remove(&ask.node);
        }
        // Of others nothing is kept: who knows the nodes' secret may name any.
        let serving = self.known.as_ref().and_then(|known| known.serving.get(&ask.node));
        if serving == Some(&ask.incarnation) {
            self.released.insert(ask.node.clone(), ask.incarnation);
        }
    }

    /// By bucket, the nodes whose place is in question and which this node has promised to wait for.
    ///
    /// Whether such a node has let go meanwhile is for the store to say, not for what it asked with: if the store was
    /// restored from a backup that this node had not seen beyond, two lines of states have the same revisions.
    pub fn bound(&self, state: &State, now_ns: u64) -> BTreeMap<String, BTreeSet<NodeId>> {
        let is_bound = |(id, since): &(NodeId, u64)| {
            let given = state.nodes.get(id).and_then(|node| self.given.get(&node.uuid));
            let is_freed = |given: &&Given| planted::is(Bug::BranchesCompared) && given.applied >= *since;
            let given = given.filter(|given| given.until_ns > now_ns && !is_freed(given));
            given.is_some() || self.unknown_until_ns > now_ns
        };
        let of = |bucket: &Bucket| {
            doubts(bucket).into_iter().filter(is_bound).map(|(id, _)| id).collect::<BTreeSet<NodeId>>()
        };
        let all = state.buckets.iter().map(|(name, bucket)| (name.clone(), of(bucket)));
        all.filter(|(_, bound)| !bound.is_empty()).collect()
    }
}

/// The nodes that may serve a vBucket for which the best copy is looked for, with the newest revision that asked.
fn doubts(bucket: &Bucket) -> BTreeMap<NodeId, u64> {
    let mut doubts = BTreeMap::new();
    for (vb, step) in &bucket.steps {
        let Step::Choose { since, taker, .. } = step else { continue };
        for id in bucket.active(*vb).into_iter().chain(*taker) {
            let newest: &mut u64 = doubts.entry(id).or_default();
            *newest = (*newest).max(*since);
        }
    }
    doubts
}

/// What others have promised to one life of a node.
#[derive(Clone, Debug, Default)]
pub struct Holder {
    /// Every node that could become active in this one's place: by the revision beyond which it serves nothing, and by
    /// those that it has seen since. Revisions are of the branch that is counted before them.
    takers: BTreeMap<(u64, u64), BTreeSet<String>>,
    /// The branch of the newest state that was seen.
    cluster: String,
    /// Counts the branches that were seen.
    branch: u64,
    /// The cluster's other nodes.
    others: BTreeSet<String>,
    until: BTreeMap<String, u64>,
    /// Whether there is a state that says which nodes to ask.
    has_state: bool,
}

impl Holder {
    /// A state was read: before the node becomes what it says.
    pub fn note_state(&mut self, state: &State, uuid: &str) {
        if is_other(&self.cluster, &state.cluster) {
            self.branch += 1;
        }
        if !state.cluster.is_empty() {
            self.cluster.clone_from(&state.cluster);
        }
        self.takers.insert((self.branch, state.revision), takers(state, uuid));
        while self.takers.len() > MOST_SEEN {
            let (Some((_, first)), Some(mut next)) = (self.takers.pop_first(), self.takers.first_entry())
            else {
                break;
            };
            next.get_mut().extend(first);
        }
        let others = state.nodes.values().filter(|node| node.status == Status::Active && node.uuid != uuid);
        self.others = others.map(|node| node.uuid.clone()).collect();
        // No release reads such a state and does not wait for promises, except those that read the former one.
        self.has_state = !state.is_single();
        let known: BTreeSet<String> = self.asked().into_iter().map(str::to_owned).collect();
        self.until.retain(|uuid, _| known.contains(uuid));
    }

    /// The node serves nothing that a state does not let it, in all buckets.
    pub fn note_let_go(&mut self, state: &State, uuid: &str) {
        if is_other(&self.cluster, &state.cluster) {
            return;
        }
        let as_of = (self.branch, state.revision);
        self.takers.retain(|seen, _| *seen >= as_of);
        self.takers.entry(as_of).or_insert_with(|| takers(state, uuid));
    }

    /// The nodes to ask, by identity.
    pub fn asked(&self) -> BTreeSet<&str> {
        self.others.iter().chain(self.takers.values().flatten()).map(String::as_str).collect()
    }

    /// A node has promised, asked at `sent_ns`, to wait for so long from some moment after that.
    pub fn promised(&mut self, by: &str, sent_ns: u64, lasts: Duration) {
        let end_ns = if planted::is(Bug::PromiseDriftIgnored) {
            sent_ns.saturating_add(ns(lasts))
        } else {
            Fence::end_ns(sent_ns, lasts)
        };
        let until = self.until.entry(by.to_owned()).or_default();
        *until = end_ns.max(*until);
    }

    /// Forgets everything: another life begins.
    pub fn clear(&mut self) {
        self.until.clear();
    }

    /// Until when enough promises are surely kept; 0 if there are too few.
    pub fn until_ns(&self) -> u64 {
        if !self.has_state {
            return 0;
        }
        let until = |uuid: &String| self.until.get(uuid).copied().unwrap_or(0);
        let takers = self.takers.values().flatten().map(until).min().unwrap_or(u64::MAX - 1);
        let mut others: Vec<u64> = self.others.iter().map(until).collect();
        others.sort_unstable_by(|a, b| b.cmp(a));
        // This node counts for itself.
        let needed = others.len().div_ceil(2);
        let majority = needed.checked_sub(1).map_or(u64::MAX - 1, |last| others[last]);
        let majority = if planted::is(Bug::MinorityPromiseCounts) { u64::MAX - 1 } else { majority };
        let takers = if planted::is(Bug::TakerNotAsked) { u64::MAX - 1 } else { takers };
        takers.min(majority)
    }
}

/// Every node that could become active for something that a node is active for, or is taking over.
fn takers(state: &State, uuid: &str) -> BTreeSet<String> {
    let Some((me, _)) = state.node_of(uuid) else { return BTreeSet::new() };
    let mut ids = BTreeSet::new();
    for bucket in state.buckets.values() {
        for vb in bucket.vbuckets() {
            let (chain, target) = (bucket.chain(vb), bucket.target_of(vb).map_or(&[][..], Vec::as_slice));
            if bucket.active(vb) == Some(me) || target.first() == Some(&Some(me)) {
                ids.extend(present(chain).chain(present(target)));
            }
        }
    }
    ids.remove(&me);
    ids.into_iter().filter_map(|id| state.nodes.get(&id)).map(|node| node.uuid.clone()).collect()
}

fn ns(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::{self, Command};
    use crate::report::Member;
    use crate::state::Address;
    use crate::tenure::Writer;

    const LASTS: Duration = Duration::from_nanos(100);

    fn address() -> Address {
        Address::new("h".to_owned(), 1, 2)
    }

    /// Nodes "1", "2", ... with one bucket.
    fn state(nodes: u16, replicas: u8) -> State {
        let mut state = State::empty();
        for at in 1..=nodes {
            let join = Command::Join { uuid: at.to_string(), address: address(), incarnation: 7 };
            state = command::apply(&view(&state), &join).expect("it joins");
        }
        state.nodes.values_mut().for_each(|node| node.status = Status::Active);
        let create = Command::CreateBucket {
            name: "b".to_owned(),
            uuid: "u".to_owned(),
            settings: serde_json::json!({}),
            replicas,
            vbuckets: 4,
            manifest: serde_json::json!({}),
        };
        command::apply(&view(&state), &create).expect("it is made")
    }

    fn view(state: &State) -> View {
        let member = |incarnation| Member {
            incarnation,
            address: address(),
            reads: 2,
            limits: None,
            node_login: true,
            timed_proofs: true,
            moves_stores: true,
        };
        let members = state.nodes.values().map(|node| (node.uuid.clone(), member(node.incarnation)));
        View { state: state.clone(), members: members.collect(), ..View::default() }
    }

    fn seen(revision: u64) -> Membership {
        Membership { revision, ..Membership::default() }
    }

    fn ask(node: &str, applied: u64) -> Ask {
        Ask { node: node.to_owned(), incarnation: 7, applied, ..Ask::default() }
    }

    #[test]
    fn a_node_that_was_never_in_a_cluster_has_promised_nothing() {
        let failed = command::fail_over(&state(3, 2), NodeId(1), false);
        let mut granter = Granter::new(&seen(0), 0, LASTS);
        assert_eq!(granter.grant(&ask("1", 5), 10), Err(Unpromised::Stale));
        granter.note_state(&failed);
        assert!(granter.bound(&failed, 10).is_empty());
    }

    #[test]
    fn a_node_waits_for_whom_it_has_promised_to_wait_for() {
        let calm = state(3, 2);
        let mut granter = Granter::new(&seen(1), 0, LASTS);
        granter.note_state(&calm);
        assert_eq!(granter.grant(&ask("1", calm.revision), 150), Ok(()));
        let failed = command::fail_over(&calm, NodeId(1), false);
        granter.note_state(&failed);
        let bound = |granter: &Granter, now_ns| granter.bound(&failed, now_ns).contains_key("b");
        assert!(bound(&granter, 50), "the process before may have promised something");
        assert!(bound(&granter, 249) && !bound(&granter, 250));
        assert_eq!(granter.grant(&ask("1", calm.revision), 160), Err(Unpromised::Behind));
        let since = failed.revision;
        assert_eq!(granter.grant(&ask("1", since), 160), Err(Unpromised::NotServing));
        assert_eq!(granter.grant(&ask("2", calm.revision), 160), Ok(()), "no choice asks about it");
        granter.release(&Ask { incarnation: 6, ..ask("1", 0) });
        assert!(bound(&granter, 160), "another life has stopped");
        granter.release(&ask("1", 0));
        assert!(!bound(&granter, 160));
    }

    /// As when the store was restored from a backup beyond which this node has seen nothing, and nobody adopted it.
    #[test]
    fn what_a_node_goes_by_that_the_store_does_not_hold_frees_nobody() {
        let calm = state(3, 2);
        let mut granter = Granter::new(&seen(1), 0, LASTS);
        granter.note_state(&calm);
        let ahead = ask("1", calm.revision + 9);
        assert_eq!(granter.grant(&ahead, 10), Ok(()));
        let failed = command::fail_over(&calm, NodeId(1), false);
        granter.note_state(&failed);
        granter.note_members(&view(&failed), 20);
        assert!(granter.bound(&failed, 20).contains_key("b"), "the promise stands");
        assert_eq!(granter.grant(&ahead, 30), Err(Unpromised::Ahead));
        assert!(!granter.bound(&failed, 10 + 100).contains_key("b"), "it is over");
        // Without contact to the store, too: this node has said that it is free.
        assert_eq!(granter.grant(&ahead, 20 + 100), Err(Unpromised::Ahead));
        // What is not open in its state is decided by states that this node has to read first.
        assert_eq!(granter.grant(&ask("2", calm.revision + 9), 20 + 100), Ok(()));
    }

    #[test]
    fn a_process_that_has_seen_no_state_promises_what_it_may() {
        let mut granter = Granter::new(&seen(5), 0, LASTS);
        assert_eq!(granter.grant(&ask("1", 4), 10), Err(Unpromised::Behind));
        assert_eq!(granter.grant(&ask("1", 5), 10), Ok(()));
        granter.note_stale();
        assert_eq!(granter.grant(&ask("1", 5), 10), Err(Unpromised::Stale));
        granter.note_state(&state(3, 1));
        let applied = state(3, 1).revision;
        assert_eq!(granter.grant(&ask("1", applied - 1), 10), Err(Unpromised::Behind));
        assert_eq!(granter.grant(&ask("1", applied), 10), Ok(()));
    }

    #[test]
    fn a_node_that_follows_another_branch_is_promised_nothing() {
        let mut old = state(3, 1);
        old.cluster = "c".to_owned();
        let ahead = Membership::of(&(0..9).fold(old.clone(), |state, _| state.next()));
        let adopted = Membership::of(&old).adopt(&old, 1);
        let mut granter = Granter::new(&Membership::of(&old), 0, LASTS);
        granter.note_state(&old);
        let behind = Ask { cluster: "c".to_owned(), ..ask("1", ahead.revision) };
        assert_eq!(granter.grant(&behind, 10), Ok(()), "it has seen more of the same branch");
        granter.note_state(&adopted);
        assert_eq!(granter.grant(&behind, 20), Err(Unpromised::OtherCluster));
        let follows = Ask { cluster: adopted.cluster.clone(), ..ask("1", adopted.revision) };
        assert_eq!(granter.grant(&follows, 20), Ok(()));
        // Neither does a node that has not heard of the adopted state, however far that has come.
        let mut cut_off = Granter::new(&ahead, 0, LASTS);
        assert_eq!(cut_off.grant(&Ask { applied: 99, ..follows }, 20), Err(Unpromised::OtherCluster));
        let mut bound = Granter::new(&Membership::default(), 0, LASTS);
        bound.note_state(&old);
        assert_eq!(bound.grant(&behind, 10), Ok(()));
        let failed = command::fail_over(&adopted, NodeId(1), false);
        bound.note_state(&failed);
        assert!(
            bound.bound(&failed, 100).contains_key("b"),
            "what was promised by a revision of another branch"
        );
    }

    fn signed(state: &State, writer: &mut Writer, random: u64) -> State {
        let mut next = state.next();
        writer.sign(&mut next, state.revision, random << 11);
        next
    }

    fn ask_as(state: &State) -> Ask {
        Ask { tenures: state.tenures.clone(), ..ask("1", state.revision) }
    }

    #[test]
    fn a_node_that_goes_by_a_state_made_without_what_was_seen_is_promised_nothing() {
        let (mut one, mut two) = (Writer::default(), Writer::default());
        let backup = signed(&state(3, 1), &mut one, 1);
        let lost = (0..9).fold(backup.clone(), |state, _| signed(&state, &mut two, 2));
        let mut granter = Granter::new(&Membership::default(), 0, LASTS);
        granter.note_state(&backup);
        assert_eq!(granter.grant(&ask_as(&lost), 10), Ok(()), "it goes on from what was seen");
        // The store is restored, and goes on without what the asking node has seen.
        let again = signed(&backup, &mut one, 3);
        granter.note_state(&again);
        assert_eq!(granter.grant(&ask_as(&lost), 20), Err(Unpromised::Diverged));
        assert_eq!(granter.grant(&ask_as(&backup), 20), Ok(()), "it is behind, and nothing is in doubt");
        assert_eq!(granter.grant(&ask_as(&again), 20), Ok(()));
        // Nor by the next process, which has the place alone.
        let mut next = Granter::new(&Membership::of(&again), 0, LASTS);
        assert_eq!(next.grant(&ask_as(&lost), 20), Err(Unpromised::Diverged));
        assert_eq!(next.grant(&ask_as(&backup), 20), Err(Unpromised::Behind));
        assert_eq!(next.grant(&ask_as(&again), 20), Ok(()));
        assert_eq!(next.grant(&ask("1", lost.revision), 20), Ok(()), "a version without tenures asks");
    }

    #[test]
    fn a_node_that_only_the_store_misses_is_promised_nothing_after_a_while() {
        let mut view = view(&state(3, 1));
        let mut granter = Granter::new(&seen(0), 0, LASTS);
        granter.note_state(&view.state);
        view.members.remove("1");
        let ask = ask("1", view.state.revision);
        granter.note_members(&view, 1_000);
        assert_eq!(granter.grant(&ask, 1_050), Ok(()), "its lease may come back");
        granter.note_members(&view, 1_090);
        assert_eq!(granter.grant(&ask, 1_100), Err(Unpromised::Missed));
        // Another one may have promised until then, which missed it a little later.
        granter.note_members(&view, 1_180);
        assert_eq!(granter.gone(1_249), BTreeSet::new());
        assert_eq!(granter.gone(1_250), ["1".to_owned()].into());
        assert_eq!(granter.gone(1_400), BTreeSet::new(), "the store is away from this node, too");
        assert_eq!(granter.grant(&ask, 1_400), Ok(()), "the store is away from this node, too");
        granter.note_members(&view, 1_500);
        assert_eq!(granter.grant(&ask, 1_500), Ok(()), "the store has just come back");
        assert_eq!(granter.gone(1_500), BTreeSet::new());
        granter.release(&ask);
        assert_eq!(granter.gone(1_500), ["1".to_owned()].into(), "it said that it stops");
    }

    #[test]
    fn holds_as_long_as_a_majority_and_all_who_could_take_over_promise() {
        let mut state = state(5, 1);
        let bucket = state.buckets.get_mut("b").expect("a bucket");
        for (vb, chain) in bucket.map.iter_mut().enumerate() {
            *chain = vec![Some(NodeId(vb as u32 + 1)), Some(NodeId((vb as u32 + 1) % 5 + 1))];
        }
        let mut holder = Holder::default();
        assert_eq!(holder.until_ns(), 0, "no state");
        holder.note_state(&state, "1");
        holder.note_let_go(&state, "1");
        assert_eq!(holder.asked().into_iter().collect::<Vec<_>>(), ["2", "3", "4", "5"]);
        holder.promised("3", 1_000, LASTS);
        holder.promised("4", 1_010, LASTS);
        assert_eq!(holder.until_ns(), 0, "node 2 could take over");
        holder.promised("2", 900, LASTS);
        assert_eq!(holder.until_ns(), 980);
        holder.promised("2", 1_020, LASTS);
        assert_eq!(holder.until_ns(), 1_090, "the second of a majority's other two");
        holder.clear();
        holder.promised("2", 1_020, LASTS);
        assert_eq!(holder.until_ns(), 0, "a minority");
    }

    #[test]
    fn whom_a_newer_state_names_must_promise_before_the_node_becomes_what_it_says() {
        let before = state(3, 1);
        let mut after = before.next();
        let bucket = after.buckets.get_mut("b").expect("a bucket");
        bucket.map = vec![vec![Some(NodeId(1)), Some(NodeId(2))]; 4];
        let (mut holder, mut first) = (Holder::default(), before.clone());
        first.buckets.get_mut("b").expect("a bucket").map = vec![vec![Some(NodeId(1)), Some(NodeId(3))]; 4];
        holder.note_state(&first, "1");
        holder.note_let_go(&first, "1");
        holder.promised("3", 1_000, LASTS);
        assert_eq!(holder.until_ns(), 1_080);
        holder.note_state(&after, "1");
        assert_eq!(holder.until_ns(), 0, "2 has not promised");
        holder.promised("2", 1_010, LASTS);
        assert_eq!(holder.until_ns(), 1_080);
        holder.note_let_go(&after, "1");
        assert_eq!(holder.until_ns(), 1_090);
    }

    #[test]
    fn one_node_needs_nobody() {
        let mut holder = Holder::default();
        holder.note_state(&state(1, 0), "1");
        assert_eq!(holder.until_ns(), u64::MAX - 1);
        holder.note_state(&state(1, 0).as_single(), "1");
        assert_eq!(holder.until_ns(), 0, "a node of a version that does not wait may lead");
    }
}
