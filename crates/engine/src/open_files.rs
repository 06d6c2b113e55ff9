//! How many scans and snapshots keep files open.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Counts a scan, or a vBucket of a snapshot, against the most that there may be.
pub(crate) struct OpenScan(Arc<AtomicUsize>);

impl OpenScan {
    pub(crate) fn take(open: &Arc<AtomicUsize>, most: usize) -> Option<OpenScan> {
        let more = |open: usize| (open < most).then_some(open + 1);
        open.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok()?;
        Some(OpenScan(Arc::clone(open)))
    }
}

impl Drop for OpenScan {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// How many files snapshots of buckets may keep open; clones are of the same ones, which several buckets may share.
#[derive(Clone, Debug)]
pub struct SnapshotFiles {
    open: Arc<AtomicUsize>,
    most: usize,
}

impl SnapshotFiles {
    /// At most `most`.
    pub fn new(most: usize) -> SnapshotFiles {
        SnapshotFiles { open: Arc::default(), most }
    }

    /// How many more there may be now.
    pub fn left(&self) -> usize {
        self.most.saturating_sub(self.open.load(Ordering::Relaxed))
    }

    /// Counts one more; `None` if that would be one too many.
    pub(crate) fn take(&self) -> Option<OpenScan> {
        OpenScan::take(&self.open, self.most)
    }
}
