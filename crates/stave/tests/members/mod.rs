//! Members of a cluster over etcd, each a process of its own, and a client of all of them.
#![allow(dead_code, reason = "each test uses a part of it")]

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use base::vbucket_map::vbucket_of;
use protocol::{RequestParts, Status, opcode};
use serde_json::Value;

use crate::etcd::Etcd;
use crate::process::{Process, SERVE};
use crate::support::{Client, Reach, change, json};

/// vBuckets of a bucket.
pub const VBUCKETS: u16 = 64;
/// How long a test waits for anything.
pub const PATIENCE: Duration = Duration::from_secs(180);

/// Where a node listens, for KV and for HTTP, as long as its process is the same.
pub type Place = (SocketAddr, SocketAddr);

pub struct World {
    pub etcd: Etcd,
    pub folder: tempfile::TempDir,
    pub config: PathBuf,
}

impl World {
    pub fn new() -> World {
        let (etcd, folder) = (Etcd::start(), tempfile::tempdir().expect("a folder"));
        let config = folder.path().join("stave.toml");
        std::fs::write(&config, format!("vbuckets = {VBUCKETS}\nthreads = 1\n")).expect("written");
        World { etcd, folder, config }
    }

    pub fn data(&self, name: &str) -> String {
        self.folder.path().join(name).to_str().expect("text").to_owned()
    }

    pub fn node(&self, name: &str) -> Process {
        let join = format!("etcd://{}/test", self.etcd.addr);
        let config = self.config.to_str().expect("text");
        Process::start(SERVE, &["--data", &self.data(name), "--config", config, "--join", &join])
    }
}

pub fn stave(asked: &impl Reach, words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_stave"));
    command.args(words).args(["--addr", &asked.http().to_string()]).env("STAVE_PASSWORD", "password");
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

pub fn run(asked: &impl Reach, words: &[&str]) -> String {
    said(stave(asked, words).spawn().expect("the binary is there"))
}

/// The same where a member stood still or was away: as it comes back the cluster may choose active copies, at any moment,
/// and refuses what changes the members until that is over.
pub fn run_between_failovers(asked: &impl Reach, words: &[&str]) -> String {
    let begun = Instant::now();
    loop {
        let output = stave(asked, words).output().expect("the binary is there");
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        if output.status.success() {
            return String::from_utf8(output.stdout).expect("text");
        }
        assert!(told.contains("a failover is under way") && begun.elapsed() < PATIENCE, "{told}");
    }
}

pub fn said(child: Child) -> String {
    let output = child.wait_with_output().expect("it ends");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

pub fn post(asked: &impl Reach, path: &str, body: &str, expected: u16) {
    let (code, told) = change(asked, path, body, expected);
    assert_eq!(code, expected, "{path} {body}: {told}");
}

/// Which address serves each vBucket, as a node says.
pub fn actives(asked: &impl Reach) -> Vec<Option<SocketAddr>> {
    let map = json(asked, "/pools/default/b/default")["vBucketServerMap"].take();
    let server = |row: &Value| {
        let at = usize::try_from(row[0].as_i64()?).ok()?;
        map["serverList"][at].as_str()?.parse().ok()
    };
    map["vBucketMap"].as_array().expect("rows").iter().map(server).collect()
}

/// Waits until a node finds this number of members, all of them healthy.
pub fn all_are_up(asked: &impl Reach, members: usize) {
    let begun = Instant::now();
    loop {
        let told = json(asked, "/pools/default");
        let nodes = told["nodes"].as_array().map_or(&[][..], Vec::as_slice);
        if nodes.len() == members && nodes.iter().all(|node| node["status"] == "healthy") {
            return;
        }
        assert!(begun.elapsed() < PATIENCE, "they are not all up: {}", told["nodes"]);
    }
}

/// A client of all nodes, which looks at the map again when a node does not answer, or answers otherwise than it should.
pub struct Follower {
    asked: Place,
    map: Vec<Option<SocketAddr>>,
    clients: BTreeMap<SocketAddr, Client>,
}

impl Follower {
    pub fn new(asked: Place) -> Follower {
        Follower { asked, map: actives(&asked), clients: BTreeMap::new() }
    }

    /// Asks until `is_answer` takes what is said.
    pub fn ask(
        &mut self,
        key: &str,
        of: &RequestParts<'_>,
        is_answer: impl Fn(Status) -> bool,
    ) -> (Status, Vec<u8>) {
        let vbucket = vbucket_of(key.as_bytes(), VBUCKETS);
        let parts = RequestParts { key: key.as_bytes(), vbucket, ..*of };
        let begun = Instant::now();
        while begun.elapsed() < PATIENCE {
            if let Some(at) = self.map[usize::from(vbucket.0)] {
                let frame = self.client(at).and_then(|client| client.try_request(&parts));
                match frame {
                    Some(frame) if is_answer(frame.status) => return (frame.status, frame.value),
                    Some(_) => {}
                    None => drop(self.clients.remove(&at)),
                }
            }
            self.map = actives(&self.asked);
        }
        panic!("{key}: no node serves it");
    }

    fn client(&mut self, at: SocketAddr) -> Option<&mut Client> {
        let place = match self.clients.entry(at) {
            Entry::Occupied(there) => return Some(there.into_mut()),
            Entry::Vacant(place) => place,
        };
        // A node that was killed takes no connection, and one that has just started may refuse the bucket.
        let mut client = Client::over(TcpStream::connect(at).ok()?);
        client.send(&node::fuzz::login("Administrator", "password", "default", &[]));
        let is_in = |_| client.try_receive().is_some_and(|frame| frame.status == Status::Success);
        (0..3).all(is_in).then(|| place.insert(client))
    }
}

/// Where a node listens.
pub fn place(node: &Process) -> Place {
    (node.kv, node.http)
}

/// Documents that lie still: `filled-0` and so on.
pub fn fill(asked: Place, count: usize) {
    let mut follower = Follower::new(asked);
    let value = [b'v'; 1024];
    let set = RequestParts { opcode: opcode::SET, value: &value, extras: &[0; 8], ..RequestParts::default() };
    for n in 0..count {
        follower.ask(&format!("filled-{n}"), &set, |status| status == Status::Success);
    }
}
