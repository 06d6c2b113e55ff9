//! Three nodes and a coordination store in one process: buckets, failover, rebalance, and a ledger of what was written.

mod support;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use ::cluster::state::{Outcome, State};
use ::cluster::{Command, LeaderConfig, MemoryStore, NodeId, Status, Store};
use base::env::Env;
use protocol::{RequestParts, opcode};
use server::cluster::{Cluster, ClusterConfig};
use server::{Config, Server, Settings};
use support::{Client, VBUCKETS, http, json, vb};

/// Longer than anything here takes: nothing waits for it if all is well.
const SOON: Duration = Duration::from_secs(60);

struct Member {
    server: Server,
    cluster: Arc<Cluster>,
}

impl Member {
    fn start(folder: &Path, store: &Arc<dyn Store>) -> Member {
        let settings = format!(
            "kv = \"127.0.0.1:0\"\nhttp = \"127.0.0.1:0\"\npassword = \"password\"\nvbuckets = {VBUCKETS}\n"
        );
        let settings = Settings::parse(&settings).expect("valid settings");
        let config = Config::new(settings, folder.to_owned(), 1, String::new).expect("a valid configuration");
        let server =
            server::serve(Config { is_member: true, ..config }, Env::real()).expect("the node starts");
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
    _folders: Vec<tempfile::TempDir>,
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
        let nodes = Nodes { members, store, _folders: folders };
        nodes.ask(&Command::Rebalance { eject: Vec::new() });
        nodes.wait("all are active", |state| state.rebalance.is_none() && active(state).len() == count);
        let body = format!("name=default&ramQuotaMB=100&replicaNumber={replicas}");
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
        self.members.into_iter().for_each(Member::stop);
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
        json(&member.server, "/pools/default/b/default")["vBucketServerMap"]["vBucketMap"].clone()
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
