//! Which documents are read, one after the other.

use base::env::sim::SplitMix64;

/// Reads of documents by number.
pub struct Trace {
    /// Its name.
    pub name: &'static str,
    /// How many documents there are.
    pub documents: u32,
    /// Which are read.
    pub reads: Vec<u32>,
    /// The first reads, which count for nothing: everybody learns from them.
    pub unmeasured: usize,
}

/// Scans begin after so many other reads a document,
const READS_BETWEEN_SCANS: u32 = 3;

struct Zipf {
    cumulated: Vec<f64>,
    /// Which document has which rank.
    by_rank: Vec<u32>,
}

impl Zipf {
    fn new(documents: u32, theta: f64, numbers: &mut SplitMix64) -> Zipf {
        let mut by_rank: Vec<u32> = (0..documents).collect();
        for at in (1..by_rank.len()).rev() {
            by_rank.swap(at, numbers.below(at as u64 + 1) as usize);
        }
        let mut sum = 0.0;
        let weight = |rank: u32| {
            sum += f64::from(rank).powf(-theta);
            sum
        };
        Zipf { cumulated: (1..=documents).map(weight).collect(), by_rank }
    }

    fn next(&self, numbers: &mut SplitMix64) -> u32 {
        let all = self.cumulated[self.cumulated.len() - 1];
        let at = (numbers.next_u64() >> 11) as f64 / (1_u64 << 53) as f64 * all;
        let rank = self.cumulated.partition_point(|sum| *sum <= at).min(self.by_rank.len() - 1);
        self.by_rank[rank]
    }
}

/// Few documents often, many seldom: Zipf with the usual skew of 0.99.
pub fn zipf(documents: u32, reads: usize, seed: u64) -> Trace {
    let mut numbers = SplitMix64::new(seed);
    let zipf = Zipf::new(documents, 0.99, &mut numbers);
    let reads: Vec<u32> = (0..reads).map(|_| zipf.next(&mut numbers)).collect();
    Trace { name: "zipf 0.99", documents, unmeasured: reads.len() / 3, reads }
}

/// The same with somebody who reads everything in order, once in a while.
pub fn scanned_zipf(documents: u32, reads: usize, seed: u64) -> Trace {
    let mut numbers = SplitMix64::new(seed);
    let zipf = Zipf::new(documents, 0.99, &mut numbers);
    let mut all = Vec::with_capacity(reads);
    while all.len() < reads {
        all.extend((0..documents * READS_BETWEEN_SCANS).map(|_| zipf.next(&mut numbers)));
        all.extend(0..documents);
    }
    all.truncate(reads);
    Trace { name: "zipf 0.99, scans", documents, unmeasured: reads / 3, reads: all }
}

/// Zipf whose popular documents become others half-way: how quickly the old ones are forgotten.
pub fn moving_zipf(documents: u32, reads: usize, seed: u64) -> Trace {
    let (mut first, second) =
        (zipf(documents, reads / 2, seed), zipf(documents, reads - reads / 2, seed + 1));
    first.reads.extend(second.reads);
    Trace { name: "zipf 0.99, moving", documents, unmeasured: reads / 3, reads: first.reads }
}
