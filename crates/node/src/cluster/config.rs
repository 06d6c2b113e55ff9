//! What a node of a cluster goes by.

use std::time::Duration;

use ::cluster::LeaderConfig;

/// What a node of a cluster goes by.
#[derive(Clone, Copy, Debug)]
pub struct ClusterConfig {
    /// How long a lease lives without being renewed. A node that fails is missed after this.
    pub lease_ttl: Duration,
    /// What it leads by, if it does.
    pub leader: LeaderConfig,
}

impl Default for ClusterConfig {
    fn default() -> Self {
        ClusterConfig { lease_ttl: Duration::from_secs(5), leader: LeaderConfig::default() }
    }
}
