//! The list of a vBucket's checkpoints: one node a chunk, oldest first, in which each knows the next and some know
//! nodes further on, so that a seqno is found in few steps.
//!
//! A node gets its chunk when its checkpoint is closed, and never changes from then on. Taking a range is a counted
//! pointer, and taking out what nobody needs any more is a splice.

use std::sync::{Arc, OnceLock};

use base::Seqno;
use base::version::prefetch_all;

use crate::changes::{Chunk, Sums};
use crate::checkpoint_memory::{Charge, CheckpointMemory, rounded};

/// Every so-manieth node of a level is on the next one, too.
const LEVEL_BITS: u32 = 2;
/// Levels above the plain list: the highest has every 65,536th node.
const LEVELS: usize = 8;

/// What a node knows from the moment its checkpoint is closed.
pub(crate) struct Sealed {
    pub(crate) chunk: Chunk,
    /// The last seqno that can be in what was closed with it: its checkpoint, or a part of a received one.
    pub(crate) checkpoint_end: Seqno,
    /// The end of the snapshot that this lies in: higher if that was not complete yet.
    pub(crate) snapshot_end: Seqno,
    /// Where the run begins that it belongs to: checkpoints in which no part of a sync write stands beside another one
    /// of its key.
    pub(crate) run_start: Seqno,
    /// What was in all nodes before it.
    pub(crate) before: Sums,
}

/// A chunk's place in the list. Nodes of the open checkpoint have no chunk yet.
pub(crate) struct Node {
    /// Its number; later ones are higher.
    index: u64,
    /// Number of its checkpoint.
    pub(crate) checkpoint: u64,
    /// The first seqno that can be in its checkpoint.
    pub(crate) checkpoint_start: Seqno,
    /// The first seqno that can be in it.
    pub(crate) start: Seqno,
    sealed: OnceLock<Sealed>,
    next: OnceLock<Arc<Node>>,
    /// The next node of each level that this one is on.
    ahead: Box<[OnceLock<Arc<Node>>]>,
    charge: Charge,
}

/// What a node's allocation takes, its two counts included.
const NODE_BYTES: usize = rounded(size_of::<Node>() + 2 * size_of::<usize>());

fn level_of(index: u64) -> usize {
    LEVELS.min((index.trailing_zeros() / LEVEL_BITS) as usize)
}

impl Node {
    fn new(memory: &Arc<CheckpointMemory>, index: u64, checkpoint: u64, starts: [Seqno; 2]) -> Arc<Node> {
        let ahead: Box<[_]> = (0..level_of(index)).map(|_| OnceLock::new()).collect();
        let bytes = NODE_BYTES + if ahead.is_empty() { 0 } else { rounded(size_of_val(&*ahead)) };
        Arc::new(Node {
            index,
            checkpoint,
            checkpoint_start: starts[0],
            start: starts[1],
            sealed: OnceLock::new(),
            next: OnceLock::new(),
            ahead,
            charge: Charge::new(memory, bytes),
        })
    }

    pub(crate) fn sealed(&self) -> Option<&Sealed> {
        self.sealed.get()
    }

    pub(crate) fn next(&self) -> Option<&Arc<Node>> {
        self.next.get()
    }

    /// Bytes allocated for it, without its chunk.
    pub(crate) fn overhead_bytes(&self) -> u64 {
        self.charge.bytes() as u64
    }

    /// Asks the processor to bring closer itself (depth 0), its list of changes (1), or the first of these (2).
    pub(crate) fn prefetch(self: &Arc<Node>, depth: usize) {
        match (depth, self) {
            (0, node) => prefetch_all(Arc::as_ptr(node)),
            (_, node) => node.sealed().iter().for_each(|sealed| sealed.chunk.prefetch(depth > 1)),
        }
    }

    /// Gives it its chunk: its checkpoint is closed.
    pub(crate) fn seal(
        &self,
        chunk: Chunk,
        [checkpoint_end, snapshot_end, run_start]: [Seqno; 3],
        before: Sums,
    ) {
        let sealed = Sealed { chunk, checkpoint_end, snapshot_end, run_start, before };
        assert!(self.sealed.set(sealed).is_ok(), "a checkpoint is closed once");
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        // Those far ahead are held by those just before them, which this one holds: nothing is freed here.
        self.ahead = Box::default();
        // One after the other: a long list would overflow the stack if each node dropped the next.
        let mut next = self.next.take();
        while let Some(mut node) = next.and_then(Arc::into_inner) {
            node.ahead = Box::default();
            next = node.next.take();
        }
    }
}

/// The last node from `from` on for which `is_before` holds, or `from` itself. If it holds for a node it must hold for
/// all before it. Takes steps as the logarithm of the distance.
pub(crate) fn last_before(from: &Arc<Node>, is_before: impl Fn(&Node) -> bool) -> &Arc<Node> {
    let mut at = from;
    loop {
        let ahead = at.ahead.iter().rev().chain([&at.next]);
        let Some(next) = ahead.filter_map(OnceLock::get).find(|node| is_before(node)) else { return at };
        at = next;
    }
}

/// The node that `seqno` is in, or would be in; `from` if that begins behind it.
pub(crate) fn node_of(from: &Arc<Node>, seqno: Seqno) -> &Arc<Node> {
    last_before(from, |node| node.start <= seqno)
}

/// The end of the list, where it grows.
pub(crate) struct Tip {
    node: Arc<Node>,
    /// The last node of each level above the plain list.
    levels: Levels,
    memory: Arc<CheckpointMemory>,
}

type Levels = [Option<Arc<Node>>; LEVELS];

impl Tip {
    /// A list of one node, for an open checkpoint that began with the first of `starts`, and here begins with the second.
    pub(crate) fn new(memory: Arc<CheckpointMemory>, starts: [Seqno; 2]) -> Tip {
        Tip { node: Node::new(&memory, 1, 1, starts), levels: Levels::default(), memory }
    }

    pub(crate) fn node(&self) -> &Arc<Node> {
        &self.node
    }

    /// Appends a node to the open checkpoint; it begins with `start`.
    pub(crate) fn extend(&mut self, start: Seqno) {
        self.append(self.node.checkpoint, [self.node.checkpoint_start, start]);
    }

    /// Appends a node for a new checkpoint that begins with `start`.
    pub(crate) fn begin(&mut self, start: Seqno) {
        self.append(self.node.checkpoint + 1, [start; 2]);
    }

    fn append(&mut self, checkpoint: u64, starts: [Seqno; 2]) {
        let node = Node::new(&self.memory, self.node.index + 1, checkpoint, starts);
        for level in 0..node.ahead.len() {
            if let Some(last) = self.levels[level].replace(node.clone()) {
                assert!(last.ahead[level].set(node.clone()).is_ok(), "a list grows at its end only");
            }
        }
        assert!(self.node.next.set(node.clone()).is_ok(), "a list grows at its end only");
        self.node = node;
    }

    /// Gives up what it holds of the nodes before `oldest`.
    pub(crate) fn forget_before(&mut self, oldest: &Node) -> Forgotten {
        let mut forgotten = Levels::default();
        for (level, last) in self.levels.iter_mut().enumerate() {
            // Told by its number: the node itself may be far from any cache.
            let bits = LEVEL_BITS * (level as u32 + 1);
            if self.node.index >> bits << bits < oldest.index {
                forgotten[level] = last.take();
            }
        }
        Forgotten(forgotten)
    }
}

/// Pointers into the part of a list that was taken out, to be dropped before that.
#[derive(Default)]
pub(crate) struct Forgotten(Levels);

impl Forgotten {
    pub(crate) fn clear(&mut self) {
        self.0 = Levels::default();
    }
}

/// Frees the nodes from `first` on, so many at most; what is left, if somebody else does not hold it.
pub(crate) fn free(first: Arc<Node>, most: usize) -> Option<Arc<Node>> {
    let mut next = Some(first);
    for _ in 0..most {
        let mut node = next.and_then(Arc::into_inner)?;
        node.ahead = Box::default();
        next = node.next.take();
    }
    next
}
