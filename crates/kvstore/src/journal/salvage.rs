//! Reading what is left of a damaged journal: every whole frame, and which frames are missing between them.
//!
//! *Guarantee:* a frame that was durable is either told, or part of a gap. Nothing is changed.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use base::env::Disk;
use base::planted::{self, Bug};
use base::{Heap, VbId};

use super::decode::{Bad, Part};
use super::directory::{Directory, Recent, VbSet};
use super::layout::{BLOCK, BadHead, FRAME_HEAD, FrameHead, SegmentHead, VERSION, segment_path};
use super::read::{
    EARLIER_USE, NO_FRAME, OLDER_IS_MISSING, ReadFrame, Segment, Window, find, frame, proof_of,
};
use super::recover::{Assembly, following, touched};
use super::{Frame, Replayed};
use crate::failure::Failure;

/// More missing frames than these are not looked up one by one.
const MOST_MISSING: u64 = 1 << 16;

/// Frames that were durable and cannot be read, or of which one record cannot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Gap {
    /// The first of them.
    pub(crate) first: Frame,
    /// The last; [`Frame`]`(u64::MAX)` if all behind the first are missing.
    pub(crate) last: Frame,
    /// Frames below this one were not needed, as the frames before the gap have it.
    needed: u64,
    /// Where the damage is, and what it is.
    pub(crate) path: PathBuf,
    pub(crate) offset: u64,
    pub(crate) what: String,
    /// The vBuckets that these frames may have something of, as frames behind them say; `None` if none says so.
    pub(crate) vbs: Option<BTreeSet<VbId>>,
}

impl Gap {
    /// Whether one record is missing, and the rest of its frame is not.
    pub(super) fn is_of_one_record(&self) -> bool {
        self.needed == u64::MAX
    }
}

/// What is left of a journal.
#[derive(Default)]
pub(crate) struct Salvaged {
    /// All segments, those included that are void.
    pub(crate) segments: Vec<PathBuf>,
    /// The highest generation of them.
    pub(crate) generations: u64,
    /// What was appended, oldest first, with the frame in which it ends.
    pub(crate) told: Vec<(Frame, Replayed)>,
    /// The first frame that is there.
    pub(crate) oldest: Option<Frame>,
    /// Oldest first.
    pub(crate) gaps: Vec<Gap>,
    /// Segments whose header is damaged, and whose frames are there.
    pub(crate) headless: Vec<PathBuf>,
    /// What is remembered of the frames that are there.
    pub(super) recent: Recent,
    /// What frames say of those that are missing, each with the number of its frame.
    pub(super) directories: Vec<(u64, Directory)>,
    /// The last frame that is known to be durable.
    pub(super) proven: u64,
    /// Frames below it are not needed.
    pub(super) needed: u64,
    /// Whether something that is not whole follows the last frame.
    has_bad_end: bool,
    /// The last frame that goes on with a save of which the beginning is missing; 0 if there is none.
    without_beginning: u64,
}

impl Salvaged {
    /// Whether frames may go on behind what is there, so that what is missing is not void if it can be read again.
    ///
    /// It must be known which vBuckets miss something. What is not whole at the end becomes void: it was never
    /// acknowledged, or is damaged, too, and beside other damage nothing tells which. So does the rest of a save in the
    /// frames that are written again.
    pub(crate) fn may_go_on(&self) -> bool {
        let is_known = self.gaps.iter().all(|gap| gap.vbs.is_some());
        is_known && !self.has_bad_end && self.without_beginning <= self.proven
    }
}

/// Reads a journal in which the segment `promised` (generation and salt) must be; segments up to `void` say nothing.
pub(crate) fn salvage(
    disk: &dyn Disk,
    heap: &Heap,
    dir: &Path,
    promised: Option<(u64, u64)>,
    void: u64,
) -> Result<Salvaged, Failure> {
    let mut found = find(disk, dir)?.segments;
    let mut walk = SalvageWalk {
        disk,
        heap,
        salvaged: Salvaged::default(),
        assembly: Assembly::default(),
        next: None,
        needed: 1,
        has_promised: false,
        frames: 0,
        has_table: false,
        is_first_known: true,
        cut_saves: BTreeMap::new(),
    };
    walk.salvaged.segments = found.iter().map(|segment| segment.path.clone()).collect();
    walk.salvaged.generations = found.iter().map(|segment| segment.generation).max().unwrap_or_default();
    if let Some(foreign) = found.iter().find(|segment| segment.head == Err(BadHead::Version)) {
        return Err(foreign.damaged(0, "the journal is of an unknown version"));
    }
    found.retain(|segment| segment.generation > void);
    // A file of another place in that of a segment says nothing of this journal.
    let is_other = |segment: &Segment| {
        let other_salt = |(generation, salt)| {
            segment.generation == generation && segment.head.is_ok_and(|head| head.salt != salt)
        };
        promised.is_some_and(other_salt)
    };
    found.retain(|segment| !is_other(segment) && segment.head != Err(BadHead::Foreign));
    for at in 0..found.len() {
        if found[at].head == Err(BadHead::Unreadable)
            && let Some(head) = walk.lost_head(&found[at..], promised)?
        {
            walk.salvaged.headless.push(found[at].path.clone());
            found[at].head = Ok(head);
        }
    }
    for (i, segment) in found.iter().enumerate() {
        let is_of_no_call = |(named, _)| segment.generation > named;
        if segment.head.is_err()
            && promised.is_some_and(is_of_no_call)
            && following(&found[i + 1..]).is_none()
            && proof_of(disk, segment, None, BLOCK as u64, walk.next.unwrap_or(1))?.is_none()
        {
            // The catalog would name it if anything in it had been acknowledged.
            continue;
        }
        let salt = promised.filter(|(generation, _)| *generation == segment.generation).map(|(_, salt)| salt);
        let known = walk.known();
        walk.segment(segment, following(&found[i + 1..]), salt)?;
        walk.has_promised |= salt.is_some() && walk.known() > known;
    }
    walk.miss_promised(dir, promised);
    walk.name_vbuckets();
    found.first().into_iter().for_each(|first| walk.missing_before(&first.path));
    walk.salvaged.needed = walk.needed;
    Ok(walk.salvaged)
}

struct SalvageWalk<'d> {
    disk: &'d dyn Disk,
    heap: &'d Heap,
    salvaged: Salvaged,
    assembly: Assembly,
    /// The frame that comes next, once one was read.
    next: Option<u64>,
    /// Frames below it are not needed.
    needed: u64,
    /// Whether something is known of the segment that the catalog names.
    has_promised: bool,
    /// Frames that were read.
    frames: u64,
    /// Whether a whole table was read, so that what no record tells of has no file.
    has_table: bool,
    /// Whether it is known of each segment with which frame it begins, so that it is known what is void in others.
    is_first_known: bool,
    /// vBuckets with a save that begins before the oldest frame, and where it goes on.
    cut_saves: BTreeMap<VbId, Frame>,
}

impl SalvageWalk<'_> {
    /// Notes a gap if nothing of the segment that the catalog names was found.
    fn miss_promised(&mut self, dir: &Path, promised: Option<(u64, u64)>) {
        let Some((generation, _)) = promised.filter(|_| !self.has_promised) else { return };
        // It has at least its first frame.
        let what = "the segment that the catalog names is missing, or holds none of its frames".to_owned();
        let (path, first) = (segment_path(dir, generation), Frame(self.next.unwrap_or(1)));
        let (last, needed) = (Frame(u64::MAX), self.needed);
        self.salvaged.gaps.push(Gap { first, last, needed, path, offset: 0, what, vbs: None });
    }

    fn segment(
        &mut self,
        segment: &Segment,
        following: Option<SegmentHead>,
        salt: Option<u64>,
    ) -> Result<(), Failure> {
        let head = match segment.head {
            Ok(head) => head,
            Err(_) => match self.head_of_frames(segment, salt)? {
                Some(head) => {
                    self.is_first_known = false;
                    self.salvaged.headless.push(segment.path.clone());
                    head
                }
                None => return Ok(()),
            },
        };
        self.salvaged.recent.go_on_with(head.first);
        self.salvaged.recent.begin_segment(head.first);
        let limit = following.map_or(u64::MAX, |following| following.first);
        if let Some(next) = self.next.filter(|next| *next < head.first) {
            self.miss(segment, 0, "frames before its first are missing", next, head.first - 1);
        }
        self.salvaged.proven = self.salvaged.proven.max(head.first.saturating_sub(1));
        let mut window = Window::open(self.disk, segment)?;
        let (mut offset, mut number) = (BLOCK as u64, head.first);
        while number < limit {
            let bad = match frame(self.heap, &mut window, &head, offset, number)? {
                Ok(frame) => {
                    offset += frame.head.disk_bytes();
                    self.take(segment, frame);
                    number += 1;
                    continue;
                }
                Err(bad) => bad,
            };
            if following.is_none()
                && !bad.is_sound
                && proof_of(self.disk, segment, Some(head.salt), offset, number)?.is_none()
            {
                // What follows was not synced, or nothing does.
                self.salvaged.has_bad_end = bad.what != NO_FRAME && bad.what != EARLIER_USE;
                break;
            }
            match next_whole(&mut window, &head, segment.len, (offset, number), limit)? {
                Some((at, frame)) => {
                    let first = frame.head.number;
                    self.miss_bad(segment, bad, number, first - 1);
                    offset = at + frame.head.disk_bytes();
                    self.take(segment, frame);
                    number = first + 1;
                }
                None => {
                    let last = if following.is_some() { limit - 1 } else { u64::MAX };
                    self.miss_bad(segment, bad, number, last);
                    number = limit;
                }
            }
        }
        self.next = Some(number.max(self.next.unwrap_or_default()));
        Ok(())
    }

    /// The frames that are missing before the oldest that is there.
    ///
    /// Which frames are not needed says the last frame of all. Why they are not needed say the records of files in the
    /// frames before it: if some of those are in a gap, the files that are known without them need more.
    fn missing_before(&mut self, path: &Path) {
        let Some(oldest) = self.salvaged.oldest else { return };
        let first = self.salvaged.gaps.iter().find(|gap| gap.needed < self.needed);
        let (needed, path, offset, what) = match first {
            Some(gap) if !planted::is(Bug::RepairForgetsOlderFrames) => {
                let what = format!("{}, and with it why older frames are not needed", gap.what);
                (gap.needed, gap.path.clone(), gap.offset, what)
            }
            _ => (self.needed, path.to_owned(), 0, OLDER_IS_MISSING.to_owned()),
        };
        if oldest.0 > needed {
            let (first, last) = (Frame(needed), Frame(oldest.0 - 1));
            // What only a gap says is not needed is of the vBuckets that it has something of.
            let vbs =
                if oldest.0 > self.needed { self.named(needed, oldest.0 - 1) } else { self.all_named() };
            self.salvaged.gaps.insert(0, Gap { first, last, needed, path, offset, what, vbs });
            return;
        }
        self.cut_saves.retain(|_, at| at.0 >= needed);
        if let Some(last) = self.cut_saves.values().max() {
            // What is needed of the missing frames is the beginning of these.
            let (first, last) = (Frame(oldest.0 - 1), *last);
            let vbs = Some(self.cut_saves.keys().copied().collect());
            self.salvaged.gaps.insert(0, Gap { first, last, needed, path, offset, what, vbs });
        }
    }

    /// Says of each gap which vBuckets it may have something of.
    fn name_vbuckets(&mut self) {
        for at in 0..self.salvaged.gaps.len() {
            let Gap { first, last, ref vbs, .. } = self.salvaged.gaps[at];
            if vbs.is_none() {
                self.salvaged.gaps[at].vbs = self.named(first.0, last.0);
            }
        }
    }

    /// The vBuckets that directories name for these frames; `None` if they do not cover each, or if there may have been
    /// a table in them of which no other is left.
    fn named(&self, first: u64, last: u64) -> Option<BTreeSet<VbId>> {
        let is_known = self.has_table && self.is_first_known;
        if !is_known || last.saturating_sub(first) > MOST_MISSING {
            return None;
        }
        let mut named = VbSet::default();
        for frame in first..=last {
            let covers = |(at, of): &&(u64, Directory)| (of.from..*at).contains(&frame);
            let mut covering = self.salvaged.directories.iter().filter(covers).map(|(_, of)| &of.vbs);
            let mut vbs = covering.next()?.clone();
            covering.for_each(|others| vbs.retain(others));
            named.add(&vbs);
        }
        Some(named.iter().collect())
    }

    /// The vBuckets of all gaps.
    fn all_named(&self) -> Option<BTreeSet<VbId>> {
        let each = self.salvaged.gaps.iter().map(|gap| gap.vbs.clone());
        let all: Option<Vec<BTreeSet<VbId>>> = each.collect();
        Some(all?.into_iter().flatten().collect())
    }

    /// How many frames and gaps were met.
    fn known(&self) -> (u64, usize) {
        (self.frames, self.salvaged.gaps.len())
    }

    /// The damaged header of the first of these segments, if its first frame is whole, and the segment counts.
    fn lost_head(
        &self,
        segments: &[Segment],
        promised: Option<(u64, u64)>,
    ) -> Result<Option<SegmentHead>, Failure> {
        let [segment, later @ ..] = segments else { return Ok(None) };
        let salt = promised.filter(|(generation, _)| *generation == segment.generation).map(|(_, salt)| salt);
        let mut window = Window::open(self.disk, segment)?;
        let head = FrameHead::decode(window.get(BLOCK as u64, FRAME_HEAD)?);
        let is_its = |head: &FrameHead| {
            head.generation == segment.generation && salt.is_none_or(|salt| salt == head.salt)
        };
        let Some(FrameHead { generation, salt: found, number: first, .. }) = head.filter(is_its) else {
            return Ok(None);
        };
        let counts = salt.is_some()
            || following(later).is_some()
            || proof_of(self.disk, segment, None, BLOCK as u64, first)?.is_some();
        Ok(counts.then_some(SegmentHead { version: VERSION, generation, first, salt: found }))
    }

    /// What a damaged header said, as the frames behind it have it.
    fn head_of_frames(&self, segment: &Segment, salt: Option<u64>) -> Result<Option<SegmentHead>, Failure> {
        let mut window = Window::open(self.disk, segment)?;
        for offset in (BLOCK as u64..segment.len).step_by(BLOCK) {
            let head = FrameHead::decode(window.get(offset, FRAME_HEAD)?);
            let is_its = |head: &FrameHead| {
                head.generation == segment.generation && salt.is_none_or(|salt| salt == head.salt)
            };
            let Some(head) = head.filter(is_its) else { continue };
            let (generation, salt) = (head.generation, head.salt);
            // The first frame is the first that is there, unless those before it are damaged, too.
            let first = if offset == BLOCK as u64 { head.number } else { self.next.unwrap_or(head.number) };
            return Ok(Some(SegmentHead { version: VERSION, generation, first, salt }));
        }
        Ok(None)
    }

    fn take(&mut self, segment: &Segment, frame: ReadFrame) {
        let number = Frame(frame.head.number);
        self.frames += 1;
        self.salvaged.oldest.get_or_insert(number);
        self.needed = self.needed.max(frame.head.needed);
        self.salvaged.proven = self.salvaged.proven.max(frame.head.durable);
        self.salvaged.recent.note(number.0, &touched(&frame.parts));
        for part in frame.parts {
            match &part {
                Part::Table(_) => self.has_table = true,
                Part::Directory(directory) => self.keep(number.0, directory),
                Part::Malformed { vb, bad } => self.miss_record(segment, number, *vb, *bad),
                _ => {}
            }
            if self.assembly.lacks_beginning(&part) {
                self.salvaged.without_beginning = number.0;
                if self.salvaged.gaps.is_empty() {
                    self.cut_saves.extend(part.vbucket().map(|vb| (vb, number)));
                }
            }
            let told = &mut self.salvaged.told;
            let keep = &mut |replayed| {
                told.push((number, replayed));
                Ok(())
            };
            self.assembly.add(number, part, keep).expect("nothing fails here");
        }
    }

    /// Keeps a directory that says something of missing frames which none before it has said.
    fn keep(&mut self, at: u64, directory: &Directory) {
        let Directory { from, .. } = directory;
        let behind = self.salvaged.gaps.last().map_or(0, |gap| gap.last.0);
        let is_of_missing = *from <= behind || self.salvaged.oldest.is_some_and(|oldest| *from < oldest.0);
        // Of two that begin with the same frame the second can name no less.
        let mut since = self.salvaged.directories.iter().rev().take_while(|(at, _)| *at > behind);
        if is_of_missing && !since.any(|(_, known)| known.from == *from) {
            self.salvaged.directories.push((at, directory.clone()));
        }
    }

    /// A record cannot be understood; the frame that it is in is whole.
    fn miss_record(&mut self, segment: &Segment, frame: Frame, vb: VbId, bad: Bad) {
        let (path, what, vbs) = (segment.path.clone(), bad.what.to_owned(), Some(BTreeSet::from([vb])));
        // Nothing that says which frames are needed is missing with it.
        let needed = u64::MAX;
        self.salvaged.gaps.push(Gap {
            first: frame,
            last: frame,
            needed,
            path,
            offset: bad.offset,
            what,
            vbs,
        });
    }

    fn miss_bad(&mut self, segment: &Segment, bad: Bad, first: u64, last: u64) {
        self.miss(segment, bad.offset, bad.what, first, last);
    }

    fn miss(&mut self, segment: &Segment, offset: u64, what: &str, first: u64, last: u64) {
        // What began before the gap does not go on behind it.
        self.assembly = Assembly::default();
        let (first, last, path) = (Frame(first), Frame(last), segment.path.clone());
        let what = what.to_owned();
        self.salvaged.gaps.push(Gap { first, last, needed: self.needed, path, offset, what, vbs: None });
    }
}

/// The first whole frame behind a damaged one, and where it is.
fn next_whole(
    window: &mut Window<'_>,
    segment: &SegmentHead,
    len: u64,
    (damaged, number): (u64, u64),
    limit: u64,
) -> Result<Option<(u64, ReadFrame)>, Failure> {
    let mut offset = damaged + BLOCK as u64;
    while offset < len {
        let head = FrameHead::decode(window.get(offset, FRAME_HEAD)?);
        let is_later = |head: &FrameHead| {
            (head.generation, head.salt) == (segment.generation, segment.salt)
                && (number + 1..limit).contains(&head.number)
        };
        if let Some(head) = head.filter(is_later)
            && let Ok(frame) = frame(Heap::shared(), window, segment, offset, head.number)?
        {
            return Ok(Some((offset, frame)));
        }
        offset += BLOCK as u64;
    }
    Ok(None)
}
