//! A growing array of cache lines whose elements never move.

use base::{Account, Part};

/// Eight words that share one cache line.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(crate) struct Line(pub(crate) [u64; 8]);

impl Line {
    pub(crate) const ZERO: Line = Line([0; 8]);
}

/// log2 of the lines in the largest segment: 16 KiB, so that touching a new one stays within some microseconds.
const MOST_SHIFT: u32 = 8;

/// An array of lines that grows and shrinks at its end in bounded time.
///
/// Lines live in segments, four for each doubling until a segment has 256 lines, and only such segments from there;
/// at most a fifth of a small array and nearly nothing of a large one is allocated ahead.
pub(crate) struct Lines {
    segments: Vec<Box<[Line]>>,
    len: usize,
    allocated: usize,
    /// Charged with what is allocated.
    account: Account,
}

/// Segment, place in it, and log2 of its size, for the line at `index`.
#[inline]
fn place(index: usize) -> (usize, usize, u32) {
    let shift = ((index | 4).ilog2() - 2).min(MOST_SHIFT);
    (4 * shift as usize + (index >> shift), index & ((1 << shift) - 1), shift)
}

impl Lines {
    /// An empty array that charges `account`; allocates nothing.
    pub(crate) fn new(account: &Account) -> Lines {
        Lines { segments: Vec::new(), len: 0, allocated: 0, account: account.clone() }
    }

    /// Charges what is allocated now instead of the `before` that was.
    fn settle(&self, before: usize) {
        self.account.release(Part::HashTables, before);
        self.account.charge(Part::HashTables, self.allocated_bytes());
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

    #[inline]
    pub(crate) fn get_mut(&mut self, index: usize) -> &mut Line {
        let (segment, at, _) = place(index);
        &mut self.segments[segment][at]
    }

    /// Appends a line of zeros and returns its index.
    pub(crate) fn push(&mut self) -> usize {
        let (segment, _, shift) = place(self.len);
        if segment == self.segments.len() {
            let before = self.allocated_bytes();
            self.segments.push(vec![Line::ZERO; 1 << shift].into_boxed_slice());
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
            let before = self.allocated_bytes();
            self.segments.truncate(segment);
            self.allocated -= 1 << shift;
            self.settle(before);
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Line> {
        self.segments.iter().flat_map(|segment| segment.iter()).take(self.len)
    }

    pub(crate) fn allocated_bytes(&self) -> usize {
        self.allocated * size_of::<Line>() + self.segments.capacity() * size_of::<Box<[Line]>>()
    }
}

impl Drop for Lines {
    fn drop(&mut self) {
        self.account.release(Part::HashTables, self.allocated_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_stay_where_they_are_while_the_array_grows_and_shrinks() {
        let account = Account::new();
        let mut lines = Lines::new(&account);
        for i in 0..20_000 {
            assert_eq!(lines.push(), i);
            lines.get_mut(i).0[3] = i as u64;
        }
        assert!(lines.iter().enumerate().all(|(i, line)| line.0[3] == i as u64));
        assert!(lines.allocated_bytes() < 20_000 * 64 + 256 * 64 + 4096);
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
