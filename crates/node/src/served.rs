//! The buckets of a node: those that it serves, and those that it has and cannot serve.

use std::collections::BTreeMap;
use std::sync::Arc;

use engine::Bucket;
use parking_lot::RwLock;

use crate::cluster_map::BucketShape;
use crate::config::BucketSpec;
use crate::down::{Down, DownBuckets};
use crate::management::BucketError;

/// A bucket that the node serves.
pub struct Served {
    /// What it was asked to be.
    pub spec: BucketSpec,
    /// The bucket.
    pub bucket: Arc<Bucket>,
}

impl Served {
    fn shape(&self) -> BucketShape {
        let bucket = &self.bucket;
        BucketShape {
            name: bucket.name().to_owned(),
            uuid: bucket.uuid().to_owned(),
            kind: bucket.config().kind,
            backend: bucket.backend(),
            vbuckets: bucket.vbuckets(),
            manifest_uid: bucket.collections().manifest().uid(),
            replicas: self.spec.replicas,
        }
    }
}

/// Which buckets there are. What is needed of one is cloned out of here.
#[derive(Default)]
pub struct ServedBuckets {
    served: RwLock<BTreeMap<String, Served>>,
    /// Buckets that the node has and cannot serve.
    down: RwLock<DownBuckets>,
}

impl ServedBuckets {
    /// These buckets, and none that is down.
    pub(crate) fn new(served: Vec<Served>) -> ServedBuckets {
        let served = served.into_iter().map(|served| (served.spec.name.clone(), served)).collect();
        ServedBuckets { served: RwLock::new(served), down: RwLock::default() }
    }

    /// From now on these buckets are down, and no others.
    pub(crate) fn set_down(&self, down: DownBuckets) {
        *self.down.write() = down;
    }

    /// A bucket.
    pub(crate) fn get(&self, name: &str) -> Option<Arc<Bucket>> {
        self.served.read().get(name).map(|served| Arc::clone(&served.bucket))
    }

    /// Whether this very bucket is served: not deleted, and no other one of its name in its place.
    pub(crate) fn serves(&self, bucket: &Arc<Bucket>) -> bool {
        self.get(bucket.name()).is_some_and(|there| Arc::ptr_eq(&there, bucket))
    }

    /// All buckets with what they were asked to be, by name.
    pub(crate) fn all(&self) -> Vec<(BucketSpec, Arc<Bucket>)> {
        self.served.read().values().map(|served| (served.spec.clone(), Arc::clone(&served.bucket))).collect()
    }

    /// The names of all buckets.
    pub(crate) fn names(&self) -> Vec<String> {
        self.served.read().keys().cloned().collect()
    }

    /// A bucket with what it was asked to be, or why there is none.
    pub(crate) fn find(&self, name: &str) -> Result<(BucketSpec, Arc<Bucket>), BucketError> {
        let found = self.served.read().get(name).map(|of| (of.spec.clone(), Arc::clone(&of.bucket)));
        found.ok_or_else(|| self.why_down(name).map_or(BucketError::Unknown, BucketError::Down))
    }

    /// Adds a bucket, or puts another description of one in its place.
    pub fn serve(&self, served: Served) {
        self.served.write().insert(served.spec.name.clone(), served);
    }

    /// Lets no client find a bucket any more. Connections that have it are not told.
    pub fn forget(&self, name: &str) {
        let gone = self.served.write().remove(name);
        drop(gone);
    }

    /// What the cluster map of a node alone tells of the buckets.
    pub(crate) fn shapes(&self) -> Vec<BucketShape> {
        self.served.read().values().map(Served::shape).collect()
    }

    /// Buckets that the node has and cannot serve.
    pub fn down(&self) -> DownBuckets {
        self.down.read().clone()
    }

    /// Why a bucket that the node has is not served; `None` if it is, or there is none of this name.
    pub fn why_down(&self, name: &str) -> Option<String> {
        self.down.read().get(name).map(|down| down.reason.clone())
    }

    /// Whether a bucket is down because what is on disk of it cannot be believed.
    pub(crate) fn is_damaged(&self, name: &str) -> bool {
        self.down.read().get(name).is_some_and(|down| down.is_damage)
    }

    /// Notes that a bucket which should be here is down.
    pub(crate) fn put_down(&self, name: &str, down: Down) {
        self.down.write().insert(name.to_owned(), down);
    }

    /// A bucket that was down is deleted.
    pub(crate) fn forget_down(&self, name: &str) {
        self.down.write().remove(name);
    }

    /// The quota of each bucket, in bytes, of those that are down, too.
    pub(crate) fn quotas(&self) -> Vec<(String, u64)> {
        let quota = |(spec, bucket): (BucketSpec, Arc<Bucket>)| (spec.name, bucket.memory().quota_bytes());
        let down = self.down().into_iter().map(|(name, down)| (name, down.quota_bytes));
        self.all().into_iter().map(quota).chain(down).collect()
    }

    /// The quotas of all buckets that are served, in bytes.
    pub fn quota_bytes(&self) -> u64 {
        self.served.read().values().map(|served| served.bucket.memory().quota_bytes()).sum()
    }
}
