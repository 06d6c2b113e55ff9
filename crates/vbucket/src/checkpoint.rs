//! Checkpoints: runs of changes in seqno order, and the ranges of them that readers take away.
//!
//! A closed checkpoint never changes. Closed checkpoints form a list, oldest first, in which each knows the next, so
//! taking a range is a counted pointer, and taking out what nobody needs any more is a splice.

use std::sync::{Arc, OnceLock};

use base::{ItemKind, Seqno, Version};

/// Slots of a full chunk.
const CHUNK_SLOTS: usize = 256;
/// Slots of a checkpoint's first allocation.
const FIRST_SLOTS: usize = 8;

/// When an open checkpoint is closed although nobody takes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CheckpointLimits {
    /// Changes in it, de-duplicated ones included.
    pub max_items: u32,
    /// Bytes of the versions in it.
    pub max_bytes: u32,
}

impl Default for CheckpointLimits {
    fn default() -> Self {
        CheckpointLimits { max_items: 10_000, max_bytes: 16 << 20 }
    }
}

/// A run of slots; the slot of a seqno is at its distance from the first one.
pub(crate) struct Chunk {
    first: Seqno,
    live: u32,
    slots: Vec<Option<Version>>,
}

impl Chunk {
    fn new(first: Seqno, slots: usize) -> Chunk {
        Chunk { first, live: 0, slots: Vec::with_capacity(slots) }
    }

    fn index(&self, seqno: Seqno) -> usize {
        usize::try_from(seqno.0.saturating_sub(self.first.0)).unwrap_or(usize::MAX).min(self.slots.len())
    }

    fn items_from(&self, seqno: Seqno) -> impl Iterator<Item = &Version> {
        self.slots[self.index(seqno)..].iter().flatten()
    }
}

/// The changes of one checkpoint by seqno, in chunks so that adding one never moves many.
///
/// Seqnos may have gaps, as on a replica whose producer de-duplicated; a chunk has none inside larger than itself.
pub(crate) struct Changes {
    full: Vec<Chunk>,
    last: Chunk,
    /// Slots, the empty ones included.
    slots: u32,
    /// Changes that are still there.
    live: u64,
    /// Bytes of the versions that are still there.
    bytes: u64,
}

impl Changes {
    pub(crate) fn new(first: Seqno) -> Changes {
        Changes { full: Vec::new(), last: Chunk::new(first, 0), slots: 0, live: 0, bytes: 0 }
    }

    pub(crate) fn is_unused(&self) -> bool {
        self.last.slots.is_empty() && self.full.is_empty()
    }

    pub(crate) fn slots(&self) -> u32 {
        self.slots
    }

    pub(crate) fn live(&self) -> u64 {
        self.live
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Bytes allocated for slots.
    pub(crate) fn slot_bytes(&self) -> usize {
        let chunks = self.full.iter().chain([&self.last]);
        let slots: usize = chunks.map(|chunk| chunk.slots.capacity()).sum();
        slots * size_of::<Option<Version>>() + self.full.capacity() * size_of::<Chunk>()
    }

    /// Appends at `seqno`, which must be higher than all before.
    #[inline]
    pub(crate) fn push(&mut self, seqno: Seqno, version: Version) {
        self.live += 1;
        self.bytes += version.allocated_bytes() as u64;
        let gap = (seqno.0 - self.last.first.0) as usize - self.last.slots.len();
        if gap > 0 {
            self.skip(seqno, gap);
        }
        if self.last.slots.len() == self.last.slots.capacity() {
            self.make_room(seqno);
        }
        self.slots += 1;
        self.last.live += 1;
        self.last.slots.push(Some(version));
    }

    fn make_room(&mut self, seqno: Seqno) {
        let used = self.last.slots.len();
        if used == 0 {
            let slots = if self.full.is_empty() { FIRST_SLOTS } else { CHUNK_SLOTS };
            self.last = Chunk::new(seqno, slots);
        } else if used >= CHUNK_SLOTS {
            let filled = std::mem::replace(&mut self.last, Chunk::new(seqno, CHUNK_SLOTS));
            self.full.push(filled);
        } else {
            self.last.slots.reserve_exact(used.min(CHUNK_SLOTS - used));
        }
    }

    fn skip(&mut self, seqno: Seqno, gap: usize) {
        let used = self.last.slots.len();
        if used == 0 {
            self.last.first = seqno;
        } else if used + gap < CHUNK_SLOTS {
            self.last.slots.resize_with(used + gap, || None);
            self.slots += gap as u32;
        } else {
            let filled = std::mem::replace(&mut self.last, Chunk::new(seqno, FIRST_SLOTS));
            self.full.push(filled);
        }
    }

    /// Empties the slot of `seqno` if its change may be merged away.
    #[inline]
    pub(crate) fn remove(&mut self, seqno: Seqno) -> Option<Version> {
        let chunk = if seqno >= self.last.first {
            &mut self.last
        } else {
            let after = self.full.partition_point(|chunk| chunk.first <= seqno);
            self.full.get_mut(after.checked_sub(1)?)?
        };
        let index = chunk.index(seqno);
        let slot = chunk.slots.get_mut(index)?;
        let version = slot.take_if(|version| is_mergeable(version))?;
        chunk.live -= 1;
        self.live -= 1;
        self.bytes -= version.allocated_bytes() as u64;
        Some(version)
    }

    /// The changes from `seqno` on.
    fn items_from(&self, seqno: Seqno) -> impl Iterator<Item = &Version> {
        let after = self.full.partition_point(|chunk| chunk.first <= seqno);
        let chunks = self.full[after.saturating_sub(1)..].iter().chain([&self.last]);
        chunks.flat_map(move |chunk| chunk.items_from(seqno))
    }

    /// How many changes there are from `seqno` on; looks at the slots of one chunk.
    pub(crate) fn live_from(&self, seqno: Seqno) -> u64 {
        let first = self.full.first().unwrap_or(&self.last).first;
        if seqno <= first {
            return self.live;
        }
        if seqno >= self.last.first {
            return self.last.items_from(seqno).count() as u64;
        }
        let after = self.full.partition_point(|chunk| chunk.first <= seqno);
        let later: u64 =
            self.full[after..].iter().chain([&self.last]).map(|chunk| u64::from(chunk.live)).sum();
        later + self.full[after - 1].items_from(seqno).count() as u64
    }
}

/// Whether a later change of the same key in the same checkpoint may take this one's place.
///
/// What announces something once and for all stays: system events, and prepares and commits when they come.
pub(crate) fn is_mergeable(version: &Version) -> bool {
    match version.meta().kind {
        ItemKind::Mutation | ItemKind::Deletion | ItemKind::Expiration => true,
        ItemKind::SystemEvent => false,
    }
}

/// A closed checkpoint's changes and its last seqno.
pub(crate) struct Closed {
    pub(crate) end: Seqno,
    pub(crate) changes: Changes,
}

/// A place in the list of checkpoints. The last one is the open checkpoint, whose changes are not here yet.
pub(crate) struct Node {
    pub(crate) id: u64,
    /// The first seqno that can be in it.
    pub(crate) start: Seqno,
    /// Changes in all checkpoints before it.
    pub(crate) items_before: u64,
    /// Bytes of the versions in all checkpoints before it.
    pub(crate) bytes_before: u64,
    /// Bytes allocated for all checkpoints before it, without the versions.
    pub(crate) overhead_before: u64,
    closed: OnceLock<Closed>,
    next: OnceLock<Arc<Node>>,
}

/// What a node's allocation takes, its two counts included.
pub(crate) const NODE_BYTES: u64 = (size_of::<Node>() + 2 * size_of::<usize>()) as u64;

impl Node {
    pub(crate) fn first(id: u64, start: Seqno) -> Arc<Node> {
        Arc::new(Node {
            id,
            start,
            items_before: 0,
            bytes_before: 0,
            overhead_before: 0,
            closed: OnceLock::new(),
            next: OnceLock::new(),
        })
    }

    /// Closes this checkpoint; returns the one that is open from now on.
    pub(crate) fn close(&self, end: Seqno, changes: Changes) -> Arc<Node> {
        let next = Arc::new(Node {
            id: self.id + 1,
            start: end.next(),
            items_before: self.items_before + changes.live,
            bytes_before: self.bytes_before + changes.bytes,
            overhead_before: self.overhead_before + NODE_BYTES + changes.slot_bytes() as u64,
            closed: OnceLock::new(),
            next: OnceLock::new(),
        });
        let first = self.closed.set(Closed { end, changes }).is_ok() && self.next.set(next.clone()).is_ok();
        assert!(first, "a checkpoint is closed once");
        next
    }

    pub(crate) fn closed(&self) -> Option<&Closed> {
        self.closed.get()
    }

    pub(crate) fn next(&self) -> Option<&Arc<Node>> {
        self.next.get()
    }

    /// Whether it is closed and a reader at `position` needs nothing of it.
    pub(crate) fn is_passed_by(&self, position: Seqno) -> bool {
        self.closed().is_some_and(|closed| closed.end <= position)
    }

    /// How many changes of this checkpoint there are from `seqno` on, if it is closed.
    pub(crate) fn unread_when_closed(&self, seqno: Seqno) -> Option<u64> {
        self.closed().map(|closed| closed.changes.live_from(seqno))
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        // One after the other: a long list would overflow the stack if each node dropped the next.
        let mut next = self.next.take();
        while let Some(mut node) = next.and_then(Arc::into_inner) {
            next = node.next.take();
        }
    }
}

/// Some closed checkpoints that a cursor's reader has been promised: they never change, and need no lock to be read.
#[derive(Clone)]
pub struct Range {
    pub(crate) first: Arc<Node>,
    pub(crate) start: Seqno,
    pub(crate) end: Seqno,
    /// Changes in all checkpoints up to its end.
    pub(crate) items_until: u64,
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
        self.checkpoints().next().map_or(self.start, |checkpoint| checkpoint.snapshot_start())
    }

    /// Where the last snapshot ends.
    pub fn snapshot_end(&self) -> Seqno {
        self.end
    }

    /// How many changes are in it: exact, or too high if the cursor was registered far behind.
    pub fn items_at_most(&self) -> u64 {
        let Some(next) = self.first.next() else { return 0 };
        let unread = self.first.unread_when_closed(self.start).unwrap_or(0);
        (self.items_until.saturating_sub(next.items_before) + unread).min(self.end.0 + 1 - self.start.0)
    }

    /// Its checkpoints, oldest first: within one, no key is there twice.
    pub fn checkpoints(&self) -> impl Iterator<Item = CheckpointView<'_>> {
        let nodes = std::iter::successors(Some(&*self.first), |node| node.next().map(|next| &**next));
        nodes
            .map_while(|node| node.closed().map(|closed| CheckpointView { node, closed, from: self.start }))
            .skip_while(|view| view.closed.end < self.start)
            .take_while(|view| view.closed.end <= self.end)
    }

    /// Its changes in seqno order.
    pub fn iter(&self) -> impl Iterator<Item = &Version> {
        self.checkpoints().flat_map(|checkpoint| checkpoint.iter())
    }
}

/// One closed checkpoint in a range.
#[derive(Clone, Copy)]
pub struct CheckpointView<'a> {
    node: &'a Node,
    closed: &'a Closed,
    from: Seqno,
}

impl<'a> CheckpointView<'a> {
    /// Its number; later ones are higher.
    pub fn id(&self) -> u64 {
        self.node.id
    }

    /// The first seqno that can be in it.
    pub fn snapshot_start(&self) -> Seqno {
        self.node.start
    }

    /// The last seqno that can be in it.
    pub fn snapshot_end(&self) -> Seqno {
        self.closed.end
    }

    /// Those of its changes that are in the range.
    pub fn iter(&self) -> impl Iterator<Item = &'a Version> + use<'a> {
        self.closed.changes.items_from(self.from)
    }
}

/// Checkpoints taken out of memory; dropping this frees them, which is best done outside the vBucket lock.
#[derive(Default)]
pub struct Removed {
    pub(crate) oldest: Option<Arc<Node>>,
    pub(crate) checkpoints: u64,
    pub(crate) items: u64,
    pub(crate) bytes: u64,
}

impl Removed {
    /// How many checkpoints were taken out.
    pub fn checkpoints(&self) -> u64 {
        self.checkpoints
    }

    /// How many changes were in them.
    pub fn items(&self) -> u64 {
        self.items
    }

    /// Bytes of the versions in them, which others may hold as well.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Whether nothing was taken out.
    pub fn is_empty(&self) -> bool {
        self.oldest.is_none()
    }
}

// What is taken out is worked on by other threads.
const _: () = {
    const fn crosses_threads<T: Send + Sync>() {}
    crosses_threads::<Range>();
    crosses_threads::<Removed>();
};
