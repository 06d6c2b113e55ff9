//! Chains that have lost a member, or a member's memory: until the others have everything, one node may be alone with a
//! durable write. A node that begins a new life may have forgotten what it had acknowledged from memory.

mod support;

use std::collections::BTreeMap;
use std::time::Duration;

use base::VbState;
use cluster::command::{self, Command, Refused};
use cluster::leader::{lacking, missed, settling};
use cluster::{Leader, LeaderConfig, NodeId, Status, Step, VbReport, View};
use support::{BUCKET, lives, reports, reports_copy, reports_nothing, three};

const LATE: Duration = Duration::from_secs(3);

fn leader() -> Leader {
    Leader::new(LeaderConfig::default())
}

fn step(view: &View) -> Option<&Step> {
    view.state.buckets[BUCKET].steps.get(&0)
}

fn lead(leader: &mut Leader, view: &mut View, now: Duration) -> bool {
    let next = leader.step(view, now);
    let has_moved = next.is_some();
    view.state = next.unwrap_or_else(|| view.state.clone());
    has_moved
}

/// 1 and 2 alone belong to the chain.
fn leave_two(view: &mut View) {
    let bucket = view.state.buckets.get_mut(BUCKET).expect("it is there");
    bucket.map[0] = vec![Some(NodeId(1)), Some(NodeId(2)), None];
}

/// All do what they are told, until there is nothing more to do.
fn come_to_rest(leader: &mut Leader, view: &mut View, now: Duration) {
    for _ in 0..20 {
        let bucket = &view.state.buckets[BUCKET];
        let takes_over = matches!(step(view), Some(Step::TakeOver { .. }));
        let taker = bucket.target_of(0).and_then(|target| target[0]).filter(|_| takes_over);
        let serves = taker.or(bucket.active(0));
        for id in 1..=3 {
            let role = if serves == Some(NodeId(id)) { VbState::Active } else { VbState::Replica };
            reports(view, id, role, 6);
        }
        if !lead(leader, view, now) {
            break;
        }
    }
}

#[test]
fn who_is_silent_and_who_has_forgotten_are_no_majority_against_one() {
    let (mut view, mut leader) = (three(), leader());
    lives(&mut view, 1, 11);
    assert!(lead(&mut leader, &mut view, Duration::ZERO), "the new life is admitted");
    assert!(matches!(step(&view), Some(Step::Choose { .. })));
    // A write was acknowledged by 1 and 3: 1 has forgotten it, 2 has not heard of it yet.
    reports(&mut view, 1, VbState::Replica, 5);
    reports(&mut view, 2, VbState::Replica, 5);
    for now in [Duration::ZERO, LATE, LATE * 2] {
        assert!(!lead(&mut leader, &mut view, now), "3 may have what nobody else has");
    }
    reports(&mut view, 3, VbState::Replica, 6);
    assert!(lead(&mut leader, &mut view, LATE * 3));
    assert_eq!(view.state.buckets[BUCKET].active(0), Some(NodeId(3)));
}

#[test]
fn whoever_says_that_it_has_no_copy_is_not_waited_for() {
    let (mut view, mut leader) = (three(), leader());
    // 1 had everything in memory, and 2 was away for so long that nobody knows what it has forgotten.
    (1..=2).for_each(|id| lives(&mut view, id, 11));
    assert!(lead(&mut leader, &mut view, Duration::ZERO));
    reports_nothing(&mut view, 1);
    reports(&mut view, 2, VbState::Replica, 5);
    for now in [Duration::ZERO, LATE, LATE * 2] {
        assert!(!lead(&mut leader, &mut view, now), "3 may have what nobody else has");
    }
    reports_nothing(&mut view, 3);
    assert!(lead(&mut leader, &mut view, LATE * 3), "nobody has anything more to say");
    assert_eq!(view.state.buckets[BUCKET].active(0), Some(NodeId(2)));
}

#[test]
fn whoever_may_be_alone_with_a_write_since_the_active_node_is_missing_is_not_failed_over() {
    let mut view = three();
    leave_two(&mut view);
    let fail_over = Command::FailOver { node: NodeId(2), force: false };
    assert!(command::apply(&view, &fail_over).is_ok(), "1 has everything");
    view.members.remove("1");
    assert_eq!(command::apply(&view, &fail_over), Err(Refused::LastCopy(1)));
}

#[test]
fn a_graceful_failover_does_not_end_while_another_node_is_missing_that_it_leaves_alone() {
    let (mut view, mut leader) = (three(), leader());
    view.state.auto_failover.enabled = false;
    leave_two(&mut view);
    let graceful = Command::FailOverGracefully { node: NodeId(2) };
    view.state = command::apply(&view, &graceful).expect("all are alive");
    view.members.remove("1");
    assert!(!lead(&mut leader, &mut view, LATE), "1 may have lost what it had");
    assert_eq!(view.state.nodes[&NodeId(2)].status, Status::Active);
    lives(&mut view, 1, 10);
    assert!(lead(&mut leader, &mut view, LATE));
    assert_eq!(view.state.nodes[&NodeId(2)].status, Status::FailedOver);
}

#[test]
fn a_cluster_that_was_started_anew_as_a_whole_serves_again() {
    let (mut view, mut leader) = (three(), leader());
    (1..=3).for_each(|id| lives(&mut view, id, 11));
    assert!(lead(&mut leader, &mut view, Duration::ZERO));
    reports(&mut view, 1, VbState::Replica, 5);
    reports(&mut view, 2, VbState::Replica, 6);
    assert!(!lead(&mut leader, &mut view, LATE));
    reports(&mut view, 3, VbState::Replica, 5);
    assert!(lead(&mut leader, &mut view, LATE * 2));
    assert_eq!(view.state.buckets[BUCKET].active(0), Some(NodeId(2)));
}

#[test]
fn an_active_node_stays_as_long_as_it_may_be_alone_with_a_write() {
    let (mut view, mut leader) = (three(), leader());
    // 2 is a replica here, and has forgotten what it had acknowledged.
    lives(&mut view, 2, 11);
    assert!(lead(&mut leader, &mut view, Duration::ZERO));
    assert!(matches!(step(&view), Some(Step::Settle { .. })));
    let fail_over = Command::FailOver { node: NodeId(1), force: false };
    assert_eq!(command::apply(&view, &fail_over), Err(Refused::Unsafe(1)));
    let told: Vec<_> = settling(&view).into_iter().collect();
    assert_eq!(told, [((BUCKET, NodeId(2)), 1)], "who restarts nodes waits for it");
    let lost = view.members.remove("1").expect("it is there");
    assert!(settling(&view).is_empty(), "nothing comes of waiting");
    view.members.insert("1".to_owned(), lost);
    // All have what the active one had.
    reports(&mut view, 1, VbState::Active, 6);
    reports(&mut view, 2, VbState::Replica, 6);
    reports(&mut view, 3, VbState::Replica, 6);
    while step(&view).is_some() {
        assert!(lead(&mut leader, &mut view, LATE), "nothing is missing");
    }
    assert!(view.state.buckets[BUCKET].forgot.is_empty() && settling(&view).is_empty());
    assert!(command::apply(&view, &fail_over).is_ok());
}

#[test]
fn a_chain_settles_after_a_graceful_failover() {
    let (mut view, mut leader) = (three(), leader());
    let graceful = Command::FailOverGracefully { node: NodeId(1) };
    view.state = command::apply(&view, &graceful).expect("all are alive");
    come_to_rest(&mut leader, &mut view, Duration::ZERO);
    assert_eq!(view.state.nodes[&NodeId(1)].status, Status::FailedOver);
    assert_eq!(step(&view), None, "revision {}", view.state.revision);
    assert_ne!(view.state.buckets[BUCKET].active(0), Some(NodeId(1)));
}

#[test]
fn whoever_was_silent_while_vbuckets_were_moved_comes_back_although_the_move_is_given_up() {
    let (mut view, mut leader) = (three(), leader());
    let graceful = Command::FailOverGracefully { node: NodeId(1) };
    view.state = command::apply(&view, &graceful).expect("all are alive");
    while !matches!(step(&view), Some(Step::TakeOver { .. })) {
        reports(&mut view, 1, VbState::Active, 5);
        [2, 3].into_iter().for_each(|id| reports(&mut view, id, VbState::Replica, 5));
        assert!(lead(&mut leader, &mut view, Duration::ZERO));
    }
    // The message that hands over is lost, and the choice that follows is made without 3, which is alive and silent.
    for now in [Duration::ZERO, LATE, LATE * 2, LATE * 3] {
        [1, 2].into_iter().for_each(|id| reports(&mut view, id, VbState::Replica, 5));
        lead(&mut leader, &mut view, now);
    }
    assert!(!view.state.buckets[BUCKET].chain(0).contains(&Some(NodeId(3))));
    view.state = command::apply(&view, &Command::CancelRebalance).expect("there is one");
    come_to_rest(&mut leader, &mut view, LATE);
    let bucket = &view.state.buckets[BUCKET];
    assert!(view.state.rebalance.is_none() && bucket.steps.is_empty() && bucket.missing.is_empty());
    assert!((1..=3).all(|id| bucket.chain(0).contains(&Some(NodeId(id)))), "{:?}", bucket.chain(0));
}

#[test]
fn a_node_that_was_failed_over_is_taken_back_if_the_others_forget() {
    let (mut view, mut leader) = (three(), leader());
    (1..=3).for_each(|id| reports(&mut view, id, VbState::Replica, 5));
    let fail_over = Command::FailOver { node: NodeId(1), force: false };
    view.state = command::apply(&view, &fail_over).expect("the others have everything");
    // Before the choice is made another one begins a new life: what 1 and 2 had acknowledged, 1 alone has.
    lives(&mut view, 2, 11);
    assert!(lead(&mut leader, &mut view, Duration::ZERO));
    reports(&mut view, 2, VbState::Replica, 5);
    reports(&mut view, 3, VbState::Replica, 5);
    view.reports.remove("1");
    assert!(!lead(&mut leader, &mut view, LATE), "1 has not said yet that it has stopped, or what it has");
    reports(&mut view, 1, VbState::Dead, 6);
    assert!(lead(&mut leader, &mut view, LATE));
    assert_eq!(view.state.nodes[&NodeId(1)].status, Status::Active);
    reports(&mut view, 1, VbState::Replica, 6);
    assert!(lead(&mut leader, &mut view, LATE));
    assert_eq!(view.state.buckets[BUCKET].active(0), Some(NodeId(1)));
}

#[test]
fn what_nobody_has_any_more_begins_anew() {
    let (mut view, mut leader) = (three(), leader());
    // All nodes of an ephemeral bucket were started anew.
    (1..=3).for_each(|id| lives(&mut view, id, 11));
    assert!(lead(&mut leader, &mut view, Duration::ZERO));
    (1..=2).for_each(|id| reports_nothing(&mut view, id));
    for now in [Duration::ZERO, LATE, LATE * 2] {
        assert!(!lead(&mut leader, &mut view, now), "3 may have what nobody else has");
    }
    reports_nothing(&mut view, 3);
    assert!(lead(&mut leader, &mut view, LATE * 3), "nobody has anything");
    let bucket = &view.state.buckets[BUCKET];
    assert_eq!(bucket.chain(0), [1, 2, 3].map(|id| Some(NodeId(id))));
    assert!(matches!(step(&view), Some(Step::Settle { .. })));
    reports(&mut view, 1, VbState::Active, 0);
    (2..=3).for_each(|id| reports(&mut view, id, VbState::Replica, 0));
    assert!(lead(&mut leader, &mut view, LATE * 4));
    let bucket = &view.state.buckets[BUCKET];
    assert!(bucket.steps.is_empty() && bucket.forgot.is_empty());
}

#[test]
fn nothing_begins_anew_while_somebody_who_was_failed_over_may_have_kept_a_copy() {
    let (mut view, mut leader) = (three(), leader());
    leave_two(&mut view);
    view.state.nodes.get_mut(&NodeId(3)).expect("it is there").status = Status::FailedOver;
    view.state.auto_failover.enabled = false;
    view.members.remove("3");
    (1..=2).for_each(|id| lives(&mut view, id, 11));
    assert!(lead(&mut leader, &mut view, Duration::ZERO));
    (1..=2).for_each(|id| reports_nothing(&mut view, id));
    assert!(!lead(&mut leader, &mut view, LATE), "3 is away");
    lives(&mut view, 3, 10);
    reports_nothing(&mut view, 3);
    view.reports.get_mut("3").expect("it is there").kept.insert(BUCKET.to_owned(), vec![0]);
    assert!(!lead(&mut leader, &mut view, LATE * 2), "3 has kept a copy");
    reports_nothing(&mut view, 3);
    assert!(lead(&mut leader, &mut view, LATE * 3));
    assert_eq!(view.state.buckets[BUCKET].active(0), Some(NodeId(1)));
}

#[test]
fn a_graceful_failover_that_waits_changes_nothing() {
    let (mut view, mut leader) = (three(), leader());
    view.state.auto_failover.enabled = false;
    leave_two(&mut view);
    let graceful = Command::FailOverGracefully { node: NodeId(2) };
    view.state = command::apply(&view, &graceful).expect("all are alive");
    view.members.remove("1");
    (0..5).for_each(|_| assert!(!lead(&mut leader, &mut view, LATE), "1 may have lost what it had"));
    view.state = command::apply(&view, &Command::CancelRebalance).expect("there is one");
    assert!(lead(&mut leader, &mut view, LATE));
    assert!(view.state.rebalance.is_none());
    assert_eq!(view.state.nodes[&NodeId(2)].status, Status::Active);
}

#[test]
fn a_part_of_a_snapshot_settles_nothing() {
    let (mut view, mut leader) = (three(), leader());
    lives(&mut view, 2, 11);
    assert!(lead(&mut leader, &mut view, Duration::ZERO));
    reports(&mut view, 1, VbState::Active, 6);
    reports(&mut view, 3, VbState::Replica, 6);
    // 2 receives a snapshot of the changes 4 to 9: what replaces change 5 is the last of it.
    let part =
        VbReport { state: Some(VbState::Replica), high_seqno: 8, persisted: 8, high_prepared: 3, uuid: 1 };
    reports_copy(&mut view, 2, part.whole_up_to(3));
    assert!(!lead(&mut leader, &mut view, Duration::ZERO), "2 does not have change 5");
    assert!(matches!(step(&view), Some(Step::Settle { .. })));
    let whole = VbReport { high_seqno: 9, persisted: 9, high_prepared: 9, ..part };
    reports_copy(&mut view, 2, whole.whole_up_to(9));
    assert!(lead(&mut leader, &mut view, Duration::ZERO));
    assert_eq!(step(&view), None);
}

/// The bucket is ephemeral, its chain is node 1 alone, and nodes 2 and 3 were failed over.
fn lone_and_ephemeral() -> View {
    let mut view = three();
    let bucket = view.state.buckets.get_mut(BUCKET).expect("it is there");
    bucket.settings = serde_json::json!({ "type": "ephemeral" });
    bucket.map[0] = vec![Some(NodeId(1)), None, None];
    view.state.auto_failover.enabled = false;
    for id in [2, 3] {
        view.state.nodes.get_mut(&NodeId(id)).expect("it is there").status = Status::FailedOver;
    }
    view
}

/// A node that was failed over reports a copy that it has kept.
fn keeps(view: &mut View, id: u32, prepared: u64) {
    reports(view, id, VbState::Dead, prepared);
    let report = view.reports.get_mut(&id.to_string()).expect("it has reported");
    report.kept.insert(BUCKET.to_owned(), vec![0]);
}

#[test]
fn a_lone_ephemeral_copy_that_is_gone_is_replaced_by_one_that_was_kept() {
    let (mut view, mut leader) = (lone_and_ephemeral(), leader());
    lives(&mut view, 1, 11);
    assert!(lead(&mut leader, &mut view, Duration::ZERO));
    assert!(matches!(step(&view), Some(Step::Choose { .. })), "it would begin empty");
    reports_nothing(&mut view, 1);
    keeps(&mut view, 2, 5);
    assert!(!lead(&mut leader, &mut view, Duration::ZERO), "3 may have a better one");
    keeps(&mut view, 3, 6);
    assert!(lead(&mut leader, &mut view, Duration::ZERO));
    assert_eq!(view.state.nodes[&NodeId(3)].status, Status::Active);
    reports_nothing(&mut view, 1);
    keeps(&mut view, 2, 5);
    reports(&mut view, 3, VbState::Replica, 6);
    assert!(lead(&mut leader, &mut view, Duration::ZERO));
    assert_eq!(view.state.buckets[BUCKET].active(0), Some(NodeId(3)));
}

#[test]
fn a_copy_that_was_kept_is_not_given_up_for_one_that_was_being_built() {
    let (mut view, mut leader) = (lone_and_ephemeral(), leader());
    view.state.nodes.get_mut(&NodeId(3)).expect("it is there").status = Status::Active;
    let bucket = view.state.buckets.get_mut(BUCKET).expect("it is there");
    bucket.target = vec![vec![Some(NodeId(3)), Some(NodeId(1)), None]];
    bucket.steps.insert(0, Step::Build);
    lives(&mut view, 1, 11);
    assert!(lead(&mut leader, &mut view, Duration::ZERO));
    assert!(matches!(step(&view), Some(Step::Choose { taker: Some(NodeId(3)), .. })));
    reports_nothing(&mut view, 1);
    reports(&mut view, 3, VbState::Replica, 2);
    keeps(&mut view, 2, 5);
    assert!(lead(&mut leader, &mut view, Duration::ZERO));
    assert_eq!(view.state.nodes[&NodeId(2)].status, Status::Active);
    [1, 3].into_iter().for_each(|id| reports_nothing(&mut view, id));
    reports(&mut view, 2, VbState::Replica, 5);
    assert!(lead(&mut leader, &mut view, Duration::ZERO));
    assert_eq!(view.state.buckets[BUCKET].active(0), Some(NodeId(2)));
}

#[test]
fn a_lone_ephemeral_copy_that_is_gone_everywhere_begins_empty() {
    let (mut view, mut leader) = (lone_and_ephemeral(), leader());
    view.members.remove("3");
    lives(&mut view, 1, 11);
    assert!(lead(&mut leader, &mut view, Duration::ZERO));
    (1..=2).for_each(|id| reports_nothing(&mut view, id));
    assert!(!lead(&mut leader, &mut view, Duration::ZERO), "3 may come back");
    assert!(lead(&mut leader, &mut view, LATE));
    let bucket = &view.state.buckets[BUCKET];
    assert_eq!((bucket.active(0), bucket.steps.len()), (Some(NodeId(1)), 0));
}

#[test]
fn an_ephemeral_copy_that_a_choice_needs_and_that_is_gone_is_not_waited_for() {
    let (mut view, mut leader) = (lone_and_ephemeral(), leader());
    let since = view.state.revision;
    let bucket = view.state.buckets.get_mut(BUCKET).expect("it is there");
    bucket.map[0] = vec![Some(NodeId(1)), Some(NodeId(2)), None];
    bucket.steps.insert(0, Step::Settle { since });
    view.state.nodes.get_mut(&NodeId(2)).expect("it is there").status = Status::Active;
    lives(&mut view, 1, 11);
    assert!(lead(&mut leader, &mut view, Duration::ZERO));
    assert!(matches!(step(&view), Some(Step::Choose { needs: Some(NodeId(1)), .. })));
    reports_nothing(&mut view, 1);
    reports(&mut view, 2, VbState::Replica, 5);
    keeps(&mut view, 3, 4);
    assert!(lead(&mut leader, &mut view, Duration::ZERO));
    assert_eq!(view.state.buckets[BUCKET].active(0), Some(NodeId(2)));
    assert_eq!(view.state.nodes[&NodeId(3)].status, Status::FailedOver, "its copy is older");
}

#[test]
fn a_lone_persistent_copy_serves_on_when_its_node_was_started_again() {
    let (mut view, mut leader) = (lone_and_ephemeral(), leader());
    let bucket = view.state.buckets.get_mut(BUCKET).expect("it is there");
    bucket.settings = serde_json::json!({ "type": "couchstore" });
    lives(&mut view, 1, 11);
    assert!(lead(&mut leader, &mut view, Duration::ZERO));
    assert_eq!(step(&view), None);
}

#[test]
fn a_copy_that_a_choice_needs_and_that_was_never_on_a_disk_is_not_waited_for() {
    let (mut view, mut leader) = (three(), leader());
    leave_two(&mut view);
    let since = view.state.revision;
    let bucket = view.state.buckets.get_mut(BUCKET).expect("it is there");
    let choice = Step::Choose { since, taker: None, needs: Some(NodeId(1)), forced: false };
    bucket.steps.insert(0, choice);
    reports_nothing(&mut view, 1);
    reports(&mut view, 2, VbState::Replica, 0);
    lead(&mut leader, &mut view, LATE);
    assert_eq!(view.state.buckets[BUCKET].active(0), Some(NodeId(2)));
    assert!(!matches!(step(&view), Some(Step::Choose { .. })), "{:?}", step(&view));
}

#[test]
fn a_copy_that_a_choice_needs_and_that_its_node_has_lost_is_named() {
    let (mut view, mut leader) = (three(), leader());
    leave_two(&mut view);
    let since = view.state.revision;
    let bucket = view.state.buckets.get_mut(BUCKET).expect("it is there");
    let choice = Step::Choose { since, taker: None, needs: Some(NodeId(1)), forced: false };
    bucket.steps.insert(0, choice);
    reports(&mut view, 2, VbState::Replica, 6);
    assert_eq!(lacking(&view), BTreeMap::new(), "it has said nothing");
    reports_nothing(&mut view, 1);
    lead(&mut leader, &mut view, LATE);
    assert!(matches!(step(&view), Some(Step::Choose { .. })), "it may have been alone with a write");
    assert_eq!(missed(&view), BTreeMap::new());
    assert_eq!(lacking(&view), BTreeMap::from([((BUCKET, NodeId(1)), 1)]));
    // What it alone had is given up.
    let over = command::apply(&view, &Command::FailOver { node: NodeId(1), force: true });
    view.state = over.expect("it can be done");
    assert_eq!(lacking(&view), BTreeMap::new());
}

#[test]
fn a_bucket_is_flushed_while_another_one_waits_for_a_choice() {
    let mut view = three();
    let mut other = view.state.buckets[BUCKET].clone();
    let since = view.state.revision;
    other.steps.insert(0, Step::Choose { since, taker: None, needs: Some(NodeId(3)), forced: false });
    view.state.buckets.insert("other".to_owned(), other);
    let flush = |name: &str| command::apply(&view, &Command::FlushBucket { name: name.to_owned() });
    assert!(matches!(flush("other"), Err(Refused::FailingOver)));
    assert_eq!(flush(BUCKET).expect("it has nothing to wait for").flushing(), Some(BUCKET));
}
