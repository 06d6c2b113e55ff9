//! What is asked of whoever decides which buckets there are, and why it is refused.

use std::path::PathBuf;
use std::sync::Arc;

use base::DurabilityLevel;
use engine::settings::{self, Key};
use engine::{Bucket, ManifestRefusal, NextIds, SettingError};
use vbucket::Manifest;

use crate::config::{BucketSpec, Hints};
use crate::host_failure::{HostFailure, MOST_BUCKETS};
use crate::naming;

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
    /// The settings of a bucket that names and values change, and nothing else of it. The least durability has a place of
    /// its own, so that it is kept once.
    ///
    /// # Errors
    ///
    /// If there is no setting of a name.
    pub fn of_settings(pairs: &[(&str, &str)]) -> Result<BucketChange, SettingError> {
        let mut change = BucketChange::default();
        for (name, value) in pairs {
            let setting = settings::find(name)?;
            match naming::durability_from(value).filter(|_| setting.key == Key::DurabilityMinLevel) {
                Some(level) => change.durability_min = Some(level),
                None => change.settings.push((setting.name, (*value).to_owned())),
            }
        }
        Ok(change)
    }

    /// The settings as they are set.
    pub(crate) fn pairs(&self) -> Vec<(&str, &str)> {
        self.settings.iter().map(|(name, value)| (*name, value.as_str())).collect()
    }

    /// What a bucket is after this change: all of it, or why nothing of it.
    pub(crate) fn of(&self, old: BucketSpec) -> Result<BucketSpec, BucketError> {
        old.settings.check_fixed(&self.pairs()).map_err(BucketError::Settings)?;
        old.settings.set_all(old.kind, &self.pairs()).map_err(BucketError::Settings)?;
        let history = old.settings.check_history(old.backend);
        history.map_err(|error| BucketError::Settings(vec![error]))?;
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

/// Has a bucket make every change at least so durable.
pub(crate) fn require_durability(bucket: &Bucket, spec: &BucketSpec) -> Result<(), BucketError> {
    let level = naming::durability(spec.durability_min);
    let changed = bucket.set_params(&[(naming::name_of(Key::DurabilityMinLevel), level)]);
    changed.map(drop).map_err(BucketError::Settings)
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
