//! Walks a whole tree and holds every node against what its parent says; a damaged node does not end the walk.

use crate::check::Faults;
use crate::chunk::{BLOCK, span};
use crate::failure::Failure;
use crate::node::{Entries, MAX_DEPTH, NodeBuf, NodeKind, Pointer};
use crate::snapshot::Snapshot;
use crate::tree::{Reduce, Tree};

/// The leaf that a record is in.
#[derive(Clone, Copy)]
pub(super) struct Place {
    pub(super) offset: u64,
}

/// Is shown place, key and value of each record.
pub(super) type Visit<'v> = dyn FnMut(&mut Faults<'_>, Place, &[u8], &[u8]) + 'v;

/// A node on the path from the root to where the walk is.
struct Frame {
    node: NodeBuf,
    /// Bytes of entries that are still to come.
    todo: usize,
    /// What the parent says about the node.
    claimed: Pointer,
    /// The highest key it may hold, as its parent says; the root has no such bound.
    upper: Option<Vec<u8>>,
    /// What its entries add up to.
    reduce: Reduce,
    subtree_bytes: u64,
    is_readable: bool,
    is_ordered: bool,
}

impl Frame {
    /// Bytes at block starts that the node takes besides its own.
    fn own_extra(&self, overhead: u64) -> u64 {
        let (at, len) = (self.claimed.offset, self.node.block_bytes() + overhead);
        // a position right behind the start of a block may stand for the block
        span(at, len) - len + u64::from(at % BLOCK == 1)
    }

    /// Whether a node and those below it can have this size. The original counts bytes at block starts, too, where a
    /// node lies across one.
    fn may_have(&self, subtree_bytes: u64, overhead: u64) -> bool {
        (self.subtree_bytes..=self.subtree_bytes + self.own_extra(overhead)).contains(&subtree_bytes)
    }
}

struct Walk<'w, 'f> {
    file: &'w Snapshot,
    tree: Tree,
    faults: &'w mut Faults<'f>,
    path: Vec<Frame>,
    spare: Vec<NodeBuf>,
    budget: u64,
    /// Keys to come are above this one.
    last_key: Option<Vec<u8>>,
    is_whole: bool,
}

/// Visits every record that can be reached, in order; says whether those are all.
pub(super) fn walk(file: &Snapshot, tree: Tree, faults: &mut Faults<'_>, visit: &mut Visit<'_>) -> bool {
    let Some(root) = file.header.root(tree) else { return true };
    let budget = file.header.offset;
    let mut walk = Walk {
        file,
        tree,
        faults,
        path: Vec::new(),
        spare: Vec::new(),
        budget,
        last_key: None,
        is_whole: true,
    };
    walk.open(root, None);
    while !walk.path.is_empty() {
        walk.step(visit);
    }
    walk.is_whole
}

fn said_of(tree: Tree, what: &str) -> String {
    let tree = match tree {
        Tree::ById => "tree by id",
        Tree::BySeqno => "tree by seqno",
        Tree::Local => "tree of local documents",
    };
    format!("{tree}: {what}")
}

impl Walk<'_, '_> {
    fn open(&mut self, claimed: Pointer, upper: Option<Vec<u8>>) {
        let mut node = self.spare.pop().unwrap_or_default();
        let source = &self.file.source;
        let opened = if self.path.len() == MAX_DEPTH {
            Err(source.damaged(claimed.offset, "a tree is too deep"))
        } else {
            node.read(source, claimed, self.file.header.offset)
        };
        if let Err(failure) = opened {
            self.skip(&failure, upper);
            return;
        }
        if let Err(failure) = node.spend(source, &mut self.budget) {
            // nodes are shared: the rest could be walked for ever
            self.skip(&failure, upper);
            self.path.clear();
            return;
        }
        self.path.push(Frame {
            todo: node.entries().remaining(),
            subtree_bytes: node.block_bytes() + source.overhead() as u64,
            node,
            claimed,
            upper,
            reduce: Reduce::default(),
            is_readable: true,
            is_ordered: true,
        });
        self.faults.depth = self.faults.depth.max(self.path.len());
    }

    /// Goes on behind a node that cannot be read.
    fn skip(&mut self, failure: &Failure, upper: Option<Vec<u8>>) {
        match failure {
            Failure::Damaged { offset, what, .. } => self.faults.at(*offset, said_of(self.tree, what)),
            other => self.faults.failure(other),
        }
        self.is_whole = false;
        if upper.is_some() {
            self.last_key = upper;
        }
    }

    /// Goes on by one entry.
    fn step(&mut self, visit: &mut Visit<'_>) {
        let Walk { file, tree, faults, path, last_key, .. } = self;
        let Some(frame) = path.last_mut() else { return };
        let place = Place { offset: frame.claimed.offset };
        let bytes = frame.node.bytes();
        let mut entries = Entries::of(&bytes[bytes.len() - frame.todo..]);
        let entry = entries.next();
        frame.todo = entries.remaining();
        let entry = match entry {
            Ok(Some(entry)) => entry,
            Ok(None) => return self.close(),
            Err(_) => return self.give_up(),
        };
        let is_above = last_key.as_deref().is_none_or(|last| last < entry.key);
        let is_below = frame.upper.as_deref().is_none_or(|upper| entry.key <= upper);
        if frame.is_ordered && !(is_above && is_below) {
            frame.is_ordered = false;
            faults.at(place.offset, said_of(*tree, "keys of a node are out of order"));
        }
        match frame.node.kind() {
            NodeKind::Leaf => {
                let Some(reduce) = tree.reduce_of_record(entry.value) else { return self.give_up() };
                frame.reduce.add(reduce);
                let last_key = last_key.get_or_insert_default();
                last_key.clear();
                last_key.extend_from_slice(entry.key);
                visit(faults, place, entry.key, entry.value);
            }
            NodeKind::Interior => {
                let Ok(child) = frame.node.child(&file.source, *tree, entry.value) else {
                    return self.give_up();
                };
                frame.reduce.add(child.reduce);
                frame.subtree_bytes += child.subtree_bytes;
                let upper = Some(entry.key.to_vec());
                self.open(child, upper);
            }
        }
    }

    /// The node at hand goes on with something that is no entry.
    fn give_up(&mut self) {
        self.is_whole = false;
        if let Some(frame) = self.path.last_mut() {
            frame.todo = 0;
            frame.is_readable = false;
            let what = said_of(self.tree, "an entry of a node is malformed");
            self.faults.at(frame.claimed.offset, what);
        }
    }

    /// The node at hand is done: what it holds must be what its parent says. The parent goes on with what it said
    /// itself, so that one fault is told of once.
    fn close(&mut self) {
        let Some(frame) = self.path.pop() else { return };
        let (offset, overhead) = (frame.claimed.offset, self.file.source.overhead() as u64);
        if frame.is_readable && frame.reduce != frame.claimed.reduce {
            let what = "what a node holds adds up to something else than its parent says";
            self.faults.at(offset, said_of(self.tree, what));
        }
        if frame.is_readable && !frame.may_have(frame.claimed.subtree_bytes, overhead) {
            let what = "a node and those below it have another size than its parent says";
            self.faults.at(offset, said_of(self.tree, what));
        }
        if frame.upper.is_some() {
            self.last_key = frame.upper;
        }
        self.spare.push(frame.node);
    }
}
