//! What tests inject into requests, and the way back to where a test begins.

use std::time::Instant;

use protocol::Status;
use serde_json::json;

use crate::cluster::{Cluster, MAJORITY, NO_LEVEL, eventually, keys, set};

#[test]
fn requests_are_refused_as_often_as_a_test_asks() {
    let cluster = Cluster::start(1, 0);
    let mut client = cluster.client(1);
    assert_eq!(set(&mut client, "k", "v", NO_LEVEL), Some(Status::Success));
    let told = cluster.must("/v1/dev/nodes/1/fail?opcode=get&times=2");
    assert_eq!(
        told["nodes"][0]["injections"],
        json!([{ "opcode": "Get", "delay_ms": null, "status": "temporary-failure", "left": 2 }])
    );
    let mut get = || client.get(b"k").map(|answer| answer.status);
    assert_eq!(
        (get(), get(), get()),
        (Some(Status::Etmpfail), Some(Status::Etmpfail), Some(Status::Success))
    );
    // On all nodes, until it is taken back.
    cluster.must("/v1/dev/fail?status=busy");
    assert_eq!((get(), get()), (Some(Status::Ebusy), Some(Status::Ebusy)));
    cluster.must("/v1/dev/heal");
    assert_eq!(get(), Some(Status::Success));
    assert_eq!(cluster.order("/v1/dev/fail?opcode=fetch").0, 400);
    assert_eq!(cluster.order("/v1/dev/delay").0, 400);
    cluster.stop();
}

#[test]
fn requests_wait_and_are_handled() {
    let cluster = Cluster::start(1, 0);
    let mut client = cluster.client(1);
    cluster.must("/v1/dev/delay?ms=120&opcode=set");
    let begun = Instant::now();
    assert_eq!(set(&mut client, "k", "v", NO_LEVEL), Some(Status::Success));
    assert!(begun.elapsed().as_millis() >= 120);
    cluster.must("/v1/dev/fail?opcode=set&times=1");
    let begun = Instant::now();
    assert_eq!(set(&mut client, "k", "w", NO_LEVEL), Some(Status::Etmpfail));
    assert!(begun.elapsed().as_millis() >= 120);
    assert_eq!(client.get(b"k").map(|answer| answer.value), Some(b"v".to_vec()));
    cluster.stop();
}

#[test]
fn a_reset_brings_everything_back_but_documents() {
    let cluster = Cluster::start(3, 1);
    for key in keys(20) {
        cluster.write(&key, "v", MAJORITY);
    }
    cluster.must("/v1/dev/nodes/3/failover");
    cluster.must("/v1/dev/nodes/2/stop");
    cluster.must("/v1/dev/nodes/1/cut");
    cluster.must("/v1/dev/delay?ms=60000");
    let told = cluster.must("/v1/dev/reset");
    for node in told["nodes"].as_array().expect("nodes") {
        assert_eq!((&node["status"], &node["may_serve"]), (&json!("active"), &json!(true)), "{node}");
        assert_eq!(node["injections"], json!([]));
        assert_eq!((&node["is_cut_from_nodes"], &node["is_cut_from_store"]), (&json!(false), &json!(false)));
    }
    for key in keys(20) {
        assert_eq!(cluster.read(&key), None, "{key}");
    }
    eventually("durable writes are possible", || {
        let owner = cluster.owner(b"k1").expect("there is one");
        set(&mut cluster.client(owner), "k1", "new", MAJORITY) == Some(Status::Success)
    });
    cluster.stop();
}
