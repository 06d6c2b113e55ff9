//! Copying a vBucket from one store to another, in pieces and in the order of seqnos.
//!
//! *Guarantee:* until the copy is sealed, whatever goes back to one of its commits finds that it is inside a snapshot that
//! begins at 0: a commit of a part lacks older versions of documents that come later.

use std::ops::ControlFlow;

use base::{CollectionId, Seqno, VbId, VbState, Version};
use serde_json::{Value, json};

use crate::collections::Tally;
use crate::failure::Failure;
use crate::state::{CheckpointType, VbStateDoc};
use crate::store::{KvStore, SaveBatch, Snapshot, StoredVb, Values};

/// How much is saved at once.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PieceLimits {
    /// Bytes of versions, about.
    pub(crate) bytes: usize,
    /// Versions.
    pub(crate) items: usize,
}

/// A field of a state document that no store keeps: what a copy cannot tell from its records, because those that told it
/// were purged. It has the highest seqno of each collection, and the seqno up to which tombstones were purged.
const COPIED: &str = "copied";
const SEQNOS: &str = "seqnos";
const PURGED: &str = "purged";

/// Versions from a seqno on, in order: as many as are saved at once. A drop of a collection is the last of its piece.
pub(crate) fn piece(from: &dyn Snapshot, next: Seqno, limits: PieceLimits) -> Result<Vec<Version>, Failure> {
    let (mut items, mut bytes) = (Vec::new(), 0);
    from.scan_all(next, Values::Read, &mut |version| {
        bytes += version.allocated_bytes();
        let is_drop = version.is_deleted() && version.key().collection == CollectionId::SYSTEM;
        items.push(version);
        let is_full = bytes >= limits.bytes || items.len() >= limits.items;
        if is_drop || is_full { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })?;
    Ok(items)
}

/// Copies one piece; returns how many versions it had, and the seqno from which on there may be more. 0 versions: that was
/// all.
pub(crate) fn copy_piece(
    (from, next): (&dyn Snapshot, Seqno),
    (to, vb): (&dyn KvStore, VbId),
    partial: &VbStateDoc,
    limits: PieceLimits,
) -> Result<(u64, Seqno), CopyFailure> {
    let mut items = piece(from, next, limits).map_err(CopyFailure::Unread)?;
    let Some(last) = items.last() else { return Ok((0, next)) };
    let next = Seqno(last.meta().by_seqno.0 + 1);
    items.sort_unstable_by(|a, b| a.stored_key().cmp(b.stored_key()));
    to.save(vb, SaveBatch { items: &items, state: partial }).map_err(CopyFailure::Unwritten)?;
    Ok((items.len() as u64, next))
}

/// Which of two stores failed.
#[derive(Debug)]
pub(crate) enum CopyFailure {
    Unread(Failure),
    Unwritten(Failure),
}

/// The state of a vBucket, with what its file says beside it.
pub(crate) fn state_of(stored: &StoredVb) -> VbStateDoc {
    let purge_seqno = stored.state.purge_seqno.max(stored.purge_seqno.0);
    VbStateDoc { purge_seqno, ..stored.state.clone() }
}

/// The state with which a part of a vBucket is saved: that of a replica in the middle of its first snapshot.
pub(crate) fn partial_state(state: &VbStateDoc) -> VbStateDoc {
    VbStateDoc {
        checkpoint_type: CheckpointType::InitialDisk,
        state: VbState::Replica,
        snap_start: 0,
        snap_end: u64::MAX,
        history_from: 0,
        ..state.clone()
    }
}

/// Ends a copy: from now on it is the vBucket as it is `stored` in the other store, durably.
pub(crate) fn seal(to: &dyn KvStore, vb: VbId, stored: &StoredVb) -> Result<(), Failure> {
    let mut marked = partial_state(&state_of(stored));
    // Of the default collection alone there may be no record left, not even the event that made it.
    let is_there = |id: CollectionId| id != CollectionId::DEFAULT || stored.manifest.is_open(id);
    let of_collections = stored.collections.iter().filter(|(id, _)| is_there(*id));
    let seqnos = of_collections.map(|(id, stats)| (id.0.to_string(), stats.high_seqno.0.into()));
    let seqnos = Value::Object(seqnos.collect());
    marked.other.insert(COPIED.to_owned(), json!({ SEQNOS: seqnos, PURGED: stored.purge_seqno.0 }));
    to.save_state(vb, &marked)?;
    // The mark counts when it is filed, and must not be replaced by a later state before.
    to.counts(vb)?;
    // Puts on record what was filed, too.
    to.save_state(vb, &stored.state)
}

/// A state that ends a copy, as it is stored, and the seqno up to which tombstones were purged. The seqnos of collections are
/// raised. `None` for every other state.
pub(crate) fn take_copied(state: &VbStateDoc, tally: &mut Tally) -> Option<(VbStateDoc, Seqno)> {
    let copied = state.other.get(COPIED)?;
    for (id, seqno) in copied[SEQNOS].as_object().into_iter().flatten() {
        if let (Ok(id), Some(seqno)) = (id.parse(), seqno.as_u64()) {
            tally.raise(CollectionId(id), Seqno(seqno));
        }
    }
    let mut stored = state.clone();
    stored.other.remove(COPIED);
    Some((stored, Seqno(copied[PURGED].as_u64().unwrap_or(0))))
}
