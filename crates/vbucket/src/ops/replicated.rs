//! The one way in for changes that were made elsewhere: a replica applies what its active vBucket sends, as it comes.
//!
//! Every change lies in a snapshot that was announced before. At a snapshot's end the replica is what the active
//! vBucket was at that seqno; inside it is not, because the active one left out what it replaced later.

use base::planted::{self, Bug};
use base::version::MAX_SEQNO;
use base::{CollectionId, Moment, NewVersion, Seqno, VbState, VersionContents};

use crate::failover_table::FailoverTable;
use crate::ops::change::Stored;
use crate::received::SnapshotBounds;
use crate::vbucket::{Contents, Garbage, History, VBucket};

/// Where a snapshot comes from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SnapshotKind {
    /// From the memory of its producer.
    #[default]
    Memory,
    /// From the disk of its producer.
    Disk,
    /// From the disk of its producer, into a vBucket that had nothing.
    InitialDisk,
}

/// A snapshot that a marker announces (`docs/dcp/documentation/commands/snapshot-marker.md`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IncomingSnapshot {
    /// Its first seqno, or the last one before it: producers differ.
    pub start: Seqno,
    /// Its last seqno.
    pub end: Seqno,
    /// Where it comes from.
    pub kind: SnapshotKind,
    /// Whether a checkpoint of the producer begins with it; else it continues one.
    pub begins_checkpoint: bool,
    /// The last change in it that readers can see; nothing from producers that do not tell.
    pub max_visible: Option<Seqno>,
    /// Every prepare up to here is committed or aborted.
    pub high_completed: Option<Seqno>,
    /// The last prepare up to which the producer has all.
    pub high_prepared: Option<Seqno>,
    /// Tombstones up to here may be missing.
    pub purge: Option<Seqno>,
    /// Whether every version comes of what was changed since the last change that came: nothing is left out.
    pub has_history: bool,
}

/// What breaks the order of a stream; nothing of it was applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Misplaced {
    /// A change without a snapshot around it.
    NoSnapshot,
    /// A seqno that is not higher than the last one.
    NotRising,
    /// A change before the start or behind the end of its snapshot.
    OutsideSnapshot,
    /// A snapshot that ends before it begins, or behind which the vBucket is already.
    BadSnapshot,
    /// An event about collections that cannot be read.
    BadEvent,
    /// A commit of what is not prepared.
    NotPrepared,
    /// A change in a collection that the vBucket does not have.
    NoCollection,
}

/// Whether a change in a collection may come now with this seqno: the event that begins the collection comes before, and
/// the producer leaves out what was dropped.
pub(super) fn expects_in(vb: &VBucket, collection: CollectionId, seqno: Seqno) -> Result<(), Misplaced> {
    vb.expects(seqno)?;
    if vb.history.collections.is_open(collection) { Ok(()) } else { Err(Misplaced::NoCollection) }
}

/// Follows what a producer says of the versions that come: either it leaves none out, or it may leave any out.
///
/// If versions were left out before, the history begins with the next change and not behind the last one. A producer
/// does not say how far what it left out reaches, only that what it sends comes behind that.
fn follow_producer_history(vb: &mut VBucket, has_history: bool) {
    let keeps = has_history && vb.contents.table.context().keeps_history();
    let history = &mut vb.contents.history;
    if !keeps && !planted::is(Bug::HistoryOverGap) {
        history.history_from = Seqno(0);
    }
    history.awaits_history = keeps && history.history_from == Seqno(0);
}

impl VBucket {
    /// Whether it takes changes that were made elsewhere.
    pub fn is_following(&self) -> bool {
        matches!(self.state, VbState::Replica | VbState::Pending)
    }

    /// A producer begins to send what follows the last change: its histories are this vBucket's. Its first snapshot is
    /// still to be announced.
    pub fn adopt_failover(&mut self, histories: FailoverTable) {
        self.contents.history.checkpoints.expect_nothing();
        if planted::is(Bug::KeepFailoverTable) {
            return;
        }
        self.state_changed |= self.contents.history.failover != histories;
        self.contents.history.failover = histories;
    }

    /// What comes now lies in this snapshot. If another one is not complete yet, that goes on in this one.
    pub fn begin_snapshot(&mut self, snapshot: &IncomingSnapshot) -> Result<(), Misplaced> {
        let IncomingSnapshot { start, end, .. } = *snapshot;
        if start > end || end < self.contents.history.high_seqno || end > Seqno(MAX_SEQNO) {
            return Err(Misplaced::BadSnapshot);
        }
        // Whoever stood before a tombstone that is not sent cannot go on from here.
        let purge = snapshot.purge.unwrap_or_default().min(end);
        self.state_changed |= purge > self.contents.purge_seqno;
        self.contents.purge_seqno = self.contents.purge_seqno.max(purge);
        follow_producer_history(self, snapshot.has_history);
        self.contents.history.checkpoints.begin_snapshot(snapshot);
        Ok(())
    }

    /// Applies a document, tombstone or system event that was made elsewhere, complete with seqno, CAS and revision,
    /// whatever is there. One that is refused is handed back, and nothing happened.
    pub fn apply_replicated(
        &mut self,
        hash: u64,
        new: NewVersion,
        now: Moment,
    ) -> Result<Stored, (Misplaced, NewVersion)> {
        let meta = new.meta();
        let collection = new.key().collection;
        let is_event = collection == CollectionId::SYSTEM;
        let expected =
            if is_event { self.expects(meta.by_seqno) } else { expects_in(self, collection, meta.by_seqno) };
        if let Err(misplaced) = expected {
            return Err((misplaced, new));
        }
        if is_event {
            return self.receive_event(new, now).map_err(|new| (Misplaced::BadEvent, new));
        }
        self.note_covered(hash, &new);
        // A snapshot from a disk has the document alone.
        let prepare = self.sync_writes.supersede(new.key(), &mut self.contents.history);
        let slot = self.contents.table.find_slot(hash, new.key());
        self.contents.locks.remove(new.key());
        self.contents.evicted.ties.changed(new.key());
        self.contents.history.hlc.observe(meta.cas, now.0);
        let mut stored = self.contents.history.record_received(slot, new);
        stored.garbage.prepare = prepare;
        Ok(stored)
    }
}

impl History {
    /// The snapshot that the last change lies in: that change alone, unless a replica is in the middle of one.
    pub fn snapshot(&self) -> SnapshotBounds {
        self.checkpoints.snapshot()
    }

    /// Whether a change with this seqno may come now.
    pub fn expects(&self, seqno: Seqno) -> Result<(), Misplaced> {
        if seqno <= self.high_seqno {
            return Err(Misplaced::NotRising);
        }
        let (first, last) = self.checkpoints.expected().ok_or(Misplaced::NoSnapshot)?;
        if (first..=last).contains(&seqno) { Ok(()) } else { Err(Misplaced::OutsideSnapshot) }
    }

    /// There is nothing for this replica up to `seqno`. Counts if that is the end of the snapshot, which is complete then.
    pub fn seqno_advanced(&mut self, seqno: Seqno) -> Result<Garbage, Misplaced> {
        self.expects(seqno)?;
        let is_end = self.checkpoints.expected().is_some_and(|(_, last)| last == seqno);
        Ok(if is_end { self.skip_to(seqno) } else { Garbage::default() })
    }
}

impl Contents {
    /// Notes that a version takes the place of one that may be on disk alone: nobody looks there first.
    pub(super) fn note_covered(&mut self, hash: u64, new: &VersionContents) {
        // The table last: mostly nothing is on disk alone.
        if self.evicted.may_hold(hash, new.key()) && self.table.find(hash, new.key()).is_none() {
            self.evicted.covered(new.stored_key());
        }
    }
}
