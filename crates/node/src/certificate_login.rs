//! Clients that log in by their certificate.

use std::sync::Arc;

use crate::audit::{CANNOT_BE_RECORDED, sessions};
use crate::node::Node;
use crate::session::{PutOff, Session};
use crate::stale_users::{self, USERS_MAY_HAVE_CHANGED, USERS_NOT_READ};

/// Logs a client in as the user that its certificate names; an empty name is one that no rule found. Otherwise the session remembers why not: there is no such user, or this member has
/// not read the users of its cluster (record 0221), or this node does not let it in now (record 178), or no login can be recorded (record 106).
pub(crate) fn log_in(node: &Node, session: &mut Session, name: &str) -> bool {
    // Before the users: they may be read between the two.
    let is_early = node.accounts().awaits_users() && !name.is_empty();
    let users = node.accounts().users();
    let Some(user) = users.get(name.as_bytes()).filter(|_| !name.is_empty()) else {
        if is_early {
            session.put_off = Some(Box::new(PutOff { name: name.into(), why: USERS_NOT_READ }));
            return false;
        }
        session.unknown_certified = Some(name.into());
        return false;
    };
    let refused = match sessions::may_log_in(node) {
        Err(_) => Some(CANNOT_BE_RECORDED),
        Ok(()) => (!stale_users::lets_in(node, user)).then_some(USERS_MAY_HAVE_CHANGED),
    };
    if let Some(why) = refused {
        session.put_off = Some(Box::new(PutOff { name: name.into(), why }));
        return false;
    }
    session.log_in(Arc::clone(user));
    sessions::logged_in(node, session);
    true
}
