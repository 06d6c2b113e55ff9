//! What all vBuckets of a bucket share.

use std::sync::Arc;

use base::{Account, FrequencyFactor, Heap};

use crate::checkpoint_memory::CheckpointMemory;
use crate::filter::FilterSettings;
use crate::hash_seed::HashSeed;

/// What all vBuckets of a bucket share: the seed of their hashes, where their memory comes from, and how frequencies rise.
#[derive(Clone)]
pub struct BucketContext {
    /// The seed of the hash tables.
    pub seed: Arc<HashSeed>,
    /// Where versions come from. Its account is charged with everything else, too.
    pub heap: Heap,
    /// How quickly access frequencies rise.
    pub frequency: Arc<FrequencyFactor>,
    /// Whether the bucket has no disk: its vBuckets keep their items in seqno order, too.
    pub is_ephemeral: bool,
    /// What all checkpoints take together, and the limits they are held to.
    pub checkpoints: Arc<CheckpointMemory>,
    /// What filters of evicted keys are made with.
    pub filters: Arc<FilterSettings>,
}

impl BucketContext {
    /// A context whose hashes begin with these random numbers.
    pub fn new(first: u64, second: u64, heap: Heap) -> BucketContext {
        let checkpoints = Arc::new(CheckpointMemory::new(heap.account().clone()));
        let seed = Arc::new(HashSeed::new(first, second));
        BucketContext {
            seed,
            heap,
            frequency: Arc::default(),
            is_ephemeral: false,
            filters: Arc::default(),
            checkpoints,
        }
    }

    /// The context of a bucket that has no disk.
    pub fn ephemeral(self) -> BucketContext {
        BucketContext { is_ephemeral: true, ..self }
    }

    /// What is charged with all memory.
    pub fn account(&self) -> &Account {
        self.heap.account()
    }
}
