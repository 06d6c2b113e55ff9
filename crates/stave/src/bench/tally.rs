//! What was counted: latencies, misses, refusals, bytes.

use std::collections::BTreeMap;

use hdrhistogram::Histogram;

use super::traffic::Kind;

/// Latencies are told apart to three digits, and to 64 ns at the low end.
const LOWEST_NS: u64 = 100;
/// Whatever takes longer is counted as this long.
const HIGHEST_NS: u64 = 100_000_000_000;
const DIGITS: u8 = 3;

/// Counts of one worker, or of all together.
#[derive(Clone, Debug)]
pub struct Tally {
    /// Latencies of gets that were answered, in nanoseconds; a miss is an answer.
    pub gets: Histogram<u64>,
    /// Latencies of sets that were stored.
    pub sets: Histogram<u64>,
    /// Gets of documents that are not there.
    pub misses: u64,
    /// Operations that were refused, by status.
    pub refused: BTreeMap<u16, u64>,
    /// Operations whose connection broke before they were answered.
    pub cut: u64,
    /// Operations that were due at the end and had not begun.
    pub unsent: u64,
    /// Bytes received.
    pub bytes_in: u64,
    /// Bytes sent.
    pub bytes_out: u64,
}

impl Default for Tally {
    fn default() -> Tally {
        Tally::new()
    }
}

impl Tally {
    /// Nothing counted yet.
    pub fn new() -> Tally {
        let histogram =
            Histogram::new_with_bounds(LOWEST_NS, HIGHEST_NS, DIGITS).expect("the bounds are sound");
        Tally {
            gets: histogram.clone(),
            sets: histogram,
            misses: 0,
            refused: BTreeMap::new(),
            cut: 0,
            unsent: 0,
            bytes_in: 0,
            bytes_out: 0,
        }
    }

    /// Counts an operation that was answered.
    #[inline]
    pub fn answered(&mut self, kind: Kind, latency_ns: u64) {
        match kind {
            Kind::Get => self.gets.saturating_record(latency_ns),
            Kind::Set => self.sets.saturating_record(latency_ns),
        }
    }

    /// Counts an operation that was refused.
    pub fn refused(&mut self, status_code: u16) {
        *self.refused.entry(status_code).or_default() += 1;
    }

    /// Operations that were answered.
    pub fn operations(&self) -> u64 {
        self.gets.len() + self.sets.len()
    }

    /// Operations that failed, for whatever reason.
    pub fn failed(&self) -> u64 {
        self.cut + self.refused.values().sum::<u64>()
    }

    /// Adds another worker's counts.
    pub fn add(&mut self, other: &Tally) {
        self.gets.add(&other.gets).expect("all histograms have the same bounds");
        self.sets.add(&other.sets).expect("all histograms have the same bounds");
        self.misses += other.misses;
        self.cut += other.cut;
        self.unsent += other.unsent;
        self.bytes_in += other.bytes_in;
        self.bytes_out += other.bytes_out;
        for (code, count) in &other.refused {
            *self.refused.entry(*code).or_default() += count;
        }
    }
}
