//! What administrators ask of a cluster: failover, rebalance, nodes that come and go, and how far it is; with the
//! addresses and form fields of the field's REST interface where it has them.

use std::collections::BTreeSet;

use ::cluster::state::State as Document;
use ::cluster::{Command, NodeId, Status, View};
use ::node::cluster::ClusterError;
use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde_json::json;

use super::cluster_order::{Form, NAME_A_NODE, Order, Wrong, ask_now, node_id, otp_name};

/// Where nodes of the field are reached for HTTP.
const HTTP_PORT: u16 = 8091;

/// `POST /controller/failOver`: `otpNode`, `allowUnsafe` if documents may be lost, and with it `nodeStopped` if the node
/// has stopped for certain.
pub(super) async fn fail_over(order: Order) -> Result<StatusCode, Wrong> {
    let silent = order.silent().await;
    let asked = order.carry_out(move |cluster, form| {
        let force = form.is_set("allowUnsafe");
        let has_stopped = form.is_set("nodeStopped");
        if has_stopped && !force {
            return Err(Wrong::field("nodeStopped", "goes with allowUnsafe=true alone"));
        }
        let names = form.get("otpNode").unwrap_or_default().split(',').filter(|name| !name.is_empty());
        let names: Vec<&str> = names.collect();
        if names.is_empty() {
            return Err(Wrong::field("otpNode", NAME_A_NODE));
        }
        let ask = |name: &str, command: &dyn Fn(NodeId) -> Command| {
            let asked = ask_now(cluster, |view| {
                let no_such_node = || Wrong::no_such_node(&view.state, "otpNode", name);
                let id = node_id(&view.state, name).ok_or_else(no_such_node)?;
                match silent.iter().find(|other| !force && shares(&view.state, id, **other)) {
                    Some(other) => Err(unsure(id, *other)),
                    None => Ok(command(id)),
                }
            });
            asked.map(drop)
        };
        names.into_iter().try_for_each(|name| {
            ask(name, &|node| Command::FailOver { node, force })?;
            if has_stopped { ask(name, &|node| Command::HasStopped { node }) } else { Ok(()) }
        })
    });
    asked.await.map(|()| StatusCode::OK)
}

/// Whether two nodes have copies of the same vBucket.
fn shares(document: &Document, one: NodeId, other: NodeId) -> bool {
    let chains = document.buckets.values().flat_map(|bucket| &bucket.map);
    one != other && chains.into_iter().any(|chain| chain.contains(&Some(one)) && chain.contains(&Some(other)))
}

/// A node that does not answer may have died with what it had in memory: the copies of the node that is to be failed over
/// may be the only ones, although the other one's lease still runs.
fn unsure(id: NodeId, other: NodeId) -> Wrong {
    let why = format!(
        "{other} does not answer, and has copies of the same vBuckets as {id}: if it is down, those of {id} are the \
         only ones. Whether it is down is known when its lease has run out, some seconds after its end: try again \
         then. If documents may be lost: stave cluster failover {id} --unsafe"
    );
    Wrong::field("otpNode", &why)
}

/// `POST /controller/startGracefulFailover`: `otpNode`.
pub(super) async fn fail_over_gracefully(order: Order) -> Result<StatusCode, Wrong> {
    order.ask(|view, form| Ok(Command::FailOverGracefully { node: form.node(&view.state, "otpNode")? })).await
}

/// `POST /controller/giveUpDamaged`: `bucket`, of which no vBucket waits for damaged copies any more.
pub(super) async fn give_up_damaged(order: Order) -> Result<StatusCode, Wrong> {
    order
        .ask(|_, form| Ok(Command::GiveUpDamaged { name: form.get("bucket").unwrap_or_default().to_owned() }))
        .await
}

/// `POST /controller/rebalance`: `ejectedNodes`, and `knownNodes`, which must be all that there are if it is given.
pub(super) async fn rebalance(order: Order) -> Result<StatusCode, Wrong> {
    order.ask(|view, form| spread(&view.state, form)).await
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
pub(super) async fn stop_rebalance(order: Order) -> Result<StatusCode, Wrong> {
    order.ask(|_, _| Ok(Command::CancelRebalance)).await
}

/// `POST /controller/setRecoveryType`: `otpNode`, and `recoveryType`, delta or full.
pub(super) async fn set_recovery(order: Order) -> Result<StatusCode, Wrong> {
    order
        .ask(|view, form| {
            let delta = match form.get("recoveryType") {
                Some("delta") => Ok(true),
                Some("full") => Ok(false),
                _ => Err(Wrong::field("recoveryType", "give delta or full")),
            };
            match (form.node(&view.state, "otpNode"), delta) {
                (Ok(node), Ok(delta)) => Ok(Command::Recover { node, delta }),
                (Err(node), Err(delta)) => Err(node.and(delta)),
                (Err(wrong), _) | (_, Err(wrong)) => Err(wrong),
            }
        })
        .await
}

/// `POST /controller/reAddNode`: `otpNode`.
pub(super) async fn add_again(order: Order) -> Result<StatusCode, Wrong> {
    order
        .ask(|view, form| Ok(Command::Recover { node: form.node(&view.state, "otpNode")?, delta: false }))
        .await
}

/// `POST /controller/ejectNode`: `otpNode`, which has no vBuckets.
pub(super) async fn eject(order: Order) -> Result<StatusCode, Wrong> {
    order
        .ask(|view, form| {
            let node = form.node(&view.state, "otpNode")?;
            if view.state.is_active(node) {
                let what = format!(
                    "{node} is active: it leaves by a rebalance that names it in ejectedNodes (stave cluster remove \
                     {node}), which moves what it has to the others first"
                );
                return Err(Wrong::field("otpNode", &what));
            }
            Ok(Command::Eject { node })
        })
        .await
}

/// `POST /controller/adoptState`: the node follows the state that the coordination store holds, although it is older
/// than one that it has seen.
pub(super) async fn adopt(order: Order) -> Result<Response, Wrong> {
    let revision = order.carry_out(|cluster, _| Ok(cluster.adopt()?)).await?;
    Ok(Json(json!({ "revision": revision })).into_response())
}

/// `POST /controller/addNode`: `hostname`, `HOST:PORT` for HTTP. Nodes come by themselves, through the coordination
/// store; this says whether one has come, and takes one back that was ejected.
pub(super) async fn add(order: Order) -> Result<Response, Wrong> {
    let added = order.carry_out(|cluster, form| {
        let hostname = form.get("hostname").unwrap_or_default();
        // Scripts may say how it is reached, and leave out the port that everybody has.
        let hostname = hostname.trim_start_matches("http://").trim_end_matches('/');
        let hostname =
            if hostname.contains(':') { hostname.to_owned() } else { format!("{hostname}:{HTTP_PORT}") };
        let uuid_of = |view: &View| {
            // Of two at one address the one that answers: the other one has lost its folder.
            let mut members = view.members.iter();
            let member = members.find(|(_, member)| member.address.http() == hostname);
            member.map(|(uuid, _)| uuid.clone()).or_else(|| {
                let mut nodes = view.state.nodes.values();
                nodes.find(|node| node.address.http() == hostname).map(|node| node.uuid.clone())
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
    Ok(Json(json!({ "otpNode": added.await? })).into_response())
}
