//! How often a document is used: eight bits that count up to some 65,000 accesses by counting the later ones seldom.
//!
//! A count of `c` is raised by one access in `c² × factor` (HiFi_MFU_eviction_policy.md, "Frequency Count": the counter
//! is full after about 65,000 accesses, which is what a factor of 0.012 comes to); the first nine always count.

use std::cell::Cell;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use crate::version::Version;

/// What a new document starts with (HiFi_MFU_eviction_policy.md, "Default MFU Value"): not cold at once, and there is
/// room for what is colder.
pub const INITIAL_FREQUENCY: u8 = 4;

/// Bits of the random numbers that decide.
const CHANCE_BITS: u32 = 24;

thread_local! {
    /// Every thread draws the same numbers in the same order: which access counts is of no interest to anybody.
    static DRAWN: Cell<u64> = const { Cell::new(0x9e37_79b9_7f4a_7c15) };
}

/// A random number of [`CHANCE_BITS`] bits, from a multiplicative congruential generator: one multiplication.
#[inline]
fn draw() -> u64 {
    DRAWN.with(|drawn| {
        // Steele, Vigna: Computationally easy, spectrally good multipliers, 2021
        let next = drawn.get().wrapping_mul(0xf135_7aea_2e62_a9c5);
        drawn.set(next);
        next >> (64 - CHANCE_BITS)
    })
}

/// How quickly frequencies rise in a bucket, in thousandths; may be changed while it serves.
#[derive(Debug)]
pub struct FrequencyFactor(AtomicU64);

impl Default for FrequencyFactor {
    fn default() -> FrequencyFactor {
        FrequencyFactor(AtomicU64::new(12))
    }
}

impl FrequencyFactor {
    /// The factor in thousandths; the larger it is, the more accesses a count takes.
    pub fn set(&self, thousandths: u64) {
        self.0.store(thousandths, Ordering::Relaxed);
    }

    /// Notes an access to a document. Two at once may count as one.
    #[inline]
    pub fn raise(&self, version: &Version) {
        let frequency = version.frequency();
        let count = frequency.load(Ordering::Relaxed);
        if let Some(raised) = self.raised(count, draw()) {
            frequency.store(raised, Ordering::Relaxed);
        }
    }

    /// The new version of a document takes over how often the old one was used, and this was one more access.
    #[inline]
    pub fn carry_over(&self, old: &Version, new: &Version) {
        let count = old.frequency().load(Ordering::Relaxed);
        new.frequency().store(self.raised(count, draw()).unwrap_or(count), Ordering::Relaxed);
    }

    /// One more, if the random number says so and it is not full.
    #[inline]
    fn raised(&self, count: u8, drawn: u64) -> Option<u8> {
        // 24 + 16 + 17 bits at most
        let chance = drawn * (u64::from(count) * u64::from(count)) * self.0.load(Ordering::Relaxed);
        if chance < 1000 << CHANCE_BITS { count.checked_add(1) } else { None }
    }
}

/// Another version of the same change (without its value, or moved) is used as often.
pub fn copy_frequency(from: &AtomicU8, to: &AtomicU8) {
    to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doc_key::DocKey;
    use crate::memory::Heap;
    use crate::version::{NewVersion, VersionMeta};

    fn version() -> Version {
        NewVersion::new(&Heap::default(), VersionMeta::default(), DocKey::new(b"k"), &[b"v"]).publish()
    }

    fn accesses_until(factor: &FrequencyFactor, count: u8) -> u64 {
        let version = version();
        let mut accesses = 0;
        while version.frequency().load(Ordering::Relaxed) < count {
            factor.raise(&version);
            accesses += 1;
        }
        accesses
    }

    #[test]
    fn the_first_accesses_count_and_the_counter_is_full_after_65_000() {
        let factor = FrequencyFactor::default();
        assert_eq!(accesses_until(&factor, 10), 10 - u64::from(INITIAL_FREQUENCY));
        let mean = (0..32).map(|_| accesses_until(&factor, u8::MAX)).sum::<u64>() / 32;
        assert!((60_000..72_000).contains(&mean), "{mean}");
        let full = version();
        full.frequency().store(u8::MAX, Ordering::Relaxed);
        (0..100_000).for_each(|_| factor.raise(&full));
        assert_eq!(full.frequency().load(Ordering::Relaxed), u8::MAX, "it does not begin again");
    }

    #[test]
    fn the_factor_decides_how_quickly_it_rises() {
        let factor = FrequencyFactor::default();
        let mean = |thousandths: u64| {
            factor.set(thousandths);
            (0..64).map(|_| accesses_until(&factor, 60)).sum::<u64>() / 64
        };
        assert_eq!(mean(0), 60 - u64::from(INITIAL_FREQUENCY), "every access counts");
        assert!(mean(12) * 3 < mean(60));
        factor.set(100_000);
        factor.raise(&version());
    }

    #[test]
    fn a_new_version_is_as_hot_as_the_old_one() {
        let (old, new) = (version(), version());
        old.frequency().store(200, Ordering::Relaxed);
        FrequencyFactor::default().carry_over(&old, &new);
        assert!((200..=201).contains(&new.frequency().load(Ordering::Relaxed)));
    }
}
