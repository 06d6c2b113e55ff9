//! Whoever waits for the disk and has nothing else to do writes itself, instead of waking the flusher and being woken by
//! it (docs/adr/0051-a-writer-alone-flushes.md).

use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::bucket::Bucket;
use crate::flusher::Progress;

/// Somebody who does the flusher's work when [`StandIn::finish`] is called. Until then, for microseconds, the flusher is
/// not woken for what somebody waits for; if it is dropped instead, the flusher does the work.
#[must_use = "while it is there the flusher is not woken"]
pub struct StandIn<'a> {
    bucket: &'a Bucket,
    is_over: bool,
}

/// What somebody who stood in for the flusher did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoodIn {
    /// Nothing: nobody waits for the disk, or the flusher is at work, and does it.
    Nothing,
    /// It has written, and those who waited are told. It took so long.
    Wrote(Duration),
    /// The disk refused; the flusher tries again.
    Failed,
}

impl Bucket {
    /// Announces that the caller will do what is urgent itself. Nothing if that may not be: there is no disk, or nothing
    /// is to be written.
    pub fn stand_in(&self) -> Option<StandIn<'_>> {
        (!self.is_ephemeral() && self.flush.stand_in()).then(|| StandIn { bucket: self, is_over: false })
    }
}

impl StandIn<'_> {
    /// Writes what somebody waits for, with the disk's own syncs; blocks for as long as that takes.
    pub fn finish(mut self) -> StoodIn {
        let bucket = self.bucket;
        let Some(mut space) = bucket.flushing.try_lock() else { return StoodIn::Nothing };
        let mut group = Vec::new();
        self.is_over = true;
        bucket.flush.stand_down(Some(&mut group));
        if group.is_empty() {
            return StoodIn::Nothing;
        }
        let start = bucket.env.clock.monotonic();
        match bucket.flush_group(&group, &mut space) {
            Progress::Failed => StoodIn::Failed,
            Progress::Idle | Progress::Worked => {
                bucket.disk.stood_in.fetch_add(1, Ordering::Relaxed);
                StoodIn::Wrote(bucket.env.clock.monotonic().saturating_sub(start))
            }
        }
    }
}

impl Drop for StandIn<'_> {
    fn drop(&mut self) {
        if !self.is_over {
            self.bucket.flush.stand_down(None);
        }
    }
}
