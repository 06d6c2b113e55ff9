//! Backend `memory`: for tests and the simulator. Durable as long as the value lives.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::{Bound, ControlFlow};

use base::{CollectionId, DocKey, Seqno, VbId, Version};
use parking_lot::Mutex;

use crate::collections::{CollectionStats, PREPARES, Tally, Weight, collection_of, event_prefix, former_of};
use crate::compaction::{Candidate, Compacted, Compaction, CompactionProgress, Reason, RolledBack};
use crate::failure::Failure;
use crate::manifest::{StoredManifest, events_in};
use crate::state::VbStateDoc;
use crate::store::{Counts, KvStore, SaveBatch, Snapshot, States, Stats, StoredVb, Usage, Values, is_gone};

/// What a record costs beyond key and value on a disk of the other backend.
const RECORD_BYTES: u64 = 18 + 8;
/// So many commits can be gone back over.
const MOST_COMMITS: usize = 200;
/// So many records are looked at between two looks at whether a compaction goes on.
const STEP_RECORDS: usize = 16;

/// A bucket's documents in maps.
#[derive(Default)]
pub struct Memory {
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    vbuckets: BTreeMap<VbId, Vbucket>,
    /// Being compacted.
    compacting: BTreeSet<VbId>,
    /// Grow with each deletion and rollback.
    generations: BTreeMap<VbId, u64>,
    stats: Stats,
}

#[derive(Default)]
struct Vbucket {
    now: Content,
    /// What each commit replaced, newest last; the one before them all cannot be gone back over.
    history: VecDeque<Undo>,
    has_commits: bool,
}

/// How things were before a commit.
struct Undo {
    /// Keys that the commit saved, each with the version before.
    replaced: Vec<(Box<[u8]>, Option<Version>)>,
    before: Totals,
}

#[derive(Clone, Default)]
struct Content {
    by_key: BTreeMap<Box<[u8]>, Version>,
    by_seqno: BTreeMap<Seqno, Version>,
    totals: Totals,
}

#[derive(Clone, Default)]
struct Totals {
    tally: Tally,
    manifest: StoredManifest,
    state: VbStateDoc,
    high_seqno: Seqno,
    purge_seqno: Seqno,
    tombstones: u64,
    bytes: u64,
}

impl Content {
    fn counts(&self) -> Counts {
        Counts {
            documents: self.totals.tally.documents(),
            tombstones: self.totals.tombstones,
            file_bytes: self.totals.bytes,
            used_bytes: self.totals.bytes,
        }
    }

    fn stored(&self) -> StoredVb {
        StoredVb {
            state: self.totals.state.clone(),
            high_seqno: self.totals.high_seqno,
            purge_seqno: self.totals.purge_seqno,
            counts: self.counts(),
            collections: self.totals.tally.all().to_vec(),
            manifest: self.totals.manifest.clone(),
        }
    }

    fn save(&mut self, version: &Version) -> Option<Version> {
        let key = version.stored_key();
        let seqno = version.meta().by_seqno;
        let old = self.by_key.insert(key.into(), version.clone());
        let totals = &mut self.totals;
        if let Some(old) = &old {
            self.by_seqno.remove(&old.meta().by_seqno);
            totals.tombstones -= u64::from(is_gone(old));
            totals.bytes -= weight(old).disk_bytes;
        }
        totals.tombstones += u64::from(is_gone(version));
        totals.bytes += weight(version).disk_bytes;
        self.by_seqno.insert(seqno, version.clone());
        totals.high_seqno = totals.high_seqno.max(seqno);
        totals.tally.change(key, seqno, weight(version), old.as_ref().map(weight));
        old
    }

    /// Forgets a version that a compaction leaves out, unless it was replaced meanwhile.
    fn leave_out(&mut self, version: &Version, is_counted: bool) {
        if self.by_seqno.remove(&version.meta().by_seqno).is_none() {
            return;
        }
        self.by_key.remove(version.stored_key());
        self.totals.tombstones -= u64::from(is_gone(version));
        self.totals.bytes -= weight(version).disk_bytes;
        if is_counted {
            self.totals.tally.leave_out(version.stored_key(), weight(version));
            self.totals.tally.take_changes();
        }
    }

    /// Whether a version is of a collection that was dropped and created again since.
    fn is_of_former(&self, version: &Version) -> bool {
        let Some(collection) = collection_of(version.stored_key()) else { return false };
        let prefix = event_prefix(collection);
        let event = self.by_key.range(prefix.clone().into_boxed_slice()..).next();
        event.is_some_and(|(key, event)| {
            key.starts_with(&prefix) && !event.is_deleted() && version.meta().by_seqno < event.meta().by_seqno
        })
    }
}

impl Vbucket {
    fn save(&mut self, batch: SaveBatch<'_>) {
        let before = self.now.totals.clone();
        let mut replaced = Vec::with_capacity(batch.items.len());
        let events = events_in(batch.items);
        let totals = &mut self.now.totals;
        for event in &events {
            let former = former_of(event, &totals.manifest);
            totals.manifest.apply(event, |id, start| totals.tally.is_written(id, start, batch.items));
            former.into_iter().for_each(|id| totals.tally.drop_collection(id));
        }
        totals.tally.begin_default(&totals.manifest);
        for version in batch.items {
            replaced.push((version.stored_key().into(), self.now.save(version)));
        }
        let totals = &mut self.now.totals;
        totals.tally.end(&events, &totals.manifest);
        totals.tally.take_changes();
        self.now.totals.state = batch.state.clone();
        if self.has_commits {
            self.history.push_back(Undo { replaced, before });
        }
        self.has_commits = true;
        if self.history.len() > MOST_COMMITS {
            self.history.pop_front();
        }
    }

    /// Goes back over commits; false if none fits.
    fn rollback(&mut self, to: Seqno) -> bool {
        while self.now.totals.high_seqno > to {
            let Some(Undo { replaced, before }) = self.history.pop_back() else { return false };
            for (key, old) in replaced {
                if let Some(gone) = self.now.by_key.remove(&key) {
                    self.now.by_seqno.remove(&gone.meta().by_seqno);
                }
                if let Some(old) = old {
                    self.now.by_seqno.insert(old.meta().by_seqno, old.clone());
                    self.now.by_key.insert(key, old);
                }
            }
            self.now.totals = before;
        }
        true
    }
}

fn visible(versions: impl Iterator<Item = Version>, visit: &mut dyn FnMut(Version) -> ControlFlow<()>) {
    for version in versions {
        if version.key().collection != PREPARES && visit(version).is_break() {
            break;
        }
    }
}

/// A copy of the maps: a moment that stays.
impl Snapshot for Content {
    fn state(&self) -> Result<VbStateDoc, Failure> {
        Ok(self.totals.state.clone())
    }

    fn high_seqno(&self) -> Seqno {
        self.totals.high_seqno
    }

    fn purge_seqno(&self) -> Seqno {
        self.totals.purge_seqno
    }

    fn get(&self, key: DocKey<'_>) -> Result<Option<Version>, Failure> {
        Ok(self.by_key.get(&*key.to_stored().0).cloned())
    }

    fn scan(
        &self,
        from: Seqno,
        _: Values,
        visit: &mut dyn FnMut(Version) -> ControlFlow<()>,
    ) -> Result<(), Failure> {
        visible(self.by_seqno.range(from..).map(|(_, version)| version.clone()), visit);
        Ok(())
    }

    fn scan_all(
        &self,
        from: Seqno,
        _: Values,
        visit: &mut dyn FnMut(Version) -> ControlFlow<()>,
    ) -> Result<(), Failure> {
        for (_, version) in self.by_seqno.range(from..) {
            if visit(version.clone()).is_break() {
                break;
            }
        }
        Ok(())
    }

    fn scan_keys(
        &self,
        from: &[u8],
        _: Values,
        visit: &mut dyn FnMut(Version) -> ControlFlow<()>,
    ) -> Result<(), Failure> {
        let from = (Bound::Included(from), Bound::Unbounded);
        visible(self.by_key.range::<[u8], _>(from).map(|(_, version)| version.clone()), visit);
        Ok(())
    }
}

impl Inner {
    fn save(&mut self, vb: VbId, batch: SaveBatch<'_>) {
        batch.assert_sorted();
        self.stats.saves += 1;
        self.stats.items_saved += batch.items.len() as u64;
        self.vbuckets.entry(vb).or_default().save(batch)
    }
}

fn weight(version: &Version) -> Weight {
    let bytes = version.stored_key().len() + version.value().len();
    Weight {
        seqno: version.meta().by_seqno,
        deleted: is_gone(version),
        disk_bytes: bytes as u64 + RECORD_BYTES,
    }
}

impl KvStore for Memory {
    fn save_group(&self, group: &[(VbId, SaveBatch<'_>)]) -> Vec<Result<(), Failure>> {
        let mut inner = self.inner.lock();
        let save = |(vb, batch): &(VbId, SaveBatch<'_>)| {
            inner.save(*vb, *batch);
            Ok(())
        };
        group.iter().map(save).collect()
    }

    fn get(&self, vb: VbId, key: DocKey<'_>) -> Result<Option<Version>, Failure> {
        let inner = self.inner.lock();
        Ok(inner.vbuckets.get(&vb).and_then(|vbucket| vbucket.now.by_key.get(&*key.to_stored().0)).cloned())
    }

    fn snapshot(&self, vb: VbId) -> Result<Option<Box<dyn Snapshot>>, Failure> {
        let inner = self.inner.lock();
        Ok(inner.vbuckets.get(&vb).map(|vbucket| Box::new(vbucket.now.clone()) as Box<dyn Snapshot>))
    }

    fn states(&self) -> Result<States, Failure> {
        let inner = self.inner.lock();
        Ok(inner.vbuckets.iter().map(|(vb, vbucket)| (*vb, Ok(vbucket.now.stored()))).collect())
    }

    fn counts(&self, vb: VbId) -> Result<Counts, Failure> {
        Ok(self.inner.lock().vbuckets.get(&vb).map(|vbucket| vbucket.now.counts()).unwrap_or_default())
    }

    fn usage(&self, vb: VbId) -> Option<Usage> {
        let bytes = self.inner.lock().vbuckets.get(&vb)?.now.totals.bytes;
        Some(Usage { file_bytes: bytes, used_bytes: bytes, is_current: true })
    }

    fn each_collection(&self, vb: VbId, tell: &mut dyn FnMut(CollectionId, &CollectionStats)) -> bool {
        let inner = self.inner.lock();
        let of = inner.vbuckets.get(&vb).into_iter().flat_map(|vbucket| vbucket.now.totals.tally.all());
        of.for_each(|(id, stats)| tell(*id, stats));
        true
    }

    fn delete_vbucket(&self, vb: VbId) -> Result<(), Failure> {
        let mut inner = self.inner.lock();
        *inner.generations.entry(vb).or_default() += 1;
        inner.vbuckets.remove(&vb);
        Ok(())
    }

    fn rollback(&self, vb: VbId, to: Seqno) -> Result<RolledBack, Failure> {
        let mut inner = self.inner.lock();
        *inner.generations.entry(vb).or_default() += 1;
        let Some(vbucket) = inner.vbuckets.get_mut(&vb) else { return Ok(RolledBack::default()) };
        if !vbucket.rollback(to) {
            inner.vbuckets.remove(&vb);
            return Ok(RolledBack::default());
        }
        let stored = vbucket.now.stored();
        Ok(RolledBack { seqno: stored.high_seqno, stored: Some(stored) })
    }

    fn compact(&self, vb: VbId, request: &Compaction<'_>) -> Result<Compacted, Failure> {
        if !self.inner.lock().compacting.insert(vb) {
            return Err(Failure::CompactionRuns { vb });
        }
        let result = self.compact_alone(vb, request);
        self.inner.lock().compacting.remove(&vb);
        result
    }

    fn stats(&self) -> Stats {
        self.inner.lock().stats
    }
}

impl Memory {
    fn compact_alone(&self, vb: VbId, request: &Compaction<'_>) -> Result<Compacted, Failure> {
        let (all, highest, generation, completed): (Vec<Version>, _, _, _) = {
            let inner = self.inner.lock();
            let now = &inner.vbuckets.get(&vb).ok_or(Failure::NoVbucket { vb })?.now;
            (
                now.by_seqno.values().cloned().collect(),
                now.totals.high_seqno,
                inner.generations.get(&vb).copied(),
                Seqno(now.totals.state.completed_seqno),
            )
        };
        let mut left_out = Vec::new();
        for (i, version) in all.iter().enumerate() {
            let progress = CompactionProgress { done_bytes: i as u64, total_bytes: all.len() as u64 };
            if i % STEP_RECORDS == 0 && (request.observe)(progress).is_break() {
                return Err(Failure::CompactionEnded { vb, why: "it was told to end" });
            }
            if version.meta().by_seqno != highest
                && let Some(reason) = request.judge(candidate(version), completed, || Some(version.clone()))
            {
                left_out.push((version, reason));
            }
        }
        let mut inner = self.inner.lock();
        if inner.generations.get(&vb).copied() != generation {
            let why = "the vBucket was deleted or rolled back";
            return Err(Failure::CompactionEnded { vb, why });
        }
        let vbucket = inner.vbuckets.get_mut(&vb).ok_or(Failure::NoVbucket { vb })?;
        request.erases(&mut vbucket.now.totals.manifest);
        Ok(vbucket.leave_out(&left_out))
    }
}

fn candidate(version: &Version) -> Candidate<'_> {
    let meta = version.meta();
    Candidate {
        stored_key: version.stored_key(),
        seqno: meta.by_seqno,
        deleted: is_gone(version),
        sync_write: Some(meta.sync_write),
        expiry: Some(meta.expiry),
    }
}

impl Vbucket {
    fn leave_out(&mut self, versions: &[(&Version, Reason)]) -> Compacted {
        let mut compacted = Compacted { before_bytes: self.now.totals.bytes, ..Compacted::default() };
        for (version, reason) in versions {
            let is_counted = *reason != Reason::Dropped || !self.now.is_of_former(version);
            self.now.leave_out(version, is_counted);
            compacted.count(*reason);
            if *reason == Reason::Purged {
                let purge_seqno = &mut self.now.totals.purge_seqno;
                *purge_seqno = version.meta().by_seqno.max(*purge_seqno);
            }
        }
        // as after a real one: there is one commit only
        self.history.clear();
        compacted.after_bytes = self.now.totals.bytes;
        compacted.purge_seqno = self.now.totals.purge_seqno;
        compacted
    }
}
