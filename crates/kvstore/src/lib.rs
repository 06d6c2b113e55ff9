//! A bucket's documents on disk: one trait, and the backends behind it.

mod collections;
pub mod couch;
mod failure;
mod memory;
mod sort;
mod state;
mod store;
#[doc(hidden)]
pub mod suite;

pub use collections::CollectionStats;
pub use couch::{Couch, CouchConfig};
pub use failure::Failure;
pub use memory::Memory;
pub use sort::{newest_of, release, sort_newest, sort_newest_from};
pub use state::{CheckpointType, FailoverEntry, VbStateDoc};
pub use store::{Counts, KvStore, SaveBatch, Saved, States, Stats, StoredVb, Values};
