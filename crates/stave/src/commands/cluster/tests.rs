//! Bars, counts and names of `stave cluster`.

use std::time::Duration;

use clap::Parser;

use super::waiting::bar;
use super::*;
use crate::test_server::TestServer;

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    flags: ClusterFlags,
}

#[test]
fn a_node_without_a_cluster_says_so() {
    let mut server = TestServer::start();
    let addr = server.http_addr();
    let words = ["stave", "rebalance", "--addr", &addr, "--password", "password"];
    let line = Line::try_parse_from(words).expect("a command line");
    let refused = run(&Env::real(), &line.flags).expect_err("there is no cluster").to_string();
    assert!(refused.contains("this node belongs to no cluster"), "{refused}");
    server.stop();
}

#[test]
fn progress_is_a_bar() {
    let cluster = json!({ "progress": 0.5, "state": { "rebalance": { "total": 300 } } });
    let expected = format!("[{}{}]  50 %  150 of 300 vBuckets, 3 s left", "#".repeat(20), "-".repeat(20));
    assert_eq!(bar(&cluster, Duration::from_secs(3)), expected);
    let cluster = json!({ "progress": null, "state": { "rebalance": null } });
    assert_eq!(bar(&cluster, Duration::from_secs(3)), format!("[{}] 100 %", "#".repeat(40)));
}

#[test]
fn open_choices_are_counted() {
    let steps = json!({ "1": { "choose": { "since": 3 } }, "2": "build", "3": { "both": { "since": 1 } } });
    assert_eq!(choices(&json!({ "state": { "buckets": { "b": { "steps": steps } } } })), 1);
    assert_eq!(choices(&json!({ "state": { "buckets": { "b": {} } } })), 0);
}

#[test]
fn nodes_are_found_by_name_and_address() {
    let node = json!({ "address": { "host": "h", "kv": 1, "http": 2 }, "status": "active" });
    let cluster = json!({ "state": { "nodes": { "7": node } } });
    for name in ["n_7", "h:1", "h:2"] {
        assert_eq!(find(&cluster, name), Some(("n_7".to_owned(), "active".to_owned())), "{name}");
    }
    assert_eq!(find(&cluster, "n_8"), None);
    let known = |names: [&str; 2]| all_known(&cluster, &names.map(str::to_owned));
    assert!(known(["n_7", "h:1"]).is_ok());
    let unknown = known(["n_7", "n_8"]).expect_err("there is none").to_string();
    assert!(unknown.contains("no node n_8"), "{unknown}");
    // A node that lost its folder, and the one that has come in its place.
    let one = |status| json!({ "address": { "host": "h", "kv": 1, "http": 2 }, "status": status });
    let nodes = json!({ "2": one("failed_over"), "4": one("new") });
    let cluster = json!({ "alive": [4], "state": { "nodes": nodes } });
    assert_eq!(find(&cluster, "h:2"), Some(("n_4".to_owned(), "new".to_owned())));
    assert_eq!(find(&cluster, "n_2"), Some(("n_2".to_owned(), "failed_over".to_owned())));
    assert!(is_up(&cluster, "n_4") && !is_up(&cluster, "n_2"));
}

#[test]
fn a_node_without_a_lease_is_gone() {
    let node = json!({ "address": { "host": "h", "kv": 1, "http": 2 }, "status": "active" });
    let cluster = json!({ "alive": [1], "state": { "nodes": { "1": node, "2": node } } });
    let is_gone = |name: &str| is_gone(&cluster, name);
    // A node that the cluster does not have is none that went.
    assert_eq!([is_gone("n_1"), is_gone("n_2"), is_gone("n_3")], [false, true, false]);
}

#[test]
fn it_is_said_who_leaves_with_a_rebalance() {
    let purpose = json!({ "rebalance": { "eject": [2, 5] } });
    let runs = json!({ "state": { "rebalance": { "purpose": purpose }, "finished": null } });
    let is_over = json!({ "state": { "rebalance": null, "finished": { "purpose": purpose } } });
    for cluster in [runs, is_over] {
        assert_eq!(with_leavers("done", &leavers(&cluster), "have left"), "done; have left: n_2, n_5");
    }
    let nobody = json!({ "state": { "rebalance": null, "finished": null } });
    assert_eq!(with_leavers("done", &leavers(&nobody), "have left"), "done");
}

#[test]
fn a_rebalance_of_nothing_has_no_bar() {
    let cluster = json!({ "progress": 1.0, "state": { "rebalance": { "total": 0 } } });
    assert_eq!(bar(&cluster, Duration::from_secs(3)), "there is nothing to move");
}

#[test]
fn a_graceful_failover_that_is_given_up_stops_nothing_of_others() {
    let of = |purpose: Value| {
        let nodes = json!({ "2": { "address": { "host": "a", "kv": 1, "http": 2 }, "status": "active" } });
        json!({ "alive": [], "state": { "nodes": nodes, "rebalance": { "purpose": purpose } } })
    };
    let is_its_own = |purpose: Value| ["n_2", "a:2"].map(|node| hands_over(&of(purpose.clone()), node));
    assert_eq!(is_its_own(json!({ "graceful_failover": { "node": 2 } })), [true, true]);
    for other in [
        json!({ "graceful_failover": { "node": 3 } }),
        json!({ "rebalance": { "eject": [2] } }),
        json!("repair"),
        Value::Null,
    ] {
        assert_eq!(is_its_own(other.clone()), [false, false], "{other}");
    }
}

#[test]
fn a_rebalance_that_could_not_go_on_says_why() {
    let ended = |why: Option<&str>| {
        let finished = json!({ "outcome": "cancelled", "why": why });
        rebalanced(&json!({ "state": { "finished": finished } })).expect_err("it ended early").to_string()
    };
    let why =
        "bucket b: n_1 has had no connection to n_2, whose copies it is to follow: TLS: bad certificate";
    assert!(ended(Some(why)).contains(why));
    assert!(ended(None).contains("somebody has stopped it"));
}

#[test]
fn an_end_that_waits_for_nodes_names_those_with_a_share() {
    let node = |status: &str| json!({ "status": status });
    let nodes =
        json!({ "1": node("active"), "2": node("active"), "3": node("failed_over"), "4": node("new") });
    assert_eq!(down(&json!({ "alive": [1], "state": { "nodes": nodes } })), ["n_2"]);
}
