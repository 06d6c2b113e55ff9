//! New copies of a cluster's bucket come as files, where the bucket asks for it: nodes read them of each other. etcd and
//! every node are processes of their own.
#![allow(clippy::disallowed_methods, reason = "this is a client, outside the server")]

#[path = "../../server/tests/support/etcd.rs"]
mod etcd;
mod members;
mod process;
#[path = "../../server/tests/support/mod.rs"]
mod support;

use std::time::Instant;

use members::{Follower, PATIENCE, Place, World, all_are_up, fill, place, post, run};
use protocol::{RequestParts, Status, opcode};
use rustix::process::Signal;
use support::{Reach, http, json};

const BUCKET: &str = "/pools/default/buckets/default";
const DOCUMENTS: usize = 500;

/// Waits until the links of a node have filled a replica with a file. A source that is busy may refuse others.
fn filled_with_file(node: &impl Reach) {
    let begun = Instant::now();
    loop {
        let told = json(node, "/v1/buckets/default/replication");
        let links = told["links"].as_array().map_or(&[][..], Vec::as_slice);
        let sum = |name: &str| links.iter().filter_map(|link| link[name].as_u64()).sum();
        let filled: u64 = sum("filled_by_file");
        if filled > 0 {
            return;
        }
        assert!(begun.elapsed() < PATIENCE, "no replica was filled with a file: {told}");
    }
}

fn all_are_there(asked: Place, about: &str) {
    let mut follower = Follower::new(asked);
    let get = RequestParts { opcode: opcode::GET, ..RequestParts::default() };
    for n in 0..DOCUMENTS {
        let is_answer = |status| matches!(status, Status::Success | Status::KeyEnoent);
        let (status, value) = follower.ask(&format!("filled-{n}"), &get, is_answer);
        assert_eq!((status, value.len()), (Status::Success, 1024), "{about}: filled-{n}");
    }
}

#[test]
fn a_new_member_gets_its_copies_as_files() {
    let world = World::new();
    let (a, b) = (world.node("a"), world.node("b"));
    run(&a, &["cluster", "rebalance"]);
    post(&a, "/settings/autoFailover", "enabled=false", 200);
    post(&a, "/pools/default/buckets", "name=default&ramQuota=100&replicaNumber=1", 202);
    let (code, told) = http(&a, "PATCH", "/v1/buckets/default/settings", r#"{"replica_fill":"file"}"#);
    assert_eq!(code, 200, "{told}");
    fill(place(&a), DOCUMENTS);
    // Nothing is in memory any more that a stream could begin with.
    for node in [a, b] {
        node.signal(Signal::TERM);
        node.ends_well();
    }
    let (a, b) = (world.node("a"), world.node("b"));
    all_are_there(place(&a), "started again");
    let c = world.node("c");
    all_are_up(&a, 3);
    run(&a, &["cluster", "rebalance"]);
    filled_with_file(&c);
    assert_eq!(json(&a, BUCKET)["replicaNumber"], 1);
    all_are_there(place(&a), "with three members");
    // Copies that came as files take over.
    drop(b);
    run(&a, &["cluster", "failover", "n_2"]);
    all_are_there(place(&a), "failed over");
}
