//! What may change about merges and rewrites while a store is open.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

/// How eagerly files are merged and rewritten: more of that writes more, and less of it takes more space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tuning {
    /// As [`crate::Config::waste_percent`].
    pub waste_percent: u64,
    /// As [`crate::Config::merge_runs`].
    pub merge_runs: usize,
    /// Whether steps in the background merge and rewrite nothing. Commits go on with what they must: what waits keeps its
    /// limit.
    pub is_paused: bool,
}

impl Default for Tuning {
    fn default() -> Tuning {
        Tuning { waste_percent: 25, merge_runs: 4, is_paused: false }
    }
}

/// The same as it is now. Each number counts for what begins after it was changed.
pub(crate) struct PresentTuning {
    waste_percent: AtomicU64,
    merge_runs: AtomicUsize,
    is_paused: AtomicBool,
}

impl Default for PresentTuning {
    fn default() -> PresentTuning {
        let Tuning { waste_percent, merge_runs, is_paused } = Tuning::default();
        PresentTuning {
            waste_percent: AtomicU64::new(waste_percent),
            merge_runs: AtomicUsize::new(merge_runs),
            is_paused: AtomicBool::new(is_paused),
        }
    }
}

impl PresentTuning {
    pub(crate) fn set(&self, tuning: Tuning) {
        self.waste_percent.store(tuning.waste_percent, Ordering::Relaxed);
        self.merge_runs.store(tuning.merge_runs, Ordering::Relaxed);
        self.is_paused.store(tuning.is_paused, Ordering::Relaxed);
    }

    pub(crate) fn waste_percent(&self) -> u64 {
        self.waste_percent.load(Ordering::Relaxed)
    }

    pub(crate) fn merge_runs(&self) -> usize {
        self.merge_runs.load(Ordering::Relaxed)
    }

    pub(crate) fn is_paused(&self) -> bool {
        self.is_paused.load(Ordering::Relaxed)
    }
}
