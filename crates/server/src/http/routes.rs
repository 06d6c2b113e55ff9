//! THE table of addresses: path, method, who may use it, handler.

use ::node::cluster::promises;
use axum::handler::Handler;
use axum::http::{Method, StatusCode};
use axum::routing::{self, MethodRouter};
use axum::{Router, middleware};

use super::access::{self, Needs};
use super::origin::{self, Listens};
use super::shared::Shared;
use super::{
    alternate, audit, audit_settings, auto_failover, bucket_stats, buckets, certificates, changes, cluster,
    cluster_status, compaction, documents, encryption_keys, failures, figures, health, log_levels, logs,
    manage, methods, metrics, migration, node_secret, paths, patience, pools, promise, range, replication,
    sample_requests, scopes, security, settings, setup, slow_limits, stream, ui, user_lists, users, zoom,
};

/// A method of an address.
pub(super) struct Route {
    /// With the names of parameters in braces; `{bucket}` is looked at by [`access::check`].
    pub path: &'static str,
    /// The method.
    pub method: Method,
    /// Who may use it.
    pub needs: Needs,
    handlers: MethodRouter<Shared>,
}

/// A function that makes the rows of one method.
macro_rules! row {
    ($name:ident, $method:ident) => {
        fn $name<H: Handler<T, Shared>, T: 'static>(path: &'static str, needs: Needs, handler: H) -> Route {
            Route { path, method: Method::$method, needs, handlers: routing::$name(handler) }
        }
    };
}

row!(get, GET);
row!(post, POST);
row!(put, PUT);
row!(patch, PATCH);
row!(delete, DELETE);

const BUCKETS: &str = "/pools/default/buckets";
const BUCKET: &str = "/pools/default/buckets/{bucket}";
const SCOPES: &str = "/pools/default/buckets/{bucket}/scopes";
const COLLECTIONS: &str = "/pools/default/buckets/{bucket}/scopes/{scope}/collections";
const COLLECTION: &str = "/pools/default/buckets/{bucket}/scopes/{scope}/collections/{collection}";
const MANIFEST: &str = "/pools/default/buckets/{bucket}/scopes/@ensureManifest/{uid}";
const SETTINGS: &str = "/v1/buckets/{bucket}/settings";
const DOCUMENT: &str = "/v1/buckets/{bucket}/document";
const CURSOR: &str = "/v1/buckets/{bucket}/cursors/{name}";

/// Every address with every method.
pub(super) fn all() -> Vec<Route> {
    [
        pools_routes(),
        bucket_routes(),
        own_routes(),
        cluster_routes(),
        user_routes(),
        console_routes(),
        setup_routes(),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// What the console asks for beside the others, and the console itself.
fn console_routes() -> Vec<Route> {
    use Needs::{Bucket, Figures, Node, Nothing};
    vec![
        // Files without data.
        get("/ui", Nothing, ui::page),
        get("/ui/{file}", Nothing, ui::file),
        // The handlers ask for the right in the collection that is meant.
        get(DOCUMENT, Bucket, documents::show),
        put(DOCUMENT, Bucket, documents::store),
        delete(DOCUMENT, Bucket, documents::remove),
        get("/v1/buckets/{bucket}/documents", Bucket, documents::list),
        get("/v1/buckets/{bucket}/stats/{group}", Figures, bucket_stats::show),
        get("/v1/buckets/{bucket}/samples", Figures, sample_requests::show),
        get(sample_requests::PATH, Node, sample_requests::tell),
        get(range::PATH, Node, range::tell),
        get(zoom::PATH, Node, zoom::tell),
        post(compaction::PATH, Node, compaction::act),
    ]
}

/// What sets a node up that has no administrator yet: here they change nothing, so that no login is needed.
fn setup_routes() -> Vec<Route> {
    use Needs::{ClusterAdmin, Nothing};
    vec![
        post("/node/controller/rename", Nothing, setup::rename),
        post("/node/controller/setupServices", Nothing, setup::services),
        post("/pools/default", Nothing, setup::quotas),
        post("/settings/web", Nothing, setup::administrator),
        post("/settings/indexes", ClusterAdmin, setup::indexes),
    ]
}

fn pools_routes() -> Vec<Route> {
    use Needs::{Anyone, Bucket, User};
    vec![
        get("/", User, pools::root),
        get("/pools", Anyone, pools::pools),
        get("/pools/default", User, pools::cluster),
        get("/poolsStreaming/default", User, stream::cluster),
        get("/versions", User, pools::versions),
        get("/pools/nodes", User, pools::nodes),
        get("/nodes/self", User, pools::this_node),
        get("/nodeStatuses", User, pools::node_statuses),
        get("/pools/default/nodeServices", User, pools::node_services),
        get("/pools/default/nodeServicesStreaming", User, stream::node_services),
        get("/pools/default/terseClusterInfo", User, pools::terse_cluster_info),
        // The handlers ask for the right to see the figures of some bucket, and tell those alone.
        get("/pools/default/stats/range/{metric}", User, range::show),
        get("/pools/default/stats/range/{metric}/{*functions}", User, range::show_function),
        post("/pools/default/stats/range", User, range::show_several),
        get("/pools/default/b/{bucket}", Bucket, pools::terse_bucket),
        get("/pools/default/bs/{bucket}", Bucket, stream::terse_bucket),
        get("/pools/default/bucketsStreaming/{bucket}", Bucket, stream::bucket),
    ]
}

fn bucket_routes() -> Vec<Route> {
    use Needs::{Bucket, BucketAdmin, ClusterAdmin, Collections, Figures, User};
    vec![
        get(BUCKETS, User, buckets::list),
        post(BUCKETS, ClusterAdmin, manage::create),
        get(BUCKET, Bucket, buckets::show),
        // What it takes from others, its quota and replicas, is for administrators of all buckets: the handler asks.
        post(BUCKET, BucketAdmin, manage::change),
        delete(BUCKET, BucketAdmin, manage::delete),
        get("/pools/default/buckets/{bucket}/nodes", Bucket, buckets::nodes_of),
        get("/pools/default/buckets/{bucket}/stats", Figures, zoom::stats),
        get("/pools/default/buckets/{bucket}/nodes/{node}/stats", Figures, zoom::stats_of_node),
        post("/pools/default/buckets/{bucket}/controller/compactBucket", BucketAdmin, compaction::start),
        post(
            "/pools/default/buckets/{bucket}/controller/cancelBucketCompaction",
            BucketAdmin,
            compaction::cancel,
        ),
        post("/pools/default/buckets/{bucket}/controller/doFlush", BucketAdmin, manage::flush),
        get(SCOPES, Bucket, scopes::list),
        post(SCOPES, Collections, scopes::create_scope),
        put(SCOPES, Collections, scopes::replace),
        delete("/pools/default/buckets/{bucket}/scopes/{scope}", Collections, scopes::drop_scope),
        post(COLLECTIONS, Collections, scopes::create_collection),
        delete(COLLECTION, Collections, scopes::drop_collection),
        patch(COLLECTION, Collections, scopes::change_collection),
        get(MANIFEST, Bucket, scopes::ensure),
        post(MANIFEST, Bucket, scopes::ensure),
    ]
}

fn own_routes() -> Vec<Route> {
    use Needs::{Bucket, BucketAdmin, Changes, Export, FullAdmin, Node, Nothing, SomeChanges};
    vec![
        get("/healthz", Nothing, health::healthz),
        get("/livez", Nothing, health::livez),
        get("/readyz", Nothing, health::readyz),
        get("/metrics", Export, metrics::metrics),
        get(SETTINGS, Bucket, settings::list),
        // The quota is for administrators of all buckets: the handler asks.
        patch(SETTINGS, BucketAdmin, settings::change),
        post(SETTINGS, BucketAdmin, settings::change),
        // Tells the names of users of other nodes.
        get("/v1/buckets/{bucket}/replication", BucketAdmin, replication::show),
        get(migration::PATH, BucketAdmin, migration::show),
        post(migration::PATH, BucketAdmin, migration::begin),
        delete(migration::PATH, BucketAdmin, migration::cancel),
        // Makes the node connect to any address, and take documents from there.
        put("/v1/buckets/{bucket}/replication", FullAdmin, replication::declare),
        get("/v1/buckets/{bucket}/changes", SomeChanges, changes::changes),
        get("/v1/buckets/{bucket}/cursors", Changes, changes::list),
        get(CURSOR, Changes, changes::show),
        put(CURSOR, Changes, changes::create),
        post(CURSOR, Changes, changes::move_to),
        delete(CURSOR, Changes, changes::remove),
        get(figures::PATH, Node, figures::show),
        // Nodes prove themselves in the body.
        post(promises::PATH, Nothing, promise::promise),
    ]
}

fn cluster_routes() -> Vec<Route> {
    use Needs::{ClusterAdmin, Log, User};
    vec![
        get("/pools/default/rebalanceProgress", User, cluster_status::rebalance_progress),
        get("/pools/default/tasks", User, cluster_status::tasks),
        get("/settings/autoFailover", User, auto_failover::show),
        post("/settings/autoFailover", ClusterAdmin, auto_failover::change),
        post("/controller/failOver", ClusterAdmin, cluster::fail_over),
        post("/controller/giveUpDamaged", ClusterAdmin, cluster::give_up_damaged),
        post("/controller/startGracefulFailover", ClusterAdmin, cluster::fail_over_gracefully),
        post("/controller/rebalance", ClusterAdmin, cluster::rebalance),
        post("/controller/stopRebalance", ClusterAdmin, cluster::stop_rebalance),
        post("/controller/setRecoveryType", ClusterAdmin, cluster::set_recovery),
        post("/controller/reAddNode", ClusterAdmin, cluster::add_again),
        post("/controller/ejectNode", ClusterAdmin, cluster::eject),
        post("/controller/adoptState", ClusterAdmin, cluster::adopt),
        post("/controller/addNode", ClusterAdmin, cluster::add),
        put(alternate::PATH, ClusterAdmin, alternate::put),
        delete(alternate::PATH, ClusterAdmin, alternate::delete),
        get(slow_limits::PATH, User, slow_limits::show),
        post(slow_limits::PATH, ClusterAdmin, slow_limits::change),
        get(log_levels::PATH, ClusterAdmin, log_levels::show),
        post(log_levels::PATH, ClusterAdmin, log_levels::change),
        get("/logs", Log, logs::show),
        get("/v1/cluster", ClusterAdmin, cluster_status::show),
    ]
}

fn user_routes() -> Vec<Route> {
    use Needs::{FullAdmin, ManageUsers, ReadUsers, User};
    const DOMAIN: &str = "/settings/rbac/users/{domain}";
    const USER: &str = "/settings/rbac/users/{domain}/{user}";
    const GROUP: &str = "/settings/rbac/groups/{group}";
    vec![
        get("/whoami", User, users::who_am_i),
        get("/settings/rbac/roles", ReadUsers, users::list_roles),
        get("/settings/rbac/backup", FullAdmin, users::backup),
        get("/settings/rbac/users", ReadUsers, user_lists::list),
        get(DOMAIN, ReadUsers, user_lists::list_domain),
        get(USER, ReadUsers, users::show),
        put(USER, ManageUsers, users::put),
        delete(USER, ManageUsers, users::remove),
        get("/settings/rbac/groups", ReadUsers, user_lists::list_groups),
        get(GROUP, ReadUsers, users::show_group),
        put(GROUP, ManageUsers, users::put_group),
        delete(GROUP, ManageUsers, users::remove_group),
        // The caller's own.
        post("/controller/changePassword", User, users::change_password),
        post(certificates::PATH, ManageUsers, certificates::reload),
        post(encryption_keys::PATH, ManageUsers, encryption_keys::rotate),
        post(node_secret::PATH, ManageUsers, node_secret::rotate),
        get("/settings/audit", ReadUsers, audit_settings::show),
        post("/settings/audit", ManageUsers, audit_settings::change),
        get("/settings/audit/descriptors", ReadUsers, audit_settings::descriptors),
        get("/settings/audit/nonFilterableDescriptors", ReadUsers, audit_settings::other_descriptors),
        get("/settings/clientCertAuth", ReadUsers, security::client_certificates),
        post("/settings/clientCertAuth", FullAdmin, security::change_client_certificates),
        delete("/settings/clientCertAuth", FullAdmin, security::unset_client_certificates),
        get("/settings/security", ReadUsers, security::show),
        post("/settings/security", ManageUsers, security::change),
        get("/settings/security/{service}", ReadUsers, security::show_service),
        post("/settings/security/{service}", ManageUsers, security::change_service),
        delete("/settings/security/{service}", ManageUsers, security::unset),
        delete("/settings/security/{service}/{field}", ManageUsers, security::unset_service),
        get("/settings/passwordPolicy", ReadUsers, users::policy),
        post("/settings/passwordPolicy", ManageUsers, users::set_policy),
    ]
}

/// What answers requests.
pub(super) fn router(shared: Shared, listens: Listens) -> Router {
    let add = |router: Router<Shared>, route: Route| {
        let state = (shared.clone(), route.needs, audit::row_of(&route.method, route.path));
        router.route(
            route.path,
            route.handlers.route_layer(middleware::from_fn_with_state(state, access::check)),
        )
    };
    let inner = all()
        .into_iter()
        .fold(Router::new(), add)
        .fallback(async || (StatusCode::NOT_FOUND, "Requested resource not found.\r\n"))
        .layer(middleware::from_fn_with_state(shared.clone(), failures::tell))
        .layer(middleware::from_fn_with_state(shared.clone(), patience::wait))
        .with_state(shared);
    // Around the whole: paths are changed before they are looked up, and which methods an address has is known outside
    // of what wraps each of its handlers.
    Router::new()
        .fallback_service(inner)
        .layer(middleware::from_fn(methods::tell))
        .layer(middleware::from_fn(paths::plain))
        .layer(middleware::from_fn_with_state(listens, origin::check))
}
