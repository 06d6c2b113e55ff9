//! The items of a vBucket in seqno order, for a bucket that has no disk to read its past from.
//!
//! A slot of eight bytes an item, in chunks: appending writes the last one, a seqno says in which chunk and nearly at
//! which place its item is. Chunks that become sparse shrink and join their neighbours, so memory follows the number of
//! items however many changes there were.
//!
//! A range read delivers the items as they were when it was opened, while changes go on: an item that is replaced
//! or purged stays in its slot as a *stale copy* while a read still has to come by.
//! A stale copy knows the tick of the clock at which it became one, a read the tick at which it was opened: reads see
//! the copies that are younger than they are.
//! Whoever ends a read frees nothing; stale copies are swept later, some at a time.

mod chunk;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use base::{Account, Seqno, Version};

use crate::charge::Charge;
use chunk::{Chunk, SPAN};

/// Most range reads of one vBucket at the same time.
pub const MAX_READS: usize = 256;
/// Chunks that one call walks over at most.
const MOST_CHUNKS: usize = 1024;
/// About what a map takes for one entry beyond its content, with nodes filled as they are on average.
const ENTRY_BYTES: usize = 16;
const CHUNK_BYTES: usize = size_of::<Chunk>() + size_of::<u64>() + ENTRY_BYTES;
const STALE_BYTES: usize = 2 * size_of::<u64>() + ENTRY_BYTES;

/// Names a range read of one list; never used again after it is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ReadId(u64);

/// A range read that is open.
struct Read {
    id: ReadId,
    /// The tick at which it was opened.
    opened: u64,
    /// Everything before was delivered.
    next: u64,
    /// The last seqno of its range.
    to: u64,
}

impl Read {
    fn needs(&self, seqno: u64, stale_since: u64) -> bool {
        (self.next..=self.to).contains(&seqno) && self.sees(stale_since)
    }

    fn sees(&self, stale_since: u64) -> bool {
        self.opened <= stale_since
    }
}

/// How much of a list is walked over at once.
#[derive(Clone, Copy, Debug)]
pub struct SliceLimits {
    /// Items looked at.
    pub items: usize,
    /// Bytes of the items delivered; one is delivered however large it is.
    pub bytes: usize,
}

/// What a list holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SeqListCounts {
    /// Items, tombstones included.
    pub items: u64,
    /// Stale copies.
    pub stale_items: u64,
    /// Bytes of the stale copies.
    pub stale_bytes: u64,
    /// Bytes allocated for the list, without the versions.
    pub bytes: u64,
    /// Range reads that are open.
    pub reads: u64,
    /// Where the read begins that is furthest behind; nothing if there is none.
    pub oldest_read: Option<Seqno>,
}

/// The items of one vBucket in seqno order.
pub struct SeqList {
    /// By first seqno.
    chunks: BTreeMap<u64, Chunk>,
    last: Chunk,
    high: Seqno,
    /// Ticks with each read that is opened.
    clock: u64,
    reads: Vec<Read>,
    next_read: u64,
    /// The tick at which each stale copy became one, by seqno.
    stale: BTreeMap<u64, u64>,
    /// Whether nobody ended a read or went on since the last sweep began.
    is_swept: bool,
    items: u64,
    stale_bytes: u64,
    charge: Charge,
}

impl SeqList {
    /// An empty list of a vBucket whose last change was `high`; allocates nothing.
    pub fn new(high: Seqno, account: &Account) -> SeqList {
        SeqList {
            chunks: BTreeMap::new(),
            last: Chunk::new(high.next(), 0),
            high,
            clock: 0,
            reads: Vec::new(),
            next_read: 0,
            stale: BTreeMap::new(),
            is_swept: true,
            items: 0,
            stale_bytes: 0,
            charge: Charge::new(account.clone()),
        }
    }

    /// What it holds.
    pub fn counts(&self) -> SeqListCounts {
        SeqListCounts {
            items: self.items,
            stale_items: self.stale.len() as u64,
            stale_bytes: self.stale_bytes,
            bytes: self.charge.bytes() as u64,
            reads: self.reads.len() as u64,
            oldest_read: self.reads.iter().map(|read| Seqno(read.next)).min(),
        }
    }

    /// The highest seqno that was appended.
    pub fn high_seqno(&self) -> Seqno {
        self.high
    }

    /// Appends a change. Its seqno must be higher than all before; there may be gaps.
    pub fn append(&mut self, version: Version) {
        let seqno = version.meta().by_seqno;
        assert!(seqno > self.high, "items come in seqno order");
        if !self.last.spans(seqno) {
            self.close_last(seqno);
        }
        self.high = seqno;
        self.items += 1;
        let before = self.last.bytes();
        self.last.push(version);
        self.charge.change(before, self.last.bytes());
    }

    fn close_last(&mut self, next: Seqno) {
        let slots = if self.items < SPAN as u64 { 0 } else { SPAN };
        let last = std::mem::replace(&mut self.last, Chunk::new(next, slots));
        self.charge.change(0, self.last.bytes() + CHUNK_BYTES);
        let first = last.first();
        self.chunks.insert(first, last);
        self.tidy(first);
    }

    /// The item of this seqno was replaced: its slot becomes empty, and what was there is returned to be dropped outside
    /// the lock; or it stays as a stale copy, if a read still has to come by.
    pub fn replaced(&mut self, seqno: Seqno) -> Option<Version> {
        let now = self.clock;
        if self.reads.iter().any(|read| read.needs(seqno.0, now)) {
            self.retire(seqno);
            return None;
        }
        self.items -= 1;
        Some(self.take(seqno))
    }

    /// The item of this seqno is none any more; it stays as a stale copy until it is swept.
    pub fn retire(&mut self, seqno: Seqno) {
        let clock = self.clock;
        let version = self.chunk_mut(seqno).and_then(|chunk| chunk.get_mut(seqno));
        let bytes = version.expect("every item of the vBucket is in the list").allocated_bytes();
        let first = self.stale.insert(seqno.0, clock).is_none();
        assert!(first, "an item becomes stale once");
        self.items -= 1;
        self.stale_bytes += bytes as u64;
        self.is_swept = false;
        self.charge.change(0, STALE_BYTES);
    }

    /// Puts another copy of the same item in its place; what was there is to be dropped outside the lock.
    pub fn swap(&mut self, mut version: Version) -> Version {
        let seqno = version.meta().by_seqno;
        let slot = self.chunk_mut(seqno).and_then(|chunk| chunk.get_mut(seqno));
        let slot = slot.expect("every item of the vBucket is in the list");
        assert_eq!(slot.stored_key(), version.stored_key(), "a copy is of the same item");
        std::mem::swap(slot, &mut version);
        version
    }

    fn chunk_mut(&mut self, seqno: Seqno) -> Option<&mut Chunk> {
        if seqno.0 >= self.last.first() {
            return Some(&mut self.last);
        }
        self.chunks.range_mut(..=seqno.0).next_back().map(|(_, chunk)| chunk)
    }

    fn take(&mut self, seqno: Seqno) -> Version {
        let chunk = self.chunk_mut(seqno).expect("every item of the vBucket is in the list");
        let version = chunk.take(seqno).expect("every item of the vBucket is in the list");
        let (first, needs_care) = (chunk.first(), chunk.held() == 0 || chunk.is_loose());
        if needs_care && first != self.last.first() {
            self.tidy(first);
        }
        version
    }

    /// Shrinks a chunk that is half empty, and joins it to its neighbours if they fit together. Bounded by the size of
    /// three chunks, and paid for by the slots that were emptied.
    fn tidy(&mut self, first: u64) {
        let chunk = self.chunks.get_mut(&first).expect("a chunk that is there is tidied");
        let before = chunk.bytes();
        if chunk.held() == 0 {
            self.chunks.remove(&first);
            self.charge.change(before + CHUNK_BYTES, 0);
            return;
        }
        if chunk.is_loose() {
            chunk.tighten();
            let after = chunk.bytes();
            self.charge.change(before, after);
        }
        self.join_next(first);
        if let Some((before, _)) = self.chunks.range(..first).next_back() {
            self.join_next(*before);
        }
    }

    fn join_next(&mut self, first: u64) {
        let mut from = self.chunks.range(first..);
        let (Some((_, chunk)), Some((next, after))) = (from.next(), from.next()) else { return };
        if !chunk.can_absorb(after) {
            return;
        }
        let next = *next;
        let after = self.chunks.remove(&next).expect("it was found just now");
        let chunk = self.chunks.get_mut(&first).expect("it was found just now");
        let before = chunk.bytes() + after.bytes() + CHUNK_BYTES;
        chunk.absorb(after);
        let bytes = chunk.bytes();
        self.charge.change(before, bytes);
    }

    /// Opens a read of everything from `from` on that is there now; nothing if too many are open.
    pub fn open_range(&mut self, from: Seqno) -> Option<ReadId> {
        if self.reads.len() >= MAX_READS {
            return None;
        }
        let id = ReadId(self.next_read);
        self.next_read += 1;
        self.clock += 1;
        let before = self.reads.capacity();
        self.reads.push(Read { id, opened: self.clock, next: from.0, to: self.high.0 });
        self.charge.change(before * size_of::<Read>(), self.reads.capacity() * size_of::<Read>());
        Some(id)
    }

    /// Delivers what comes next in a read, within the limits. Whether there is more; nothing if no such read is open.
    pub fn read(&mut self, id: ReadId, limits: SliceLimits, out: &mut Vec<Version>) -> Option<bool> {
        let at = self.reads.iter().position(|read| read.id == id)?;
        let Read { opened, next, to, .. } = self.reads[at];
        let reached = self.deliver(opened, next, to, limits, out);
        self.reads[at].next = reached;
        self.is_swept &= self.stale.is_empty();
        Some(reached <= to)
    }

    /// Walks from `next`; returns where to go on.
    fn deliver(&self, opened: u64, next: u64, to: u64, limits: SliceLimits, out: &mut Vec<Version>) -> u64 {
        if next > to {
            return next;
        }
        let mut stale = self.stale.range(next..=to).peekable();
        let mut bytes = 0;
        let chunks = self.chunks_from(next);
        let items = chunks.flat_map(|chunk| chunk.from(Seqno(next)));
        for (looked, version) in items.enumerate() {
            let seqno = version.meta().by_seqno.0;
            if seqno > to {
                return to + 1;
            }
            if looked >= limits.items || (bytes >= limits.bytes && bytes > 0) {
                return seqno;
            }
            while stale.next_if(|(there, _)| **there < seqno).is_some() {}
            let became_stale = stale.peek().filter(|(there, _)| **there == seqno).map(|(_, tick)| **tick);
            if became_stale.is_none_or(|tick| opened <= tick) {
                bytes += version.allocated_bytes();
                out.push(version.clone());
            }
        }
        to + 1
    }

    fn chunks_from(&self, seqno: u64) -> impl Iterator<Item = &Chunk> {
        let first = self.chunks.range(..=seqno).next_back().map_or(seqno, |(first, _)| *first);
        self.chunks.range(first..).map(|(_, chunk)| chunk).chain([&self.last])
    }

    /// Ends a read; fine if it is ended already. What it kept is swept later.
    pub fn close_range(&mut self, id: ReadId) {
        if let Some(at) = self.reads.iter().position(|read| read.id == id) {
            self.reads.swap_remove(at);
            self.is_swept = self.stale.is_empty();
        }
    }

    /// Whether there may be stale copies that nobody needs any more.
    pub fn needs_sweep(&self) -> bool {
        !self.is_swept
    }

    /// Looks at up to `most` stale copies from `from` on and takes out those that no read needs, to be dropped outside
    /// the lock. Returns where to go on.
    pub fn sweep(&mut self, from: Seqno, most: usize, out: &mut Vec<Version>) -> Option<Seqno> {
        if from == Seqno(0) {
            self.is_swept = true;
        }
        let mut looked = self.stale.range(from.0..);
        let unneeded: Vec<u64> = looked
            .by_ref()
            .take(most)
            .filter(|(seqno, tick)| !self.reads.iter().any(|read| read.needs(**seqno, **tick)))
            .map(|(seqno, _)| *seqno)
            .collect();
        let next = looked.next().map(|(seqno, _)| Seqno(*seqno));
        for seqno in unneeded {
            self.stale.remove(&seqno);
            self.charge.change(STALE_BYTES, 0);
            let version = self.take(Seqno(seqno));
            self.stale_bytes -= version.allocated_bytes() as u64;
            out.push(version);
        }
        next
    }

    /// Looks at some items from `from` on for tombstones that were deleted before a time and are not the last change.
    /// Returns where to go on.
    pub fn old_tombstones(
        &self,
        from: Seqno,
        before_s: u32,
        most: TombstoneLimits,
        out: &mut Vec<Version>,
    ) -> Option<Seqno> {
        let mut looked = 0;
        for (walked, chunk) in self.chunks_from(from.0).enumerate() {
            if walked >= MOST_CHUNKS {
                return Some(Seqno(chunk.first()));
            }
            if !chunk.has_tombstones() {
                continue;
            }
            for version in chunk.from(from) {
                let meta = version.meta();
                if looked >= most.looked || out.len() >= most.found {
                    return Some(meta.by_seqno);
                }
                looked += 1;
                let is_old = meta.kind.is_deleted() && meta.expiry < before_s && meta.by_seqno != self.high;
                if is_old && !self.stale.contains_key(&meta.by_seqno.0) {
                    out.push(version.clone());
                }
            }
        }
        None
    }
}

/// How far one search for tombstones goes.
#[derive(Clone, Copy, Debug)]
pub struct TombstoneLimits {
    /// Items looked at.
    pub looked: usize,
    /// Tombstones found.
    pub found: usize,
}
