//! A node with few descriptors, and more clients than it has descriptors for: clients that log in are served.
#![allow(clippy::disallowed_methods, reason = "this is a client, outside the server")]

#[path = "../../server/tests/support/mod.rs"]
mod support;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use protocol::Status;
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

#[test]
fn a_node_with_too_few_descriptors_says_so() {
    let folder = tempfile::tempdir().expect("a folder");
    let output = command(folder.path(), 64).output().expect("there is a shell");
    let told = String::from_utf8(output.stderr).expect("text");
    assert!(told.contains("the limit of open files is 64, and 100 are needed"), "{told}");
    assert_eq!(output.status.code(), Some(2), "{told}");
}
