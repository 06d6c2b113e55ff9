//! Samples over HTTP: those of this node, and of another one, which this one asks.

use std::net::ToSocketAddrs;
use std::time::Duration;

use ::node::form::escaped;
use axum::Json;
use axum::extract::{Extension, Path, State};
use axum::http::{Method, StatusCode};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};
use tokio::sync::oneshot;

use super::acting::{Refused, refused};
use super::basic_auth::Caller;
use super::node_key::NodeRequest;
use super::query::Query;
use super::samples::EVERY;
use super::settings::find;
use super::shared::{Shared, view_of};
use crate::http_client::{self, Answer, Ask};

/// Where a node tells its own samples to other nodes; a bucket's name follows, then when the first one was taken.
pub(super) const PATH: &str = "/v1/samples/{bucket}/{since}";
/// Another node has so long to answer.
pub(super) const ANSWERED_WITHIN: Duration = Duration::from_secs(2);
/// More than this is no answer of ours.
pub(super) const MOST_ANSWER_BYTES: usize = 1 << 20;

/// Which samples are meant.
#[derive(serde::Deserialize)]
pub(super) struct Wanted {
    node: Option<String>,
    #[serde(default)]
    since: u64,
}

/// `GET /v1/buckets/BUCKET/samples?node=n_2&since=SECONDS`: of this node, or of another one, which this one asks.
pub(super) async fn show(
    State(shared): State<Shared>,
    Extension(Caller(user)): Extension<Caller>,
    Path(name): Path<String>,
    Query(wanted): Query<Wanted>,
) -> Response {
    if let Err(response) = find(&shared, &user, &name) {
        return *response;
    }
    match of_node(&shared, &name, &wanted).await {
        Ok(told) => Json(told).into_response(),
        Err(refused) => *refused,
    }
}

pub(super) async fn of_node(shared: &Shared, bucket: &str, wanted: &Wanted) -> Result<Value, Refused> {
    let Some(id) = &wanted.node else { return Ok(here(shared, bucket, wanted.since)) };
    if let Some((cluster, view)) = view_of(shared) {
        if view.state.node_of(cluster.uuid()).is_some_and(|(this, _)| this.name() == *id) {
            return Ok(here(shared, bucket, wanted.since));
        }
        let other =
            view.state.nodes.iter().find(|(there, _)| there.name() == *id).map(|(_, node)| &node.address);
        if let Some(address) = other {
            let is_encrypted = shared.node.doors().peers.is_encrypted();
            return ask(shared, address.http(), address.http_by(is_encrypted), bucket, wanted.since).await;
        }
    } else if shared.node.cluster_map().layout().nodes.iter().any(|node| node.id == *id) {
        return Ok(here(shared, bucket, wanted.since));
    }
    let why = format!("the cluster has no node {id:?}: /pools/nodes lists those that it has");
    Err(refused(StatusCode::NOT_FOUND, &why))
}

pub(super) fn here(shared: &Shared, bucket: &str, since_s: u64) -> Value {
    json!({ "everyS": EVERY.as_secs(), "samples": shared.samples.after(bucket, since_s) })
}

/// Asks another node.
pub(super) async fn ask(
    shared: &Shared,
    name: String,
    endpoint: String,
    bucket: &str,
    since_s: u64,
) -> Result<Value, Refused> {
    let path = PATH.replace("{bucket}", &escaped(bucket)).replace("{since}", &since_s.to_string());
    let failed = |why: &str| refused(StatusCode::BAD_GATEWAY, &format!("node {name}: {why}"));
    let answer = ask_node(shared, name.clone(), endpoint, path, MOST_ANSWER_BYTES, None).await;
    let answer = answer.map_err(|(code, why)| match code {
        StatusCode::BAD_GATEWAY => failed(&why),
        code => refused(code, &why),
    })?;
    let told = serde_json::from_slice(&answer.body).ok().filter(|_| answer.status == 200);
    told.ok_or_else(|| failed(&format!("it answers with status {}", answer.status)))
}

/// Asks another node for what it tells nodes alone, or does for them if there is a `body`, on a thread of its own. Otherwise
/// a status, and why.
pub(super) async fn ask_node(
    shared: &Shared,
    name: String,
    endpoint: String,
    path: String,
    most_bytes: usize,
    body: Option<&'static str>,
) -> Result<Answer, (StatusCode, String)> {
    let busy = || (StatusCode::SERVICE_UNAVAILABLE, "too many nodes are asked already: try again".to_owned());
    let place = shared.asking.place().ok_or_else(busy)?;
    let uuid = view_of(shared).and_then(|(_, view)| {
        let mut nodes = view.state.nodes.values();
        nodes.find(|node| node.address.http() == name).map(|node| node.uuid.clone())
    });
    let method = if body.is_some() { &Method::POST } else { &Method::GET };
    let asked = NodeRequest { method, path: &path, node: &name };
    let token = uuid.and_then(|uuid| shared.proof_for(&uuid, asked)).ok_or_else(busy)?;
    let (env, tls) = (shared.node.env().clone(), shared.peer_tls.for_http());
    let (done, outcome) = oneshot::channel();
    let job = move || {
        let told = endpoint.to_socket_addrs().and_then(|mut addrs| {
            let addr = addrs.next().ok_or_else(|| std::io::Error::other("the name has no address"))?;
            let ask = Ask {
                endpoint: &endpoint,
                addr,
                tls: tls.as_ref(),
                path: &path,
                token: Some(&token),
                body,
                most_bytes,
                no_word: "it ended the connection without a word",
            };
            http_client::ask(&env, ask, ANSWERED_WITHIN)
        });
        // The client may have gone.
        let _ = done.send(told);
        drop(place);
    };
    shared.node.env().spawn.spawn("samples", Box::new(job)).map_err(|_| busy())?;
    outcome.await.map_err(|_| busy())?.map_err(|error| (StatusCode::BAD_GATEWAY, error.to_string()))
}

/// `GET /v1/samples/BUCKET/SINCE`: those of this node alone, for other nodes, which have checked the user's rights.
pub(super) async fn tell(
    State(shared): State<Shared>,
    Path((bucket, since_s)): Path<(String, u64)>,
) -> Json<Value> {
    Json(here(&shared, &bucket, since_s))
}
