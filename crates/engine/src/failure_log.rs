//! Failures of a bucket that clients and background tasks can repeat: each kind is logged seldom.
//!
//! What happens to a vBucket because of a failure does not depend on whether it was logged.

use std::collections::BTreeMap;
use std::sync::Arc;

use base::env::Clock;
use base::{RateLimit, VbId};
use parking_lot::Mutex;

/// What failed. One kind does not keep another one out of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Failed {
    /// A read of a document that a client waits for.
    Document,
    /// A read for a stream.
    Stream,
    /// A read for a range scan.
    RangeScan,
    /// A read for a snapshot by file.
    FileSnapshot,
    /// A snapshot of a bucket.
    BucketSnapshot,
    /// A read of values that are loaded ahead.
    LoadAhead,
    /// The recount of what is on disk alone.
    Recount,
    /// A compaction.
    Compaction,
    /// A rollback beyond the commit that was reached.
    FurtherRollback,
    /// The value of a document is not on disk.
    ValueMissing,
    /// What is on disk is not the value of its document.
    ValueUnfitting,
}

impl Failed {
    const COUNT: usize = Failed::ValueUnfitting as usize + 1;

    fn says(self) -> &'static str {
        match self {
            Failed::Document => "cannot read a document",
            Failed::Stream => "a stream cannot read from disk",
            Failed::RangeScan => "a range scan cannot read from disk",
            Failed::FileSnapshot => "a snapshot by file cannot read from disk",
            Failed::BucketSnapshot => "a snapshot of the bucket cannot read from disk",
            Failed::LoadAhead => "some values are not loaded ahead",
            Failed::Recount => "a filter of evicted keys stays as it is",
            Failed::Compaction => "cannot compact; the file stays as it is",
            Failed::FurtherRollback => "goes back less far than it should",
            Failed::ValueMissing => "the value of a document is not on disk",
            Failed::ValueUnfitting => "what is on disk is not the value of its document",
        }
    }

    /// Whether the failure refuses no request.
    fn is_mild(self) -> bool {
        matches!(self, Failed::LoadAhead | Failed::Recount | Failed::FurtherRollback)
    }
}

/// When each kind was logged last.
pub(crate) struct FailureLog {
    clock: Arc<dyn Clock>,
    limits: [RateLimit; Failed::COUNT],
    /// Of what happens on higher floors, by its name.
    of_users: Mutex<BTreeMap<&'static str, RateLimit>>,
}

impl FailureLog {
    pub(crate) fn new(clock: &Arc<dyn Clock>) -> FailureLog {
        FailureLog { clock: Arc::clone(clock), limits: Default::default(), of_users: Mutex::default() }
    }

    /// Whether an event of a higher floor is to be logged, by its name.
    pub(crate) fn admit_of_user(&self, kind: &'static str) -> Option<u64> {
        self.of_users.lock().entry(kind).or_default().admit(self.clock.monotonic())
    }

    /// It failed with this error of the store.
    pub(crate) fn failed(&self, bucket: &str, vb: VbId, what: Failed, failure: &kvstore::Failure) {
        let Some(left_out) = self.admit(what) else { return };
        if what.is_mild() {
            tracing::warn!(
                event = "vbucket_work_incomplete", work = ?what, bucket, %vb, %failure, left_out,
                "{}", what.says()
            );
        } else {
            tracing::error!(
                event = "vbucket_work_failed", work = ?what, bucket, %vb, %failure, left_out,
                "{}", what.says()
            );
        }
    }

    /// The store answered, with something else than what must be there.
    pub(crate) fn found_wrong(&self, bucket: &str, vb: VbId, what: Failed) {
        if let Some(left_out) = self.admit(what) {
            tracing::error!(event = "vbucket_value_wrong", work = ?what, bucket, %vb, left_out, "{}", what.says());
        }
    }

    fn admit(&self, what: Failed) -> Option<u64> {
        self.limits[what as usize].admit(self.clock.monotonic())
    }
}
