//! The tree under `/pools`: the cluster and its maps, with the fields without which some client gives up.

use ::cluster::damage::{self, Wrong};
use ::cluster::state::State as ClusterState;
use ::node::Node;
use ::node::cluster::serving::is_a_clusters;
use ::node::host_failure::MOST_BUCKETS;
use ::node::hosting::Host;
use ::node::privilege::Privilege;
use ::node::user::User;
use ::node::version::SERVER_VERSION;
use axum::Json;
use axum::extract::{Extension, Path, State};
use axum::http::HeaderMap;
use axum::response::Response;
use serde_json::{Map, Value, json};

use super::answers::{json_bytes, no_such_bucket};
use super::basic_auth::Caller;
use super::node_figures::{Figures, OfBucket, OfNode};
use super::nodes;
use super::shared::{Shared, view_of};

/// `GET /`
pub(super) async fn root() -> &'static str {
    "Stave\n"
}

/// `GET /pools`, which clients read before they log in; those that have not are not told which cluster it is.
pub(super) async fn pools(State(shared): State<Shared>, caller: Option<Extension<Caller>>) -> Json<Value> {
    let user = caller.map(|Extension(Caller(user))| user);
    Json(json!({
        "implementationVersion": SERVER_VERSION,
        // Tools ask for what only the other edition has.
        "isEnterprise": false,
        "isAdminCreds": user.as_ref().is_some_and(|user| user.is_admin()),
        "uuid": user.map_or_else(String::new, |_| identity(&shared.node)),
        "pools": [{ "name": "default", "uri": "/pools/default", "streamingUri": "/poolsStreaming/default" }],
        "componentsVersion": {},
    }))
}

/// `GET /versions`
pub(super) async fn versions() -> Json<Value> {
    Json(json!({ "implementationVersion": SERVER_VERSION, "componentsVersion": {} }))
}

/// Whether every node of the cluster has its share, and nothing is under way.
fn is_balanced(shared: &Shared) -> bool {
    view_of(shared).is_none_or(|(_, view)| {
        let state = &view.state;
        state.rebalance.is_none() && state.nodes.keys().all(|id| state.is_active(*id))
    })
}

/// What the cluster is called by who must not take it for another one; a node alone is one.
fn identity(node: &Node) -> String {
    match node.cluster() {
        Some(cluster) => cluster.identity().unwrap_or_default(),
        None if is_a_clusters(node) => String::new(),
        None => node.uuid().to_owned(),
    }
}

/// `GET /pools/default`
pub(super) async fn cluster(
    State(shared): State<Shared>,
    Extension(Caller(user)): Extension<Caller>,
    headers: HeaderMap,
) -> Json<Value> {
    Json(document(&shared, &user, &headers).await)
}

/// The cluster as it is now, with the buckets that a user may select.
pub(super) async fn document(shared: &Shared, user: &User, headers: &HeaderMap) -> Value {
    let node = &shared.node;
    let figures = Figures::of_all(shared).await;
    let maps = node.cluster_map();
    let listed = maps.layout().buckets.iter().filter(|bucket| user.may_select(&bucket.name));
    let names: Vec<Value> =
        listed.map(|bucket| json!({ "bucketName": bucket.name, "uuid": bucket.uuid })).collect();
    let quota_bytes = node.host().map_or(0, Host::memory_quota_bytes);
    let down = node.served().down();
    let down = down.iter().filter(|(name, _)| user.may_select(name));
    let down: Vec<Value> =
        down.map(|(name, down)| json!({ "bucketName": name, "reason": down.reason })).collect();
    let damage: Vec<Wrong> = view_of(shared).map_or_else(Vec::new, |(_, view)| damage::wrongs(&view));
    let damage: Vec<&Wrong> = damage.iter().filter(|wrong| user.may_select(&wrong.bucket)).collect();
    let is_moving = view_of(shared).is_some_and(|(_, view)| view.state.rebalance.is_some());
    json!({
        "name": "default",
        "clusterName": "",
        "balanced": is_balanced(shared),
        "rebalanceStatus": if is_moving { "running" } else { "none" },
        "rebalanceProgressUri": "/pools/default/rebalanceProgress",
        "bucketNames": names,
        "bucketsDown": down,
        "damagedCopies": damage,
        "buckets": { "uri": "/pools/default/buckets", "terseBucketsBase": "/pools/default/b/" },
        "maxBucketCount": MOST_BUCKETS,
        "memoryQuota": quota_bytes >> 20,
        // Of the buckets whose counters the user may see.
        "storageTotals": storage_totals(node, user, &figures),
        "nodes": with_figures(user, &figures, nodes::list(node, headers)),
    })
}

/// Memory and disks of all nodes that answer, and what of them buckets use that the user may see. Nodes that share a disk
/// count it each.
fn storage_totals(node: &Node, user: &User, figures: &Figures) -> Value {
    let sees = |name: &str| user.privileges_in(name).has(Privilege::SimpleStats);
    let mut seen = OfBucket::default();
    figures.buckets.iter().filter(|(name, _)| sees(name)).for_each(|(_, of)| seen.add(of));
    let quotas = node.buckets().into_iter().filter(|(spec, _)| sees(&spec.name));
    let quotas = quotas.map(|(_, bucket)| bucket.memory().quota_bytes());
    let sum = |of: fn(&OfNode) -> u64| figures.nodes.values().map(of).fold(0, u64::saturating_add);
    let mut ram = json!({
        "quotaTotal": figures.memory_quota_bytes,
        "quotaTotalPerNode": node.host().map_or(0, Host::memory_quota_bytes),
        "quotaUsed": seen.quota_bytes,
        "quotaUsedPerNode": quotas.fold(0, u64::saturating_add),
        "usedByData": seen.used_bytes,
    });
    let mut hdd = json!({ "usedByData": seen.file_bytes });
    let memory = sum(|of| of.memory_bytes);
    if memory > 0 {
        ram["total"] = json!(memory);
        ram["used"] = json!(memory.saturating_sub(sum(|of| of.free_bytes)));
    }
    let disks = sum(|of| of.disk_bytes);
    if disks > 0 {
        hdd["total"] = json!(disks);
        // No quota of the disk can be set.
        hdd["quotaTotal"] = json!(disks);
        hdd["used"] = json!(sum(OfNode::disk_used));
        hdd["free"] = json!(sum(|of| of.disk_free_bytes));
    }
    json!({ "ram": ram, "hdd": hdd })
}

/// Adds what each node has, of those that answer; what is in its buckets only if the user may see the counters of all.
fn with_figures(user: &User, figures: &Figures, mut nodes: Vec<Value>) -> Vec<Value> {
    let sees_all = figures.buckets.keys().all(|name| user.privileges_in(name).has(Privilege::SimpleStats));
    for told in &mut nodes {
        // Some agents end if there are none.
        (told["systemStats"], told["interestingStats"]) = (json!({}), json!({}));
        let of = told["nodeUUID"].as_str().and_then(|uuid| figures.nodes.get(uuid));
        let Some(of) = of else { continue };
        told["mcdMemoryReserved"] = json!(of.quota_bytes >> 20);
        if let Some(uptime_s) = of.uptime_s {
            told["uptime"] = json!(uptime_s.to_string());
        }
        // `version` is the one of the original that clients are to take it for.
        if let Some([major, minor, patch]) = of.version {
            told["staveVersion"] = json!(format!("{major}.{minor}.{patch}"));
        }
        if of.memory_bytes > 0 {
            told["memoryTotal"] = json!(of.memory_bytes);
            told["memoryFree"] = json!(of.free_bytes);
            told["systemStats"] = of.system_stats();
        }
        if sees_all {
            told["mcdMemoryAllocated"] = json!(of.buckets.quota_bytes >> 20);
            told["interestingStats"] = interesting(&of.buckets);
        }
    }
    nodes
}

/// What agents read of all buckets of a node together. There are no views and no indexes of places: they take 0 bytes.
fn interesting(all: &OfBucket) -> Value {
    json!({
        "cmd_get": all.rates.gets,
        "get_hits": all.rates.gets - all.rates.misses,
        "ops": all.rates.ops(),
        "ep_bg_fetched": all.rates.fetched,
        "curr_items": all.documents,
        "curr_items_tot": all.all_documents,
        "vb_replica_curr_items": all.replica_documents,
        "mem_used": all.used_bytes,
        "couch_docs_actual_disk_size": all.file_bytes,
        "couch_docs_data_size": all.data_bytes,
        "couch_spatial_data_size": 0,
        "couch_spatial_disk_size": 0,
        "couch_views_actual_disk_size": 0,
        "couch_views_data_size": 0,
        "vb_active_num_non_resident": all.not_resident,
    })
}

/// `GET /pools/nodes`
pub(super) async fn nodes(
    State(shared): State<Shared>,
    Extension(Caller(user)): Extension<Caller>,
    headers: HeaderMap,
) -> Json<Value> {
    let figures = Figures::of_all(&shared).await;
    let nodes = with_figures(&user, &figures, nodes::list(&shared.node, &headers));
    Json(json!({ "name": "default", "nodes": nodes }))
}

/// `GET /nodes/self`
pub(super) async fn this_node(
    State(shared): State<Shared>,
    Extension(Caller(user)): Extension<Caller>,
    headers: HeaderMap,
) -> Json<Value> {
    let node = &shared.node;
    let this = nodes::list(node, &headers).into_iter().find(|node| node["thisNode"] == true);
    let figures = Figures::here(&shared);
    let mut told = with_figures(&user, &figures, this.into_iter().collect()).pop().unwrap_or_default();
    if told.is_object() {
        told["memoryQuota"] = json!(figures.memory_quota_bytes >> 20);
        told["storageTotals"] = storage_totals(node, &user, &figures);
    }
    Json(told)
}

/// `GET /nodeStatuses`: by address.
pub(super) async fn node_statuses(State(shared): State<Shared>, headers: HeaderMap) -> Json<Value> {
    let view = view_of(&shared).map(|(_, view)| view);
    let status = |node: Value| {
        let address = node["hostname"].as_str().unwrap_or_default().to_owned();
        let name = node["otpNode"].as_str().and_then(|name| name.split('@').next()).unwrap_or_default();
        let copies = view.as_deref().map_or(Copies::default(), |view| Copies::of(&view.state, name));
        let told = json!({
            "status": node["status"],
            "otpNode": node["otpNode"],
            "dataless": false,
            "replication": copies.share(),
            "gracefulFailoverPossible": copies.active > 0 && copies.active == copies.with_replica,
        });
        (address, told)
    };
    Json(nodes::list(&shared.node, &headers).into_iter().map(status).collect::<Map<_, _>>().into())
}

/// The vBuckets that a node of a cluster is active for, and how many of them another member has a replica of.
#[derive(Clone, Copy, Default)]
struct Copies {
    active: usize,
    with_replica: usize,
}

impl Copies {
    fn of(state: &ClusterState, name: &str) -> Copies {
        let mut copies = Copies::default();
        let Some(id) = state.nodes.keys().find(|id| id.to_string() == name) else { return copies };
        let chains = state.buckets.values().flat_map(|bucket| &bucket.map);
        for chain in chains.filter(|chain| chain.first() == Some(&Some(*id))) {
            copies.active += 1;
            copies.with_replica += usize::from(chain.iter().skip(1).any(Option::is_some));
        }
        copies
    }

    /// 1 if each of them has one, or there is none; as the field tells of a node alone.
    fn share(self) -> f64 {
        if self.active == 0 { 1.0 } else { self.with_replica as f64 / self.active as f64 }
    }
}

/// `GET /pools/default/terseClusterInfo`
pub(super) async fn terse_cluster_info(State(shared): State<Shared>, headers: HeaderMap) -> Json<Value> {
    let nodes = nodes::list(&shared.node, &headers);
    Json(json!({
        "clusterUUID": identity(&shared.node),
        "orchestrator": nodes.first().map(|node| node["otpNode"].clone()),
        "isBalanced": is_balanced(&shared),
        "clusterCompatVersion": "7.0",
    }))
}

/// `GET /pools/default/nodeServices`
pub(super) async fn node_services(State(shared): State<Shared>) -> Response {
    json_bytes(shared.node.cluster_map().global().json().to_vec())
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
