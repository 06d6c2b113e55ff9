//! The secret that decides where keys land in the hash tables of a bucket.

use std::hash::Hasher;

use base::DocKey;
use foldhash::SharedSeed;
use foldhash::quality::FoldHasher;

/// Seed of a bucket's hash tables: shared by its vBuckets, so a key is hashed once, outside any lock.
///
/// Without it a client could choose keys that all land in one bucket of the table.
pub struct HashSeed {
    own: u64,
    shared: SharedSeed,
}

impl HashSeed {
    /// A seed from two random numbers.
    pub fn new(first: u64, second: u64) -> HashSeed {
        HashSeed { own: first, shared: SharedSeed::from_u64(second) }
    }

    /// The hash of a key: the low bits choose the bucket, the next ones the tag in the slot.
    #[inline]
    pub fn hash(&self, key: DocKey<'_>) -> u64 {
        let mut hasher = FoldHasher::with_seed(self.own, &self.shared);
        hasher.write_u32(key.collection.0);
        hasher.write(key.key);
        hasher.finish()
    }
}
