//! Users of a cluster: made on one node, they log in on every node; what happens while the coordination store is away, or
//! after it went back.
#![allow(clippy::disallowed_methods, reason = "this is a client, outside the server")]

#[path = "support/log.rs"]
mod log;
mod support;

use std::net::TcpStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ::cluster::store::{
    Commit, LeaseId, MemoryStore, Put, Snapshot, Store, StoreFailure, Swap, Swapped, Version,
};
use base::env::Env;
use log::Log;
use node::cluster::{Cluster, ClusterConfig};
use protocol::Status;
use serde_json::Value;
use server::Server;
use support::{Client, http, http_as, json, start, start_member};

const SOON: Duration = Duration::from_secs(60);
const ANN: &str = "/settings/rbac/users/local/ann";

/// A store that can be away, for all nodes at once, and that may keep its users to itself.
struct Away {
    store: Arc<dyn Store>,
    is_away: Arc<AtomicBool>,
    denies_users: Arc<AtomicBool>,
}

impl Away {
    fn new() -> Away {
        Away::of(Arc::new(MemoryStore::new(Env::real().clock)))
    }

    /// The way of one node to a store that others reach by their own.
    fn of(store: Arc<dyn Store>) -> Away {
        Away { store, is_away: Arc::default(), denies_users: Arc::default() }
    }

    fn there(&self) -> Result<&dyn Store, StoreFailure> {
        if self.is_away.load(Ordering::SeqCst) {
            return Err(StoreFailure { operation: "ask", reason: "it is away".to_owned() });
        }
        Ok(&*self.store)
    }

    /// Nothing of it answers, or all of it does.
    fn set_away(&self, is_away: bool) {
        self.is_away.store(is_away, Ordering::SeqCst);
        self.denies_users.store(is_away, Ordering::SeqCst);
    }

    /// The entries of users.
    fn users(&self) -> Arc<dyn Store> {
        self.store.sibling("users").expect("it answers").expect("there is one")
    }
}

impl Store for Away {
    fn sibling(&self, name: &str) -> Result<Option<Arc<dyn Store>>, StoreFailure> {
        // Users that are denied are away, and the cluster's state is not.
        let is_away = Arc::clone(if name == "users" { &self.denies_users } else { &self.is_away });
        let denies_users = Arc::clone(&self.denies_users);
        let beside = |store| Arc::new(Away { store, is_away, denies_users }) as Arc<dyn Store>;
        Ok(self.store.sibling(name)?.map(beside))
    }

    fn read(&self) -> Result<Snapshot, StoreFailure> {
        self.there()?.read()
    }

    fn swap(&self, swap: Swap<'_>) -> Result<Swapped, StoreFailure> {
        self.there()?.swap(swap)
    }

    fn commit(&self, commit: Commit<'_>) -> Result<Swapped, StoreFailure> {
        self.there()?.commit(commit)
    }

    fn wait(&self, after: Version, at_most: Duration) -> Result<(), StoreFailure> {
        self.there()?.wait(after, at_most)
    }

    fn grant(&self, ttl: Duration) -> Result<LeaseId, StoreFailure> {
        self.there()?.grant(ttl)
    }

    fn keep_alive(&self, lease: LeaseId) -> Result<bool, StoreFailure> {
        self.there()?.keep_alive(lease)
    }

    fn revoke(&self, lease: LeaseId) -> Result<(), StoreFailure> {
        self.there()?.revoke(lease)
    }
}

struct Member {
    server: Server,
    cluster: Arc<Cluster>,
}

impl Member {
    fn start(folder: &Path, store: &Arc<Away>) -> Member {
        let server = start_member(folder);
        let store = Arc::clone(store) as Arc<dyn Store>;
        let cluster =
            Cluster::join(Arc::clone(server.node()), store, ClusterConfig::default()).expect("it joins");
        let is_in = cluster.wait_until(SOON, |view, _| view.state.node_of(cluster.uuid()).is_some());
        assert!(is_in, "it is added");
        Member { server, cluster }
    }

    fn stop(self) {
        assert!(self.cluster.stop(), "its threads end as they should");
        self.server.stop().expect("a clean stop");
    }
}

/// Two nodes in folders, the first of which founds the cluster.
struct Nodes {
    store: Arc<Away>,
    members: Vec<Member>,
    _folders: Vec<tempfile::TempDir>,
}

impl Nodes {
    /// `prepare` gets the folder of each node before it joins.
    fn start(prepare: impl Fn(usize, &Path)) -> Nodes {
        let store = Arc::new(Away::new());
        let folders: Vec<_> = (0..2).map(|_| tempfile::tempdir().expect("a folder")).collect();
        let members = folders.iter().enumerate().map(|(at, folder)| {
            prepare(at, folder.path());
            Member::start(folder.path(), &store)
        });
        let members = members.collect();
        Nodes { store, members, _folders: folders }
    }

    fn on(&self, at: usize) -> &Server {
        &self.members[at].server
    }

    fn put(&self, at: usize, path: &str, form: &str) {
        let (code, told) = http(self.on(at), "PUT", path, form);
        assert_eq!(code, 200, "{path} {form}: {told}");
    }

    /// The names of the users that a node knows.
    fn names(&self, at: usize) -> Vec<String> {
        let told = json(self.on(at), "/settings/rbac/users");
        let name = |one: &Value| one["id"].as_str().expect("a name").to_owned();
        told.as_array().expect("users").iter().map(name).collect()
    }

    fn stop(self) {
        self.members.into_iter().for_each(Member::stop);
    }
}

/// Asks until it is so: a change reaches other nodes a moment after it was answered.
fn soon(what: &str, is_so: impl Fn() -> bool) {
    let clock = Env::real().clock;
    let end = clock.monotonic() + SOON;
    while !is_so() {
        assert!(clock.monotonic() < end, "{what}");
        std::thread::yield_now();
    }
}

fn log_in(server: &Server, password: &str) -> (Client, Status) {
    let mut client = Client::over(TcpStream::connect(server.kv_addr()).expect("the server listens"));
    client.send(&node::fuzz::login("ann", password, "", &[]));
    let (_hello, login, _bucket) = (client.receive(), client.receive().status, client.receive());
    (client, login)
}

#[test]
fn a_change_on_one_node_holds_on_every_node() {
    let nodes = Nodes::start(|_, _| {});
    nodes.put(0, ANN, "password=password&roles=ro_admin");
    assert_eq!(log_in(nodes.on(0), "password").1, Status::Success, "at once where it was made");
    soon("the other node knows ann", || nodes.names(1) == ["ann"]);
    let (mut ann, login) = log_in(nodes.on(1), "password");
    assert_eq!(login, Status::Success);
    let lists_users = |at| http_as("ann", nodes.on(at).http_addr(), "GET", "/settings/rbac/users", "").0;
    assert_eq!([lists_users(0), lists_users(1)], [200, 200]);

    nodes.put(1, "/settings/rbac/groups/guards", "roles=security_admin");
    nodes.put(1, ANN, "groups=guards");
    let group = |at| json(nodes.on(at), ANN)["groups"][0] == "guards";
    assert!(group(1), "at once where it was changed");
    soon("the group is there", || group(0));
    nodes.put(0, ANN, "roles=data_reader[*]");
    soon("the role is gone", || lists_users(1) == 403);

    assert_eq!(http(nodes.on(0), "DELETE", ANN, "").0, 200);
    assert!(ann.is_closed(), "a live connection of a user who is gone");
    soon("ann is gone", || nodes.names(1).is_empty());
    assert_eq!(log_in(nodes.on(1), "password").1, Status::AuthError);
    nodes.stop();
}

#[test]
fn nodes_that_change_users_at_once_lose_none() {
    let nodes = Nodes::start(|_, _| {});
    std::thread::scope(|scope| {
        for at in 0..2 {
            let addr = nodes.on(at).http_addr();
            scope.spawn(move || {
                for n in 0..5 {
                    let user = format!("/settings/rbac/users/local/user{at}{n}");
                    let (code, told) = http_as("Administrator", addr, "PUT", &user, "password=password");
                    assert_eq!(code, 200, "{told}");
                }
            });
        }
    });
    for at in 0..2 {
        soon("all are there", || nodes.names(at).len() == 10);
    }
    nodes.stop();
}

/// The users of the node that founds the cluster become the cluster's; those of another one stay where they are.
#[test]
fn users_of_the_first_node_are_moved() {
    let nodes = Nodes::start(|at, folder| {
        // The second one has users and no bucket, which would keep it from joining.
        let alone = tempfile::tempdir().expect("a folder");
        let at_first = if at == 0 { folder } else { alone.path() };
        let server = start(at_first, "");
        let user = ["/settings/rbac/users/local/ann", "/settings/rbac/users/local/bob"][at];
        assert_eq!(http(&server, "PUT", user, "password=password&roles=ro_admin").0, 200);
        server.stop().expect("a clean stop");
        if at == 1 {
            std::fs::copy(alone.path().join("users.json"), folder.join("users.json")).expect("a copy");
        }
    });
    for at in 0..2 {
        soon("ann is the cluster's", || nodes.names(at) == ["ann"]);
        assert_eq!(log_in(nodes.on(at), "password").1, Status::Success);
    }
    nodes.stop();
}

#[test]
fn a_founder_whose_users_the_store_denies_founds_its_cluster_and_moves_them_later() {
    let log = Log::listen();
    let folder = tempfile::tempdir().expect("a folder");
    let server = start(folder.path(), "");
    assert_eq!(http(&server, "PUT", ANN, "password=password&roles=ro_admin").0, 200);
    server.stop().expect("a clean stop");
    let store = Arc::new(Away::new());
    store.denies_users.store(true, Ordering::SeqCst);
    let member = Member::start(folder.path(), &store);
    assert!(member.cluster.wait_until_served(SOON), "documents need no users");
    soon("the log says so", || log.has_line(&["ERROR", "users.json are not moved", "it is away"]));
    assert_eq!(log_in(&member.server, "password").1, Status::Etmpfail);
    store.denies_users.store(false, Ordering::SeqCst);
    soon("ann is moved", || log_in(&member.server, "password").1 == Status::Success);
    member.stop();
}

/// If no node runs that knows better, a restored store counts, and each node says what that changes.
#[test]
fn users_of_a_store_that_was_restored_while_no_node_ran_are_named() {
    let log = Log::listen();
    let (store, folder) = (Arc::new(Away::new()), tempfile::tempdir().expect("a folder"));
    let member = Member::start(folder.path(), &store);
    let ask = |method, path, form| assert_eq!(http(&member.server, method, path, form).0, 200, "{path}");
    ask("PUT", "/settings/rbac/users/local/back-again", "password=password");
    let backup = store.users().read().expect("it answers").entries;
    ask("DELETE", "/settings/rbac/users/local/back-again", "");
    ask("PUT", "/settings/rbac/users/local/too-new", "password=password");
    let noted = folder.path().join("cluster-users.json");
    soon("it is noted", || std::fs::read_to_string(&noted).is_ok_and(|noted| noted.contains("too-new")));
    member.stop();
    let put = |key: &str, value: Option<&Vec<u8>>| Put { key: key.to_owned(), value: value.cloned() };
    let mut puts: Vec<Put> = backup.iter().map(|(key, entry)| put(key, Some(&entry.value))).collect();
    puts.push(put("user/too-new", None));
    store.users().commit(Commit { guard: None, puts: &puts, lease: None }).expect("restored");
    let member = Member::start(folder.path(), &store);
    let older = ["ERROR", "older users", "again=\"back-again\"", "gone=\"too-new\""];
    soon("the log names both", || log.has_line(&older));
    member.stop();
}

#[test]
fn while_the_store_is_away_users_stay_and_none_is_changed() {
    let nodes = Nodes::start(|_, _| {});
    nodes.put(0, ANN, "password=password&roles=ro_admin");
    soon("the other node knows ann", || nodes.names(1) == ["ann"]);
    nodes.store.set_away(true);
    for at in 0..2 {
        let (code, told) = http(nodes.on(at), "DELETE", ANN, "");
        assert!(code == 503 && told.contains("coordination store"), "{code} {told}");
        assert_eq!(nodes.names(at), ["ann"]);
        assert_eq!(log_in(nodes.on(at), "password").1, Status::Success);
    }
    nodes.store.set_away(false);
    assert_eq!(http(nodes.on(1), "DELETE", ANN, "").0, 200);
    soon("ann is gone", || nodes.names(0).is_empty());
    nodes.stop();
}

/// What a member that is cut off does not hear of lets no one in for long; see `lets_in` for one that serves on.
#[test]
fn a_member_that_is_cut_off_lets_no_user_of_the_store_in_for_long() {
    let shared: Arc<dyn Store> = Arc::new(MemoryStore::new(Env::real().clock));
    let ways = [0, 1].map(|_| Arc::new(Away::of(Arc::clone(&shared))));
    let folders = [0, 1].map(|_| tempfile::tempdir().expect("a folder"));
    let members: Vec<Member> =
        folders.iter().zip(&ways).map(|(folder, way)| Member::start(folder.path(), way)).collect();
    let nodes = Nodes { store: Arc::clone(&ways[0]), members, _folders: Vec::from(folders) };
    nodes.put(0, ANN, "password=password&roles=ro_admin");
    soon("the other node knows ann", || nodes.names(1) == ["ann"]);
    ways[1].set_away(true);
    assert_eq!(http(nodes.on(0), "DELETE", ANN, "").0, 200);
    assert_eq!(log_in(nodes.on(0), "password").1, Status::AuthError);
    let addr = nodes.on(1).http_addr();
    let over_http = |user: &str| http_as(user, addr, "GET", "/pools", "").0;
    soon("ann is not let in", || log_in(nodes.on(1), "password").1 == Status::Etmpfail);
    assert_eq!((over_http("ann"), over_http("Administrator")), (503, 200));
    let (code, figures) = http_as("ann", addr, "GET", "/metrics", "");
    assert!(code == 200 && figures.contains("\nstave_may_serve 0\n"), "{code} {figures}");
    assert_eq!(log_in(nodes.on(1), "wrong").1, Status::AuthError);
    ways[1].set_away(false);
    soon("ann is gone", || log_in(nodes.on(1), "password").1 == Status::AuthError);
    nodes.put(0, ANN, "password=password&roles=ro_admin");
    soon("ann is let in", || log_in(nodes.on(1), "password").1 == Status::Success);
    nodes.stop();
}

/// A member that starts knows no user of its cluster for a moment, and says so.
#[test]
fn a_member_that_has_not_read_the_users_calls_no_password_wrong() {
    let shared: Arc<dyn Store> = Arc::new(MemoryStore::new(Env::real().clock));
    let ways = [0, 1].map(|_| Arc::new(Away::of(Arc::clone(&shared))));
    let folders = [0, 1].map(|_| tempfile::tempdir().expect("a folder"));
    let first = Member::start(folders[0].path(), &ways[0]);
    assert_eq!(http(&first.server, "PUT", ANN, "password=password&roles=admin").0, 200);
    ways[1].denies_users.store(true, Ordering::SeqCst);
    let second = Member::start(folders[1].path(), &ways[1]);
    let addr = second.server.http_addr();
    let over_http = |user: &str| http_as(user, addr, "GET", "/pools", "").0;
    let (code, told) = http(&second.server, "POST", "/settings/audit", "auditdEnabled=true");
    assert_eq!(code, 200, "{told}");
    // More than are let through of wrong passwords.
    for password in ["password", "wrong"].into_iter().cycle().take(60) {
        assert_eq!(log_in(&second.server, password).1, Status::Etmpfail, "{password}");
    }
    assert_eq!((over_http("ann"), over_http("unknown"), over_http("Administrator")), (503, 503, 200));
    ways[1].denies_users.store(false, Ordering::SeqCst);
    soon("ann is let in", || log_in(&second.server, "password").1 == Status::Success);
    assert_eq!((log_in(&second.server, "wrong").1, over_http("unknown")), (Status::AuthError, 401));
    [second, first].into_iter().for_each(Member::stop);
    // All is written when the node has stopped: of the logins, the one of each kind that was judged.
    let records = std::fs::read_to_string(folders[1].path().join("audit/audit.log")).expect("it is written");
    let refused = |id: &str, user: &str| {
        let is_one =
            |line: &&str| line.contains(&format!("\"id\":{id},")) && line.contains(&format!("\"{user}\""));
        records.lines().filter(is_one).count()
    };
    assert_eq!(
        (refused("20481", "ann"), refused("8264", "unknown"), refused("8264", "ann")),
        (1, 1, 0),
        "{records}"
    );
}

/// A user who was removed does not come back because somebody restores the store.
#[test]
fn nodes_put_back_what_a_restored_store_has_lost() {
    let nodes = Nodes::start(|_, _| {});
    nodes.put(0, ANN, "password=password&roles=admin");
    soon("the other node knows ann", || nodes.names(1) == ["ann"]);
    let users = nodes.store.users();
    let backup = users.read().expect("it answers").entries;
    assert_eq!(http(nodes.on(0), "DELETE", ANN, "").0, 200);
    nodes.put(0, "/settings/rbac/users/local/bob", "password=password");
    for at in 0..2 {
        soon("the nodes know that", || nodes.names(at) == ["bob"]);
    }
    let put = |key: &str, value: Option<&Vec<u8>>| Put { key: key.to_owned(), value: value.cloned() };
    let mut puts: Vec<Put> = backup.iter().map(|(key, entry)| put(key, Some(&entry.value))).collect();
    puts.push(put("user/bob", None));
    users.commit(Commit { guard: None, puts: &puts, lease: None }).expect("restored");
    soon("the store has what the nodes know", || {
        let entries = users.read().expect("it answers").entries;
        entries.contains_key("user/bob") && !entries.contains_key("user/ann")
    });
    for at in 0..2 {
        assert_eq!(nodes.names(at), ["bob"], "no node ever saw the older users");
        assert_eq!(log_in(nodes.on(at), "password").1, Status::AuthError);
    }
    nodes.put(1, ANN, "password=password");
    soon("users are changed as before", || nodes.names(0).len() == 2);
    nodes.stop();
}

#[test]
fn an_entry_that_cannot_be_read_is_named_and_keeps_one_user_out() {
    let nodes = Nodes::start(|_, _| {});
    nodes.put(0, ANN, "password=password");
    nodes.put(0, "/settings/rbac/users/local/bob", "password=password");
    soon("the other node knows them", || nodes.names(1).len() == 2);
    let newer = br#"{"format":9,"says":"something else"}"#;
    let swap = Swap { key: "user/ann", expected: None, value: Some(newer), lease: None };
    nodes.store.users().swap(swap).expect("done");
    let guard = nodes.store.users().read().expect("it answers").entries["guard"].value.clone();
    let mut guard: Value = serde_json::from_slice(&guard).expect("JSON");
    (guard["revision"], guard["id"]) = (7.into(), "by the newer one".into());
    let value = guard.to_string().into_bytes();
    let swap = Swap { key: "guard", expected: None, value: Some(&value), lease: None };
    nodes.store.users().swap(swap).expect("done");
    for at in 0..2 {
        soon("ann is kept out", || nodes.names(at) == ["bob"]);
        assert_eq!(log_in(nodes.on(at), "password").1, Status::AuthError);
        for method in ["GET", "PUT"] {
            let (code, told) = http(nodes.on(at), method, ANN, "");
            assert!(code == 500 && told.contains("format 9") && told.contains("delete ann"), "{code} {told}");
        }
    }
    assert_eq!(http(nodes.on(1), "DELETE", ANN, "").0, 200);
    nodes.put(1, ANN, "password=password");
    soon("ann is there again", || nodes.names(0) == ["ann", "bob"]);
    nodes.stop();
}
