//! What a development cluster is started with, and why something is not done to it.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use std::{fmt, io};

use ::cluster::state::{AutoFailover, Invalid};
use ::cluster::store::StoreFailure;
use ::cluster::{LeaderConfig, Status};
use ::node::cluster::{ClusterConfig, ClusterError};
use ::node::config::{BucketSpec, ClusterEncryption, ConfigError};
use ::node::log_levels::LogLevels;
use ::node::management::BucketError;
use ::node::recent_log::RecentLog;

use super::status::word;
use server::Failure;

/// The least that each node counts with, also where the process has few: its nodes do not use theirs up at once.
const LEAST_DESCRIPTORS: u64 = 512;
/// The most nodes in one process.
pub const MOST_NODES: u16 = 16;

/// What a cluster is started with.
#[derive(Clone, Debug)]
pub struct DevConfig {
    /// Nodes, 1 to [`MOST_NODES`].
    pub nodes: u16,
    /// The buckets that are made if they are not there.
    pub buckets: Vec<BucketSpec>,
    /// Where each node has a folder.
    pub data: PathBuf,
    /// The user that may do everything.
    pub username: String,
    /// That user's password.
    pub password: String,
    /// Where the first node listens for clients; the others take free ports of the same host.
    pub kv: SocketAddr,
    /// Where the first node listens for HTTP.
    pub http: SocketAddr,
    /// Where the control endpoint listens.
    pub control: SocketAddr,
    /// Threads of each node that serve clients.
    pub threads: usize,
    /// vBuckets of each bucket.
    pub vbuckets: u16,
    /// How soon a node is missed.
    pub times: DevTimes,
    /// Descriptors that the process may have; `None` if they are not limited.
    pub descriptors: Option<u64>,
    /// What connections are encrypted with; each node takes free ports for those of clients, and all connections between
    /// nodes are made to these ports. `None`: none is encrypted.
    pub tls: Option<DevTls>,
    /// Whether users may do what they lack privileges for, which is told and recorded: for looking which an application needs.
    pub debugs_privileges: bool,
    /// What puts documents into the buckets. `None`: they begin empty.
    pub seed: Option<Seed>,
    /// The last lines of the process's log, which all nodes tell.
    pub recent_log: RecentLog,
    /// How much the process logs.
    pub log_levels: LogLevels,
}

/// Loads documents into the buckets: at the start, when all nodes serve, and after each reset.
///
/// It is given where a node listens for clients, and says what failed.
#[derive(Clone)]
pub struct Seed(pub Arc<dyn Fn(SocketAddr) -> Result<(), String> + Send + Sync>);

impl fmt::Debug for Seed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Seed").finish_non_exhaustive()
    }
}

/// Certificate and key of all nodes, and the CA by which they know each other, in PEM.
#[derive(Clone, Debug)]
pub struct DevTls {
    /// The CA that has signed the certificate.
    pub ca: PathBuf,
    /// The certificate.
    pub certificate: PathBuf,
    /// Its key.
    pub key: PathBuf,
}

impl DevConfig {
    /// Which connections between its nodes are encrypted: all, if it speaks TLS at all.
    pub fn cluster_encryption(&self) -> ClusterEncryption {
        if self.tls.is_some() { ClusterEncryption::Strict } else { ClusterEncryption::Off }
    }

    /// Descriptors of each node: as many nodes as there are may be added.
    pub(super) fn descriptors_of_node(&self) -> Option<u64> {
        let share = |all: u64| (all / (2 * u64::from(self.nodes.max(1)))).max(LEAST_DESCRIPTORS);
        self.descriptors.map(share)
    }
}

/// How soon a node is missed, and others take over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DevTimes {
    /// A node that is killed, frozen or cut off is missed after this.
    pub lease: Duration,
    /// So much later others take over from it; nothing if nobody does by itself.
    pub auto_failover: Option<Duration>,
}

impl Default for DevTimes {
    fn default() -> Self {
        DevTimes { lease: Duration::from_secs(1), auto_failover: Some(Duration::from_secs(1)) }
    }
}

/// How long the choice of an active copy waits for nodes that are alive and say nothing.
const CHOICE_PATIENCE: Duration = Duration::from_millis(500);
/// What the document says where nobody is failed over without being asked, in milliseconds.
const UNUSED_TIMEOUT_MS: u64 = 30_000;

impl DevTimes {
    /// What each node goes by.
    pub(super) fn of_node(self) -> ClusterConfig {
        let leader = LeaderConfig { choice_patience: CHOICE_PATIENCE, ..LeaderConfig::default() };
        ClusterConfig { lease_ttl: self.lease, leader }
    }

    /// What the document says.
    pub(super) fn rules(self) -> AutoFailover {
        let timeout = self.auto_failover.map(|timeout| timeout.as_millis());
        let timeout_ms = timeout.map_or(UNUSED_TIMEOUT_MS, |ms| u64::try_from(ms).unwrap_or(u64::MAX));
        AutoFailover { enabled: self.auto_failover.is_some(), timeout_ms, ..AutoFailover::default() }
    }
}

/// Why something was not done to a cluster.
#[derive(Debug, thiserror::Error)]
pub enum DevError {
    /// The configuration makes no sense.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A node failed.
    #[error("node {node}: {source}")]
    Node {
        /// Which, from 1 on.
        node: u16,
        /// What happened.
        source: Failure,
    },
    /// A node could not become a member.
    #[error("node {node}: {source}")]
    Join {
        /// Which, from 1 on.
        node: u16,
        /// What happened.
        source: ClusterError,
    },
    /// A bucket could not be made.
    #[error("bucket {name}: {source}")]
    Bucket {
        /// Its name.
        name: String,
        /// What happened.
        source: BucketError,
    },
    /// There is no such node.
    #[error("there is no node {0}; GET /v1/dev lists them")]
    NoNode(u16),
    /// It is not in a state to do that.
    #[error("node {node} {is}")]
    State {
        /// Which, from 1 on.
        node: u16,
        /// What is in the way, and what to do about it.
        is: &'static str,
    },
    /// The cluster thinks something else of it.
    #[error("node {node} is {} to the cluster: {instead}", word(*.status))]
    Status {
        /// Which, from 1 on.
        node: u16,
        /// What it is.
        status: Status,
        /// What to do.
        instead: &'static str,
    },
    /// A rebalance would remove it.
    #[error(
        "node {0} is failed over, too, and would leave with the rebalance: give rebalance=false, and recover it"
    )]
    WouldLeave(u16),
    /// What was ordered is under way, and not at its end.
    #[error(
        "the order was taken, and is not at its end after {waited:?}: {what}; GET /v1/dev tells more, and wait_s=N \
         waits longer"
    )]
    NotSettled {
        /// How long was waited.
        waited: Duration,
        /// What is under way.
        what: String,
    },
    /// Clocks go no further.
    #[error("clocks may be off by {MOST_OFFSET_S} seconds (ten years) at most, in all")]
    Clock,
    /// There are as many as there may be.
    #[error("there are {MOST_NODES} nodes already; remove one first")]
    TooMany,
    /// Nobody could do it.
    #[error("no node could do it: start, thaw or join one first")]
    Nobody,
    /// The cluster does not do it.
    #[error("{source}{}", instead_of(.source))]
    Cluster {
        /// What it says.
        #[from]
        source: ClusterError,
    },
    /// The cluster does not do it because of one of its nodes.
    #[error("{0}")]
    Refused(String),
    /// Another cluster ran in this folder.
    #[error("{ran} ran in this folder, not {asked}: give the same, or another folder with --data")]
    Differs {
        /// What did.
        ran: String,
        /// What shall.
        asked: String,
    },
    /// It did not come to what it should within the time for that.
    #[error("the cluster is not ready after {0:?}: is the machine overloaded?")]
    NotReady(Duration),
    /// The documents of the seed could not be loaded.
    #[error("{0}")]
    Seed(String),
    /// The system failed.
    #[error("{what}: {source}")]
    Io {
        /// What was tried.
        what: &'static str,
        /// What the system said.
        source: io::Error,
    },
}

impl From<StoreFailure> for DevError {
    fn from(failure: StoreFailure) -> DevError {
        ClusterError::Store(failure).into()
    }
}

impl From<Invalid> for DevError {
    fn from(invalid: Invalid) -> DevError {
        ClusterError::Invalid(invalid).into()
    }
}

/// The most seconds by which a clock may be off.
pub const MOST_OFFSET_S: i64 = 10 * 365 * 24 * 3600;

/// What to do about something that the cluster does not do.
fn instead_of(error: &ClusterError) -> &'static str {
    use ::cluster::Refused;
    let ClusterError::Refused(refused) = error else { return "" };
    match refused {
        Refused::LastCopy(_) => "; more replicas are needed, or force=true if documents may be lost",
        Refused::Unsafe(_) => {
            "; start, thaw or join the others first, or give force=true if writes may be lost"
        }
        Refused::NotFollowed { .. } => "; start it first, or give force=true if writes may be lost",
        Refused::LastNode => "; start or recover another node first",
        Refused::CannotHandOver(_) => ", or with mode=hard",
        Refused::NodeDown(_) => "; start, thaw or join it first, or fail it over",
        Refused::Rebalancing | Refused::FailingOver => "; try again when that is over",
        _ => "",
    }
}
