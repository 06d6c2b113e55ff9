//! Reading many documents in order of seqno: their records first, then their bodies in few large reads, each shown
//! where it was read to.

use std::ops::{ControlFlow, Range};

use crate::chunk::{BLOCK, CHUNK_PREFIX, MAX_BODY_BYTES, is_in_one_block, span, strip_into};
use crate::failure::Failure;
use crate::node::NodeBuf;
use crate::record::{BY_SEQNO_FIXED, DocInfo};
use crate::snapshot::Snapshot;
use crate::tree::{Tree, be48};
use crate::window::Window;

/// Records that are looked at before their bodies are read.
const PLAN_RECORDS: usize = 4096;
/// Bytes of bodies that are planned together.
const PLAN_BYTES: u64 = 1 << 20;
/// What a record counts beside its body, id and revision metadata.
const RECORD_BYTES: u64 = 64;
/// Bodies that follow each other in the file are read in pieces of about so many bytes: these stay near the processor
/// while they are worked on.
const WINDOW_BYTES: u64 = 256 << 10;
/// Bodies that stand in another order than their records are read as one piece up to so many bytes.
const MOST_WINDOW_BYTES: u64 = 2 << 20;
/// Where so much more would be read than is wanted, bodies are read one by one.
const MOST_READ_TO_WANTED: u64 = 4;

/// What is wanted of a document.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Want {
    /// Nothing: it is passed over.
    Nothing,
    /// Its record.
    Record,
    /// Its record and its body.
    Body,
}

/// Buffers of one who reads many documents, to be used again for other files. They hold up to 2 MiB of a file, or one
/// larger body, and records of 4,096 documents.
#[derive(Default)]
pub struct Reading {
    plan: Plan,
    /// Nodes of the tree, read ahead.
    nodes: Window,
    spare: Vec<NodeBuf>,
    bodies: Bodies,
}

impl Reading {
    /// Bytes that its buffers take at the moment.
    pub fn allocated_bytes(&self) -> usize {
        let plan = self.plan.records.capacity() * size_of::<Planned>() + self.plan.names.capacity();
        let nodes: usize = self.spare.iter().map(NodeBuf::allocated_bytes).sum();
        let bodies = self.bodies.piece.capacity()
            + self.bodies.stripped.capacity()
            + 8 * self.bodies.blocks.capacity();
        plan + self.nodes.allocated_bytes() + nodes + bodies
    }
}

/// Records that were looked at, in order of seqno.
#[derive(Default)]
struct Plan {
    records: Vec<Planned>,
    /// Ids and revision metadata.
    names: Vec<u8>,
    /// What the records come to.
    bytes: u64,
    looked_at: usize,
    /// Of all bodies: where they begin and end, and how much of that they are.
    start: u64,
    end: u64,
    wanted: u64,
    /// Whether they follow each other in the file.
    is_in_order: bool,
}

struct Planned {
    seqno: u64,
    rev_seqno: u64,
    body_offset: u64,
    /// As the record says.
    body_bytes: u32,
    /// Where its id begins; its revision metadata follow.
    name: u32,
    id_bytes: u16,
    rev_meta_bytes: u32,
    content_meta: u8,
    deleted: bool,
    wants_body: bool,
}

impl Planned {
    fn has_body(&self) -> bool {
        self.wants_body && self.body_offset != 0
    }

    /// Bytes of its body's chunk: what no chunk can have is found out when it is looked at.
    fn content(&self) -> usize {
        (self.body_bytes as usize).clamp(CHUNK_PREFIX, CHUNK_PREFIX + MAX_BODY_BYTES)
    }

    /// Where its body ends.
    fn end(&self) -> u64 {
        self.body_offset + span(self.body_offset, self.content() as u64)
    }
}

impl Plan {
    fn clear(&mut self) {
        self.records.clear();
        self.names.clear();
        (self.bytes, self.looked_at, self.wanted) = (0, 0, 0);
        (self.start, self.end, self.is_in_order) = (u64::MAX, 0, true);
    }

    fn is_full(&self, max_bytes: u64) -> bool {
        self.bytes >= max_bytes.min(PLAN_BYTES) || self.looked_at >= PLAN_RECORDS
    }

    fn pass(&mut self, info: &DocInfo<'_>) {
        self.looked_at += 1;
        self.bytes += RECORD_BYTES + (info.id.len() + info.rev_meta.len()) as u64;
    }

    /// `names` are id and revision metadata as they stand in the record.
    fn add(&mut self, info: &DocInfo<'_>, names: &[u8], wants_body: bool) {
        let planned = Planned {
            seqno: info.seqno,
            rev_seqno: info.rev_seqno,
            body_offset: info.body_offset,
            body_bytes: info.body_bytes,
            name: self.names.len() as u32,
            // A record says so in 12 and 28 bits.
            id_bytes: info.id.len() as u16,
            rev_meta_bytes: info.rev_meta.len() as u32,
            content_meta: info.content_meta,
            deleted: info.deleted,
            wants_body,
        };
        self.names.extend_from_slice(names);
        self.pass(info);
        if planned.has_body() {
            self.bytes += u64::from(planned.body_bytes);
            self.wanted += u64::from(planned.body_bytes);
            self.is_in_order &= planned.body_offset >= self.end;
            self.start = self.start.min(planned.body_offset);
            self.end = self.end.max(planned.end());
        }
        self.records.push(planned);
    }

    fn info(&self, planned: &Planned) -> DocInfo<'_> {
        let (id, rest) = self.names[planned.name as usize..].split_at(planned.id_bytes.into());
        DocInfo {
            id,
            seqno: planned.seqno,
            rev_seqno: planned.rev_seqno,
            deleted: planned.deleted,
            content_meta: planned.content_meta,
            body_bytes: planned.body_bytes,
            body_offset: planned.body_offset,
            rev_meta: &rest[..planned.rev_meta_bytes as usize],
        }
    }

    /// The first of `from..` that belongs to another piece, and where the piece begins and ends in the file.
    fn piece(&self, from: usize) -> (usize, u64, u64) {
        let span = self.end.saturating_sub(self.start);
        let is_dense = span <= self.wanted.saturating_mul(MOST_READ_TO_WANTED);
        if is_dense && (span <= WINDOW_BYTES || (!self.is_in_order && span <= MOST_WINDOW_BYTES)) {
            return (self.records.len(), self.start, self.end);
        }
        let (mut start, mut end, mut wanted) = (u64::MAX, 0, 0);
        for (at, planned) in self.records.iter().enumerate().skip(from) {
            if !planned.has_body() {
                continue;
            }
            let (new_start, new_end) = (start.min(planned.body_offset), end.max(planned.end()));
            wanted += u64::from(planned.body_bytes);
            let bytes = new_end - new_start;
            let fits = bytes <= WINDOW_BYTES && bytes <= wanted * MOST_READ_TO_WANTED;
            if end > 0 && !fits {
                return (at, start, end);
            }
            (start, end) = (new_start, new_end);
        }
        (self.records.len(), start, end)
    }
}

/// A piece of the file with bodies.
#[derive(Default)]
struct Bodies {
    /// The piece, and behind it what is left of larger ones.
    piece: Vec<u8>,
    len: usize,
    start: u64,
    /// A body without the bytes at the starts of blocks, if it has some.
    stripped: Vec<u8>,
    /// Which blocks of the piece have something of a body, a bit for each.
    blocks: Vec<u64>,
}

impl Bodies {
    fn read(
        &mut self,
        snapshot: &Snapshot,
        planned: &[Planned],
        (start, end): (u64, u64),
    ) -> Result<(), Failure> {
        // Nothing is asked for behind what the snapshot vouches for, whatever a record says.
        let end = end.min(snapshot.header.offset);
        let bytes = end.saturating_sub(start) as usize;
        (self.start, self.len) = (start, 0);
        if bytes == 0 {
            return Ok(());
        }
        if self.piece.len() as u64 > MOST_WINDOW_BYTES && (bytes as u64) <= MOST_WINDOW_BYTES {
            // After an unusually large body.
            self.piece = Vec::new();
        }
        if self.piece.len() < bytes {
            self.piece.resize(bytes, 0);
        }
        self.note_blocks(planned, start, end);
        let (blocks, first) = (&self.blocks, start / BLOCK);
        let is_wanted = |range: Range<u64>| {
            let mut within = (range.start / BLOCK).max(first)..range.end.div_ceil(BLOCK);
            within.any(|block| {
                let at = (block - first) as usize;
                blocks.get(at / 64).is_some_and(|bits| bits & (1 << (at % 64)) != 0)
            })
        };
        self.len = snapshot.source.read_raw_parts(&mut self.piece[..bytes], start, &is_wanted)?;
        Ok(())
    }

    /// Notes in which blocks of `start..end` the bodies are.
    fn note_blocks(&mut self, planned: &[Planned], start: u64, end: u64) {
        let (first, last) = (start / BLOCK, end.div_ceil(BLOCK));
        self.blocks.clear();
        self.blocks.resize(((last - first) as usize).div_ceil(64), 0);
        for planned in planned.iter().filter(|planned| planned.has_body()) {
            for block in planned.body_offset / BLOCK..planned.end().min(end).div_ceil(BLOCK) {
                let at = (block - first) as usize;
                self.blocks[at / 64] |= 1 << (at % 64);
            }
        }
    }

    /// The stored body of a document, which is in the piece.
    fn body(&mut self, snapshot: &Snapshot, planned: &Planned) -> Result<&[u8], Failure> {
        let offset = planned.body_offset;
        let damaged = |what| snapshot.source.damaged(offset, what);
        if planned.end() > snapshot.header.offset {
            return Err(damaged("a chunk is longer than the file"));
        }
        let from = (offset - self.start) as usize;
        let raw = self.piece[..self.len].get(from..from + (planned.end() - offset) as usize);
        let raw = raw.ok_or_else(|| damaged("the file ends within a chunk"))?;
        let source = &snapshot.source;
        // What is decrypted is a copy: the piece may be asked for the same body again.
        let in_place = is_in_one_block(offset, planned.content()) && !source.encryption.is_on();
        if !in_place {
            self.stripped.clear();
            strip_into(raw, offset, &mut self.stripped);
        }
        let chunk = if in_place { raw } else { &self.stripped };
        let length = chunk.split_first_chunk::<4>().map(|(length, _)| u32::from_be_bytes(*length));
        let bytes = length.map(|length| source.chunk_bytes(offset, length)).transpose()?;
        if bytes != Some(chunk.len()) {
            return Err(damaged("a body has another length than its record says"));
        }
        if in_place { source.plain_body_of(offset, raw) } else { source.body_of(offset, &mut self.stripped) }
    }
}

impl Snapshot {
    /// Visits documents changed at `seqno` or later, in order of seqno, with their stored bodies (empty where there is
    /// none, or where `want` did not ask for it), until `visit` breaks or fails, or about `max_bytes` were visited.
    /// Returns the seqno from which on there may be more; nothing if there is none, or if `visit` broke off.
    ///
    /// Whatever is damaged among what is read together shows when it is its turn.
    pub fn read_since<E: From<Failure>>(
        &self,
        seqno: u64,
        max_bytes: usize,
        reading: &mut Reading,
        mut want: impl FnMut(&DocInfo<'_>) -> Want,
        mut visit: impl FnMut(&DocInfo<'_>, &[u8]) -> Result<ControlFlow<()>, E>,
    ) -> Result<Option<u64>, E> {
        // What is kept of nodes may be of another file.
        reading.nodes.clear();
        let mut left = max_bytes as u64;
        let mut next = Some(seqno);
        while let Some(from) = next
            && left > 0
        {
            next = self.plan(from, left, reading, &mut want)?;
            left = left.saturating_sub(reading.plan.bytes);
            if self.show(reading, &mut visit)?.is_break() {
                return Ok(None);
            }
        }
        Ok(next)
    }

    /// Looks at records; returns the seqno from which on there may be more.
    fn plan(
        &self,
        from: u64,
        max_bytes: u64,
        reading: &mut Reading,
        want: &mut dyn FnMut(&DocInfo<'_>) -> Want,
    ) -> Result<Option<u64>, Failure> {
        let Reading { plan, nodes, spare, .. } = reading;
        plan.clear();
        let (mut next, mut last) = (None, None);
        self.view(Tree::BySeqno).walk_ahead(&be48(from), spare, nodes, &mut |key, value| {
            let info = DocInfo::decode_by_seqno(key, value).ok_or_else(|| self.malformed())?;
            // Whoever goes on from a seqno that does not rise would never come to an end.
            if last.is_some_and(|last| info.seqno <= last) {
                return Err(self.malformed());
            }
            last = Some(info.seqno);
            if plan.is_full(max_bytes) {
                next = Some(info.seqno);
                return Ok(ControlFlow::Break(()));
            }
            match want(&info) {
                Want::Nothing => plan.pass(&info),
                wanted => plan.add(&info, &value[BY_SEQNO_FIXED..], wanted == Want::Body),
            }
            Ok(ControlFlow::Continue(()))
        })?;
        Ok(next)
    }

    fn show<E: From<Failure>>(
        &self,
        reading: &mut Reading,
        visit: &mut impl FnMut(&DocInfo<'_>, &[u8]) -> Result<ControlFlow<()>, E>,
    ) -> Result<ControlFlow<()>, E> {
        let Reading { plan, bodies, .. } = reading;
        let mut from = 0;
        while from < plan.records.len() {
            let (to, start, end) = plan.piece(from);
            bodies.read(self, &plan.records[from..to], (start, end))?;
            for planned in &plan.records[from..to] {
                let body = if planned.has_body() { bodies.body(self, planned)? } else { &[] };
                if visit(&plan.info(planned), body)?.is_break() {
                    return Ok(ControlFlow::Break(()));
                }
            }
            from = to;
        }
        Ok(ControlFlow::Continue(()))
    }
}

#[cfg(test)]
mod tests;
