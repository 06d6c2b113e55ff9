//! How long things took: counts of times in buckets that grow with the time, with their sum and the longest.
//!
//! A bucket is at most an eighth as wide as the time where it begins, and each whole microsecond begins a bucket, so
//! that counts can be told in microseconds without a bucket that belongs to two of them.
//! Recording is a search for the highest bit and three additions.
//! [`Histogram::record_alone`] adds without a locked instruction, for histograms that one thread writes;
//! [`Histogram::record`] is for those that several threads write, but none of them often.
//!
//! *Units*: times are nanoseconds. Inside, a time is counted in steps of 1/1024 microsecond.
//!
//! *Thread safety*: any thread may read while others write. What it reads may lack what is recorded meanwhile.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// Buckets between a power of two of steps and the next.
const PARTS: usize = 8;
const PARTS_BITS: u32 = PARTS.trailing_zeros();
/// Steps of a microsecond.
const STEPS_BITS: u32 = 10;
/// Longer times (from 2^32 microseconds, a bit more than an hour) are counted in the last bucket.
const MAX_BITS: u32 = STEPS_BITS + 32;
/// Buckets of a histogram.
pub const BUCKETS: usize = (MAX_BITS - PARTS_BITS + 1) as usize * PARTS;

/// The bucket of a time.
fn bucket_of(ns: u64) -> usize {
    // 128 / 125 is 1024 / 1000.
    let steps = ns.min(1 << MAX_BITS) * 128 / 125;
    let steps = steps.min((1 << MAX_BITS) - 1);
    let Some(shift) = (u64::BITS - steps.leading_zeros()).checked_sub(PARTS_BITS + 1) else {
        return steps as usize;
    };
    shift as usize * PARTS + (steps >> shift) as usize
}

/// The first step of a bucket.
fn first_step(bucket: usize) -> u64 {
    if bucket < PARTS {
        return bucket as u64;
    }
    let shift = bucket / PARTS - 1;
    ((bucket % PARTS + PARTS) as u64) << shift
}

/// The smallest time of a bucket, in nanoseconds.
fn first_ns(bucket: usize) -> u64 {
    (first_step(bucket) * 125).div_ceil(128)
}

struct Cells {
    counts: [AtomicU64; BUCKETS],
    sum_ns: AtomicU64,
    longest_ns: AtomicU64,
}

impl Cells {
    fn empty() -> Box<Cells> {
        Box::new(Cells {
            counts: std::array::from_fn(|_| AtomicU64::new(0)),
            sum_ns: AtomicU64::new(0),
            longest_ns: AtomicU64::new(0),
        })
    }
}

/// A histogram that is written; it takes no memory before the first time is recorded.
#[derive(Default)]
pub struct Histogram(OnceLock<Box<Cells>>);

impl Histogram {
    /// Something took so long. Several threads may do so at the same time.
    pub fn record(&self, ns: u64) {
        let cells = self.0.get_or_init(Cells::empty);
        cells.counts[bucket_of(ns)].fetch_add(1, Ordering::Relaxed);
        cells.sum_ns.fetch_add(ns, Ordering::Relaxed);
        if ns > cells.longest_ns.load(Ordering::Relaxed) {
            cells.longest_ns.fetch_max(ns, Ordering::Relaxed);
        }
    }

    /// Something took so long. Only one thread may do so; a time that another one records meanwhile can get lost.
    #[inline]
    pub fn record_alone(&self, ns: u64) {
        let cells = self.0.get_or_init(Cells::empty);
        let add = |cell: &AtomicU64, n: u64| {
            cell.store(cell.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
        };
        add(&cells.counts[bucket_of(ns)], 1);
        add(&cells.sum_ns, ns);
        if ns > cells.longest_ns.load(Ordering::Relaxed) {
            cells.longest_ns.store(ns, Ordering::Relaxed);
        }
    }

    /// Whether nothing was ever recorded.
    pub fn is_unused(&self) -> bool {
        self.0.get().is_none()
    }

    /// What was recorded so far.
    pub fn counts(&self) -> HistogramCounts {
        let mut counts = HistogramCounts::default();
        self.add_to(&mut counts);
        counts
    }

    /// Adds what was recorded so far to other counts.
    pub fn add_to(&self, sum: &mut HistogramCounts) {
        let Some(cells) = self.0.get() else { return };
        for (count, cell) in sum.counts.iter_mut().zip(&cells.counts) {
            *count += cell.load(Ordering::Relaxed);
        }
        sum.sum_ns = sum.sum_ns.wrapping_add(cells.sum_ns.load(Ordering::Relaxed));
        sum.longest_ns = sum.longest_ns.max(cells.longest_ns.load(Ordering::Relaxed));
    }
}

/// What a histogram, or several together, had recorded at some moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HistogramCounts {
    counts: Box<[u64]>,
    sum_ns: u64,
    longest_ns: u64,
}

impl Default for HistogramCounts {
    fn default() -> HistogramCounts {
        HistogramCounts { counts: vec![0; BUCKETS].into_boxed_slice(), sum_ns: 0, longest_ns: 0 }
    }
}

/// Times of one range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimeRange {
    /// The first time of the range.
    pub from: u64,
    /// The first time behind it.
    pub to: u64,
    /// Times in it.
    pub count: u64,
}

impl HistogramCounts {
    /// Adds up what several histograms recorded.
    pub fn sum<'a>(histograms: impl IntoIterator<Item = &'a Histogram>) -> HistogramCounts {
        let mut sum = HistogramCounts::default();
        histograms.into_iter().for_each(|histogram| histogram.add_to(&mut sum));
        sum
    }

    /// Adds other counts.
    pub fn add(&mut self, other: &HistogramCounts) {
        self.counts.iter_mut().zip(&other.counts).for_each(|(sum, count)| *sum += count);
        self.sum_ns = self.sum_ns.wrapping_add(other.sum_ns);
        self.longest_ns = self.longest_ns.max(other.longest_ns);
    }

    /// What was recorded since `earlier`. If the longest time ever is not among it, the longest is taken from its bucket:
    /// at most an eighth more than what is true.
    pub fn since(&self, earlier: &HistogramCounts) -> HistogramCounts {
        let counts = self.counts.iter().zip(&earlier.counts).map(|(now, then)| now.saturating_sub(*then));
        let counts: Box<[u64]> = counts.collect();
        let last = counts.iter().rposition(|count| *count > 0);
        let end_ns = last.map_or(0, |at| if at + 1 < BUCKETS { first_ns(at + 1) - 1 } else { u64::MAX });
        HistogramCounts {
            counts,
            sum_ns: self.sum_ns.saturating_sub(earlier.sum_ns),
            longest_ns: self.longest_ns.min(end_ns),
        }
    }

    /// Times that were recorded.
    pub fn total(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Their sum, in nanoseconds.
    pub fn sum_ns(&self) -> u64 {
        self.sum_ns
    }

    /// The longest, in nanoseconds.
    pub fn longest_ns(&self) -> u64 {
        self.longest_ns
    }

    /// The shortest, in nanoseconds: the start of a bucket, so at most an eighth less than what is true. 0 without times.
    pub fn shortest_ns(&self) -> u64 {
        self.counts.iter().position(|count| *count > 0).map_or(0, first_ns)
    }

    /// The mean, in nanoseconds; 0 without times.
    pub fn mean_ns(&self) -> u64 {
        self.sum_ns.checked_div(self.total()).unwrap_or(0)
    }

    /// So many of a thousand times were no longer than this, in nanoseconds: the end of a bucket, so at most an eighth
    /// more than what is true. 0 without times.
    pub fn percentile_ns(&self, per_mille: u64) -> u64 {
        let wanted = (self.total() * per_mille).div_ceil(1000).max(1);
        let mut counted = 0;
        let bucket = self.counts.iter().position(|count| {
            counted += count;
            counted >= wanted
        });
        let end = bucket.filter(|at| *at + 1 < BUCKETS).map_or(u64::MAX, |at| first_ns(at + 1) - 1);
        end.min(self.longest_ns)
    }

    /// The buckets that are not empty, in nanoseconds.
    pub fn ranges_ns(&self) -> impl Iterator<Item = TimeRange> {
        let seen = self.counts.iter().enumerate().filter(|(_, count)| **count > 0);
        seen.map(|(at, count)| TimeRange { from: first_ns(at), to: first_ns(at + 1), count: *count })
    }

    /// The buckets that are not empty, in microseconds: those within the same microsecond are one.
    pub fn ranges_us(&self) -> Vec<TimeRange> {
        let mut ranges: Vec<TimeRange> = Vec::new();
        for (at, count) in self.counts.iter().enumerate().filter(|(_, count)| **count > 0) {
            let from = first_step(at) >> STEPS_BITS;
            let to = first_step(at + 1).div_ceil(1 << STEPS_BITS);
            match ranges.last_mut().filter(|last| last.from == from) {
                Some(last) => last.count += count,
                None => ranges.push(TimeRange { from, to, count: *count }),
            }
        }
        ranges
    }

    /// How many times were below 2^power microseconds, of each of some powers that rise.
    pub fn below_us_powers(&self, powers: impl Iterator<Item = u32>) -> impl Iterator<Item = u64> {
        let (mut from, mut below) = (0, 0);
        powers.map(move |power| {
            let end = (STEPS_BITS + power).min(MAX_BITS);
            let bucket = ((end - PARTS_BITS + 1) as usize * PARTS).min(BUCKETS);
            below += self.counts[from..bucket].iter().sum::<u64>();
            from = bucket;
            below
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_follow_each_other_and_are_narrow() {
        for bucket in 0..BUCKETS {
            let (first, next) = (first_ns(bucket), first_ns(bucket + 1));
            assert!(first < next, "bucket {bucket}");
            assert_eq!((bucket_of(first), bucket_of(next - 1)), (bucket, bucket));
            assert!(next - first <= (first / PARTS as u64).max(1) + 1, "bucket {bucket}");
        }
        assert_eq!(first_ns(BUCKETS), (1 << 32) * 1000);
        assert_eq!((bucket_of(first_ns(BUCKETS)), bucket_of(u64::MAX)), (BUCKETS - 1, BUCKETS - 1));
    }

    #[test]
    fn each_microsecond_begins_a_bucket() {
        let firsts: Vec<u64> = (0..=BUCKETS).map(first_ns).collect();
        for us in (0..8).chain((1..29).map(|power| 8 << power)) {
            assert!(firsts.contains(&(us * 1000)), "{us}");
        }
    }

    #[test]
    fn what_two_ways_of_recording_say_is_the_same() {
        let (alone, together) = (Histogram::default(), Histogram::default());
        assert!(alone.is_unused());
        for ns in [0, 1, 999, 1000, 1_000_000, 1 << 40] {
            alone.record_alone(ns);
            together.record(ns);
        }
        let counts = alone.counts();
        assert!(!alone.is_unused());
        assert_eq!(counts, together.counts());
        assert_eq!((counts.total(), counts.longest_ns()), (6, 1 << 40));
        assert_eq!(counts.sum_ns(), 1 + 999 + 1000 + 1_000_000 + (1 << 40));
        assert_eq!(counts.mean_ns(), counts.sum_ns() / 6);
    }

    #[test]
    fn ranges_are_told_in_either_unit() {
        let histogram = Histogram::default();
        [10, 500, 999, 1000, 1100, 9500, 20_000].into_iter().for_each(|ns| histogram.record(ns));
        let counts = histogram.counts();
        let us: Vec<_> = counts.ranges_us().iter().map(|range| (range.from, range.to, range.count)).collect();
        assert_eq!(us, [(0, 1, 3), (1, 2, 2), (9, 10, 1), (20, 22, 1)]);
        let first = counts.ranges_ns().next().expect("there are times");
        assert_eq!((first.from, first.to, first.count), (10, 11, 1));
        assert_eq!(counts.ranges_ns().map(|range| range.count).sum::<u64>(), 7);
    }

    #[test]
    fn counts_below_a_power_of_two_are_exact() {
        let histogram = Histogram::default();
        [0, 999, 1000, 1999, 2000, 1_023_999, 1_024_000].into_iter().for_each(|ns| histogram.record(ns));
        let counts = histogram.counts();
        let below: Vec<u64> = counts.below_us_powers([0, 1, 9, 10, 11, 40].into_iter()).collect();
        assert_eq!(below, [2, 4, 5, 6, 7, 7]);
    }

    #[test]
    fn percentiles_are_ends_of_buckets_and_never_above_the_longest() {
        let histogram = Histogram::default();
        assert_eq!((histogram.counts().percentile_ns(500), histogram.counts().mean_ns()), (0, 0));
        (0..990).for_each(|_| histogram.record(700));
        (0..9).for_each(|_| histogram.record(5000));
        let of = |per_mille| histogram.counts().percentile_ns(per_mille);
        assert_eq!((of(500), of(990), of(991), of(1000)), (749, 749, 5000, 5000));
        histogram.record(1 << 62);
        assert_eq!((of(990), of(1000)), (749, 1 << 62));
    }

    #[test]
    fn counts_are_added_and_subtracted() {
        let (one, other) = (Histogram::default(), Histogram::default());
        one.record(5000);
        let earlier = one.counts();
        one.record(7000);
        other.record(9000);
        let since = one.counts().since(&earlier);
        assert_eq!((since.total(), since.sum_ns()), (1, 7000));
        let mut sum = HistogramCounts::sum([&one, &other]);
        assert_eq!((sum.total(), sum.sum_ns(), sum.longest_ns()), (3, 21_000, 9000));
        sum.add(&since);
        assert_eq!((sum.total(), sum.sum_ns()), (4, 28_000));
    }
}
