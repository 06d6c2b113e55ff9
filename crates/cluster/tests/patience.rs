//! What the leader waits for: the time in which it did not reach the store does not count.

mod support;

use std::time::Duration;

use base::VbState;
use cluster::{Leader, LeaderConfig, NodeId, Status, View};
use support::{reports, three};

/// Node 3 is missing, and is failed over by itself after a second.
fn one_is_missing() -> View {
    let mut view = three();
    reports(&mut view, 1, VbState::Active, 5);
    reports(&mut view, 2, VbState::Replica, 5);
    view.members.remove("3");
    view.state.auto_failover.enabled = true;
    view.state.auto_failover.timeout_ms = 1_000;
    view
}

/// Whether the leader fails node 3 over at a moment, in milliseconds.
fn fails_over(leader: &mut Leader, view: &View, at_ms: u64) -> bool {
    let next = leader.step(view, Duration::from_millis(at_ms));
    next.is_some_and(|state| state.nodes[&NodeId(3)].status == Status::FailedOver)
}

#[test]
fn a_node_that_is_missing_for_long_enough_is_failed_over() {
    let (view, mut leader) = (one_is_missing(), Leader::new(LeaderConfig::default()));
    assert!(!fails_over(&mut leader, &view, 0));
    assert!(!fails_over(&mut leader, &view, 999));
    assert!(fails_over(&mut leader, &view, 1_000));
}

#[test]
fn the_time_without_the_store_does_not_count() {
    let (view, mut leader) = (one_is_missing(), Leader::new(LeaderConfig::default()));
    assert!(!fails_over(&mut leader, &view, 0));
    assert!(!fails_over(&mut leader, &view, 400));
    assert!(!fails_over(&mut leader, &view, 60_400), "the store was away for a minute");
    assert!(!fails_over(&mut leader, &view, 60_999));
    assert!(fails_over(&mut leader, &view, 61_000));
}
