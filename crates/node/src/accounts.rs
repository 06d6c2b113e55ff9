//! The users of a node as they are now: those of the configuration, and those that were made while the node ran.
//!
//! *Guarantee:* a change is on disk before it holds, and holds for every session from its next request on.

mod changes;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use ::cluster::Fence;
use parking_lot::{Mutex, RwLock};

use crate::kept_users::security::SecuritySettings;
use crate::kept_users::stored::StoredUsers;
use crate::kept_users::{KeptState, KeptUsers, UsersRefusal};
use crate::node_login::NodeLogins;
use crate::sasl::offer::PresentOffer;
use crate::user::{User, Users};

/// The users that were made while the node ran.
#[derive(Default)]
struct Kept {
    state: KeptState,
    /// Goes up with each change of them.
    changes: u64,
}

/// For how long what was read of the cluster's users lets them in, whatever the node may serve.
const KNOWN_FOR: Duration = Duration::from_secs(10);

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
    /// The moment of the node's monotonic clock from which on the users of the cluster may have changed unnoticed; 0 if
    /// they never were the cluster's.
    followed_ns: AtomicU64,
    /// Whether the users of the cluster have not been read since the start; changed under the lock of `kept`.
    is_unread: AtomicBool,
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
            followed_ns: AtomicU64::new(0),
            is_unread: AtomicBool::new(false),
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

    /// Whether this is a member of a cluster that has not read the cluster's users since its start: it cannot know whether a
    /// user is one that it does not find, nor what the password of such a user is (record 0221).
    pub fn awaits_users(&self) -> bool {
        self.is_unread.load(Ordering::SeqCst)
    }

    /// The users of the cluster were read by a request that was sent at this moment of the node's monotonic clock.
    pub(crate) fn note_followed(&self, sent_ns: u64) {
        self.followed_ns.fetch_max(sent_ns.max(1), Ordering::Relaxed);
    }

    /// Whether a user whose password is right may log in at this moment of the node's monotonic clock (record 178).
    ///
    /// A member that does not read the coordination store may let in a user that was removed or has lost roles. It does so
    /// only while its lease or the promises of the others let it serve: they end soon if the others reach the store, and
    /// then this node is cut off. Users of the configuration, and other nodes, are let in always.
    pub fn lets_in(&self, user: &User, now_ns: u64, fence: &Fence) -> bool {
        let followed_ns = self.followed_ns.load(Ordering::Relaxed);
        let is_known = || Duration::from_nanos(now_ns.saturating_sub(followed_ns)) <= KNOWN_FOR;
        let is_own = || user.is_node() || self.users.read().is_configured(user.name());
        followed_ns == 0 || is_known() || fence.may_serve(now_ns) || is_own()
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
