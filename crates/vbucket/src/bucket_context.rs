//! What all vBuckets of a bucket share.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use base::{Account, FrequencyFactor, Heap, Part};

use crate::checkpoint_memory::CheckpointMemory;
use crate::cursor::CursorName;
use crate::filter::FilterSettings;
use crate::hash_seed::HashSeed;
use crate::hlc::ClockLimits;

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
    /// The name of the flushers' cursors.
    pub flusher: CursorName,
    /// How far clocks may be off.
    pub clock: Arc<ClockLimits>,
    /// What filters of evicted keys are made with.
    pub filters: Arc<FilterSettings>,
    /// Whether a vBucket without a topology is no majority of anything, as in a cluster, where others may have it, too.
    /// Else it is alone, and a majority.
    pub needs_topology: bool,
    /// Whether any vBucket ever had a topology.
    has_topologies: AtomicBool,
    /// Whether a history of changes is kept: active vBuckets have every version saved.
    keeps_history: AtomicBool,
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
            clock: Arc::default(),
            filters: Arc::default(),
            checkpoints,
            flusher: "persistence".into(),
            needs_topology: false,
            has_topologies: AtomicBool::new(false),
            keeps_history: AtomicBool::new(false),
        }))
    }

    /// The same for a bucket of a cluster: a vBucket that was not told who else has it commits nothing.
    /// To be called before anything is made of it.
    pub fn in_cluster(mut self) -> BucketContext {
        Arc::get_mut(&mut self.0).expect("nobody shares it yet").needs_topology = true;
        self
    }

    /// Whether all vBuckets are alone, as far as can be told without asking one: then sync writes are made as
    /// [`base::SyncWrite::Alone`]. A vBucket that is not alone takes them, too.
    pub fn is_alone(&self) -> bool {
        !self.needs_topology && !self.has_topologies.load(Ordering::Relaxed)
    }

    pub(crate) fn note_topology(&self) {
        self.has_topologies.store(true, Ordering::Relaxed);
    }

    /// Whether a history of changes is kept.
    pub fn keeps_history(&self) -> bool {
        self.keeps_history.load(Ordering::SeqCst)
    }

    /// Whether a history is kept from now on; each vBucket follows with [`crate::follow_history`].
    pub fn keep_history(&self, keeps: bool) {
        self.keeps_history.store(keeps, Ordering::SeqCst);
    }

    /// What is charged with all memory.
    pub fn account(&self) -> &Account {
        self.heap.account()
    }
}
