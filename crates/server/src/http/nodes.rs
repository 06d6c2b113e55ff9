//! The nodes of the cluster as SDKs and management tools list them.

use axum::http::uri::Authority;
use axum::http::{HeaderMap, header};
use serde_json::{Value, json};

use ::node::Node;
use ::node::cluster_map::{Membership, NodeAddress, NodeEntry, alternates};
use ::node::version::SERVER_VERSION;

/// All nodes, this one first if it belongs to the cluster: clients take the first for the one that they asked.
pub(super) fn list(node: &Node, headers: &HeaderMap) -> Vec<Value> {
    let maps = node.cluster_map();
    let layout = maps.layout();
    let this = layout.this_node.map(usize::from);
    let mut nodes: Vec<(bool, Value)> = layout
        .nodes
        .iter()
        .enumerate()
        .map(|(at, entry)| (this == Some(at), of_entry(node, entry, this == Some(at), headers)))
        .collect();
    let view = node.cluster().and_then(|cluster| cluster.view());
    for ((is_this, told), entry) in nodes.iter_mut().zip(&layout.nodes) {
        let of = view.as_ref().and_then(|view| view.state.nodes.iter().find(|(id, _)| id.name() == entry.id));
        let uuid = of.map(|(_, of)| of.uuid.as_str()).or_else(|| is_this.then(|| node.uuid()));
        let is_down = of.is_some_and(|(id, _)| view.as_ref().is_some_and(|view| view.alive(*id).is_none()));
        told["status"] = json!(if is_down { "unhealthy" } else { "healthy" });
        told["nodeUUID"] = json!(uuid.unwrap_or_default());
    }
    nodes.sort_by_key(|(is_this, _)| !is_this);
    nodes.into_iter().map(|(_, entry)| entry).collect()
}

/// The host that the client asked for, from `Host: HOST[:PORT]`.
fn asked_host(headers: &HeaderMap) -> Option<String> {
    let text = headers.get(header::HOST)?.to_str().ok()?;
    let authority: Authority = text.parse().ok()?;
    Some(authority.host().trim_matches(['[', ']']).to_owned())
}

/// The ports that are not for HTTP without TLS, under the original's names.
fn ports(address: &NodeAddress) -> Value {
    let mut told = json!({});
    if let Some(port) = address.plain_kv() {
        told["direct"] = json!(port);
    }
    if let Some(tls) = &address.tls {
        told["directTLS"] = json!(tls.kv);
        told["httpsMgmt"] = json!(tls.http);
    }
    told
}

/// A node; one that listens everywhere is called what the client called it.
fn of_entry(node: &Node, entry: &NodeEntry, is_this: bool, headers: &HeaderMap) -> Value {
    let address = &entry.address;
    let host = address.host.clone().or_else(|| asked_host(headers)).unwrap_or_else(|| "127.0.0.1".to_owned());
    let bracketed = if host.contains(':') { format!("[{host}]") } else { host.clone() };
    let hostname = format!("{bracketed}:{}", address.http_port);
    let membership = match entry.membership {
        Membership::Active => "active",
        Membership::Added => "inactiveAdded",
        Membership::FailedOver => "inactiveFailed",
    };
    let mut told = json!({
        "hostname": hostname,
        "configuredHostname": hostname,
        "otpNode": format!("{}@{host}", entry.id),
        "clusterMembership": membership,
        "version": SERVER_VERSION,
        "os": std::env::consts::OS,
        "services": ["kv"],
        "ports": ports(address),
        "recoveryType": "none",
        "clusterCompatibility": 458_758,
        "cpuCount": node.workers().threads(),
        // Of another node it is what that one says, if it does.
        "uptime": if is_this { node.uptime_s() } else { 0 }.to_string(),
    });
    if let Some(alternates) = alternates(entry) {
        told["alternateAddresses"] = alternates;
    }
    if is_this {
        told["thisNode"] = json!(true);
    }
    told
}
