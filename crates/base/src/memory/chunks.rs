//! Chunks of memory from the system, cut into slabs; the heads of a chunk's slabs lie together at its beginning.
//!
//! Beside each other and coloured, the heads of many slabs share few cache lines and spread over the cache's sets;
//! each at the beginning of its slab, they would all fall on the same set.

use std::collections::{BTreeMap, BTreeSet};
use std::ptr::NonNull;

use parking_lot::Mutex;

use super::classes::SLAB_BYTES;
use super::mapping::{CHUNK_BYTES, give_back_pages, map_chunk, unmap_chunk};

/// Slabs of a chunk.
const SLABS: usize = CHUNK_BYTES / SLAB_BYTES;
/// Bytes of a slab's head.
pub(super) const HEAD_BYTES: usize = 64;
/// Places in the first slab where a chunk's heads may begin, by its address.
const COLOURS: usize = 8;
/// The part of a chunk's first slab that is for heads.
const HEADS_BYTES: usize = COLOURS * SLABS * HEAD_BYTES;
/// Free slabs of which the system is not told, so that a slab that comes and goes costs no call.
const MOST_WARM: u32 = 8;

/// The chunks of all heaps.
pub(super) static CHUNKS: Chunks = Chunks::new();

/// The address of the head of the slab that `at` lies in.
#[inline]
pub(super) fn head_of(at: *mut u8) -> *mut u8 {
    let address = at.addr();
    let (number, index) = (address / CHUNK_BYTES, address % CHUNK_BYTES / SLAB_BYTES);
    let offset = (number % COLOURS * SLABS + index) * HEAD_BYTES;
    at.wrapping_sub(address % CHUNK_BYTES).wrapping_add(offset)
}

/// A slab that is not in use.
pub(super) struct Raw {
    pub(super) head: NonNull<u8>,
    /// Where its slots begin.
    pub(super) begin: NonNull<u8>,
    /// Bytes for slots.
    pub(super) bytes: usize,
}

struct Chunk {
    /// Its first byte. All pointers into it come from this one.
    begin: NonNull<u8>,
    /// A bit for each slab that is free.
    free: u32,
    /// A bit for each free slab whose memory the system has not been given back.
    warm: u32,
}

// SAFETY: the memory belongs to the holders of its slabs; the list only knows where it is.
unsafe impl Send for Chunk {}

struct State {
    /// By address.
    chunks: BTreeMap<usize, Chunk>,
    /// Chunks with a free slab. Slabs come from the lowest, so that the highest empty.
    open: BTreeSet<usize>,
    warm: u32,
}

pub(super) struct Chunks(Mutex<State>);

impl Chunks {
    const fn new() -> Chunks {
        Chunks(Mutex::new(State { chunks: BTreeMap::new(), open: BTreeSet::new(), warm: 0 }))
    }

    /// A free slab.
    pub(super) fn take(&self) -> Raw {
        let mut state = self.0.lock();
        let state = &mut *state;
        let at = state.open.first().copied().unwrap_or_else(|| {
            let begin = map_chunk();
            let at = begin.addr().get();
            state.chunks.insert(at, Chunk { begin, free: u32::MAX, warm: 0 });
            state.open.insert(at);
            at
        });
        let chunk = state.chunks.get_mut(&at).expect("an open chunk is a chunk");
        let choice = if chunk.warm != 0 { chunk.warm } else { chunk.free };
        let index = choice.trailing_zeros();
        chunk.free &= !(1 << index);
        state.warm -= chunk.warm >> index & 1;
        chunk.warm &= !(1 << index);
        if chunk.free == 0 {
            state.open.remove(&at);
        }
        let reserved = if index == 0 { HEADS_BYTES } else { 0 };
        // SAFETY: a chunk has room for all of its slabs, and a slab for the heads.
        let begin = unsafe { chunk.begin.add(index as usize * SLAB_BYTES + reserved) };
        let head = NonNull::new(head_of(begin.as_ptr())).expect("a chunk does not begin at 0");
        Raw { head, begin, bytes: SLAB_BYTES - reserved }
    }

    /// Takes a slab back.
    ///
    /// # Safety
    /// It must come from `take`, and nobody may use it or its head any more.
    pub(super) unsafe fn give_back(&self, raw: &Raw) {
        let address = raw.begin.addr().get();
        let (at, index) = (address - address % CHUNK_BYTES, address % CHUNK_BYTES / SLAB_BYTES);
        let mut state = self.0.lock();
        let stays_warm = state.warm < MOST_WARM;
        if !stays_warm {
            drop(state);
            // SAFETY: the slots are whole pages of a chunk, and by the caller's promise they are not in use.
            unsafe { give_back_pages(raw.begin, raw.bytes) };
            state = self.0.lock();
        }
        let state = &mut *state;
        let chunk = state.chunks.get_mut(&at).expect("a slab comes from a chunk");
        assert_eq!(chunk.free >> index & 1, 0, "a slab is given back once");
        chunk.free |= 1 << index;
        chunk.warm |= u32::from(stays_warm) << index;
        state.warm += u32::from(stays_warm);
        let is_empty = chunk.free == u32::MAX;
        state.open.insert(at);
        if is_empty && state.open.len() > 1 {
            state.open.remove(&at);
            if let Some(chunk) = state.chunks.remove(&at) {
                state.warm -= chunk.warm.count_ones();
                // SAFETY: all of its slabs are free, and it is in no list any more.
                unsafe { unmap_chunk(chunk.begin) };
            }
        }
    }
}

impl Chunks {
    /// Bytes of chunks, and of them the bytes of slabs in use.
    pub(super) fn bytes(&self) -> (u64, u64) {
        let state = self.0.lock();
        let used: u64 = state.chunks.values().map(|chunk| u64::from(chunk.free.count_zeros())).sum();
        ((state.chunks.len() * CHUNK_BYTES) as u64, used * SLAB_BYTES as u64)
    }
}
