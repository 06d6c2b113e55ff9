//! Cluster maps as clients want them. Each field stands here because some client fails without it.

use serde_json::{Map, Value, json};

use super::capabilities::capabilities;
use super::layout::{BucketLayout, Layout, NodeEntry};
use crate::naming;

/// The map for clients without a bucket.
pub(super) fn of_nodes(layout: &Layout) -> Value {
    json!({
        "rev": layout.version.revision,
        "revEpoch": layout.version.epoch,
        "nodesExt": nodes_ext(layout),
        "clusterCapabilitiesVer": [1, 0],
        "clusterCapabilities": {},
    })
}

fn nodes_ext(layout: &Layout) -> Vec<Value> {
    let entry = |(at, node): (usize, &super::NodeEntry)| {
        let address = &node.address;
        // Clients refuse a map without a management port, whether they use it or not.
        let services: Map<String, Value> = [
            ("kv", address.plain_kv()),
            ("mgmt", address.plain_http()),
            ("kvSSL", address.tls.map(|tls| tls.kv)),
            ("mgmtSSL", address.tls.map(|tls| tls.http)),
        ]
        .into_iter()
        .filter_map(|(service, port)| Some((service.to_owned(), json!(port?))))
        .collect();
        let mut entry = json!({ "services": services });
        if layout.this_node.map(usize::from) == Some(at) {
            entry["thisNode"] = json!(true);
        }
        if let Some(host) = &address.host {
            entry["hostname"] = json!(host);
        }
        if let Some(alternates) = alternates(node) {
            entry["alternateAddresses"] = alternates;
        }
        entry
    };
    layout.active().map(entry).collect()
}

/// Where clients of another network reach a node, as they want it; nothing if they do not. Ports are told of services
/// that the node has.
pub fn alternates(node: &NodeEntry) -> Option<Value> {
    let alternate = node.alternate.as_ref()?;
    let has = |service: &str| match service {
        "kv" => node.address.plain_kv().is_some(),
        "mgmt" => node.address.plain_http().is_some(),
        service => !service.ends_with("SSL") || node.address.tls.is_some(),
    };
    let ports: Map<String, Value> = alternate
        .ports
        .iter()
        .filter(|(service, _)| has(service))
        .map(|(service, port)| (service.clone(), json!(port)))
        .collect();
    let mut external = json!({ "hostname": alternate.host });
    if !alternate.ports.is_empty() {
        external["ports"] = ports.into();
    }
    Some(json!({ "external": external }))
}

/// The map of a bucket.
pub(super) fn of_bucket(layout: &Layout, bucket: &BucketLayout) -> Value {
    let name = &bucket.name;
    let node = |(_, node): (usize, &super::NodeEntry)| {
        let address = &node.address;
        let mut told = json!({ "hostname": address.http(), "ports": {} });
        if let Some(port) = address.plain_kv() {
            told["ports"]["direct"] = json!(port);
        }
        told
    };
    let servers: Vec<String> = layout.active().map(|(_, node)| node.address.kv()).collect();
    json!({
        "rev": layout.version.revision,
        "revEpoch": layout.version.epoch,
        "name": name,
        "uuid": bucket.uuid,
        "nodeLocator": "vbucket",
        "bucketType": naming::bucket_type(bucket.kind),
        "storageBackend": naming::storage_backend(bucket.kind, bucket.backend),
        "collectionsManifestUid": format!("{:x}", bucket.manifest_uid),
        "nodes": layout.active().map(node).collect::<Vec<_>>(),
        "nodesExt": nodes_ext(layout),
        "vBucketServerMap": {
            "hashAlgorithm": "CRC",
            "numReplicas": bucket.replicas,
            "serverList": servers,
            "vBucketMap": rows(layout, bucket),
        },
        "bucketCapabilitiesVer": "",
        "bucketCapabilities": capabilities(bucket.kind, bucket.backend),
        "clusterCapabilitiesVer": [1, 0],
        "clusterCapabilities": {},
    })
}

/// For each vBucket the places of its nodes in the list of servers, -1 where there is none.
///
/// While its active copy is chosen the first of its copies stands there: that node answers *not my vBucket* until it serves,
/// which clients try again on. There are clients that give a vBucket up which no node is named for (record 0225).
fn rows(layout: &Layout, bucket: &BucketLayout) -> Vec<Vec<i32>> {
    let mut numbers = vec![-1; layout.nodes.len()];
    for (number, (at, _)) in layout.active().enumerate() {
        numbers[at] = number as i32;
    }
    let width = 1 + usize::from(bucket.replicas);
    let row = |row: &Vec<Option<u16>>| {
        let number = |at: usize| {
            let place = row.get(at).copied().flatten();
            place.and_then(|place| numbers.get(usize::from(place)).copied()).unwrap_or(-1)
        };
        let mut row: Vec<i32> = (0..width).map(number).collect();
        if let Some(copy) = row.iter().position(|place| *place >= 0) {
            row.swap(0, copy);
        }
        row
    };
    bucket.rows.iter().map(row).collect()
}
