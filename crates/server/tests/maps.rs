//! Cluster maps of several nodes: who is told of a new one, and what a frozen node does.

mod support;

use base::{VbId, VbState};
use engine::BucketKind;
use node::cluster_map::{BucketLayout, Layout, LayoutRefusal, Membership, NodeAddress, NodeEntry};
use protocol::extras::ConfigVersion;
use protocol::feature::Feature;
use protocol::{RequestParts, Status, opcode};
use serde_json::json;
use server::Server;
use support::{Client, Lines, http, json, start};

const FULL: &[Feature] = &[Feature::Duplex, Feature::ClustermapChangeNotification];
const BRIEF: &[Feature] = &[Feature::Duplex, Feature::ClustermapChangeNotificationBrief];
/// A request of the server.
const SERVER_REQUEST: u8 = 0x82;

/// A layout in which another node is active for the odd vBuckets.
fn layout(server: &Server, epoch: i64, revision: i64) -> Layout {
    let entry = |id: &str, kv_port, http_port| NodeEntry {
        id: id.to_owned(),
        address: NodeAddress { host: Some("127.0.0.1".to_owned()), kv_port, http_port, tls: None },
        alternate: None,
        membership: Membership::Active,
    };
    let bucket = BucketLayout {
        name: "default".to_owned(),
        uuid: server.node().bucket("default").expect("it is served").uuid().to_owned(),
        kind: BucketKind::Persistent,
        backend: kvstore::StorageBackend::default(),
        replicas: 1,
        manifest_uid: 0,
        rows: (0..support::VBUCKETS).map(|vb| vec![Some(vb % 2), Some(1 - vb % 2)]).collect(),
    };
    Layout {
        version: ConfigVersion { epoch, revision },
        nodes: vec![entry("n1", server.kv_addr().port(), server.http_addr().port()), entry("n2", 2, 3)],
        this_node: Some(0),
        buckets: vec![bucket],
    }
}

fn version_of(frame: &support::Frame) -> (i64, i64) {
    let version = ConfigVersion::decode(&frame.extras).expect("16 bytes");
    (version.epoch, version.revision)
}

#[test]
fn new_maps_are_pushed_to_those_who_asked_for_them() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = start(folder.path(), "buckets = [\"default\", \"other\"]");
    let mut full: Vec<Client> = (0..4).map(|_| Client::connect(&server, "default", FULL)).collect();
    let mut brief: Vec<Client> = (0..4).map(|_| Client::connect(&server, "default", BRIEF)).collect();
    let mut plain = Client::connect(&server, "default", &[Feature::Duplex]);
    let mut elsewhere = Client::connect(&server, "other", FULL);
    for revision in [1, 7] {
        server.node().map().set(layout(&server, 2, revision)).expect("it is newer");
        for client in &mut full {
            let pushed = client.receive();
            assert_eq!((pushed.magic, pushed.opcode), (SERVER_REQUEST, 0x01));
            assert_eq!((version_of(&pushed), pushed.key.as_slice()), ((2, revision), &b"default"[..]));
            assert_eq!(pushed.json()["vBucketServerMap"]["vBucketMap"][1], json!([1, 0]));
        }
        for client in &mut brief {
            let pushed = client.receive();
            assert_eq!((pushed.magic, version_of(&pushed)), (SERVER_REQUEST, (2, revision)));
            assert!(pushed.value.is_empty());
            // As SDKs do then.
            let known = ConfigVersion { epoch: 2, revision: revision - 1 }.encode();
            let ask = RequestParts {
                opcode: opcode::GET_CLUSTER_CONFIG,
                extras: &known,
                ..RequestParts::default()
            };
            assert_eq!(client.request(&ask).json()["rev"], revision);
            let known = ConfigVersion { epoch: 2, revision }.encode();
            assert!(client.request(&RequestParts { extras: &known, ..ask }).value.is_empty());
        }
    }
    for older in [(2, 7), (2, 6), (1, 100)] {
        let refused = server.node().map().set(layout(&server, older.0, older.1));
        let present = ConfigVersion { epoch: 2, revision: 7 };
        assert_eq!(refused, Err(LayoutRefusal::Stale(present)), "{older:?}");
    }
    // Nobody else was told anything: the next that they get is the answer to what they ask.
    for client in full.iter_mut().chain([&mut plain]) {
        let noop = RequestParts { opcode: opcode::NOOP, ..RequestParts::default() };
        assert_eq!(client.request(&noop).opcode, opcode::NOOP);
    }
    // The other bucket is not in the map of the cluster.
    let noop = RequestParts { opcode: opcode::NOOP, ..RequestParts::default() };
    assert_eq!(elsewhere.request(&noop).opcode, opcode::NOOP);
    server.stop().expect("a clean stop");
}

#[test]
fn whoever_asks_the_wrong_node_is_told_of_the_right_one() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = start(folder.path(), "");
    let bucket = server.node().bucket("default").expect("it is served");
    for vb in [1, 3] {
        bucket.roles().set_vbucket_state(VbId(vb), VbState::Replica, None).expect("there is one");
    }
    server.node().map().set(layout(&server, 2, 5)).expect("it is newer");
    let mut client = Client::connect(&server, "default", &[]);
    let ask = RequestParts { opcode: opcode::GET, key: b"k", vbucket: VbId(1), ..RequestParts::default() };
    let answer = client.request(&ask);
    assert_eq!(answer.status, Status::NotMyVbucket);
    let map = answer.json();
    assert_eq!((&map["rev"], &map["revEpoch"]), (&json!(5), &json!(2)));
    assert_eq!(map["vBucketServerMap"]["serverList"][1], "127.0.0.1:2");
    let nodes = json(&server, "/pools/default")["nodes"].clone();
    let names: Vec<&str> =
        nodes.as_array().expect("a list").iter().filter_map(|n| n["otpNode"].as_str()).collect();
    assert_eq!(names, ["n1@127.0.0.1", "n2@127.0.0.1"]);
    assert_eq!(json(&server, "/pools/default/nodeServices")["nodesExt"][1]["services"]["kv"], 2);
    server.stop().expect("a clean stop");
}

#[test]
fn a_node_that_has_no_share_sends_nobody_a_map_without_itself() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = start(folder.path(), "");
    let bucket = server.node().bucket("default").expect("it is served");
    bucket.roles().set_vbucket_state(VbId(1), VbState::Dead, None).expect("there is one");
    let mut client = Client::connect(&server, "default", &[]);
    let mut failed_over = layout(&server, 2, 5);
    failed_over.nodes[0].membership = Membership::FailedOver;
    failed_over.buckets[0].rows.iter_mut().for_each(|row| *row = vec![Some(1)]);
    let gone =
        Layout { this_node: None, version: ConfigVersion { epoch: 2, revision: 6 }, ..failed_over.clone() };
    for layout in [failed_over, gone] {
        server.node().map().set(layout).expect("it is newer");
        let ask =
            RequestParts { opcode: opcode::GET, key: b"k", vbucket: VbId(1), ..RequestParts::default() };
        let answer = client.request(&ask);
        assert_eq!((answer.status, answer.value.len()), (Status::NotMyVbucket, 0));
        // Whoever asks for the map gets it.
        let ask = RequestParts { opcode: opcode::GET_CLUSTER_CONFIG, ..RequestParts::default() };
        assert_eq!(client.request(&ask).json()["vBucketServerMap"]["serverList"], json!(["127.0.0.1:2"]));
    }
    server.stop().expect("a clean stop");
}

#[test]
fn streams_of_maps_go_on_with_each_new_one() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = start(folder.path(), "");
    let mut of_bucket = Lines::of(&server, "/pools/default/bs/default");
    let mut of_nodes = Lines::of(&server, "/pools/default/nodeServicesStreaming");
    let mut described = Lines::of(&server, "/pools/default/bucketsStreaming/default");
    assert_eq!(described.next_json().expect("a bucket")["vBucketServerMap"]["numReplicas"], 0);
    for stream in [&mut of_bucket, &mut of_nodes] {
        assert_eq!(stream.next_json().expect("a map")["revEpoch"], 1);
    }
    for revision in [3, 4] {
        server.node().map().set(layout(&server, 2, revision)).expect("it is newer");
        for stream in [&mut of_bucket, &mut of_nodes] {
            let map = stream.next_json().expect("a map");
            assert_eq!((&map["revEpoch"], &map["rev"]), (&json!(2), &json!(revision)));
        }
        let bucket = described.next_json().expect("a bucket");
        assert_eq!((&bucket["name"], &bucket["nodes"][0]["status"]), (&json!("default"), &json!("healthy")));
    }
    server.stop().expect("a clean stop");
}

#[test]
fn a_new_bucket_is_a_new_map_for_a_node_alone() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = start(folder.path(), "");
    let mut client = Client::connect(&server, "default", BRIEF);
    let before = server.node().cluster_map().version();
    assert_eq!(http(&server, "POST", "/pools/default/buckets", "name=b&ramQuotaMB=100").0, 202);
    let pushed = client.receive();
    assert!(version_of(&pushed) > (before.epoch, before.revision));
    server.stop().expect("a clean stop");
}

/// Lets clients go on, whatever becomes of the test.
struct Thaw<'a>(&'a Server);

impl Drop for Thaw<'_> {
    fn drop(&mut self) {
        self.0.node().announcer().freeze(false);
    }
}

#[test]
fn a_frozen_node_answers_when_it_is_thawed() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = start(folder.path(), "");
    let mut client = Client::connect(&server, "default", &[]);
    assert_eq!(client.set(b"k", b"v"), Some(Status::Success));
    server.node().announcer().freeze(true);
    let node = (server.kv_addr(), server.http_addr());
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| client.get(b"k").expect("an answer").value);
        let asking = scope.spawn(|| http(&node, "GET", "/pools", "").0);
        let thaw = Thaw(&server);
        let mut late = Client::silent(&server);
        assert!(late.is_silent());
        assert!(!waiting.is_finished() && !asking.is_finished());
        drop(thaw);
        assert_eq!(waiting.join().expect("no panic"), b"v");
        assert_eq!(asking.join().expect("no panic"), 200);
        assert_eq!(late.receive().status, Status::Success);
    });
    // One that is frozen can be stopped.
    server.node().announcer().freeze(true);
    server.stop().expect("a clean stop");
}

/// As `CouchbaseContainer` of Testcontainers and the field's `setting-alternate-address` do it.
#[test]
fn clients_of_another_network_are_told_where_to_go() {
    const PATH: &str = "/node/controller/setupAlternateAddresses/external";
    let folder = tempfile::tempdir().expect("a folder");
    let server = start(folder.path(), "alternate-address = \"first.example.org\"");
    let told = |server: &Server| {
        let of = |path: &str, at: &str| json(server, path).pointer(at).cloned();
        let everywhere = [
            of("/pools/default/nodeServices", "/nodesExt/0/alternateAddresses"),
            of("/pools/default/b/default", "/nodesExt/0/alternateAddresses"),
            of("/pools/default", "/nodes/0/alternateAddresses"),
        ];
        assert!(everywhere.iter().all(|one| *one == everywhere[0]), "{everywhere:?}");
        everywhere[0].clone()
    };
    assert_eq!(told(&server), Some(json!({ "external": { "hostname": "first.example.org" } })));
    let mut client = Client::connect(&server, "default", FULL);
    let form = "hostname=localhost&kv=32001&kvSSL=32002&mgmt=32003&mgmtSSL=32004&n1ql=32005";
    assert_eq!(http(&server, "PUT", PATH, form), (200, String::new()));
    // The node has no ports for TLS and no queries.
    let ports = json!({ "kv": 32001, "mgmt": 32003 });
    let now = json!({ "external": { "hostname": "localhost", "ports": ports } });
    assert_eq!(told(&server), Some(now.clone()));
    let pushed = client.receive().json();
    assert_eq!(pushed["nodesExt"][0]["alternateAddresses"], now);
    for (form, field) in
        [("", "hostname"), ("hostname=a b", "hostname"), ("hostname=a&kv=0", "kv"), ("hostname=a&x=1", "x")]
    {
        let (code, body) = http(&server, "PUT", PATH, form);
        assert!(
            code == 400 && body.contains(&format!("{{\"errors\":{{\"{field}\"")),
            "{form}: {code} {body}"
        );
    }
    server.stop().expect("a clean stop");
    let server = start(folder.path(), "alternate-address = \"first.example.org\"");
    assert_eq!(told(&server), Some(now), "what was said over HTTP counts");
    assert_eq!(http(&server, "DELETE", PATH, ""), (200, String::new()));
    assert_eq!(told(&server), None);
    server.stop().expect("a clean stop");
    let server = start(folder.path(), "alternate-address = \"first.example.org\"");
    assert_eq!(told(&server), None, "that there is none, too");
    server.stop().expect("a clean stop");
}
