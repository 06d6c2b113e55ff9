//! The users and groups of a cluster: in the coordination store, beside the cluster's state (record 95).
//!
//! *Guarantee:* a change is in the store before it is answered, and is compared with what it was decided by. A node never
//! takes an older state of the users than it has seen: if the store has gone back, it writes what it knows.
//!
//! While the store is away nodes go on with the users that they know, and refuse changes. A node that serves no more
//! lets none of them log in anew (record 178).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ::cluster::store::{Commit, Snapshot, Store, StoreFailure, Swap, Swapped};

use super::ClusterError;
use super::ending::Ending;
use super::identity::data_folder;
use super::progress::DocumentProgress;
use super::seen_users::{SeenUsers, WentBack};
use super::trouble::Trouble;
use crate::kept_users::stored::{Change, Compared, StoredUsers};
use crate::kept_users::{KeptUsers, UsersRefusal};
use crate::node::Node;

/// What the store with the users is called beside the cluster's.
pub(super) const SIBLING: &str = "users";
/// An entry that says nothing: a change of it wakes those who wait.
const WAKE: &str = "wake";
/// How long a change may be overlooked, and how soon a failed read is tried again.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
const TRY_AGAIN: Duration = Duration::from_millis(200);
/// How often all is read, whatever was heard of changes.
const READ_EVERY: Duration = Duration::from_secs(60);
/// How often a change of several parts is begun again.
const TRIES: usize = 20;
/// So many names are told in one line of the log.
const MOST_NAMES: usize = 20;

/// A node's part in following and changing the users of its cluster.
pub(crate) struct ClusterUsers {
    node: Arc<Node>,
    /// Where users and groups are; `None` if the coordination store keeps none.
    store: Option<Arc<dyn Store>>,
    uuid: String,
    /// Whether they are not followed now.
    is_lost: AtomicBool,
    /// This node has founded the cluster, and its own users are not in the store yet.
    moves_users: AtomicBool,
    progress: Arc<DocumentProgress>,
    ending: Arc<Ending>,
}

impl ClusterUsers {
    pub(super) fn new(
        node: &Arc<Node>,
        store: Option<Arc<dyn Store>>,
        uuid: &str,
        progress: &Arc<DocumentProgress>,
        ending: &Arc<Ending>,
    ) -> ClusterUsers {
        ClusterUsers {
            node: Arc::clone(node),
            store,
            uuid: uuid.to_owned(),
            is_lost: AtomicBool::new(false),
            moves_users: AtomicBool::new(false),
            progress: Arc::clone(progress),
            ending: Arc::clone(ending),
        }
    }

    /// Follows the users until the membership ends.
    pub(super) fn follow_users(&self) {
        let Some(store) = &self.store else { return };
        let mut trouble = Trouble::default();
        let (mut known, mut read_at): (Option<Snapshot>, _) = (None, Duration::ZERO);
        let mut is_first = true;
        let mut noting = Noting::begin(&self.node);
        while !self.ending.has_come() {
            let (now, sent_ns) = (self.node.env().clock.monotonic(), self.node.env().clock.monotonic_ns());
            // Before the read: a node that founds its cluster moves its users first.
            let belongs = self.belongs();
            let found = match known.take().filter(|_| now < read_at) {
                Some(known) => store.follow(known, LOOK_AGAIN),
                None => store.read().inspect(|_| read_at = now + READ_EVERY),
            };
            let looked = found
                .map_err(|failure| failure.to_string())
                .and_then(|snapshot| self.look_at_users(&**store, &snapshot).map(|()| snapshot));
            match looked {
                Ok(snapshot) => {
                    if self.move_users_later() {
                        // What was read is older than what is in the store now.
                        continue;
                    }
                    if belongs && std::mem::take(&mut is_first) {
                        self.name_own_users();
                    }
                    noting.note(&self.node);
                    if let Some(after) = trouble.is_over(now) {
                        tracing::info!(
                            event = "cluster_users_followed",
                            ?after,
                            "the cluster's users are followed again"
                        );
                    }
                    self.is_lost.store(false, Ordering::SeqCst);
                    self.node.accounts().note_followed(sent_ns);
                    known = Some(snapshot);
                }
                Err(why) => {
                    if trouble.failed(now) {
                        tracing::warn!(
                            event = "cluster_users_not_followed",
                            why,
                            "the cluster's users are not followed: those that are known stay as they are; this is tried \
                             again and again"
                        );
                    }
                    self.node.accounts().note_unread(&why);
                    self.is_lost.store(true, Ordering::SeqCst);
                    self.ending.pause(TRY_AGAIN);
                }
            }
        }
    }

    /// Whether the cluster is founded, and this node is in it.
    fn belongs(&self) -> bool {
        self.progress.view().is_some_and(|view| view.state.node_of(&self.uuid).is_some())
    }

    /// Has the thread that follows the users look whether the membership ends.
    pub(super) fn wake_users(&self) {
        // It does not wait for a store that does not answer.
        if !self.is_lost.load(Ordering::SeqCst)
            && let Some(store) = &self.store
            && let Err(failure) =
                store.swap(Swap { key: WAKE, expected: None, value: Some(b"{}"), lease: None })
        {
            tracing::debug!(%failure, "the thread that follows the users ends a little later");
        }
    }

    /// Looks at the store now, so that what was answered on another node is seen here. What is known stays if the store does
    /// not answer. Blocks.
    pub(crate) fn refresh_users(&self) {
        if self.is_lost.load(Ordering::SeqCst) {
            return;
        }
        let Some(store) = &self.store else { return };
        let read = store.read().map_err(|failure| failure.to_string());
        if let Err(why) = read.and_then(|snapshot| self.look_at_users(&**store, &snapshot)) {
            tracing::debug!(why, "users are told as they were known");
        }
    }

    /// Takes what the store has, or puts back what it has lost.
    fn look_at_users(&self, store: &dyn Store, snapshot: &Snapshot) -> Result<(), String> {
        let read = StoredUsers::read(snapshot)?;
        let refused: Vec<String> =
            read.refused().map(|(kind, name, why)| format!("{kind:?} {name}: {why}")).collect();
        match self.node.accounts().take(&self.node, read, None) {
            Compared::Other => {
                for entry in refused.iter().take(MOST_NAMES) {
                    tracing::error!(
                        event = "cluster_user_unreadable",
                        entry,
                        "an entry of the coordination store cannot be read; its user cannot log in"
                    );
                }
                Ok(())
            }
            Compared::Same => Ok(()),
            Compared::Behind | Compared::Older => self.look_again(store),
        }
    }

    /// Reads the store again after it has told less than this node knows: that may have been an answer of a moment ago. If
    /// the store has gone back, this node writes what it knows over it.
    fn look_again(&self, store: &dyn Store) -> Result<(), String> {
        let failed = |failure: StoreFailure| failure.to_string();
        // Before the read, so that what is read then is not older for that alone.
        let Some(known) = self.node.accounts().stored() else { return Ok(()) };
        let read = StoredUsers::read(&store.read().map_err(failed)?)?;
        let (revision, is) = (known.revision(), read.revision());
        match known.compare(&read) {
            Compared::Same | Compared::Other => drop(self.node.accounts().take(&self.node, read, None)),
            Compared::Behind if !known.has_seen(&read) => {
                tracing::warn!(
                    event = "cluster_users_other_history",
                    revision,
                    is,
                    "the coordination store has users of another history: they were changed after the store went back"
                );
                self.node.accounts().take(&self.node, read, Some(&known));
            }
            Compared::Behind | Compared::Older => {
                tracing::error!(
                    event = "cluster_users_written_back",
                    revision,
                    is,
                    "the coordination store has gone back to older users: this node writes those that it knows"
                );
                let change = Change::back(&read, &known, self.node.env());
                if let Some(written) = commit_all(store, change).map_err(failed)? {
                    self.node.accounts().take(&self.node, written, Some(&known));
                }
            }
        }
        Ok(())
    }

    /// Writes other users in the place of those that were `stored`; false if the store has others by now, which are known
    /// then. Blocks.
    pub(crate) fn change_users(&self, stored: &StoredUsers, next: KeptUsers) -> Result<bool, UsersRefusal> {
        let Some(store) = &self.store else {
            return Err(UsersRefusal::NotHere(
                "the coordination store of this cluster keeps no users".to_owned(),
            ));
        };
        let away = |failure: StoreFailure| UsersRefusal::Away(ClusterError::Store(failure).advice());
        match commit_all(&**store, Change::of(stored, next, self.node.env())).map_err(away)? {
            Some(written) => {
                self.node.accounts().take(&self.node, written, None);
                Ok(true)
            }
            None => {
                let snapshot = store.read().map_err(away)?;
                self.look_at_users(&**store, &snapshot).map_err(UsersRefusal::Damaged)?;
                Ok(false)
            }
        }
    }

    /// Moves the users of the node that founds the cluster. If the store does not take them, the cluster is founded all the
    /// same, and they are moved as soon as it does, while this process runs.
    pub(super) fn move_users_at_first(&self) {
        if let Err(error) = self.move_users() {
            tracing::error!(
                event = "users_not_moved",
                %error,
                "the users of users.json are not moved to the cluster, and cannot log in; this is tried again until the \
                 node stops"
            );
            self.moves_users.store(true, Ordering::SeqCst);
        }
    }

    /// The store lets its users be read: those that it did not take before are moved now. Whether they were.
    fn move_users_later(&self) -> bool {
        if !self.moves_users.load(Ordering::SeqCst) {
            return false;
        }
        match self.move_users() {
            Ok(()) => self.moves_users.store(false, Ordering::SeqCst),
            Err(error) => {
                tracing::debug!(%error, "the users of users.json are moved later");
                return false;
            }
        }
        true
    }

    /// Moves the users that this node had while it was alone into the store of the cluster that it founds. Nothing is moved
    /// where others have written users before.
    pub(super) fn move_users(&self) -> Result<(), ClusterError> {
        let Some(store) = &self.store else { return Ok(()) };
        let Some(own) = self.own_users() else { return Ok(()) };
        if own.users().is_empty() && own.groups().is_empty() && own.security().is_unset() {
            return Ok(());
        }
        let invalid = |reason| StoreFailure { operation: "users", reason };
        for _ in 0..TRIES {
            let stored = StoredUsers::read(&store.read()?).map_err(invalid)?;
            if !stored.is_new() && !stored.is_moved_by(&self.uuid) {
                return Ok(());
            }
            let (users, groups) = (own.users().len(), own.groups().len());
            let change = Change::moving(&stored, own.clone(), &self.uuid, self.node.env());
            if commit_all(&**store, change)?.is_some() {
                tracing::info!(
                    event = "users_moved",
                    users,
                    groups,
                    "users of users.json are the cluster's now"
                );
                return Ok(());
            }
        }
        Err(ClusterError::Busy)
    }

    /// The users that this node had while it was alone; `None` if they cannot be read.
    fn own_users(&self) -> Option<KeptUsers> {
        let read = KeptUsers::read(&data_folder(&self.node), self.node.env());
        let read = read.inspect_err(|error| {
            tracing::error!(
                event = "users_not_moved", %error,
                "users that this node had while it was alone are not moved to the cluster"
            );
        });
        read.ok()
    }

    /// Names the users of this node's own file that are not the cluster's: they cannot log in.
    fn name_own_users(&self) {
        let (Some(own), Some(stored)) = (self.own_users(), self.node.accounts().stored()) else { return };
        let cluster = stored.kept();
        let (mut missing, mut differ) = (Vec::new(), Vec::new());
        for (name, user) in own.users() {
            match cluster.users().get(name) {
                None => missing.push(name.as_str()),
                Some(there) if there != user => differ.push(name.as_str()),
                Some(_) => {}
            }
        }
        for (names, what) in [
            (
                missing,
                "users of this node's users.json are not the cluster's, and cannot log in: make them again",
            ),
            (
                differ,
                "users of this node's users.json are other ones in the cluster: those of the cluster count",
            ),
        ] {
            if !names.is_empty() {
                let users = names.iter().take(MOST_NAMES).copied().collect::<Vec<_>>().join(", ");
                tracing::warn!(event = "own_users_not_counted", users, count = names.len(), "{what}");
            }
        }
    }
}

/// Keeps with the node's data which users it has seen last.
struct Noting {
    last: Option<SeenUsers>,
    /// Whether the users of this run have been compared with those of the last one.
    is_compared: bool,
    trouble: Trouble,
}

impl Noting {
    fn begin(node: &Node) -> Noting {
        let read = SeenUsers::read(node.env(), &data_folder(node));
        let last = read.unwrap_or_else(|error| {
            tracing::error!(
                event = "seen_users_unreadable", %error,
                "older users of the cluster would not be recognised at this start"
            );
            None
        });
        Noting { last, is_compared: false, trouble: Trouble::default() }
    }

    /// Notes the users that are known now, if they are others than before. At the start it says whether they are older.
    fn note(&mut self, node: &Node) {
        let Some(stored) = node.accounts().stored() else { return };
        if self.last.as_ref().is_some_and(|last| last.is(&stored)) {
            self.is_compared = true;
            return;
        }
        let now = SeenUsers::of(&stored);
        if !std::mem::replace(&mut self.is_compared, true)
            && let Some(last) = &self.last
            && let Some(back) = last.went_back(&now)
        {
            warn_of_older(last, &now, &back);
        }
        let env = node.env();
        match now.write(env, &data_folder(node)) {
            Ok(()) => self.last = Some(now),
            Err(error) if self.trouble.failed(env.clock.monotonic()) => {
                tracing::warn!(
                    event = "seen_users_not_noted", %error,
                    "it cannot be noted which users of the cluster this node has seen: if the coordination store goes back, a later \
                     start may not notice"
                );
            }
            Err(_) => {}
        }
    }
}

fn warn_of_older(last: &SeenUsers, now: &SeenUsers, back: &WentBack) {
    let named = |names: &[String]| names.iter().take(MOST_NAMES).cloned().collect::<Vec<_>>().join(", ");
    tracing::error!(
        event = "cluster_users_older",
        revision = now.revision(),
        seen = last.revision(),
        again = named(&back.again),
        again_count = back.again.len(),
        gone = named(&back.gone),
        gone_count = back.gone.len(),
        "the coordination store has older users than this node has seen: unless a node that knows the newer ones still \
         runs, and writes them back, users that were deleted can log in again, passwords and roles are the older ones, \
         and newer users are gone; look through all users"
    );
}

/// Writes a change part by part; `None` if others came before.
fn commit_all(store: &dyn Store, mut change: Box<Change>) -> Result<Option<StoredUsers>, StoreFailure> {
    loop {
        let (version, puts) = change.part();
        let guard = Some((crate::kept_users::stored::GUARD, version));
        match store.commit(Commit { guard, puts: &puts, lease: None })? {
            Swapped::Conflict | Swapped::NoLease => return Ok(None),
            Swapped::Done(version) => match change.written(version) {
                Ok(written) => return Ok(Some(written)),
                Err(rest) => change = rest,
            },
        }
    }
}
