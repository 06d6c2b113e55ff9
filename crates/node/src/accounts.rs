//! The users of a node as they are now: those of the configuration, and those that were made while the node ran.
//!
//! *Guarantee:* a change is on disk before it holds, and holds for every session from its next request on.

mod changes;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{Mutex, RwLock};

use crate::kept_users::security::SecuritySettings;
use crate::kept_users::stored::StoredUsers;
use crate::kept_users::{KeptState, KeptUsers, UsersRefusal};
use crate::node_login::NodeLogins;
use crate::sasl::offer::PresentOffer;
use crate::user::Users;

/// The users that were made while the node ran.
#[derive(Default)]
struct Kept {
    state: KeptState,
    /// Goes up with each change of them.
    changes: u64,
}

/// The users of a node.
pub struct Accounts {
    users: RwLock<Arc<Users>>,
    /// Goes up with each change.
    edition: AtomicU64,
    /// Those that were made while the node ran; locked before `users`.
    kept: Mutex<Kept>,
    /// How connections are protected, as far as that was set while the node ran; changed under the lock of `kept`.
    security: RwLock<Arc<SecuritySettings>>,
    /// How they may log in.
    offer: PresentOffer,
    /// As whom this node logs in at others.
    node_logins: Arc<NodeLogins>,
}

impl Accounts {
    pub(crate) fn new(users: Users) -> Accounts {
        Accounts {
            users: RwLock::new(Arc::new(users)),
            edition: AtomicU64::new(0),
            kept: Mutex::default(),
            security: RwLock::default(),
            offer: PresentOffer::default(),
            node_logins: Arc::default(),
        }
    }

    /// As whom this node logs in at others.
    pub fn node_logins(&self) -> &Arc<NodeLogins> {
        &self.node_logins
    }

    /// The users.
    pub fn users(&self) -> Arc<Users> {
        Arc::clone(&self.users.read())
    }

    /// How connections are protected, as far as that was set while the node ran.
    pub fn security(&self) -> Arc<SecuritySettings> {
        Arc::clone(&self.security.read())
    }

    /// How users may log in.
    pub fn offer(&self) -> &PresentOffer {
        &self.offer
    }

    /// How often the users changed. A session whose rights are from another edition looks at them again.
    #[inline]
    pub fn edition(&self) -> u64 {
        self.edition.load(Ordering::Acquire)
    }

    /// The users that were made while the node ran. Blocks while a change of them is written.
    pub fn kept(&self) -> Result<Arc<KeptUsers>, UsersRefusal> {
        self.kept.lock().state.kept().cloned()
    }

    /// What is known of the users of the cluster; `None` before they were read.
    pub(crate) fn stored(&self) -> Option<Arc<StoredUsers>> {
        match &self.kept.lock().state {
            KeptState::Stored(stored) => Some(Arc::clone(stored)),
            _ => None,
        }
    }
}
