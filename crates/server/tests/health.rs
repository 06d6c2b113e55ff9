//! `/livez`, `/readyz` and `/healthz`: what is told while vBuckets of the map are not served, and while the disk is full.
#![allow(clippy::disallowed_methods, reason = "this is a client, outside the server")]

#[path = "support/full_disk.rs"]
mod full_disk;
mod support;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use base::env::{DiskCall, Env, marked};
use base::{VbId, VbState};
use full_disk::{FullDisk, Gate};
use protocol::Status;
use server::Server;
use support::{Client, VBUCKETS, http};

/// Status codes of the three addresses, and what `/readyz` and `/healthz` say.
fn told(server: &Server) -> ([u16; 3], [String; 2]) {
    let [alive, ready, healthy] = ["/livez", "/readyz", "/healthz"].map(|path| http(server, "GET", path, ""));
    ([alive.0, ready.0, healthy.0], [ready.1, healthy.1])
}

#[test]
fn a_node_is_ready_when_it_serves_every_vbucket_of_the_map() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = support::start(folder.path(), "");
    let bucket = server.node().bucket("default").expect("it is served");
    let become_one =
        |vb: u16, state| bucket.roles().set_vbucket_state(VbId(vb), state, None).expect("there is one");
    let ok = || ["ok\n".to_owned(), "ok\n".to_owned()];
    assert_eq!(told(&server), ([200; 3], ok()));
    // Every vBucket counts, in each role in which it does not serve.
    for vb in 0..VBUCKETS {
        for state in [VbState::Replica, VbState::Pending, VbState::Dead] {
            become_one(vb, state);
            let (codes, [ready, _]) = told(&server);
            assert_eq!(codes, [200, 503, 200], "{vb} {state:?}");
            let expected = format!(
                "bucket default: vBucket {vb} is not served: they are not active here, and the node is in no cluster\n"
            );
            assert_eq!(ready, expected, "{state:?}");
            become_one(vb, VbState::Active);
            assert_eq!(told(&server), ([200; 3], ok()), "{vb} {state:?}");
        }
    }
    become_one(1, VbState::Dead);
    bucket.roles().delete_vbucket(VbId(1)).expect("it may go").expect("the disk works");
    become_one(2, VbState::Replica);
    let (codes, [ready, _]) = told(&server);
    assert_eq!(codes, [200, 503, 200]);
    assert!(ready.contains("vBuckets 1, 2 are not served"), "{ready}");
    become_one(1, VbState::Active);
    become_one(2, VbState::Active);
    assert_eq!(told(&server), ([200; 3], ok()));
    drop(bucket);
    server.stop().expect("a clean stop");
}

#[test]
fn a_node_that_no_cluster_has_let_in_is_not_ready() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = support::start_member(folder.path());
    let (codes, [ready, healthy]) = told(&server);
    assert_eq!(codes, [200, 503, 503]);
    for told in [ready, healthy] {
        assert!(
            told.starts_with("this node serves no client: it has not begun to join its cluster yet"),
            "{told}"
        );
    }
    server.stop().expect("a clean stop");
}

#[test]
fn a_full_disk_is_not_healthy_until_there_is_room_again() {
    let folder = tempfile::tempdir().expect("a folder");
    let disk = FullDisk::default();
    let env = Env { disk: Arc::new(disk.clone()), ..Env::real() };
    let server = support::start_in(env, folder.path(), "");
    let mut client = Client::connect(&server, "default", &[]);
    assert_eq!(client.set(b"k", b"before"), Some(Status::Success));
    assert_eq!(told(&server).0, [200; 3]);
    disk.is_full.store(true, Ordering::SeqCst);
    // It shows when the flusher has something for the disk.
    let mut n = 0;
    while client.set(b"full", format!("{n}{}", "x".repeat(10_000)).as_bytes()) == Some(Status::Success) {
        n += 1;
    }
    let (codes, [ready, healthy]) = told(&server);
    assert_eq!(codes, [200, 200, 503], "what is there is read: {ready} {healthy}");
    assert_eq!(healthy, "bucket default: the disk is full, and changes are refused: make room\n");
    let ann = "/settings/rbac/users/local/ann";
    let (code, why) = http(&server, "PUT", ann, "password=password&roles=data_reader[default]");
    assert!(code == 500 && why.contains("the disk is full"), "{code} {why}");
    assert_eq!(client.get(b"k").map(|answer| answer.value), Some(b"before".to_vec()));
    disk.is_full.store(false, Ordering::SeqCst);
    while client.set(b"k", b"after") != Some(Status::Success) {}
    assert_eq!(told(&server), ([200; 3], ["ok\n".to_owned(), "ok\n".to_owned()]));
    server.stop().expect("a clean stop");
}

#[test]
fn a_call_of_the_disk_that_does_not_end_is_told_until_it_does() {
    let folder = tempfile::tempdir().expect("a folder");
    let (world, clock) = support::world();
    let gate = Gate::default();
    let of_flusher = gate.clone();
    let hook = move || {
        let is_flusher = std::thread::current().name().is_some_and(|name| name.starts_with("flush-"));
        if is_flusher && of_flusher.is_shut() {
            marked(DiskCall::Sync, || of_flusher.pass());
        }
    };
    let disk = FullDisk { on_sync: Some(Arc::new(hook)), ..FullDisk::default() };
    let server = support::start_in(Env { disk: Arc::new(disk), ..world }, folder.path(), "");
    let mut client = Client::connect(&server, "default", &[]);
    let shut = gate.shut();
    assert_eq!(client.set(b"k", b"v"), Some(Status::Success));
    gate.until_waiting(1);
    assert_eq!(told(&server).0, [200; 3], "it has just begun");
    // The clock is the machine's, and goes on by itself, too.
    clock.advance(4);
    assert_eq!(told(&server).0, [200; 3], "a slow disk is no reason");
    (0..2).for_each(|_| {
        clock.advance(9);
        told(&server);
    });
    clock.advance(9);
    let (codes, [_, healthy]) = told(&server);
    assert_eq!(codes, [200, 200, 503]);
    let expected = "bucket default: the disk has not ended a sync for ";
    assert!(healthy.starts_with(expected) && healthy.contains("the flusher waits"), "{healthy}");
    let (_, metrics) = http(&server, "GET", "/metrics", "");
    let blocked = |line: &str| line.starts_with("stave_disk_blocked_seconds{") && !line.ends_with(" 0");
    assert!(metrics.lines().any(blocked), "{metrics}");
    drop(shut);
    while told(&server) != ([200; 3], ["ok\n".to_owned(), "ok\n".to_owned()]) {}
    server.stop().expect("a clean stop");
}
