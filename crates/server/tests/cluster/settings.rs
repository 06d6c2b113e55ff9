//! Settings of a bucket: what is changed over HTTP is the cluster's, what Set Param changes is one node's until it stops.

use super::*;

const PATH: &str = "/v1/buckets/default/settings";

/// A setting as a member has it.
fn setting(nodes: &Nodes, at: usize, name: &str) -> String {
    let bucket = nodes.members[at].server.node().bucket("default").expect("it is served");
    bucket.settings().show(engine::settings::find(name).expect("there is one").key)
}

fn patch(nodes: &Nodes, at: usize, what: &Value) {
    let (code, told) = nodes.http(at, "PATCH", PATH, &what.to_string());
    assert_eq!(code, 200, "{told}");
    let changed = told["changed"].as_array().expect("a list").len();
    assert_eq!(changed, what.as_object().expect("an object").len(), "{told}");
}

fn set_param(nodes: &Nodes, at: usize, name: &str, value: &str) -> protocol::Status {
    let mut admin = Client::connect(&nodes.members[at].server, "default", &[]);
    let (opcode, extras) = (opcode::SET_PARAM, 1_u32.to_be_bytes());
    let (key, value) = (name.as_bytes(), value.as_bytes());
    admin.request(&RequestParts { opcode, extras: &extras, key, value, ..RequestParts::default() }).status
}

/// Starts the member of a folder again.
fn start(nodes: &mut Nodes, at: usize) {
    let member = Member::start(nodes.folders[at].path(), &nodes.store);
    nodes.members.insert(at, member);
    assert!(nodes.members[at].cluster.wait_until_served(SOON));
}

#[test]
fn settings_changed_over_http_outlive_every_start_and_are_those_of_all_nodes() {
    let mut nodes = Nodes::start(2, 1);
    patch(&nodes, 0, &json!({ "mem_high_wat_percent": 90, "bfilter_enabled": false }));
    let has = |nodes: &Nodes, at: usize, name: &str, value: &str| {
        assert_eq!(setting(nodes, at, name), value, "{name} at node {at}");
    };
    for at in 0..2 {
        has(&nodes, at, "mem_high_wat_percent", "90");
        has(&nodes, at, "bfilter_enabled", "false");
    }
    // What Set Param changed at one node stays there beside what is changed for all.
    assert_eq!(set_param(&nodes, 1, "exp_pager_stime", "77"), protocol::Status::Success);
    patch(&nodes, 1, &json!({ "max_ttl": 7 }));
    (0..2).for_each(|at| has(&nodes, at, "max_ttl", "7"));
    has(&nodes, 0, "exp_pager_stime", "600");
    has(&nodes, 1, "exp_pager_stime", "77");
    // What does not fit what the cluster keeps is over.
    assert_eq!(set_param(&nodes, 1, "mem_high_wat_percent", "80"), protocol::Status::Success);
    patch(&nodes, 0, &json!({ "mem_low_wat_percent": 85 }));
    has(&nodes, 1, "mem_low_wat_percent", "85");
    has(&nodes, 1, "mem_high_wat_percent", "90");

    // One that is stopped while settings are changed has them when it is back.
    nodes.members.remove(1).stop();
    patch(
        &nodes,
        0,
        &json!({
            "mem_high_wat_percent": 91, "durability_min_level": "majority", "item_eviction_policy": "full_eviction",
            "max_size": "120MiB"
        }),
    );
    start(&mut nodes, 1);
    nodes.settled();
    let kept = [
        ("mem_high_wat_percent", "91"),
        ("mem_low_wat_percent", "85"),
        ("bfilter_enabled", "false"),
        ("max_ttl", "7"),
        ("durability_min_level", "majority"),
        ("item_eviction_policy", "full_eviction"),
        ("max_size", "125829120"),
        ("exp_pager_stime", "600"),
    ];
    let have_all = |nodes: &Nodes| {
        let each = (0..nodes.members.len()).flat_map(|at| kept.map(|kept| (at, kept)));
        each.for_each(|(at, (name, value))| has(nodes, at, name, value));
    };
    have_all(&nodes);

    // All of them start again, and another one joins.
    (0..2).for_each(|_| nodes.members.remove(0).stop());
    (0..2).for_each(|at| start(&mut nodes, at));
    nodes.settled();
    have_all(&nodes);
    nodes.folders.push(tempfile::tempdir().expect("a folder"));
    start(&mut nodes, 2);
    nodes.ask(&Command::Rebalance { eject: Vec::new() });
    nodes.wait("the new one has its share", |state| state.rebalance.is_none() && active(state).len() == 3);
    nodes.settled();
    have_all(&nodes);
    nodes.stop();
}

#[test]
fn settings_that_cannot_be_are_refused_and_change_nothing_in_the_cluster() {
    let nodes = Nodes::start(2, 1);
    let before = nodes.state().buckets["default"].settings.clone();
    for (what, name, why) in [
        (json!({ "max_ttl": 5, "mem_low_wat_percent": 99 }), "mem_low_wat_percent", "give less than"),
        (json!({ "max_ttl": 5, "no_such": 1 }), "no_such", "there is no setting"),
        (
            json!({ "max_ttl": 5, "conflict_resolution_type": "lww" }),
            "conflict_resolution_type",
            "was made with",
        ),
        (json!({ "max_ttl": 5, "history_retention_seconds": 5 }), "history_retention_seconds", "Magma"),
        (json!({ "max_ttl": 5, "durability_min_level": "most" }), "durability_min_level", "give"),
        (json!({ "max_ttl": 5, "max_size": "100000GiB" }), "max_size", "too large"),
    ] {
        let (code, told) = nodes.http(0, "PATCH", PATH, &what.to_string());
        assert_eq!(code, 400, "{told}");
        assert!(told["errors"][name].as_str().is_some_and(|told| told.contains(why)), "{told}");
    }
    assert_eq!(nodes.state().buckets["default"].settings, before);
    (0..2).for_each(|at| assert_eq!(setting(&nodes, at, "max_ttl"), "0"));
    nodes.stop();
}
