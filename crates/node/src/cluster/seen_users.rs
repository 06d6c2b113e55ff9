//! The users of the cluster that this node has seen last, by name, kept with its data: so that a coordination store that
//! went back while no node ran is told from one that went on (record 95).
//!
//! Nobody logs in by this file: it is what the log needs to name users that are there again, and users that are not there
//! any more. Until the store was read, the settings of security in it count, so that a start without the store lets nobody
//! in who was kept out before (record 170).

use std::collections::BTreeSet;
use std::path::Path;

use base::env::Env;
use base::{SmallFile, SmallFileError};
use serde::{Deserialize, Serialize};

use crate::kept_users::security::SecuritySettings;
use crate::kept_users::stored::StoredUsers;
use crate::node_files;

/// More than the names of all users and groups take.
const MOST_BYTES: u64 = 8 << 20;

/// The file, in the folder of the node's data.
pub fn file(folder: &Path) -> SmallFile {
    SmallFile::new(folder, node_files::CLUSTER_USERS).at_most(MOST_BYTES)
}

/// Understands the file's content.
pub fn parse(bytes: &[u8], _version: u16) -> Result<SeenUsers, String> {
    serde_json::from_slice(bytes).map_err(|error| error.to_string())
}

/// The names of users and groups at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SeenUsers {
    /// How often users had changed.
    revision: u64,
    /// The last change.
    id: String,
    users: BTreeSet<String>,
    groups: BTreeSet<String>,
    #[serde(default, skip_serializing_if = "SecuritySettings::is_unset")]
    security: SecuritySettings,
}

/// What a store that has gone back makes of the users.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct WentBack {
    /// Users and groups that were not there when this node saw them last.
    pub(super) again: Vec<String>,
    /// Users and groups that were there.
    pub(super) gone: Vec<String>,
}

impl SeenUsers {
    pub(super) fn of(stored: &StoredUsers) -> SeenUsers {
        SeenUsers {
            revision: stored.revision(),
            id: stored.id().to_owned(),
            users: stored.kept().users().keys().cloned().collect(),
            groups: stored.kept().groups().keys().cloned().collect(),
            security: stored.kept().security().clone(),
        }
    }

    /// The users of this node's last run; `None` if it has seen none.
    pub(crate) fn read(env: &Env, folder: &Path) -> Result<Option<SeenUsers>, SmallFileError> {
        file(folder).open(&*env.disk, parse, |fault| tracing::error!(event = "file_copy_damaged", "{fault}"))
    }

    pub(super) fn write(&self, env: &Env, folder: &Path) -> Result<(), SmallFileError> {
        // All of it is made of names and numbers.
        file(folder).write(&*env.disk, &serde_json::to_vec_pretty(self).unwrap_or_default())
    }

    /// Whether these are the users that are `stored`.
    pub(super) fn is(&self, stored: &StoredUsers) -> bool {
        self.revision == stored.revision() && self.id == stored.id()
    }

    pub(super) fn revision(&self) -> u64 {
        self.revision
    }

    /// How connections were protected then, as far as that was set over HTTP.
    pub(crate) fn security(&self) -> &SecuritySettings {
        &self.security
    }

    /// What has become of these users, if those that the store has `now` are older, or of another history.
    pub(super) fn went_back(&self, now: &SeenUsers) -> Option<WentBack> {
        if now.revision > self.revision || now.id == self.id {
            return None;
        }
        let named = |of: &SeenUsers, other: &SeenUsers| {
            let users = of.users.difference(&other.users).cloned();
            let groups = of.groups.difference(&other.groups).map(|name| format!("group {name}"));
            users.chain(groups).collect()
        };
        Some(WentBack { again: named(now, self), gone: named(self, now) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(revision: u64, users: &[&str]) -> SeenUsers {
        let users: BTreeSet<String> = users.iter().map(|name| (*name).to_owned()).collect();
        let id = format!("{revision} {users:?}");
        SeenUsers { revision, id, users, ..SeenUsers::default() }
    }

    #[test]
    fn an_older_state_of_the_store_is_told_with_names() {
        let last = seen(5, &["bob"]);
        let expected = |again: &[&str], gone: &[&str]| {
            let owned = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
            Some(WentBack { again: owned(again), gone: owned(gone) })
        };
        assert_eq!(last.went_back(&seen(3, &["ann"])), expected(&["ann"], &["bob"]));
        assert_eq!(last.went_back(&seen(5, &["ann", "bob"])), expected(&["ann"], &[]));
        assert_eq!(last.went_back(&SeenUsers::default()), expected(&[], &["bob"]));
        assert_eq!((last.went_back(&last), last.went_back(&seen(6, &[]))), (None, None));
    }

    #[test]
    fn what_was_seen_is_read_again() {
        let (env, _) = Env::sim(1);
        let folder = Path::new("/data");
        env.disk.create_dir_all(folder).expect("a folder");
        assert_eq!(SeenUsers::read(&env, folder).expect("there is none"), None);
        let last = seen(5, &["bob"]);
        last.write(&env, folder).expect("written");
        assert_eq!(SeenUsers::read(&env, folder).expect("sound"), Some(last));
    }
}
