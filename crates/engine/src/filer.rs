//! Work of the store behind the saves, on a thread of its own: bringing the files up to date.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use base::RateLimit;
use kvstore::{Background, LogTuning};
use parking_lot::{Condvar, Mutex};

use crate::flusher::Flushing;
use crate::progress::Progress;
use crate::settings::{Key, Settings};
use crate::tasks::{StoreOp, TaskId};

/// How often the filer looks whether there is something to do.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// How long it pauses after a failure before it tries again.
const PAUSE_AFTER_FAILURE: Duration = Duration::from_secs(1);

/// While memory is short, versions that only wait for their files may take this part of the quota: evicting their
/// documents frees nothing until they are filed.
const UNFILED_ONE_IN: u64 = 16;

/// Lets the thread end.
#[derive(Default)]
pub(crate) struct Filer {
    stopping: Mutex<bool>,
    wake: Condvar,
    /// Whether the last step failed: what stays wrong is logged once, and seldom if it comes and goes.
    is_failing: AtomicBool,
    told_of_failing: RateLimit,
    told_of_end: RateLimit,
}

impl Filer {
    /// Waits a while; false if the filer shall stop.
    fn pause(&self, time: Duration) -> bool {
        let mut stopping = self.stopping.lock();
        if !*stopping {
            self.wake.wait_for(&mut stopping, time);
        }
        !*stopping
    }

    fn is_stopping(&self) -> bool {
        *self.stopping.lock()
    }
}

impl Flushing {
    /// Does a bounded piece of the store's work behind the saves.
    pub fn file_step(&self) -> Progress {
        self.core.tasks.step(TaskId::Filer, || file(self))
    }

    /// Runs such steps until the bucket is closed; for a thread of its own. Ends at once if there is no disk.
    pub fn run_filer(&self) {
        if self.core.is_ephemeral() {
            return;
        }
        loop {
            let go_on = match self.file_step() {
                Progress::Worked => !self.filer.is_stopping(),
                Progress::Idle => self.filer.pause(LOOK_EVERY),
                Progress::Failed => self.filer.pause(PAUSE_AFTER_FAILURE),
            };
            if !go_on {
                return;
            }
        }
    }

    /// Lets the filer's thread end after its present step.
    pub fn stop_filer(&self) {
        *self.filer.stopping.lock() = true;
        self.filer.wake.notify_all();
    }
}

/// How eagerly a log-structured store merges and rewrites its files, as the settings have it.
fn tuning(settings: &Settings) -> LogTuning {
    LogTuning {
        waste_percent: settings.get(Key::LogWaste),
        merge_runs: usize::try_from(settings.get(Key::LogMergeRuns)).unwrap_or(usize::MAX),
        is_paused: settings.is_on(Key::LogCompactionPaused),
    }
}

fn file(flushing: &Flushing) -> Progress {
    let is_short = flushing.core.memory.is_above_low_watermark();
    let most = if is_short { flushing.core.memory.quota_bytes() / UNFILED_ONE_IN } else { u64::MAX };
    flushing.core.store.hold_at_most(most);
    // The store may be another one than before.
    flushing.core.store.tune(tuning(&flushing.core.settings));
    let step = || flushing.core.store.background_step();
    let done =
        flushing.core.tasks.store_op_if(StoreOp::Save, step, |done| !matches!(done, Ok(Background::Idle)));
    // Also beside what was filed.
    for (vb, reason) in flushing.core.store.take_damage() {
        flushing.core.unreadable.note_damaged(flushing.core.name(), vb, reason);
    }
    let (filer, now) = (&flushing.filer, flushing.core.env.clock.monotonic());
    match done {
        Ok(done) => {
            if filer.is_failing.swap(false, Ordering::Relaxed)
                && let Some(left_out) = filer.told_of_end.admit(now)
            {
                tracing::info!(
                    event = "filing_resumed",
                    bucket = flushing.core.name(),
                    left_out,
                    "the files are being brought up to date again"
                );
            }
            if done == Background::Idle { Progress::Idle } else { Progress::Worked }
        }
        Err(failure) => {
            if !filer.is_failing.swap(true, Ordering::Relaxed)
                && let Some(left_out) = filer.told_of_failing.admit(now)
            {
                tracing::error!(
                    event = "filing_failed", bucket = flushing.core.name(), %failure, left_out,
                    "cannot bring the files up to date; the changes are in the journal, trying again"
                );
            }
            Progress::Failed
        }
    }
}
