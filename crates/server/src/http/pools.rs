//! The tree under `/pools`: cluster, nodes and buckets, with the fields without which some client gives up.

use axum::Json;
use axum::extract::{Extension, Path, State};
use axum::http::uri::Authority;
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse, Response};
use engine::Bucket;
use engine::settings::Key;
use serde_json::{Value, json};

use super::basic_auth::Caller;
use super::{Shared, json_bytes, no_such_bucket};
use crate::cluster_map::capabilities;
use crate::config::BucketSpec;
use crate::naming;
use crate::node::Node;
use crate::version::SERVER_VERSION;

/// `GET /`
pub(super) async fn root() -> &'static str {
    "Stave\n"
}

/// `GET /whoami`
pub(super) async fn who_am_i(Extension(Caller(user)): Extension<Caller>) -> Json<Value> {
    let role = if user.is_admin() { "admin" } else { "user" };
    Json(json!({ "id": user.name(), "domain": "local", "roles": [{ "role": role }] }))
}

/// `GET /pools`
pub(super) async fn pools(Extension(Caller(user)): Extension<Caller>) -> Json<Value> {
    Json(json!({
        "implementationVersion": SERVER_VERSION,
        "isAdminCreds": user.is_admin(),
        "pools": [{ "name": "default", "uri": "/pools/default", "streamingUri": "/poolsStreaming/default" }],
        "componentsVersion": {},
    }))
}

/// `GET /pools/default`
pub(super) async fn cluster(State(shared): State<Shared>, headers: HeaderMap) -> Json<Value> {
    let node = &shared.node;
    let buckets = node.buckets();
    let names: Vec<Value> = buckets
        .iter()
        .map(|(_, bucket)| json!({ "bucketName": bucket.name(), "uuid": bucket.uuid() }))
        .collect();
    Json(json!({
        "name": "default",
        "clusterName": "",
        "balanced": true,
        "rebalanceStatus": "none",
        "bucketNames": names,
        "buckets": { "uri": "/pools/default/buckets" },
        "nodes": [node_json(node, &headers)],
    }))
}

/// `GET /pools/nodes`
pub(super) async fn nodes(State(shared): State<Shared>, headers: HeaderMap) -> Json<Value> {
    Json(json!({ "name": "default", "nodes": [node_json(&shared.node, &headers)] }))
}

/// The host that the client asked for, from `Host: HOST[:PORT]`.
fn asked_host(headers: &HeaderMap) -> Option<String> {
    let text = headers.get(header::HOST)?.to_str().ok()?;
    let authority: Authority = text.parse().ok()?;
    Some(authority.host().trim_matches(['[', ']']).to_owned())
}

/// The node; one that listens everywhere is called what the client called it.
fn node_json(node: &Node, headers: &HeaderMap) -> Value {
    let address = node.address();
    let host = address.host.clone().or_else(|| asked_host(headers)).unwrap_or_else(|| "127.0.0.1".to_owned());
    let hostname = format!(
        "{}:{}",
        if host.contains(':') { format!("[{host}]") } else { host.clone() },
        address.http_port
    );
    json!({
        "hostname": hostname,
        "configuredHostname": hostname,
        "otpNode": format!("n_0@{host}"),
        "nodeUUID": "",
        "thisNode": true,
        "status": "healthy",
        "clusterMembership": "active",
        "version": SERVER_VERSION,
        "os": std::env::consts::OS,
        "cpuCount": node.threads(),
        "uptime": node.uptime_s().to_string(),
        "services": ["kv"],
        "ports": { "direct": address.kv_port },
        "recoveryType": "none",
        "clusterCompatibility": 458_758,
    })
}

/// `GET /pools/default/nodeServices`
pub(super) async fn node_services(State(shared): State<Shared>) -> Response {
    json_bytes(shared.node.cluster_map().global().json().to_vec())
}

/// `GET /pools/default/buckets`
pub(super) async fn buckets(
    State(shared): State<Shared>,
    Extension(Caller(user)): Extension<Caller>,
    headers: HeaderMap,
) -> Json<Value> {
    let buckets = shared.node.buckets();
    let visible = buckets.iter().filter(|(spec, _)| user.may_select(&spec.name));
    Json(visible.map(|(spec, bucket)| bucket_json(&shared.node, spec, bucket, &headers)).collect())
}

/// `GET /pools/default/buckets/BUCKET`
pub(super) async fn bucket(
    State(shared): State<Shared>,
    Extension(Caller(user)): Extension<Caller>,
    Path(name): Path<String>,
    headers: HeaderMap,
) -> Response {
    let buckets = shared.node.buckets();
    match buckets.iter().find(|(spec, _)| spec.name == name && user.may_select(&name)) {
        Some((spec, bucket)) => Json(bucket_json(&shared.node, spec, bucket, &headers)).into_response(),
        None => no_such_bucket(),
    }
}

fn bucket_json(node: &Node, spec: &BucketSpec, bucket: &Bucket, headers: &HeaderMap) -> Value {
    let name = &spec.name;
    let (settings, quota_bytes) = (bucket.settings(), bucket.memory().quota_bytes());
    let uri = format!("/pools/default/buckets/{name}");
    let map: Value = node
        .cluster_map()
        .bucket(name)
        .and_then(|map| serde_json::from_slice(map.json()).ok())
        .unwrap_or_default();
    json!({
        "name": name,
        "uuid": bucket.uuid(),
        "bucketType": naming::bucket_type(spec.kind),
        "storageBackend": naming::storage_backend(spec.kind),
        "nodeLocator": "vbucket",
        "authType": "sasl",
        "uri": uri,
        "streamingUri": format!("/pools/default/bs/{name}"),
        "quota": { "ram": quota_bytes, "rawRAM": quota_bytes },
        "replicaNumber": 0,
        "replicaIndex": false,
        "threadsNumber": 3,
        "evictionPolicy": naming::eviction_policy(settings),
        "conflictResolutionType": "seqno",
        "durabilityMinLevel": settings.show(Key::DurabilityMinLevel),
        "compressionMode": settings.show(Key::CompressionMode),
        "maxTTL": settings.get(Key::MaxTtl),
        "numVBuckets": bucket.vbuckets(),
        "controllers": {},
        "basicStats": {},
        "stats": { "uri": format!("{uri}/stats") },
        "bucketCapabilitiesVer": "",
        "bucketCapabilities": capabilities(spec.kind),
        "collectionsManifestUid": bucket.manifest().uid().to_string(),
        "vBucketServerMap": map["vBucketServerMap"],
        "nodes": [node_json(node, headers)],
    })
}

/// `GET /pools/default/b/BUCKET`
pub(super) async fn terse_bucket(
    State(shared): State<Shared>,
    Extension(Caller(user)): Extension<Caller>,
    Path(name): Path<String>,
) -> Response {
    match shared.node.cluster_map().bucket(&name) {
        Some(map) if user.may_select(&name) => json_bytes(map.json().to_vec()),
        _ => no_such_bucket(),
    }
}
