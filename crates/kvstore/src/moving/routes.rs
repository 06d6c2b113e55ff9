//! The store as the engine sees it: each vBucket's questions go to the store that it is in.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use base::{CollectionId, DocKey, Seqno, VbId, Version};
use logstore::{HistoryUsage, Retention as HistoryRetention, Tuning as LogTuning};
use parking_lot::MutexGuard;

use super::held::HeldSnapshot;
use super::{Lane, Movable, Side, Sides};
use crate::catalog::StoreId;
use crate::collections::CollectionStats;
use crate::compaction::{Compacted, Compaction, RolledBack};
use crate::failure::Failure;
use crate::state::VbStateDoc;
use crate::store::{
    Background, Counts, KvStore, SaveBatch, Snapshot, States, Stats, StoredVb, Usage, VbucketFile,
};

type Taken = Result<Option<Box<dyn Snapshot>>, Failure>;

/// A compaction that is under way.
struct Compacting<'l>(&'l Lane);

impl Drop for Compacting<'_> {
    fn drop(&mut self) {
        self.0.work.lock().compactions -= 1;
    }
}

impl Movable {
    /// A snapshot that keeps its store.
    fn hold(&self, vb: VbId, take: impl Fn(&dyn KvStore) -> Taken) -> Taken {
        self.ask(vb, |side| {
            let taken = take(&*side.store)?;
            Ok(taken.map(|snapshot| Box::new(HeldSnapshot::new(snapshot, side, vb)) as Box<dyn Snapshot>))
        })
    }

    /// Nothing of a vBucket is changed as long as it is unknown where a restart finds it.
    fn check_decided(&self, vb: VbId) -> Result<(), Failure> {
        if !self.lane(vb).is_undecided.load(Ordering::SeqCst) {
            return Ok(());
        }
        let source =
            std::io::Error::other("the vBucket goes to another store, and that is not on record yet");
        Err(Failure::Disk { operation: "change files in", path: self.dir.clone(), source })
    }

    /// For a change of what is stored that makes void what was copied. No copy begins and none ends before what is
    /// returned is let go of.
    fn change(&self, vb: VbId) -> Result<(MutexGuard<'_, ()>, Arc<Side>), Failure> {
        let lane = self.lane(vb);
        let saving = lane.saving.lock();
        self.check_decided(vb)?;
        lane.work.lock().generation += 1;
        Ok((saving, self.side(vb)))
    }

    /// Saves in both stores; each batch in the one that its vBucket is in. The caller holds the vBuckets.
    fn save_in_both(&self, group: &[(VbId, SaveBatch<'_>)]) -> Vec<Result<(), Failure>> {
        let mut answers: Vec<Result<(), Failure>> =
            group.iter().map(|(vb, _)| self.check_decided(*vb)).collect();
        let is_elsewhere = |vb: VbId| self.lane(vb).is_elsewhere.load(Ordering::SeqCst);
        for elsewhere in [false, true] {
            let of_side = group.iter().enumerate();
            let of_side =
                of_side.filter(|(at, (vb, _))| answers[*at].is_ok() && is_elsewhere(*vb) == elsewhere);
            let (places, part): (Vec<usize>, Vec<_>) = of_side.map(|(at, one)| (at, *one)).unzip();
            let Some((first, _)) = part.first() else { continue };
            let saved = self.side(*first).store.save_group(&part);
            places.into_iter().zip(saved).for_each(|(at, saved)| answers[at] = saved);
        }
        answers
    }

    /// Both stores, or the only one.
    fn each_side<T>(&self, work: impl Fn(&dyn KvStore) -> T) -> (T, Option<T>) {
        match self.sides.read().clone() {
            Sides::One(side) => (work(&*side.store), None),
            Sides::Two { first, other } => (work(&*first.store), Some(work(&*other.store))),
        }
    }
}

/// What both answered; the first failure counts.
fn both((first, other): (Result<(), Failure>, Option<Result<(), Failure>>)) -> Result<(), Failure> {
    first.and(other.unwrap_or(Ok(())))
}

fn sum(a: Stats, b: Stats) -> Stats {
    Stats {
        saves: a.saves + b.saves,
        items_saved: a.items_saved + b.items_saved,
        failures: a.failures + b.failures,
        open_files: a.open_files + b.open_files,
        file_hits: a.file_hits + b.file_hits,
        file_misses: a.file_misses + b.file_misses,
        file_evictions: a.file_evictions + b.file_evictions,
        unfiled_bytes: a.unfiled_bytes + b.unfiled_bytes,
        journal: a.journal.or(b.journal),
        log: a.log.or(b.log),
    }
}

impl KvStore for Movable {
    fn save_group(&self, group: &[(VbId, SaveBatch<'_>)]) -> Vec<Result<(), Failure>> {
        let mut lanes: Vec<usize> = group.iter().map(|(vb, _)| self.lane_number(*vb)).collect();
        lanes.sort_unstable();
        lanes.dedup();
        let _saving: Vec<_> = lanes.iter().map(|at| self.lanes[*at].saving.lock()).collect();
        let sides = self.sides.read().clone();
        match sides {
            Sides::One(side) => side.store.save_group(group),
            Sides::Two { .. } => self.save_in_both(group),
        }
    }

    fn get(&self, vb: VbId, key: DocKey<'_>) -> Result<Option<Version>, Failure> {
        self.ask(vb, |side| side.store.get(vb, key))
    }

    fn get_many(&self, vb: VbId, keys: &[DocKey<'_>]) -> Vec<Result<Option<Version>, Failure>> {
        self.ask(vb, |side| side.store.get_many(vb, keys))
    }

    fn snapshot(&self, vb: VbId) -> Taken {
        self.hold(vb, |store| store.snapshot(vb))
    }

    fn filed_counts(&self, vb: VbId) -> Result<Counts, Failure> {
        self.ask(vb, |side| side.store.filed_counts(vb))
    }

    fn filed_snapshot(&self, vb: VbId) -> Taken {
        self.hold(vb, |store| store.filed_snapshot(vb))
    }

    fn states(&self) -> Result<States, Failure> {
        let (first, other) = match self.sides.read().clone() {
            Sides::One(side) => return side.store.states(),
            Sides::Two { first, other } => (first, other),
        };
        let is_elsewhere = |vb: VbId| self.lane(vb).is_elsewhere.load(Ordering::SeqCst);
        let mut all = first.store.states()?;
        all.retain(|(vb, _)| !is_elsewhere(*vb));
        all.extend(other.store.states()?.into_iter().filter(|(vb, _)| is_elsewhere(*vb)));
        all.sort_by_key(|(vb, _)| *vb);
        Ok(all)
    }

    fn stored_vbucket(&self, vb: VbId) -> Result<Option<StoredVb>, Failure> {
        self.ask(vb, |side| side.store.stored_vbucket(vb))
    }

    fn counts(&self, vb: VbId) -> Result<Counts, Failure> {
        self.ask(vb, |side| side.store.counts(vb))
    }

    fn usage(&self, vb: VbId) -> Option<Usage> {
        self.ask(vb, |side| side.store.usage(vb))
    }

    fn each_collection(&self, vb: VbId, tell: &mut dyn FnMut(CollectionId, &CollectionStats)) -> bool {
        // Asked again if the vBucket went to the other store meanwhile.
        let (is_told, told) = self.ask(vb, |side| {
            let mut told = Vec::new();
            let is_told = side.store.each_collection(vb, &mut |id, stats| told.push((id, *stats)));
            (is_told, told)
        });
        told.iter().for_each(|(id, stats)| tell(*id, stats));
        is_told
    }

    fn take_changed(&self, changed: &mut dyn FnMut(VbId)) -> bool {
        match self.sides.read().clone() {
            // The first time after a move, too, any may have changed.
            Sides::One(side) => {
                !self.was_moving.swap(false, Ordering::SeqCst) && side.store.take_changed(changed)
            }
            Sides::Two { .. } => {
                self.was_moving.store(true, Ordering::SeqCst);
                false
            }
        }
    }

    fn delete_vbucket(&self, vb: VbId) -> Result<(), Failure> {
        let (_saving, side) = self.change(vb)?;
        side.store.delete_vbucket(vb)
    }

    fn set_aside(&self, vb: VbId, to: &Path) -> Result<(), Failure> {
        let (_saving, side) = self.change(vb)?;
        side.store.set_aside(vb, to)
    }

    fn rollback(&self, vb: VbId, to: Seqno) -> Result<RolledBack, Failure> {
        let (_saving, side) = self.change(vb)?;
        side.store.rollback(vb, to)
    }

    fn compact(&self, vb: VbId, request: &Compaction<'_>) -> Result<Compacted, Failure> {
        let lane = self.lane(vb);
        {
            let mut work = lane.work.lock();
            if work.is_copied {
                return Err(Failure::CompactionRuns { vb });
            }
            work.compactions += 1;
        }
        let _until_it_ends = Compacting(lane);
        self.side(vb).store.compact(vb, request)
    }

    fn stats(&self) -> Stats {
        let (first, other) = self.each_side(|store| store.stats());
        other.map_or(first, |other| sum(first, other))
    }

    fn background_step(&self) -> Result<Background, Failure> {
        let (first, other) = self.each_side(|store| store.background_step());
        match (first, other) {
            (first, None) => first,
            (Ok(Background::Worked), Some(Ok(_))) | (Ok(_), Some(Ok(Background::Worked))) => {
                Ok(Background::Worked)
            }
            (first, Some(other)) => first.and(other),
        }
    }

    fn take_damage(&self) -> Vec<(VbId, String)> {
        let (mut first, other) = self.each_side(|store| store.take_damage());
        first.extend(other.into_iter().flatten());
        first
    }

    fn hold_at_most(&self, bytes: u64) {
        self.each_side(|store| store.hold_at_most(bytes));
    }

    fn is_journaled(&self) -> bool {
        let (first, other) = self.each_side(|store| store.is_journaled());
        first && other.unwrap_or(true)
    }

    fn tune(&self, tuning: LogTuning) {
        self.each_side(|store| store.tune(tuning));
    }

    fn keep_history(&self, retention: HistoryRetention) -> Result<(), Failure> {
        if retention.is_on() && self.sides.read().are_two() {
            let what = "the bucket is being moved to another store, and a history begins when that has ended";
            return Err(Failure::OtherStore { dir: self.dir.clone(), what: what.to_owned() });
        }
        both(self.each_side(|store| store.keep_history(retention)))
    }

    fn keeps_history(&self) -> bool {
        let (first, other) = self.each_side(|store| store.keeps_history());
        first && other.unwrap_or(true)
    }

    fn history(&self, vb: VbId) -> HistoryUsage {
        self.ask(vb, |side| side.store.history(vb))
    }

    fn history_snapshot(&self, vb: VbId) -> Taken {
        self.hold(vb, |store| store.history_snapshot(vb))
    }

    fn has_vbucket_files(&self) -> bool {
        let (first, other) = self.each_side(|store| store.has_vbucket_files());
        first && other.unwrap_or(true)
    }

    fn vbucket_file(&self, vb: VbId) -> Result<Option<VbucketFile>, Failure> {
        if self.sides.read().are_two() {
            return Ok(None);
        }
        self.ask(vb, |side| side.store.vbucket_file(vb))
    }

    fn adopt_file(&self, vb: VbId, file: &Path, state: &VbStateDoc) -> Result<Option<StoredVb>, Failure> {
        if self.sides.read().are_two() {
            return Ok(None);
        }
        let (_saving, side) = self.change(vb)?;
        side.store.adopt_file(vb, file, state)
    }

    fn was_closed(&self) -> Option<bool> {
        let (first, other) = self.each_side(|store| store.was_closed());
        match other {
            None => first,
            Some(other) => first.zip(other).map(|(first, other)| first && other),
        }
    }

    fn store_id(&self) -> Result<Option<StoreId>, Failure> {
        self.each_side(|store| store.store_id()).0
    }

    fn close(&self) -> Result<(), Failure> {
        both(self.each_side(|store| store.close()))
    }
}
