//! Failovers by hand of nodes that are well, when another one has just died: its lease still runs, so that no node knows it yet.

mod support;

use std::time::Duration;

use base::VbState;
use cluster::command::{self, Command};
use cluster::{Leader, LeaderConfig, NodeId, State, Status, View};
use support::{BUCKET, reports, three};

/// Nodes 3 and 1 have the vBucket, the first is active for it; all seem to be alive.
fn of_two() -> View {
    let mut view = three();
    let bucket = view.state.buckets.get_mut(BUCKET).expect("it is there");
    bucket.map[0] = vec![Some(NodeId(3)), Some(NodeId(1))];
    (1..=3).for_each(|id| reports(&mut view, id, VbState::Replica, 7));
    view
}

fn fail_over(view: &View, id: u32) -> State {
    command::apply(view, &Command::FailOver { node: NodeId(id), force: false })
        .expect("it seems to lose nothing")
}

/// Lets the leader do what it can, with all that are alive saying at once that they are as the document says.
fn run(view: &mut View) {
    let mut leader = Leader::new(LeaderConfig::default());
    for second in 0..60 {
        let alive: Vec<u32> = (1..=3).filter(|id| view.members.contains_key(&id.to_string())).collect();
        for id in alive {
            reports(view, id, VbState::Dead, 7);
        }
        while let Some(next) = leader.step(view, Duration::from_secs(second)) {
            view.state = next;
        }
    }
}

#[test]
fn what_a_node_was_active_for_is_served_again_if_the_other_copy_turns_out_to_be_gone() {
    let mut view = of_two();
    view.state = fail_over(&view, 3);
    view.members.remove("1");
    run(&mut view);
    let bucket = &view.state.buckets[BUCKET];
    assert_eq!(bucket.active(0), Some(NodeId(3)), "{:?} {:?}", bucket.map, bucket.steps);
    assert!(
        bucket.steps.get(&0).is_none_or(|step| !matches!(step, cluster::state::Step::Choose { .. })),
        "{:?}",
        bucket.steps
    );
    assert_eq!(view.state.nodes[&NodeId(3)].status, Status::Active);
}
