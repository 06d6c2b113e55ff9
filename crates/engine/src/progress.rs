//! What a step of a background task did.

/// What a step did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// There is nothing to do.
    Idle,
    /// Something was done, and there may be more.
    Worked,
    /// The disk refused; what was taken stays queued.
    Failed,
}
