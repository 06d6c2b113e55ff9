//! What all vBuckets of a bucket share.

use std::ops::Deref;
use std::sync::Arc;

use base::{Account, FrequencyFactor, Heap, Part};

use crate::checkpoint_memory::CheckpointMemory;
use crate::filter::FilterSettings;
use crate::hash_seed::HashSeed;

/// What all vBuckets of a bucket share; a clone is the same, and costs a pointer.
#[derive(Clone)]
pub struct BucketContext(Arc<Shared>);

/// The seed of the hashes, where memory comes from, and how frequencies rise.
pub struct Shared {
    /// The seed of the hash tables.
    pub seed: HashSeed,
    /// Where versions come from. Its account is charged with everything else, too.
    pub heap: Heap,
    /// Where the lines of the hash tables come from; charges the same account.
    pub tables: Heap,
    /// How quickly access frequencies rise.
    pub frequency: Arc<FrequencyFactor>,
    /// Whether the bucket has no disk: its vBuckets keep their items in seqno order, too.
    pub is_ephemeral: bool,
    /// What all checkpoints take together, and the limits they are held to.
    pub checkpoints: Arc<CheckpointMemory>,
    /// What filters of evicted keys are made with.
    pub filters: Arc<FilterSettings>,
}

impl Deref for BucketContext {
    type Target = Shared;

    #[inline]
    fn deref(&self) -> &Shared {
        &self.0
    }
}

impl BucketContext {
    /// The context of a bucket on disk, whose hashes begin with these random numbers.
    pub fn new(first: u64, second: u64, heap: Heap) -> BucketContext {
        BucketContext::of_kind(first, second, heap, false)
    }

    /// The context of a bucket that has no disk.
    pub fn ephemeral(first: u64, second: u64, heap: Heap) -> BucketContext {
        BucketContext::of_kind(first, second, heap, true)
    }

    fn of_kind(first: u64, second: u64, heap: Heap, is_ephemeral: bool) -> BucketContext {
        let checkpoints = Arc::new(CheckpointMemory::new(heap.account().clone()));
        BucketContext(Arc::new(Shared {
            seed: HashSeed::new(first, second),
            tables: Heap::of_part(heap.account().clone(), Part::HashTables),
            heap,
            frequency: Arc::default(),
            is_ephemeral,
            filters: Arc::default(),
            checkpoints,
        }))
    }

    /// What is charged with all memory.
    pub fn account(&self) -> &Account {
        self.heap.account()
    }
}
