//! The control endpoint: HTTP for tests that want to see what their application does when nodes fail.

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, mpsc};

use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use base::env::Task;
use serde_json::json;
use tokio::sync::{oneshot, watch};

use super::cluster::{DevError, Shared};
use crate::acceptor;
use crate::signals::Ears;

/// What a started endpoint is known by: address, stop, signals of the process, thread.
type Started = (SocketAddr, watch::Sender<bool>, mpsc::Receiver<()>, Task);

/// Starts the thread that answers and hears signals.
pub(super) fn start(shared: &Arc<Shared>) -> io::Result<Started> {
    let listener = acceptor::listen(&shared.env, shared.config.control)?;
    let addr = listener.local_addr()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let ears = {
        let _inside = runtime.enter();
        Ears::new()?
    };
    let (stop, stopping) = watch::channel(false);
    let (signalled, signals) = mpsc::channel();
    let app = router(Arc::clone(shared));
    let serve = async move {
        let listener = tokio::net::TcpListener::from_std(listener)?;
        axum::serve(listener, app).await
    };
    let run = async move {
        let mut stopping = stopping;
        tokio::select! {
            done = serve => log(done),
            done = ears.hear(signalled) => log(done),
            // An error means that whoever could stop it is gone.
            _ = stopping.wait_for(|stop| *stop) => {}
        }
    };
    let thread = shared.env.spawn.spawn("dev-control", Box::new(move || runtime.block_on(run)))?;
    Ok((addr, stop, signals, thread))
}

fn log(done: io::Result<()>) {
    if let Err(error) = done {
        tracing::error!(%error, "the control endpoint ended");
    }
}

fn router(shared: Arc<Shared>) -> Router {
    Router::new()
        .route("/v1/dev", get(status))
        .route("/v1/dev/nodes/{node}/{order}", post(order))
        .route("/v1/dev/clock", post(clock))
        .fallback(async || {
            let what = "GET /v1/dev; POST /v1/dev/nodes/N/stop, start, restart, freeze, thaw, cut, join, failover or \
                        recover; POST /v1/dev/clock?advance_s=SECONDS[&node=N]\n";
            (StatusCode::NOT_FOUND, what)
        })
        .with_state(shared)
}

/// `GET /v1/dev`
async fn status(State(shared): State<Arc<Shared>>) -> Response {
    on_a_thread(&shared, |_| Ok(())).await
}

/// `POST /v1/dev/nodes/NODE/ORDER`
async fn order(State(shared): State<Arc<Shared>>, Path((node, order)): Path<(u16, String)>) -> Response {
    type Order = fn(&Arc<Shared>, u16) -> Result<(), DevError>;
    let order: Order = match order.as_str() {
        "stop" => |shared, node| shared.stop(node),
        "start" => |shared, node| shared.start(node),
        "restart" => |shared, node| shared.stop(node).and_then(|()| shared.start(node)),
        "freeze" => |shared, node| shared.freeze(node, true),
        "thaw" => |shared, node| shared.freeze(node, false),
        "cut" => |shared, node| shared.cut(node, true),
        "join" => |shared, node| shared.cut(node, false),
        "failover" => |shared, node| shared.fail_over(node),
        "recover" => |shared, node| shared.recover(node),
        _ => {
            let what = "give stop, start, restart, freeze, thaw, cut, join, failover or recover";
            return (StatusCode::NOT_FOUND, Json(json!({ "message": what }))).into_response();
        }
    };
    on_a_thread(&shared, move |shared| order(shared, node)).await
}

/// Of which node, and by how much.
#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Move {
    advance_s: i64,
    node: Option<u16>,
}

/// `POST /v1/dev/clock?advance_s=SECONDS`
async fn clock(State(shared): State<Arc<Shared>>, Query(asked): Query<Move>) -> Response {
    on_a_thread(&shared, move |shared| shared.advance_clock(asked.node, asked.advance_s)).await
}

/// Does what blocks on a thread of its own, and answers with what the cluster is then.
async fn on_a_thread(
    shared: &Arc<Shared>,
    work: impl FnOnce(&Arc<Shared>) -> Result<(), DevError> + Send + 'static,
) -> Response {
    let (sender, receiver) = oneshot::channel();
    let job = {
        let shared = Arc::clone(shared);
        move || {
            let outcome = work(&shared).map(|()| shared.status());
            // Nobody hears it if the client has gone meanwhile; it is done all the same.
            let _ = sender.send(outcome);
        }
    };
    let failed = |code, message: String| (code, Json(json!({ "message": message }))).into_response();
    if let Err(error) = shared.env.spawn.spawn("dev-order", Box::new(job)) {
        return failed(StatusCode::INTERNAL_SERVER_ERROR, error.to_string());
    }
    match receiver.await {
        Ok(Ok(status)) => Json(status).into_response(),
        Ok(Err(error)) => failed(code_of(&error), error.to_string()),
        Err(_) => failed(StatusCode::INTERNAL_SERVER_ERROR, "the order broke off".to_owned()),
    }
}

fn code_of(error: &DevError) -> StatusCode {
    match error {
        DevError::NoNode(_) => StatusCode::NOT_FOUND,
        DevError::State { .. } | DevError::LastCopy(_) => StatusCode::CONFLICT,
        DevError::Config(_) | DevError::Node { .. } | DevError::Io { .. } => {
            StatusCode::INTERNAL_SERVER_ERROR
        }
    }
}
