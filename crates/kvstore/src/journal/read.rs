//! Segments as they are found on disk.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use base::Heap;
use base::env::{Disk, File, OpenMode};
use base::planted::{self, Bug};

use super::decode::{Bad, Decoder, Part};
use super::layout::{
    BLOCK, BadHead, FRAME_HEAD, FrameHead, MAX_FRAME, NAMED_VERSION, Name, SegmentHead, parse_name,
    segment_path,
};
use super::on_disk;
use crate::failure::Failure;

/// What is wrong where the frames just end.
pub(super) const NO_FRAME: &str = "no frame begins here";
pub(super) const OLDER_IS_MISSING: &str = "an older segment is missing";
pub(super) const EARLIER_USE: &str = "the frame is of an earlier use of the segment";
pub(super) const OF_ANOTHER: &str =
    "it is a segment of another journal: the next one was not begun behind it";
/// How much is read at once, at least.
const READ_BYTES: usize = 256 << 10;

/// A segment, not open.
#[derive(Debug)]
pub(super) struct Segment {
    pub(super) generation: u64,
    pub(super) path: PathBuf,
    pub(super) len: u64,
    pub(super) head: Result<SegmentHead, BadHead>,
}

impl Segment {
    pub(super) fn damaged(&self, offset: u64, what: &'static str) -> Failure {
        Failure::Journal { path: self.path.clone(), offset, what }
    }
}

/// What of a journal is in a folder.
pub(super) struct Found {
    /// Oldest first.
    pub(super) segments: Vec<Segment>,
    /// Numbers of files that are kept for use.
    pub(super) spares: Vec<u64>,
}

/// Removes segments up to a generation, durably.
pub(super) fn remove_void(disk: &dyn Disk, dir: &Path, generations: u64) -> Result<(), Failure> {
    let mut is_any = false;
    for segment in find(disk, dir)?.segments.iter().filter(|segment| segment.generation <= generations) {
        if segment.head.is_ok_and(|head| head.version < NAMED_VERSION) {
            let what = "an earlier version of this program wrote it after the catalog that makes it void";
            return Err(segment.damaged(0, what));
        }
        on_disk("remove", &segment.path, disk.remove_file(&segment.path))?;
        is_any = true;
    }
    if is_any { on_disk("sync folder", dir, disk.sync_dir(dir)) } else { Ok(()) }
}

/// Whether any segment behind a generation has a whole frame, or should have one.
pub(super) fn is_any_begun(disk: &dyn Disk, dir: &Path, generations: u64) -> Result<bool, Failure> {
    for segment in find(disk, dir)?.segments.iter().filter(|segment| segment.generation > generations) {
        let is_begun = match segment.head {
            Ok(head) => {
                let is_whole = || {
                    Ok(frame(
                        Heap::shared(),
                        &mut Window::open(disk, segment)?,
                        &head,
                        BLOCK as u64,
                        head.first,
                    )?
                    .is_ok())
                };
                head.first > 1
                    || is_whole()?
                    || proof_of(disk, segment, Some(head.salt), BLOCK as u64, 1)?.is_some()
            }
            Err(BadHead::Unreadable) => proof_of(disk, segment, None, BLOCK as u64, 1)?.is_some(),
            Err(BadHead::Version | BadHead::Foreign) => true,
        };
        if is_begun {
            return Ok(true);
        }
    }
    Ok(false)
}

pub(super) fn find(disk: &dyn Disk, dir: &Path) -> Result<Found, Failure> {
    let (mut generations, mut spares) = (Vec::new(), Vec::new());
    for name in on_disk("read folder", dir, disk.read_dir(dir))? {
        match parse_name(&name) {
            Some(Name::Segment(generation)) => generations.push(generation),
            Some(Name::Spare(number)) => spares.push(number),
            None => {}
        }
    }
    generations.sort_unstable();
    let segments = generations.into_iter().map(|generation| segment(disk, dir, generation));
    let mut segments = segments.collect::<Result<Vec<_>, _>>()?;
    refuse_foreign(&mut segments);
    Ok(Found { segments, spares })
}

/// A segment that the one behind it was not begun behind is of another journal.
fn refuse_foreign(segments: &mut [Segment]) {
    if planted::is(Bug::ForeignSegmentRead) {
        return;
    }
    // The newest first: what it says counts, and that of a segment of another journal does not.
    for at in (1..segments.len()).rev() {
        if let (Ok(before), Ok(next)) = (segments[at - 1].head, segments[at].head)
            && !before.is_before(&next)
        {
            segments[at - 1].head = Err(BadHead::Foreign);
        }
    }
}

fn segment(disk: &dyn Disk, dir: &Path, generation: u64) -> Result<Segment, Failure> {
    let path = segment_path(dir, generation);
    let file = on_disk("open", &path, disk.open(&path, OpenMode::Read))?;
    let len = on_disk("measure", &path, file.len())?;
    let mut block = [0; BLOCK];
    let read = on_disk("read", &path, file.read_at(&mut block, 0))?;
    // A file that was renamed and not written to since has the header of an earlier use: it holds nothing of this one.
    let head = SegmentHead::decode(&block[..read])
        .and_then(|head| if head.generation == generation { Ok(head) } else { Err(BadHead::Unreadable) });
    Ok(Segment { generation, path, len, head })
}

/// What of a file was read last.
pub(super) struct Window<'a> {
    file: Arc<dyn File>,
    segment: &'a Segment,
    start: u64,
    bytes: Vec<u8>,
}

impl<'a> Window<'a> {
    pub(super) fn open(disk: &dyn Disk, segment: &'a Segment) -> Result<Window<'a>, Failure> {
        let file = on_disk("open", &segment.path, disk.open(&segment.path, OpenMode::Read))?;
        Ok(Window { file, segment, start: 0, bytes: Vec::new() })
    }

    /// Bytes at `offset`; fewer than asked for if the file ends.
    pub(super) fn get(&mut self, offset: u64, len: usize) -> Result<&[u8], Failure> {
        let rest = self.segment.len.saturating_sub(offset);
        let len = len.min(usize::try_from(rest).unwrap_or(usize::MAX));
        let from = offset.checked_sub(self.start).and_then(|from| usize::try_from(from).ok());
        let held = from.filter(|from| from.checked_add(len).is_some_and(|end| end <= self.bytes.len()));
        let from = match held {
            Some(from) => from,
            None => {
                let wanted = len.max(READ_BYTES).min(usize::try_from(rest).unwrap_or(usize::MAX));
                self.bytes.resize(wanted, 0);
                self.start = offset;
                let read = self.file.read_at(&mut self.bytes, offset);
                let read = read.inspect_err(|_| self.bytes.clear());
                let read = on_disk("read", &self.segment.path, read)?;
                self.bytes.truncate(read);
                0
            }
        };
        let held = &self.bytes[from..];
        Ok(&held[..len.min(held.len())])
    }
}

/// A whole frame.
pub(super) struct ReadFrame {
    pub(super) head: FrameHead,
    pub(super) parts: Vec<Part>,
}

impl ReadFrame {
    /// What is wrong with the first of its records that cannot be understood.
    fn malformed(&self) -> Option<Bad> {
        self.parts
            .iter()
            .find_map(|part| if let Part::Malformed { bad, .. } = part { Some(*bad) } else { None })
    }
}

/// Where the frames of a segment end, and why.
pub(super) struct End {
    /// Where the next frame would be.
    pub(super) offset: u64,
    /// Its number.
    pub(super) next: u64,
    /// Why there is none; nothing if the following segment has it.
    pub(super) bad: Option<Bad>,
}

/// Reads the frames of a segment with the numbers from its first to one before `limit`, up to the first that is not
/// whole.
pub(super) fn frames(
    heap: &Heap,
    disk: &dyn Disk,
    segment: &Segment,
    head: SegmentHead,
    limit: u64,
    visit: &mut dyn FnMut(ReadFrame) -> Result<(), Failure>,
) -> Result<End, Failure> {
    let mut window = Window::open(disk, segment)?;
    let (mut offset, mut next) = (BLOCK as u64, head.first);
    while next < limit {
        match frame(heap, &mut window, &head, offset, next)? {
            Ok(frame) => {
                if let Some(bad) = frame.malformed() {
                    return Ok(End { offset, next, bad: Some(bad) });
                }
                offset += frame.head.disk_bytes();
                next = next.checked_add(1).ok_or_else(|| segment.damaged(offset, "the number of a frame"))?;
                visit(frame)?;
            }
            Err(bad) => return Ok(End { offset, next, bad: Some(bad) }),
        }
    }
    Ok(End { offset, next, bad: None })
}

/// The frame with this number at this place, or why it is none.
pub(super) fn frame(
    heap: &Heap,
    window: &mut Window<'_>,
    segment: &SegmentHead,
    offset: u64,
    number: u64,
) -> Result<Result<ReadFrame, Bad>, Failure> {
    let bad = |what| Ok(Err(Bad { offset, what, is_sound: false, only: None }));
    let Some(head) = FrameHead::decode(window.get(offset, FRAME_HEAD)?) else {
        return bad(NO_FRAME);
    };
    if (head.generation, head.salt) != (segment.generation, segment.salt) {
        return bad(EARLIER_USE);
    }
    if head.number != number {
        return bad("the frame has another number");
    }
    let payload = head.payload as usize;
    if payload > MAX_FRAME {
        return bad("the frame is longer than any");
    }
    let payload_at = offset + FRAME_HEAD as u64;
    let bytes = window.get(offset, FRAME_HEAD + payload)?;
    let Some(bytes) = bytes.get(FRAME_HEAD..).filter(|bytes| bytes.len() == payload) else {
        return bad("the segment ends inside a frame");
    };
    let decoder = Decoder { heap, payload: bytes, offset: payload_at, generation: head.generation };
    Ok(decoder.parts(head.records).map(|parts| ReadFrame { head, parts }))
}

/// Looks behind the last whole frame for one that was written when frame `missing` was durable. Without a salt, the
/// header of the segment being unreadable, any that has the segment's generation counts.
pub(super) fn proof_of(
    disk: &dyn Disk,
    segment: &Segment,
    salt: Option<u64>,
    from: u64,
    mut missing: u64,
) -> Result<Option<u64>, Failure> {
    let mut window = Window::open(disk, segment)?;
    let mut offset = from;
    while offset < segment.len {
        if let Some(head) = FrameHead::decode(window.get(offset, FRAME_HEAD)?)
            && head.generation == segment.generation
            && salt.is_none_or(|salt| salt == head.salt)
        {
            if head.durable >= missing {
                return Ok(Some(offset));
            }
            missing = missing.min(head.number);
        }
        offset += BLOCK as u64;
    }
    Ok(None)
}
