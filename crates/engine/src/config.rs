//! What a bucket is made with.

use std::path::PathBuf;

use base::limits;

/// A file is compacted when half of it is not in use.
pub const DEFAULT_COMPACT_PERCENT: u8 = 50;
/// A file that wastes less is left as it is.
pub const DEFAULT_COMPACT_MIN_WASTE_BYTES: u64 = 1 << 20;
/// Three days, as the field has it: whoever was away for longer starts anew.
pub const DEFAULT_PURGE_AGE_S: u32 = 3 * 24 * 3600;

/// A bucket's fixed properties and limits.
#[derive(Clone, Debug)]
pub struct BucketConfig {
    /// Its name.
    pub name: String,
    /// Its folder.
    pub dir: PathBuf,
    /// The most memory it may use, in bytes.
    pub quota_bytes: u64,
    /// How many vBuckets it has; a power of two.
    pub vbuckets: u16,
    /// The most changes of one vBucket that one batch writes.
    pub flush_batch_items: usize,
    /// A file is compacted when so many of a hundred bytes of it are not in use,
    pub compact_percent: u8,
    /// and at least so many bytes.
    pub compact_min_waste_bytes: u64,
    /// Tombstones older than this are forgotten when their file is compacted, in seconds.
    pub purge_age_s: u32,
}

impl BucketConfig {
    /// The defaults for a bucket called `name` in `dir`.
    pub fn new(name: &str, dir: PathBuf) -> BucketConfig {
        BucketConfig {
            name: name.to_owned(),
            dir,
            quota_bytes: 256 << 20,
            vbuckets: limits::DEFAULT_VBUCKETS,
            flush_batch_items: 100_000,
            compact_percent: DEFAULT_COMPACT_PERCENT,
            compact_min_waste_bytes: DEFAULT_COMPACT_MIN_WASTE_BYTES,
            purge_age_s: DEFAULT_PURGE_AGE_S,
        }
    }
}
