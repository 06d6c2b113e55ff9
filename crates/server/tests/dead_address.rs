//! A stranger listens at the addresses of a dead node: no password of the cluster ever arrives there, whatever the
//! other nodes want of the dead one, and whatever their users ask them.
#![allow(clippy::disallowed_methods, reason = "these are clients and a stranger, outside the server")]

mod support;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use ::cluster::state::State;
use ::cluster::{Command, LeaderConfig, MemoryStore, NodeId, Store};
use base::env::Env;
use base64::Engine;
use node::cluster::{Cluster, ClusterConfig};
use protocol::{Limits, Parsed, Response, Status, opcode, parse};
use server::Server;
use support::{Lines, http};

const SOON: Duration = Duration::from_secs(60);
const PASSWORD: &str = "password";

struct Member {
    server: Server,
    cluster: Arc<Cluster>,
    folder: tempfile::TempDir,
}

impl Member {
    fn start(store: &Arc<dyn Store>) -> Member {
        let folder = tempfile::tempdir().expect("a folder");
        let server = support::start_member(folder.path());
        let config = ClusterConfig { lease_ttl: Duration::from_secs(3), leader: LeaderConfig::default() };
        let cluster = Cluster::join(Arc::clone(server.node()), Arc::clone(store), config).expect("it joins");
        assert!(cluster.wait_until_served(SOON), "it is let in");
        Member { server, cluster, folder }
    }

    fn wait(&self, what: &str, is_so: impl Fn(&State) -> bool) {
        assert!(self.cluster.wait_until(SOON, |view, _| is_so(&view.state)), "{what}");
    }

    fn stop(self) {
        assert!(self.cluster.stop(), "its threads end as they should");
        self.server.stop().expect("a clean stop");
        drop(self.folder);
    }
}

/// What a stranger heard: each connection's bytes.
#[derive(Default)]
struct Heard {
    all: Mutex<Vec<(u16, Vec<u8>)>>,
    more: Condvar,
}

impl Heard {
    fn note(&self, port: u16, bytes: &[u8]) {
        self.all.lock().expect("no test panics here").push((port, bytes.to_vec()));
        self.more.notify_all();
    }

    /// Waits until something is heard at a port that has these bytes in it.
    fn until(&self, what: &str, port: u16, part: &[u8]) {
        let is_heard = |all: &mut Vec<(u16, Vec<u8>)>| {
            let bytes: Vec<u8> =
                all.iter().filter(|(at, _)| *at == port).flat_map(|(_, bytes)| bytes.clone()).collect();
            !contains(&bytes, part)
        };
        let all = self.all.lock().expect("no test panics here");
        let (all, waited) = self.more.wait_timeout_while(all, SOON, is_heard).expect("no test panics here");
        assert!(!waited.timed_out(), "{what}: {} pieces were heard", all.len());
    }
}

fn contains(bytes: &[u8], part: &[u8]) -> bool {
    bytes.windows(part.len()).any(|window| window == part)
}

/// Takes what comes at an address, and answers as one who wants the password.
fn listen(addr: SocketAddr, heard: &Arc<Heard>, answer: fn(&[u8]) -> Vec<u8>) {
    let listener = TcpListener::bind(addr).expect("the node is dead");
    let heard = Arc::clone(heard);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            let heard = Arc::clone(&heard);
            std::thread::spawn(move || {
                let mut buf = [0; 4096];
                while let Ok(read @ 1..) = stream.read(&mut buf) {
                    heard.note(addr.port(), &buf[..read]);
                    if stream.write_all(&answer(&buf[..read])).is_err() {
                        return;
                    }
                }
            });
        }
    });
}

/// Lets everybody in who says the password as it is.
fn answers_kv(mut bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    while let Parsed::Request { request, total_len } = parse(bytes, Limits::AUTHENTICATED) {
        let (opcode, opaque) = (request.opcode, request.opaque);
        let value: &[u8] = if opcode == opcode::SASL_LIST_MECHS { b"PLAIN" } else { b"" };
        Response { opcode, opaque, status: Status::Success, value, ..Response::default() }.write(&mut out);
        bytes = &bytes[total_len..];
    }
    out
}

fn answers_http(_: &[u8]) -> Vec<u8> {
    b"HTTP/1.1 401 Unauthorized\r\nWWW-Authenticate: Basic realm=\"x\"\r\nContent-Length: 0\r\n\r\n".to_vec()
}

#[test]
fn who_listens_at_a_dead_nodes_address_hears_no_password() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new(Env::real().clock));
    let mut members: Vec<Member> = (0..3).map(|_| Member::start(&store)).collect();
    let ask = |members: &[Member], command: &Command| {
        let asked = (0..200).any(|_| match members[0].cluster.ask(command) {
            Ok(view) => {
                let revision = view.state.revision;
                members[0].cluster.wait_until(SOON, |seen, _| seen.state.revision >= revision)
            }
            Err(_) => {
                members[0].cluster.wait_until(Duration::from_millis(50), |_, _| false);
                false
            }
        });
        assert!(asked, "{command:?}");
    };
    ask(&members, &Command::Rebalance { eject: Vec::new() });
    members[0].wait("all are active", |state| {
        state.rebalance.is_none() && (1..=3).all(|id| state.is_active(NodeId(id)))
    });
    let bucket = "name=default&ramQuotaMB=100&replicaNumber=1";
    let (code, text) = http(&members[0].server, "POST", "/pools/default/buckets", bucket);
    assert_eq!(code, 202, "{text}");
    members[0].wait("the bucket is there", |state| {
        state.buckets.values().any(|bucket| bucket.steps.is_empty() && bucket.active(0).is_some())
    });

    // The last one's sockets are closed, and a stranger takes its addresses. Its lease goes on, so that the others want
    // something of it until it is failed over.
    let dead = members.pop().expect("there are three");
    let (kv, at_http) = (dead.server.kv_addr(), dead.server.http_addr());
    let store_keeps_it = Arc::clone(&dead.cluster);
    dead.server.stop().expect("its sockets are closed");
    let heard = Arc::new(Heard::default());
    listen(kv, &heard, answers_kv);
    listen(at_http, &heard, answers_http);

    // Links for its replicas log in, promises are asked for, figures of all nodes, changes of all nodes.
    heard.until("a link", kv.port(), b"replication");
    heard.until("a promise", at_http.port(), b"POST");
    for member in &members {
        for path in ["/pools/default", "/pools/nodes", "/pools/default/buckets", "/v1/cluster", "/metrics"] {
            let (code, _) = http(&member.server, "GET", path, "");
            assert_eq!(code, 200, "{path}");
        }
    }
    heard.until("figures of all nodes", at_http.port(), b"GET ");
    let mut changes = Lines::of(&members[0].server, "/v1/buckets/default/changes?follow=false");
    let _ = changes.next_json();
    // What administrators want of the cluster.
    ask(&members, &Command::FailOver { node: NodeId(3), force: true });
    members[0].wait("it is failed over", |state| !state.is_active(NodeId(3)));
    ask(&members, &Command::Rebalance { eject: vec![NodeId(3)] });
    members[0].wait("it has left", |state| !state.nodes.contains_key(&NodeId(3)));

    let all = heard.all.lock().expect("no test panics here").clone();
    let plain = base64::engine::general_purpose::STANDARD.encode(format!("Administrator:{PASSWORD}"));
    for (port, bytes) in &all {
        for secret in [PASSWORD.as_bytes(), plain.as_bytes()] {
            let text = bytes.escape_ascii();
            assert!(!contains(bytes, secret), "the stranger at {port} heard a password: {text}");
        }
    }
    drop(store_keeps_it);
    members.into_iter().for_each(Member::stop);
}
