//! A document that a request is about to ask for: the memory that is read for it is asked for while requests before it
//! are answered, so that the processor waits for several lines at once and not for each in turn.

use base::{DocKey, VbId};
use parking_lot::Mutex;

use crate::bucket_core::Core;

/// A document of a vBucket that is soon asked for.
#[derive(Clone, Copy, Debug)]
pub struct Coming {
    vb: VbId,
    hash: u64,
}

impl Coming {
    /// Asks for the vBucket. That and what follows changes nothing, and waits for nothing.
    #[inline]
    pub fn new(bucket: &Core, vb: VbId, key: DocKey<'_>) -> Coming {
        bucket.vbuckets.prefetch(Some(vb));
        Coming { vb, hash: bucket.hash(key) }
    }

    /// Asks for what leads to the document: the further, the later. Each step is of use once what the one before it asked
    /// for has come.
    #[inline]
    pub fn ask(&self, bucket: &Core, step: Step) {
        // Somebody else who has the vBucket has the memory of it, too.
        let Some(shard) = bucket.vbuckets.shard(self.vb).and_then(Mutex::try_lock) else { return };
        let table = shard.vb.table();
        match step {
            Step::Way => table.prefetch_way(self.hash),
            Step::Place => table.prefetch(self.hash),
            Step::Version => table.prefetch_version(self.hash),
        }
    }
}

/// What leads from a vBucket to a document.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The list of the table's segments.
    Way,
    /// The line of the table in which the key is.
    Place,
    /// The version.
    Version,
}
