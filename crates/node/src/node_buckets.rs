//! Buckets that come, change and go while the node runs.

use std::sync::Arc;

use base::planted::{self, Bug};
use engine::settings::{self, Changed, Key};
use engine::{Bucket, Failure};
use vbucket::Manifest;

use crate::cluster::serving::is_a_clusters;
use crate::cluster::still_joining::StillJoining;
use crate::config::BucketSpec;
use crate::management::{
    BucketChange, BucketError, Management, ManifestChange, ManifestError, leaves_room, require_durability,
};
use crate::naming;
use crate::node::Node;
use crate::served::Served;

impl Management for Node {
    fn create(&self, spec: BucketSpec) -> Result<(), BucketError> {
        self.create_bucket(spec)
    }

    fn check_create(&self, spec: &BucketSpec) -> Result<(), BucketError> {
        let _changing = self.changing.begin()?;
        let host = self.host().ok_or(BucketError::Fixed)?;
        host.may_make(spec, self.served(), self.env())
    }

    fn check_change(&self, name: &str, change: &BucketChange) -> Result<(), BucketError> {
        let _changing = self.changing.begin()?;
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
    /// Who decides which buckets there are.
    pub fn management(self: &Arc<Node>) -> Arc<dyn Management> {
        match self.management.read().clone() {
            Some(other) => other,
            None if is_a_clusters(self) && !planted::is(Bug::JoiningNodeDecides) => Arc::new(StillJoining),
            None => Arc::clone(self) as Arc<dyn Management>,
        }
    }

    /// Makes a bucket and serves it; it is there after a restart, too. In a cluster nobody is told where it is before
    /// the cluster's map says so.
    ///
    /// Blocks while the disk works.
    pub fn create_bucket(&self, spec: BucketSpec) -> Result<(), BucketError> {
        let _changing = self.changing.begin()?;
        let host = self.host().ok_or(BucketError::Fixed)?;
        host.may_make(&spec, self.served(), self.env())?;
        let served = host.make(&spec, self.env())?;
        self.served().serve(served);
        tracing::info!(event = "bucket_created", bucket = spec.name, "the bucket was made");
        self.redraw_map()
    }

    /// Changes a bucket: all that was asked, or nothing.
    ///
    /// Blocks while the disk works.
    pub fn change_bucket(&self, name: &str, change: BucketChange) -> Result<(), BucketError> {
        let _changing = self.changing.begin()?;
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
    /// Blocks while the disk works; meanwhile operations wait. It is no transaction: if the node stops meanwhile, some
    /// vBuckets are empty and the others have all of their documents.
    pub fn flush_bucket(&self, name: &str) -> Result<(), BucketError> {
        let _changing = self.changing.begin()?;
        let (spec, bucket) = self.served().find(name)?;
        if !spec.flush_enabled {
            return Err(BucketError::NotFlushable);
        }
        tracing::info!(event = "bucket_flushed", bucket = name, "all documents of the bucket are removed");
        let removed = bucket.roles().remove_documents_while(|| !self.changing.is_stopping());
        removed.map_err(|failure| match failure {
            Failure::GivenUp { .. } => BucketError::NotNow(format!("{failure}; the node stops")),
            failure => failure.into(),
        })
    }

    /// Deletes a bucket with its documents: connections that have selected it are closed, its threads end, its folder
    /// goes. One that the configuration names is made anew, empty, at the next start.
    ///
    /// Blocks while the disk works, and until those who look at it have ended.
    pub fn delete_bucket(&self, name: &str) -> Result<(), BucketError> {
        let _changing = self.changing.begin()?;
        let host = self.host().ok_or(BucketError::Fixed)?;
        if self.served().why_down(name).is_some() {
            host.begin_removal(name, self.env())?;
            self.served().forget_down(name);
            host.remove_closed(name, self.env())?;
            tracing::info!(
                event = "bucket_deleted",
                bucket = name,
                "the bucket, which was down, was deleted"
            );
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
            tracing::info!(event = "bucket_deleted", bucket = name, "the bucket was deleted");
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
    let Some(_changing) = node.changing.try_begin() else {
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
