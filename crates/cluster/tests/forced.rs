//! Forced failovers of nodes that have the last copy of a vBucket: what they wait for.

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use base::VbState;
use cluster::command::{self, Command};
use cluster::{Agent, Leader, LeaderConfig, NodeId, State, Status, View, Want};
use support::{BUCKET, lives, reports_nothing, three};

/// Node 1, which alone has the vBucket, does not reach the store, and is failed over by force.
fn last_copy_failed_over() -> View {
    let mut view = three();
    view.state.buckets.get_mut(BUCKET).expect("it is there").map[0] = vec![Some(NodeId(1)), None, None];
    view.members.remove("1");
    force(&mut view, 1);
    view
}

fn force(view: &mut View, id: u32) {
    let fail_over = Command::FailOver { node: NodeId(id), force: true };
    view.state = command::apply(view, &fail_over).expect("somebody accepts what is lost");
}

fn step(view: &View) -> Option<State> {
    Leader::new(LeaderConfig::default()).step(view, Duration::ZERO)
}

/// A node says that it has seen the newest document, and whether node 1 still has its promise.
fn says(view: &mut View, id: u32, is_bound: bool) {
    reports_nothing(view, id);
    if is_bound {
        let bound = BTreeMap::from([(BUCKET.to_owned(), BTreeSet::from([NodeId(1)]))]);
        view.reports.get_mut(&id.to_string()).expect("it reports").bound = bound;
    }
}

fn is_given_up(view: &View) -> bool {
    step(view).is_some_and(|state| state.buckets[BUCKET].active(0).is_none())
}

#[test]
fn a_last_copy_is_not_given_up_while_its_node_may_have_a_majority_of_promises() {
    let mut view = last_copy_failed_over();
    assert!(!is_given_up(&view), "no node has said anything");
    says(&mut view, 2, false);
    assert!(!is_given_up(&view), "node 3 may promise: with that node 1 has a majority");
    says(&mut view, 3, true);
    assert!(!is_given_up(&view), "node 3 waits until its promise is over");
    says(&mut view, 3, false);
    assert!(is_given_up(&view));
}

#[test]
fn a_node_that_was_failed_over_may_still_promise() {
    let mut view = last_copy_failed_over();
    force(&mut view, 3);
    says(&mut view, 2, false);
    view.members.remove("3");
    assert!(!is_given_up(&view), "nodes 1 and 3 may be cut off together");
    lives(&mut view, 3, 10);
    says(&mut view, 3, false);
    assert!(is_given_up(&view));
}

#[test]
fn a_last_copy_is_given_up_when_its_node_says_that_it_serves_no_more() {
    let mut view = last_copy_failed_over();
    lives(&mut view, 1, 10);
    reports_nothing(&mut view, 1);
    assert!(step(&view).is_some_and(|state| !state.is_choosing()));
}

#[test]
fn an_administrator_may_say_that_the_node_has_stopped() {
    let mut view = last_copy_failed_over();
    force(&mut view, 1);
    assert!(!view.state.nodes[&NodeId(1)].stopped, "a request that is sent twice says nothing of the node");
    let has_stopped = Command::HasStopped { node: NodeId(1) };
    view.state = command::apply(&view, &has_stopped).expect("it was failed over");
    assert!(is_given_up(&view));
    force(&mut view, 1);
    assert!(view.state.nodes[&NodeId(1)].stopped);
    let recover = Command::Recover { node: NodeId(1), delta: true };
    view.state = command::apply(&view, &recover).expect("it comes back");
    assert!(!view.state.nodes[&NodeId(1)].stopped, "it is started again");
    assert!(!is_given_up(&view));
}

/// Node 1, which alone has the vBucket, has stopped; the choice is over, and nobody has the vBucket.
fn nobody_has_it() -> View {
    let mut view = last_copy_failed_over();
    let has_stopped = Command::HasStopped { node: NodeId(1) };
    view.state = command::apply(&view, &has_stopped).expect("it was failed over");
    while let Some(state) = step(&view) {
        view.state = state;
        [2, 3].into_iter().for_each(|id| reports_nothing(&mut view, id));
    }
    assert!(view.state.buckets[BUCKET].has_no_copy(0) && !view.state.is_choosing());
    assert_eq!(view.unserved(&view.state.buckets[BUCKET]), 1);
    view
}

#[test]
fn no_vbucket_begins_empty_that_a_node_may_have_kept_unless_that_node_is_named() {
    let rebalance = |view: &View, eject: &[u32]| {
        let eject = eject.iter().copied().map(NodeId).collect();
        command::apply(view, &Command::Rebalance { eject })
    };
    let view = nobody_has_it();
    let refused = rebalance(&view, &[]).expect_err("node 1 is down, and may have it");
    assert_eq!(refused, command::Refused::WouldBeEmpty { vbuckets: 1, nodes: vec![NodeId(1)] });
    let told = refused.to_string();
    assert!(told.contains("stave cluster add n_1") && told.contains("rebalance --eject n_1"), "{told}");
    let begun = rebalance(&view, &[1]).expect("somebody accepts it");
    assert!(begun.buckets[BUCKET].active(0).is_some(), "it begins empty");

    // It is there, and says what it has kept.
    let mut view = nobody_has_it();
    lives(&mut view, 1, 10);
    reports_nothing(&mut view, 1);
    let kept = BTreeMap::from([(BUCKET.to_owned(), vec![0])]);
    view.reports.get_mut("1").expect("it reports").kept = kept;
    assert!(rebalance(&view, &[]).is_err(), "it has it");
    let recover = Command::Recover { node: NodeId(1), delta: true };
    view.state = command::apply(&view, &recover).expect("it comes back");
    let begun = rebalance(&view, &[]).expect("it begins with what node 1 has");
    assert_eq!(begun.buckets[BUCKET].active(0), Some(NodeId(1)));

    let mut view = nobody_has_it();
    lives(&mut view, 1, 10);
    reports_nothing(&mut view, 1);
    assert!(rebalance(&view, &[]).is_ok(), "it says that it has nothing");
}

/// Node 1 is started again and says that it has kept its copy.
fn comes_back(view: &mut View) {
    lives(view, 1, 10);
    reports_nothing(view, 1);
    keeps(view, 1);
}

fn keeps(view: &mut View, id: u32) {
    let kept = BTreeMap::from([(BUCKET.to_owned(), vec![0])]);
    view.reports.get_mut(&id.to_string()).expect("it reports").kept = kept;
}

fn would_be_empty() -> command::Refused {
    command::Refused::WouldBeEmpty { vbuckets: 1, nodes: vec![NodeId(1)] }
}

#[test]
fn a_node_that_may_have_the_last_copies_does_not_come_back_without_them() {
    let full = Command::Recover { node: NodeId(1), delta: false };
    let mut view = nobody_has_it();
    assert_eq!(command::apply(&view, &full), Err(would_be_empty()), "it is down, and may have it");
    comes_back(&mut view);
    assert_eq!(command::apply(&view, &full), Err(would_be_empty()), "it has it");
    let delta = Command::Recover { node: NodeId(1), delta: true };
    view.state = command::apply(&view, &delta).expect("it comes back with its copies");
    assert_eq!(command::apply(&view, &full), Err(would_be_empty()), "a change of mind loses them, too");
    reports_nothing(&mut view, 1);
    assert!(command::apply(&view, &full).is_ok(), "it says that it has nothing");
}

#[test]
fn copies_are_kept_until_the_rebalance_that_does_not_need_them() {
    let mut view = three();
    force(&mut view, 3);
    let full = Command::Recover { node: NodeId(3), delta: false };
    view.state = command::apply(&view, &full).expect("nodes 1 and 2 have all");
    let agent = Agent::new(&view.state, "3", 10).expect("it belongs to the cluster");
    let want = |view: &View| {
        let agent = Agent::new(&view.state, "3", 10).expect("it belongs to the cluster");
        agent.want(&view.state.buckets[BUCKET], 0, Some(VbState::Dead))
    };
    assert_eq!((want(&view), agent.reports_kept()), (Want::Keep, true));
    // Then nodes 1 and 2 are lost.
    view.state.buckets.get_mut(BUCKET).expect("it is there").map[0] = vec![None; 3];
    view.state.buckets.get_mut(BUCKET).expect("it is there").steps.clear();
    reports_nothing(&mut view, 3);
    keeps(&mut view, 3);
    let begun = command::apply(&view, &Command::Rebalance { eject: Vec::new() }).expect("it begins");
    assert_eq!(begun.buckets[BUCKET].active(0), Some(NodeId(3)), "with the copy that was to go");
}

#[test]
fn no_advice_walks_around_the_last_copies() {
    let rebalance = |view: &View, eject: &[u32]| {
        let eject = eject.iter().copied().map(NodeId).collect();
        command::apply(view, &Command::Rebalance { eject })
    };
    let eject = Command::Eject { node: NodeId(1) };
    let mut view = nobody_has_it();
    assert_eq!(command::apply(&view, &eject), Err(would_be_empty()));
    assert_eq!(rebalance(&view, &[2]), Err(would_be_empty()), "to name it, too, is not all that can be done");
    comes_back(&mut view);
    let delta = Command::Recover { node: NodeId(1), delta: true };
    view.state = command::apply(&view, &delta).expect("it comes back");
    // It is down again before the rebalance.
    view.members.remove("1");
    let refused = rebalance(&view, &[]).expect_err("it may have it");
    assert_eq!(refused, would_be_empty());
    assert!(!refused.to_string().contains("stave cluster remove"), "{refused}");
    assert_eq!(command::apply(&view, &eject), Err(would_be_empty()));
    assert!(rebalance(&view, &[1]).is_ok(), "it is named");

    // Another node has kept a copy, too.
    let mut view = nobody_has_it();
    comes_back(&mut view);
    force(&mut view, 3);
    reports_nothing(&mut view, 3);
    keeps(&mut view, 3);
    assert!(command::apply(&view, &eject).is_ok(), "node 3 has it");
}

#[test]
fn what_a_node_has_from_an_earlier_membership_is_kept_until_a_rebalance() {
    let mut view = nobody_has_it();
    comes_back(&mut view);
    view.state.nodes.get_mut(&NodeId(1)).expect("it is there").status = Status::New;
    let agent = Agent::new(&view.state, "1", 10).expect("it belongs to the cluster");
    assert_eq!(agent.want(&view.state.buckets[BUCKET], 0, Some(VbState::Dead)), Want::Keep);
    assert_eq!(command::apply(&view, &Command::Eject { node: NodeId(1) }), Err(would_be_empty()));
    let begun = command::apply(&view, &Command::Rebalance { eject: Vec::new() }).expect("it begins");
    assert_eq!(begun.buckets[BUCKET].active(0), Some(NodeId(1)), "with what that node has");
}

#[test]
fn only_of_a_node_that_was_failed_over_it_can_be_said_that_it_has_stopped() {
    let view = last_copy_failed_over();
    let refused = command::apply(&view, &Command::HasStopped { node: NodeId(2) });
    assert_eq!(refused.err(), Some(command::Refused::WrongStatus(NodeId(2), Status::Active)));
}
