//! Buckets of a cluster: whoever asks one node asks all of them.

use std::sync::{Arc, Weak};
use std::time::Duration;

use ::cluster::state::Status;
use ::cluster::{Command, NodeId, Refused, View};
use engine::settings::Key;
use engine::{Bucket, ManifestRefusal, NextIds};
use parking_lot::Mutex;
use serde_json::json;
use vbucket::Manifest;

use super::manifest::manifest_of;
use super::{Cluster, ClusterError};
use crate::bucket_list;
use crate::config::BucketSpec;
use crate::management::{BucketChange, BucketError, Management, ManifestChange, ManifestError, leaves_room};

/// How long whoever makes or deletes a bucket waits until this node has done so.
const DONE_WITHIN: Duration = Duration::from_secs(30);
/// How long until all other nodes have done so, too: one that is about to be missed must not hold up what others ask.
const ALL_DONE_WITHIN: Duration = Duration::from_secs(5);
/// How often it is looked at whether a node that is missed may still serve what is gone.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// Waits until no node serves any more what a revision has removed from a bucket: each has done it, has said that it stops,
/// or has been missed by the store for so long that nothing that others promised to it holds. False if that takes too long, or cannot be known:
/// nodes that do not reach the store, if they are many, promise one another.
fn wait_until_none_serves(cluster: &Cluster, bucket: &str, revision: u64) -> bool {
    let clock = &cluster.node.env().clock;
    let end = clock.monotonic() + DONE_WITHIN;
    loop {
        let gone = cluster.lease.authority().gone(clock.monotonic_ns());
        let is_over = |view: &View, _| {
            let has_not = |id: &&NodeId| view.bucket_since(**id, bucket, revision).is_none();
            let left: Vec<&NodeId> = view.state.nodes.keys().filter(has_not).collect();
            let may_serve = |id: &&NodeId| {
                let node = &view.state.nodes[*id];
                // One without vBuckets learns of it before it gets any.
                let may_serve = view.alive(**id).is_some() || node.status == Status::Active;
                may_serve && !view.has_ended(**id, bucket, revision) && !gone.contains(&node.uuid)
            };
            let others = view.state.nodes.len().saturating_sub(1);
            view.state.revision >= revision && left.len() <= others.div_ceil(2) && !left.iter().any(may_serve)
        };
        let left = end.saturating_sub(clock.monotonic());
        if cluster.progress.wait_until_bucket(bucket, left.min(LOOK_EVERY), is_over) {
            return true;
        }
        if left.is_zero() || cluster.ending.has_come() {
            return false;
        }
    }
}

/// What is told if it took too long.
fn may_still_be_served() -> BucketError {
    BucketError::NotNow(
        "the cluster has decided it, and a node that does not follow the cluster now may still serve what is gone; it \
         ends that by itself: `stave cluster status` names the node"
            .to_owned(),
    )
}

/// What is told of a name, or of something to be removed, if what had that name may still be served.
fn may_not_be_over() -> BucketError {
    BucketError::NotNow(
        "nothing was changed: what had that name was removed before, and a node that does not follow the cluster now may \
         still serve it; it ends that by itself: ask again (`stave cluster status` names the node)"
            .to_owned(),
    )
}

/// Asks as soon as no node serves any more what was removed before: of the removal of which `what` tells the revision. A
/// name that is given again earlier means another thing to a client of a node that has not heard of it.
fn ask_after_removal<E: From<ClusterError> + From<BucketError>>(
    cluster: &Cluster,
    bucket: &str,
    what: impl Fn(&View) -> Result<(Command, Option<u64>), E>,
) -> Result<Arc<View>, E> {
    let mut over = 0;
    loop {
        let asked = cluster.ask_for(|view| -> Result<Command, NotAsked<E>> {
            let (command, removal) = what(view).map_err(NotAsked::Never)?;
            match removal.filter(|revision| *revision > over) {
                Some(revision) => Err(NotAsked::Behind(revision)),
                None => Ok(command),
            }
        });
        match asked {
            Ok(view) => return Ok(view),
            Err(NotAsked::Behind(revision)) if wait_until_none_serves(cluster, bucket, revision) => {
                over = revision;
            }
            Err(NotAsked::Behind(_)) => return Err(may_not_be_over().into()),
            Err(NotAsked::Never(error)) => return Err(error),
        }
    }
}

/// Why the cluster is not asked now.
enum NotAsked<E> {
    /// What a revision removed may still be served.
    Behind(u64),
    Never(E),
}

impl<E: From<ClusterError>> From<ClusterError> for NotAsked<E> {
    fn from(error: ClusterError) -> NotAsked<E> {
        NotAsked::Never(error.into())
    }
}

/// The revision that deleted the last bucket of a name, if one is remembered.
fn deletion_of(view: &View, name: &str) -> Option<u64> {
    let deleted = view.state.deleted.values().filter(|deleted| deleted.name == name);
    deleted.map(|deleted| deleted.revision).max()
}

/// Waits until this node has done with a bucket what a revision asks for.
fn wait_until_done(cluster: &Cluster, bucket: &str, revision: u64) -> Result<(), BucketError> {
    if cluster.progress.wait_until_bucket(bucket, DONE_WITHIN, |_, applied| applied >= revision) {
        return Ok(());
    }
    Err(BucketError::NotNow(
        "the cluster has decided it, and this node has not done it yet; it goes on trying: its log says why"
            .to_owned(),
    ))
}

/// Manages buckets through the cluster's document.
pub(super) struct ClusterBuckets(pub(super) Weak<Cluster>);

impl ClusterBuckets {
    fn cluster(&self) -> Result<Arc<Cluster>, BucketError> {
        self.0.upgrade().ok_or_else(|| BucketError::Elsewhere("the node has left its cluster".to_owned()))
    }

    /// What the cluster would say to a command now. Nothing is written.
    fn try_out(
        &self,
        what: impl Fn(&Cluster, &View) -> Result<Command, BucketError>,
    ) -> Result<(), BucketError> {
        let cluster = self.cluster()?;
        let unknown = || BucketError::NotNow("the node does not know the cluster's state yet".to_owned());
        let view = cluster.view().ok_or_else(unknown)?;
        let command = what(&cluster, &view)?;
        let outcome = ::cluster::command::apply(&view, &command);
        outcome.map(drop).map_err(|refused| told(ClusterError::Refused(refused)))
    }

    /// Asks, and waits until this node has done so with the bucket, and for a while until all others have.
    fn ask_for(
        &self,
        bucket: &str,
        what: impl Fn(&View) -> Result<Command, Wrong>,
    ) -> Result<(), BucketError> {
        let revision = self.decide(bucket, what)?;
        // Nothing is told of those that come later: they do it before they serve.
        self.cluster()?.wait_until_all_have(bucket, revision, ALL_DONE_WITHIN);
        Ok(())
    }

    /// Asks, and waits until this node has done so with the bucket. Returns the revision that has it.
    fn decide(
        &self,
        bucket: &str,
        what: impl Fn(&View) -> Result<Command, Wrong>,
    ) -> Result<u64, BucketError> {
        let cluster = self.cluster()?;
        let revision = cluster.ask_for(what).map_err(BucketError::from)?.state.revision;
        wait_until_done(&cluster, bucket, revision)?;
        Ok(revision)
    }
}

/// Why the cluster is not asked, or does not do it.
enum Wrong {
    Cluster(ClusterError),
    Bucket(BucketError),
}

impl From<ClusterError> for Wrong {
    fn from(error: ClusterError) -> Wrong {
        Wrong::Cluster(error)
    }
}

impl From<BucketError> for Wrong {
    fn from(error: BucketError) -> Wrong {
        Wrong::Bucket(error)
    }
}

impl From<Wrong> for BucketError {
    fn from(wrong: Wrong) -> BucketError {
        match wrong {
            Wrong::Cluster(error) => told(error),
            Wrong::Bucket(error) => error,
        }
    }
}

/// The command that makes a bucket.
fn creation(cluster: &Cluster, view: &View, spec: &BucketSpec) -> Result<Command, BucketError> {
    // Names that differ in case alone are one name on some file systems and to people.
    if view.state.buckets.keys().any(|name| name.eq_ignore_ascii_case(&spec.name)) {
        return Err(BucketError::Exists);
    }
    let random = &cluster.node.env().random;
    let host = cluster.node.host();
    Ok(Command::CreateBucket {
        name: spec.name.clone(),
        uuid: format!("{:016x}{:016x}", random.next_u64(), random.next_u64()),
        settings: bucket_list::to_json(spec),
        replicas: spec.replicas,
        vbuckets: host.map_or(base::limits::DEFAULT_VBUCKETS, |host| host.config().vbuckets),
        manifest: json!({ "uid": "0" }),
    })
}

/// The command that changes a bucket.
fn alteration(
    cluster: &Cluster,
    view: &View,
    name: &str,
    change: &BucketChange,
) -> Result<Command, BucketError> {
    let before = spec_of(view, name)?;
    let spec = change.of(before.clone())?;
    let keeps = |spec: &BucketSpec| {
        [Key::HistorySeconds, Key::HistoryBytes].into_iter().any(|key| spec.settings.get(key) > 0)
    };
    if view.state.buckets.get(name).is_some_and(|bucket| bucket.store_move.is_some())
        && keeps(&spec)
        && !keeps(&before)
    {
        return Err(BucketError::NotNow(
            "the bucket is being moved to another store, and a history begins when that has ended: ask again then"
                .to_owned(),
        ));
    }
    if let Some(bucket) = cluster.node.bucket(name) {
        leaves_room(&bucket, spec.quota_bytes)?;
    }
    Ok(Command::ChangeBucket {
        name: name.to_owned(),
        settings: Some(bucket_list::to_json(&spec)),
        replicas: change.replicas,
    })
}

/// What a bucket is asked to be.
fn spec_of(view: &View, name: &str) -> Result<BucketSpec, BucketError> {
    let bucket = view.state.buckets.get(name).ok_or(BucketError::Unknown)?;
    let unknown = || BucketError::Elsewhere("this version does not know what the bucket is".to_owned());
    bucket_list::from_json(&bucket.settings).ok_or_else(unknown)
}

fn told(error: ClusterError) -> BucketError {
    match error {
        ClusterError::Refused(Refused::BucketExists) => BucketError::Exists,
        ClusterError::Refused(refused @ Refused::Quota { .. }) => BucketError::Quota(refused.to_string()),
        ClusterError::Refused(Refused::NoSuchBucket) => BucketError::Unknown,
        // Only a flush needs all nodes.
        ClusterError::Refused(Refused::NodeDown(id)) => BucketError::NotNow(format!(
            "{id} is down, and would bring documents back that are removed now: start it, or fail it over first (stave cluster \
             failover {id})"
        )),
        passing if passing.is_passing() => BucketError::NotNow(passing.advice()),
        other => BucketError::Elsewhere(other.to_string()),
    }
}

impl Management for ClusterBuckets {
    fn create(&self, spec: BucketSpec) -> Result<(), BucketError> {
        let (cluster, name) = (self.cluster()?, spec.name.as_str());
        let asked = ask_after_removal(&cluster, name, |view| -> Result<_, Wrong> {
            Ok((creation(&cluster, view, &spec)?, deletion_of(view, name)))
        });
        let revision = asked.map_err(BucketError::from)?.state.revision;
        wait_until_done(&cluster, name, revision)?;
        cluster.wait_until_all_have(name, revision, ALL_DONE_WITHIN);
        Ok(())
    }

    fn check_create(&self, spec: &BucketSpec) -> Result<(), BucketError> {
        self.try_out(|cluster, view| creation(cluster, view, spec))
    }

    fn change(&self, name: &str, change: BucketChange) -> Result<(), BucketError> {
        let cluster = self.cluster()?;
        self.ask_for(name, |view| alteration(&cluster, view, name, &change).map_err(Wrong::Bucket))
    }

    fn check_change(&self, name: &str, change: &BucketChange) -> Result<(), BucketError> {
        self.try_out(|cluster, view| alteration(cluster, view, name, change))
    }

    fn flush(&self, name: &str) -> Result<(), BucketError> {
        self.ask_for(name, |view| {
            let spec = spec_of(view, name).map_err(Wrong::Bucket)?;
            if !spec.flush_enabled {
                return Err(Wrong::Bucket(BucketError::NotFlushable));
            }
            Ok(Command::FlushBucket { name: name.to_owned() })
        })?;
        let is_open = |view: &View, applied: u64| {
            let is_over = view.state.buckets.get(name).is_none_or(|bucket| bucket.flushing.is_none());
            // Whoever is told that it is over may ask any node.
            let revision = view.state.revision;
            let has_opened = |id: &::cluster::NodeId| {
                view.alive(*id).is_none() || view.bucket_since(*id, name, revision).is_some()
            };
            let have_all_opened = || view.state.nodes.keys().all(has_opened);
            is_over && applied >= revision && have_all_opened()
        };
        if self.cluster()?.progress.wait_until_bucket(name, DONE_WITHIN, is_open) {
            return Ok(());
        }
        Err(BucketError::NotNow(
            "not all nodes have removed the documents yet; they go on, and serve the bucket when all have"
                .to_owned(),
        ))
    }

    fn delete(&self, name: &str) -> Result<(), BucketError> {
        let cluster = self.cluster()?;
        let before = Mutex::new(None);
        let decided = self.decide(name, |view| {
            *before.lock() = deletion_of(view, name);
            Ok(Command::DropBucket { name: name.to_owned() })
        });
        match (decided, before.into_inner()) {
            // Another client may have asked for it, and has not been answered yet.
            (Err(BucketError::Unknown), Some(revision)) => {
                let is_over = wait_until_none_serves(&cluster, name, revision);
                Err(if is_over { BucketError::Unknown } else { may_not_be_over() })
            }
            (Err(error), _) => Err(error),
            (Ok(revision), _) if wait_until_none_serves(&cluster, name, revision) => Ok(()),
            (Ok(_), _) => Err(may_still_be_served()),
        }
    }

    fn change_manifest(
        &self,
        bucket: &Bucket,
        change: &ManifestChange,
    ) -> Result<Arc<Manifest>, ManifestError> {
        let (cluster, name) = (self.cluster()?, bucket.name());
        let (made, removed) = (Mutex::new(None), Mutex::new(None));
        let change = |present: &Manifest, ids: NextIds| {
            let new = change(present, ids)?;
            bucket.collections().check_quota(present, &new)?;
            Ok(new)
        };
        let asked = ask_after_removal(&cluster, name, |view| -> Result<_, ManifestWrong> {
            let next = next_manifest(&cluster, view, name, &change, &removed)?;
            *made.lock() = Some((next.manifest, next.removes));
            Ok((next.command, next.behind))
        });
        let view = match (asked, removed.into_inner()) {
            (Ok(view), _) => view,
            // What is not there: a removal of it may have been asked for, and not answered yet.
            (Err(ManifestWrong(ManifestError::NotFound(what))), Some(revision)) => {
                let is_over = wait_until_none_serves(&cluster, name, revision);
                return Err(if is_over { ManifestError::NotFound(what) } else { may_not_be_over().into() });
            }
            (Err(ManifestWrong(error)), _) => return Err(error),
        };
        let revision = view.state.revision;
        if !cluster.progress.wait_until_bucket(name, DONE_WITHIN, |_, applied| applied >= revision) {
            let what = "the cluster has decided it, and this node has not taken the manifest yet; it goes on trying: \
                        its log says why";
            return Err(BucketError::NotNow(what.to_owned()).into());
        }
        let (manifest, removes) = made.into_inner().unwrap_or_default();
        if !removes {
            cluster.wait_until_all_have(name, revision, ALL_DONE_WITHIN);
        } else if !wait_until_none_serves(&cluster, name, revision) {
            return Err(may_still_be_served().into());
        }
        Ok(Arc::new(manifest))
    }
}

/// What a change of a manifest comes to.
struct NextManifest {
    manifest: Manifest,
    command: Command,
    /// Whether it removes something, or finds it removed.
    removes: bool,
    /// The revision that removed what had a name that it gives to something new.
    behind: Option<u64>,
}

/// What a change makes of a bucket's manifest. `removed` gets the revision that removed something from it last.
fn next_manifest(
    cluster: &Cluster,
    view: &View,
    name: &str,
    change: &dyn Fn(&Manifest, NextIds) -> Result<Manifest, ManifestError>,
    removed: &Mutex<Option<u64>>,
) -> Result<NextManifest, ManifestWrong> {
    let of = view.state.buckets.get(name).ok_or(BucketError::Unknown)?;
    let (present, ids) = manifest_of(of)?;
    let mut removals = cluster.progress.removals();
    removals.note(&view.state);
    *removed.lock() = removals.newest(name);
    let manifest = change(&present, ids)?;
    let is_same = manifest == present;
    if !is_same {
        let successor = present.check_successor(&manifest).map_err(ManifestRefusal::Successor);
        successor.map_err(ManifestError::Manifest)?;
    }
    let is_less = present.collections().any(|collection| manifest.collection(collection.id).is_none());
    let ids = ids.above(&manifest);
    let command = Command::ChangeManifest {
        name: name.to_owned(),
        manifest: if is_same { (*of.manifest).clone() } else { manifest.to_json() },
        next_ids: ::cluster::state::NextIds { scope: ids.scope.0, collection: ids.collection.0 },
    };
    let behind = removals.of_new_names(name, &present, &manifest);
    // Who asks for all scopes at once may ask for a removal again.
    Ok(NextManifest {
        removes: is_less || is_same && removals.newest(name).is_some(),
        manifest,
        command,
        behind,
    })
}

/// Why a manifest is not changed.
struct ManifestWrong(ManifestError);

impl From<ManifestError> for ManifestWrong {
    fn from(error: ManifestError) -> ManifestWrong {
        ManifestWrong(error)
    }
}

impl From<BucketError> for ManifestWrong {
    fn from(error: BucketError) -> ManifestWrong {
        ManifestWrong(error.into())
    }
}

impl From<ClusterError> for ManifestWrong {
    fn from(error: ClusterError) -> ManifestWrong {
        ManifestWrong(told(error).into())
    }
}

impl From<ManifestWrong> for ManifestError {
    fn from(wrong: ManifestWrong) -> ManifestError {
        wrong.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_that_is_down_is_told_with_what_to_do() {
        let error = told(ClusterError::Refused(Refused::NodeDown(NodeId(2))));
        assert!(matches!(&error, BucketError::NotNow(_)), "{error:?}");
        assert!(error.to_string().contains("fail it over first (stave cluster failover n_2)"), "{error}");
    }
}
