//! A bucket that moves to the other store while clients write durably, and the node is killed in the middle.
#![allow(clippy::disallowed_methods, reason = "this is a client, outside the server")]

mod process;
#[path = "../../server/tests/support/mod.rs"]
mod support;

use std::process::{Command, Output, Stdio};

use process::{Process, SERVE, WRITERS, Writers};
use serde_json::Value;
use support::{http, json};

const VBUCKETS: u16 = 64;
const MIGRATION: &str = "/v1/buckets/default/migration";
const BUCKET: &str = "/pools/default/buckets/default";

fn migrate(node: &Process, more: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_stave"));
    command.args(["migrate", "default", "--addr", &node.http.to_string(), "--json"]).args(more);
    command.env("STAVE_PASSWORD", "password").stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn said(output: &Output) -> Value {
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {text}", output.status);
    serde_json::from_slice(&output.stdout).expect("JSON")
}

/// Every answer means that the change is on the disk.
fn be_durable(node: &Process) {
    let (code, body) = http(node, "POST", BUCKET, "durabilityMinLevel=persistToMajority");
    assert_eq!(code, 200, "{body}");
}

/// Commands that read a folder read no half of what is in two stores.
fn are_refused(data: &str) {
    let bucket = format!("{data}/buckets/default");
    for words in [
        &["check", data][..],
        &["dump", &format!("{bucket}/migration.json")],
        &["migrate", &bucket, "--backend", "couchstore"],
    ] {
        let refused = Command::new(env!("CARGO_BIN_EXE_stave")).args(words).output().expect("it ends");
        let told = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(!refused.status.success() && told.contains("moved to another store"), "{words:?}: {told}");
    }
}

#[test]
fn a_bucket_moves_while_it_is_written_to_and_the_node_is_killed() {
    let folder = tempfile::tempdir().expect("a folder");
    let config = folder.path().join("stave.toml");
    std::fs::write(&config, format!("vbuckets = {VBUCKETS}\n")).expect("written");
    let data = folder.path().join("data");
    let text = |path: &std::path::Path| path.to_str().expect("text").to_owned();
    let (data, config) = (text(&data), text(&config));
    let more = ["--data", &data, "--config", &config];
    let mut node = Process::start(SERVE, &more);
    be_durable(&node);
    assert_eq!(json(&node, BUCKET)["storageBackend"], "couchstore");
    let writers = Writers::start(&node, VBUCKETS);
    writers.go_on(WRITERS * 200);
    let mut command = migrate(&node, &["--backend", "magma"]).spawn().expect("the binary is there");
    loop {
        writers.go_on(1);
        let now = json(&node, MIGRATION);
        let (done, of) = (&now["vbuckets"], &now["ofVbuckets"]);
        let is_under_way = done.as_u64().zip(of.as_u64()).is_some_and(|(done, of)| 8 < done && done < of);
        if is_under_way || now["storageBackend"] == "magma" {
            assert!(is_under_way, "it was over before it was seen: {now}");
            break;
        }
    }
    node.child.kill().expect("it runs");
    node.child.wait().expect("it ends");
    assert!(!command.wait().expect("it ends").success(), "its node is gone");
    let ledger = writers.end();
    are_refused(&data);
    // It goes on, and all is there.
    let node = Process::start(SERVE, &more);
    ledger.check(&node, VBUCKETS, "after the kill");
    be_durable(&node);
    let writers = Writers::start(&node, VBUCKETS);
    while json(&node, MIGRATION)["state"] != "none" {
        writers.go_on(10);
    }
    assert_eq!(json(&node, MIGRATION)["storageBackend"], "magma");
    assert_eq!(json(&node, BUCKET)["storageBackend"], "magma");
    writers.go_on(WRITERS * 20);
    node.signal(rustix::process::Signal::TERM);
    let later = writers.end();
    node.ends_well();
    // The configuration still says couchstore.
    let node = Process::start(SERVE, &more);
    assert_eq!(json(&node, BUCKET)["storageBackend"], "magma");
    later.check(&node, VBUCKETS, "after the move");
    // And back, with a command that waits for it.
    let output = migrate(&node, &["--backend", "couchstore"]).output().expect("it ends");
    let told = said(&output);
    assert_eq!((&told["backend"], &told["vbuckets"]), (&"couchstore".into(), &VBUCKETS.into()), "{told}");
    later.check(&node, VBUCKETS, "moved back");
    let again = migrate(&node, &["--backend", "couchstore"]).output().expect("it ends");
    let why = String::from_utf8_lossy(&again.stderr).into_owned();
    assert!(!again.status.success() && why.contains("in that store already"), "{why}");
    let none = migrate(&node, &["--cancel"]).output().expect("it ends");
    let why = String::from_utf8_lossy(&none.stderr).into_owned();
    assert!(!none.status.success() && why.contains("not being moved"), "{why}");
    node.signal(rustix::process::Signal::TERM);
    node.ends_well();
    let checked = Command::new(env!("CARGO_BIN_EXE_stave")).args(["check", &data]).status().expect("it ends");
    assert!(checked.success(), "{checked}");
}

#[test]
fn what_cannot_be_moved_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let data = folder.path().to_str().expect("text").to_owned();
    let node = Process::start(SERVE, &["--data", &data, "--bucket", "default:64MiB:ephemeral"]);
    for (body, why) in [
        ("storageBackend=magma", "ephemeral"),
        ("storageBackend=rocks", "magma or rocksdb"),
        ("storageBackend=rocksdb", "built without RocksDB"),
        ("", "magma or rocksdb"),
        ("backend=magma", "is no field"),
    ] {
        let (code, told) = http(&node, "POST", MIGRATION, body);
        assert!(code == 400 && told.contains(why), "{body}: {code} {told}");
    }
    let (code, told) = http(&node, "DELETE", MIGRATION, "");
    assert!(code == 400 && told.contains("ephemeral"), "{code} {told}");
    let now = json(&node, MIGRATION);
    assert_eq!((&now["state"], &now["storageBackend"]), (&"none".into(), &"undefined".into()));
    assert_eq!(http(&node, "POST", "/v1/buckets/other/migration", "storageBackend=magma").0, 404);
}

/// The list of buckets names the new store, and nothing else says so.
#[test]
fn a_bucket_that_was_made_over_http_is_listed_with_its_new_store() {
    let folder = tempfile::tempdir().expect("a folder");
    let config = folder.path().join("stave.toml");
    std::fs::write(&config, format!("vbuckets = {VBUCKETS}\n")).expect("written");
    let data = folder.path().join("data");
    let more = ["--data", data.to_str().expect("text"), "--config", config.to_str().expect("text")];
    let node = Process::start(SERVE, &more);
    let (code, body) = http(&node, "POST", "/pools/default/buckets", "name=made&ramQuotaMB=64");
    assert_eq!(code, 202, "{body}");
    let (code, body) = http(&node, "POST", "/v1/buckets/made/migration", "storageBackend=magma");
    assert_eq!(code, 202, "{body}");
    while json(&node, "/v1/buckets/made/migration")["storageBackend"] != "magma" {}
    let dir = data.join("buckets/made");
    // Forgotten behind the list's change.
    while dir.join("migration.json").exists() {}
    node.signal(rustix::process::Signal::TERM);
    node.ends_well();
    let node = Process::start(SERVE, &more);
    let made = json(&node, "/pools/default/buckets/made");
    assert_eq!((&made["storageBackend"], &made["evictionPolicy"]), (&"magma".into(), &"valueOnly".into()));
    let settings = json(&node, "/v1/buckets/made/settings");
    assert_eq!(settings["type"], "magma");
    let (code, body) = http(
        &node,
        "POST",
        "/pools/default/buckets/made",
        "historyRetentionSeconds=60&historyRetentionBytes=0",
    );
    assert_eq!(code, 200, "a history may be kept now: {body}");
    let (code, told) = http(&node, "POST", "/v1/buckets/made/migration", "storageBackend=couchstore");
    assert!(code == 400 && told.contains("history"), "{code} {told}");
    node.signal(rustix::process::Signal::TERM);
    node.ends_well();
}
