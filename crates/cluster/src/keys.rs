//! The keys in the coordination store, below the cluster's own prefix.

/// The document.
pub const STATE: &str = "state";
/// What proves that a node has the cluster's user and password.
pub const CREDENTIALS: &str = "credentials";
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

/// The key of a member's report.
pub fn report(uuid: &str) -> String {
    format!("{REPORTS}{uuid}")
}
