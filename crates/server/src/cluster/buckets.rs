//! Buckets of a cluster: whoever asks one node asks all of them.

use std::sync::{Arc, Weak};
use std::time::Duration;

use ::cluster::{Command, Refused};
use serde_json::json;
use vbucket::Manifest;

use super::{Cluster, ClusterError};
use crate::bucket_list;
use crate::config::BucketSpec;
use crate::node_buckets::{BucketChange, BucketError, Management};

/// How long whoever makes or deletes a bucket waits until this node has done so.
const DONE_WITHIN: Duration = Duration::from_secs(30);

/// Manages buckets through the cluster's document.
pub(super) struct ClusterBuckets(pub(super) Weak<Cluster>);

impl ClusterBuckets {
    fn cluster(&self) -> Result<Arc<Cluster>, BucketError> {
        self.0.upgrade().ok_or_else(|| BucketError::Elsewhere("the node has left its cluster".to_owned()))
    }

    fn ask(&self, command: &Command) -> Result<(), BucketError> {
        let cluster = self.cluster()?;
        let revision = cluster.ask(command).map_err(told)?.state.revision;
        if cluster.wait_until(DONE_WITHIN, |_, applied| applied >= revision) {
            return Ok(());
        }
        Err(BucketError::Elsewhere("this node has not done yet what the cluster decided".to_owned()))
    }
}

fn told(error: ClusterError) -> BucketError {
    match error {
        ClusterError::Refused(Refused::BucketExists) => BucketError::Exists,
        ClusterError::Refused(Refused::NoSuchBucket) => BucketError::Unknown,
        other => BucketError::Elsewhere(other.to_string()),
    }
}

impl Management for ClusterBuckets {
    fn create(&self, spec: BucketSpec) -> Result<(), BucketError> {
        let cluster = self.cluster()?;
        let random = &cluster.node.env().random;
        let vbuckets =
            cluster.node.host().map_or(base::limits::DEFAULT_VBUCKETS, |host| host.config().vbuckets);
        self.ask(&Command::CreateBucket {
            name: spec.name.clone(),
            uuid: format!("{:016x}{:016x}", random.next_u64(), random.next_u64()),
            settings: bucket_list::to_json(&spec),
            replicas: spec.replicas,
            vbuckets,
            manifest: json!({ "uid": "0" }),
        })
    }

    fn change(&self, name: &str, change: BucketChange) -> Result<(), BucketError> {
        let cluster = self.cluster()?;
        let view = cluster.view().ok_or(BucketError::Unknown)?;
        let bucket = view.state.buckets.get(name).ok_or(BucketError::Unknown)?;
        let unknown = || BucketError::Elsewhere("this version does not know what the bucket is".to_owned());
        let old = bucket_list::from_json(&bucket.settings).ok_or_else(unknown)?;
        let pairs: Vec<(&str, &str)> =
            change.settings.iter().map(|(name, value)| (*name, value.as_str())).collect();
        old.settings.set_all(old.kind, &pairs).map_err(BucketError::Settings)?;
        let spec = BucketSpec {
            quota_bytes: old.settings.get(engine::settings::Key::MaxSize),
            replicas: change.replicas.unwrap_or(old.replicas),
            flush_enabled: change.flush_enabled.unwrap_or(old.flush_enabled),
            durability_min: change.durability_min.unwrap_or(old.durability_min),
            ..old
        };
        self.ask(&Command::ChangeBucket {
            name: name.to_owned(),
            settings: Some(bucket_list::to_json(&spec)),
            replicas: change.replicas,
            manifest: None,
        })
    }

    fn flush(&self, _: &str) -> Result<(), BucketError> {
        Err(BucketError::Elsewhere(
            "a bucket of a cluster cannot be flushed; delete it, and make it anew".to_owned(),
        ))
    }

    fn delete(&self, name: &str) -> Result<(), BucketError> {
        self.ask(&Command::DropBucket { name: name.to_owned() })
    }

    fn tell_manifest(&self, name: &str, manifest: &Manifest) -> Result<(), BucketError> {
        self.ask(&Command::ChangeBucket {
            name: name.to_owned(),
            settings: None,
            replicas: None,
            manifest: Some(manifest.to_json()),
        })
    }
}
