//! The users of a node as they are now: those of the configuration, and those that were made while the node ran.
//!
//! *Guarantee:* a change is on disk before it holds, and holds for every session from its next request on.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{Mutex, RwLock};

use crate::config::UserSpec;
use crate::kept_users::{KeptState, KeptUsers, UsersRefusal};
use crate::node::Node;
use crate::sasl::offer::PresentOffer;
use crate::user::Users;

/// The users of a node.
pub struct Accounts {
    users: RwLock<Arc<Users>>,
    /// Goes up with each change.
    edition: AtomicU64,
    /// Those that were made while the node ran; locked before `users`.
    kept: Mutex<KeptState>,
    /// How they may log in.
    offer: PresentOffer,
}

impl Accounts {
    pub(crate) fn new(users: Users) -> Accounts {
        Accounts {
            users: RwLock::new(Arc::new(users)),
            edition: AtomicU64::new(0),
            kept: Mutex::default(),
            offer: PresentOffer::default(),
        }
    }

    /// The users.
    pub fn users(&self) -> Arc<Users> {
        Arc::clone(&self.users.read())
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

    /// Puts other users of the configuration in the place of the present ones. Connections of users who are not there
    /// any more, or have another password, are closed; others have their new rights with the next request.
    pub(crate) fn change_configured(&self, node: &Node, specs: &[UserSpec]) {
        self.replace(node, |users| users.changed_to(specs, &*node.env().random));
    }

    fn replace(&self, node: &Node, change: impl FnOnce(&Users) -> Users) {
        {
            let mut users = self.users.write();
            *users = Arc::new(change(&users));
            self.edition.fetch_add(1, Ordering::Release);
        }
        node.tell();
    }

    /// Reads the users that were made while the node ran. A file that is damaged lets none of them in.
    pub fn read(&self, node: &Node) {
        let Some(host) = node.host() else { return };
        let found = if host.config().is_member {
            KeptState::Cluster
        } else {
            match KeptUsers::read(host.data_dir().path(), node.env()) {
                Ok(kept) => KeptState::File(kept),
                Err(error) => {
                    tracing::error!(%error, "users that were made while the node ran cannot log in");
                    KeptState::Damaged(error.to_string())
                }
            }
        };
        let mut present = self.kept.lock();
        *present = found;
        if let Ok(kept) = present.kept() {
            self.replace(node, |users| users.with_kept(kept));
        }
    }

    /// The users that were made while the node ran.
    pub fn kept(&self) -> Result<KeptUsers, UsersRefusal> {
        self.kept.lock().kept().cloned()
    }

    /// Changes them, durably, and at once for all sessions. Blocks while the disk works.
    pub fn change_kept(
        &self,
        node: &Node,
        change: impl FnOnce(&mut KeptUsers) -> Result<(), UsersRefusal>,
    ) -> Result<(), UsersRefusal> {
        let mut present = self.kept.lock();
        let mut next = present.kept()?.clone();
        change(&mut next)?;
        let host = node.host().ok_or_else(|| UsersRefusal::NotHere("no data directory".to_owned()))?;
        next.write(host.data_dir().path(), node.env()).map_err(UsersRefusal::File)?;
        self.replace(node, |users| users.with_kept(&next));
        *present = KeptState::File(next);
        Ok(())
    }
}
