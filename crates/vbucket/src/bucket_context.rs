//! What all vBuckets of a bucket share.

use std::sync::Arc;

use base::{Account, Heap};

use crate::checkpoint_memory::CheckpointMemory;
use crate::hash_seed::HashSeed;

/// What all vBuckets of a bucket share: the seed of their hashes, and where their memory comes from.
#[derive(Clone)]
pub struct BucketContext {
    /// The seed of the hash tables.
    pub seed: Arc<HashSeed>,
    /// Where versions come from. Its account is charged with everything else, too.
    pub heap: Heap,
    /// What all checkpoints take together, and the limits they are held to.
    pub checkpoints: Arc<CheckpointMemory>,
}

impl BucketContext {
    /// A context whose hashes begin with these random numbers.
    pub fn new(first: u64, second: u64, heap: Heap) -> BucketContext {
        let checkpoints = Arc::new(CheckpointMemory::new(heap.account().clone()));
        BucketContext { seed: Arc::new(HashSeed::new(first, second)), heap, checkpoints }
    }

    /// What is charged with all memory.
    pub fn account(&self) -> &Account {
        self.heap.account()
    }
}
