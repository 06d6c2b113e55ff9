//! A development cluster: several nodes in this process, and what its control endpoint does to them.

mod support;

use std::net::SocketAddr;

use base::env::Env;
use base::{Seqno, VbId, VbState};
use protocol::feature::Feature;
use protocol::{RequestParts, Status, opcode};
use serde_json::{Value, json};
use server::config::BucketSpec;
use server::dev::{DevCluster, DevConfig};
use support::{Client, VBUCKETS, http, json as get_json};

type Addrs = (SocketAddr, SocketAddr);

struct Cluster {
    dev: DevCluster,
    _folder: tempfile::TempDir,
}

fn config(folder: &std::path::Path, nodes: u16, replicas: u8) -> DevConfig {
    let any: SocketAddr = "127.0.0.1:0".parse().expect("valid");
    let spec = BucketSpec::parse("default:100MiB").expect("valid");
    DevConfig {
        nodes,
        buckets: vec![BucketSpec { replicas, flush_enabled: true, ..spec }],
        data: folder.to_owned(),
        username: "Administrator".to_owned(),
        password: "password".to_owned(),
        kv: any,
        http: any,
        control: any,
        threads: 1,
        vbuckets: VBUCKETS,
    }
}

impl Cluster {
    fn start(nodes: u16, replicas: u8) -> Cluster {
        let folder = tempfile::tempdir().expect("a folder");
        let dev = DevCluster::start(config(folder.path(), nodes, replicas), Env::real()).expect("it starts");
        Cluster { dev, _folder: folder }
    }

    fn node(&self, at: usize) -> Addrs {
        self.dev.addresses()[at]
    }

    fn order(&self, path: &str) -> (u16, Value) {
        let control = (self.dev.control_addr(), self.dev.control_addr());
        let (code, body) = http(&control, "POST", path, "");
        (code, serde_json::from_str(&body).unwrap_or_default())
    }

    fn must(&self, path: &str) -> Value {
        let (code, told) = self.order(path);
        assert_eq!(code, 200, "{path}: {told}");
        told
    }

    /// The map as a node tells it.
    fn map(&self, at: usize) -> Value {
        get_json(&self.node(at), "/pools/default/b/default")
    }

    /// A client of the node that is active for a key, as the map of node `at` has it.
    fn client_for(&self, at: usize, key: &[u8]) -> Client {
        let servers = &self.map(at)["vBucketServerMap"];
        let active = servers["vBucketMap"][usize::from(support::vb(key).0)][0].as_u64().expect("a place");
        let kv = servers["serverList"][active as usize].as_str().expect("an address");
        let kv: SocketAddr = kv.parse().expect("valid");
        Client::connect(&(kv, kv), "default", &[])
    }

    /// The highest seqno of each vBucket that a node has in a role.
    fn seqnos(&self, at: usize, role: VbState) -> Vec<Option<Seqno>> {
        let bucket = self.dev.node(at).and_then(|node| node.bucket("default")).expect("it runs");
        let seqno =
            |vb| bucket.inspect(VbId(vb), |vb| (vb.state() == role).then(|| vb.high_seqno())).flatten();
        (0..VBUCKETS).map(seqno).collect()
    }

    /// The highest seqno of each vBucket where it is active.
    fn active_seqnos(&self) -> Vec<Option<Seqno>> {
        let nodes = (0..self.dev.addresses().len()).filter(|at| self.dev.node(*at).is_some());
        let all: Vec<_> = nodes.map(|at| self.seqnos(at, VbState::Active)).collect();
        (0..usize::from(VBUCKETS)).map(|vb| all.iter().find_map(|seqnos| seqnos[vb])).collect()
    }

    /// Whether the copies of a node have all that there is.
    fn is_caught_up(&self, at: usize) -> bool {
        let pairs = self.seqnos(at, VbState::Replica).into_iter().zip(self.active_seqnos());
        pairs.into_iter().all(|(copy, active)| copy.is_none() || copy == active)
    }

    /// Waits until the copies of a node have all that there is.
    fn wait_for_replicas(&self, at: usize) {
        while !self.is_caught_up(at) {
            std::thread::yield_now();
        }
    }

    fn stop(self) {
        self.dev.stop().expect("a clean stop");
    }
}

#[test]
fn every_node_tells_the_same_map_and_sends_clients_to_the_right_one() {
    let cluster = Cluster::start(3, 1);
    let servers = cluster.map(0)["vBucketServerMap"].clone();
    assert_eq!(servers["serverList"].as_array().map(Vec::len), Some(3));
    for at in 0..3 {
        let map = cluster.map(at);
        assert_eq!((&map["vBucketServerMap"], &map["revEpoch"]), (&servers, &json!(2)));
        assert_eq!(map["uuid"], cluster.map(0)["uuid"]);
        assert_eq!(map["nodesExt"][at]["thisNode"], true);
        assert_eq!(get_json(&cluster.node(at), "/pools/default")["nodes"].as_array().map(Vec::len), Some(3));
    }
    for key in [b"a", b"b", b"c", b"d"] {
        assert_eq!(cluster.client_for(1, key).set(key, b"v"), Some(Status::Success));
        let mut answers = (0..3).map(|at| {
            let mut client = Client::connect(&cluster.node(at), "default", &[]);
            client.get(key).expect("an answer")
        });
        let wrong: Vec<_> = answers.by_ref().filter(|answer| answer.status != Status::Success).collect();
        assert_eq!(wrong.len(), 2);
        for answer in wrong {
            assert_eq!(answer.status, Status::NotMyVbucket);
            assert_eq!(answer.json()["vBucketServerMap"], servers);
        }
    }
    cluster.stop();
}

#[test]
fn buckets_are_made_and_deleted_on_all_nodes() {
    let cluster = Cluster::start(2, 1);
    let (code, body) = http(
        &cluster.node(1),
        "POST",
        "/pools/default/buckets",
        "name=b&ramQuotaMB=100&replicaNumber=1&flushEnabled=1",
    );
    assert_eq!((code, body.as_str()), (202, ""));
    for at in 0..2 {
        assert_eq!(get_json(&cluster.node(at), "/pools/default/buckets/b")["replicaNumber"], 1);
        let rows =
            get_json(&cluster.node(at), "/pools/default/b/b")["vBucketServerMap"]["vBucketMap"].clone();
        assert_eq!(rows, json!([[0, 1], [0, 1], [1, 0], [1, 0]]));
    }
    assert_eq!(http(&cluster.node(0), "POST", "/pools/default/buckets", "name=b&ramQuotaMB=100").0, 400);
    assert_eq!(http(&cluster.node(1), "POST", "/pools/default/buckets/b/controller/doFlush", "").0, 200);
    // One that does not run hears of it when it starts.
    cluster.must("/v1/dev/nodes/2/stop");
    assert_eq!(http(&cluster.node(0), "POST", "/pools/default/buckets", "name=c&ramQuotaMB=100").0, 202);
    assert_eq!(http(&cluster.node(0), "DELETE", "/pools/default/buckets/b", "").0, 200);
    cluster.must("/v1/dev/nodes/2/start");
    let names = get_json(&cluster.node(1), "/pools/default")["bucketNames"].clone();
    let names: Vec<&str> =
        names.as_array().expect("a list").iter().filter_map(|n| n["bucketName"].as_str()).collect();
    assert_eq!(names, ["c", "default"]);
    assert_eq!(get_json(&cluster.node(1), "/pools/default/buckets").as_array().map(Vec::len), Some(2));
    cluster.stop();
}

#[test]
fn others_take_over_what_was_replicated_and_the_node_comes_back() {
    let cluster = Cluster::start(3, 2);
    let keys: Vec<String> = (0..200).map(|at| format!("k{at}")).collect();
    for key in &keys {
        assert_eq!(cluster.client_for(0, key.as_bytes()).set(key.as_bytes(), b"1"), Some(Status::Success));
    }
    (0..3).for_each(|at| cluster.wait_for_replicas(at));
    let mut watcher = Client::connect(
        &cluster.node(1),
        "default",
        &[Feature::Duplex, Feature::ClustermapChangeNotificationBrief],
    );
    cluster.must("/v1/dev/nodes/1/stop");
    assert!(watcher.receive().value.is_empty());
    let told = cluster.must("/v1/dev/nodes/1/failover");
    assert_eq!(
        (&told["nodes"][0]["is_failed_over"], &told["nodes"][0]["active_vbuckets"]),
        (&json!(true), &json!(0))
    );
    assert_eq!(cluster.map(1)["vBucketServerMap"]["serverList"].as_array().map(Vec::len), Some(2));
    for key in &keys {
        let mut client = cluster.client_for(1, key.as_bytes());
        assert_eq!(client.get(key.as_bytes()).map(|answer| answer.value), Some(b"1".to_vec()), "{key}");
        assert_eq!(client.set(key.as_bytes(), b"2"), Some(Status::Success));
    }
    // Without its copies nobody else may go.
    assert_eq!(cluster.order("/v1/dev/nodes/1/failover").0, 409);
    assert_eq!(cluster.order("/v1/dev/nodes/1/recover").0, 409);
    cluster.must("/v1/dev/nodes/1/start");
    let mut client = Client::connect(&cluster.node(0), "default", &[]);
    assert_eq!(client.get(keys[0].as_bytes()).map(|answer| answer.status), Some(Status::NotMyVbucket));
    cluster.must("/v1/dev/nodes/1/recover");
    (0..3).for_each(|at| cluster.wait_for_replicas(at));
    // Now the one that came back is as good as any.
    cluster.must("/v1/dev/nodes/2/failover");
    cluster.must("/v1/dev/nodes/3/failover");
    for key in &keys {
        let mut client = cluster.client_for(0, key.as_bytes());
        assert_eq!(client.get(key.as_bytes()).map(|answer| answer.value), Some(b"2".to_vec()), "{key}");
    }
    assert_eq!(cluster.order("/v1/dev/nodes/1/failover").0, 409);
    cluster.stop();
}

#[test]
fn a_node_that_is_cut_off_does_not_hear_of_changes_until_it_joins() {
    let cluster = Cluster::start(2, 1);
    let key = b"a";
    let active = usize::from(support::vb(key).0 / 2);
    cluster.must(&format!("/v1/dev/nodes/{}/cut", 2 - active));
    assert_eq!(cluster.client_for(active, key).set(key, b"v"), Some(Status::Success));
    assert!(!cluster.is_caught_up(1 - active));
    cluster.must(&format!("/v1/dev/nodes/{}/join", 2 - active));
    cluster.wait_for_replicas(1 - active);
    cluster.stop();
}

#[test]
fn a_frozen_node_stands_still_and_a_moved_clock_expires_documents() {
    let cluster = Cluster::start(1, 0);
    let mut client = Client::connect(&cluster.node(0), "default", &[]);
    let mut extras = [0; 8];
    extras[4..].copy_from_slice(&3600u32.to_be_bytes());
    let key = b"k";
    let set = RequestParts {
        opcode: opcode::SET,
        key,
        extras: &extras,
        vbucket: support::vb(key),
        ..RequestParts::default()
    };
    assert_eq!(client.request(&set).status, Status::Success);
    let told = cluster.must("/v1/dev/clock?advance_s=3000");
    assert_eq!(told["nodes"][0]["clock_offset_s"], 3000);
    assert_eq!(client.get(key).map(|answer| answer.status), Some(Status::Success));
    cluster.must("/v1/dev/clock?advance_s=700&node=1");
    assert_eq!(client.get(key).map(|answer| answer.status), Some(Status::KeyEnoent));
    cluster.must("/v1/dev/nodes/1/freeze");
    let mut late = Client::silent(&cluster.node(0));
    assert!(late.is_silent());
    cluster.must("/v1/dev/nodes/1/thaw");
    assert_eq!(late.receive().status, Status::Success);
    for (path, code) in [
        ("/v1/dev/nodes/9/stop", 404),
        ("/v1/dev/nodes/1/explode", 404),
        ("/v1/dev/nodes/1/start", 409),
        ("/v1/dev/nodes/1/failover", 409),
        ("/v1/dev/clock?advance_s=x", 400),
        ("/v1/dev/clock?advance_s=1&node=7", 404),
        ("/elsewhere", 404),
    ] {
        assert_eq!(cluster.order(path).0, code, "{path}");
    }
    let before = cluster.node(0);
    cluster.must("/v1/dev/nodes/1/restart");
    assert_eq!(cluster.node(0), before);
    assert_eq!(Client::connect(&before, "default", &[]).get(key).map(|a| a.status), Some(Status::KeyEnoent));
    cluster.stop();
}

#[test]
fn a_cluster_goes_on_where_it_was() {
    let folder = tempfile::tempdir().expect("a folder");
    let start = || DevCluster::start(config(folder.path(), 2, 1), Env::real()).expect("it starts");
    let cluster = Cluster { dev: start(), _folder: tempfile::tempdir().expect("a folder") };
    assert_eq!(http(&cluster.node(0), "POST", "/pools/default/buckets", "name=b&ramQuotaMB=100").0, 202);
    let keys: Vec<String> = (0..50).map(|at| format!("k{at}")).collect();
    for key in &keys {
        assert_eq!(cluster.client_for(0, key.as_bytes()).set(key.as_bytes(), b"1"), Some(Status::Success));
    }
    (0..2).for_each(|at| cluster.wait_for_replicas(at));
    cluster.must("/v1/dev/nodes/1/failover");
    let revision = cluster.map(1)["rev"].as_i64();
    cluster.stop();
    let cluster = Cluster { dev: start(), _folder: tempfile::tempdir().expect("a folder") };
    assert!(cluster.map(1)["rev"].as_i64() > revision);
    assert_eq!(cluster.dev.status()["buckets"], json!(["b", "default"]));
    for key in &keys {
        let mut client = cluster.client_for(1, key.as_bytes());
        assert_eq!(client.get(key.as_bytes()).map(|answer| answer.value), Some(b"1".to_vec()), "{key}");
    }
    cluster.stop();
    let other = DevCluster::start(config(folder.path(), 1, 1), Env::real()).err().expect("one is missing");
    assert!(other.to_string().contains("another number of nodes"), "{other}");
}
