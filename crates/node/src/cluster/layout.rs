//! From the document to the map that clients get.

use ::cluster::state::present;
use ::cluster::{NodeId, Status, View};
use protocol::extras::ConfigVersion;

use crate::bucket_list;
use crate::cluster_map::{BucketLayout, Layout, Membership, NodeAddress, NodeEntry, TlsPorts};

/// The map as a node tells it that the cluster calls `this`, or that does not belong to it; nothing if the document's
/// numbers are beyond what clients can be told.
pub(super) fn of(view: &View, this: Option<NodeId>) -> Option<Layout> {
    let state = &view.state;
    let ids: Vec<NodeId> = state.nodes.keys().copied().collect();
    let place = |id: NodeId| ids.iter().position(|other| *other == id).and_then(|at| u16::try_from(at).ok());
    let nodes = state.nodes.iter().map(|(id, node)| NodeEntry {
        id: id.name(),
        address: NodeAddress {
            host: Some(node.address.host.clone()),
            kv_port: node.address.kv,
            http_port: node.address.http,
            tls: node.address.kv_tls.zip(node.address.http_tls).map(|(kv, http)| TlsPorts { kv, http }),
        },
        alternate: node.address.alternate.clone(),
        membership: match node.status {
            Status::Active => Membership::Active,
            Status::New | Status::DeltaRecovery | Status::FullRecovery => Membership::Added,
            Status::FailedOver => Membership::FailedOver,
        },
    });
    let buckets = state.buckets.iter().filter_map(|(name, bucket)| {
        let spec = bucket_list::from_json(&bucket.settings)?;
        let rows = bucket.map.iter().map(|chain| {
            // Whoever was failed over, and has not been replaced yet, is nobody for clients.
            let of = |id: &NodeId| Some(*id).filter(|id| state.is_active(*id)).and_then(place);
            let active = chain.first().copied().flatten();
            let replicas = present(chain).filter(|id| Some(*id) != active).filter_map(|id| of(&id)).map(Some);
            let row = std::iter::once(active.as_ref().and_then(of)).chain(replicas);
            row.take(1 + usize::from(bucket.replicas)).collect()
        });
        Some(BucketLayout {
            name: name.clone(),
            uuid: bucket.uuid.clone(),
            kind: spec.kind,
            backend: spec.backend,
            replicas: bucket.replicas,
            manifest_uid: manifest_uid(&bucket.manifest),
            rows: rows.collect(),
        })
    });
    let version = ConfigVersion {
        epoch: i64::try_from(state.epoch).ok()?,
        revision: i64::try_from(state.revision).ok()?,
    };
    Some(Layout {
        version,
        nodes: nodes.collect(),
        this_node: this.and_then(place),
        buckets: buckets.collect(),
    })
}

/// The number of a manifest: hexadecimal text in the field's JSON.
fn manifest_uid(manifest: &serde_json::Value) -> u64 {
    let uid = manifest.get("uid").and_then(serde_json::Value::as_str);
    uid.and_then(|uid| u64::from_str_radix(uid, 16).ok()).unwrap_or(0)
}
