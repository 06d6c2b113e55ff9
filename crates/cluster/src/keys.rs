//! The keys in the coordination store, below the cluster's own prefix.

/// The document.
pub const STATE: &str = "state";
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
