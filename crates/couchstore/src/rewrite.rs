//! Merging sorted edits into a copy-on-write tree: only touched nodes are read and written again, each once.
//!
//! The tree is walked from left to right.
//! Each depth has one node under construction; a full one is written and leaves its pointer in the node above.
//! Subtrees without edits are passed on as pointers, unless what stands before them is too small to be a node of its
//! own, in which case the neighbour is opened and joined with it.

use std::cmp::Ordering;

use crate::append_node::append_node;
use crate::chunk::Source;
use crate::failure::Failure;
use crate::file::Tuning;
use crate::level::Level;
use crate::node::{Entries, Entry, MAX_DEPTH, NodeBuf, NodeKind, Pointer};
use crate::scratch::{NodeScratch, Packing};
use crate::tree::Tree;
use crate::window::Window;
use crate::writer::Writer;

/// Children for which a full interior node has room at least, however long their keys are.
const FEWEST_CHILDREN: usize = 6;

/// Sorted edits of one tree, each key once.
pub(crate) trait Edits {
    fn len(&self) -> usize;

    /// How the key of edit `i` compares with another one.
    fn compare(&self, i: usize, key: &[u8]) -> Ordering;

    /// Called once for each edit, in order, with the record that stands there now. Appends the new record to `out` as
    /// an entry of a leaf and returns its weight ([`Tree::weight_of_record`]); nothing removes the record.
    fn apply(&mut self, i: usize, old: Option<&[u8]>, out: &mut Vec<u8>)
    -> Result<Option<u32>, &'static str>;

    /// Whether nothing is left of a subtree with `records` records once the edits `from..to`, which are all that
    /// concern it, are applied. Such a subtree is not even read.
    fn removes_all(&self, from: usize, to: usize, records: u64) -> bool {
        let _ = (from, to, records);
        false
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
    /// What was read of the nodes at each depth.
    windows: &'a mut Vec<Window>,
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
        let NodeScratch { levels, buffers, windows, packing } = scratch;
        levels.truncate(2);
        levels.iter_mut().for_each(Level::clear);
        levels.resize_with(2, Level::new);
        windows.iter_mut().for_each(Window::clear);
        Rewrite {
            source,
            writer,
            edits,
            tree,
            tuning,
            limit,
            budget: limit,
            levels,
            buffers,
            windows,
            packing,
        }
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
        if self.windows.len() < depth {
            self.windows.resize_with(depth, Window::default);
        }
        let mut node = self.buffers.pop().unwrap_or_default();
        node.read_ahead(self.source, pointer, self.limit, &mut self.windows[depth - 1])?;
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
            if end > next && self.edits.removes_all(next, end, child.reduce.live) {
                // nothing of it stays
            } else if end > next || self.is_runt(depth + 1) {
                self.descend(depth + 1, child, next, end)?;
            } else {
                self.prepare(depth, NodeKind::Interior)?;
                self.levels[depth].push_raw(entry.raw, 0);
                self.emit_if_full(depth)?;
            }
            next = end;
        }
        if next < to {
            return Err(node.damaged(self.source));
        }
        Ok(())
    }

    /// Bytes of a full node of a level. One with long keys is larger, so that it has some children: with two in each,
    /// what is rewritten again and again leaves ever longer chains of nodes with one child.
    fn full_bytes(&self, level: &Level) -> usize {
        let bytes = self.tuning.node_bytes(level.kind);
        match (level.kind, level.entries()) {
            (NodeKind::Interior, entries @ 1..) => bytes.max(FEWEST_CHILDREN * level.bytes() / entries),
            _ => bytes,
        }
    }

    /// Whether the node under construction at `depth` is too small to stand alone.
    fn is_runt(&self, depth: usize) -> bool {
        self.levels.get(depth).is_some_and(|l| !l.is_empty() && l.bytes() < self.full_bytes(l) / 4)
    }

    /// The first edit in `from..to` whose key lies behind `key`; searched in growing steps, as it tends to be near.
    fn edits_upto(&self, key: &[u8], from: usize, to: usize) -> usize {
        let (mut low, mut step) = (from, 1);
        while low + step <= to && self.edits.compare(low + step - 1, key).is_le() {
            low += step;
            step *= 2;
        }
        let mut high = (low + step - 1).min(to);
        while low < high {
            let mid = low + (high - low) / 2;
            if self.edits.compare(mid, key).is_le() { low = mid + 1 } else { high = mid }
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
        let source = self.source;
        let mut take = || old.next().map_err(|_| source.damaged(offset, "a leaf is malformed"));
        let mut next = from;
        let mut current = take()?;
        while let Some(entry) = current {
            let order = if next < to { self.edits.compare(next, entry.key) } else { Ordering::Greater };
            if order.is_gt() {
                self.keep(depth, entry, offset)?;
            } else {
                self.put(depth, next, order.is_eq().then_some(entry), offset)?;
                next += 1;
            }
            if order.is_ge() {
                current = take()?;
            }
        }
        for i in next..to {
            self.put(depth, i, None, offset)?;
        }
        Ok(())
    }

    /// Puts an old record at the end of the leaf under construction.
    fn keep(&mut self, depth: usize, entry: Entry<'_>, offset: u64) -> Result<(), Failure> {
        let weight = self.tree.weight_of_record(entry.value);
        let weight = weight.ok_or_else(|| self.source.damaged(offset, "a record is malformed"))?;
        self.levels[depth].push_raw(entry.raw, weight);
        self.emit_if_full(depth)
    }

    /// Puts edit `i` at the end of the leaf under construction.
    fn put(&mut self, depth: usize, i: usize, old: Option<Entry<'_>>, offset: u64) -> Result<(), Failure> {
        let level = &mut self.levels[depth];
        let kept = self
            .edits
            .apply(i, old.map(|entry| entry.value), level.buf())
            .map_err(|what| self.source.damaged(offset, what))?;
        match kept {
            Some(weight) => level.pushed(weight),
            None => return Ok(()),
        }
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
        let full = self.full_bytes(level);
        if level.bytes() >= 2 * full { self.emit(depth, full) } else { Ok(()) }
    }

    /// Writes everything under construction at `depth`, in nodes of about the same size.
    fn emit_all(&mut self, depth: usize) -> Result<(), Failure> {
        while !self.levels[depth].is_empty() {
            let level = &self.levels[depth];
            let parts = level.bytes().div_ceil(self.full_bytes(level));
            self.emit(depth, level.bytes().div_ceil(parts))?;
        }
        Ok(())
    }

    /// Writes the first entries at `depth`, `bytes` of them or a little more, as a node.
    fn emit(&mut self, depth: usize, bytes: usize) -> Result<(), Failure> {
        let (above, below) = self.levels.split_at_mut(depth);
        let (above, level) = (&mut above[depth - 1], &mut below[0]);
        let entries = level.entries_of(bytes);
        let cut = level
            .cut(self.tree, entries)
            .ok_or_else(|| self.source.damaged(self.limit, "a record is malformed"))?;
        let placed = append_node(self.writer, cut.node, self.tuning.compress_nodes, self.packing)?;
        let subtree_bytes = u64::from(placed.bytes) + cut.below_bytes;
        let pointer = Pointer { offset: placed.offset, subtree_bytes, reduce: cut.reduce };
        above.push_pointer(self.tree, cut.last_key, pointer);
        level.spend(entries);
        if depth > 1 { self.emit_if_full(depth - 1) } else { Ok(()) }
    }

    fn finish(mut self) -> Result<Option<Pointer>, Failure> {
        for deeper in (2..self.levels.len()).rev() {
            self.emit_all(deeper)?;
        }
        self.levels.truncate(2);
        // a root with a single child is not needed: the child becomes the root
        let lone = &self.levels[1];
        let roots = if self.levels[0].is_empty() && lone.kind == NodeKind::Interior && lone.entries() == 1 {
            1
        } else {
            self.emit_all(1)?;
            while self.levels[0].entries() > 1 {
                self.levels.swap(0, 1);
                self.emit_all(1)?;
            }
            0
        };
        let root = self.levels[roots].first_entry();
        Ok(root
            .map(|entry| Pointer::decode(self.tree, entry.value).expect("built above or read and checked")))
    }
}
