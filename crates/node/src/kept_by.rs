//! What says at the next start what a bucket is, and so which of its changes last.

use crate::cluster::serving::is_a_clusters;
use crate::node::Node;

/// What a start takes a bucket's settings from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeptBy {
    /// The state of the cluster.
    Cluster,
    /// The configuration file, the command line or the defaults of a node: what is changed over HTTP lasts until the node
    /// stops.
    Configuration,
    /// The node's list of the buckets that were made over HTTP.
    Node,
}

impl KeptBy {
    /// What keeps the bucket with this name.
    pub fn of(node: &Node, bucket: &str) -> KeptBy {
        if is_a_clusters(node) {
            return KeptBy::Cluster;
        }
        let host = node.host();
        let is_configured = |spec: &crate::config::BucketSpec| spec.name == bucket;
        // Without a host all buckets are those that the node was put together with.
        let is_configured = host.is_none_or(|host| host.config().buckets.iter().any(is_configured));
        if is_configured { KeptBy::Configuration } else { KeptBy::Node }
    }

    /// The word for it in answers.
    pub fn word(self) -> &'static str {
        match self {
            KeptBy::Cluster => "cluster",
            KeptBy::Configuration => "configuration",
            KeptBy::Node => "node",
        }
    }
}
