//! A bucket's documents on disk: one trait, and the backends behind it.

#[doc(hidden)]
pub mod catalog;
mod change;
mod collections;
mod compaction;
mod copying;
pub mod couch;
mod failure;
mod files;
#[doc(hidden)]
pub mod fuzz;
#[doc(hidden)]
pub mod journal;
mod journaled;
mod log;
mod manifest;
mod memory;
pub mod migrate;
mod moving;
mod nothing;
mod opening;
mod read_only;
pub mod repair;
pub mod replace;
mod rocks;
mod rocks_config;
mod sort;
mod state;
mod store;

pub use change::{Change, ChangesWanted, Reading};
pub use collections::CollectionStats;
pub use compaction::{Compacted, Compaction, CompactionProgress, Expired, FileAt, RolledBack};
pub use couch::{
    CatalogReport, CompactionSteps, Couch, CouchConfig, check_catalog, check_recorded, content_meta_of,
    rev_meta_of,
};
pub use couchstore::FORMAT as COUCH_FORMAT;
pub use failure::{Failure, RocksFault};
pub use files::{FilesConfig, StorageBackend};
pub use journal::JournalStats;
pub use journaled::{Journaled, JournaledConfig};
pub use log::{Log, LogConfig, LogReport, check_log, is_log_file};
pub use logstore::{
    HistoryUsage, LogStats, MANIFEST_FORMAT, Retention as HistoryRetention, SEGMENT_FORMAT,
    Tuning as LogTuning,
};
pub use manifest::{StoredCollection, StoredDrop, StoredManifest, StoredScope};
pub use memory::Memory;
pub use moving::{
    LONGEST_WAIT, MIGRATION, Movable, MoveProgress, MoveRefused, MoveStage, MoveStep, OpenStore, is_moving,
};
pub use nothing::Nothing;
pub use read_only::open_to_read;
pub use rocks::{check_rocks, open_rocks};
pub use rocks_config::{HAS_ROCKSDB, RocksConfig, is_rocks_folder};
pub use sort::{
    add_newest_of, add_with_past_of, newest_of, release, sort_newest, sort_newest_from, sort_with_past,
};
pub use state::{CheckpointType, FailoverEntry, VbStateDoc};
pub use store::{
    Background, Counts, ForwardingSnapshot, KvStore, SaveBatch, Snapshot, States, Stats, StoredVb, Usage,
    Values, VbucketFile, in_history, is_gone,
};
