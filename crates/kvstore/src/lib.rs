//! A bucket's documents on disk: one trait, and the backends behind it.

mod collections;
mod compaction;
pub mod couch;
mod failure;
mod memory;
mod state;
mod store;
#[doc(hidden)]
pub mod suite;

pub use collections::CollectionStats;
pub use compaction::{Compacted, Compaction, CompactionProgress, Expired, FileAt, RolledBack};
pub use couch::{CompactionSteps, Couch, CouchConfig};
pub use failure::Failure;
pub use memory::Memory;
pub use state::{CheckpointType, FailoverEntry, VbStateDoc};
pub use store::{Counts, KvStore, SaveBatch, Saved, States, Stats, StoredVb, Values};
