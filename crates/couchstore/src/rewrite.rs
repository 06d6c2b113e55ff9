//! Merging sorted edits into a copy-on-write tree: only touched nodes are read and written again, each once.
//!
//! The tree is walked from left to right.
//! Each depth has one node under construction; a full one is written and leaves its pointer in the node above.
//! Subtrees without edits are passed on as pointers, unless what stands before them is too small to be a node of its
//! own, in which case the neighbour is opened and joined with it.

use crate::chunk::Source;
use crate::failure::Failure;
use crate::file::Tuning;
use crate::node::{Entries, Entry, MAX_DEPTH, NodeBuf, NodeKind, Pointer, ROOT_POINTER, entry_prefix};
use crate::scratch::{NodeScratch, Packing};
use crate::tree::{Reduce, Tree, be48};
use crate::writer::Writer;

/// Sorted edits of one tree, each key once.
pub(crate) trait Edits {
    fn len(&self) -> usize;

    fn key(&self, i: usize) -> &[u8];

    /// Called once for each edit, in order, with the record that stands there now. Writes the new record to `out`;
    /// writing nothing and returning false removes the record.
    fn apply(&mut self, i: usize, old: Option<&[u8]>, out: &mut Vec<u8>) -> Result<bool, &'static str>;
}

/// Node under construction at one depth.
pub(crate) struct Level {
    kind: NodeKind,
    /// One byte for the node's kind, then entries.
    buf: Vec<u8>,
    /// Where each entry ends in `buf`.
    ends: Vec<u32>,
}

impl Level {
    fn new() -> Level {
        Level { kind: NodeKind::Interior, buf: vec![0], ends: Vec::new() }
    }

    fn clear(&mut self) {
        self.kind = NodeKind::Interior;
        self.buf.truncate(1);
        self.ends.clear();
    }

    fn bytes(&self) -> usize {
        self.buf.len() - 1
    }

    fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    fn push_raw(&mut self, entry: &[u8]) {
        self.buf.extend_from_slice(entry);
        self.ends.push(self.buf.len() as u32);
    }

    fn push_pointer(&mut self, tree: Tree, key: &[u8], pointer: Pointer) {
        self.kind = NodeKind::Interior;
        let reduce_len = tree.reduce_len();
        self.buf.extend_from_slice(&entry_prefix(key.len(), ROOT_POINTER + 2 + reduce_len));
        self.buf.extend_from_slice(key);
        self.buf.extend_from_slice(&be48(pointer.offset));
        self.buf.extend_from_slice(&be48(pointer.subtree_bytes));
        self.buf.extend_from_slice(&(reduce_len as u16).to_be_bytes());
        tree.encode_reduce(pointer.reduce, &mut self.buf);
        self.ends.push(self.buf.len() as u32);
    }

    /// Forgets the first `entries`, which end at `end`.
    fn consume(&mut self, entries: usize, end: usize) {
        self.buf.drain(1..end);
        self.ends.drain(..entries);
        for e in &mut self.ends {
            *e -= end as u32 - 1;
        }
    }
}

/// One rewrite of one tree.
pub(crate) struct Rewrite<'a, E> {
    source: &'a Source,
    writer: &'a mut Writer,
    edits: &'a mut E,
    tree: Tree,
    tuning: Tuning,
    /// Nodes of the old tree end before this.
    limit: u64,
    /// Bytes of nodes that may still be read.
    budget: u64,
    /// `levels[0]` collects pointers to nodes at the root's depth, which are in `levels[1]` before, and so on.
    levels: &'a mut Vec<Level>,
    buffers: &'a mut Vec<NodeBuf>,
    packing: &'a mut Packing,
}

impl<'a, E: Edits> Rewrite<'a, E> {
    pub(crate) fn new(
        source: &'a Source,
        writer: &'a mut Writer,
        edits: &'a mut E,
        tree: Tree,
        tuning: Tuning,
        scratch: &'a mut NodeScratch,
    ) -> Self {
        let limit = writer.written_end();
        let NodeScratch { levels, buffers, packing } = scratch;
        levels.truncate(2);
        levels.iter_mut().for_each(Level::clear);
        levels.resize_with(2, Level::new);
        Rewrite { source, writer, edits, tree, tuning, limit, budget: limit, levels, buffers, packing }
    }

    /// Applies all edits to the tree under `root` and returns the new root.
    pub(crate) fn run(mut self, root: Option<Pointer>) -> Result<Option<Pointer>, Failure> {
        let n = self.edits.len();
        match root {
            Some(root) => self.descend(1, root, 0, n)?,
            None => self.merge_leaf(1, Entries::of(&[]), 0, n, 0)?,
        }
        self.finish()
    }

    /// Rewrites the node at `pointer` and what is below it with the edits `from..to`.
    /// Depth is bounded, so is the stack.
    fn descend(&mut self, depth: usize, pointer: Pointer, from: usize, to: usize) -> Result<(), Failure> {
        if depth > MAX_DEPTH {
            return Err(self.source.damaged(pointer.offset, "a tree is too deep"));
        }
        if self.levels.len() == depth {
            self.levels.push(Level::new());
        }
        let mut node = self.buffers.pop().unwrap_or_default();
        node.read(self.source, pointer, self.limit)?;
        node.spend(self.source, &mut self.budget)?;
        match node.kind() {
            NodeKind::Leaf => self.merge_leaf(depth, node.entries(), from, to, pointer.offset)?,
            NodeKind::Interior => self.merge_interior(depth, &node, from, to)?,
        }
        self.buffers.push(node);
        Ok(())
    }

    fn merge_interior(
        &mut self,
        depth: usize,
        node: &NodeBuf,
        from: usize,
        to: usize,
    ) -> Result<(), Failure> {
        let mut next = from;
        let mut entries = node.entries();
        while let Some(entry) = entries.next().map_err(|_| node.damaged(self.source))? {
            let child = node.child(self.source, self.tree, entry.value)?;
            // what is beyond the last key belongs to the last child
            let end = if entries.remaining() == 0 { to } else { self.edits_upto(entry.key, next, to) };
            if end > next || self.is_runt(depth + 1) {
                self.descend(depth + 1, child, next, end)?;
            } else {
                self.prepare(depth, NodeKind::Interior)?;
                self.levels[depth].push_raw(entry.raw);
                self.emit_if_full(depth)?;
            }
            next = end;
        }
        if next < to {
            return Err(node.damaged(self.source));
        }
        Ok(())
    }

    /// Whether the node under construction at `depth` is too small to stand alone.
    fn is_runt(&self, depth: usize) -> bool {
        self.levels
            .get(depth)
            .is_some_and(|l| !l.is_empty() && l.bytes() < self.tuning.node_bytes(l.kind) / 4)
    }

    /// The first edit in `from..to` whose key lies behind `key`; searched in growing steps, as it tends to be near.
    fn edits_upto(&self, key: &[u8], from: usize, to: usize) -> usize {
        let (mut low, mut step) = (from, 1);
        while low + step <= to && self.edits.key(low + step - 1) <= key {
            low += step;
            step *= 2;
        }
        let mut high = (low + step - 1).min(to);
        while low < high {
            let mid = low + (high - low) / 2;
            if self.edits.key(mid) <= key { low = mid + 1 } else { high = mid }
        }
        low
    }

    fn merge_leaf(
        &mut self,
        depth: usize,
        mut old: Entries<'_>,
        from: usize,
        to: usize,
        offset: u64,
    ) -> Result<(), Failure> {
        self.prepare(depth, NodeKind::Leaf)?;
        let mut next = from;
        while let Some(entry) = old.next().map_err(|_| self.source.damaged(offset, "a leaf is malformed"))? {
            let mut replaced = false;
            while next < to && !replaced {
                match self.edits.key(next).cmp(entry.key) {
                    std::cmp::Ordering::Greater => break,
                    order => {
                        replaced = order.is_eq();
                        self.put(depth, next, replaced.then_some(entry), offset)?;
                        next += 1;
                    }
                }
            }
            if !replaced {
                self.levels[depth].push_raw(entry.raw);
                self.emit_if_full(depth)?;
            }
        }
        for i in next..to {
            self.put(depth, i, None, offset)?;
        }
        Ok(())
    }

    /// Puts edit `i` at the end of the leaf under construction.
    fn put(&mut self, depth: usize, i: usize, old: Option<Entry<'_>>, offset: u64) -> Result<(), Failure> {
        let level = &mut self.levels[depth];
        let start = level.buf.len();
        level.buf.extend_from_slice(&[0; crate::node::ENTRY_PREFIX]);
        let key_len = {
            let key = self.edits.key(i);
            level.buf.extend_from_slice(key);
            key.len()
        };
        let value = level.buf.len();
        let kept = self
            .edits
            .apply(i, old.map(|entry| entry.value), &mut level.buf)
            .map_err(|what| self.source.damaged(offset, what))?;
        if !kept {
            level.buf.truncate(start);
            return Ok(());
        }
        let sizes = entry_prefix(key_len, level.buf.len() - value);
        level.buf[start..start + sizes.len()].copy_from_slice(&sizes);
        level.ends.push(level.buf.len() as u32);
        self.emit_if_full(depth)
    }

    /// Makes `depth` ready for an entry of a node of `kind`: what is under construction below comes before it.
    fn prepare(&mut self, depth: usize, kind: NodeKind) -> Result<(), Failure> {
        for deeper in (depth + 1..self.levels.len()).rev() {
            self.emit_all(deeper)?;
        }
        if self.levels[depth].kind != kind {
            self.emit_all(depth)?;
            self.levels[depth].kind = kind;
        }
        Ok(())
    }

    /// Writes one node once two are under construction: so the last two can share evenly.
    fn emit_if_full(&mut self, depth: usize) -> Result<(), Failure> {
        let level = &self.levels[depth];
        let full = self.tuning.node_bytes(level.kind);
        if level.bytes() >= 2 * full { self.emit(depth, full) } else { Ok(()) }
    }

    /// Writes everything under construction at `depth`, in nodes of about the same size.
    fn emit_all(&mut self, depth: usize) -> Result<(), Failure> {
        while !self.levels[depth].is_empty() {
            let level = &self.levels[depth];
            let parts = level.bytes().div_ceil(self.tuning.node_bytes(level.kind));
            self.emit(depth, level.bytes().div_ceil(parts))?;
        }
        Ok(())
    }

    /// Writes the first entries at `depth`, `bytes` of them or a little more, as a node.
    fn emit(&mut self, depth: usize, bytes: usize) -> Result<(), Failure> {
        let (above, below) = self.levels.split_at_mut(depth);
        let (above, level) = (&mut above[depth - 1], &mut below[0]);
        let mut entries = level.ends.partition_point(|&end| (end as usize) <= bytes) + 1;
        if level.kind == NodeKind::Interior {
            // a node with one child would make no progress towards a single root
            entries = entries.max(2);
        }
        let entries = entries.min(level.ends.len());
        let end = level.ends[entries - 1] as usize;
        level.buf[0] = level.kind as u8;
        let node = &level.buf[..end];
        let last = if entries == 1 { 1 } else { level.ends[entries - 2] as usize };
        let last_key = Entries::of(&node[last..]).next().ok().flatten().expect("just built").key;
        let (reduce, below_bytes) = summary(self.tree, level.kind, &node[1..])
            .ok_or_else(|| self.source.damaged(self.limit, "a record is malformed"))?;
        let placed = write_node(self.writer, node, self.tuning.compress_nodes, self.packing)?;
        let subtree_bytes = u64::from(placed.bytes) + below_bytes;
        let pointer = Pointer { offset: placed.offset, subtree_bytes, reduce };
        above.push_pointer(self.tree, last_key, pointer);
        level.consume(entries, end);
        if depth > 1 { self.emit_if_full(depth - 1) } else { Ok(()) }
    }

    fn finish(mut self) -> Result<Option<Pointer>, Failure> {
        for deeper in (2..self.levels.len()).rev() {
            self.emit_all(deeper)?;
        }
        self.levels.truncate(2);
        // a root with a single child is not needed: the child becomes the root
        let lone = &self.levels[1];
        let roots = if self.levels[0].is_empty() && lone.kind == NodeKind::Interior && lone.ends.len() == 1 {
            1
        } else {
            self.emit_all(1)?;
            while self.levels[0].ends.len() > 1 {
                self.levels.swap(0, 1);
                self.emit_all(1)?;
            }
            0
        };
        let mut entries = Entries::of(&self.levels[roots].buf[1..]);
        let root = entries.next().ok().flatten();
        Ok(root
            .map(|entry| Pointer::decode(self.tree, entry.value).expect("built above or read and checked")))
    }
}

/// Reduce value of a node and, for an interior one, bytes of the subtrees below.
fn summary(tree: Tree, kind: NodeKind, entries: &[u8]) -> Option<(Reduce, u64)> {
    let mut reduce = Reduce::default();
    let mut below = 0;
    let mut entries = Entries::of(entries);
    while let Some(entry) = entries.next().ok()? {
        match kind {
            NodeKind::Leaf => reduce.add(tree.reduce_of_record(entry.value)?),
            NodeKind::Interior => {
                let child = Pointer::decode(tree, entry.value)?;
                reduce.add(child.reduce);
                below += child.subtree_bytes;
            }
        }
    }
    Some((reduce, below))
}

fn write_node(
    writer: &mut Writer,
    node: &[u8],
    compress: bool,
    packing: &mut Packing,
) -> Result<crate::writer::Placed, Failure> {
    if compress {
        return writer.append_chunk(packing.pack(node), &[]);
    }
    let (head, len) = literal_block(node.len());
    writer.append_chunk(&head[..len], node)
}

/// What stands in front of `len` bytes to make them a Snappy block of one literal: valid for every reader, and as
/// cheap as a copy.
fn literal_block(len: usize) -> ([u8; 10], usize) {
    let len = u32::try_from(len).expect("nodes are far smaller");
    let (varint, used) = base::doc_key::encode_leb128(len);
    let mut out = [0; 10];
    out[..used].copy_from_slice(&varint[..used]);
    let last = len - 1;
    let extra = match last {
        0..60 => {
            out[used] = (last as u8) << 2;
            return (out, used + 1);
        }
        60..0x100 => 1,
        0x100..0x1_0000 => 2,
        0x1_0000..0x100_0000 => 3,
        _ => 4,
    };
    out[used] = (59 + extra as u8) << 2;
    out[used + 1..used + 1 + extra].copy_from_slice(&last.to_le_bytes()[..extra]);
    (out, used + 1 + extra)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literal_blocks_are_valid_snappy() {
        for len in [1, 59, 60, 61, 255, 256, 257, 65_535, 65_536, 65_537, 1 << 24, (1 << 24) + 1] {
            let node = vec![7; len];
            let (head, n) = literal_block(len);
            let block = [&head[..n], &node].concat();
            assert_eq!(snap::raw::Decoder::new().decompress_vec(&block).ok(), Some(node), "length {len}");
        }
    }
}
