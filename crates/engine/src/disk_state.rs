//! Whether the disk takes what is saved: what is told once when that changes, and what is refused while it is full.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use base::RateLimit;
use base::env::Clock;
use kvstore::Failure;

/// How often a stop tries to save what the disk refused.
pub(crate) const FLUSH_TRIES: usize = 3;

/// What is known of the disk from the last saves.
#[derive(Default)]
pub(crate) struct DiskState {
    is_full: AtomicBool,
    is_failing: AtomicBool,
    /// Groups that fail may take turns with others that do not: then each of them is a beginning.
    told_of_full: RateLimit,
    told_of_room: RateLimit,
    told_of_failing: RateLimit,
    failed_saves: AtomicU64,
    times_full: AtomicU64,
    /// Groups that were written in the flusher's stead.
    pub(crate) stood_in: AtomicU64,
    /// Changes that were not saved because the same batch had a later one of the same document.
    pub(crate) deduplicated: AtomicU64,
}

/// What became of saves, since the start and lately.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SaveStats {
    /// Whether the disk is full, so that changes are refused for now.
    pub is_disk_full: bool,
    /// Whether the flusher rests, because a client asked for that.
    pub is_held: bool,
    /// Whether something could not be saved when it was tried last.
    pub is_failing: bool,
    /// Saves of a vBucket that failed; each is tried again.
    pub failed_saves: u64,
    /// How often the disk became full.
    pub times_full: u64,
    /// Groups of vBuckets that somebody wrote in the flusher's stead (see [`Flushing::inline_flush`](crate::Flushing::inline_flush)).
    pub stood_in: u64,
    /// Changes that were not saved because the same batch had a later one of the same document.
    pub deduplicated: u64,
}

impl DiskState {
    /// Whether changes are refused, because they could not be saved.
    pub(crate) fn is_full(&self) -> bool {
        self.is_full.load(Ordering::Relaxed)
    }

    /// What became of saves.
    pub(crate) fn stats(&self, is_held: bool) -> SaveStats {
        SaveStats {
            is_disk_full: self.is_full(),
            is_held,
            is_failing: self.is_failing.load(Ordering::Relaxed),
            failed_saves: self.failed_saves.load(Ordering::Relaxed),
            times_full: self.times_full.load(Ordering::Relaxed),
            stood_in: self.stood_in.load(Ordering::Relaxed),
            deduplicated: self.deduplicated.load(Ordering::Relaxed),
        }
    }

    /// Looks at what became of a group that was saved. Whatever is wrong is logged when it begins and when it is over,
    /// not at each try, and seldom if it comes and goes.
    pub(crate) fn note(&self, bucket: &str, clock: &dyn Clock, outcomes: &[Result<(), Failure>]) {
        let admits = |told: &RateLimit| told.admit(clock.monotonic());
        let failures = || outcomes.iter().filter_map(|outcome| outcome.as_ref().err());
        let failed = failures().count() as u64;
        self.failed_saves.fetch_add(failed, Ordering::Relaxed);
        if let Some(full) = failures().find(|failure| failure.is_disk_full()) {
            if !self.is_full.swap(true, Ordering::Relaxed) {
                self.times_full.fetch_add(1, Ordering::Relaxed);
                if let Some(left_out) = admits(&self.told_of_full) {
                    tracing::error!(
                        event = "disk_full", bucket, failure = %full, left_out,
                        "the disk is full; changes are refused until there is room"
                    );
                }
            }
        } else if failed < outcomes.len() as u64
            && self.is_full.swap(false, Ordering::Relaxed)
            && let Some(left_out) = admits(&self.told_of_room)
        {
            tracing::info!(
                event = "disk_has_room",
                bucket,
                left_out,
                "the disk has room again; changes are taken again"
            );
        }
        match failures().next() {
            Some(failure) => {
                let begins = !self.is_failing.swap(true, Ordering::Relaxed) && !failure.is_disk_full();
                if let Some(left_out) = begins.then(|| admits(&self.told_of_failing)).flatten() {
                    tracing::error!(
                        event = "flush_failed", bucket, %failure, left_out,
                        "cannot write; the changes stay in memory, trying again"
                    );
                }
            }
            None => self.is_failing.store(false, Ordering::Relaxed),
        }
    }
}
