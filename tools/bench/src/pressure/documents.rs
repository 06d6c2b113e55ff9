//! The documents of the load: sizes and values follow from their numbers, so that what is read can be checked.

use base::VbId;
use base::vbucket_map::vbucket_of;
use harness::rng::Rng;

/// As the servers that are measured have it.
const VBUCKETS: u16 = 1024;
const FILLER_BYTES: usize = 1 << 20;
const HOT_BYTES: usize = 512;
/// Of a thousand documents so many have 4 KiB, and so many 100 KiB; the others 512 bytes on average.
const MIDDLE_SHARE: u64 = 50;
const LARGE_SHARE: u64 = 2;
const NOT_SMALL: u64 = LARGE_SHARE + MIDDLE_SHARE;
const MIDDLE_BYTES: usize = 4 << 10;
const LARGE_BYTES: usize = 100 << 10;
/// What a size is on average.
pub const MEAN_BYTES: u64 = (948 * 512 + MIDDLE_SHARE * (4 << 10) + LARGE_SHARE * (100 << 10)) / 1000;

/// A set of documents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Set {
    /// Few, which are read all the time: 512 bytes each.
    Hot,
    /// What writers write while memory is not short.
    Calm,
    /// What they write until memory is short, and on.
    Stream,
}

/// Makes and checks documents.
pub struct Documents {
    /// What values are cut from.
    filler: Vec<u8>,
}

impl Set {
    /// The key of a document and its vBucket.
    pub fn key(self, number: u64) -> (VbId, String) {
        let key = match self {
            Set::Hot => format!("hot-{number:016}"),
            Set::Calm => format!("calm-{number:015}"),
            Set::Stream => format!("stream-{number:013}"),
        };
        (vbucket_of(key.as_bytes(), VBUCKETS), key)
    }

    fn bytes(self, number: u64) -> usize {
        let mut rng = Rng::new(number);
        if self == Set::Hot {
            return HOT_BYTES;
        }
        match rng.below(1000) {
            0..LARGE_SHARE => LARGE_BYTES,
            LARGE_SHARE..NOT_SMALL => MIDDLE_BYTES,
            _ => 24 + rng.below(2 * (512 - 24)) as usize,
        }
    }
}

impl Documents {
    /// Takes a second, hardly.
    pub fn new() -> Documents {
        let mut rng = Rng::new(1);
        let mut word = || rng.next().to_le_bytes();
        Documents { filler: (0..(FILLER_BYTES + LARGE_BYTES) / 8).flat_map(|_| word()).collect() }
    }

    /// The value of a document: its number, and nothing that could be compressed.
    pub fn value(&self, set: Set, number: u64) -> Vec<u8> {
        let mut value = number.to_be_bytes().to_vec();
        value.extend_from_slice(self.rest(set, number));
        value
    }

    fn rest(&self, set: Set, number: u64) -> &[u8] {
        let start = Rng::new(!number).below(FILLER_BYTES as u64) as usize;
        &self.filler[start..start + set.bytes(number) - 8]
    }

    /// Whether this is the value of that document.
    pub fn is_value(&self, set: Set, number: u64, value: &[u8]) -> bool {
        value.split_first_chunk().is_some_and(|(first, rest)| {
            u64::from_be_bytes(*first) == number && rest == self.rest(set, number)
        })
    }
}

/// Chooses ranks by Zipf's law with the skew YCSB made usual, 0.99: rank `k` in proportion to `1 / k^0.99`.
pub struct Zipf {
    /// The sums up to each rank.
    sums: Vec<f64>,
}

impl Zipf {
    /// For ranks from 0 to `ranks - 1`.
    pub fn new(ranks: u32) -> Zipf {
        let mut sum = 0.0;
        let sums = (1..=ranks).map(|rank| {
            sum += f64::from(rank).powf(-0.99);
            sum
        });
        Zipf { sums: sums.collect() }
    }

    /// The next rank.
    pub fn next(&self, rng: &mut Rng) -> u64 {
        let all = self.sums.last().copied().unwrap_or_default();
        let drawn = (rng.next() >> 11) as f64 / (1u64 << 53) as f64 * all;
        let rank = self.sums.partition_point(|sum| *sum <= drawn);
        rank.min(self.sums.len().saturating_sub(1)) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_of_mixed_sizes_and_can_be_checked() {
        let documents = Documents::new();
        let mut total = 0;
        for number in 0..20_000 {
            let value = documents.value(Set::Stream, number);
            assert!(documents.is_value(Set::Stream, number, &value));
            assert!(!documents.is_value(Set::Stream, number + 1, &value));
            total += value.len() as u64;
        }
        let mean = total as f64 / 20_000.0 / MEAN_BYTES as f64;
        assert!((0.9..1.1).contains(&mean), "{mean}");
        assert_eq!(documents.value(Set::Hot, 7).len(), 512);
        assert!(!documents.is_value(Set::Hot, 7, b""));
    }

    #[test]
    fn the_first_rank_comes_most_often() {
        let (zipf, mut rng) = (Zipf::new(100), Rng::new(3));
        let mut seen = [0u32; 100];
        (0..100_000).for_each(|_| seen[zipf.next(&mut rng) as usize] += 1);
        let expected =
            |rank: f64| rank.powf(-0.99) / (1..=100).map(|k| f64::from(k).powf(-0.99)).sum::<f64>();
        for rank in [1, 2, 10] {
            let share = f64::from(seen[rank - 1]) / 1e5;
            assert!((share / expected(rank as f64) - 1.0).abs() < 0.1, "{rank}: {share}");
        }
    }
}
