//! Privilege debug: what a user lacks a privilege for is done all the same, told and recorded, so that a developer sees in one
//! run which privileges an application needs (record 223).
//!
//! *Guarantee:* nothing but `stave dev` switches it on: no setting, no configuration, no request and no role does, and `stave
//! serve` has no way to it. A client that has not logged in, and a login, get nothing by it.

use crate::audit::events::AuditEvent;
use crate::audit::record::AuditRecord;
use crate::audit::sessions::{in_bucket, record_of};
use crate::node::Node;
use crate::privilege::Privilege;
use crate::roles::roles_with;
use crate::session::Session;
use crate::user_data::UserData;

/// Switches it on for good.
pub fn switch_on(node: &Node) {
    node.privilege_debug.switch_on();
    node.audit.record(AuditRecord::new(AuditEvent::PrivilegeDebugConfigured).with("enable", true));
    tracing::warn!(
        event = "privilege_debug_configured",
        "users may do what they lack privileges for: each is told and recorded; for development alone"
    );
}

/// Whether a user who lacks a privilege for a command goes on all the same: then that is told and recorded.
#[cold]
pub(crate) fn lets_through(
    node: &Node,
    session: &Session,
    command: &'static str,
    privilege: Privilege,
) -> bool {
    let Some(user) = session.user.as_ref().filter(|_| node.privilege_debug.is_on()) else { return false };
    let held: Vec<&str> = session.rights.anywhere().iter().map(Privilege::name).collect();
    let record = in_bucket(record_of(AuditEvent::PrivilegeDebug, session), session);
    let record = record.with("command", command).with("privilege", privilege.name());
    node.audit.record(record.with("current_context", format!("[{}]", held.join(","))));
    let bucket = session.bucket.as_ref().map_or("", |bucket| bucket.name());
    let (name, privilege, roles) = (user.name(), privilege.name(), roles_with(privilege));
    if node.privilege_debug.is_new(format!("{name}\n{command}\n{bucket}\n{privilege}")) {
        tracing::info!(
            event = "privilege_debug", user = %UserData(name), command, bucket = %UserData(bucket), privilege, roles,
            "a user lacks a privilege, and was let through"
        );
    }
    true
}
