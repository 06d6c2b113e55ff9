//! Work of the store behind the saves, on a thread of its own: bringing the files up to date.
//!
//! While there are saves the thread looks every [`LOOK_EVERY`] whether something is due. When there were none for a while it
//! rests, and the next save wakes it: a node has 30 buckets, and most of them have nothing to do.

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
/// Looks without a save or work before it rests: what was saved last is due after a second without another save.
const LOOKS_BEFORE_REST: u32 = 20;
/// How often it looks at rest: for what becomes due without a save, such as another try after a failure.
const LOOK_AT_REST_EVERY: Duration = Duration::from_secs(5);
/// How long it pauses after a failure before it tries again.
const PAUSE_AFTER_FAILURE: Duration = Duration::from_secs(1);

/// While memory is short, versions that only wait for their files may take this part of the quota: evicting their
/// documents frees nothing until they are filed.
const UNFILED_ONE_IN: u64 = 16;

#[derive(Default)]
struct FilerState {
    is_stopping: bool,
    is_resting: bool,
    /// Something was saved since the last look.
    has_saved: bool,
    /// Looks since then that found nothing to do.
    idle_looks: u32,
    /// Saves, and steps of its own that found something to do.
    steps_with_work: u64,
}

/// Lets the thread rest, and end.
#[derive(Default)]
pub(crate) struct Filer {
    state: Mutex<FilerState>,
    wake: Condvar,
    /// Whether the last step failed: what stays wrong is logged once, and seldom if it comes and goes.
    is_failing: AtomicBool,
    told_of_failing: RateLimit,
    told_of_end: RateLimit,
}

impl FilerState {
    fn is_at_rest(&self) -> bool {
        !self.is_stopping && !self.has_saved && self.idle_looks >= LOOKS_BEFORE_REST
    }

    fn looks_again(&mut self) {
        let has_saved = std::mem::take(&mut self.has_saved);
        self.idle_looks = if has_saved { 0 } else { self.idle_looks.saturating_add(1) };
    }
}

impl Filer {
    /// Waits a while; false if the filer shall stop.
    fn pause(&self, time: Duration) -> bool {
        let mut state = self.state.lock();
        if !state.is_stopping {
            self.wake.wait_for(&mut state, time);
        }
        !state.is_stopping
    }

    /// Waits until the next look after one that found nothing to do; false if the filer shall stop.
    fn pause_idle(&self) -> bool {
        let mut state = self.state.lock();
        if state.is_at_rest() {
            state.is_resting = true;
            self.wake.wait_for(&mut state, LOOK_AT_REST_EVERY);
            state.is_resting = false;
        }
        // What is saved is filed together with what comes soon after it.
        if !state.is_stopping && !state.is_at_rest() {
            self.wake.wait_for(&mut state, LOOK_EVERY);
        }
        state.looks_again();
        !state.is_stopping
    }

    /// Notes that a look found something to do; false if the filer shall stop.
    fn worked(&self) -> bool {
        let mut state = self.state.lock();
        state.idle_looks = 0;
        state.steps_with_work += 1;
        !state.is_stopping
    }

    /// Counts up whenever something was written: a save, or a step of the filer.
    pub(crate) fn steps_with_work(&self) -> u64 {
        self.state.lock().steps_with_work
    }

    /// Something was saved, which is to be filed.
    pub(crate) fn saved(&self) {
        let mut state = self.state.lock();
        state.has_saved = true;
        state.steps_with_work += 1;
        if std::mem::take(&mut state.is_resting) {
            self.wake.notify_all();
        }
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
                Progress::Worked => self.filer.worked(),
                Progress::Idle => self.filer.pause_idle(),
                Progress::Failed => self.filer.pause(PAUSE_AFTER_FAILURE),
            };
            if !go_on {
                return;
            }
        }
    }

    /// Lets the filer's thread end after its present step.
    pub fn stop_filer(&self) {
        self.filer.state.lock().is_stopping = true;
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

#[cfg(test)]
mod tests {
    use super::*;

    /// One that rests once it pauses.
    fn tired() -> Filer {
        let filer = Filer::default();
        filer.state.lock().idle_looks = LOOKS_BEFORE_REST;
        filer
    }

    #[test]
    fn a_filer_rests_when_nothing_was_saved_for_a_while() {
        let mut state = FilerState::default();
        for _ in 0..LOOKS_BEFORE_REST {
            assert!(!state.is_at_rest());
            state.looks_again();
        }
        assert!(state.is_at_rest());
        state.has_saved = true;
        assert!(!state.is_at_rest());
        state.looks_again();
        assert_eq!((state.idle_looks, state.is_at_rest()), (0, false), "it looks again for as long");
        let quiet_for = LOOK_EVERY * LOOKS_BEFORE_REST;
        assert!(quiet_for > Duration::from_secs(1), "what was saved last is due before that");
    }

    #[test]
    fn a_save_ends_the_rest_and_so_does_the_stop() {
        for is_saved in [true, false] {
            let filer = tired();
            std::thread::scope(|scope| {
                let resting = scope.spawn(|| filer.pause_idle());
                while !filer.state.lock().is_resting {
                    std::thread::yield_now();
                }
                if is_saved {
                    filer.saved();
                } else {
                    filer.state.lock().is_stopping = true;
                    filer.wake.notify_all();
                }
                assert_eq!(resting.join().expect("it ends"), is_saved);
            });
            let looks = filer.state.lock().idle_looks;
            assert_eq!(looks, if is_saved { 0 } else { LOOKS_BEFORE_REST + 1 });
        }
    }

    #[test]
    fn what_is_written_is_counted() {
        let filer = Filer::default();
        filer.saved();
        assert!(filer.worked() && filer.steps_with_work() == 2);
    }
}
