//! Nodes log in at each other with a secret of their cluster: the administrator's password does not matter to replication,
//! and no client logs in as a node.
#![allow(clippy::disallowed_methods, reason = "this is a client, outside the server")]

mod support;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use ::cluster::state::State;
use ::cluster::store::{Commit, LeaseId, MemoryStore, Snapshot, Store, StoreFailure, Swap, Swapped, Version};
use ::cluster::{Command, keys};
use base::DurabilityLevel;
use base::env::Env;
use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use node::cluster::{Cluster, ClusterConfig};
use node::sasl::client::{Exchange, MECHANISM};
use node::sasl::digest::Mechanism;
use node::{Config, replication::LinkState};
use protocol::feature::{Feature, Features};
use protocol::{Durability, FrameInfos, RequestParts, Status, opcode};
use serde_json::{Value, json};
use server::Server;
use support::{Client, VBUCKETS, http, http_as, vb};

const SOON: Duration = Duration::from_secs(60);
const ROTATE: &str = "/controller/rotateInternalCredentials";

fn config(folder: &Path, password: &str) -> Config {
    let mut config = Config { is_member: true, ..support::config(folder, 1, "") };
    config.users[0].password = password.to_owned();
    config
}

struct Member {
    server: Server,
    cluster: Arc<Cluster>,
}

impl Member {
    /// It may be one that the cluster does not let in.
    fn start(folder: &Path, password: &str, store: &Arc<dyn Store>) -> Member {
        let server = server::serve(config(folder, password), Env::real()).expect("the node starts");
        let (node, store) = (Arc::clone(server.node()), Arc::clone(store));
        let cluster = Cluster::join_checked(node, store, ClusterConfig::default()).expect("it joins");
        cluster.wait_until_served(SOON);
        Member { server, cluster }
    }

    fn stop(self) {
        assert!(self.cluster.stop(), "its threads end as they should");
        self.server.stop().expect("a clean stop");
    }
}

/// Three nodes, each active for some vBuckets and following others, and a user of the cluster beside the administrator.
struct Nodes {
    members: Vec<Member>,
    folders: Vec<tempfile::TempDir>,
}

impl Nodes {
    fn start(stores: &[Arc<dyn Store>; 3]) -> Nodes {
        let folders: Vec<_> = stores.iter().map(|_| tempfile::tempdir().expect("a folder")).collect();
        let started = folders.iter().zip(stores);
        let members =
            started.map(|(folder, store)| Member::start(folder.path(), "password", store)).collect();
        let nodes = Nodes { members, folders };
        let first = &nodes.members[0];
        let whole = |state: &State| {
            state.rebalance.is_none() && state.nodes.keys().filter(|id| state.is_active(**id)).count() == 3
        };
        while first.cluster.ask(&Command::Rebalance { eject: Vec::new() }).is_err() {
            thread::yield_now();
        }
        assert!(first.cluster.wait_until(SOON, |view, _| whole(&view.state)), "all are active");
        let (code, told) = http(
            &first.server,
            "POST",
            "/pools/default/buckets",
            "name=default&ramQuotaMB=100&replicaNumber=1",
        );
        assert_eq!(code, 202, "{told}");
        let (code, told) = http(
            &first.server,
            "PUT",
            "/settings/rbac/users/local/ann",
            "password=password&roles=bucket_full_access%5Bdefault%5D",
        );
        assert_eq!(code, 200, "{told}");
        nodes.settled();
        nodes
    }

    fn settled(&self) {
        let quiet = |state: &State| {
            state.rebalance.is_none() && state.buckets.values().all(|bucket| bucket.steps.is_empty())
        };
        let first = &self.members[0].cluster;
        assert!(first.wait_until(SOON, |view, _| quiet(&view.state)), "nothing is under way");
        let revision = first.view().expect("it was read").state.revision;
        for member in &self.members {
            assert!(member.cluster.wait_until(SOON, |_, applied| applied >= revision), "all have it");
            // The user reaches each node by its watch.
            while http_as("ann", member.server.http_addr(), "GET", "/pools", "").0 != 200 {
                thread::yield_now();
            }
        }
    }

    /// The member that is active for a vBucket.
    fn owner(&self, vb: u16) -> &Member {
        let state = self.members[0].cluster.view().expect("it was read").state.clone();
        let id = state.buckets["default"].active(vb).expect("there is one");
        let is_owner = |member: &&Member| member.cluster.uuid() == state.nodes[&id].uuid;
        self.members.iter().find(is_owner).expect("it is a member")
    }

    fn stop(self) -> Vec<tempfile::TempDir> {
        self.members.into_iter().for_each(Member::stop);
        self.folders
    }

    /// What the links log in as, once all of them follow.
    fn link_users(&self) -> Vec<String> {
        let links = || self.members.iter().flat_map(|member| member.server.node().replication().status(None));
        while links().any(|link| link.state != LinkState::Connected) {
            thread::yield_now();
        }
        links().map(|link| link.username).collect()
    }
}

fn one_store() -> [Arc<dyn Store>; 3] {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new(Env::real().clock));
    [Arc::clone(&store), Arc::clone(&store), store]
}

/// A client that has logged in by PLAIN.
fn client_of(server: &Server, name: &str, password: &str) -> (Client, Status) {
    let mut client = Client::over(TcpStream::connect(server.kv_addr()).expect("the server listens"));
    client.send(&node::fuzz::login(name, password, "default", &[]));
    assert_eq!(client.receive().status, Status::Success);
    let status = client.receive().status;
    client.receive();
    (client, status)
}

/// Durable writes of ann to all nodes, one after the other, until it is told to end.
struct Load {
    written: AtomicU64,
    failed: AtomicU64,
    is_over: AtomicBool,
}

impl Load {
    /// `clients` are those of the vBuckets' nodes.
    fn run(&self, mut clients: Vec<Client>) {
        let mut infos = Vec::new();
        let durability = Some(Durability { level: DurabilityLevel::Majority, timeout_ms: None });
        FrameInfos { durability, ..FrameInfos::default() }.encode(&mut infos);
        let mut at = 0;
        while !self.is_over.load(Ordering::SeqCst) {
            let key = format!("key-{}", at % 100);
            at += 1;
            let key = key.as_bytes();
            let parts = RequestParts {
                opcode: opcode::SET,
                key,
                value: b"value",
                extras: &[0; 8],
                vbucket: vb(key),
                frame_infos: &infos,
                ..RequestParts::default()
            };
            let answer = clients[usize::from(vb(key).0)].try_request(&parts);
            let is_done = answer.is_some_and(|frame| frame.status == Status::Success);
            let count = if is_done { &self.written } else { &self.failed };
            count.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// Until so many more were written, or any failed.
    fn go_on(&self, more: u64) {
        let until = self.written.load(Ordering::SeqCst) + more;
        while self.written.load(Ordering::SeqCst) < until && self.failed.load(Ordering::SeqCst) == 0 {
            thread::yield_now();
        }
    }
}

#[test]
fn no_durable_write_fails_while_the_administrators_password_and_the_nodes_secret_change() {
    let stores = one_store();
    let nodes = Nodes::start(&stores);
    assert!(nodes.link_users().iter().all(|user| user == "@node"));
    let load =
        Load { written: AtomicU64::new(0), failed: AtomicU64::new(0), is_over: AtomicBool::new(false) };
    let clients = (0..VBUCKETS).map(|vb| client_of(&nodes.owner(vb).server, "ann", "password").0).collect();
    thread::scope(|scope| {
        scope.spawn(|| load.run(clients));
        load.go_on(50);
        for (member, folder) in nodes.members.iter().zip(&nodes.folders) {
            let told = member.server.reload(config(folder.path(), "another"));
            assert_eq!(told.taken, ["user \"Administrator\" was changed"], "{told}");
            load.go_on(50);
        }
        for round in 0..4 {
            let (code, told) = post_as("another", &nodes.members[round % 3].server, ROTATE);
            assert_eq!(code, 200, "{told}");
            load.go_on(50);
        }
        load.is_over.store(true, Ordering::SeqCst);
    });
    let (written, failed) = (load.written.load(Ordering::SeqCst), load.failed.load(Ordering::SeqCst));
    println!("{written} durable writes, {failed} failed");
    assert_eq!(failed, 0);
    for member in &nodes.members {
        assert_eq!(client_of(&member.server, "Administrator", "password").1, Status::AuthError);
        assert_eq!(client_of(&member.server, "Administrator", "another").1, Status::Success);
    }
    assert!(nodes.link_users().iter().all(|user| user == "@node"));
    // The cluster's password is the new one for a node that starts, too.
    let folder = tempfile::tempdir().expect("a folder");
    let stranger = Member::start(folder.path(), "password", &stores[0]);
    assert!(stranger.cluster.is_stranger());
    assert!(stranger.cluster.secrets().accepted().is_empty(), "it does not take the secret either");
    stranger.stop();
    let newcomer = Member::start(folder.path(), "another", &stores[0]);
    assert!(!newcomer.cluster.is_stranger());
    newcomer.stop();
    nodes.stop();
}

/// An order of the administrator with another password than tests have.
fn post_as(password: &str, server: &Server, path: &str) -> (u16, String) {
    let credentials = BASE64.encode(format!("Administrator:{password}"));
    ask(
        server,
        &format!("POST {path} HTTP/1.1\r\nAuthorization: Basic {credentials}\r\nContent-Length: 0\r\n"),
    )
}

fn ask(server: &Server, head: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(server.http_addr()).expect("the server listens");
    write!(stream, "{head}Host: x\r\nConnection: close\r\n\r\n").expect("the server takes it");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("text");
    let code = answer.split(' ').nth(1).and_then(|code| code.parse().ok()).expect("a status code");
    (code, answer)
}

/// Identifier and secret that nodes log in with, as the store has them.
fn stored_secret(store: &Arc<dyn Store>) -> (String, String) {
    let snapshot = store.read().expect("it answers");
    let entry: Value = serde_json::from_slice(&snapshot.entries[keys::NODE_SECRET].value).expect("JSON");
    let text = |name: &str| entry["current"][name].as_str().expect("text").to_owned();
    (text("id"), text("secret"))
}

/// Logs in by SCRAM; how that ended.
fn by_scram(client: &mut Client, name: &str, password: &str) -> Status {
    let mut exchange = Exchange::new(name, "a-nonce-of-this-test");
    let first = exchange.first();
    let sasl = |client: &mut Client, opcode, value: &str| {
        let (key, value) = (MECHANISM.as_bytes(), value.as_bytes());
        client.request(&RequestParts { opcode, key, value, ..RequestParts::default() })
    };
    let challenge = sasl(client, opcode::SASL_AUTH, &first);
    assert_eq!(challenge.status, Status::AuthContinue);
    let challenge = String::from_utf8(challenge.value).expect("text");
    let answer = exchange.answer(&challenge, password, &mut None).expect("a challenge");
    sasl(client, opcode::SASL_STEP, &answer).status
}

#[test]
fn the_nodes_user_is_let_in_by_nothing_but_its_secret() {
    let stores = one_store();
    let folder = tempfile::tempdir().expect("a folder");
    let member = Member::start(folder.path(), "password", &stores[0]);
    let (code, told) = http(&member.server, "POST", "/settings/audit", "auditdEnabled=true");
    assert_eq!(code, 200, "{told}");
    let (code, told) = http(&member.server, "POST", "/pools/default/buckets", "name=default&ramQuotaMB=100");
    assert_eq!(code, 202, "{told}");
    let (id, secret) = stored_secret(&stores[0]);
    let login = format!("@node/{id}");
    let server = &member.server;
    for name in [login.as_str(), "@node"] {
        for password in [secret.as_str(), "password", ""] {
            let credentials = BASE64.encode(format!("{name}:{password}"));
            let head = format!("GET /pools HTTP/1.1\r\nAuthorization: Basic {credentials}\r\n");
            assert_eq!(ask(server, &head).0, 401, "{name}");
            assert_eq!(client_of(server, name, password).1, Status::AuthError, "{name} by PLAIN");
        }
        // No user is made with that name, and none is acted for.
        let made = http(
            server,
            "PUT",
            &format!("/settings/rbac/users/local/{name}"),
            "password=password&roles=admin",
        );
        assert!(made.0 >= 400, "{made:?}");
    }
    let fresh = || {
        let mut client = Client::over(TcpStream::connect(server.kv_addr()).expect("the server listens"));
        let features = Features::of(&[Feature::Xerror]).encode();
        let (key, value) = (&b"test"[..], &features[..]);
        client.request(&RequestParts { opcode: opcode::HELLO, key, value, ..RequestParts::default() });
        client
    };
    assert_eq!(by_scram(&mut fresh(), &login, "a guess"), Status::AuthError);
    assert_eq!(by_scram(&mut fresh(), "@node", &secret), Status::AuthError);
    let mut node = fresh();
    assert_eq!(by_scram(&mut node, &login, &secret), Status::Success, "a node has it");
    let select = RequestParts { opcode: opcode::SELECT_BUCKET, key: b"default", ..RequestParts::default() };
    assert_eq!(node.request(&select).status, Status::Success);
    let manage =
        RequestParts { opcode: opcode::SET_COLLECTIONS_MANIFEST, value: b"{}", ..RequestParts::default() };
    assert_eq!(node.request(&manage).status, Status::Eaccess, "it manages nothing");
    // One rotation leaves it in, the next one does not.
    assert_eq!(http(server, "POST", ROTATE, "").0, 200);
    assert_eq!(node.request(&select).status, Status::Success);
    assert_eq!(by_scram(&mut fresh(), &login, &secret), Status::Success);
    assert_eq!(http(server, "POST", ROTATE, "").0, 200);
    assert!(node.is_closed(), "it has logged in with what counts no more");
    assert_eq!(by_scram(&mut fresh(), &login, &secret), Status::AuthError);
    member.stop();
    let text = std::fs::read_to_string(folder.path().join("audit/audit.log")).expect("the log");
    let records: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let is_of_node = |record: &&Value| record["real_userid"]["user"] == "@node";
    assert!(records.iter().any(|record| is_of_node(&record)), "{text}");
    let told = |record: &&Value| record["id"] == 61450 && record["real_userid"]["user"] == "Administrator";
    assert_eq!(records.iter().filter(told).count(), 2, "{text}");
    assert!(!text.contains(&secret));
}

/// The store as a node of an earlier version sees it: it does not say that it knows the secret.
struct Earlier(Arc<dyn Store>);

impl Store for Earlier {
    fn sibling(&self, name: &str) -> Result<Option<Arc<dyn Store>>, StoreFailure> {
        self.0.sibling(name)
    }

    fn read(&self) -> Result<Snapshot, StoreFailure> {
        self.0.read()
    }

    fn swap(&self, swap: Swap<'_>) -> Result<Swapped, StoreFailure> {
        let member = swap.value.filter(|_| swap.key.starts_with(keys::MEMBERS));
        let Some(member) = member else { return self.0.swap(swap) };
        let mut member: Value = serde_json::from_slice(member).expect("JSON");
        assert_eq!(member.as_object_mut().and_then(|fields| fields.remove("node_login")), Some(json!(true)));
        let timed = member.as_object_mut().and_then(|fields| fields.remove("timed_proofs"));
        assert_eq!(timed, Some(json!(true)));
        let value = member.to_string();
        self.0.swap(Swap { value: Some(value.as_bytes()), ..swap })
    }

    fn commit(&self, commit: Commit<'_>) -> Result<Swapped, StoreFailure> {
        self.0.commit(commit)
    }

    fn wait(&self, after: Version, at_most: Duration) -> Result<(), StoreFailure> {
        self.0.wait(after, at_most)
    }

    fn grant(&self, ttl: Duration) -> Result<LeaseId, StoreFailure> {
        self.0.grant(ttl)
    }

    fn keep_alive(&self, lease: LeaseId) -> Result<bool, StoreFailure> {
        self.0.keep_alive(lease)
    }

    fn revoke(&self, lease: LeaseId) -> Result<(), StoreFailure> {
        self.0.revoke(lease)
    }
}

#[test]
fn a_node_of_an_earlier_version_is_asked_as_the_administrator_and_keeps_the_password() {
    let [one, two, three] = one_store();
    let nodes = Nodes::start(&[one, two, Arc::new(Earlier(three))]);
    let others = &nodes.members[..2];
    let earlier = nodes.members[2].cluster.uuid().to_owned();
    let logs_in_as = |member: &Member, of: &Member| {
        let address = of.server.node().address().name();
        member.server.node().accounts().node_logins().at(&address).0
    };
    for member in others {
        let secrets = member.cluster.secrets();
        assert!(secrets.for_node(&earlier).is_none() && secrets.takes_earlier_proofs());
        assert_eq!(logs_in_as(member, &nodes.members[2]), "Administrator");
        assert!(member.cluster.wait_until_promised(SOON), "nodes of both versions promise each other");
    }
    assert!(logs_in_as(&others[0], &others[1]).starts_with("@node/"));
    // Such a node proves without a time that it is one: that is good for reading.
    let figures = proof(&others[0], "GET", "/v1/figures", None);
    assert_eq!(shown(&others[0], "GET", "/v1/figures", &figures), 200);
    let compaction = proof(&others[0], "GET", COMPACTION, None);
    assert_eq!(shown(&others[0], "POST", COMPACTION, &compaction), 401, "it may be shown again");
    nodes.link_users();
    let told = others[0].server.reload(config(nodes.folders[0].path(), "another"));
    assert!(told.refused[0].contains(&earlier) && told.refused[0].contains("upgrade"), "{told}");
    assert_eq!(client_of(&others[0].server, "Administrator", "password").1, Status::Success);
    nodes.stop();
}

const COMPACTION: &str = "/v1/compaction/default/start";

/// What shows a member that a node of its cluster asks it for something, made at this moment of Unix time; without one, as the
/// last version made it.
fn proof(member: &Member, method: &str, path: &str, time_s: Option<u64>) -> String {
    let identity = member.cluster.identity().expect("it has joined");
    let key = member.cluster.secrets().accepted()[0].key(&format!("stave node-to-node {identity}"));
    let view = member.cluster.view().expect("it was read");
    let node = view.state.node_of(member.cluster.uuid()).expect("it is a member").1.address.http();
    let of = |text: String| {
        let proof = Mechanism::Sha256.hmac(key.bytes(), &[text.as_bytes()]);
        proof.bytes().iter().map(|byte| format!("{byte:02x}")).collect::<String>()
    };
    match time_s {
        None => format!("Stave-Node {}", of(format!("{method}\n{path}\n{node}"))),
        Some(time_s) => {
            let proof = of(format!("timed\n{method}\n{path}\n{node}\n{time_s}\n00"));
            format!("Stave-Node time={time_s},nonce=00,proof={proof}")
        }
    }
}

/// The status of an answer to a request that shows this.
fn shown(member: &Member, method: &str, path: &str, proof: &str) -> u16 {
    let mut stream = TcpStream::connect(member.server.http_addr()).expect("it listens");
    let head =
        format!("{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAuthorization: {proof}\r\n");
    stream.write_all(format!("{head}Content-Length: 2\r\n\r\n{{}}").as_bytes()).expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer in text");
    answer.split(' ').nth(1).and_then(|code| code.parse().ok()).expect("a status code")
}

#[test]
fn what_a_listener_hears_between_nodes_is_good_for_minutes_and_changes_nothing() {
    let nodes = Nodes::start(&one_store());
    let member = &nodes.members[0];
    // Nodes ask each other so.
    let compact = "/pools/default/buckets/default/controller/compactBucket";
    assert_eq!(http(&member.server, "POST", compact, ""), (200, String::new()));
    let now_s = u64::from(Env::real().clock.unix_s());
    let status = |method, path, time_s| shown(member, method, path, &proof(member, method, path, time_s));
    assert_eq!(status("GET", "/v1/figures", Some(now_s)), 200);
    assert_eq!(status("GET", "/v1/figures", Some(now_s)), 200, "reading may be repeated");
    assert_eq!(status("GET", "/v1/figures", Some(now_s - 400)), 401, "it is too old");
    assert_eq!(status("GET", "/v1/figures", Some(now_s + 400)), 401, "it is of another clock");
    assert_eq!(status("GET", "/v1/figures", None), 401, "no node of the last version is there");
    assert_eq!(status("POST", COMPACTION, Some(now_s)), 200);
    assert_eq!(status("POST", COMPACTION, Some(now_s)), 401, "it is shown again");
    let of_figures = proof(member, "GET", "/v1/figures", Some(now_s));
    assert_eq!(shown(member, "POST", COMPACTION, &of_figures), 401, "it is for something else");
    let of_another = proof(&nodes.members[1], "GET", "/v1/figures", Some(now_s));
    assert_eq!(shown(member, "GET", "/v1/figures", &of_another), 401, "it is for another node");
    nodes.stop();
}
