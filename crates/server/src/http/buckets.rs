//! Buckets as SDKs and management tools describe them.

use std::sync::Arc;

use ::node::at_rest::progress;
use ::node::cluster_map::capabilities::capabilities;
use ::node::config::BucketSpec;
use ::node::encryption_progress::EncryptionProgress;
use ::node::form::escaped;
use ::node::privilege::Privilege;
use ::node::user::User;
use ::node::{Node, naming};
use axum::Json;
use axum::extract::{Extension, Path, State};
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use engine::settings::Key;
use engine::{Bucket, BucketKind};
use kvstore::StorageBackend;
use serde_json::{Value, json};

use super::answers::no_such_bucket;
use super::basic_auth::Caller;
use super::node_figures::Figures;
use super::nodes;
use super::shared::Shared;

/// Threads of a bucket if the form does not say.
const DEFAULT_THREADS: u8 = 3;

/// `GET /pools/default/buckets`
pub(super) async fn list(
    State(shared): State<Shared>,
    Extension(Caller(user)): Extension<Caller>,
    headers: HeaderMap,
) -> Json<Value> {
    let figures = Figures::of_all(&shared).await;
    let buckets = shared.node.buckets();
    let visible = buckets.iter().filter(|(spec, _)| user.may_select(&spec.name));
    let document = |(spec, bucket): &(BucketSpec, Arc<Bucket>)| {
        with_figures(&user, &figures, describe(&shared.node, spec, bucket, &headers))
    };
    Json(visible.map(document).collect())
}

/// `GET /pools/default/buckets/BUCKET`
pub(super) async fn show(
    State(shared): State<Shared>,
    Extension(Caller(user)): Extension<Caller>,
    Path(name): Path<String>,
    headers: HeaderMap,
) -> Response {
    match document(&shared, &user, &name, &headers).await {
        Some(told) => Json(told).into_response(),
        None => no_such_bucket(),
    }
}

/// A bucket as it is now; `None` if there is none that the user may select.
pub(super) async fn document(shared: &Shared, user: &User, name: &str, headers: &HeaderMap) -> Option<Value> {
    let figures = Figures::of_all(shared).await;
    let buckets = shared.node.buckets();
    let (spec, bucket) = buckets.iter().find(|(spec, _)| spec.name == name && user.may_select(name))?;
    Some(with_figures(user, &figures, describe(&shared.node, spec, bucket, headers)))
}

/// Adds what a bucket holds, if the user may see its counters.
fn with_figures(user: &User, figures: &Figures, mut told: Value) -> Value {
    let name = told["name"].as_str().unwrap_or_default();
    if user.privileges_in(name).has(Privilege::SimpleStats) {
        let all = figures.of(name);
        told["basicStats"] = json!({
            "itemCount": all.documents,
            "memUsed": all.used_bytes,
            "quotaPercentUsed": all.used_bytes as f64 * 100.0 / all.quota_bytes.max(1) as f64,
            "opsPerSec": all.rates.ops(),
            "diskFetches": all.rates.fetched,
            "diskUsed": all.file_bytes,
            "dataUsed": all.data_bytes,
            "vbActiveNumNonResident": all.not_resident,
        });
        let missing = without_figures(figures, &told["nodes"]);
        if !missing.is_empty() {
            told["nodesWithoutFigures"] = json!(missing);
        }
    }
    told
}

/// The nodes of the cluster that did not tell their figures, so that sums lack theirs.
fn without_figures(figures: &Figures, nodes: &Value) -> Vec<String> {
    let nodes = nodes.as_array().into_iter().flatten();
    let is_missing = |node: &&Value| {
        let uuid = node["nodeUUID"].as_str().unwrap_or_default();
        node["clusterMembership"] == "active" && !figures.nodes.contains_key(uuid)
    };
    let name = |node: &Value| node["hostname"].as_str().unwrap_or_default().to_owned();
    nodes.filter(is_missing).map(name).collect()
}

/// `GET /pools/default/buckets/BUCKET/nodes`
pub(super) async fn nodes_of(
    State(shared): State<Shared>,
    Extension(Caller(user)): Extension<Caller>,
    Path(name): Path<String>,
    headers: HeaderMap,
) -> Response {
    if shared.node.bucket(&name).filter(|_| user.may_select(&name)).is_none() {
        return no_such_bucket();
    }
    let server = |node: Value| {
        let of = escaped(node["hostname"].as_str().unwrap_or_default());
        let stats = format!("/pools/default/buckets/{}/nodes/{of}/stats", escaped(&name));
        json!({ "hostname": node["hostname"], "stats": { "uri": stats } })
    };
    let servers: Vec<Value> = nodes::list(&shared.node, &headers).into_iter().map(server).collect();
    Json(json!({ "servers": servers })).into_response()
}

fn describe(node: &Node, spec: &BucketSpec, bucket: &Bucket, headers: &HeaderMap) -> Value {
    let name = &spec.name;
    let (settings, quota_bytes) = (bucket.settings(), bucket.memory().quota_bytes());
    let uri = format!("/pools/default/buckets/{name}");
    let map: Value = node
        .cluster_map()
        .bucket(name)
        .and_then(|map| serde_json::from_slice(map.json()).ok())
        .unwrap_or_default();
    let nodes = nodes::list(node, headers);
    let mut controllers = json!({});
    if spec.flush_enabled {
        controllers["flush"] = json!(format!("{uri}/controller/doFlush"));
    }
    if spec.kind == BucketKind::Persistent {
        controllers["compactAll"] = json!(format!("{uri}/controller/compactBucket"));
    }
    let maps = node.cluster_map();
    let serving = maps.layout().active().count();
    let mut told = json!({
        "name": name,
        // That of the map, which all nodes of a cluster share.
        "uuid": map["uuid"],
        "bucketType": naming::bucket_type(spec.kind),
        "storageBackend": naming::storage_backend(spec.kind, spec.backend),
        "nodeLocator": "vbucket",
        "authType": "sasl",
        "uri": uri,
        "streamingUri": format!("/pools/default/bs/{name}"),
        "quota": { "ram": quota_bytes.saturating_mul(serving as u64), "rawRAM": quota_bytes },
        "replicaNumber": spec.replicas,
        "threadsNumber": spec.hints.threads.unwrap_or(DEFAULT_THREADS),
        "rank": spec.hints.rank.unwrap_or(0),
        "evictionPolicy": naming::eviction_policy(settings),
        "conflictResolutionType": settings.show(Key::ConflictResolution),
        "durabilityImpossibleFallback": naming::fallback(settings),
        "durabilityMinLevel": settings.show(Key::DurabilityMinLevel),
        "compressionMode": settings.show(Key::CompressionMode),
        "maxTTL": settings.get(Key::MaxTtl),
        "numVBuckets": bucket.vbuckets(),
        "controllers": controllers,
        "stats": { "uri": format!("{uri}/stats"), "nodeStatsListURI": format!("{uri}/nodes") },
        "bucketCapabilitiesVer": "",
        "bucketCapabilities": capabilities(spec.kind, spec.backend),
        "collectionsManifestUid": map["collectionsManifestUid"],
        "vBucketServerMap": map["vBucketServerMap"],
        "nodes": nodes,
    });
    if spec.backend == StorageBackend::LogStructured {
        told["historyRetentionSeconds"] = json!(settings.get(Key::HistorySeconds));
        told["historyRetentionBytes"] = json!(settings.get(Key::HistoryBytes));
        told["historyRetentionCollectionDefault"] = json!(settings.is_on(Key::HistoryOfCollections));
    }
    if spec.kind == BucketKind::Persistent {
        told["autoCompactionSettings"] = json!(false);
        let has_key = node.env().disk.beneath().is_some();
        told["encryptionAtRest"] = json!(has_key && settings.is_on(Key::EncryptionAtRest));
        if let Some(found) = progress::last(node, &spec.name) {
            told["encryptionAtRestInfo"] = encryption_info(&found);
        }
        // Only views know of it, which the field has with one of the stores alone.
        if spec.backend == StorageBackend::Couchstore {
            told["replicaIndex"] = json!(spec.hints.replica_index.unwrap_or(spec.replicas > 0));
        }
    }
    told
}

/// How far the files of a bucket are encrypted on this node.
fn encryption_info(found: &EncryptionProgress) -> Value {
    let status = match found.in_clear.files {
        0 => "encrypted",
        files if files < found.all.files => "partiallyEncrypted",
        _ => "unencrypted",
    };
    json!({
        "dataStatus": status,
        "dekNumber": found.keys,
        "filesInClear": found.in_clear.files,
        "bytesInClear": found.in_clear.bytes,
        "filesOutdated": found.outdated.files,
        "bytesOutdated": found.outdated.bytes,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn active_nodes_without_figures_are_named() {
        let node = |uuid: &str, membership: &str| json!({ "hostname": format!("{uuid}:1"), "nodeUUID": uuid, "clusterMembership": membership });
        let nodes = json!([node("a", "active"), node("b", "active"), node("c", "inactiveFailed")]);
        let figures = Figures { nodes: [("a".to_owned(), Default::default())].into(), ..Figures::default() };
        assert_eq!(without_figures(&figures, &nodes), ["b:1"]);
    }
}
