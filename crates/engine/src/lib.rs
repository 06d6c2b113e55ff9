//! One bucket: joins memory and disk and runs the background steps; knows no protocol and no socket.

mod account_check;
mod backfill;
mod bucket;
mod checkpoint_recovery;
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
mod fetch_queue;
mod fetcher;
mod filer;
mod flush_queue;
mod flusher;
mod follower;
mod keeper;
mod loader;
mod lock;
mod memory;
mod open;
mod pager;
mod persistence;
mod read;
mod refusal;
mod rollback;
pub mod settings;
mod shard_guard;
mod stats;
mod store;
mod stream;
mod subdocument;
mod tombstone_purger;
mod update;
pub mod value;
mod victims;
mod warmup;
mod whole;
mod with_meta;
mod write;

pub use account_check::AccountFigures;
pub use backfill::{Backfill, BackfillReading, BackfillScope, Backfilled};
#[cfg(debug_assertions)]
pub use bucket::locks_taken;
pub use bucket::{Bucket, Mutated};
pub use checkpoint_recovery::CheckpointMemoryStats;
pub use compaction_queue::{CompactOutcome, CompactRequest, CompactionRun, CompactionStats};
pub use completion::{Completer, Completion, completion};
pub use compression::CompressionStats;
pub use config::{
    BucketConfig, BucketKind, DEFAULT_COMPACT_MIN_WASTE_BYTES, DEFAULT_COMPACT_PERCENT, DEFAULT_PURGE_AGE_S,
    EvictionPolicy,
};
pub use counters::OpCounts;
pub use defragmenter::DefragmenterStats;
pub use disk_state::SaveStats;
pub use ephemeral::{MemoryRange, Resumed};
pub use evict::EvictionStats;
pub use expiry::ExpiryStats;
pub use failure::Failure;
pub use fetch_queue::{Fetched, Loan};
pub use fetcher::FetchStats;
pub use flush_queue::FlushQueue;
pub use flusher::Progress;
pub use follower::Follower;
pub use keeper::{Chore, ChoreId, ChoreStats, Next, Slice, TIME_SLICE};
pub use memory::MemoryAccount;
pub use persistence::MAX_WAITERS;
pub use read::{ANY_KEY, ByChance, Found, Observed, Seen};
pub use refusal::Refusal;
pub use settings::{Changed, SettingError, Settings};
pub use shard_guard::{FRONT_END_SAMPLE, HOLDERS, Holder, LOCK_TIME_BUCKETS, LockTimes};
pub use stats::{
    BucketStats, CheckpointStats, DiskCounts, DiskTotals, STATES, StateStats, StoreStats, VbStats,
};
pub use store::{StoreMode, StoreRequest};
pub use stream::{Changes, StreamCursor, StreamPlace, StreamRefusal, StreamStart};
pub use tombstone_purger::PurgeStats;
pub use update::{CounterRequest, End};
pub use warmup::{WarmupState, WarmupStats};
pub use whole::Whole;
pub use with_meta::WithMetaRequest;
pub use write::absolute_expiry;
