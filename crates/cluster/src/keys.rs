//! The keys in the coordination store, below the cluster's own prefix.

/// The state: all of it in the format of earlier versions, else everything but the buckets.
pub const STATE: &str = "state";
/// The buckets, three entries each.
pub const BUCKETS: &str = "buckets/";
/// What a bucket is asked to be, below its name.
pub const SETTINGS: &str = "settings";
/// Its collections.
pub const MANIFEST: &str = "manifest";
/// Its chains, and what is under way.
pub const MAP: &str = "map";
/// What proves that a node has the cluster's user and password.
pub const CREDENTIALS: &str = "credentials";
/// The secret with which nodes log in at each other.
pub const NODE_SECRET: &str = "node-secret";
/// Who leads: the identity of a node, under its lease.
pub const LEADER: &str = "leader";
/// Who is alive, each under its lease.
pub const MEMBERS: &str = "members/";
/// What they report, each under its lease.
pub const REPORTS: &str = "reports/";

/// The key of a member.
pub fn member(uuid: &str) -> String {
    format!("{MEMBERS}{uuid}")
}

/// The key of an entry of a bucket.
pub fn bucket(name: &str, what: &str) -> String {
    format!("{BUCKETS}{name}/{what}")
}

/// The key of what a member reports of one bucket.
pub fn bucket_report(uuid: &str, bucket: &str) -> String {
    format!("{REPORTS}{uuid}/{bucket}")
}

/// The key of a member's report.
pub fn report(uuid: &str) -> String {
    format!("{REPORTS}{uuid}")
}
