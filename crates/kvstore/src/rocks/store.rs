//! A bucket's folder with a RocksDB database.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use base::env::Env;
use base::{CollectionId, DocKey, Seqno, VbId, Version};
use logstore::Item;
use parking_lot::{Mutex, MutexGuard};
use rocksdb::WriteBatch;

use super::commit::prepare;
use super::database::{Database, Family, Moment};
use super::layout::{Head, Intent, OWNER, end_of, key_of, seqno_of, start_of, take_entry, take_version};
use super::snapshot::RocksSnapshot;
use crate::catalog::{Catalog, StoreId};
use crate::collections::CollectionStats;
use crate::compaction::{Compacted, Compaction, FileAt, RolledBack};
use crate::failure::{Failure, RocksFault};
use crate::files::{Files, OnRecord, StorageBackend, make_folder, refuse_others};
use crate::log::item::VersionMaker;
use crate::rocks_config::RocksConfig;
use crate::store::{
    Counts, KvStore, SaveBatch, Snapshot as AnySnapshot, States, Stats, StoredVb, Usage, Values,
};

/// The most vBuckets that are committed together: all, since they share memtables and a flush.
pub(super) const MOST_AT_ONCE: usize = 1024;
/// How often a read begins again because a save came between its two halves.
const READ_TRIES: usize = 8;

/// A bucket's folder.
///
/// Locks, in this order: `turn` of vBuckets by number, `seen` of a vBucket, `refused`.
pub(crate) struct Rocks {
    pub(super) env: Env,
    pub(super) dir: PathBuf,
    pub(super) database: Arc<Database>,
    pub(super) catalog: Arc<Catalog>,
    /// Whether there is no journal in front of it, so that the catalog changes before the store does.
    pub(super) is_alone: bool,
    pub(super) config: RocksConfig,
    pub(super) vbuckets: Mutex<BTreeMap<VbId, Arc<RocksSlot>>>,
    pub(super) compacting: Mutex<BTreeSet<VbId>>,
    /// vBuckets that are not used until the next start, and why.
    pub(super) refused: Mutex<BTreeMap<VbId, RocksRefusal>>,
    /// What was on record when the folder was opened, for vBuckets that cannot be read: it stays so.
    pub(super) on_record: BTreeMap<VbId, FileAt>,
    /// Whether the database says whose it is.
    is_owned: Mutex<bool>,
    saves: AtomicU64,
    items_saved: AtomicU64,
    pub(super) failures: AtomicU64,
}

/// A vBucket.
#[derive(Default)]
pub(super) struct RocksSlot {
    /// Held from what a change is worked out from until it is written. Readers do not take it.
    pub(super) turn: Mutex<()>,
    pub(super) seen: Mutex<Seen>,
}

/// A vBucket as it was written last.
#[derive(Default)]
pub(super) struct Seen {
    pub(super) head: Option<Arc<Head>>,
    /// Counts deletions and rollbacks.
    pub(super) generation: u64,
    /// A rollback of which it is not known whether it is on record.
    pub(super) undecided: Option<Intent>,
}

/// Why a vBucket is not used.
#[derive(Clone)]
pub(super) enum RocksRefusal {
    /// It could not be read when it had to be.
    Damaged(String),
    /// The disk refused when it had to be read.
    Unread(String),
    /// Changes are missing in the journal.
    Lost(Cow<'static, str>),
}

impl RocksRefusal {
    fn failure(&self, vb: VbId, dir: &Path) -> Failure {
        match self {
            RocksRefusal::Damaged(what) => Failure::State { vb, path: dir.to_owned(), what: what.clone() },
            RocksRefusal::Unread(what) => {
                let (operation, fault, what) = ("read", RocksFault::Unread, what.clone());
                Failure::Rocks { vb, operation, dir: dir.to_owned(), fault, what }
            }
            RocksRefusal::Lost(what) => Failure::Lost { vb, what: what.clone().into_owned() },
        }
    }
}

impl Drop for Rocks {
    /// A snapshot may keep the database: it must not write beside one that is opened next.
    fn drop(&mut self) {
        self.database.retire();
    }
}

impl Rocks {
    /// Opens a bucket's folder, made if missing, to work without a journal.
    pub(super) fn open(env: Env, dir: &Path, config: RocksConfig) -> Result<Rocks, Failure> {
        make_folder(&env, dir)?;
        let catalog = Arc::new(Catalog::open(&env, dir)?);
        catalog.refuse_journal(dir)?;
        Rocks::open_as(env, dir, config, catalog, None, true)
    }

    /// Opens a bucket's folder, to work behind a journal: as the journal has it on record, or else as the catalog lists it.
    pub(super) fn open_with(
        env: Env,
        dir: &Path,
        config: RocksConfig,
        catalog: Arc<Catalog>,
        record: Option<&OnRecord<'_>>,
    ) -> Result<Rocks, Failure> {
        Rocks::open_as(env, dir, config, catalog, record, false)
    }

    fn open_as(
        env: Env,
        dir: &Path,
        config: RocksConfig,
        catalog: Arc<Catalog>,
        record: Option<&OnRecord<'_>>,
        is_alone: bool,
    ) -> Result<Rocks, Failure> {
        refuse_others(&env, StorageBackend::RocksDb, dir)?;
        let database = Arc::new(Database::open(&env, dir, &config)?);
        let is_owned = check_owner(&database, dir, &catalog)?;
        let on_record = match record {
            Some(record) => record.commits.clone(),
            None => catalog.files().into_iter().map(|(vb, listed)| (vb, listed.at)).collect(),
        };
        let mut rocks = Rocks {
            env,
            dir: dir.to_owned(),
            database,
            catalog,
            is_alone,
            config,
            vbuckets: Mutex::default(),
            compacting: Mutex::default(),
            refused: Mutex::default(),
            on_record: BTreeMap::new(),
            is_owned: Mutex::new(is_owned),
            saves: AtomicU64::new(0),
            items_saved: AtomicU64::new(0),
            failures: AtomicU64::new(0),
        };
        rocks.on_record = on_record;
        rocks.take_in(record)?;
        Ok(rocks)
    }

    /// Before anything is written: without a journal the catalog has to say first that more may follow what it lists.
    pub(super) fn begin_writing(&self) -> Result<(), Failure> {
        if self.is_alone {
            self.catalog.believe_headers()?;
        }
        Ok(())
    }

    /// Has the database say whose it is, once the folder has a catalog that says it.
    fn write_owner(&self, out: &mut WriteBatch) -> bool {
        let is_due = !*self.is_owned.lock() && self.catalog.sequence() > 0;
        if is_due {
            out.put_cf(self.database.family(Family::State), OWNER, self.catalog.store().0.to_le_bytes());
        }
        is_due
    }

    pub(super) fn slot(&self, vb: VbId) -> Arc<RocksSlot> {
        Arc::clone(self.vbuckets.lock().entry(vb).or_default())
    }

    /// A vBucket as it was written last.
    pub(super) fn head(&self, vb: VbId) -> Option<Arc<Head>> {
        let slot = self.vbuckets.lock().get(&vb).cloned()?;
        slot.seen.lock().head.clone()
    }

    /// Why a vBucket is not used, if it is not.
    pub(super) fn check(&self, vb: VbId) -> Result<(), Failure> {
        let refused = self.refused.lock().get(&vb).map(|refusal| refusal.failure(vb, &self.dir));
        refused.map_or(Ok(()), Err)
    }

    pub(super) fn maker(&self, vb: VbId) -> VersionMaker<'_> {
        VersionMaker { vb, dir: self.database.folder(), heap: &self.env.heap }
    }

    /// Counts a failure. A compaction that ends early is none.
    pub(super) fn note<T>(&self, result: Result<T, Failure>) -> Result<T, Failure> {
        let is_none = |failure: &Failure| {
            matches!(
                failure,
                Failure::CompactionEnded { .. } | Failure::CompactionRuns { .. } | Failure::NoVbucket { .. }
            )
        };
        if result.as_ref().is_err_and(|failure| !is_none(failure)) {
            self.failures.fetch_add(1, Ordering::Relaxed);
        }
        result
    }

    /// Makes what was written durable.
    pub(super) fn flush(&self, vb: VbId) -> Result<(), Failure> {
        self.database.flush().map_err(self.database.failed(vb, "flush"))
    }

    pub(super) fn write(&self, vb: VbId, out: WriteBatch) -> Result<(), Failure> {
        self.database.write(out).map_err(self.database.failed(vb, "write"))
    }

    pub(super) fn commit_group(&self, group: &[(VbId, SaveBatch<'_>)]) -> Vec<Result<FileAt, Failure>> {
        let answers = match self.begin_writing() {
            Ok(()) => self.commit_all(group),
            Err(failure) => failure.for_each_of(group.len()),
        };
        for (answer, (_, batch)) in answers.iter().zip(group) {
            if answer.is_ok() {
                self.saves.fetch_add(1, Ordering::Relaxed);
                self.items_saved.fetch_add(batch.items.len() as u64, Ordering::Relaxed);
            } else {
                self.failures.fetch_add(1, Ordering::Relaxed);
            }
        }
        answers
    }

    /// One write for all that can be worked out, and one flush.
    fn commit_all(&self, group: &[(VbId, SaveBatch<'_>)]) -> Vec<Result<FileAt, Failure>> {
        let mut answers: Vec<Result<FileAt, Failure>> =
            group.iter().map(|(vb, _)| self.check(*vb).map(|()| FileAt::default())).collect();
        let slots: Vec<Arc<RocksSlot>> = group.iter().map(|(vb, _)| self.slot(*vb)).collect();
        let written = {
            let _turns = turns(group, &slots);
            let (mut out, mut heads) = (WriteBatch::default(), Vec::new());
            for (at, (vb, batch)) in group.iter().enumerate() {
                if answers[at].is_err() {
                    continue;
                }
                batch.assert_sorted();
                let before = slots[at].seen.lock().head.clone();
                match prepare(&self.database, *vb, *batch, before.as_deref()) {
                    Ok(commit) => {
                        commit.write(&self.database, &mut out);
                        heads.push((at, Arc::new(commit.head)));
                    }
                    Err(failure) => answers[at] = Err(failure),
                }
            }
            let says_owner = self.write_owner(&mut out);
            let written = self.database.write(out);
            if written.is_ok() {
                *self.is_owned.lock() |= says_owner;
                for (at, head) in heads {
                    answers[at] = Ok(at_of(&head));
                    slots[at].seen.lock().head = Some(head);
                }
            }
            written.map_err(|error| ("write", error))
        };
        // Behind the turns: nobody waits for the disk who does not wait for this.
        let durable = written.and_then(|()| self.database.flush().map_err(|error| ("flush", error)));
        if let Err((operation, error)) = durable {
            for (answer, (vb, _)) in answers.iter_mut().zip(group).filter(|(answer, _)| answer.is_ok()) {
                *answer = Err(self.database.failed(*vb, operation)(error.clone()));
            }
        }
        answers
    }

    /// Puts into a batch that nothing of a vBucket is there.
    pub(super) fn erase(&self, vb: VbId, out: &mut WriteBatch) {
        for family in Family::ALL {
            out.delete_range_cf(self.database.family(family), start_of(vb), end_of(vb));
        }
    }

    /// Forgets a vBucket, durably.
    pub(super) fn delete(&self, vb: VbId) -> Result<(), Failure> {
        let slot = self.slot(vb);
        {
            let _turn = slot.turn.lock();
            let mut out = WriteBatch::default();
            self.erase(vb, &mut out);
            self.write(vb, out)?;
            let mut seen = slot.seen.lock();
            (seen.head, seen.undecided) = (None, None);
            seen.generation += 1;
        }
        self.flush(vb)?;
        self.refused.lock().remove(&vb);
        Ok(())
    }

    /// The newest version of a key.
    fn find(&self, vb: VbId, key: DocKey<'_>) -> Result<Option<Version>, Failure> {
        let stored_key = key.to_stored().0;
        let at = key_of(vb, &stored_key);
        for _ in 0..READ_TRIES {
            let Some(entry) = self.database.get_pinned(vb, Family::Keys, &at)? else { return Ok(None) };
            let entry = take_entry(&entry);
            let entry = entry.ok_or_else(|| self.database.damaged(vb, "an entry of a key makes no sense"))?;
            let found = self.database.get_pinned(vb, Family::Seqnos, &seqno_of(vb, entry.seqno))?;
            // It was replaced since the key was looked up.
            let Some(bytes) = found else { continue };
            let item = item_in(&self.database, vb, (entry.seqno, &bytes), Some(&stored_key))?;
            return self.maker(vb).version(&item, Values::Read).map(Some);
        }
        let what = "a version that a key names is not there";
        Err(self.database.damaged(vb, what))
    }
}

/// A version as it was read, of a key if one is given.
pub(super) fn item_in<'b>(
    database: &Database,
    vb: VbId,
    (seqno, bytes): (u64, &'b [u8]),
    stored_key: Option<&[u8]>,
) -> Result<Item<'b>, Failure> {
    let item = take_version(seqno, bytes);
    let item =
        item.ok_or_else(|| database.damaged(vb, format!("the version with seqno {seqno} is cut off")))?;
    if stored_key.is_some_and(|key| key != item.key) {
        let what = format!("the version with seqno {seqno} is of another key than the one that names it");
        return Err(database.damaged(vb, what));
    }
    Ok(item)
}

/// The turns to write of all vBuckets of a group, taken in the order of their numbers.
fn turns<'s>(group: &[(VbId, SaveBatch<'_>)], slots: &'s [Arc<RocksSlot>]) -> Vec<MutexGuard<'s, ()>> {
    let mut order: Vec<usize> = (0..group.len()).collect();
    order.sort_unstable_by_key(|at| group[*at].0);
    order.into_iter().map(|at| slots[at].turn.lock()).collect()
}

/// What a commit is called.
pub(super) fn at_of(head: &Head) -> FileAt {
    FileAt { revision: head.epoch, header_offset: head.commit, checksum: None }
}

pub(super) fn stored_of(head: &Head) -> StoredVb {
    StoredVb {
        state: head.state.state.clone(),
        high_seqno: Seqno(head.high_seqno),
        purge_seqno: Seqno(head.purge_seqno),
        counts: counts_of(head),
        collections: head.state.tally.all().to_vec(),
        manifest: head.state.manifest.clone(),
    }
}

/// RocksDB's files are shared, and it compacts them itself: what counts here is what it has to keep.
fn counts_of(head: &Head) -> Counts {
    let bytes = head.live_bytes + head.kept_bytes();
    Counts {
        documents: head.state.tally.documents(),
        tombstones: head.state.tombstones,
        file_bytes: bytes,
        used_bytes: bytes,
    }
}

/// Whether a database says whose it is; one that is another folder's is refused.
fn check_owner(database: &Database, dir: &Path, catalog: &Catalog) -> Result<bool, Failure> {
    let noted = database.owner().map_err(|error| Failure::Catalog {
        dir: dir.to_owned(),
        what: format!("RocksDB does not say whose database it is: {error}"),
    })?;
    let Some(owner) = noted else { return Ok(false) };
    if catalog.sequence() > 0 && owner != catalog.store().0.to_le_bytes() {
        let what = "its RocksDB database is of another bucket".to_owned();
        return Err(Failure::Catalog { dir: dir.to_owned(), what });
    }
    Ok(true)
}

impl KvStore for Rocks {
    fn save_group(&self, group: &[(VbId, SaveBatch<'_>)]) -> Vec<Result<(), Failure>> {
        self.commit_group(group).into_iter().map(|saved| saved.map(drop)).collect()
    }

    fn get(&self, vb: VbId, key: DocKey<'_>) -> Result<Option<Version>, Failure> {
        self.check(vb)?;
        self.note(self.find(vb, key))
    }

    fn snapshot(&self, vb: VbId) -> Result<Option<Box<dyn AnySnapshot>>, Failure> {
        self.check(vb)?;
        if self.head(vb).is_none() {
            return Ok(None);
        }
        let moment = Moment::of(&self.database);
        let snapshot = self.note(RocksSnapshot::of(moment, vb, self.env.heap.clone()))?;
        Ok(snapshot.map(|snapshot| Box::new(snapshot) as Box<dyn AnySnapshot>))
    }

    fn states(&self) -> Result<States, Failure> {
        let one = |vb| Some((vb, Files::stored(self, vb).transpose()?));
        Ok(Files::known(self).into_iter().filter_map(one).collect())
    }

    fn stored_vbucket(&self, vb: VbId) -> Result<Option<StoredVb>, Failure> {
        Files::stored(self, vb)
    }

    fn counts(&self, vb: VbId) -> Result<Counts, Failure> {
        self.check(vb)?;
        Ok(self.head(vb).map(|head| counts_of(&head)).unwrap_or_default())
    }

    fn usage(&self, vb: VbId) -> Option<Usage> {
        let Counts { file_bytes, used_bytes, .. } = counts_of(&*self.head(vb)?);
        Some(Usage { file_bytes, used_bytes, is_current: true })
    }

    fn each_collection(&self, vb: VbId, tell: &mut dyn FnMut(CollectionId, &CollectionStats)) -> bool {
        if let Some(head) = self.head(vb) {
            head.state.tally.all().iter().for_each(|(id, stats)| tell(*id, stats));
        }
        true
    }

    fn delete_vbucket(&self, vb: VbId) -> Result<(), Failure> {
        self.begin_writing()?;
        if self.is_alone {
            self.catalog.forget(vb)?;
        }
        self.note(self.delete(vb))
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
        Stats {
            saves: self.saves.load(Ordering::Relaxed),
            items_saved: self.items_saved.load(Ordering::Relaxed),
            failures: self.failures.load(Ordering::Relaxed),
            ..Stats::default()
        }
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
