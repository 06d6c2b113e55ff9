//! A replica follows an active vBucket of another node: where it stands, and what it is sent.

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use base::version::MAX_SEQNO;
use base::{
    Cas, CollectionId, DocKey, ItemKind, Moment, NewVersion, RevSeqno, Seqno, StoredKey, SyncWrite, VbId,
    VbUuid, VersionMeta, limits,
};
use parking_lot::Mutex;
use vbucket::collections::SystemEvent;
use vbucket::{
    FailoverEntry, FailoverTable, IncomingSnapshot, MAX_FOREIGN_CAS, MAX_REV_SEQNO, Misplaced, Stored,
    VBucket,
};

use crate::bucket_core::{Core, hurry_flush};
use crate::checkpoint_recovery::Checkpoints;
use crate::collections::BucketCollections;
use crate::completion::{Completer, Completion, completion};
use crate::counters::OpCounts;
use crate::evict::Eviction;
use crate::flush_queue::LARGE_BACKLOG;
use crate::refusal::Refusal;
use crate::shard::ReplicaStream;
use crate::shard_guard::{Holder, ShardGuard};
use crate::value;

/// Changes of replicas are taken up to so many hundredths of the quota.
const REPLICA_PERCENT: u64 = 99;
/// Changes that are applied while a vBucket's lock is held once.
const CHANGES_PER_LOCK: usize = 64;

/// Where a replica stands: what to ask a producer for. It holds until something is applied, or the vBucket gets
/// another role or another content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplicaPosition {
    /// Which vBucket.
    pub vb: VbId,
    /// The last seqno that it has.
    pub start: Seqno,
    /// The history that this belongs to; 0 if it has nothing.
    pub uuid: VbUuid,
    /// Start of the snapshot that it has a part of; `start` if it stands between snapshots.
    pub snapshot_start: Seqno,
    /// End of that snapshot; `start` if it stands between snapshots.
    pub snapshot_end: Seqno,
    /// Tombstones up to here may be missing.
    pub purge: Seqno,
    /// Tells the vBucket from one that takes its place.
    pub(crate) incarnation: u64,
}

/// A change that a producer sent.
pub enum Incoming {
    /// A document, tombstone, system event or prepare, complete: see [`Replicas::received`].
    Version(NewVersion),
    /// What was prepared is the document now.
    Commit {
        /// The document's key.
        key: StoredKey,
        /// Seqno of the prepare; 0 if it was not in the snapshot.
        prepared: Seqno,
        /// Its own seqno.
        seqno: Seqno,
    },
    /// What was prepared came to nothing.
    Abort {
        /// The document's key.
        key: StoredKey,
        /// Seqno of the prepare.
        prepared: Seqno,
        /// Its own seqno.
        seqno: Seqno,
    },
}

/// What was applied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Applied {
    /// How many changes.
    pub changes: usize,
    /// The last seqno that the vBucket has now.
    pub high_seqno: Seqno,
    /// Whether that is the end of the snapshot.
    pub is_complete: bool,
}

/// Why a replica does not take something; of the change that is refused nothing was applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplicaRefusal {
    /// The vBucket is no replica (or pending), or the stream is void: ask for a position again, if at all.
    NotReplica,
    /// Its documents are not loaded yet: wait for [`Loading::loaded`](crate::Loading::loaded).
    Loading,
    /// There is no room now: wait for [`Replicas::replica_room`].
    Full,
    /// The producer breaks the protocol: end the connection.
    Misplaced(Misplaced),
    /// The failover log is empty or out of order: end the connection.
    BadFailoverLog,
    /// A key, value or number that cannot be: end the connection.
    Malformed,
    /// This kind of change cannot be taken: end the stream.
    NotSupported,
}

impl From<Refusal> for ReplicaRefusal {
    fn from(refusal: Refusal) -> ReplicaRefusal {
        match refusal {
            Refusal::Loading => ReplicaRefusal::Loading,
            _ => ReplicaRefusal::NotReplica,
        }
    }
}

impl From<Misplaced> for ReplicaRefusal {
    fn from(misplaced: Misplaced) -> ReplicaRefusal {
        ReplicaRefusal::Misplaced(misplaced)
    }
}

/// What replicas of the bucket are sent, and whether there is room for it.
pub struct Replicas {
    pub(crate) core: Arc<Core>,
    checkpoints: Arc<Checkpoints>,
    collections: Arc<BucketCollections>,
    eviction: Arc<Eviction>,
    /// Streams that were accepted.
    streams: AtomicU64,
    /// Who waits for room: no more than there are consumers.
    waiting: Mutex<Vec<Completer<()>>>,
}

impl Replicas {
    pub(crate) fn new(
        core: &Arc<Core>,
        checkpoints: &Arc<Checkpoints>,
        collections: &Arc<BucketCollections>,
        eviction: &Arc<Eviction>,
    ) -> Replicas {
        Replicas {
            core: Arc::clone(core),
            checkpoints: Arc::clone(checkpoints),
            collections: Arc::clone(collections),
            eviction: Arc::clone(eviction),
            streams: AtomicU64::new(0),
            waiting: Mutex::default(),
        }
    }

    /// Where a replica (or pending vBucket) stands. Refused as `Loading` while its documents are not loaded, and as
    /// `NotMyVbucket` if it has another role.
    ///
    /// A producer that does not know the history answers with a rollback to 0.
    pub fn replica_position(&self, vb: VbId) -> Result<ReplicaPosition, Refusal> {
        let shard = self.core.vbuckets.loaded(vb, Holder::FrontEnd)?;
        if !shard.vb.is_following() {
            return Err(Refusal::NotMyVbucket);
        }
        let (start, snapshot) = (shard.vb.high_seqno(), shard.vb.snapshot());
        // Newer histories begin behind what it has: whoever does not know them may know this one. A node that was active
        // and crashed has such a one that nobody else has heard of.
        let history = shard.vb.failover().of(snapshot.end);
        Ok(ReplicaPosition {
            vb,
            start,
            uuid: if start == Seqno(0) { VbUuid(0) } else { history.uuid },
            snapshot_start: snapshot.start,
            snapshot_end: snapshot.end,
            purge: shard.vb.purge_seqno(),
            incarnation: shard.incarnation,
        })
    }

    /// A producer accepted to send what follows `asked`: its failover log, newest first, becomes the vBucket's.
    /// Refused as `NotReplica` if the vBucket does not stand there any more.
    pub fn adopt_failover(
        &self,
        asked: &ReplicaPosition,
        log: Vec<FailoverEntry>,
    ) -> Result<ReplicaStream, ReplicaRefusal> {
        let histories = FailoverTable::from_entries(log).ok_or(ReplicaRefusal::BadFailoverLog)?;
        let mut shard = self.core.vbuckets.loaded(asked.vb, Holder::FrontEnd)?;
        let is_there = shard.incarnation == asked.incarnation && shard.vb.high_seqno() == asked.start;
        if !shard.vb.is_following() || !is_there {
            return Err(ReplicaRefusal::NotReplica);
        }
        shard.vb.adopt_failover(histories);
        let number = self.streams.fetch_add(1, Ordering::Relaxed) + 1;
        shard.replica_stream = number;
        self.core.queue_flush(&mut shard);
        Ok(ReplicaStream { vb: asked.vb, number })
    }

    /// Locks the vBucket of a stream that is not void.
    fn replica(&self, stream: ReplicaStream) -> Result<ShardGuard<'_>, ReplicaRefusal> {
        let shard = self.core.vbuckets.loaded(stream.vb, Holder::FrontEnd)?;
        if shard.follows(stream) { Ok(shard) } else { Err(ReplicaRefusal::NotReplica) }
    }

    /// Whether a stream is not void.
    pub fn is_followed(&self, stream: ReplicaStream) -> bool {
        self.replica(stream).is_ok()
    }

    /// A marker announces a snapshot: what follows lies in it.
    pub fn begin_snapshot(
        &self,
        stream: ReplicaStream,
        snapshot: &IncomingSnapshot,
    ) -> Result<(), ReplicaRefusal> {
        let mut shard = self.replica(stream)?;
        shard.vb.begin_snapshot(snapshot)?;
        if shard.vb.has_unflushed() {
            self.core.queue_flush(&mut shard);
        }
        Ok(())
    }

    /// Makes a version of what a producer sent, charged to the bucket; checks everything that the protocol limits.
    /// `meta` has seqno, revision, CAS, flags, expiry or delete time, datatype, kind and part in a sync write.
    pub fn received(
        &self,
        meta: VersionMeta,
        key: DocKey<'_>,
        value: &[u8],
    ) -> Result<NewVersion, ReplicaRefusal> {
        let is_numbered = (1..=MAX_SEQNO).contains(&meta.by_seqno.0) && meta.rev_seqno.0 <= MAX_REV_SEQNO;
        let is_timed = meta.cas != Cas::ANY && meta.cas <= MAX_FOREIGN_CAS;
        // What ends something is a tombstone among events.
        let is_event = key.collection == CollectionId::SYSTEM;
        let is_key = if is_event {
            matches!(meta.kind, ItemKind::SystemEvent | ItemKind::Deletion)
                && key.encoded_len() <= limits::MAX_PREFIXED_KEY_BYTES
        } else {
            let is_document = key.collection != CollectionId::PREPARES && meta.kind != ItemKind::SystemEvent;
            is_document && key.is_valid_len()
        };
        if !is_numbered || !is_key || !(is_timed || is_event) {
            return Err(ReplicaRefusal::Malformed);
        }
        let (datatype, value) = if is_event {
            (meta.datatype, Cow::Borrowed(value))
        } else {
            value::checked(self.core.keeps_compressed(), meta.datatype, value, &self.core.value_times)
                .map_err(|_| ReplicaRefusal::Malformed)?
        };
        let meta = VersionMeta { datatype, ..meta };
        let heap = &self.core.context.heap;
        if !matches!(meta.sync_write, SyncWrite::Prepare(_)) {
            return Ok(NewVersion::new(heap, meta, key, &[&value]));
        }
        let (prepared, len) = key.to_prepared();
        let key = DocKey { collection: CollectionId::PREPARES, key: &prepared[..len] };
        Ok(NewVersion::new(heap, meta, key, &[&value]))
    }

    /// The same for an event of collections. Its delete time, which nobody sends, is now.
    pub fn received_event(
        &self,
        event: &SystemEvent,
        by_seqno: Seqno,
        cas: Cas,
    ) -> Result<NewVersion, ReplicaRefusal> {
        if !(1..=MAX_SEQNO).contains(&by_seqno.0) || cas > MAX_FOREIGN_CAS {
            return Err(ReplicaRefusal::Malformed);
        }
        let mut new = event.to_version(&self.core.context.heap);
        let mut meta = new.meta_mut();
        (meta.by_seqno, meta.cas, meta.rev_seqno) = (by_seqno, cas, RevSeqno(1));
        if meta.kind.is_deleted() {
            meta.expiry = self.core.now().unix_s();
        }
        drop(meta);
        Ok(new)
    }

    /// Applies changes from the front of `changes`, and takes out what it applied: all, or up to the one that is
    /// refused. The lock is held for some changes at a time.
    pub fn apply_replicated(
        &self,
        stream: ReplicaStream,
        changes: &mut Vec<Incoming>,
    ) -> Result<Applied, ReplicaRefusal> {
        let mut applied = Applied::default();
        let now = self.core.now();
        let mut rest = std::mem::take(changes).into_iter();
        let outcome = loop {
            if rest.len() > 0 && !self.has_replica_room() {
                break Err(ReplicaRefusal::Full);
            }
            let some: Vec<(u64, Incoming)> =
                rest.by_ref().take(CHANGES_PER_LOCK).map(|change| (self.hash_of(&change), change)).collect();
            let mut some = some.into_iter();
            let mut garbage = Vec::with_capacity(some.len());
            let mut over = Vec::new();
            let refused = match self.replica(stream) {
                Ok(mut shard) => {
                    let mut ops = OpCounts::default();
                    let refused = some.find_map(|(hash, change)| {
                        let count = counter_of(&change);
                        let stored = apply(&mut shard.vb, change, hash, now);
                        stored.map(|stored| garbage.push(stored)).inspect(|()| count(&mut ops)).err()
                    });
                    shard.ops.add(&ops);
                    shard.vb.note_complete(&mut over);
                    applied.note(&shard.vb, garbage.len());
                    if !garbage.is_empty() {
                        self.core.queue_flush(&mut shard);
                        self.collections.manifest.note_dropped(&mut shard, &self.core.keeper);
                    }
                    // Somebody waits for the acknowledgement.
                    if shard.unflushed() > LARGE_BACKLOG || shard.vb.sync_writes().prepares_wait_for_disk() {
                        hurry_flush(&self.core, &mut shard);
                    }
                    refused.map(|(refusal, change)| (refusal, Some(change)))
                }
                Err(refusal) => Some((refusal, None)),
            };
            drop((garbage, over));
            if let Some((refusal, change)) = refused {
                changes.extend(change.into_iter().chain(some.map(|(_, change)| change)));
                break Err(refusal);
            }
            if rest.len() == 0 {
                break Ok(applied);
            }
        };
        changes.extend(rest);
        outcome
    }

    fn hash_of(&self, change: &Incoming) -> u64 {
        match change {
            Incoming::Version(new) => self.core.hash(new.key()),
            Incoming::Commit { key, .. } | Incoming::Abort { key, .. } => {
                DocKey::parse(&key.0).map_or(0, |key| self.core.hash(key))
            }
        }
    }

    /// The producer has nothing for this stream up to `seqno`, which lies in the snapshot.
    pub fn seqno_advanced(&self, stream: ReplicaStream, seqno: Seqno) -> Result<Applied, ReplicaRefusal> {
        let mut applied = Applied::default();
        let mut over = Vec::new();
        let garbage = {
            let mut shard = self.replica(stream)?;
            let garbage = shard.vb.seqno_advanced(seqno)?;
            shard.vb.note_complete(&mut over);
            applied.note(&shard.vb, 0);
            self.core.queue_flush(&mut shard);
            garbage
        };
        drop((garbage, over));
        Ok(applied)
    }

    /// Whether changes of replicas are taken: more than clients' are, because they were made already.
    fn has_replica_room(&self) -> bool {
        let held_bytes = self.core.memory.held_bytes();
        if held_bytes >= self.core.memory.high_watermark_bytes() {
            self.eviction.make_room();
        }
        let most = self.core.memory.quota_bytes() / 100 * REPLICA_PERCENT;
        held_bytes <= most && !self.core.disk.is_full() && self.checkpoints.have_checkpoints_room()
    }

    /// Waits until there may be room for changes of replicas; nothing: there is.
    pub fn replica_room(&self) -> Option<Completion<()>> {
        if self.has_replica_room() {
            return None;
        }
        let (completer, room) = completion();
        let mut waiting = self.waiting.lock();
        waiting.retain(|completer: &Completer<()>| !completer.is_unwanted());
        waiting.push(completer);
        drop(waiting);
        // Room that was made before this one waited was told to others only.
        self.tell_replica_room();
        Some(room)
    }

    /// Tells those who wait for room that there is some, if there is. After whatever makes room.
    pub(crate) fn tell_replica_room(&self) {
        if self.waiting.lock().is_empty() || !self.has_replica_room() {
            return;
        }
        let waiting = std::mem::take(&mut *self.waiting.lock());
        waiting.into_iter().for_each(|completer| completer.complete(()));
    }
}

impl Applied {
    fn note(&mut self, vb: &VBucket, changes: usize) {
        self.changes += changes;
        self.high_seqno = vb.high_seqno();
        self.is_complete = vb.snapshot().end == self.high_seqno;
    }
}

/// Applies one change, or hands it back.
fn apply(
    vb: &mut VBucket,
    change: Incoming,
    hash: u64,
    now: Moment,
) -> Result<Stored, (ReplicaRefusal, Incoming)> {
    match change {
        Incoming::Version(new) if is_plain(&new) => vb
            .apply_replicated(hash, new, now)
            .map_err(|(misplaced, new)| (misplaced.into(), Incoming::Version(new))),
        Incoming::Version(new) if is_prepare(&new) => vb
            .receive_prepare(new, now)
            .map_err(|(misplaced, new)| (misplaced.into(), Incoming::Version(new))),
        Incoming::Version(new) => Err((ReplicaRefusal::NotSupported, Incoming::Version(new))),
        Incoming::Commit { key, prepared, seqno } => {
            let committed = match DocKey::parse(&key.0) {
                Some(document) => vb.receive_commit(hash, document, prepared, seqno, now).map_err(Into::into),
                None => Err(ReplicaRefusal::Malformed),
            };
            committed.map_err(|refusal| (refusal, Incoming::Commit { key, prepared, seqno }))
        }
        Incoming::Abort { key, prepared, seqno } => {
            let aborted = match DocKey::parse(&key.0) {
                Some(document) if document.is_valid_len() => {
                    vb.receive_abort(document, prepared, seqno, now).map_err(Into::into)
                }
                _ => Err(ReplicaRefusal::Malformed),
            };
            aborted.map_err(|refusal| (refusal, Incoming::Abort { key, prepared, seqno }))
        }
    }
}

/// Counts a change as the part in a sync write that it is, as on the active node.
fn counter_of(change: &Incoming) -> fn(&mut OpCounts) {
    match change {
        Incoming::Version(new) if is_prepare(new) => |ops| ops.sync_accepted += 1,
        Incoming::Version(_) => |_| {},
        Incoming::Commit { .. } => |ops| ops.sync_committed += 1,
        Incoming::Abort { .. } => |ops| ops.sync_aborted += 1,
    }
}

fn is_prepare(new: &NewVersion) -> bool {
    matches!(new.meta().sync_write, SyncWrite::Prepare(_))
}

/// Whether it is a document, tombstone or event of collections.
fn is_plain(new: &NewVersion) -> bool {
    new.meta().sync_write == SyncWrite::No
}
