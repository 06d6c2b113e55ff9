//! Gaps: moments at which the states of a vBucket cannot be told apart, because something between two changes is missing.

use std::collections::BTreeMap;

use super::position::{GroupCommit, LogPosition};

/// More of them than these are not kept apart: those that are close together become one.
const MOST_GAPS: usize = 1 << 16;

/// What is missing of a vBucket: the moments behind `from` and before `to`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Gap {
    /// The number of the epoch that it is of: it says nothing of the moments of another one.
    pub(crate) epoch: u64,
    pub(crate) vb: u16,
    /// The last seqno and moment before it.
    pub(crate) from: (u64, u64),
    /// The seqno and moment at which the vBucket was consistent again; the highest numbers if it never was.
    pub(crate) to: (u64, u64),
}

impl Gap {
    /// Whether the state at a moment is not known.
    pub(crate) fn hides(&self, moment: u64) -> bool {
        self.from.1 < moment && moment < self.to.1
    }
}

/// Pairs the beginnings and ends of gaps.
#[derive(Default)]
pub(super) struct GapTracker {
    epoch: u64,
    open: BTreeMap<u16, (u64, u64)>,
}

impl GapTracker {
    /// An epoch begins.
    pub(super) fn begin(&mut self, epoch: u64, positions: &[LogPosition]) {
        self.epoch = epoch;
        let with_gap = positions.iter().zip(0..).filter_map(|(at, vb)| Some((vb, at.gap?)));
        self.open = with_gap.collect();
    }

    /// A group ends.
    pub(super) fn commit(&mut self, commit: &GroupCommit, visit: &mut dyn FnMut(&Gap)) {
        for [vb, begins, seqno, moment] in &commit.gaps {
            let vb = *vb as u16;
            if *begins != 0 {
                self.open.insert(vb, (*seqno, *moment));
            } else if let Some(from) = self.open.remove(&vb) {
                visit(&Gap { epoch: self.epoch, vb, from, to: (*seqno, *moment) });
            }
        }
    }

    /// An epoch ends: what is open stays so.
    pub(super) fn end(&mut self, visit: &mut dyn FnMut(&Gap)) {
        for (vb, from) in std::mem::take(&mut self.open) {
            visit(&Gap { epoch: self.epoch, vb, from, to: (u64::MAX, u64::MAX) });
        }
    }
}

/// Moments that are in gaps of any vBucket, as ranges that do not overlap.
#[derive(Debug, Default)]
pub(crate) struct GapSet {
    /// By the moment before each of them, with the moment behind it.
    ranges: BTreeMap<u64, u64>,
    /// Ranges with less between them are one.
    grain_ns: u64,
}

impl GapSet {
    pub(crate) fn add(&mut self, from: u64, to: u64) {
        let (mut from, mut to) = (from, to);
        let before = self.ranges.range(..=from).next_back().map(|(begin, end)| (*begin, *end));
        if let Some((begin, end)) = before
            && end > from
        {
            (from, to) = (begin, to.max(end));
        }
        while let Some((begin, end)) = self.ranges.range(from..to).next().map(|(begin, end)| (*begin, *end)) {
            self.ranges.remove(&begin);
            to = to.max(end);
        }
        self.ranges.insert(from, to);
        while self.ranges.len() > MOST_GAPS {
            self.coarsen();
        }
    }

    fn coarsen(&mut self) {
        self.grain_ns = (self.grain_ns * 2).max(1_000_000);
        let mut coarse: Vec<(u64, u64)> = Vec::new();
        for (from, to) in std::mem::take(&mut self.ranges) {
            match coarse.last_mut() {
                Some(last) if from.saturating_sub(last.1) < self.grain_ns => last.1 = last.1.max(to),
                _ => coarse.push((from, to)),
            }
        }
        self.ranges = coarse.into_iter().collect();
    }

    /// The moments around a moment that are in no gap: the moment itself if it is in none.
    pub(crate) fn around(&self, moment: u64) -> (u64, u64) {
        match self.ranges.range(..moment).next_back() {
            Some((from, to)) if *to > moment => (*from, *to),
            _ => (moment, moment),
        }
    }

    /// How many there are, and how long they take together, up to a moment; with one that is open since `open`, if any.
    pub(crate) fn up_to(&self, horizon: u64, open: Option<u64>) -> (u64, u64) {
        let (mut count, mut total) = (0, 0);
        let mut add = |(from, to): (u64, u64)| {
            if from <= horizon {
                (count, total) = (count + 1, total + (to.min(horizon + 1) - from));
            }
        };
        // What is open hides all that follows.
        let open = open.map(|from| self.around(from.saturating_add(1)).0.min(from));
        let before = self.ranges().take_while(|(from, _)| open.is_none_or(|open| *from < open));
        before.for_each(&mut add);
        open.into_iter().for_each(|from| add((from, u64::MAX)));
        (count, total)
    }

    pub(crate) fn ranges(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.ranges.iter().map(|(from, to)| (*from, *to))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_open_gap_counts_up_to_the_horizon_with_what_it_overlaps() {
        let mut set = GapSet::default();
        for (from, to) in [(10, 20), (15, 25), (40, 50)] {
            set.add(from, to);
        }
        assert_eq!(set.up_to(100, None), (2, 25));
        assert_eq!(set.up_to(45, None), (2, 15 + 6));
        assert_eq!(set.up_to(39, None), (1, 15));
        assert_eq!(set.up_to(100, Some(60)), (3, 25 + 41));
        assert_eq!(set.up_to(100, Some(45)), (2, 15 + 61), "it goes on from the second one");
        assert_eq!(set.up_to(100, Some(25)), (2, 15 + 76));
        assert_eq!(set.up_to(100, Some(5)), (1, 96));
        assert_eq!(set.up_to(100, Some(101)), (2, 25), "the log does not reach so far");
        assert_eq!(GapSet::default().up_to(100, None), (0, 0));
    }
}
