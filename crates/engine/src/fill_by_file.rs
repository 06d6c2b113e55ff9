//! A replica that has nothing takes the file of its active: what the file has is on disk at once, and enters memory as after a
//! start.
//!
//! # Guarantees
//!
//! - Every node and every body of the file was read, and the file is of the history that the replica follows, before anything
//!   of the vBucket changes.
//! - A vBucket that has changes, or another role than replica, takes no file.
//! - What is in memory afterwards is what is on disk, synced: what a replica says to have, it has.

use std::fmt;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicU64, Ordering};

use base::{Seqno, VbId, VbState, VbUuid};
use kvstore::{CheckpointType, Counts, Failure, Snapshot, Values, VbStateDoc};

use crate::config::BucketKind;
use crate::file_snapshot::IncomingFile;
use crate::refusal::Refusal;
use crate::roles::Roles;
use crate::settings::Key;
use crate::shard_guard::Holder;

/// The words of [`Key::ReplicaFill`] as they are numbered.
const DOCUMENTS: u64 = 0;
const BY_FILE: u64 = 1;
/// What an item takes in memory beside its version: its share of a table that is about to grow.
const SLOT_BYTES: u64 = 16;
/// Items of a file whose keys are measured; the others are taken for as long as these on average.
const MEASURED_ITEMS: u64 = 4096;

/// Why a vBucket does not take a file.
#[derive(Debug)]
pub enum FileFillFailure {
    /// No file came for it.
    NoFile,
    /// The file cannot be used: why.
    Unfit(&'static str),
    /// It is no replica, has changes already, or follows another history by now.
    Changed,
    /// The keys of the file do not fit into memory.
    NoRoom,
    /// As for any other change of a role.
    Refused(Refusal),
    /// A file cannot be read or written, or is damaged.
    Store(Failure),
}

impl fmt::Display for FileFillFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FileFillFailure::NoFile => f.write_str("no file came for it"),
            FileFillFailure::Unfit(what) => write!(f, "the file cannot be used: {what}"),
            FileFillFailure::Changed => {
                f.write_str("the vBucket is no replica, has changes already, or follows another history")
            }
            FileFillFailure::NoRoom => f.write_str(
                "the keys of the file, and of files that come at the same time, do not fit into memory below the low \
                 watermark: raise the quota of the bucket",
            ),
            FileFillFailure::Refused(refusal) => write!(f, "the vBucket cannot be filled now: {refusal:?}"),
            FileFillFailure::Store(failure) => failure.fmt(f),
        }
    }
}

impl std::error::Error for FileFillFailure {}

impl From<Failure> for FileFillFailure {
    fn from(failure: Failure) -> FileFillFailure {
        FileFillFailure::Store(failure)
    }
}

impl From<Refusal> for FileFillFailure {
    fn from(refusal: Refusal) -> FileFillFailure {
        FileFillFailure::Refused(refusal)
    }
}

/// What a file has that was read as a whole.
struct Checked {
    state: VbStateDoc,
    counts: Counts,
    /// About what its keys and metadata take in memory.
    key_bytes: u64,
}

/// Memory that is expected to be taken by the keys of a file that is being put in place.
struct FillRoom<'a> {
    expected: &'a AtomicU64,
    bytes: u64,
}

impl<'a> FillRoom<'a> {
    /// Takes it, if there is as much beside what is expected already.
    fn take(expected: &'a AtomicU64, bytes: u64, left: u64) -> Option<FillRoom<'a>> {
        let taken = expected.fetch_add(bytes, Ordering::Relaxed);
        let room = FillRoom { expected, bytes };
        (taken.saturating_add(bytes) <= left).then_some(room)
    }
}

impl Drop for FillRoom<'_> {
    fn drop(&mut self) {
        self.expected.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

impl Roles {
    /// From how many changes on a replica that has none is to take a file; `None` if none does.
    pub fn fills_by_file(&self) -> Option<u64> {
        let has_files = self.core.config.kind != BucketKind::Ephemeral && self.core.store.has_vbucket_files();
        let settings = &self.core.settings;
        match settings.get(Key::ReplicaFill) {
            _ if !has_files => None,
            DOCUMENTS => None,
            BY_FILE => Some(1),
            _ => Some(settings.get(Key::ReplicaFillMinChanges)),
        }
    }

    /// Bytes a second in which a file may come; 0 for no limit.
    pub fn file_fill_rate(&self) -> u64 {
        self.core.settings.get(Key::ReplicaFillRate)
    }

    /// Fills a vBucket, a replica without changes, with a file that came for it; the file goes, whatever comes of it. Returns
    /// the last seqno that the vBucket has now.
    ///
    /// Blocks while the disk works; meanwhile operations on documents wait as while they are loaded.
    pub fn fill_with_file(&self, vb: VbId, file: &IncomingFile) -> Result<Seqno, FileFillFailure> {
        let filled = self.take_file(vb, file);
        if let Err(error) = file.remove(&self.core.env)
            && let Some(left_out) = self.core.failure_log.admit_of_user("file not removed")
        {
            let bucket = self.core.name();
            tracing::warn!(
                event = "filling_file_not_deleted", bucket, %vb, %error, left_out,
                "the file that a vBucket was filled with cannot be removed"
            );
        }
        let (seqno, items) = filled?;
        self.loading.warm_filled(vb, seqno, items);
        Ok(seqno)
    }

    fn take_file(&self, vb: VbId, file: &IncomingFile) -> Result<(Seqno, u64), FileFillFailure> {
        let Checked { state, counts, key_bytes } = self.check_file(vb, file)?;
        let items = counts.documents + counts.tombstones;
        let left = self.core.memory.low_watermark_bytes().saturating_sub(self.core.memory.used_bytes());
        // Under full eviction what does not fit stays on disk. Until the keys are loaded, another file may come.
        let wanted = if self.core.evicts_whole() { 0 } else { key_bytes };
        let _room = FillRoom::take(&self.filling_bytes, wanted, left).ok_or(FileFillFailure::NoRoom)?;
        // Nothing of it may be on its way to disk, and its role stays as it is.
        let _claim = self.flushing.claim(vb)?;
        {
            let mut shard = self.core.vbuckets.loaded(vb, Holder::Roles)?;
            let has_nothing = shard.vb.state() == VbState::Replica && shard.vb.high_seqno() == Seqno(0);
            let history = state.failover_table.first().map(|entry| VbUuid(entry.id));
            if !has_nothing || history != Some(shard.vb.uuid()) {
                return Err(FileFillFailure::Changed);
            }
            // No stream begins or goes on until the file is in place: it would adopt a history that is not the file's, and
            // what it brought and acknowledged would be forgotten.
            shard.replica_stream = 0;
            shard.unloaded = Some(Counts::default());
        }
        let stored = match self.core.store.adopt_file(vb, &file.path(), &state) {
            Ok(Some(stored)) => stored,
            Ok(None) => {
                self.begin_again(vb, None)?;
                self.loading.warmup.forget(vb);
                return Err(FileFillFailure::Unfit("the vBuckets of the bucket share files"));
            }
            Err(failure) => {
                // Nothing is stored of it any more: its role is to be saved again.
                self.begin_again(vb, None)?;
                self.loading.warmup.forget(vb);
                return Err(failure.into());
            }
        };
        let seqno = stored.high_seqno;
        self.begin_again(vb, Some(stored))?;
        self.durability.waiters.forget(vb);
        let reloaded = self.reload(vb);
        // Whoever waited for documents to be loaded looks again.
        self.loading.warmup.forget(vb);
        reloaded?;
        Ok((seqno, items))
    }

    /// Reads all of a file; with the state that a replica has that takes it.
    fn check_file(&self, vb: VbId, file: &IncomingFile) -> Result<Checked, FileFillFailure> {
        let opened = file.open(&self.core.env)?.ok_or(FileFillFailure::NoFile)?;
        let (couch, of) = opened;
        let stored = kvstore::KvStore::stored_vbucket(&couch, of)?.filter(|_| of == vb);
        let stored = stored.ok_or(FileFillFailure::Unfit("it has nothing of the vBucket"))?;
        let (high, state) = (stored.high_seqno, stored.state);
        if high == Seqno(0) {
            return Err(FileFillFailure::Unfit("it has no changes"));
        }
        if state.unfinished_at(high).is_some() {
            return Err(FileFillFailure::Unfit("it ends in the middle of a snapshot"));
        }
        if self.loading.warmup.is_stopping() {
            return Err(FileFillFailure::Refused(Refusal::Loading));
        }
        let image = kvstore::KvStore::vbucket_file(&couch, vb)?;
        image.ok_or(FileFillFailure::NoFile)?.check()?;
        let snapshot = kvstore::KvStore::snapshot(&couch, vb)?.ok_or(FileFillFailure::NoFile)?;
        let items = stored.counts.documents + stored.counts.tombstones;
        let key_bytes = items.saturating_mul(item_bytes(&*snapshot)?);
        // All prepares up to its end are on disk with it.
        let prepared = state.prepared_seqno.min(high.0);
        let state = VbStateDoc {
            state: VbState::Replica,
            checkpoint_type: CheckpointType::Memory,
            snap_start: high.0,
            snap_end: high.0,
            high_prepared_seqno: state.high_prepared_seqno.max(prepared),
            replication_topology: None,
            ..state
        };
        Ok(Checked { state, counts: stored.counts, key_bytes })
    }
}

/// What an item without its value takes in memory on average, by the first items of a file.
fn item_bytes(snapshot: &dyn Snapshot) -> Result<u64, Failure> {
    let (mut items, mut bytes) = (0, 0);
    snapshot.scan_all(Seqno(0), Values::Leave, &mut |version| {
        (items, bytes) = (items + 1, bytes + version.allocated_bytes() as u64);
        if items < MEASURED_ITEMS { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    })?;
    Ok(SLOT_BYTES + bytes.checked_div(items).unwrap_or(0))
}
