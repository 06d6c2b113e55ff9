//! Changes of a node's users: what is on disk or in the coordination store first, and then holds.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use base::env::Env;

use super::Accounts;
use crate::cluster::seen_users::SeenUsers;
use crate::config::UserSpec;
use crate::kept_users::security::SecuritySettings;
use crate::kept_users::stored::{Compared, StoredUsers};
use crate::kept_users::{KeptState, KeptUsers, UsersRefusal};
use crate::node::Node;
use crate::node_login::NodeSecret;
use crate::sasl::hash::{HashSecret, Hashing};
use crate::user::{User, Users};
use crate::user_data::UserData;

/// How often a change is tried that others have come before.
const TRIES: usize = 20;
/// Of the users of a cluster.
const UNREAD: &str = "this node has not read the users of its cluster from the coordination store yet; nothing was \
                      changed";

impl Accounts {
    /// Lets nodes in that have one of these secrets, and logs in at others with the first one. Connections of nodes that
    /// logged in with another secret are closed.
    pub(crate) fn set_node_secrets(&self, node: &Node, secrets: &[NodeSecret]) {
        self.replace(node, |users| users.with_nodes(secrets));
        self.node_logins.set_secret(secrets.first().cloned());
    }

    /// A node that belongs to no cluster asks itself with a secret of its own.
    pub fn has_own_secret(&self, node: &Node) {
        if !self.node_logins.has_secret() && node.cluster().is_none() {
            self.set_node_secrets(node, &[NodeSecret::new(&*node.env().random)]);
        }
    }

    /// Puts other users of the configuration in the place of the present ones. Connections of users who are not there
    /// any more, or have another password, are closed; others have their new rights with the next request.
    pub(crate) fn change_configured(&self, node: &Node, specs: &[UserSpec]) {
        self.replace(node, |users| users.changed_to(specs));
    }

    /// Has passwords that are set from now on be so much work.
    pub(crate) fn change_hashing(&self, node: &Node, hashing: Hashing) {
        self.replace(node, |users| users.with_hashing(hashing));
    }

    /// Keeps the hash of a password that was right, for a user of an earlier version, where long work is done: the disk or
    /// the coordination store may block. If that cannot be done now, the user has it after a later start.
    pub(crate) fn gain_hash(&self, node: &Arc<Node>, user: &Arc<User>, hash: HashSecret) {
        let (its_node, its_user) = (Arc::clone(node), Arc::clone(user));
        let work = move || {
            let name = its_user.name();
            let change = |kept: &mut KeptUsers| kept.gain_hash(name, its_user.keys(), &hash);
            if let Err(refusal) = its_node.accounts().change_kept(&its_node, change) {
                let user = UserData(name);
                tracing::debug!(%user, ?refusal, "a user keeps to earlier secrets for now");
            }
        };
        // No one waits for it.
        let _ = node.lanes().long_work.begin(node.env(), None, work);
    }

    /// Has new connections be protected so from now on. The lock of `kept` is held, so that changes come in their order.
    fn protect(&self, node: &Node, security: &SecuritySettings) {
        if *self.security.read().as_ref() != *security {
            *self.security.write() = Arc::new(security.clone());
            node.doors().protection.follow(security);
        }
    }

    /// `change` may derive keys of passwords, and readers wait for no such thing: if the users are others by then, it is
    /// asked again.
    fn replace(&self, node: &Node, change: impl Fn(&Users) -> Users) {
        loop {
            let before = self.users();
            let next = Arc::new(change(&before));
            let mut users = self.users.write();
            if Arc::ptr_eq(&users, &before) {
                *users = Arc::clone(&next);
                self.edition.fetch_add(1, Ordering::Release);
                drop(users);
                tell_of_hidden(&before, &next);
                break;
            }
        }
        node.announcer().tell();
    }

    /// Reads the users that were made while the node ran. A file that is damaged lets none of them in. Those of a cluster
    /// are read by its thread: see `take`.
    pub fn read(&self, node: &Node) {
        let Some(host) = node.host() else { return };
        let found = if host.config().is_member {
            KeptState::Unread(UNREAD.to_owned())
        } else {
            match KeptUsers::read(host.data_dir().path(), node.env()) {
                Ok(kept) => KeptState::File(Arc::new(kept)),
                Err(error) => {
                    tracing::error!(
                        event = "kept_users_damaged", %error,
                        "users that were made while the node ran cannot log in"
                    );
                    KeptState::Damaged(error.to_string())
                }
            }
        };
        let mut present = self.kept.lock();
        present.state = found;
        self.is_unread.store(matches!(present.state, KeptState::Unread(_)), Ordering::SeqCst);
        present.changes += 1;
        if let Ok(kept) = present.state.kept() {
            self.replace(node, |users| users.with_kept(kept));
            self.protect(node, kept.security());
        } else if host.config().is_member {
            self.protect(node, &last_protection(node.env(), host.data_dir().path()));
        }
    }

    /// Looks at the users of the node's cluster, if it is in one, as they are in the coordination store now. Blocks.
    pub fn refresh(&self, node: &Node) {
        if let Some(cluster) = node.cluster() {
            cluster.users().refresh_users();
        }
    }

    /// Changes them, durably, and at once for all sessions of this node. `change` is done again if others have changed
    /// them meanwhile. Blocks while the disk or the coordination store works.
    pub fn change_kept(
        &self,
        node: &Node,
        change: impl Fn(&mut KeptUsers) -> Result<(), UsersRefusal>,
    ) -> Result<(), UsersRefusal> {
        for _ in 0..TRIES {
            // Without the lock: what is derived of a password takes many milliseconds.
            let (mut next, changes, stored) = {
                let present = self.kept.lock();
                let stored = match &present.state {
                    KeptState::Stored(stored) => Some(Arc::clone(stored)),
                    _ => None,
                };
                (KeptUsers::clone(present.state.kept()?), present.changes, stored)
            };
            next.keep_decoy_key(node.env());
            change(&mut next)?;
            let is_done = match stored {
                Some(stored) => match node.cluster() {
                    Some(cluster) => cluster.users().change_users(&stored, next)?,
                    None => return Err(UsersRefusal::Away("the node has left its cluster".to_owned())),
                },
                None => self.write(node, next, changes)?,
            };
            if is_done {
                return Ok(());
            }
        }
        let what = "others change users at the same time; nothing was changed: ask again";
        Err(UsersRefusal::Away(what.to_owned()))
    }

    /// Writes the file, unless others have changed it since; whether that is done.
    fn write(&self, node: &Node, next: KeptUsers, changes: u64) -> Result<bool, UsersRefusal> {
        let mut present = self.kept.lock();
        if present.changes != changes {
            return Ok(false);
        }
        let host = node.host().ok_or_else(|| UsersRefusal::NotHere("no data directory".to_owned()))?;
        next.write(host.data_dir().path(), node.env()).map_err(UsersRefusal::File)?;
        self.replace(node, |users| users.with_kept(&next));
        self.protect(node, next.security());
        present.state = KeptState::File(Arc::new(next));
        present.changes += 1;
        Ok(true)
    }

    /// Takes what the coordination store has, if it is newer than what is known, or instead of that if it still is `known`.
    pub(crate) fn take(&self, node: &Node, read: StoredUsers, instead: Option<&StoredUsers>) -> Compared {
        let mut present = self.kept.lock();
        let (compared, read) = match &present.state {
            KeptState::Stored(known) => {
                let is_instead = instead.is_some_and(|instead| instead.version() == known.version());
                (if is_instead { Compared::Other } else { known.compare(&read) }, read.after(known))
            }
            _ => (Compared::Other, read),
        };
        match compared {
            Compared::Other => {
                self.replace(node, |users| users.with_kept(read.kept()));
                self.protect(node, read.kept().security());
                present.state = KeptState::Stored(Arc::new(read));
                present.changes += 1;
            }
            // A store that was restored has it under another version.
            Compared::Same => present.state = KeptState::Stored(Arc::new(read)),
            Compared::Behind | Compared::Older => {}
        }
        // Behind the users: who finds that they are read finds them, too.
        self.is_unread.store(!matches!(present.state, KeptState::Stored(_)), Ordering::SeqCst);
        compared
    }

    /// Why the users of the cluster cannot be read, unless they were before.
    pub(crate) fn note_unread(&self, why: &str) {
        let mut present = self.kept.lock();
        if matches!(present.state, KeptState::Unread(_) | KeptState::Nowhere) {
            present.state = KeptState::Unread(format!("{UNREAD}: {why}"));
            self.is_unread.store(true, Ordering::SeqCst);
        }
    }
}

/// Says of which names there are two users now, and of which the other one counts again: it may have other roles, and a
/// password that was thought to be gone.
fn tell_of_hidden(before: &Users, now: &Users) {
    for name in now.hidden().filter(|name| !before.is_hidden(name)) {
        let user = UserData(name);
        tracing::warn!(
            event = "kept_user_hidden", %user,
            "a user of the configuration has the name of one that was made while the node ran; that one cannot log in for as \
             long, and can, with its own password and roles, once the configuration does not have the name: delete it (stave user delete) if \
             that must not be"
        );
    }
    for name in before.hidden().filter(|name| now.has_kept(name)) {
        let user = UserData(name);
        tracing::warn!(
            event = "kept_user_counts_again", %user,
            "the configuration has no user of this name any more: the one that was made while the node ran logs in again, \
             with its own password and roles"
        );
    }
}

/// How connections of a member were protected last, as far as that was set over HTTP: until it has read the coordination
/// store. What cannot be read is logged by the thread that follows the users.
fn last_protection(env: &Env, folder: &Path) -> SecuritySettings {
    match SeenUsers::read(env, folder) {
        Ok(Some(seen)) => seen.security().clone(),
        // It was alone before.
        Ok(None) => KeptUsers::read(folder, env).map(|own| own.security().clone()).unwrap_or_default(),
        Err(_) => SecuritySettings::default(),
    }
}
