//! The document: nodes, buckets, who has which vBucket, and what is under way.

mod bucket;
mod check;
mod compact;
mod parts;

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::tenure::Tenure;

pub use bucket::{Bucket, Chain, MAX_REPLICAS, NextIds, Step, StoreMove, majority, present};
pub use check::Invalid;
pub use parts::{MAX_COMMIT_BYTES, Reader};

/// The most bytes of one entry of the state: etcd refuses requests of 1.5 MiB.
pub const MAX_BYTES: usize = 1 << 20;
/// The most nodes of a cluster.
pub const MAX_NODES: usize = 128;
/// The most buckets of a cluster, as in the field.
pub const MAX_BUCKETS: usize = 30;
/// How many deleted buckets are remembered: the last ones.
pub const MAX_DELETED: usize = 256;
/// How many branches that a state goes on from are remembered: the last ones.
pub const MAX_BRANCHES: usize = 16;
/// What earlier versions read and write: all of it in one entry.
const SINGLE: u32 = 1;
/// The versions of the state that a node reads, and the one that it writes once all nodes read it.
pub const FORMATS: base::FormatVersions = base::FormatVersions::since(SINGLE, FORMAT);
/// The root in one entry, and three entries for each bucket.
pub const FORMAT: u32 = 2;

/// Number of a node in its cluster, from 1; never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct NodeId(pub u32);

impl NodeId {
    /// What the node is called in the topologies of vBuckets, and what a replica's consumer says it is.
    pub fn name(self) -> String {
        format!("n_{}", self.0)
    }
}

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "n_{}", self.0)
    }
}

/// Where a node is reached, by clients and by other nodes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Address {
    /// Name or address.
    pub host: String,
    /// Port of the KV protocol.
    pub kv: u16,
    /// Port for HTTP.
    pub http: u16,
    /// Port of the KV protocol with TLS; nothing if there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kv_tls: Option<u16>,
    /// Port for HTTP with TLS.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub http_tls: Option<u16>,
    /// Where clients of another network reach it; nothing if there are none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub alternate: Option<Alternate>,
}

/// Where clients of another network reach a node: behind a router that translates addresses, or a container's mapped
/// ports.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Alternate {
    /// Name or address.
    pub host: String,
    /// The ports there, by the field's names of services. If there are none, the ports are the node's own.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub ports: BTreeMap<String, u16>,
}

impl Address {
    /// A node without TLS.
    pub fn new(host: String, kv: u16, http: u16) -> Address {
        Address { host, kv, http, kv_tls: None, http_tls: None, alternate: None }
    }

    fn host(&self) -> String {
        if self.host.contains(':') { format!("[{}]", self.host) } else { self.host.clone() }
    }

    /// `HOST:PORT` of the KV protocol.
    pub fn kv(&self) -> String {
        format!("{}:{}", self.host(), self.kv)
    }

    /// `HOST:PORT` for HTTP.
    pub fn http(&self) -> String {
        format!("{}:{}", self.host(), self.http)
    }

    /// Where another node connects to with the KV protocol. If that is to be encrypted and the node has told no port for
    /// it, its other port: what is encrypted is refused there, and nothing travels in clear.
    pub fn kv_by(&self, is_encrypted: bool) -> String {
        let port = if is_encrypted { self.kv_tls.unwrap_or(self.kv) } else { self.kv };
        format!("{}:{port}", self.host())
    }

    /// The same for HTTP.
    pub fn http_by(&self, is_encrypted: bool) -> String {
        let port = if is_encrypted { self.http_tls.unwrap_or(self.http) } else { self.http };
        format!("{}:{port}", self.host())
    }
}

/// A bucket that was deleted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Deleted {
    /// Its name.
    pub name: String,
    /// The revision that deleted it.
    pub revision: u64,
}

/// What a node can hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// The most that the memory quotas of all buckets may come to, in bytes.
    pub quota_bytes: u64,
    /// How many vBuckets each of its buckets has.
    pub vbuckets: u16,
}

/// What a node is to its cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// Has joined, has nothing yet; the next rebalance makes it active.
    New,
    /// Has vBuckets.
    Active,
    /// Was failed over: serves nothing, keeps its copies.
    FailedOver,
    /// Was failed over and comes back with its copies by the next rebalance.
    DeltaRecovery,
    /// Was failed over and comes back by the next rebalance without its copies, which it keeps until then.
    FullRecovery,
}

impl Status {
    /// Whether a node that was failed over keeps its copies, for vBuckets that no other node has.
    pub(crate) fn keeps_copies(self) -> bool {
        matches!(self, Status::FailedOver | Status::DeltaRecovery | Status::FullRecovery)
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Status::New => "new: it has its share after the next rebalance",
            Status::Active => "active",
            Status::FailedOver => "failed over already",
            Status::DeltaRecovery => "to come back, with its copies, by the next rebalance",
            Status::FullRecovery => "to come back, without its copies, by the next rebalance",
        })
    }
}

/// A node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Node {
    /// Its identity: made when its folder of data was made.
    pub uuid: String,
    /// Where it is reached.
    pub address: Address,
    /// What it is to the cluster.
    pub status: Status,
    /// Which of its lives may serve: that of a member with the same number. A node that lost its lease begins a new
    /// one, which serves nothing until it is written here.
    pub incarnation: u64,
    /// What it can hold, as the life that may serve said; `None` if that did not say it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<Limits>,
    /// An administrator has said that the node, which was failed over, has stopped: no choice waits until it can be known
    /// that no other node promises it anything. Versions before this field do not wait.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub stopped: bool,
}

/// Why vBuckets are being moved.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Purpose {
    /// The vBuckets are spread anew; these nodes leave.
    Rebalance {
        /// Who leaves.
        eject: Vec<NodeId>,
    },
    /// Nodes that were away when active copies were chosen get their places back.
    Repair,
    /// A node hands over what it is active for, and is failed over then.
    GracefulFailover {
        /// Which node.
        node: NodeId,
    },
}

impl Purpose {
    /// Whether an administrator wants the vBuckets spread.
    pub(crate) fn is_rebalance(&self) -> bool {
        matches!(self, Purpose::Rebalance { .. })
    }

    /// Whether the vBuckets are to be spread over all nodes that have a share.
    pub(crate) fn lets_nobody_leave(&self) -> bool {
        matches!(self, Purpose::Rebalance { eject } if eject.is_empty())
    }
}

/// vBuckets being moved.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rebalance {
    /// Its number: the revision that began it.
    pub id: u64,
    /// Why.
    pub purpose: Purpose,
    /// How many vBuckets had to move when it began.
    pub total: u32,
    /// Nothing new is begun: an administrator wants it to end, or it cannot go on.
    pub cancelled: bool,
    /// Why the leader ended it; `None` if it did not. Versions before this field drop it when they write.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

/// How a rebalance ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finished {
    /// Which one.
    pub id: u64,
    /// Why it was begun.
    pub purpose: Purpose,
    /// How it ended.
    pub outcome: Outcome,
    /// Why, if the leader ended it early.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

/// How a rebalance ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// Everything is where it should be.
    Done,
    /// An administrator ended it, or the leader because it could not go on.
    Cancelled,
    /// A node was failed over meanwhile.
    Interrupted,
}

/// When nodes are failed over without anybody asking.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AutoFailover {
    /// Whether at all.
    pub enabled: bool,
    /// So long, in milliseconds, a node's lease must have run out before.
    pub timeout_ms: u64,
    /// So many one after the other, until a rebalance begins to count anew.
    pub max_count: u32,
    /// So many there were.
    pub count: u32,
}

impl Default for AutoFailover {
    fn default() -> Self {
        AutoFailover { enabled: true, timeout_ms: 30_000, max_count: 1, count: 0 }
    }
}

/// The document. It is replaced as a whole, by compare-and-swap.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct State {
    format: u32,
    /// Rises whenever vBuckets change hands without the consent of who had them.
    pub epoch: u64,
    /// Rises with every change.
    pub revision: u64,
    /// What the next node is called.
    pub next_node: u32,
    /// All nodes, those failed over included.
    pub nodes: BTreeMap<NodeId, Node>,
    /// All buckets by name.
    pub buckets: BTreeMap<String, Bucket>,
    /// vBuckets being moved.
    pub rebalance: Option<Rebalance>,
    /// How the last one ended.
    pub finished: Option<Finished>,
    /// When nodes are failed over without anybody asking.
    pub auto_failover: AutoFailover,
    /// The cluster's identity, made when it was founded; after a state was adopted (record 84) with a slash and the
    /// branch's identity behind it. Empty in a state of a version that did not know it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub cluster: String,
    /// Buckets that were deleted, by identity: a node drops a bucket because it is here, not because it is absent.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub deleted: BTreeMap<String, Deleted>,
    /// Other branches from which this one goes on, by identity: a node follows this branch by itself if it has seen no
    /// more of its own than this revision.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub branches: BTreeMap<String, u64>,
    /// Which processes wrote the revisions of this branch: the last ones. Versions before this field drop it when they
    /// write; revisions alone are compared then.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tenures: Vec<Tenure>,
}

impl Default for State {
    fn default() -> State {
        State::empty()
    }
}

impl State {
    /// A cluster without nodes and buckets.
    pub fn empty() -> State {
        State {
            format: FORMAT,
            // Nodes alone have 1: what they told clients is older than any map of a cluster.
            epoch: 2,
            revision: 1,
            next_node: 1,
            nodes: BTreeMap::new(),
            buckets: BTreeMap::new(),
            rebalance: None,
            finished: None,
            auto_failover: AutoFailover::default(),
            cluster: String::new(),
            deleted: BTreeMap::new(),
            branches: BTreeMap::new(),
            tenures: Vec::new(),
        }
    }

    /// The document of the next revision, so far the same.
    pub fn next(&self) -> State {
        State { revision: self.revision + 1, ..self.clone() }
    }

    /// Remembers that a bucket was deleted by this revision, and forgets the one that was deleted first if there are too
    /// many.
    pub(crate) fn note_deleted(&mut self, name: &str, uuid: &str) {
        let deleted = Deleted { name: name.to_owned(), revision: self.revision };
        self.deleted.insert(uuid.to_owned(), deleted);
        while self.deleted.len() > MAX_DELETED {
            let first = self.deleted.iter().min_by_key(|(_, deleted)| deleted.revision);
            let Some(first) = first.map(|(uuid, _)| uuid.clone()) else { break };
            self.deleted.remove(&first);
        }
    }

    /// The node with this identity.
    pub fn node_of(&self, uuid: &str) -> Option<(NodeId, &Node)> {
        self.nodes.iter().find(|(_, node)| node.uuid == uuid).map(|(id, node)| (*id, node))
    }

    /// vBuckets of a bucket that have a copy, and fewer than its replicas and the active nodes ask for, so that a
    /// rebalance gives them more.
    pub fn with_few_copies(&self, bucket: &Bucket) -> usize {
        let active = self.nodes.keys().filter(|id| self.is_active(**id)).count();
        let wanted = active.min(usize::from(bucket.replicas) + 1);
        let has_few = |chain: &&Chain| (1..wanted).contains(&present(chain).count());
        bucket.map.iter().filter(has_few).count()
    }

    /// Whether a node has a share in the buckets.
    pub fn is_active(&self, id: NodeId) -> bool {
        self.nodes.get(&id).is_some_and(|node| node.status == Status::Active)
    }

    /// How many vBuckets are not yet where they should be.
    pub fn to_move(&self) -> usize {
        self.buckets.values().map(Bucket::to_move).sum()
    }

    /// Whether some vBucket waits for the choice of its active copy.
    pub fn is_choosing(&self) -> bool {
        self.buckets.values().any(Bucket::is_choosing)
    }

    /// The bucket whose documents are being removed, if there is one.
    pub fn flushing(&self) -> Option<&str> {
        self.buckets.iter().find(|(_, bucket)| bucket.flushing.is_some()).map(|(name, _)| name.as_str())
    }

    /// Whether all of it is in one entry, as earlier versions have it. Reports are, too, then.
    pub fn is_single(&self) -> bool {
        self.format == SINGLE
    }

    /// The state in several entries, so far the same. It gets an identity if it never had one.
    pub(crate) fn split(&self) -> State {
        let mut state = State { format: FORMAT, ..self.next() };
        if let Some(first) = state.nodes.values().next().filter(|_| state.cluster.is_empty()) {
            state.cluster = format!("{}-{:x}", first.uuid, first.incarnation);
        }
        state
    }

    /// As the last version had it, in one entry.
    #[doc(hidden)]
    pub fn as_single(&self) -> State {
        State { format: SINGLE, ..self.clone() }
    }
}
