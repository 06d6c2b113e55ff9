//! Why a stream ends.

/// Why a stream ends (stream-end.md).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum EndReason {
    /// Everything that was asked for was sent.
    Ok = 0,
    /// The consumer closed it.
    Closed = 1,
    /// The vBucket's role changed.
    StateChanged = 2,
    /// The connection is closed.
    Disconnected = 3,
    /// The consumer is too slow.
    TooSlow = 4,
    /// What is on disk cannot be read.
    BackfillFailed = 5,
    /// The vBucket went back behind what was sent.
    Rollback = 6,
    /// Every collection of the filter is gone.
    FilterEmpty = 7,
    /// The user may not see the collections any more.
    LostPrivileges = 8,
}

impl EndReason {
    /// The reason with this number.
    pub fn from_wire(code: u32) -> Option<EndReason> {
        use EndReason::*;
        [
            Ok,
            Closed,
            StateChanged,
            Disconnected,
            TooSlow,
            BackfillFailed,
            Rollback,
            FilterEmpty,
            LostPrivileges,
        ]
        .into_iter()
        .find(|reason| *reason as u32 == code)
    }
}
