//! A node: its buckets, users and cluster map. A value without globals, so that several live in one process.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use base::env::Env;
use engine::Bucket;
use parking_lot::RwLock;
use protocol::extras::ConfigVersion;

use crate::cluster_map::{BucketShape, ClusterMap, NodeAddress};
use crate::config::{BucketSpec, ConnectionLimits};
use crate::counters::{Totals, WorkerCounters};
use crate::dcp::Registry;
use crate::replication::Replication;
use crate::timer::{RuntimeTimer, Timer};
use crate::user::Users;

/// A bucket that the node serves.
pub struct Served {
    /// What it was asked to be.
    pub spec: BucketSpec,
    /// The bucket.
    pub bucket: Arc<Bucket>,
}

/// A node.
pub struct Node {
    env: Env,
    users: Users,
    served: RwLock<BTreeMap<String, Served>>,
    cluster_map: RwLock<Arc<ClusterMap>>,
    address: NodeAddress,
    limits: ConnectionLimits,
    workers: Vec<Arc<WorkerCounters>>,
    /// Guards changes by the cluster; what the original starts with, too.
    control_token: AtomicU64,
    started_ns: u64,
    timer: Box<dyn Timer>,
    streams: Arc<Registry>,
    replication: Replication,
}

/// What the token that guards changes by the cluster is until somebody sets it.
const FIRST_CONTROL_TOKEN: u64 = 0xdead_beef;

impl Node {
    /// A node that serves `buckets` to `users` at `address`.
    pub fn new(
        env: Env,
        users: Users,
        buckets: Vec<Served>,
        address: NodeAddress,
        version: ConfigVersion,
        limits: ConnectionLimits,
        workers: Vec<Arc<WorkerCounters>>,
    ) -> Node {
        let shapes: Vec<BucketShape> = buckets.iter().map(|served| shape_of(&served.bucket)).collect();
        Node {
            users,
            cluster_map: RwLock::new(Arc::new(ClusterMap::single_node(version, &address, &shapes))),
            served: RwLock::new(
                buckets.into_iter().map(|served| (served.spec.name.clone(), served)).collect(),
            ),
            replication: Replication::new(env.clone(), address.name()),
            address,
            limits,
            workers,
            control_token: AtomicU64::new(FIRST_CONTROL_TOKEN),
            started_ns: env.clock.monotonic_ns(),
            timer: Box::new(RuntimeTimer),
            streams: Arc::default(),
            env,
        }
    }

    /// The outside world as the node sees it.
    pub fn env(&self) -> &Env {
        &self.env
    }

    /// The node with another source of time limits.
    pub fn with_timer(self, timer: Box<dyn Timer>) -> Node {
        Node { timer, ..self }
    }

    /// Where waiting handlers get their time limits from.
    pub fn timer(&self) -> &dyn Timer {
        &*self.timer
    }

    /// The connections that stream changes.
    pub fn streams(&self) -> &Arc<Registry> {
        &self.streams
    }

    /// What of its buckets follows other nodes.
    pub fn replication(&self) -> &Replication {
        &self.replication
    }

    /// The users.
    pub fn users(&self) -> &Users {
        &self.users
    }

    /// A bucket.
    pub fn bucket(&self, name: &str) -> Option<Arc<Bucket>> {
        self.served.read().get(name).map(|served| Arc::clone(&served.bucket))
    }

    /// All buckets with what they were asked to be, by name.
    pub fn buckets(&self) -> Vec<(BucketSpec, Arc<Bucket>)> {
        self.served.read().values().map(|served| (served.spec.clone(), Arc::clone(&served.bucket))).collect()
    }

    /// The names of all buckets.
    pub fn bucket_names(&self) -> Vec<String> {
        self.served.read().keys().cloned().collect()
    }

    /// The cluster map as it is now.
    pub fn cluster_map(&self) -> Arc<ClusterMap> {
        Arc::clone(&self.cluster_map.read())
    }

    /// Where the node is reached.
    pub fn address(&self) -> &NodeAddress {
        &self.address
    }

    /// Bounds that protect the node from its clients.
    pub fn limits(&self) -> ConnectionLimits {
        self.limits
    }

    /// What all workers counted.
    pub fn totals(&self) -> Totals {
        Totals::of(self.workers.iter().map(|worker| &**worker))
    }

    /// What each worker counts.
    pub fn workers(&self) -> &[Arc<WorkerCounters>] {
        &self.workers
    }

    /// Worker threads.
    pub fn threads(&self) -> usize {
        self.workers.len()
    }

    /// Seconds since the node started.
    pub fn uptime_s(&self) -> u64 {
        self.env.clock.monotonic_ns().saturating_sub(self.started_ns) / 1_000_000_000
    }

    /// The token that guards changes by the cluster.
    pub fn control_token(&self) -> u64 {
        self.control_token.load(Ordering::Acquire)
    }

    /// Replaces the token, if it is `old` or `old` is not given; else returns what it is.
    pub fn set_control_token(&self, old: Option<u64>, new: u64) -> Result<(), u64> {
        match old {
            None => self.control_token.store(new, Ordering::Release),
            Some(old) => {
                self.control_token.compare_exchange(old, new, Ordering::AcqRel, Ordering::Acquire)?;
            }
        }
        Ok(())
    }
}

fn shape_of(bucket: &Bucket) -> BucketShape {
    BucketShape {
        name: bucket.name().to_owned(),
        uuid: bucket.uuid().to_owned(),
        kind: bucket.config().kind,
        vbuckets: bucket.vbuckets(),
    }
}
