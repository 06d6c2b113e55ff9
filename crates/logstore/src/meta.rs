//! What a shard consists of: files, and for each vBucket where its items are and which of them count. Every change is
//! an [`Edit`], applied in the same way when it happens and when the manifest is read again.

use std::collections::BTreeMap;
use std::sync::Arc;

use roaring::RoaringTreemap;

use crate::file::FileKind;
use crate::history::{History, HistoryEdit};

/// A run as the manifest has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RunMeta {
    pub(crate) number: u64,
    /// See [`crate::identity::FileId`].
    pub(crate) nonce: u64,
    pub(crate) bytes: u64,
    pub(crate) low: u64,
    pub(crate) high: u64,
    pub(crate) entries: u64,
    pub(crate) vbs: Vec<u16>,
}

/// A segment as the manifest has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SegmentMeta {
    pub(crate) len: u64,
    /// Bytes of its items.
    pub(crate) bytes: u64,
    /// See [`crate::identity::FileId`].
    pub(crate) nonce: u64,
}

/// Items of a vBucket that follow each other in a segment. Those above `last` do not count: a rollback cut them off.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Extent {
    pub(crate) segment: u64,
    pub(crate) ordinal: u32,
    pub(crate) first: u64,
    pub(crate) last: u64,
    pub(crate) items: u32,
    /// Bytes of its items.
    pub(crate) bytes: u64,
    /// Bytes of those that are dead.
    pub(crate) dead_bytes: u64,
}

impl Extent {
    pub(crate) fn id(&self) -> (u64, u32) {
        (self.segment, self.ordinal)
    }

    pub(crate) fn live_bytes(&self) -> u64 {
        self.bytes.saturating_sub(self.dead_bytes)
    }

    /// Mean bytes of an item, one at least.
    pub(crate) fn mean_bytes(&self) -> u64 {
        (self.bytes / u64::from(self.items.max(1))).max(1)
    }

    /// Bytes of so many of its items, about.
    pub(crate) fn bytes_of(&self, items: u64) -> u64 {
        self.mean_bytes().saturating_mul(items)
    }
}

/// A commit that a rollback may go back to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Point {
    pub(crate) commit: u64,
    /// The vBucket's epoch then: entries of later ones do not count.
    pub(crate) epoch: u64,
    pub(crate) high: u64,
    pub(crate) purge: u64,
    pub(crate) state: Arc<[u8]>,
}

/// A version that a newer one replaced, or that was left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Kill {
    pub(crate) seqno: u64,
    pub(crate) bytes: u32,
}

/// Bytes of memory for an entry of a map of versions that a point needs, about.
const SUPERSEDED_BYTES: usize = 48;

/// Bytes of memory that a set takes, about.
fn set_bytes(set: &RoaringTreemap) -> usize {
    let bytes = |bitmap: &roaring::RoaringBitmap| bitmap.serialized_size() + size_of_val(bitmap);
    set.bitmaps().map(|(_, bitmap)| bytes(bitmap)).sum()
}

/// A vBucket.
///
/// *Invariants:* extents are in order of seqno and do not overlap. The last point is the last commit. An item of an
/// extent is part of the last commit unless its seqno is in `dead`, `superseded` or [`History::retained`]; it is needed
/// by a point of before only if it is in neither `dead` nor in the last of these alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct VbMeta {
    /// Which entries of the key index count: those of an epoch up to a seqno, in order. The last epoch has no limit.
    pub(crate) epochs: Vec<(u64, u64)>,
    pub(crate) points: Vec<Point>,
    pub(crate) extents: Arc<Vec<Extent>>,
    pub(crate) dead: Arc<RoaringTreemap>,
    /// A rollback that is asked for does not go back behind this commit, which left something out. Points before it are
    /// for a start that does not find it on record.
    pub(crate) barrier: u64,
    /// Versions that were replaced or left out and that a point still needs: by which commit, and their bytes.
    pub(crate) superseded: Arc<BTreeMap<u64, (u64, u32)>>,
    /// Bytes of those that are not in [`History::retained`], too: only a rollback needs them.
    pub(crate) pinned_bytes: u64,
    pub(crate) history: Arc<History>,
    /// Bytes of the versions in [`History::retained`], about: the sum of [`VbMeta::history_bytes_in`] over all extents.
    pub(crate) history_bytes: u64,
}

impl VbMeta {
    /// One without anything.
    pub(crate) fn begin(epoch: u64) -> VbMeta {
        VbMeta {
            epochs: vec![(epoch, u64::MAX)],
            points: Vec::new(),
            extents: Arc::default(),
            dead: Arc::default(),
            barrier: 0,
            superseded: Arc::default(),
            pinned_bytes: 0,
            history: Arc::default(),
            history_bytes: 0,
        }
    }

    pub(crate) fn epoch(&self) -> u64 {
        self.epochs.last().map_or(0, |(epoch, _)| *epoch)
    }

    pub(crate) fn last(&self) -> &Point {
        self.points.last().expect("a vBucket has a commit")
    }

    pub(crate) fn high(&self) -> u64 {
        self.points.last().map_or(0, |point| point.high)
    }

    /// Whether an entry of the key index counts.
    pub(crate) fn sees(&self, epoch: u64, seqno: u64) -> bool {
        let found = self.epochs.binary_search_by_key(&epoch, |(known, _)| *known);
        found.is_ok_and(|at| seqno <= self.epochs[at].1)
    }

    /// Whether an item is part of the last commit.
    pub(crate) fn is_live(&self, seqno: u64) -> bool {
        !self.dead.contains(seqno)
            && !self.superseded.contains_key(&seqno)
            && !self.history.retained.contains(seqno)
    }

    /// Whether a point needs an item that a commit replaced or left out.
    fn needs(&self, seqno: u64, by: u64) -> bool {
        self.points.iter().any(|point| seqno <= point.high && point.commit < by)
    }

    /// Whether a point needs an entry of the key index beneath a newer one.
    pub(crate) fn needs_entry(&self, old: (u64, u64), new: (u64, u64)) -> bool {
        let has = |point: &Point, (epoch, seqno)| epoch <= point.epoch && seqno <= point.high;
        self.points.iter().any(|point| has(point, old) && !has(point, new))
    }

    /// Whether there are points behind the barrier.
    pub(crate) fn is_pending(&self) -> bool {
        self.points.first().is_some_and(|point| point.commit < self.barrier)
    }

    /// Gives up the points behind the barrier.
    fn reset(&mut self) {
        let (barrier, last) = (self.barrier, self.last().commit);
        self.points.retain(|point| point.commit >= barrier || point.commit == last);
        self.settle();
        self.pinned_bytes = self.sum_pinned();
    }

    /// Without the points before a commit, except for the last one.
    pub(crate) fn without_points_before(&self, commit: u64) -> VbMeta {
        let (mut meta, last) = (self.clone(), self.last().commit);
        meta.points.retain(|point| point.commit >= commit || point.commit == last);
        meta.settle();
        meta.pinned_bytes = meta.sum_pinned();
        meta
    }

    /// Added up anew: the cost is that of all versions that a point needs.
    pub(crate) fn sum_pinned(&self) -> u64 {
        let retained = &self.history.retained;
        let pinned = self.superseded.iter().filter(|(seqno, _)| !retained.contains(**seqno));
        pinned.map(|(_, (_, bytes))| u64::from(*bytes)).sum()
    }

    /// Whether versions that only a rollback needs take more than this share of all items, in percent.
    pub(crate) fn pins_more_than(&self, percent: u64) -> bool {
        let (all, _) = self.bytes();
        u128::from(self.pinned_bytes) * 100 > u128::from(all) * u128::from(percent)
    }

    /// The extent that has a seqno.
    pub(crate) fn extent_of(&self, seqno: u64) -> Option<&Extent> {
        let at = self.extents.partition_point(|extent| extent.first <= seqno).checked_sub(1)?;
        self.extents.get(at).filter(|extent| seqno <= extent.last)
    }

    /// Bytes of its items, and of those that count: versions that only a rollback needs do not.
    pub(crate) fn bytes(&self) -> (u64, u64) {
        let all = self.extents.iter().map(|extent| extent.bytes).sum();
        let needed: u64 = self.extents.iter().map(Extent::live_bytes).sum();
        (all, needed.saturating_sub(self.pinned_bytes))
    }

    /// Bytes of memory that this takes, about.
    pub(crate) fn memory(&self) -> usize {
        let state = |point: &Point| size_of::<Point>() + point.state.len();
        let points: usize = self.points.iter().map(state).sum();
        let extents = self.extents.capacity() * size_of::<Extent>();
        let superseded = self.superseded.len() * SUPERSEDED_BYTES;
        size_of::<VbMeta>()
            + self.epochs.capacity() * 16
            + points
            + extents
            + superseded
            + set_bytes(&self.dead)
            + set_bytes(&self.history.retained)
            + self.history.marks.capacity() * 16
    }

    fn bury(&mut self, seqno: u64, bytes: u32) {
        if self.history.retained.contains(seqno) {
            return;
        }
        Arc::make_mut(&mut self.dead).insert(seqno);
        let extents = Arc::make_mut(&mut self.extents);
        let Some(at) = extents.partition_point(|extent| extent.first <= seqno).checked_sub(1) else { return };
        extents[at].dead_bytes += u64::from(bytes);
    }

    fn kill(&mut self, kill: &Kill, by: u64) {
        if self.needs(kill.seqno, by) {
            Arc::make_mut(&mut self.superseded).insert(kill.seqno, (by, kill.bytes));
        } else {
            self.bury(kill.seqno, kill.bytes);
        }
    }

    /// What no point needs any more is dead.
    fn settle(&mut self) {
        let gone: Vec<(u64, u32)> = self
            .superseded
            .iter()
            .filter(|(seqno, (by, _))| !self.needs(**seqno, *by))
            .map(|(seqno, (_, bytes))| (*seqno, *bytes))
            .collect();
        for (seqno, bytes) in gone {
            Arc::make_mut(&mut self.superseded).remove(&seqno);
            self.bury(seqno, bytes);
        }
    }

    fn commit(&mut self, commit: &CommitEdit) {
        let point = &commit.point;
        if point.epoch > self.epoch() {
            let high = self.high();
            self.epochs.last_mut().expect("there is one").1 = high;
            self.epochs.push((point.epoch, u64::MAX));
        }
        self.points.push(point.clone());
        let last = commit.point.commit;
        self.points.retain(|point| point.commit == last || !commit.forgets.contains(&point.commit));
        if let Some(extent) = &commit.extent {
            Arc::make_mut(&mut self.extents).push(extent.clone());
        }
        if let Some(history) = &commit.history {
            self.change_history(history);
        }
        commit.kills.iter().for_each(|kill| self.kill(kill, point.commit));
        if commit.is_purge {
            self.barrier = point.commit;
        }
        if !commit.forgets.is_empty() {
            self.settle();
        }
        self.pinned_bytes = self.sum_pinned();
    }

    /// As it was at a point, with an epoch and a commit of its own.
    pub(crate) fn rolled_back(&self, at: usize, epoch: u64, commit: u64) -> VbMeta {
        let point = &self.points[at];
        let (high, number) = (point.high, point.commit);
        let known = self.epochs.iter().filter(|(known, _)| *known <= point.epoch);
        let mut epochs: Vec<(u64, u64)> = known.map(|(known, limit)| (*known, (*limit).min(high))).collect();
        epochs.push((epoch, u64::MAX));
        let mut points = self.points[..at].to_vec();
        points.push(Point { commit, epoch, ..point.clone() });
        let barrier = if self.barrier > number { 0 } else { self.barrier };
        let mut extents: Vec<Extent> =
            self.extents.iter().filter(|extent| extent.first <= high).cloned().collect();
        if let Some(last) = extents.last_mut() {
            last.last = last.last.min(high);
        }
        let mut dead = RoaringTreemap::clone(&self.dead);
        if high < u64::MAX {
            dead.remove_range(high + 1..);
        }
        let is_kept = |(seqno, (by, _)): &(&u64, &(u64, u32))| **seqno <= high && *by <= number;
        let superseded =
            self.superseded.iter().filter(is_kept).map(|(seqno, killed)| (*seqno, *killed)).collect();
        let revived = self.superseded.iter().filter(|(_, (by, _))| *by > number).map(|(seqno, _)| *seqno);
        let history = Arc::new(self.history.rolled_back(high, revived));
        let (extents, dead, superseded) = (Arc::new(extents), Arc::new(dead), Arc::new(superseded));
        let mut back = VbMeta {
            epochs,
            points,
            extents,
            dead,
            barrier,
            superseded,
            pinned_bytes: 0,
            history,
            history_bytes: 0,
        };
        back.history_bytes = back.sum_history();
        back.settle();
        back.pinned_bytes = back.sum_pinned();
        back
    }

    /// Items were rewritten: other extents are in the place of those, and what was left out is no more.
    fn rewrite(&mut self, rewrite: &RewriteEdit) {
        let is_old = |extent: &Extent| rewrite.old.contains(&extent.id());
        let Some(first) = self.extents.iter().position(is_old) else { return };
        let old = self.extents.iter().filter(|extent| is_old(extent));
        let mut history_bytes =
            old.fold(self.history_bytes, |rest, extent| rest.saturating_sub(self.history_bytes_in(extent)));
        let extents = Arc::make_mut(&mut self.extents);
        let last =
            extents.iter().filter(|extent| rewrite.old.contains(&extent.id())).map(|one| one.last).max();
        let last = last.unwrap_or(0);
        extents.retain(|extent| !rewrite.old.contains(&extent.id()));
        let mut dropped = rewrite.dropped.clone();
        if last < u64::MAX {
            // A rollback cut off what follows, and the seqnos may be those of other items now.
            dropped.remove_range(last + 1..);
        }
        *Arc::make_mut(&mut self.dead) -= &dropped;
        if let Some(new) = rewrite.new.as_ref().filter(|new| new.first <= last) {
            extents.insert(first, Extent { last: new.last.min(last), ..new.clone() });
            history_bytes = history_bytes.saturating_add(self.history_bytes_in(&self.extents[first]));
            self.count_dead(first);
        }
        self.history_bytes = history_bytes;
    }

    /// These are dead from now on, which lie within `range`.
    pub(crate) fn die(&mut self, seqnos: &[u64], range: std::ops::RangeInclusive<u64>) {
        Arc::make_mut(&mut self.dead).extend(seqnos.iter().copied());
        let first = self.extents.partition_point(|extent| extent.last < *range.start());
        let last = self.extents.partition_point(|extent| extent.first <= *range.end());
        (first..last).for_each(|at| self.count_dead(at));
    }

    /// What died in an extent while it was rewritten, or with the history.
    fn count_dead(&mut self, at: usize) {
        let Some(extent) = self.extents.get(at) else { return };
        let dead = self.dead.range_cardinality(extent.first..=extent.last);
        let items = u64::from(extent.items.max(1));
        // The bytes of each are not known here: about.
        let dead_bytes = u128::from(extent.bytes) * u128::from(dead.min(items)) / u128::from(items);
        Arc::make_mut(&mut self.extents)[at].dead_bytes = dead_bytes as u64;
    }
}

/// A commit of a vBucket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CommitEdit {
    pub(crate) vb: u16,
    /// Whether this is the vBucket's first commit.
    pub(crate) begins: bool,
    pub(crate) point: Point,
    pub(crate) extent: Option<Extent>,
    pub(crate) kills: Vec<Kill>,
    /// Commits that a rollback can not go back to any more.
    pub(crate) forgets: Vec<u64>,
    /// Whether it leaves something out: a rollback does not go back behind it.
    pub(crate) is_purge: bool,
    /// How the vBucket's history changes, if it does.
    pub(crate) history: Option<HistoryEdit>,
}

/// Extents of a vBucket that one other replaces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RewriteEdit {
    pub(crate) vb: u16,
    pub(crate) old: Vec<(u64, u32)>,
    pub(crate) new: Option<Extent>,
    /// Seqnos that were dead and were left out.
    pub(crate) dropped: RoaringTreemap,
}

/// A change of a shard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Edit {
    /// The next numbers.
    Counters {
        file: u64,
        epoch: u64,
        commit: u64,
    },
    AddRun(RunMeta),
    AddSegment {
        number: u64,
        segment: SegmentMeta,
    },
    RemoveFile {
        kind: FileKind,
        number: u64,
    },
    Commit(CommitEdit),
    Rewrite(RewriteEdit),
    /// A vBucket as a whole.
    Set {
        vb: u16,
        meta: VbMeta,
    },
    Drop {
        vb: u16,
    },
    /// A rollback that is not in force before it is adopted.
    Prepare {
        vb: u16,
        meta: VbMeta,
    },
    Adopt {
        vb: u16,
    },
    Forget {
        vb: u16,
    },
    /// The points behind a vBucket's barrier are given up.
    Reset {
        vb: u16,
    },
    /// A vBucket's history changes without a commit.
    History {
        vb: u16,
        edit: HistoryEdit,
    },
    /// The caller's number when this was written: see [`crate::LogStore::note`].
    Beside {
        number: u64,
    },
    /// A vBucket cannot be served.
    Damage {
        vb: u16,
        what: Arc<str>,
    },
}

impl Edit {
    /// The vBucket that it says is damaged.
    pub(crate) fn damaged(&self) -> Option<u16> {
        if let Edit::Damage { vb, .. } = self { Some(*vb) } else { None }
    }

    /// The vBucket that it changes.
    pub(crate) fn vb(&self) -> Option<u16> {
        match self {
            Edit::Commit(commit) => Some(commit.vb),
            Edit::Rewrite(rewrite) => Some(rewrite.vb),
            Edit::Set { vb, .. }
            | Edit::Drop { vb }
            | Edit::Prepare { vb, .. }
            | Edit::Adopt { vb }
            | Edit::Forget { vb }
            | Edit::Reset { vb }
            | Edit::History { vb, .. }
            | Edit::Damage { vb, .. } => Some(*vb),
            Edit::Counters { .. }
            | Edit::AddRun(_)
            | Edit::AddSegment { .. }
            | Edit::RemoveFile { .. }
            | Edit::Beside { .. } => None,
        }
    }
}

/// A shard, without what is read from files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ShardMeta {
    /// In order of what they cover, the newest last.
    pub(crate) runs: Vec<RunMeta>,
    pub(crate) segments: BTreeMap<u64, SegmentMeta>,
    pub(crate) vbs: BTreeMap<u16, Arc<VbMeta>>,
    pub(crate) prepared: BTreeMap<u16, Arc<VbMeta>>,
    pub(crate) damaged: BTreeMap<u16, Arc<str>>,
    pub(crate) next_file: u64,
    pub(crate) next_epoch: u64,
    pub(crate) next_commit: u64,
    /// The caller's highest number that was noted; 0 if there is none.
    pub(crate) beside: u64,
}

impl ShardMeta {
    pub(crate) fn new() -> ShardMeta {
        ShardMeta { next_file: 1, next_epoch: 1, next_commit: 1, ..ShardMeta::default() }
    }

    fn count(&mut self, file: u64, epoch: u64, commit: u64) {
        self.next_file = self.next_file.max(file.saturating_add(1));
        self.next_epoch = self.next_epoch.max(epoch.saturating_add(1));
        self.next_commit = self.next_commit.max(commit.saturating_add(1));
    }

    /// New files get higher numbers than this.
    pub(crate) fn skip_files(&mut self, number: u64) {
        self.count(number, 0, 0);
    }

    fn count_vb(&mut self, meta: &VbMeta) {
        self.count(0, meta.epoch(), meta.points.last().map_or(0, |point| point.commit));
    }

    pub(crate) fn apply(&mut self, edit: &Edit) {
        match edit {
            Edit::Counters { file, epoch, commit } => {
                self.count(file.saturating_sub(1), epoch.saturating_sub(1), commit.saturating_sub(1));
            }
            Edit::AddRun(run) => {
                self.count(run.number, 0, run.high);
                let at = self.runs.partition_point(|known| known.low < run.low);
                self.runs.insert(at, run.clone());
            }
            Edit::AddSegment { number, segment } => {
                self.count(*number, 0, 0);
                self.segments.insert(*number, *segment);
            }
            Edit::RemoveFile { kind: FileKind::Run, number } => {
                self.runs.retain(|run| run.number != *number);
            }
            Edit::RemoveFile { kind: FileKind::Segment, number } => {
                self.segments.remove(number);
            }
            Edit::Commit(commit) => self.apply_commit(commit),
            Edit::Rewrite(rewrite) => {
                for vbs in [&mut self.vbs, &mut self.prepared] {
                    if let Some(meta) = vbs.get_mut(&rewrite.vb) {
                        Arc::make_mut(meta).rewrite(rewrite);
                    }
                }
            }
            Edit::Set { vb, meta } => {
                self.count_vb(meta);
                self.vbs.insert(*vb, Arc::new(meta.clone()));
            }
            Edit::Drop { vb } => {
                self.vbs.remove(vb);
                self.prepared.remove(vb);
                self.damaged.remove(vb);
            }
            Edit::Prepare { vb, meta } => {
                self.count_vb(meta);
                self.prepared.insert(*vb, Arc::new(meta.clone()));
            }
            Edit::Adopt { vb } => {
                if let Some(meta) = self.prepared.remove(vb) {
                    self.vbs.insert(*vb, meta);
                }
            }
            Edit::Forget { vb } => {
                self.prepared.remove(vb);
            }
            Edit::Reset { vb } => {
                if let Some(meta) = self.vbs.get_mut(vb) {
                    Arc::make_mut(meta).reset();
                }
            }
            Edit::History { vb, edit } => {
                if let Some(meta) = self.vbs.get_mut(vb) {
                    let meta = Arc::make_mut(meta);
                    meta.change_history(edit);
                    meta.pinned_bytes = meta.sum_pinned();
                }
            }
            Edit::Beside { number } => self.beside = self.beside.max(*number),
            Edit::Damage { vb, what } => {
                self.damaged.insert(*vb, what.clone());
            }
        }
    }

    fn apply_commit(&mut self, commit: &CommitEdit) {
        self.count(0, commit.point.epoch, commit.point.commit);
        if commit.begins {
            self.vbs.insert(commit.vb, Arc::new(VbMeta::begin(commit.point.epoch)));
        }
        if let Some(meta) = self.vbs.get_mut(&commit.vb) {
            Arc::make_mut(meta).commit(commit);
        }
    }

    /// Edits that make this of nothing.
    pub(crate) fn as_edits(&self) -> Vec<Edit> {
        let counters =
            Edit::Counters { file: self.next_file, epoch: self.next_epoch, commit: self.next_commit };
        let mut edits = vec![counters];
        edits.extend((self.beside > 0).then_some(Edit::Beside { number: self.beside }));
        edits.extend(self.runs.iter().cloned().map(Edit::AddRun));
        let segment =
            |(number, segment): (&u64, &SegmentMeta)| Edit::AddSegment { number: *number, segment: *segment };
        edits.extend(self.segments.iter().map(segment));
        edits.extend(self.vbs.iter().map(|(vb, meta)| Edit::Set { vb: *vb, meta: VbMeta::clone(meta) }));
        edits.extend(
            self.prepared.iter().map(|(vb, meta)| Edit::Prepare { vb: *vb, meta: VbMeta::clone(meta) }),
        );
        edits.extend(self.damaged.iter().map(|(vb, what)| Edit::Damage { vb: *vb, what: what.clone() }));
        edits
    }

    /// For each segment the bytes of items that a rewrite of it keeps: those that count, and those that a rollback needs.
    pub(crate) fn live_bytes(&self) -> BTreeMap<u64, u64> {
        let mut live: BTreeMap<u64, u64> = self.segments.keys().map(|number| (*number, 0)).collect();
        for meta in self.vbs.values().chain(self.prepared.values()) {
            for extent in meta.extents.iter() {
                *live.entry(extent.segment).or_default() += extent.live_bytes();
            }
        }
        live
    }
}
