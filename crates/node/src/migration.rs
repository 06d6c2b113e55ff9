//! Buckets that move to another store while they are served: who may ask for it, the thread that does it, and what is noted
//! when it is over (docs/adr/0168-a-bucket-changes-its-store.md).
//!
//! *Guarantee:* the list of buckets names the new store before the record of the move goes, so that a start knows in which
//! store a bucket is, however far this came.

use std::sync::{Arc, Weak};

use engine::BucketKind;
use kvstore::{Failure, MoveProgress, MoveRefused, MoveStep, StorageBackend};

use crate::bucket_moves::BucketMove;
use crate::cluster::serving::is_a_clusters;
use crate::config::BucketSpec;
use crate::host_failure::HostFailure;
use crate::hosting::Host;
use crate::management::BucketError;
use crate::node::Node;
use crate::served::Served;

/// A bucket's store, and how far a move to another one is.
pub struct Migration {
    /// What kind of bucket it is.
    pub kind: BucketKind,
    /// The store in which it is kept; the first one as long as a move is not over.
    pub backend: StorageBackend,
    /// How far the move is, if there is one.
    pub progress: Option<MoveProgress>,
}

/// How far the move of a bucket is.
///
/// # Errors
///
/// If there is no such bucket, or it is down.
pub fn look(node: &Node, name: &str) -> Result<Migration, BucketError> {
    let (spec, bucket) = node.served().find(name)?;
    let found = node.host().and_then(|host| host.moves().get(name));
    let progress = found.and_then(|found| found.movable.progress());
    Ok(Migration { kind: spec.kind, backend: bucket.backend(), progress })
}

/// Begins to move a bucket to another store; it is served meanwhile. Blocks while the disk works.
///
/// # Errors
///
/// If it may not be moved, or the disk refuses; then it stays where it is.
pub fn begin(node: &Arc<Node>, name: &str, to: StorageBackend) -> Result<(), BucketError> {
    let _changing = node.changing.begin()?;
    let (host, found) = movable(node, name)?;
    found.movable.begin(to).map_err(|refused| refusal(name, refused))?;
    tracing::info!(
        event = "bucket_move_started",
        bucket = name,
        to = word(to),
        "the bucket moves to another store"
    );
    Ok(start(host, name, node)?)
}

/// Has a bucket that moves go back to the store in which it was. Blocks while the disk works.
///
/// # Errors
///
/// If it does not move, if all of it is in the new store, or if the disk refuses.
pub fn cancel(node: &Arc<Node>, name: &str) -> Result<(), BucketError> {
    let _changing = node.changing.begin()?;
    // A node that is to found a cluster waits for the end of the move, whichever way it ends.
    let begun = node.host().and_then(|host| host.moves().get(name));
    let begun = begun.filter(|found| found.movable.progress().is_some());
    let found = begun.map_or_else(|| movable(node, name).map(|(_, found)| found), Ok)?;
    found.movable.cancel().map_err(|refused| refusal(name, refused))?;
    found.wake();
    tracing::info!(
        event = "bucket_move_reverted",
        bucket = name,
        "the bucket goes back to the store in which it was"
    );
    Ok(())
}

/// Goes on with the moves that were under way when the node stopped.
///
/// # Errors
///
/// If a thread cannot be started.
pub fn resume_all(node: &Arc<Node>) -> Result<(), HostFailure> {
    let Some(host) = node.host() else { return Ok(()) };
    for (spec, _) in node.buckets() {
        if host.moves().get(&spec.name).is_some_and(|found| found.movable.progress().is_some()) {
            tracing::info!(
                event = "bucket_move_resumed",
                bucket = spec.name,
                "the move of the bucket to another store goes on"
            );
            start(host, &spec.name, node)?;
        }
    }
    Ok(())
}

/// A bucket that may be moved. The caller holds `changing`.
fn movable<'n>(node: &'n Node, name: &str) -> Result<(&'n Host, Arc<BucketMove>), BucketError> {
    let (spec, _) = node.served().find(name)?;
    if is_a_clusters(node) {
        return Err(BucketError::NotMoved(
            "all nodes of a cluster keep a bucket in the same store: make another bucket in the other store, and bring the \
             documents over with `stave replicate`, which follows changes, or with `stave backup` and `stave restore`"
                .to_owned(),
        ));
    }
    if spec.kind == BucketKind::Ephemeral {
        return Err(BucketError::NotMoved("an ephemeral bucket is kept in no store on disk".to_owned()));
    }
    let host = node.host().ok_or(BucketError::Fixed)?;
    Ok((host, host.moves().get(name).ok_or(BucketError::Fixed)?))
}

fn refusal(name: &str, refused: MoveRefused) -> BucketError {
    match refused {
        MoveRefused::Store(Failure::OtherStore { what, .. }) => BucketError::NotMoved(what),
        MoveRefused::Store(failure) => {
            BucketError::Failed(HostFailure::Bucket { name: name.to_owned(), source: failure.into() })
        }
        other => BucketError::NotMoved(other.to_string()),
    }
}

fn word(backend: StorageBackend) -> &'static str {
    crate::naming::storage_backend(BucketKind::Persistent, backend)
}

/// Starts the thread that moves a bucket.
fn start(host: &Host, name: &str, node: &Arc<Node>) -> Result<(), HostFailure> {
    let Some(found) = host.moves().get(name) else { return Ok(()) };
    let (its_node, of) = (Arc::downgrade(node), name.to_owned());
    host.spawn_move(name, node.env(), Box::new(move || run(&its_node, &found, &of)))
}

/// Moves a bucket until it is in one store, or is closed; for a thread of its own.
fn run(node: &Weak<Node>, found: &BucketMove, name: &str) {
    while !found.is_stopping() {
        match found.movable.step() {
            Ok(MoveStep::Worked) => {}
            Ok(MoveStep::Idle) => return,
            Ok(MoveStep::Waiting) => found.pause(),
            Ok(MoveStep::Moved(backend)) => {
                let Some(node) = node.upgrade() else { return };
                match note(&node, found, name, backend) {
                    Ok(true) => return,
                    Ok(false) => {}
                    Err(failure) => tell(&node, found, name, &failure),
                }
                drop(node);
                found.pause();
            }
            Err(failure) => {
                let Some(node) = node.upgrade() else { return };
                tell(&node, found, name, &failure);
                drop(node);
                found.pause();
            }
        }
    }
}

fn tell(node: &Node, found: &BucketMove, name: &str, failure: &dyn std::fmt::Display) {
    if let Some(left_out) = found.told_of_failure.admit(node.env().clock.monotonic()) {
        tracing::error!(
            event = "bucket_move_failed", bucket = name, %failure, left_out,
            "the bucket cannot be moved to another store just now; trying again"
        );
    }
}

/// Notes in which store a bucket is now; false if it is to be tried again.
fn note(node: &Node, found: &BucketMove, name: &str, backend: StorageBackend) -> Result<bool, BucketError> {
    // Who holds it may wait for this thread to end.
    let Some(_changing) = node.changing.try_begin() else { return Ok(false) };
    let (Ok((spec, bucket)), Some(host)) = (node.served().find(name), node.host()) else { return Ok(true) };
    engine::moved_to(&bucket, backend);
    let has_changed = spec.backend != backend;
    let spec = BucketSpec { backend, ..spec };
    host.note_store(&spec, &found.movable, node.env())?;
    node.served().serve(Served { spec, bucket });
    tracing::info!(
        event = "bucket_move_ended",
        bucket = name,
        store = word(backend),
        "the bucket is in one store"
    );
    if has_changed {
        node.redraw_map()?;
    }
    Ok(true)
}
