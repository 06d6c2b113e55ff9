//! HTTP: what SDKs ask of the management port, what operators look at, the settings of buckets, and their changes.

mod basic_auth;
mod changes;
mod form;
mod metrics;
mod pools;
mod replication;
mod settings;
mod stream;

use std::io;
use std::net::TcpListener;
use std::sync::Arc;

use axum::Router;
use axum::http::{StatusCode, header};
use axum::middleware;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use tokio::sync::watch;

use crate::node::Node;

/// What handlers share.
#[derive(Clone)]
struct Shared {
    node: Arc<Node>,
    stopping: watch::Receiver<bool>,
}

/// Serves until the node stops.
pub async fn serve(
    listener: TcpListener,
    node: Arc<Node>,
    stopping: watch::Receiver<bool>,
) -> io::Result<()> {
    let listener = tokio::net::TcpListener::from_std(listener)?;
    let app = router(Shared { node, stopping: stopping.clone() });
    let stopped = async move {
        let mut stopping = stopping;
        // An error means that whoever could stop the node is gone.
        let _ = stopping.wait_for(|stop| *stop).await;
    };
    axum::serve(listener, app).with_graceful_shutdown(stopped).await
}

fn router(shared: Shared) -> Router {
    let protected = Router::new()
        .route("/", get(pools::root))
        .route("/whoami", get(pools::who_am_i))
        .route("/pools", get(pools::pools))
        .route("/pools/default", get(pools::cluster))
        .route("/pools/nodes", get(pools::nodes))
        .route("/pools/default/nodeServices", get(pools::node_services))
        .route("/pools/default/nodeServicesStreaming", get(stream::node_services))
        .route("/pools/default/buckets", get(pools::buckets))
        .route("/pools/default/buckets/{bucket}", get(pools::bucket).post(settings::update_bucket))
        .route("/pools/default/buckets/{bucket}/scopes", get(pools::scopes))
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
        .route("/pools/default/b/{bucket}", get(pools::terse_bucket))
        .route("/pools/default/bs/{bucket}", get(stream::terse_bucket))
        .route_layer(middleware::from_fn_with_state(shared.clone(), basic_auth::check));
    Router::new()
        .route("/healthz", get(healthz))
        .route("/metrics", get(metrics::metrics))
        .merge(protected)
        .fallback(async || (StatusCode::NOT_FOUND, "Requested resource not found.\r\n"))
        .with_state(shared)
}

async fn healthz() -> &'static str {
    "ok\n"
}

/// An answer that is JSON already.
fn json_bytes(json: Vec<u8>) -> Response {
    ([(header::CONTENT_TYPE, "application/json")], json).into_response()
}

/// The answer for a bucket that there is not, in the words that clients compare.
fn no_such_bucket() -> Response {
    (StatusCode::NOT_FOUND, "Requested resource not found.\r\n").into_response()
}
