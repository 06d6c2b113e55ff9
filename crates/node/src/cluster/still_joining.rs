//! What a node answers while it has not begun to join its cluster.

use std::sync::Arc;

use engine::Bucket;
use vbucket::Manifest;

use crate::config::BucketSpec;
use crate::management::{BucketChange, BucketError, Management, ManifestChange, ManifestError};

/// What is told while the node has not begun to join.
pub(super) const STILL_JOINING: &str = "this node has not begun to join its cluster yet, or is stopping; nothing was done: ask again in a moment";

/// Stands in for `ClusterBuckets` until the node has begun to join its cluster: refuses everything, as what a node does
/// of its own then is undone by its cluster, or never known to it.
pub(crate) struct StillJoining;

fn still_joining() -> BucketError {
    BucketError::NotNow(STILL_JOINING.to_owned())
}

impl Management for StillJoining {
    fn create(&self, _: BucketSpec) -> Result<(), BucketError> {
        Err(still_joining())
    }

    fn check_create(&self, _: &BucketSpec) -> Result<(), BucketError> {
        Err(still_joining())
    }

    fn check_change(&self, _: &str, _: &BucketChange) -> Result<(), BucketError> {
        Err(still_joining())
    }

    fn change(&self, _: &str, _: BucketChange) -> Result<(), BucketError> {
        Err(still_joining())
    }

    fn flush(&self, _: &str) -> Result<(), BucketError> {
        Err(still_joining())
    }

    fn delete(&self, _: &str) -> Result<(), BucketError> {
        Err(still_joining())
    }

    fn change_manifest(&self, _: &Bucket, _: &ManifestChange) -> Result<Arc<Manifest>, ManifestError> {
        Err(still_joining().into())
    }
}
