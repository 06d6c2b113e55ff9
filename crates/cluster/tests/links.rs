//! Links between nodes that do not come about although the nodes are up, and moves whose nodes are gone.

#[cfg(debug_assertions)]
#[path = "../../simulation/src/known.rs"]
mod known;
mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use base::VbState;
use cluster::command::{self, Command};
use cluster::state::Outcome;
use cluster::{Agent, Applied, Leader, LeaderConfig, NodeId, Refused, State, Step, VbReport, View, Want};
use serde_json::json;
use support::{BUCKET, address, lives, reports, three, view_of};

const WHY: &str = "TLS: CaUsedAsEndEntity";
const VBUCKETS: u16 = 8;
/// So many looks, of a second each, a link is down before it is reported.
const LOOKS_UNTIL_TOLD: u32 = 10;
const MOST_LOOKS: u64 = 200;

/// Nodes whose copies follow at once where there is a link.
struct World {
    view: View,
    leader: Leader,
    now: Duration,
    copies: BTreeMap<(u32, u16), VbReport>,
    /// Links that do not come about: who follows, and whom.
    broken: BTreeSet<(u32, u32)>,
    /// For how many looks they have been wanted.
    wanted: BTreeMap<(u32, u32), u32>,
    next_uuid: u64,
}

impl World {
    /// One active node with a bucket, and others that have joined.
    fn new(nodes: u32) -> World {
        let mut view = view_of(State::empty());
        let join = |id: u32| Command::Join { uuid: id.to_string(), address: address(id), incarnation: 10 };
        view.state = command::apply(&view, &join(1)).expect("it joins");
        let create = Command::CreateBucket {
            name: BUCKET.to_owned(),
            uuid: "0".repeat(32),
            settings: json!({}),
            replicas: 1,
            vbuckets: VBUCKETS,
            manifest: json!({ "uid": "0" }),
        };
        view.state = command::apply(&view, &create).expect("it is made");
        for id in 2..=nodes {
            view.state = command::apply(&view, &join(id)).expect("it joins");
        }
        (1..=nodes).for_each(|id| lives(&mut view, id, 10));
        World {
            view,
            leader: Leader::new(LeaderConfig::default()),
            now: Duration::ZERO,
            copies: BTreeMap::new(),
            broken: BTreeSet::new(),
            wanted: BTreeMap::new(),
            next_uuid: 1,
        }
    }

    fn ask(&mut self, command: &Command) {
        self.view.state = command::apply(&self.view, command).expect("it is taken");
    }

    /// Every node becomes what the state says, and says so; then the leader looks.
    fn look(&mut self) {
        self.now += Duration::from_secs(1);
        let alive: Vec<u32> = self.view.members.keys().map(|uuid| uuid.parse().expect("a number")).collect();
        let mut tried = BTreeSet::new();
        for _ in 0..2 {
            alive.iter().for_each(|id| (0..VBUCKETS).for_each(|vb| self.become_wanted(*id, vb, &mut tried)));
        }
        self.wanted.retain(|link, _| tried.contains(link));
        tried.iter().for_each(|link| *self.wanted.entry(*link).or_default() += 1);
        alive.iter().for_each(|id| self.report(*id));
        if let Some(next) = self.leader.step(&self.view, self.now) {
            self.view.state = next;
        }
    }

    fn become_wanted(&mut self, id: u32, vb: u16, tried: &mut BTreeSet<(u32, u32)>) {
        let Some(agent) = Agent::new(&self.view.state, &id.to_string(), 10) else { return };
        let is = self.copies.get(&(id, vb)).and_then(|copy| copy.state);
        let mut copy = self.copies.get(&(id, vb)).copied().unwrap_or(VbReport::NOTHING);
        match agent.want(&self.view.state.buckets[BUCKET], vb, is) {
            Want::Active { .. } if is != Some(VbState::Active) => copy = self.active(copy),
            Want::Replica { source } | Want::TakeOver { source } if self.is_broken(id, source) => {
                tried.insert((id, source.0));
                copy.state = Some(VbState::Replica);
            }
            Want::Replica { source } => {
                copy = self.copies.get(&(source.0, vb)).copied().unwrap_or(copy);
                copy.state = Some(VbState::Replica);
            }
            Want::TakeOver { source } if is != Some(VbState::Active) => {
                let Some(other) = self.copies.get_mut(&(source.0, vb)) else { return };
                if other.state != Some(VbState::Active)
                    || !self.view.members.contains_key(&source.0.to_string())
                {
                    return;
                }
                other.state = Some(VbState::Dead);
                copy = self.active(copy);
            }
            Want::Gone => copy = VbReport::NOTHING,
            _ => return,
        }
        self.copies.insert((id, vb), copy);
    }

    fn active(&mut self, copy: VbReport) -> VbReport {
        self.next_uuid += 1;
        VbReport { state: Some(VbState::Active), uuid: self.next_uuid, ..copy }
    }

    fn is_broken(&self, id: u32, source: NodeId) -> bool {
        self.broken.contains(&(id, source.0)) || !self.view.members.contains_key(&source.0.to_string())
    }

    fn report(&mut self, id: u32) {
        let state = &self.view.state;
        let Some(agent) = Agent::new(state, &id.to_string(), 10) else { return };
        let of = |_: &str, vb: u16| self.copies.get(&(id, vb)).copied().unwrap_or(VbReport::NOTHING);
        let mut report = agent.report(state, &Applied::from(state.revision), of);
        for ((follower, source), looks) in &self.wanted {
            if *follower == id && *looks >= LOOKS_UNTIL_TOLD {
                let of = report.links_down.entry(BUCKET.to_owned()).or_default();
                of.insert(NodeId(*source), WHY.to_owned());
            }
        }
        self.view.reports.insert(id.to_string(), report);
    }

    /// Until a link that is down is reported, and a little longer.
    fn look_often(&mut self) {
        for _ in 0..LOOKS_UNTIL_TOLD + 5 {
            self.look();
        }
    }

    fn look_until(&mut self, is_so: impl Fn(&State) -> bool) {
        for _ in 0..MOST_LOOKS {
            if is_so(&self.view.state) {
                return;
            }
            self.look();
        }
        panic!("it does not come: {:?}", self.view.state);
    }

    /// Looks until the rebalance has ended; how it did.
    fn end(&mut self) -> (Outcome, String) {
        self.look_until(|state| state.rebalance.is_none());
        let finished = self.view.state.finished.as_ref().expect("one has ended");
        (finished.outcome, finished.why.clone().unwrap_or_default())
    }

    fn rebalance(&mut self) -> (Outcome, String) {
        self.ask(&Command::Rebalance { eject: Vec::new() });
        self.end()
    }

    fn served_by(&self, id: u32) -> Vec<u16> {
        let bucket = &self.view.state.buckets[BUCKET];
        bucket.vbuckets().filter(|vb| bucket.active(*vb) == Some(NodeId(id))).collect()
    }

    fn fail_over(&self, id: u32) -> Result<State, Refused> {
        command::apply(&self.view, &Command::FailOver { node: NodeId(id), force: false })
    }
}

fn one_vbucket_is_tried() {
    let mut world = World::new(2);
    world.look();
    world.broken.insert((1, 2));
    let (outcome, why) = world.rebalance();
    assert_eq!(outcome, Outcome::Cancelled);
    assert!(why.contains("n_1 has had no connection to n_2") && why.ends_with(WHY), "{why}");
    assert_eq!(world.served_by(2).len(), 1, "no more is taken over before it was followed");
    let bucket = &world.view.state.buckets[BUCKET];
    let step = bucket.steps.get(&world.served_by(2)[0]);
    assert!(bucket.steps.len() == 1 && matches!(step, Some(Step::Settle { .. })), "{:?}", bucket.steps);
    assert!(bucket.target.is_empty());
    // It is known that nothing of it was ever followed, whatever the nodes say later.
    world.view.members.remove("2");
    world.look();
    assert_eq!(world.fail_over(2), Err(Refused::Unsafe(1)));
    let forced = Command::FailOver { node: NodeId(2), force: true };
    assert!(command::apply(&world.view, &forced).is_ok());
}

#[test]
fn a_rebalance_ends_if_a_link_never_comes_about() {
    one_vbucket_is_tried();
}

#[test]
fn a_rebalance_goes_on_when_the_link_comes_about() {
    let mut world = World::new(2);
    world.look();
    world.broken.insert((1, 2));
    world.ask(&Command::Rebalance { eject: Vec::new() });
    world.look_often();
    assert!(world.view.state.rebalance.is_some() && world.served_by(2).len() == 1);
    world.broken.clear();
    assert_eq!(world.end(), (Outcome::Done, String::new()));
    assert_eq!(world.served_by(2).len(), usize::from(VBUCKETS) / 2);
    assert!(world.view.state.buckets[BUCKET].steps.is_empty());
    assert!(world.fail_over(2).is_ok());
    // It can be asked for again after one that ended early.
    let mut again = World::new(3);
    again.look();
    again.broken.insert((1, 3));
    assert_eq!(again.rebalance().0, Outcome::Cancelled);
    again.broken.clear();
    assert_eq!(again.rebalance(), (Outcome::Done, String::new()));
}

/// The link that new copies are built by is down.
#[test]
fn a_rebalance_ends_if_nothing_can_be_built() {
    let mut world = World::new(2);
    world.look();
    world.broken.insert((2, 1));
    let (outcome, why) = world.rebalance();
    assert_eq!(outcome, Outcome::Cancelled);
    assert!(why.contains("n_2 has had no connection to n_1"), "{why}");
    assert_eq!(world.served_by(1).len(), usize::from(VBUCKETS), "the map is as it was");
    assert!(world.view.state.buckets[BUCKET].steps.is_empty());
}

/// Nothing is to be moved, and copies do not follow.
#[test]
fn vbuckets_are_not_spread_while_a_link_is_down() {
    let mut world = World::new(2);
    world.look();
    assert_eq!(world.rebalance().0, Outcome::Done);
    world.broken.insert((1, 2));
    world.look_often();
    let (outcome, why) = world.rebalance();
    assert!(outcome == Outcome::Cancelled && why.contains("n_1"), "{outcome:?}: {why}");
    // The node that is cut off can leave all the same: the other one has everything.
    world.ask(&Command::Rebalance { eject: vec![NodeId(1)] });
    assert_eq!(world.end().0, Outcome::Done);
    assert_eq!(world.served_by(2).len(), usize::from(VBUCKETS));
}

/// A link between other nodes is down, which what moves does not need.
#[test]
fn a_node_leaves_although_a_link_of_others_is_down() {
    let leaves = |follower: u32, source: u32| {
        let mut world = World::new(4);
        world.look();
        assert_eq!(world.rebalance().0, Outcome::Done);
        world.broken.insert((follower, source));
        world.look_often();
        let is_needed = !world.view.state.buckets[BUCKET].links_down.is_empty();
        world.ask(&Command::Rebalance { eject: vec![NodeId(4)] });
        is_needed && world.end().0 == Outcome::Done
    };
    let pairs = [(1, 2), (1, 3), (2, 1), (2, 3), (3, 1), (3, 2)];
    assert!(pairs.iter().any(|(follower, source)| leaves(*follower, *source)));
}

/// The links of nodes 2 and 3 to node 1, or that of node 2 alone, are down; then node 1 is gone.
fn cut_off(followers: &[u32]) -> View {
    let mut view = three();
    reports(&mut view, 1, VbState::Active, 5);
    (2..=3).for_each(|id| reports(&mut view, id, VbState::Replica, 5));
    for id in followers {
        let report = view.reports.get_mut(&id.to_string()).expect("it reports");
        report.links_down =
            BTreeMap::from([(BUCKET.to_owned(), BTreeMap::from([(NodeId(1), WHY.to_owned())]))]);
    }
    let mut leader = Leader::new(LeaderConfig::default());
    view.state = leader.step(&view, Duration::ZERO).expect("it notes that");
    assert_eq!(leader.step(&view, Duration::ZERO), None, "once");
    view.members.remove("1");
    (2..=3).for_each(|id| reports(&mut view, id, VbState::Replica, 5));
    assert_eq!(leader.step(&view, Duration::from_secs(1)), None, "it is not forgotten");
    view
}

const FAIL_OVER: Command = Command::FailOver { node: NodeId(1), force: false };

fn a_copy_without_a_connection_is_not_taken() {
    let view = cut_off(&[2, 3]);
    let followers = vec![NodeId(2), NodeId(3)];
    let refused = Refused::NotFollowed { node: NodeId(1), vbuckets: 1, followers };
    assert!(refused.to_string().contains("copies on n_2, n_3 miss what changed on n_1"), "{refused}");
    assert_eq!(command::apply(&view, &FAIL_OVER), Err(refused));
}

#[test]
fn copies_without_a_connection_are_not_taken_without_force() {
    a_copy_without_a_connection_is_not_taken();
    let mut view = cut_off(&[2, 3]);
    // Nor by itself.
    let mut leader = Leader::new(LeaderConfig::default());
    let looks = (0..60).map(|s| leader.step(&view, Duration::from_secs(s)));
    assert!(looks.into_iter().all(|next| next.is_none()));
    assert!(command::apply(&view, &Command::FailOver { node: NodeId(1), force: true }).is_ok());
    // One of them had a connection: that is chosen.
    assert!(command::apply(&cut_off(&[2]), &FAIL_OVER).is_ok());
    // The node is back, and is followed.
    lives(&mut view, 1, 10);
    view.state = leader.step(&view, Duration::from_secs(61)).expect("it notes that");
    assert!(view.state.buckets[BUCKET].links_down.is_empty());
    assert!(command::apply(&view, &FAIL_OVER).is_ok());
}

/// Waits for a step of a rebalance, then node 2, which gets copies, is gone, and the rebalance is ended.
fn ended_without_its_target(is_at: impl Fn(&Step) -> bool) -> World {
    let mut world = World::new(2);
    world.look();
    world.ask(&Command::Rebalance { eject: Vec::new() });
    world.look_until(|state| state.buckets[BUCKET].steps.values().any(&is_at));
    world.view.members.remove("2");
    world.look();
    world.ask(&Command::CancelRebalance);
    assert_eq!(world.end().0, Outcome::Cancelled);
    world.look_until(|state| !state.is_choosing());
    assert_eq!(world.served_by(1).len(), usize::from(VBUCKETS));
    world
}

#[test]
fn a_rebalance_ends_although_its_target_is_gone() {
    ended_without_its_target(|step| *step == Step::Build);
    ended_without_its_target(|step| matches!(step, Step::Both { .. }));
    ended_without_its_target(|step| matches!(step, Step::TakeOver { .. }));
}

#[test]
#[cfg(debug_assertions)]
fn mistakes_in_the_product_are_found() {
    known::must_find(known::Simulator::Links, |seed| {
        // Nothing depends on it.
        if seed == 0 {
            one_vbucket_is_tried();
            a_copy_without_a_connection_is_not_taken();
        }
        Ok(())
    });
}
