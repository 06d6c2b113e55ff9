//! A bucket in the document: what it is asked to be, and who has which of its vBuckets.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::NodeId;

/// The most replicas of a vBucket.
pub const MAX_REPLICAS: usize = 3;

/// Who has a vBucket: first the active node, then the replicas; nothing where one is missing.
pub type Chain = Vec<Option<NodeId>>;

/// What is under way with one vBucket.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Step {
    /// Those of the target that are not in the chain fetch their copies.
    Build,
    /// Durable writes need a majority of the chain and of the target.
    Both {
        /// The revision that began it.
        since: u64,
    },
    /// The target's first takes over from the chain's.
    TakeOver {
        /// The revision that began it.
        since: u64,
    },
    /// Nobody is active: the best copy is looked for.
    Choose {
        /// The revision that began it.
        since: u64,
        /// Who was taking over, and may have done so.
        taker: Option<NodeId>,
        /// Who alone surely has all durable writes: nothing is chosen before that one has said what it has.
        needs: Option<NodeId>,
        /// Somebody accepts that durable writes may be lost.
        forced: bool,
    },
    /// The chain has lost a member. Until the others have what the active one has, that one alone surely has all
    /// durable writes.
    Settle {
        /// The revision that began it.
        since: u64,
    },
}

/// JSON that is large, and seldom another: copies of it are one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Shared(Arc<Value>);

impl From<Value> for Shared {
    fn from(value: Value) -> Shared {
        Shared(Arc::new(value))
    }
}

impl std::ops::Deref for Shared {
    type Target = Value;

    fn deref(&self) -> &Value {
        &self.0
    }
}

impl Serialize for Shared {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Shared {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Shared, D::Error> {
        Value::deserialize(deserializer).map(Shared::from)
    }
}

/// A bucket goes to another store, until every node with a share has all of it there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoreMove {
    /// The revision that asked for it, or for its end.
    pub since: u64,
    /// The store in which it was, as its settings name it.
    pub from: String,
    /// The store that was asked for.
    pub to: String,
    /// Whether it goes back: its settings name the store in which it was.
    pub is_cancelled: bool,
}

/// A bucket.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bucket {
    /// Its identity: 32 hexadecimal digits.
    pub uuid: String,
    /// What it is asked to be; nodes know what it means.
    pub settings: Value,
    /// Replicas of each vBucket.
    pub replicas: u8,
    /// Its collections; nodes know what it means.
    pub manifest: Shared,
    /// Who has each vBucket now.
    pub map: Vec<Chain>,
    /// Who shall have each vBucket when the rebalance is over; empty if there is none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub target: Vec<Chain>,
    /// Who was in a vBucket's chain and said nothing when its active copy was chosen: it may have changes that were
    /// given up, and gets back into the chain when it has followed the new one.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub missing: BTreeMap<u16, Vec<NodeId>>,
    /// Who of a vBucket's chain has begun a new life since all of the chain were known to have everything: it may have
    /// forgotten durable writes that it had acknowledged from memory, so that what it has proves nothing. As long as
    /// there is one, a step is under way.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub forgot: BTreeMap<u16, BTreeSet<NodeId>>,
    /// What is under way, by vBucket.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub steps: BTreeMap<u16, Step>,
    /// Nodes that have had no connection for long to nodes that they follow, by the one that follows: their copies miss
    /// what changes there. It outlives what the nodes report, so that it is known when one of them is gone. Versions
    /// before this field drop it when they write.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub links_down: BTreeMap<NodeId, BTreeSet<NodeId>>,
    /// How often all documents were removed at once. A node that has done so less often does it before anything else.
    #[serde(default)]
    pub flushes: u64,
    /// The revision that asked for the last time, until all nodes have done so: meanwhile nobody is served.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flushing: Option<u64>,
    /// Ids that no scope and no collection ever had.
    #[serde(default)]
    pub next_ids: NextIds,
    /// That it goes to another store. Versions before this field drop it when they write: then it is not known any more
    /// when all nodes are there, and each of them moves what it has all the same.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub store_move: Option<StoreMove>,
}

/// Ids that no scope and no collection of a bucket ever had; zero as long as none was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NextIds {
    /// Of the next scope.
    pub scope: u32,
    /// Of the next collection.
    pub collection: u32,
}

impl Bucket {
    /// Whether copies are in memory alone: one is gone when the process that has it ends.
    pub fn is_ephemeral(&self) -> bool {
        self.store() == Some("ephemeral")
    }

    /// The store that its settings name; `None` if they name none.
    pub fn store(&self) -> Option<&str> {
        self.settings.get("type").and_then(Value::as_str)
    }

    /// Whether one of its vBuckets waits for the choice of its active copy.
    pub fn is_choosing(&self) -> bool {
        self.steps.values().any(|step| matches!(step, Step::Choose { .. }))
    }

    /// The chain of a vBucket; empty if there is no such vBucket.
    pub fn chain(&self, vb: u16) -> &[Option<NodeId>] {
        self.map.get(usize::from(vb)).map_or(&[], Vec::as_slice)
    }

    /// Who shall have a vBucket, as long as there is a rebalance.
    pub fn target_of(&self, vb: u16) -> Option<&Chain> {
        self.target.get(usize::from(vb))
    }

    /// The active node of a vBucket.
    pub fn active(&self, vb: u16) -> Option<NodeId> {
        self.chain(vb).first().copied().flatten()
    }

    /// Whether the document gives a vBucket to no node.
    pub fn has_no_copy(&self, vb: u16) -> bool {
        present(self.chain(vb)).next().is_none()
    }

    /// All vBuckets by number.
    pub fn vbuckets(&self) -> impl Iterator<Item = u16> + use<> {
        0..u16::try_from(self.map.len()).unwrap_or(u16::MAX)
    }

    /// Whether what a node has of a vBucket proves nothing.
    pub fn has_forgotten(&self, vb: u16, id: NodeId) -> bool {
        self.forgot.get(&vb).is_some_and(|forgot| forgot.contains(&id))
    }

    /// Whether a node has had no connection for long to one that it follows, when both were seen last.
    pub fn is_link_down(&self, follower: NodeId, source: NodeId) -> bool {
        self.links_down.get(&follower).is_some_and(|sources| sources.contains(&source))
    }

    /// Notes who was in a vBucket's chain and said nothing.
    pub(crate) fn note_missing(&mut self, vb: u16, nodes: Vec<NodeId>) {
        if nodes.is_empty() {
            return;
        }
        let missing = self.missing.entry(vb).or_default();
        missing.extend(nodes);
        missing.sort_unstable();
        missing.dedup();
    }

    /// A node that is not active for a vBucket leaves its chain. What it had acknowledged the others may not have.
    pub(crate) fn leave_chain(&mut self, vb: u16, id: NodeId, since: u64) {
        if let Some(forgot) = self.forgot.get_mut(&vb) {
            forgot.remove(&id);
        }
        let chain = &mut self.map[usize::from(vb)];
        let places = chain.len();
        chain.retain(|place| *place != Some(id) && place.is_some());
        let others = chain.len() - 1;
        chain.resize(places, None);
        if others > 0 {
            self.steps.insert(vb, Step::Settle { since });
        } else {
            self.steps.remove(&vb);
            self.forgot.remove(&vb);
        }
    }

    /// Forgets of those that are in a vBucket's chain that they were missing.
    pub(crate) fn note_present(&mut self, vb: u16) {
        let chain = self.map.get(usize::from(vb)).map_or(&[][..], Vec::as_slice);
        if let Entry::Occupied(mut missing) = self.missing.entry(vb) {
            missing.get_mut().retain(|id| !chain.contains(&Some(*id)));
            if missing.get().is_empty() {
                missing.remove();
            }
        }
    }

    /// How many vBuckets are not yet where they should be.
    pub fn to_move(&self) -> usize {
        self.map.iter().zip(&self.target).filter(|(chain, target)| chain != target).count()
    }
}

/// Those of a chain that are there.
pub fn present(chain: &[Option<NodeId>]) -> impl Iterator<Item = NodeId> + '_ {
    chain.iter().copied().flatten()
}

/// How many of a chain must have a durable write, the missing ones counted (record 30).
pub fn majority(chain: &[Option<NodeId>]) -> usize {
    chain.len() / 2 + 1
}
