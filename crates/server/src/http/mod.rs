//! HTTP: what SDKs ask of the management port, what operators look at, the settings of buckets, and their changes.

mod access;
mod acting;
mod alternate;
mod answers;
mod audit;
mod audit_settings;
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
mod log_levels;
mod logs;
mod manage;
mod methods;
mod metrics;
mod migration;
mod node_figures;
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
mod rights;
mod routes;
mod sample_requests;
mod samples;
mod scopes;
mod security;
mod settings;
mod setup;
mod shared;
mod slow_limits;
mod stream;
mod threads;
mod ui;
mod user_lists;
mod users;
mod zoom;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use ::node::Node;
use ::node::stats::agent_rows::AgentRows;
use ::node::stats::history::History;
use tokio::sync::{Semaphore, watch};

use self::connections::Serving;
use self::shared::Shared;
use crate::acceptor::Entrance;
use crate::inside::OwnDoor;
use crate::links::RuntimeReaders;
use crate::tls::PeerTls;
use crate::traces;

/// The most connections to other nodes that readers of changes have together.
const MOST_READER_CONNECTIONS: usize = 256;

/// Every address with every method, for tests and the reference: method, path.
pub fn addresses() -> Vec<(String, &'static str)> {
    routes::all().into_iter().map(|route| (route.method.to_string(), route.path)).collect()
}

/// Whether a node is known by a name: clients are told it, or its certificate is for it.
fn is_own_name(node: &Node, tls: &PeerTls, name: &str) -> bool {
    let alternate = node.map().alternate().map(|alternate| alternate.host);
    let told = node.address().host.clone().into_iter().chain(alternate);
    told.into_iter().any(|host| host.trim_end_matches('.').eq_ignore_ascii_case(name))
        || tls.own().is_some_and(|tls| tls.is_for(name))
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
    let (its_node, its_tls) = (Arc::clone(&node), peer_tls.clone());
    let listens = listens.known_by(move |name| is_own_name(&its_node, &its_tls, name));
    let serving = Serving {
        limits: node.limits().http,
        counters: Arc::clone(node.workers().accepting()),
        memory: Arc::clone(node.connection_memory()),
        env: node.env().clone(),
        hearing: Some(node.announcer().hearing()),
    };
    let (asking, node_key, seen_proofs) = (Arc::default(), Arc::default(), Arc::default());
    // They come out of the reserve of descriptors.
    let places = (serving.limits.connections / 2).min(MOST_READER_CONNECTIONS);
    let reader_links = Arc::new(RuntimeReaders::new(places, peer_tls.clone()));
    let cursors = Arc::new(Semaphore::new(1));
    let (acting, samples) =
        (Arc::new(Semaphore::new(acting::MOST_ACTING)), Arc::<samples::Samples>::default());
    let (kept, agent_rows) = (Arc::<History>::default(), Arc::<AgentRows>::default());
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
        seen_proofs,
        cursors,
        reader_links,
        peer_tls,
        kv_door,
        acting,
        derived,
        samples,
        agent_rows,
        kept,
        threads: Arc::default(),
    };
    let stopped = shared.stopped();
    let app = routes::router(shared, listens);
    tokio::select! {
        served = connections::serve(entrances, app, serving, stopped) => served,
        () = sampling => Ok(()),
        () = tracing => Ok(()),
    }
}
