//! The manifest of a bucket in the cluster's document.

use base::{CollectionId, ScopeId};
use engine::NextIds;
use vbucket::Manifest;

use crate::management::BucketError;

/// The manifest of the cluster's document, and ids that nobody has had.
pub(super) fn manifest_of(bucket: &::cluster::Bucket) -> Result<(Manifest, NextIds), BucketError> {
    let manifest = match bucket.manifest.get("scopes") {
        // What begins with nothing but a number is the manifest that every bucket begins with.
        None => Manifest::default(),
        Some(_) => Manifest::from_json(&bucket.manifest)
            .map_err(|error| BucketError::Elsewhere(error.to_string()))?,
    };
    let first = NextIds::default();
    let ids = NextIds {
        scope: first.scope.max(ScopeId(bucket.next_ids.scope)),
        collection: first.collection.max(CollectionId(bucket.next_ids.collection)),
    };
    let ids = ids.above(&manifest);
    Ok((manifest, ids))
}
