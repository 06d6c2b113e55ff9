//! What the tests start, and how they reach it.

use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use base::env::Env;
use base::{DurabilityLevel, Seqno, VbId, VbState};
use dev::{DevCluster, DevConfig, DevTimes};
use node::config::BucketSpec;
use protocol::feature::Feature;
use protocol::{Durability, FrameInfos, RequestParts, Status, opcode};
use serde_json::Value;

use crate::support::{Client, VBUCKETS, http, json, vb};

/// Nothing here takes that long.
const PATIENCE: Duration = Duration::from_secs(60);

/// How safe a write has to be.
type Level = Option<DurabilityLevel>;
pub const NO_LEVEL: Level = None;
pub const MAJORITY: Level = Some(DurabilityLevel::Majority);
pub const PERSIST: Level = Some(DurabilityLevel::PersistToMajority);

/// Nobody is missed within a test, however busy the machine is.
pub const PATIENT: DevTimes = DevTimes { lease: PATIENCE, auto_failover: None };

/// Waits for what other threads bring about.
pub fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < until, "it never came about that {what}");
        std::thread::yield_now();
    }
}

pub fn config(folder: &Path, nodes: u16, replicas: u8) -> DevConfig {
    let any: SocketAddr = "127.0.0.1:0".parse().expect("valid");
    let spec = BucketSpec::parse("default:100MiB").expect("valid");
    DevConfig {
        debugs_privileges: false,
        descriptors: None,
        tls: None,
        seed: None,
        recent_log: node::recent_log::RecentLog::default(),
        log_levels: node::log_levels::LogLevels::default(),
        nodes,
        buckets: vec![BucketSpec { replicas, flush_enabled: true, ..spec }],
        data: folder.to_owned(),
        username: "Administrator".to_owned(),
        password: "password".to_owned(),
        kv: any,
        http: any,
        control: any,
        threads: 1,
        vbuckets: VBUCKETS,
        times: PATIENT,
    }
}

pub struct Cluster {
    pub dev: DevCluster,
    _folder: Option<tempfile::TempDir>,
}

impl Cluster {
    pub fn start(nodes: u16, replicas: u8) -> Cluster {
        Cluster::with_times(nodes, replicas, PATIENT)
    }

    pub fn with_times(nodes: u16, replicas: u8, times: DevTimes) -> Cluster {
        let folder = tempfile::tempdir().expect("a folder");
        let config = DevConfig { times, ..config(folder.path(), nodes, replicas) };
        let dev = DevCluster::start(config, Env::real()).expect("it starts");
        Cluster { dev, _folder: Some(folder) }
    }

    /// One that was started otherwise.
    pub fn of(dev: DevCluster) -> Cluster {
        Cluster { dev, _folder: None }
    }

    /// In a folder that outlives it.
    pub fn in_folder(folder: &Path, nodes: u16, replicas: u8) -> Cluster {
        let dev = DevCluster::start(config(folder, nodes, replicas), Env::real()).expect("it starts");
        Cluster { dev, _folder: None }
    }

    pub fn node(&self, number: u16) -> (SocketAddr, SocketAddr) {
        self.dev.addresses()[&number]
    }

    pub fn order(&self, path: &str) -> (u16, Value) {
        let control = (self.dev.control_addr(), self.dev.control_addr());
        let (code, body) = http(&control, "POST", path, "");
        (code, serde_json::from_str(&body).unwrap_or_default())
    }

    pub fn must(&self, path: &str) -> Value {
        let (code, told) = self.order(path);
        assert_eq!(code, 200, "{path}: {told}");
        told
    }

    /// What the control endpoint tells of a node; null if there is none, since it was removed.
    pub fn told_of(&self, number: u16) -> Value {
        let control = (self.dev.control_addr(), self.dev.control_addr());
        let told = json(&control, "/v1/dev");
        let mut nodes = told["nodes"].as_array().expect("a list").iter();
        nodes.find(|node| node["node"] == number).cloned().unwrap_or_default()
    }

    /// The map as a node tells it.
    pub fn map(&self, number: u16) -> Value {
        json(&self.node(number), "/pools/default/b/default")
    }

    /// The number of the node that is active for a key, as the cluster's document has it.
    pub fn owner(&self, key: &[u8]) -> Option<u16> {
        let nodes: Vec<u16> = self.dev.addresses().into_keys().collect();
        let member = nodes.iter().copied().filter(|number| self.told_of(*number)["has_lease"] == true);
        let view = member.filter_map(|number| self.dev.node(number)?.cluster()?.view());
        let view = view.max_by_key(|view| view.state.revision)?;
        let id = view.state.buckets["default"].active(vb(key).0)?;
        let uuid = &view.state.nodes[&id].uuid;
        nodes.into_iter().find(|number| {
            let node = self.dev.node(*number).and_then(|node| node.cluster());
            node.is_some_and(|cluster| cluster.uuid() == uuid)
        })
    }

    /// A client of a node.
    pub fn client(&self, number: u16) -> Client {
        let features = [Feature::AltRequestSupport, Feature::SyncReplication];
        Client::connect(&self.node(number), "default", &features)
    }

    /// Writes until the node that is active takes it, at a level.
    pub fn write(&self, key: &str, value: &str, level: Level) {
        eventually("somebody takes a write", || {
            let Some(owner) = self.owner(key.as_bytes()) else { return false };
            let told = self.told_of(owner);
            told["may_serve"] == true
                && set(&mut self.client(owner), key, value, level) == Some(Status::Success)
        });
    }

    /// What the node that is active has; nothing if there is no such document.
    pub fn read(&self, key: &str) -> Option<Vec<u8>> {
        let mut found = None;
        eventually("somebody answers a read", || {
            let Some(owner) = self.owner(key.as_bytes()) else { return false };
            if self.told_of(owner)["may_serve"] != true {
                return false;
            }
            let Some(frame) = self.client(owner).get(key.as_bytes()) else { return false };
            found = (frame.status == Status::Success).then_some(frame.value);
            matches!(frame.status, Status::Success | Status::KeyEnoent)
        });
        found
    }

    /// The highest seqno of each vBucket that a node has in a role.
    pub fn seqnos(&self, number: u16, role: VbState) -> Vec<Option<Seqno>> {
        let Some(bucket) = self.dev.node(number).and_then(|node| node.bucket("default")) else {
            return vec![None; usize::from(VBUCKETS)];
        };
        let seqno =
            |vb| bucket.inspect(VbId(vb), |vb| (vb.state() == role).then(|| vb.high_seqno())).flatten();
        (0..VBUCKETS).map(seqno).collect()
    }

    /// Whether the copies of a node have all that there is.
    pub fn is_caught_up(&self, number: u16) -> bool {
        let nodes = self.dev.addresses().into_keys();
        let all: Vec<_> = nodes.map(|other| self.seqnos(other, VbState::Active)).collect();
        let active = (0..usize::from(VBUCKETS)).map(|vb| all.iter().find_map(|seqnos| seqnos[vb]));
        let pairs = self.seqnos(number, VbState::Replica).into_iter().zip(active);
        pairs.into_iter().all(|(copy, active)| copy.is_none() || copy == active)
    }

    pub fn wait_for_replicas(&self) {
        let nodes: Vec<u16> = self.dev.addresses().into_keys().collect();
        eventually("replicas have everything", || {
            nodes.iter().all(|number| self.dev.node(*number).is_none() || self.is_caught_up(*number))
        });
    }

    pub fn stop(self) {
        self.dev.stop().expect("a clean stop");
    }
}

/// Writes at a level; nothing if the connection is closed.
pub fn set(client: &mut Client, key: &str, value: &str, level: Level) -> Option<Status> {
    let durability = level.map(|level| Durability { level, timeout_ms: Some(10_000) });
    let mut frame_infos = Vec::new();
    FrameInfos { durability, ..FrameInfos::default() }.encode(&mut frame_infos);
    let parts = RequestParts {
        opcode: opcode::SET,
        vbucket: vb(key.as_bytes()),
        frame_infos: &frame_infos,
        extras: &[0; 8],
        key: key.as_bytes(),
        value: value.as_bytes(),
        ..RequestParts::default()
    };
    client.try_request(&parts).map(|frame| frame.status)
}

pub fn keys(count: usize) -> Vec<String> {
    (0..count).map(|at| format!("k{at}")).collect()
}
