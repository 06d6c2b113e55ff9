//! What readers take out of the checkpoints: runs of closed checkpoints that never change.

use std::sync::Arc;

use base::{Seqno, Version};

use crate::checkpoint_list::{Node, Sealed, node_of};

/// How much a reader takes at once. The checkpoint with which a limit is reached is the last one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RangeLimit {
    /// Changes.
    pub items: u64,
    /// Bytes of their versions.
    pub bytes: u64,
    /// No checkpoint, or part of a received one, that ends behind this; but for the first one, which is never cut.
    pub through: Seqno,
    /// Only one run: checkpoints in which no part of a sync write stands beside another one of its key.
    pub one_run: bool,
}

impl RangeLimit {
    /// Everything that there is.
    pub const NONE: RangeLimit =
        RangeLimit { items: u64::MAX, bytes: u64::MAX, through: Seqno(u64::MAX), one_run: false };

    /// So many changes, however large.
    pub fn items(items: u64) -> RangeLimit {
        RangeLimit { items, ..RangeLimit::NONE }
    }

    /// The same, and nothing that ends behind `through`.
    pub const fn through(self, through: Seqno) -> RangeLimit {
        RangeLimit { through, ..self }
    }
}

/// Some closed checkpoints that a cursor's reader has been promised: they never change, and need no lock to be read.
#[derive(Clone)]
pub struct Range {
    pub(crate) first: Arc<Node>,
    pub(crate) start: Seqno,
    pub(crate) end: Seqno,
    pub(crate) snapshot_end: Seqno,
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

    /// Whether a run begins in it, from `from` to `to`.
    pub fn begins_run(&self, from: Seqno, to: Seqno) -> bool {
        let first = from.max(self.start);
        self.nodes().any(|(_, sealed)| (first..=to).contains(&sealed.run_start))
    }

    /// Where the last run begins that begins up to `to`.
    pub fn run_start(&self, to: Seqno) -> Seqno {
        let starts = self.nodes().map(|(_, sealed)| sealed.run_start);
        starts.filter(|start| *start <= to).last().unwrap_or(self.start)
    }

    /// Where the snapshot begins that `start` lies in: lower if the reader stopped inside a checkpoint before.
    pub fn snapshot_start(&self) -> Seqno {
        self.first.checkpoint_start
    }

    /// Where the last snapshot ends: higher than [`Range::end`] if that is a replica's that was not complete when this
    /// was sealed. Up to there other ranges follow.
    pub fn snapshot_end(&self) -> Seqno {
        self.snapshot_end
    }

    /// The last seqno before the checkpoint that its end is in: there everything before is complete.
    pub(crate) fn last_checkpoint_start(&self) -> Seqno {
        let last = node_of(&self.first, self.end);
        Seqno(last.checkpoint_start.0 - 1)
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
            let part = self.nodes().take_while(|(of, _)| of.checkpoint <= node.checkpoint).last();
            let end = part.map_or(sealed.checkpoint_end, |(_, last)| last.checkpoint_end);
            is_new.then_some(CheckpointView { node, end, from: self.start })
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

    /// The last seqno that can be in it, or in the part of it that is in the range.
    pub fn snapshot_end(&self) -> Seqno {
        self.end
    }

    /// Those of its changes that are in the range.
    pub fn iter(&self) -> impl Iterator<Item = &'a Version> + use<'a> {
        let (end, from) = (self.end, self.from);
        sealed_from(self.node)
            .take_while(move |(node, _)| node.start <= end)
            .flat_map(move |(_, sealed)| sealed.chunk.items_from(from))
    }
}

// Ranges are worked on by other threads.
const _: () = {
    const fn crosses_threads<T: Send + Sync>() {}
    crosses_threads::<Range>();
};
