//! One vBucket in memory: hash table, checkpoints, failover table and CAS clock, plain structures behind one lock.
//!
//! No I/O, no threads, no locks: whoever owns a vBucket calls these through `&mut self`, and whatever costs more than
//! a constant is handed out to be done elsewhere.

pub mod bucket_context;
mod changes;
mod charge;
mod checkpoint_list;
pub mod checkpoint_manager;
pub mod checkpoint_memory;
pub mod collections;
pub mod cursor;
pub mod durability;
mod evicted;
pub mod failover_table;
pub mod filter;
#[doc(hidden)]
pub mod fuzz;
pub mod hash_seed;
pub mod hash_table;
mod held_checkpoints;
pub mod hlc;
mod lines;
pub mod locks;
pub mod ops;
pub mod range;
pub mod received;
pub mod removed;
pub mod seq_list;
mod ties;
pub mod vbucket;

pub use bucket_context::BucketContext;
pub use checkpoint_manager::CheckpointManager;
pub use checkpoint_memory::{CheckpointLimits, CheckpointMarks, CheckpointMemory, Pressure};
pub use collections::{
    Collection, CollectionOps, Collections, DroppedCollection, Held, MAX_COLLECTIONS, MAX_SCOPES, Manifest,
    ManifestChange, ManifestUid, OpenCollection, OpenScope, Scope, SystemEvent,
};
pub use cursor::{CursorId, CursorName, CursorState, Dropped, RegisterRefusal};
pub use durability::{ActiveMonitor, Chain, MAX_CHAIN, NO_DEADLINE, PassiveMonitor, Topology, TopologyError};
pub use failover_table::{FailoverEntry, FailoverTable, Resume, ResumePoint};
pub use filter::{Filter, FilterSettings};
pub use hash_seed::HashSeed;
pub use hash_table::{HashTable, Slot, VersionRef};
pub use held_checkpoints::HeldCheckpoints;
pub use hlc::{ClockCounts, ClockLimits, Hlc};
pub use ops::{
    Basis, Change, Completed, ConflictRule, Existence, FlushBatch, IncomingSnapshot, Loaded, Look,
    MAX_FOREIGN_CAS, MAX_REV_SEQNO, Misplaced, OverdueLook, Placed, Prepared, Refusal, Refused,
    SavedSyncWrites, SnapshotKind, Stored, SyncWriteState, TieBreak, UnlockRefusal, WithMeta,
};
pub use range::{CheckpointView, Range, RangeLimit};
pub use received::SnapshotBounds;
pub use removed::Removed;
pub use seq_list::{MAX_READS, ReadId, SeqList, SeqListCounts, SliceLimits, TombstoneLimits};
pub use vbucket::{
    Contents, Counts, Garbage, History, Origin, Unknown, VBucket, Written, clock_counts, follow_history,
    written,
};
