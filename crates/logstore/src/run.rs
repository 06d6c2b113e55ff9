//! Sorted runs of the key index: for each version of each key its seqno, and what counts need. No place: that is found
//! through the seqno, so that segments can be rewritten without a change here.

use std::cmp::Ordering;
use std::sync::{Arc, OnceLock};

use base::leb128::put_leb128;
use base::{Account, Part};

use crate::block::{self, Span};
use crate::cache::BlockCache;
use crate::codec::{Decoder, Encoder};
use crate::failure::Failure;
use crate::file::{LogFile, NewFile};
use crate::filter;
use crate::segment::{HEADER_BYTES, VERSION, header, read_index, trailer};

const BLOCK_BYTES: usize = 4 << 10;
pub(crate) const MAGIC: &[u8; 8] = b"stavelrn";
/// A cursor reads so much at once.
const READ_BYTES: u64 = 64 << 10;

/// Bit of an entry's kind: the version was left out for good, and none below counts.
const ERASED: u8 = 1;

/// What is known of a version of a key without reading it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its seqno.
    pub seqno: u64,
    /// As in its item.
    pub flags: u8,
    /// As in its item.
    pub time: u32,
    /// Bytes of its item: key, metadata and value.
    pub bytes: u32,
}

/// A version in a run: within a key the newest comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stored {
    pub(crate) epoch: u64,
    pub(crate) entry: Entry,
    pub(crate) is_erased: bool,
}

impl Stored {
    /// The order of the versions of one key.
    pub(crate) fn order(&self, other: &Stored) -> Ordering {
        (other.epoch, other.entry.seqno).cmp(&(self.epoch, self.entry.seqno))
    }

    fn put(&self, out: &mut Vec<u8>) {
        out.push(u8::from(self.is_erased) * ERASED);
        put_leb128(out, self.epoch);
        put_leb128(out, self.entry.seqno);
        out.push(self.entry.flags);
        put_leb128(out, u64::from(self.entry.time));
        put_leb128(out, u64::from(self.entry.bytes));
    }

    fn take(from: &mut Decoder<'_>) -> Option<Stored> {
        let kind = from.u8().filter(|kind| kind & !ERASED == 0)?;
        let epoch = from.number()?;
        let (seqno, flags) = (from.number()?, from.u8()?);
        let entry = Entry { seqno, flags, time: from.small()?, bytes: from.small()? };
        Some(Stored { epoch, entry, is_erased: kind & ERASED != 0 })
    }
}

/// The key of a run: vBucket and stored key.
pub(crate) fn run_key(vb: u16, key: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(2 + key.len());
    out.extend_from_slice(&vb.to_be_bytes());
    out.extend_from_slice(key);
    out
}

/// Splits such a key.
pub(crate) fn split_key(run_key: &[u8]) -> Option<(u16, &[u8])> {
    let (vb, key) = run_key.split_at_checked(2)?;
    Some((u16::from_be_bytes([vb[0], vb[1]]), key))
}

/// Writes a run.
pub(crate) struct RunWriter {
    pub(crate) file: NewFile,
    block: Vec<u8>,
    block_first: Vec<u8>,
    last: Vec<u8>,
    index: Encoder,
    blocks: u64,
    index_offset: u64,
    hashes: Vec<u64>,
    pub(crate) entries: u64,
    /// The vBuckets with something here, in order.
    pub(crate) vbs: Vec<u16>,
}

impl RunWriter {
    pub(crate) fn new(mut file: NewFile) -> RunWriter {
        file.pending.extend_from_slice(&file.id.header(&header(MAGIC, VERSION)));
        RunWriter {
            file,
            block: Vec::new(),
            block_first: Vec::new(),
            last: Vec::new(),
            index: Encoder::default(),
            blocks: 0,
            index_offset: 0,
            hashes: Vec::new(),
            entries: 0,
            vbs: Vec::new(),
        }
    }

    /// Adds a version: in order of key, the newest version of each first.
    pub(crate) fn add(&mut self, key: &[u8], stored: &Stored) -> Result<(), Failure> {
        let is_new_key = self.entries == 0 || self.last != key;
        assert!(self.entries == 0 || self.last.as_slice() <= key, "entries come in order of key");
        if is_new_key {
            self.hashes.push(filter::hash(key));
            let (vb, _) = split_key(key).expect("the key of a run begins with a vBucket");
            if self.vbs.last() != Some(&vb) {
                self.vbs.push(vb);
            }
            // All versions of a key are in one block.
            if self.block.len() >= BLOCK_BYTES {
                self.end_block()?;
            }
        }
        let is_first = self.block.is_empty();
        if is_first {
            self.block_first = key.to_vec();
        }
        let shared = if is_first { 0 } else { common_prefix(&self.last, key) };
        put_leb128(&mut self.block, shared as u64);
        put_leb128(&mut self.block, (key.len() - shared) as u64);
        self.block.extend_from_slice(&key[shared..]);
        stored.put(&mut self.block);
        self.last.clear();
        self.last.extend_from_slice(key);
        self.entries += 1;
        Ok(())
    }

    fn end_block(&mut self) -> Result<(), Failure> {
        if self.block.is_empty() {
            return Ok(());
        }
        let span = self.file.block(&self.block)?;
        self.block.clear();
        self.index.bytes(&self.block_first);
        self.index.number(span.offset - self.index_offset);
        self.index.number(u64::from(span.len));
        self.index_offset = span.offset;
        self.blocks += 1;
        Ok(())
    }

    /// Writes index, filter and what is left. The file is to be synced then.
    pub(crate) fn finish(&mut self) -> Result<(), Failure> {
        self.end_block()?;
        let mut index = Encoder::default();
        index.number(self.blocks);
        index.0.extend_from_slice(&self.index.0);
        index.bytes(&filter::build(&self.hashes));
        let span = self.file.block(&index.0)?;
        let trailer = trailer(self.file.id.seed(), span, MAGIC);
        self.file.pending.extend_from_slice(&trailer);
        self.file.flush()
    }
}

fn common_prefix(a: &[u8], b: &[u8]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

/// What is in memory of a run once it was read from.
struct RunIndex {
    /// First keys of the blocks, one behind the other, and where each ends.
    keys: Vec<u8>,
    ends: Vec<u32>,
    spans: Vec<Span>,
    filter: Vec<u8>,
}

impl RunIndex {
    fn decode(content: &[u8]) -> Option<RunIndex> {
        let mut from = Decoder(content);
        let count = from.count()?;
        let (mut keys, mut ends, mut spans) =
            (Vec::new(), Vec::with_capacity(count), Vec::with_capacity(count));
        let mut offset = 0u64;
        for _ in 0..count {
            keys.extend_from_slice(from.bytes()?);
            ends.push(u32::try_from(keys.len()).ok()?);
            offset = offset.checked_add(from.number()?)?;
            spans.push(Span { offset, len: from.small()? });
        }
        let filter = from.bytes()?.to_vec();
        keys.shrink_to_fit();
        (from.is_empty() && filter.len().is_multiple_of(64)).then_some(RunIndex { keys, ends, spans, filter })
    }

    fn bytes(&self) -> usize {
        self.keys.capacity()
            + self.ends.capacity() * 4
            + self.spans.capacity() * size_of::<Span>()
            + self.filter.capacity()
    }

    fn first_key(&self, block: usize) -> &[u8] {
        let from = block.checked_sub(1).map_or(0, |before| self.ends[before] as usize);
        &self.keys[from..self.ends[block] as usize]
    }

    /// The block in which the first key is that is `key` or greater, or the one before.
    fn block_of(&self, key: &[u8]) -> usize {
        let (mut low, mut high) = (0, self.spans.len());
        while low < high {
            let middle = low.midpoint(high);
            if self.first_key(middle) <= key { low = middle + 1 } else { high = middle }
        }
        low.saturating_sub(1)
    }
}

/// A run that is read from. It covers the commits of its shard from `low` to `high`.
pub(crate) struct Run {
    pub(crate) file: LogFile,
    pub(crate) low: u64,
    pub(crate) high: u64,
    pub(crate) vbs: Vec<u16>,
    index: OnceLock<RunIndex>,
    account: Account,
}

impl Run {
    pub(crate) fn new(file: LogFile, (low, high): (u64, u64), vbs: Vec<u16>, account: Account) -> Run {
        Run { file, low, high, vbs, index: OnceLock::new(), account }
    }

    pub(crate) fn has_vb(&self, vb: u16) -> bool {
        self.vbs.binary_search(&vb).is_ok()
    }

    fn index(&self) -> Result<&RunIndex, Failure> {
        if let Some(index) = self.index.get() {
            return Ok(index);
        }
        let content = read_index(&self.file, MAGIC)?;
        let damaged = || Failure::damaged(self.file.path(), self.file.len(), "the index of the run");
        let index = RunIndex::decode(&content).ok_or_else(damaged)?;
        let bytes = index.bytes();
        if self.index.set(index).is_ok() {
            self.account.charge(Part::Storage, bytes);
        }
        Ok(self.index.get().expect("it was set just now"))
    }

    /// Shows the versions of a key to `take`, the newest first, until it has seen enough.
    pub(crate) fn versions(
        &self,
        cache: &BlockCache,
        key: &[u8],
        hash: u64,
        take: &mut dyn FnMut(&Stored) -> bool,
    ) -> Result<(), Failure> {
        let index = self.index()?;
        if index.spans.is_empty() || !filter::may_hold(&index.filter, hash) {
            return Ok(());
        }
        let span = index.spans[index.block_of(key)];
        let content = cache.read(&self.file, span)?;
        let mut reader = EntryReader::default();
        let mut at = 0;
        while at < content.len() {
            let stored = reader.next(&content, &mut at).ok_or_else(|| self.makes_no_sense(span))?;
            match reader.key.as_slice().cmp(key) {
                Ordering::Less => {}
                Ordering::Equal if take(&stored) => {}
                Ordering::Equal | Ordering::Greater => return Ok(()),
            }
        }
        Ok(())
    }

    fn makes_no_sense(&self, span: Span) -> Failure {
        Failure::damaged(self.file.path(), span.offset, "an entry of a block")
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        if let Some(index) = self.index.get() {
            self.account.release(Part::Storage, index.bytes());
        }
    }
}

/// Takes the entries of a block apart.
#[derive(Default)]
struct EntryReader {
    key: Vec<u8>,
}

impl EntryReader {
    fn next(&mut self, content: &[u8], at: &mut usize) -> Option<Stored> {
        let mut from = Decoder(content.get(*at..)?);
        let before = from.0.len();
        let shared: usize = from.small()?;
        if shared > self.key.len() {
            return None;
        }
        let rest = from.bytes()?;
        self.key.truncate(shared);
        self.key.extend_from_slice(rest);
        if self.key.len() < 2 {
            return None;
        }
        let stored = Stored::take(&mut from)?;
        *at += before - from.0.len();
        Some(stored)
    }
}

/// Goes through the entries of a run in order.
pub(crate) struct RunCursor {
    run: Arc<Run>,
    next_block: usize,
    raw: Vec<u8>,
    raw_at: u64,
    opening: std::ops::Range<usize>,
    content: Vec<u8>,
    open: Span,
    at: usize,
    reader: EntryReader,
    /// The entry that it is at; `None` behind the last one.
    current: Option<Stored>,
}

impl RunCursor {
    /// At the first entry whose key is `from` or greater.
    pub(crate) fn new(run: &Arc<Run>, from: &[u8]) -> Result<RunCursor, Failure> {
        let next_block = run.index()?.block_of(from);
        let mut cursor = RunCursor {
            run: run.clone(),
            next_block,
            raw: Vec::new(),
            raw_at: 0,
            opening: 0..0,
            content: Vec::new(),
            open: Span { offset: HEADER_BYTES as u64, len: 0 },
            at: 0,
            reader: EntryReader::default(),
            current: None,
        };
        cursor.advance()?;
        while cursor.current.is_some() && cursor.key() < from {
            cursor.advance()?;
        }
        Ok(cursor)
    }

    pub(crate) fn key(&self) -> &[u8] {
        &self.reader.key
    }

    pub(crate) fn current(&self) -> Option<&Stored> {
        self.current.as_ref()
    }

    pub(crate) fn advance(&mut self) -> Result<(), Failure> {
        while self.at >= self.content.len() {
            if !self.open_next()? {
                self.current = None;
                return Ok(());
            }
        }
        let next = self.reader.next(&self.content, &mut self.at);
        self.current = Some(next.ok_or_else(|| self.run.makes_no_sense(self.open))?);
        Ok(())
    }

    fn open_next(&mut self) -> Result<bool, Failure> {
        let spans = &self.run.index()?.spans;
        if self.opening.is_empty() {
            let Some(first) = spans.get(self.next_block) else { return Ok(false) };
            let (start, mut end) = (first.offset, first.offset.saturating_add(u64::from(first.len)));
            let mut behind = self.next_block + 1;
            while let Some(span) = spans.get(behind)
                && span.offset == end
                && end.saturating_add(u64::from(span.len)) - start <= READ_BYTES
            {
                end += u64::from(span.len);
                behind += 1;
            }
            self.raw = self.run.file.read_exact(start, (end - start) as usize)?;
            (self.raw_at, self.opening, self.next_block) = (start, self.next_block..behind, behind);
        }
        let span = spans[self.opening.next().expect("there is one left")];
        let from = (span.offset - self.raw_at) as usize;
        let raw = &self.raw[from..from + span.len as usize];
        self.content = block::open(raw, self.run.file.seed(), span.offset, self.run.file.path())?;
        (self.open, self.at) = (span, 0);
        self.reader.key.clear();
        Ok(true)
    }
}

/// Several runs as one: in order of key, of the versions of a key the newest first, of the same version that of the
/// newest run, once.
pub(crate) struct Merged {
    /// The newest run first.
    cursors: Vec<RunCursor>,
    /// The cursor that is at the next entry.
    least: Option<usize>,
}

impl Merged {
    /// `runs` are in order, the newest first.
    pub(crate) fn new<'r>(runs: impl Iterator<Item = &'r Arc<Run>>, from: &[u8]) -> Result<Merged, Failure> {
        let cursors = runs.map(|run| RunCursor::new(run, from)).collect::<Result<Vec<_>, Failure>>()?;
        let mut merged = Merged { cursors, least: None };
        merged.find_least();
        Ok(merged)
    }

    fn order(a: &RunCursor, b: &RunCursor) -> Ordering {
        match (a.current(), b.current()) {
            (Some(left), Some(right)) => a.key().cmp(b.key()).then_with(|| left.order(right)),
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (None, None) => Ordering::Equal,
        }
    }

    fn find_least(&mut self) {
        let mut least: Option<usize> = None;
        for at in 0..self.cursors.len() {
            if self.cursors[at].current().is_none() {
                continue;
            }
            let is_less =
                |least: usize| Merged::order(&self.cursors[at], &self.cursors[least]) == Ordering::Less;
            if least.is_none_or(is_less) {
                least = Some(at);
            }
        }
        self.least = least;
    }

    /// The entry that it is at, if it is not behind the last one.
    pub(crate) fn current(&self) -> Option<(&[u8], &Stored)> {
        let cursor = &self.cursors[self.least?];
        Some((cursor.key(), cursor.current()?))
    }

    pub(crate) fn advance(&mut self) -> Result<(), Failure> {
        let Some(least) = self.least else { return Ok(()) };
        // The same version in older runs is passed over.
        for at in 0..self.cursors.len() {
            if at != least && Merged::order(&self.cursors[at], &self.cursors[least]) == Ordering::Equal {
                self.cursors[at].advance()?;
            }
        }
        self.cursors[least].advance()?;
        self.find_least();
        Ok(())
    }
}
