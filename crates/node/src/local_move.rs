//! What a node has of a bucket moves to another store while it is served: the thread that does it, and what is noted when it
//! is over (docs/adr/0168-a-bucket-changes-its-store.md).
//!
//! *Guarantee:* the list of buckets names the new store before the record of the move goes, so that a start knows in which
//! store a bucket is, however far this came.
//!
//! It must not know whether the node is alone or a cluster has asked for it.

use std::sync::{Arc, Weak};

use engine::BucketKind;
use kvstore::{Failure, MoveProgress, MoveRefused, MoveStage, MoveStep, StorageBackend};

use crate::bucket_moves::{BucketMove, Mover};
use crate::config::BucketSpec;
use crate::host_failure::HostFailure;
use crate::hosting::Host;
use crate::management::BucketError;
use crate::node::Node;
use crate::served::Served;

/// Why an ephemeral bucket is not moved.
pub(crate) const NO_STORE: &str = "an ephemeral bucket is kept in no store on disk";

/// Begins to move a bucket to another store; it is served meanwhile. Blocks while the disk works. The caller holds `changing`.
pub(crate) fn begin(node: &Arc<Node>, name: &str, to: StorageBackend) -> Result<(), BucketError> {
    let (host, found) = movable(node, name)?;
    let is_begun = |now: MoveProgress| now.stage == MoveStage::Copying && now.to == to;
    // One that is on disk, and whose thread could not be started, goes on.
    if found.has_mover() || !found.movable.progress().is_some_and(is_begun) {
        found.movable.begin(to).map_err(|refused| refusal(name, refused))?;
        found.forget_last();
        tracing::info!(
            event = "bucket_move_started",
            bucket = name,
            to = word(to),
            "the bucket moves to another store"
        );
    }
    Ok(start(host, name, node)?)
}

/// Has a bucket that moves go back to the store in which it was. Blocks while the disk works. The caller holds `changing`.
pub(crate) fn cancel(found: &BucketMove, name: &str) -> Result<(), BucketError> {
    found.movable.cancel().map_err(|refused| refusal(name, refused))?;
    found.wake();
    tracing::info!(
        event = "bucket_move_reverted",
        bucket = name,
        "the bucket goes back to the store in which it was"
    );
    Ok(())
}

/// Starts the thread of a move that has none, since it could not be started when the move began.
pub(crate) fn move_on(node: &Arc<Node>, found: &BucketMove, name: &str) -> Result<(), BucketError> {
    match node.host().filter(|_| !found.has_mover()) {
        Some(host) => Ok(start(host, name, node)?),
        None => Ok(()),
    }
}

/// Brings a bucket towards a store, as far as that can be begun now: a move that ends or goes back ends first. Asked again
/// until the bucket is there. Blocks while the disk works.
pub(crate) fn bring_to(node: &Arc<Node>, name: &str, store: StorageBackend) {
    let Some(host) = node.host() else { return };
    let Some(found) = host.moves().get(name) else { return };
    let (progress, now) = (found.movable.progress(), node.env().clock.monotonic());
    let done = match progress.map(|progress| (progress.stage, progress.to)) {
        None if found.movable.backend() == store => Ok(()),
        None if !found.may_try(now) => return,
        None => node.changing.begin().and_then(|_held| begin(node, name, store)),
        Some((MoveStage::Copying, to)) if to != store => {
            node.changing.begin().and_then(|_held| cancel(&found, name))
        }
        Some(_) if found.has_mover() => Ok(()),
        // Its thread could not be started: what is on disk would be under way for ever.
        Some(_) => start(host, name, node).map_err(BucketError::from),
    };
    if let Err(failure) = &done {
        tell(node, &found, name, failure);
    }
    found.note_refused(done.err().map(|failure| failure.to_string()), now);
}

/// Goes on with the move of a bucket that was under way when the node stopped.
pub(crate) fn resume(host: &Host, name: &str, node: &Arc<Node>) -> Result<(), HostFailure> {
    if host.moves().get(name).is_some_and(|found| found.movable.progress().is_some()) {
        tracing::info!(
            event = "bucket_move_resumed",
            bucket = name,
            "the move of the bucket to another store goes on"
        );
        start(host, name, node)?;
    }
    Ok(())
}

/// A bucket that may be moved.
pub(crate) fn movable<'n>(node: &'n Node, name: &str) -> Result<(&'n Host, Arc<BucketMove>), BucketError> {
    let (spec, _) = node.served().find(name)?;
    if spec.kind == BucketKind::Ephemeral {
        return Err(BucketError::NotMoved(NO_STORE.to_owned()));
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
    let (its_node, of, mover) = (Arc::downgrade(node), name.to_owned(), Mover::of(&found));
    host.spawn_move(name, node.env(), Box::new(move || run(&its_node, mover.bucket_move(), &of)))
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
    found.keep_last();
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
