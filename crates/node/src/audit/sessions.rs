//! What is recorded of logins and of the sessions that follow.

use protocol::Status;

use super::AuditRefused;
use super::events::AuditEvent;
use super::record::{AuditRecord, Ends, text, why_uncertified};
use crate::close_reason::CloseReason;
use crate::node::Node;
use crate::session::Session;

pub(crate) fn record_of(event: AuditEvent, session: &Session) -> AuditRecord {
    let name = session.user.as_ref().map_or(&b""[..], |user| user.name().as_bytes());
    // Another node that asks for a client says where that one is: it is as good as what it says of the user.
    let remote = session.asked_for().or(session.ends.remote);
    AuditRecord::new(event).by(name).between(Ends { remote, ..session.ends })
}

pub(crate) fn in_bucket(record: AuditRecord, session: &Session) -> AuditRecord {
    record.with("bucket", session.bucket.as_ref().map_or("", |bucket| bucket.name()))
}

/// Whether anyone may log in now: every way to log in asks, before a password or a certificate is looked at. Logins that
/// fail are always recorded, so that where they cannot be, no login is let through.
pub(crate) fn may_log_in(node: &Node) -> Result<(), AuditRefused> {
    node.audit.admit(AuditEvent::LoginFailed)
}

/// A user has logged in.
pub(crate) fn logged_in(node: &Node, session: &Session) {
    if node.audit.wants(AuditEvent::LoginSucceeded) {
        node.audit.record(record_of(AuditEvent::LoginSucceeded, session));
    }
}

/// A client that calls itself `name` could not log in.
pub(crate) fn login_failed(node: &Node, session: &Session, name: &[u8], status: Status) {
    if node.audit.admits_stranger(AuditEvent::LoginFailed, status.name(), session.peer) {
        let record = AuditRecord::new(AuditEvent::LoginFailed).by(name).between(session.ends);
        node.audit.record(record.with("reason", status.name()));
    }
}

/// A client that calls itself `name` asked for a mechanism that is not offered here, for this reason: its password was
/// not looked at.
pub(crate) fn mechanism_refused(
    node: &Node,
    session: &Session,
    name: &[u8],
    why: &'static str,
    mechanism: &str,
) {
    if node.audit.admits_stranger(AuditEvent::LoginFailed, why, session.peer) {
        let record = AuditRecord::new(AuditEvent::LoginFailed).by(name).between(session.ends);
        node.audit.record(record.with("reason", why).with("mechanism", mechanism));
    }
}

/// A client that has not logged in asked for something, and its certificate stands for this name, which is no user.
pub(crate) fn certificate_refused(node: &Node, session: &Session, name: &str) {
    let why = why_uncertified(name);
    if node.audit.admits_stranger(AuditEvent::LoginFailed, why, session.peer) {
        let record = AuditRecord::new(AuditEvent::LoginFailed).by(name.as_bytes()).between(session.ends);
        node.audit.record(record.with("reason", why));
    }
}

/// A client that calls itself `name` has to try again before its password is looked at, for this reason.
pub(crate) fn login_put_off(node: &Node, session: &Session, name: &[u8], why: &'static str) {
    if node.audit.admits_stranger(AuditEvent::LoginFailed, why, session.peer) {
        let record = AuditRecord::new(AuditEvent::LoginFailed).by(name).between(session.ends);
        node.audit.record(record.with("reason", Status::Etmpfail.name()).with("put_off", why));
    }
}

/// A frame or a request is malformed.
pub(crate) fn invalid_packet(node: &Node, session: &Session, what: &str) {
    let is_recorded = match session.is_authenticated() {
        true => node.audit.wants(AuditEvent::InvalidPacket),
        false => node.audit.admits_stranger(AuditEvent::InvalidPacket, "invalid packet", session.peer),
    };
    if is_recorded {
        let record = in_bucket(record_of(AuditEvent::InvalidPacket, session), session);
        node.audit.record(record.with("reason", text(what.as_bytes())));
    }
}

/// The connection of a user ends.
pub(crate) fn session_ended(node: &Node, session: &Session, reason: CloseReason) {
    if node.audit.wants(AuditEvent::SessionEnded) && session.is_authenticated() {
        let record = record_of(AuditEvent::SessionEnded, session);
        node.audit.record(record.with("reason_for_termination", reason.to_string()));
    }
}
