//! What clients are told, buckets and collections through any node.

use std::time::Duration;

use dev::DevTimes;
use protocol::Status;
use serde_json::{Value, json};

use crate::cluster::{Cluster, MAJORITY, NO_LEVEL, eventually, keys};
use crate::support::{VBUCKETS, http, json as get_json};

#[test]
fn every_node_tells_the_same_map_and_sends_clients_to_the_right_one() {
    let cluster = Cluster::start(3, 1);
    let servers = cluster.map(1)["vBucketServerMap"].clone();
    let list = servers["serverList"].as_array().expect("a list");
    let addresses: Vec<String> = cluster.dev.addresses().values().map(|(kv, _)| kv.to_string()).collect();
    assert_eq!(list.iter().filter_map(Value::as_str).collect::<Vec<_>>(), addresses);
    for number in 1..=3 {
        let map = cluster.map(number);
        assert_eq!((&map["vBucketServerMap"], &map["uuid"]), (&servers, &cluster.map(1)["uuid"]));
        assert_eq!(map["nodesExt"][usize::from(number) - 1]["thisNode"], true);
        let nodes = get_json(&cluster.node(number), "/pools/default")["nodes"].clone();
        assert_eq!(nodes.as_array().map(Vec::len), Some(3));
        let told = cluster.told_of(number);
        assert_eq!((&told["status"], &told["may_serve"]), (&json!("active"), &json!(true)));
        let shares = (told["active_vbuckets"].as_u64(), told["replica_vbuckets"].as_u64());
        assert!(matches!(shares, (Some(1..=2), Some(1..=2))), "{told}");
    }
    for key in keys(8) {
        cluster.write(&key, "v", NO_LEVEL);
        let answers = (1..=3).map(|number| cluster.client(number).get(key.as_bytes()).expect("an answer"));
        let wrong: Vec<_> = answers.filter(|answer| answer.status != Status::Success).collect();
        assert_eq!(wrong.len(), 2);
        for answer in wrong {
            assert_eq!(answer.status, Status::NotMyVbucket);
            assert_eq!(answer.json()["vBucketServerMap"], servers);
        }
    }
    cluster.stop();
}

#[test]
fn a_bucket_is_made_and_deleted_through_any_node() {
    // A deletion waits as long as one that is not there may serve by promises: a few times this.
    let times = DevTimes { lease: Duration::from_secs(4), auto_failover: None };
    let cluster = Cluster::with_times(2, 1, times);
    let form = "name=b&ramQuotaMB=100&replicaNumber=1&flushEnabled=1";
    assert_eq!(http(&cluster.node(2), "POST", "/pools/default/buckets", form), (202, String::new()));
    let has = |number: u16, bucket: &str| {
        cluster.dev.node(number).is_some_and(|node| node.bucket(bucket).is_some())
    };
    for number in 1..=2 {
        eventually("the other node has it", || has(number, "b"));
        assert_eq!(get_json(&cluster.node(number), "/pools/default/buckets/b")["replicaNumber"], 1);
        let map =
            get_json(&cluster.node(number), "/pools/default/b/b")["vBucketServerMap"]["vBucketMap"].clone();
        let rows = map.as_array().expect("rows");
        assert_eq!(rows.len(), usize::from(VBUCKETS));
        assert!(rows.iter().all(|row| *row == json!([0, 1]) || *row == json!([1, 0])), "{map}");
    }
    assert_eq!(http(&cluster.node(1), "POST", "/pools/default/buckets", "name=b&ramQuotaMB=100").0, 400);
    // One that does not run hears of it when it starts.
    cluster.must("/v1/dev/nodes/2/stop");
    assert_eq!(http(&cluster.node(1), "POST", "/pools/default/buckets", "name=c&ramQuotaMB=100").0, 202);
    assert_eq!(http(&cluster.node(1), "DELETE", "/pools/default/buckets/b", "").0, 200);
    let told = cluster.must("/v1/dev/nodes/2/start");
    assert_eq!(told["is_settled"], true);
    let names = get_json(&cluster.node(2), "/pools/default")["bucketNames"].clone();
    let names: Vec<&str> =
        names.as_array().expect("a list").iter().filter_map(|n| n["bucketName"].as_str()).collect();
    assert_eq!(names, ["c", "default"]);
    assert!(!has(2, "b") && has(2, "c"));
    cluster.stop();
}

#[test]
fn collections_appear_on_all_nodes() {
    let cluster = Cluster::start(3, 1);
    let scopes = "/pools/default/buckets/default/scopes";
    let shop = format!("{scopes}/shop/collections");
    let uids = |number: u16| get_json(&cluster.node(number), scopes)["uid"].clone();
    for (number, path, body) in
        [(1, scopes, "name=shop"), (2, &*shop, "name=orders"), (3, &*shop, "name=carts")]
    {
        let newest = (1..=3).map(|other| uids(other).as_str().map(str::to_owned)).max();
        eventually("it has heard of the one before", || {
            uids(number).as_str().map(str::to_owned) == newest.clone().flatten()
        });
        let (code, told) = http(&cluster.node(number), "POST", path, body);
        assert_eq!(code, 200, "{told}");
    }
    let all = get_json(&cluster.node(3), scopes);
    assert_eq!(all["uid"], "3");
    for number in 1..=2 {
        eventually("all nodes have the same", || get_json(&cluster.node(number), scopes) == all);
    }
    assert_eq!(http(&cluster.node(2), "DELETE", &format!("{shop}/orders"), "").0, 200);
    for number in [1, 3] {
        eventually("it is gone everywhere", || {
            let told = get_json(&cluster.node(number), scopes).to_string();
            told.contains("carts") && !told.contains("orders")
        });
    }
    cluster.stop();
}

#[test]
fn a_bucket_is_emptied_through_any_node() {
    let cluster = Cluster::start(3, 1);
    for key in keys(30) {
        cluster.write(&key, "1", MAJORITY);
    }
    let path = "/pools/default/buckets/default/controller/doFlush";
    let (code, told) = http(&cluster.node(2), "POST", path, "");
    assert_eq!(code, 200, "{told}");
    for key in keys(30) {
        eventually("no node has a document", || cluster.read(&key).is_none());
        cluster.write(&key, "2", MAJORITY);
    }
    cluster.stop();
}
