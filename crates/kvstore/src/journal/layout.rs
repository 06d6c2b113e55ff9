//! What stands where in a segment: docs/journal_format.md.

use std::path::{Path, PathBuf};

/// Frames begin at multiples of this, and a segment's header takes as much.
pub(super) const BLOCK: usize = 4096;
/// Version of the layout that is written. Version 3 has no records that several vBuckets share, version 2 no directories.
/// In versions 4 and 5 a salt says nothing of the segment before, and up to version 7 the state of a file has no checksum.
pub(super) const VERSION: u32 = 8;
/// The same with values that may be compressed.
pub(super) const COMPRESSED_VERSION: u32 = 9;
/// The first version whose salts are linked.
const LINKED_VERSION: u32 = 6;
/// The first version whose segments a catalog names.
pub(super) const NAMED_VERSION: u32 = 2;
pub(super) const OLDEST_VERSION: u32 = 1;
const SEGMENT_MAGIC: [u8; 8] = *b"StaveJnl";
const FRAME_MAGIC: [u8; 4] = *b"SJfr";
const SEGMENT_HEAD: usize = 44;
/// Where the second copy of a segment's header is: in another sector.
const SECOND_COPY: usize = 2048;

/// Bytes of a frame before its records.
pub(super) const FRAME_HEAD: usize = 56;
/// Bytes that every record begins with.
pub(super) const RECORD_HEAD: usize = 12;
/// Bytes of a save record before the state.
pub(super) const SAVE_HEAD: usize = 20;
/// Bytes of an item before its key.
pub(super) const ITEM_HEAD: usize = 42;
/// Set in the length of an item's value if it is compressed.
pub(super) const COMPRESSED: u32 = 1 << 31;
/// Bytes between key and value of an item that plays a part in a sync write.
pub(super) const ITEM_SYNC_WRITE: usize = 8;
/// Bytes of a vBucket in a table.
pub(super) const TABLE_ENTRY: usize = 30;
/// The same up to version 7.
pub(super) const EARLIER_TABLE_ENTRY: usize = 26;
/// Bytes of a record that tells a file's state.
pub(super) const FILED_BYTES: usize = RECORD_HEAD + 28;
/// Generations and frames are never numbered this high: what claims to be is not believed.
const MAX_NUMBER: u64 = 1 << 62;
/// No frame is larger; what claims to be is not one.
pub(super) const MAX_FRAME: usize = 64 << 20;

/// Kinds of records.
pub(super) mod kind {
    pub(in crate::journal) const SAVE: u8 = 1;
    pub(in crate::journal) const FILED: u8 = 2;
    pub(in crate::journal) const DROPPED: u8 = 3;
    pub(in crate::journal) const ROLLED_BACK: u8 = 4;
    pub(in crate::journal) const TABLE: u8 = 5;
    pub(in crate::journal) const DIRECTORY: u8 = 6;
    pub(in crate::journal) const SHARED: u8 = 7;
}

/// Flags of a save record.
pub(super) mod flag {
    pub(in crate::journal) const FIRST: u8 = 1;
    pub(in crate::journal) const LAST: u8 = 2;
    pub(in crate::journal) const WHOLE: u8 = 4;
    pub(in crate::journal) const NUMBERS: u8 = 8;
    pub(in crate::journal) const REPEAT: u8 = 16;
    pub(in crate::journal) const ALL: u8 = 31;
}

/// Bytes of a frame on disk.
pub(super) fn padded(bytes: usize) -> usize {
    bytes.next_multiple_of(BLOCK)
}

/// Where the checksum of a record or an item begins: never the same for two uses of a segment.
pub(super) fn seed(generation: u64, vb: u16) -> u32 {
    (generation as u32).rotate_left(16) ^ u32::from(vb)
}

pub(super) fn segment_path(dir: &Path, generation: u64) -> PathBuf {
    dir.join(format!("journal.{generation}"))
}

pub(super) fn spare_path(dir: &Path, number: u64) -> PathBuf {
    dir.join(format!("journal.spare.{number}"))
}

/// A file of the journal, by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Name {
    Segment(u64),
    Spare(u64),
}

/// Nothing if the name is another's.
pub(super) fn parse_name(name: &str) -> Option<Name> {
    let rest = name.strip_prefix("journal.")?;
    let (digits, make): (&str, fn(u64) -> Name) = match rest.strip_prefix("spare.") {
        Some(digits) => (digits, Name::Spare),
        None => (rest, Name::Segment),
    };
    let number = digits.parse().ok().filter(|n: &u64| *n < MAX_NUMBER && n.to_string() == digits)?;
    Some(make(number))
}

/// Reads numbers off the front of some bytes.
pub(super) struct Cursor<'a>(pub &'a [u8]);

impl<'a> Cursor<'a> {
    pub(super) fn take(&mut self, n: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(n)?;
        self.0 = rest;
        Some(taken)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (taken, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*taken)
    }

    pub(super) fn u8(&mut self) -> Option<u8> {
        self.array().map(u8::from_le_bytes)
    }

    pub(super) fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_le_bytes)
    }

    pub(super) fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }
}

/// Lays out numbers one after the other; what fits is checked by the length of the array.
pub(super) struct Pen<const N: usize> {
    bytes: [u8; N],
    at: usize,
}

impl<const N: usize> Pen<N> {
    pub(super) fn new() -> Pen<N> {
        Pen { bytes: [0; N], at: 0 }
    }

    #[inline]
    pub(super) fn put(mut self, bytes: &[u8]) -> Pen<N> {
        self.bytes[self.at..self.at + bytes.len()].copy_from_slice(bytes);
        self.at += bytes.len();
        self
    }

    /// All bytes must have been put.
    #[inline]
    pub(super) fn done(self) -> [u8; N] {
        assert_eq!(self.at, N, "a layout is filled");
        self.bytes
    }
}

/// The first block of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SegmentHead {
    /// Version of the layout.
    pub(super) version: u32,
    /// The number in the name: rises with each use of a file.
    pub(super) generation: u64,
    /// Number of the first frame. All before it were durable before this was written; what an older segment holds
    /// from this one on is void.
    pub(super) first: u64,
    /// Stands in each frame too: nothing outside knows it, so no value can pass for a frame. See [`linked`].
    pub(super) salt: u64,
}

/// Why a header cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BadHead {
    /// There is none, or it is damaged.
    Unreadable,
    /// It is sound, and of a version that is not known.
    Version,
    /// It is sound, and not that of the segment that the next one was begun behind.
    Foreign,
}

/// A salt from a random number: half of it is for the segment before, if that is known, so that no other one is taken for it.
pub(super) fn linked(random: u64, before: Option<u64>) -> u64 {
    before.map_or(random, |before| random & !u64::from(u32::MAX) | link(before))
}

fn link(before: u64) -> u64 {
    u64::from(crc32c::crc32c(&before.to_le_bytes()))
}

impl SegmentHead {
    /// Whether it can be that of the segment before one with this header.
    pub(super) fn is_before(&self, next: &SegmentHead) -> bool {
        // Of one that begins with the same frame nothing counts, whosever it is.
        let is_read = self.first < next.first;
        let is_told = is_read && next.version >= LINKED_VERSION && next.generation == self.generation + 1;
        !is_told || next.salt & u64::from(u32::MAX) == link(self.salt)
    }

    fn encode_once(&self) -> [u8; SEGMENT_HEAD] {
        let fields = Pen::<{ SEGMENT_HEAD - 4 }>::new()
            .put(&SEGMENT_MAGIC)
            .put(&self.version.to_le_bytes())
            .put(&0_u32.to_le_bytes())
            .put(&self.generation.to_le_bytes())
            .put(&self.first.to_le_bytes())
            .put(&self.salt.to_le_bytes())
            .done();
        Pen::new().put(&fields).put(&crc32c::crc32c(&fields).to_le_bytes()).done()
    }

    /// The whole block: the header twice, so that a damaged sector does not take a segment with it.
    pub(super) fn encode(&self) -> [u8; BLOCK] {
        let once = self.encode_once();
        let mut block = [0; BLOCK];
        block[..SEGMENT_HEAD].copy_from_slice(&once);
        block[SECOND_COPY..SECOND_COPY + SEGMENT_HEAD].copy_from_slice(&once);
        block
    }

    pub(super) fn decode(block: &[u8]) -> Result<SegmentHead, BadHead> {
        let copy =
            |at: usize| block.get(at..at + SEGMENT_HEAD).map_or(Err(BadHead::Unreadable), Self::decode_once);
        match (copy(0), copy(SECOND_COPY)) {
            (Ok(head), _) | (Err(_), Ok(head)) => Ok(head),
            (Err(BadHead::Version), _) | (_, Err(BadHead::Version)) => Err(BadHead::Version),
            _ => Err(BadHead::Unreadable),
        }
    }

    fn decode_once(bytes: &[u8]) -> Result<SegmentHead, BadHead> {
        let (fields, mut crc) = (&bytes[..SEGMENT_HEAD - 4], Cursor(&bytes[SEGMENT_HEAD - 4..]));
        let mut at = Cursor(fields);
        if at.take(8) != Some(&SEGMENT_MAGIC) || crc.u32() != Some(crc32c::crc32c(fields)) {
            return Err(BadHead::Unreadable);
        }
        let version = at.u32().filter(|version| (OLDEST_VERSION..=COMPRESSED_VERSION).contains(version));
        let (Some(version), Some(0)) = (version, at.u32()) else { return Err(BadHead::Version) };
        let mut number = || at.u64().ok_or(BadHead::Unreadable);
        let head = SegmentHead { version, generation: number()?, first: number()?, salt: number()? };
        let is_possible = (1..MAX_NUMBER).contains(&head.first);
        if is_possible { Ok(head) } else { Err(BadHead::Unreadable) }
    }
}

/// The beginning of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FrameHead {
    /// Bytes of its records.
    pub(super) payload: u32,
    /// The segment's.
    pub(super) generation: u64,
    /// Its own number.
    pub(super) number: u64,
    /// The last frame that was durable when this one was written.
    pub(super) durable: u64,
    /// Frames below this one are not needed any more, and their segments may be gone.
    pub(super) needed: u64,
    /// The segment's.
    pub(super) salt: u64,
    /// Records in it.
    pub(super) records: u32,
}

impl FrameHead {
    pub(super) fn encode(&self) -> [u8; FRAME_HEAD] {
        let fields = Pen::<{ FRAME_HEAD - 4 }>::new()
            .put(&FRAME_MAGIC)
            .put(&self.payload.to_le_bytes())
            .put(&self.generation.to_le_bytes())
            .put(&self.number.to_le_bytes())
            .put(&self.durable.to_le_bytes())
            .put(&self.needed.to_le_bytes())
            .put(&self.salt.to_le_bytes())
            .put(&self.records.to_le_bytes())
            .done();
        Pen::new().put(&fields).put(&crc32c::crc32c(&fields).to_le_bytes()).done()
    }

    /// Nothing if no frame begins here.
    pub(super) fn decode(bytes: &[u8]) -> Option<FrameHead> {
        let fields = bytes.get(..FRAME_HEAD - 4)?;
        let mut at = Cursor(fields);
        if at.take(4) != Some(&FRAME_MAGIC) {
            return None;
        }
        let mut crc = Cursor(&bytes[FRAME_HEAD - 4..]);
        if crc.u32()? != crc32c::crc32c(fields) {
            return None;
        }
        let head = FrameHead {
            payload: at.u32()?,
            generation: at.u64()?,
            number: at.u64()?,
            durable: at.u64()?,
            needed: at.u64()?,
            salt: at.u64()?,
            records: at.u32()?,
        };
        (head.durable < head.number && head.number < MAX_NUMBER).then_some(head)
    }

    /// Bytes of the frame on disk.
    pub(super) fn disk_bytes(&self) -> u64 {
        (FRAME_HEAD as u64 + u64::from(self.payload)).next_multiple_of(BLOCK as u64)
    }
}
