//! Two nodes that encrypt what they say to each other, and one that cannot be known.
#![allow(clippy::disallowed_methods, reason = "the test writes certificates")]

#[path = "support/ca.rs"]
mod ca;
mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use ::cluster::state::Outcome;
use ::cluster::{Command, LeaderConfig, MemoryStore, NodeId, Store, View};
use base::env::Env;
use ca::Ca;
use node::cluster::{Cluster, ClusterConfig};
use protocol::Status;
use serde_json::Value;
use server::Server;
use support::{Client, VBUCKETS, http, vb};

/// Longer than anything here takes: nothing waits for it if all is well.
const SOON: Duration = Duration::from_secs(60);

struct Member {
    server: Server,
    cluster: Arc<Cluster>,
    folder: tempfile::TempDir,
}

impl Member {
    /// A node of the cluster whose certificate `ca` signs, and which knows others by `trusted`.
    fn start(ca: &Ca, trusted: &[&Ca], level: &str, store: &Arc<dyn Store>) -> Member {
        let folder = tempfile::tempdir().expect("a folder");
        let (certificate, key) = ca.write(folder.path(), &["127.0.0.1"]);
        let roots = folder.path().join("ca.pem");
        std::fs::write(&roots, trusted.iter().map(|ca| ca.pem()).collect::<String>()).expect("written");
        let lines = format!(
            "tls-cert = {certificate:?}\ntls-key = {key:?}\ntls-ca = {roots:?}\n\
             kv-tls = \"127.0.0.1:0\"\nhttp-tls = \"127.0.0.1:0\"\ncluster-encryption = \"{level}\"\n"
        );
        let server = support::start_member_with(&folder.path().join("data"), &lines);
        let config = ClusterConfig {
            lease_ttl: Duration::from_secs(2),
            leader: LeaderConfig {
                choice_patience: Duration::from_millis(500),
                stall_patience: Duration::from_secs(1),
                ..LeaderConfig::default()
            },
        };
        let cluster = Cluster::join(Arc::clone(server.node()), Arc::clone(store), config).expect("it joins");
        assert!(cluster.wait_until_served(SOON), "it is let in");
        Member { server, cluster, folder }
    }

    fn stop(self) {
        assert!(self.cluster.stop(), "its threads end as they should");
        self.server.stop().expect("a clean stop");
    }

    /// What links of this node say of the nodes that they follow.
    fn links(&self) -> Vec<Value> {
        let (code, body) = http(&self.server, "GET", "/v1/buckets/default/replication", "");
        assert_eq!(code, 200, "{body}");
        let told: Value = serde_json::from_str(&body).expect("JSON");
        told["links"].as_array().expect("a list of links").clone()
    }
}

/// Asks a node for something until it has read of the other one.
fn ask(member: &Member, command: &Command) {
    let mut last = member.cluster.ask(command).map(drop);
    for _ in 0..200 {
        if last.is_ok() {
            break;
        }
        member.cluster.wait_for_news(Duration::from_millis(100));
        last = member.cluster.ask(command).map(drop);
    }
    assert!(last.is_ok(), "{command:?}: {last:?}");
}

/// Two active nodes with a bucket that has a replica, which every write waits for.
fn pair(first: Member, second: Member) -> [Member; 2] {
    ask(&first, &Command::Rebalance { eject: Vec::new() });
    let both = |member: &Member| {
        member.cluster.wait_until(SOON, |view, _| {
            view.state.rebalance.is_none() && view.state.nodes.keys().all(|id| view.state.is_active(*id))
        })
    };
    assert!(both(&first) && both(&second), "both are active");
    let body = "name=default&ramQuotaMB=100&replicaNumber=1&durabilityMinLevel=majority";
    let (code, text) = http(&first.server, "POST", "/pools/default/buckets", body);
    assert_eq!(code, 202, "{text}");
    let settled = first.cluster.wait_until(SOON, |view, applied| {
        applied >= view.state.revision && view.state.buckets.contains_key("default")
    });
    assert!(settled, "there is a bucket");
    [first, second]
}

/// Writes a key of each vBucket at whichever node takes it.
fn write_everywhere(members: &[Member]) {
    for vbucket in 0..VBUCKETS {
        let key = (0..).map(|n| format!("k{n}")).find(|key| vb(key.as_bytes()).0 == vbucket);
        let key = key.expect("some key belongs there").into_bytes();
        let taken = (0..2_000).any(|_| {
            members.iter().any(|member| {
                let mut client = Client::connect(&member.server, "default", &[]);
                let taken = client.set(&key, b"value") == Some(Status::Success);
                if !taken {
                    member.cluster.wait_until(Duration::from_millis(10), |_, _| false);
                }
                taken
            })
        });
        assert!(taken, "vBucket {vbucket} takes a write");
    }
}

#[test]
fn documents_promises_and_figures_travel_encrypted() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new(Env::real().clock));
    let ca = Ca::new();
    let start = || Member::start(&ca, &[&ca], "all", &store);
    let members = pair(start(), start());
    write_everywhere(&members);
    let ports = members.each_ref().map(|member| member.server.kv_tls_addr().expect("it speaks TLS").port());
    for (member, other) in members.iter().zip([ports[1], ports[0]]) {
        let links = member.links();
        assert!(!links.is_empty(), "it has replicas");
        for link in links {
            assert_eq!(link["node"], format!("127.0.0.1:{other}"), "{link}");
        }
        assert!(member.cluster.wait_until(SOON, |_, _| member.cluster.is_promised()), "promises come");
    }
    let (code, body) = http(&members[0].server, "GET", "/pools/default/buckets/default", "");
    let told: Value = serde_json::from_str(&body).expect("JSON");
    assert_eq!((code, &told["basicStats"]["itemCount"]), (200, &VBUCKETS.into()), "{told}");
    // A certificate that the other node would refuse is not taken in the place of one that it takes.
    Ca::new().write(members[0].folder.path(), &["127.0.0.1"]);
    let (code, told) = http(&members[0].server, "POST", "/node/controller/reloadCertificate", "");
    assert!(code >= 400 && told.contains("no CA of tls-ca has signed it"), "{code} {told}");
    members.into_iter().for_each(Member::stop);
}

#[test]
fn a_node_with_a_certificate_of_another_ca_is_not_followed() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new(Env::real().clock));
    let (ca, other) = (Ca::new(), Ca::new());
    // By its own file the second one's certificate is good.
    let first = Member::start(&ca, &[&ca], "all", &store);
    let members = pair(first, Member::start(&other, &[&ca, &other], "all", &store));
    // The node with the right certificate does not follow the other one, and says why.
    let why = (0..2_000).find_map(|_| {
        members[0].cluster.wait_until(Duration::from_millis(10), |_, _| false);
        members[0].links().iter().find_map(|link| Some(link["last_error"].as_str()?.to_owned()))
    });
    let why = why.expect("it tells what is wrong");
    assert!(why.starts_with("TLS: ") && why.contains("certificate"), "{why}");
    // After ten seconds an operator is told, whichever node is asked.
    let told = |member: &Member| {
        let (code, body) = http(&member.server, "GET", "/v1/cluster", "");
        assert_eq!(code, 200, "{body}");
        let cluster: Value = serde_json::from_str(&body).expect("JSON");
        let notes = cluster["notes"].as_array().into_iter().flatten().filter_map(Value::as_str);
        notes.filter(|note| note.contains("has had no connection to")).map(str::to_owned).next()
    };
    for member in &members {
        let note = (0..3_000).find_map(|_| {
            member.cluster.wait_until(Duration::from_millis(10), |_, _| false);
            told(member)
        });
        let note = note.expect("a note");
        assert!(note.starts_with("bucket default: n_") && note.contains("TLS: "), "{note}");
    }
    let (code, body) = http(&members[0].server, "GET", "/healthz", "");
    assert!(code == 503 && body.contains("has had no connection to n_") && body.contains("TLS: "), "{body}");
    members.into_iter().for_each(Member::stop);
}

/// The new node reaches the first one, which refuses its certificate: what the new node takes over has no replica.
#[test]
fn a_node_that_is_not_followed_gets_no_share_in_silence() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new(Env::real().clock));
    let (ca, other) = (Ca::new(), Ca::new());
    let first = Member::start(&ca, &[&ca], "all", &store);
    let body = "name=default&ramQuotaMB=100&replicaNumber=1";
    let (code, text) = http(&first.server, "POST", "/pools/default/buckets", body);
    assert_eq!(code, 202, "{text}");
    // It knows the CA of its own certificate, too: else it would not start.
    let second = Member::start(&other, &[&ca, &other], "all", &store);
    ask(&first, &Command::Rebalance { eject: Vec::new() });
    let has_ended = |view: &View| view.state.rebalance.is_none() && view.state.finished.is_some();
    assert!(first.cluster.wait_until(SOON, |view, _| has_ended(view)), "it ends");
    let view = first.cluster.view().expect("it has read the state");
    let finished = view.state.finished.as_ref().expect("one has ended");
    let why = finished.why.as_deref().unwrap_or_default();
    assert_eq!(finished.outcome, Outcome::Cancelled, "{finished:?}");
    assert!(why.contains("n_1 has had no connection to n_2") && why.contains("TLS: "), "{why}");
    let (code, tasks) = http(&first.server, "GET", "/pools/default/tasks", "");
    assert!(code == 200 && tasks.contains("n_1 has had no connection to n_2"), "{tasks}");
    // One vBucket was tried, and is known to have no replica.
    let bucket = &view.state.buckets["default"];
    let taken: Vec<u16> = bucket.vbuckets().filter(|vb| bucket.active(*vb) == Some(NodeId(2))).collect();
    assert_eq!(taken.len(), 1, "{taken:?}");
    let key = (0..).map(|n| format!("k{n}")).find(|key| vb(key.as_bytes()).0 == taken[0]).expect("some key");
    let is_written = (0..2_000).any(|_| {
        let mut client = Client::connect(&second.server, "default", &[]);
        let taken = client.set(key.as_bytes(), b"value") == Some(Status::Success);
        taken || second.cluster.wait_until(Duration::from_millis(10), |_, _| false)
    });
    assert!(is_written, "the node that took it over serves it");
    second.stop();
    assert!(first.cluster.wait_until(SOON, |view, _| view.alive(NodeId(2)).is_none()), "it is gone");
    let (code, text) = http(&first.server, "POST", "/controller/failOver", "otpNode=n_2");
    assert!(code == 400 && text.contains("could be lost"), "{code}: {text}");
    let (code, text) = http(&first.server, "POST", "/controller/failOver", "otpNode=n_2&allowUnsafe=true");
    assert_eq!(code, 200, "{text}");
    first.stop();
}

/// Asks both nodes to write, which waits for a replica at the one that is active, until it is told to end.
fn load(mut clients: [Client; 2], written: &AtomicU32, is_over: &AtomicBool) {
    for n in 0.. {
        if is_over.load(Ordering::Relaxed) {
            break;
        }
        let key = format!("load-{}", n % 100).into_bytes();
        let statuses = clients.each_mut().map(|client| client.set(&key, b"value"));
        // One of the two is the active node.
        let done = statuses.iter().filter(|status| **status == Some(Status::Success)).count();
        assert_eq!(done, 1, "{statuses:?}");
        written.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn no_durable_write_fails_while_the_ca_of_all_nodes_changes() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new(Env::real().clock));
    let (old, new) = (&Ca::new(), &Ca::new());
    let start = || Member::start(old, &[old], "all", &store);
    let members = pair(start(), start());
    write_everywhere(&members);
    let clients = members.each_ref().map(|member| Client::connect(&member.server, "default", &[]));
    let (written, is_over) = (AtomicU32::new(0), AtomicBool::new(false));
    let trust = |member: &Member, cas: &[&Ca]| {
        let pem: String = cas.iter().map(|ca| ca.pem()).collect();
        std::fs::write(member.folder.path().join("ca.pem"), pem).expect("written");
    };
    let steps: [&dyn Fn(&Member); 3] = [
        &|member| trust(member, &[old, new]),
        &|member| drop(new.write(member.folder.path(), &["127.0.0.1"])),
        &|member| trust(member, &[new]),
    ];
    std::thread::scope(|scope| {
        let (written, is_over) = (&written, &is_over);
        let worker = scope.spawn(move || load(clients, written, is_over));
        for (step, member) in steps.iter().flat_map(|step| members.iter().map(move |member| (step, member))) {
            step(member);
            let (code, told) = http(&member.server, "POST", "/node/controller/reloadCertificate", "");
            assert!(code == 200 && told.contains("\"changed\":true"), "{told}");
            let until = written.load(Ordering::Relaxed) + 50;
            while written.load(Ordering::Relaxed) < until && !worker.is_finished() {
                std::thread::yield_now();
            }
        }
        is_over.store(true, Ordering::Relaxed);
    });
    println!("{written:?} durable writes while the CA changed, 0 failed");
    for member in &members {
        assert!(member.cluster.wait_until(SOON, |_, _| member.cluster.is_promised()), "promises come");
    }
    members.into_iter().for_each(Member::stop);
}
