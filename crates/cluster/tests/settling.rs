//! Chains that have lost a member, or a member's memory: until the others have everything, one node may be alone with a
//! durable write. A node that begins a new life may have forgotten what it had acknowledged from memory.

use std::collections::BTreeMap;
use std::time::Duration;

use base::VbState;
use cluster::command::{self, Command, Refused};
use cluster::store::Version;
use cluster::{Address, Leader, LeaderConfig, Member, NodeId, Report, State, Status, Step, VbReport, View};
use serde_json::json;

const BUCKET: &str = "b";
const LATE: Duration = Duration::from_secs(60);

fn address(id: u32) -> Address {
    Address { host: format!("h{id}"), kv: 1, http: 2 }
}

/// Three active nodes that are alive, and a bucket of one vBucket that node 1 is active for.
fn three() -> View {
    let mut state = State::empty();
    for id in 1..=3 {
        let join = Command::Join { uuid: id.to_string(), address: address(id), incarnation: 10 };
        state = command::apply(&view_of(state), &join).expect("it joins");
    }
    state.nodes.values_mut().for_each(|node| node.status = Status::Active);
    let create = Command::CreateBucket {
        name: BUCKET.to_owned(),
        uuid: "0".repeat(32),
        settings: json!({}),
        replicas: 2,
        vbuckets: 1,
        manifest: json!({ "uid": "0" }),
    };
    state = command::apply(&view_of(state), &create).expect("it is made");
    let bucket = state.buckets.get_mut(BUCKET).expect("it is there");
    bucket.map[0] = [1, 2, 3].map(|id| Some(NodeId(id))).to_vec();
    let mut view = view_of(state);
    (1..=3).for_each(|id| lives(&mut view, id, 10));
    view
}

fn view_of(state: State) -> View {
    View { state, version: Version(1), members: BTreeMap::new(), reports: BTreeMap::new() }
}

fn lives(view: &mut View, id: u32, incarnation: u64) {
    view.members.insert(id.to_string(), Member { incarnation, address: address(id) });
}

/// A node says that it is as the document says, and has everything up to `prepared`.
fn reports(view: &mut View, id: u32, state: VbState, prepared: u64) {
    let incarnation = view.members[&id.to_string()].incarnation;
    let copy = VbReport {
        state: Some(state),
        high_seqno: prepared,
        persisted: prepared,
        high_prepared: prepared,
        uuid: 1,
    };
    let vbuckets = BTreeMap::from([(BUCKET.to_owned(), BTreeMap::from([(0, copy)]))]);
    let report = Report { incarnation, applied: view.state.revision, vbuckets, kept: BTreeMap::new() };
    view.reports.insert(id.to_string(), report);
}

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
    // All have what the active one had.
    reports(&mut view, 1, VbState::Active, 6);
    reports(&mut view, 2, VbState::Replica, 6);
    reports(&mut view, 3, VbState::Replica, 6);
    while step(&view).is_some() {
        assert!(lead(&mut leader, &mut view, LATE), "nothing is missing");
    }
    assert!(view.state.buckets[BUCKET].forgot.is_empty());
    assert!(command::apply(&view, &fail_over).is_ok());
}

#[test]
fn a_chain_settles_after_a_graceful_failover() {
    let (mut view, mut leader) = (three(), leader());
    let graceful = Command::FailOverGracefully { node: NodeId(1) };
    view.state = command::apply(&view, &graceful).expect("all are alive");
    for _ in 0..20 {
        let active = view.state.buckets[BUCKET].active(0);
        let taker = view.state.buckets[BUCKET].target_of(0).and_then(|target| target[0]);
        for id in 1..=3 {
            let takes_over = matches!(step(&view), Some(Step::TakeOver { .. }));
            let serves = if takes_over { taker } else { active };
            let role = if serves == Some(NodeId(id)) { VbState::Active } else { VbState::Replica };
            reports(&mut view, id, role, 6);
        }
        if !lead(&mut leader, &mut view, Duration::ZERO) {
            break;
        }
    }
    assert_eq!(view.state.nodes[&NodeId(1)].status, Status::FailedOver);
    assert_eq!(step(&view), None, "revision {}", view.state.revision);
    assert_ne!(view.state.buckets[BUCKET].active(0), Some(NodeId(1)));
}
