//! How long commands take: a histogram for each command, written by one worker, read by anybody.
//!
//! Measured are the requests of one turn of a connection in [`SAMPLED_TURNS`]: from the end of the request before it
//! in the turn (from the start of the turn, for the first one) until its answer stands in the output, system calls not
//! included. Requests that are answered later, because they wait for the disk, are not measured.
//! A turn that is not measured costs one addition, and no look at the clock.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// One of so many turns is measured.
pub const SAMPLED_TURNS: u64 = 64;

/// Buckets between a power of two and the next: a bucket is at most an eighth wide.
const PARTS: usize = 8;
const PARTS_BITS: u32 = PARTS.trailing_zeros();
/// Longer times (from 2^36 ns, a bit more than a minute) are counted in the last bucket.
const MAX_BITS: u32 = 36;
const BUCKETS: usize = (MAX_BITS - PARTS_BITS + 1) as usize * PARTS;

/// Adds without a locked instruction: there is one writer.
fn bump(counter: &AtomicU64) -> u64 {
    let before = counter.load(Ordering::Relaxed);
    counter.store(before.wrapping_add(1), Ordering::Relaxed);
    before
}

/// Counts of times, in buckets that grow with the time.
struct Counts([AtomicU64; BUCKETS]);

/// The bucket of a time: below 8 ns one for each, then 8 for each power of two.
fn bucket_of(ns: u64) -> usize {
    let ns = ns.min((1 << MAX_BITS) - 1);
    let Some(shift) = (u64::BITS - ns.leading_zeros()).checked_sub(PARTS_BITS + 1) else {
        return ns as usize;
    };
    shift as usize * PARTS + (ns >> shift) as usize
}

/// The smallest time of a bucket.
fn start_of(bucket: usize) -> u64 {
    if bucket < PARTS {
        return bucket as u64;
    }
    let shift = bucket / PARTS - 1;
    ((bucket % PARTS + PARTS) as u64) << shift
}

/// One histogram of one worker; it takes no memory before the first time is recorded.
#[derive(Default)]
pub struct Series(OnceLock<Box<Counts>>);

impl Series {
    /// Something took so long.
    pub fn record(&self, ns: u64) {
        let counts = self.0.get_or_init(|| Box::new(Counts(std::array::from_fn(|_| AtomicU64::new(0)))));
        bump(&counts.0[bucket_of(ns)]);
    }
}

/// The histograms of one worker.
pub struct Timings {
    turns: AtomicU64,
    by_opcode: [Series; 256],
}

impl Default for Timings {
    fn default() -> Timings {
        Timings { turns: AtomicU64::new(0), by_opcode: std::array::from_fn(|_| Series::default()) }
    }
}

impl Timings {
    /// A turn of a connection begins. Whether it is measured.
    pub fn begin_turn(&self) -> bool {
        bump(&self.turns).is_multiple_of(SAMPLED_TURNS)
    }

    /// A measured request took so long.
    pub fn record(&self, opcode: u8, ns: u64) {
        self.by_opcode[usize::from(opcode)].record(ns);
    }
}

/// The histogram of one command over all workers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Histogram {
    /// First and last nanosecond of each bucket that is not empty, and how many requests took so long.
    pub buckets: Vec<(u64, u64, u64)>,
}

impl Histogram {
    /// Adds up what the workers measured of a command.
    pub fn of<'a>(workers: impl Iterator<Item = &'a Timings>, opcode: u8) -> Histogram {
        Histogram::sum(workers.map(|worker| &worker.by_opcode[usize::from(opcode)]))
    }

    /// Adds up what several workers measured of one thing.
    pub fn sum<'a>(workers: impl Iterator<Item = &'a Series>) -> Histogram {
        let mut sums = [0_u64; BUCKETS];
        for counts in workers.filter_map(|series| series.0.get()) {
            sums.iter_mut().zip(&counts.0).for_each(|(sum, count)| *sum += count.load(Ordering::Relaxed));
        }
        let seen = sums.into_iter().enumerate().filter(|(_, count)| *count > 0);
        Histogram { buckets: seen.map(|(at, count)| (start_of(at), start_of(at + 1) - 1, count)).collect() }
    }

    /// Requests measured.
    pub fn total(&self) -> u64 {
        self.buckets.iter().map(|(_, _, count)| count).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_follow_each_other_and_are_narrow() {
        for bucket in 0..BUCKETS {
            let (first, next) = (start_of(bucket), start_of(bucket + 1));
            assert_eq!((bucket_of(first), bucket_of(next - 1)), (bucket, bucket));
            assert!(next - first <= (first / PARTS as u64).max(1), "bucket {bucket}");
        }
        assert_eq!(start_of(BUCKETS), 1 << MAX_BITS);
        assert_eq!(bucket_of(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn workers_are_added_up() {
        let workers = [Timings::default(), Timings::default()];
        assert!(workers[0].begin_turn() && !workers[0].begin_turn());
        workers[0].record(1, 5);
        workers[1].record(1, 5);
        workers[1].record(1, 1000);
        workers[1].record(2, 1);
        let histogram = Histogram::of(workers.iter(), 1);
        assert_eq!(histogram.buckets, [(5, 5, 2), (960, 1023, 1)]);
        assert_eq!(histogram.total(), 3);
        assert_eq!(Histogram::of(workers.iter(), 3).total(), 0);
    }
}
