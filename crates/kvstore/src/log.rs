//! Backend `log`: a log-structured store for all vBuckets of a bucket, larger than memory (docs/adr/0129).
//!
//! Commits have names, an epoch and a number, in the place of a file's revision and header. Behind a journal only what is
//! on record there counts after a crash, as with [`crate::Couch`].

mod behind;
pub(crate) mod check;
mod compact;
pub(crate) mod item;
mod raw;
mod snapshot;
mod state;
mod vouch;

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use base::env::Env;
use base::{CollectionId, DocKey, Seqno, VbId, Version};
use logstore::{
    Batch, HistoryUsage, LogStore, Retention as HistoryRetention, StoredMeta, Trust, Tuning as LogTuning,
    View,
};
use parking_lot::Mutex;

use crate::catalog::{Believe, Catalog, Listed, StoreId};
use crate::collections::{CollectionStats, Tally};
use crate::compaction::{Compacted, Compaction, FileAt, RolledBack};
use crate::failure::Failure;
use crate::files::{Files, OnRecord, StorageBackend, make_folder, refuse_others};
use crate::store::{
    Background, Counts, KvStore, SaveBatch, Snapshot as AnySnapshot, States, Stats, StoredVb, Usage, Values,
};
pub(crate) use check::place_of;
pub use check::{LogReport, check_log, is_log_file};
use compact::{ToRewrite, at_of};
use item::{LogBatch, VersionMaker};
pub(crate) use raw::OwnedItem;
use snapshot::LogSnapshot;
pub(crate) use state::{LogState, Recount};
pub(crate) use vouch::{refuse_older, refuse_unlisted};

/// The most vBuckets that are committed together: all, since they share files.
const MOST_AT_ONCE: usize = 1024;

/// Choices about a log-structured store.
#[derive(Clone, Copy, Debug, Default)]
pub struct LogConfig {
    /// The store's own.
    pub store: logstore::Config,
    /// What [`KvStore::keep_history`] was told last, which is on record with the caller.
    pub history: HistoryRetention,
}

impl LogConfig {
    /// The defaults, with so many files open at once for reading and so many bytes of blocks kept in memory.
    pub fn new(most_open_files: usize, cache_bytes: u64) -> LogConfig {
        let cache_bytes = usize::try_from(cache_bytes).unwrap_or(usize::MAX);
        let store = logstore::Config { most_open_files, cache_bytes, ..logstore::Config::default() };
        LogConfig { store, ..LogConfig::default() }
    }
}

/// A bucket's folder.
pub struct Log {
    env: Env,
    dir: PathBuf,
    store: LogStore,
    catalog: Arc<Catalog>,
    /// Whether there is no journal in front of it, so that the catalog changes before the store does.
    is_alone: bool,
    compacting: Mutex<BTreeSet<VbId>>,
    to_rewrite: Mutex<ToRewrite>,
    /// vBuckets that are not used until the next start, and why.
    refused: Mutex<BTreeMap<VbId, LogRefusal>>,
    /// What was on record when the folder was opened, for vBuckets that cannot be read: it stays so.
    on_record: Mutex<BTreeMap<VbId, FileAt>>,
    saves: AtomicU64,
    items_saved: AtomicU64,
    failures: AtomicU64,
}

/// Why a vBucket is not used.
#[derive(Clone)]
enum LogRefusal {
    /// It could not be read when it had to be.
    Damaged(String),
    /// The disk refused when it had to be read.
    Unread(String),
    /// Changes are missing in the journal.
    Lost(Cow<'static, str>),
}

impl LogRefusal {
    fn failure(&self, vb: VbId, dir: &Path) -> Failure {
        match self {
            LogRefusal::Damaged(what) => Failure::State { vb, path: dir.to_owned(), what: what.clone() },
            LogRefusal::Unread(what) => {
                let source = Arc::new(std::io::Error::other(what.clone()));
                let source = logstore::Failure::Io { operation: "read", path: dir.into(), offset: 0, source };
                Failure::Log { vb, source }
            }
            LogRefusal::Lost(what) => Failure::Lost { vb, what: what.clone().into_owned() },
        }
    }
}

/// What a failure of the store means for a vBucket.
fn failed(vb: VbId) -> impl Fn(logstore::Failure) -> Failure + Copy {
    move |source| match source {
        logstore::Failure::NoVbucket { .. } => Failure::NoVbucket { vb },
        logstore::Failure::Ended { why, .. } => Failure::CompactionEnded { vb, why },
        source => Failure::Log { vb, source },
    }
}

fn decode_state(vb: VbId, dir: &Path, bytes: &[u8]) -> Result<LogState, Failure> {
    LogState::decode(bytes).map_err(|what| Failure::State { vb, path: dir.to_owned(), what })
}

fn counts_of(state: &LogState, usage: logstore::Usage) -> Counts {
    Counts {
        documents: state.tally.documents(),
        tombstones: state.tombstones,
        file_bytes: usage.file_bytes,
        used_bytes: usage.used_bytes,
    }
}

impl Log {
    /// Opens a bucket's folder, made if missing, to work without a journal.
    ///
    /// # Errors
    ///
    /// If the catalog cannot be used, or says that a journal is to be believed.
    pub fn open(env: Env, dir: &Path, config: LogConfig) -> Result<Log, Failure> {
        make_folder(&env, dir)?;
        let catalog = Arc::new(Catalog::open(&env, dir)?);
        refuse_older(&env, dir, &catalog)?;
        catalog.refuse_journal(dir)?;
        Log::open_as(env, dir, config, catalog, None, true)
    }

    /// Opens a bucket's folder, to work behind a journal: as the journal has it on record, or else as the catalog lists it.
    pub(crate) fn open_with(
        env: Env,
        dir: &Path,
        config: LogConfig,
        catalog: Arc<Catalog>,
        record: Option<&OnRecord<'_>>,
    ) -> Result<Log, Failure> {
        Log::open_as(env, dir, config, catalog, record, false)
    }

    fn open_as(
        env: Env,
        dir: &Path,
        config: LogConfig,
        catalog: Arc<Catalog>,
        record: Option<&OnRecord<'_>>,
        is_alone: bool,
    ) -> Result<Log, Failure> {
        refuse_others(&env, StorageBackend::LogStructured, dir)?;
        let listed = catalog.files();
        let believes_list = record.is_none() && catalog.believe() == Some(Believe::Files);
        if believes_list {
            vouch::refuse_unlisted(&env, dir, &catalog)?;
        }
        let of_list = |(vb, listed): (&VbId, &Listed)| (*vb, listed.at);
        let wanted: BTreeMap<VbId, FileAt> = match record {
            Some(record) => record.commits.clone(),
            None => listed.iter().map(of_list).collect(),
        };
        let missing =
            record.map_or_else(BTreeSet::new, |record| record.missing.iter().map(|vb| vb.0).collect());
        let commits = wanted.iter().map(|(vb, at)| (vb.0, at.unmarked().header_offset)).collect();
        let trust = if record.is_some() || believes_list {
            Trust::Record { commits: &commits, missing: &missing }
        } else {
            Trust::Last
        };
        let is_on_record = matches!(trust, Trust::Record { .. });
        let owner = vouch::owner(&catalog);
        let history = config.history;
        let config = logstore::Config { owner, has_record: !is_alone, ..config.store };
        let store = LogStore::open(&env, dir, config, &trust).map_err(|failure| match failure {
            logstore::Failure::Io { operation, path, source, .. } => {
                Failure::Disk { operation, path: path.to_path_buf(), source: crate::failure::again(&source) }
            }
            // What another version wrote is no damage, and is not made again.
            other @ logstore::Failure::Unsupported { .. } => {
                Failure::OtherStore { dir: dir.to_owned(), what: other.to_string() }
            }
            other => Failure::Catalog { dir: dir.to_owned(), what: other.to_string() },
        })?;
        store.retain_as_before(history);
        let lost = LogRefusal::Lost("an earlier life of the node gave up what is missing".into());
        let refused =
            wanted.iter().filter(|(_, at)| at.is_lost()).map(|(vb, _)| (*vb, lost.clone())).collect();
        let log = Log {
            env,
            dir: dir.to_owned(),
            store,
            catalog,
            is_alone,
            compacting: Mutex::default(),
            to_rewrite: Mutex::default(),
            refused: Mutex::new(refused),
            on_record: Mutex::new(if is_on_record { wanted.clone() } else { BTreeMap::new() }),
            saves: AtomicU64::new(0),
            items_saved: AtomicU64::new(0),
            failures: AtomicU64::new(0),
        };
        if record.is_none() && !believes_list {
            log.refuse_older(&wanted);
        }
        Ok(log)
    }

    /// Has histories of changes stay as they are: for a caller that does not know how much of them the bucket keeps. Without
    /// this a store that was opened with the defaults ends them with what it does next.
    pub fn leave_histories(&self) {
        let mut vbs = Files::known(self).into_iter();
        if vbs.any(|vb| self.history(vb).start > 0) {
            self.store.retain_as_before(HistoryRetention { seconds: u64::MAX, bytes: 0 });
        }
    }

    /// vBuckets whose last commit is before the one that the catalog lists are damaged.
    fn refuse_older(&self, wanted: &BTreeMap<VbId, FileAt>) {
        for (vb, at) in wanted {
            let number = self.store.stored(vb.0).ok().flatten().map_or(0, |stored| stored.commit.number);
            let listed = at.unmarked().header_offset;
            if number < listed && listed != FileAt::LAST {
                let what = format!("it has commit {number}, and the catalog lists commit {listed}");
                self.refused.lock().insert(*vb, LogRefusal::Damaged(what));
            }
        }
    }

    /// Why a vBucket is not used, if it is not.
    fn check(&self, vb: VbId) -> Result<(), Failure> {
        let refused = self.refused.lock().get(&vb).map(|refusal| refusal.failure(vb, &self.dir));
        refused.map_or(Ok(()), Err)
    }

    /// Before anything is written: without a journal the catalog has to say first that more may follow what it lists.
    fn begin_writing(&self) -> Result<(), Failure> {
        if self.is_alone {
            self.catalog.believe_headers()?;
        }
        self.note_catalog();
        Ok(())
    }

    /// From now on what is written notes the catalog that is there, so that an older one is not believed, and is of its
    /// folder.
    fn note_catalog(&self) {
        let sequence = self.catalog.durable_sequence();
        self.store.note(sequence);
        if sequence > 0 {
            self.store.owned(self.catalog.store().0);
        }
    }

    fn view(&self, vb: VbId) -> Result<Option<View>, Failure> {
        self.check(vb)?;
        self.store.view(vb.0).map_err(failed(vb))
    }

    fn maker(&self, vb: VbId) -> VersionMaker<'_> {
        VersionMaker { vb, dir: &self.dir, heap: &self.env.heap }
    }

    fn get_in(&self, view: &View, vb: VbId, key: DocKey<'_>) -> Result<Option<Version>, Failure> {
        let maker = self.maker(vb);
        let found = view.get(&key.to_stored().0, |item| maker.version(item, Values::Read));
        self.note(found.map_err(failed(vb)).and_then(Option::transpose))
    }

    /// Counts a failure.
    fn note<T>(&self, result: Result<T, Failure>) -> Result<T, Failure> {
        if result.is_err() {
            self.failures.fetch_add(1, Ordering::Relaxed);
        }
        result
    }

    fn stored_of(&self, vb: VbId, meta: &StoredMeta) -> Result<StoredVb, Failure> {
        let state = decode_state(vb, &self.dir, &meta.state)?;
        Ok(StoredVb {
            high_seqno: Seqno(meta.high_seqno),
            purge_seqno: Seqno(meta.purge_seqno),
            counts: counts_of(&state, meta.usage),
            collections: state.tally.all().to_vec(),
            manifest: state.manifest,
            state: state.state,
        })
    }

    fn commit_group(&self, group: &[(VbId, SaveBatch<'_>)]) -> Vec<Result<FileAt, Failure>> {
        let mut answers: Vec<Result<FileAt, Failure>> = Vec::with_capacity(group.len());
        let mut batches = Vec::with_capacity(group.len());
        let begun = self.begin_writing();
        for (vb, batch) in group {
            batch.assert_sorted_with_past();
            let checked = begun.as_ref().map_err(Failure::again).and_then(|()| self.check(*vb));
            if checked.is_ok() {
                batches.push(LogBatch { vb: *vb, batch: *batch });
            }
            answers.push(checked.map(|()| FileAt::default()));
        }
        let mut taken: Vec<&mut dyn Batch> = batches.iter_mut().map(|one| one as &mut dyn Batch).collect();
        let mut committed = self.store.commit(&mut taken).into_iter();
        for (answer, (vb, batch)) in answers.iter_mut().zip(group) {
            if answer.is_ok() {
                let commit = committed.next().expect("an answer for each batch");
                *answer = commit.map(at_of).map_err(failed(*vb));
            }
            if answer.is_ok() {
                self.saves.fetch_add(1, Ordering::Relaxed);
                self.items_saved.fetch_add(batch.items.len() as u64, Ordering::Relaxed);
            } else {
                self.failures.fetch_add(1, Ordering::Relaxed);
            }
        }
        answers
    }

    fn rolled_back(&self, vb: VbId, commit: Option<logstore::Commit>) -> Result<RolledBack, Failure> {
        if commit.is_none() {
            return Ok(RolledBack::default());
        }
        let stored = Files::stored(self, vb)?;
        Ok(RolledBack { seqno: stored.as_ref().map_or(Seqno(0), |stored| stored.high_seqno), stored })
    }
}

impl KvStore for Log {
    fn save_group(&self, group: &[(VbId, SaveBatch<'_>)]) -> Vec<Result<(), Failure>> {
        self.commit_group(group).into_iter().map(|saved| saved.map(drop)).collect()
    }

    fn get(&self, vb: VbId, key: DocKey<'_>) -> Result<Option<Version>, Failure> {
        match self.view(vb)? {
            None => Ok(None),
            Some(view) => self.get_in(&view, vb, key),
        }
    }

    fn get_many(&self, vb: VbId, keys: &[DocKey<'_>]) -> Vec<Result<Option<Version>, Failure>> {
        let view = match self.view(vb) {
            Ok(Some(view)) => view,
            Ok(None) => return keys.iter().map(|_| Ok(None)).collect(),
            Err(failure) => return failure.for_each_of(keys.len()),
        };
        let mut order: Vec<usize> = (0..keys.len()).collect();
        order.sort_by_cached_key(|at| keys[*at].to_stored().0.to_vec());
        let mut answers: Vec<_> = keys.iter().map(|_| Ok(None)).collect();
        for at in order {
            answers[at] = self.get_in(&view, vb, keys[at]);
        }
        answers
    }

    fn snapshot(&self, vb: VbId) -> Result<Option<Box<dyn AnySnapshot>>, Failure> {
        self.check(vb)?;
        let view = self.store.snapshot(vb.0).map_err(failed(vb))?;
        let of = |view| {
            let (dir, heap) = (self.dir.clone(), self.env.heap.clone());
            Box::new(LogSnapshot { vb, view, dir, heap }) as Box<dyn AnySnapshot>
        };
        Ok(view.map(of))
    }

    fn states(&self) -> Result<States, Failure> {
        let one = |vb| Some((vb, Files::stored(self, vb).transpose()?));
        Ok(Files::known(self).into_iter().filter_map(one).collect())
    }

    fn stored_vbucket(&self, vb: VbId) -> Result<Option<StoredVb>, Failure> {
        Files::stored(self, vb)
    }

    fn counts(&self, vb: VbId) -> Result<Counts, Failure> {
        Ok(Files::stored(self, vb)?.map(|stored| stored.counts).unwrap_or_default())
    }

    fn usage(&self, vb: VbId) -> Option<Usage> {
        let usage = self.store.usage(vb.0)?;
        Some(Usage { file_bytes: usage.file_bytes, used_bytes: usage.used_bytes, is_current: true })
    }

    fn each_collection(&self, vb: VbId, tell: &mut dyn FnMut(CollectionId, &CollectionStats)) -> bool {
        let stored = self.store.stored(vb.0).ok().flatten();
        let tally = stored.and_then(|stored| LogState::tally_of(&stored.state));
        tally.iter().flat_map(Tally::all).for_each(|(id, stats)| tell(*id, stats));
        true
    }

    fn delete_vbucket(&self, vb: VbId) -> Result<(), Failure> {
        self.begin_writing()?;
        if self.is_alone {
            self.catalog.forget(vb)?;
        }
        self.note(self.store.delete(vb.0).map_err(failed(vb)))?;
        self.refused.lock().remove(&vb);
        self.on_record.lock().remove(&vb);
        Ok(())
    }

    fn set_aside(&self, vb: VbId, to: &Path) -> Result<(), Failure> {
        self.move_files(vb, to)?;
        self.delete_vbucket(vb)
    }

    fn rollback(&self, vb: VbId, to: Seqno) -> Result<RolledBack, Failure> {
        self.check(vb)?;
        self.begin_writing()?;
        self.rollback_with(vb, to, &|at| if at.is_none() { self.catalog.forget(vb) } else { Ok(()) })
    }

    fn compact(&self, vb: VbId, request: &Compaction<'_>) -> Result<Compacted, Failure> {
        self.note(self.compact_and_tell(vb, request, &|_| Ok(())))
    }

    fn stats(&self) -> Stats {
        let log = self.store.stats();
        let open = log.open_files;
        Stats {
            saves: self.saves.load(Ordering::Relaxed),
            items_saved: self.items_saved.load(Ordering::Relaxed),
            failures: self.failures.load(Ordering::Relaxed),
            open_files: open.open,
            file_hits: open.hits,
            file_misses: open.misses,
            file_evictions: open.evictions,
            log: Some(log),
            ..Stats::default()
        }
    }

    fn background_step(&self) -> Result<Background, Failure> {
        match self.store.step() {
            Ok(true) => Ok(Background::Worked),
            Ok(false) => Ok(Background::Idle),
            Err(failure) => {
                let source = std::io::Error::other(failure.to_string());
                let operation = "merge or rewrite files of";
                self.note(Err(Failure::Disk { operation, path: self.dir.clone(), source }))
            }
        }
    }

    fn keep_history(&self, retention: HistoryRetention) -> Result<(), Failure> {
        self.store.retain(retention).map_err(|failure| {
            let source = std::io::Error::other(failure.to_string());
            let operation = "end the history of changes in";
            Failure::Disk { operation, path: self.dir.clone(), source }
        })
    }

    fn tune(&self, tuning: LogTuning) {
        self.store.tune(tuning);
    }

    fn keeps_history(&self) -> bool {
        self.store.retention().is_on()
    }

    fn history(&self, vb: VbId) -> HistoryUsage {
        self.store.history(vb.0).unwrap_or_default()
    }

    fn was_closed(&self) -> Option<bool> {
        self.catalog.was_closed()
    }

    fn store_id(&self) -> Result<Option<StoreId>, Failure> {
        self.catalog.store_on_disk().map(Some)
    }

    fn close(&self) -> Result<(), Failure> {
        self.cut_tails()?;
        self.promise_files(0)
    }
}
