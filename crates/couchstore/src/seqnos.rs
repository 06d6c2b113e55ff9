//! What a batch does to the tree by seqno: the seqnos it brings, and those of the documents it replaces.

/// Marks a seqno that no document of the batch has.
const NONE: u32 = u32::MAX;
/// Seqnos of a batch are put in order by counting if they lie within so many times as many numbers.
const DENSE: u64 = 4;
/// Fewer numbers are sorted by comparing.
const RADIX_FROM: usize = 1024;
/// Bits of a number that one pass of a radix sort looks at, and how many passes at most pay.
const RADIX_BITS: u32 = 11;
const RADIX_PASSES: u32 = 3;

/// Collected while the by-id tree is rewritten: 4 to 16 bytes for each document, 16 for each that is replaced.
#[derive(Default)]
pub(crate) struct SeqnoEdits {
    /// Documents of the batch in order of seqno; while they are collected and the seqnos are dense, one place for each
    /// seqno from the lowest on.
    order: Vec<u32>,
    /// Documents with their seqnos while they are collected and these are not dense.
    sparse: Vec<(u64, u32)>,
    is_dense: bool,
    lowest: u64,
    highest: u64,
    /// Seqnos of documents that are replaced.
    removed: Vec<u64>,
    spare: Vec<u64>,
}

impl SeqnoEdits {
    /// Begins to collect those of a batch of `n` documents with seqnos from `lowest` to `highest`.
    pub(crate) fn begin(&mut self, n: usize, lowest: u64, highest: u64) {
        self.order.clear();
        self.sparse.clear();
        self.removed.clear();
        (self.lowest, self.highest) = (lowest, highest);
        let range = highest.saturating_sub(lowest).saturating_add(1);
        self.is_dense = range <= DENSE * n as u64;
        if self.is_dense {
            self.order.resize(range as usize, NONE);
        } else {
            self.sparse.reserve_exact(n);
        }
    }

    /// Document `index` of the batch has this seqno. Of several with the same one the first stays.
    pub(crate) fn add(&mut self, seqno: u64, index: u32) {
        if self.is_dense {
            let place = &mut self.order[(seqno - self.lowest) as usize];
            *place = (*place).min(index);
        } else {
            self.sparse.push((seqno, index));
        }
    }

    /// A document with this seqno is replaced; `more` further ones may follow at most.
    pub(crate) fn remove(&mut self, seqno: u64, more: usize) {
        if self.removed.len() == self.removed.capacity() {
            // grown by half at a time: twice as much would be held while it is copied
            let grown = (self.removed.len() / 2).max(1024).min(more + 1);
            self.removed.reserve_exact(grown);
        }
        self.removed.push(seqno);
    }

    /// All are collected: brings them in order. A seqno that is removed and added again is added only.
    pub(crate) fn finish(&mut self) {
        sort(&mut self.removed, &mut self.spare);
        self.removed.dedup();
        let is_apart = self.removed.last().is_none_or(|&last| last < self.lowest);
        if self.is_dense {
            if !is_apart {
                let (order, lowest) = (&self.order, self.lowest);
                let is_added = |seqno: u64| {
                    let place = seqno.checked_sub(lowest).and_then(|at| order.get(usize::try_from(at).ok()?));
                    place.is_some_and(|&index| index != NONE)
                };
                self.removed.retain(|&seqno| !is_added(seqno));
            }
            self.order.retain(|&index| index != NONE);
        } else {
            self.sparse.sort_unstable();
            self.sparse.dedup_by_key(|(seqno, _)| *seqno);
            if !is_apart {
                let added = &self.sparse;
                self.removed
                    .retain(|removed| added.binary_search_by_key(removed, |(seqno, _)| *seqno).is_err());
            }
            self.order.extend(self.sparse.iter().map(|(_, index)| index));
        }
    }

    /// Documents of the batch in order of seqno.
    pub(crate) fn order(&self) -> &[u32] {
        &self.order
    }

    /// Seqnos to be removed, in order; none of them is added.
    pub(crate) fn removed(&self) -> &[u64] {
        &self.removed
    }

    /// Whether all that is removed comes before all that is added, as it does unless a batch is saved again.
    pub(crate) fn is_apart(&self) -> bool {
        self.removed.last().is_none_or(|&last| last < self.lowest)
    }

    /// The highest seqno that is added.
    pub(crate) fn highest(&self) -> u64 {
        self.highest
    }

    /// Gives back what only large batches need.
    pub(crate) fn trim(&mut self, entries: usize) {
        for vec in [&mut self.removed, &mut self.spare] {
            vec.clear();
            vec.shrink_to(entries);
        }
        self.order.clear();
        self.order.shrink_to(entries);
        self.sparse.clear();
        self.sparse.shrink_to(entries);
    }
}

/// Sorts numbers, by digits where they are many and close together.
fn sort(numbers: &mut Vec<u64>, spare: &mut Vec<u64>) {
    if numbers.is_sorted() {
        return;
    }
    let lowest = numbers.iter().copied().min().unwrap_or_default();
    let highest = numbers.iter().copied().max().unwrap_or_default();
    let passes = (u64::BITS - (highest - lowest).leading_zeros()).div_ceil(RADIX_BITS);
    if numbers.len() < RADIX_FROM || passes > RADIX_PASSES {
        return numbers.sort_unstable();
    }
    spare.clear();
    spare.resize(numbers.len(), 0);
    for pass in 0..passes {
        sort_by_digit(numbers, spare, lowest, pass * RADIX_BITS);
        std::mem::swap(numbers, spare);
    }
}

/// Puts numbers into `sorted` by the digit that begins at bit `shift` of their distance from `lowest`, otherwise as
/// they stand.
fn sort_by_digit(numbers: &[u64], sorted: &mut [u64], lowest: u64, shift: u32) {
    const DIGITS: usize = 1 << RADIX_BITS;
    let digit = |n: u64| ((n - lowest) >> shift) as usize % DIGITS;
    let mut places = [0u32; DIGITS];
    for &n in numbers {
        places[digit(n)] += 1;
    }
    let mut sum = 0;
    for place in &mut places {
        sum += std::mem::replace(place, sum);
    }
    for &n in numbers {
        let place = &mut places[digit(n)];
        sorted[*place as usize] = n;
        *place += 1;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn numbers_are_sorted_whichever_way(
            from in 0u64..1 << 47, width in 1u32..47, seed: u64, n in 0usize..5000,
        ) {
            let mut state = seed | 1;
            let mut numbers: Vec<u64> = (0..n)
                .map(|_| {
                    state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    from + (state >> 17) % (1 << width)
                })
                .collect();
            let mut expected = numbers.clone();
            expected.sort_unstable();
            sort(&mut numbers, &mut Vec::new());
            prop_assert_eq!(numbers, expected);
        }

        #[test]
        fn edits_are_what_a_map_would_make(
            added in proptest::collection::btree_set(0u64..300, 1..40),
            spread in prop_oneof![Just(1u64), Just(1000)],
            removed in proptest::collection::btree_set(0u64..300, 0..40),
        ) {
            let added: Vec<u64> = added.into_iter().map(|seqno| seqno * spread).collect();
            let removed: Vec<u64> = removed.into_iter().map(|seqno| seqno * spread).collect();
            let mut edits = SeqnoEdits::default();
            edits.begin(added.len(), added[0], *added.last().expect("one at least"));
            for (i, seqno) in added.iter().enumerate().rev() {
                edits.add(*seqno, i as u32);
            }
            removed.iter().rev().for_each(|seqno| edits.remove(*seqno, 0));
            edits.finish();
            prop_assert_eq!(edits.order().to_vec(), (0..added.len() as u32).collect::<Vec<_>>());
            let left: Vec<u64> = removed.into_iter().filter(|seqno| !added.contains(seqno)).collect();
            prop_assert_eq!(edits.is_apart(), left.last().is_none_or(|last| *last < added[0]));
            prop_assert_eq!(edits.removed(), left);
        }
    }
}
