//! An order to the cluster: who may give it, what its form says, and why it is not done.

use std::sync::Arc;
use std::time::Duration;

use ::cluster::state::State as Document;
use ::cluster::{Address, Command, NodeId, Refused, Status, View};
use ::node::bucket_form::Errors;
use ::node::cluster::serving::still_joining;
use ::node::cluster::{Cluster, ClusterError};
use ::node::form;
use axum::Json;
use axum::body::Bytes;
use axum::extract::{FromRequest, Request};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde_json::json;

use super::figures;
use super::manage::not_now;
use super::settings::refused;
use super::shared::Shared;
use super::threads::NotDone;

/// What is said to whoever names none.
pub(super) const NAME_A_NODE: &str = "name a node, such as n_1";

/// The fields of a request.
pub(super) struct Form(Vec<(String, String)>);

impl Form {
    pub(super) fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(field, _)| field == name).map(|(_, value)| value.as_str())
    }

    pub(super) fn fields(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(field, value)| (field.as_str(), value.as_str()))
    }

    pub(super) fn is_set(&self, name: &str) -> bool {
        self.get(name) == Some("true")
    }

    /// The nodes of a field: one, or several with commas between them.
    pub(super) fn nodes(&self, document: &Document, name: &str) -> Result<Vec<NodeId>, Wrong> {
        let texts = self.get(name).unwrap_or_default().split(',').filter(|text| !text.is_empty());
        let id = |text| node_id(document, text).ok_or_else(|| Wrong::no_such_node(document, name, text));
        texts.map(id).collect()
    }

    pub(super) fn node(&self, document: &Document, name: &str) -> Result<NodeId, Wrong> {
        self.nodes(document, name)?.first().copied().ok_or_else(|| Wrong::field(name, NAME_A_NODE))
    }
}

/// Why something is not done.
pub(super) enum Wrong {
    Fields(Errors),
    Mismatch,
    Error(ClusterError),
    /// Asking again later helps.
    NotNow(&'static str),
}

impl Wrong {
    pub(super) fn field(name: &str, what: &str) -> Wrong {
        Wrong::Fields(Errors::from([(name.to_owned(), what.to_owned())]))
    }

    /// Both, if both are about fields.
    pub(super) fn and(self, other: Wrong) -> Wrong {
        match (self, other) {
            (Wrong::Fields(mut errors), Wrong::Fields(others)) => {
                errors.extend(others);
                Wrong::Fields(errors)
            }
            (wrong, _) => wrong,
        }
    }

    pub(super) fn no_such_node(document: &Document, field: &str, text: &str) -> Wrong {
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
            Wrong::Fields(errors) => refused(errors),
            // Whoever rebalances says which nodes there are: others may have come.
            Wrong::Mismatch => (StatusCode::BAD_REQUEST, Json(json!({ "mismatch": 1 }))).into_response(),
            Wrong::Error(ClusterError::Refused(Refused::NoSuchNode)) => {
                refused(Errors::from([("otpNode".to_owned(), "there is no such node".to_owned())]))
            }
            Wrong::Error(ClusterError::Refused(why)) => {
                refused(Errors::from([("_".to_owned(), format!("{why}{}", what_to_do(&why)))]))
            }
            Wrong::Error(error @ (ClusterError::NothingToAdopt | ClusterError::Stale(_))) => {
                refused(Errors::from([("_".to_owned(), error.to_string())]))
            }
            Wrong::Error(error) => not_now(&error.advice()),
            Wrong::NotNow(why) => not_now(why),
        }
    }
}

/// What an administrator can do about a refusal that does not say so itself.
fn what_to_do(why: &Refused) -> String {
    match why {
        Refused::LastCopy(_) => {
            "; start the nodes that have other copies, or give these documents up (stave cluster failover NODE --unsafe)"
                .to_owned()
        }
        Refused::Unsafe(_) => {
            "; start those nodes, or give these writes up (stave cluster failover NODE --unsafe)".to_owned()
        }
        Refused::NotFollowed { node, .. } => format!(
            "; start {node} and mend that link, or give these writes up (stave cluster failover {node} --unsafe)"
        ),
        Refused::NodeDown(id) => format!("; start it, or fail it over first (stave cluster failover {id})"),
        Refused::WrongStatus(id, Status::FailedOver) => format!(
            "; `stave cluster add {id}` takes it back, `stave cluster rebalance` lets it leave"
        ),
        Refused::WrongStatus(_, Status::DeltaRecovery | Status::FullRecovery) => {
            "; `stave cluster rebalance` begins it".to_owned()
        }
        Refused::Rebalancing => {
            "; wait until it has ended, or end it (stave cluster rebalance --stop)".to_owned()
        }
        Refused::FailingOver | Refused::Flushing(_) => "; ask again when that is over".to_owned(),
        _ => String::new(),
    }
}

/// `n_2@HOST`, `n_2`, or as scripts of the field may have it, `ns_2@HOST`; or else where it is reached, `HOST:PORT`.
pub(super) fn node_id(document: &Document, text: &str) -> Option<NodeId> {
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

/// The request of an administrator of the cluster, as the table of addresses sees to.
pub(super) struct Order {
    shared: Shared,
    form: Form,
}

impl FromRequest<Shared> for Order {
    type Rejection = Response;

    async fn from_request(request: Request, shared: &Shared) -> Result<Order, Response> {
        let body = Bytes::from_request(request, shared).await;
        let form = Form(form::parse(&body.map_err(IntoResponse::into_response)?));
        Ok(Order { shared: shared.clone(), form })
    }
}

impl Order {
    /// Other nodes that seem to serve and do not answer now.
    pub(super) async fn silent(&self) -> Vec<NodeId> {
        figures::silent(&self.shared).await
    }

    /// Asks one thing, which may depend on the document as it is then.
    pub(super) async fn ask(
        self,
        read: impl Fn(&View, &Form) -> Result<Command, Wrong> + Send + 'static,
    ) -> Result<StatusCode, Wrong> {
        self.carry_out(move |cluster, form| ask_now(cluster, |view| read(view, form)).map(drop)).await?;
        Ok(StatusCode::OK)
    }

    /// Does what blocks on a thread of its own.
    pub(super) async fn carry_out<T: Send + 'static>(
        self,
        work: impl FnOnce(&Cluster, &Form) -> Result<T, Wrong> + Send + 'static,
    ) -> Result<T, Wrong> {
        let Order { shared, form } = self;
        if let Some(why) = still_joining(&shared.node) {
            return Err(Wrong::NotNow(why));
        }
        let Some(cluster) = shared.node.cluster() else {
            return Err(Wrong::field("_", "this node belongs to no cluster; start it with --join"));
        };
        let stopped = shared.stopped();
        let done = shared.threads.orders.run(shared.node.env(), stopped, move || work(&cluster, &form)).await;
        done.unwrap_or_else(|not_done| {
            Err(match (not_done.not_now(), not_done) {
                (Some(why), _) => Wrong::NotNow(why),
                (None, NotDone::NoThread(error)) => Wrong::Error(ClusterError::Io("a thread", error)),
                (None, _) => Wrong::Error(ClusterError::Busy),
            })
        })
    }
}

/// How long whoever asks something waits until this node has read what came of it: what is asked next is answered from
/// that.
const READ_WITHIN: Duration = Duration::from_secs(5);

/// Asks one thing, which may depend on the document as it is then.
pub(super) fn ask_now(
    cluster: &Cluster,
    what: impl Fn(&View) -> Result<Command, Wrong>,
) -> Result<Arc<View>, Wrong> {
    let view = cluster.ask_for(what)?;
    let revision = view.state.revision;
    cluster.wait_until(READ_WITHIN, |seen, _| seen.state.revision >= revision);
    Ok(view)
}
