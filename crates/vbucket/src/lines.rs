//! A growing array of cache lines whose elements never move.

use base::memory::{CacheLine, CacheLines};
use base::version::prefetch;
use base::{Heap, Part};

pub(crate) type Line = CacheLine;

/// log2 of the lines in a segment that is not one of a large array: what is allocated ahead stays little.
const FINE_SHIFT: u32 = 4;
/// From here on segments are of 16 KiB, so that touching a new one stays within some microseconds, and their list short.
const COARSE_FROM: usize = 1 << 12;
const COARSE_SHIFT: u32 = CacheLines::MOST.ilog2();
const FINE_SEGMENTS: usize = 4 * FINE_SHIFT as usize + (COARSE_FROM >> FINE_SHIFT);

/// An array of lines that grows and shrinks at its end in bounded time.
///
/// Lines live in segments, four for each doubling until a segment has 16 lines, and such segments from there;
/// at most a fifth of a small array and nearly nothing of a large one is allocated ahead.
pub(crate) struct Lines {
    segments: Vec<CacheLines>,
    len: usize,
    allocated: usize,
    /// Where segments come from. Its account is charged with the list of them, too.
    heap: Heap,
}

/// Segment, place in it, and log2 of its size, for the line at `index`.
#[inline]
fn place(index: usize) -> (usize, usize, u32) {
    if index >= COARSE_FROM {
        let segment = FINE_SEGMENTS + ((index - COARSE_FROM) >> COARSE_SHIFT);
        return (segment, index & ((1 << COARSE_SHIFT) - 1), COARSE_SHIFT);
    }
    let shift = ((index | 4).ilog2() - 2).min(FINE_SHIFT);
    (4 * shift as usize + (index >> shift), index & ((1 << shift) - 1), shift)
}

fn list_bytes(segments: usize) -> usize {
    segments * size_of::<CacheLines>()
}

impl Lines {
    /// An empty array; allocates nothing.
    pub(crate) fn new(heap: &Heap) -> Lines {
        Lines { segments: Vec::new(), len: 0, allocated: 0, heap: heap.clone() }
    }

    /// Charges the list of segments as it is now instead of what it was; segments charge themselves.
    fn settle(&self, capacity_before: usize) {
        let account = self.heap.account();
        if self.segments.capacity() != capacity_before {
            account.release(Part::HashTables, list_bytes(capacity_before));
            account.charge(Part::HashTables, list_bytes(self.segments.capacity()));
        }
    }

    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    #[inline]
    pub(crate) fn get(&self, index: usize) -> &Line {
        let (segment, at, _) = place(index);
        &self.segments[segment][at]
    }

    /// Asks the processor to bring closer what says where the line at `index` is.
    #[inline]
    pub(crate) fn prefetch_way(&self, index: usize) {
        prefetch(self.segments.as_ptr().wrapping_add(place(index).0).cast());
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, index: usize) -> &mut Line {
        let (segment, at, _) = place(index);
        &mut self.segments[segment][at]
    }

    /// Appends a line of zeros and returns its index.
    pub(crate) fn push(&mut self) -> usize {
        let (segment, _, shift) = place(self.len);
        if segment == self.segments.len() {
            let before = self.segments.capacity();
            self.segments.push(CacheLines::new(&self.heap, 1 << shift));
            self.allocated += 1 << shift;
            self.settle(before);
        }
        self.len += 1;
        self.len - 1
    }

    /// Drops the last line, which must be zero again.
    pub(crate) fn pop(&mut self) {
        self.len -= 1;
        debug_assert_eq!(self.get(self.len).0, [0; 8]);
        let (segment, at, shift) = place(self.len);
        if at == 0 {
            self.segments.truncate(segment);
            self.allocated -= 1 << shift;
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Line> {
        self.segments.iter().flat_map(|segment| segment.iter()).take(self.len)
    }

    pub(crate) fn allocated_bytes(&self) -> usize {
        self.allocated * size_of::<Line>() + list_bytes(self.segments.capacity())
    }
}

impl Drop for Lines {
    fn drop(&mut self) {
        self.heap.account().release(Part::HashTables, list_bytes(self.segments.capacity()));
    }
}

#[cfg(test)]
mod tests {
    use base::Account;

    use super::*;

    #[test]
    fn lines_stay_where_they_are_while_the_array_grows_and_shrinks() {
        let account = Account::new();
        let mut lines = Lines::new(&Heap::of_part(account.clone(), Part::HashTables));
        for i in 0..20_000 {
            assert_eq!(lines.push(), i);
            lines.get_mut(i).0[3] = i as u64;
        }
        assert!(lines.iter().enumerate().all(|(i, line)| line.0[3] == i as u64));
        assert!(lines.allocated_bytes() < 20_000 * 64 + 256 * 64 + (8 << 10));
        let charged = || account.exact()[Part::HashTables as usize] as usize;
        assert_eq!(charged(), lines.allocated_bytes());
        for i in (0..20_000).rev() {
            assert_eq!(lines.get(i).0[3], i as u64);
            *lines.get_mut(i) = Line::ZERO;
            lines.pop();
        }
        assert_eq!((lines.len(), lines.allocated), (0, 0));
        assert_eq!(charged(), lines.allocated_bytes());
        lines.push();
        drop(lines);
        assert_eq!(charged(), 0);
    }
}
