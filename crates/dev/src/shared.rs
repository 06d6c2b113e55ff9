//! The nodes of a development cluster and its coordination store, for whoever gives orders.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use ::cluster::{Bucket, Command, NodeId, Refused, Status, Store, View};
use ::node::cluster::ClusterError;
use base::env::Env;
use parking_lot::Mutex;

use super::config::{DevConfig, DevError};
use super::doors::Wires;
use super::node::DevNode;

/// How long a change may be overlooked.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// What is shared with whoever asks over HTTP.
pub(super) struct Shared {
    pub(super) config: DevConfig,
    pub(super) env: Env,
    /// As nobody can be cut off from it.
    pub(super) store: Arc<dyn Store>,
    pub(super) wires: Arc<Wires>,
    nodes: Mutex<BTreeMap<u16, Arc<DevNode>>>,
    /// Held while nodes are added and removed.
    pub(super) counting: Mutex<()>,
    /// By how many seconds the clocks of all nodes were moved, which holds for those to come, too.
    pub(super) offset_s: Mutex<i64>,
}

impl Shared {
    /// Without nodes.
    pub(super) fn new(config: DevConfig, env: Env, store: Arc<dyn Store>) -> Shared {
        let (wires, nodes, counting) = (Arc::default(), Mutex::default(), Mutex::default());
        Shared { config, env, store, wires, nodes, counting, offset_s: Mutex::default() }
    }

    /// Adds a node, which does not run yet. The first one listens where the configuration says.
    pub(super) fn add_node(&self, number: u16, is_first: bool) -> Result<Arc<DevNode>, DevError> {
        let node = Arc::new(DevNode::new(self, number, is_first)?);
        // Held until it is among those whose clocks are moved.
        let offset_s = self.offset_s.lock();
        node.advance_clock(*offset_s)?;
        self.nodes.lock().insert(number, Arc::clone(&node));
        Ok(node)
    }

    /// Forgets a node.
    pub(super) fn forget_node(&self, number: u16) {
        let gone = self.nodes.lock().remove(&number);
        drop(gone);
        self.wires.cut(number, false);
        self.wires.listens(number, Vec::new());
    }

    /// All nodes by number.
    pub(super) fn nodes(&self) -> Vec<Arc<DevNode>> {
        self.nodes.lock().values().map(Arc::clone).collect()
    }

    /// A node.
    pub(super) fn node(&self, number: u16) -> Result<Arc<DevNode>, DevError> {
        self.nodes.lock().get(&number).map(Arc::clone).ok_or(DevError::NoNode(number))
    }

    /// What the coordination store holds now; nothing before the first node has joined.
    pub(super) fn view(&self) -> Result<Option<View>, DevError> {
        Ok(View::of(&self.store.read()?)?)
    }

    /// What the cluster calls a node, and what it is to it.
    pub(super) fn id_of(&self, number: u16) -> Result<Option<(NodeId, Status)>, DevError> {
        let uuid = self.node(number)?.look().uuid;
        let view = self.view()?;
        let known = uuid.zip(view).and_then(|(uuid, view)| {
            let (id, node) = view.state.node_of(&uuid)?;
            Some((id, node.status))
        });
        Ok(known)
    }

    /// What people call a node of the cluster.
    pub(super) fn name_of(&self, view: &View, id: NodeId) -> String {
        let uuid = view.state.nodes.get(&id).map(|node| &node.uuid);
        let nodes = self.nodes();
        let found = nodes.iter().find(|node| uuid.is_some() && node.look().uuid.as_ref() == uuid);
        found.map_or_else(|| id.name(), |node| format!("node {}", node.number))
    }

    /// What the cluster says about one of its nodes, with the name that people know.
    fn refused(&self, refused: Refused) -> Result<(), DevError> {
        let (Refused::NodeDown(id) | Refused::CannotHandOver(id) | Refused::WrongStatus(id, _)) = refused
        else {
            return Err(ClusterError::Refused(refused).into());
        };
        let name = self.view()?.map_or_else(|| id.name(), |view| self.name_of(&view, id));
        let said = DevError::from(ClusterError::Refused(refused)).to_string();
        Err(DevError::Refused(said.replacen(&id.name(), &name, 1)))
    }

    /// Asks something of the cluster, through a node that can do something about it.
    pub(super) fn ask(&self, command: &Command) -> Result<(), DevError> {
        let member = self.nodes().iter().find_map(|node| node.member()).ok_or(DevError::Nobody)?;
        match member.ask(command) {
            Ok(_) => Ok(()),
            // It was cut off, or is being stopped.
            Err(ClusterError::Store(_)) => Err(DevError::Nobody),
            Err(ClusterError::Refused(refused)) => self.refused(refused),
            Err(error) => Err(error.into()),
        }
    }

    /// Waits until what the store holds is as `is_so` wants it; false if that takes longer than `at_most`.
    pub(super) fn wait(&self, at_most: Duration, is_so: impl Fn(&View) -> bool) -> Result<bool, DevError> {
        let end = self.env.clock.monotonic() + at_most;
        loop {
            let snapshot = self.store.read()?;
            if View::of(&snapshot)?.is_some_and(|view| is_so(&view)) {
                return Ok(true);
            }
            let left = end.saturating_sub(self.env.clock.monotonic());
            if left.is_zero() {
                return Ok(false);
            }
            self.store.wait(snapshot.version, left.min(LOOK_AGAIN))?;
        }
    }
}

/// What is under way, for people.
pub(super) fn under_way(view: &View, name: impl Fn(NodeId) -> String) -> String {
    let state = &view.state;
    let steps: usize = state.buckets.values().map(|bucket| bucket.steps.len()).sum();
    let flushing = state.buckets.values().filter(|bucket| bucket.flushing.is_some()).count();
    let is_behind =
        |id: &&NodeId| view.alive(**id).is_some() && view.report_since(**id, state.revision).is_none();
    let behind: Vec<String> = state.nodes.keys().filter(is_behind).map(|id| name(*id)).collect();
    let down: Vec<String> =
        state.nodes.keys().filter(|id| view.alive(**id).is_none()).map(|id| name(*id)).collect();
    let mut parts = Vec::new();
    let mut say = |is_so: bool, what: String| parts.extend(is_so.then_some(what));
    let (left, total) = (state.to_move(), state.rebalance.as_ref().map_or(0, |rebalance| rebalance.total));
    say(state.rebalance.is_some(), format!("a rebalance has {left} of {total} vBuckets left to move"));
    say(steps > 0, format!("{steps} vBuckets are on their way"));
    say(flushing > 0, format!("{flushing} buckets are being emptied"));
    say(!behind.is_empty(), format!("{} has not done its part", behind.join(", ")));
    say(!down.is_empty(), format!("{} is down", down.join(", ")));
    say(state.nodes.is_empty(), "no node has joined".to_owned());
    if parts.is_empty() { "a node is not let in yet".to_owned() } else { parts.join(", ") }
}

/// Whether nothing is under way, and everybody who is alive is as the document says.
pub(super) fn is_settled(view: &View) -> bool {
    let is_quiet = |bucket: &Bucket| bucket.steps.is_empty() && bucket.flushing.is_none();
    let is_quiet = view.state.rebalance.is_none() && view.state.buckets.values().all(is_quiet);
    let has_done = |id: &NodeId| {
        let is_member = view.members.contains_key(&view.state.nodes[id].uuid);
        !is_member || view.report_since(*id, view.state.revision).is_some()
    };
    is_quiet && view.state.nodes.keys().all(has_done)
}

/// Whether a node is alive, and admitted.
pub(super) fn is_in(view: &View, uuid: &str) -> bool {
    view.state.node_of(uuid).is_some_and(|(id, _)| view.alive(id).is_some())
}
