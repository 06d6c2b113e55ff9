//! Merging ascending runs.

use std::cmp::Ordering;

use base::Version;

use super::{AHEAD, common_prefix, part_of};

/// What is left of a run, whose first key's part is at hand.
#[derive(Clone, Copy)]
struct Run {
    part: u64,
    next: usize,
    end: usize,
}

struct Merge {
    items: Vec<Option<Version>>,
    /// Bytes that all keys begin with.
    shared: usize,
    /// A heap: the run with the lowest key first.
    runs: Vec<Run>,
    merged: Vec<Version>,
    /// Part of the key that was merged last.
    last_part: u64,
}

/// Merges the ascending runs that start at `starts`, keeping the newest version of each key.
pub(super) fn merge(items: Vec<Option<Version>>, starts: &[usize]) -> Vec<Version> {
    let ends = starts[1..].iter().copied().chain([items.len()]);
    let key = |i: usize| items[i].as_ref().expect("not merged yet").stored_key();
    // all of a run's keys lie between its first and its last, so what these have in common all have
    let shared =
        common_prefix(starts.iter().copied().zip(ends.clone()).flat_map(|(s, e)| [key(s), key(e - 1)]));
    let runs: Vec<Run> = starts
        .iter()
        .zip(ends)
        .map(|(&next, end)| Run { part: part_of(key(next), shared), next, end })
        .collect();
    let merged = Vec::with_capacity(items.len());
    let mut merge = Merge { items, shared, runs, merged, last_part: 0 };
    for place in (0..merge.runs.len() / 2).rev() {
        merge.sink(place);
    }
    while merge.runs.len() > 1 {
        merge.advance();
    }
    merge.rest()
}

impl Merge {
    fn item(&self, i: usize) -> &Version {
        self.items[i].as_ref().expect("not merged yet")
    }

    fn compare(&self, a: &Run, b: &Run) -> Ordering {
        a.part.cmp(&b.part).then_with(|| self.item(a.next).stored_key().cmp(self.item(b.next).stored_key()))
    }

    /// Restores the heap after the run at `place` moved on.
    fn sink(&mut self, mut place: usize) {
        let run = self.runs[place];
        loop {
            let mut child = 2 * place + 1;
            let Some(left) = self.runs.get(child) else { break };
            let mut lower = left;
            if let Some(right) = self.runs.get(child + 1)
                && self.compare(right, left).is_lt()
            {
                (child, lower) = (child + 1, right);
            }
            if self.compare(&run, lower).is_le() {
                break;
            }
            self.runs[place] = *lower;
            place = child;
        }
        self.runs[place] = run;
    }

    /// Takes from the lowest run until it is no longer the lowest.
    fn advance(&mut self) {
        let second = match (&self.runs[1], self.runs.get(2)) {
            (left, Some(right)) if self.compare(right, left).is_lt() => *right,
            (left, _) => *left,
        };
        let mut run = self.runs[0];
        loop {
            self.take(run.next, run.part);
            run.next += 1;
            if run.next == run.end {
                self.runs.swap_remove(0);
                return self.sink(0);
            }
            if let Some(Some(soon)) = self.items.get(run.next + AHEAD) {
                soon.prefetch();
            }
            run.part = part_of(self.item(run.next).stored_key(), self.shared);
            if self.compare(&run, &second).is_gt() {
                self.runs[0] = run;
                return self.sink(0);
            }
        }
    }

    /// Takes what is left of the last run.
    fn rest(mut self) -> Vec<Version> {
        let run = self.runs[0];
        for i in run.next..run.end {
            let part = part_of(self.item(i).stored_key(), self.shared);
            self.take(i, part);
        }
        self.merged
    }

    /// Appends a version, unless that key stands at the end already: then the newer one stays.
    fn take(&mut self, i: usize, part: u64) {
        let item = self.items[i].take().expect("not merged yet");
        if part == self.last_part
            && let Some(last) = self.merged.last_mut()
            && last.stored_key() == item.stored_key()
        {
            if last.meta().by_seqno < item.meta().by_seqno {
                *last = item;
            }
            return;
        }
        self.last_part = part;
        self.merged.push(item);
    }
}
