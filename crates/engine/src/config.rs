//! What a bucket is made with.

use std::path::PathBuf;

use base::limits;

/// A bucket's fixed properties and limits.
#[derive(Clone, Debug)]
pub struct BucketConfig {
    /// Its name.
    pub name: String,
    /// Its folder.
    pub dir: PathBuf,
    /// The most memory its documents may use, in bytes.
    pub quota_bytes: u64,
    /// How many vBuckets it has; a power of two.
    pub vbuckets: u16,
    /// The most changes of one vBucket that one batch writes.
    pub flush_batch_items: usize,
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
        }
    }
}
