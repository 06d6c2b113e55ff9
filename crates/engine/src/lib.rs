//! One bucket: joins memory and disk and runs the background steps; knows no protocol and no socket.

mod account_check;
mod as_configured;
mod backfill;
mod bucket;
mod bucket_core;
mod bucket_snapshot;
mod checkpoint_recovery;
mod checkpoint_stats;
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
mod documents;
mod durability;
mod empty;
mod ephemeral;
mod eraser;
mod evict;
mod evict_by_policy;
mod evicted;
mod expiry;
mod expiry_pager;
mod failure;
mod failure_log;
mod fetch_queue;
mod fetcher;
mod file_snapshot;
mod filer;
mod flush_queue;
mod flusher;
mod follower;
mod history;
mod identity;
mod inline_flush;
mod keeper;
mod kept_snapshot;
mod loader;
mod lock;
mod maintenance;
mod manifest_file;
mod memory;
mod mutated;
mod open;
mod open_files;
mod origin;
mod pager;
mod persistence;
mod prepare;
mod prepare_followers;
mod progress;
mod range_scan;
mod read;
mod refusal;
mod replica;
mod roles;
mod rollback;
pub mod settings;
mod shard;
mod shard_guard;
mod small_files;
mod snapshot_table;
mod standing;
mod starts;
mod stats;
mod store;
mod stream;
mod stream_from_memory;
mod subdocument;
mod sync_waiters;
mod task_stats;
mod tasks;
mod tombstone_purger;
mod topology;
mod traffic;
mod unreadable;
mod update;
pub mod value;
mod value_times;
mod vbuckets;
mod victims;
mod warmup;
mod whole;
mod with_meta;
mod write;
mod writer;

pub use account_check::AccountFigures;
pub use backfill::{Backfill, BackfillReading, BackfillScope, Backfilled, Backfills, Frames, WriteChanges};
pub use bucket::Bucket;
pub use bucket_core::{Core, admit_log, moved_to};
pub use bucket_snapshot::{
    BucketSnapshotFigures, BucketSnapshotRefusal, BucketSnapshots, KeptVbucket, LONGEST_HOLD,
};
pub use checkpoint_recovery::{CheckpointMemoryStats, Checkpoints};
pub use checkpoint_stats::CheckpointStats;
pub use clean_mark::forget_clean_stop;
pub use collections::{BucketCollections, CollectionTotals, ManifestRefusal, NextIds};
pub use coming::{Coming, Step};
pub use compaction_queue::{CompactOutcome, CompactRequest, CompactionRun, CompactionStats};
pub use compactor::Compaction;
pub use completion::{Completer, Completion, MAX_REPLICAS, StepTimes, completion};
pub use compression::{Compression, CompressionStats};
pub use config::{
    BucketConfig, BucketKind, DEFAULT_COMPACT_MIN_WASTE_BYTES, DEFAULT_COMPACT_PERCENT, DEFAULT_PURGE_AGE_S,
    EvictionPolicy, MOST_RANGE_SCANS,
};
pub use counters::OpCounts;
pub use defragmenter::{Defragmentation, DefragmenterStats};
pub use disk_state::SaveStats;
pub use documents::Documents;
pub use durability::Durability;
pub use ephemeral::{MemoryRange, Resumed};
pub use evict::{Eviction, EvictionStats};
pub use expiry::ExpiryStats;
pub use failure::Failure;
pub use fetch_queue::{FetchPin, Fetched};
pub use fetcher::{FetchStats, Fetching, read_from_disk};
pub use file_snapshot::{
    FILE_SNAPSHOT_LEASE, FileSnapshotFigures, FileSnapshotRefusal, FileSnapshots, IncomingFile,
};
pub use flush_queue::FlushQueue;
pub use flusher::Flushing;
pub use follower::Follower;
pub use history::history_retention;
pub use inline_flush::{InlineFlush, InlineFlushOutcome};
pub use keeper::{Chore, ChoreId, Next, Slice, TIME_SLICE};
pub use kept_snapshot::KeptSnapshot;
pub use loader::Loading;
pub use maintenance::{ChoreStats, Maintenance};
pub use memory::MemoryAccount;
pub use mutated::Mutated;
pub use open_files::SnapshotFiles;
pub use persistence::MAX_WAITERS;
pub use progress::Progress;
pub use range_scan::{
    RangeScanFigures, RangeScanForm, RangeScanId, RangeScanProgress, RangeScanRefusal, RangeScanWanted,
    RangeScans, Sampling, SnapshotRequirement,
};
pub use read::{ByChance, Found, Observed, Seen};
pub use refusal::Refusal;
pub use replica::{Applied, Incoming, ReplicaPosition, ReplicaRefusal, Replicas};
pub use roles::Roles;
pub use settings::{Changed, HISTORY_NEEDS_LOG, SettingError, Settings};
pub use shard::ReplicaStream;
pub use shard_guard::{FRONT_END_SAMPLE, HOLDERS, Holder, LockWait, lock_waits_since};
pub use small_files::{small_file_faults, uuid_in};
pub use snapshot_table::{BUCKET_SNAPSHOT_LEASE, VbMoment};
pub use standing::Standing;
pub use stats::{
    BucketStats, DiskCounts, STATES, StateStats, StoreStats, VbStats, file_totals, file_usage, file_usage_of,
};
pub use store::{StoreMode, StoreRequest};
pub use stream::{
    Changes, StreamCursor, StreamPart, StreamPlace, StreamRefusal, StreamStart, StreamWanted, Streams,
};
pub use sync_waiters::{DEFAULT_SYNC_WRITE_TIMEOUT, Durable, SyncOutcome};
pub use task_stats::{StoreTimes, task_stats};
pub use tasks::{TaskKind, TaskStats};
pub use tombstone_purger::{PurgeStats, Tombstones};
pub use topology::topology_from_json;
pub use traffic::Traffic;
pub use update::{CounterRequest, End};
pub use value_times::{VALUE_SAMPLE, ValueTimes};
pub use vbucket::{ConflictRule, Topology};
#[cfg(debug_assertions)]
pub use vbuckets::locks_taken;
pub use warmup::{WarmupState, WarmupStats};
pub use whole::Whole;
pub use with_meta::WithMetaRequest;
pub use write::absolute_expiry;
pub use writer::Writer;
