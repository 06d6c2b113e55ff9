//! A node with few descriptors, and more clients than it has descriptors for: clients that log in are served.
#![allow(clippy::disallowed_methods, reason = "this is a client, outside the server")]

#[path = "../../server/tests/support/mod.rs"]
mod support;

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use base::VbId;
use protocol::{RequestParts, Status, opcode};
use rustix::process::{Pid, Signal, kill_process};
use support::{Client, Reach, http};

/// The process, which does not outlive the test.
struct Node {
    child: Child,
    kv: SocketAddr,
    http: SocketAddr,
}

impl Drop for Node {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Reach for Node {
    fn kv(&self) -> SocketAddr {
        self.kv
    }

    fn http(&self) -> SocketAddr {
        self.http
    }
}

fn command(data: &Path, descriptors: u32) -> Command {
    let mut command = Command::new("sh");
    command
        .args(["-c", &format!("ulimit -n {descriptors} && exec \"$@\""), "sh"])
        .args([env!("CARGO_BIN_EXE_stave"), "serve", "--kv", "127.0.0.1:0", "--http", "127.0.0.1:0"])
        .args(["--password", "password", "--data"])
        .arg(data)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

impl Node {
    fn start(data: &Path, descriptors: u32) -> Node {
        let mut child = command(data, descriptors).spawn().expect("there is a shell");
        let mut line = String::new();
        let stdout = child.stdout.take().expect("it is piped");
        BufReader::new(stdout).read_line(&mut line).expect("a line");
        let mut fields = line.split_ascii_whitespace().filter_map(|word| word.split_once('='));
        let mut addr = |name| {
            let (_, value) = fields.find(|(field, _)| *field == name).expect(name);
            value.parse().expect("an address")
        };
        Node { kv: addr("kv"), http: addr("http"), child }
    }

    /// Stops it; what it has logged.
    fn stop(mut self) -> String {
        kill_process(Pid::from_child(&self.child), Signal::TERM).expect("it runs");
        let mut log = String::new();
        let mut stderr = self.child.stderr.take().expect("it is piped");
        stderr.read_to_string(&mut log).expect("text");
        assert!(self.child.wait().expect("it ends").success(), "{log}");
        log
    }
}

#[test]
fn floods_of_connections_keep_nobody_out() {
    let folder = tempfile::tempdir().expect("a folder");
    let node = Node::start(folder.path(), 256);
    let mut flood = Vec::new();
    for _ in 0..300 {
        let mut half = TcpStream::connect(node.http).expect("it listens");
        let _ = half.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\n");
        flood.push(half);
        flood.push(TcpStream::connect(node.kv).expect("it listens"));
    }
    let mut client = Client::connect(&node, "default", &[]);
    let value = vec![b'v'; 4 << 10];
    for n in 0..1_000 {
        let key = format!("key-{n}");
        let vbucket = base::vbucket_map::vbucket_of(key.as_bytes(), 1024);
        let parts = protocol::RequestParts {
            opcode: protocol::opcode::SET,
            key: key.as_bytes(),
            value: &value,
            extras: &[0; 8],
            vbucket,
            ..protocol::RequestParts::default()
        };
        assert_eq!(client.request(&parts).status, Status::Success);
    }
    assert_eq!(http(&node, "GET", "/healthz", "").0, 200);
    let metrics = http(&node, "GET", "/metrics", "").1;
    for (name, most) in [("stave_http_connections", 16), ("stave_connections", 64)] {
        let value = metrics.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        let value: u64 = value.and_then(|value| value.parse().ok()).expect(name);
        assert!((1..=most).contains(&value), "{name}: {value}");
    }
    assert!(metrics.contains("\nstave_accept_failures_total 0\n"), "{metrics}");
    drop(flood);
    let log = node.stop();
    assert!(!log.contains("Too many open files"), "{log}");
}

/// Of a burst, those that were accepted and not served yet give way, too: nearly none is refused for them.
#[test]
fn bursts_of_silent_clients_have_no_client_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let node = Node::start(folder.path(), 100);
    let mut silent = Vec::new();
    for _ in 0..20 {
        silent = (0..40).map(|_| TcpStream::connect(node.kv).expect("it listens")).collect::<Vec<_>>();
        Client::connect(&node, "default", &[]);
    }
    drop(silent);
    let metrics = http(&node, "GET", "/metrics", "").1;
    let number = |name: &str| -> u64 {
        let value = metrics.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        value.and_then(|value| value.parse().ok()).expect(name)
    };
    let refused = number("stave_connections_refused_total");
    let accepted = number("stave_connections_accepted_total");
    assert!(refused * 50 <= accepted, "{refused} of {accepted} were refused");
    node.stop();
}

#[test]
fn a_node_with_too_few_descriptors_says_so() {
    let folder = tempfile::tempdir().expect("a folder");
    let output = command(folder.path(), 64).output().expect("there is a shell");
    let told = String::from_utf8(output.stderr).expect("text");
    assert!(told.contains("the limit of open files is 64, and 100 are needed"), "{told}");
    assert_eq!(output.status.code(), Some(2), "{told}");
}

/// Clients that send half a request, or nothing, and others that have logged in and are silent.
struct Flood<'n> {
    node: &'n Node,
    waiting: VecDeque<TcpStream>,
    silent: Vec<Client>,
}

impl<'n> Flood<'n> {
    /// How many connections wait at a time.
    const WAITING: usize = 600;

    fn new(node: &'n Node) -> Flood<'n> {
        let mut flood = Flood { node, waiting: VecDeque::new(), silent: Vec::new() };
        flood.silent.extend((0..8).map(|_| Client::connect(node, "default", &[])));
        flood.rises(Flood::WAITING / 2);
        flood
    }

    /// As many more of both kinds; those that wait longest go.
    fn rises(&mut self, more: usize) {
        for _ in 0..more {
            let mut half = TcpStream::connect(self.node.http).expect("it listens");
            // The node may have closed it for others.
            let _ = half.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\n");
            self.waiting.push_back(half);
            self.waiting.push_back(TcpStream::connect(self.node.kv).expect("it listens"));
        }
        let surplus = self.waiting.len().saturating_sub(Flood::WAITING);
        self.waiting.drain(..surplus);
    }
}

/// A durable write, acknowledged once it is on disk.
fn set_durably(client: &mut Client, key: &str, value: &[u8]) -> Status {
    let parts = RequestParts {
        opcode: opcode::SET,
        key: key.as_bytes(),
        value,
        extras: &[0; 8],
        vbucket: base::vbucket_map::vbucket_of(key.as_bytes(), 1024),
        frame_infos: &[0x11, 0x03],
        ..RequestParts::default()
    };
    client.request(&parts).status
}

fn compact(client: &mut Client, vbucket: VbId) -> Status {
    let extras = &[0; 24];
    client
        .request(&RequestParts { opcode: opcode::COMPACT_DB, extras, vbucket, ..RequestParts::default() })
        .status
}

fn number(client: &mut Client, group: &str, name: &str) -> u64 {
    let told = client.stat(group, name);
    told.parse().unwrap_or_else(|_| panic!("{group} {name}: {told:?}"))
}

/// With `descriptors` for the process: the flood is there all the time, while writes fill several segments of the journal,
/// and files are made, opened and closed for others, and compacted.
fn writes_go_on_under_a_flood(descriptors: u32) {
    let folder = tempfile::tempdir().expect("a folder");
    let node = Node::start(folder.path(), descriptors);
    let mut flood = Flood::new(&node);
    let large = vec![b'v'; 1 << 20];
    for round in 0..8 {
        let mut client = Client::connect(&node, "default", &[]);
        for n in 0..24 {
            flood.rises(4);
            assert_eq!(
                set_durably(&mut client, &format!("large-{n}"), &large),
                Status::Success,
                "{round} {n}"
            );
            for small in 0..4 {
                let key = format!("small-{round}-{n}-{small}");
                assert_eq!(set_durably(&mut client, &key, b"v"), Status::Success, "{key}");
            }
        }
        for vb in (0..1024).step_by(64) {
            flood.rises(1);
            assert_eq!(compact(&mut client, VbId(vb + round)), Status::Success, "{round} {vb}");
        }
        assert_eq!(http(&node, "GET", "/healthz", "").0, 200);
    }
    let mut client = Client::connect(&node, "default", &[]);
    let segments = number(&mut client, "journal", "journal_segments");
    let recycled = number(&mut client, "journal", "journal_recycled_segments");
    assert!(segments + recycled > 5, "the journal began {segments} and {recycled} segments");
    assert!(number(&mut client, "compaction", "ep_compaction_runs") >= 20, "most vBuckets have a file");
    assert!(number(&mut client, "diskinfo", "ep_db_file_evictions") > 0, "more files than may be open");
    for (group, name) in [
        ("journal", "journal_given_up_segments"),
        ("compaction", "ep_compaction_failed"),
        ("disk-failures", "rw_0:failures"),
        ("disk-failures", "rw_0:failure_set"),
    ] {
        assert_eq!(number(&mut client, group, name), 0, "{name}");
    }
    let metrics = http(&node, "GET", "/metrics", "").1;
    assert!(metrics.contains("\nstave_accept_failures_total 0\n"), "{metrics}");
    drop((flood, client));
    let log = node.stop();
    assert!(!log.contains("Too many open files"), "{log}");
}

/// The fewest descriptors that a node starts with.
#[test]
fn floods_of_connections_take_no_descriptor_from_the_disk_of_the_smallest_node() {
    writes_go_on_under_a_flood(100);
}
