//! Randomness that a seed decides.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::env::Random;

/// The increment of SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, 2014).
const GAMMA: u64 = 0x9e37_79b9_7f4a_7c15;

pub(super) fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// A small generator (SplitMix64) for workloads and faults: the same seed gives the same numbers for ever.
#[derive(Clone, Debug)]
pub struct SplitMix64 {
    state: u64,
}

impl SplitMix64 {
    /// The generator that `seed` decides.
    pub fn new(seed: u64) -> SplitMix64 {
        SplitMix64 { state: seed }
    }

    /// The next number.
    pub fn next_u64(&mut self) -> u64 {
        self.state = self.state.wrapping_add(GAMMA);
        mix(self.state)
    }

    /// A number from 0 to `n - 1`; 0 if `n` is 0.
    pub fn below(&mut self, n: u64) -> u64 {
        ((u128::from(self.next_u64()) * u128::from(n)) >> 64) as u64
    }

    /// A number from `low` to `high`, both included.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        assert!(low <= high, "a range has its ends in order");
        low + self.below((high - low).saturating_add(1))
    }

    /// True in `times` of `of` cases.
    pub fn chance(&mut self, times: u64, of: u64) -> bool {
        self.below(of) < times
    }

    /// An independent generator for a part of the work.
    pub fn fork(&mut self) -> SplitMix64 {
        SplitMix64::new(self.next_u64())
    }
}

/// The simulated source: SplitMix64 behind an atomic.
#[derive(Debug)]
pub struct SimRandom {
    state: AtomicU64,
}

impl SimRandom {
    /// The source that `seed` decides.
    pub fn new(seed: u64) -> SimRandom {
        SimRandom { state: AtomicU64::new(seed) }
    }
}

impl Random for SimRandom {
    fn fill(&self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            let word = self.next_u64().to_le_bytes();
            chunk.copy_from_slice(&word[..chunk.len()]);
        }
    }

    fn next_u64(&self) -> u64 {
        mix(self.state.fetch_add(GAMMA, Ordering::SeqCst).wrapping_add(GAMMA))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_seed_decides_everything() {
        // First outputs of SplitMix64 for seed 1234567, as published with the algorithm.
        let mut numbers = SplitMix64::new(1_234_567);
        assert_eq!(numbers.next_u64(), 6_457_827_717_110_365_317);
        assert_eq!(numbers.next_u64(), 3_203_168_211_198_807_973);
        let source = SimRandom::new(1_234_567);
        let mut bytes = [0; 12];
        source.fill(&mut bytes);
        assert_eq!(bytes[..8], 6_457_827_717_110_365_317_u64.to_le_bytes());
        assert_eq!(bytes[8..], 3_203_168_211_198_807_973_u64.to_le_bytes()[..4]);
    }

    #[test]
    fn numbers_stay_in_their_range() {
        let mut numbers = SplitMix64::new(1);
        for _ in 0..1000 {
            assert!(numbers.below(3) < 3);
            assert!((5..=7).contains(&numbers.between(5, 7)));
        }
        assert_eq!(numbers.below(0), 0);
    }
}
