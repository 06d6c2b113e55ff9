//! What a node's log says of each start and stop, and how much of it there is.
#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "a test of the process itself")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

fn stave(data: &Path, level: Option<&str>) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_stave"));
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("STAVE_") {
            command.env_remove(name);
        }
    }
    command.env("STAVE_DATA", data).env("STAVE_KV", "127.0.0.1:0").env("STAVE_HTTP", "127.0.0.1:0");
    command.env("STAVE_PASSWORD", "password");
    level.map(|level| command.env("STAVE_LOG", level));
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// A node that serves, and does not outlive the test.
struct Node {
    child: Child,
    kv: String,
    http: String,
}

impl Drop for Node {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Node {
    fn start(data: &Path, level: Option<&str>) -> Node {
        let child = stave(data, level).args(["serve", "--bucket", "orders:100MiB"]).spawn();
        let mut child = child.expect("it starts");
        let mut line = String::new();
        let stdout = child.stdout.take().expect("it is piped");
        BufReader::new(stdout).read_line(&mut line).expect("a line");
        let said = |name| line.split_whitespace().find_map(|word| word.strip_prefix(name));
        let of = |name| said(name).unwrap_or_else(|| panic!("it is not ready: {line}")).to_owned();
        Node { child, kv: of("kv="), http: of("http=") }
    }

    /// The answer to a GET over HTTP as the administrator.
    fn get(&self, path: &str) -> String {
        let mut stream = TcpStream::connect(&self.http).expect("it listens");
        // Administrator:password
        let login = "Authorization: Basic QWRtaW5pc3RyYXRvcjpwYXNzd29yZA==";
        let head =
            format!("GET {path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n{login}\r\n\r\n", self.http);
        stream.write_all(head.as_bytes()).expect("it reads");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("text");
        answer
    }

    /// One document, which is on disk when this returns.
    fn write(&self) {
        let mut bench = stave(Path::new("unused"), None);
        bench.args(["bench", "--addr", &self.kv, "--bucket", "orders", "--keys", "1", "--operations", "1"]);
        bench.args(["--connections", "1", "--set-percent", "100", "--durability", "persist-majority"]);
        let output = bench.output().expect("it runs");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }

    /// Ends by a signal; all that was logged.
    fn end(mut self, signal: Signal) -> String {
        kill_process(Pid::from_child(&self.child), signal).expect("it runs");
        let mut log = String::new();
        let stderr = self.child.stderr.as_mut().expect("it is piped");
        stderr.read_to_string(&mut log).expect("text");
        let ended = self.child.wait().expect("it ends");
        assert_eq!(ended.success(), signal == Signal::TERM, "{log}");
        log
    }
}

/// The line with these words, each of which it must have.
fn line<'l>(log: &'l str, words: &str) -> &'l str {
    log.lines().find(|line| line.contains(words)).unwrap_or_else(|| panic!("no line with {words:?}: {log}"))
}

#[test]
fn starts_and_stops_are_logged_with_what_was_found() {
    let folder = tempfile::tempdir().expect("a folder");
    let version = format!("version=\"{}\"", env!("CARGO_PKG_VERSION"));

    let node = Node::start(folder.path(), None);
    node.write();
    let shown = node.get("/logs?limit=1000");
    for part in [r#""shortText":"started""#, r#""type":"info""#, r#""module":"server::server""#] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    assert_eq!(node.get("/logs?limit=1").matches("shortText").count(), 1);
    let log = node.end(Signal::KILL);
    let started = line(&log, ": started");
    for part in [version.as_str(), "buckets=\"orders\"", "down=0", &folder.path().display().to_string()] {
        assert!(started.contains(part), "{part}: {started}");
    }
    assert!(line(&log, "the bucket is open").contains("last_stop=\"none\""), "{log}");
    assert!(!log.contains("stopped"), "it was killed: {log}");

    let log = Node::start(folder.path(), None).end(Signal::TERM);
    let open = line(&log, "the bucket is open");
    assert!(open.contains("bucket=\"orders\"") && open.contains("last_stop=\"crash\""), "{open}");
    assert!(open.contains("vbuckets_with_documents=1") && !open.contains("from_journal_bytes=0"), "{open}");
    assert!(line(&log, "stopping").contains("SIGTERM"), "{log}");
    assert!(line(&log, ": stopped").contains("took_ms="), "{log}");

    let log = Node::start(folder.path(), None).end(Signal::TERM);
    let open = line(&log, "the bucket is open");
    assert!(open.contains("last_stop=\"clean\"") && open.contains("from_journal_bytes=0"), "{open}");
}

#[test]
fn a_level_that_does_not_exist_is_refused_and_an_empty_one_is_the_usual() {
    let folder = tempfile::tempdir().expect("a folder");
    for level in ["verbose", "info,server=loud"] {
        let refused = stave(folder.path(), Some(level)).arg("serve").output().expect("it runs");
        let text = String::from_utf8_lossy(&refused.stderr);
        assert_eq!(refused.status.code(), Some(2), "{text}");
        assert!(text.contains(&format!("STAVE_LOG={level}")), "{text}");
    }
    let log = Node::start(folder.path(), Some("")).end(Signal::TERM);
    assert!(log.contains(": started") && log.contains(": stopped"), "{log}");
    let log = Node::start(folder.path(), Some("off")).end(Signal::TERM);
    assert_eq!(log, "");
}

#[test]
fn a_running_node_logs_more_when_it_is_told_to() {
    let folder = tempfile::tempdir().expect("a folder");
    let node = Node::start(folder.path(), Some("warn"));
    let level = |levels: &[&str]| {
        let mut command = stave(Path::new("unused"), None);
        let output = command.arg("log-level").args(levels).args(["--addr", &node.http]).output();
        let output = output.expect("it runs");
        let said = String::from_utf8_lossy(&[&output.stdout[..], &output.stderr].concat()).into_owned();
        (output.status.code(), said)
    };
    assert_eq!(level(&[]), (Some(0), "warn\n".to_owned()));
    let more = "info,engine=debug";
    assert_eq!(level(&[more]), (Some(0), format!("{more} (until the node starts again: warn)\n")));
    let (code, said) = level(&["loud"]);
    assert!(code == Some(2) && said.contains("there is no level"), "{said}");
    let (code, said) = level(&["--json"]);
    assert!(code == Some(0) && said.contains(r#""configured":"warn""#) && said.contains(more), "{said}");
    let log = node.end(Signal::TERM);
    assert!(!log.contains(": started"), "that was no warning: {log}");
    assert!(log.contains("log levels changed") && log.contains("SIGTERM"), "{log}");
}
