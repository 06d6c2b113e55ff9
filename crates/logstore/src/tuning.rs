//! What may change about merges and rewrites while a store is open.

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
