//! A cluster as people run it: etcd, `stave serve --join` and `stave cluster`, each a process.
#![allow(clippy::disallowed_methods, reason = "this is a client, outside the server")]

#[path = "../../server/tests/support/etcd.rs"]
mod etcd;
#[path = "../../server/tests/support/mod.rs"]
mod support;

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use etcd::Etcd;
use protocol::{RequestParts, Status, opcode};
use serde_json::Value;
use support::{Client, Lines, http, json};

/// vBuckets of each bucket.
const VBUCKETS: u16 = 16;
/// A majority of the copies, in memory (frame info 1: level and timeout in milliseconds).
const MAJORITY: [u8; 4] = [0x13, 0x01, 0x27, 0x10];

/// A node's process, which does not outlive the test.
struct Node {
    child: Child,
    /// What it says when it can be used.
    line: String,
    kv: SocketAddr,
    http: SocketAddr,
}

impl Drop for Node {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl support::Reach for Node {
    fn kv(&self) -> SocketAddr {
        self.kv
    }

    fn http(&self) -> SocketAddr {
        self.http
    }
}

/// etcd and what nodes are started with.
struct World {
    etcd: Etcd,
    folder: tempfile::TempDir,
    config: PathBuf,
}

impl World {
    fn new() -> World {
        World::on(Etcd::start())
    }

    fn on(etcd: Etcd) -> World {
        let folder = tempfile::tempdir().expect("a folder");
        let config = folder.path().join("stave.toml");
        let text = format!(
            "kv = \"127.0.0.1:0\"\nhttp = \"127.0.0.1:0\"\npassword = \"password\"\nvbuckets = {VBUCKETS}\nthreads = 1\n"
        );
        std::fs::write(&config, text).expect("a file");
        World { etcd, folder, config }
    }

    fn data(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Starts a node where it was, and waits until it says that it is ready.
    fn node(&self, name: &str) -> Node {
        self.node_with(name, &[])
    }

    fn node_with(&self, name: &str, more: &[&str]) -> Node {
        let join = format!("etcd://{}/test", self.etcd.addr);
        self.lone(name, &[&["--join", &join], more].concat())
    }

    /// Starts a node that belongs to no cluster unless these flags say so.
    fn lone(&self, name: &str, more: &[&str]) -> Node {
        let mut child = Command::new(env!("CARGO_BIN_EXE_stave"))
            .args(["serve", "--config"])
            .arg(&self.config)
            .arg("--data")
            .arg(self.data(name))
            .args(more)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("the binary is there");
        let mut line = String::new();
        let stdout = child.stdout.take().expect("it is piped");
        BufReader::new(stdout).read_line(&mut line).expect("a line");
        let addr = |what: &str| {
            let mut words = line.split_ascii_whitespace().filter_map(|word| word.split_once('='));
            let text = words.find(|(name, _)| *name == what).map(|(_, value)| value);
            text.and_then(|text| text.parse().ok()).unwrap_or_else(|| panic!("{what} in {line:?}"))
        };
        let (kv, http) = (addr("kv"), addr("http"));
        Node { child, line, kv, http }
    }
}

fn stave_cluster(asked: &Node, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_stave"))
        .arg("cluster")
        .args(arguments)
        .args(["--addr", &asked.http.to_string(), "--password", "password"])
        .output()
        .expect("the binary is there")
}

/// What `stave cluster` prints when it succeeds.
fn run(asked: &Node, arguments: &[&str]) -> String {
    let output = stave_cluster(asked, arguments);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {said}");
    String::from_utf8(output.stdout).expect("text")
}

/// What it says when it does not.
fn refused(asked: &Node, arguments: &[&str]) -> String {
    let output = stave_cluster(asked, arguments);
    assert!(!output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stdout));
    String::from_utf8(output.stderr).expect("text")
}

fn post(node: &Node, path: &str, body: &str, expected: u16) {
    let (code, text) = support::change(node, path, body, expected);
    assert_eq!(code, expected, "{path} {body}: {text}");
}

/// Which address serves each vBucket, as the newest map says.
fn actives(map: &Value) -> Vec<Option<SocketAddr>> {
    let map = &map["vBucketServerMap"];
    let rows = map["vBucketMap"].as_array().expect("rows").iter();
    let server = |row: &Value| {
        let at = usize::try_from(row[0].as_i64()?).ok()?;
        map["serverList"][at].as_str()?.parse().ok()
    };
    rows.map(server).collect()
}

/// Reads maps as they are pushed until one is as it should be.
fn await_map(node: &Node, is_so: impl Fn(&[Option<SocketAddr>]) -> bool) {
    let mut maps = Lines::of(node, "/pools/default/bs/default");
    while !is_so(&actives(&maps.next_json().expect("another map"))) {}
}

fn vb(key: &str) -> base::VbId {
    base::vbucket_map::vbucket_of(key.as_bytes(), VBUCKETS)
}

/// Writes to a majority at whoever is active; each round looks at the map anew.
fn write(asked: &Node, ledger: &mut BTreeMap<String, String>, key: &str, value: &str) {
    let parts = RequestParts {
        opcode: opcode::SET,
        key: key.as_bytes(),
        value: value.as_bytes(),
        extras: &[0; 8],
        frame_infos: &MAJORITY,
        vbucket: vb(key),
        ..RequestParts::default()
    };
    let taken = (0..10_000).any(|_| {
        let map = actives(&json(asked, "/pools/default/b/default"));
        let Some(active) = map[usize::from(vb(key).0)] else { return false };
        let mut client = Client::connect(&(active, active), "default", &[]);
        client.try_request(&parts).is_some_and(|frame| frame.status == Status::Success)
    });
    assert!(taken, "{key} is written");
    ledger.insert(key.to_owned(), value.to_owned());
}

/// Everything that was written is where the map says.
fn check(asked: &Node, ledger: &BTreeMap<String, String>) {
    for (key, value) in ledger {
        let parts = RequestParts {
            opcode: opcode::GET,
            key: key.as_bytes(),
            vbucket: vb(key),
            ..RequestParts::default()
        };
        let found = (0..10_000).find_map(|_| {
            let map = actives(&json(asked, "/pools/default/b/default"));
            let active = map[usize::from(vb(key).0)]?;
            let frame = Client::connect(&(active, active), "default", &[]).request(&parts);
            (frame.status != Status::NotMyVbucket).then_some(frame)
        });
        let found = found.expect("somebody serves it");
        assert_eq!((found.status, found.value.as_slice()), (Status::Success, value.as_bytes()), "{key}");
    }
}

fn write_some(asked: &Node, ledger: &mut BTreeMap<String, String>, value: &str) {
    (0..24).for_each(|at| write(asked, ledger, &format!("key-{at}"), value));
}

fn state(node: &Node) -> Value {
    json(node, "/v1/cluster")["state"].clone()
}

/// A cluster of nodes with a bucket.
fn start(world: &World, names: &[&str], replicas: u8) -> Vec<Node> {
    let nodes: Vec<Node> = names.iter().map(|name| world.node(name)).collect();
    run(&nodes[0], &["rebalance"]);
    let body = format!("name=default&ramQuota=100&replicaNumber={replicas}&flushEnabled=1");
    post(&nodes[0], "/pools/default/buckets", &body, 202);
    nodes
}

#[test]
fn a_node_that_dies_is_failed_over_and_comes_back() {
    let world = World::new();
    let mut nodes = start(&world, &["a", "b", "c"], 1);
    let status = run(&nodes[0], &["status"]);
    assert!(status.contains("C n_3") && status.contains("bucket default"), "{status}");
    let mut ledger = BTreeMap::new();
    write_some(&nodes[0], &mut ledger, "before");
    post(&nodes[0], "/settings/autoFailover", "enabled=true&timeout=1&maxCount=2", 200);
    let dead = nodes.pop().expect("there are three");
    let gone = dead.kv;
    drop(dead);
    await_map(&nodes[0], |actives| actives.iter().all(|active| active.is_some_and(|addr| addr != gone)));
    assert_eq!(state(&nodes[0])["nodes"]["3"]["status"], "failed_over");
    check(&nodes[0], &ledger);
    // It comes back with what it had.
    nodes.push(world.node("c"));
    let said = run(&nodes[0], &["status"]);
    assert!(said.contains("n_3 was failed over"), "{said}");
    run(&nodes[0], &["add", "n_3"]);
    let said = run(&nodes[0], &["rebalance", "--json"]);
    let told: Value = serde_json::from_str(&said).expect("JSON");
    assert!(told["revision"].as_u64().is_some_and(|revision| revision > 0), "{said}");
    check(&nodes[0], &ledger);
    write_some(&nodes[1], &mut ledger, "after");
    check(&nodes[2], &ledger);
    let counts = state(&nodes[2])["buckets"]["default"]["map"].to_string();
    assert!(counts.contains("[3,"), "{counts}");
    // And hands everything over when it is asked to.
    run(&nodes[0], &["failover", "n_3", "--graceful"]);
    check(&nodes[0], &ledger);
    let said = refused(&nodes[0], &["failover", "n_3"]);
    assert!(said.contains("n_3 is failed over"), "{said}");
    // Nobody leaves by the way.
    let said = refused(&nodes[0], &["remove", "n_2"]);
    assert!(said.contains("n_3 is failed over, too, and would leave"), "{said}");
    run(&nodes[0], &["add", "n_3", "--full"]);
    run(&nodes[0], &["rebalance"]);
    check(&nodes[1], &ledger);
}

#[test]
fn a_node_that_has_died_hands_nothing_over() {
    let world = World::new();
    let mut nodes = start(&world, &["a", "b", "c"], 1);
    let mut ledger = BTreeMap::new();
    write_some(&nodes[0], &mut ledger, "before");
    post(&nodes[0], "/settings/autoFailover", "enabled=false", 200);
    drop(nodes.pop());
    // Its lease may still run, and it is taken for alive at first.
    let said = refused(&nodes[0], &["failover", "n_3", "--graceful"]);
    assert!(said.contains("n_3 is down, and can hand nothing over"), "{said}");
    run(&nodes[0], &["failover", "n_3"]);
    assert_eq!(state(&nodes[0])["nodes"]["3"]["status"], "failed_over");
    check(&nodes[0], &ledger);
}

#[test]
fn a_node_that_was_ejected_keeps_what_it_has() {
    let world = World::new();
    let mut nodes = start(&world, &["a", "b", "c"], 1);
    let mut ledger = BTreeMap::new();
    write_some(&nodes[0], &mut ledger, "value");
    run(&nodes[0], &["remove", "n_3"]);
    assert!(state(&nodes[0])["nodes"]["3"].is_null());
    check(&nodes[0], &ledger);
    nodes.pop();
    let files = |world: &World| files(&world.data("c").join("buckets/default"));
    let before = files(&world);
    nodes.push(world.node("c"));
    assert!(nodes[2].line.starts_with("not ready kv="), "{}", nodes[2].line);
    let (_, told) = http(&nodes[2], "GET", "/v1/cluster", "");
    assert!(told.contains("keeps its copies of default"), "{told}");
    assert!(files(&world) >= before && before > 0, "{before} files");
    let said = run(&nodes[0], &["status"]);
    assert!(said.contains("belongs to the cluster no more"), "{said}");
    let address = nodes[2].http.to_string();
    run(&nodes[0], &["add", &address]);
    run(&nodes[0], &["rebalance"]);
    assert_eq!(state(&nodes[0])["nodes"]["4"]["status"], "active");
    check(&nodes[2], &ledger);
}

/// Waits until the cluster refuses a command for this reason.
fn await_refusal(asked: &Node, arguments: &[&str], why: &str) -> String {
    loop {
        let output = stave_cluster(asked, arguments);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success(), "{arguments:?} was done");
        if said.contains(why) {
            return said;
        }
    }
}

#[test]
fn the_last_copies_go_only_if_their_node_is_named() {
    let world = World::new();
    let mut nodes = start(&world, &["a", "b", "c"], 0);
    let mut ledger = BTreeMap::new();
    write_some(&nodes[0], &mut ledger, "value");
    // What it was sent is on its disk.
    stop(nodes.pop().expect("there are three"));
    run(&nodes[0], &["failover", "n_3", "--unsafe", "--stopped"]);
    // Before the choice is over, a node that comes back is simply taken back.
    while state(&nodes[0])["buckets"]["default"]["map"].to_string().contains('3') {}
    nodes.push(world.node("c"));
    let kept = "n_3 may have kept them";
    await_refusal(&nodes[0], &["rebalance"], kept);
    await_refusal(&nodes[0], &["add", "n_3", "--full"], kept);
    await_refusal(&nodes[0], &["remove", "n_3"], kept);
    await_refusal(&nodes[0], &["remove", "n_2", "n_3"], kept);
    // It is taken back, and down again before the rebalance.
    run(&nodes[0], &["add", "n_3"]);
    await_refusal(&nodes[0], &["add", "n_3", "--full"], kept);
    stop(nodes.pop().expect("there are three"));
    while !run(&nodes[0], &["status"]).contains("n_3 is down") {}
    let statuses = json(&nodes[0], "/nodeStatuses");
    let unhealthy =
        statuses.as_object().expect("by address").values().filter(|of| of["status"] == "unhealthy");
    let unhealthy: Vec<&str> = unhealthy.filter_map(|of| of["otpNode"].as_str()).collect();
    assert!(unhealthy.len() == 1 && unhealthy[0].starts_with("n_3@"), "{statuses}");
    let is_told = |of: &Value| of["dataless"] == false && of["gracefulFailoverPossible"].is_boolean();
    let all = statuses.as_object().expect("by address");
    assert!(all.values().all(|of| is_told(of) && of["replication"].is_f64()), "{statuses}");
    let said = refused(&nodes[0], &["rebalance"]);
    assert!(said.contains(kept) && !said.contains("cluster remove"), "{said}");
    assert!(refused(&nodes[0], &["remove", "n_3"]).contains(kept));
    nodes.push(world.node("c"));
    while !stave_cluster(&nodes[0], &["rebalance"]).status.success() {}
    check(&nodes[0], &ledger);
}

fn files(folder: &Path) -> usize {
    std::fs::read_dir(folder).map_or(0, Iterator::count)
}

#[test]
fn etcd_may_be_away_for_a_while() {
    let mut world = World::new();
    let nodes = start(&world, &["a", "b"], 1);
    let mut ledger = BTreeMap::new();
    write_some(&nodes[0], &mut ledger, "before");
    world.etcd.kill();
    let said = refused(&nodes[0], &["failover", "n_2"]);
    assert!(said.contains("etcd") || said.contains("coordination store"), "{said}");
    world.etcd.start_again();
    write_some(&nodes[1], &mut ledger, "after");
    check(&nodes[0], &ledger);
}

#[test]
fn a_node_shows_etcd_who_it_is() {
    let world = World::on(Etcd::start_with_tls());
    let file = |name: &str| world.etcd.certificates().path(name).display().to_string();
    let (ca, certificate, key) = (file("ca.pem"), file("client.pem"), file("client-key.pem"));
    let password = world.data("password");
    std::fs::write(&password, "secret1\n").expect("a file");
    let password = password.display().to_string();
    let node = world.node_with(
        "a",
        &[
            "--etcd-ca",
            &ca,
            "--etcd-cert",
            &certificate,
            "--etcd-key",
            &key,
            "--etcd-user",
            "stave",
            "--etcd-password-file",
            &password,
        ],
    );
    assert!(run(&node, &["status"]).contains("n_1"));
}

#[test]
fn what_needs_etcd_says_so_while_it_is_away() {
    let mut world = World::new();
    let nodes = start(&world, &["a", "b"], 1);
    let orders = [
        ("POST", "/pools/default/buckets", "name=new&ramQuotaMB=100", 202),
        ("POST", "/pools/default/buckets/default", "ramQuotaMB=110", 200),
        ("POST", "/pools/default/buckets/default/scopes", "name=s", 200),
        ("POST", "/pools/default/buckets/default/scopes/s/collections", "name=c", 200),
        ("DELETE", "/pools/default/buckets/default/scopes/s", "", 200),
        ("POST", "/settings/autoFailover", "enabled=true&timeout=5&maxCount=1", 200),
        ("POST", "/controller/failOver", "otpNode=n_9", 400),
        ("DELETE", "/pools/default/buckets/default", "", 200),
    ];
    world.etcd.kill();
    for (method, path, form, _) in orders {
        let (code, text) = http(&nodes[0], method, path, form);
        assert_eq!(code, 503, "{method} {path}: {text}");
        let errors: Value = serde_json::from_str(&text).expect("JSON");
        let said = errors["errors"]["_"].as_str().unwrap_or_default();
        assert!(said.contains(&world.etcd.addr), "{method} {path} says where: {said}");
        assert!(said.contains("nothing was changed; see that the coordination store (etcd"), "{said}");
    }
    world.etcd.start_again();
    for (method, path, form, wanted) in orders {
        let (code, text) = http(&nodes[0], method, path, form);
        assert_eq!(code, wanted, "{method} {path}: {text}");
    }
}

#[test]
fn what_cannot_be_done_is_said() {
    let world = World::new();
    let nodes = [world.node("a"), world.node("b")];
    let said = refused(&nodes[0], &["failover", "n_9"]);
    assert!(said.contains("there is no node \"n_9\"; there are n_1, n_2"), "{said}");
    let said = refused(&nodes[0], &["failover", "n_2"]);
    assert!(said.contains("n_2 is new"), "{said}");
    let said = refused(&nodes[0], &["rebalance", "--stop"]);
    assert!(said.contains("no rebalance is running"), "{said}");
    let said = refused(&nodes[0], &["add", "127.0.0.1:9"]);
    assert!(said.contains("start it with --join"), "{said}");
    let said = refused(&nodes[0], &["add", "n_9"]);
    assert!(said.contains("the cluster has no node n_9: it has left, or was never there"), "{said}");
    let said = refused(&nodes[0], &["rebalance", "--eject", "n_1", "--eject", "n_2"]);
    assert!(said.contains("no node would be left"), "{said}");
    // The node itself knows at once that it has joined.
    let said = run(&nodes[1], &["add", "n_2"]);
    assert!(said.contains("n_2 has joined"), "{said}");
    let mut said = String::new();
    let mut child = Command::new(env!("CARGO_BIN_EXE_stave"))
        .args(["serve", "--data"])
        .arg(world.data("x"))
        .args(["--join", "127.0.0.1:2379/test", "--password", "password"])
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary is there");
    let stderr = child.stderr.take().expect("it is piped");
    BufReader::new(stderr).read_to_string(&mut said).expect("text");
    assert_eq!(child.wait().expect("it ends").code(), Some(2));
    assert!(said.contains("is not etcd://HOST:PORT"), "{said}");
}

#[test]
fn a_node_with_another_password_is_not_let_in() {
    let world = World::new();
    let nodes = [world.node("a")];
    for (name, password) in [("Administrator", "wrong password"), ("somebody", "password")] {
        let output = Command::new(env!("CARGO_BIN_EXE_stave"))
            .args(["serve", "--config"])
            .arg(&world.config)
            .arg("--data")
            .arg(world.data("b"))
            .args(["--username", name, "--password", password])
            .args(["--join", &format!("etcd://{}/test", world.etcd.addr)])
            .output()
            .expect("the binary is there");
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!((output.status.code(), output.stdout.as_slice()), (Some(2), &b""[..]), "{said}");
        assert!(said.contains("or its password is not the cluster's"), "{said}");
    }
    assert!(state(&nodes[0])["nodes"]["2"].is_null());
    // One that was there goes on, and joins again.
    drop(nodes);
    world.node("a");
}

#[test]
fn a_node_that_waits_for_its_cluster_can_be_stopped() {
    let mut world = World::new();
    world.etcd.kill();
    let mut child = Command::new(env!("CARGO_BIN_EXE_stave"))
        .args(["serve", "--config"])
        .arg(&world.config)
        .arg("--data")
        .arg(world.data("a"))
        .args(["--join", &format!("etcd://{}/test", world.etcd.addr)])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary is there");
    let mut log = BufReader::new(child.stderr.take().expect("it is piped")).lines();
    let is_waiting = |line: &String| line.contains("the cluster's state is not followed");
    log.by_ref().map(|line| line.expect("text")).find(is_waiting).expect("it looks for its cluster");
    let pid = child.id().to_string();
    assert!(Command::new("kill").args(["-TERM", &pid]).status().expect("kill is there").success());
    let said: Vec<String> = log.map(|line| line.expect("text")).collect();
    let output = child.wait_with_output().expect("it ends");
    assert_eq!((output.status.code(), output.stdout.as_slice()), (Some(3), &b""[..]));
    let last = said.last().expect("it says something");
    assert!(
        last.contains("interrupted before this node served: it waits for the coordination store"),
        "{last}"
    );
}

/// Ends a node as an administrator does.
fn stop(mut node: Node) {
    let pid = node.child.id().to_string();
    assert!(Command::new("kill").args(["-TERM", &pid]).status().expect("there is kill").success());
    assert!(node.child.wait().expect("it ends").success(), "a clean stop");
}

/// Flips a bit of each of the last bytes of a vBucket's file, among which is its last header.
fn damage(data: &Path, vb: usize) {
    let folder = data.join("buckets/default");
    let names = std::fs::read_dir(&folder).expect("the bucket has a folder");
    let names: Vec<String> =
        names.map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned()).collect();
    let name = names.iter().find(|name| name.starts_with(&format!("{vb}.couch."))).expect("it has a file");
    let mut bytes = std::fs::read(folder.join(name)).expect("it is there");
    let from = bytes.len().saturating_sub(4096);
    bytes[from..].iter_mut().for_each(|byte| *byte ^= 1);
    std::fs::write(folder.join(name), bytes).expect("written");
}

/// The cluster would be told of one store, and the node would end in the other one.
#[test]
fn a_node_founds_no_cluster_before_its_buckets_are_in_one_store() {
    let world = World::new();
    let path = "/v1/buckets/default/migration";
    let node = world.lone("a", &[]);
    let key = (0..).map(|n: u32| format!("key{n}")).find(|key| vb(key).0 == 3).expect("there is one");
    let set = Command::new(env!("CARGO_BIN_EXE_stave"))
        .args(["set", &key, "value", "--addr", &node.kv.to_string(), "--password", "password"])
        .output()
        .expect("the binary is there");
    assert!(set.status.success(), "{}", String::from_utf8_lossy(&set.stderr));
    stop(node);
    // A vBucket that cannot be read keeps the move from ending.
    damage(&world.data("a"), 3);
    let node = world.lone("a", &[]);
    let (code, told) = http(&node, "POST", path, "storageBackend=magma");
    assert_eq!(code, 202, "{told}");
    while json(&node, path)["vbuckets"] != VBUCKETS - 1 {}
    stop(node);
    let node = world.node("a");
    assert!(node.line.starts_with("not ready kv="), "{}", node.line);
    let (_, told) = http(&node, "GET", "/v1/cluster", "");
    assert!(told.contains("founds the cluster when bucket default is in one store"), "{told}");
    let (code, told) = http(&node, "DELETE", path, "");
    assert_eq!(code, 202, "{told}");
    while !http(&node, "GET", "/v1/cluster", "").1.contains("\"default\"") {}
    assert_eq!(json(&node, path)["storageBackend"], "couchstore");
    stop(node);
}

/// Waits until every vBucket has its two copies, and none is damaged.
fn await_copies(node: &Node) {
    let is_whole = |cluster: &Value| {
        let bucket = &cluster["state"]["buckets"]["default"];
        let is_quiet = |what: &str| bucket[what].as_object().is_none_or(serde_json::Map::is_empty);
        let chains = bucket["map"].as_array().expect("chains");
        let has_all = |chain: &Value| chain.as_array().is_some_and(|chain| chain.iter().all(Value::is_u64));
        let is_sound = cluster["damage"].as_array().is_some_and(Vec::is_empty);
        is_sound && is_quiet("missing") && is_quiet("steps") && chains.iter().all(has_all)
    };
    let mut last = Value::Null;
    let is_done = (0..100_000).any(|_| {
        last = json(node, "/v1/cluster");
        is_whole(&last)
    });
    assert!(is_done, "{last}");
}

#[test]
fn damaged_copies_fail_over_and_are_filled_again() {
    let world = World::new();
    let mut nodes = start(&world, &["a", "b", "c"], 1);
    post(&nodes[0], "/settings/autoFailover", "enabled=false", 200);
    let mut ledger = BTreeMap::new();
    write_some(&nodes[0], &mut ledger, "before");
    let gone = nodes.remove(1);
    let map = actives(&json(&nodes[0], "/pools/default/b/default"));
    let actives: Vec<usize> = (0..map.len()).filter(|vb| map[*vb] == Some(gone.kv)).collect();
    stop(gone);
    let replica =
        (0..map.len()).find(|vb| world.data("b").join(format!("buckets/default/{vb}.couch.1")).exists());
    let damaged = [Some(actives[0]), Some(actives[1]), replica.filter(|vb| !actives[..2].contains(vb))];
    damaged.into_iter().flatten().for_each(|vb| damage(&world.data("b"), vb));
    nodes.insert(1, world.node("b"));
    check(&nodes[0], &ledger);
    await_copies(&nodes[0]);
    check(&nodes[1], &ledger);
    write_some(&nodes[2], &mut ledger, "after");
    check(&nodes[0], &ledger);
    let kept = std::fs::read_dir(world.data("b").join("quarantine")).expect("damaged files are kept");
    assert_eq!(kept.count(), damaged.into_iter().flatten().count());
    nodes.into_iter().for_each(stop);
    for name in ["a", "b", "c"] {
        let check = Command::new(env!("CARGO_BIN_EXE_stave")).arg("check").arg(world.data(name)).output();
        let check = check.expect("the binary is there");
        assert!(check.status.success(), "{name}: {}", String::from_utf8_lossy(&check.stdout));
    }
}
