//! Backend `journaled`: a journal for the whole bucket in front of another store, which is called its files.
//!
//! A save is durable once the journal is synced. What is in the journal only is kept in memory as runs of shared
//! versions; the files follow behind, in larger batches (docs/adr/0014-journal.md).
//!
//! Locks, in this order: `filing` (one filing, rollback or delete at a time), `appending` (one append at a time), a
//! vBucket's, `filed`.

mod charged;
mod filing;
mod history;
pub(crate) mod lost;
mod overlay;
pub(crate) mod recovery;
mod runs;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use base::env::Env;
use base::version::prefetch_all;
use base::{Account, CollectionId, DocKey, RateLimit, Seqno, VbId, Version};
use logstore::{HistoryUsage, Retention as HistoryRetention, Tuning as LogTuning};
use parking_lot::{Mutex, MutexGuard, RwLock};

use crate::catalog::StoreId;
use crate::collections::{CollectionStats, is_counted};
use crate::compaction::{Compacted, Compaction, RolledBack};
use crate::couch::Couch;
use crate::failure::Failure;
use crate::files::{Files, FilesConfig};
use crate::journal::{Filed, Frame, Journal, JournalConfig, Record, State};
use crate::state::{StateNumbers, VbStateDoc};
use crate::store::{
    Background, Counts, KvStore, SaveBatch, Snapshot, States, Stats, StoredVb, Usage, VbucketFile, in_history,
};
use charged::Charged;
use filing::limit_history;
use overlay::Overlay;
use runs::{Runs, merged};

/// How long who wants the file of a vBucket waits for others to be written.
const LONGEST_FILING_WAIT: Duration = Duration::from_millis(100);

/// Choices about a bucket with a journal.
#[derive(Clone, Copy, Debug)]
pub struct JournaledConfig {
    /// The store behind it.
    pub files: FilesConfig,
    /// How large the journal may become. At three quarters of it filing begins, at all of it a save files first.
    pub journal_bytes: u64,
    /// How long something may stay in the journal alone while there is room and more is saved all the time. Once
    /// nothing is saved for a while everything is filed.
    pub file_after: Duration,
}

impl Default for JournaledConfig {
    fn default() -> Self {
        JournaledConfig {
            files: FilesConfig::default(),
            journal_bytes: 1 << 30,
            file_after: Duration::from_secs(15),
        }
    }
}

impl JournaledConfig {
    fn journal(&self) -> JournalConfig {
        JournalConfig {
            segment_bytes: (self.journal_bytes / 16).clamp(16 << 10, 32 << 20),
            frame_bytes: (self.journal_bytes / 16).clamp(4 << 10, 1 << 20) as usize,
            spare_segments: 4,
            // What is much larger than memory is written as seldom as can be.
            compresses: !matches!(self.files, FilesConfig::Couch(_)),
        }
    }
}

/// A bucket's folder: files, and the journal in front of them.
pub struct Journaled {
    env: Env,
    config: JournaledConfig,
    files: Box<dyn Files>,
    journal: Journal,
    vbuckets: RwLock<Vec<Arc<Vb>>>,
    /// What the files durably hold, as far as that is known.
    filed: Mutex<FiledTable>,
    /// Whether the start has found a journal that tells of files.
    was_told: bool,
    appending: Mutex<()>,
    filing: Mutex<()>,
    /// Whether saves leave their older versions for the history.
    keeps_history: AtomicBool,
    /// Damage that filing found and that was not asked for yet: one of a vBucket.
    damage: Mutex<BTreeMap<VbId, String>>,
    /// vBuckets of which the journal misses changes that a later start may find, and what is missing.
    lost: Mutex<BTreeMap<VbId, String>>,
    /// Whether any vBucket may have something to file: if not, a look for it would ask a thousand vBuckets in vain, ten
    /// times a second. Set behind each change that leaves something to file, cleared before a look.
    may_wait: AtomicBool,
    /// Bytes of versions that are in the journal only.
    unfiled_bytes: AtomicU64,
    /// Filing begins when they are more.
    unfiled_limit: AtomicU64,
    /// When something was saved last, in nanoseconds on the monotonic clock.
    saved_at_ns: AtomicU64,
    saves: AtomicU64,
    items_saved: AtomicU64,
    failures: AtomicU64,
    /// Segments that could not be released.
    not_released: RateLimit,
    /// Files that could not be brought up to date.
    not_filed: RateLimit,
}

#[derive(Default)]
struct FiledTable {
    by_vbucket: BTreeMap<VbId, Filed>,
    /// Not yet on record in the journal.
    news: Vec<Filed>,
}

impl FiledTable {
    /// A file that was compacted meanwhile holds the same under its newer revision.
    fn set(&mut self, mut filed: Filed) {
        if let Some(present) =
            self.by_vbucket.get(&filed.vb).filter(|present| present.revision > filed.revision)
        {
            filed = Filed { through: filed.through.max(present.through), ..*present };
        }
        self.by_vbucket.insert(filed.vb, filed);
        self.news.push(filed);
    }
}

#[derive(Default)]
struct Vb {
    unfiled: Mutex<Unfiled>,
}

impl Vb {
    /// What is in the journal only, while no rollback changes it; `filing` is held by a rollback to its end.
    fn settled<'v>(&'v self, filing: &Mutex<()>) -> MutexGuard<'v, Unfiled> {
        loop {
            let unfiled = self.unfiled.lock();
            if !unfiled.is_rolling_back {
                return unfiled;
            }
            drop(unfiled);
            drop(filing.lock());
        }
    }

    /// The same at once, for the rollback itself.
    fn at_once<'v>(&'v self, _: &Mutex<()>) -> MutexGuard<'v, Unfiled> {
        self.unfiled.lock()
    }
}

/// A batch that is saved, and where its vBucket's others are.
struct Taken<'a> {
    vb: VbId,
    batch: SaveBatch<'a>,
    unfiled: Arc<Vb>,
}

/// What of a vBucket is in the journal only.
#[derive(Default)]
struct Unfiled {
    runs: Runs,
    /// The last state that was journaled.
    state: Option<Arc<VbStateDoc>>,
    /// Every version that belongs to the history, with the last frame of its save; `runs` have the newest only.
    past: Vec<(Frame, Charged)>,
    /// The first frame whose content is not filed; nothing if everything is.
    since: Option<Oldest>,
    /// The last frame with something of it.
    last: Frame,
    /// Bytes of the versions in `runs`, those included that newer ones replaced meanwhile.
    bytes: u64,
    /// Counts filings and rollbacks that began: a reader that saw none begin may combine runs and file.
    filings: u64,
    /// A rollback changes runs and file, and readers wait for its end.
    is_rolling_back: bool,
    /// It was deleted, or rolled back to nothing, and its file, which could not be removed yet, is void.
    file_is_void: bool,
    /// Until when its file, which is at fault, is left alone; stays until it is filed.
    left_alone_until: Option<Duration>,
}

/// Since when something waits to be filed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Oldest {
    frame: Frame,
    /// On the monotonic clock.
    at: Duration,
}

impl Unfiled {
    /// Takes what a save journaled; returns the bytes that came.
    fn add(
        &mut self,
        (account, keeps_history): (&Account, bool),
        batch: SaveBatch<'_>,
        since: Oldest,
        last: Frame,
    ) -> u64 {
        let bytes = batch.items.iter().map(|version| version.allocated_bytes() as u64).sum();
        if keeps_history {
            let past: Vec<Version> =
                batch.items.iter().filter(|version| in_history(version)).cloned().collect();
            self.past.push((last, Charged::new(past, account)));
        }
        let is_same = |a: &Version, b: &Version| a.stored_key() == b.stored_key();
        let may_repeat = keeps_history || batch.state.history_from > 0;
        if !may_repeat || batch.items.is_sorted_by(|a, b| !is_same(a, b)) {
            self.runs.push(batch.items, last, account);
        } else {
            let newest = batch.items.chunk_by(is_same).filter_map(|of_key| of_key.last()).cloned();
            self.runs.push(&newest.collect::<Vec<_>>(), last, account);
        }
        self.set_state(batch.state);
        self.since.get_or_insert(since);
        self.last = last;
        self.bytes += bytes;
        bytes
    }

    /// Mostly nobody else has the state of before, and only its numbers change.
    fn set_state(&mut self, state: &VbStateDoc) {
        match self.state.as_mut().and_then(Arc::get_mut) {
            Some(known) if known.same_structure(state) => StateNumbers::of(state).apply(known),
            _ => self.state = Some(Arc::new(state.clone())),
        }
    }

    /// How a state is journaled behind the last one.
    fn journaled<'s>(&self, state: &'s VbStateDoc) -> State<'s> {
        match &self.state {
            Some(known) if known.same_structure(state) => State::Numbers(state),
            _ => State::Whole(state),
        }
    }
}

impl Journaled {
    /// Opens a bucket's folder, made if missing, and takes in again what its journal holds.
    pub fn open(env: Env, dir: &Path, config: JournaledConfig) -> Result<Journaled, Failure> {
        recovery::open(env, dir, config)
    }

    /// Opens a bucket's folder to work without a journal. What a journal of before holds goes to the files first.
    pub fn without_journal(env: Env, dir: &Path, config: JournaledConfig) -> Result<Couch, Failure> {
        let FilesConfig::Couch(couch) = config.files else {
            let what = "this store is always behind a journal, and that is switched off".to_owned();
            // No damage: a member of a cluster must not make the bucket again for it.
            return Err(Failure::OtherStore { dir: dir.to_owned(), what });
        };
        if recovery::exists(&env, dir)? {
            Journaled::open(env.clone(), dir, config)?.close()?;
        }
        recovery::remove_void(&env, dir)?;
        Couch::open(env, dir, couch)
    }

    /// Who is charged for what is kept here.
    fn account(&self) -> &Account {
        self.env.heap.account()
    }

    fn vb(&self, vb: VbId) -> Arc<Vb> {
        let at = usize::from(vb.0);
        if let Some(found) = self.vbuckets.read().get(at) {
            return found.clone();
        }
        let mut vbuckets = self.vbuckets.write();
        if vbuckets.len() <= at {
            vbuckets.resize_with(at + 1, Arc::default);
        }
        vbuckets[at].clone()
    }

    fn each_vb(&self) -> Vec<(VbId, Arc<Vb>)> {
        let vbuckets = self.vbuckets.read();
        vbuckets.iter().enumerate().map(|(i, vb)| (VbId(i as u16), vb.clone())).collect()
    }

    /// Appends records, with the news of what was filed in front of them, and lets go of segments that are not needed
    /// any more. The caller holds `appending`.
    fn append<'a>(&self, records: impl IntoIterator<Item = Record<'a>>) -> Result<Frame, Failure> {
        // What is filed from here on is news for the next append, so its segments are needed until then.
        let has_news = !self.filed.lock().news.is_empty();
        let needed = if has_news { self.oldest_unfiled() } else { Frame::default() };
        let news = std::mem::take(&mut self.filed.lock().news);
        let all: Vec<Record<'_>> = news.iter().map(|filed| Record::Filed(*filed)).chain(records).collect();
        let table = || self.filed.lock().by_vbucket.values().copied().collect();
        match self.journal.append(&all, &table) {
            Ok(last) => {
                let filed = all.iter().filter_map(|record| match record {
                    Record::Filed(filed) | Record::RolledBack(filed) => Some(filed),
                    _ => None,
                });
                filed.for_each(|filed| self.files.recorded(filed.vb, filed.at()));
                if has_news {
                    self.release(needed);
                }
                Ok(last)
            }
            Err(failure) => {
                self.failures.fetch_add(1, Ordering::Relaxed);
                let mut filed = self.filed.lock();
                let newer = std::mem::replace(&mut filed.news, news);
                filed.news.extend(newer);
                Err(failure)
            }
        }
    }

    /// Lets go of the segments below a frame. If that fails nothing is in danger: they stay, and go later.
    fn release(&self, needed: Frame) {
        if let Err(failure) = self.journal.release(needed)
            && let Some(left_out) = self.not_released.admit(self.env.clock.monotonic())
        {
            tracing::warn!(
                event = "journal_segment_not_released", %failure, left_out,
                "cannot release a journal segment; it stays until a later try"
            );
        }
    }

    /// The first frame that is not filed, of all vBuckets.
    fn oldest_unfiled(&self) -> Frame {
        let next = self.journal.next_frame();
        let vbuckets = self.vbuckets.read();
        let since = vbuckets.iter().filter_map(|vb| vb.unfiled.lock().since);
        since.map(|since| since.frame).min().unwrap_or(next)
    }

    fn save_taken(&self, group: &[Taken<'_>]) -> Vec<Result<(), Failure>> {
        match self.make_room().and_then(|()| self.journal_group(group)) {
            Ok(()) => {
                self.saved_at_ns.store(self.env.clock.monotonic_ns(), Ordering::Relaxed);
                self.saves.fetch_add(group.len() as u64, Ordering::Relaxed);
                let items: usize = group.iter().map(|one| one.batch.items.len()).sum();
                self.items_saved.fetch_add(items as u64, Ordering::Relaxed);
                group.iter().map(|_| Ok(())).collect()
            }
            Err(failure) => failure.for_each_of(group.len()),
        }
    }

    /// Journals a group; the caller made sure that there is room.
    fn journal_group(&self, group: &[Taken<'_>]) -> Result<(), Failure> {
        let _appending = self.appending.lock();
        // An old file that could not be removed: the journal says so as long as something of the vBucket is in it only.
        let mut of_void_files: BTreeSet<VbId> = BTreeSet::new();
        let records = group.iter().flat_map(|Taken { vb, batch, unfiled }| {
            let unfiled = unfiled.unfiled.lock();
            let is_first = unfiled.file_is_void && unfiled.since.is_none() && of_void_files.insert(*vb);
            let state = unfiled.journaled(batch.state);
            let save = Record::Save { vb: *vb, state, items: batch.items, is_repeat: false };
            is_first.then_some(Record::Dropped(*vb)).into_iter().chain([save])
        });
        let since = Oldest { frame: self.journal.next_frame(), at: self.env.clock.monotonic() };
        let last = self.append(records)?;
        let mut added = 0;
        for (i, Taken { batch, unfiled, .. }) in group.iter().enumerate() {
            if let Some(next) = group.get(i + 1) {
                prefetch_all(Arc::as_ptr(&next.unfiled));
            }
            added += unfiled.unfiled.lock().add((self.account(), self.keeps_history()), *batch, since, last);
        }
        self.unfiled_bytes.fetch_add(added, Ordering::Relaxed);
        self.may_wait.store(true, Ordering::Release);
        Ok(())
    }

    /// A vBucket as it is now, in memory and on disk; nothing if there is none.
    fn overlay(&self, vb: VbId) -> Result<Option<Overlay>, Failure> {
        let unfiled = self.vb(vb);
        loop {
            let (runs, state, filings, is_void) = {
                let mut unfiled = unfiled.settled(&self.filing);
                let state = unfiled.since.and(unfiled.state.clone());
                (unfiled.runs.all(self.account()), state, unfiled.filings, unfiled.file_is_void)
            };
            let file = if is_void { None } else { self.files.snapshot(vb)? };
            // A filing that began meanwhile may have put newer versions into the file.
            if unfiled.unfiled.lock().filings != filings {
                continue;
            }
            if file.is_none() && state.is_none() {
                return Ok(None);
            }
            let state = state.map(|state| VbStateDoc::clone(&state));
            return Ok(Some(Overlay { unfiled: Charged::new(merged(&runs), self.account()), state, file }));
        }
    }

    /// A vBucket as file and journal have it, at one moment; nothing if there is none.
    fn stored(
        &self,
        vb: VbId,
        look: for<'v> fn(&'v Vb, &Mutex<()>) -> MutexGuard<'v, Unfiled>,
    ) -> Result<Option<StoredVb>, Failure> {
        let vbucket = self.vb(vb);
        loop {
            let filings = look(&vbucket, &self.filing).filings;
            let file = self.files.stored(vb)?;
            let unfiled = look(&vbucket, &self.filing);
            if unfiled.filings != filings {
                continue;
            }
            let file = file.filter(|_| !unfiled.file_is_void);
            let Some(state) = unfiled.since.and(unfiled.state.as_deref()) else { return Ok(file) };
            let mut stored = file.unwrap_or_else(|| recovery::without_file(state));
            stored.state = state.clone();
            stored.high_seqno = stored.high_seqno.max(unfiled.runs.high_seqno());
            let (runs, counted) = (&unfiled.runs, &stored.collections);
            let is_written = |id, start| is_counted(counted, id, start) || runs.hold(id);
            runs.events().for_each(|event| stored.manifest.apply(event, is_written));
            for (id, seqno) in runs.high_seqnos() {
                match stored.collections.binary_search_by_key(&id, |(known, _)| *known) {
                    Ok(at) => {
                        let stats = &mut stored.collections[at].1;
                        stats.high_seqno = seqno.max(stats.high_seqno);
                    }
                    // What is in the journal only is not counted.
                    Err(at) => {
                        let stats = CollectionStats { high_seqno: seqno, ..CollectionStats::default() };
                        stored.collections.insert(at, (id, stats));
                    }
                }
            }
            return Ok(Some(stored));
        }
    }

    /// The version of a key that is in the journal only, or whether to look into the file.
    fn unfiled(&self, vb: VbId, stored_key: &[u8]) -> Unwritten {
        let vb = self.vb(vb);
        let unfiled = vb.settled(&self.filing);
        match unfiled.runs.get(stored_key) {
            Some(version) => Unwritten::Here(version.clone()),
            None if unfiled.file_is_void => Unwritten::Nowhere,
            None => Unwritten::InFile,
        }
    }

    /// Forgets a vBucket with its file; nothing is filed meanwhile.
    fn forget_vbucket(&self, vb: VbId, _: &MutexGuard<'_, ()>) -> Result<(), Failure> {
        let state = self.vb(vb);
        {
            let _appending = self.appending.lock();
            self.append([Record::Dropped(vb)])?;
            self.filed.lock().forget(vb);
            let old = {
                let mut unfiled = state.unfiled.lock();
                let filings = unfiled.filings + 1;
                std::mem::replace(
                    &mut *unfiled,
                    Unfiled { filings, file_is_void: true, ..Unfiled::default() },
                )
            };
            self.unfiled_bytes.fetch_sub(old.bytes, Ordering::Relaxed);
            self.is_deleted(vb);
        }
        self.remove_void_file(vb, &state)
    }
}

/// Where the newest version of a key is.
enum Unwritten {
    Here(Version),
    InFile,
    Nowhere,
}

impl KvStore for Journaled {
    fn save_group(&self, group: &[(VbId, SaveBatch<'_>)]) -> Vec<Result<(), Failure>> {
        group.iter().for_each(|(_, batch)| batch.assert_sorted_with_past());
        // a vBucket that cannot be filed is on its own
        let mut taken = Vec::with_capacity(group.len());
        let mut answers: Vec<Result<(), Failure>> = Vec::with_capacity(group.len());
        for (vb, batch) in group {
            let unfiled = self.vb(*vb);
            answers.push(self.is_missing_changes(*vb).and_then(|()| self.is_stuck(*vb, &unfiled)));
            if answers.last().is_some_and(Result::is_ok) {
                taken.push(Taken { vb: *vb, batch: *batch, unfiled });
            }
        }
        if !taken.is_empty() {
            let mut saved = self.save_taken(&taken).into_iter();
            answers.iter_mut().filter(|answer| answer.is_ok()).for_each(|answer| {
                *answer = saved.next().expect("an answer for each batch");
            });
        }
        answers
    }

    fn get(&self, vb: VbId, key: DocKey<'_>) -> Result<Option<Version>, Failure> {
        match self.unfiled(vb, &key.to_stored().0) {
            Unwritten::Here(version) => Ok(Some(version)),
            Unwritten::Nowhere => Ok(None),
            // Filing puts a version into the file before it leaves memory, so it is in one of the two.
            Unwritten::InFile => self.files.get(vb, key),
        }
    }

    fn get_many(&self, vb: VbId, keys: &[DocKey<'_>]) -> Vec<Result<Option<Version>, Failure>> {
        let mut answers: Vec<Option<Result<Option<Version>, Failure>>> = Vec::with_capacity(keys.len());
        let (mut at, mut wanted) = (Vec::new(), Vec::new());
        for (i, key) in keys.iter().enumerate() {
            answers.push(match self.unfiled(vb, &key.to_stored().0) {
                Unwritten::Here(version) => Some(Ok(Some(version))),
                Unwritten::Nowhere => Some(Ok(None)),
                Unwritten::InFile => {
                    at.push(i);
                    wanted.push(*key);
                    None
                }
            });
        }
        for (i, answer) in at.into_iter().zip(self.files.get_many(vb, &wanted)) {
            answers[i] = Some(answer);
        }
        answers.into_iter().map(|answer| answer.expect("each key was found or asked for")).collect()
    }

    fn snapshot(&self, vb: VbId) -> Result<Option<Box<dyn Snapshot>>, Failure> {
        Ok(self.overlay(vb)?.map(|overlay| Box::new(overlay) as Box<dyn Snapshot>))
    }

    fn filed_counts(&self, vb: VbId) -> Result<Counts, Failure> {
        self.files.counts(vb)
    }

    fn filed_snapshot(&self, vb: VbId) -> Result<Option<Box<dyn Snapshot>>, Failure> {
        self.files.snapshot(vb)
    }

    fn states(&self) -> Result<States, Failure> {
        let mut all: BTreeSet<VbId> = self.files.known().into_iter().collect();
        all.extend(self.each_vb().into_iter().map(|(vb, _)| vb));
        let one = |vb| Some((vb, self.stored(vb, Vb::settled).transpose()?));
        Ok(all.into_iter().filter_map(one).collect())
    }

    fn stored_vbucket(&self, vb: VbId) -> Result<Option<StoredVb>, Failure> {
        self.stored(vb, Vb::settled)
    }

    fn counts(&self, vb: VbId) -> Result<Counts, Failure> {
        let _filing = self.filing.lock();
        self.file_one(vb)?;
        self.files.counts(vb)
    }

    fn usage(&self, vb: VbId) -> Option<Usage> {
        self.files.usage(vb)
    }

    fn each_collection(&self, vb: VbId, tell: &mut dyn FnMut(CollectionId, &CollectionStats)) -> bool {
        self.files.each_collection(vb, tell)
    }

    fn take_changed(&self, changed: &mut dyn FnMut(VbId)) -> bool {
        self.files.take_changed(changed)
    }

    fn delete_vbucket(&self, vb: VbId) -> Result<(), Failure> {
        self.forget_vbucket(vb, &self.filing.lock())
    }

    fn set_aside(&self, vb: VbId, to: &Path) -> Result<(), Failure> {
        let filing = self.filing.lock();
        self.files.move_files(vb, to)?;
        self.forget_vbucket(vb, &filing)?;
        self.damage.lock().remove(&vb);
        Ok(())
    }

    fn rollback(&self, vb: VbId, to: Seqno) -> Result<RolledBack, Failure> {
        self.roll_back(vb, to)
    }

    fn compact(&self, vb: VbId, request: &Compaction<'_>) -> Result<Compacted, Failure> {
        self.compact_file(vb, request)
    }

    fn stats(&self) -> Stats {
        let files = self.files.stats();
        Stats {
            saves: self.saves.load(Ordering::Relaxed),
            items_saved: self.items_saved.load(Ordering::Relaxed),
            failures: self.failures.load(Ordering::Relaxed) + files.failures,
            unfiled_bytes: self.unfiled_bytes.load(Ordering::Relaxed),
            journal: Some(self.journal.stats()),
            ..files
        }
    }

    fn background_step(&self) -> Result<Background, Failure> {
        let is_filed = self.file_step()?;
        // What filing leaves to do must not wait until there is nothing to file, nor hold up what there is to file: what
        // fails of it is told by a step that has filed nothing.
        let behind = self.files.background_step();
        if is_filed || behind? == Background::Worked || self.journal.prepare_step()? {
            return Ok(Background::Worked);
        }
        Ok(Background::Idle)
    }

    fn take_damage(&self) -> Vec<(VbId, String)> {
        std::mem::take(&mut *self.damage.lock()).into_iter().collect()
    }

    fn hold_at_most(&self, bytes: u64) {
        self.unfiled_limit.store(bytes, Ordering::Relaxed);
    }

    fn is_journaled(&self) -> bool {
        true
    }

    fn keep_history(&self, retention: HistoryRetention) -> Result<(), Failure> {
        limit_history(self, retention)
    }

    fn tune(&self, tuning: LogTuning) {
        self.files.tune(tuning);
    }

    fn keeps_history(&self) -> bool {
        self.keeps_history.load(Ordering::SeqCst)
    }

    fn history(&self, vb: VbId) -> HistoryUsage {
        self.files.history(vb)
    }

    fn has_vbucket_files(&self) -> bool {
        self.files.has_vbucket_files()
    }

    fn vbucket_file(&self, vb: VbId) -> Result<Option<VbucketFile>, Failure> {
        if !self.has_vbucket_files() {
            return Ok(None);
        }
        let _filing = self.filing.try_lock_for(LONGEST_FILING_WAIT).ok_or(Failure::FilingRuns { vb })?;
        self.file_one(vb)?;
        self.files.vbucket_file(vb)
    }

    /// One record makes void what was journaled before, and names the file. A crash before it leaves a file that is not on
    /// record, which a start removes.
    fn adopt_file(&self, vb: VbId, file: &Path, state: &VbStateDoc) -> Result<Option<StoredVb>, Failure> {
        if !self.has_vbucket_files() {
            return Ok(None);
        }
        let _filing = self.filing.lock();
        self.is_missing_changes(vb)?;
        // What there is has a file on record then: a start would take another file for one that is newer than the journal.
        self.file_one(vb)?;
        {
            let _appending = self.appending.lock();
            self.append([])?;
        }
        let adopted = self.files.adopt_with(vb, file, state, &|at| {
            let _appending = self.appending.lock();
            let filed = Filed::of(vb, Frame(self.journal.next_frame().0 - 1), at);
            self.append([Record::Filed(filed)])?;
            self.filed.lock().by_vbucket.insert(vb, filed);
            self.replace(vb, Unfiled::default());
            Ok(())
        });
        if adopted.is_err() {
            // A start may find the file on record, or not: what is journaled next says first that it is void.
            self.filed.lock().forget(vb);
            self.replace(vb, Unfiled { file_is_void: true, ..Unfiled::default() });
        }
        adopted.map(Some)
    }

    fn history_snapshot(&self, vb: VbId) -> Result<Option<Box<dyn Snapshot>>, Failure> {
        if !self.keeps_history() {
            return self.snapshot(vb);
        }
        {
            let _filing = self.filing.lock();
            self.file_one(vb)?;
        }
        self.files.history_snapshot(vb)
    }

    fn was_closed(&self) -> Option<bool> {
        // A journal that tells something was begun after the catalog that vouches for a clean stop.
        self.files.was_closed().map(|was_closed| was_closed && !self.was_told)
    }

    fn store_id(&self) -> Result<Option<StoreId>, Failure> {
        self.files.store_id()
    }

    fn close(&self) -> Result<(), Failure> {
        self.file_everything()?;
        // The journal stays, as after a kill.
        self.misses_nothing()?;
        // Before a file is removed: one that may be on record is not needed any more once a newer record is there.
        self.settle_undecided()?;
        for (vb, state) in self.each_vb() {
            if state.unfiled.lock().file_is_void {
                self.remove_void_file(vb, &state)?;
            }
        }
        self.files.cut_tails()?;
        self.files.promise_files(self.journal.generations())?;
        self.journal.remove()
    }
}

impl FiledTable {
    fn forget(&mut self, vb: VbId) {
        self.by_vbucket.remove(&vb);
        self.news.retain(|filed| filed.vb != vb);
    }
}
