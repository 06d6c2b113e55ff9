//! Which form values are held and sent in, and what the compressor came to.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::bucket_core::Core;

/// What the compressor did so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CompressionStats {
    /// Versions that it looked at.
    pub visited: u64,
    /// Values that it compressed.
    pub compressed: u64,
    /// Bytes that their versions took before,
    pub before_bytes: u64,
    /// and afterwards.
    pub after_bytes: u64,
    /// Values that would have gained too little.
    pub gained_little: u64,
    /// Values that changed, or had to stay, while they were compressed.
    pub overtaken: u64,
    /// How often it went through all vBuckets.
    pub rounds: u64,
}

impl CompressionStats {
    /// Bytes saved by what was compressed.
    pub fn saved_bytes(&self) -> u64 {
        self.before_bytes - self.after_bytes
    }
}

/// The counts behind [`CompressionStats`].
#[derive(Default)]
pub(crate) struct CompressionCounters {
    pub(crate) visited: AtomicU64,
    pub(crate) compressed: AtomicU64,
    pub(crate) before_bytes: AtomicU64,
    pub(crate) after_bytes: AtomicU64,
    pub(crate) gained_little: AtomicU64,
    pub(crate) overtaken: AtomicU64,
    pub(crate) rounds: AtomicU64,
}

impl CompressionCounters {
    /// A value was compressed: its version took so many bytes before, and so many afterwards.
    pub(crate) fn count_compressed(&self, before_bytes: usize, after_bytes: usize) {
        self.compressed.fetch_add(1, Ordering::Relaxed);
        self.before_bytes.fetch_add(before_bytes as u64, Ordering::Relaxed);
        self.after_bytes.fetch_add(after_bytes as u64, Ordering::Release);
    }
}

/// Compressing values that are cold.
pub struct Compression {
    pub(crate) core: Arc<Core>,
    pub(crate) counters: CompressionCounters,
}

impl Compression {
    pub(crate) fn new(core: &Arc<Core>) -> Compression {
        Compression { core: Arc::clone(core), counters: CompressionCounters::default() }
    }

    /// What the compressor did so far.
    pub fn compression_stats(&self) -> CompressionStats {
        let counters = &self.counters;
        // First what is added last, so that nothing negative is ever saved.
        let after_bytes = counters.after_bytes.load(Ordering::Acquire);
        CompressionStats {
            visited: counters.visited.load(Ordering::Relaxed),
            compressed: counters.compressed.load(Ordering::Relaxed),
            before_bytes: counters.before_bytes.load(Ordering::Relaxed),
            after_bytes,
            gained_little: counters.gained_little.load(Ordering::Relaxed),
            overtaken: counters.overtaken.load(Ordering::Relaxed),
            rounds: counters.rounds.load(Ordering::Relaxed),
        }
    }
}
