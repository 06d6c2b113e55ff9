//! A bucket of a cluster that goes to another store while clients write durably: a member is killed in the middle, the move is
//! cancelled, and a node joins meanwhile. etcd and every node are processes of their own.
#![allow(clippy::disallowed_methods, reason = "this is a client, outside the server")]

#[path = "../../server/tests/support/etcd.rs"]
mod etcd;
mod members;
mod process;
#[path = "../../server/tests/support/mod.rs"]
mod support;

use std::collections::BTreeMap;
use std::process::Child;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use members::{
    Follower, PATIENCE, Place, VBUCKETS, World, all_are_up, fill, place, post, run, run_between_failovers,
    said, stave,
};
use process::Process;
use protocol::{RequestParts, Status, opcode};
use rustix::process::Signal;
use serde_json::Value;
use support::{Reach, http, json};

const MIGRATION: &str = "/v1/buckets/default/migration";
const BUCKET: &str = "/pools/default/buckets/default";
/// A majority of the copies, in memory (frame info 1: level and timeout in milliseconds).
const MAJORITY: [u8; 4] = [0x13, 0x01, 0x27, 0x10];
const WRITERS: usize = 2;
const KEYS: usize = 60;
/// Documents that lie still, so that a move takes a while.
const FILLED: usize = 3000;
/// How often a member is killed until its move was under way.
const ATTEMPTS: usize = 20;

/// Clients that write durably until they are told to stop.
struct Writers {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<BTreeMap<String, String>>>,
    answers: mpsc::Receiver<()>,
}

impl Writers {
    fn start(asked: Place) -> Writers {
        let stop = Arc::new(AtomicBool::new(false));
        let (answered, answers) = mpsc::channel();
        let write = |writer: usize| {
            let (stop, answered) = (Arc::clone(&stop), answered.clone());
            std::thread::spawn(move || {
                let (mut follower, mut told) = (Follower::new(asked), BTreeMap::new());
                for n in 0.. {
                    if stop.load(Ordering::SeqCst) {
                        break;
                    }
                    let (key, value) = (format!("writer-{writer}-{}", n % KEYS), format!("version {n}"));
                    let set = RequestParts {
                        opcode: opcode::SET,
                        value: value.as_bytes(),
                        extras: &[0; 8],
                        frame_infos: &MAJORITY,
                        ..RequestParts::default()
                    };
                    // What is said of a write that may have been done, or not, is asked again with the same value.
                    follower.ask(&key, &set, |status| status == Status::Success);
                    told.insert(key, value);
                    // The test may not listen any more.
                    let _ = answered.send(());
                }
                told
            })
        };
        Writers { threads: (0..WRITERS).map(write).collect(), stop, answers }
    }

    fn go_on(&self, answers: usize) {
        (0..answers).for_each(|_| self.answers.recv().expect("the writers write"));
    }

    fn end(self) -> BTreeMap<String, String> {
        self.stop.store(true, Ordering::SeqCst);
        self.threads.into_iter().flat_map(|thread| thread.join().expect("a writer")).collect()
    }
}

/// Everything that was acknowledged is there.
fn check(asked: Place, told: &BTreeMap<String, String>, about: &str) {
    let mut follower = Follower::new(asked);
    let get = RequestParts { opcode: opcode::GET, ..RequestParts::default() };
    for (key, value) in told {
        let is_answer = |status| matches!(status, Status::Success | Status::KeyEnoent);
        let (status, found) = follower.ask(key, &get, is_answer);
        assert_eq!(
            (status, String::from_utf8_lossy(&found).as_ref()),
            (Status::Success, value.as_str()),
            "{about}: {key}"
        );
    }
    assert!(told.len() >= WRITERS, "{about}: {} documents", told.len());
}

/// Waits until a move is as it should be; the clients write meanwhile.
fn until(asked: &impl Reach, writers: &Writers, is_so: impl Fn(&Value) -> bool) -> Value {
    let begun = Instant::now();
    loop {
        let now = json(asked, MIGRATION);
        if is_so(&now) {
            return now;
        }
        assert!(begun.elapsed() < PATIENCE, "it stays so: {now}");
        // All of them may wait for a node that was killed; none has ended.
        let answered = writers.answers.recv_timeout(Duration::from_millis(50));
        assert_ne!(answered, Err(mpsc::RecvTimeoutError::Disconnected), "the clients failed: {now}");
    }
}

/// Whether a bucket lies in a store, and is on the way to no other one.
fn is_in(now: &Value, store: &str) -> bool {
    is_over(now) && now["storageBackend"] == store
}

/// Moves the bucket, by a command at one of `asked`, and kills `of_three` while its copies are on the way: where they have
/// arrived before it was killed, the bucket moves once more. The process that asked, and the store it moves to.
fn killed_in_the_middle(
    asked: [&Process; 2],
    of_three: &mut Process,
    writers: &Writers,
    world: &World,
) -> (Child, &'static str) {
    let [told, elsewhere] = asked;
    for store in ["magma", "couchstore"].into_iter().cycle().take(ATTEMPTS) {
        let words = ["migrate", "default", "--backend", store, "--json"];
        let command = stave(elsewhere, &words).spawn().expect("it starts");
        until(told, writers, |now| of_node(now, "n_3") == "copying" || is_in(now, store));
        of_three.child.kill().expect("it runs");
        of_three.child.wait().expect("it ends");
        let now = until(told, writers, |now| of_node(now, "n_3") == "away" || is_in(now, store));
        if of_node(&now, "n_3") == "away" {
            return (command, store);
        }
        said(command);
        *of_three = world.node("c");
        are_in(&[told, elsewhere, of_three], store);
    }
    panic!("the copies of n_3 were never on the way when it was killed");
}

fn is_over(now: &Value) -> bool {
    now["state"] == "none"
}

/// The state of a node in what is told of a move.
fn of_node<'v>(now: &'v Value, node: &str) -> &'v Value {
    let nodes = now["nodes"].as_array().map_or(&[][..], Vec::as_slice);
    nodes.iter().find(|one| one["node"] == node).map_or(&Value::Null, |one| &one["state"])
}

/// Waits until each of the nodes says so: it goes by the document that it has read last.
fn are_in(nodes: &[&Process], store: &str) {
    for node in nodes {
        for path in [BUCKET, MIGRATION] {
            let begun = Instant::now();
            while json(*node, path)["storageBackend"] != store {
                assert!(begun.elapsed() < PATIENCE, "{path} does not say {store}");
            }
        }
    }
}

#[test]
fn all_members_move_a_bucket_while_it_is_written_to() {
    let world = World::new();
    let (a, b, mut c) = (world.node("a"), world.node("b"), world.node("c"));
    run(&a, &["cluster", "rebalance"]);
    post(&a, "/settings/autoFailover", "enabled=false", 200);
    post(&a, "/pools/default/buckets", "name=default&ramQuota=100&replicaNumber=2", 202);
    let writers = Writers::start(place(&a));
    writers.go_on(WRITERS * KEYS);
    fill(place(&a), FILLED);
    // Asked at one node; another one is killed in the middle, and started again.
    let (command, store) = killed_in_the_middle([&a, &b], &mut c, &writers, &world);
    let other = if store == "magma" { "couchstore" } else { "magma" };
    let now = json(&a, MIGRATION);
    assert_eq!((&now["from"], &now["to"]), (&other.into(), &store.into()), "{now}");
    let (code, told) = http(&a, "POST", MIGRATION, &format!("storageBackend={store}"));
    assert!(code == 400 && told.contains("is being moved to another store already"), "{code} {told}");
    let c = world.node("c");
    let told: Value = serde_json::from_str(&said(command)).expect("JSON");
    assert_eq!((&told["backend"], &told["vbuckets"]), (&store.into(), &(3 * VBUCKETS).into()), "{told}");
    are_in(&[&a, &b, &c], store);
    // Back again, and cancelled in the middle: one node stands still, so that the move cannot end before that.
    c.signal(Signal::STOP);
    let back = format!("storageBackend={other}");
    post(&a, MIGRATION, &back, 202);
    until(&a, &writers, |now| ["copying", "done"].iter().any(|state| of_node(now, "n_1") == *state));
    let (code, told) = http(&b, "DELETE", MIGRATION, "");
    assert_eq!(code, 202, "{told}");
    assert!(json(&b, MIGRATION)["state"] != "copying");
    c.signal(Signal::CONT);
    until(&a, &writers, is_over);
    are_in(&[&a, &b, &c], store);
    let (code, told) = http(&b, "DELETE", MIGRATION, "");
    assert!(code == 400 && told.contains("is not being moved"), "{code} {told}");
    // A node joins while the bucket moves, and makes its copies where they are to be.
    c.signal(Signal::STOP);
    post(&a, MIGRATION, &back, 202);
    let d = world.node("d");
    assert!(!is_over(&json(&a, MIGRATION)));
    c.signal(Signal::CONT);
    all_are_up(&a, 4);
    run_between_failovers(&a, &["cluster", "rebalance"]);
    until(&a, &writers, is_over);
    are_in(&[&a, &b, &c, &d], other);
    let told = writers.end();
    check(place(&a), &told, "moved");
    // What the replicas have is the same: they take over from a node that is gone.
    drop(c);
    run_between_failovers(&a, &["cluster", "failover", "n_3"]);
    check(place(&a), &told, "failed over");
}

/// A node that was away during the whole move, and a history of changes, which only one of the stores keeps.
#[test]
fn a_member_that_was_away_moves_when_it_is_back() {
    let world = World::new();
    let (a, b, c) = (world.node("a"), world.node("b"), world.node("c"));
    run(&a, &["cluster", "rebalance"]);
    post(&a, "/settings/autoFailover", "enabled=false", 200);
    post(&a, "/pools/default/buckets", "name=default&ramQuota=100&replicaNumber=2", 202);
    let writers = Writers::start(place(&a));
    writers.go_on(WRITERS * KEYS);
    drop(c);
    post(&a, MIGRATION, "storageBackend=magma", 202);
    let is_done = |now: &Value| of_node(now, "n_1") == "done" && of_node(now, "n_2") == "done";
    until(&a, &writers, |now| is_done(now) && of_node(now, "n_3") == "away");
    let history = "historyRetentionSeconds=600&historyRetentionBytes=0";
    let (code, told) = http(&a, "POST", BUCKET, history);
    assert!(code == 503 && told.contains("a history begins when that has ended"), "{code} {told}");
    let c = world.node("c");
    until(&a, &writers, is_over);
    are_in(&[&a, &b, &c], "magma");
    post(&a, BUCKET, history, 200);
    let (code, told) = http(&b, "POST", MIGRATION, "storageBackend=couchstore");
    assert!(code == 400 && told.contains("keeps a history of changes"), "{code} {told}");
    writers.go_on(WRITERS * KEYS);
    check(place(&a), &writers.end(), "with a history");
}
