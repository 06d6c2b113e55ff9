//! Sync writes of an active vBucket: a change becomes a prepare, and a document when it is committed.

use base::planted::{self, Bug};
use base::{Cas, DocKey, Heap, Moment, NewVersion, RevSeqno, Seqno, SyncWrite, Version, VersionMeta};

use crate::bucket_context::BucketContext;
use crate::collections::OpenCollection;
use crate::cursor::{CursorId, Dropped};
use crate::durability::{ActiveMonitor, InFlight, NO_DEADLINE, NOT_HELD, PassiveMonitor, Prepares};
use crate::ops::SavedSyncWrites;
use crate::ops::change::{Change, Refusal, Refused, Stored};
use crate::range::{Range, RangeLimit};
use crate::vbucket::{Contents, Garbage, History, Origin, VBucket};

/// What a vBucket knows of its sync writes.
pub struct SyncWrites {
    /// Made when the first prepare comes.
    pub(crate) prepares: Option<Box<Prepares>>,
    pub(crate) active: ActiveMonitor,
    pub(crate) passive: PassiveMonitor,
    /// The last prepare that was committed or aborted.
    pub(crate) completed: Seqno,
    /// The last ones that were committed and aborted here, for stats.
    pub(crate) last_committed: Seqno,
    pub(crate) last_aborted: Seqno,
    /// Prepares up to here have no deadline: they were in flight when the vBucket became active.
    pub(crate) adopted: Seqno,
    /// As the disk has it.
    pub(crate) saved: SavedSyncWrites,
}

/// A prepare that was taken.
pub struct Prepared {
    /// The receipt: CAS and seqno are those of the prepare.
    pub stored: Stored,
    /// If it was committed at once: to be dropped outside the lock.
    pub committed: Option<Garbage>,
}

/// A prepare that is over.
pub struct Completed {
    /// Its seqno.
    pub prepared: Seqno,
    /// Whether readers see it now; else its collection was dropped.
    pub is_committed: bool,
    /// To be dropped outside the lock.
    pub garbage: Garbage,
}

/// What a look for overdue prepares found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OverdueLook {
    /// Where to go on; nothing if that was all.
    pub next: Option<Seqno>,
    /// The earliest deadline of those that were looked at and are not overdue; [`NO_DEADLINE`] if there is none.
    pub earliest_ns: u64,
}

/// Sync writes of a vBucket at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SyncWriteState {
    /// Prepares that are neither committed nor aborted.
    pub in_flight: usize,
    /// Bytes of their versions.
    pub in_flight_bytes: u64,
    /// The last prepare that was made or came.
    pub last_prepared: Seqno,
    /// Up to here this node has all prepares as safe as their levels ask.
    pub high_prepared: Seqno,
    /// Below it nothing is in flight.
    pub high_completed: Seqno,
    /// The last prepare that was committed since the start.
    pub last_committed: Seqno,
    /// The last prepare that was aborted since the start.
    pub last_aborted: Seqno,
    /// What nodes have acknowledged to the active vBucket.
    pub acknowledged: Vec<(String, Seqno)>,
}

impl SyncWrites {
    pub(crate) fn new(origin: &Origin, needs_topology: bool) -> SyncWrites {
        SyncWrites {
            prepares: None,
            active: ActiveMonitor::new(origin.topology.as_ref(), needs_topology),
            passive: PassiveMonitor::new(origin.high_prepared, origin.last_prepared),
            completed: origin.high_completed,
            last_committed: Seqno(0),
            last_aborted: Seqno(0),
            adopted: Seqno(0),
            saved: SavedSyncWrites {
                max_visible: origin.max_visible,
                last_prepared: origin.last_prepared,
                high_prepared: origin.high_prepared,
                high_completed: origin.high_completed,
                ..SavedSyncWrites::default()
            },
        }
    }

    /// The prepare of a document that is in flight.
    #[inline]
    pub(crate) fn of(&self, document: DocKey<'_>) -> Option<&InFlight> {
        self.prepares.as_ref()?.of(document)
    }

    /// Why a document must not be changed now.
    #[inline]
    pub(crate) fn in_the_way(&self, document: DocKey<'_>) -> Option<Refusal> {
        let in_flight = self.of(document)?;
        Some(if in_flight.is_inherited { Refusal::ReCommitInProgress } else { Refusal::SyncWriteInProgress })
    }

    /// Takes a prepare out; nothing if there is none with this seqno.
    pub(crate) fn complete(&mut self, prepared: Seqno) -> Option<InFlight> {
        let gone = self.prepares.as_mut()?.remove(prepared)?;
        self.completed = self.completed.max(prepared);
        Some(gone)
    }

    /// Below this nothing is in flight.
    pub(crate) fn high_completed(&self) -> Seqno {
        match self.prepares.as_ref().and_then(|prepares| prepares.front()) {
            Some(first) => Seqno(self.completed.0.min(first.prepared.0.saturating_sub(1))),
            None => self.completed,
        }
    }
}

impl SyncWrites {
    /// Looks at some prepares in flight from `from` on for those whose time is over, and puts them into `out`.
    pub fn overdue(&self, from: Seqno, now_ns: u64, most: usize, out: &mut Vec<Seqno>) -> OverdueLook {
        let mut look = OverdueLook { next: None, earliest_ns: NO_DEADLINE };
        let Some(prepares) = &self.prepares else { return look };
        // What was adopted has no deadline.
        let from = from.max(self.adopted.next());
        for (looked, prepare) in prepares.from(from).enumerate() {
            if looked >= most {
                look.next = Some(prepare.prepared);
                break;
            }
            if prepare.deadline_ns <= now_ns {
                out.push(prepare.prepared);
            } else {
                look.earliest_ns = look.earliest_ns.min(prepare.deadline_ns);
            }
        }
        look
    }

    /// The prepare of a document that is in flight: whoever would change the document is refused so.
    pub fn sync_write_in_the_way(&self, document: DocKey<'_>) -> Option<Refusal> {
        self.in_the_way(document)
    }

    /// What is prepared of a document, if anything is: not for readers.
    pub fn prepared(&self, document: DocKey<'_>) -> Option<&base::Version> {
        self.of(document).map(|prepare| &prepare.version)
    }

    /// The seqno of the last change that was prepared alone, and is not committed yet.
    pub fn last_alone(&self) -> Option<Seqno> {
        let prepares = self.prepares.as_ref()?;
        prepares.last_alone().map(|one| one.version.meta().by_seqno)
    }

    /// Prepares that are neither committed nor aborted.
    pub fn prepares_in_flight(&self) -> usize {
        self.prepares.as_ref().map_or(0, |prepares| prepares.len())
    }

    /// The first prepare that is neither committed nor aborted.
    pub fn first_in_flight(&self) -> Option<Seqno> {
        Some(self.prepares.as_ref()?.front()?.prepared)
    }

    /// Up to here this node has all prepares as safe as their levels ask.
    pub fn high_prepared_seqno(&self) -> Seqno {
        self.passive.high_prepared()
    }

    /// Whether prepares of complete snapshots count as safe once they are on disk, and are not there yet.
    pub fn prepares_wait_for_disk(&self) -> bool {
        self.passive.complete() > self.passive.high_prepared()
    }

    /// The last prepare that was committed or aborted with none in flight before it.
    pub fn high_completed_seqno(&self) -> Seqno {
        self.high_completed()
    }

    /// How its sync writes stand, for stats.
    pub fn sync_write_state(&self) -> SyncWriteState {
        let bytes = self.prepares.as_ref().map_or(0, |prepares| prepares.bytes());
        let numbers = self.active.acknowledged();
        SyncWriteState {
            in_flight: self.prepares_in_flight(),
            in_flight_bytes: bytes,
            last_prepared: self.passive.last(),
            high_prepared: self.high_prepared_seqno(),
            high_completed: self.high_completed_seqno(),
            last_committed: self.last_committed,
            last_aborted: self.last_aborted,
            acknowledged: numbers.map(|(node, seqno)| (node.to_owned(), seqno)).collect(),
        }
    }

    /// Lets streams have what was held back from them, as far as it is committed.
    pub(crate) fn release_alone(&mut self, persisted: Seqno) {
        if let Some(prepares) = &mut self.prepares {
            prepares.release(persisted);
        }
    }

    pub(crate) fn prepares_mut(&mut self, context: &BucketContext) -> &mut Prepares {
        self.prepares.get_or_insert_with(|| Box::new(Prepares::new(context)))
    }

    /// Whether a prepare in flight is as safe as its level asks.
    fn is_safe(&self, one: &InFlight, persisted: Seqno) -> bool {
        if one.is_alone() {
            let is_on_disk =
                one.version.meta().by_seqno <= persisted || planted::is(Bug::AloneCommittedBeforeDisk);
            return one.level() == base::DurabilityLevel::Majority || is_on_disk;
        }
        self.active.is_satisfied(one.prepared, one.level(), persisted)
    }

    /// A document changes without a commit that names its prepare, as in a snapshot from a disk: a prepare of it is over.
    /// It is to be dropped outside the lock.
    pub(crate) fn supersede(&mut self, document: DocKey<'_>, history: &mut History) -> Option<Version> {
        let prepared = self.of(document)?.prepared;
        let prepare = self.complete(prepared)?;
        if let Some(list) = &mut history.seq_list {
            // The prepare is held here, too: nothing is freed.
            drop(list.replaced(prepared));
        }
        Some(prepare.version)
    }

    pub(crate) fn present(&self, history: &History) -> SavedSyncWrites {
        let passive = &self.passive;
        let prepares = self.prepares.as_ref();
        // What is alone is committed once this is saved.
        let last_alone =
            prepares.filter(|prepares| prepares.stored_len() == 0).and_then(|one| one.last_alone());
        let (mut max_visible, mut high_completed) = (history.max_visible, self.high_completed());
        if let Some(last) = last_alone {
            max_visible = max_visible.max(last.version.meta().by_seqno);
            high_completed = last.prepared;
        }
        SavedSyncWrites {
            max_visible,
            last_prepared: passive.last(),
            high_prepared: passive.complete(),
            high_completed,
            in_flight: prepares.map_or(0, |prepares| prepares.stored_len() as u64),
            in_flight_bytes: prepares.map_or(0, |prepares| prepares.stored_bytes()),
        }
    }
}

/// The abort of a prepare with this key and metadata.
pub(crate) fn make_abort(
    heap: &Heap,
    key: DocKey<'_>,
    prepare: VersionMeta,
    at: Seqno,
    now_s: u32,
) -> Version {
    let meta = VersionMeta {
        by_seqno: at,
        sync_write: SyncWrite::Abort { prepared: prepare.by_seqno },
        kind: base::ItemKind::Deletion,
        datatype: base::Datatype::RAW,
        flags: 0,
        expiry: now_s,
        ..prepare
    };
    NewVersion::new(heap, meta, key, &[]).publish()
}

/// The metadata of a version that becomes or replaces the prepare `of`.
fn completed_meta(of: &Version, by_seqno: Seqno, sync_write: SyncWrite) -> VersionMeta {
    VersionMeta { by_seqno, sync_write, ..of.meta() }
}

impl VBucket {
    /// Its sync writes.
    pub fn sync_writes(&self) -> &SyncWrites {
        &self.sync_writes
    }

    /// Takes what comes next for a stream, as far as it is committed: see [`crate::CheckpointManager::take_range`].
    pub fn take_for_stream(&mut self, cursor: CursorId, limit: RangeLimit) -> Result<Option<Range>, Dropped> {
        let held = self.sync_writes.prepares.as_ref().map(|prepares| prepares.held_from());
        let end = held.filter(|_| !planted::is(Bug::AloneStreamedBeforeDisk)).unwrap_or(NOT_HELD);
        self.contents.history.checkpoints.take_range_before(cursor, limit, end)
    }

    /// A node takes changes behind `from`: what it acknowledged beyond, it has lost.
    pub fn replica_resumes(&mut self, node: &str, from: Seqno) {
        self.sync_writes.active.resume(self.topology.as_ref(), node, from);
    }

    /// Prepares a change, or refuses it without a trace. Its version must be a prepare.
    ///
    /// If this node is a majority alone and the level asks for no disk, it is committed at once; else when enough nodes
    /// have it, by [`VBucket::commit_ready`], or it is aborted after `deadline_ns`, by [`VBucket::abort`].
    /// `finish` is called once CAS, seqno and revision are in the metadata, for values that contain them.
    pub fn prepare(
        &mut self,
        hash: u64,
        change: Change,
        deadline_ns: u64,
        now: Moment,
        finish: impl FnOnce(&mut NewVersion),
    ) -> Result<Prepared, Refused> {
        let Change { mut new, existence, cas, basis, preserve_expiry } = change;
        let (level, mut is_alone) = match new.meta().sync_write {
            SyncWrite::Prepare(level) => (level, false),
            SyncWrite::Alone(level) => (level, true),
            _ => panic!("a prepare is made of a version that is one"),
        };
        if !self.sync_writes.active.is_possible(self.topology.as_ref()) {
            return Err(Refused { refusal: Refusal::DurabilityImpossible, new });
        }
        let current = match self.check(hash, new.document_key(), existence, cas, basis, now) {
            Ok(current) => current,
            Err(refusal) => return Err(Refused { refusal, new }),
        };
        self.contents.locks.remove(new.document_key());
        let forgotten = self.forgotten_rev();
        self.contents.history.complete(&mut new, current.as_ref(), forgotten, preserve_expiry, now);
        finish(&mut new);
        let nobody_waits = self.sync_writes.prepares.as_ref().is_none_or(|prepares| prepares.len() == 0);
        if is_alone {
            let prepared = new.meta().by_seqno;
            let is_safe = nobody_waits
                && self.sync_writes.active.is_satisfied(prepared, level, self.contents.persisted_seqno);
            is_alone = self.topology.is_none() && (is_safe || self.contents.persistence.is_some());
            if is_alone {
                return Ok(self.prepare_alone(hash, new, current, level, is_safe, deadline_ns));
            }
            // It is not alone, as it turned out.
            let (heap, alone) = (&self.contents.table.context().heap, new.publish());
            new = NewVersion::prepare_like(heap, level, alone.meta(), alone.key(), &alone);
        }
        let version = new.publish();
        let meta = version.meta();
        let prepared = meta.by_seqno;
        // The document's last prepare may stand in the open checkpoint.
        let before = current.and_then(|current| match current.meta().sync_write {
            SyncWrite::Commit { prepared } => Some(prepared),
            _ => None,
        });
        let garbage = self.contents.history.line_up(&version, before);
        let must_be_on_disk = level != base::DurabilityLevel::Majority;
        self.sync_writes.passive.prepared(prepared, must_be_on_disk.then_some(prepared));
        self.sync_writes.passive.snapshot_complete();
        let stored = Stored { cas: meta.cas, by_seqno: prepared, rev_seqno: meta.rev_seqno, garbage };
        if nobody_waits
            && self.sync_writes.active.is_satisfied(prepared, level, self.contents.persisted_seqno)
        {
            let garbage = self.make_commit(version);
            self.sync_writes.completed = prepared;
            return Ok(Prepared { stored, committed: Some(garbage) });
        }
        self.sync_writes.prepares_mut(self.contents.table.context()).insert(version, deadline_ns, false);
        Ok(Prepared { stored, committed: None })
    }

    /// Prepares with the seqno that the version has, and commits with the next, which the version has from here on. It
    /// takes its document's place once it is as safe as its level asks, and so do all before it: at once if it `is_safe`.
    /// Until then nobody but the flusher gets it.
    fn prepare_alone(
        &mut self,
        hash: u64,
        mut new: NewVersion,
        current: Option<Version>,
        level: base::DurabilityLevel,
        is_safe: bool,
        deadline_ns: u64,
    ) -> Prepared {
        let meta = new.meta();
        let (prepared, at) = (meta.by_seqno, meta.by_seqno.next());
        new.meta_mut().by_seqno = at;
        let on_disk = (level != base::DurabilityLevel::Majority).then_some(at);
        self.sync_writes.passive.prepared(prepared, on_disk);
        self.sync_writes.passive.snapshot_complete();
        // What is part of a sync write is not merged: a key's other changes stand in other checkpoints.
        if let Some(current) = current {
            self.contents.history.checkpoints.close_behind(current.meta().by_seqno);
        }
        let stored =
            |garbage| Stored { cas: meta.cas, by_seqno: prepared, rev_seqno: meta.rev_seqno, garbage };
        if is_safe || planted::is(Bug::AloneSeenAtOnce) {
            self.contents.evicted.ties.changed(new.key());
            self.note_covered(hash, &new);
            let garbage = self
                .contents
                .history
                .record_received(self.contents.table.find_slot(hash, new.key()), new)
                .garbage;
            (self.sync_writes.completed, self.sync_writes.last_committed) = (prepared, prepared);
            return Prepared { stored: stored(Garbage::default()), committed: Some(garbage) };
        }
        let collection = self.contents.history.collections.get(new.key().collection);
        if collection.is_some_and(OpenCollection::is_left_out_of_history) {
            new.leave_out_of_history();
        }
        let version = new.publish();
        if meta.kind.is_deleted() {
            // What is saved before it takes its place counts it.
            self.contents.history.max_deleted_rev = self.contents.history.max_deleted_rev.max(meta.rev_seqno);
        }
        if self.sync_writes.prepares.as_ref().is_none_or(|prepares| prepares.held_from() == NOT_HELD) {
            let from = self.contents.history.checkpoints.close_before_next();
            self.sync_writes.prepares_mut(self.contents.table.context()).hold(from);
        }
        let garbage = self.contents.history.line_up(&version, None);
        self.sync_writes.prepares_mut(self.contents.table.context()).insert(version, deadline_ns, false);
        Prepared { stored: stored(garbage), committed: None }
    }

    /// Puts what was prepared alone in its document's place, where nobody could see it before.
    fn publish_alone(&mut self, InFlight { version, prepared, hash, .. }: InFlight) -> Garbage {
        self.sync_writes.last_committed = prepared;
        self.contents.evicted.ties.changed(version.key());
        self.note_covered(hash, &version);
        self.contents.history.reveal(self.contents.table.find_slot(hash, version.key()), &version)
    }

    /// Puts a prepare in its document's place. It must not be in flight any more.
    fn make_commit(&mut self, prepare: Version) -> Garbage {
        let at = self.contents.history.high_seqno.next();
        let prepared = prepare.meta().by_seqno;
        self.sync_writes.last_committed = prepared;
        let key = prepare.document_key();
        let meta = completed_meta(&prepare, at, SyncWrite::Commit { prepared });
        let new = NewVersion::like(&self.contents.table.context().heap, meta, key, &prepare);
        self.contents.evicted.ties.changed(key);
        let hash = self.contents.table.hash(key);
        self.note_covered(hash, &new);
        let garbage = self.contents.history.record(self.contents.table.find_slot(hash, key), new).garbage;
        Garbage { prepare: self.unlist(prepare).prepare, ..garbage }
    }

    /// Commits prepares that are as safe as their levels ask, in seqno order, at most `most` of them; one whose
    /// collection was dropped ends without. Whether there may be more. What a node that is alone has prepared and saved is
    /// committed whatever the role is by now.
    pub fn commit_ready(&mut self, most: usize, out: &mut Vec<Completed>) -> bool {
        let has_more = self.commit_some(most, out);
        self.sync_writes.release_alone(self.contents.persisted_seqno);
        has_more
    }

    fn commit_some(&mut self, most: usize, out: &mut Vec<Completed>) -> bool {
        for _ in 0..most {
            let Some(prepares) = self.sync_writes.prepares.as_ref() else { return false };
            let is_safe = |one: &&InFlight| self.sync_writes.is_safe(one, self.contents.persisted_seqno);
            let first = match planted::is(Bug::CommitOutOfOrder) {
                true => prepares.from(Seqno(0)).find(is_safe),
                false => prepares.front(),
            };
            let Some(first) = first else { return false };
            let (prepared, is_alone) = (first.prepared, first.is_alone());
            if !is_alone && self.state != base::VbState::Active {
                return false;
            }
            if prepared <= self.sync_writes.adopted && planted::is(Bug::AdoptedLeftOpen) {
                return false;
            }
            let is_committed = !self.is_of_dropped(&first.version);
            if is_committed && !self.sync_writes.is_safe(first, self.contents.persisted_seqno) {
                return false;
            }
            let prepare = self.sync_writes.complete(prepared).expect("it is the first in flight");
            let garbage = match (is_committed, is_alone) {
                (true, true) => self.publish_alone(prepare),
                (true, false) => self.make_commit(prepare.version),
                (false, _) => self.unlist(prepare.version),
            };
            out.push(Completed { prepared, is_committed, garbage });
        }
        true
    }

    /// Aborts a prepare in flight of an active vBucket; nothing if it is none any more, or one that the disk may have as
    /// committed already ([`SyncWrite::Alone`]): that waits for as long as it takes. Drop what is returned outside the
    /// lock.
    pub fn abort(&mut self, prepared: Seqno, now: Moment) -> Option<Garbage> {
        if self.state != base::VbState::Active {
            return None;
        }
        let prepares = self.sync_writes.prepares.as_mut()?;
        if prepares.get(prepared)?.is_alone() {
            prepares.forget_deadline(prepared);
            return None;
        }
        let prepare = self.sync_writes.complete(prepared)?.version;
        if self.is_of_dropped(&prepare) {
            return Some(self.unlist(prepare));
        }
        self.sync_writes.last_aborted = prepared;
        let at = self.contents.history.high_seqno.next();
        let abort =
            make_abort(&self.contents.table.context().heap, prepare.key(), prepare.meta(), at, now.unix_s());
        let mut garbage = self.contents.history.line_up(&abort, Some(prepared));
        if let Some(list) = &mut self.contents.history.seq_list {
            // The prepare is held here, too: nothing is freed.
            drop(list.replaced(prepared));
        }
        garbage.prepare = Some(prepare);
        Some(garbage)
    }

    /// A node has all prepares up to `prepared` as safe as their levels ask. Whether something may be committed now.
    pub fn acknowledged(&mut self, node: &str, prepared: Seqno) -> bool {
        let prepared = prepared.min(self.contents.history.high_seqno);
        self.sync_writes.active.acknowledge(self.topology.as_ref(), node, prepared)
            && self.sync_writes.prepares_in_flight() > 0
    }
}

impl History {
    /// Takes a prepare that is over out of the list of an ephemeral bucket.
    pub(super) fn unlist(&mut self, prepare: Version) -> Garbage {
        if let Some(list) = &mut self.seq_list {
            // The prepare is held here, too: nothing is freed.
            drop(list.replaced(prepare.meta().by_seqno));
        }
        Garbage { prepare: Some(prepare), ..Garbage::default() }
    }

    /// The last change that readers of documents can see: no prepare, no abort.
    pub fn max_visible_seqno(&self) -> Seqno {
        self.max_visible
    }
}

impl Contents {
    /// A key that is not here may have had a tombstone that is purged or on disk alone; other nodes may still have it,
    /// and must not prefer it: a new document goes beyond all tombstones that are on disk (recorded).
    pub(crate) fn forgotten_rev(&self) -> RevSeqno {
        let is_purged = self.purge_seqno > Seqno(0);
        if is_purged { self.history.max_deleted_rev } else { self.stored_deleted_rev }
    }
}

impl History {
    /// Gives a change its CAS, revision and seqno.
    #[inline]
    pub(crate) fn complete(
        &mut self,
        new: &mut NewVersion,
        current: Option<&Version>,
        forgotten: RevSeqno,
        preserve_expiry: bool,
        now: Moment,
    ) {
        let last = current.map_or(forgotten, |version| version.meta().rev_seqno);
        let mut meta = new.meta_mut();
        meta.cas = self.hlc.next_after(current.map_or(Cas::ANY, |version| version.meta().cas), now.0);
        meta.rev_seqno = RevSeqno((last.0 + 1).min(crate::ops::with_meta::MAX_REV_SEQNO));
        meta.by_seqno = self.high_seqno.next();
        if let Some(old) = current.filter(|v| preserve_expiry && v.is_live(now)) {
            meta.expiry = old.meta().expiry;
        }
    }
}
