//! The one way in for changes that were made elsewhere: a replica applies what its active vBucket sends, as it comes.
//!
//! Every change lies in a snapshot that was announced before. At a snapshot's end the replica is what the active
//! vBucket was at that seqno; inside it is not, because the active one left out what it replaced later.

use base::Seqno;

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
}
