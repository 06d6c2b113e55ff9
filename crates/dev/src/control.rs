//! The control endpoint: HTTP for tests that want to see what their application does when nodes fail.

mod options;

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, mpsc};

use ::node::cluster::ClusterError;
use ::node::config::HttpLimits;
use ::node::connection_memory::ConnectionMemory;
use ::node::injections::Injection;
use ::node::management::BucketError;
use axum::extract::{Path, Query, Request, State};
use axum::http::{StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use base::env::{Env, Task};
use options::{Options, order};
use serde_json::json;
use server::acceptor::{self, Entrance};
use server::http::connections::{self, Serving};
use server::http::origin::{self, Listens};
use server::signals::{EarlySignals, Signal, SignalListener};
use tokio::sync::{Semaphore, oneshot, watch};

use super::config::DevError;
use super::peer_user;
use super::shared::Shared;

/// Orders that are carried out at the same time, each on a thread of its own.
const MOST_ORDERS: usize = 32;

/// A started endpoint.
pub(super) struct Endpoint {
    addr: SocketAddr,
    stop: watch::Sender<bool>,
    signals: mpsc::Receiver<Signal>,
    thread: Task,
}

impl Endpoint {
    pub(super) fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Waits until the process is told to stop; it is when its terminal is gone. Says by which signal.
    pub(super) fn wait_for_signal(&self) -> &'static str {
        match self.signals.recv() {
            Ok(Signal::Stop(name)) => name,
            Ok(Signal::HangUp) => "SIGHUP",
            // No signal can arrive any more.
            Err(_) => "none",
        }
    }

    pub(super) fn stop(self) {
        self.stop.send_replace(true);
        self.thread.join();
    }
}

/// Starts the thread that answers and hears signals.
pub(super) fn start(shared: &Arc<Shared>) -> io::Result<Endpoint> {
    let listener = acceptor::listen(&shared.env, shared.config.control)?;
    let addr = listener.local_addr()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let signal_listener = {
        let _inside = runtime.enter();
        SignalListener::new(EarlySignals::new(&shared.env)?)?
    };
    let (stop, mut stopping) = watch::channel(false);
    let (signalled, signals) = mpsc::channel();
    let desk = Desk { shared: Arc::clone(shared), places: Arc::new(Semaphore::new(MOST_ORDERS)) };
    let app = router(desk, Listens::at(&[addr]).without_a_name(), shared.env.clone());
    let entrance = Entrance { listener, tls: None };
    let serving = Serving {
        limits: HttpLimits::default(),
        counters: Arc::default(),
        memory: Arc::new(ConnectionMemory::new(None)),
        env: shared.env.clone(),
        hearing: None,
    };
    let serve = connections::serve(vec![entrance], app, serving, std::future::pending());
    let run = async move {
        tokio::select! {
            done = serve => log(done),
            done = signal_listener.hear(signalled) => log(done),
            // An error means that whoever could stop it is gone.
            _ = stopping.wait_for(|stop| *stop) => {}
        }
    };
    let thread = shared.env.spawn.spawn("dev-control", Box::new(move || runtime.block_on(run)))?;
    Ok(Endpoint { addr, stop, signals, thread })
}

fn log(done: io::Result<()>) {
    if let Err(error) = done {
        tracing::error!(event = "dev_control_ended", %error, "the control endpoint ended");
    }
}

/// What handlers share.
#[derive(Clone)]
struct Desk {
    shared: Arc<Shared>,
    places: Arc<Semaphore>,
}

fn router(desk: Desk, listens: Listens, env: Env) -> Router {
    let all = Router::new()
        .route("/v1/dev", get(tell))
        .route("/v1/dev/", get(tell))
        .route("/v1/dev/nodes", post(add))
        .route("/v1/dev/nodes/{node}/{order}", post(order_of_node))
        .route("/v1/dev/rebalance", post(rebalance))
        .route("/v1/dev/clock", post(clock))
        .route(
            "/v1/dev/delay",
            post(async |desk, asked| inject(desk, asked, "POST /v1/dev/delay", options::delay).await),
        )
        .route(
            "/v1/dev/fail",
            post(async |desk, asked| inject(desk, asked, "POST /v1/dev/fail", options::refusal).await),
        )
        .route("/v1/dev/heal", post(heal))
        .route("/v1/dev/reset", post(reset))
        .fallback(async || refused(StatusCode::NOT_FOUND, WHAT_THERE_IS))
        .with_state(desk);
    // Around the whole: which methods an address has is known outside of its handlers.
    Router::new()
        .fallback_service(all)
        .layer(middleware::from_fn(name_methods))
        .layer(middleware::from_fn_with_state(env, peer_user::check))
        .layer(middleware::from_fn_with_state(listens, origin::check))
}

/// Says which methods an address has to whoever asks with another.
async fn name_methods(request: Request, next: Next) -> Response {
    let method = request.method().clone();
    let answer = next.run(request).await;
    if answer.status() != StatusCode::METHOD_NOT_ALLOWED {
        return answer;
    }
    let Some(allowed) = answer.headers().get(header::ALLOW).cloned() else { return answer };
    let names = allowed.to_str().unwrap_or_default().replace(',', " or ");
    let message = format!("there is no {method} at this address: use {names}");
    ([(header::ALLOW, allowed)], refused(StatusCode::METHOD_NOT_ALLOWED, &message)).into_response()
}

const WHAT_THERE_IS: &str = "GET /v1/dev; POST /v1/dev/nodes; POST /v1/dev/nodes/N/stop, start, restart, kill, freeze, thaw, \
                             cut, join, delay, fail, heal, failover, recover or remove; POST /v1/dev/delay, fail, heal, \
                             reset or rebalance; POST /v1/dev/clock?advance_s=SECONDS[&node=N]";

type Asked = Query<BTreeMap<String, String>>;

/// `GET /v1/dev`
async fn tell(State(desk): State<Desk>) -> Response {
    desk.carry_out(|_| Ok(())).await
}

/// `POST /v1/dev/nodes`
async fn add(State(desk): State<Desk>, Query(asked): Asked) -> Response {
    let read = || {
        let mut options = Options::new("POST /v1/dev/nodes", asked);
        let (rebalance, wait) = (options.flag("rebalance", true)?, options.wait()?);
        options.end().map(|()| (rebalance, wait))
    };
    match read() {
        Ok((rebalance, wait)) => desk.carry_out(move |shared| shared.add(rebalance, wait).map(drop)).await,
        Err(wrong) => refused(StatusCode::BAD_REQUEST, &wrong),
    }
}

/// `POST /v1/dev/nodes/NODE/ORDER`
async fn order_of_node(
    State(desk): State<Desk>,
    Path((node, name)): Path<(String, String)>,
    Query(asked): Asked,
) -> Response {
    let Ok(node) = node.parse::<u16>() else {
        return refused(StatusCode::NOT_FOUND, "nodes are numbered from 1 on; GET /v1/dev lists them");
    };
    match order(&name, asked) {
        Some(Ok(order)) => desk.carry_out(move |shared| shared.carry_out(node, order)).await,
        Some(Err(wrong)) => refused(StatusCode::BAD_REQUEST, &wrong),
        None => refused(StatusCode::NOT_FOUND, WHAT_THERE_IS),
    }
}

/// `POST /v1/dev/rebalance`
async fn rebalance(State(desk): State<Desk>, Query(asked): Asked) -> Response {
    let read = || {
        let mut options = Options::new("POST /v1/dev/rebalance", asked);
        let wait = options.wait()?;
        options.end().map(|()| wait)
    };
    match read() {
        Ok(wait) => desk.carry_out(move |shared| shared.rebalance(wait)).await,
        Err(wrong) => refused(StatusCode::BAD_REQUEST, &wrong),
    }
}

/// `POST /v1/dev/delay` and `POST /v1/dev/fail`: on all nodes that run.
async fn inject(
    State(desk): State<Desk>,
    Query(asked): Asked,
    of: &'static str,
    read: fn(&mut Options) -> Result<Injection, String>,
) -> Response {
    let mut options = Options::new(of, asked);
    match read(&mut options).and_then(|injection| options.end().map(|()| injection)) {
        Ok(injection) => desk.carry_out(move |shared| shared.inject(Some(injection))).await,
        Err(wrong) => refused(StatusCode::BAD_REQUEST, &wrong),
    }
}

/// `POST /v1/dev/heal`
async fn heal(State(desk): State<Desk>, Query(asked): Asked) -> Response {
    match Options::new("POST /v1/dev/heal", asked).end() {
        Ok(()) => desk.carry_out(|shared| shared.inject(None)).await,
        Err(wrong) => refused(StatusCode::BAD_REQUEST, &wrong),
    }
}

/// `POST /v1/dev/reset`
async fn reset(State(desk): State<Desk>, Query(asked): Asked) -> Response {
    let mut options = Options::new("POST /v1/dev/reset", asked);
    match options.wait().and_then(|wait| options.end().map(|()| wait)) {
        Ok(wait) => desk.carry_out(move |shared| shared.reset(wait)).await,
        Err(wrong) => refused(StatusCode::BAD_REQUEST, &wrong),
    }
}

/// `POST /v1/dev/clock?advance_s=SECONDS`
async fn clock(State(desk): State<Desk>, Query(asked): Asked) -> Response {
    let read = || {
        let mut options = Options::new("POST /v1/dev/clock", asked);
        let (node, advance_s) = (options.number("node")?, options.number("advance_s")?);
        options.end()?;
        advance_s.map(|seconds: i64| (node, seconds)).ok_or_else(|| "give advance_s=SECONDS".to_owned())
    };
    match read() {
        Ok((node, seconds)) => desk.carry_out(move |shared| shared.advance_clock(node, seconds)).await,
        Err(wrong) => refused(StatusCode::BAD_REQUEST, &wrong),
    }
}

fn refused(code: StatusCode, message: &str) -> Response {
    (code, Json(json!({ "message": message }))).into_response()
}

impl Desk {
    /// Does what blocks on a thread of its own, and answers with what the cluster is then.
    async fn carry_out(
        self,
        work: impl FnOnce(&Arc<Shared>) -> Result<(), DevError> + Send + 'static,
    ) -> Response {
        let Ok(place) = self.places.try_acquire_owned() else {
            return refused(StatusCode::SERVICE_UNAVAILABLE, "too many orders at the same time; try again");
        };
        let (sender, receiver) = oneshot::channel();
        let spawn = Arc::clone(&self.shared.env.spawn);
        let job = move || {
            let outcome = work(&self.shared).and_then(|()| self.shared.status());
            // If the client has gone meanwhile, no one receives this; the work is done all the same.
            let _ = sender.send(outcome);
            drop(place);
        };
        if let Err(error) = spawn.spawn("dev-order", Box::new(job)) {
            return refused(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string());
        }
        match receiver.await {
            Ok(Ok(status)) => Json(status).into_response(),
            Ok(Err(error)) => refused(code_of(&error), &error.to_string()),
            Err(_) => refused(StatusCode::INTERNAL_SERVER_ERROR, "the order broke off"),
        }
    }
}

fn code_of(error: &DevError) -> StatusCode {
    match error {
        DevError::NoNode(_) => StatusCode::NOT_FOUND,
        DevError::Clock => StatusCode::BAD_REQUEST,
        DevError::NotSettled { .. } => StatusCode::GATEWAY_TIMEOUT,
        DevError::State { .. }
        | DevError::Status { .. }
        | DevError::WouldLeave(_)
        | DevError::TooMany
        | DevError::Nobody
        | DevError::Refused(_)
        | DevError::Bucket {
            source: BucketError::NotFlushable | BucketError::NotNow(_) | BucketError::Elsewhere(_),
            ..
        }
        | DevError::Cluster { source: ClusterError::Refused(_) | ClusterError::Busy } => StatusCode::CONFLICT,
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    }
}
