//! Which vBuckets may have changed since figures were made of them, so that those that did not are not looked at again.
//!
//! A mark is set under the vBucket's lock before each change, and costs a look at one word: that is shared by all threads,
//! and written only by the first change after figures were made. A look takes the marks first and locks then: a change that
//! came before is in what it finds, one that comes later sets the mark again.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use base::VbId;

/// This many neighbours have a mark and sums in common: a bucket has a thousand vBuckets, and sums of each would take as
/// much memory as an empty bucket does.
pub(crate) const GROUP_VBUCKETS: u16 = 8;
/// Marks of a group: one of each figure.
const FIGURES: usize = 2;
const GROUPS_IN_WORD: usize = 64 / FIGURES;
const WORDS_IN_LINE: usize = 4;
/// The marks of the first figure in a word.
const OF_FIRST: u64 = 0x5555_5555_5555_5555;

/// What is made of vBuckets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub(crate) enum Figure {
    /// [`crate::StateStats`].
    Stats,
    /// [`crate::CollectionTotals`].
    Collections,
}

/// The marks of a thousand vBuckets. On a cache line of their own: they are looked at with each change.
#[repr(align(128))]
struct Line([AtomicU64; WORDS_IN_LINE]);

/// The marks of a bucket.
pub(crate) struct ChangeMarks {
    lines: Box<[Line]>,
    vbuckets: u16,
}

impl ChangeMarks {
    /// All marked: nothing was made of these vBuckets yet.
    pub(crate) fn new(vbuckets: u16) -> ChangeMarks {
        let lines = usize::from(vbuckets.div_ceil(GROUP_VBUCKETS)).div_ceil(GROUPS_IN_WORD * WORDS_IN_LINE);
        let marked = |_| Line(std::array::from_fn(|_| AtomicU64::new(u64::MAX)));
        ChangeMarks { lines: (0..lines).map(marked).collect(), vbuckets }
    }

    pub(crate) fn groups(&self) -> u16 {
        self.vbuckets.div_ceil(GROUP_VBUCKETS)
    }

    pub(crate) fn vbucket_count(&self) -> u16 {
        self.vbuckets
    }

    /// The vBuckets of a group.
    pub(crate) fn vbuckets(&self, group: u16) -> Range<u16> {
        let from = group * GROUP_VBUCKETS;
        from..self.vbuckets.min(from.saturating_add(GROUP_VBUCKETS))
    }

    /// A vBucket is about to be changed; the caller holds its lock.
    #[inline]
    pub(crate) fn mark(&self, vb: VbId) {
        let group = usize::from(vb.0 / GROUP_VBUCKETS);
        let marks = 0b11 << (group % GROUPS_IN_WORD * FIGURES);
        let at = group / GROUPS_IN_WORD;
        let word = &self.lines[at / WORDS_IN_LINE].0[at % WORDS_IN_LINE];
        if word.load(Ordering::Relaxed) & marks != marks {
            word.fetch_or(marks, Ordering::Relaxed);
        }
    }

    /// Takes the marks of a figure; tells the groups that had one.
    pub(crate) fn take(&self, figure: Figure, mut changed: impl FnMut(u16)) {
        let of_figure = OF_FIRST << figure as usize;
        for (at, word) in self.lines.iter().flat_map(|line| &line.0).enumerate() {
            if word.load(Ordering::Relaxed) & of_figure == 0 {
                continue;
            }
            let mut taken = word.fetch_and(!of_figure, Ordering::Relaxed) & of_figure;
            while taken != 0 {
                let group = at * GROUPS_IN_WORD + taken.trailing_zeros() as usize / FIGURES;
                taken &= taken - 1;
                if let Ok(group) = u16::try_from(group)
                    && group < self.groups()
                {
                    changed(group);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(marks: &ChangeMarks, figure: Figure) -> Vec<u16> {
        let mut all = Vec::new();
        marks.take(figure, |group| all.push(group));
        all
    }

    #[test]
    fn each_figure_is_told_of_each_change_once() {
        let marks = ChangeMarks::new(1_000);
        assert_eq!((marks.groups(), marks.vbuckets(0), marks.vbuckets(124)), (125, 0..8, 992..1_000));
        for figure in [Figure::Stats, Figure::Collections] {
            assert_eq!(taken(&marks, figure), (0..125).collect::<Vec<u16>>(), "nothing was made yet");
            assert!(taken(&marks, figure).is_empty());
        }
        [0, 7, 8, 255, 256, 999].into_iter().for_each(|vb| marks.mark(VbId(vb)));
        assert_eq!(taken(&marks, Figure::Collections), [0, 1, 31, 32, 124]);
        marks.mark(VbId(300));
        assert_eq!(taken(&marks, Figure::Stats), [0, 1, 31, 32, 37, 124]);
        assert_eq!(taken(&marks, Figure::Collections), [37]);
        assert!(taken(&marks, Figure::Stats).is_empty());
    }

    #[test]
    fn a_bucket_may_have_one_vbucket() {
        let marks = ChangeMarks::new(1);
        assert_eq!((taken(&marks, Figure::Stats), marks.vbuckets(0)), (vec![0], 0..1));
    }
}
