//! What an engine asks of the disk.

use std::cmp::Ordering;
use std::ops::ControlFlow;
use std::path::Path;

use base::{CollectionId, DocKey, ItemKind, Seqno, SyncWrite, VbId, Version};
use logstore::{HistoryUsage, LogStats, Retention as HistoryRetention, Tuning as LogTuning};

use crate::catalog::StoreId;
use crate::change::{Change, ChangesWanted, Reading};
use crate::collections::{CollectionStats, PREPARES};
use crate::compaction::{Compacted, Compaction, RolledBack};
use crate::failure::Failure;
use crate::journal::JournalStats;
use crate::manifest::StoredManifest;
use crate::state::VbStateDoc;

/// A bucket's documents on disk. All methods block and may be called from several threads; each vBucket is on its own.
pub trait KvStore: Send + Sync {
    /// Saves a batch and the state of its vBucket together. Durable when it returns.
    /// After a failure nothing or all of it may be on disk; saving it again is right in either case.
    fn save(&self, vb: VbId, batch: SaveBatch<'_>) -> Result<(), Failure> {
        let mut all = self.save_group(&[(vb, batch)]);
        all.pop().expect("an answer for each batch")
    }

    /// Saves batches of several vBuckets, each vBucket once, with what makes them durable shared among them.
    /// Answers for each, in order; what succeeded is durable when this returns, for the others the same holds as for
    /// a single [`KvStore::save`] that failed.
    fn save_group(&self, group: &[(VbId, SaveBatch<'_>)]) -> Vec<Result<(), Failure>>;

    /// Saves the state of a vBucket alone, making the vBucket if there is none. Durable when it returns.
    fn save_state(&self, vb: VbId, state: &VbStateDoc) -> Result<(), Failure> {
        self.save(vb, SaveBatch { items: &[], state })
    }

    /// The newest stored version of a key; a tombstone is one too.
    fn get(&self, vb: VbId, key: DocKey<'_>) -> Result<Option<Version>, Failure>;

    /// The newest stored version of each of several keys of one vBucket, answered in the order of `keys`; read in the
    /// order in which they stand on disk. Damage to one shows at that one only.
    fn get_many(&self, vb: VbId, keys: &[DocKey<'_>]) -> Vec<Result<Option<Version>, Failure>> {
        keys.iter().map(|key| self.get(vb, *key)).collect()
    }

    /// A vBucket as it is at one moment, to be read at leisure: what is saved meanwhile does not show.
    /// Nothing if there is none.
    fn snapshot(&self, vb: VbId) -> Result<Option<Box<dyn Snapshot>>, Failure>;

    /// [`KvStore::counts`] of what is in the vBucket's file, without what is in a journal alone. Does not wait for a
    /// filing.
    fn filed_counts(&self, vb: VbId) -> Result<Counts, Failure> {
        self.counts(vb)
    }

    /// [`KvStore::snapshot`] of what is in the vBucket's file, without what is in a journal alone. Does not wait for a
    /// filing.
    fn filed_snapshot(&self, vb: VbId) -> Result<Option<Box<dyn Snapshot>>, Failure> {
        self.snapshot(vb)
    }

    /// [`Snapshot::scan`] of a snapshot taken now; nothing is visited if there is no such vBucket.
    fn scan(
        &self,
        vb: VbId,
        from: Seqno,
        values: Values,
        visit: &mut dyn FnMut(Version) -> ControlFlow<()>,
    ) -> Result<(), Failure> {
        self.snapshot(vb)?.map_or(Ok(()), |snapshot| snapshot.scan(from, values, visit))
    }

    /// Every stored vBucket, lowest first; damage to one shows at that one only.
    fn states(&self) -> Result<States, Failure>;

    /// One stored vBucket, as [`KvStore::states`] has it; `None` if there is no such vBucket.
    fn stored_vbucket(&self, vb: VbId) -> Result<Option<StoredVb>, Failure> {
        let found = self.states()?.into_iter().find(|(id, _)| *id == vb);
        found.map(|(_, stored)| stored).transpose()
    }

    /// How much is stored for a vBucket, exactly. What is not in its file yet may be written there first.
    fn counts(&self, vb: VbId) -> Result<Counts, Failure>;

    /// How large a vBucket's file is and how much of it is in use, as of its last commit: from memory, so that it can be
    /// asked often. Nothing if there is no file, or nobody has looked at it yet.
    fn usage(&self, _: VbId) -> Option<Usage> {
        None
    }

    /// Tells what is stored of each collection of a vBucket, by id, as of its last commit: from memory, so that it can be
    /// asked often. Tells of none if there is no file, or it was not looked at yet. False if it is being written at the
    /// moment, so that nothing could be told: ask later.
    fn each_collection(&self, _: VbId, _tell: &mut dyn FnMut(CollectionId, &CollectionStats)) -> bool {
        true
    }

    /// Tells the vBuckets of which [`KvStore::usage`] or [`KvStore::each_collection`] may say something else than when this
    /// was asked last: for a caller that keeps what they say. What changes meanwhile is told next time. False if the store cannot
    /// tell, as the first time, and any may have changed.
    fn take_changed(&self, _changed: &mut dyn FnMut(VbId)) -> bool {
        false
    }

    /// Forgets a vBucket, durably; fine if there is none.
    fn delete_vbucket(&self, vb: VbId) -> Result<(), Failure>;

    /// Forgets a vBucket whose files cannot be believed, durably; the files are moved to the folder `to`, on the same disk,
    /// first. After a crash in between they are missing, and this is to be repeated.
    fn set_aside(&self, vb: VbId, _to: &Path) -> Result<(), Failure> {
        self.delete_vbucket(vb)
    }

    /// Goes back to the newest commit with a seqno of `to` or less, durably. Without one, nothing is stored afterwards.
    fn rollback(&self, vb: VbId, to: Seqno) -> Result<RolledBack, Failure>;

    /// Gives back space that is not in use, and leaves out what `request` says. Batches may be saved meanwhile.
    ///
    /// Ends with [`Failure::CompactionRuns`] if another one of the vBucket is under way, and with
    /// [`Failure::CompactionEnded`] if it is told to end or the vBucket is deleted or rolled back meanwhile.
    fn compact(&self, vb: VbId, request: &Compaction<'_>) -> Result<Compacted, Failure>;

    /// What was done so far.
    fn stats(&self) -> Stats;

    /// Does a bounded piece of what can be done behind the saves: for a thread of its own, which calls again at once
    /// while there is more to do. What fails is tried again in a later step; nothing that was saved is in danger.
    fn background_step(&self) -> Result<Background, Failure> {
        Ok(Background::Idle)
    }

    /// vBuckets whose files its own work found to be damaged since this was asked last, each with the reason.
    fn take_damage(&self) -> Vec<(VbId, String)> {
        Vec::new()
    }

    /// From now on the store hurries to let go of versions that nobody but itself may need any more, once they take more
    /// than this. The default keeps none.
    fn hold_at_most(&self, _bytes: u64) {}

    /// Whether a group of saves is one append to a journal: then small groups cost little.
    fn is_journaled(&self) -> bool {
        false
    }

    /// From now on so much of the history of changes is kept. If none was kept before, it begins with what is saved from now
    /// on. A store that keeps none ignores it.
    ///
    /// The caller's record of it is changed behind this if history is to be kept, and before this if not.
    ///
    /// # Errors
    ///
    /// If what was saved before cannot be brought to its final place; it is to be called again then.
    fn keep_history(&self, _: HistoryRetention) -> Result<(), Failure> {
        Ok(())
    }

    /// From now on a log-structured store merges and rewrites its files as this says. Another one ignores it.
    fn tune(&self, _: LogTuning) {}

    /// Whether a history is kept: then a save should have every version that is [`in_history`].
    fn keeps_history(&self) -> bool {
        false
    }

    /// How far a vBucket's history reaches back, as of what is in its file.
    fn history(&self, _: VbId) -> HistoryUsage {
        HistoryUsage::default()
    }

    /// A snapshot that has all of the history that was saved before; nothing if there is no such vBucket.
    fn history_snapshot(&self, vb: VbId) -> Result<Option<Box<dyn Snapshot>>, Failure> {
        self.snapshot(vb)
    }

    /// Whether each vBucket has a file of its own.
    fn has_vbucket_files(&self) -> bool {
        false
    }

    /// A vBucket's file with all that was saved before; `None` if there is no such vBucket, or if vBuckets share files. What
    /// is not in the file yet is written there first.
    fn vbucket_file(&self, _: VbId) -> Result<Option<VbucketFile>, Failure> {
        Ok(None)
    }

    /// Puts a file that came from another node in the place of all that is stored of a vBucket, with this state, durably; it
    /// is moved. Nothing of the vBucket may be saved meanwhile. `None`, and nothing changes, if vBuckets share files. After
    /// a failure nothing counts of what was stored; after a crash there is what was stored before, or all of the file.
    fn adopt_file(&self, _: VbId, _file: &Path, _: &VbStateDoc) -> Result<Option<StoredVb>, Failure> {
        Ok(None)
    }

    /// Whether the process that used the store before has closed it; `None` if that is not on record.
    fn was_closed(&self) -> Option<bool> {
        None
    }

    /// What the store's files name, so that they are told from another store's: durable once this has answered. `None` if
    /// it keeps no files.
    fn store_id(&self) -> Result<Option<StoreId>, Failure> {
        Ok(None)
    }

    /// Brings everything into its final place, so that the files alone hold it. The store must not be used afterwards.
    fn close(&self) -> Result<(), Failure> {
        Ok(())
    }
}

/// A vBucket's file as of one commit. It is kept open and on the disk until this is dropped, and its bytes stay as they are
/// while others save, compact and delete.
pub struct VbucketFile {
    pub(crate) vb: VbId,
    pub(crate) snapshot: couchstore::Snapshot,
}

impl VbucketFile {
    /// What the file is called in its folder.
    pub fn name(&self) -> String {
        let name = self.snapshot.path().file_name().unwrap_or_default();
        name.to_string_lossy().into_owned()
    }

    /// Its length: it ends with the header of the commit.
    pub fn len(&self) -> u64 {
        self.snapshot.image_bytes()
    }

    /// Whether it has no bytes, which no file of a vBucket has.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The version of its format.
    pub fn version(&self) -> u8 {
        self.snapshot.info().version
    }

    /// The highest seqno that it has.
    pub fn high_seqno(&self) -> Seqno {
        Seqno(self.snapshot.info().update_seqno)
    }

    /// Reads all of it: every node and every body.
    ///
    /// # Errors
    ///
    /// At the first that cannot be read, or is damaged.
    pub fn check(&self) -> Result<(), Failure> {
        self.snapshot.read_everything().map_err(|source| Failure::File { vb: self.vb, source })
    }

    /// Fills `buf` with bytes of the file, decrypted, from `offset` on.
    ///
    /// # Errors
    ///
    /// If the disk refuses, or if fewer bytes are left.
    pub fn read(&self, buf: &mut [u8], offset: u64) -> Result<(), Failure> {
        self.snapshot.read_image(buf, offset).map_err(|source| Failure::File { vb: self.vb, source })
    }
}

/// What a background step found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Background {
    /// There is nothing to do now.
    Idle,
    /// Something was done, and there may be more.
    Worked,
}

/// A vBucket at one moment. Files that it reads from stay until it is dropped.
pub trait Snapshot: Send {
    /// The vBucket's state.
    fn state(&self) -> Result<VbStateDoc, Failure>;

    /// Highest seqno saved.
    fn high_seqno(&self) -> Seqno;

    /// Seqno up to which tombstones were purged.
    fn purge_seqno(&self) -> Seqno;

    /// The newest version of a key; a tombstone is one too.
    fn get(&self, key: DocKey<'_>) -> Result<Option<Version>, Failure>;

    /// Visits the newest version of each document with a seqno of `from` or more, in order of seqno, until `visit`
    /// breaks. Prepares and aborts are not visited.
    fn scan(
        &self,
        from: Seqno,
        values: Values,
        visit: &mut dyn FnMut(Version) -> ControlFlow<()>,
    ) -> Result<(), Failure>;

    /// Visits what [`Snapshot::scan`] does, and prepares and aborts. Prepares may be there that are committed since:
    /// those with a seqno up to `completed_seqno` of the state, and those whose document is newer.
    fn scan_all(
        &self,
        from: Seqno,
        values: Values,
        visit: &mut dyn FnMut(Version) -> ControlFlow<()>,
    ) -> Result<(), Failure>;

    /// Visits what [`Snapshot::scan`] or [`Snapshot::scan_all`] does, borrowed, until `visit` breaks off or about as much
    /// was visited as is wanted. Returns the seqno from which on there may be more; nothing if that was all, or if
    /// `visit` broke off. A store that can do without a version for each change does.
    fn changes(
        &self,
        wanted: &ChangesWanted,
        reading: &mut Reading,
        visit: &mut dyn FnMut(&Change<'_>) -> ControlFlow<()>,
    ) -> Result<Option<Seqno>, Failure> {
        let _ = reading;
        changes_of_versions(self, wanted, visit)
    }

    /// The first seqno of the vBucket's history of changes; 0 if none is kept. From there on
    /// [`ChangesWanted::past`] visits every version of a document.
    fn history_start(&self) -> Seqno {
        Seqno(0)
    }

    /// Whether nothing can be read of it any more, because the bucket has left the store that it is of.
    fn has_ended(&self) -> bool {
        false
    }

    /// Bytes on disk of the keys, metadata and values of prepares, committed ones included that no compaction has left
    /// out yet. 0 without a disk.
    fn prepare_bytes(&self) -> Result<u64, Failure> {
        Ok(0)
    }

    /// Visits the newest version of each document whose stored key (collection prefix and key) is `from` or greater,
    /// in order of stored key, until `visit` breaks. Prepares are not visited.
    fn scan_keys(
        &self,
        from: &[u8],
        values: Values,
        visit: &mut dyn FnMut(Version) -> ControlFlow<()>,
    ) -> Result<(), Failure>;
}

/// A snapshot that is another one, and keeps something with it.
pub trait ForwardingSnapshot: Send {
    /// Has the other one read.
    fn forward<T>(&self, read: impl FnOnce(&dyn Snapshot) -> T) -> T;
}

impl<S: ForwardingSnapshot> Snapshot for S {
    fn state(&self) -> Result<VbStateDoc, Failure> {
        self.forward(|inner| inner.state())
    }

    fn high_seqno(&self) -> Seqno {
        self.forward(|inner| inner.high_seqno())
    }

    fn purge_seqno(&self) -> Seqno {
        self.forward(|inner| inner.purge_seqno())
    }

    fn get(&self, key: DocKey<'_>) -> Result<Option<Version>, Failure> {
        self.forward(|inner| inner.get(key))
    }

    fn scan(
        &self,
        from: Seqno,
        values: Values,
        visit: &mut dyn FnMut(Version) -> ControlFlow<()>,
    ) -> Result<(), Failure> {
        self.forward(|inner| inner.scan(from, values, visit))
    }

    fn scan_all(
        &self,
        from: Seqno,
        values: Values,
        visit: &mut dyn FnMut(Version) -> ControlFlow<()>,
    ) -> Result<(), Failure> {
        self.forward(|inner| inner.scan_all(from, values, visit))
    }

    fn changes(
        &self,
        wanted: &ChangesWanted,
        reading: &mut Reading,
        visit: &mut dyn FnMut(&Change<'_>) -> ControlFlow<()>,
    ) -> Result<Option<Seqno>, Failure> {
        self.forward(|inner| inner.changes(wanted, reading, visit))
    }

    fn history_start(&self) -> Seqno {
        self.forward(|inner| inner.history_start())
    }

    fn has_ended(&self) -> bool {
        self.forward(|inner| inner.has_ended())
    }

    fn prepare_bytes(&self) -> Result<u64, Failure> {
        self.forward(|inner| inner.prepare_bytes())
    }

    fn scan_keys(
        &self,
        from: &[u8],
        values: Values,
        visit: &mut dyn FnMut(Version) -> ControlFlow<()>,
    ) -> Result<(), Failure> {
        self.forward(|inner| inner.scan_keys(from, values, visit))
    }
}

/// [`Snapshot::changes`] by way of versions.
pub(crate) fn changes_of_versions<S: Snapshot + ?Sized>(
    snapshot: &S,
    wanted: &ChangesWanted,
    visit: &mut dyn FnMut(&Change<'_>) -> ControlFlow<()>,
) -> Result<Option<Seqno>, Failure> {
    let (mut bytes, mut next) = (0, None);
    let mut each = |version: Version| {
        let change = Change::of(&version);
        if bytes >= wanted.max_bytes.max(1) {
            next = Some(change.meta.by_seqno);
            return ControlFlow::Break(());
        }
        bytes += change.bytes();
        visit(&change)
    };
    match wanted.prepares {
        false => snapshot.scan(wanted.from, wanted.values, &mut each)?,
        true => snapshot.scan_all(wanted.from, wanted.values, &mut each)?,
    }
    Ok(next)
}

/// Whether a version is a record of something that is gone: a tombstone or an abort. A prepared deletion is not.
pub fn is_gone(version: &Version) -> bool {
    match version.meta().sync_write {
        SyncWrite::Prepare(_) => false,
        SyncWrite::Abort { .. } => true,
        SyncWrite::No | SyncWrite::Commit { .. } | SyncWrite::Alone(_) => version.is_deleted(),
    }
}

/// Whether a version stays in the history of changes, if one is kept, after a newer one replaced it: those of documents in
/// collections that have a part in it. A version that was read from a file or a journal counts as one of those.
pub fn in_history(version: &Version) -> bool {
    let is_document =
        matches!(version.meta().kind, ItemKind::Mutation | ItemKind::Deletion | ItemKind::Expiration);
    let is_part = matches!(version.meta().sync_write, SyncWrite::Prepare(_) | SyncWrite::Abort { .. });
    let is_kept = is_document && !is_part && version.key().collection != PREPARES;
    is_kept && !version.is_left_out_of_history()
}

/// Whether a scan reads values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Values {
    /// Versions are whole.
    Read,
    /// Versions come without values, as [`base::NewVersion::without_value`] makes them, and no value is read from
    /// disk. One that happens to be in memory may come along.
    Leave,
}

/// Every vBucket found on disk, or what is wrong with it.
pub type States = Vec<(VbId, Result<StoredVb, Failure>)>;

/// What is saved together.
#[derive(Clone, Copy)]
pub struct SaveBatch<'a> {
    /// Versions sorted by stored key, one for each key. A store that keeps a history takes several of a key, sorted by seqno,
    /// if they are [`in_history`].
    pub items: &'a [Version],
    /// The vBucket's state as of these items.
    pub state: &'a VbStateDoc,
}

impl SaveBatch<'_> {
    /// Holds the caller to the order: an unsorted batch would make a tree that cannot be searched.
    pub(crate) fn assert_sorted(&self) {
        let sorted = self.items.is_sorted_by(|a, b| a.stored_key() < b.stored_key());
        assert!(sorted, "a batch is sorted by key, with one version for each");
    }

    /// The same for a store that may keep a history.
    pub(crate) fn assert_sorted_with_past(&self) {
        let of = |version: &Version| version.meta().by_seqno;
        let is_past = |a: &Version, b: &Version| in_history(a) && of(a) < of(b);
        let sorted = self.items.is_sorted_by(|a, b| match a.stored_key().cmp(b.stored_key()) {
            Ordering::Less => true,
            Ordering::Equal => is_past(a, b),
            Ordering::Greater => false,
        });
        assert!(sorted, "a batch is sorted by key, and within a key by seqno");
    }
}

/// How much is stored for a vBucket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Committed documents that are no tombstones, over all collections.
    pub documents: u64,
    /// Tombstones, those of dropped collections included.
    pub tombstones: u64,
    /// Bytes that its file takes.
    pub file_bytes: u64,
    /// Bytes of them that are in use.
    pub used_bytes: u64,
}

/// What a vBucket's file takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Bytes of it.
    pub file_bytes: u64,
    /// Bytes that are in use: what a compaction would keep, about.
    pub used_bytes: u64,
    /// Whether it is encrypted as a new one would be; if it is not, a compaction makes it so.
    pub is_current: bool,
}

/// A vBucket as it was found on disk.
#[derive(Clone, Debug)]
pub struct StoredVb {
    /// Its state document.
    pub state: VbStateDoc,
    /// Highest seqno saved.
    pub high_seqno: Seqno,
    /// Seqno up to which tombstones were purged.
    pub purge_seqno: Seqno,
    /// How much its file holds; what waits to be written there is not counted yet.
    pub counts: Counts,
    /// The same for each collection, by id.
    pub collections: Vec<(CollectionId, CollectionStats)>,
    /// Which collections there are, of what waits to be written, too.
    pub manifest: StoredManifest,
}

impl StoredVb {
    /// Where the snapshot begins in whose middle a replica was saved, if that snapshot ends behind `seqno`.
    pub fn unfinished_behind(&self, seqno: Seqno) -> Option<Seqno> {
        self.state.unfinished_at(self.high_seqno).filter(|_| self.state.snap_end > seqno.0)
    }
}

/// What a store did so far, and what it holds open.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Batches saved.
    pub saves: u64,
    /// Items in them.
    pub items_saved: u64,
    /// Operations that failed.
    pub failures: u64,
    /// Files that are open.
    pub open_files: u64,
    /// Operations that found their file open.
    pub file_hits: u64,
    /// Operations that had to open their file.
    pub file_misses: u64,
    /// Files closed to make room for others.
    pub file_evictions: u64,
    /// Bytes of versions that are durable in the journal and not in the files yet.
    pub unfiled_bytes: u64,
    /// What the journal did; nothing if there is none.
    pub journal: Option<JournalStats>,
    /// What a log-structured store has and did; `None` of another.
    pub log: Option<LogStats>,
}
