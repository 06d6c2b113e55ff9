//! What is asked of a compaction and what it came to.

use std::ops::ControlFlow;

use base::planted::{self, Bug};
use base::{CollectionId, Seqno, SyncWrite, Version};

use crate::collections::{Owner, owner};
use crate::manifest::StoredManifest;
use crate::store::StoredVb;

/// What a compaction leaves out, and who watches it; prepares that are committed are left out, too. The document with the highest seqno always stays.
///
/// The callbacks are called without any lock of the store, so they may use the store, except where said.
#[derive(Clone, Copy)]
pub struct Compaction<'a> {
    /// Tombstones that were deleted before this are left out, and the purge seqno moves over them. Nothing if all
    /// stay. A tombstone without a time of deletion stays.
    pub purge_before_s: Option<u32>,
    /// Of them only those with a seqno up to here; nothing if it does not matter.
    pub purge_through: Option<Seqno>,
    /// Whether what a collection held at a seqno is dropped: it is left out. May be called under the vBucket's lock.
    pub is_dropped: &'a dyn Fn(CollectionId, Seqno) -> bool,
    /// Documents that expired before this are shown to `on_expired`.
    pub expired_before_s: Option<u32>,
    /// Decides about an expired document; its value is not read.
    pub on_expired: &'a dyn Fn(&Version) -> Expired,
    /// Is told how far it is, and may end it.
    pub observe: &'a dyn Fn(CompactionProgress) -> ControlFlow<()>,
    /// Whether compactions of others wait: of a store whose vBuckets share files the last one rewrites for all of them.
    pub others_wait: &'a dyn Fn() -> bool,
}

impl Default for Compaction<'_> {
    /// Leaves nothing out.
    fn default() -> Self {
        Compaction {
            purge_before_s: None,
            purge_through: None,
            is_dropped: &|_, _| false,
            expired_before_s: None,
            on_expired: &|_| Expired::Keep,
            observe: &|_| ControlFlow::Continue(()),
            others_wait: &|| false,
        }
    }
}

/// What becomes of an expired document.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expired {
    /// It stays, for instance because its deletion is on its way.
    Keep,
    /// It is left out. No tombstone stands for it, and the purge seqno does not move.
    LeaveOut,
}

/// How far a compaction is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CompactionProgress {
    /// Bytes in use that were looked at.
    pub done_bytes: u64,
    /// Bytes in use when it began.
    pub total_bytes: u64,
}

/// What a compaction came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Compacted {
    /// Bytes of the file before; of a store whose vBuckets share files 0 if it was left to another compaction to rewrite
    /// them, which counts all that were left to it.
    pub before_bytes: u64,
    /// Bytes of the file now, of the same.
    pub after_bytes: u64,
    /// Tombstones and aborts left out for their age.
    pub tombstones_purged: u64,
    /// Records of dropped collections left out: documents, tombstones and prepares.
    pub documents_dropped: u64,
    /// Expired documents left out.
    pub documents_expired: u64,
    /// Prepares left out that are committed.
    pub prepares_committed: u64,
    /// Seqno up to which tombstones are purged now.
    pub purge_seqno: Seqno,
}

/// What a rollback came to.
#[derive(Clone, Debug, Default)]
pub struct RolledBack {
    /// Highest seqno that is stored now; 0 if nothing is.
    pub seqno: Seqno,
    /// The vBucket as it is stored now; nothing if no commit fits and it must start empty.
    pub stored: Option<StoredVb>,
}

/// A commit of a vBucket's file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FileAt {
    /// Revision of the file.
    pub revision: u64,
    /// Where the commit's header is.
    pub header_offset: u64,
    /// CRC32C of the header, if it was read or written; a commit of a log-structured store has none.
    pub checksum: Option<u32>,
}

impl FileAt {
    /// Stands for the last valid header of a file, wherever it is: that of a file that could not be read.
    pub(crate) const LAST: u64 = (1 << 48) - 1;
    /// Stands in a header's offset beside it: the journal was damaged, and changes that followed are missing. An earlier
    /// version looks for a header there, finds none, and does not serve the vBucket either.
    pub(crate) const LOST: u64 = 1 << 62;

    /// The last valid header of a revision.
    pub(crate) fn last_of(revision: u64) -> FileAt {
        FileAt { revision, header_offset: FileAt::LAST, checksum: None }
    }

    /// What that mark says.
    pub(crate) const MISSES_CHANGES: &str =
        "a start found the journal damaged, and acknowledged changes of the vBucket may be missing";

    /// Whether changes that followed are missing.
    pub(crate) fn is_lost(self) -> bool {
        self.header_offset & FileAt::LOST != 0
    }

    /// The same, with the mark that changes that followed are missing.
    pub(crate) fn marked_lost(self) -> FileAt {
        FileAt { header_offset: self.header_offset | FileAt::LOST, ..self }
    }

    /// The same without that mark.
    pub(crate) fn unmarked(self) -> FileAt {
        FileAt { header_offset: self.header_offset & !FileAt::LOST, ..self }
    }
}

/// Why a record is left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reason {
    Purged,
    Dropped,
    Expired,
    Committed,
}

/// A record as far as it matters here.
#[derive(Clone, Copy)]
pub(crate) struct Candidate<'a> {
    pub(crate) stored_key: &'a [u8],
    pub(crate) seqno: Seqno,
    pub(crate) deleted: bool,
    /// Expiry time, or the time of deletion; nothing if it is unknown.
    pub(crate) expiry: Option<u32>,
    /// Its part in a sync write; nothing if it is unknown.
    pub(crate) sync_write: Option<SyncWrite>,
}

impl Compaction<'_> {
    /// Why a record is left out, if it is: prepares up to `completed` are committed. `version` makes it a version, if it
    /// can be.
    pub(crate) fn judge(
        &self,
        record: Candidate<'_>,
        completed: Seqno,
        version: impl FnOnce() -> Option<Version>,
    ) -> Option<Reason> {
        if self.drops(record.stored_key, record.seqno) {
            return Some(Reason::Dropped);
        }
        if matches!(record.sync_write, Some(SyncWrite::Prepare(_))) {
            let is_over = record.seqno <= completed || planted::is(Bug::CompactionDropsPrepares);
            return is_over.then_some(Reason::Committed);
        }
        let expiry = record.expiry.filter(|expiry| *expiry != 0)?;
        let is_before = |limit: Option<u32>| limit.is_some_and(|limit| expiry < limit);
        if record.deleted {
            let goes = self.purge_through.is_none_or(|through| record.seqno <= through)
                && is_before(self.purge_before_s);
            return goes.then_some(Reason::Purged);
        }
        let is_document = matches!(owner(record.stored_key), Owner::Document(_));
        let is_expired = is_document && is_before(self.expired_before_s);
        let goes =
            is_expired && version().is_some_and(|version| (self.on_expired)(&version) == Expired::LeaveOut);
        goes.then_some(Reason::Expired)
    }

    /// Whether a record belongs to a dropped collection.
    pub(crate) fn drops(&self, stored_key: &[u8], seqno: Seqno) -> bool {
        if planted::is(Bug::DroppedCollectionKept) {
            return false;
        }
        match owner(stored_key) {
            Owner::Document(collection) | Owner::Prepare(collection) => (self.is_dropped)(collection, seqno),
            Owner::CollectionEvent(_) | Owner::Other => false,
        }
    }
}

impl Compaction<'_> {
    /// Takes out of a manifest what is erased by this compaction. Says whether that is anything.
    pub(crate) fn erases(&self, manifest: &mut StoredManifest) -> bool {
        let before = manifest.dropped.len();
        manifest.dropped.retain(|dropped| !(self.is_dropped)(dropped.id, dropped.end));
        manifest.dropped.len() < before
    }
}

impl Compacted {
    pub(crate) fn count(&mut self, reason: Reason) {
        match reason {
            Reason::Purged => self.tombstones_purged += 1,
            Reason::Dropped => self.documents_dropped += 1,
            Reason::Expired => self.documents_expired += 1,
            Reason::Committed => self.prepares_committed += 1,
        }
    }
}
