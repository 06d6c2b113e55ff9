//! The changes of an open checkpoint by seqno, in chunks so that adding one never moves many.

use std::sync::Arc;

use base::version::prefetch;
use base::{ItemKind, Seqno, SyncWrite, Version};

use crate::checkpoint_memory::{Charge, CheckpointMemory, rounded};

/// Slots of a full chunk.
pub(crate) const CHUNK_SLOTS: usize = 256;
/// Slots of a checkpoint's first allocation.
const FIRST_SLOTS: usize = 8;
/// Most chunks of a checkpoint, so that closing it is bounded.
const MAX_CHUNKS: usize = 256;

/// Whether a later change of the same key in the same checkpoint may take this one's place. The one place of the rule.
///
/// What announces something once and for all stays: system events, prepares, commits and aborts.
/// Committed and prepared documents are apart by themselves: `old` of [`crate::HeldCheckpoints::queue`] is the seqno
/// of the version that the new one replaced in its table, and there each has a place of its own.
pub(crate) fn is_mergeable(version: &Version) -> bool {
    let meta = version.meta();
    match meta.kind {
        ItemKind::Mutation | ItemKind::Deletion | ItemKind::Expiration => meta.sync_write == SyncWrite::No,
        ItemKind::SystemEvent => false,
    }
}

/// Changes and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sums {
    /// Changes that are there, or were once: those that were merged away are not among them.
    pub(crate) items: u64,
    /// Bytes of their versions.
    pub(crate) bytes: u64,
    /// Bytes allocated for them without the versions.
    pub(crate) overhead: u64,
}

impl std::ops::Add for Sums {
    type Output = Sums;

    fn add(self, other: Sums) -> Sums {
        Sums {
            items: self.items + other.items,
            bytes: self.bytes + other.bytes,
            overhead: self.overhead + other.overhead,
        }
    }
}

impl std::ops::Sub for Sums {
    type Output = Sums;

    fn sub(self, other: Sums) -> Sums {
        Sums {
            items: self.items - other.items,
            bytes: self.bytes - other.bytes,
            overhead: self.overhead - other.overhead,
        }
    }
}

/// A run of slots; the slot of a seqno is at its distance from the first one.
pub(crate) struct Chunk {
    first: Seqno,
    /// What is in it; the overhead is that of the slots.
    sums: Sums,
    slots: Vec<Option<Version>>,
    charge: Charge,
}

fn slot_bytes(slots: usize) -> usize {
    if slots == 0 { 0 } else { rounded(slots * size_of::<Option<Version>>()) }
}

impl Chunk {
    fn new(first: Seqno, slots: usize, memory: &Arc<CheckpointMemory>) -> Chunk {
        let charge = Charge::new(memory, slot_bytes(slots));
        let sums = Sums { overhead: charge.bytes() as u64, ..Sums::default() };
        Chunk { first, sums, slots: Vec::with_capacity(slots), charge }
    }

    pub(crate) fn sums(&self) -> Sums {
        self.sums
    }

    /// Asks the processor to bring the slots closer, or the first of the changes in them.
    pub(crate) fn prefetch(&self, changes: bool) {
        if changes {
            self.slots.iter().take(FIRST_SLOTS).flatten().for_each(|change| change.prefetch());
        } else {
            prefetch(self.slots.as_ptr().cast());
        }
    }

    fn index(&self, seqno: Seqno) -> usize {
        usize::try_from(seqno.0.saturating_sub(self.first.0)).unwrap_or(usize::MAX).min(self.slots.len())
    }

    pub(crate) fn items_from(&self, seqno: Seqno) -> impl Iterator<Item = &Version> {
        self.slots[self.index(seqno)..].iter().flatten()
    }

    /// How many changes there are from `seqno` on; looks at the slots behind it.
    pub(crate) fn live_from(&self, seqno: Seqno) -> u64 {
        if seqno <= self.first { self.sums.items } else { self.items_from(seqno).count() as u64 }
    }

    /// Makes room for so many slots in all; says by how many bytes it grew.
    fn grow(&mut self, slots: usize) -> u64 {
        let before = self.sums.overhead;
        self.slots.reserve_exact(slots.min(CHUNK_SLOTS) - self.slots.len());
        self.charge.resize(slot_bytes(self.slots.capacity()));
        self.sums.overhead = self.charge.bytes() as u64;
        self.sums.overhead - before
    }
}

/// The changes of the open checkpoint.
///
/// Seqnos may have gaps, as on a replica whose producer de-duplicated; a chunk has none inside larger than itself.
pub(crate) struct Changes {
    full: Vec<Chunk>,
    last: Chunk,
    /// Slots, the empty ones included.
    slots: u32,
    /// Of all chunks together.
    sums: Sums,
    memory: Arc<CheckpointMemory>,
}

impl Changes {
    pub(crate) fn new(first: Seqno, memory: Arc<CheckpointMemory>) -> Changes {
        let last = Chunk::new(first, 0, &memory);
        Changes { full: Vec::new(), last, slots: 0, sums: Sums::default(), memory }
    }

    pub(crate) fn is_unused(&self) -> bool {
        self.slots == 0
    }

    pub(crate) fn slots(&self) -> u32 {
        self.slots
    }

    pub(crate) fn sums(&self) -> Sums {
        self.sums
    }

    /// Whether there can be no more.
    pub(crate) fn is_full(&self) -> bool {
        self.full.len() + 1 >= MAX_CHUNKS
    }

    /// Its chunks, oldest first.
    pub(crate) fn into_chunks(self) -> impl Iterator<Item = Chunk> {
        self.full.into_iter().chain([self.last])
    }

    /// Appends at `seqno`, which must be higher than all before. Whether it began another chunk.
    #[inline]
    pub(crate) fn push(&mut self, seqno: Seqno, version: Version) -> bool {
        let bytes = version.allocated_bytes() as u64;
        let chunks = self.full.len();
        let gap = (seqno.0 - self.last.first.0) as usize - self.last.slots.len();
        if gap > 0 {
            self.skip(seqno, gap);
        }
        if self.last.slots.len() == self.last.slots.capacity() {
            self.make_room(seqno);
        }
        self.slots += 1;
        self.last.sums.items += 1;
        self.last.sums.bytes += bytes;
        self.sums.items += 1;
        self.sums.bytes += bytes;
        self.last.slots.push(Some(version));
        self.full.len() > chunks
    }

    fn make_room(&mut self, seqno: Seqno) {
        match self.last.slots.len() {
            0 => self.sums.overhead += self.last.grow(FIRST_SLOTS),
            CHUNK_SLOTS.. => self.start_chunk(seqno, CHUNK_SLOTS),
            used => self.sums.overhead += self.last.grow(2 * used),
        }
    }

    fn start_chunk(&mut self, seqno: Seqno, slots: usize) {
        let filled = std::mem::replace(&mut self.last, Chunk::new(seqno, slots, &self.memory));
        self.full.push(filled);
        self.sums.overhead += self.last.sums.overhead;
    }

    fn skip(&mut self, seqno: Seqno, gap: usize) {
        let used = self.last.slots.len();
        if used == 0 {
            self.last.first = seqno;
        } else if used + gap < CHUNK_SLOTS {
            if self.last.slots.capacity() < used + gap {
                self.sums.overhead += self.last.grow((used + gap).next_power_of_two());
            }
            self.last.slots.resize_with(used + gap, || None);
            self.slots += gap as u32;
        } else {
            self.start_chunk(seqno, FIRST_SLOTS);
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
        let bytes = version.allocated_bytes() as u64;
        for sums in [&mut chunk.sums, &mut self.sums] {
            sums.items -= 1;
            sums.bytes -= bytes;
        }
        Some(version)
    }

    /// How many changes there are from `seqno` on: looks at the slots of one chunk, and at the chunks behind it.
    pub(crate) fn live_from(&self, seqno: Seqno) -> u64 {
        let first = self.full.first().unwrap_or(&self.last).first;
        if seqno <= first {
            return self.sums.items;
        }
        if seqno >= self.last.first {
            return self.last.live_from(seqno);
        }
        let after = self.full.partition_point(|chunk| chunk.first <= seqno);
        let later = self.full[after..].iter().chain([&self.last]).map(|chunk| chunk.sums.items);
        later.sum::<u64>() + self.full[after - 1].live_from(seqno)
    }
}
