//! Tree nodes: lists of keys with values or pointers (couchstore file_format.md, "Nodes On Disk").

use crate::chunk::{Source, inflate, literal};
use crate::failure::Failure;
use crate::tree::{Reduce, Tree, be};
use crate::window::Window;

/// What a node holds; the number is its first byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum NodeKind {
    Interior = 0,
    Leaf = 1,
}

/// Where a node is and what lies below it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pointer {
    pub(crate) offset: u64,
    /// Bytes of all nodes below, the node itself included.
    pub(crate) subtree_bytes: u64,
    pub(crate) reduce: Reduce,
}

/// Bytes of a pointer without its reduce value and that value's length.
pub(crate) const ROOT_POINTER: usize = 12;
/// Bytes of the sizes in front of each key.
pub(crate) const ENTRY_PREFIX: usize = 5;
/// Longest key that fits the format.
pub(crate) const MAX_KEY: usize = 0xfff;
/// Longest value that fits the format.
pub(crate) const MAX_VALUE: usize = 0xfff_ffff;
/// No honest tree is deeper. Ours stay far below; those with long keys could reach 41 before a node had room for six
/// children.
pub(crate) const MAX_DEPTH: usize = 48;
/// How much is read at once where a node's size is not known.
const USUAL_NODE: usize = 2048;

impl Pointer {
    /// A root pointer as the file header holds it: without the length of the reduce value.
    pub(crate) fn decode_root(tree: Tree, bytes: &[u8]) -> Option<Pointer> {
        let (fixed, reduce) = bytes.split_at_checked(ROOT_POINTER)?;
        let reduce = tree.decode_reduce(reduce)?;
        Some(Pointer { offset: be(&fixed[..6]), subtree_bytes: be(&fixed[6..]), reduce })
    }

    pub(crate) fn decode(tree: Tree, bytes: &[u8]) -> Option<Pointer> {
        let (fixed, rest) = bytes.split_at_checked(ROOT_POINTER)?;
        let (len, reduce) = rest.split_first_chunk::<2>()?;
        if usize::from(u16::from_be_bytes(*len)) != reduce.len() {
            return None;
        }
        let reduce = tree.decode_reduce(reduce)?;
        Some(Pointer { offset: be(&fixed[..6]), subtree_bytes: be(&fixed[6..]), reduce })
    }
}

/// Sizes of a key and its value as they stand in front of the key.
pub(crate) fn entry_prefix(key: usize, value: usize) -> [u8; ENTRY_PREFIX] {
    assert!(key <= MAX_KEY && value <= MAX_VALUE, "callers keep to the format's limits");
    let b = ((key as u64) << 28 | value as u64).to_be_bytes();
    [b[3], b[4], b[5], b[6], b[7]]
}

/// Buffers for one node, to be used again.
#[derive(Default)]
pub(crate) struct NodeBuf {
    chunk: Vec<u8>,
    /// The node, where it had to be inflated.
    inflated: Vec<u8>,
    is_inflated: bool,
    /// Where the node is in the one or the other.
    start: usize,
    end: usize,
    offset: u64,
    block_bytes: u64,
}

impl NodeBuf {
    /// Bytes that it takes at the moment.
    pub(crate) fn allocated_bytes(&self) -> usize {
        size_of::<NodeBuf>() + self.chunk.capacity() + self.inflated.capacity()
    }

    /// Reads the node at `pointer`, which must end before `limit`.
    pub(crate) fn read(&mut self, source: &Source, pointer: Pointer, limit: u64) -> Result<(), Failure> {
        self.read_with(source, pointer, |hint, chunk| source.read_chunk(pointer.offset, hint, limit, chunk))
    }

    /// The same for somebody who reads many: through `window`.
    pub(crate) fn read_ahead(
        &mut self,
        source: &Source,
        pointer: Pointer,
        limit: u64,
        window: &mut Window,
    ) -> Result<(), Failure> {
        self.read_with(source, pointer, |hint, chunk| {
            source.read_chunk_ahead(pointer.offset, hint, limit, chunk, window)
        })
    }

    fn read_with(
        &mut self,
        source: &Source,
        pointer: Pointer,
        read: impl for<'b> FnOnce(usize, &'b mut Vec<u8>) -> Result<&'b [u8], Failure>,
    ) -> Result<(), Failure> {
        // for a leaf the subtree is the node itself, so this is its exact size; not to be believed, only a hint
        let hint = (pointer.subtree_bytes as usize).saturating_sub(source.overhead()).min(USUAL_NODE * 2);
        // nothing is left of the node before, should this one fail
        (self.start, self.end, self.is_inflated) = (0, 0, false);
        let (block, prefix) = (read(hint, &mut self.chunk)?, source.prefix());
        self.block_bytes = block.len() as u64;
        let (start, end, is_inflated) = match literal(block) {
            Some(node) => (prefix + block.len() - node.len(), prefix + block.len(), false),
            None => {
                let len = inflate(block, &mut self.inflated)
                    .ok_or_else(|| source.damaged(pointer.offset, "a node cannot be inflated"))?;
                (0, len, true)
            }
        };
        (self.start, self.end, self.is_inflated) = (start, end, is_inflated);
        self.offset = pointer.offset;
        if !matches!(self.bytes().first(), Some(0 | 1)) {
            return Err(source.damaged(pointer.offset, "a node is neither leaf nor interior"));
        }
        Ok(())
    }

    /// Bytes it takes in the file. Each node of a tree is read once, so the sum of all stays below the file's length;
    /// `budget` starts there, and a tree that shares nodes, which could be walked for ever, runs out of it.
    pub(crate) fn spend(&self, source: &Source, budget: &mut u64) -> Result<(), Failure> {
        *budget = budget
            .checked_sub(self.block_bytes)
            .ok_or_else(|| source.damaged(self.offset, "a tree is larger than its file"))?;
        Ok(())
    }

    /// Bytes of the node as it is stored, without length and checksum.
    pub(crate) fn block_bytes(&self) -> u64 {
        self.block_bytes
    }

    pub(crate) fn kind(&self) -> NodeKind {
        if self.bytes().first() == Some(&1) { NodeKind::Leaf } else { NodeKind::Interior }
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        let buf = if self.is_inflated { &self.inflated } else { &self.chunk };
        &buf[self.start..self.end]
    }

    pub(crate) fn entries(&self) -> Entries<'_> {
        Entries { rest: self.bytes().get(1..).unwrap_or_default() }
    }

    pub(crate) fn damaged(&self, source: &Source) -> Failure {
        source.damaged(self.offset, "an entry of a node is malformed")
    }

    /// The pointer in an entry of this interior node. Children are always written before their parent, so a pointer
    /// forward is damage, and following pointers always ends.
    pub(crate) fn child(&self, source: &Source, tree: Tree, value: &[u8]) -> Result<Pointer, Failure> {
        match Pointer::decode(tree, value) {
            Some(child) if child.offset < self.offset => Ok(child),
            _ => Err(self.damaged(source)),
        }
    }
}

/// One key with its value or pointer.
#[derive(Clone, Copy)]
pub(crate) struct Entry<'a> {
    pub(crate) key: &'a [u8],
    pub(crate) value: &'a [u8],
    /// The whole entry with its sizes.
    pub(crate) raw: &'a [u8],
}

/// Walks the entries of a node.
#[derive(Clone, Copy)]
pub(crate) struct Entries<'a> {
    rest: &'a [u8],
}

impl<'a> Entries<'a> {
    pub(crate) fn of(rest: &'a [u8]) -> Entries<'a> {
        Entries { rest }
    }

    /// The next entry, nothing at the end, an error if what follows is no entry.
    pub(crate) fn next(&mut self) -> Result<Option<Entry<'a>>, Malformed> {
        if self.rest.is_empty() {
            return Ok(None);
        }
        let b = self.rest.first_chunk::<ENTRY_PREFIX>().ok_or(Malformed)?;
        let sizes = u64::from_be_bytes([0, 0, 0, b[0], b[1], b[2], b[3], b[4]]);
        let (key_len, value_len) = ((sizes >> 28) as usize, (sizes & 0xfff_ffff) as usize);
        let (raw, rest) = self.rest.split_at_checked(ENTRY_PREFIX + key_len + value_len).ok_or(Malformed)?;
        let (key, value) = raw[ENTRY_PREFIX..].split_at(key_len);
        self.rest = rest;
        Ok(Some(Entry { key, value, raw }))
    }

    /// Bytes not walked yet.
    pub(crate) fn remaining(&self) -> usize {
        self.rest.len()
    }
}

/// An entry that does not fit its node.
#[derive(Debug)]
pub(crate) struct Malformed;
