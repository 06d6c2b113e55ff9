//! Failover, recovery, rebalance, nodes that come and go.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

use base::env::Env;
use dev::{DevCluster, DevConfig};
use protocol::Status;
use serde_json::json;

use crate::cluster::{Cluster, MAJORITY, NO_LEVEL, PERSIST, config, keys};
use crate::support::http;

#[test]
fn others_take_over_what_a_majority_has_and_the_node_recovers() {
    let cluster = Cluster::start(3, 2);
    for key in keys(100) {
        cluster.write(&key, "1", MAJORITY);
    }
    cluster.must("/v1/dev/nodes/1/stop");
    let told = cluster.must("/v1/dev/nodes/1/failover");
    assert_eq!(
        (&told["nodes"][0]["status"], &told["nodes"][0]["active_vbuckets"], &told["is_settled"]),
        (&json!("failed_over"), &json!(0), &json!(true))
    );
    assert_eq!(cluster.map(2)["vBucketServerMap"]["serverList"].as_array().map(Vec::len), Some(2));
    for key in keys(100) {
        assert_eq!(cluster.read(&key).as_deref(), Some(&b"1"[..]), "{key}");
        cluster.write(&key, "2", MAJORITY);
    }
    for (path, words) in
        [("/v1/dev/nodes/1/failover", "recover it"), ("/v1/dev/nodes/1/recover", "start it first")]
    {
        let (code, told) = cluster.order(path);
        let message = told["message"].as_str().unwrap_or_default();
        assert!(code == 409 && message.contains(words), "{path}: {code} {message}");
    }
    cluster.must("/v1/dev/nodes/1/start");
    let answer = cluster.client(1).get(b"k1").map(|answer| answer.status);
    assert_eq!(answer, Some(Status::NotMyVbucket));
    let told = cluster.must("/v1/dev/nodes/1/recover");
    assert_eq!((&told["nodes"][0]["status"], &told["is_settled"]), (&json!("active"), &json!(true)));
    assert!(told["nodes"][0]["active_vbuckets"].as_u64() > Some(0));
    // Now the one that came back is as good as any.
    cluster.must("/v1/dev/nodes/2/failover");
    cluster.must("/v1/dev/nodes/3/failover");
    for key in keys(100) {
        assert_eq!(cluster.read(&key).as_deref(), Some(&b"2"[..]), "{key}");
    }
    assert_eq!(cluster.order("/v1/dev/nodes/1/failover").0, 409, "nobody would be left");
    cluster.stop();
}

#[test]
fn which_copy_follows_which_is_for_the_cluster_to_say() {
    let cluster = Cluster::start(2, 1);
    for body in ["{\"sources\": []}", "{"] {
        let (code, told) = http(&cluster.node(1), "PUT", "/v1/buckets/default/replication", body);
        assert!(code == 400 && told.contains("stave cluster rebalance"), "{code} {told}");
    }
    assert!(
        !cluster.dev.node(1).expect("it runs").replication().status(None).is_empty(),
        "its copies follow on"
    );
    cluster.stop();
}

#[test]
fn a_node_hands_over_gracefully() {
    let cluster = Cluster::start(3, 1);
    for key in keys(50) {
        // Nobody waits for the copies.
        cluster.write(&key, "1", NO_LEVEL);
    }
    let told = cluster.must("/v1/dev/nodes/2/failover?mode=graceful");
    assert_eq!(
        (&told["nodes"][1]["status"], &told["last_rebalance"]),
        (&json!("failed_over"), &json!("done"))
    );
    for key in keys(50) {
        assert_eq!(cluster.read(&key).as_deref(), Some(&b"1"[..]), "{key}");
    }
    let told = cluster.must("/v1/dev/nodes/2/recover?type=full");
    assert_eq!(told["nodes"][1]["status"], "active");
    for key in keys(50) {
        assert_eq!(cluster.read(&key).as_deref(), Some(&b"1"[..]), "{key}");
        cluster.write(&key, "2", PERSIST);
    }
    cluster.stop();
}

#[test]
fn nodes_are_added_and_removed() {
    let cluster = Cluster::start(2, 1);
    for key in keys(50) {
        cluster.write(&key, "1", MAJORITY);
    }
    let told = cluster.must("/v1/dev/nodes");
    assert_eq!((&told["nodes"][2]["status"], &told["is_settled"]), (&json!("active"), &json!(true)));
    assert!(told["nodes"][2]["active_vbuckets"].as_u64() > Some(0), "{told}");
    let folder = told["nodes"][0]["data"].as_str().expect("a folder").to_owned();
    let told = cluster.must("/v1/dev/nodes/1/remove");
    let numbers: Vec<_> = told["nodes"].as_array().expect("nodes").iter().map(|node| &node["node"]).collect();
    assert_eq!(numbers, [&json!(2), &json!(3)]);
    assert!(base::env::Env::real().disk.read_dir(folder.as_ref()).is_err(), "its documents are gone");
    // Its number is free again, and without a rebalance the new one has nothing.
    let told = cluster.must("/v1/dev/nodes?rebalance=false");
    assert_eq!((&told["nodes"][0]["node"], &told["nodes"][0]["status"]), (&json!(1), &json!("new")));
    for key in keys(50) {
        assert_eq!(cluster.read(&key).as_deref(), Some(&b"1"[..]), "{key}");
    }
    let told = cluster.must("/v1/dev/rebalance");
    assert_eq!((&told["nodes"][0]["status"], &told["last_rebalance"]), (&json!("active"), &json!("done")));
    // One that was failed over leaves without being asked what it has.
    cluster.wait_for_replicas();
    cluster.must("/v1/dev/nodes/3/stop");
    cluster.must("/v1/dev/nodes/3/failover");
    let told = cluster.must("/v1/dev/nodes/3/remove");
    assert_eq!((told["nodes"].as_array().map(Vec::len), &told["is_settled"]), (Some(2), &json!(true)));
    for key in keys(50) {
        assert_eq!(cluster.read(&key).as_deref(), Some(&b"1"[..]), "{key}");
        cluster.write(&key, "2", MAJORITY);
    }
    cluster.stop();
}

#[test]
fn a_recovery_does_not_lose_another_node() {
    let cluster = Cluster::start(3, 1);
    cluster.must("/v1/dev/nodes/2/failover");
    let told = cluster.must("/v1/dev/nodes/2/recover?rebalance=false");
    assert_eq!(told["nodes"][1]["status"], "recovers");
    cluster.must("/v1/dev/nodes/2/recover");
    cluster.must("/v1/dev/nodes/3/failover");
    cluster.must("/v1/dev/nodes/2/failover?force=true");
    let (code, told) = cluster.order("/v1/dev/nodes/2/recover");
    let message = told["message"].as_str().unwrap_or_default();
    assert!(code == 409 && message.contains("rebalance=false"), "{code} {message}");
    cluster.must("/v1/dev/nodes/3/recover?rebalance=false");
    let told = cluster.must("/v1/dev/nodes/2/recover");
    assert_eq!(
        (&told["nodes"][1]["status"], &told["nodes"][2]["status"]),
        (&json!("active"), &json!("active"))
    );
    // The cluster's own interface knows of the same.
    assert_eq!(
        http(&cluster.node(1), "GET", "/pools/default/rebalanceProgress", "").1,
        r#"{"status":"none"}"#
    );
    cluster.stop();
}

#[test]
fn the_clock_of_all_nodes_is_that_of_those_who_come_later() {
    let cluster = Cluster::start(2, 1);
    cluster.must("/v1/dev/clock?advance_s=7200");
    cluster.must("/v1/dev/clock?advance_s=60&node=1");
    let offset = |number: u16| cluster.told_of(number)["clock_offset_s"].clone();
    cluster.must("/v1/dev/nodes");
    assert_eq!([1, 2, 3].map(offset), [json!(7260), json!(7200), json!(7200)]);
    for too_far in ["9223372036854775", "315360000", "-315370000"] {
        let (code, told) = cluster.order(&format!("/v1/dev/clock?advance_s={too_far}"));
        let message = told["message"].as_str().unwrap_or_default();
        assert!(code == 400 && message.contains("ten years"), "{code} {message}");
    }
    assert_eq!([1, 2, 3].map(offset), [json!(7260), json!(7200), json!(7200)], "all or none");
    cluster.stop();
}

#[test]
fn one_that_has_left_is_replaced_by_another() {
    let cluster = Cluster::start(3, 1);
    cluster.must("/v1/dev/nodes/3/failover");
    let (code, told) = cluster.order("/v1/dev/nodes/3/failover");
    let message = told["message"].as_str().unwrap_or_default();
    assert!(code == 409 && message.contains("node 3 is failed_over to the cluster"), "{code} {message}");
    cluster.must("/v1/dev/rebalance");
    assert_eq!(cluster.told_of(3)["status"], "none");
    for order in ["recover", "restart", "start"] {
        let (code, told) = cluster.order(&format!("/v1/dev/nodes/3/{order}"));
        let message = told["message"].as_str().unwrap_or_default();
        assert!(
            code == 409 && message.contains("remove it, and add another one"),
            "{order}: {code} {message}"
        );
    }
    cluster.must("/v1/dev/nodes/3/remove");
    cluster.must("/v1/dev/nodes");
    assert_eq!(cluster.told_of(3)["status"], "active");
    cluster.stop();
}

/// A request to the control endpoint with these fields; the status code.
#[allow(clippy::disallowed_methods, reason = "this is a client, outside the server")]
fn code_of(addr: SocketAddr, fields: &str) -> Option<u16> {
    let mut stream = TcpStream::connect(addr).expect("it listens");
    let request = format!("POST /v1/dev/rebalance HTTP/1.1\r\nConnection: close\r\n{fields}\r\n\r\n");
    stream.write_all(request.as_bytes()).expect("it takes it");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("text");
    answer.split(' ').nth(1).and_then(|code| code.parse::<u16>().ok())
}

/// The control endpoint asks for no password: a web page that the user looks at must not reach it.
#[test]
fn web_pages_of_others_give_no_orders() {
    let cluster = Cluster::start(1, 0);
    let addr = cluster.dev.control_addr();
    let host = format!("Host: {addr}");
    for fields in [
        "Host: evil.example",
        &format!("{host}\r\nOrigin: http://evil.example"),
        &format!("{host}\r\nSec-Fetch-Site: cross-site"),
    ] {
        assert_eq!(code_of(addr, fields), Some(403), "{fields}");
    }
    for fields in [&*host, "Host: localhost", &format!("{host}\r\nOrigin: http://{addr}")] {
        assert_eq!(code_of(addr, fields), Some(200), "{fields}");
    }
}

/// A program that lets it listen beyond this machine: a page comes there by no name that may be led anywhere.
#[test]
fn web_pages_of_others_give_no_orders_beyond_this_machine() {
    let folder = tempfile::tempdir().expect("a folder");
    let everywhere = "0.0.0.0:0".parse().expect("an address");
    let config = DevConfig { control: everywhere, ..config(folder.path(), 1, 0) };
    let cluster = Cluster::of(DevCluster::start(config, Env::real()).expect("it starts"));
    let addr = SocketAddr::from(([127, 0, 0, 1], cluster.dev.control_addr().port()));
    let page = "Host: evil.example\r\nOrigin: http://evil.example";
    assert_eq!(code_of(addr, page), Some(403));
    assert_eq!(code_of(addr, "Host: evil.example\r\nSec-Fetch-Site: same-origin"), Some(403));
    for fields in [&format!("Host: {addr}\r\nSec-Fetch-Site: same-origin"), "Host: build.internal"] {
        assert_eq!(code_of(addr, fields), Some(200), "{fields}");
    }
    cluster.stop();
}
