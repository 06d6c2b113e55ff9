//! `stave dev` as people start it: the binary, its ready line, and a cluster behind it.
#![allow(clippy::disallowed_methods, reason = "this is a client, outside the server")]

#[path = "../../server/tests/support/mod.rs"]
mod support;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use protocol::Status;
use rustix::process::{Pid, Signal, kill_process};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use serde_json::Value;
use support::{Client, http, json};

/// How often everything is copied while it is written to.
const MOMENTS: usize = 6;
/// How long a process may take to start or to end.
const PATIENCE: Duration = Duration::from_secs(30);

/// The process, which does not outlive the test.
struct Dev {
    child: Child,
    line: String,
}

impl Drop for Dev {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Dev {
    /// No node is missed while the machine stands still for some seconds.
    fn start(more: &[&str]) -> Dev {
        Dev::start_with(10_000, more)
    }

    /// The same with a lease of so many milliseconds.
    fn start_with(lease_ms: u32, more: &[&str]) -> Dev {
        let mut child = Command::new(env!("CARGO_BIN_EXE_stave"))
            .args(["dev", "--kv", "127.0.0.1:0", "--http", "127.0.0.1:0", "--vbuckets", "4"])
            .args(["--lease-ms", &lease_ms.to_string()])
            .args(more)
            .env_remove("STAVE_PASSWORD")
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("the binary is there");
        let mut line = String::new();
        let stdout = child.stdout.take().expect("it is piped");
        BufReader::new(stdout).read_line(&mut line).expect("a line");
        Dev { child, line }
    }

    /// A field of the ready line.
    fn field(&self, name: &str) -> &str {
        let mut fields = self.line.split_ascii_whitespace().filter_map(|word| word.split_once('='));
        fields.find(|(field, _)| *field == name).map(|(_, value)| value).expect(name)
    }

    fn addr(&self, name: &str) -> SocketAddr {
        self.field(name).parse().expect("an address")
    }

    fn stop(mut self) {
        kill_process(Pid::from_child(&self.child), Signal::TERM).expect("it runs");
        assert!(self.child.wait().expect("it ends").success());
    }
}

fn addr(value: &Value) -> SocketAddr {
    value.as_str().expect("text").parse().expect("an address")
}

#[test]
fn three_nodes_serve_and_survive_one() {
    let dev = Dev::start(&["--nodes", "3", "--replicas", "1", "--bucket", "orders:100MiB"]);
    assert!(dev.line.starts_with("ready kv=127.0.0.1:"), "{}", dev.line);
    assert_eq!(
        (dev.field("username"), dev.field("password"), dev.field("nodes")),
        ("Administrator", "password", "3")
    );
    let control = (dev.addr("control"), dev.addr("control"));
    let nodes = json(&control, "/v1/dev")["nodes"].clone();
    assert_eq!(addr(&nodes[0]["kv"]), dev.addr("kv"));
    let second = (addr(&nodes[1]["kv"]), addr(&nodes[1]["http"]));
    // vBucket by vBucket: the second node takes what is its own, and says whose the others are.
    let servers = json(&second, "/pools/default/b/orders")["vBucketServerMap"].clone();
    let mut client = Client::connect(&second, "orders", &[]);
    let mut written = 0;
    for key in (0..20).map(|at| format!("k{at}")) {
        let active = &servers["vBucketMap"][usize::from(support::vb(key.as_bytes()).0)][0];
        let status = client.set(key.as_bytes(), b"v").expect("an answer");
        let expected = if *active == 1 { Status::Success } else { Status::NotMyVbucket };
        assert_eq!(status, expected, "{key}");
        written += usize::from(status == Status::Success);
    }
    assert!(written > 0 && written < 20);
    assert_eq!(http(&control, "POST", "/v1/dev/nodes/1/stop", "").0, 200);
    assert_eq!(http(&control, "POST", "/v1/dev/nodes/1/failover", "").0, 200);
    let servers = json(&second, "/pools/default/b/orders")["vBucketServerMap"].clone();
    assert_eq!(servers["serverList"].as_array().map(Vec::len), Some(2));
    dev.stop();
}

/// What a server that shows a certificate of a CA that the client trusts answers to Noop.
fn encrypted_noop(addr: SocketAddr, ca: &Path) -> std::io::Result<u8> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_file_iter(ca).expect("a file") {
        roots.add(certificate.expect("a certificate")).expect("a CA");
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let config = config.expect("versions").with_root_certificates(roots).with_no_client_auth();
    let name = ServerName::try_from("localhost").expect("a name");
    let session = ClientConnection::new(Arc::new(config), name).expect("a session");
    let mut stream = StreamOwned::new(session, TcpStream::connect(addr)?);
    let mut noop = [0; 24];
    (noop[0], noop[1]) = (0x80, protocol::opcode::NOOP);
    stream.write_all(&noop)?;
    let mut answer = [0; 24];
    stream.read_exact(&mut answer)?;
    Ok(answer[0])
}

#[test]
fn all_nodes_speak_tls_with_a_certificate_of_their_own_ca() {
    let root = tempfile::tempdir().expect("a folder");
    let folder = root.path().join("certs").display().to_string();
    let of_node = |dev: &Dev, number: usize| {
        let control = (dev.addr("control"), dev.addr("control"));
        json(&control, "/v1/dev")["nodes"][number - 1].clone()
    };
    let dev = Dev::start(&["--nodes", "2", "--replicas", "1", "--tls", &folder]);
    let ca = Path::new(dev.field("ca")).to_owned();
    assert_eq!(ca, root.path().join("certs/ca.pem"));
    assert_eq!(addr(&of_node(&dev, 1)["kvs"]), dev.addr("kvs"));
    assert_eq!(addr(&of_node(&dev, 1)["https"]), dev.addr("https"));
    let second = addr(&of_node(&dev, 2)["kvs"]);
    // All that nodes say to each other goes to the ports for TLS.
    for (at, other) in [(1, second), (2, dev.addr("kvs"))] {
        let (kv, http) = (addr(&of_node(&dev, at)["kv"]), addr(&of_node(&dev, at)["http"]));
        assert_eq!(json(&(kv, http), "/settings/security")["clusterEncryptionLevel"], "strict");
        let told = json(&(kv, http), "/v1/buckets/default/replication");
        let links = told["links"].as_array().expect("links");
        assert!(!links.is_empty(), "it has replicas: {told}");
        for link in links {
            assert_eq!(link["node"], other.to_string(), "{link}");
        }
    }
    for addr in [dev.addr("kvs"), second] {
        assert_eq!(encrypted_noop(addr, &ca).expect("an answer"), 0x81);
    }
    // SDKs find the second node's port in the map.
    let node = (dev.addr("kv"), dev.addr("http"));
    let services = json(&node, "/pools/default/b/default")["nodesExt"][1]["services"].clone();
    assert_eq!(services["kvSSL"], second.port());
    // A node that comes back listens where it did.
    let control = (dev.addr("control"), dev.addr("control"));
    assert_eq!(http(&control, "POST", "/v1/dev/nodes/2/restart", "").0, 200);
    assert_eq!(addr(&of_node(&dev, 2)["kvs"]), second);
    assert_eq!(encrypted_noop(second, &ca).expect("an answer"), 0x81);
    dev.stop();
    // The next cluster is trusted, too: the folder has a CA already.
    let before = std::fs::read(&ca).expect("a file");
    let dev = Dev::start(&["--tls", &folder]);
    assert_eq!(std::fs::read(&ca).expect("a file"), before);
    assert_eq!(encrypted_noop(dev.addr("kvs"), &ca).expect("an answer"), 0x81);
    // Another one has another CA.
    let other = Dev::start(&["--tls"]);
    let refused = encrypted_noop(other.addr("kvs"), &ca).expect_err("it is not trusted");
    assert!(refused.to_string().contains("invalid peer certificate"), "{refused}");
    other.stop();
    dev.stop();
}

/// `stave COMMAND orders` with the first node's address, and more.
fn stave(dev: &Dev, command: &str, more: &[&str]) -> Command {
    let mut stave = Command::new(env!("CARGO_BIN_EXE_stave"));
    stave.args([command, "orders", "--addr", dev.field("kv"), "--username", "Administrator"]);
    stave.args(["--password", "password"]).args(more);
    stave
}

/// Sets documents wherever they belong.
fn set(dev: &Dev, keys: impl Iterator<Item = usize>) {
    for key in keys {
        let stave = env!("CARGO_BIN_EXE_stave");
        let written = Command::new(stave)
            .args(["set", &format!("k{key}"), "1", "--bucket", "orders", "--addr", dev.field("kv")])
            .args(["--username", "Administrator", "--password", "password", "--timeout", "60"])
            .output()
            .expect("the binary is there");
        assert!(written.status.success(), "{}", String::from_utf8_lossy(&written.stderr));
    }
}

#[test]
fn documents_are_written_while_a_node_is_missed() {
    let dev = Dev::start_with(3_000, &["--nodes", "3", "--replicas", "1", "--bucket", "orders:100MiB"]);
    let control = (dev.addr("control"), dev.addr("control"));
    // No node serves its vBuckets before others have taken over; each command waits for that.
    assert_eq!(http(&control, "POST", "/v1/dev/nodes/2/kill", "").0, 200);
    set(&dev, 0..8);
    let settings = Command::new(env!("CARGO_BIN_EXE_stave"))
        .args(["set-param", "exp_pager_stime", "77", "--all-nodes", "--bucket", "orders"])
        .args(["--addr", dev.field("kv"), "--password", "password"])
        .output()
        .expect("the binary is there");
    let told = String::from_utf8_lossy(&settings.stdout).into_owned();
    assert!(
        settings.status.success() && told.matches("exp_pager_stime of orders: 600 -> 77").count() == 2,
        "{told}"
    );
    dev.stop();
}

#[test]
fn a_cluster_is_measured() {
    let dev = Dev::start(&["--nodes", "3", "--replicas", "1", "--bucket", "orders:100MiB"]);
    let measured = Command::new(env!("CARGO_BIN_EXE_stave"))
        .args(["bench", "--bucket", "orders", "--addr", dev.field("kv"), "--password", "password"])
        .args([
            "--populate",
            "--keys",
            "1000",
            "--operations",
            "3000",
            "--connections",
            "12",
            "--json",
            "--quiet",
        ])
        .output()
        .expect("the binary is there");
    let report: Value = serde_json::from_slice(&measured.stdout).expect("JSON");
    assert_eq!((&report["populate"]["keys"], &report["operations"]), (&1000.into(), &3000.into()));
    assert_eq!((&report["errors"], &report["misses"]), (&serde_json::json!({}), &0.into()));
    dev.stop();
}

#[test]
fn changes_are_followed_wherever_they_are() {
    let dev = Dev::start(&["--nodes", "3", "--replicas", "1", "--bucket", "orders:100MiB"]);
    let control = (dev.addr("control"), dev.addr("control"));
    set(&dev, 0..20);
    let drained = stave(&dev, "drain", &["--json", "--quiet"]).output().expect("the binary is there");
    let drained: Value = serde_json::from_slice(&drained.stdout).expect("JSON");
    assert_eq!((&drained["mutations"], &drained["vbuckets"]), (&20.into(), &4.into()));
    // A node goes while all are followed, and others have its vBuckets.
    let mut tail = stave(&dev, "dcp-tail", &["--json", "--from", "start", "--count", "40"])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("the binary is there");
    let mut lines = BufReader::new(tail.stdout.take().expect("it is piped")).lines();
    let mut next = || lines.next().map(|line| line.expect("text"));
    let mut keys: Vec<String> = Vec::new();
    let mut note = |line: String| {
        let change: Value = serde_json::from_str(&line).expect("JSON");
        keys.extend(change["key"].as_str().map(str::to_owned));
    };
    (0..20).for_each(|_| note(next().expect("a change")));
    assert_eq!(http(&control, "POST", "/v1/dev/nodes/3/failover", "").0, 200);
    set(&dev, 20..40);
    while let Some(line) = next() {
        note(line);
    }
    assert!(tail.wait().expect("it ends").success());
    keys.sort();
    let mut all: Vec<String> = (0..40).map(|key| format!("k{key}")).collect();
    all.sort();
    assert_eq!(keys, all);
    dev.stop();
}

/// Starts it from a shell that waits for a line, and ends the shell; whether the process has ended then.
fn ends_with_its_shell(more: &[&str], then: impl FnOnce(Pid, &str)) -> bool {
    let mut shell = Command::new("sh")
        .args(["-c", "\"$0\" \"$@\" & echo $!; read line", env!("CARGO_BIN_EXE_stave"), "dev"])
        .args(["--kv", "127.0.0.1:0", "--http", "127.0.0.1:0", "--vbuckets", "4"])
        .args(more)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("a shell");
    let stdout = BufReader::new(shell.stdout.take().expect("it is piped"));
    let (told, lines) = mpsc::channel();
    std::thread::spawn(move || stdout.lines().map_while(Result::ok).for_each(|line| drop(told.send(line))));
    // A process that does not start says nothing, and the shell keeps the pipe open.
    let next = || lines.recv_timeout(PATIENCE).expect("a line");
    let pid = Pid::from_raw(next().trim().parse().expect("a number")).expect("a process");
    let line = next();
    drop(shell.stdin.take());
    assert!(shell.wait().expect("it ends").code().is_some());
    then(pid, &line);
    // The process holds the other end as long as it lives.
    loop {
        if let Err(why) = lines.recv_timeout(PATIENCE) {
            return why == RecvTimeoutError::Disconnected;
        }
    }
}

#[test]
fn it_ends_with_the_process_that_started_it() {
    assert!(ends_with_its_shell(&[], |_, _| ()));
}

#[test]
fn it_outlives_that_process_if_it_is_told_to() {
    let still_serves = |pid: Pid, line: &str| {
        let control = line.split_ascii_whitespace().find_map(|word| word.strip_prefix("control="));
        let control: SocketAddr = control.expect("an address").parse().expect("an address");
        assert_eq!(json(&(control, control), "/v1/dev")["nodes"].as_array().map(Vec::len), Some(1));
        kill_process(pid, Signal::TERM).expect("it runs");
    };
    assert!(ends_with_its_shell(&["--outlive-parent"], still_serves));
}

#[test]
fn it_ends_with_the_process_that_is_named() {
    let mut other =
        Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::null()).spawn().expect("a process");
    let id = other.id().to_string();
    let mut dev = Dev::start(&["--with-parent", &id]);
    assert!(dev.line.starts_with("ready "), "{}", dev.line);
    drop(other.stdin.take());
    assert!(other.wait().expect("it ends").success());
    assert!(dev.child.wait().expect("it ends").success());
    // One that has ended already: nothing starts.
    let mut late = Dev::start(&["--with-parent", &id]);
    assert_eq!((late.line.as_str(), late.child.wait().expect("it ends").code()), ("", Some(2)));
}

#[test]
fn machines_read_json() {
    let dev = Dev::start(&["--nodes", "2", "--json"]);
    let told: Value = serde_json::from_str(&dev.line).expect("JSON");
    assert_eq!((&told["ready"], told["nodes"].as_array().map(Vec::len)), (&Value::Bool(true), Some(2)));
    assert_eq!(told["cluster_encryption"], "off");
    let node = (addr(&told["nodes"][1]["kv"]), addr(&told["nodes"][1]["http"]));
    assert_eq!(json(&node, "/pools/default/buckets/default")["replicaNumber"], 0);
    dev.stop();
}

#[test]
fn what_makes_no_sense_is_said() {
    for (more, said) in [
        (["--nodes", "0"], "--nodes 0: give a number from 1"),
        (["--replicas", "1"], "each copy needs a node of its own"),
        (["--control", "0.0.0.0:0"], "on this machine only"),
        (["--bucket", "a b"], "bucket name"),
    ] {
        let output = Command::new(env!("CARGO_BIN_EXE_stave"))
            .arg("dev")
            .args(more)
            .output()
            .expect("the binary is there");
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(2) && told.contains(said), "{more:?}: {told}");
    }
}

/// What `stave get` prints of a document, with its bucket and collection; `None` if there is none.
fn get(dev: &Dev, key: &str, more: &[&str]) -> Option<String> {
    let read = Command::new(env!("CARGO_BIN_EXE_stave"))
        .args(["get", key, "--addr", dev.field("kv"), "--password", "password"])
        .args(more)
        .output()
        .expect("the binary is there");
    assert!(matches!(read.status.code(), Some(0 | 1)), "{}", String::from_utf8_lossy(&read.stderr));
    read.status.success().then(|| String::from_utf8_lossy(&read.stdout).trim_end().to_owned())
}

#[test]
fn a_cluster_begins_with_what_the_seed_file_says_and_so_it_does_after_a_reset() {
    let folder = tempfile::tempdir().expect("a folder");
    let seed = folder.path().join("seed.json");
    let text = r#"{"buckets": {"default": {"documents": {"a": 1, "b": {"n": 2}}},
        "travel": {"scopes": {"app": {"collections": {"users": {"max_ttl_s": 9, "documents": {"u": "x"}}, "none": {}}}}}}}"#;
    std::fs::write(&seed, text).expect("a file");
    let dev = Dev::start(&["--nodes", "3", "--replicas", "1", "--seed-file", &seed.display().to_string()]);
    let control = (dev.addr("control"), dev.addr("control"));
    let users = ["--bucket", "travel", "--collection", "app.users"];
    let all_are_there = || {
        assert_eq!(get(&dev, "a", &[]).as_deref(), Some("1"));
        assert_eq!(get(&dev, "b", &[]).as_deref(), Some("{\"n\": 2}"));
        assert_eq!(get(&dev, "u", &users).as_deref(), Some("\"x\""));
    };
    all_are_there();
    let scopes = json(&(dev.addr("kv"), dev.addr("http")), "/pools/default/buckets/travel/scopes");
    let app = scopes["scopes"].as_array().expect("a list").iter().find(|scope| scope["name"] == "app");
    assert_eq!(app.expect("it is there")["collections"].as_array().map(Vec::len), Some(2), "{scopes}");
    let change = |arguments: &[&str]| {
        let changed = Command::new(env!("CARGO_BIN_EXE_stave"))
            .args(arguments)
            .args(["--addr", dev.field("kv"), "--password", "password"])
            .output()
            .expect("the binary is there");
        assert!(changed.status.success(), "{}", String::from_utf8_lossy(&changed.stderr));
    };
    change(&["set", "a", "changed"]);
    change(&["set", "more", "1"]);
    change(&["delete", "b"]);
    assert_eq!(http(&control, "POST", "/v1/dev/nodes/2/kill", "").0, 200);
    let (status, told) = http(&control, "POST", "/v1/dev/reset", "");
    assert_eq!(status, 200, "{told}");
    all_are_there();
    assert_eq!(get(&dev, "more", &[]), None);
    dev.stop();
}

#[test]
fn lines_of_json_go_to_the_first_bucket() {
    let folder = tempfile::tempdir().expect("a folder");
    let seed = folder.path().join("seed.jsonl");
    let text = "{\"key\":\"a\",\"value\":1}\n{\"key\":\"b\",\"value_base64\":\"aGk=\",\"collection\":\"app.users\"}\n";
    std::fs::write(&seed, text).expect("a file");
    let dev = Dev::start(&["--bucket", "orders:100MiB", "--seed-file", &seed.display().to_string()]);
    assert_eq!(get(&dev, "a", &["--bucket", "orders"]).as_deref(), Some("1"));
    let users = ["--bucket", "orders", "--collection", "app.users"];
    assert_eq!(get(&dev, "b", &users).as_deref(), Some("hi"));
    dev.stop();
}

#[test]
fn a_seed_file_that_cannot_be_loaded_is_told_of_with_the_place() {
    let folder = tempfile::tempdir().expect("a folder");
    let seed = folder.path().join("seed.json");
    let long = "k".repeat(251);
    let of_long = format!("{{\"buckets\": {{\"default\": {{\"documents\": {{\"{long}\": 1}}}}}}}}");
    let scoped = r#"{"buckets": {"default": {"scopes": {"%": {"collections": {"users": {}}}}}}}"#;
    for (text, code, why) in [
        ("{\"buckets\": {\n\"default\": []}}", 2, "seed.json: invalid type: sequence"),
        ("{\"buckets\": {\n\"default\": []}}", 2, "at line 2 column"),
        ("{\"buckets\": {\"a:1G\": {}}}", 2, "there can be no bucket `a:1G`"),
        (&of_long, 3, "its key has 251 bytes: 1 to 250 are allowed"),
        (&of_long, 3, "bucket `default`: document `kkk"),
        (scoped, 3, "bucket `default`: scope `%`: "),
    ] {
        std::fs::write(&seed, text).expect("a file");
        let started = Command::new(env!("CARGO_BIN_EXE_stave"))
            .args(["dev", "--kv", "127.0.0.1:0", "--http", "127.0.0.1:0", "--vbuckets", "4", "--seed-file"])
            .arg(&seed)
            .env_remove("STAVE_PASSWORD")
            .output()
            .expect("the binary is there");
        let told = String::from_utf8_lossy(&started.stderr);
        assert!(started.status.code() == Some(code) && told.contains(why), "{code}: {told}");
        assert!(started.stdout.is_empty(), "it was not ready");
    }
}

/// `stave` with the first node's address and a password behind these arguments.
fn command(dev: &Dev, arguments: &[&str]) -> Command {
    let mut stave = Command::new(env!("CARGO_BIN_EXE_stave"));
    stave.args(arguments).args(["--addr", dev.field("kv"), "--username", "Administrator"]);
    stave.args(["--password", "password"]);
    stave
}

/// What a command prints as JSON at its end; the error if it fails.
fn printed(command: &mut Command) -> Result<Value, String> {
    let output = command.output().expect("the binary is there");
    if output.status.success() {
        // A follower that takes long has printed others before.
        let lines = String::from_utf8(output.stdout).expect("text");
        Ok(serde_json::from_str(lines.lines().next_back().expect("a summary")).expect("JSON"))
    } else {
        Err(String::from_utf8_lossy(&output.stderr).into_owned())
    }
}

/// The documents of a bucket, as lines.
fn exported(dev: &Dev, bucket: &str) -> Vec<String> {
    let output =
        command(dev, &["export", "--to", "-", "--bucket", bucket]).output().expect("the binary is there");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let mut lines: Vec<String> =
        String::from_utf8(output.stdout).expect("text").lines().map(str::to_owned).collect();
    lines.sort();
    lines
}

/// A moment as commands take it.
fn now() -> String {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("after 1970");
    let moment = time::OffsetDateTime::from_unix_timestamp_nanos(now.as_nanos() as i128).expect("a moment");
    moment.format(&time::format_description::well_known::Rfc3339).expect("a moment")
}

/// Bytes of the log of `orders`.
fn log_bytes(dir: &Path) -> u64 {
    let files = std::fs::read_dir(dir.join("orders/log")).expect("a log");
    files.map(|file| file.expect("a name").metadata().map_or(0, |file| file.len())).sum()
}

/// How often a follower is killed: a few times, or as often as `FOLLOWER_ROUNDS` says.
fn rounds() -> usize {
    std::env::var("FOLLOWER_ROUNDS").ok().and_then(|count| count.parse().ok()).unwrap_or(6)
}

/// Kills followers again and again while the bucket is written to, a node fails over and comes back, and one is added; each
/// moment with the keys that were written by then.
fn kill_followers(dev: &Dev, dir: &Path, follow: &[&str]) -> Vec<(String, Vec<String>)> {
    let control = (dev.addr("control"), dev.addr("control"));
    let quoted = |key: usize| format!("\"k{key}\"");
    let (mut moments, mut written) = (Vec::new(), (0..5).map(quoted).collect::<Vec<_>>());
    for round in 1..=rounds() {
        let mut follower = command(dev, follow);
        let follower = follower.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        let mut follower = follower.expect("the binary is there");
        match round {
            3 => assert_eq!(http(&control, "POST", "/v1/dev/nodes/3/failover", "").0, 200),
            4 => assert_eq!(http(&control, "POST", "/v1/dev/nodes/3/recover", "").0, 200),
            5 => assert_eq!(http(&control, "POST", "/v1/dev/nodes", "").0, 200),
            _ => {}
        }
        set(dev, round * 5..round * 5 + 5);
        written.extend((round * 5..round * 5 + 5).map(quoted));
        moments.push((now(), written.clone()));
        // `kill -9` when it has written something of that, or wherever it is.
        if round % 2 == 1 {
            let before = log_bytes(dir);
            set(dev, 10_000 + round..10_001 + round);
            written.push(quoted(10_000 + round));
            let until = std::time::Instant::now() + PATIENCE;
            while log_bytes(dir) == before {
                assert!(std::time::Instant::now() < until, "the follower writes nothing");
                std::thread::yield_now();
            }
        }
        follower.kill().expect("it runs");
        follower.wait().expect("it ends");
    }
    moments
}

/// Restores moments, one after the other; how many were not in gaps.
fn compare_moments(
    at: &dyn Fn(&str) -> Result<Value, String>,
    moments: &[(String, Vec<String>)],
    last: &[String],
) -> usize {
    let is_kept = |key: &&String| last.iter().any(|line| line.contains(&***key));
    let mut compared = 0;
    for (moment, keys) in moments {
        match at(moment) {
            Ok(sent) => {
                let count = sent["documents"].as_u64().zip(sent["conflicts"].as_u64()).map(|(a, b)| a + b);
                // What a failover lost is in no moment.
                assert_eq!(count, Some(keys.iter().filter(is_kept).count() as u64), "{moment}: {sent}");
                compared += 1;
            }
            Err(said) => {
                assert!(said.contains("is in a gap") && said.contains("the nearest moment"), "{said}")
            }
        }
    }
    compared
}

/// Three nodes with a bucket, and one that it is restored or moved into.
const ORDERS_AND_COPY: [&str; 8] =
    ["--nodes", "3", "--replicas", "1", "--bucket", "orders:100MiB", "--bucket", "copy:100MiB"];

#[test]
fn a_follower_that_is_killed_again_and_again_misses_nothing() {
    let dev = Dev::start(&ORDERS_AND_COPY);
    let (folder, scratch) = (tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("a folder"));
    let dir = folder.path().to_str().expect("text");
    let follow = ["backup", "--to", dir, "--bucket", "orders", "--follow"];
    let caught_up =
        || printed(command(&dev, &follow).args(["--once-caught-up", "--json"])).expect("followed");
    set(&dev, 0..5);
    caught_up();
    let moments = kill_followers(&dev, folder.path(), &follow);
    let told = caught_up();
    println!("the last follower: {told}");
    let last = exported(&dev, "orders");
    let at = |moment: &str| {
        let restore =
            ["restore", "--from", dir, "--bucket", "copy", "--source", "orders", "--at", moment, "--json"];
        printed(&mut command(&dev, &restore))
    };
    let compared = compare_moments(&at, &moments, &last);
    println!("{compared} of {} moments compared", moments.len());
    assert!(compared >= 3, "{compared}");
    let horizon = told["horizon"].as_str().expect("a moment");
    at(horizon).expect("the last moment");
    assert_eq!(exported(&dev, "copy"), last);
    // The same into a throw-away node, of which nothing is left.
    let drill = |more: &[&str]| {
        let mut drill = Command::new(env!("CARGO_BIN_EXE_stave"));
        drill.args(["backup", "drill", "--from", dir, "--bucket", "orders", "--json", "--scratch"]);
        printed(drill.arg(scratch.path()).args(more))
    };
    let drilled = drill(&["--at", horizon]).expect("no difference");
    assert_eq!(
        (&drilled["documents"], &drilled["differences"]),
        (&last.len().into(), &serde_json::json!([]))
    );
    println!("the drill: {drilled}");
    assert!(drill(&["--at", "2001-01-01T00:00:00Z"]).expect_err("before").contains("does not have"));
    assert_eq!(std::fs::read_dir(scratch.path()).expect("a folder").count(), 0);
    dev.stop();
}

/// A key of a vBucket that a node is active for.
fn key_on(map: &Value, node: usize, name: &str) -> String {
    let is_there = |key: &String| map["vBucketMap"][usize::from(support::vb(key.as_bytes()).0)][0] == node;
    (0..).map(|at| format!("{name}-{at}")).find(is_there).expect("some key")
}

/// Writes a number to one node, and when that is acknowledged to the other one, until it is told to end.
fn write_in_order(nodes: [(SocketAddr, SocketAddr); 2], keys: [&str; 2], is_over: &AtomicBool) -> u64 {
    let [mut first, mut second] = nodes.map(|node| Client::connect(&node, "orders", &[]));
    let mut at = 0;
    while !is_over.load(Ordering::Relaxed) {
        at += 1;
        let value = at.to_string();
        for (client, key) in [(&mut first, keys[0]), (&mut second, keys[1])] {
            let status = client.set(key.as_bytes(), value.as_bytes()).expect("an answer");
            assert_eq!(status, Status::Success, "{key}");
        }
    }
    at
}

/// Numbers in the lines of an export, by key.
fn numbers(lines: &[String]) -> std::collections::BTreeMap<String, u64> {
    let number = |line: &String| {
        let line: Value = serde_json::from_str(line).expect("JSON");
        let (key, value) = (line["key"].as_str().expect("a key"), &line["value"]);
        (key.to_owned(), value.as_u64().unwrap_or_else(|| panic!("{line}")))
    };
    lines.iter().map(number).collect()
}

#[test]
fn what_is_copied_is_of_one_moment_of_all_nodes() {
    let dev = Dev::start(&["--nodes", "3", "--replicas", "1", "--bucket", "orders:100MiB"]);
    let control = (dev.addr("control"), dev.addr("control"));
    let nodes = json(&control, "/v1/dev")["nodes"].clone();
    let node = |at: usize| (addr(&nodes[at]["kv"]), addr(&nodes[at]["http"]));
    let map = json(&node(0), "/pools/default/b/orders")["vBucketServerMap"].clone();
    let routes = [(0, 1), (1, 2), (2, 0)];
    let keys =
        routes.map(|(a, b)| [key_on(&map, a, &format!("first{a}")), key_on(&map, b, &format!("second{a}"))]);
    let is_over = AtomicBool::new(false);
    let (mut moments, mut written) = (Vec::new(), 0);
    std::thread::scope(|scope| {
        let writers: Vec<_> = routes
            .iter()
            .zip(&keys)
            .map(|((a, b), [first, second])| {
                let (nodes, is_over) = ([node(*a), node(*b)], &is_over);
                scope.spawn(move || write_in_order(nodes, [first, second], is_over))
            })
            .collect();
        for _ in 0..MOMENTS {
            moments.push(numbers(&exported(&dev, "orders")));
        }
        is_over.store(true, Ordering::Relaxed);
        written = writers.into_iter().map(|writer| writer.join().expect("it wrote")).sum();
    });
    let mut differ = 0;
    for moment in &moments {
        for [first, second] in &keys {
            let at = |key: &String| moment.get(key).copied().unwrap_or(0);
            let (first, second) = (at(first), at(second));
            // The second is written when the first is acknowledged, and the first again when the second is.
            differ += usize::from(!(second <= first && first <= second + 1));
        }
    }
    println!(
        "{} pairs in {MOMENTS} moments, {written} pairs written, {differ} of different moments",
        3 * MOMENTS
    );
    assert_eq!(differ, 0);
    assert!(moments.windows(2).all(|two| two[0] != two[1]), "changes go on in between");
    let kept = printed(&mut command(&dev, &["snapshot", "list", "--bucket", "orders", "--json"]));
    assert_eq!(kept.expect("listed")["of_bucket"], serde_json::json!([]), "each export ended its own");
    dev.stop();
}

#[test]
fn a_bucket_is_moved_in_from_a_cluster_and_switched() {
    let dev = Dev::start(&ORDERS_AND_COPY);
    let control = (dev.addr("control"), dev.addr("control"));
    set(&dev, 0..10);
    let url = format!("couchbase://127.0.0.1:1,{}", dev.field("kv"));
    let mut moving =
        command(&dev, &["import", "cluster", &url, "--bucket", "orders", "--to-bucket", "copy", "--json"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the binary is there");
    set(&dev, 10..15);
    assert_eq!(http(&control, "POST", "/v1/dev/nodes/3/failover", "").0, 200);
    set(&dev, 5..20);
    moving.stdin.take().expect("it is piped").write_all(b"switch\n").expect("it reads");
    let output = moving.wait_with_output().expect("it ends");
    let told: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    println!("{told}");
    assert_eq!(told["end"], "switched", "{told}");
    // A replica may not have had what was written last: then the command says so.
    let went_back = told["went_back"].as_array().expect("a list").len();
    assert_eq!(output.status.code(), Some(if went_back == 0 { 0 } else { 4 }), "{told}");
    if went_back == 0 {
        assert_eq!(exported(&dev, "copy"), exported(&dev, "orders"));
    }
    dev.stop();
}
