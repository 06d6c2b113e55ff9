//! The secret with which the nodes of a cluster log in at each other: an entry of the coordination store, beside the
//! cluster's state (record 159).
//!
//! *Guarantee:* a node has it from the store alone, and takes it only after it has proved that it has the cluster's user
//! and password. While a cluster has nodes of an earlier version they are let in, and asked, as before.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use ::cluster::store::{Snapshot, Store, Swap, Swapped, Version};
use ::cluster::{View, keys};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::document::TRIES;
use super::ending::Ending;
use super::{ClusterError, credentials};
use crate::config::UserSpec;
use crate::node::Node;
use crate::node_login::NodeSecret;

const FORMAT: u32 = 1;
/// How often and how long the node that wrote a secret waits until it goes by it.
const LOOK_EVERY: Duration = Duration::from_millis(5);
const MOST_LOOKS: u32 = 1_000;

/// What is in the store.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
struct SecretEntry {
    format: u32,
    /// What nodes log in with.
    current: NodeSecret,
    /// What is let in, too: nodes hear of a new one at different times.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    previous: Option<NodeSecret>,
}

impl SecretEntry {
    /// `None` if this version does not understand it.
    fn parse(bytes: &[u8]) -> Option<SecretEntry> {
        let entry: SecretEntry = serde_json::from_slice(bytes).ok()?;
        let is_sound = entry.format == FORMAT && entry.secrets().iter().all(NodeSecret::is_sound);
        is_sound.then_some(entry)
    }

    /// The first one is the present one.
    fn secrets(&self) -> Vec<NodeSecret> {
        [Some(&self.current), self.previous.as_ref()].into_iter().flatten().cloned().collect()
    }
}

/// What another node knows of how nodes show that they belong together.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Knows {
    secret: bool,
    timed_proofs: bool,
}

/// What a node knows of it.
#[derive(Default)]
struct KnownSecret {
    /// The version that was looked at last.
    version: Version,
    entry: Option<SecretEntry>,
    /// What nodes know, by identity, as they said last.
    nodes: BTreeMap<String, Knows>,
    /// Whether all that belong to the cluster do.
    is_known_to_all: bool,
}

impl KnownSecret {
    /// A node of which nothing was heard yet is taken for one that does: it is refused at worst, and tried again.
    fn is_earlier(&self, uuid: &str) -> bool {
        self.nodes.get(uuid).is_some_and(|knows| !knows.secret)
    }
}

/// A node's part in having and changing the secret of its cluster's nodes.
pub struct NodeSecrets {
    node: Arc<Node>,
    store: Arc<dyn Store>,
    /// Whose password nodes prove that they have; `None` if that is not looked at.
    user: Option<UserSpec>,
    known: Mutex<KnownSecret>,
    ending: Arc<Ending>,
}

impl NodeSecrets {
    pub(super) fn new(
        node: &Arc<Node>,
        store: &Arc<dyn Store>,
        user: Option<UserSpec>,
        ending: &Arc<Ending>,
    ) -> NodeSecrets {
        NodeSecrets {
            node: Arc::clone(node),
            store: Arc::clone(store),
            user,
            known: Mutex::default(),
            ending: Arc::clone(ending),
        }
    }

    /// Takes what the store has, if it is news.
    pub(super) fn take(&self, snapshot: &Snapshot) {
        let Some(stored) = snapshot.entries.get(keys::NODE_SECRET) else { return };
        let mut known = self.known.lock();
        if known.version == stored.version {
            return;
        }
        known.version = stored.version;
        let Some(entry) = SecretEntry::parse(&stored.value) else {
            tracing::error!(
                event = "node_secret_unknown",
                "this version does not understand the secret of the cluster's nodes in the coordination store: the one \
                 that this node knows stays; a newer version of stave may have written it"
            );
            return;
        };
        if known.entry.as_ref() != Some(&entry) {
            let secrets = entry.secrets();
            known.entry = Some(entry);
            self.node.accounts().set_node_secrets(&self.node, &secrets);
        }
    }

    /// Whether the store has no secret: none was written yet, or it was lost.
    pub(super) fn is_missing(snapshot: &Snapshot) -> bool {
        !snapshot.entries.contains_key(keys::NODE_SECRET)
    }

    /// Writes the secret that this node knows, or a new one, unless another node was first. What came of it is read again.
    pub(super) fn write(&self) -> Result<(), ClusterError> {
        let known = self.known.lock().entry.clone();
        let entry = known.unwrap_or_else(|| SecretEntry {
            format: FORMAT,
            current: NodeSecret::new(&*self.node.env().random),
            previous: None,
        });
        self.swap(&entry, Version::ABSENT)?;
        Ok(())
    }

    fn swap(&self, entry: &SecretEntry, expected: Version) -> Result<bool, ClusterError> {
        let json = serde_json::to_vec(entry).unwrap_or_default();
        let swap = Swap { key: keys::NODE_SECRET, expected: Some(expected), value: Some(&json), lease: None };
        Ok(matches!(self.store.swap(swap)?, Swapped::Done(_)))
    }

    /// Has nodes log in with a new secret from now on; the one before is let in until the next time. Blocks.
    pub fn rotate(&self) -> Result<(), ClusterError> {
        for _ in 0..TRIES {
            let snapshot = self.store.read()?;
            let Some(stored) = snapshot.entries.get(keys::NODE_SECRET) else {
                return Err(ClusterError::NoCluster);
            };
            let before = SecretEntry::parse(&stored.value).ok_or(ClusterError::NewerSecret)?;
            let current = NodeSecret::new(&*self.node.env().random);
            let entry = SecretEntry { format: FORMAT, current, previous: Some(before.current) };
            if self.swap(&entry, stored.version)? {
                self.wait_for(&entry);
                return Ok(());
            }
        }
        Err(ClusterError::Busy)
    }

    /// Waits for a while until the thread that follows the cluster has it. No other thread takes what it has read of the
    /// store, which may be older than what that one has read.
    fn wait_for(&self, entry: &SecretEntry) {
        for _ in 0..MOST_LOOKS {
            if self.known.lock().entry.as_ref() == Some(entry) || self.ending.pause(LOOK_EVERY) {
                return;
            }
        }
    }

    /// Notes which nodes know the secret: they say so under their lease.
    pub(super) fn note_nodes(&self, view: &View) {
        let mut known = self.known.lock();
        known.nodes.retain(|uuid, _| view.state.node_of(uuid).is_some());
        for node in view.state.nodes.values() {
            if let Some(member) = view.members.get(&node.uuid) {
                let knows = Knows { secret: member.node_login, timed_proofs: member.timed_proofs };
                known.nodes.insert(node.uuid.clone(), knows);
            }
        }
        let knows = |uuid: &String| known.nodes.get(uuid).is_some_and(|knows| knows.secret);
        known.is_known_to_all = view.state.nodes.values().all(|node| knows(&node.uuid));
        let earlier = view.state.nodes.values().filter(|node| known.is_earlier(&node.uuid));
        let addresses: BTreeSet<String> =
            earlier.flat_map(|node| [node.address.kv_by(false), node.address.kv_by(true)]).collect();
        drop(known);
        self.node.accounts().node_logins().set_earlier(addresses);
    }

    /// What proves to another node that this one belongs to the cluster; `None` if that is of an earlier version, or
    /// nothing is known yet.
    pub fn for_node(&self, uuid: &str) -> Option<NodeSecret> {
        let known = self.known.lock();
        known.entry.as_ref().filter(|_| !known.is_earlier(uuid)).map(|entry| entry.current.clone())
    }

    /// The same, and what did before the last rotation, which a node may not have heard of.
    pub(super) fn all_for(&self, uuid: &str) -> Vec<NodeSecret> {
        let known = self.known.lock();
        let entry = known.entry.as_ref().filter(|_| !known.is_earlier(uuid));
        entry.map(SecretEntry::secrets).unwrap_or_default()
    }

    /// What proves to this node that another one belongs to the cluster.
    pub fn accepted(&self) -> Vec<NodeSecret> {
        self.known.lock().entry.as_ref().map(SecretEntry::secrets).unwrap_or_default()
    }

    /// Whether nodes may still prove that by the user and password of the cluster: not all are known to have the secret.
    pub fn takes_earlier_proofs(&self) -> bool {
        let known = self.known.lock();
        known.entry.is_none() || !known.is_known_to_all
    }

    /// Whether a node is known to take proofs without a time alone: it is of the last version, or an earlier one.
    pub fn wants_timeless_proofs(&self, uuid: &str) -> bool {
        self.known.lock().nodes.get(uuid).is_some_and(|knows| !knows.timed_proofs)
    }

    /// Whether some node of the cluster is known to send proofs without a time.
    pub fn takes_timeless_proofs(&self) -> bool {
        self.known.lock().nodes.values().any(|knows| !knows.timed_proofs)
    }

    /// The cluster has another user and password from now on, which nodes that start have to have. Blocks.
    ///
    /// # Errors
    ///
    /// Why that cannot be; nothing was changed.
    pub(crate) fn change_credentials(&self, user: &UserSpec) -> Result<(), String> {
        {
            let known = self.known.lock();
            if known.entry.is_none() {
                return Err("the nodes have no secret of their own yet".to_owned());
            }
            let earlier =
                known.nodes.iter().filter(|(_, knows)| !knows.secret).map(|(uuid, _)| uuid.as_str());
            let earlier = earlier.collect::<Vec<_>>().join(", ");
            if !earlier.is_empty() {
                return Err(format!(
                    "nodes of an earlier version log in as this user: {earlier}; upgrade them first"
                ));
            }
        }
        if self.user.is_none() {
            return Ok(());
        }
        credentials::change(&*self.store, user, self.node.env()).map_err(|error| error.advice())
    }
}

#[cfg(test)]
mod tests {
    use base::env::Env;

    use super::*;

    #[test]
    fn what_is_no_secret_is_not_taken_for_one() {
        let (env, _) = Env::sim(1);
        let secret = || NodeSecret::new(&*env.random);
        let entry = SecretEntry { format: FORMAT, current: secret(), previous: Some(secret()) };
        let json = serde_json::to_vec(&entry).expect("JSON");
        assert!(SecretEntry::parse(&json) == Some(entry.clone()));
        let newer = serde_json::to_vec(&SecretEntry { format: 2, ..entry.clone() }).expect("JSON");
        assert!(SecretEntry::parse(&newer).is_none(), "a later version's");
        let text = String::from_utf8(json).expect("text");
        let short = text.replacen(&entry.current.password_text()[..60], "", 1);
        assert!(SecretEntry::parse(short.as_bytes()).is_none(), "it could be guessed");
    }
}
