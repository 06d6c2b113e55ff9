//! What administrators ask of a cluster: failover, rebalance, nodes that come and go, and how far it is; with the
//! addresses and form fields of the field's REST interface where it has them.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use ::cluster::state::{AutoFailover, State as Document};
use ::cluster::{Address, Command, NodeId, Refused, Status, View};
use axum::Json;
use axum::body::Bytes;
use axum::extract::{Extension, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde_json::json;
use tokio::sync::oneshot;

use super::basic_auth::Caller;
use super::settings::{Errors, refused, require_admin};
use super::{Shared, form};
use crate::cluster::{Cluster, ClusterError};

/// Where nodes of the field are reached for HTTP.
const HTTP_PORT: u16 = 8091;

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
    fn nodes(&self, document: &Document, name: &str) -> Result<Vec<NodeId>, Wrong> {
        let texts = self.get(name).unwrap_or_default().split(',').filter(|text| !text.is_empty());
        let id = |text| node_id(document, text).ok_or_else(|| Wrong::no_such_node(document, name, text));
        texts.map(id).collect()
    }

    fn node(&self, document: &Document, name: &str) -> Result<NodeId, Wrong> {
        self.nodes(document, name)?.first().copied().ok_or_else(|| Wrong::field(name, "name a node"))
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

    fn no_such_node(document: &Document, field: &str, text: &str) -> Wrong {
        let names: Vec<String> = document.nodes.keys().map(NodeId::to_string).collect();
        Wrong::field(field, &format!("there is no node {text:?}; there are {}", names.join(", ")))
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

/// `n_2@HOST`, `n_2`, or as scripts of the field may have it, `ns_2@HOST`; or else where it is reached, `HOST:PORT`.
fn node_id(document: &Document, text: &str) -> Option<NodeId> {
    let name = text.split('@').next().unwrap_or_default();
    let number = name.strip_prefix("n_").or_else(|| name.strip_prefix("ns_"));
    match number.and_then(|number| number.parse().ok()).map(NodeId) {
        Some(id) => document.nodes.contains_key(&id).then_some(id),
        None => {
            let is_there = |address: &Address| address.http() == text || address.kv() == text;
            document.nodes.iter().find(|(_, node)| is_there(&node.address)).map(|(id, _)| *id)
        }
    }
}

/// What a node is called in this interface.
pub(super) fn otp_name(document: &Document, id: NodeId) -> String {
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

/// How long whoever asks something waits until this node has read what came of it: what is asked next is answered from
/// that.
const READ_WITHIN: Duration = Duration::from_secs(5);

/// How long a rebalance waits for nodes that come back without their copies and still drop them, and how often it looks.
const DROPPED_WITHIN: Duration = Duration::from_secs(20);
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// Asks one thing, which may depend on the document as it is then.
fn ask_now(cluster: &Cluster, what: impl Fn(&View) -> Result<Command, Wrong>) -> Result<Arc<View>, Wrong> {
    let view = cluster.ask_for(what)?;
    let revision = view.state.revision;
    cluster.wait_until(READ_WITHIN, |seen, _| seen.state.revision >= revision);
    Ok(view)
}

/// Lets an administrator ask what a form says.
async fn ask(
    shared: Shared,
    caller: Caller,
    body: &Bytes,
    read: impl Fn(&View, &Form) -> Result<Command, Wrong> + Send + 'static,
) -> Response {
    if let Err(response) = require_admin(&caller.0) {
        return *response;
    }
    let form = Form(form::parse(body));
    let asked = on_a_thread(&shared, move |cluster| ask_now(cluster, |view| read(view, &form)).map(drop));
    asked.await.map_or_else(IntoResponse::into_response, |()| StatusCode::OK.into_response())
}

/// `POST /controller/failOver`: `otpNode`, and `allowUnsafe` if documents may be lost.
pub(super) async fn fail_over(
    State(shared): State<Shared>,
    Extension(caller): Extension<Caller>,
    body: Bytes,
) -> Response {
    if let Err(response) = require_admin(&caller.0) {
        return *response;
    }
    let form = Form(form::parse(&body));
    let asked = on_a_thread(&shared, move |cluster| {
        let force = form.is_set("allowUnsafe");
        let names: Vec<&str> = form.get("otpNode").unwrap_or_default().split(',').collect();
        names.into_iter().try_for_each(|name| {
            ask_now(cluster, |view| {
                let no_such_node = || Wrong::no_such_node(&view.state, "otpNode", name);
                let node = node_id(&view.state, name).ok_or_else(no_such_node)?;
                Ok(Command::FailOver { node, force })
            })
            .map(drop)
        })
    });
    asked.await.map_or_else(IntoResponse::into_response, |()| StatusCode::OK.into_response())
}

/// `POST /controller/startGracefulFailover`: `otpNode`.
pub(super) async fn fail_over_gracefully(
    State(shared): State<Shared>,
    Extension(caller): Extension<Caller>,
    body: Bytes,
) -> Response {
    ask(shared, caller, &body, |view, form| {
        Ok(Command::FailOverGracefully { node: form.node(&view.state, "otpNode")? })
    })
    .await
}

/// `POST /controller/rebalance`: `ejectedNodes`, and `knownNodes`, which must be all that there are if it is given.
pub(super) async fn rebalance(
    State(shared): State<Shared>,
    Extension(caller): Extension<Caller>,
    body: Bytes,
) -> Response {
    if let Err(response) = require_admin(&caller.0) {
        return *response;
    }
    let form = Form(form::parse(&body));
    let asked = on_a_thread(&shared, move |cluster| {
        let clock = &cluster.node_env().clock;
        let end = clock.monotonic() + DROPPED_WITHIN;
        loop {
            match ask_now(cluster, |view| spread(&view.state, &form)) {
                Err(Wrong::Error(ClusterError::Refused(Refused::Dropping(_)))) if clock.monotonic() < end => {
                    cluster.wait_for_news(LOOK_AGAIN);
                }
                asked => return asked.map(drop),
            }
        }
    });
    asked.await.map_or_else(IntoResponse::into_response, |()| StatusCode::OK.into_response())
}

fn spread(document: &Document, form: &Form) -> Result<Command, Wrong> {
    let eject = form.nodes(document, "ejectedNodes")?;
    if let Some(known) = form.get("knownNodes") {
        let known = known.split(',').filter(|text| !text.is_empty());
        let known: Option<BTreeSet<NodeId>> = known.map(|text| node_id(document, text)).collect();
        if known != Some(document.nodes.keys().copied().collect()) {
            return Err(Wrong::Mismatch);
        }
    }
    Ok(Command::Rebalance { eject })
}

/// `POST /controller/stopRebalance`
pub(super) async fn stop_rebalance(
    State(shared): State<Shared>,
    Extension(caller): Extension<Caller>,
    body: Bytes,
) -> Response {
    ask(shared, caller, &body, |_, _| Ok(Command::CancelRebalance)).await
}

/// `POST /controller/setRecoveryType`: `otpNode`, and `recoveryType`, delta or full.
pub(super) async fn set_recovery(
    State(shared): State<Shared>,
    Extension(caller): Extension<Caller>,
    body: Bytes,
) -> Response {
    ask(shared, caller, &body, |view, form| {
        let delta = match form.get("recoveryType") {
            Some("delta") => true,
            Some("full") => false,
            _ => return Err(Wrong::field("recoveryType", "give delta or full")),
        };
        Ok(Command::Recover { node: form.node(&view.state, "otpNode")?, delta })
    })
    .await
}

/// `POST /controller/reAddNode`: `otpNode`.
pub(super) async fn add_again(
    State(shared): State<Shared>,
    Extension(caller): Extension<Caller>,
    body: Bytes,
) -> Response {
    ask(shared, caller, &body, |view, form| {
        Ok(Command::Recover { node: form.node(&view.state, "otpNode")?, delta: false })
    })
    .await
}

/// `POST /controller/ejectNode`: `otpNode`, which has no vBuckets.
pub(super) async fn eject(
    State(shared): State<Shared>,
    Extension(caller): Extension<Caller>,
    body: Bytes,
) -> Response {
    ask(shared, caller, &body, |view, form| Ok(Command::Eject { node: form.node(&view.state, "otpNode")? }))
        .await
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
        // Scripts may say how it is reached, and leave out the port that everybody has.
        let hostname = hostname.trim_start_matches("http://").trim_end_matches('/');
        let hostname =
            if hostname.contains(':') { hostname.to_owned() } else { format!("{hostname}:{HTTP_PORT}") };
        let uuid_of = |view: &View| {
            let mut nodes = view.state.nodes.values();
            let there = nodes.find(|node| node.address.http() == hostname).map(|node| node.uuid.clone());
            let mut members = view.members.iter();
            there.or_else(|| {
                let member = members.find(|(_, member)| member.address.http() == hostname);
                member.map(|(uuid, _)| uuid.clone())
            })
        };
        let view = ask_now(cluster, |view| {
            let none = || {
                let what = format!("no node at {hostname} has come: start it with --join");
                Wrong::field("hostname", &what)
            };
            let uuid = uuid_of(view).ok_or_else(none)?;
            match (view.state.node_of(&uuid), view.members.get(&uuid)) {
                (Some((node, of)), _) if of.status == Status::FailedOver => {
                    Ok(Command::Recover { node, delta: false })
                }
                (Some((_, of)), _) => Ok(Command::Join {
                    uuid: uuid.clone(),
                    address: of.address.clone(),
                    incarnation: of.incarnation,
                }),
                (None, Some(member)) => Ok(Command::Join {
                    uuid: uuid.clone(),
                    address: member.address.clone(),
                    incarnation: member.incarnation,
                }),
                (None, None) => Err(none()),
            }
        })?;
        let id = uuid_of(&view).and_then(|uuid| Some(view.state.node_of(&uuid)?.0));
        Ok(otp_name(&view.state, id.ok_or(ClusterError::Busy)?))
    });
    added
        .await
        .map_or_else(IntoResponse::into_response, |name| Json(json!({ "otpNode": name })).into_response())
}

/// `GET /settings/autoFailover`
pub(super) async fn auto_failover(State(shared): State<Shared>) -> Response {
    match shared.node.cluster().and_then(|cluster| cluster.view()) {
        Some(view) => {
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
    ask(shared, caller, &body, |view, form| {
        let now = view.state.auto_failover;
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
        let enabled = match form.get("enabled") {
            None => now.enabled,
            Some("true" | "1") => true,
            Some("false" | "0") => false,
            Some(_) => return Err(Wrong::field("enabled", "give true or false")),
        };
        Ok(Command::SetAutoFailover(AutoFailover { enabled, timeout_ms, max_count, ..now }))
    })
    .await
}
