//! The node under construction at one depth of a tree.

use crate::node::{Entries, Entry, NodeKind, Pointer, ROOT_POINTER, entry_prefix};
use crate::tree::{Reduce, Tree, be48};

/// What was written is dropped from the front of the buffer when it is more than this.
const SPENT_BYTES: usize = 32 << 10;

/// Entries that are to become nodes, in order. Nodes are cut off at the front.
pub(crate) struct Level {
    pub(crate) kind: NodeKind,
    /// `buf[start..]` are entries. There is always a byte before them, for the node's kind.
    buf: Vec<u8>,
    start: usize,
    /// Where each entry ends in `buf`, and in a leaf what it weighs ([`Tree::weight_of_record`]).
    ends: Vec<(u32, u32)>,
    /// Entries before this one are spent.
    first: usize,
}

/// A node as it is cut off: kind and entries, ready to be written.
pub(crate) struct Cut<'a> {
    pub(crate) node: &'a [u8],
    pub(crate) last_key: &'a [u8],
    pub(crate) reduce: Reduce,
    /// Bytes of the subtrees below an interior node.
    pub(crate) below_bytes: u64,
}

impl Level {
    pub(crate) fn new() -> Level {
        Level { kind: NodeKind::Interior, buf: vec![0], start: 1, ends: Vec::new(), first: 0 }
    }

    pub(crate) fn clear(&mut self) {
        self.kind = NodeKind::Interior;
        self.forget_all();
    }

    fn forget_all(&mut self) {
        self.buf.truncate(1);
        self.ends.clear();
        (self.start, self.first) = (1, 0);
    }

    /// Bytes of all entries.
    pub(crate) fn bytes(&self) -> usize {
        self.buf.len() - self.start
    }

    pub(crate) fn entries(&self) -> usize {
        self.ends.len() - self.first
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.entries() == 0
    }

    /// Where the next entry is to be written; [`Level::pushed`] or [`Level::discard`] follows.
    pub(crate) fn buf(&mut self) -> &mut Vec<u8> {
        &mut self.buf
    }

    /// Everything behind the last entry is one more.
    pub(crate) fn pushed(&mut self, weight: u32) {
        self.ends.push((self.buf.len() as u32, weight));
    }

    pub(crate) fn push_raw(&mut self, entry: &[u8], weight: u32) {
        self.buf.extend_from_slice(entry);
        self.pushed(weight);
    }

    pub(crate) fn push_pointer(&mut self, tree: Tree, key: &[u8], pointer: Pointer) {
        self.kind = NodeKind::Interior;
        let reduce_len = tree.reduce_len();
        self.buf.extend_from_slice(&entry_prefix(key.len(), ROOT_POINTER + 2 + reduce_len));
        self.buf.extend_from_slice(key);
        let mut fixed = [0; ROOT_POINTER + 2];
        fixed[..6].copy_from_slice(&be48(pointer.offset));
        fixed[6..12].copy_from_slice(&be48(pointer.subtree_bytes));
        fixed[12..].copy_from_slice(&(reduce_len as u16).to_be_bytes());
        self.buf.extend_from_slice(&fixed);
        tree.encode_reduce(pointer.reduce, &mut self.buf);
        self.pushed(0);
    }

    pub(crate) fn first_entry(&self) -> Option<Entry<'_>> {
        Entries::of(&self.buf[self.start..]).next().ok().flatten()
    }

    /// How many of the first entries make `bytes` or a little more.
    pub(crate) fn entries_of(&self, bytes: usize) -> usize {
        let upto = self.start + bytes;
        let entries = self.ends[self.first..].partition_point(|&(end, _)| (end as usize) < upto) + 1;
        // an interior node with one child would make no progress towards a single root
        let least = if self.kind == NodeKind::Interior { 2 } else { 1 };
        entries.max(least).min(self.entries())
    }

    /// The first `entries` as a node; nothing if one of them is malformed. [`Level::spend`] follows.
    pub(crate) fn cut(&mut self, tree: Tree, entries: usize) -> Option<Cut<'_>> {
        let ends = &self.ends[self.first..self.first + entries];
        let (end, _) = *ends.last().expect("a node has an entry");
        let last_start = if entries == 1 { self.start } else { ends[entries - 2].0 as usize };
        self.buf[self.start - 1] = self.kind as u8;
        let (reduce, below_bytes) = match self.kind {
            NodeKind::Leaf => (tree.reduce_of_weights(ends.iter().map(|&(_, weight)| weight)), 0),
            NodeKind::Interior => sum_of_pointers(tree, &self.buf[self.start..end as usize])?,
        };
        let last = Entries::of(&self.buf[last_start..end as usize]).next().ok().flatten()?;
        Some(Cut { node: &self.buf[self.start - 1..end as usize], last_key: last.key, reduce, below_bytes })
    }

    /// Forgets the first `entries`, which are written.
    pub(crate) fn spend(&mut self, entries: usize) {
        self.first += entries;
        self.start = self.ends[self.first - 1].0 as usize;
        if self.first == self.ends.len() {
            self.forget_all();
        } else if self.start > SPENT_BYTES {
            let gone = self.start - 1;
            self.buf.drain(1..self.start);
            self.ends.drain(..self.first);
            self.ends.iter_mut().for_each(|(end, _)| *end -= gone as u32);
            (self.start, self.first) = (1, 0);
        }
    }
}

/// Reduce value and bytes of all subtrees that the entries of an interior node point to.
fn sum_of_pointers(tree: Tree, entries: &[u8]) -> Option<(Reduce, u64)> {
    let mut reduce = Reduce::default();
    let mut below = 0;
    let mut entries = Entries::of(entries);
    while let Some(entry) = entries.next().ok()? {
        let child = Pointer::decode(tree, entry.value)?;
        reduce.add(child.reduce);
        below += child.subtree_bytes;
    }
    Some((reduce, below))
}
