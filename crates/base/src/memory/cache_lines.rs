//! Arrays of cache lines, for structures that are laid out by them: from a heap, because the system's allocator needs
//! up to a line more for each to have it begin where it should.

use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

use super::heap::Heap;

/// Eight words that share one cache line.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub struct CacheLine(pub [u64; 8]);

impl CacheLine {
    /// A line of zeros.
    pub const ZERO: CacheLine = CacheLine([0; 8]);
}

/// So many lines fill a slot, which then begins where a line does: slots of whole lines, one after the other, in a slab
/// that begins at one. From there up to [`CacheLines::MOST`] sizes are rounded to other multiples.
const MOST_FINE: usize = 16;

/// An array of cache lines, zeros at first.
pub struct CacheLines {
    at: NonNull<CacheLine>,
    len: u32,
}

// SAFETY: the only owner of its memory, which is plain numbers.
unsafe impl Send for CacheLines {}
// SAFETY: as above.
unsafe impl Sync for CacheLines {}

impl CacheLines {
    /// The largest array.
    pub const MOST: usize = 256;

    /// An array of 1 to 16 lines, or of [`CacheLines::MOST`].
    pub fn new(heap: &Heap, len: usize) -> CacheLines {
        assert!(
            (1..=MOST_FINE).contains(&len) || len == CacheLines::MOST,
            "sizes whose slots begin at lines"
        );
        let at = heap.allocate(len * size_of::<CacheLine>()).cast::<CacheLine>();
        assert!(at.is_aligned(), "slots of whole lines begin at lines");
        // SAFETY: the memory is large enough, aligned, and ours alone.
        unsafe { at.write_bytes(0, len) };
        CacheLines { at, len: len as u32 }
    }
}

impl Deref for CacheLines {
    type Target = [CacheLine];

    #[inline]
    fn deref(&self) -> &[CacheLine] {
        // SAFETY: `new` wrote so many lines, and they are ours.
        unsafe { std::slice::from_raw_parts(self.at.as_ptr(), self.len as usize) }
    }
}

impl DerefMut for CacheLines {
    #[inline]
    fn deref_mut(&mut self) -> &mut [CacheLine] {
        // SAFETY: as above, and borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.at.as_ptr(), self.len as usize) }
    }
}

impl Drop for CacheLines {
    fn drop(&mut self) {
        // SAFETY: it was allocated with this very size, and nobody else knows it.
        unsafe { Heap::free(self.at.cast(), size_of_val::<[CacheLine]>(self)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::{Account, Part};

    #[test]
    fn arrays_begin_at_lines_and_cost_no_more() {
        let account = Account::new();
        let heap = Heap::of_part(account.clone(), Part::HashTables);
        let mut all = Vec::new();
        let step = if cfg!(miri) { MOST_FINE } else { 1 };
        for len in (1..=MOST_FINE).step_by(step).chain([CacheLines::MOST]) {
            let before = account.exact()[Part::HashTables as usize];
            let mut first = CacheLines::new(&heap, len);
            assert_eq!(account.exact()[Part::HashTables as usize] - before, len as i64 * 64);
            first[len - 1].0[7] = len as u64;
            drop(first);
            let again: Vec<CacheLines> =
                (0..if cfg!(miri) { 3 } else { 300 }).map(|_| CacheLines::new(&heap, len)).collect();
            assert!(
                again.iter().all(|lines| lines.len() == len && lines.iter().all(|line| line.0 == [0; 8]))
            );
            all.push(again);
        }
        drop(all);
        assert_eq!(account.exact(), [0; crate::memory::PARTS]);
    }
}
