//! Reading what is left of a damaged journal: every whole frame, and which frames are missing between them.
//!
//! *Guarantee:* a frame that was durable is either told, or part of a gap. Nothing is changed.

use std::path::{Path, PathBuf};

use base::Heap;
use base::env::Disk;
use base::planted::{self, Bug};

use super::decode::Bad;
use super::layout::{BLOCK, BadHead, FRAME_HEAD, FrameHead, SegmentHead, VERSION, segment_path};
use super::read::{ReadFrame, Segment, Window, find, frame, proof_of};
use super::recover::{Assembly, following};
use super::{Frame, Replayed};
use crate::failure::Failure;

/// Frames that were durable and cannot be read.
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
}

/// Reads a journal in which the segment `promised` (generation and salt) must be; segments up to `void` say nothing.
pub(crate) fn salvage(
    disk: &dyn Disk,
    dir: &Path,
    promised: Option<(u64, u64)>,
    void: u64,
) -> Result<Salvaged, Failure> {
    let mut found = find(disk, dir)?.segments;
    let mut walk = SalvageWalk {
        disk,
        salvaged: Salvaged::default(),
        assembly: Assembly::default(),
        next: None,
        needed: 1,
        has_promised: false,
        frames: 0,
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
    found.retain(|segment| !is_other(segment));
    for (i, segment) in found.iter().enumerate() {
        let salt = promised.filter(|(generation, _)| *generation == segment.generation).map(|(_, salt)| salt);
        let known = walk.known();
        walk.segment(segment, following(&found[i + 1..]), salt)?;
        walk.has_promised |= salt.is_some() && walk.known() > known;
    }
    if let Some((generation, _)) = promised
        && !walk.has_promised
    {
        // It has at least its first frame.
        let what = "the segment that the catalog names is missing, or holds none of its frames".to_owned();
        let (path, first) = (segment_path(dir, generation), Frame(walk.next.unwrap_or(1)));
        let (last, needed) = (Frame(u64::MAX), walk.needed);
        walk.salvaged.gaps.push(Gap { first, last, needed, path, offset: 0, what });
    }
    found.first().into_iter().for_each(|first| walk.missing_before(&first.path));
    Ok(walk.salvaged)
}

struct SalvageWalk<'d> {
    disk: &'d dyn Disk,
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
}

impl SalvageWalk<'_> {
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
                    self.salvaged.headless.push(segment.path.clone());
                    head
                }
                None => return Ok(()),
            },
        };
        let limit = following.map_or(u64::MAX, |following| following.first);
        if let Some(next) = self.next.filter(|next| *next < head.first) {
            self.miss(segment, 0, "frames before its first are missing", next, head.first - 1);
        }
        let mut window = Window::open(self.disk, segment)?;
        let (mut offset, mut number) = (BLOCK as u64, head.first);
        while number < limit {
            let bad = match frame(Heap::shared(), &mut window, &head, offset, number)? {
                Ok(frame) => {
                    offset += frame.head.disk_bytes();
                    self.take(frame);
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
                break;
            }
            match next_whole(&mut window, &head, segment.len, (offset, number), limit)? {
                Some((at, frame)) => {
                    let first = frame.head.number;
                    self.miss_bad(segment, bad, number, first - 1);
                    offset = at + frame.head.disk_bytes();
                    self.take(frame);
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
        let (needed, path, offset, what) = match self.salvaged.gaps.first() {
            Some(gap) if gap.needed < self.needed && !planted::is(Bug::RepairForgetsOlderFrames) => {
                let what = format!("{}, and with it why older frames are not needed", gap.what);
                (gap.needed, gap.path.clone(), gap.offset, what)
            }
            _ => (self.needed, path.to_owned(), 0, "an older segment is missing".to_owned()),
        };
        if oldest.0 > needed {
            let (first, last) = (Frame(needed), Frame(oldest.0 - 1));
            self.salvaged.gaps.insert(0, Gap { first, last, needed, path, offset, what });
        }
    }

    /// How many frames and gaps were met.
    fn known(&self) -> (u64, usize) {
        (self.frames, self.salvaged.gaps.len())
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

    fn take(&mut self, frame: ReadFrame) {
        let number = Frame(frame.head.number);
        self.frames += 1;
        self.salvaged.oldest.get_or_insert(number);
        self.needed = self.needed.max(frame.head.needed);
        for part in frame.parts {
            let told = &mut self.salvaged.told;
            let keep = &mut |replayed| {
                told.push((number, replayed));
                Ok(())
            };
            self.assembly.add(part, keep).expect("nothing fails here");
        }
    }

    fn miss_bad(&mut self, segment: &Segment, bad: Bad, first: u64, last: u64) {
        self.miss(segment, bad.offset, bad.what, first, last);
    }

    fn miss(&mut self, segment: &Segment, offset: u64, what: &str, first: u64, last: u64) {
        // What began before the gap does not go on behind it.
        self.assembly = Assembly::default();
        let (first, last, path) = (Frame(first), Frame(last), segment.path.clone());
        let what = what.to_owned();
        self.salvaged.gaps.push(Gap { first, last, needed: self.needed, path, offset, what });
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
