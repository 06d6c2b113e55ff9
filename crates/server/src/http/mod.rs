//! HTTP: what SDKs ask of the management port, what operators look at, the settings of buckets, and their changes.

mod access;
mod acting;
mod agent_fields;
mod agent_rows;
mod alternate;
mod audit;
mod auto_failover;
mod basic_auth;
mod bucket_stats;
mod buckets;
mod certificates;
pub(crate) mod changes;
mod cluster;
mod cluster_order;
mod cluster_status;
mod compaction;
pub mod connections;
mod documents;
mod encryption_keys;
mod failures;
mod figures;
mod health;
mod logs;
mod manage;
mod methods;
mod metrics;
mod migration;
mod node_key;
mod node_secret;
mod nodes;
pub mod origin;
mod paths;
mod patience;
mod pieces;
mod pools;
mod promise;
mod query;
mod range;
mod range_request;
mod replication;
mod routes;
mod samples;
mod scopes;
mod security;
mod settings;
mod slow_limits;
mod stream;
mod ui;
mod user_lists;
mod users;
mod zoom;

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};

use ::node::Node;
use ::node::stats::history::History;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use engine::Bucket;
use tokio::sync::{Semaphore, watch};

use self::connections::Serving;
use self::node_key::NodeKey;
use crate::acceptor::Entrance;
use crate::inside::OwnDoor;
use crate::links::RuntimeReaders;
use crate::links::acting::DerivedPasswords;
use crate::tls::PeerTls;
use crate::traces;

/// The most connections to other nodes that readers of changes have together.
const MOST_READER_CONNECTIONS: usize = 256;

/// What handlers share.
#[derive(Clone)]
struct Shared {
    node: Arc<Node>,
    stopping: watch::Receiver<bool>,
    asking: Arc<figures::Asking>,
    node_key: Arc<OnceLock<NodeKey>>,
    /// Held by the one request that reads or writes cursors.
    cursors: Arc<Semaphore>,
    /// Connections to other nodes that readers of changes may have together.
    reader_links: Arc<RuntimeReaders>,
    /// What requests to other nodes are encrypted with.
    peer_tls: PeerTls,
    /// How requests that this node makes to itself over KV reach it.
    kv_door: OwnDoor,
    /// Places of requests that are made to nodes over KV.
    acting: Arc<Semaphore>,
    derived: Arc<DerivedPasswords>,
    samples: Arc<samples::Samples>,
    agent_rows: Arc<agent_rows::AgentRows>,
    kept: Arc<History>,
}

impl Shared {
    /// What this node proves with to another one that both belong to a cluster; nothing if this one belongs to none.
    fn node_key(&self, uuid: &str) -> Option<NodeKey> {
        let cluster = self.node.cluster()?;
        match cluster.secrets().for_node(uuid) {
            Some(secret) => Some(NodeKey::of_secret(&secret, &cluster.identity()?)),
            None => self.earlier_node_key(),
        }
    }

    /// What other nodes may prove that with.
    fn node_keys(&self) -> Vec<NodeKey> {
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
    fn stopped(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut stopping = self.stopping.clone();
        async move {
            // An error means that the thread that could stop the node is gone.
            let _ = stopping.wait_for(|stop| *stop).await;
        }
    }

    /// Ready when a bucket is deleted, or the node stops.
    fn bucket_ended(&self, bucket: &Arc<Bucket>) -> impl Future<Output = ()> + Send + use<> {
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

/// Every address with every method, for tests and the reference: method, path.
pub fn addresses() -> Vec<(String, &'static str)> {
    routes::all().into_iter().map(|route| (route.method.to_string(), route.path)).collect()
}

/// Serves until the node stops.
pub(crate) async fn serve(
    entrances: Vec<Entrance>,
    peer_tls: PeerTls,
    node: Arc<Node>,
    kv_door: OwnDoor,
    stopping: watch::Receiver<bool>,
) -> io::Result<()> {
    let addresses = entrances.iter().map(|entrance| entrance.listener.local_addr());
    let listens = origin::Listens::at(&addresses.collect::<io::Result<Vec<SocketAddr>>>()?);
    let serving = Serving {
        limits: node.limits().http,
        counters: Arc::clone(node.workers().accepting()),
        memory: Arc::clone(node.connection_memory()),
        env: node.env().clone(),
        hearing: Some(node.announcer().hearing()),
    };
    let (asking, node_key) = (Arc::default(), Arc::default());
    // They come out of the reserve of descriptors.
    let places = (serving.limits.connections / 2).min(MOST_READER_CONNECTIONS);
    let reader_links = Arc::new(RuntimeReaders::new(places, peer_tls.clone()));
    let cursors = Arc::new(Semaphore::new(1));
    let (acting, samples) =
        (Arc::new(Semaphore::new(acting::MOST_ACTING)), Arc::<samples::Samples>::default());
    let (kept, agent_rows) = (Arc::<History>::default(), Arc::<agent_rows::AgentRows>::default());
    let taken = samples::Taken {
        samples: Arc::clone(&samples),
        agent_rows: Arc::clone(&agent_rows),
        kept: Arc::clone(&kept),
    };
    let sampling = samples::run(Arc::clone(&node), taken);
    let collector = node.host().and_then(|host| host.config().trace_endpoint.clone());
    let tracing = traces::run(Arc::clone(&node), collector);
    let derived = Arc::default();
    let shared = Shared {
        node,
        stopping,
        asking,
        node_key,
        cursors,
        reader_links,
        peer_tls,
        kv_door,
        acting,
        derived,
        samples,
        agent_rows,
        kept,
    };
    let stopped = shared.stopped();
    let app = routes::router(shared, listens);
    tokio::select! {
        served = connections::serve(entrances, app, serving, stopped) => served,
        () = sampling => Ok(()),
        () = tracing => Ok(()),
    }
}

/// An answer that is JSON already.
fn json_bytes(json: Vec<u8>) -> Response {
    ([(header::CONTENT_TYPE, "application/json")], json).into_response()
}

/// The answer for a bucket that the node has and cannot serve.
fn bucket_down(why: &str) -> Response {
    let body = serde_json::json!({ "errors": { "_": why } });
    (StatusCode::SERVICE_UNAVAILABLE, axum::Json(body)).into_response()
}

/// The answer for a bucket that there is not, in the words that clients compare.
fn no_such_bucket() -> Response {
    (StatusCode::NOT_FOUND, "Requested resource not found.\r\n").into_response()
}
