//! Threads that serve many clients do not wait for the disk: neither workers nor those that accept and serve HTTP.
#![allow(clippy::disallowed_methods, reason = "this is a client, outside the server")]

#[cfg(debug_assertions)]
#[path = "../../simulation/src/again.rs"]
mod again;
#[cfg(debug_assertions)]
#[path = "../../simulation/src/known.rs"]
mod known;
mod support;

use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex};

use base::env::{Disk, Env, File, OpenMode, RealDisk, RealSpawn, Spawn};
use base::vbucket_map::vbucket_of;
use node::{Config, Settings};
use protocol::{RequestParts, Status, opcode};
use serde_json::Value;
use support::{Client, http};

/// Names of threads that serve many clients begin like this.
const SHARED_THREADS: &[&str] = &["worker-", "http", "control"];
/// So many that a token refers to a kept position.
const VBUCKETS: u16 = 64;

type Seen = Arc<Mutex<Vec<String>>>;

/// The machine's disk, and what threads that serve many clients have asked of it.
struct Watched(Seen);

struct WatchedFile {
    file: Arc<dyn File>,
    path: String,
    seen: Seen,
}

fn note(seen: &Seen, what: &str, path: &str) {
    let thread = std::thread::current();
    let name = thread.name().unwrap_or_default();
    // The kernel's tables do not wait for a disk.
    let is_of_kernel = ["/proc/", "/sys/fs/cgroup/"].iter().any(|tables| path.starts_with(tables));
    if !is_of_kernel && SHARED_THREADS.iter().any(|shared| name.starts_with(shared)) {
        seen.lock().expect("no test panics here").push(format!("{name}: {what} {path}"));
    }
}

impl Watched {
    fn note(&self, what: &str, path: &Path) {
        note(&self.0, what, &path.display().to_string());
    }
}

impl Disk for Watched {
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn File>> {
        self.note("open", path);
        let file = RealDisk.open(path, mode)?;
        Ok(Arc::new(WatchedFile { file, path: path.display().to_string(), seen: Arc::clone(&self.0) }))
    }

    fn create_dir_all(&self, path: &Path) -> io::Result<()> {
        self.note("create", path);
        RealDisk.create_dir_all(path)
    }

    fn read_dir(&self, path: &Path) -> io::Result<Vec<String>> {
        self.note("list", path);
        RealDisk.read_dir(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.note("rename", from);
        RealDisk.rename(from, to)
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        self.note("remove", path);
        RealDisk.remove_file(path)
    }

    fn remove_dir(&self, path: &Path) -> io::Result<()> {
        self.note("remove", path);
        RealDisk.remove_dir(path)
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        self.note("sync", path);
        RealDisk.sync_dir(path)
    }
}

impl File for WatchedFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        note(&self.seen, "read", &self.path);
        self.file.read_at(buf, offset)
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        note(&self.seen, "write", &self.path);
        self.file.write_at(buf, offset)
    }

    fn sync_data(&self) -> io::Result<()> {
        note(&self.seen, "sync", &self.path);
        self.file.sync_data()
    }

    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        note(&self.seen, "cut", &self.path);
        self.file.set_len(len)
    }
}

fn watched() -> (Env, Seen) {
    let seen = Seen::default();
    (Env { disk: Arc::new(Watched(Arc::clone(&seen))), ..Env::real() }, seen)
}

#[test]
fn the_disk_is_watched() {
    let folder = tempfile::tempdir().expect("a folder");
    let (env, seen) = watched();
    let path = folder.path().to_owned();
    let list = move || drop(env.disk.read_dir(&path));
    let thread = RealSpawn.spawn("worker-0", Box::new(list)).expect("a thread");
    assert!(thread.join(), "it does not panic");
    let told = format!("worker-0: list {}", folder.path().display());
    assert_eq!(*seen.lock().expect("no test panics here"), [told]);
}

#[test]
fn threads_that_serve_many_do_not_wait_for_the_disk() {
    let folder = tempfile::tempdir().expect("a folder");
    let (env, seen) = watched();
    let settings = format!(
        "kv = \"127.0.0.1:0\"\nhttp = \"127.0.0.1:0\"\npassword = \"password\"\nvbuckets = {VBUCKETS}"
    );
    let settings = Settings::parse(&settings).expect("valid settings");
    let config = Config::new(settings, folder.path().to_owned(), 2, String::new).expect("a configuration");
    let server = server::serve(config, env).expect("the node starts");
    let mut client = Client::connect(&server, "default", &[]);
    for key in (0..200).map(|at| format!("k{at}")) {
        let vb = vbucket_of(key.as_bytes(), VBUCKETS);
        let parts = RequestParts { key: key.as_bytes(), vbucket: vb, ..RequestParts::default() };
        let set = RequestParts { opcode: opcode::SET, extras: &[0; 8], value: b"v", ..parts };
        assert_eq!(client.request(&set).status, Status::Success);
        assert_eq!(client.request(&RequestParts { opcode: opcode::GET, ..parts }).value, b"v");
    }
    let (_, changes) = http(&server, "GET", "/v1/buckets/default/changes?follow=false", "");
    let position = changes.lines().rfind(|line| line.starts_with('{')).expect("a position");
    let position: Value = serde_json::from_str(position).expect("JSON");
    let token = position["token"].as_str().expect("a token");
    let kept = folder.path().join("buckets/default/positions");
    assert_eq!(std::fs::read_dir(kept).expect("a folder").count(), 1, "the token refers to it");
    let since = format!("/v1/buckets/default/changes?since={token}&follow=false");
    for (method, path, body) in [
        ("GET", "/metrics", ""),
        ("GET", "/healthz", ""),
        ("GET", "/pools/default", ""),
        ("GET", "/pools/default/buckets", ""),
        ("POST", "/pools/default/buckets", "name=other&ramQuota=100"),
        ("POST", "/pools/default/buckets/other", "ramQuota=120"),
        ("POST", "/pools/default/buckets/default/scopes", "name=s"),
        ("POST", "/pools/default/buckets/default/scopes/s/collections", "name=c"),
        ("DELETE", "/pools/default/buckets/default/scopes/s", ""),
        ("DELETE", "/pools/default/buckets/other", ""),
        ("PUT", "/v1/buckets/default/cursors/c", ""),
        ("GET", "/v1/buckets/default/cursors", ""),
        ("GET", "/v1/buckets/default/cursors/c", ""),
        ("GET", "/v1/buckets/default/changes?cursor=c&follow=false", ""),
        ("GET", &since, ""),
        ("DELETE", "/v1/buckets/default/cursors/c", ""),
    ] {
        let (code, told) = http(&server, method, path, body);
        assert!((200..300).contains(&code), "{method} {path}: {code} {told}");
    }
    assert_eq!(*seen.lock().expect("no test panics here"), Vec::<String>::new());
    server.stop().expect("a clean stop");
}

/// Mistakes in the product that these tests show (`base::planted`).
#[test]
#[cfg(debug_assertions)]
fn mistakes_in_the_product_are_found() {
    known::must_find(known::Simulator::DiskThreads, |seed| {
        // Nothing depends on it.
        if seed > 0 {
            return Ok(());
        }
        again::again("threads_that_serve_many_do_not_wait_for_the_disk")
    });
}
