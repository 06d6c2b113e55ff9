//! One vBucket: its documents, its queue of changes, its history, behind one lock that its owner holds.
//!
//! Every method is bounded: no I/O, no waiting, and nothing whose cost grows with the number of items.
//! What is no longer needed is handed back as [`Garbage`], so that it is freed after the lock is released.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use base::planted::{self, Bug};
use base::{
    Cas, DocKey, FrequencyFactor, ItemKind, Moment, NewVersion, RevSeqno, Seqno, SyncWrite, VbId, VbState,
    VbUuid, Version,
};

use crate::bucket_context::BucketContext;
use crate::charge::Charge;
use crate::checkpoint_manager::CheckpointManager;
use crate::collections::Collections;
use crate::cursor::CursorId;
use crate::durability::{ActiveMonitor, Topology};
use crate::evicted::{Evicted, Out};
use crate::failover_table::FailoverTable;
use crate::filter::Filter;
use crate::hash_table::{HashTable, Slot, VersionRef};
use crate::hlc::{ClockCounts, Hlc};
use crate::locks::Locks;
use crate::ops::{Stored, SyncWrites, Taken};
use crate::received::SnapshotBounds;
use crate::removed::Removed;
use crate::seq_list::SeqList;

/// Versions that nobody reaches through the vBucket any more; drop it outside the lock.
#[derive(Default)]
#[must_use = "drop it after the vBucket's lock is released"]
pub struct Garbage {
    /// The version that was replaced.
    pub replaced: Option<Version>,
    /// The version that left the open checkpoint by de-duplication.
    pub merged: Option<Version>,
    /// The version that left the list of an ephemeral bucket.
    pub unlisted: Option<Version>,
    /// Checkpoints that nobody reads.
    pub checkpoints: Option<Box<Removed>>,
    /// The filter of a count that came to nothing.
    pub filter: Option<Filter>,
    /// The prepare that is completed.
    pub prepare: Option<Version>,
}

/// How many items of each kind a vBucket has, how many of them are in memory, and how large those are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Documents, in memory or not, expired ones included until somebody notices.
    pub documents: u64,
    /// Tombstones, in memory or not.
    pub tombstones: u64,
    /// Documents in memory whose value is not.
    pub without_value: u64,
    /// Documents of which nothing is in memory.
    pub evicted_documents: u64,
    /// Tombstones of which nothing is in memory.
    pub evicted_tombstones: u64,
    /// Bytes of the versions that the table points at.
    pub bytes: u64,
    /// No document expires before this, in seconds since 1970; 0: none expires at all. A bound, not the exact time.
    pub earliest_expiry: u32,
}

/// How many changes brought a document, since the vBucket came into memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Written {
    /// Where there was none, as far as memory knows.
    pub created: u64,
    /// In the place of another version of it.
    pub updated: u64,
}

/// Of a key that the table does not know: it may be on disk. Nothing was changed; have it brought, and ask again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unknown;

/// What a vBucket starts from: nothing, or what was found on disk.
#[derive(Clone, Debug)]
pub struct Origin {
    /// Its role.
    pub state: VbState,
    /// Its histories, newest first.
    pub failover: FailoverTable,
    /// The last change.
    pub high_seqno: Seqno,
    /// Tombstones up to here may have been forgotten.
    pub purge_seqno: Seqno,
    /// The largest CAS ever given out.
    pub max_cas: Cas,
    /// The largest revision a tombstone had.
    pub max_deleted_rev: RevSeqno,
    /// Whether any document may have xattrs.
    pub might_contain_xattrs: bool,
    /// Who holds it; nothing: this node alone, or that is not known yet (`needs_topology`).
    pub topology: Option<Topology>,
    /// The last change that readers can see.
    pub max_visible: Seqno,
    /// The last prepare.
    pub last_prepared: Seqno,
    /// Up to here all prepares are as safe as their levels ask.
    pub high_prepared: Seqno,
    /// Up to here all prepares are committed or aborted.
    pub high_completed: Seqno,
    /// The snapshot in whose middle a replica stopped; nothing if it stood between snapshots.
    pub snapshot: Option<SnapshotBounds>,
    /// From here on no save lacked a version that a later one replaced; 0 if any may.
    pub history_from: Seqno,
    /// Its collections.
    pub collections: Collections,
}

impl Origin {
    /// An empty vBucket with a first history.
    pub fn empty(state: VbState, uuid: VbUuid) -> Origin {
        Origin {
            state,
            failover: FailoverTable::new(uuid),
            high_seqno: Seqno(0),
            history_from: Seqno(0),
            purge_seqno: Seqno(0),
            max_cas: Cas(0),
            max_deleted_rev: RevSeqno(0),
            might_contain_xattrs: false,
            topology: None,
            max_visible: Seqno(0),
            last_prepared: Seqno(0),
            high_prepared: Seqno(0),
            high_completed: Seqno(0),
            snapshot: None,
            collections: Collections::default(),
        }
    }
}

/// What every change goes through: clock, seqno, counts, queue.
///
/// What each operation touches lies in front, as in [`VBucket`].
#[repr(C)]
pub struct History {
    /// Which collections there are, and what each holds.
    pub(crate) collections: Collections,
    pub(crate) checkpoints: CheckpointManager,
    pub(crate) hlc: Hlc,
    /// What is in the table.
    pub(crate) counts: Counts,
    pub(crate) high_seqno: Seqno,
    /// The last change that readers can see.
    pub(crate) max_visible: Seqno,
    /// The items in seqno order, if there is no disk.
    pub(crate) seq_list: Option<Box<SeqList>>,
    pub(crate) frequency: Arc<FrequencyFactor>,
    pub(crate) written: Written,
    pub(crate) id: VbId,
    /// The role that it began with.
    pub(crate) first_role: VbState,
    /// Whether `history_from` is the next change that comes: its producer leaves none out from there on.
    pub(crate) awaits_history: bool,
    pub(crate) might_contain_xattrs: bool,
    /// From here on no version is left out that a later one replaces; 0 if any may be.
    pub(crate) history_from: Seqno,
    pub(crate) max_deleted_rev: RevSeqno,
    pub(crate) failover: FailoverTable,
}

impl History {
    /// A version comes into the table.
    #[inline]
    pub(crate) fn enter(&mut self, version: &Version) {
        self.counts.enter(version);
        self.collections.enter(version);
    }

    /// A version leaves the table.
    #[inline]
    pub(crate) fn leave(&mut self, version: &Version) {
        self.counts.leave(version);
        self.collections.leave(version);
    }

    /// Queues an event about collections, which no table holds. Its seqno must be above the last one; seqnos of events
    /// that it makes superfluous leave the list of an ephemeral bucket.
    pub(crate) fn record_event(&mut self, version: Version, superfluous: [Option<Seqno>; 2]) -> Garbage {
        let seqno = version.meta().by_seqno;
        self.begin_awaited_history(seqno);
        (self.high_seqno, self.max_visible) = (seqno, seqno);
        let mut garbage = Garbage::default();
        let Some(list) = &mut self.seq_list else {
            garbage.merged = self.checkpoints.queue_received(version, None);
            return garbage;
        };
        let [first, second] = superfluous.map(|old| old.and_then(|old| list.replaced(old)));
        (garbage.unlisted, garbage.merged) = (first, second);
        list.append(version.clone());
        if self.checkpoints.has_cursors() {
            assert!(
                self.checkpoints.queue_received(version, None).is_none(),
                "nothing of an event is merged"
            );
        } else {
            garbage.checkpoints = self.checkpoints.pass_over(seqno);
        }
        garbage
    }

    /// Puts a complete version in place and queues it. Its seqno must be the next one.
    pub(crate) fn record(&mut self, slot: Slot<'_>, new: NewVersion) -> Stored {
        let next = self.high_seqno.next();
        assert_eq!(new.meta().by_seqno, next, "seqnos are given one by one under the vBucket lock");
        // What is part of a sync write is not merged: a key's other changes stand in other checkpoints.
        if let Some(old) = slot.get().map(|version| version.meta())
            && (old.sync_write != SyncWrite::No || new.meta().sync_write != SyncWrite::No)
        {
            self.checkpoints.close_behind(old.by_seqno);
        }
        self.record_received(slot, new)
    }

    /// Puts a version in place that is queued already, or about to be; what was there.
    fn put(&mut self, slot: Slot<'_>, version: &Version) -> Option<Version> {
        let meta = version.meta();
        assert!(version.is_resident(), "a change brings its value");
        if meta.kind.is_deleted() {
            self.max_deleted_rev = self.max_deleted_rev.max(meta.rev_seqno);
        }
        self.enter(version);
        self.max_visible = self.max_visible.max(meta.by_seqno);
        let replaced = slot.set(version.clone());
        if !meta.kind.is_deleted() {
            let is_update = replaced.as_ref().is_some_and(|old| !old.is_deleted());
            *(if is_update { &mut self.written.updated } else { &mut self.written.created }) += 1;
        }
        if let Some(old) = &replaced {
            self.leave(old);
            if !old.is_deleted() {
                self.frequency.carry_over(old, version);
            }
        }
        replaced
    }

    /// Puts a version in place that was lined up before.
    pub(crate) fn reveal(&mut self, slot: Slot<'_>, version: &Version) -> Garbage {
        Garbage { replaced: self.put(slot, version), ..Garbage::default() }
    }

    /// Puts a complete version in place that has its seqno from elsewhere: a higher one than the last.
    pub(crate) fn record_received(&mut self, slot: Slot<'_>, mut new: NewVersion) -> Stored {
        let meta = new.meta();
        if self.collections.changed(new.key(), meta.by_seqno) {
            new.leave_out_of_history();
        }
        let version = new.publish();
        let replaced = self.put(slot, &version);
        let old = replaced.as_ref().map(|v| v.meta().by_seqno);
        let mut garbage = Garbage { replaced, ..Garbage::default() };
        if let Some(list) = &mut self.seq_list {
            garbage.unlisted = old.and_then(|old| list.replaced(old));
        }
        self.queue(version, old, &mut garbage);
        Stored { cas: meta.cas, by_seqno: meta.by_seqno, rev_seqno: meta.rev_seqno, garbage }
    }

    /// Queues a prepare or an abort, or what is [`base::SyncWrite::Alone`]. `before` is the last prepare or abort of the
    /// key, as far as it is known: they never stand in one checkpoint.
    pub(crate) fn line_up(&mut self, version: &Version, before: Option<Seqno>) -> Garbage {
        if let Some(before) = before {
            self.checkpoints.close_behind(before);
        }
        self.collections.changed(version.document_key(), version.meta().by_seqno);
        let mut garbage = Garbage::default();
        self.queue(version.clone(), None, &mut garbage);
        garbage
    }

    /// Begins the history of changes with the change that is about to be queued, if the history waits for it.
    #[inline]
    fn begin_awaited_history(&mut self, seqno: Seqno) {
        if std::mem::take(&mut self.awaits_history) {
            self.history_from = seqno;
        }
    }

    /// Queues a change, whose seqno must be higher than the last. `old` is the seqno of the version that it replaces, which
    /// is in `garbage`. With a history that version stays queued, unless its collection has no part in the history.
    pub(crate) fn queue(&mut self, version: Version, old: Option<Seqno>, garbage: &mut Garbage) {
        let meta = version.meta();
        assert!(meta.by_seqno > self.high_seqno, "changes come in seqno order");
        self.begin_awaited_history(meta.by_seqno);
        self.high_seqno = meta.by_seqno;
        self.might_contain_xattrs |= meta.datatype.is_xattr();
        let queued = match &mut self.seq_list {
            Some(list) => {
                list.append(version.clone());
                // Whoever comes later reads the past from the list.
                if self.checkpoints.has_cursors() { Some(version) } else { None }
            }
            None => Some(version),
        };
        match queued {
            Some(queued) => {
                let stays = self.history_from > Seqno(0)
                    && garbage.replaced.as_ref().is_none_or(|old| !old.is_left_out_of_history());
                let merged = old.filter(|_| !stays);
                garbage.merged = self.checkpoints.queue_received(queued, merged);
            }
            None => garbage.checkpoints = self.checkpoints.pass_over(meta.by_seqno),
        }
    }
}

impl History {
    /// The role that it had when it came into memory: that of its last save, or the one it was made with.
    pub fn first_role(&self) -> VbState {
        self.first_role
    }

    /// There is no change up to `seqno`.
    pub(crate) fn skip_to(&mut self, seqno: Seqno) -> Garbage {
        self.high_seqno = seqno;
        Garbage { checkpoints: self.checkpoints.skip_to(seqno), ..Garbage::default() }
    }
}

/// The documents of a vBucket: which there are, in memory or not, and every change of them. It dereferences to its
/// history.
///
/// What each operation touches lies in front, as in [`VBucket`].
#[repr(C)]
pub struct Contents {
    pub(crate) table: HashTable,
    pub(crate) locks: Locks,
    pub(crate) history: History,
    pub(crate) evicted: Evicted,
    /// How far the disk is; nothing if there is none.
    pub(crate) persistence: Option<CursorId>,
    pub(crate) persisted_seqno: Seqno,
    /// The same without what is on disk of a snapshot that is not there as a whole.
    pub(crate) persisted_whole: Seqno,
    pub(crate) purge_seqno: Seqno,
    /// At least the largest revision of a tombstone that is on disk.
    pub(crate) stored_deleted_rev: RevSeqno,
    /// What the list of its collections takes.
    pub(crate) collections_charge: Charge,
}

impl Deref for Contents {
    type Target = History;

    #[inline]
    fn deref(&self) -> &History {
        &self.history
    }
}

impl DerefMut for Contents {
    #[inline]
    fn deref_mut(&mut self) -> &mut History {
        &mut self.history
    }
}

/// One vBucket in memory: its contents, to which it dereferences, its role, and sync writes.
///
/// In memory the fields lie in this order: what each operation touches in front, so that few lines of the processor's cache
/// hold it, and a reader of a batch asks for them before it is their turn.
#[repr(C)]
pub struct VBucket {
    pub(crate) state: VbState,
    pub(crate) state_changed: bool,
    pub(crate) sync_writes: SyncWrites,
    pub(crate) contents: Contents,
    /// What the flusher has taken.
    pub(crate) taken: Taken,
    pub(crate) topology: Option<Topology>,
}

impl Deref for VBucket {
    type Target = Contents;

    #[inline]
    fn deref(&self) -> &Contents {
        &self.contents
    }
}

impl DerefMut for VBucket {
    #[inline]
    fn deref_mut(&mut self) -> &mut Contents {
        &mut self.contents
    }
}

/// Has a vBucket leave no version out from now on if its bucket keeps a history of changes and it is active. If the bucket
/// keeps none, the vBucket may leave any out.
///
/// A vBucket that is not active is sent what another one made: whether that lacks versions, the markers of its snapshots
/// say. What is whole stays so with every role.
pub fn follow_history(vb: &mut VBucket) {
    let (keeps, is_active) = (vb.contents.table.context().keeps_history(), vb.state == VbState::Active);
    let history = &mut vb.contents.history;
    history.awaits_history &= keeps && !is_active;
    history.history_from = match history.history_from {
        _ if !keeps => Seqno(0),
        Seqno(0) if is_active => history.high_seqno.next(),
        from => from,
    };
}

/// How many changes brought a document to a vBucket.
pub fn written(vb: &VBucket) -> Written {
    vb.history.written
}

/// What the clock of a vBucket has seen.
pub fn clock_counts(vb: &VBucket) -> ClockCounts {
    vb.history.hlc.counts()
}

impl VBucket {
    /// A vBucket without documents; warmup brings them with [`VBucket::install`].
    pub fn new(id: VbId, context: &BucketContext, origin: Origin) -> VBucket {
        let high = origin.high_seqno;
        let snapshot = origin.snapshot.filter(|snapshot| snapshot.is_inside(high));
        let mut checkpoints = match snapshot {
            Some(snapshot) => CheckpointManager::inside(context, high, snapshot),
            None => CheckpointManager::new(context, high),
        };
        let mut seq_list = None;
        let mut persistence = None;
        if context.is_ephemeral {
            seq_list = Some(Box::new(SeqList::new(origin.high_seqno, context.account())));
        } else {
            let cursor = checkpoints.register_lasting_cursor(context.flusher.clone(), origin.high_seqno);
            persistence = Some(cursor.expect("a new manager accepts a cursor at its high seqno"));
        }
        let hlc = Hlc::new(origin.max_cas, context.clock.clone());
        let sync_writes = SyncWrites::new(&origin, context.needs_topology);
        if origin.topology.is_some() {
            context.note_topology();
        }
        let mut collections_charge = Charge::new(context.account().clone());
        collections_charge.set(origin.collections.allocated_bytes());
        let history = History {
            id,
            first_role: origin.state,
            checkpoints,
            seq_list,
            hlc,
            collections: origin.collections,
            counts: Counts::default(),
            written: Written::default(),
            high_seqno: origin.high_seqno,
            history_from: origin.history_from,
            awaits_history: false,
            max_visible: origin.max_visible,
            max_deleted_rev: origin.max_deleted_rev,
            might_contain_xattrs: origin.might_contain_xattrs,
            frequency: context.frequency.clone(),
            failover: origin.failover,
        };
        let contents = Contents {
            table: HashTable::new(context),
            evicted: Evicted::new(context),
            history,
            persistence,
            locks: Locks::default(),
            persisted_seqno: origin.high_seqno,
            persisted_whole: snapshot.map_or(high, |snapshot| snapshot.start),
            purge_seqno: origin.purge_seqno,
            stored_deleted_rev: origin.max_deleted_rev,
            collections_charge,
        };
        let mut vb = VBucket {
            contents,
            state: origin.state,
            taken: Taken::default(),
            topology: origin.topology,
            sync_writes,
            state_changed: false,
        };
        follow_history(&mut vb);
        vb
    }

    /// Its role.
    pub fn state(&self) -> VbState {
        self.state
    }

    /// Changes the role; a vBucket that becomes active begins a new history: while it was not, changes may have been
    /// made elsewhere. In the middle of a snapshot it lacks what the snapshot's later changes replaced, so the new
    /// history begins where the snapshot does.
    pub fn set_state(&mut self, state: VbState, topology: Option<Topology>, uuid: impl FnOnce() -> VbUuid) {
        if state == VbState::Active && self.state != VbState::Active {
            let is_whole = planted::is(Bug::PromotedInsideSnapshot);
            let from = if is_whole { self.contents.history.high_seqno } else { self.snapshot().start };
            if !planted::is(Bug::NoHistoryAtPromotion) {
                self.contents.history.failover.new_entry(uuid(), from);
            }
            if planted::is(Bug::ForgetPrepareAtPromotion) {
                self.sync_writes.prepares = None;
            }
            self.contents.history.checkpoints.give_up_snapshot();
            self.contents.history.hlc.doubt();
            // Whoever has what, has to say so again.
            self.sync_writes.active = ActiveMonitor::new(None, self.contents.table.context().needs_topology);
            self.sync_writes.adopted = self.contents.history.high_seqno;
            self.sync_writes.passive.snapshot_complete();
        }
        self.begin_in(state, topology);
    }

    /// Gives its first role to a vBucket that nobody had before.
    pub fn begin_in(&mut self, state: VbState, topology: Option<Topology>) {
        self.state = state;
        follow_history(self);
        if topology.is_some() {
            self.contents.table.context().note_topology();
        }
        self.topology = topology;
        self.sync_writes.active.set_topology(self.topology.as_ref());
        self.state_changed = true;
    }

    /// Takes the place of a vBucket that went back to what this one has: with its role, which is not active, and those
    /// of its histories that begin no later than what it has ends: in the middle of a snapshot that is the snapshot's
    /// end, as what it has of that was chosen by the history in which it ends.
    pub fn take_over(&mut self, state: VbState, topology: Option<Topology>, mut histories: FailoverTable) {
        histories.prune_above(self.snapshot().end);
        self.contents.history.failover = histories;
        self.begin_in(state, topology);
    }

    /// Begins a new history at the present high seqno.
    pub fn new_history(&mut self, uuid: VbUuid) {
        self.contents.history.failover.new_entry(uuid, self.contents.history.high_seqno);
        self.state_changed = true;
    }

    /// Who holds it; nothing: this node alone, or that is not known yet (`needs_topology`).
    pub fn topology(&self) -> Option<&Topology> {
        self.topology.as_ref()
    }
}

impl Contents {
    /// The last change that is on disk, synced; 0 for ever if there is no disk.
    pub fn persisted_seqno(&self) -> Seqno {
        self.persisted_seqno
    }

    /// Up to here the disk has all that there was at that seqno, synced; 0 for ever if there is no disk. Of a snapshot of
    /// which a part is on disk none counts: what was replaced within it is not in it, and what replaced it may be in the
    /// other part.
    pub fn persisted_whole(&self) -> Seqno {
        if planted::is(Bug::PartOfSnapshotCounts) { self.persisted_seqno } else { self.persisted_whole }
    }

    /// Tombstones up to here may have been forgotten.
    pub fn purge_seqno(&self) -> Seqno {
        self.purge_seqno
    }

    /// How many items it has.
    pub fn counts(&self) -> Counts {
        self.history.counts.with(self.evicted.out())
    }

    /// Bytes of the filter of keys that are on disk alone.
    pub fn filter_bytes(&self) -> usize {
        self.evicted.filter_bytes()
    }

    /// The table of documents, for stats and background steps.
    pub fn table(&self) -> &HashTable {
        &self.table
    }

    /// Looks a key up, tombstones and expired documents included.
    #[inline]
    pub fn find(&self, hash: u64, key: DocKey<'_>) -> Result<Option<VersionRef<'_>>, Unknown> {
        match self.table.find(hash, key) {
            None if self.evicted.may_hold(hash, key) => Err(Unknown),
            Some(found) if self.history.collections.hides(&found) => Ok(None),
            found => Ok(found),
        }
    }

    /// The CAS that a reader sees: all ones while the document is locked.
    pub fn visible_cas(&self, key: DocKey<'_>, version: &Version, now: Moment) -> Cas {
        if self.is_locked(key, now) && version.is_live(now) { Cas::LOCKED } else { version.meta().cas }
    }

    /// Whether the key is locked.
    pub fn is_locked(&self, key: DocKey<'_>, now: Moment) -> bool {
        self.locks.holder(key, now).is_some()
    }
}

impl History {
    /// The number of its vBucket.
    pub fn id(&self) -> VbId {
        self.id
    }

    /// The present history.
    pub fn uuid(&self) -> VbUuid {
        self.failover.newest().uuid
    }

    /// Its histories.
    pub fn failover(&self) -> &FailoverTable {
        &self.failover
    }

    /// The last change.
    pub fn high_seqno(&self) -> Seqno {
        self.high_seqno
    }

    /// The largest CAS given out or seen.
    pub fn max_cas(&self) -> Cas {
        self.hlc.max()
    }

    /// The queue of changes, for stats and streams.
    pub fn checkpoints(&self) -> &CheckpointManager {
        &self.checkpoints
    }

    /// The queue of changes, for streams that take from it.
    pub fn checkpoints_mut(&mut self) -> &mut CheckpointManager {
        &mut self.checkpoints
    }

    /// From here on no change is left out that a later one replaces; 0 if any may be.
    pub fn history_from(&self) -> Seqno {
        self.history_from
    }

    /// The largest revision a tombstone had.
    pub fn max_deleted_rev(&self) -> RevSeqno {
        self.max_deleted_rev
    }

    /// Whether any document may have xattrs.
    pub fn might_contain_xattrs(&self) -> bool {
        self.might_contain_xattrs
    }
}

impl Counts {
    pub(crate) fn enter(&mut self, version: &Version) {
        *self.of(version) += 1;
        self.without_value += u64::from(!version.is_resident() && !version.is_deleted());
        self.bytes += version.allocated_bytes() as u64;
        if version.meta().kind == ItemKind::Mutation {
            self.note_expiry(version.meta().expiry);
        }
    }

    /// There is a document that expires then; 0: it never does.
    pub(crate) fn note_expiry(&mut self, expiry: u32) {
        // one less, so that "never" is the largest
        let soonest = (self.earliest_expiry.wrapping_sub(1)).min(expiry.wrapping_sub(1));
        self.earliest_expiry = soonest.wrapping_add(1);
    }

    pub(crate) fn leave(&mut self, version: &Version) {
        *self.of(version) -= 1;
        self.without_value -= u64::from(!version.is_resident() && !version.is_deleted());
        self.bytes -= version.allocated_bytes() as u64;
    }

    /// The same with what is out of memory.
    pub(crate) fn with(self, out: Out) -> Counts {
        Counts {
            documents: self.documents + out.documents,
            tombstones: self.tombstones + out.tombstones,
            evicted_documents: out.documents,
            evicted_tombstones: out.tombstones,
            ..self
        }
    }

    fn of(&mut self, version: &Version) -> &mut u64 {
        if version.is_deleted() { &mut self.tombstones } else { &mut self.documents }
    }
}
