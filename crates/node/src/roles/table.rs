//! THE table of roles: what each gives, and how far it can be narrowed.
//!
//! Source of names and meaning: the vendor's page *Roles* (`learn/security/roles`), and kv_engine's `docs/rbac.md`.

use crate::privilege::Privilege::{self, *};
use crate::privilege::Privileges;

/// How far the place of a role can be narrowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Takes {
    /// It is not about buckets, or about all of them.
    Nothing,
    /// To a bucket.
    Bucket,
    /// To a scope.
    Scope,
    /// To a collection.
    Collection,
}

/// A role.
#[derive(Debug)]
pub struct RoleRow {
    /// As it is written in grants.
    pub name: &'static str,
    /// As people read it.
    pub title: &'static str,
    /// One line for the reference.
    pub doc: &'static str,
    /// How far it can be narrowed.
    pub takes: Takes,
    /// What it allows in its place.
    pub place: Privileges,
    /// What it allows in the whole bucket of its place.
    pub bucket: Privileges,
    /// What it allows beside buckets.
    pub cluster: Privileges,
    /// Whether only a full administrator may give or take it, or change a user who has it.
    pub is_guarded: bool,
}

impl RoleRow {
    /// The role as it is granted in a bucket, or in a scope of it if it can be narrowed so far.
    fn granted_in(&self, bucket: &str, scope: Option<&str>) -> String {
        let name = self.name;
        match (self.takes, scope) {
            (Takes::Nothing, _) => name.to_owned(),
            (Takes::Scope | Takes::Collection, Some(scope)) => format!("{name}[{bucket}:{scope}]"),
            _ => format!("{name}[{bucket}]"),
        }
    }

    /// How the role is written with its place.
    pub(super) fn asks_for(&self) -> String {
        let name = self.name;
        match self.takes {
            Takes::Nothing => format!("`{name}` takes no place: write `{name}`"),
            Takes::Bucket => {
                format!("`{name}` takes a bucket: write `{name}[BUCKET]`, or `{name}[*]` for all")
            }
            Takes::Scope => format!(
                "`{name}` takes a bucket or a scope: write `{name}[*]`, `{name}[BUCKET]` or `{name}[BUCKET:SCOPE]`"
            ),
            Takes::Collection => format!(
                "`{name}` takes a bucket, a scope or a collection: write `{name}[*]`, `{name}[BUCKET]`, \
                 `{name}[BUCKET:SCOPE]` or `{name}[BUCKET:SCOPE:COLLECTION]`"
            ),
        }
    }
}

const NONE: Privileges = Privileges::NONE;

/// A role for users of documents.
const fn role(
    name: &'static str,
    title: &'static str,
    takes: Takes,
    place: &[Privilege],
    doc: &'static str,
) -> RoleRow {
    let place = Privileges::of(place);
    RoleRow { name, title, doc, takes, place, bucket: NONE, cluster: NONE, is_guarded: false }
}

/// A role for users who manage the cluster.
const fn admin(
    name: &'static str,
    title: &'static str,
    place: Privileges,
    cluster: &[Privilege],
    doc: &'static str,
) -> RoleRow {
    let cluster = Privileges::of(cluster);
    RoleRow { name, title, doc, takes: Takes::Nothing, place, bucket: NONE, cluster, is_guarded: true }
}

/// Everything about documents and their changes.
const ALL_DATA: &[Privilege] = &[
    Read,
    Insert,
    Upsert,
    Delete,
    RangeScan,
    MetaRead,
    MetaWrite,
    SystemXattrRead,
    SystemXattrWrite,
    SimpleStats,
    DcpProducer,
    DcpConsumer,
    DcpStream,
];

/// All roles.
pub static ROLES: &[RoleRow] = &[
    admin(
        "admin",
        "Full Admin",
        Privileges::of(Privilege::ALL),
        Privilege::ALL,
        "Everything, users and documents included",
    ),
    admin(
        "ro_admin",
        "Read-Only Admin",
        Privileges::of(&[SimpleStats, Stats]),
        &[SelectBucket, SecurityRead, StatsExport],
        "Looks at figures, settings and users; no documents",
    ),
    admin(
        "security_admin",
        "Security Admin",
        Privileges::of(&[SimpleStats]),
        &[SelectBucket, SecurityRead, SecurityManagement],
        "Manages users and groups without administrators' roles; no documents",
    ),
    admin(
        "cluster_admin",
        "Cluster Admin",
        Privileges::of(&[SimpleStats, Stats, Settings, CollectionManagement]),
        &[SelectBucket, SystemSettings, StatsExport],
        "Manages nodes, buckets, scopes and settings; no users, no documents",
    ),
    role(
        "bucket_admin",
        "Bucket Admin",
        Takes::Bucket,
        &[SimpleStats, Stats, Settings, CollectionManagement],
        "Manages a bucket, its scopes and settings, empties and deletes it; reads and writes no documents",
    ),
    role(
        "scope_admin",
        "Manage Scopes",
        Takes::Scope,
        &[CollectionManagement],
        "Makes and drops scopes and collections; no documents",
    ),
    role("bucket_full_access", "Application Access", Takes::Bucket, ALL_DATA, "Everything about documents"),
    role("data_reader", "Data Reader", Takes::Collection, &[Read, RangeScan, MetaRead], "Reads documents"),
    role("data_writer", "Data Writer", Takes::Collection, &[Insert, Upsert, Delete], "Writes documents"),
    RoleRow {
        bucket: Privileges::of(&[DcpProducer]),
        ..role(
            "data_dcp_reader",
            "Data DCP Reader",
            Takes::Collection,
            &[Read, MetaRead, SystemXattrRead, DcpStream],
            "Streams changes, reads documents and system attributes",
        )
    },
    role("data_backup", "Data Backup & Restore", Takes::Bucket, ALL_DATA, "Streams and restores documents"),
    role("data_monitoring", "Data Monitor", Takes::Collection, &[SimpleStats], "Reads counters"),
    role(
        "replication_target",
        "XDCR Inbound",
        Takes::Bucket,
        &[MetaRead, MetaWrite, SystemXattrRead, SystemXattrWrite, SimpleStats],
        "Writes documents with their metadata, as replication from another cluster does",
    ),
    RoleRow {
        is_guarded: false,
        ..admin("external_stats_reader", "External Stats Reader", NONE, &[StatsExport], "Reads /metrics")
    },
];

/// A role of a service that is not here.
const fn elsewhere(name: &'static str, title: &'static str, takes: Takes) -> RoleRow {
    role(name, title, takes, &[], "Of a service that is not here: it is kept, and gives nothing")
}

/// Roles of services that are not here (queries, indexes, search, analytics, functions, replication to other clusters).
/// Scripts and SDKs give them together with those of [`ROLES`]: they are kept and told like these, and give nothing.
pub static ROLES_WITHOUT_SERVICE: &[RoleRow] = &[
    elsewhere("replication_admin", "XDCR Admin", Takes::Nothing),
    elsewhere("backup_admin", "Backup Full Admin", Takes::Nothing),
    elsewhere("views_admin", "Views Admin", Takes::Bucket),
    elsewhere("views_reader", "Views Reader", Takes::Bucket),
    elsewhere("fts_admin", "Search Admin", Takes::Bucket),
    elsewhere("fts_searcher", "Search Reader", Takes::Collection),
    elsewhere("query_select", "Query Select", Takes::Collection),
    elsewhere("query_update", "Query Update", Takes::Collection),
    elsewhere("query_insert", "Query Insert", Takes::Collection),
    elsewhere("query_delete", "Query Delete", Takes::Collection),
    elsewhere("query_manage_index", "Query Manage Index", Takes::Collection),
    elsewhere("query_use_sequential_scans", "Query Use Sequential Scans", Takes::Collection),
    elsewhere("query_use_sequences", "Query Use Sequences", Takes::Scope),
    elsewhere("query_manage_sequences", "Query Manage Sequences", Takes::Scope),
    elsewhere("query_system_catalog", "Query System Catalog", Takes::Nothing),
    elsewhere("query_external_access", "Query CURL Access", Takes::Nothing),
    elsewhere("query_manage_global_functions", "Manage Global Functions", Takes::Nothing),
    elsewhere("query_execute_global_functions", "Execute Global Functions", Takes::Nothing),
    elsewhere("query_manage_functions", "Manage Scope Functions", Takes::Scope),
    elsewhere("query_execute_functions", "Execute Scope Functions", Takes::Scope),
    elsewhere("query_manage_global_external_functions", "Manage Global External Functions", Takes::Nothing),
    elsewhere("query_execute_global_external_functions", "Execute Global External Functions", Takes::Nothing),
    elsewhere("query_manage_external_functions", "Manage Scope External Functions", Takes::Scope),
    elsewhere("query_execute_external_functions", "Execute Scope External Functions", Takes::Scope),
    elsewhere("analytics_admin", "Analytics Admin", Takes::Nothing),
    elsewhere("analytics_reader", "Analytics Reader", Takes::Nothing),
    elsewhere("analytics_manager", "Analytics Manager", Takes::Bucket),
    elsewhere("analytics_select", "Analytics Select", Takes::Collection),
    elsewhere("eventing_admin", "Eventing Full Admin", Takes::Nothing),
    elsewhere("eventing_manage_functions", "Manage Scope Functions", Takes::Scope),
];

/// What a node may do at another one, which is no role of users: it streams, and asks for what users of its own HTTP port
/// may do (record 159). It manages no users, no buckets and no settings.
pub(super) static NODE: RoleRow = RoleRow {
    name: "@node",
    title: "Node",
    doc: "Replicates, and asks on behalf of users",
    takes: Takes::Nothing,
    place: Privileges::of(ALL_DATA),
    bucket: NONE,
    // Acting for users it may do no more than what it may do itself: administrators look at stats of nodes.
    cluster: Privileges::of(&[SelectBucket, Impersonate, Stats, SimpleStats, NodeSupervisor]),
    is_guarded: true,
};

/// The most roles that a refusal names: those that give least, and the one that gives everything.
const MOST_NAMED: usize = 4;

/// The roles that a refusal names, of those which would do: those that give least first, and always the one that gives most.
fn named(mut rows: Vec<&'static RoleRow>) -> Vec<&'static RoleRow> {
    rows.sort_by_key(|row| row.place.or(row.bucket).or(row.cluster).iter().count());
    if rows.len() > MOST_NAMED {
        rows.drain(MOST_NAMED - 1..rows.len() - 1);
    }
    rows
}

/// The roles that give a privilege, those that give least first, for people who need it.
pub fn roles_with(privilege: Privilege) -> String {
    let all_of = |row: &RoleRow| row.place.or(row.bucket).or(row.cluster);
    let rows = named(ROLES.iter().filter(|row| all_of(row).has(privilege)).collect());
    let names: Vec<&str> = rows.iter().map(|row| row.name).collect();
    names.join(", ")
}

/// The roles that give all of these privileges in a bucket (`*`: in every bucket), or in a scope of it, as they are
/// granted: those that give least first, the last one behind `or`.
pub fn grants_with(needed: &[Privilege], bucket: &str, scope: Option<&str>) -> String {
    let all_of = |row: &RoleRow| row.place.or(row.bucket).or(row.cluster);
    let has_all = |row: &&RoleRow| needed.iter().all(|privilege| all_of(row).has(*privilege));
    let rows = named(ROLES.iter().filter(has_all).collect());
    let grants: Vec<String> = rows.iter().map(|row| row.granted_in(bucket, scope)).collect();
    match grants.split_last() {
        Some((last, others)) if !others.is_empty() => format!("{} or {last}", others.join(", ")),
        Some((only, _)) => only.clone(),
        None => String::new(),
    }
}

/// The role with this name.
pub fn find(name: &str) -> Option<&'static RoleRow> {
    ROLES.iter().chain(ROLES_WITHOUT_SERVICE).find(|row| row.name == name)
}
