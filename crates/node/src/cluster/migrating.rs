//! A bucket of a cluster that goes to another store: asked at any node, done by each, and how far all of them are
//! (docs/adr/0210-a-cluster-changes-the-store-of-a-bucket.md).

use std::time::Duration;

use ::cluster::command::Command;
use ::cluster::state::StoreMove;
use ::cluster::{Address, MemberMove, NodeId, Refused, View, store_moves};
use engine::BucketKind;
use kvstore::StorageBackend;

use super::{Cluster, ClusterError};
use crate::bucket_list;
use crate::config::BucketSpec;
use crate::local_move;
use crate::management::BucketError;
use crate::naming;

/// How long a request waits until the nodes that are alive have read it.
const READ_WITHIN: Duration = Duration::from_secs(5);

/// How far a cluster is with a bucket that goes to another store.
pub struct ClusterMove {
    /// What was asked for.
    pub asked: StoreMove,
    /// The nodes with a share in the bucket: where each is reached, and how far it is.
    pub members: Vec<(NodeId, Address, MemberMove)>,
}

fn view_of(cluster: &Cluster) -> Result<std::sync::Arc<View>, BucketError> {
    let unknown =
        || BucketError::NotNow("the node does not know the cluster's state yet: try again".to_owned());
    cluster.view().ok_or_else(unknown)
}

/// The store of a bucket, the first one as long as a move is not over, and how far that is.
pub(crate) fn look(
    cluster: &Cluster,
    name: &str,
) -> Result<(Option<StorageBackend>, Option<ClusterMove>), BucketError> {
    let view = view_of(cluster)?;
    let bucket = view.state.buckets.get(name).ok_or(BucketError::Unknown)?;
    let Some(asked) = bucket.store_move.clone() else {
        return Ok((bucket.store().and_then(naming::backend_from), None));
    };
    let address = |id: &NodeId| view.state.nodes.get(id).map(|node| node.address.clone());
    let members = store_moves(&view, name).into_iter();
    let members = members.filter_map(|(id, says)| Some((id, address(&id)?, says))).collect();
    Ok((naming::backend_from(&asked.from), Some(ClusterMove { asked, members })))
}

/// Has all nodes bring a bucket to a store.
pub(crate) fn begin(cluster: &Cluster, name: &str, to: StorageBackend) -> Result<(), BucketError> {
    let word = naming::storage_backend(BucketKind::Persistent, to);
    ask(cluster, name, |view| {
        let bucket = view.state.buckets.get(name).ok_or(BucketError::Unknown)?;
        let unknown = || BucketError::Elsewhere("this version does not know what the bucket is".to_owned());
        let spec = bucket_list::from_json(&bucket.settings).ok_or_else(unknown)?;
        may_be_in(&spec, to).map_err(BucketError::NotMoved)?;
        Ok(Command::MoveBucket { name: name.to_owned(), to: word.to_owned() })
    })
}

/// Has all nodes bring a bucket back to the store in which it was.
pub(crate) fn cancel(cluster: &Cluster, name: &str) -> Result<(), BucketError> {
    ask(cluster, name, |_| Ok(Command::CancelMove { name: name.to_owned() }))
}

/// Why a bucket cannot be kept in a store at all.
fn may_be_in(spec: &BucketSpec, to: StorageBackend) -> Result<(), String> {
    if spec.kind == BucketKind::Ephemeral {
        return Err(local_move::NO_STORE.to_owned());
    }
    if to != spec.backend && spec.settings.check_history(to).is_err() {
        return Err(kvstore::MoveRefused::KeepsHistory.to_string());
    }
    Ok(())
}

fn ask(
    cluster: &Cluster,
    name: &str,
    what: impl Fn(&View) -> Result<Command, BucketError>,
) -> Result<(), BucketError> {
    let view = cluster.ask_for(|view| what(view).map_err(WrongMove)).map_err(|WrongMove(error)| error)?;
    // Nothing is told of those that come later: they go by what the document says.
    cluster.wait_until_all_have(name, view.state.revision, READ_WITHIN);
    Ok(())
}

struct WrongMove(BucketError);

impl From<ClusterError> for WrongMove {
    fn from(error: ClusterError) -> WrongMove {
        WrongMove(match error {
            ClusterError::Refused(Refused::NoSuchBucket) => BucketError::Unknown,
            ClusterError::Refused(
                refused @ (Refused::StoreMoves { .. }
                | Refused::StoreStays(_)
                | Refused::StoreIsThat(_)
                | Refused::MovesNoStores(..)),
            ) => BucketError::NotMoved(refused.to_string()),
            passing if passing.is_passing() => BucketError::NotNow(passing.advice()),
            other => BucketError::Elsewhere(other.to_string()),
        })
    }
}
