//! Which documents are cold: thresholds that the pager learns from the table while it goes through it.
//!
//! The idea is the learning strategy of HiFi_MFU_eviction_policy.md: a histogram of the frequencies of what may be
//! evicted, and a threshold at the percentile that has to go. Here the histogram counts bytes, because bytes are what
//! is to be freed, and of the documents right at the threshold only the needed share goes.

/// Documents that are looked at before the first is evicted (HiFi_MFU_eviction_policy.md, "Updating The Frequency
/// Counter Threshold"); as much as these counts what is known from the pass before.
const LEARNING_DOCUMENTS: u64 = 100;
const FREQUENCIES: usize = 256;

/// What is known about the frequencies of one kind of vBuckets.
pub(crate) struct Victims {
    /// Bytes that could be freed, by frequency.
    bytes: [f64; FREQUENCIES],
    /// Documents that these are of.
    documents: f64,
    /// Bytes of everything that was looked at, evictable or not.
    visited_bytes: f64,
    threshold: Threshold,
    /// Documents right at the threshold that should have gone so far, less those that went.
    owed: f64,
}

/// What is colder goes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Threshold {
    /// Documents of a lower frequency go,
    pub(crate) below: u16,
    /// and of those with this very frequency such a share.
    pub(crate) share: f64,
}

const NOTHING: Threshold = Threshold { below: 0, share: 0.0 };
const EVERYTHING: Threshold = Threshold { below: FREQUENCIES as u16, share: 0.0 };

impl Default for Victims {
    fn default() -> Victims {
        Victims {
            bytes: [0.0; FREQUENCIES],
            documents: 0.0,
            visited_bytes: 0.0,
            threshold: NOTHING,
            owed: 0.0,
        }
    }
}

impl Victims {
    /// A new pass: what is known counts for as much as a few documents from now on.
    pub(crate) fn begin_pass(&mut self) {
        let documents = LEARNING_DOCUMENTS as f64;
        if self.documents > documents {
            let scale = documents / self.documents;
            self.bytes.iter_mut().for_each(|bytes| *bytes *= scale);
            self.visited_bytes *= scale;
            self.documents = documents;
        }
    }

    /// Whether enough is known to begin with.
    pub(crate) fn knows_enough(&self) -> bool {
        self.documents >= LEARNING_DOCUMENTS as f64
    }

    /// Something was looked at, evictable or not.
    pub(crate) fn visit(&mut self, bytes: u64) {
        self.visited_bytes += bytes as f64;
    }

    /// It is evictable, and so much would be freed.
    pub(crate) fn learn(&mut self, frequency: u8, bytes: u64) {
        self.bytes[usize::from(frequency)] += bytes as f64;
        self.documents += 1.0;
    }

    /// How many of so many bytes in the table could be freed; all of them until something is known.
    pub(crate) fn evictable_of(&self, bytes: u64) -> f64 {
        let learnt: f64 = self.bytes.iter().sum();
        if self.visited_bytes > 0.0 { bytes as f64 * (learnt / self.visited_bytes) } else { bytes as f64 }
    }

    /// Sets the threshold so that this share of the evictable bytes goes.
    pub(crate) fn aim(&mut self, ratio: f64) {
        self.threshold = if ratio >= 1.0 { EVERYTHING } else { self.percentile(ratio) };
    }

    fn percentile(&self, ratio: f64) -> Threshold {
        let mut left = ratio * self.bytes.iter().sum::<f64>();
        for (frequency, bytes) in self.bytes.iter().enumerate() {
            if left <= *bytes {
                let share = if *bytes > 0.0 { left / bytes } else { 0.0 };
                return Threshold { below: frequency as u16, share };
            }
            left -= bytes;
        }
        EVERYTHING
    }

    /// The threshold that was set last.
    pub(crate) fn threshold(&self) -> Threshold {
        self.threshold
    }

    /// Whether a document of this frequency goes.
    pub(crate) fn is_cold(&mut self, frequency: u8) -> bool {
        let Threshold { below, share } = self.threshold;
        if u16::from(frequency) != below {
            return u16::from(frequency) < below;
        }
        self.owed += share;
        let goes = self.owed >= 1.0;
        if goes {
            self.owed -= 1.0;
        }
        goes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn learnt(frequencies: &[(u8, u64)]) -> Victims {
        let mut victims = Victims::default();
        for (frequency, documents) in frequencies {
            for _ in 0..*documents {
                victims.visit(100);
                victims.learn(*frequency, 100);
            }
        }
        victims
    }

    #[test]
    fn the_threshold_is_where_the_share_that_has_to_go_ends() {
        let mut victims = learnt(&[(0, 100), (4, 500), (9, 400)]);
        victims.aim(0.1);
        assert_eq!(victims.threshold(), Threshold { below: 0, share: 1.0 });
        victims.aim(0.35);
        assert_eq!(victims.threshold(), Threshold { below: 4, share: 0.5 });
        assert!(victims.is_cold(3) && !victims.is_cold(5));
        let gone = (0..1000).filter(|_| victims.is_cold(4)).count();
        assert!((499..=500).contains(&gone), "{gone}");
        victims.aim(1.0);
        assert!(victims.is_cold(255));
        victims.aim(0.0);
        assert!(!victims.is_cold(0));
    }

    #[test]
    fn large_documents_count_for_more() {
        let mut victims = learnt(&[(0, 100)]);
        victims.learn(7, 90_000);
        victims.aim(0.5);
        assert_eq!(victims.threshold().below, 7);
    }

    #[test]
    fn what_a_pass_learns_outweighs_the_one_before() {
        let mut victims = learnt(&[(200, 100_000)]);
        victims.begin_pass();
        assert!(victims.knows_enough() && !Victims::default().knows_enough());
        (0..1000).for_each(|_| victims.learn(3, 100));
        victims.aim(0.5);
        assert_eq!(victims.threshold().below, 3);
    }

    #[test]
    fn the_evictable_share_is_learnt() {
        let mut victims = Victims::default();
        assert_eq!(victims.evictable_of(1000), 1000.0);
        victims.visit(100);
        victims.learn(1, 25);
        assert_eq!(victims.evictable_of(1000), 250.0);
    }
}
