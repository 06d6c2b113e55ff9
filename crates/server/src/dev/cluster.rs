//! The cluster: its nodes, its plan, and what can be done to them.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::{Arc, mpsc};

use base::VbId;
use base::env::{Env, OpenMode, Task};
use engine::BucketKind;
use parking_lot::Mutex;
use protocol::extras::ConfigVersion;
use serde_json::{Value, json};

use super::control;
use super::doors::{Wires, world};
use super::management::EveryNode;
use super::node::{DevNode, demote, promote};
use super::plan::{Placement, Plan, even};
use crate::cluster_map::{BucketLayout, Layout, Membership, NodeAddress, NodeEntry};
use crate::config::{BucketSpec, Config, ConfigError, Settings};
use crate::node::Node;
use crate::server::Failure;

/// The most nodes in one process.
pub const MOST_NODES: u16 = 16;
/// Clusters begin with a later epoch than nodes alone.
const EPOCH: i64 = 2;
const PLAN_FILE: &str = "plan.json";
const NEXT_PLAN_FILE: &str = "plan.json.next";
const MAX_PLAN_BYTES: u64 = 16 << 20;
/// Files of documents that each node may have open.
const OPEN_FILES: usize = 400;

/// What a cluster is started with.
#[derive(Clone, Debug)]
pub struct DevConfig {
    /// Nodes, 1 to [`MOST_NODES`].
    pub nodes: u16,
    /// The buckets that are there from the start.
    pub buckets: Vec<BucketSpec>,
    /// Where each node has a folder.
    pub data: PathBuf,
    /// The user that may do everything.
    pub username: String,
    /// That user's password.
    pub password: String,
    /// Where the first node listens for clients; the others take free ports of the same host.
    pub kv: SocketAddr,
    /// Where the first node listens for HTTP.
    pub http: SocketAddr,
    /// Where the control endpoint listens.
    pub control: SocketAddr,
    /// Threads of each node that serve clients.
    pub threads: usize,
    /// vBuckets of each bucket.
    pub vbuckets: u16,
}

/// Why something was not done to a cluster.
#[derive(Debug, thiserror::Error)]
pub enum DevError {
    /// The configuration makes no sense.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A node failed.
    #[error("node {node}: {source}")]
    Node {
        /// Which, from 1 on.
        node: u16,
        /// What happened.
        source: Failure,
    },
    /// There is no such node.
    #[error("there is no node {0}")]
    NoNode(u16),
    /// It does not run, or does already.
    #[error("node {node} {is}")]
    State {
        /// Which, from 1 on.
        node: u16,
        /// What is in the way.
        is: &'static str,
    },
    /// With it the only copy of some vBucket would be lost.
    #[error("node {0} has the only copy of some vBuckets that can be reached: more replicas are needed")]
    LastCopy(u16),
    /// The system failed.
    #[error("{what}: {source}")]
    Io {
        /// What was tried.
        what: &'static str,
        /// What the system said.
        source: std::io::Error,
    },
}

/// What is shared with whoever asks over HTTP.
pub(super) struct Shared {
    pub(super) config: DevConfig,
    pub(super) env: Env,
    pub(super) state: Mutex<State>,
    wires: Arc<Wires>,
}

/// The nodes and their plan. Its lock comes before all locks of nodes.
pub(super) struct State {
    pub(super) nodes: Vec<DevNode>,
    pub(super) plan: Plan,
    /// What buckets there are, by name.
    pub(super) specs: BTreeMap<String, BucketSpec>,
}

/// A running cluster.
pub struct DevCluster {
    shared: Arc<Shared>,
    control: SocketAddr,
    stop: tokio::sync::watch::Sender<bool>,
    signals: mpsc::Receiver<()>,
    thread: Task,
}

impl DevCluster {
    /// Starts all nodes; when it returns they serve.
    pub fn start(config: DevConfig, env: Env) -> Result<DevCluster, DevError> {
        let wires = Arc::new(Wires::new(usize::from(config.nodes)));
        let plan = read_plan(&config, &env)?;
        let nodes =
            (0..config.nodes).map(|at| new_node(&config, &env, &wires, at)).collect::<Result<_, _>>()?;
        let state = Mutex::new(State { nodes, plan, specs: BTreeMap::new() });
        let shared = Arc::new(Shared { config, env, state, wires });
        start_all(&shared)?;
        let started = control::start(&shared);
        let (control, stop, signals, thread) =
            started.map_err(|source| DevError::Io { what: "cannot start the control endpoint", source })?;
        Ok(DevCluster { shared, control, stop, signals, thread })
    }

    /// The KV and HTTP addresses of all nodes.
    pub fn addresses(&self) -> Vec<(SocketAddr, SocketAddr)> {
        self.shared.state.lock().nodes.iter().map(|node| (node.kv, node.http)).collect()
    }

    /// A node by its place, if it runs.
    pub fn node(&self, at: usize) -> Option<Arc<Node>> {
        self.shared.state.lock().nodes.get(at)?.node().cloned()
    }

    /// Where the control endpoint listens.
    pub fn control_addr(&self) -> SocketAddr {
        self.control
    }

    /// What the control endpoint tells of it.
    pub fn status(&self) -> Value {
        self.shared.status()
    }

    /// Waits until the process is told to stop, by SIGTERM or Ctrl-C.
    pub fn wait_for_signal(&self) {
        // An error means that nobody can signal any more, which is a reason to stop, too.
        let _ = self.signals.recv();
    }

    /// Stops all nodes cleanly.
    pub fn stop(self) -> Result<(), DevError> {
        self.stop.send_replace(true);
        self.thread.join();
        let mut state = self.shared.state.lock();
        for (at, node) in state.nodes.iter_mut().enumerate() {
            node.stop().map_err(|source| DevError::Node { node: at as u16 + 1, source })?;
        }
        Ok(())
    }
}

fn new_node(config: &DevConfig, env: &Env, wires: &Arc<Wires>, at: u16) -> Result<DevNode, DevError> {
    let free = |addr: SocketAddr| if at == 0 { addr } else { SocketAddr::new(addr.ip(), 0) };
    let (kv, http) = (free(config.kv), free(config.http));
    let settings = Settings {
        kv: Some(kv.to_string()),
        http: Some(http.to_string()),
        username: Some(config.username.clone()),
        password: Some(config.password.clone()),
        vbuckets: Some(config.vbuckets),
        threads: Some(config.threads),
        max_open_files: Some(OPEN_FILES.max(4 * config.buckets.len())),
        ..Settings::default()
    };
    let folder = config.data.join(format!("node{}", at + 1));
    let node = Config::new(settings, folder, config.threads, String::new)?;
    let (env, offset_s) = world(env, usize::from(at), wires);
    let config = Config { buckets: config.buckets.clone(), ..node };
    Ok(DevNode { config, env, offset_s, server: None, kv, http, is_frozen: false })
}

/// Starts the nodes beside each other, and gives them what the plan says.
fn start_all(shared: &Arc<Shared>) -> Result<(), DevError> {
    let mut state = shared.state.lock();
    let failed = |source| DevError::Io { what: "cannot start a thread", source };
    let (sender, started) = mpsc::channel();
    let count = state.nodes.len();
    for (at, mut node) in std::mem::take(&mut state.nodes).into_iter().enumerate() {
        let sender = sender.clone();
        let start = move || {
            let outcome = node.start(|_| Ok(()));
            // Whoever waits has given up if another node failed.
            let _ = sender.send((at, node, outcome));
        };
        shared.env.spawn.spawn("start", Box::new(start)).map_err(failed)?;
    }
    drop(sender);
    let mut nodes: Vec<(usize, DevNode, Result<(), Failure>)> = started.into_iter().collect();
    nodes.sort_by_key(|(at, ..)| *at);
    assert_eq!(nodes.len(), count, "each node tells what became of it");
    for (at, mut node, outcome) in nodes {
        if let Err(source) = outcome {
            // Those that started are stopped as well as can be.
            let _ = state.nodes.iter_mut().try_for_each(DevNode::stop);
            let _ = node.stop();
            return Err(DevError::Node { node: at as u16 + 1, source });
        }
        shared.wires.listens(at, node.kv);
        state.nodes.push(node);
    }
    let first = state.nodes[0].node().cloned().expect("it has started");
    let specs: Vec<BucketSpec> = first.buckets().into_iter().map(|(spec, _)| spec).collect();
    state.plan.buckets.retain(|name, _| specs.iter().any(|spec| spec.name == *name));
    for spec in specs {
        if !state.plan.buckets.contains_key(&spec.name) {
            shared.place(&mut state, &spec);
        }
        state.specs.insert(spec.name.clone(), spec);
    }
    for node in state.nodes.iter().filter_map(DevNode::node) {
        node.set_management(Arc::new(EveryNode(Arc::downgrade(shared))));
    }
    shared.apply(&mut state);
    Ok(())
}

impl Shared {
    /// Finds places for the vBuckets of a new bucket.
    pub(super) fn place(&self, state: &mut State, spec: &BucketSpec) {
        let running = || state.nodes.iter().filter_map(DevNode::node);
        let uuid = running().find_map(|node| Some(node.bucket(&spec.name)?.uuid().to_owned()));
        let usable: Vec<u16> =
            (0..self.config.nodes).filter(|at| !state.plan.failed_over.contains(at)).collect();
        let mut rows = even(self.config.vbuckets, usable.len() as u16, spec.replicas);
        rows.iter_mut().flatten().for_each(|at| *at = usable[usize::from(*at)]);
        let placement = Placement {
            uuid: uuid.unwrap_or_else(|| "0".repeat(32)),
            is_ephemeral: spec.kind == BucketKind::Ephemeral,
            replicas: spec.replicas,
            rows,
        };
        state.plan.buckets.insert(spec.name.clone(), placement);
    }

    /// Makes the nodes that run be what the plan says, and tells clients of it.
    pub(super) fn apply(&self, state: &mut State) {
        state.plan.revision += 1;
        if let Err(error) = self.write_plan(&state.plan) {
            tracing::error!(%error, "the plan is not on disk: the next start will have the one before");
        }
        let nodes: Vec<(u16, Arc<Node>)> = (0u16..)
            .zip(&state.nodes)
            .filter_map(|(at, node)| Some((at, Arc::clone(node.node()?))))
            .collect();
        // Whoever shall not be active any more is not before another one is.
        nodes.iter().for_each(|(at, node)| demote(node, *at, &state.plan));
        nodes.iter().for_each(|(at, node)| self.shape(state, *at, node));
    }

    /// Gives a node its roles, its sources and the map.
    fn shape(&self, state: &State, at: u16, node: &Node) {
        let kv: Vec<SocketAddr> = state.nodes.iter().map(|node| node.kv).collect();
        let login = (self.config.username.clone(), self.config.password.clone());
        promote(node, at, &state.plan, &kv, &login);
        if let Err(refusal) = node.set_cluster_map(self.layout(state, at)) {
            tracing::error!(node = at + 1, %refusal, "the cluster map is not taken");
        }
    }

    fn layout(&self, state: &State, this: u16) -> Layout {
        let entry = |(at, node): (u16, &DevNode)| NodeEntry {
            id: format!("n{}", at + 1),
            address: NodeAddress::new(None, node.kv, node.http),
            membership: if state.plan.failed_over.contains(&at) {
                Membership::FailedOver
            } else {
                Membership::Active
            },
            is_healthy: self.is_reachable(state, at),
        };
        let bucket = |(name, placement): (&String, &Placement)| BucketLayout {
            name: name.clone(),
            uuid: placement.uuid.clone(),
            kind: if placement.is_ephemeral { BucketKind::Ephemeral } else { BucketKind::Persistent },
            replicas: placement.replicas,
            manifest_uid: 0,
            rows: placement.rows.iter().map(|row| row.iter().copied().map(Some).collect()).collect(),
        };
        Layout {
            version: ConfigVersion { epoch: EPOCH, revision: state.plan.revision },
            nodes: (0u16..).zip(&state.nodes).map(entry).collect(),
            this_node: Some(this),
            buckets: state.plan.buckets.iter().map(bucket).collect(),
        }
    }

    fn is_reachable(&self, state: &State, at: u16) -> bool {
        let node = &state.nodes[usize::from(at)];
        node.server.is_some() && !node.is_frozen && !self.wires.is_cut(usize::from(at))
    }

    /// The place of a node that people number from 1.
    fn place_of(&self, number: u16) -> Result<usize, DevError> {
        let exists = (1..=self.config.nodes).contains(&number);
        if exists { Ok(usize::from(number - 1)) } else { Err(DevError::NoNode(number)) }
    }

    /// Stops a node cleanly.
    pub(super) fn stop(&self, number: u16) -> Result<(), DevError> {
        let at = self.place_of(number)?;
        let mut state = self.state.lock();
        if state.nodes[at].server.is_none() {
            return Err(DevError::State { node: number, is: "does not run" });
        }
        state.nodes[at].stop().map_err(|source| DevError::Node { node: number, source })?;
        self.apply(&mut state);
        Ok(())
    }

    /// Starts a node that was stopped, where it was.
    pub(super) fn start(self: &Arc<Shared>, number: u16) -> Result<(), DevError> {
        let at = self.place_of(number)?;
        let mut state = self.state.lock();
        if state.nodes[at].server.is_some() {
            return Err(DevError::State { node: number, is: "runs already" });
        }
        // Clients shall not be told that it serves everything, not even at first.
        state.plan.revision += 1;
        let layout = self.layout(&state, at as u16);
        // Taken out, so that its roles can be looked up while it starts.
        let mut node = state.nodes.remove(at);
        let prepare = |started: &Arc<Node>| {
            catch_up(started, &state.specs)?;
            started.set_management(Arc::new(EveryNode(Arc::downgrade(self))));
            demote(started, at as u16, &state.plan);
            started.set_cluster_map(layout).map_err(|refusal| Failure::NotPrepared(refusal.to_string()))
        };
        let outcome = node.start(prepare).map_err(|source| DevError::Node { node: number, source });
        state.nodes.insert(at, node);
        self.apply(&mut state);
        outcome
    }

    /// Lets the clients of a node wait, or go on.
    pub(super) fn freeze(&self, number: u16, is_frozen: bool) -> Result<(), DevError> {
        let at = self.place_of(number)?;
        let mut state = self.state.lock();
        let Some(node) = state.nodes[at].node().cloned() else {
            return Err(DevError::State { node: number, is: "does not run" });
        };
        state.nodes[at].is_frozen = is_frozen;
        node.freeze(is_frozen);
        self.apply(&mut state);
        Ok(())
    }

    /// Cuts a node off from the others, or connects it again.
    pub(super) fn cut(&self, number: u16, is_cut: bool) -> Result<(), DevError> {
        let at = self.place_of(number)?;
        let mut state = self.state.lock();
        self.wires.cut(at, is_cut);
        self.apply(&mut state);
        Ok(())
    }

    /// Others take over from a node, from where they are.
    pub(super) fn fail_over(&self, number: u16) -> Result<(), DevError> {
        let at = self.place_of(number)? as u16;
        let mut state = self.state.lock();
        if state.plan.failed_over.contains(&at) {
            return Err(DevError::State { node: number, is: "is failed over already" });
        }
        let mut plan = state.plan.clone();
        let best = |name: &str, vb: usize, row: &[u16]| {
            let high = |node: u16| {
                let bucket = state.nodes[usize::from(node)].node()?.bucket(name)?;
                bucket.inspect(VbId(vb as u16), |vb| vb.high_seqno())
            };
            let reachable = row.iter().copied().filter(|node| self.is_reachable(&state, *node));
            // Of those that are as far the one that was next.
            reachable.rev().max_by_key(|node| high(*node))
        };
        if !plan.fail_over(at, best) {
            return Err(DevError::LastCopy(number));
        }
        state.plan = plan;
        self.apply(&mut state);
        Ok(())
    }

    /// A node that was failed over holds copies again.
    pub(super) fn recover(&self, number: u16) -> Result<(), DevError> {
        let at = self.place_of(number)? as u16;
        let mut state = self.state.lock();
        if !state.plan.failed_over.contains(&at) {
            return Err(DevError::State { node: number, is: "is not failed over" });
        }
        if state.nodes[usize::from(at)].server.is_none() {
            return Err(DevError::State { node: number, is: "does not run" });
        }
        state.plan.recover(at);
        self.apply(&mut state);
        Ok(())
    }

    /// Moves the wall clock of a node, or of all.
    pub(super) fn advance_clock(&self, number: Option<u16>, seconds: i64) -> Result<(), DevError> {
        let only = number.map(|number| self.place_of(number)).transpose()?;
        let state = self.state.lock();
        let moved = state.nodes.iter().enumerate().filter(|(at, _)| only.is_none_or(|only| only == *at));
        for (_, node) in moved {
            let offset_s = node.offset_s.load(Ordering::Relaxed).saturating_add(seconds);
            node.offset_s.store(offset_s, Ordering::Relaxed);
        }
        Ok(())
    }

    /// What there is to tell.
    pub(super) fn status(&self) -> Value {
        let state = self.state.lock();
        let node = |(at, node): (u16, &DevNode)| {
            let active = |rows: &Vec<Vec<u16>>| rows.iter().filter(|row| row.first() == Some(&at)).count();
            let actives = state.plan.buckets.values().map(|bucket| active(&bucket.rows)).sum::<usize>();
            json!({
                "node": at + 1,
                "kv": node.kv.to_string(),
                "http": node.http.to_string(),
                "data": node.config.data_dir,
                "is_running": node.server.is_some(),
                "is_frozen": node.is_frozen,
                "is_cut": self.wires.is_cut(usize::from(at)),
                "is_failed_over": state.plan.failed_over.contains(&at),
                "clock_offset_s": node.offset_s.load(Ordering::Relaxed),
                "active_vbuckets": actives,
            })
        };
        json!({
            "epoch": EPOCH,
            "revision": state.plan.revision,
            "buckets": state.plan.buckets.keys().collect::<Vec<_>>(),
            "nodes": (0u16..).zip(&state.nodes).map(node).collect::<Vec<_>>(),
        })
    }

    fn write_plan(&self, plan: &Plan) -> std::io::Result<()> {
        let (disk, folder) = (&self.env.disk, &self.config.data);
        let bytes = serde_json::to_vec(plan).map_err(std::io::Error::other)?;
        let next = folder.join(NEXT_PLAN_FILE);
        let file = disk.open(&next, OpenMode::Create)?;
        file.set_len(0)?;
        file.write_at(&bytes, 0)?;
        file.sync_data()?;
        disk.rename(&next, &folder.join(PLAN_FILE))?;
        disk.sync_dir(folder)
    }
}

/// Makes and deletes what other nodes made and deleted while this one did not run.
fn catch_up(node: &Arc<Node>, specs: &BTreeMap<String, BucketSpec>) -> Result<(), Failure> {
    let failed = |error: crate::node_buckets::BucketError| Failure::NotPrepared(error.to_string());
    let have = node.bucket_names();
    for name in have.iter().filter(|name| !specs.contains_key(*name)) {
        node.delete_bucket(name).map_err(failed)?;
    }
    for spec in specs.values().filter(|spec| !have.contains(&spec.name)) {
        node.create_bucket(spec.clone()).map_err(failed)?;
    }
    Ok(())
}

/// The plan of the cluster that ran here before; an empty one if none did, or one of another size.
fn read_plan(config: &DevConfig, env: &Env) -> Result<Plan, DevError> {
    let failed = |source| DevError::Io { what: "cannot read the plan of the cluster", source };
    env.disk.create_dir_all(&config.data).map_err(failed)?;
    let file = match env.disk.open(&config.data.join(PLAN_FILE), OpenMode::Read) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Plan::default()),
        Err(error) => return Err(failed(error)),
    };
    let len = file.len().map_err(failed)?.min(MAX_PLAN_BYTES);
    let mut bytes = vec![0; len as usize];
    let read = file.read_at(&mut bytes, 0).map_err(failed)?;
    let plan: Plan = serde_json::from_slice(&bytes[..read]).map_err(|error| failed(error.into()))?;
    let fits = |placement: &Placement| {
        let is_node = |at: &u16| *at < config.nodes;
        placement.rows.len() == usize::from(config.vbuckets)
            && placement.rows.iter().all(|row| !row.is_empty() && row.iter().all(is_node))
    };
    if plan.buckets.values().all(fits) && plan.failed_over.iter().all(|at| *at < config.nodes) {
        return Ok(plan);
    }
    let other = "another number of nodes or vBuckets ran here; give the same, or another folder";
    Err(failed(std::io::Error::other(other)))
}
