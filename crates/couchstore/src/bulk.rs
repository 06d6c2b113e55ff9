//! Building a tree from records that come in order of their keys: each node is written once, from left to right.

use crate::append_node::append_node;
use crate::failure::Failure;
use crate::file::Tuning;
use crate::node::{NodeKind, Pointer, ROOT_POINTER, entry_prefix};
use crate::scratch::Packing;
use crate::tree::{Reduce, Tree, be48};
use crate::writer::Writer;

/// A tree under construction: one unfinished node at each height, leaves first.
pub(crate) struct Bulk {
    tree: Tree,
    tuning: Tuning,
    levels: Vec<Level>,
    packing: Packing,
}

/// Entries at one height that are not written yet.
#[derive(Default)]
struct Level {
    /// One byte for the node's kind, then entries.
    buf: Vec<u8>,
    entries: Vec<Entry>,
}

struct Entry {
    /// Where it ends in the buffer.
    end: usize,
    key_bytes: usize,
    value_bytes: usize,
    /// What the entry stands for.
    reduce: Reduce,
    subtree_bytes: u64,
}

impl Level {
    fn bytes(&self) -> usize {
        self.entries.last().map_or(0, |entry| entry.end - 1)
    }

    fn push(&mut self, key: &[u8], value: &[&[u8]], reduce: Reduce, subtree_bytes: u64) {
        if self.buf.is_empty() {
            self.buf.push(0);
        }
        let value_bytes = value.iter().map(|part| part.len()).sum();
        self.buf.extend_from_slice(&entry_prefix(key.len(), value_bytes));
        self.buf.extend_from_slice(key);
        value.iter().for_each(|part| self.buf.extend_from_slice(part));
        let end = self.buf.len();
        self.entries.push(Entry { end, key_bytes: key.len(), value_bytes, reduce, subtree_bytes });
    }

    fn key_of(&self, entry: &Entry) -> &[u8] {
        let value = entry.end - entry.value_bytes;
        &self.buf[value - entry.key_bytes..value]
    }

    /// Forgets the first entries, which end at `end`.
    fn consume(&mut self, entries: usize, end: usize) {
        self.buf.drain(1..end);
        self.entries.drain(..entries);
        self.entries.iter_mut().for_each(|entry| entry.end -= end - 1);
    }
}

fn kind(height: usize) -> NodeKind {
    if height == 0 { NodeKind::Leaf } else { NodeKind::Interior }
}

impl Bulk {
    pub(crate) fn new(tree: Tree, tuning: Tuning) -> Bulk {
        Bulk { tree, tuning, levels: Vec::new(), packing: Packing::default() }
    }

    /// Adds a record; its key is above all before.
    pub(crate) fn push(&mut self, writer: &mut Writer, key: &[u8], value: &[u8]) -> Result<(), Failure> {
        let reduce = self.tree.reduce_of_record(value).expect("callers encode whole records");
        self.level(0).push(key, &[value], reduce, 0);
        self.write_full(writer, 0)
    }

    /// Writes what is left and returns the root; nothing if there was no record.
    pub(crate) fn finish(mut self, writer: &mut Writer) -> Result<Option<Pointer>, Failure> {
        let mut height = 0;
        while height < self.levels.len() {
            self.write_all(writer, height)?;
            height += 1;
            if let ([top], true) = (&self.levels[height].entries[..], self.levels.len() == height + 1) {
                let offset = crate::tree::be(&self.levels[height].buf[top.end - top.value_bytes..][..6]);
                return Ok(Some(Pointer { offset, subtree_bytes: top.subtree_bytes, reduce: top.reduce }));
            }
        }
        Ok(None)
    }

    fn level(&mut self, height: usize) -> &mut Level {
        if self.levels.len() == height {
            self.levels.push(Level::default());
        }
        &mut self.levels[height]
    }

    /// Writes a node wherever two are under construction: so the last two can share evenly.
    fn write_full(&mut self, writer: &mut Writer, from: usize) -> Result<(), Failure> {
        for height in from..self.levels.len() {
            let (level, full) = (&self.levels[height], self.tuning.node_bytes(kind(height)));
            // two children each at least, or nothing would converge on a root
            if level.bytes() < 2 * full || (height > 0 && level.entries.len() < 4) {
                break;
            }
            self.write_node(writer, height, full)?;
        }
        Ok(())
    }

    fn write_all(&mut self, writer: &mut Writer, height: usize) -> Result<(), Failure> {
        while !self.levels[height].entries.is_empty() {
            let bytes = self.levels[height].bytes();
            let parts = bytes.div_ceil(self.tuning.node_bytes(kind(height)));
            self.write_node(writer, height, bytes.div_ceil(parts))?;
            self.write_full(writer, height + 1)?;
        }
        Ok(())
    }

    /// Writes the first entries at a height, `bytes` of them or a little more, as a node.
    fn write_node(&mut self, writer: &mut Writer, height: usize, bytes: usize) -> Result<(), Failure> {
        self.level(height + 1);
        let (below, above) = self.levels.split_at_mut(height + 1);
        let (level, above) = (&mut below[height], &mut above[0]);
        let count = level.entries.len();
        let mut entries = level.entries.partition_point(|entry| entry.end <= bytes) + 1;
        if height > 0 {
            entries = entries.max(2);
            if entries + 1 == count {
                entries = count;
            }
        }
        let entries = entries.min(count);
        let (taken, _) = level.entries.split_at(entries);
        let last = &taken[entries - 1];
        let mut reduce = Reduce::default();
        taken.iter().for_each(|entry| reduce.add(entry.reduce));
        let below_bytes: u64 = taken.iter().map(|entry| entry.subtree_bytes).sum();
        level.buf[0] = kind(height) as u8;
        let end = last.end;
        let placed = append_node(writer, &level.buf[..end], self.tuning.compress_nodes, &mut self.packing)?;
        let subtree_bytes = u64::from(placed.bytes) + below_bytes;
        let mut encoded = Vec::with_capacity(16);
        self.tree.encode_reduce(reduce, &mut encoded);
        let mut fixed = [0; ROOT_POINTER + 2];
        fixed[..6].copy_from_slice(&be48(placed.offset));
        fixed[6..ROOT_POINTER].copy_from_slice(&be48(subtree_bytes));
        fixed[ROOT_POINTER..].copy_from_slice(&(encoded.len() as u16).to_be_bytes());
        above.push(level.key_of(last), &[&fixed, &encoded], reduce, subtree_bytes);
        level.consume(entries, end);
        Ok(())
    }
}
