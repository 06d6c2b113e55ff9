//! Buckets that move to another store while they are served: who may ask for it, and how far it is. A node alone does it
//! itself; a member asks its cluster, whose nodes all do it (docs/adr/0210-a-cluster-changes-the-store-of-a-bucket.md).

use std::sync::Arc;

use engine::BucketKind;
use kvstore::{MoveProgress, StorageBackend};

use crate::cluster::migrating::{self, ClusterMove};
use crate::cluster::serving::{is_a_clusters, still_joining};
use crate::host_failure::HostFailure;
use crate::local_move;
use crate::management::BucketError;
use crate::node::Node;

/// A bucket's store, and how far a move to another one is.
pub struct Migration {
    /// What kind of bucket it is.
    pub kind: BucketKind,
    /// The store in which it is kept; the first one as long as a move is not over.
    pub backend: StorageBackend,
    /// How far the move is, if there is one.
    pub progress: MigrationProgress,
}

/// How far a move is.
pub enum MigrationProgress {
    /// There is none.
    None,
    /// Of a node alone.
    Node(MoveProgress),
    /// Of all nodes of a cluster.
    Cluster(ClusterMove),
}

/// How far the move of a bucket is.
///
/// # Errors
///
/// If there is no such bucket, or it is down.
pub fn look(node: &Node, name: &str) -> Result<Migration, BucketError> {
    let (spec, bucket) = node.served().find(name)?;
    // As long as a node has not read its cluster's state, it tells of itself.
    if let Some(cluster) = node.cluster().filter(|cluster| is_a_clusters(node) && cluster.view().is_some()) {
        let (store, found) = migrating::look(&cluster, name)?;
        let progress = found.map_or(MigrationProgress::None, MigrationProgress::Cluster);
        return Ok(Migration {
            kind: spec.kind,
            backend: store.unwrap_or_else(|| bucket.backend()),
            progress,
        });
    }
    let found = node.host().and_then(|host| host.moves().get(name));
    let progress = found.and_then(|found| found.movable.progress());
    let progress = progress.map_or(MigrationProgress::None, MigrationProgress::Node);
    Ok(Migration { kind: spec.kind, backend: bucket.backend(), progress })
}

/// Begins to move a bucket to another store; it is served meanwhile. Blocks while the disk or the cluster works.
///
/// # Errors
///
/// If it may not be moved, or the disk refuses; then it stays where it is.
pub fn begin(node: &Arc<Node>, name: &str, to: StorageBackend) -> Result<(), BucketError> {
    if let Some(cluster) = of_cluster(node)? {
        return migrating::begin(&cluster, name, to);
    }
    let _changing = node.changing.begin()?;
    local_move::begin(node, name, to)
}

/// Has a bucket that moves go back to the store in which it was. Blocks while the disk or the cluster works.
///
/// # Errors
///
/// If it does not move, if all of a lone node's bucket is in the new store, or if the disk refuses.
pub fn cancel(node: &Arc<Node>, name: &str) -> Result<(), BucketError> {
    // A node that is to found a cluster waits for the end of the move, whichever way it ends.
    let begun = node.host().and_then(|host| host.moves().get(name));
    let begun = begun.filter(|found| found.movable.progress().is_some());
    let cluster = match &begun {
        Some(_) => node.cluster().filter(|cluster| is_a_clusters(node) && cluster.view().is_some()),
        None => of_cluster(node)?,
    };
    if let Some(cluster) = cluster {
        return migrating::cancel(&cluster, name);
    }
    let _changing = node.changing.begin()?;
    let found = begun.map_or_else(|| local_move::movable(node, name).map(|(_, found)| found), Ok)?;
    local_move::cancel(&found, name)?;
    local_move::move_on(node, &found, name)
}

/// The cluster that is to be asked; `None` for a node alone.
fn of_cluster(node: &Node) -> Result<Option<Arc<crate::cluster::Cluster>>, BucketError> {
    match still_joining(node) {
        Some(why) => Err(BucketError::NotNow(why.to_owned())),
        None => Ok(node.cluster().filter(|_| is_a_clusters(node))),
    }
}

/// Goes on with the moves that were under way when the node stopped.
///
/// # Errors
///
/// If a thread cannot be started.
pub fn resume_all(node: &Arc<Node>) -> Result<(), HostFailure> {
    let Some(host) = node.host() else { return Ok(()) };
    node.buckets().iter().try_for_each(|(spec, _)| local_move::resume(host, &spec.name, node))
}
