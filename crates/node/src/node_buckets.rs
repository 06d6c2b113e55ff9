//! Buckets that come, change and go while the node runs.

use std::path::PathBuf;
use std::sync::Arc;

use base::DurabilityLevel;
use engine::settings::{self, Changed, Key};
use engine::{Bucket, ManifestRefusal, NextIds, SettingError};
use vbucket::Manifest;

use crate::cluster::serving::is_a_clusters;
use crate::config::{BucketSpec, Hints};
use crate::hosting::{HostFailure, MOST_BUCKETS};
use crate::naming;
use crate::node::Node;
use crate::served::Served;

/// Why a bucket is not made, changed, emptied or deleted.
#[derive(Debug, thiserror::Error)]
pub enum BucketError {
    /// There is one of this name.
    #[error("Bucket with given name already exists")]
    Exists,
    /// There is none of this name.
    #[error("Requested resource not found.")]
    Unknown,
    /// It was made without permission to remove all documents at once.
    #[error("Flush is disabled for the bucket")]
    NotFlushable,
    /// The node has it and cannot serve it.
    #[error("the bucket is down: {0}")]
    Down(String),
    /// With it all quotas would come to more than the node may use.
    #[error("RAM quota specified is too large to be provisioned into this cluster. {0}")]
    Quota(String),
    /// There are as many as there may be.
    #[error("Cannot create more than {MOST_BUCKETS} buckets")]
    TooMany,
    /// A folder stands in its place that is no bucket of this node.
    #[error("{} is in the way: it holds files, and no bucket of this node; move it away", .0.display())]
    InTheWay(PathBuf),
    /// Why it is not moved to another store.
    #[error("{0}")]
    NotMoved(String),
    /// Settings that there are not, or that do not fit.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    Settings(Vec<SettingError>),
    /// This node was put together without anything that could run another bucket.
    #[error("this node cannot make or remove buckets")]
    Fixed,
    /// The disk or the system failed.
    #[error(transparent)]
    Failed(#[from] HostFailure),
    /// The files of a bucket failed.
    #[error(transparent)]
    Engine(#[from] engine::Failure),
    /// It was done in part, and more than one part of it failed.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    Several(Vec<BucketError>),
    /// Whoever manages the buckets of several nodes cannot do it just now; asking again later helps.
    #[error("{0}")]
    NotNow(String),
    /// Something else, told by whoever manages the buckets of several nodes.
    #[error("{0}")]
    Elsewhere(String),
}

/// What shall be different about a bucket; what is not said stays as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BucketChange {
    /// Settings by name, of which all are taken or none.
    pub settings: Vec<(&'static str, String)>,
    /// Copies beside the active one.
    pub replicas: Option<u8>,
    /// Whether all documents may be removed at once.
    pub flush_enabled: Option<bool>,
    /// The least durability of writes.
    pub durability_min: Option<Option<DurabilityLevel>>,
    /// What is set for others.
    pub hints: Hints,
}

impl BucketChange {
    /// The settings as they are set.
    pub(crate) fn pairs(&self) -> Vec<(&str, &str)> {
        self.settings.iter().map(|(name, value)| (*name, value.as_str())).collect()
    }

    /// What a bucket is after this change: all of it, or why nothing of it.
    pub(crate) fn of(&self, old: BucketSpec) -> Result<BucketSpec, BucketError> {
        old.settings.set_all(old.kind, &self.pairs()).map_err(BucketError::Settings)?;
        Ok(BucketSpec {
            quota_bytes: old.settings.get(Key::MaxSize),
            replicas: self.replicas.unwrap_or(old.replicas),
            flush_enabled: self.flush_enabled.unwrap_or(old.flush_enabled),
            durability_min: self.durability_min.unwrap_or(old.durability_min),
            hints: self.hints.over(old.hints),
            ..old
        })
    }
}

/// Whoever decides which buckets there are: a node alone itself, in a cluster its orchestrator.
///
/// All of these block until it is done; they are called from threads that may.
pub trait Management: Send + Sync {
    /// Makes a bucket.
    fn create(&self, spec: BucketSpec) -> Result<(), BucketError>;
    /// Why a bucket would not be made now. Changes nothing.
    fn check_create(&self, spec: &BucketSpec) -> Result<(), BucketError>;
    /// Why a bucket would not be changed now. Changes nothing.
    fn check_change(&self, name: &str, change: &BucketChange) -> Result<(), BucketError>;
    /// Changes a bucket.
    fn change(&self, name: &str, change: BucketChange) -> Result<(), BucketError>;
    /// Removes all documents of a bucket that allows it.
    fn flush(&self, name: &str) -> Result<(), BucketError>;
    /// Deletes a bucket with its documents.
    fn delete(&self, name: &str) -> Result<(), BucketError>;
    /// Changes the manifest of a bucket: `change` sees the present one and ids that were never used, and makes the next
    /// one, or says why not; it may be asked several times. Whoever has the bucket has the new one when this returns.
    fn change_manifest(
        &self,
        bucket: &Bucket,
        change: &ManifestChange,
    ) -> Result<Arc<Manifest>, ManifestError>;
}

/// Makes the next manifest of a bucket.
pub type ManifestChange = dyn Fn(&Manifest, NextIds) -> Result<Manifest, ManifestError> + Send;

/// Why a manifest stays as it is.
#[derive(Debug, thiserror::Error)]
pub enum ManifestError {
    /// What was asked makes no sense, or there is something of that name already.
    #[error("{0}")]
    Invalid(String),
    /// There is no such scope or collection.
    #[error("{0}")]
    NotFound(String),
    /// The bucket refused the manifest, or could not save it.
    #[error(transparent)]
    Manifest(#[from] ManifestRefusal),
    /// The bucket is not there, or whoever manages it did not do it.
    #[error(transparent)]
    Bucket(#[from] BucketError),
}

impl Management for Node {
    fn create(&self, spec: BucketSpec) -> Result<(), BucketError> {
        self.create_bucket(spec)
    }

    fn check_create(&self, spec: &BucketSpec) -> Result<(), BucketError> {
        let _changing = self.changing.lock();
        let host = self.host().ok_or(BucketError::Fixed)?;
        host.may_make(spec, self.served(), self.env())
    }

    fn check_change(&self, name: &str, change: &BucketChange) -> Result<(), BucketError> {
        let _changing = self.changing.lock();
        let (old, bucket) = self.served().find(name)?;
        self.may_change(&old, &bucket, change).map(drop)
    }

    fn change(&self, name: &str, change: BucketChange) -> Result<(), BucketError> {
        self.change_bucket(name, change)
    }

    fn flush(&self, name: &str) -> Result<(), BucketError> {
        self.flush_bucket(name)
    }

    fn delete(&self, name: &str) -> Result<(), BucketError> {
        self.delete_bucket(name)
    }

    fn change_manifest(
        &self,
        bucket: &Bucket,
        change: &ManifestChange,
    ) -> Result<Arc<Manifest>, ManifestError> {
        let collections = bucket.collections();
        let manifest = collections.change_manifest(|present, ids| {
            let new = change(present, ids)?;
            collections.check_quota(present, &new)?;
            Ok::<_, ManifestError>(new)
        })?;
        self.map().show_manifests();
        Ok(manifest)
    }
}

impl Node {
    /// Makes a bucket and serves it; it is there after a restart, too. In a cluster nobody is told where it is before
    /// the cluster's map says so.
    ///
    /// Blocks while the disk works.
    pub fn create_bucket(&self, spec: BucketSpec) -> Result<(), BucketError> {
        let _changing = self.changing.lock();
        let host = self.host().ok_or(BucketError::Fixed)?;
        host.may_make(&spec, self.served(), self.env())?;
        let served = host.make(&spec, self.env())?;
        self.served().serve(served);
        tracing::info!(bucket = spec.name, "the bucket was made");
        self.redraw_map()
    }

    /// Changes a bucket: all that was asked, or nothing.
    ///
    /// Blocks while the disk works.
    pub fn change_bucket(&self, name: &str, change: BucketChange) -> Result<(), BucketError> {
        let _changing = self.changing.lock();
        let (old, bucket) = self.served().find(name)?;
        let spec = self.may_change(&old, &bucket, &change)?;
        let pairs = change.pairs();
        bucket.set_params(&pairs).map_err(BucketError::Settings)?;
        if change.durability_min.is_some() {
            require_durability(&bucket, &spec)?;
        }
        if let Some(host) = self.host() {
            host.note(&spec, self.env())?;
        }
        bucket.durability().set_replicas(spec.replicas);
        let redraw = spec.replicas != old.replicas;
        self.served().serve(Served { spec, bucket });
        if redraw { self.redraw_map() } else { Ok(()) }
    }

    /// Removes all documents of a bucket that allows it; each of its vBuckets begins a new history.
    ///
    /// Blocks while the disk works; meanwhile operations wait.
    pub fn flush_bucket(&self, name: &str) -> Result<(), BucketError> {
        let _changing = self.changing.lock();
        let (spec, bucket) = self.served().find(name)?;
        if !spec.flush_enabled {
            return Err(BucketError::NotFlushable);
        }
        tracing::info!(bucket = name, "all documents of the bucket are removed");
        Ok(bucket.roles().remove_all_documents()?)
    }

    /// Deletes a bucket with its documents: connections that have selected it are closed, its threads end, its folder
    /// goes. One that the configuration names is made anew, empty, at the next start.
    ///
    /// Blocks while the disk works, and until those who look at it have ended.
    pub fn delete_bucket(&self, name: &str) -> Result<(), BucketError> {
        let _changing = self.changing.lock();
        let host = self.host().ok_or(BucketError::Fixed)?;
        if self.served().why_down(name).is_some() {
            host.begin_removal(name, self.env())?;
            self.served().forget_down(name);
            host.remove_closed(name, self.env())?;
            tracing::info!(bucket = name, "the bucket, which was down, was deleted");
            return Ok(());
        }
        let (_, bucket) = self.served().find(name)?;
        host.begin_removal(name, self.env())?;
        self.served().forget(name);
        self.announcer().tell();
        self.replication().forget(name);
        let redrawn = self.redraw_map();
        let removed = host.remove(bucket, self.env()).map_err(BucketError::Failed);
        if removed.is_ok() {
            tracing::info!(bucket = name, "the bucket was deleted");
        }
        both(removed, redrawn)
    }

    /// Makes a new map of a node alone, whose revision is higher after a restart, too.
    pub(crate) fn redraw_map(&self) -> Result<(), BucketError> {
        self.map().redraw(|revision| match self.host() {
            Some(host) => Ok(host.next_revision(self.env())?),
            None => Ok(revision + 1),
        })
    }

    /// What a bucket would be after a change, or why it would not be changed.
    fn may_change(
        &self,
        old: &BucketSpec,
        bucket: &Bucket,
        change: &BucketChange,
    ) -> Result<BucketSpec, BucketError> {
        let spec = change.of(old.clone())?;
        let max_size = naming::name_of(Key::MaxSize);
        let sets_quota = change.settings.iter().any(|(name, _)| *name == max_size);
        // Set Param may have lowered the quota since it was noted.
        if let Some(host) = self.host()
            && sets_quota
            && spec.quota_bytes > bucket.memory().quota_bytes()
        {
            host.check_quota(&self.served().quotas(), &spec.name, spec.quota_bytes)?;
        }
        if sets_quota {
            leaves_room(bucket, spec.quota_bytes)?;
        }
        Ok(spec)
    }
}

/// Refuses a lower quota in which the bucket's collections would leave no room for documents.
pub(crate) fn leaves_room(bucket: &Bucket, quota_bytes: u64) -> Result<(), BucketError> {
    if quota_bytes >= bucket.memory().quota_bytes() {
        return Ok(());
    }
    bucket
        .collections()
        .check_other_quota(quota_bytes)
        .map_err(|refusal| BucketError::Quota(refusal.to_string()))
}

/// Changes settings of a bucket until the node stops, all of them or none. A quota obeys the rule of
/// [`Node::change_bucket`]; of a bucket of a cluster it is the cluster's to change.
///
/// Never blocks.
pub fn set_params(node: &Node, bucket: &Bucket, pairs: &[(&str, &str)]) -> Result<Vec<Changed>, BucketError> {
    let Some(quota_bytes) = other_quota(bucket, pairs) else {
        return bucket.set_params(pairs).map_err(BucketError::Settings);
    };
    if is_a_clusters(node) {
        let name = bucket.name();
        return Err(BucketError::Elsewhere(format!(
            "all nodes of a cluster give a bucket the same quota: change it for all of them, with ramQuota and POST \
             /pools/default/buckets/{name}"
        )));
    }
    // Who holds it may wait for this connection to let go of its bucket.
    let Some(_changing) = node.changing.try_lock() else {
        let what = "another bucket is being made, changed or deleted just now: try again";
        return Err(BucketError::NotNow(what.to_owned()));
    };
    if let Some(host) = node.host()
        && quota_bytes > bucket.memory().quota_bytes()
    {
        host.check_quota(&node.served().quotas(), bucket.name(), quota_bytes)?;
    }
    leaves_room(bucket, quota_bytes)?;
    bucket.set_params(pairs).map_err(BucketError::Settings)
}

/// The quota that these settings give a bucket, in bytes; `None` if it is the one that the bucket has, or no quota.
fn other_quota(bucket: &Bucket, pairs: &[(&str, &str)]) -> Option<u64> {
    let quota = |(name, value): &(&str, &str)| {
        let setting = settings::find(name).ok().filter(|setting| setting.key == Key::MaxSize)?;
        setting.parse(value).ok()
    };
    // The last one of several counts.
    let quota_bytes = pairs.iter().filter_map(quota).next_back()?;
    (quota_bytes != bucket.memory().quota_bytes()).then_some(quota_bytes)
}

/// What failed of two things that were both done.
fn both(first: Result<(), BucketError>, second: Result<(), BucketError>) -> Result<(), BucketError> {
    match (first, second) {
        (Err(first), Err(second)) => Err(BucketError::Several(vec![first, second])),
        (first, second) => first.and(second),
    }
}

/// Has a bucket make every change at least so durable.
pub(crate) fn require_durability(bucket: &Bucket, spec: &BucketSpec) -> Result<(), BucketError> {
    let level = naming::durability(spec.durability_min);
    let changed = bucket.set_params(&[(naming::name_of(Key::DurabilityMinLevel), level)]);
    changed.map(drop).map_err(BucketError::Settings)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_fails_second_is_told_beside_the_first() {
        assert!(both(Ok(()), Ok(())).is_ok());
        let told = |first, second| both(first, second).expect_err("something failed").to_string();
        let (fixed, unknown) = (|| Err(BucketError::Fixed), || Err(BucketError::Unknown));
        assert_eq!(told(fixed(), Ok(())), BucketError::Fixed.to_string());
        assert_eq!(told(Ok(()), unknown()), BucketError::Unknown.to_string());
        assert_eq!(told(fixed(), unknown()), format!("{}; {}", BucketError::Fixed, BucketError::Unknown));
    }
}
