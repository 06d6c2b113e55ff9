//! HTTP: what SDKs ask of the management port, what operators look at, the settings of buckets, and their changes.

mod auto_failover;
mod basic_auth;
mod bucket_form;
mod buckets;
mod changes;
mod cluster;
mod cluster_order;
mod cluster_status;
mod figures;
mod form;
mod health;
mod manage;
mod methods;
mod metrics;
mod nodes;
mod patience;
mod pools;
mod replication;
mod scopes;
mod settings;
mod stream;

use std::io;
use std::net::TcpListener;
use std::sync::Arc;

use axum::Router;
use axum::http::{StatusCode, header};
use axum::middleware;
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, get, post};
use engine::Bucket;
use tokio::sync::watch;

use crate::node::Node;

/// What handlers share.
#[derive(Clone)]
struct Shared {
    node: Arc<Node>,
    stopping: watch::Receiver<bool>,
}

impl Shared {
    /// Ready when the node stops.
    fn stopped(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut stopping = self.stopping.clone();
        async move {
            // An error means that whoever could stop the node is gone.
            let _ = stopping.wait_for(|stop| *stop).await;
        }
    }

    /// Ready when a bucket is deleted, or the node stops.
    fn bucket_ended(&self, bucket: &Arc<Bucket>) -> impl Future<Output = ()> + Send + use<> {
        let (node, stopped) = (Arc::clone(&self.node), self.stopped());
        let (name, bucket) = (bucket.name().to_owned(), Arc::downgrade(bucket));
        let mut hearing = node.hearing();
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

/// Serves until the node stops.
pub async fn serve(
    listener: TcpListener,
    node: Arc<Node>,
    stopping: watch::Receiver<bool>,
) -> io::Result<()> {
    let listener = tokio::net::TcpListener::from_std(listener)?;
    let shared = Shared { node, stopping };
    let stopped = shared.stopped();
    let app = router(shared);
    axum::serve(listener, app).with_graceful_shutdown(stopped).await
}

fn router(shared: Shared) -> Router {
    let protected = Router::new()
        .route("/", get(pools::root))
        .route("/whoami", get(pools::who_am_i))
        .route("/pools", get(pools::pools))
        .route("/pools/default", get(pools::cluster))
        .route("/poolsStreaming/default", get(stream::cluster))
        .route("/pools/nodes", get(pools::nodes))
        .route("/pools/default/nodeServices", get(pools::node_services))
        .route("/pools/default/nodeServicesStreaming", get(stream::node_services))
        .route("/pools/default/terseClusterInfo", get(pools::terse_cluster_info))
        .route("/pools/default/buckets", get(buckets::list).post(manage::create))
        .route(
            "/pools/default/buckets/{bucket}",
            get(buckets::show).post(manage::change).delete(manage::delete),
        )
        .route("/pools/default/buckets/{bucket}/stats", get(buckets::stats))
        .route("/pools/default/buckets/{bucket}/controller/doFlush", post(manage::flush))
        .route(
            "/pools/default/buckets/{bucket}/scopes",
            get(scopes::list).post(scopes::create_scope).put(scopes::replace),
        )
        .route("/pools/default/buckets/{bucket}/scopes/{scope}", delete(scopes::drop_scope))
        .route("/pools/default/buckets/{bucket}/scopes/{scope}/collections", post(scopes::create_collection))
        .route(
            "/pools/default/buckets/{bucket}/scopes/{scope}/collections/{collection}",
            delete(scopes::drop_collection).patch(scopes::change_collection),
        )
        .route(
            "/pools/default/buckets/{bucket}/scopes/@ensureManifest/{uid}",
            get(scopes::ensure).post(scopes::ensure),
        )
        .route(
            "/v1/buckets/{bucket}/settings",
            get(settings::list).patch(settings::change).post(settings::change),
        )
        .route("/v1/buckets/{bucket}/replication", get(replication::show).put(replication::declare))
        .route("/v1/buckets/{bucket}/changes", get(changes::changes))
        .route("/v1/buckets/{bucket}/cursors", get(changes::list))
        .route(
            "/v1/buckets/{bucket}/cursors/{name}",
            get(changes::show).put(changes::create).post(changes::move_to).delete(changes::remove),
        )
        .route("/pools/default/rebalanceProgress", get(cluster_status::rebalance_progress))
        .route("/pools/default/tasks", get(cluster_status::tasks))
        .route("/settings/autoFailover", get(auto_failover::show).post(auto_failover::change))
        .route("/controller/failOver", post(cluster::fail_over))
        .route("/controller/startGracefulFailover", post(cluster::fail_over_gracefully))
        .route("/controller/rebalance", post(cluster::rebalance))
        .route("/controller/stopRebalance", post(cluster::stop_rebalance))
        .route("/controller/setRecoveryType", post(cluster::set_recovery))
        .route("/controller/reAddNode", post(cluster::add_again))
        .route("/controller/ejectNode", post(cluster::eject))
        .route("/controller/adoptState", post(cluster::adopt))
        .route("/controller/addNode", post(cluster::add))
        .route(figures::PATH, get(figures::show))
        .route("/v1/cluster", get(cluster_status::show))
        .route("/pools/default/b/{bucket}", get(pools::terse_bucket))
        .route("/pools/default/bs/{bucket}", get(stream::terse_bucket))
        .route_layer(middleware::from_fn_with_state(shared.clone(), basic_auth::check));
    let all = Router::new()
        .route("/healthz", get(health::healthz))
        .route("/metrics", get(metrics::metrics))
        .merge(protected)
        .fallback(async || (StatusCode::NOT_FOUND, "Requested resource not found.\r\n"))
        .layer(middleware::from_fn_with_state(shared.clone(), patience::wait))
        .with_state(shared);
    // Around the whole: which methods an address has is known outside of what wraps each of its handlers.
    Router::new().fallback_service(all).layer(middleware::from_fn(methods::tell))
}

/// An answer that is JSON already.
fn json_bytes(json: Vec<u8>) -> Response {
    ([(header::CONTENT_TYPE, "application/json")], json).into_response()
}

/// The answer for a bucket that there is not, in the words that clients compare.
fn no_such_bucket() -> Response {
    (StatusCode::NOT_FOUND, "Requested resource not found.\r\n").into_response()
}
