//! What the handlers of HTTP share.

use std::sync::{Arc, OnceLock};

use ::cluster::View;
use ::node::Node;
use ::node::cluster::Cluster;
use ::node::stats::agent_rows::AgentRows;
use ::node::stats::history::History;
use engine::Bucket;
use tokio::sync::{Semaphore, watch};

use super::node_figures::Asking;
use super::node_key::{NodeKey, NodeRequest, SeenProofs};
use super::samples::Samples;
use super::threads::Threads;
use crate::inside::OwnDoor;
use crate::links::RuntimeReaders;
use crate::links::acting::DerivedPasswords;
use crate::tls::PeerTls;

/// What handlers share.
#[derive(Clone)]
pub(super) struct Shared {
    pub(super) node: Arc<Node>,
    pub(super) stopping: watch::Receiver<bool>,
    pub(super) asking: Arc<Asking>,
    pub(super) node_key: Arc<OnceLock<NodeKey>>,
    /// Proofs of other nodes that have had something done here.
    pub(super) seen_proofs: Arc<SeenProofs>,
    /// Held by the one request that reads or writes cursors.
    pub(super) cursors: Arc<Semaphore>,
    /// Connections to other nodes that readers of changes may have together.
    pub(super) reader_links: Arc<RuntimeReaders>,
    /// What requests to other nodes are encrypted with.
    pub(super) peer_tls: PeerTls,
    /// How requests that this node makes to itself over KV reach it.
    pub(super) kv_door: OwnDoor,
    /// Places of requests that are made to nodes over KV.
    pub(super) acting: Arc<Semaphore>,
    pub(super) derived: Arc<DerivedPasswords>,
    pub(super) samples: Arc<Samples>,
    pub(super) agent_rows: Arc<AgentRows>,
    pub(super) kept: Arc<History>,
    /// Threads for requests that block.
    pub(super) threads: Arc<Threads>,
}

impl Shared {
    /// What shows another node that it is asked by one of its cluster; `None` if this one belongs to none.
    pub(super) fn proof_for(&self, uuid: &str, asked: NodeRequest<'_>) -> Option<String> {
        let (key, cluster) = (self.node_key(uuid)?, self.node.cluster()?);
        Some(match cluster.secrets().wants_timeless_proofs(uuid) {
            true => key.timeless(asked.path, asked.node),
            false => key.authorization(asked, self.node.env()),
        })
    }

    /// What this node proves with to another one that both belong to a cluster; nothing if this one belongs to none.
    fn node_key(&self, uuid: &str) -> Option<NodeKey> {
        let cluster = self.node.cluster()?;
        match cluster.secrets().for_node(uuid) {
            Some(secret) => Some(NodeKey::of_secret(&secret, &cluster.identity()?)),
            None => self.earlier_node_key(),
        }
    }

    /// What other nodes may prove that with.
    pub(super) fn node_keys(&self) -> Vec<NodeKey> {
        let Some(cluster) = self.node.cluster() else { return Vec::new() };
        let Some(identity) = cluster.identity() else { return Vec::new() };
        let secrets = cluster.secrets().accepted();
        let keys = secrets.iter().map(|secret| NodeKey::of_secret(secret, &identity));
        let earlier = cluster.secrets().takes_earlier_proofs().then(|| self.earlier_node_key()).flatten();
        keys.chain(earlier).collect()
    }

    /// What nodes of an earlier version prove it with: the nodes of a cluster have one administrator.
    fn earlier_node_key(&self) -> Option<NodeKey> {
        if let Some(key) = self.node_key.get() {
            return Some(*key);
        }
        let user = self.node.host()?.config().users.first()?;
        let cluster = self.node.cluster()?.identity()?;
        Some(*self.node_key.get_or_init(|| NodeKey::derive(user, &cluster)))
    }

    /// Ready when the node stops.
    pub(super) fn stopped(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut stopping = self.stopping.clone();
        async move {
            // An error means that the thread that could stop the node is gone.
            let _ = stopping.wait_for(|stop| *stop).await;
        }
    }

    /// Ready when a bucket is deleted, or the node stops.
    pub(super) fn bucket_ended(&self, bucket: &Arc<Bucket>) -> impl Future<Output = ()> + Send + use<> {
        let (node, stopped) = (Arc::clone(&self.node), self.stopped());
        let (name, bucket) = (bucket.name().to_owned(), Arc::downgrade(bucket));
        let mut hearing = node.announcer().hearing();
        let gone = async move {
            loop {
                hearing.edition();
                if node.bucket(&name).is_none_or(|there| !std::ptr::eq(Arc::as_ptr(&there), bucket.as_ptr()))
                {
                    return;
                }
                hearing.changed().await;
            }
        };
        async move {
            tokio::select! {
                () = stopped => {}
                () = gone => {}
            }
        }
    }
}

/// The cluster that the node belongs to, and what it has read of it.
pub(super) fn view_of(shared: &Shared) -> Option<(Arc<Cluster>, Arc<View>)> {
    let cluster = shared.node.cluster()?;
    let view = cluster.view()?;
    Some((cluster, view))
}
