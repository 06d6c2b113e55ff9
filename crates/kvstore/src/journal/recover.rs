//! Recovery: what was synced, oldest first.
//!
//! Of the last group of frames nobody can tell whether it was synced: the process may have died before, and the page
//! cache shows it all the same. So it is written again, into a new segment, before anybody hears of it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::{Path, PathBuf};

use base::env::{Disk, Env, OpenMode};
use base::planted::{self, Bug};
use base::{Heap, RateLimit, VbId};
use parking_lot::Mutex;

use super::decode::{Bad, Part, SavePart};
use super::directory::{Recent, VbSet};
use super::layout::{BLOCK, BadHead, SegmentHead, segment_path, spare_path};
use super::read::{
    End, Found, NO_FRAME, OF_ANOTHER, OLDER_IS_MISSING, ReadFrame, Segment, find, frames, proof_of,
};
use super::segment_pool::{Kept, SegmentPool, Spare};
use super::writer::Writer;
use super::{
    Anchor, Counters, Filed, Frame, Gap, Journal, JournalConfig, Record, Replayed, ReplayedState, Salvaged,
    State, salvage,
};
use crate::compaction::FileAt;
use crate::failure::Failure;
use crate::state::VbStateDoc;

/// What a damaged journal has, and what not.
pub(crate) struct Missing {
    /// Frames that are missing.
    pub(crate) gaps: Vec<Gap>,
    /// What is there, oldest first.
    pub(crate) told: Vec<(Frame, Replayed)>,
}

/// Who is told of what was appended.
type Replay<'a> = &'a mut dyn FnMut(Frame, Replayed) -> Result<(), Failure>;

/// Puts saves together that span frames.
#[derive(Default)]
pub(super) struct Assembly {
    open: Option<Unfinished>,
}

/// A save of which more is to come.
struct Unfinished {
    vb: VbId,
    state: ReplayedState,
    items: Vec<base::Version>,
    begun: Frame,
}

impl Assembly {
    /// Adds a record of a frame; answers what is complete with it. The parts of a save stand one behind the other, with
    /// nothing but a table between them; a save that does not go on was never told to be durable.
    pub(super) fn add(
        &mut self,
        frame: Frame,
        part: Part,
        tell: &mut dyn FnMut(Replayed) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        match part {
            Part::Save(part) => self.save(frame, part).map_or(Ok(()), tell),
            Part::Table(entries) => entries.into_iter().try_for_each(|filed| tell(Replayed::Filed(filed))),
            Part::Directory(_) => Ok(()),
            other => {
                self.open = None;
                match other {
                    Part::Filed(filed) => tell(Replayed::Filed(filed)),
                    Part::RolledBack(filed) => tell(Replayed::RolledBack(filed)),
                    Part::Dropped(vb) => tell(Replayed::Dropped(vb)),
                    Part::Save(_) | Part::Table(_) | Part::Directory(_) | Part::Malformed { .. } => Ok(()),
                }
            }
        }
    }

    /// Whether a record goes on with a save of which the beginning is missing.
    pub(super) fn lacks_beginning(&self, part: &Part) -> bool {
        let Part::Save(SavePart { vb, state: None, .. }) = part else { return false };
        self.open.as_ref().is_none_or(|open| open.vb != *vb)
    }

    fn save(&mut self, frame: Frame, part: SavePart) -> Option<Replayed> {
        let SavePart { vb, state, items, is_last, is_repeat } = part;
        self.open = match (state, self.open.take()) {
            (Some(state), _) => Some(Unfinished { vb, state, items, begun: frame }),
            (None, Some(mut open)) if open.vb == vb => {
                open.items.extend(items);
                Some(open)
            }
            // its beginning was filed, and the segment with it is gone
            (None, _) => None,
        };
        if !is_last {
            return None;
        }
        let Unfinished { vb, state, items, begun } = self.open.take()?;
        Some(Replayed::Save { vb, state, items, is_repeat, begun })
    }
}

/// Reads all segments.
struct Walk<'a> {
    heap: &'a Heap,
    replay: Replay<'a>,
    assembly: Assembly,
    table: BTreeMap<VbId, Filed>,
    /// Frames that are not known to be durable yet.
    queue: VecDeque<(u64, Vec<Part>)>,
    /// The last frame that is known to be.
    proven: u64,
    needed: u64,
    /// The last frame that goes on with a save of which the beginning is missing; 0 if there is none.
    without_beginning: u64,
    kept: Vec<Kept>,
    /// Generation of a segment whose first frame was durable.
    begun: Option<u64>,
    recent: Recent,
}

impl<'a> Walk<'a> {
    fn new(heap: &'a Heap, replay: Replay<'a>) -> Walk<'a> {
        Walk {
            heap,
            begun: None,
            replay,
            assembly: Assembly::default(),
            table: BTreeMap::new(),
            queue: VecDeque::new(),
            proven: 0,
            needed: 0,
            without_beginning: 0,
            kept: Vec::new(),
            recent: Recent::default(),
        }
    }

    /// Answers whether there is a journal: a segment with a whole first frame, or a later one.
    fn segments(&mut self, disk: &dyn Disk, segments: &[Segment]) -> Result<bool, Failure> {
        if let Some(foreign) = segments.iter().find(|segment| segment.head == Err(BadHead::Version)) {
            return Err(foreign.damaged(0, "the journal is of an unknown version"));
        }
        let mut next = 1;
        let mut any = false;
        for (i, segment) in segments.iter().enumerate() {
            let following = following(&segments[i + 1..]);
            let mut bytes = 0;
            if let Ok(head) = segment.head {
                let end = self.segment(disk, segment, head, &segments[i + 1..])?;
                let is_begun = self.begun == Some(segment.generation) && following.is_none();
                if is_begun && end.next == head.first {
                    return Err(
                        segment.damaged(BLOCK as u64, "the first frame, which was synced, is missing")
                    );
                }
                // What a first append left that got no further than its header tells nothing: the table of a frame
                // behind it would name no file.
                any |= head.first > 1 || end.next > head.first || planted::is(Bug::HeaderIsJournal);
                (next, bytes) = (end.next, end.offset);
            } else if following.is_none()
                && let Some(at) = proof_of(disk, segment, None, BLOCK as u64, next)?
            {
                return Err(segment.damaged(at, "frames that were synced, in a segment without a header"));
            }
            self.kept.push(Kept {
                generation: segment.generation,
                end: Some(next),
                free_at: Some(next),
                bytes,
                len: segment.len,
            });
        }
        if let Some((oldest, head)) = segments.iter().find_map(|segment| Some((segment, segment.head.ok()?)))
            && head.first > self.needed.max(1)
        {
            return Err(oldest.damaged(0, OLDER_IS_MISSING));
        }
        self.prove(self.proven)?;
        Ok(any)
    }

    /// Refuses a save that is needed and whose beginning is missing: earlier versions noted after a recovery that the
    /// frame in which it ends is needed, and not the one in which it begins.
    fn has_beginnings(&self, segments: &[Segment]) -> Result<(), Failure> {
        let oldest = segments.iter().find(|segment| segment.head.is_ok());
        let is_missed = self.without_beginning >= self.needed.max(1);
        match oldest.filter(|_| is_missed && !planted::is(Bug::BeginningNotNeeded)) {
            Some(oldest) => Err(oldest.damaged(0, OLDER_IS_MISSING)),
            None => Ok(()),
        }
    }

    fn segment(
        &mut self,
        disk: &dyn Disk,
        segment: &Segment,
        head: SegmentHead,
        later: &[Segment],
    ) -> Result<End, Failure> {
        let following = following(later);
        self.recent.go_on_with(head.first);
        self.recent.begin_segment(head.first);
        self.prove(head.first.saturating_sub(1))?;
        let limit = following.map_or(u64::MAX, |following| following.first);
        let end = frames(self.heap, disk, segment, head, limit, &mut |frame| self.frame(head.first, frame))?;
        match end.bad {
            Some(bad) if bad.is_sound || following.is_some() => Err(damage(segment, bad, later)),
            Some(bad) => match proof_of(disk, segment, Some(head.salt), end.offset, end.next)? {
                Some(_) => Err(segment.damaged(bad.offset, bad.what)),
                None => Ok(end),
            },
            None if end.next != limit => {
                Err(segment.damaged(end.offset, "the next segment does not go on here"))
            }
            None => Ok(end),
        }
    }

    fn frame(&mut self, first: u64, frame: ReadFrame) -> Result<(), Failure> {
        self.prove(frame.head.durable)?;
        if frame.head.durable < first {
            // the call that wrote it may have begun in a segment before, which is needed as long as this frame
            let before = self.kept.iter_mut().rev().take_while(|kept| kept.free_at >= Some(first));
            before.for_each(|kept| kept.free_at = Some(frame.head.number.saturating_add(1)));
        }
        self.needed = self.needed.max(frame.head.needed);
        self.recent.note(frame.head.number, &touched(&frame.parts));
        self.queue.push_back((frame.head.number, frame.parts));
        Ok(())
    }

    /// Tells of all frames up to this one.
    fn prove(&mut self, through: u64) -> Result<(), Failure> {
        self.proven = self.proven.max(through);
        while let Some((number, parts)) = self.queue.pop_front_if(|(number, _)| *number <= through) {
            for part in parts {
                if self.assembly.lacks_beginning(&part) {
                    self.without_beginning = number;
                }
                let (table, replay) = (&mut self.table, &mut self.replay);
                self.assembly.add(Frame(number), part, &mut |told| {
                    note(table, &told);
                    replay(Frame(number), told)
                })?;
            }
        }
        Ok(())
    }

    /// What is complete in the frames that are not known to be durable.
    fn tail(&mut self) -> Result<Vec<Replayed>, Failure> {
        let mut tail = Vec::new();
        if planted::is(Bug::ReplayStopsEarly) {
            self.queue.pop_back();
        }
        for (number, parts) in self.queue.drain(..) {
            for part in parts {
                if self.assembly.lacks_beginning(&part) {
                    self.without_beginning = number;
                }
                self.assembly.add(Frame(number), part, &mut |told| {
                    tail.push(told);
                    Ok(())
                })?;
            }
        }
        Ok(tail)
    }
}

/// The record that changes of a vBucket are missing.
fn given_up(known: &BTreeMap<VbId, Filed>, vb: VbId) -> Filed {
    let at = known.get(&vb).map_or(FileAt::last_of(1), |filed| filed.at());
    Filed::of(vb, Frame(0), at.marked_lost())
}

/// The head of the next segment that has one.
pub(super) fn following(later: &[Segment]) -> Option<SegmentHead> {
    later.iter().find_map(|later| later.head.ok())
}

/// Where frames are missing: they just end here if a segment without a header comes before the next with one.
fn damage(segment: &Segment, bad: Bad, later: &[Segment]) -> Failure {
    match later.first() {
        Some(next) if bad.what == NO_FRAME && next.head == Err(BadHead::Foreign) => {
            next.damaged(0, OF_ANOTHER)
        }
        Some(next) if bad.what == NO_FRAME && next.head.is_err() => next.damaged(0, "the header"),
        _ => segment.damaged(bad.offset, bad.what),
    }
}

/// The vBuckets of a frame's records.
pub(super) fn touched(parts: &[Part]) -> VbSet {
    parts.iter().filter_map(Part::vbucket).collect()
}

fn note(table: &mut BTreeMap<VbId, Filed>, told: &Replayed) {
    match told {
        Replayed::Filed(filed) | Replayed::RolledBack(filed) => {
            table.insert(filed.vb, *filed);
        }
        Replayed::Dropped(vb) => {
            table.remove(vb);
        }
        Replayed::Save { .. } => {}
    }
}

impl Journal {
    /// Reads what was synced, oldest first, and goes on behind it in a new segment.
    /// If nothing is replayed, nothing was ever told to be durable.
    pub fn recover(
        env: Env,
        dir: &Path,
        config: JournalConfig,
        replay: &mut dyn FnMut(Frame, Replayed) -> Result<(), Failure>,
    ) -> Result<Journal, Failure> {
        Journal::recover_anchored(env, dir, config, Anchor::default(), replay)
    }

    /// The same with a record beside the journal of which segments there are.
    pub(crate) fn recover_anchored(
        env: Env,
        dir: &Path,
        config: JournalConfig,
        anchor: Anchor,
        replay: &mut dyn FnMut(Frame, Replayed) -> Result<(), Failure>,
    ) -> Result<Journal, Failure> {
        let found = find(&*env.disk, dir)?;
        let mut walk = Walk::new(&env.heap, replay);
        if let Some(promised) = anchor.segment {
            must_have(dir, &found.segments, promised)?;
            walk.begun = Some(promised.0);
        }
        let any = walk.segments(&*env.disk, &found.segments)?;
        let tail = walk.tail()?;
        walk.has_beginnings(&found.segments)?;
        let (table, proven, needed) = (walk.table, walk.proven, walk.needed);
        let (mut kept, mut recent) = (walk.kept, walk.recent);
        recent.go_on_with(proven + 1);
        // what is written again is void in the old segment, and its new number not known yet
        for kept in &mut kept {
            if kept.end > Some(proven + 1) {
                (kept.end, kept.free_at) = (Some(proven + 1), Some(proven + 1));
            }
            kept.free_at = kept.free_at.filter(|at| *at <= proven + 1);
        }
        let journal = Journal::new(env, dir.to_owned(), config, anchor, &found, kept);
        journal.go_on_after(proven, recent);
        journal.needed.store(needed.min(proven + 1), std::sync::atomic::Ordering::Relaxed);
        if any {
            let table: Vec<_> = table.into_values().collect();
            let through = journal.write_again(&tail, &table)?;
            tail.into_iter().try_for_each(|told| replay(through, rewritten(told, proven)))?;
        }
        Ok(journal)
    }

    /// The same for a damaged journal, if it is known which vBuckets the missing frames may have something of; otherwise
    /// answers `damage`. Answers everything that is there, and what is missing.
    ///
    /// The segments stay until [`Journal::let_go_of_gaps`], so that a start that can read them again finds everything. What
    /// goes on record of files leaves out the vBuckets that `missing_of` names: their newest record may be what is missing.
    pub(crate) fn recover_around(
        env: Env,
        dir: &Path,
        config: JournalConfig,
        anchor: Anchor,
        damage: Failure,
        missing_of: &dyn Fn(&Missing) -> BTreeSet<VbId>,
    ) -> Result<(Journal, Missing), Failure> {
        let salvaged = salvage(&*env.disk, &env.heap, dir, anchor.segment, 0)?;
        if !salvaged.may_go_on() {
            return Err(damage);
        }
        let Salvaged { told, gaps, proven, needed, mut recent, directories, .. } = salvaged;
        let named: VbSet = gaps.iter().filter_map(|gap| gap.vbs.as_ref()).flatten().copied().collect();
        let again = directories.into_iter().filter(|(at, _)| *at > proven).map(|(_, of)| of).collect();
        recent.go_around(proven, &named, again);
        let found = find(&*env.disk, dir)?;
        // None of them goes before all that is durable in them may.
        let kept = found.segments.iter().map(|segment| Kept {
            generation: segment.generation,
            end: Some(proven + 1),
            free_at: Some(proven + 1),
            bytes: segment.len,
            len: segment.len,
        });
        let mut journal = Journal::new(env, dir.to_owned(), config, anchor, &found, kept.collect());
        journal.has_gaps = true;
        journal.pinned_bytes = journal.stats().used_bytes.max(1).into();
        journal.go_on_after(proven, recent);
        journal.needed.store(needed.min(proven + 1), std::sync::atomic::Ordering::Relaxed);
        let mut missing = Missing { gaps, told };
        let mut table = BTreeMap::new();
        let durable = missing.told.partition_point(|(frame, _)| frame.0 <= proven);
        missing.told[..durable].iter().for_each(|(_, told)| note(&mut table, told));
        let left_out = missing_of(&missing);
        let known = table.clone();
        table.retain(|vb, _| !left_out.contains(vb));
        // What is not known to be durable becomes void where it is. A record of it that cannot be written again must not be
        // forgotten with that.
        let void = missing.gaps.iter().filter(|gap| gap.is_of_one_record() && gap.first.0 > proven);
        table.extend(void.flat_map(|gap| gap.vbs.iter().flatten()).map(|vb| (*vb, given_up(&known, *vb))));
        let table: Vec<_> = table.into_values().collect();
        let tail: Vec<Replayed> = missing.told.split_off(durable).into_iter().map(|(_, told)| told).collect();
        let through = journal.write_again(&tail, &table)?;
        missing.told.extend(tail.into_iter().map(|told| (through, rewritten(told, proven))));
        Ok((journal, missing))
    }

    /// Reads once more what is durable and not released, oldest first. Nothing is appended meanwhile.
    pub fn reread(
        &self,
        replay: &mut dyn FnMut(Frame, Replayed) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let _releasing = self.releasing.lock();
        let writer = self.writer.lock();
        let disk = &*self.env.disk;
        if self.has_gaps {
            // What is missing is of vBuckets that are not served.
            let told = salvage(disk, &self.env.heap, &self.dir, None, 0)?.told;
            let mut durable = told.into_iter().filter(|(frame, _)| frame.0 <= writer.durable);
            return durable.try_for_each(|(frame, told)| replay(frame, told));
        }
        let found = find(disk, &self.dir)?;
        let mut walk = Walk::new(&self.env.heap, replay);
        walk.segments(disk, &found.segments)?;
        walk.prove(writer.durable)
    }

    fn new(
        env: Env,
        dir: PathBuf,
        config: JournalConfig,
        anchor: Anchor,
        found: &Found,
        kept: Vec<Kept>,
    ) -> Journal {
        let spares = spares(&*env.disk, &dir, &config, &found.spares);
        let last = found.segments.last().filter(|segment| segment.generation >= anchor.generations);
        let last = match last.map(|segment| (segment.generation, segment.head)) {
            Some((generation, Ok(head))) => (generation, Some(head.salt)),
            // A segment whose header cannot be read now may be the last one again: none follows it at once.
            Some((generation, Err(_))) => (generation + 1, None),
            None => (anchor.generations, None),
        };
        Journal {
            spares_as_of: env.disk.key_changes().into(),
            env,
            dir,
            config,
            anchor,
            writer: Mutex::new(Writer::default()),
            pool: Mutex::new(SegmentPool::new(kept, spares, last)),
            releasing: Mutex::default(),
            preparing: Mutex::new(None),
            next: 1.into(),
            needed: 0.into(),
            counters: Counters::default(),
            given_up: RateLimit::new(),
            has_gaps: false,
            pinned_bytes: 0.into(),
        }
    }

    fn write_again(&self, tail: &[Replayed], table: &[Filed]) -> Result<Frame, Failure> {
        let docs: Vec<VbStateDoc> = tail.iter().map(state_doc).collect();
        let records: Vec<Record<'_>> =
            std::iter::zip(tail, &docs).map(|(told, doc)| record(told, doc)).collect();
        self.append_again(&records, table)
    }
}

/// Looks for the segment that the catalog names: a missing one, or another in its place, held what was acknowledged.
pub(super) fn must_have(
    dir: &Path,
    segments: &[Segment],
    (generation, salt): (u64, u64),
) -> Result<(), Failure> {
    if planted::is(Bug::LostSegmentIgnored) {
        return Ok(());
    }
    let Some(segment) = segments.iter().find(|segment| segment.generation == generation) else {
        let what = "the segment that the catalog names is missing; put it back";
        return Err(Failure::Journal { path: segment_path(dir, generation), offset: 0, what });
    };
    match segment.head {
        Ok(head) if head.salt == salt => Ok(()),
        Ok(_) => Err(segment.damaged(0, "it is another segment than the one that the catalog names")),
        Err(_) => Err(segment.damaged(0, "the header, which was synced, is missing")),
    }
}

/// What was written again behind a frame: it begins there.
fn rewritten(mut told: Replayed, behind: u64) -> Replayed {
    if let Replayed::Save { begun, .. } = &mut told {
        *begun = Frame(behind + 1);
    }
    told
}

/// What to append, to be told this again.
fn record<'a>(told: &'a Replayed, doc: &'a VbStateDoc) -> Record<'a> {
    match told {
        Replayed::Save { vb, state: ReplayedState::Whole(_), items, is_repeat, .. } => {
            Record::Save { vb: *vb, state: State::Whole(doc), items, is_repeat: *is_repeat }
        }
        Replayed::Save { vb, state: ReplayedState::Numbers(_), items, is_repeat, .. } => {
            Record::Save { vb: *vb, state: State::Numbers(doc), items, is_repeat: *is_repeat }
        }
        Replayed::Filed(filed) => Record::Filed(*filed),
        Replayed::Dropped(vb) => Record::Dropped(*vb),
        Replayed::RolledBack(filed) => Record::RolledBack(*filed),
    }
}

/// A document with the state of a save in it.
fn state_doc(told: &Replayed) -> VbStateDoc {
    match told {
        Replayed::Save { state: ReplayedState::Whole(doc), .. } => doc.clone(),
        Replayed::Save { state: ReplayedState::Numbers(numbers), .. } => {
            let mut doc = VbStateDoc::default();
            numbers.apply(&mut doc);
            doc
        }
        _ => VbStateDoc::default(),
    }
}

/// Spares that are fit for use; others go. They are a convenience: what fails here is left alone.
fn spares(disk: &dyn Disk, dir: &Path, config: &JournalConfig, numbers: &[u64]) -> Vec<Spare> {
    let mut spares = Vec::new();
    for &number in numbers {
        let path = spare_path(dir, number);
        let len = disk.open(&path, OpenMode::Read).and_then(|file| file.len()).unwrap_or(0);
        if len >= config.segment_bytes
            && len / 2 <= config.segment_bytes
            && spares.len() < config.spare_segments
        {
            spares.push(Spare { number, len });
        } else if let Err(failure) = disk.remove_file(&path) {
            tracing::warn!(
                event = "journal_spare_stays", path = %path.display(), %failure,
                "a spare segment of the journal that is not needed cannot be removed"
            );
        }
    }
    spares
}
