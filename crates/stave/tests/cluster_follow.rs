//! What follows a bucket of a cluster ends when that is deleted. etcd and every node are processes of their own.
#![allow(clippy::disallowed_methods, reason = "this is a client, outside the server")]

#[path = "../../server/tests/support/etcd.rs"]
mod etcd;
mod members;
mod process;
#[path = "../../server/tests/support/mod.rs"]
mod support;

use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::Instant;

use members::{PATIENCE, World, fill, place, post, run};
use support::json;

#[test]
fn a_follower_ends_when_the_bucket_of_a_cluster_is_deleted() {
    let world = World::new();
    let (a, b) = (world.node("a"), world.node("b"));
    run(&a, &["cluster", "rebalance"]);
    post(&a, "/pools/default/buckets", "name=default&ramQuota=100&replicaNumber=1", 202);
    fill(place(&a), 200);
    let folder = world.data("backups");
    let mut follower = Command::new(env!("CARGO_BIN_EXE_stave"));
    follower.args([
        "backup",
        "--to",
        &folder,
        "--bucket",
        "default",
        "--follow",
        "--addr",
        &b.kv.to_string(),
    ]);
    follower.env("STAVE_PASSWORD", "password").stdout(Stdio::null()).stderr(Stdio::piped());
    let mut follower = follower.spawn().expect("it starts");
    // It has a log once its backup is complete.
    let begun = Instant::now();
    let has_log = || std::fs::read_dir(format!("{folder}/default/log")).is_ok_and(|log| log.count() > 0);
    while !has_log() {
        let is_running = follower.try_wait().expect("it can be asked").is_none();
        assert!(begun.elapsed() < PATIENCE && is_running, "no log is begun");
        // A question of the cluster is the pause.
        json(&a, "/pools/default");
    }
    run(&a, &["bucket", "delete", "default", "--yes"]);
    let (ended, end) = mpsc::channel();
    let waits = std::thread::spawn(move || ended.send(follower.wait_with_output().expect("it ends")));
    let output = end.recv_timeout(PATIENCE).expect("it follows a bucket that is gone");
    waits.join().expect("it has waited").expect("it was told");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.code() == Some(3) && said.contains("has no bucket `default`"),
        "{:?} {said}",
        output.status
    );
}
