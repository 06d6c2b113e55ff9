//! Three nodes and a coordination store in one process: buckets, failover, rebalance, and a ledger of what was written.
#![allow(clippy::disallowed_methods, reason = "a test puts a file in the way of a bucket")]

#[path = "cluster/parts.rs"]
mod parts;
mod support;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use ::cluster::state::{Outcome, State};
use ::cluster::{Command, LeaderConfig, MemoryStore, NodeId, Status, Step, Store};
use base::env::Env;
use node::cluster::{Cluster, ClusterConfig};
use protocol::{RequestParts, opcode};
use serde_json::{Value, json};
use server::Server;
use support::{Client, Lines, VBUCKETS, http, vb};

/// Longer than anything here takes: nothing waits for it if all is well.
const SOON: Duration = Duration::from_secs(60);

struct Member {
    server: Server,
    cluster: Arc<Cluster>,
}

impl Member {
    fn start(folder: &Path, store: &Arc<dyn Store>) -> Member {
        let server = support::start_member(folder);
        let config = ClusterConfig {
            lease_ttl: Duration::from_secs(2),
            leader: LeaderConfig { choice_patience: Duration::from_millis(500), ..LeaderConfig::default() },
        };
        let cluster = Cluster::join(Arc::clone(server.node()), Arc::clone(store), config).expect("it joins");
        Member { server, cluster }
    }

    fn stop(self) {
        assert!(self.cluster.stop(), "its threads end as they should");
        self.server.stop().expect("a clean stop");
    }
}

struct Nodes {
    members: Vec<Member>,
    store: Arc<dyn Store>,
    folders: Vec<tempfile::TempDir>,
}

impl Nodes {
    /// Nodes that have all joined and are active, with a bucket.
    fn start(count: usize, replicas: u8) -> Nodes {
        let store: Arc<dyn Store> = Arc::new(MemoryStore::new(Env::real().clock));
        let folders: Vec<_> = (0..count).map(|_| tempfile::tempdir().expect("a folder")).collect();
        let mut members = Vec::new();
        for folder in &folders {
            let member = Member::start(folder.path(), &store);
            assert!(member.cluster.wait_until_served(SOON), "it is let in");
            members.push(member);
        }
        let nodes = Nodes { members, store, folders };
        nodes.ask(&Command::Rebalance { eject: Vec::new() });
        nodes.wait("all are active", |state| state.rebalance.is_none() && active(state).len() == count);
        let body = format!("name=default&ramQuotaMB=100&replicaNumber={replicas}&flushEnabled=1");
        let (code, text) = http(&nodes.members[0].server, "POST", "/pools/default/buckets", &body);
        assert_eq!(code, 202, "{text}");
        nodes.settled();
        nodes
    }

    fn ask(&self, command: &Command) {
        // Whoever asks at once may be before what the command needs.
        let mut refused = String::new();
        let asked = (0..200).any(|_| match self.members[0].cluster.ask(command) {
            // What is looked at next is what came of it.
            Ok(view) => {
                self.members[0].cluster.wait_until(SOON, |seen, _| seen.state.revision >= view.state.revision)
            }
            Err(error) => {
                refused = error.to_string();
                let seen = self.members[0].cluster.view().map(|view| view.version);
                self.members[0]
                    .cluster
                    .wait_until(Duration::from_millis(50), |view, _| Some(view.version) != seen);
                false
            }
        });
        assert!(asked, "{command:?}: {refused}");
    }

    fn wait(&self, what: &str, is_so: impl Fn(&State) -> bool) {
        let done = self.members[0].cluster.wait_until(SOON, |view, _| is_so(&view.state));
        assert!(done, "{what}: {:?}", self.members[0].cluster.view());
    }

    /// Until nothing is under way, and all nodes are as the document says.
    fn settled(&self) {
        let quiet = |state: &State| {
            state.rebalance.is_none() && state.buckets.values().all(|bucket| bucket.steps.is_empty())
        };
        self.wait("nothing is under way", quiet);
        let revision = self.state().revision;
        for member in &self.members {
            assert!(member.cluster.wait_until(SOON, |_, applied| applied >= revision));
        }
    }

    fn state(&self) -> State {
        self.members[0].cluster.view().expect("it has been read").state.clone()
    }

    /// The member that is active for a key.
    fn owner(&self, key: &[u8]) -> Option<&Member> {
        let state = self.state();
        let id = state.buckets["default"].active(vb(key).0)?;
        let uuid = &state.nodes[&id].uuid;
        self.members.iter().find(|member| member.cluster.uuid() == uuid)
    }

    /// Writes until the node that is active takes it.
    fn write(&self, ledger: &mut BTreeMap<Vec<u8>, Vec<u8>>, key: &str, value: &str) {
        let (key, value) = (key.as_bytes().to_vec(), value.as_bytes().to_vec());
        let taken = (0..2_000).any(|_| {
            let Some(owner) = self.owner(&key) else { return false };
            let mut client = Client::connect(&owner.server, "default", &[]);
            let taken = client.set(&key, &value) == Some(protocol::Status::Success);
            if !taken {
                let seen = self.state().revision;
                owner.cluster.wait_until(Duration::from_millis(10), |view, _| view.state.revision > seen);
            }
            taken
        });
        assert!(taken, "somebody takes it");
        ledger.insert(key, value);
    }

    /// Everything that was written is where it should be, and nowhere else.
    fn check(&self, ledger: &BTreeMap<Vec<u8>, Vec<u8>>) {
        for (key, value) in ledger {
            let mut served = 0;
            for member in &self.members {
                let mut client = Client::connect(&member.server, "default", &[]);
                let frame = client.get(key).expect("an answer");
                if frame.status == protocol::Status::Success {
                    assert_eq!(&frame.value, value, "{}", key.escape_ascii());
                    served += 1;
                } else {
                    assert_eq!(frame.status, protocol::Status::NotMyVbucket, "{}", key.escape_ascii());
                }
            }
            assert_eq!(served, 1, "{} is served by one node", key.escape_ascii());
        }
    }

    fn stop(self) {
        drop(self.stop_and_keep());
    }

    /// The same; the folders are for a look at what is in them.
    fn stop_and_keep(self) -> Vec<tempfile::TempDir> {
        self.members.into_iter().for_each(Member::stop);
        self.folders
    }
}

fn active(state: &State) -> Vec<NodeId> {
    state.nodes.keys().copied().filter(|id| state.is_active(*id)).collect()
}

#[test]
fn buckets_are_spread_and_served() {
    let nodes = Nodes::start(3, 1);
    let bucket = &nodes.state().buckets["default"];
    assert_eq!(bucket.map.len(), usize::from(VBUCKETS));
    assert!(bucket.map.iter().all(|chain| chain.len() == 2 && chain[0].is_some() && chain[1].is_some()));
    let mut ledger = BTreeMap::new();
    for at in 0..40 {
        nodes.write(&mut ledger, &format!("key-{at}"), &format!("value-{at}"));
    }
    nodes.check(&ledger);
    // Every node tells the same map.
    let maps = nodes.members.iter().map(|member| {
        support::json(&member.server, "/pools/default/b/default")["vBucketServerMap"]["vBucketMap"].clone()
    });
    let maps: Vec<_> = maps.collect();
    assert!(maps.iter().all(|map| *map == maps[0]));
    nodes.stop();
}

#[test]
fn a_node_that_is_failed_over_is_missed_by_nobody() {
    let nodes = Nodes::start(3, 1);
    let mut ledger = BTreeMap::new();
    for at in 0..40 {
        nodes.write(&mut ledger, &format!("key-{at}"), "before");
    }
    wait_for_replicas(&nodes);
    let gone = *active(&nodes.state()).last().expect("there are three");
    let epoch = nodes.state().epoch;
    nodes.ask(&Command::FailOver { node: gone, force: false });
    nodes.wait("no vBucket is without an active node", |state| {
        !state.is_choosing()
            && state.buckets["default"].map.iter().all(|chain| chain[0].is_some_and(|id| id != gone))
    });
    assert!(nodes.state().epoch > epoch);
    assert_eq!(nodes.state().nodes[&gone].status, Status::FailedOver);
    for at in 40..60 {
        nodes.write(&mut ledger, &format!("key-{at}"), "after");
    }
    nodes.settled();
    nodes.check(&ledger);
    // It comes back with what it has, and all have their share again.
    nodes.ask(&Command::Recover { node: gone, delta: true });
    nodes.ask(&Command::Rebalance { eject: Vec::new() });
    nodes.wait("it is over", |state| state.rebalance.is_none() && active(state).len() == 3);
    for at in 60..80 {
        nodes.write(&mut ledger, &format!("key-{at}"), "at last");
    }
    nodes.settled();
    let state = nodes.state();
    assert_eq!(state.finished.as_ref().map(|finished| finished.outcome), Some(Outcome::Done));
    assert!(state.buckets["default"].map.iter().flatten().any(|place| *place == Some(gone)));
    nodes.check(&ledger);
    nodes.stop();
}

#[test]
fn nodes_leave_and_come_while_clients_write() {
    let nodes = Nodes::start(3, 1);
    let mut ledger = BTreeMap::new();
    for at in 0..40 {
        nodes.write(&mut ledger, &format!("key-{at}"), "before");
    }
    let leaves = active(&nodes.state())[1];
    nodes.ask(&Command::Rebalance { eject: vec![leaves] });
    let mut at = 40;
    while nodes.state().rebalance.is_some() {
        nodes.write(&mut ledger, &format!("key-{at}"), "meanwhile");
        at += 1;
    }
    nodes.settled();
    let state = nodes.state();
    assert_eq!(state.finished.as_ref().map(|finished| finished.outcome), Some(Outcome::Done), "{state:?}");
    assert!(!state.nodes.contains_key(&leaves));
    nodes.check_without(&ledger, leaves);
    nodes.check_maps();
    nodes.stop();
}

#[test]
fn a_node_whose_lease_has_run_out_serves_nothing() {
    let nodes = Nodes::start(3, 1);
    let mut ledger = BTreeMap::new();
    nodes.write(&mut ledger, "key", "value");
    wait_for_replicas(&nodes);
    let owner = nodes.owner(b"key").expect("there is one");
    let mut client = Client::connect(&owner.server, "default", &[]);
    assert!(owner.server.node().fence().may_serve(owner.server.node().env().clock.monotonic_ns()));
    // As if the store had not answered it for long: whatever it says of its lease is over.
    assert!(owner.cluster.stop());
    let frame = client.get(b"key").expect("an answer");
    assert_eq!(frame.status, protocol::Status::NotMyVbucket);
    let replica = RequestParts {
        opcode: opcode::GET_REPLICA,
        key: b"key",
        vbucket: vb(b"key"),
        ..RequestParts::default()
    };
    let frame = client.request(&replica);
    assert_eq!(frame.status, protocol::Status::NotMyVbucket, "it is no replica either");
    assert_eq!(client.set(b"key", b"lost"), Some(protocol::Status::NotMyVbucket));
    nodes.stop_all();
}

/// What monitors see of a node: the answer of `/healthz`, and the figures that say the same.
fn health(member: &Member) -> (u16, String, Vec<String>) {
    let (code, told) = http(&member.server, "GET", "/healthz", "");
    let (_, metrics) = http(&member.server, "GET", "/metrics", "");
    let figures = metrics.lines().filter_map(|line| line.strip_prefix("stave_"));
    let figures =
        figures.filter(|line| line.starts_with("may_serve ") || line.starts_with("cluster_member "));
    (code, told, figures.map(str::to_owned).collect())
}

#[test]
fn a_node_that_may_not_serve_is_not_healthy() {
    let nodes = Nodes::start(3, 1);
    let figures = |may_serve: u8, member: u8| {
        vec![format!("may_serve {may_serve}"), format!("cluster_member {member}")]
    };
    assert_eq!(health(&nodes.members[2]), (200, "ok\n".to_owned(), figures(1, 1)));
    nodes.ask(&Command::FailOver { node: NodeId(3), force: false });
    nodes.settled();
    let (code, told, seen) = health(&nodes.members[2]);
    assert_eq!((code, seen), (503, figures(0, 1)), "{told}");
    assert!(told.contains("n_3 was failed over") && told.contains("stave cluster add n_3"), "{told}");
    assert_eq!(told.lines().count(), 1, "{told}");
    // The others serve, and somebody has to look.
    let (code, told, _) = health(&nodes.members[0]);
    assert_eq!(code, 503, "{told}");
    assert!(told.contains("n_3 was failed over") && told.contains("have fewer copies"), "{told}");
    let (_, metrics) = http(&nodes.members[0].server, "GET", "/metrics", "");
    assert!(metrics.contains("\nstave_cluster_failed_over_nodes 1\n"), "{metrics}");
    assert!(!metrics.contains("with_few_copies{bucket=\"default\"} 0"), "{metrics}");
    nodes.ask(&Command::Rebalance { eject: vec![NodeId(3)] });
    nodes.wait("it has left", |state| state.rebalance.is_none() && !state.nodes.contains_key(&NodeId(3)));
    nodes.members[2].cluster.wait_until(SOON, |view, _| !view.state.nodes.contains_key(&NodeId(3)));
    let (code, told, seen) = health(&nodes.members[2]);
    assert_eq!((code, seen), (503, figures(0, 0)), "{told}");
    assert_eq!(health(&nodes.members[0]), (200, "ok\n".to_owned(), figures(1, 1)));
    // As if its lease had run out.
    assert!(nodes.members[1].cluster.stop());
    let (code, told, seen) = health(&nodes.members[1]);
    assert_eq!((code, seen), (503, figures(0, 1)), "{told}");
    assert!(told.starts_with("this node serves no client: "), "{told}");
    nodes.stop_all();
}

impl Nodes {
    fn check_without(&self, ledger: &BTreeMap<Vec<u8>, Vec<u8>>, gone: NodeId) {
        let state = self.state();
        assert!(!state.nodes.contains_key(&gone));
        for (key, value) in ledger {
            let owner = self.owner(key).expect("there is one");
            let frame = Client::connect(&owner.server, "default", &[]).get(key).expect("an answer");
            assert_eq!(
                (frame.status, &frame.value),
                (protocol::Status::Success, value),
                "{}",
                key.escape_ascii()
            );
        }
    }

    /// Whoever asks for the map gets the newest one, whichever node is asked: clients ask any, also one that has left.
    fn check_maps(&self) {
        let maps = self.members.iter().map(|member| {
            let mut client = Client::connect(&member.server, "default", &[]);
            let ask = RequestParts { opcode: opcode::GET_CLUSTER_CONFIG, ..RequestParts::default() };
            client.request(&ask).json()["vBucketServerMap"].clone()
        });
        let maps: Vec<_> = maps.collect();
        assert!(maps.iter().all(|map| *map == maps[0]), "{maps:?}");
        assert_eq!(maps[0]["serverList"].as_array().map(Vec::len), Some(self.state().nodes.len()));
    }

    /// Ends them in any order, some of which have ended already.
    fn stop_all(self) {
        for member in self.members {
            member.cluster.stop();
            member.server.stop().expect("a clean stop");
        }
        drop(self.store);
    }
}

/// Until replicas have what active ones have: without durable writes nothing else makes a failover lose nothing.
fn wait_for_replicas(nodes: &Nodes) {
    let caught_up = (0..5_000).any(|_| {
        let all = nodes.members.iter().flat_map(|member| member.server.node().replication().status(None));
        let lag: Vec<_> = all.collect();
        let seqnos = |vb: u16| -> Vec<u64> {
            let of = |member: &Member| {
                let bucket = member.server.node().bucket("default")?;
                bucket.inspect(base::VbId(vb), |vb| vb.high_seqno().0).filter(|seqno| *seqno > 0)
            };
            nodes.members.iter().filter_map(of).collect()
        };
        let is_even = (0..VBUCKETS).all(|vb| {
            let seqnos = seqnos(vb);
            seqnos.is_empty() || (seqnos.len() >= 2 && seqnos.iter().all(|seqno| *seqno == seqnos[0]))
        });
        if !is_even {
            nodes.members[0].cluster.wait_until(Duration::from_millis(2), |_, _| false);
        }
        is_even && !lag.is_empty()
    });
    assert!(caught_up, "replicas follow");
}

impl Nodes {
    fn http(&self, at: usize, method: &str, path: &str, body: &str) -> (u16, Value) {
        let (code, text) = http(&self.members[at].server, method, path, body);
        (code, serde_json::from_str(&text).unwrap_or(Value::String(text)))
    }
}

#[test]
fn all_documents_of_a_bucket_go_at_once() {
    let mut nodes = Nodes::start(3, 1);
    let mut ledger = BTreeMap::new();
    for at in 0..40 {
        nodes.write(&mut ledger, &format!("key-{at}"), "before");
    }
    wait_for_replicas(&nodes);
    // One of them is away when it happens, and has all of its copies.
    let gone = *active(&nodes.state()).last().expect("there are three");
    nodes.ask(&Command::FailOver { node: gone, force: false });
    nodes.settled();
    nodes.members.pop().expect("there are three").stop();
    let (code, told) = nodes.http(1, "POST", "/pools/default/buckets/default/controller/doFlush", "");
    assert_eq!(code, 200, "{told}");
    for key in ledger.keys() {
        let frame = Client::connect(&nodes.owner(key).expect("there is one").server, "default", &[]).get(key);
        assert_eq!(frame.expect("an answer").status, protocol::Status::KeyEnoent, "{}", key.escape_ascii());
    }
    let mut after = BTreeMap::new();
    for at in 0..10 {
        nodes.write(&mut after, &format!("key-{at}"), "after");
    }
    nodes.members.push(Member::start(nodes.folders[2].path(), &nodes.store));
    assert!(nodes.members[2].cluster.wait_until_served(SOON));
    nodes.ask(&Command::Recover { node: gone, delta: true });
    nodes.ask(&Command::Rebalance { eject: Vec::new() });
    nodes.wait("it is over", |state| state.rebalance.is_none() && active(state).len() == 3);
    nodes.settled();
    nodes.check(&after);
    for key in ledger.keys().filter(|key| !after.contains_key(*key)) {
        let frame = Client::connect(&nodes.owner(key).expect("there is one").server, "default", &[]).get(key);
        assert_eq!(frame.expect("an answer").status, protocol::Status::KeyEnoent, "{}", key.escape_ascii());
    }
    nodes.stop();
}

#[test]
fn a_bucket_that_does_not_allow_it_is_not_emptied() {
    let nodes = Nodes::start(1, 0);
    let change = nodes.http(0, "POST", "/pools/default/buckets/default", "flushEnabled=0");
    assert_eq!(change.0, 200, "{}", change.1);
    let (code, told) = nodes.http(0, "POST", "/pools/default/buckets/default/controller/doFlush", "");
    assert_eq!((code, &told["_"]), (400, &json!("Flush is disabled for the bucket")));
    nodes.stop();
}

#[test]
fn a_bucket_that_was_made_anew_has_nothing_of_the_old_one() {
    let mut nodes = Nodes::start(2, 1);
    let mut ledger = BTreeMap::new();
    for at in 0..20 {
        nodes.write(&mut ledger, &format!("key-{at}"), "before");
    }
    wait_for_replicas(&nodes);
    nodes.members.pop().expect("there are two").stop();
    for (method, path, body) in [
        ("DELETE", "/pools/default/buckets/default", ""),
        ("POST", "/pools/default/buckets", "name=default&ramQuotaMB=100&replicaNumber=1"),
    ] {
        let (code, told) = nodes.http(0, method, path, body);
        assert!(code < 300, "{method}: {told}");
    }
    nodes.members.push(Member::start(nodes.folders[1].path(), &nodes.store));
    assert!(nodes.members[1].cluster.wait_until_served(SOON));
    nodes.settled();
    for key in ledger.keys() {
        let owner = nodes.owner(key).expect("there is one");
        let frame = Client::connect(&owner.server, "default", &[]).get(key).expect("an answer");
        assert_eq!(frame.status, protocol::Status::KeyEnoent, "{}", key.escape_ascii());
    }
    nodes.stop();
}

#[test]
fn collections_are_made_at_all_nodes_at_once() {
    const EACH: usize = 8;
    let nodes = Nodes::start(3, 1);
    let path = "/pools/default/buckets/default/scopes/_default/collections";
    std::thread::scope(|scope| {
        for (at, member) in nodes.members.iter().enumerate() {
            let address = (member.server.kv_addr(), member.server.http_addr());
            scope.spawn(move || {
                for number in 0..EACH {
                    let (code, told) = http(&address, "POST", path, &format!("name=c{at}-{number}"));
                    assert_eq!(code, 200, "{told}");
                }
            });
        }
    });
    nodes.settled();
    let all = 3 * EACH;
    for at in 0..3 {
        let (_, told) = nodes.http(at, "GET", "/pools/default/buckets/default/scopes", "");
        let collections = told["scopes"][0]["collections"].as_array().expect("a list").clone();
        let uids: std::collections::BTreeSet<String> =
            collections.iter().map(|one| one["uid"].to_string()).collect();
        assert_eq!((collections.len(), uids.len()), (all + 1, all + 1), "{told}");
        assert_eq!(told["uid"], json!(format!("{all:x}")));
        let (code, told) = nodes.http(at, "POST", path, "name=c0-0");
        assert_eq!(code, 400, "{told}");
    }
    // An id is never given again.
    let gone = format!("{path}/c0-0");
    assert_eq!(nodes.http(1, "DELETE", &gone, "").0, 200);
    let highest = format!("{:x}", 8 + all);
    assert_eq!(nodes.http(2, "POST", path, "name=another").0, 200);
    let (_, told) = nodes.http(0, "GET", "/pools/default/buckets/default/scopes", "");
    assert!(told.to_string().contains(&format!("\"uid\":\"{highest}\"")), "{told}");
    nodes.stop();
}

#[test]
fn a_quota_that_no_node_has_is_refused() {
    let nodes = Nodes::start(2, 1);
    let (code, told) =
        nodes.http(0, "POST", "/pools/default/buckets", "name=huge&ramQuotaMB=99999999&replicaNumber=1");
    assert_eq!(code, 400, "{told}");
    assert!(told.to_string().contains("RAM quota specified is too large"), "{told}");
    assert!(!nodes.state().buckets.contains_key("huge"));
    nodes.stop();
}

#[test]
fn a_bucket_that_a_node_cannot_make_stops_no_other_bucket() {
    let mut nodes = Nodes::start(2, 1);
    let mut ledger = BTreeMap::new();
    for at in 0..20 {
        nodes.write(&mut ledger, &format!("key-{at}"), "value");
    }
    wait_for_replicas(&nodes);
    // Something is in the way of one bucket on one node.
    let in_the_way = nodes.folders[1].path().join("buckets/aside");
    std::fs::create_dir_all(&in_the_way).expect("a folder");
    std::fs::write(in_the_way.join("file"), "").expect("a file");
    let mut settings = nodes.state().buckets["default"].settings.clone();
    settings["name"] = json!("aside");
    nodes.ask(&Command::CreateBucket {
        name: "aside".to_owned(),
        uuid: "2".repeat(32),
        settings,
        replicas: 1,
        vbuckets: VBUCKETS,
        manifest: json!({ "uid": "0" }),
    });
    let (code, told) =
        nodes.http(1, "POST", "/pools/default/buckets", "name=other&ramQuotaMB=100&replicaNumber=1");
    assert_eq!(code, 202, "{told}");
    // A new life of that node serves what it can, and takes over what the other node had.
    nodes.members.pop().expect("there are two").stop();
    nodes.members.push(Member::start(nodes.folders[1].path(), &nodes.store));
    assert!(nodes.members[1].cluster.wait_until_served(SOON), "one bucket keeps no node from serving");
    nodes.members.remove(0).stop();
    nodes.ask(&Command::FailOver { node: NodeId(1), force: true });
    let is_over = |state: &State| {
        let served = |name: &str| state.buckets[name].map.iter().all(|chain| chain[0] == Some(NodeId(2)));
        !state.buckets["default"].steps.values().any(|step| matches!(step, Step::Choose { .. }))
            && served("default")
            && served("other")
    };
    nodes.wait("the other buckets have been taken over", is_over);
    for (key, value) in &ledger {
        let mut client = Client::connect(&nodes.members[0].server, "default", &[]);
        let is_served = (0..2_000).any(|_| {
            let frame = client.get(key).expect("an answer");
            let is_served = frame.status == protocol::Status::Success && frame.value == *value;
            is_served || nodes.members[0].cluster.wait_until(Duration::from_millis(5), |_, _| false)
        });
        assert!(is_served, "{}", key.escape_ascii());
    }
    nodes.stop();
}

/// Other bytes in the place of all files of a node's bucket whose names begin so. Returns how many.
fn rot(nodes: &Nodes, at: usize, prefix: &str) -> usize {
    let entries = std::fs::read_dir(nodes.folders[at].path().join("buckets/default")).expect("a folder");
    let paths = entries.map(|entry| entry.expect("an entry").path());
    let is_meant = |path: &std::path::PathBuf| {
        path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(prefix))
    };
    let damaged = paths.filter(is_meant).map(|path| {
        let len = std::fs::metadata(&path).expect("it is there").len() as usize;
        std::fs::write(path, vec![0xee; len]).expect("written");
    });
    damaged.count()
}

fn quarantined(nodes: &Nodes, at: usize) -> usize {
    std::fs::read_dir(nodes.folders[at].path().join("quarantine")).map_or(0, Iterator::count)
}

/// Whether each vBucket has two copies, and nothing is under way.
fn is_whole(state: &State) -> bool {
    let bucket = &state.buckets["default"];
    let has_two = |chain: &Vec<Option<NodeId>>| chain.iter().flatten().count() == 2;
    state.rebalance.is_none() && bucket.steps.is_empty() && bucket.map.iter().all(has_two)
}

#[test]
fn a_bucket_that_is_down_as_a_whole_is_made_again_from_the_other_nodes() {
    let mut nodes = Nodes::start(2, 1);
    let mut ledger = BTreeMap::new();
    for at in 0..40 {
        nodes.write(&mut ledger, &format!("key-{at}"), "value");
    }
    wait_for_replicas(&nodes);
    nodes.members.pop().expect("there are two").stop();
    assert!(rot(&nodes, 1, "catalog") > 0);
    nodes.members.push(Member::start(nodes.folders[1].path(), &nodes.store));
    // The bucket's files are kept.
    nodes.wait("its copies are there again", |state| is_whole(state) && quarantined(&nodes, 1) == 1);
    nodes.settled();
    nodes.check(&ledger);
    // All of it is there: the other node is not needed any more.
    wait_for_replicas(&nodes);
    nodes.ask(&Command::FailOver { node: NodeId(1), force: false });
    nodes.wait("the other one serves", |state| {
        state.buckets["default"].map.iter().all(|chain| chain[0] == Some(NodeId(2))) && !state.is_choosing()
    });
    nodes.settled();
    nodes.check(&ledger);
    nodes.stop();
}

#[test]
fn a_copy_that_is_damaged_while_it_is_served_is_replaced_at_once() {
    let mut nodes = Nodes::start(2, 1);
    let mut ledger = BTreeMap::new();
    for at in 0..40 {
        nodes.write(&mut ledger, &format!("key-{at}"), "value");
    }
    wait_for_replicas(&nodes);
    // A clean stop files what is journaled.
    nodes.members.pop().expect("there are two").stop();
    nodes.members.push(Member::start(nodes.folders[1].path(), &nodes.store));
    nodes.settled();
    let damaged = vb(b"key-0").0;
    assert_eq!(rot(&nodes, 1, &format!("{damaged}.couch.")), 1);
    let bucket = nodes.members[1].server.node().bucket("default").expect("it serves");
    let compacted = bucket.compaction().compact(base::VbId(damaged), engine::CompactRequest::default());
    drop(compacted.expect("none is under way"));
    nodes.wait("it is there again", |state| is_whole(state) && quarantined(&nodes, 1) == 1);
    assert!(bucket.damaged().is_empty() && nodes.members[1].cluster.lost().is_none());
    nodes.settled();
    nodes.check(&ledger);
    nodes.stop();
}

#[test]
fn every_node_tells_what_the_cluster_has() {
    let mut nodes = Nodes::start(3, 1);
    let mut ledger = BTreeMap::new();
    for at in 0..40 {
        nodes.write(&mut ledger, &format!("key-{at}"), "value");
    }
    let own = nodes.http(0, "GET", "/v1/figures", "").1;
    assert!(own["buckets"]["default"]["documents"].as_u64().is_some_and(|own| own < 40), "{own}");
    let quota = own["memory_quota_bytes"].as_u64().expect("a number");
    for at in 0..3 {
        let bucket = nodes.http(at, "GET", "/pools/default/buckets/default", "").1;
        assert_eq!(bucket["basicStats"]["itemCount"], 40, "{bucket}");
        assert_eq!(bucket["quota"], json!({ "ram": 300 << 20, "rawRAM": 100 << 20 }));
        let listed = nodes.http(at, "GET", "/pools/default/buckets", "").1;
        assert_eq!(listed[0]["basicStats"]["itemCount"], 40, "{listed}");
        let ram = nodes.http(at, "GET", "/pools/default", "").1["storageTotals"]["ram"].clone();
        assert_eq!((&ram["quotaTotal"], &ram["quotaUsed"]), (&json!(3 * quota), &json!(300 << 20)));
    }
    // Whoever is gone has nothing, and nobody waits for it.
    nodes.members.pop().expect("there are three").stop();
    let ram = nodes.http(0, "GET", "/pools/default", "").1["storageTotals"]["ram"].clone();
    assert_eq!(ram["quotaUsed"], json!(200 << 20));
    nodes.stop();
}

#[test]
fn nodes_and_cluster_have_identities() {
    let nodes = Nodes::start(2, 1);
    let pool = nodes.http(1, "GET", "/pools/default", "").1;
    let uuids: Vec<&str> = (0..2).map(|at| pool["nodes"][at]["nodeUUID"].as_str().expect("text")).collect();
    // The one that is asked comes first.
    assert_eq!(uuids, [nodes.members[1].cluster.uuid(), nodes.members[0].cluster.uuid()]);
    let cluster = nodes.http(0, "GET", "/pools", "").1["uuid"].clone();
    assert_eq!(cluster.as_str().map(str::len), Some(32), "{cluster}");
    for at in 0..2 {
        assert_eq!(nodes.http(at, "GET", "/pools/default/terseClusterInfo", "").1["clusterUUID"], cluster);
    }
    nodes.stop();
}

#[test]
fn the_cluster_is_pushed_over_http() {
    let nodes = Nodes::start(2, 1);
    let path = nodes.http(0, "GET", "/pools", "").1["pools"][0]["streamingUri"].clone();
    let mut told = Lines::of(&nodes.members[0].server, path.as_str().expect("an address"));
    let first = told.next_json().expect("the cluster as it is");
    assert_eq!(first["nodes"][1]["clusterMembership"], "active", "{first}");
    nodes.ask(&Command::FailOver { node: NodeId(2), force: true });
    let is_news = |told: &Value| told["nodes"][1]["clusterMembership"] == "inactiveFailed";
    while !is_news(&told.next_json().expect("the cluster as it has become")) {}
    nodes.stop();
}

#[test]
fn maps_are_pushed_over_http() {
    let nodes = Nodes::start(2, 1);
    let mut maps = Lines::of(&nodes.members[0].server, "/pools/default/bs/default");
    let first = maps.next_json().expect("the map as it is");
    assert_eq!(first["collectionsManifestUid"], "0");
    let path = "/pools/default/buckets/default/scopes/_default/collections";
    assert_eq!(nodes.http(1, "POST", path, "name=c").0, 200);
    let with_collection = |map: &Value| map["collectionsManifestUid"] == "1";
    while !with_collection(&maps.next_json().expect("a newer map")) {}
    let gone = active(&nodes.state())[1];
    nodes.ask(&Command::FailOver { node: gone, force: true });
    let is_alone = |map: &Value| {
        let rows = map["vBucketServerMap"]["vBucketMap"].as_array().expect("rows").clone();
        map["vBucketServerMap"]["serverList"].as_array().is_some_and(|list| list.len() == 1)
            || rows.iter().all(|row| row[0] == rows[0][0])
    };
    let newer = |a: &Value, b: &Value| a["rev"].as_u64() < b["rev"].as_u64();
    let mut last = first;
    loop {
        let map = maps.next_json().expect("a newer map");
        assert!(newer(&last, &map), "{last} then {map}");
        if is_alone(&map) {
            break;
        }
        last = map;
    }
    nodes.stop();
}

#[test]
fn scripts_manage_a_cluster_over_http() {
    let nodes = Nodes::start(3, 1);
    begin_audit(&nodes);
    let (code, pool) = nodes.http(0, "GET", "/pools/default", "");
    assert_eq!((code, &pool["rebalanceStatus"], &pool["balanced"]), (200, &json!("none"), &json!(true)));
    let names: Vec<String> = pool["nodes"]
        .as_array()
        .expect("nodes")
        .iter()
        .map(|node| node["otpNode"].as_str().expect("a name").to_owned())
        .collect();
    assert_eq!(names, ["n_1@127.0.0.1", "n_2@127.0.0.1", "n_3@127.0.0.1"]);
    assert_eq!(nodes.http(1, "GET", "/pools/default/rebalanceProgress", "").1, json!({ "status": "none" }));
    let (_, tasks) = nodes.http(2, "GET", "/pools/default/tasks", "");
    assert_eq!((&tasks[0]["type"], &tasks[0]["status"]), (&json!("rebalance"), &json!("notRunning")));
    // Whoever does not know all nodes spreads nothing.
    let known = names.join("%2C").replace('@', "%40");
    assert_eq!(nodes.http(0, "GET", "/pools/default/terseClusterInfo", "").1["isBalanced"], true);
    let few = nodes.http(0, "POST", "/controller/rebalance", "knownNodes=n_1%40127.0.0.1&ejectedNodes=");
    assert_eq!(few, (400, json!({ "mismatch": 1 })));
    // At the node whose view is waited for: others may not have read yet that something is under way.
    let all = nodes.http(0, "POST", "/controller/rebalance", &format!("knownNodes={known}&ejectedNodes="));
    assert_eq!(all.0, 200, "{}", all.1);
    nodes.settled();
    for (path, body, said) in [
        ("/controller/stopRebalance", "", "no rebalance is running"),
        ("/controller/failOver", "otpNode=ns_9%40x", "there is no node"),
        ("/controller/failOver", "", "name a node"),
        ("/controller/setRecoveryType", "", "name a node"),
        ("/controller/setRecoveryType", "", "give delta or full"),
        ("/controller/ejectNode", "otpNode=n_2%40127.0.0.1", "stave cluster remove n_2"),
        ("/controller/ejectNode", "otpNode=n_2%40127.0.0.1", "n_2 is active"),
        ("/controller/reAddNode", "otpNode=n_2%40127.0.0.1", "n_2 is active"),
        ("/controller/setRecoveryType", "otpNode=n_2&recoveryType=some", "give delta or full"),
        (
            "/controller/addNode",
            "hostname=127.0.0.1%3A1&user=u&password=p&services=kv",
            "start it with --join",
        ),
        ("/settings/autoFailover", "enabled=true&timeout=0", "give a number from 1"),
        ("/settings/autoFailover", "enabled=perhaps", "give true or false"),
        ("/settings/autoFailover", "", "give enabled, timeout or maxCount"),
        ("/settings/autoFailover", "enabled=false&flavour=sweet", "\"flavour\":\"there is no such field"),
        (
            "/settings/autoFailover",
            "failoverOnDataDiskIssues%5Benabled%5D=true",
            "it is false and cannot be changed",
        ),
        (
            "/settings/autoFailover",
            "enabled=false&canAbortRebalance=false",
            "it is true and cannot be changed",
        ),
    ] {
        let (code, told) = nodes.http(2, "POST", path, body);
        assert!(code == 400 && told["errors"].to_string().contains(said), "{path} {body}: {code} {told}");
    }
    assert!(nodes.state().auto_failover.enabled, "of what is wrong in part nothing is taken");
    let settings = nodes.http(
        0,
        "POST",
        "/settings/autoFailover",
        "enabled=false&timeout=7&maxCount=3&canAbortRebalance=true",
    );
    assert_eq!(settings.0, 200);
    let (_, told) = nodes.http(0, "GET", "/settings/autoFailover", "");
    assert_eq!(told, json!({ "enabled": false, "timeout": 7, "maxCount": 3, "count": 0 }));
    // As the field names nodes.
    let failed_over = nodes.http(0, "POST", "/controller/failOver", "otpNode=ns_3%40127.0.0.1");
    assert_eq!(failed_over.0, 200, "{}", failed_over.1);
    nodes.settled();
    assert_eq!(nodes.state().nodes[&NodeId(3)].status, Status::FailedOver);
    let (_, pool) = nodes.http(0, "GET", "/pools/default", "");
    assert_eq!(pool["nodes"][2]["clusterMembership"], "inactiveFailed");
    let told = nodes.http(0, "GET", "/pools/default/terseClusterInfo", "").1;
    assert_eq!((&told["isBalanced"], &pool["balanced"]), (&json!(false), &json!(false)));
    let add = nodes.http(0, "POST", "/controller/reAddNode", "otpNode=n_3%40127.0.0.1");
    assert_eq!(add.0, 200, "{}", add.1);
    let delta =
        nodes.http(0, "POST", "/controller/setRecoveryType", "otpNode=n_3%40127.0.0.1&recoveryType=delta");
    assert_eq!(delta.0, 200, "{}", delta.1);
    let address = nodes.members[2].server.http_addr();
    // The node has to say first what it has kept.
    nodes.ask(&Command::Rebalance { eject: Vec::new() });
    nodes.settled();
    let there = nodes.http(0, "POST", "/controller/addNode", &format!("hostname={address}"));
    assert_eq!(there, (200, json!({ "otpNode": "n_3@127.0.0.1" })));
    let graceful = nodes.http(1, "POST", "/controller/startGracefulFailover", "otpNode=n_3%40127.0.0.1");
    assert_eq!(graceful.0, 200, "{}", graceful.1);
    nodes.wait("it is handed over", |state| state.nodes[&NodeId(3)].status == Status::FailedOver);
    leave_and_look_at_audit(nodes);
}

fn begin_audit(nodes: &Nodes) {
    for at in 0..3 {
        assert_eq!(nodes.http(at, "POST", "/settings/audit", "auditdEnabled=true").0, 200);
    }
}

fn leave_and_look_at_audit(nodes: Nodes) {
    nodes.settled();
    let left = nodes.http(0, "POST", "/controller/ejectNode", "otpNode=n_3%40127.0.0.1");
    assert_eq!(left.0, 200, "{}", left.1);
    let folders = nodes.stop_and_keep();
    audited(&folders);
}

/// What was asked of each node is in its audit log, and nothing that was refused.
fn audited(folders: &[tempfile::TempDir]) {
    let records = |at: usize| -> Vec<Value> {
        let path = folders[at].path().join("audit/audit.log");
        let text = std::fs::read_to_string(path).expect("the log");
        text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
    };
    let ids = |at: usize| -> Vec<u64> {
        records(at)
            .iter()
            .filter_map(|record| record["id"].as_u64())
            .filter(|id| (8_000..20_000).contains(id))
            .collect()
    };
    // Rebalance, automatic failover off, failover, recovery twice, a node added, a node removed.
    assert_eq!(ids(0), [8_240, 8_200, 8_221, 8_198, 8_199, 8_199, 8_196, 8_197]);
    assert_eq!(ids(1), [8_240, 8_198]);
    assert_eq!(ids(2), [8_240], "refused requests are no events");
    let told = |at: usize, id: u64, field: &str| {
        let all = records(at);
        all.iter().find(|record| record["id"] == id).and_then(|record| record.pointer(field)).cloned()
    };
    assert_eq!(told(0, 8_198, "/nodes"), Some(json!(["ns_3@127.0.0.1"])));
    assert_eq!(told(0, 8_198, "/type"), Some(json!("hard")));
    assert_eq!(told(1, 8_198, "/type"), Some(json!("graceful")));
    assert_eq!(told(0, 8_197, "/node"), Some(json!("n_3@127.0.0.1")));
    assert_eq!(told(0, 8_200, "/real_userid/user"), Some(json!("Administrator")));
}
