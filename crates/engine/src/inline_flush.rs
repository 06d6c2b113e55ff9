//! A thread that waits for the disk and has nothing else to do writes itself, instead of waking the flusher and being
//! woken by it (docs/adr/0051-a-writer-alone-flushes.md).

use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::flusher::Flushing;
use crate::progress::Progress;

/// The flusher's next step, done by the thread that waits for it when it calls [`InlineFlush::finish`]. Until then, for
/// microseconds, the flusher is not woken for what is urgent; if this is dropped instead, the flusher does the work.
#[must_use = "while it is there the flusher is not woken"]
pub struct InlineFlush<'a> {
    flushing: &'a Flushing,
    is_over: bool,
}

/// What came of an inline flush.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InlineFlushOutcome {
    /// Nothing: nobody waits for the disk, or the flusher is at work, and does it.
    Nothing,
    /// It has written, and those who waited are told. It took so long.
    Wrote(Duration),
    /// The disk refused; the flusher tries again.
    Failed,
}

impl Flushing {
    /// Announces that the caller will do what is urgent itself. Nothing if that may not be: there is no disk, or nothing
    /// is to be written.
    pub fn inline_flush(&self) -> Option<InlineFlush<'_>> {
        (!self.core.is_ephemeral() && self.core.flush.inline_flush())
            .then(|| InlineFlush { flushing: self, is_over: false })
    }
}

impl InlineFlush<'_> {
    /// Writes what somebody waits for, with the disk's own syncs; blocks for as long as that takes.
    pub fn finish(mut self) -> InlineFlushOutcome {
        let flushing = self.flushing;
        let Some(mut space) = flushing.space.try_lock() else { return InlineFlushOutcome::Nothing };
        let mut group = Vec::new();
        self.is_over = true;
        flushing.core.flush.stand_down(Some(&mut group));
        if group.is_empty() {
            return InlineFlushOutcome::Nothing;
        }
        let start = flushing.core.env.clock.monotonic();
        match flushing.flush_group(&group, &mut space) {
            Progress::Failed => InlineFlushOutcome::Failed,
            Progress::Idle | Progress::Worked => {
                flushing.core.disk.stood_in.fetch_add(1, Ordering::Relaxed);
                InlineFlushOutcome::Wrote(flushing.core.env.clock.monotonic().saturating_sub(start))
            }
        }
    }
}

impl Drop for InlineFlush<'_> {
    fn drop(&mut self) {
        if !self.is_over {
            self.flushing.core.flush.stand_down(None);
        }
    }
}
