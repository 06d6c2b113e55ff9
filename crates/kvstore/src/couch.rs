//! Backend `couch`: a folder for each bucket, a couchstore file for each vBucket and revision.

mod adopt;
mod behind;
mod check;
mod compact;
mod file;
mod folder;
mod group;
mod identity;
mod listing;
mod offline;
mod open_files;
mod promises;
mod record;
mod revisions;
mod rollback;
pub(crate) mod whole;

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use base::env::{Env, GroupSync, OpenMode};
use base::planted::{self, Bug};
use base::{CollectionId, DocKey, RateLimit, Seqno, VbId, Version};
use couchstore::{Scratch, Snapshot};
use parking_lot::Mutex;

use crate::catalog::{Believe, Catalog, Listed, StoreId};
use crate::collections::{CollectionStats, Tally};
use crate::compaction::{Compacted, Compaction, FileAt, RolledBack};
use crate::failure::Failure;
use crate::files::{Files, StorageBackend, make_folder, refuse_of_another};
use crate::journal::ToldSeqnos;
use crate::state::VbStateDoc;
use crate::store::{
    Counts, KvStore, SaveBatch, Snapshot as AnySnapshot, States, Stats, StoredVb, Usage, VbucketFile,
};
pub use check::{CatalogReport, check_catalog, check_recorded};
use file::{Known, Recorded, VbFile, usage_of};
pub use file::{content_meta_of, rev_meta_of};
use folder::Folder;
use group::Order;
use open_files::OpenFiles;
use promises::Promises;
use record::Records;
use revisions::Revisions;

/// Ends the name of a file that has no durable header yet; such files are removed when the bucket opens.
const UNFINISHED: &str = ".new";

/// Choices about a bucket's files.
#[derive(Clone, Copy, Debug)]
pub struct CouchConfig {
    /// How many files may stay open.
    pub max_open_files: usize,
    /// Shape of the nodes that are written.
    pub tuning: couchstore::Tuning,
    /// Steps of compactions.
    pub compaction: CompactionSteps,
}

/// How a compaction is divided.
#[derive(Clone, Copy, Debug)]
pub struct CompactionSteps {
    /// How much is copied between two looks at whether to go on.
    pub step_bytes: u64,
    /// So few changes may be left for the end, when nobody can save.
    pub last_changes: u64,
}

impl Default for CompactionSteps {
    fn default() -> Self {
        CompactionSteps { step_bytes: 1 << 20, last_changes: 500 }
    }
}

impl Default for CouchConfig {
    fn default() -> Self {
        CouchConfig {
            max_open_files: 256,
            tuning: couchstore::Tuning::default(),
            compaction: CompactionSteps::default(),
        }
    }
}

/// A bucket's folder.
pub struct Couch {
    env: Env,
    folder: Folder,
    config: CouchConfig,
    vbuckets: Mutex<BTreeMap<VbId, Arc<Vbucket>>>,
    open_files: OpenFiles,
    /// vBuckets whose files changed since that was asked last; `None` before the first time.
    changed: Mutex<Option<BTreeSet<VbId>>>,
    promises: Promises,
    /// Whether any vBucket has something on disk that a restart may find on record, or not.
    has_undecided: AtomicBool,
    /// Whether everything found when the bucket was opened is durable.
    is_synced: bool,
    sync: Box<dyn GroupSync>,
    /// Buffers of the group that is being saved.
    scratch: Mutex<Scratch>,
    saves: AtomicU64,
    items_saved: AtomicU64,
    failures: AtomicU64,
    failed: RateLimit,
    /// Compactions that failed.
    not_compacted: RateLimit,
}

/// One vBucket. Whoever writes holds the slot's lock, over syncs too; readers take only the latest commit.
#[derive(Default)]
struct Vbucket {
    slot: Mutex<Slot>,
    latest: Mutex<Option<Snapshot>>,
    /// Grows with each change that is no save, under the slot's lock: what was copied before is not to be used then.
    generation: AtomicU64,
    is_compacting: AtomicBool,
}

/// The file of a vBucket: at most one revision of its file is in use.
#[derive(Default)]
struct Slot {
    /// Revision of the file; nothing if there is none.
    revision: Option<u64>,
    /// Revision that was used last, so that none is used twice.
    last_revision: u64,
    file: Option<VbFile>,
    /// Its last commit while it is closed; nothing if it was not opened yet.
    known: Option<Known>,
    /// Its last durable header, if that is on record and the file was not opened yet.
    recorded: Option<Recorded>,
    /// The header that must be in the file, if it was not opened yet: the last one may be behind it.
    not_before: Option<Listed>,
    /// Why it is not opened as long as this store lives: see [`Couch::refuse`].
    refused: Option<Refused>,
    /// Behind its last commit stands one that a restart may find on record: it is not cut off.
    keeps_tail: bool,
    /// Other revisions that may be on disk, though they should not.
    strays: Vec<u64>,
    /// Other revisions of which nobody knows whether a restart will find them on record: they stay until a later record
    /// is durable that names the one in use.
    undecided: Vec<u64>,
}

impl Slot {
    /// Whether changes that followed the last commit are missing.
    fn is_lost(&self) -> bool {
        self.refused.as_ref().is_some_and(|refused| refused.kind == Refusal::Lost)
    }
}

/// Why a file is not opened any more.
struct Refused {
    why: Cow<'static, str>,
    kind: Refusal,
}

/// What kind of reason it is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Refusal {
    /// The file is damaged.
    Damaged,
    /// The disk refused.
    Unread,
    /// Changes that followed its last commit are missing in the journal.
    Lost,
}

impl Refused {
    const LOST_BEFORE: Refused = Refused {
        why: Cow::Borrowed("an earlier life of the node gave up what is missing"),
        kind: Refusal::Lost,
    };

    const OLDER_JOURNAL: Refused =
        Refused { why: Cow::Borrowed(file::OLDER_JOURNAL), kind: Refusal::Damaged };

    /// A disk that refused is no damage, so that the node does not set the file aside.
    fn failure(&self, vb: VbId, path: PathBuf) -> Failure {
        let what = self.why.clone().into_owned();
        match self.kind {
            Refusal::Damaged => return Failure::State { vb, path, what },
            Refusal::Lost => return Failure::Lost { vb, what },
            Refusal::Unread => {}
        }
        let source = std::io::Error::other(what);
        Failure::File {
            vb,
            source: couchstore::Failure::Io { operation: "read", path: path.into(), offset: 0, source },
        }
    }
}

/// Which files of a folder are believed.
pub(crate) enum Trust<'a> {
    /// The highest revision of each vBucket, at its last valid header: an earlier version wrote them.
    LastHeaders,
    /// The same, but not before what is listed.
    NotBefore(&'a BTreeMap<VbId, Listed>),
    /// What is listed and nothing else.
    Exactly(&'a BTreeMap<VbId, Listed>),
    /// What a journal has on record and nothing else. Of vBuckets in `missing` it may have lost the newest record: no file
    /// of theirs is removed. No file has changes that are neither on record nor in what it `told`, if that is all.
    Journal { record: &'a BTreeMap<VbId, FileAt>, missing: &'a BTreeSet<VbId>, told: Option<&'a ToldSeqnos> },
}

impl Trust<'_> {
    fn misses(&self, vb: VbId) -> bool {
        matches!(self, Trust::Journal { missing, .. } if missing.contains(&vb))
    }

    /// How far the journal tells of a vBucket, if that is known.
    fn told_of(&self, vb: VbId) -> Option<Seqno> {
        let Trust::Journal { record, told: Some(told), .. } = self else { return None };
        // What is on record is all of a vBucket that was not saved since.
        let told = told.of(vb).or_else(|| record.contains_key(&vb).then_some(Seqno(0)));
        told.filter(|_| !planted::is(Bug::OlderJournalBelieved))
    }
}

impl Couch {
    /// Opens a bucket's folder, made if missing, to work without a journal. Files are looked at when they are needed.
    ///
    /// # Errors
    ///
    /// If the catalog cannot be used, or says that a journal is to be believed.
    pub fn open(env: Env, dir: &Path, config: CouchConfig) -> Result<Couch, Failure> {
        make_folder(&env, dir)?;
        let catalog = Arc::new(Catalog::open(&env, dir)?);
        catalog.refuse_journal(dir)?;
        let couch = Couch::open_as_listed(env, dir, config, catalog)?;
        Ok(Couch { promises: couch.promises.alone(), ..couch })
    }

    /// Opens a bucket's folder without a journal, as its catalog has it.
    pub(crate) fn open_as_listed(
        env: Env,
        dir: &Path,
        config: CouchConfig,
        catalog: Arc<Catalog>,
    ) -> Result<Couch, Failure> {
        let listed = catalog.files();
        let trust = match catalog.believe() {
            Some(Believe::Files) => Trust::Exactly(&listed),
            Some(Believe::Headers) => Trust::NotBefore(&listed),
            Some(Believe::Journal { .. }) | None => Trust::LastHeaders,
        };
        Couch::open_with(env, dir, config, catalog, &trust)
    }

    /// Opens a bucket's folder. What is on record is opened as it is there, and nothing else is; files of which a
    /// journal has nothing on record are removed.
    pub(crate) fn open_with(
        env: Env,
        dir: &Path,
        config: CouchConfig,
        catalog: Arc<Catalog>,
        trust: &Trust<'_>,
    ) -> Result<Couch, Failure> {
        let failed = |operation, path: &Path| {
            let path = path.to_owned();
            move |source| Failure::Disk { operation, path, source }
        };
        make_folder(&env, dir)?;
        env.disk.sync_dir(dir).map_err(failed("sync", dir))?;
        let mut revisions = Revisions::new(&env, dir, catalog.store());
        for name in env.disk.read_dir(dir).map_err(failed("list", dir))? {
            refuse_of_another(StorageBackend::Couchstore, dir, &name)?;
            let path = dir.join(&name);
            if name.ends_with(UNFINISHED) {
                env.disk.remove_file(&path).map_err(failed("remove", &path))?;
            } else if let Some((vb, revision)) = parse_name(&name) {
                revisions.add(vb, revision);
            }
        }
        let vbuckets = revisions
            .into_slots(trust)?
            .map(|(vb, slot)| (vb, Arc::new(Vbucket { slot: Mutex::new(slot), ..Vbucket::default() })))
            .collect();
        let mut couch = Couch::over(env, dir, config, vbuckets)?;
        couch.promises = Promises::new(catalog);
        let is_searched = matches!(trust, Trust::LastHeaders | Trust::NotBefore(_));
        couch.is_synced = is_searched && couch.sync_all();
        Ok(couch)
    }

    /// Makes durable what a process before may have left in memory, all files at once. Says whether that is sure; if
    /// not, each file is synced when it is opened, so that a failure shows at its vBucket only.
    fn sync_all(&self) -> bool {
        let paths: Vec<PathBuf> = self
            .vbuckets
            .lock()
            .iter()
            .filter_map(|(vb, vbucket)| Some(self.folder.path(*vb, vbucket.slot.lock().revision?)))
            .collect();
        paths.chunks(self.config.max_open_files.max(1)).all(|paths| {
            let files = paths.iter().map(|path| self.env.disk.open(path, OpenMode::Read));
            let files: io::Result<Vec<_>> = files.collect();
            files.and_then(|files| self.sync.sync_files(&files)).is_ok()
        })
    }

    /// A bucket of these vBuckets, whose folder is there.
    fn over(
        env: Env,
        dir: &Path,
        config: CouchConfig,
        vbuckets: BTreeMap<VbId, Arc<Vbucket>>,
    ) -> Result<Couch, Failure> {
        let sync = env.disk.group_sync(dir).map_err(|source| Failure::Disk {
            operation: "open",
            path: dir.to_owned(),
            source,
        })?;
        Ok(Couch {
            folder: Folder::new(&env.disk, dir),
            env,
            config,
            vbuckets: Mutex::new(vbuckets),
            promises: Promises::default(),
            has_undecided: AtomicBool::new(false),
            is_synced: false,
            open_files: OpenFiles::new(config.max_open_files),
            changed: Mutex::default(),
            sync,
            scratch: Mutex::default(),
            saves: AtomicU64::new(0),
            items_saved: AtomicU64::new(0),
            failures: AtomicU64::new(0),
            failed: RateLimit::new(),
            not_compacted: RateLimit::new(),
        })
    }

    fn vbucket(&self, vb: VbId) -> Arc<Vbucket> {
        self.vbuckets.lock().entry(vb).or_default().clone()
    }

    /// Notes that the file of a vBucket is another one, or was written or looked at. The caller holds its slot: a look that
    /// follows finds the file as it is now, or cannot look yet.
    fn note_changed(&self, vb: VbId) {
        if let Some(changed) = &mut *self.changed.lock() {
            changed.insert(vb);
        }
    }

    /// Counts a failure. Whatever it was, nothing is known about the file any more: it is opened again next time.
    fn note<T>(
        &self,
        vb: VbId,
        vbucket: &Vbucket,
        slot: &mut Slot,
        result: Result<T, Failure>,
    ) -> Result<T, Failure> {
        if let Err(failure) = &result {
            self.failures.fetch_add(1, Ordering::Relaxed);
            if let Some(left_out) = self.failed.admit(self.env.clock.monotonic()) {
                tracing::warn!(
                    event = "file_io_failed", %failure, left_out,
                    "the file of a vBucket cannot be read or written"
                );
            }
            if vbucket.close(slot, true) {
                self.open_files.forget(vb);
            }
            self.note_changed(vb);
        }
        result
    }

    /// The open file of a vBucket that has one.
    fn opened<'s>(&self, vb: VbId, vbucket: &Vbucket, slot: &'s mut Slot) -> Result<&'s mut VbFile, Failure> {
        let revision = slot.revision.ok_or(Failure::NoVbucket { vb })?;
        if let Some(refused) = &slot.refused {
            return Err(refused.failure(vb, self.folder.path(vb, revision)));
        }
        if slot.file.is_none() {
            self.make_room(vb);
            let file = self.open_file_of(vb, revision, slot)?;
            slot.recorded = None;
            slot.not_before = None;
            self.open_files.opened(vb);
            *vbucket.latest.lock() = Some(file.snapshot());
            slot.file = Some(file);
            self.note_changed(vb);
        } else {
            self.open_files.used(vb);
        }
        Ok(slot.file.as_mut().expect("opened above"))
    }

    fn open_file_of(&self, vb: VbId, revision: u64, slot: &Slot) -> Result<VbFile, Failure> {
        let (path, identity) = (self.folder.path(vb, revision), self.promises.identity(vb, revision));
        let (disk, tuning) = (&*self.env.disk, self.config.tuning);
        if let Some(recorded) = slot.recorded {
            return VbFile::open_recorded(disk, identity, &path, tuning, recorded);
        }
        let known = slot.known.clone().map(|known| (known, slot.keeps_tail));
        let file = VbFile::open(disk, identity, &path, tuning, known, self.is_synced)?;
        if let Some(listed) = slot.not_before.filter(|listed| listed.at.revision == revision) {
            file.check_not_before(disk, vb, &path, listed)?;
        }
        Ok(file)
    }

    /// Closes files that were not used for longest until there is room for one more. Those in use are passed over.
    fn make_room(&self, opening: VbId) {
        for victim in self.open_files.victims() {
            if victim == opening {
                continue;
            }
            let vbucket = self.vbucket(victim);
            if let Some(mut slot) = vbucket.slot.try_lock()
                && vbucket.close(&mut slot, false)
            {
                self.open_files.evicted(victim);
            }
        }
    }

    /// The state of one vBucket at its last commit. Waits for a writer only if the file is not open.
    fn records(&self, vb: VbId) -> Result<Option<Records>, Failure> {
        let latest = self.latest(vb)?;
        Ok(latest.map(|latest| Records::new(vb, latest, self.env.heap.clone())))
    }

    /// The file of one vBucket at its last commit. Waits for a writer only if the file is not open.
    fn latest(&self, vb: VbId) -> Result<Option<Snapshot>, Failure> {
        let vbucket = self.vbucket(vb);
        let latest = vbucket.latest.lock().clone();
        if let Some(latest) = latest {
            self.open_files.used(vb);
            return Ok(Some(latest));
        }
        let mut slot = vbucket.slot.lock();
        if slot.revision.is_none() {
            return Ok(None);
        }
        let opened = self.opened(vb, &vbucket, &mut slot).map(|file| file.snapshot());
        self.note(vb, &vbucket, &mut slot, opened).map(Some)
    }

    /// What `ask` reads from the open file of a vBucket; nothing if there is no file.
    fn ask<T>(
        &self,
        vb: VbId,
        vbucket: &Vbucket,
        ask: impl FnOnce(&VbFile) -> Result<T, Failure>,
    ) -> Result<Option<T>, Failure> {
        let mut slot = vbucket.slot.lock();
        if slot.revision.is_none() {
            return Ok(None);
        }
        let answer = self.opened(vb, vbucket, &mut slot).and_then(|file| ask(file));
        self.note(vb, vbucket, &mut slot, answer).map(Some)
    }
}

impl Couch {
    fn save_parts(&self, group: &[(VbId, SaveBatch<'_>)], how: Order) -> Vec<Result<FileAt, Failure>> {
        // All files of a part are open at once.
        let parts = group.chunks(self.config.max_open_files.max(1));
        parts.flat_map(|part| self.save_part(part, how)).collect()
    }
}

impl Vbucket {
    /// Closes the file; says whether it was open. Readers that are under way keep what they have.
    fn close(&self, slot: &mut Slot, after_failure: bool) -> bool {
        *self.latest.lock() = None;
        let Some(file) = slot.file.take() else { return false };
        slot.known = file.into_known(after_failure);
        true
    }
}

/// A bucket whose files are in use at these headers, each with the highest revision that is there; other files are not
/// looked at and not removed.
pub(crate) fn couch_at(
    env: Env,
    dir: &Path,
    config: CouchConfig,
    catalog: Arc<Catalog>,
    files: &BTreeMap<VbId, (Option<FileAt>, u64)>,
) -> Result<Couch, Failure> {
    let slot = |(at, last_revision): (Option<FileAt>, u64)| {
        let listed = at.map(|at| Listed { at, high_seqno: None, is_tail_void: true });
        let recorded = listed.as_ref().and_then(Recorded::of);
        Slot { revision: at.map(|at| at.revision), last_revision, recorded, ..Slot::default() }
    };
    let vbucket = |at| Arc::new(Vbucket { slot: Mutex::new(slot(at)), ..Vbucket::default() });
    let vbuckets = files.iter().map(|(vb, at)| (*vb, vbucket(*at))).collect();
    let mut couch = Couch::over(env, dir, config, vbuckets)?;
    couch.promises = Promises::new(catalog);
    Ok(couch)
}

pub(crate) fn file_name(vb: VbId, revision: u64) -> String {
    format!("{vb}.couch.{revision}")
}

/// vBucket and revision of a file's name.
pub(crate) fn parse_name(name: &str) -> Option<(VbId, u64)> {
    let (vb, revision) = name.split_once(".couch.")?;
    Some((VbId(vb.parse().ok()?), revision.parse().ok()?))
}

impl KvStore for Couch {
    fn save_group(&self, group: &[(VbId, SaveBatch<'_>)]) -> Vec<Result<(), Failure>> {
        let saved = self.save_parts(group, Order::DataFirst);
        saved.into_iter().map(|saved| saved.map(drop)).collect()
    }

    fn get(&self, vb: VbId, key: DocKey<'_>) -> Result<Option<Version>, Failure> {
        match self.records(vb)? {
            None => Ok(None),
            Some(records) => records.get(key),
        }
    }

    fn get_many(&self, vb: VbId, keys: &[DocKey<'_>]) -> Vec<Result<Option<Version>, Failure>> {
        let records = match self.records(vb) {
            Ok(Some(records)) => records,
            Ok(None) => return keys.iter().map(|_| Ok(None)).collect(),
            Err(failure) => return failure.for_each_of(keys.len()),
        };
        let mut order: Vec<usize> = (0..keys.len()).collect();
        order.sort_unstable_by(|&a, &b| keys[a].to_stored().0.cmp(&keys[b].to_stored().0));
        let mut answers: Vec<_> = keys.iter().map(|_| Ok(None)).collect();
        for at in order {
            answers[at] = records.get(keys[at]);
        }
        answers
    }

    fn snapshot(&self, vb: VbId) -> Result<Option<Box<dyn AnySnapshot>>, Failure> {
        Ok(self.records(vb)?.map(|records| Box::new(records) as Box<dyn AnySnapshot>))
    }

    fn states(&self) -> Result<States, Failure> {
        let one = |vb| Some((vb, self.stored(vb).transpose()?));
        Ok(self.known().into_iter().filter_map(one).collect())
    }

    fn stored_vbucket(&self, vb: VbId) -> Result<Option<StoredVb>, Failure> {
        Files::stored(self, vb)
    }

    fn counts(&self, vb: VbId) -> Result<Counts, Failure> {
        let counts = self.ask(vb, &self.vbucket(vb), |file| Ok(file.counts()))?;
        Ok(counts.unwrap_or_default())
    }

    fn usage(&self, vb: VbId) -> Option<Usage> {
        let vbucket = self.vbuckets.lock().get(&vb)?.clone();
        if let Some(latest) = &*vbucket.latest.lock() {
            return Some(usage_of(latest));
        }
        // Whoever writes holds the lock over syncs; then the next question is soon enough.
        let slot = vbucket.slot.try_lock()?;
        Some(slot.known.as_ref()?.usage(self.env.disk.key_changes()))
    }

    fn each_collection(&self, vb: VbId, tell: &mut dyn FnMut(CollectionId, &CollectionStats)) -> bool {
        let Some(vbucket) = self.vbuckets.lock().get(&vb).cloned() else { return true };
        // Whoever writes holds the lock over syncs; then the next question is soon enough.
        let Some(slot) = vbucket.slot.try_lock() else { return false };
        let known = slot.known.as_ref().and_then(Known::tally);
        let tally = slot.file.as_ref().map(VbFile::tally).or(known);
        tally.into_iter().flat_map(Tally::all).for_each(|(id, stats)| tell(*id, stats));
        true
    }

    fn take_changed(&self, changed: &mut dyn FnMut(VbId)) -> bool {
        let Some(all) = self.changed.lock().replace(BTreeSet::new()) else { return false };
        all.into_iter().for_each(changed);
        true
    }

    fn delete_vbucket(&self, vb: VbId) -> Result<(), Failure> {
        let vbucket = self.vbucket(vb);
        let mut slot = vbucket.slot.lock();
        if vbucket.close(&mut slot, false) {
            self.open_files.forget(vb);
        }
        vbucket.generation.fetch_add(1, Ordering::Relaxed);
        slot.known = None;
        self.note_changed(vb);
        slot.recorded = None;
        slot.not_before = None;
        slot.refused = None;
        if slot.last_revision == 0 {
            return Ok(());
        }
        let removed = self
            .promises
            .begin_writing()
            .and_then(|()| self.promises.forget(vb))
            .and_then(|()| slot.remove_file(vb, &self.folder));
        self.note(vb, &vbucket, &mut slot, removed)
    }

    fn set_aside(&self, vb: VbId, to: &Path) -> Result<(), Failure> {
        self.move_revisions(vb, to)?;
        self.delete_vbucket(vb)
    }

    fn rollback(&self, vb: VbId, to: Seqno) -> Result<RolledBack, Failure> {
        self.rollback_with(vb, to, &|_| Ok(()))
    }

    fn compact(&self, vb: VbId, request: &Compaction<'_>) -> Result<Compacted, Failure> {
        self.compact_with(vb, request, &|at| self.promises.switch(vb, at))
    }

    fn has_vbucket_files(&self) -> bool {
        true
    }

    fn vbucket_file(&self, vb: VbId) -> Result<Option<VbucketFile>, Failure> {
        Ok(self.latest(vb)?.map(|snapshot| VbucketFile { vb, snapshot }))
    }

    fn adopt_file(&self, vb: VbId, file: &Path, state: &VbStateDoc) -> Result<Option<StoredVb>, Failure> {
        self.adopt_with(vb, file, state, &|at| self.promises.switch(vb, at)).map(Some)
    }

    fn was_closed(&self) -> Option<bool> {
        self.promises.was_closed()
    }

    fn store_id(&self) -> Result<Option<StoreId>, Failure> {
        self.promises.store_on_disk()
    }

    fn close(&self) -> Result<(), Failure> {
        self.end_with_headers()?;
        self.list_headers(0)
    }

    fn stats(&self) -> Stats {
        let mut stats = self.open_files.stats();
        stats.saves = self.saves.load(Ordering::Relaxed);
        stats.items_saved = self.items_saved.load(Ordering::Relaxed);
        stats.failures = self.failures.load(Ordering::Relaxed);
        stats
    }
}
