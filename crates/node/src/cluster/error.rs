//! Why a node cannot belong to a cluster, or something asked of the cluster was not done.

use std::io;

use ::cluster::Refused;
use ::cluster::store::StoreFailure;

/// Why a node cannot belong to a cluster, or something asked of the cluster was not done.
#[derive(Debug, thiserror::Error)]
pub enum ClusterError {
    /// The coordination store.
    #[error(transparent)]
    Store(#[from] StoreFailure),
    /// What the store holds is no document of this version.
    #[error(transparent)]
    Invalid(#[from] ::cluster::state::Invalid),
    /// The cluster refuses.
    #[error(transparent)]
    Refused(#[from] Refused),
    /// The store holds an older state, or that of another cluster.
    #[error(transparent)]
    Stale(#[from] ::cluster::Stale),
    /// The state in the store is one that this node follows.
    #[error(
        "there is nothing to adopt: the coordination store holds no older state than this node has seen, and none of \
         another cluster"
    )]
    NothingToAdopt,
    /// The store holds no cluster yet.
    #[error("there is no cluster yet")]
    NoCluster,
    /// Others changed the document again and again.
    #[error("the cluster is changing; try again")]
    Busy,
    /// The secret of the nodes is of a later version.
    #[error(
        "this version does not understand the secret of the cluster's nodes: ask a node of the newest version"
    )]
    NewerSecret,
    /// Others cannot reach this node.
    #[error("a node that listens everywhere must say by which name others reach it: give --advertise")]
    NoAddress,
    /// The node was not started as one that a cluster decides about.
    #[error("this node decides itself what it serves")]
    NotFenced,
    /// The file with the node's identity, or a thread.
    #[error("{0}: {1}")]
    Io(&'static str, io::Error),
}

impl ClusterError {
    /// Whether it is no fault of what was asked: asking again later helps.
    pub fn is_passing(&self) -> bool {
        matches!(self, ClusterError::Store(_) | ClusterError::NoCluster | ClusterError::Busy)
    }

    /// What is wrong, what has become of what was asked, and what to do about it.
    pub fn advice(&self) -> String {
        match self {
            ClusterError::Store(failure) if failure.operation == WRITE => format!(
                "{failure}: whether it was done is not known; see that the coordination store (etcd, as given by \
                 --join) runs and can be reached from this node, look at the cluster (stave cluster status), and ask \
                 again if it was not done"
            ),
            ClusterError::Store(failure) => format!(
                "{failure}: nothing was changed; see that the coordination store (etcd, as given by --join) runs and \
                 can be reached from this node, and ask again. Without it nodes serve on, as long as they reach each other"
            ),
            other => other.to_string(),
        }
    }
}

/// The store's operation that changes the document: if it fails, it may have been done all the same.
const WRITE: &str = "swap";
