//! Clients that log in by their certificate.

use std::sync::Arc;

use crate::audit::sessions;
use crate::node::Node;
use crate::session::Session;
use crate::stale_users;

/// Logs a client in as the user that its certificate names. Otherwise the session remembers why not: there is no such user, or
/// this node does not let it in now (record 178).
pub(crate) fn log_in(node: &Node, session: &mut Session, name: &str) -> bool {
    match node.accounts().users().get(name.as_bytes()) {
        Some(user) if stale_users::lets_in(node, user) => {
            session.log_in(Arc::clone(user));
            sessions::logged_in(node, session);
            return true;
        }
        Some(_) => session.put_off = Some(name.into()),
        None => session.unknown_certified = Some(name.into()),
    }
    false
}
