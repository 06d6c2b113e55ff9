//! Merging ascending runs, two at a time, the shortest first.

use std::borrow::Borrow;
use std::cmp::{Ordering, Reverse};

use base::Version;

use super::part::Parts;
use super::{key, newest_first};

/// The runs of a batch: `numbers` are the parts of all keys.
pub(super) struct Merge<'a, V> {
    pub(super) items: &'a [V],
    pub(super) parts: &'a Parts,
    pub(super) numbers: &'a [u64],
}

impl<V: Borrow<Version>> Merge<'_, V> {
    /// Merges the runs that start at `starts`, each of which has every key once; returns where the newest version of
    /// each key stands, in order of the keys.
    pub(super) fn run(&self, starts: &[u32]) -> Vec<u32> {
        let n = u32::try_from(self.items.len()).expect("a batch has fewer versions");
        let ends = starts[1..].iter().copied().chain([n]);
        let mut runs: Vec<Vec<u32>> =
            starts.iter().zip(ends).map(|(&start, end)| (start..end).collect()).collect();
        loop {
            runs.sort_by_key(|run| Reverse(run.len()));
            match (runs.pop(), runs.pop()) {
                (Some(shortest), Some(shorter)) => runs.push(self.merge(&shortest, &shorter)),
                (last, _) => return last.unwrap_or_default(),
            }
        }
    }

    fn merge(&self, a: &[u32], b: &[u32]) -> Vec<u32> {
        let mut merged = Vec::with_capacity(a.len() + b.len());
        let (mut i, mut j) = (0, 0);
        while let (Some(&x), Some(&y)) = (a.get(i), b.get(j)) {
            let order = self.compare(x, y);
            i += usize::from(order.is_le());
            j += usize::from(order.is_ge());
            merged.push(match order {
                Ordering::Less => x,
                Ordering::Greater => y,
                Ordering::Equal => self.newer(x, y),
            });
        }
        merged.extend_from_slice(&a[i..]);
        merged.extend_from_slice(&b[j..]);
        merged
    }

    fn compare(&self, x: u32, y: u32) -> Ordering {
        let (x, y) = (x as usize, y as usize);
        let order = self.numbers[x].cmp(&self.numbers[y]);
        if order.is_ne() || self.parts.exact {
            return order;
        }
        self.parts.behind(key(&self.items[x]), key(&self.items[y]))
    }

    fn newer(&self, x: u32, y: u32) -> u32 {
        if self.parts.in_order {
            return x.max(y);
        }
        if newest_first(&self.items[x as usize], &self.items[y as usize]).is_gt() { y } else { x }
    }
}
