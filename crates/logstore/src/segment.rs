//! Segments: values, once, in order of seqno. A segment holds extents, each with items of one vBucket; it is written by one
//! commit or one rewrite and never changed.

use std::path::Path;
use std::sync::{Arc, OnceLock};

use base::leb128::put_leb128;
use base::{Account, Part};

use crate::block::{self, Span};
use crate::codec::{Decoder, Encoder, u32_at, u64_at};
use crate::failure::Failure;
use crate::file::{LogFile, NewFile};
use crate::identity::{FileId, ID_HEADER_BYTES};

/// Content of a block before it is compressed, unless one item is larger: a read of one item takes a page or two.
const BLOCK_BYTES: usize = 4 << 10;
/// A reader of an extent reads this much at once.
const READ_BYTES: u64 = 256 << 10;
/// A segment is addressed with 32 bits.
pub(crate) const MOST_SEGMENT_BYTES: u64 = u32::MAX as u64 - (64 << 10);

/// First bytes of every file: what it is, version, how blocks are compressed (1: Snappy, where a block says so).
pub(crate) const HEADER_BYTES: usize = 16;
/// Last bytes of segments and runs.
pub(crate) const TRAILER_BYTES: usize = 24;
/// Of segments and runs. From version 2 on they say whose they are.
pub(crate) const VERSION: u8 = 2;
const WITHOUT_IDENTITY: u8 = 1;
const COMPRESSION: u8 = 1;
pub(crate) const MAGIC: &[u8; 8] = b"stavelsg";

pub(crate) fn header(magic: &[u8; 8], version: u8) -> [u8; HEADER_BYTES] {
    let mut header = [0; HEADER_BYTES];
    header[..8].copy_from_slice(magic);
    header[8] = version;
    header[9] = COMPRESSION;
    header
}

/// Checks the first bytes of a file, of a version up to `newest`; answers which one.
pub(crate) fn check_header(
    bytes: &[u8],
    (magic, newest): (&[u8; 8], u8),
    path: &Arc<Path>,
) -> Result<u8, Failure> {
    if bytes.len() < HEADER_BYTES || bytes[..8] != magic[..] {
        return Err(Failure::damaged(path, 0, "the first bytes are not those of such a file"));
    }
    if !(1..=newest).contains(&bytes[8]) || bytes[9] != COMPRESSION {
        let what = format!(
            "it has version {} and compression {}; this program reads versions up to {newest}, and compression 1",
            bytes[8], bytes[9]
        );
        return Err(Failure::Unsupported { path: path.clone(), what });
    }
    Ok(bytes[8])
}

/// Ends a file: says where the block with its index is.
pub(crate) fn trailer(seed: u64, index: Span, magic: &[u8; 8]) -> [u8; TRAILER_BYTES] {
    let mut trailer = [0; TRAILER_BYTES];
    trailer[..8].copy_from_slice(&index.offset.to_le_bytes());
    trailer[8..12].copy_from_slice(&index.len.to_le_bytes());
    trailer[16..].copy_from_slice(magic);
    let crc = trailer_checksum(seed, &trailer);
    trailer[12..16].copy_from_slice(&crc.to_le_bytes());
    trailer
}

fn trailer_checksum(seed: u64, trailer: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&seed.to_le_bytes()), &trailer[..12])
}

/// Reads the header of a file, and refuses one that is not the file that the manifest names. Its blocks can be read then.
pub(crate) fn identify(file: &LogFile, magic: &[u8; 8]) -> Result<(), Failure> {
    let first = file.read_exact(0, HEADER_BYTES)?;
    let found = match check_header(&first, (magic, VERSION), file.path())? {
        WITHOUT_IDENTITY => FileId { nonce: 0, ..file.id() },
        _ => FileId::of(&file.read_exact(0, ID_HEADER_BYTES)?, file.path())?,
    };
    file.id().check(&found, file.path())?;
    file.has_seed(found.seed());
    Ok(())
}

/// Reads the block with the index of a file.
pub(crate) fn read_index(file: &LogFile, magic: &[u8; 8]) -> Result<Vec<u8>, Failure> {
    let damaged = |what| Failure::damaged(file.path(), file.len().saturating_sub(TRAILER_BYTES as u64), what);
    if file.len() < (HEADER_BYTES + TRAILER_BYTES) as u64 {
        return Err(damaged("the file is too short"));
    }
    identify(file, magic)?;
    let trailer = file.read_exact(file.len() - TRAILER_BYTES as u64, TRAILER_BYTES)?;
    if trailer[16..] != magic[..] || u32_at(&trailer, 12) != trailer_checksum(file.seed(), &trailer) {
        return Err(damaged("the last bytes of the file"));
    }
    block::read(file, Span { offset: u64_at(&trailer, 0), len: u32_at(&trailer, 8) })
}

/// A document, tombstone or other record as it is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Item<'a> {
    /// What it is found by.
    pub key: &'a [u8],
    /// Its place in the vBucket's history.
    pub seqno: u64,
    /// Kept in the key index, too: what the caller needs for counts.
    pub flags: u8,
    /// Kept in the key index, too: what the caller decides by about leaving it out.
    pub time: u32,
    /// Metadata that is not looked at here.
    pub meta: &'a [u8],
    /// Its value.
    pub value: &'a [u8],
}

impl Item<'_> {
    /// Bytes that count for it.
    pub fn bytes(&self) -> u32 {
        (self.key.len() + self.meta.len() + self.value.len()) as u32
    }

    pub(crate) fn put(&self, out: &mut Vec<u8>) {
        put_leb128(out, self.seqno);
        out.push(self.flags);
        put_leb128(out, u64::from(self.time));
        for part in [self.key, self.meta, self.value] {
            put_leb128(out, part.len() as u64);
            out.extend_from_slice(part);
        }
    }
}

fn take_item<'a>(from: &mut Decoder<'a>) -> Option<Item<'a>> {
    Some(Item {
        seqno: from.number()?,
        flags: from.u8()?,
        time: from.small()?,
        key: from.bytes()?,
        meta: from.bytes()?,
        value: from.bytes()?,
    })
}

/// An extent that was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Written {
    pub(crate) vb: u16,
    /// Its number in the segment.
    pub(crate) ordinal: u32,
    pub(crate) first: u64,
    pub(crate) last: u64,
    pub(crate) items: u32,
    pub(crate) bytes: u64,
}

struct BlockAt {
    first: u64,
    offset: u32,
    len: u32,
}

/// The blocks of an extent, in order.
#[derive(Default)]
struct ExtentIndex {
    blocks: Vec<BlockAt>,
}

/// Writes a segment.
pub(crate) struct SegmentWriter {
    pub(crate) file: NewFile,
    block: Vec<u8>,
    block_first: u64,
    extent: Option<(Written, ExtentIndex)>,
    done: Vec<(Written, ExtentIndex)>,
}

impl SegmentWriter {
    pub(crate) fn new(mut file: NewFile) -> SegmentWriter {
        file.pending.extend_from_slice(&file.id.header(&header(MAGIC, VERSION)));
        SegmentWriter { file, block: Vec::new(), block_first: 0, extent: None, done: Vec::new() }
    }

    /// Begins an extent, behind the end of the one before.
    pub(crate) fn begin(&mut self, vb: u16) {
        let ordinal = self.done.len() as u32;
        let written = Written { vb, ordinal, first: 0, last: 0, items: 0, bytes: 0 };
        self.extent = Some((written, ExtentIndex::default()));
    }

    /// Adds the item with the next higher seqno.
    pub(crate) fn add(&mut self, item: &Item<'_>) -> Result<(), Failure> {
        let (written, _) = self.extent.as_mut().expect("an extent was begun");
        assert!(written.items == 0 || item.seqno > written.last, "items come in order of seqno");
        if written.items == 0 {
            written.first = item.seqno;
        }
        written.last = item.seqno;
        written.items += 1;
        written.bytes += u64::from(item.bytes());
        if self.block.is_empty() {
            self.block_first = item.seqno;
        }
        item.put(&mut self.block);
        if self.block.len() >= BLOCK_BYTES { self.end_block() } else { Ok(()) }
    }

    fn end_block(&mut self) -> Result<(), Failure> {
        if self.block.is_empty() {
            return Ok(());
        }
        let span = self.file.block(&self.block)?;
        self.block.clear();
        if self.file.len() > MOST_SEGMENT_BYTES {
            let (written, _) = self.extent.as_ref().expect("an extent was begun");
            let what = "one commit takes more than 4 GiB; commit less at once".to_owned();
            return Err(Failure::Batch { vb: written.vb, what });
        }
        let (_, index) = self.extent.as_mut().expect("an extent was begun");
        index.blocks.push(BlockAt { first: self.block_first, offset: span.offset as u32, len: span.len });
        Ok(())
    }

    /// Ends the extent; `None` if nothing was added.
    pub(crate) fn end(&mut self) -> Result<Option<Written>, Failure> {
        self.end_block()?;
        let (written, index) = self.extent.take().expect("an extent was begun");
        if written.items == 0 {
            return Ok(None);
        }
        self.done.push((written, index));
        Ok(Some(written))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.done.is_empty()
    }

    /// Writes the index and what is left. The file is to be synced then.
    pub(crate) fn finish(&mut self) -> Result<(), Failure> {
        let mut index = Encoder::default();
        index.number(self.done.len() as u64);
        for (written, extent) in &self.done {
            index.number(u64::from(written.vb));
            index.number(extent.blocks.len() as u64);
            let (mut seqno, mut offset) = (0, 0);
            for block in &extent.blocks {
                index.number(block.first - seqno);
                index.number(u64::from(block.offset - offset));
                index.number(u64::from(block.len));
                (seqno, offset) = (block.first, block.offset);
            }
        }
        let span = self.file.block(&index.0)?;
        let trailer = trailer(self.file.id.seed(), span, MAGIC);
        self.file.pending.extend_from_slice(&trailer);
        self.file.flush()
    }
}

/// What is in memory of a segment once it was read from.
struct Footer {
    extents: Vec<(u16, ExtentIndex)>,
    bytes: usize,
}

fn decode_footer(content: &[u8]) -> Option<Footer> {
    let mut from = Decoder(content);
    let count = from.count()?;
    let mut extents = Vec::with_capacity(count);
    let mut bytes = count * size_of::<(u16, ExtentIndex)>();
    for _ in 0..count {
        let vb = from.small()?;
        let count = from.count()?;
        let mut blocks = Vec::with_capacity(count);
        let (mut seqno, mut offset) = (0u64, 0u32);
        for _ in 0..count {
            seqno = seqno.checked_add(from.number()?)?;
            offset = offset.checked_add(from.small()?)?;
            blocks.push(BlockAt { first: seqno, offset, len: from.small()? });
        }
        bytes += blocks.capacity() * size_of::<BlockAt>();
        extents.push((vb, ExtentIndex { blocks }));
    }
    from.is_empty().then_some(Footer { extents, bytes })
}

/// A segment that is read from.
pub(crate) struct Segment {
    pub(crate) file: LogFile,
    footer: OnceLock<Footer>,
    account: Account,
}

impl Segment {
    pub(crate) fn new(file: LogFile, account: Account) -> Segment {
        Segment { file, footer: OnceLock::new(), account }
    }

    fn footer(&self) -> Result<&Footer, Failure> {
        if let Some(footer) = self.footer.get() {
            return Ok(footer);
        }
        let content = read_index(&self.file, MAGIC)?;
        let damaged = || Failure::damaged(self.file.path(), self.file.len(), "the index of the segment");
        let footer = decode_footer(&content).ok_or_else(damaged)?;
        let bytes = footer.bytes;
        if self.footer.set(footer).is_ok() {
            self.account.charge(Part::Storage, bytes);
        }
        Ok(self.footer.get().expect("it was set just now"))
    }

    fn blocks(&self, vb: u16, ordinal: u32) -> Result<&[BlockAt], Failure> {
        let found = self.footer()?.extents.get(ordinal as usize).filter(|(of, _)| *of == vb);
        let missing = || Failure::damaged(self.file.path(), self.file.len(), "an extent is missing");
        found.map(|(_, index)| &index.blocks[..]).ok_or_else(missing)
    }

    fn makes_no_sense(&self, offset: u64) -> Failure {
        Failure::damaged(self.file.path(), offset, "an item of a block")
    }

    /// The item with a seqno, given to `read`; `None` if the extent has none. Its block is not kept: the caller keeps the
    /// item, and memory is for the key index.
    pub(crate) fn get<T>(
        &self,
        (vb, ordinal): (u16, u32),
        seqno: u64,
        read: impl FnOnce(&Item<'_>) -> T,
    ) -> Result<Option<T>, Failure> {
        let blocks = self.blocks(vb, ordinal)?;
        let Some(at) = blocks.partition_point(|block| block.first <= seqno).checked_sub(1) else {
            return Ok(None);
        };
        let span = Span { offset: u64::from(blocks[at].offset), len: blocks[at].len };
        let content = block::read(&self.file, span)?;
        let mut from = Decoder(&content);
        while !from.is_empty() {
            let item = take_item(&mut from).ok_or_else(|| self.makes_no_sense(span.offset))?;
            if item.seqno == seqno {
                return Ok(Some(read(&item)));
            }
        }
        Ok(None)
    }

    /// Visits the items of an extent that can be read, in order of seqno. `lost` is told of the others: no lower and no
    /// higher seqno, and why.
    pub(crate) fn salvage<E: From<Failure>>(
        &self,
        (vb, ordinal): (u16, u32),
        visit: &mut dyn FnMut(&Item<'_>) -> Result<(), E>,
        lost: &mut dyn FnMut(u64, u64, Failure),
    ) -> Result<(), E> {
        let blocks = match self.blocks(vb, ordinal) {
            Ok(blocks) => blocks,
            Err(failure) if failure.is_damage() => {
                lost(0, u64::MAX, failure);
                return Ok(());
            }
            Err(failure) => return Err(failure.into()),
        };
        for (at, block) in blocks.iter().enumerate() {
            let last = blocks.get(at + 1).map_or(u64::MAX, |next| next.first.saturating_sub(1));
            let span = Span { offset: u64::from(block.offset), len: block.len };
            let content = match block::read(&self.file, span) {
                Ok(content) => content,
                Err(failure) if failure.is_damage() => {
                    lost(block.first, last, failure);
                    continue;
                }
                Err(failure) => return Err(failure.into()),
            };
            let (mut from, mut next) = (Decoder(&content), block.first);
            while !from.is_empty() {
                let Some(item) = take_item(&mut from) else {
                    lost(next, last, self.makes_no_sense(span.offset));
                    break;
                };
                next = item.seqno.saturating_add(1);
                visit(&item)?;
            }
        }
        Ok(())
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        if let Some(footer) = self.footer.get() {
            self.account.release(Part::Storage, footer.bytes);
        }
    }
}

/// Reads an extent from front to end, some blocks at a time.
pub(crate) struct ExtentReader {
    segment: Arc<Segment>,
    vb: u16,
    ordinal: u32,
    /// The next block to read.
    next: usize,
    /// Blocks that were read, and the offset of the first byte.
    raw: Vec<u8>,
    raw_at: u64,
    /// The next of them to open, and behind the last.
    opening: std::ops::Range<usize>,
    content: Vec<u8>,
    /// The offset of the block that is open, and where in its content the next item is.
    open_at: u64,
    at: usize,
}

impl ExtentReader {
    /// Begins at the block that has the first item with a seqno of `from` or more; lower ones may come first.
    pub(crate) fn new(
        segment: &Arc<Segment>,
        vb: u16,
        ordinal: u32,
        from: u64,
    ) -> Result<ExtentReader, Failure> {
        let blocks = segment.blocks(vb, ordinal)?;
        let next = blocks.partition_point(|block| block.first <= from).saturating_sub(1);
        Ok(ExtentReader {
            segment: segment.clone(),
            vb,
            ordinal,
            next,
            raw: Vec::new(),
            raw_at: 0,
            opening: 0..0,
            content: Vec::new(),
            open_at: 0,
            at: 0,
        })
    }

    fn read_on(&mut self) -> Result<bool, Failure> {
        let blocks = self.segment.blocks(self.vb, self.ordinal)?;
        let Some(first) = blocks.get(self.next) else { return Ok(false) };
        let (start, mut end) = (u64::from(first.offset), u64::from(first.offset) + u64::from(first.len));
        let mut behind = self.next + 1;
        while let Some(block) = blocks.get(behind)
            && u64::from(block.offset) == end
            && end + u64::from(block.len) - start <= READ_BYTES
        {
            end += u64::from(block.len);
            behind += 1;
        }
        self.raw = self.segment.file.read_exact(start, (end - start) as usize)?;
        self.raw_at = start;
        self.opening = self.next..behind;
        self.next = behind;
        Ok(true)
    }

    fn open_next(&mut self) -> Result<bool, Failure> {
        if self.opening.is_empty() && !self.read_on()? {
            return Ok(false);
        }
        let blocks = self.segment.blocks(self.vb, self.ordinal)?;
        let block = &blocks[self.opening.next().expect("there is one left")];
        let offset = u64::from(block.offset);
        let from = (offset - self.raw_at) as usize;
        let raw = &self.raw[from..from + block.len as usize];
        self.content = block::open(raw, self.segment.file.seed(), offset, self.segment.file.path())?;
        (self.open_at, self.at) = (offset, 0);
        Ok(true)
    }

    /// The next item.
    pub(crate) fn next(&mut self) -> Result<Option<Item<'_>>, Failure> {
        while self.at >= self.content.len() {
            if !self.open_next()? {
                return Ok(None);
            }
        }
        let mut from = Decoder(&self.content[self.at..]);
        let before = from.0.len();
        let Some(item) = take_item(&mut from) else {
            return Err(self.segment.makes_no_sense(self.open_at));
        };
        self.at += before - from.0.len();
        Ok(Some(item))
    }
}
