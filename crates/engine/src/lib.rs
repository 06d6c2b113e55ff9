//! One bucket: joins memory and disk and runs the background steps; knows no protocol and no socket.

mod account_check;
mod backfill;
mod bucket;
mod checkpoint_recovery;
mod claims;
mod clean_mark;
mod collections;
mod coming;
mod compaction_queue;
mod compactor;
mod completion;
mod compression;
mod compressor;
mod config;
mod counters;
mod defragmenter;
mod disk_state;
mod disposal;
mod durability;
mod empty;
mod ephemeral;
mod evict;
mod evicted;
mod expiry;
mod expiry_pager;
mod failure;
mod failure_log;
mod fetch_queue;
mod fetcher;
mod filer;
mod flush_queue;
mod flusher;
mod follower;
mod identity;
mod inline_flush;
mod keeper;
mod loader;
mod lock;
mod manifest_file;
mod memory;
mod open;
mod pager;
mod persistence;
mod prepare_followers;
mod range_scan;
mod read;
mod refusal;
mod replica;
mod rollback;
pub mod settings;
mod shard_guard;
mod small_files;
mod standing;
mod stats;
mod store;
mod stream;
mod subdocument;
mod tasks;
mod tombstone_purger;
mod topology;
mod traffic;
mod unreadable;
mod update;
pub mod value;
mod vbuckets;
mod victims;
mod warmup;
mod whole;
mod with_meta;
mod write;
mod writer;

pub use account_check::AccountFigures;
pub use backfill::{Backfill, BackfillReading, BackfillScope, Backfilled, Backfills, Frames, WriteChanges};
pub use bucket::{Bucket, Mutated};
pub use checkpoint_recovery::CheckpointMemoryStats;
pub use clean_mark::forget_clean_stop;
pub use collections::{CollectionTotals, ManifestRefusal, NextIds};
pub use coming::{Coming, Step};
pub use compaction_queue::{CompactOutcome, CompactRequest, CompactionRun, CompactionStats};
pub use completion::{Completer, Completion, completion};
pub use compression::CompressionStats;
pub use config::{
    BucketConfig, BucketKind, DEFAULT_COMPACT_MIN_WASTE_BYTES, DEFAULT_COMPACT_PERCENT, DEFAULT_PURGE_AGE_S,
    EvictionPolicy, MOST_RANGE_SCANS,
};
pub use counters::OpCounts;
pub use defragmenter::DefragmenterStats;
pub use disk_state::SaveStats;
pub use durability::{DEFAULT_SYNC_WRITE_TIMEOUT, Durable, SyncOutcome};
pub use ephemeral::{MemoryRange, Resumed};
pub use evict::EvictionStats;
pub use expiry::ExpiryStats;
pub use failure::Failure;
pub use failure_log::admit_log;
pub use fetch_queue::{FetchPin, Fetched};
pub use fetcher::{FetchStats, read_from_disk};
pub use flush_queue::FlushQueue;
pub use flusher::Progress;
pub use follower::Follower;
pub use inline_flush::{InlineFlush, InlineFlushOutcome};
pub use keeper::{Chore, ChoreId, ChoreStats, Next, Slice, TIME_SLICE};
pub use memory::MemoryAccount;
pub use persistence::MAX_WAITERS;
pub use range_scan::{
    RangeScanFigures, RangeScanForm, RangeScanId, RangeScanProgress, RangeScanRefusal, RangeScanWanted,
    RangeScans, Sampling, SnapshotRequirement,
};
pub use read::{ByChance, Found, Observed, Seen};
pub use refusal::Refusal;
pub use replica::{Applied, Incoming, ReplicaPosition, ReplicaRefusal, ReplicaStream};
pub use settings::{Changed, SettingError, Settings};
pub use shard_guard::{FRONT_END_SAMPLE, HOLDERS, Holder};
pub use small_files::{small_file_faults, uuid_in};
pub use standing::Standing;
pub use stats::{
    BucketStats, CheckpointStats, DiskCounts, DiskTotals, STATES, StateStats, StoreStats, VbStats,
    prepare_bytes_on_disk,
};
pub use store::{StoreMode, StoreRequest};
pub use stream::{Changes, StreamCursor, StreamPart, StreamPlace, StreamRefusal, StreamStart, StreamWanted};
pub use tasks::{StoreTimes, TaskKind, TaskStats, task_stats};
pub use tombstone_purger::PurgeStats;
pub use topology::topology_from_json;
pub use traffic::Traffic;
pub use update::{CounterRequest, End};
pub use vbucket::{ConflictRule, Topology};
#[cfg(debug_assertions)]
pub use vbuckets::locks_taken;
pub use warmup::{WarmupState, WarmupStats};
pub use whole::Whole;
pub use with_meta::WithMetaRequest;
pub use write::absolute_expiry;
pub use writer::Writer;
