//! A replica follows an active vBucket of another node: where it stands, and what it is sent.

use base::{DocKey, NewVersion, Seqno, StoredKey, VbId, VbUuid, VersionMeta};
use vbucket::{FailoverEntry, IncomingSnapshot, Misplaced};

use crate::bucket::Bucket;
use crate::completion::Completion;
use crate::refusal::Refusal;

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

/// A producer's acceptance to send a vBucket's changes. It is void once another stream of the vBucket is accepted,
/// or the vBucket gets another role or another content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplicaStream {
    /// Which vBucket.
    pub vb: VbId,
    /// Which of its streams; never used again.
    pub(crate) number: u64,
}

/// A change that a producer sent.
pub enum Incoming {
    /// A document, tombstone, system event or prepare, complete: see [`Bucket::received`].
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
    /// Its documents are not loaded yet: wait for [`Bucket::loaded`].
    Loading,
    /// There is no room now: wait for [`Bucket::replica_room`].
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

impl Bucket {
    /// Where a replica (or pending vBucket) stands. Refused as `Loading` while its documents are not loaded, and as
    /// `NotMyVbucket` if it has another role.
    pub fn replica_position(&self, vb: VbId) -> Result<ReplicaPosition, Refusal> {
        let _ = self.documents(vb)?;
        Err(Refusal::NotMyVbucket)
    }

    /// A producer accepted to send what follows `asked`: its failover log, newest first, becomes the vBucket's.
    pub fn adopt_failover(
        &self,
        asked: &ReplicaPosition,
        log: Vec<FailoverEntry>,
    ) -> Result<ReplicaStream, ReplicaRefusal> {
        let _ = (asked.incarnation, log);
        Err(ReplicaRefusal::NotSupported)
    }

    /// A marker announces a snapshot: what follows lies in it.
    pub fn begin_snapshot(
        &self,
        stream: ReplicaStream,
        snapshot: &IncomingSnapshot,
    ) -> Result<(), ReplicaRefusal> {
        let _ = (stream.number, snapshot);
        Err(ReplicaRefusal::NotSupported)
    }

    /// Makes a version of what a producer sent, charged to the bucket; checks everything that the protocol limits.
    /// `meta` has seqno, revision, CAS, flags, expiry or delete time, datatype, kind and part in a sync write.
    pub fn received(
        &self,
        meta: VersionMeta,
        key: DocKey<'_>,
        value: &[u8],
    ) -> Result<NewVersion, ReplicaRefusal> {
        Ok(NewVersion::new(&self.context.heap, meta, key, &[value]))
    }

    /// Applies changes from the front of `changes`, under one lock, and takes out what it applied: all, or up to the
    /// one that is refused.
    pub fn apply_replicated(
        &self,
        stream: ReplicaStream,
        changes: &mut Vec<Incoming>,
    ) -> Result<Applied, ReplicaRefusal> {
        let _ = (stream.number, changes);
        Err(ReplicaRefusal::NotSupported)
    }

    /// The producer has nothing for this stream up to `seqno`, which lies in the snapshot.
    pub fn seqno_advanced(&self, stream: ReplicaStream, seqno: Seqno) -> Result<Applied, ReplicaRefusal> {
        let _ = (stream.number, seqno);
        Err(ReplicaRefusal::NotSupported)
    }

    /// Waits until there may be room for changes of replicas; nothing: there is.
    pub fn replica_room(&self) -> Option<Completion<()>> {
        None
    }
}
