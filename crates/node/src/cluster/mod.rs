//! The node's part in a cluster: its lease, its fence, the document that it follows, and leading if it is elected.
//!
//! Threads: one keeps the lease and does nothing else, so that nothing slow lets it run out; another one follows the
//! document, reports, and leads. Both ask the coordination store, which may block. A third one has every other node asked
//! for its promise (`promises.rs`), each on a thread of its own. A fourth one follows the users (`users.rs`).

pub(crate) mod adoption;
pub(crate) mod apply;
pub(crate) mod buckets;
mod config;
mod credentials;
#[cfg(test)]
mod damaged_files;
mod document;
mod ending;
mod error;
pub mod flushed;
mod follow;
pub mod founding;
pub(crate) mod hold;
pub mod identity;
mod layout;
mod life;
pub mod links_down;
pub(crate) mod manifest;
pub mod membership;
pub(crate) mod migrating;
pub mod names;
pub mod node_secret;
pub mod noted;
mod progress;
pub mod promises;
mod removals;
pub mod seen_users;
pub mod serving;
pub(crate) mod still_joining;
mod stores;
mod trouble;
pub(crate) mod users;
pub mod vouched;

use std::sync::{Arc, Weak};
use std::time::Duration;

use ::cluster::store::Store;
use ::cluster::{Address, Command, View};
use apply::LocalBuckets;
use base::env::{Env, Task};
use document::Document;
use ending::Ending;
use follow::Follower;
use founding::Founding;
use life::Lease;
use node_secret::NodeSecrets;
use noted::Noted;
use parking_lot::Mutex;
use progress::{DocumentProgress, Followed};
use promises::Promises;
use sha2::{Digest, Sha256};
use users::ClusterUsers;

use self::identity::data_folder;
use crate::config::UserSpec;
use crate::node::{AnyMembership, Node};

pub use config::ClusterConfig;
pub use error::ClusterError;
pub use migrating::ClusterMove;

/// A node's membership in a cluster; ends when it is stopped.
///
/// Each part owns what it changes, and holds the parts that it asks. No part holds the whole.
pub struct Cluster {
    node: Arc<Node>,
    store: Arc<dyn Store>,
    uuid: String,
    lease: Arc<Lease>,
    secrets: Arc<NodeSecrets>,
    promises: Arc<Promises>,
    document: Arc<Document>,
    progress: Arc<DocumentProgress>,
    buckets: Arc<LocalBuckets>,
    users: Arc<ClusterUsers>,
    ending: Arc<Ending>,
    threads: Mutex<Vec<Task>>,
}

/// What a thread does.
type Job = Box<dyn FnOnce() + Send>;

/// Where a node is reached, without its address for clients of another network.
fn address_of(node: &Node) -> Result<Address, ClusterError> {
    let address = node.address();
    let host = address.host.clone().ok_or(ClusterError::NoAddress)?;
    let (kv_tls, http_tls) = (address.tls.map(|tls| tls.kv), address.tls.map(|tls| tls.http));
    let (kv, http) = (address.kv_port, address.http_port);
    Ok(Address { host, kv, http, kv_tls, http_tls, alternate: None })
}

impl Node {
    /// The cluster that decides what the node serves, if there is one.
    pub fn cluster(&self) -> Option<Arc<Cluster>> {
        let membership = self.membership.read().as_ref().and_then(Weak::upgrade);
        membership?.downcast().ok()
    }
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
        let (cluster, follower) = Cluster::of_parts(&node, &store, config, user)?;
        let cluster = Arc::new(cluster);
        let management = buckets::ClusterBuckets(Arc::downgrade(&cluster));
        let membership: Weak<AnyMembership> = Arc::<Cluster>::downgrade(&cluster);
        node.belongs_to(membership, Arc::new(management));
        cluster.begin(follower)?;
        Ok(cluster)
    }

    /// The parts of a membership, as the node's files have it, and what is to follow the document.
    fn of_parts(
        node: &Arc<Node>,
        store: &Arc<dyn Store>,
        config: ClusterConfig,
        user: Option<UserSpec>,
    ) -> Result<(Cluster, Follower), ClusterError> {
        let address = address_of(node)?;
        let had_uuid = identity::is_known(node);
        let uuid = identity::of_node(node).map_err(|error| ClusterError::Io("the node's identity", error))?;
        let noted = Noted::read(node.env(), data_folder(node));
        let noted = noted.map_err(|error| ClusterError::Io("what is noted of buckets", error))?;
        let membership = vouched::seen_by(node, &uuid, data_folder(node));
        let membership =
            membership.map_err(|error| ClusterError::Io("what is noted of the cluster", error))?;
        let seen = membership.get().cloned().unwrap_or_default();
        // Before a node belongs to a cluster it notes a state without itself.
        let knows_of_no_cluster = had_uuid && noted.is_empty() && membership.get().is_none();
        let founding = Founding::read(node.env(), data_folder(node));
        let ending = Arc::new(Ending::default());
        let lease = Arc::new(Lease::new(node, store, config, (&uuid, address), &seen, &ending));
        let progress = Arc::new(DocumentProgress::new(node.env(), &ending));
        let secrets = Arc::new(NodeSecrets::new(node, store, user.clone(), &ending));
        let promises = Promises::new(node, &uuid, config.lease_ttl, &lease, &secrets, &progress, &ending);
        let promises = Arc::new(promises);
        let document = Arc::new(Document::new(node.env(), store, membership));
        let sibling = store.sibling(users::SIBLING)?;
        let users = Arc::new(ClusterUsers::new(node, sibling, &uuid, &progress, &ending));
        let buckets = Arc::new(LocalBuckets::new(node, &uuid, noted, &document, &ending));
        let follower = Follower {
            node: Arc::clone(node),
            store: Arc::clone(store),
            config: config.leader,
            uuid: uuid.clone(),
            user,
            knows_of_no_cluster,
            founding,
            secrets: Arc::clone(&secrets),
            document: Arc::clone(&document),
            progress: Arc::clone(&progress),
            lease: Arc::clone(&lease),
            buckets: Arc::clone(&buckets),
            users: Arc::clone(&users),
            ending: Arc::clone(&ending),
        };
        let (node, store, threads) = (Arc::clone(node), Arc::clone(store), Mutex::default());
        let cluster = Cluster {
            node,
            store,
            uuid,
            lease,
            secrets,
            promises,
            document,
            progress,
            buckets,
            users,
            ending,
            threads,
        };
        Ok((cluster, follower))
    }

    /// Begins the threads.
    fn begin(self: &Arc<Cluster>, follower: Follower) -> Result<(), ClusterError> {
        let (lease, promises) = (Arc::clone(&self.lease), Arc::clone(&self.promises));
        let (users, member) = (Arc::clone(&self.users), Arc::clone(self));
        let follow = move || {
            follower.follow();
            // The node finds its membership for as long as the document is followed.
            drop(member);
        };
        let jobs: [(&str, Job); 4] = [
            ("lease", Box::new(move || lease.keep())),
            ("cluster", Box::new(follow)),
            ("promises", Box::new(move || promises.keep())),
            ("users", Box::new(move || users.follow_users())),
        ];
        for (name, job) in jobs {
            let task = self.node.env().spawn.spawn(name, job);
            self.threads.lock().push(task.map_err(|error| ClusterError::Io("a thread", error))?);
        }
        Ok(())
    }

    /// The cluster's identity, the same at all its nodes; nothing before this node has read anything of it. It is that of
    /// the place where its document is: nothing in the document stays as it was.
    pub fn identity(&self) -> Option<String> {
        self.view()?;
        let digest = Sha256::digest(format!("stave cluster {}", self.store.place()));
        Some(digest.iter().take(16).map(|byte| format!("{byte:02x}")).collect())
    }

    /// This node's identity.
    pub fn uuid(&self) -> &str {
        &self.uuid
    }

    /// What this node has read last; `None` before the first time.
    pub fn view(&self) -> Option<Arc<View>> {
        self.progress.view()
    }

    /// Waits until this node is as `is_so` wants the newest document that it follows, and the revision that all its
    /// buckets are as; false if that takes longer than `at_most`.
    pub fn wait_until(&self, at_most: Duration, is_so: impl Fn(&View, u64) -> bool) -> bool {
        self.progress.wait_until(at_most, is_so)
    }

    /// Waits until there is something newer than what this node has read last, or for so long.
    pub fn wait_for_news(&self, at_most: Duration) {
        self.progress.wait_for_news(at_most);
    }

    /// The outside world as the node sees it.
    pub fn node_env(&self) -> &Env {
        self.node.env()
    }

    /// Why the node does not follow the cluster's document now; `None` if it does.
    pub fn lost(&self) -> Option<String> {
        self.progress.lost().map(|lost| lost.why)
    }

    /// The same for everybody: it names neither the store's address nor the user that this node is there.
    pub fn lost_for_all(&self) -> Option<String> {
        let lost = self.progress.lost()?;
        Some(match self.store_fault() {
            _ if !lost.is_of_store => lost.why,
            Some(fault) => {
                format!("the coordination store does not let this node in: {fault}; the log says more")
            }
            None => "the coordination store does not answer this node".to_owned(),
        })
    }

    /// What is wrong with this node's certificate or login at the coordination store, or with the store's certificate; a text
    /// for everybody. `None` if that is not why it does not answer.
    pub fn store_fault(&self) -> Option<&'static str> {
        self.store.fault()
    }

    /// Why the node does not join, which somebody has to decide about; `None` if it belongs to the cluster.
    pub fn outside(&self) -> Option<String> {
        self.progress.outside()
    }

    /// Whether the node does not join since its user or password is not the cluster's, which only another start changes.
    pub fn is_stranger(&self) -> bool {
        self.progress.is_stranger()
    }

    /// Waits until a bucket is what a revision says on all nodes of the cluster that are alive; false if that takes
    /// longer than `at_most`.
    pub fn wait_until_all_have(&self, bucket: &str, revision: u64, at_most: Duration) -> bool {
        self.progress.wait_until_all_have(bucket, revision, at_most)
    }

    /// Waits until the cluster has admitted this node, and it has become what the document says, except buckets that it
    /// cannot make: one of those does not keep the others from being served. False if that takes longer than
    /// `at_most`, or if the node does not join: see [`Cluster::outside`].
    pub fn wait_until_served(&self, at_most: Duration) -> bool {
        let is_served = |followed: &Followed| {
            let view = followed.view.as_ref();
            view.is_some_and(|view| self.is_served(view, followed.applied.revision))
        };
        self.progress.wait_for(at_most, |followed| followed.outside.is_some() || is_served(followed))
            && self.progress.wait_for(Duration::ZERO, is_served)
    }

    fn is_served(&self, view: &View, applied: u64) -> bool {
        let node = view.state.node_of(&self.uuid);
        let incarnation = self.lease.incarnation();
        node.is_some_and(|(_, node)| node.incarnation == incarnation) && applied >= view.state.revision
    }

    /// Whether enough others promise that the node serves without the coordination store.
    pub fn is_promised(&self) -> bool {
        self.promises.are_held()
    }

    /// Waits until enough others promise that the node serves without the store; false if that takes longer.
    pub fn wait_until_promised(&self, at_most: Duration) -> bool {
        self.promises.wait_until_held(at_most)
    }

    /// Answers another node that asks for a promise.
    pub fn promise(&self, request: &promises::Request) -> Result<promises::Answer, promises::Denied> {
        self.promises.promise(request)
    }

    /// Where the node is reached has changed: the next renewal of the lease says so.
    pub(crate) fn address_has_changed(&self) {
        self.lease.address_has_changed();
    }

    /// The secret with which the cluster's nodes log in at each other.
    pub fn secrets(&self) -> &NodeSecrets {
        &self.secrets
    }

    /// The cluster's users.
    pub(crate) fn users(&self) -> &ClusterUsers {
        &self.users
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
        self.document.ask_for(what)
    }

    /// Follows the state that the store holds, although it is older than one that this node has seen, or that of another
    /// cluster. What was changed since is given up. Blocks.
    pub fn adopt(&self) -> Result<u64, ClusterError> {
        self.document.adopt(|state| adoption::go_forward(&self.buckets, state))
    }

    /// Ends the membership: the node serves nothing any more, and others need not wait for its lease to run out.
    /// False if one of its threads panicked.
    pub fn stop(&self) -> bool {
        // The fence is closed before others are told that they need not wait.
        self.lease.authority().stop();
        self.ending.come();
        self.progress.wake();
        self.users.wake_users();
        let threads = std::mem::take(&mut *self.threads.lock());
        // All of them are waited for, whatever became of one.
        let panicked = threads.into_iter().filter_map(|thread| (!thread.join()).then_some(())).count();
        panicked == 0
    }
}
