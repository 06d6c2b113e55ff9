//! Privilege debug: what a user lacks a privilege for is done all the same, told and recorded, so that a developer sees in one
//! run which privileges an application needs (record 223).
//!
//! *Guarantee:* nothing but `stave dev` switches it on: no setting, no configuration, no request and no role does, and `stave
//! serve` has no way to it. A client that has not logged in, and a login, get nothing by it.

use protocol::Status;

use crate::audit::events::AuditEvent;
use crate::audit::record::AuditRecord;
use crate::audit::sessions::{in_bucket, record_of};
use crate::node::Node;
use crate::privilege::{Privilege, Privileges};
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

/// Whether a user who lacks a privilege goes on all the same; not if its client gave that up itself. [`tell_let_through`] tells of it once it
/// is known what came of the request.
#[cold]
pub(crate) fn lets_through(node: &Node, session: &Session, privilege: Privilege) -> bool {
    let is_let = node.privilege_debug.is_on() && session.user.is_some() && !session.has_given_up(privilege);
    if is_let {
        session.let_through.set(session.let_through.get().with(privilege));
    }
    is_let
}

/// Tells and records each privilege that a command lacked. What every user would be answered alike is no matter of privileges:
/// the vBucket is another node's, or there is no such collection.
#[cold]
pub(crate) fn tell_let_through(
    node: &Node,
    session: &Session,
    command: &'static str,
    lacked: Privileges,
    answered: Option<Status>,
) {
    use Status::{NotMyVbucket, UnknownCollection, UnknownScope};
    if matches!(answered, Some(NotMyVbucket | UnknownCollection | UnknownScope)) {
        return;
    }
    lacked.iter().for_each(|privilege| tell_of(node, session, command, privilege));
}

fn tell_of(node: &Node, session: &Session, command: &'static str, privilege: Privilege) {
    let Some(user) = session.user.as_ref() else { return };
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
}
