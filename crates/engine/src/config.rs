//! What a bucket is made with.

use std::path::PathBuf;

use base::{VbState, limits};
use kvstore::StorageBackend;

use crate::open_files::SnapshotFiles;
use crate::settings::Settings;

/// A file is compacted when half of it is not in use.
pub const DEFAULT_COMPACT_PERCENT: u8 = 50;
/// A file that wastes less is left as it is.
pub const DEFAULT_COMPACT_MIN_WASTE_BYTES: u64 = 1 << 20;
/// Three days, as the field has it: whoever was away for longer starts anew.
pub const DEFAULT_PURGE_AGE_S: u32 = 3 * 24 * 3600;

/// Enough for a scan of each of 1,024 vBuckets, and some more.
pub const MOST_RANGE_SCANS: usize = 1_200;

/// What kind of bucket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BucketKind {
    /// Documents are kept on disk, too.
    #[default]
    Persistent,
    /// Documents are in memory only.
    Ephemeral,
}

/// What leaves memory when it runs short.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EvictionPolicy {
    /// Values; keys and metadata stay.
    ValueOnly,
    /// Whole documents.
    Full,
    /// Whole documents, for good: each leaves a tombstone. Of an ephemeral bucket.
    AutoDelete,
    /// Nothing: changes are refused. Of an ephemeral bucket.
    FailNewData,
}

/// A bucket's fixed properties and limits.
#[derive(Clone, Debug)]
pub struct BucketConfig {
    /// Its name.
    pub name: String,
    /// Its folder.
    pub dir: PathBuf,
    /// What kind of bucket.
    pub kind: BucketKind,
    /// What keeps its documents on disk.
    pub backend: StorageBackend,
    /// The most memory it may use when it is opened, in bytes.
    pub quota_bytes: u64,
    /// What may be changed later.
    pub settings: Settings,
    /// How many vBuckets it has; a power of two.
    pub vbuckets: u16,
    /// The role of vBuckets that nothing is known of yet.
    pub first_role: VbState,
    /// Whether sync writes are impossible in a vBucket that has no topology, as in a cluster, where others may have it,
    /// too; else such a one is a majority alone.
    pub needs_topology: bool,
    /// The most changes of one vBucket that one batch writes.
    pub flush_batch_items: usize,
    /// A file is compacted when so many of a hundred bytes of it are not in use,
    pub compact_percent: u8,
    /// and at least so many bytes.
    pub compact_min_waste_bytes: u64,
    /// How many range scans there may be at the same time: each may keep a file open.
    pub most_range_scans: usize,
    /// How many files snapshots of buckets may keep open, of this one and of those that share them.
    pub snapshot_files: SnapshotFiles,
    /// Tombstones older than this are forgotten when their file is compacted, in seconds.
    pub purge_age_s: u32,
}

impl BucketConfig {
    /// The defaults for a bucket called `name` in `dir`.
    pub fn new(name: &str, dir: PathBuf) -> BucketConfig {
        BucketConfig {
            name: name.to_owned(),
            dir,
            kind: BucketKind::Persistent,
            backend: StorageBackend::default(),
            quota_bytes: 256 << 20,
            settings: Settings::default(),
            vbuckets: limits::DEFAULT_VBUCKETS,
            first_role: VbState::Active,
            needs_topology: false,
            flush_batch_items: 100_000,
            compact_percent: DEFAULT_COMPACT_PERCENT,
            compact_min_waste_bytes: DEFAULT_COMPACT_MIN_WASTE_BYTES,
            most_range_scans: MOST_RANGE_SCANS,
            snapshot_files: SnapshotFiles::new(2 * usize::from(limits::DEFAULT_VBUCKETS)),
            purge_age_s: DEFAULT_PURGE_AGE_S,
        }
    }
}
