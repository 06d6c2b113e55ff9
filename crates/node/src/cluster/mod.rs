//! The node's part in a cluster: its lease, its fence, the document that it follows, and leading if it is elected.
//!
//! Threads: one keeps the lease and does nothing else, so that nothing slow lets it run out; another one follows the
//! document, reports, and leads. Both ask the coordination store, which may block. A third one has every other node asked
//! for its promise (`promises.rs`), each on a thread of its own. A fourth one follows the users (`users.rs`).

pub(crate) mod adoption;
pub(crate) mod apply;
pub(crate) mod buckets;
mod credentials;
#[cfg(test)]
mod damaged_files;
pub mod flushed;
mod follow;
pub mod founding;
pub mod identity;
mod layout;
mod life;
pub mod membership;
pub mod names;
pub mod node_secret;
pub mod noted;
pub mod promises;
mod removals;
pub mod seen_users;
pub mod serving;
mod trouble;
pub(crate) mod users;
pub mod vouched;

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ::cluster::store::{Commit, Store, StoreFailure, Swapped, Version};
use ::cluster::tenure::{Tenure, Writer};
use ::cluster::{
    Address, Applied, Authority, Command, LeaderConfig, Limits, NodeId, Refused, View, command, keys,
};
use base::VbState;
use base::env::{Env, Task};
use engine::Bucket;
use parking_lot::{Condvar, Mutex};

use crate::config::UserSpec;
use crate::node::Node;
use founding::Founding;
use membership::Seen as Membership;
use noted::Noted;

/// What a node of a cluster goes by.
#[derive(Clone, Copy, Debug)]
pub struct ClusterConfig {
    /// How long a lease lives without being renewed. A node that fails is missed after this.
    pub lease_ttl: Duration,
    /// What it leads by, if it does.
    pub leader: LeaderConfig,
}

impl Default for ClusterConfig {
    fn default() -> Self {
        ClusterConfig { lease_ttl: Duration::from_secs(5), leader: LeaderConfig::default() }
    }
}

/// Why a node cannot belong to a cluster, or something asked of the cluster was not done.
#[derive(Debug, thiserror::Error)]
pub enum ClusterError {
    /// The coordination store.
    #[error(transparent)]
    Store(#[from] StoreFailure),
    /// What the store holds is no document of this version.
    #[error(transparent)]
    Invalid(#[from] ::cluster::state::Invalid),
    /// The cluster refuses.
    #[error(transparent)]
    Refused(#[from] Refused),
    /// The store holds an older state, or that of another cluster.
    #[error(transparent)]
    Stale(#[from] ::cluster::Stale),
    /// The state in the store is one that this node follows.
    #[error(
        "there is nothing to adopt: the coordination store holds no older state than this node has seen, and none of \
         another cluster"
    )]
    NothingToAdopt,
    /// The store holds no cluster yet.
    #[error("there is no cluster yet")]
    NoCluster,
    /// Others changed the document again and again.
    #[error("the cluster is changing; try again")]
    Busy,
    /// The secret of the nodes is of a later version.
    #[error(
        "this version does not understand the secret of the cluster's nodes: ask a node of the newest version"
    )]
    NewerSecret,
    /// Others cannot reach this node.
    #[error("a node that listens everywhere must say by which name others reach it: give --advertise")]
    NoAddress,
    /// The node was not started as one that a cluster decides about.
    #[error("this node decides itself what it serves")]
    NotFenced,
    /// The file with the node's identity, or a thread.
    #[error("{0}: {1}")]
    Io(&'static str, io::Error),
}

impl ClusterError {
    /// Whether it is no fault of what was asked: asking again later helps.
    pub fn is_passing(&self) -> bool {
        matches!(self, ClusterError::Store(_) | ClusterError::NoCluster | ClusterError::Busy)
    }

    /// What is wrong, what has become of what was asked, and what to do about it.
    pub fn advice(&self) -> String {
        match self {
            ClusterError::Store(failure) if failure.operation == WRITE => format!(
                "{failure}: whether it was done is not known; see that the coordination store (etcd, as given by \
                 --join) runs and can be reached from this node, look at the cluster (stave cluster status), and ask \
                 again if it was not done"
            ),
            ClusterError::Store(failure) => format!(
                "{failure}: nothing was changed; see that the coordination store (etcd, as given by --join) runs and \
                 can be reached from this node, and ask again. Without it nodes serve on, as long as they reach each other"
            ),
            other => other.to_string(),
        }
    }
}

/// The store's operation that changes the document: if it fails, it may have been done all the same.
const WRITE: &str = "swap";

/// How often a command is tried anew when the document has changed meanwhile.
const TRIES: usize = 20;

/// A node's membership in a cluster; ends when it is stopped.
pub struct Cluster {
    node: Arc<Node>,
    store: Arc<dyn Store>,
    /// Where users and groups are; `None` if the store keeps none.
    users: Option<Arc<dyn Store>>,
    config: ClusterConfig,
    uuid: String,
    /// Without the one for clients of another network, which may change.
    address: Address,
    /// Whether the store has the address as it is.
    address_is_told: AtomicBool,
    /// What the node can hold.
    limits: Option<Limits>,
    /// Whose password must be the cluster's; nothing if that is not looked at.
    user: Option<UserSpec>,
    /// What the node may serve.
    authority: Mutex<Authority>,
    /// What proves to other nodes that this one belongs to the cluster; `None` if it has no user.
    key: Option<promises::Key>,
    /// The secret of the cluster's nodes.
    secret: node_secret::ClusterSecret,
    names: names::Resolver,
    /// Whether the node had an identity when it was started, and its folder knew of no cluster.
    knows_of_no_cluster: bool,
    founding: Founding,
    /// Whether the cluster has it all the same: then it keeps no lease.
    has_forgotten: AtomicBool,
    /// What this node has of the cluster's buckets.
    noted: Mutex<Noted>,
    /// The newest state that this node has seen, durably.
    membership: Mutex<Membership>,
    seen: Mutex<Seen>,
    /// What was removed from buckets, as this process has seen it.
    removals: Mutex<removals::Removals>,
    /// What this process has written of the cluster's state.
    writer: Mutex<Writer>,
    changed: Condvar,
    is_stopping: AtomicBool,
    stop: Mutex<bool>,
    stopped: Condvar,
    threads: Mutex<Vec<Task>>,
}

/// What the agent has seen and done.
#[derive(Default)]
struct Seen {
    view: Option<Arc<View>>,
    /// Why the document is not followed now.
    lost: Option<String>,
    /// Why users are not followed now.
    users_lost: Option<String>,
    /// This node has founded the cluster, and its own users are not in the store yet.
    moves_users: bool,
    /// Why the node does not join.
    outside: Option<String>,
    /// Whether it does not join since it has another user or password than the cluster.
    is_stranger: bool,
    /// How far this node has become what the document says.
    applied: Applied,
    /// The tenures up to the revision beyond which the node serves nothing.
    let_go: Vec<Tenure>,
}

impl Seen {
    /// The node serves nothing that this document does not let it.
    fn note_let_go(&mut self, state: &::cluster::State) {
        self.applied.let_go = state.revision;
        self.let_go.clone_from(&state.tenures);
    }
}

/// Where a node is reached, without its address for clients of another network.
fn address_of(node: &Node) -> Result<Address, ClusterError> {
    let address = node.address();
    let host = address.host.clone().ok_or(ClusterError::NoAddress)?;
    let (kv_tls, http_tls) = (address.tls.map(|tls| tls.kv), address.tls.map(|tls| tls.http));
    let (kv, http) = (address.kv_port, address.http_port);
    Ok(Address { host, kv, http, kv_tls, http_tls, alternate: None })
}

/// What a node can hold.
fn limits_of(node: &Node) -> Option<Limits> {
    let host = node.host()?;
    Some(Limits { quota_bytes: host.memory_quota_bytes(), vbuckets: host.config().vbuckets })
}

impl Cluster {
    /// Makes the node a member. It serves when the cluster lets it: see [`Cluster::wait_until_served`].
    pub fn join(
        node: Arc<Node>,
        store: Arc<dyn Store>,
        config: ClusterConfig,
    ) -> Result<Arc<Cluster>, ClusterError> {
        Cluster::join_as(node, store, config, None)
    }

    /// The same, if the node's first user and its password are the cluster's: see [`Cluster::is_stranger`].
    pub fn join_checked(
        node: Arc<Node>,
        store: Arc<dyn Store>,
        config: ClusterConfig,
    ) -> Result<Arc<Cluster>, ClusterError> {
        let user = node.host().and_then(|host| host.config().users.first().cloned());
        Cluster::join_as(node, store, config, user)
    }

    fn join_as(
        node: Arc<Node>,
        store: Arc<dyn Store>,
        config: ClusterConfig,
        user: Option<UserSpec>,
    ) -> Result<Arc<Cluster>, ClusterError> {
        if node.fence().is_open() {
            return Err(ClusterError::NotFenced);
        }
        let address = address_of(&node)?;
        let had_uuid = identity::is_known(&node);
        let uuid =
            identity::of_node(&node).map_err(|error| ClusterError::Io("the node's identity", error))?;
        let noted = Noted::read(node.env(), data_folder(&node));
        let noted = noted.map_err(|error| ClusterError::Io("what is noted of buckets", error))?;
        let membership = vouched::seen_by(&node, &uuid, data_folder(&node));
        let membership =
            membership.map_err(|error| ClusterError::Io("what is noted of the cluster", error))?;
        let founding = Founding::read(node.env(), data_folder(&node));
        let limits = limits_of(&node);
        let seen = membership.get().cloned().unwrap_or_default();
        let (random, now_ns) = (node.env().random.next_u64(), node.env().clock.monotonic_ns());
        let authority = Authority::new(random, Arc::clone(node.fence()), &seen, now_ns, config.lease_ttl);
        let key = node.host().and_then(|host| host.config().users.first().map(promises::Key::derive));
        let names = names::Resolver::new(node.env().clone());
        let users = store.sibling(users::SIBLING)?;
        let cluster = Arc::new(Cluster {
            node: Arc::clone(&node),
            store,
            users,
            config,
            uuid,
            address,
            address_is_told: AtomicBool::new(true),
            limits,
            user,
            authority: Mutex::new(authority),
            key,
            secret: node_secret::ClusterSecret::default(),
            names,
            // Before a node belongs to a cluster it notes a state without itself.
            knows_of_no_cluster: had_uuid && noted.is_empty() && membership.get().is_none(),
            founding,
            has_forgotten: AtomicBool::new(false),
            noted: Mutex::new(noted),
            membership: Mutex::new(membership),
            seen: Mutex::default(),
            removals: Mutex::default(),
            writer: Mutex::default(),
            changed: Condvar::new(),
            is_stopping: AtomicBool::new(false),
            stop: Mutex::new(false),
            stopped: Condvar::new(),
            threads: Mutex::default(),
        });
        node.belongs_to(&cluster);
        node.set_management(Arc::new(buckets::ClusterBuckets(Arc::downgrade(&cluster))));
        for (name, run) in [
            ("lease", (|member| member.keep_lease()) as fn(&Arc<Cluster>)),
            ("cluster", |member| member.follow()),
            ("promises", |member| member.keep_promises()),
            ("users", |member| users::ClusterUsers(member).follow_users()),
        ] {
            let member = Arc::clone(&cluster);
            let task = node.env().spawn.spawn(name, Box::new(move || run(&member)));
            cluster.threads.lock().push(task.map_err(|error| ClusterError::Io("a thread", error))?);
        }
        Ok(cluster)
    }

    /// This node's identity.
    pub fn uuid(&self) -> &str {
        &self.uuid
    }

    /// What this node has read last; nothing before the first time.
    pub fn view(&self) -> Option<Arc<View>> {
        self.seen.lock().view.clone()
    }

    /// Waits until this node is as `is_so` wants the newest document that it follows, and the revision that all its
    /// buckets are as; false if that takes longer than `at_most`.
    pub fn wait_until(&self, at_most: Duration, is_so: impl Fn(&View, u64) -> bool) -> bool {
        self.wait_for(at_most, |seen| {
            seen.view.as_ref().is_some_and(|view| is_so(view, seen.applied.of_all()))
        })
    }

    /// The same for one bucket: the revision is the one that this bucket is as, whatever became of the others.
    pub(crate) fn wait_until_bucket(
        &self,
        bucket: &str,
        at_most: Duration,
        is_so: impl Fn(&View, u64) -> bool,
    ) -> bool {
        self.wait_for(at_most, |seen| {
            seen.view.as_ref().is_some_and(|view| is_so(view, seen.applied.of(bucket)))
        })
    }

    fn wait_for(&self, at_most: Duration, is_so: impl Fn(&Seen) -> bool) -> bool {
        let clock = &self.node.env().clock;
        let end = clock.monotonic() + at_most;
        let mut seen = self.seen.lock();
        loop {
            if is_so(&seen) {
                return true;
            }
            let left = end.saturating_sub(clock.monotonic());
            if left.is_zero() || self.is_stopping() {
                return false;
            }
            let _ = self.changed.wait_for(&mut seen, left);
        }
    }

    /// Waits until there is something newer than what this node has read last, or for so long.
    pub fn wait_for_news(&self, at_most: Duration) {
        let version = |seen: &Seen| seen.view.as_ref().map(|view| view.version);
        let before = version(&self.seen.lock());
        self.wait_for(at_most, |seen| version(seen) != before);
    }

    /// The outside world as the node sees it.
    pub fn node_env(&self) -> &Env {
        self.node.env()
    }

    /// Why the node does not follow the cluster's document now; nothing if it does.
    pub fn lost(&self) -> Option<String> {
        self.seen.lock().lost.clone()
    }

    /// Why the node does not join, which somebody has to decide about; nothing if it belongs to the cluster.
    pub fn outside(&self) -> Option<String> {
        self.seen.lock().outside.clone()
    }

    /// Whether the node does not join since its user or password is not the cluster's, which only another start changes.
    pub fn is_stranger(&self) -> bool {
        self.seen.lock().is_stranger
    }

    /// Waits until a bucket is what a revision says on all nodes of the cluster that are alive; false if that takes
    /// longer than `at_most`.
    pub fn wait_until_all_have(&self, bucket: &str, revision: u64, at_most: Duration) -> bool {
        self.wait_until_bucket(bucket, at_most, |view, _| {
            let mut nodes = view.state.nodes.keys().filter(|id| view.alive(**id).is_some());
            let has = |id: &NodeId| view.bucket_since(*id, bucket, revision).is_some();
            view.state.revision >= revision && nodes.all(has)
        })
    }

    /// Waits until the cluster has admitted this node, and it has become what the document says, except buckets that it
    /// cannot make: one of those does not keep the others from being served. False if that takes longer than
    /// `at_most`, or if the node does not join: see [`Cluster::outside`].
    pub fn wait_until_served(&self, at_most: Duration) -> bool {
        let is_served =
            |seen: &Seen| seen.view.as_ref().is_some_and(|view| self.is_served(view, seen.applied.revision));
        self.wait_for(at_most, |seen| seen.outside.is_some() || is_served(seen))
            && is_served(&self.seen.lock())
    }

    fn is_served(&self, view: &View, applied: u64) -> bool {
        let node = view.state.node_of(&self.uuid);
        let incarnation = self.incarnation();
        node.is_some_and(|(_, node)| node.incarnation == incarnation) && applied >= view.state.revision
    }

    /// Asks something of the cluster: writes the document that comes of it. Blocks.
    pub fn ask(&self, what: &Command) -> Result<Arc<View>, ClusterError> {
        self.ask_for(|_| Ok(what.clone()))
    }

    /// Asks something that depends on how things are: `what` sees them, and again whenever the document was changed by
    /// others before this could write. Blocks.
    pub fn ask_for<E: From<ClusterError>>(
        &self,
        what: impl Fn(&View) -> Result<Command, E>,
    ) -> Result<Arc<View>, E> {
        for _ in 0..TRIES {
            // What was seen before the read: the thread that follows the state may note a newer one meanwhile, and then
            // the write conflicts.
            let seen = self.membership.lock().get().cloned().unwrap_or_default();
            let snapshot = self.store.read().map_err(ClusterError::from)?;
            let view = View::of(&snapshot).map_err(ClusterError::from)?.ok_or(ClusterError::NoCluster)?;
            seen.check(&view.state).map_err(ClusterError::from)?;
            let mut next = command::apply(&view, &what(&view)?).map_err(ClusterError::from)?;
            if next.revision == view.state.revision {
                return Ok(Arc::new(view));
            }
            if let Some(version) = self.write(&mut next, Some(&view))? {
                return Ok(Arc::new(View { state: next, version, ..view }));
            }
        }
        Err(ClusterError::Busy.into())
    }

    /// Follows the state that the store holds, although it is older than one that this node has seen, or that of another
    /// cluster: writes it anew, newer than what this node has seen. What was changed since is given up. Blocks.
    pub fn adopt(&self) -> Result<u64, ClusterError> {
        for _ in 0..TRIES {
            let snapshot = self.store.read()?;
            let view = View::of(&snapshot)?.ok_or(ClusterError::NoCluster)?;
            let mut membership = self.membership.lock();
            let seen = membership.get().cloned().unwrap_or_default();
            if seen.check(&view.state).is_ok() {
                return Err(ClusterError::NothingToAdopt);
            }
            let mut next = seen.adopt(&view.state, self.node.env().random.next_u64());
            adoption::go_forward(self, &mut next);
            if self.write(&mut next, Some(&view))?.is_none() {
                continue;
            }
            tracing::warn!(
                seen = seen.revision,
                adopted = view.state.revision,
                as_revision = next.revision,
                "an older state of the cluster was adopted"
            );
            let env = self.node.env();
            let noted = membership.put(env, ::cluster::Membership::of(&next));
            noted.map_err(|error| ClusterError::Io("what is noted of the cluster", error))?;
            return Ok(next.revision);
        }
        Err(ClusterError::Busy)
    }

    /// Writes a state in the place of another one, or as the first, in a tenure of this process; nothing if that is not the one in the store.
    fn write(
        &self,
        state: &mut ::cluster::State,
        instead_of: Option<&View>,
    ) -> Result<Option<Version>, ClusterError> {
        let before = instead_of.map_or(0, |view| view.state.revision);
        self.writer.lock().sign(state, before, self.node.env().random.next_u64());
        let puts = state.changes(instead_of.map(|view| &view.state))?;
        let version = instead_of.map_or(Version::ABSENT, |view| view.version);
        let commit = Commit { guard: Some((keys::STATE, version)), puts: &puts, lease: None };
        match self.store.commit(commit)? {
            Swapped::Done(version) => Ok(Some(version)),
            Swapped::Conflict | Swapped::NoLease => Ok(None),
        }
    }

    fn is_stopping(&self) -> bool {
        self.is_stopping.load(Ordering::Acquire)
    }

    /// Waits; true if the membership ends.
    fn pause(&self, at_most: Duration) -> bool {
        let mut stop = self.stop.lock();
        if !*stop {
            let _ = self.stopped.wait_for(&mut stop, at_most);
        }
        *stop
    }

    /// Ends the membership: the node serves nothing any more, and others need not wait for its lease to run out.
    /// False if one of its threads panicked.
    pub fn stop(&self) -> bool {
        {
            let mut authority = self.authority.lock();
            self.is_stopping.store(true, Ordering::Release);
            authority.stop();
        }
        *self.stop.lock() = true;
        self.stopped.notify_all();
        self.changed.notify_all();
        users::ClusterUsers(self).wake_users();
        let threads = std::mem::take(&mut *self.threads.lock());
        // All of them are waited for, whatever became of one.
        let panicked = threads.into_iter().filter_map(|thread| (!thread.join()).then_some(())).count();
        panicked == 0
    }
}

/// Before a cluster says what a node serves, it serves nothing, and nobody may follow it: it may have less than those
/// who would. Returns what was refused.
#[must_use]
pub(crate) fn hold_all(bucket: &Bucket) -> Vec<(base::VbId, engine::Refusal)> {
    let served = |vb: &base::VbId| matches!(bucket.state_of(*vb), Some(VbState::Active | VbState::Pending));
    let held = (0..bucket.vbuckets())
        .map(base::VbId)
        .filter(served)
        .filter_map(|vb| Some((vb, bucket.roles().set_vbucket_state(vb, VbState::Replica, None).err()?)));
    held.collect()
}

fn data_folder(node: &Node) -> PathBuf {
    node.host().map(|host| host.config().data_dir.clone()).unwrap_or_default()
}
