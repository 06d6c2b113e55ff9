//! What readers take out of the checkpoints: runs of closed checkpoints that never change.

use std::sync::Arc;

use base::{Seqno, Version};

use crate::checkpoint_list::{Node, Sealed};

/// How much a reader takes at once. The checkpoint with which a limit is reached is the last one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RangeLimit {
    /// Changes.
    pub items: u64,
    /// Bytes of their versions.
    pub bytes: u64,
}

impl RangeLimit {
    /// Everything that there is.
    pub const NONE: RangeLimit = RangeLimit { items: u64::MAX, bytes: u64::MAX };

    /// So many changes, however large.
    pub fn items(items: u64) -> RangeLimit {
        RangeLimit { items, ..RangeLimit::NONE }
    }
}

/// Some closed checkpoints that a cursor's reader has been promised: they never change, and need no lock to be read.
#[derive(Clone)]
pub struct Range {
    pub(crate) first: Arc<Node>,
    pub(crate) start: Seqno,
    pub(crate) end: Seqno,
    pub(crate) items: u64,
}

impl Range {
    /// The first seqno that can be in it: the one after the cursor's position.
    pub fn start(&self) -> Seqno {
        self.start
    }

    /// The last seqno that can be in it; where the cursor stands when all was worked on.
    pub fn end(&self) -> Seqno {
        self.end
    }

    /// Where the snapshot begins that `start` lies in: lower if the reader stopped inside a checkpoint before.
    pub fn snapshot_start(&self) -> Seqno {
        self.first.checkpoint_start
    }

    /// Where the last snapshot ends.
    pub fn snapshot_end(&self) -> Seqno {
        self.end
    }

    /// How many changes are in it.
    pub fn items(&self) -> u64 {
        self.items
    }

    fn nodes(&self) -> impl Iterator<Item = (&Node, &Sealed)> {
        sealed_from(&self.first).take_while(|(node, _)| node.start <= self.end)
    }

    /// Its checkpoints, oldest first: within one, no key is there twice.
    pub fn checkpoints(&self) -> impl Iterator<Item = CheckpointView<'_>> {
        let mut before = None;
        self.nodes().filter_map(move |(node, sealed)| {
            let is_new = before.replace(node.checkpoint) != Some(node.checkpoint);
            is_new.then_some(CheckpointView { node, end: sealed.checkpoint_end, from: self.start })
        })
    }

    /// Its changes in seqno order.
    pub fn iter(&self) -> impl Iterator<Item = &Version> {
        self.nodes().flat_map(|(_, sealed)| sealed.chunk.items_from(self.start))
    }
}

fn sealed_from(first: &Node) -> impl Iterator<Item = (&Node, &Sealed)> {
    let nodes = std::iter::successors(Some(first), |node| node.next().map(|next| &**next));
    nodes.map_while(|node| Some((node, node.sealed()?)))
}

/// One closed checkpoint in a range.
#[derive(Clone, Copy)]
pub struct CheckpointView<'a> {
    node: &'a Node,
    end: Seqno,
    from: Seqno,
}

impl<'a> CheckpointView<'a> {
    /// Its number; later ones are higher.
    pub fn id(&self) -> u64 {
        self.node.checkpoint
    }

    /// The first seqno that can be in it.
    pub fn snapshot_start(&self) -> Seqno {
        self.node.checkpoint_start
    }

    /// The last seqno that can be in it.
    pub fn snapshot_end(&self) -> Seqno {
        self.end
    }

    /// Those of its changes that are in the range.
    pub fn iter(&self) -> impl Iterator<Item = &'a Version> + use<'a> {
        let (checkpoint, from) = (self.node.checkpoint, self.from);
        sealed_from(self.node)
            .take_while(move |(node, _)| node.checkpoint == checkpoint)
            .flat_map(move |(_, sealed)| sealed.chunk.items_from(from))
    }
}

// Ranges are worked on by other threads.
const _: () = {
    const fn crosses_threads<T: Send + Sync>() {}
    crosses_threads::<Range>();
};
