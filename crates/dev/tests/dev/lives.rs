//! Nodes that stop, are killed and start; a cluster that goes on where it was; clocks.

use base::env::Env;
use dev::DevCluster;
use protocol::feature::Feature;
use protocol::{RequestParts, Status, opcode};
use serde_json::json;

use crate::cluster::{Cluster, MAJORITY, NO_LEVEL, PERSIST, config, keys, set};
use crate::support::{Client, http, vb};

#[test]
fn a_node_that_is_killed_keeps_what_it_has_written() {
    let cluster = Cluster::start(1, 0);
    let mut client = cluster.client(1);
    for key in keys(50) {
        assert_eq!(set(&mut client, &key, "1", PERSIST), Some(Status::Success));
    }
    let bucket = cluster.dev.node(1).and_then(|node| node.bucket("default")).expect("it is there");
    // What nobody has written when it is killed is lost.
    bucket.flushing().hold_flusher(true);
    assert_eq!(set(&mut client, "unwritten", "1", NO_LEVEL), Some(Status::Success));
    drop(bucket);
    let before = cluster.node(1);
    let told = cluster.must("/v1/dev/nodes/1/kill");
    assert_eq!(told["nodes"][0]["is_running"], false);
    assert_eq!(client.try_receive().map(|frame| frame.status), None, "its clients are cut");
    let told = cluster.must("/v1/dev/nodes/1/start");
    assert_eq!((&told["nodes"][0]["may_serve"], cluster.node(1)), (&json!(true), before));
    for key in keys(50) {
        assert_eq!(cluster.read(&key).as_deref(), Some(&b"1"[..]), "{key}");
    }
    assert_eq!(cluster.read("unwritten"), None);
    cluster.stop();
}

#[test]
fn a_node_that_is_killed_while_it_is_frozen_ends() {
    let cluster = Cluster::start(2, 1);
    cluster.write("k", "1", MAJORITY);
    cluster.must("/v1/dev/nodes/2/freeze");
    cluster.must("/v1/dev/nodes/2/kill");
    let told = cluster.must("/v1/dev/nodes/2/start");
    assert_eq!(
        (&told["nodes"][1]["is_frozen"], &told["nodes"][1]["is_running"]),
        (&json!(false), &json!(true))
    );
    assert_eq!(cluster.read("k").as_deref(), Some(&b"1"[..]));
    cluster.must("/v1/dev/nodes/1/freeze");
    cluster.must("/v1/dev/nodes/1/restart");
    assert_eq!(cluster.read("k").as_deref(), Some(&b"1"[..]));
    cluster.stop();
}

#[test]
fn a_cluster_goes_on_where_it_was() {
    let folder = tempfile::tempdir().expect("a folder");
    let cluster = Cluster::in_folder(folder.path(), 3, 1);
    assert_eq!(http(&cluster.node(1), "POST", "/pools/default/buckets", "name=b&ramQuotaMB=100").0, 202);
    for key in keys(50) {
        cluster.write(&key, "1", MAJORITY);
    }
    cluster.must("/v1/dev/nodes/3/failover");
    let before = cluster.dev.status().expect("it is told");
    cluster.stop();
    let cluster = Cluster::in_folder(folder.path(), 3, 1);
    let after = cluster.dev.status().expect("it is told");
    assert!(after["revision"].as_u64() > before["revision"].as_u64());
    assert_eq!(
        (&after["buckets"], &after["nodes"][2]["status"]),
        (&json!(["b", "default"]), &json!("failed_over"))
    );
    for (is, was) in
        std::iter::zip(after["nodes"].as_array().expect("nodes"), before["nodes"].as_array().expect("nodes"))
    {
        assert_eq!((&is["id"], &is["node"], &is["data"]), (&was["id"], &was["node"], &was["data"]));
    }
    for key in keys(50) {
        assert_eq!(cluster.read(&key).as_deref(), Some(&b"1"[..]), "{key}");
    }
    cluster.must("/v1/dev/nodes/3/recover");
    for key in keys(50) {
        cluster.write(&key, "2", MAJORITY);
    }
    cluster.stop();
    for (other, ran) in [
        (config(folder.path(), 2, 1), "3 nodes ran in this folder, not 2"),
        (dev::DevConfig { vbuckets: 8, ..config(folder.path(), 3, 1) }, "buckets of 4 vBuckets"),
    ] {
        let error = DevCluster::start(other, Env::real()).err().expect("it differs").to_string();
        assert!(error.contains(ran) && error.contains("another folder"), "{error}");
    }
}

#[test]
fn a_moved_clock_expires_documents() {
    let cluster = Cluster::start(1, 0);
    let mut client = cluster.client(1);
    let mut extras = [0; 8];
    extras[4..].copy_from_slice(&3600u32.to_be_bytes());
    let key = b"k";
    let set = RequestParts {
        opcode: opcode::SET,
        key,
        extras: &extras,
        vbucket: vb(key),
        ..RequestParts::default()
    };
    assert_eq!(client.request(&set).status, Status::Success);
    let told = cluster.must("/v1/dev/clock?advance_s=3000");
    assert_eq!(told["nodes"][0]["clock_offset_s"], 3000);
    assert_eq!(client.get(key).map(|answer| answer.status), Some(Status::Success));
    cluster.must("/v1/dev/clock?advance_s=700&node=1");
    assert_eq!(client.get(key).map(|answer| answer.status), Some(Status::KeyEnoent));
    let before = cluster.node(1);
    cluster.must("/v1/dev/nodes/1/restart");
    assert_eq!(cluster.node(1), before);
    assert_eq!(cluster.read("k"), None);
    cluster.stop();
}

#[test]
fn clients_are_told_of_new_maps() {
    let cluster = Cluster::start(2, 1);
    let features = [Feature::Duplex, Feature::ClustermapChangeNotificationBrief];
    let mut watcher = Client::connect(&cluster.node(1), "default", &features);
    cluster.must("/v1/dev/nodes/2/failover");
    let frame = watcher.receive();
    assert!(frame.value.is_empty() && frame.opcode == opcode::CLUSTERMAP_CHANGE_NOTIFICATION);
    cluster.stop();
}
