//! Documents chosen by chance, each for itself: the same ones for the same seed, wherever a scan goes on.

use std::hash::{DefaultHasher, Hasher};

/// About so many documents of a collection, chosen by chance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sampling {
    /// How many.
    pub samples: u64,
    /// Another one chooses others.
    pub seed: u64,
}

impl Sampling {
    /// Chooses among so many documents; `None` if all of them are chosen.
    pub(super) fn of_documents(self, documents: u64) -> Option<Chooser> {
        if self.samples >= documents {
            return None;
        }
        // A hash below this is as likely as a document is to be chosen.
        let below = (u128::from(self.samples) << 64) / u128::from(documents);
        Some(Chooser { seed: self.seed, below: u64::try_from(below).unwrap_or(u64::MAX) })
    }
}

/// Chooses documents by their keys.
#[derive(Clone, Copy, Debug)]
pub(super) struct Chooser {
    seed: u64,
    below: u64,
}

impl Chooser {
    pub(super) fn chooses(&self, key: &[u8]) -> bool {
        let mut hasher = DefaultHasher::new();
        hasher.write_u64(self.seed);
        hasher.write(key);
        hasher.finish() < self.below
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(samples: u64, seed: u64) -> Vec<u32> {
        let chooser = Sampling { samples, seed }.of_documents(10_000).expect("not all");
        (0..10_000).filter(|n: &u32| chooser.chooses(n.to_string().as_bytes())).collect()
    }

    #[test]
    fn about_as_many_as_wanted_and_others_with_another_seed() {
        for samples in [10, 1_000, 9_000] {
            let count = chosen(samples, 1).len() as f64;
            let deviation = (samples as f64 * (1.0 - samples as f64 / 10_000.0)).sqrt();
            assert!((count - samples as f64).abs() < 5.0 * deviation, "{count} of {samples}");
        }
        assert_eq!(chosen(1_000, 1), chosen(1_000, 1));
        assert_ne!(chosen(1_000, 1), chosen(1_000, 2));
    }

    #[test]
    fn no_choice_where_all_are_wanted() {
        assert!(Sampling { samples: 10, seed: 0 }.of_documents(10).is_none());
        assert!(Sampling { samples: 10, seed: 0 }.of_documents(0).is_none());
        let none = Sampling { samples: 0, seed: 0 }.of_documents(3).expect("not all");
        assert!(!none.chooses(b"k"));
    }
}
