//! Buckets as SDKs and management tools describe them.

use axum::Json;
use axum::extract::{Extension, Path, State};
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use engine::Bucket;
use engine::settings::Key;
use serde_json::{Value, json};

use super::basic_auth::Caller;
use super::{Shared, no_such_bucket, nodes};
use crate::cluster_map::capabilities;
use crate::config::BucketSpec;
use crate::naming;
use crate::node::Node;

/// `GET /pools/default/buckets`
pub(super) async fn list(
    State(shared): State<Shared>,
    Extension(Caller(user)): Extension<Caller>,
    headers: HeaderMap,
) -> Json<Value> {
    let buckets = shared.node.buckets();
    let visible = buckets.iter().filter(|(spec, _)| user.may_select(&spec.name));
    Json(visible.map(|(spec, bucket)| describe(&shared.node, spec, bucket, &headers)).collect())
}

/// `GET /pools/default/buckets/BUCKET`
pub(super) async fn show(
    State(shared): State<Shared>,
    Extension(Caller(user)): Extension<Caller>,
    Path(name): Path<String>,
    headers: HeaderMap,
) -> Response {
    let buckets = shared.node.buckets();
    match buckets.iter().find(|(spec, _)| spec.name == name && user.may_select(&name)) {
        Some((spec, bucket)) => Json(describe(&shared.node, spec, bucket, &headers)).into_response(),
        None => no_such_bucket(),
    }
}

/// `GET /pools/default/buckets/BUCKET/stats`: one sample of each figure, that of now; `/metrics` is for what is drawn over
/// time.
pub(super) async fn stats(
    State(shared): State<Shared>,
    Extension(Caller(user)): Extension<Caller>,
    Path(name): Path<String>,
) -> Response {
    let Some(bucket) = shared.node.bucket(&name).filter(|_| user.may_select(&name)) else {
        return no_such_bucket();
    };
    let at_ms = shared.node.env().clock.unix_ns() / 1_000_000;
    let samples = json!({
        "timestamp": [at_ms],
        "curr_items": [bucket.stats().of(base::VbState::Active).documents],
        "mem_used": [bucket.memory().used_bytes()],
        "ep_max_size": [bucket.memory().quota_bytes()],
    });
    let op = json!({ "samples": samples, "samplesCount": 1, "lastTStamp": at_ms, "interval": 1_000 });
    Json(json!({ "op": op })).into_response()
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
    let controllers =
        if spec.flush_enabled { json!({ "flush": format!("{uri}/controller/doFlush") }) } else { json!({}) };
    let active = bucket.stats();
    let used_bytes = bucket.memory().used_bytes();
    json!({
        "name": name,
        // That of the map, which all nodes of a cluster share.
        "uuid": map["uuid"],
        "bucketType": naming::bucket_type(spec.kind),
        "storageBackend": naming::storage_backend(spec.kind),
        "nodeLocator": "vbucket",
        "authType": "sasl",
        "uri": uri,
        "streamingUri": format!("/pools/default/bs/{name}"),
        "quota": { "ram": quota_bytes.saturating_mul(nodes.len() as u64), "rawRAM": quota_bytes },
        "replicaNumber": spec.replicas,
        "replicaIndex": false,
        "threadsNumber": 3,
        "evictionPolicy": naming::eviction_policy(settings),
        "conflictResolutionType": "seqno",
        "durabilityMinLevel": settings.show(Key::DurabilityMinLevel),
        "compressionMode": settings.show(Key::CompressionMode),
        "maxTTL": settings.get(Key::MaxTtl),
        "numVBuckets": bucket.vbuckets(),
        "controllers": controllers,
        "basicStats": {
            "itemCount": active.of(base::VbState::Active).documents,
            "memUsed": used_bytes,
            "quotaPercentUsed": used_bytes as f64 * 100.0 / quota_bytes.max(1) as f64,
        },
        "stats": { "uri": format!("{uri}/stats") },
        "bucketCapabilitiesVer": "",
        "bucketCapabilities": capabilities(spec.kind),
        "collectionsManifestUid": map["collectionsManifestUid"],
        "vBucketServerMap": map["vBucketServerMap"],
        "nodes": nodes,
    })
}
