//! Users of a cluster whom a member that has lost its cluster lets in no more (record 178).

use crate::node::Node;
use crate::user::User;
use crate::user_data::UserData;

/// What such a user is told.
pub const USERS_MAY_HAVE_CHANGED: &str = "This node does not reach the coordination store and serves nothing, and its \
                                          users may have changed: log in at another node, or try again";

/// The answer to a login as an unknown user, before a member has read the users of its cluster (record 0221).
pub const USERS_NOT_READ: &str = "This node has not read the users of its cluster since it was started: try again, \
                                  or log in at another node";

/// Whether a user whose password is right may log in now: see [`crate::accounts::Accounts::lets_in`]. The log says if not.
pub fn lets_in(node: &Node, user: &User) -> bool {
    let clock = &node.env().clock;
    let is_let_in = node.accounts().lets_in(user, clock.monotonic_ns(), node.fence());
    if !is_let_in && let Some(left_out) = node.events().not_let_in.admit(clock.monotonic()) {
        let user = UserData(user.name());
        tracing::warn!(
            event = "user_not_let_in",
            %user,
            left_out,
            "a user of the cluster is not let in: the coordination store is not reached, and this node serves nothing"
        );
    }
    is_let_in
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use ::cluster::Fence;
    use base::env::Env;

    use super::*;
    use crate::config::Role;
    use crate::tests::{node_in, user};
    use crate::user::Users;

    fn at(seconds: u64) -> u64 {
        u64::try_from(Duration::from_secs(seconds).as_nanos()).expect("it fits")
    }

    #[test]
    fn users_of_the_store_are_let_in_while_they_are_followed_or_the_node_serves() {
        let (env, _handles) = Env::sim(3);
        let spec = |name: &str| user(name, Role::Admin, None);
        let random = Arc::clone(&env.random);
        let node = node_in(env, Users::new(&[spec("configured")], &*random), false);
        // One that the configuration does not name.
        let others = Users::new(&[spec("kept")], &*random);
        let kept = Arc::clone(others.get(b"kept").expect("it is there"));
        let configured = Arc::clone(node.accounts().users().get(b"configured").expect("it is there"));
        let (closed, open) = (Fence::closed(), Fence::open());
        let lets = |user: &User, seconds, fence: &Fence| node.accounts().lets_in(user, at(seconds), fence);
        assert!(lets(&kept, 1_000, &closed), "its users are no cluster's");

        node.accounts().note_followed(at(1_000));
        assert!(lets(&kept, 1_010, &closed), "they were read a moment ago");
        assert!(!lets(&kept, 1_011, &closed), "cut off");
        assert!(lets(&kept, 1_011, &open), "the others have promised that this node serves");
        assert!(lets(&configured, 1_011, &closed), "the configuration is the node's own");
        // An answer that comes late proves no more than when it was asked for.
        node.accounts().note_followed(at(900));
        assert!(!lets(&kept, 1_011, &closed));
        node.accounts().note_followed(at(1_011));
        assert!(lets(&kept, 1_011, &closed), "the store is read again");
    }
}
