//! What administrators ask of a cluster: failover, rebalance, nodes that come and go, and how far it is; with the
//! addresses and form fields of the field's REST interface where it has them.

use std::collections::BTreeSet;
use std::sync::Arc;

use ::cluster::state::{AutoFailover, Outcome, Purpose, State as Document};
use ::cluster::{Command, NodeId, Refused, Status, View};
use axum::Json;
use axum::body::Bytes;
use axum::extract::{Extension, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};
use tokio::sync::oneshot;

use super::basic_auth::Caller;
use super::settings::{Errors, refused, require_admin};
use super::{Shared, form};
use crate::cluster::{Cluster, ClusterError};

/// The fields of a request.
struct Form(Vec<(String, String)>);

impl Form {
    fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(field, _)| field == name).map(|(_, value)| value.as_str())
    }

    fn is_set(&self, name: &str) -> bool {
        self.get(name) == Some("true")
    }

    /// The nodes of a field: one, or several with commas between them.
    fn nodes(&self, name: &str) -> Result<Vec<NodeId>, Wrong> {
        let texts = self.get(name).unwrap_or_default().split(',').filter(|text| !text.is_empty());
        texts.map(|text| node_id(text).ok_or_else(|| Wrong::field(name, "no node is called so"))).collect()
    }

    fn node(&self, name: &str) -> Result<NodeId, Wrong> {
        self.nodes(name)?.first().copied().ok_or_else(|| Wrong::field(name, "name a node"))
    }
}

/// Why something is not done.
enum Wrong {
    Field(String, String),
    Mismatch,
    Error(ClusterError),
}

impl Wrong {
    fn field(name: &str, what: &str) -> Wrong {
        Wrong::Field(name.to_owned(), what.to_owned())
    }
}

impl From<ClusterError> for Wrong {
    fn from(error: ClusterError) -> Wrong {
        Wrong::Error(error)
    }
}

impl IntoResponse for Wrong {
    fn into_response(self) -> Response {
        match self {
            Wrong::Field(field, what) => refused(Errors::from([(field, what)])),
            // Whoever rebalances says which nodes there are: others may have come.
            Wrong::Mismatch => (StatusCode::BAD_REQUEST, Json(json!({ "mismatch": 1 }))).into_response(),
            Wrong::Error(ClusterError::Refused(Refused::NoSuchNode)) => {
                refused(Errors::from([("otpNode".to_owned(), "there is no such node".to_owned())]))
            }
            Wrong::Error(error @ ClusterError::Refused(_)) => {
                refused(Errors::from([("_".to_owned(), error.to_string())]))
            }
            Wrong::Error(error) => {
                let errors = json!({ "errors": { "_": error.to_string() } });
                (StatusCode::SERVICE_UNAVAILABLE, Json(errors)).into_response()
            }
        }
    }
}

/// `n_2@HOST` or `n_2`.
fn node_id(text: &str) -> Option<NodeId> {
    let name = text.split('@').next().unwrap_or_default();
    name.strip_prefix("n_")?.parse().ok().map(NodeId)
}

fn otp_name(document: &Document, id: NodeId) -> String {
    let host = document.nodes.get(&id).map_or("", |node| node.address.host.as_str());
    format!("{id}@{host}")
}

/// Does what blocks on a thread of its own.
async fn on_a_thread<T: Send + 'static>(
    shared: &Shared,
    work: impl FnOnce(&Cluster) -> Result<T, Wrong> + Send + 'static,
) -> Result<T, Wrong> {
    let Some(cluster) = shared.node.cluster() else {
        return Err(Wrong::field("_", "this node belongs to no cluster; start it with --join"));
    };
    let (sender, receiver) = oneshot::channel();
    let job = move || {
        // Nobody hears it if the client has gone meanwhile; it is done all the same.
        let _ = sender.send(work(&cluster));
    };
    let failed = |error| Wrong::Error(ClusterError::Io("a thread", error));
    shared.node.env().spawn.spawn("cluster-ask", Box::new(job)).map_err(failed)?;
    receiver.await.map_err(|_| Wrong::Error(ClusterError::Busy))?
}

/// Lets an administrator ask what a form says.
async fn ask(
    shared: Shared,
    caller: Caller,
    body: &Bytes,
    read: impl FnOnce(&Cluster, &Form) -> Result<Vec<Command>, Wrong> + Send + 'static,
) -> Response {
    if let Err(response) = require_admin(&caller.0) {
        return *response;
    }
    let form = Form(form::parse(body));
    let asked = on_a_thread(&shared, move |cluster| {
        for command in read(cluster, &form)? {
            cluster.ask(&command)?;
        }
        Ok(())
    });
    asked.await.map_or_else(IntoResponse::into_response, |()| StatusCode::OK.into_response())
}

/// `POST /controller/failOver`: `otpNode`, and `allowUnsafe` if documents may be lost.
pub(super) async fn fail_over(
    State(shared): State<Shared>,
    Extension(caller): Extension<Caller>,
    body: Bytes,
) -> Response {
    ask(shared, caller, &body, |_, form| {
        let force = form.is_set("allowUnsafe");
        let nodes = form.nodes("otpNode")?.into_iter();
        let commands: Vec<_> = nodes.map(|node| Command::FailOver { node, force }).collect();
        if commands.is_empty() { Err(Wrong::field("otpNode", "name a node")) } else { Ok(commands) }
    })
    .await
}

/// `POST /controller/startGracefulFailover`: `otpNode`.
pub(super) async fn fail_over_gracefully(
    State(shared): State<Shared>,
    Extension(caller): Extension<Caller>,
    body: Bytes,
) -> Response {
    ask(shared, caller, &body, |_, form| {
        Ok(vec![Command::FailOverGracefully { node: form.node("otpNode")? }])
    })
    .await
}

/// `POST /controller/rebalance`: `ejectedNodes`, and `knownNodes`, which must be all that there are if it is given.
pub(super) async fn rebalance(
    State(shared): State<Shared>,
    Extension(caller): Extension<Caller>,
    body: Bytes,
) -> Response {
    ask(shared, caller, &body, |cluster, form| {
        let eject = form.nodes("ejectedNodes")?;
        let known: BTreeSet<NodeId> = form.nodes("knownNodes")?.into_iter().collect();
        let view = cluster.view().ok_or(ClusterError::NoCluster)?;
        if form.get("knownNodes").is_some() && known != view.state.nodes.keys().copied().collect() {
            return Err(Wrong::Mismatch);
        }
        Ok(vec![Command::Rebalance { eject }])
    })
    .await
}

/// `POST /controller/stopRebalance`
pub(super) async fn stop_rebalance(
    State(shared): State<Shared>,
    Extension(caller): Extension<Caller>,
    body: Bytes,
) -> Response {
    ask(shared, caller, &body, |_, _| Ok(vec![Command::CancelRebalance])).await
}

/// `POST /controller/setRecoveryType`: `otpNode`, and `recoveryType`, delta or full.
pub(super) async fn set_recovery(
    State(shared): State<Shared>,
    Extension(caller): Extension<Caller>,
    body: Bytes,
) -> Response {
    ask(shared, caller, &body, |_, form| {
        let delta = match form.get("recoveryType") {
            Some("delta") => true,
            Some("full") => false,
            _ => return Err(Wrong::field("recoveryType", "give delta or full")),
        };
        Ok(vec![Command::Recover { node: form.node("otpNode")?, delta }])
    })
    .await
}

/// `POST /controller/reAddNode`: `otpNode`.
pub(super) async fn add_again(
    State(shared): State<Shared>,
    Extension(caller): Extension<Caller>,
    body: Bytes,
) -> Response {
    ask(shared, caller, &body, |_, form| {
        Ok(vec![Command::Recover { node: form.node("otpNode")?, delta: false }])
    })
    .await
}

/// `POST /controller/ejectNode`: `otpNode`, which has no vBuckets.
pub(super) async fn eject(
    State(shared): State<Shared>,
    Extension(caller): Extension<Caller>,
    body: Bytes,
) -> Response {
    ask(shared, caller, &body, |_, form| Ok(vec![Command::Eject { node: form.node("otpNode")? }])).await
}

/// `POST /controller/addNode`: `hostname`, `HOST:PORT` for HTTP. Nodes come by themselves, through the coordination
/// store; this says whether one has come, and takes one back that was ejected.
pub(super) async fn add(
    State(shared): State<Shared>,
    Extension(caller): Extension<Caller>,
    body: Bytes,
) -> Response {
    if let Err(response) = require_admin(&caller.0) {
        return *response;
    }
    let form = Form(form::parse(&body));
    let added = on_a_thread(&shared, move |cluster| {
        let hostname = form.get("hostname").unwrap_or_default();
        let view = cluster.view().ok_or(ClusterError::NoCluster)?;
        let there = view.state.nodes.iter().find(|(_, node)| node.address.http() == hostname);
        if let Some((id, node)) = there {
            if node.status == Status::FailedOver {
                cluster.ask(&Command::Recover { node: *id, delta: false })?;
            }
            return Ok(otp_name(&view.state, *id));
        }
        let (uuid, member) =
            view.members.iter().find(|(_, member)| member.address.http() == hostname).ok_or_else(|| {
                Wrong::field("hostname", "no node of this address has come; start it with --join")
            })?;
        let (uuid, address, incarnation) = (uuid.clone(), member.address.clone(), member.incarnation);
        let view = cluster.ask(&Command::Join { uuid: uuid.clone(), address, incarnation })?;
        let id = view.state.node_of(&uuid).map(|(id, _)| id).ok_or(ClusterError::Busy)?;
        Ok(otp_name(&view.state, id))
    });
    added
        .await
        .map_or_else(IntoResponse::into_response, |name| Json(json!({ "otpNode": name })).into_response())
}

/// `GET /settings/autoFailover`
pub(super) async fn auto_failover(State(shared): State<Shared>) -> Response {
    match view_of(&shared) {
        Some((_, view)) => {
            let rules = &view.state.auto_failover;
            let json = json!({
                "enabled": rules.enabled, "timeout": rules.timeout_ms.div_ceil(1_000),
                "maxCount": rules.max_count, "count": rules.count,
            });
            Json(json).into_response()
        }
        None => Wrong::field("_", "this node belongs to no cluster").into_response(),
    }
}

/// `POST /settings/autoFailover`: `enabled`, `timeout` in seconds, `maxCount`.
pub(super) async fn set_auto_failover(
    State(shared): State<Shared>,
    Extension(caller): Extension<Caller>,
    body: Bytes,
) -> Response {
    ask(shared, caller, &body, |cluster, form| {
        let now = cluster.view().ok_or(ClusterError::NoCluster)?.state.auto_failover;
        let number = |name: &str, bounds: std::ops::RangeInclusive<u64>| match form.get(name) {
            None => Ok(None),
            Some(text) => {
                let number = text.parse::<u64>().ok().filter(|number| bounds.contains(number));
                let what = format!("give a number from {} to {}", bounds.start(), bounds.end());
                number.map(Some).ok_or_else(|| Wrong::field(name, &what))
            }
        };
        let timeout_ms = number("timeout", 1..=3_600)?.map_or(now.timeout_ms, |seconds| seconds * 1_000);
        let max_count = number("maxCount", 1..=100)?.map_or(now.max_count, |count| count as u32);
        let enabled = form.get("enabled").map_or(now.enabled, |text| text == "true");
        Ok(vec![Command::SetAutoFailover(AutoFailover { enabled, timeout_ms, max_count, ..now })])
    })
    .await
}

fn view_of(shared: &Shared) -> Option<(Arc<Cluster>, Arc<View>)> {
    let cluster = shared.node.cluster()?;
    let view = cluster.view()?;
    Some((cluster, view))
}

/// How much of a rebalance is done, from 0 to 1.
fn progress(document: &Document) -> Option<f64> {
    let rebalance = document.rebalance.as_ref()?;
    let left = document.to_move() as f64;
    Some(if rebalance.total == 0 { 1.0 } else { (1.0 - left / f64::from(rebalance.total)).clamp(0.0, 1.0) })
}

/// `GET /pools/default/rebalanceProgress`
pub(super) async fn rebalance_progress(State(shared): State<Shared>) -> Json<Value> {
    let view = view_of(&shared).map(|(_, view)| view);
    let running = view.as_ref().and_then(|view| Some((view, progress(&view.state)?)));
    let Some((view, progress)) = running else { return Json(json!({ "status": "none" })) };
    let mut json = json!({ "status": "running" });
    for id in view.state.nodes.keys().filter(|id| view.state.is_active(**id)) {
        json[otp_name(&view.state, *id)] = json!({ "progress": progress });
    }
    Json(json)
}

/// `GET /pools/default/tasks`
pub(super) async fn tasks(State(shared): State<Shared>) -> Json<Value> {
    let view = view_of(&shared).map(|(_, view)| view);
    let document = view.as_ref().map(|view| &view.state);
    let Some(rebalance) = document.and_then(|document| document.rebalance.as_ref()) else {
        let failed = document.and_then(|document| document.finished.as_ref());
        let message = match failed.map(|finished| finished.outcome) {
            Some(Outcome::Interrupted) => Some("a node was failed over"),
            _ => None,
        };
        let mut task = json!({ "type": "rebalance", "status": "notRunning", "statusIsStale": false });
        if let Some(message) = message {
            task["errorMessage"] = json!(message);
        }
        return Json(json!([task]));
    };
    let kind = match rebalance.purpose {
        Purpose::GracefulFailover { .. } => "gracefulFailover",
        Purpose::Rebalance { .. } | Purpose::Repair => "rebalance",
    };
    let progress = document.and_then(progress).unwrap_or(0.0) * 100.0;
    Json(json!([{
        "type": "rebalance", "subtype": kind, "status": "running", "progress": progress,
        "rebalanceId": rebalance.id.to_string(), "statusIsStale": false,
    }]))
}

/// `GET /v1/cluster`: the document as it is, and who is alive.
pub(super) async fn show(State(shared): State<Shared>, Extension(caller): Extension<Caller>) -> Response {
    if let Err(response) = require_admin(&caller.0) {
        return *response;
    }
    let Some((cluster, view)) = view_of(&shared) else {
        return Wrong::field("_", "this node belongs to no cluster").into_response();
    };
    let alive: Vec<NodeId> =
        view.state.nodes.keys().copied().filter(|id| view.alive(*id).is_some()).collect();
    let this = view.state.node_of(cluster.uuid()).map(|(id, _)| id);
    let json =
        json!({ "this": this, "alive": alive, "progress": progress(&view.state), "state": view.state });
    Json(json).into_response()
}
