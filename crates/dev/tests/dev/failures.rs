//! Nodes that are frozen or cut off: who serves, who takes over, and who must not.

use std::time::Duration;

use dev::DevTimes;
use protocol::Status;
use serde_json::json;

use crate::cluster::{Cluster, MAJORITY, NO_LEVEL, PERSIST, eventually, keys, set};
use crate::support::{Client, http};

/// Whoever is frozen or cut off is missed soon. Others may be, too, where the machine is busy: they come back.
const SHORT: DevTimes = DevTimes { lease: Duration::from_millis(400), auto_failover: None };

#[test]
fn a_frozen_node_stands_still_and_goes_on() {
    let cluster = Cluster::start(2, 1);
    let path = cluster.must("/v1/dev/nodes/2/freeze");
    assert_eq!(
        (&path["nodes"][1]["is_frozen"], &path["nodes"][1]["may_serve"]),
        (&json!(true), &json!(false))
    );
    let mut late = Client::silent(&cluster.node(2));
    assert!(late.is_silent());
    assert_eq!(cluster.order("/v1/dev/nodes/2/freeze").0, 409);
    let told = cluster.must("/v1/dev/nodes/2/thaw");
    assert_eq!(told["nodes"][1]["may_serve"], true);
    assert_eq!(late.receive().status, Status::Success);
    assert_eq!(cluster.order("/v1/dev/nodes/2/thaw").0, 409);
    cluster.stop();
}

#[test]
fn a_node_that_thaws_after_others_took_over_serves_nothing_of_theirs() {
    let times = DevTimes { auto_failover: Some(Duration::from_millis(100)), ..SHORT };
    let cluster = Cluster::with_times(3, 1, times);
    let key = "k1";
    cluster.write(key, "before", MAJORITY);
    let old = cluster.owner(key.as_bytes()).expect("there is one");
    let mut client = cluster.client(old);
    cluster.must(&format!("/v1/dev/nodes/{old}/freeze"));
    eventually("others have taken over", || {
        cluster.told_of(old)["status"] == "failed_over"
            && cluster.owner(key.as_bytes()).is_some_and(|now| now != old)
    });
    // Nobody else is as durable as that any more: one of two copies is left.
    cluster.write(key, "after", NO_LEVEL);
    assert_eq!(cluster.told_of(old)["has_lease"], false);
    cluster.must(&format!("/v1/dev/nodes/{old}/thaw"));
    // Whatever it is asked, however soon.
    assert_eq!(client.get(key.as_bytes()).map(|answer| answer.status), Some(Status::NotMyVbucket));
    assert_eq!(set(&mut client, key, "lost", NO_LEVEL), Some(Status::NotMyVbucket));
    assert_eq!(cluster.read(key).as_deref(), Some(&b"after"[..]));
    cluster.stop();
}

#[test]
fn a_node_without_its_lease_serves_nothing_before_it_is_admitted_again() {
    let cluster = Cluster::with_times(2, 1, SHORT);
    let key = "k1";
    cluster.write(key, "v", MAJORITY);
    let owner = cluster.owner(key.as_bytes()).expect("there is one");
    let mut client = cluster.client(owner);
    cluster.must(&format!("/v1/dev/nodes/{owner}/cut?from=store"));
    eventually("its lease has run out", || cluster.told_of(owner)["may_serve"] == false);
    assert_eq!(client.get(key.as_bytes()).map(|answer| answer.status), Some(Status::NotMyVbucket));
    assert_eq!(set(&mut client, key, "lost", NO_LEVEL), Some(Status::NotMyVbucket));
    let told = cluster.told_of(owner);
    assert_eq!((&told["is_cut_from_store"], &told["is_cut_from_nodes"]), (&json!(true), &json!(false)));
    // It cannot change anything either.
    let (code, text) = http(&cluster.node(owner), "POST", "/pools/default/buckets", "name=b&ramQuotaMB=100");
    assert!(code >= 500, "{code}: {text}");
    cluster.must(&format!("/v1/dev/nodes/{owner}/join?from=store"));
    assert_eq!(cluster.read(key).as_deref(), Some(&b"v"[..]));
    cluster.stop();
}

#[test]
fn a_node_that_is_cut_off_from_the_others_does_not_hear_of_changes_until_it_joins() {
    let cluster = Cluster::start(2, 1);
    let key = "k1";
    cluster.write(key, "1", MAJORITY);
    let owner = cluster.owner(key.as_bytes()).expect("there is one");
    let other = 3 - owner;
    cluster.must(&format!("/v1/dev/nodes/{other}/cut?from=nodes"));
    cluster.write(key, "2", NO_LEVEL);
    assert!(!cluster.is_caught_up(other));
    // It still serves what it is active for.
    assert_eq!(cluster.told_of(other)["may_serve"], true);
    cluster.must(&format!("/v1/dev/nodes/{other}/join"));
    cluster.wait_for_replicas();
    cluster.write(key, "3", PERSIST);
    cluster.stop();
}

#[test]
fn whoever_is_cut_off_from_everything_is_failed_over_and_recovers() {
    let times = DevTimes { auto_failover: Some(Duration::from_millis(100)), ..SHORT };
    let cluster = Cluster::with_times(3, 1, times);
    for key in keys(30) {
        cluster.write(&key, "1", MAJORITY);
    }
    cluster.must("/v1/dev/nodes/2/cut");
    eventually("others have taken over", || cluster.told_of(2)["status"] == "failed_over");
    cluster.must("/v1/dev/nodes/2/join");
    let told = cluster.must("/v1/dev/nodes/2/recover");
    assert_eq!((&told["nodes"][1]["status"], &told["last_rebalance"]), (&json!("active"), &json!("done")));
    for key in keys(30) {
        assert_eq!(cluster.read(&key).as_deref(), Some(&b"1"[..]), "{key}");
        cluster.write(&key, "2", PERSIST);
    }
    cluster.stop();
}

#[test]
fn what_is_wrong_is_told_with_what_is_right() {
    let cluster = Cluster::start(2, 0);
    for (path, code, words) in [
        ("/v1/dev/nodes/9/stop", 404, "there is no node 9"),
        ("/v1/dev/nodes/x/stop", 404, "numbered from 1"),
        ("/v1/dev/nodes/1/explode", 404, "failover, recover or remove"),
        ("/elsewhere", 404, "GET /v1/dev"),
        ("/v1/dev/nodes/1/start", 409, "runs already"),
        ("/v1/dev/nodes/1/thaw", 409, "is not frozen"),
        ("/v1/dev/nodes/1/recover", 409, "fail it over first"),
        ("/v1/dev/nodes/1/failover", 409, "more replicas are needed, or force=true"),
        ("/v1/dev/nodes/1/failover?mode=soft", 400, "hard or graceful"),
        ("/v1/dev/nodes/1/cut?form=all", 400, "cut takes from"),
        ("/v1/dev/nodes?wait_s=-1", 400, "whole number"),
        ("/v1/dev/rebalance?force=true", 400, "takes wait_s"),
        ("/v1/dev/clock", 400, "advance_s=SECONDS"),
        ("/v1/dev/clock?advance_s=1&node=7", 404, "there is no node 7"),
    ] {
        let (is, told) = cluster.order(path);
        let message = told["message"].as_str().unwrap_or_default();
        assert!(is == code && message.contains(words), "{path}: {is} {message}");
    }
    cluster.must("/v1/dev/nodes/2/stop");
    for (path, words) in [
        ("/v1/dev/nodes/2/stop", "does not run"),
        ("/v1/dev/nodes/2/kill", "start it first"),
        ("/v1/dev/nodes/2/freeze", "start it first"),
        ("/v1/dev/rebalance", "start, thaw or join it first"),
    ] {
        let (is, told) = cluster.order(path);
        let message = told["message"].as_str().unwrap_or_default();
        assert!(is == 409 && message.contains(words), "{path}: {is} {message}");
    }
    cluster.must("/v1/dev/nodes/1/stop");
    let (code, told) = cluster.order("/v1/dev/rebalance");
    assert_eq!(
        (code, told["message"].as_str()),
        (409, Some("no node could do it: start, thaw or join one first"))
    );
    cluster.stop();
}

#[test]
fn a_recovery_that_is_refused_changes_nothing() {
    let cluster = Cluster::with_times(4, 1, SHORT);
    eventually("node 2 is failed over, once no other one is missed", || {
        cluster.order("/v1/dev/nodes/2/failover").0 == 200
    });
    cluster.must("/v1/dev/nodes/3/kill");
    eventually("node 3 is missed", || cluster.told_of(3)["has_lease"] == false);
    // What is told as long as others are missed, too, is something else.
    let refused = |path: &str, words: &str| {
        eventually("node 3 is named", || {
            let (code, told) = cluster.order(path);
            let message = told["message"].as_str().unwrap_or_default();
            assert_eq!(code, 409, "{path}: {message}");
            message.contains(words)
        });
        assert_eq!(cluster.told_of(2)["status"], "failed_over");
    };
    refused("/v1/dev/nodes/2/recover", "node 3 is down");
    refused("/v1/dev/nodes/2/remove", "node 3 is down");
    refused("/v1/dev/rebalance", "node 3 is down; start");
    cluster.stop();
}

#[test]
fn an_order_that_is_not_at_its_end_says_so() {
    let cluster = Cluster::start(3, 1);
    cluster.must("/v1/dev/nodes/2/freeze");
    let (code, told) = cluster.order("/v1/dev/nodes/3/failover?wait_s=1");
    let message = told["message"].as_str().unwrap_or_default();
    assert!(code == 504 && message.contains("node 2 has not done its part"), "{code} {message}");
    assert_eq!(cluster.told_of(3)["status"], "failed_over");
    assert_eq!(cluster.order("/v1/dev/nodes/3/recover?rebalance=false&wait_s=0").0, 200, "nobody waits");
    cluster.must("/v1/dev/nodes/2/thaw");
    cluster.stop();
}

#[test]
fn wrong_methods_are_told_of_the_right_ones() {
    let cluster = Cluster::start(1, 0);
    let control = (cluster.dev.control_addr(), cluster.dev.control_addr());
    for (method, path, words) in [
        ("POST", "/v1/dev", "there is no POST at this address: use GET"),
        ("GET", "/v1/dev/nodes", "there is no GET at this address: use POST"),
        ("GET", "/v1/dev/nodes/1/kill", "use POST"),
        ("DELETE", "/v1/dev/clock", "there is no DELETE at this address: use POST"),
    ] {
        let (code, body) = http(&control, method, path, "");
        let told: serde_json::Value = serde_json::from_str(&body).unwrap_or_default();
        let message = told["message"].as_str().unwrap_or_default();
        assert!(code == 405 && message.contains(words), "{method} {path}: {code} {message}");
    }
    assert_eq!(http(&control, "GET", "/v1/dev/", "").0, 200);
    cluster.stop();
}

#[test]
fn no_node_comes_whose_rebalance_would_be_refused() {
    let cluster = Cluster::with_times(3, 1, SHORT);
    cluster.must("/v1/dev/nodes/3/kill");
    eventually("node 3 is missed", || cluster.told_of(3)["has_lease"] == false);
    let (code, told) = cluster.order("/v1/dev/nodes");
    let message = told["message"].as_str().unwrap_or_default();
    assert!(code == 409 && message.contains("node 3 is down"), "{code} {message}");
    assert_eq!(cluster.dev.addresses().len(), 3);
    cluster.stop();
}
