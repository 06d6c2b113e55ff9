//! Passwords that keys must be derived of: on the threads for that, within the memory of connections.
//!
//! *Guarantee:* at most as many hashes are made at the same time as the lane has threads, and their memory is reserved before
//! it is taken.

use std::net::IpAddr;
use std::sync::Arc;

use engine::Completion;

use crate::connection_memory::Held;
use crate::kept_users::NewPassword;
use crate::login_throttle::Attempt;
use crate::node::Node;
use crate::user::{Derivation, User};

/// What came of a password.
pub enum Checked {
    /// It is the user's, as that user is now.
    Right(Arc<User>),
    /// It is wrong, or was replaced meanwhile.
    Wrong,
    /// There is no memory for it now.
    NoRoom,
}

/// Has keys derived of a password that a client has sent; `None` if too many wait. Without a value it gave way to clients
/// with less of the queue. Half of the places are for attempts from addresses of which no password was wrong lately: those
/// who guess from many addresses do not have them all.
pub fn derive(
    node: &Arc<Node>,
    client: Option<IpAddr>,
    attempt: Option<&Attempt>,
    derivation: Box<Derivation>,
) -> Option<Completion<Checked>> {
    let lane = &node.lanes().passwords;
    if attempt.is_some_and(Attempt::was_wrong_lately) && lane.is_half_full() {
        lane.refuse();
        return None;
    }
    let its_node = Arc::clone(node);
    lane.begin(node.env(), client, move || check(&its_node, client, derivation))
}

/// Has what is kept of a new password derived; `None` if too many wait, or there is no memory for it.
pub fn prepare(node: &Arc<Node>, password: NewPassword) -> Option<Completion<Option<NewPassword>>> {
    let its_node = Arc::clone(node);
    node.lanes().passwords.begin(node.env(), None, move || {
        let held = Held::new(Arc::clone(its_node.connection_memory()));
        held.reserve(password.memory_bytes()).then(|| {
            password.derive(its_node.env());
            password
        })
    })
}

fn check(node: &Arc<Node>, client: Option<IpAddr>, derivation: Box<Derivation>) -> Checked {
    let held = Held::new(Arc::clone(node.connection_memory()));
    if !held.reserve(derivation.memory_bytes()) {
        return Checked::NoRoom;
    }
    let derived = derivation.run();
    drop(held);
    let Some(user) = derived.user else {
        if let Some(client) = client {
            node.logins.was_wrong(client, node.env().clock.monotonic());
        }
        return Checked::Wrong;
    };
    if let Some(hash) = derived.gained {
        node.accounts().gain_hash(node, &user, hash);
    }
    let users = node.accounts().users();
    users.now(&user).map_or(Checked::Wrong, |user| Checked::Right(Arc::clone(user)))
}
