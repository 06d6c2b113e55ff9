//! What nodes can hold, and one bucket that cannot be made beside others that can.

mod support;

use std::collections::BTreeMap;
use std::time::Duration;

use base::VbState;
use cluster::command::{self, Command, Refused};
use cluster::{Applied, Leader, LeaderConfig, Limits, NodeId, State, Status, Step, View};
use serde_json::json;
use support::{BUCKET, lives, reports, three};

fn create(view: &View, name: &str, quota_bytes: u64, vbuckets: u16) -> Result<State, Refused> {
    let create = Command::CreateBucket {
        name: name.to_owned(),
        uuid: "1".repeat(32),
        settings: json!({ "quota_bytes": quota_bytes }),
        replicas: 1,
        vbuckets,
        manifest: json!({ "uid": "0" }),
    };
    command::apply(view, &create)
}

fn has(view: &mut View, id: u32, quota_bytes: u64) {
    let member = view.members.get_mut(&id.to_string()).expect("it lives");
    member.limits = Some(Limits { quota_bytes, vbuckets: 1 });
}

#[test]
fn a_quota_that_a_node_does_not_have_is_refused() {
    let mut view = three();
    assert!(create(&view, "orders", 1 << 50, 1).is_ok(), "no node says what it has");
    has(&mut view, 1, 1_000);
    has(&mut view, 2, 100);
    let refused = create(&view, "orders", 101, 1);
    assert_eq!(refused, Err(Refused::Quota { node: NodeId(2), needed: 101, has: 100 }));
    let refused = create(&view, "orders", 1, 64);
    assert!(matches!(refused, Err(Refused::OtherVbuckets { wanted: 64, has: 1, .. })), "{refused:?}");
    view.state = create(&view, "orders", 60, 1).expect("all have it");
    let refused = create(&view, "carts", 41, 1);
    assert_eq!(refused, Err(Refused::Quota { node: NodeId(2), needed: 101, has: 100 }));
    let change = |quota: u64| Command::ChangeBucket {
        name: "orders".to_owned(),
        settings: Some(json!({ "quota_bytes": quota })),
        replicas: None,
    };
    assert!(command::apply(&view, &change(100)).is_ok());
    assert!(matches!(command::apply(&view, &change(101)), Err(Refused::Quota { .. })));
    has(&mut view, 2, 10);
    assert!(command::apply(&view, &change(50)).is_ok(), "what is smaller is taken, although it is too much");
}

#[test]
fn what_a_node_has_is_known_while_it_is_away() {
    let mut view = three();
    has(&mut view, 2, 100);
    let mut leader = Leader::new(LeaderConfig::default());
    view.state = leader.step(&view, Duration::ZERO).expect("what it has is noted");
    view.members.remove("2");
    assert!(matches!(create(&view, "orders", 101, 1), Err(Refused::Quota { .. })));
}

#[test]
fn a_node_that_cannot_hold_the_buckets_gets_no_share() {
    let mut view = three();
    view.state = create(&view, "orders", 60, 1).expect("it is made");
    view.state.nodes.get_mut(&NodeId(3)).expect("it is there").status = Status::New;
    view.state.buckets.values_mut().for_each(|bucket| bucket.map[0] = vec![Some(NodeId(1)), Some(NodeId(2))]);
    has(&mut view, 3, 59);
    let rebalance = Command::Rebalance { eject: Vec::new() };
    let refused = command::apply(&view, &rebalance);
    assert_eq!(refused, Err(Refused::Quota { node: NodeId(3), needed: 60, has: 59 }));
    has(&mut view, 3, 60);
    assert!(command::apply(&view, &rebalance).is_ok());
}

#[test]
fn a_bucket_that_is_behind_does_not_hold_up_the_others() {
    let mut view = three();
    let before = view.state.revision;
    let choose = Step::Choose { since: before + 1, taker: None, needs: None, forced: false };
    view.state.revision += 1;
    view.state.buckets.get_mut(BUCKET).expect("it is there").steps.insert(0, choose);
    for id in 1..=3 {
        lives(&mut view, id, 10);
        reports(&mut view, id, VbState::Replica, 5);
        let report = view.reports.get_mut(&id.to_string()).expect("it reports");
        (report.applied, report.reached) = (before, before + 1);
        report.behind = BTreeMap::from([("orders".to_owned(), before)]);
    }
    let mut leader = Leader::new(LeaderConfig::default());
    let mut behind = view.clone();
    for report in behind.reports.values_mut() {
        report.behind.insert(BUCKET.to_owned(), before);
    }
    assert_eq!(leader.step(&behind, Duration::ZERO), None, "this one is behind itself");
    let next = leader.step(&view, Duration::ZERO).expect("another one is behind");
    assert!(next.buckets[BUCKET].active(0).is_some() && !next.is_choosing(), "{next:?}");
}

#[test]
fn a_bucket_stays_where_it_was_while_it_fails() {
    let failed = "orders".to_owned();
    let applied = Applied::from(3).after(5, [&failed]);
    assert_eq!((applied.of("orders"), applied.of("carts"), applied.of_all()), (3, 5, 3));
    let applied = applied.after(7, [&failed]);
    assert_eq!((applied.of("orders"), applied.of("carts")), (3, 7));
    assert_eq!(applied.after(8, []), Applied::from(8));
}
