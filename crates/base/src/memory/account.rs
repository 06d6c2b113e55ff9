//! What somebody holds in memory, by what it is held for.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

/// What memory is held for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Part {
    /// Versions: metadata, keys and values, whoever holds them.
    Documents,
    /// Hash tables, without the versions.
    HashTables,
    /// Checkpoints and cursors, without the versions.
    Checkpoints,
    /// Buffers of streams, without the versions.
    Streams,
    /// What the store keeps: batches on their way to the files, filters, buffers.
    Storage,
    /// Everything else: failover tables, locks, waiting readers.
    Other,
}

/// How many parts there are.
pub const PARTS: usize = 6;

impl Part {
    /// All of them, in the order of [`Parts`].
    pub const ALL: [Part; PARTS] =
        [Part::Documents, Part::HashTables, Part::Checkpoints, Part::Streams, Part::Storage, Part::Other];

    /// Its name in stats.
    pub fn name(self) -> &'static str {
        match self {
            Part::Documents => "documents",
            Part::HashTables => "hash_tables",
            Part::Checkpoints => "checkpoints",
            Part::Streams => "streams",
            Part::Storage => "storage",
            Part::Other => "other",
        }
    }
}

/// Bytes by part.
pub type Parts = [i64; PARTS];

struct Inner {
    parts: [AtomicI64; PARTS],
}

/// A memory account; a clone is the same account.
#[derive(Clone)]
pub struct Account(Arc<Inner>);

impl Default for Account {
    fn default() -> Account {
        Account::new()
    }
}

impl Account {
    /// An empty account.
    pub fn new() -> Account {
        Account(Arc::new(Inner { parts: std::array::from_fn(|_| AtomicI64::new(0)) }))
    }

    /// Charges so many bytes.
    #[inline]
    pub fn charge(&self, part: Part, bytes: usize) {
        self.0.parts[part as usize].fetch_add(bytes as i64, Ordering::Relaxed);
    }

    /// Gives so many bytes back that were charged before.
    #[inline]
    pub fn release(&self, part: Part, bytes: usize) {
        self.0.parts[part as usize].fetch_sub(bytes as i64, Ordering::Relaxed);
    }

    /// About how many bytes are in use.
    #[inline]
    pub fn estimate(&self) -> u64 {
        self.exact().iter().sum::<i64>().max(0) as u64
    }

    /// Exactly how many bytes are in use, by part.
    pub fn exact(&self) -> Parts {
        std::array::from_fn(|part| self.0.parts[part].load(Ordering::Relaxed))
    }
}
