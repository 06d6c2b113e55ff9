//! What the flusher takes out of a vBucket, and what it brings back.

use base::planted::{self, Bug};
use base::{Cas, RevSeqno, Seqno, VbId, VbState};

use crate::durability::Topology;
use crate::failover_table::FailoverTable;
use crate::range::{Range, RangeLimit};
use crate::received::SnapshotBounds;
use crate::removed::Removed;
use crate::vbucket::VBucket;

/// A sealed range of changes and the vBucket's state as of its end.
pub struct FlushBatch {
    /// The changes; empty if only the state is to be written.
    pub range: Option<Range>,
    /// Whose they are.
    pub id: VbId,
    /// The role.
    pub state: VbState,
    /// The histories, newest first.
    pub failover: FailoverTable,
    /// The seqno that the batch reaches.
    pub high_seqno: Seqno,
    /// Tombstones up to here may have been forgotten.
    pub purge_seqno: Seqno,
    /// The largest CAS given out.
    pub max_cas: Cas,
    /// The largest revision a tombstone had.
    pub max_deleted_rev: RevSeqno,
    /// Whether any document may have xattrs.
    pub might_contain_xattrs: bool,
    /// Who shall hold it.
    pub topology: Option<Topology>,
    /// How sync writes stand as of the end of the batch.
    pub sync_writes: SavedSyncWrites,
    /// From here on no change is left out that a later one replaces; 0 if any may be.
    pub history_from: Seqno,
    /// Whether it reaches the last change.
    is_whole: bool,
    /// The snapshot that `high_seqno` lies in.
    pub snapshot: SnapshotBounds,
}

/// How sync writes stand on disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SavedSyncWrites {
    /// The last change that readers can see.
    pub max_visible: Seqno,
    /// The last prepare that came. Never too low.
    pub last_prepared: Seqno,
    /// The last prepare of complete snapshots.
    pub high_prepared: Seqno,
    /// Below it nothing is in flight. Never too high.
    pub high_completed: Seqno,
    /// Prepares in flight.
    pub in_flight: u64,
    /// Bytes of them.
    pub in_flight_bytes: u64,
}

/// What was taken for the disk last, as it will stand there.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Taken {
    /// How far it reaches,
    high_seqno: Seqno,
    /// and how far without a snapshot that is not there as a whole.
    whole: Seqno,
    sync_writes: SavedSyncWrites,
}

impl FlushBatch {
    /// The last change in the batch, or before it, that readers can see.
    pub fn max_visible(&self) -> Seqno {
        if self.is_whole {
            return self.sync_writes.max_visible;
        }
        let items = self.range.iter().flat_map(|range| range.iter()).map(|version| version.meta());
        let visible = items.filter(|meta| !meta.sync_write.is_hidden()).map(|meta| meta.by_seqno);
        visible.max().unwrap_or_default().max(self.sync_writes.max_visible)
    }
}

impl VBucket {
    /// Takes what is not on disk yet, as far as the limit lets it; nothing if there is nothing, or no disk. Constant time.
    pub fn take_flush_batch(&mut self, limit: RangeLimit) -> Option<FlushBatch> {
        let range = self.contents.history.checkpoints.take_range(self.contents.persistence?, limit);
        let range = range.expect("the flusher's cursor is never dropped");
        let is_wanted = self.state_changed && !planted::is(Bug::StateNotSaved);
        if range.is_none() && !is_wanted {
            return None;
        }
        self.state_changed = false;
        let high_seqno = range.as_ref().map_or(self.contents.persisted_seqno, Range::end);
        let snapshot = snapshot_of(self, range.as_ref(), high_seqno);
        // What is known of a later moment does not hold for this one; what was saved last does.
        let is_whole = high_seqno == self.contents.history.high_seqno;
        let present = self.sync_writes.present(&self.contents.history);
        // Whoever starts from it looks for prepares up to the last one, so that may be too high.
        let last_prepared = present.last_prepared;
        let sync_writes =
            if is_whole { present } else { SavedSyncWrites { last_prepared, ..self.sync_writes.saved } };
        let whole = if snapshot.end > high_seqno { snapshot.start } else { high_seqno };
        self.taken = Taken { high_seqno, whole, sync_writes };
        Some(batch(self, range, high_seqno, snapshot, sync_writes))
    }

    /// The state as of now, without any changes.
    pub fn present_state(&self) -> FlushBatch {
        batch(
            self,
            None,
            self.contents.history.high_seqno,
            self.snapshot(),
            self.sync_writes.present(&self.contents.history),
        )
    }

    /// The batch up to `seqno` is on disk, synced. Drop what is returned outside the lock.
    pub fn flushed(&mut self, seqno: Seqno) -> Removed {
        assert!(
            seqno >= self.contents.persisted_seqno && seqno <= self.contents.history.high_seqno,
            "only what was taken is flushed"
        );
        self.contents.persisted_seqno = seqno;
        self.contents.stored_deleted_rev = self.contents.history.max_deleted_rev;
        self.sync_writes.passive.persisted(seqno);
        let taken = self.taken;
        if taken.high_seqno == seqno {
            self.contents.persisted_whole = taken.whole;
            self.sync_writes.saved = taken.sync_writes;
        }
        if let Some(cursor) = self.contents.persistence {
            self.contents.history.checkpoints.advance(cursor, seqno);
        }
        self.contents.history.checkpoints.remove_closed_but_newest()
    }

    /// The batch did not reach the disk: it stays queued, and the state is written again with the next one.
    pub fn flush_failed(&mut self) {
        self.state_changed = true;
    }

    /// Whether something is waiting for the flusher.
    pub fn has_unflushed(&self) -> bool {
        self.state_changed || self.contents.persisted_seqno < self.contents.history.high_seqno
    }
}

/// The snapshot that the end of a range lies in.
fn snapshot_of(vb: &VBucket, range: Option<&Range>, high: Seqno) -> SnapshotBounds {
    let present = vb.snapshot();
    if vb.state == VbState::Active {
        return SnapshotBounds::at(high);
    }
    match range {
        _ if high > present.start => present,
        Some(range) if range.snapshot_end() > high => SnapshotBounds {
            // a checkpoint begins where everything is complete
            start: range.last_checkpoint_start(),
            end: range.snapshot_end(),
            kind: present.kind,
        },
        _ => SnapshotBounds::at(high),
    }
}

fn batch(
    vb: &VBucket,
    range: Option<Range>,
    high_seqno: Seqno,
    snapshot: SnapshotBounds,
    sync_writes: SavedSyncWrites,
) -> FlushBatch {
    FlushBatch {
        range,
        id: vb.contents.history.id,
        state: vb.state,
        failover: vb.contents.history.failover.clone(),
        high_seqno,
        purge_seqno: vb.contents.purge_seqno,
        history_from: vb.contents.history.history_from,
        max_cas: vb.max_cas(),
        max_deleted_rev: vb.contents.history.max_deleted_rev,
        might_contain_xattrs: vb.contents.history.might_contain_xattrs,
        topology: vb.topology.clone(),
        sync_writes,
        is_whole: high_seqno == vb.contents.history.high_seqno,
        snapshot,
    }
}
