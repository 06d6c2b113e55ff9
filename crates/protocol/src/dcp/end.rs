//! Why a stream ends.

/// Why a stream ends (stream-end.md).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EndReason {
    /// Everything that was asked for was sent.
    Ok,
    /// The consumer closed it.
    Closed,
    /// The vBucket's role changed.
    StateChanged,
    /// The connection is closed.
    Disconnected,
    /// The consumer is too slow.
    TooSlow,
    /// What is on disk cannot be read.
    BackfillFailed,
    /// The vBucket went back behind what was sent.
    Rollback,
    /// Every collection of the filter is gone.
    FilterEmpty,
    /// The user may not see the collections any more.
    LostPrivileges,
    /// A reason that this node has no name for: its number.
    Unknown(u32),
}

/// Those with a name, each at its number.
const KNOWN: [EndReason; 9] = [
    EndReason::Ok,
    EndReason::Closed,
    EndReason::StateChanged,
    EndReason::Disconnected,
    EndReason::TooSlow,
    EndReason::BackfillFailed,
    EndReason::Rollback,
    EndReason::FilterEmpty,
    EndReason::LostPrivileges,
];

impl EndReason {
    /// The reason with this number. A later version may have more of them, and ends its streams all the same.
    pub fn from_wire(code: u32) -> EndReason {
        KNOWN.get(code as usize).copied().unwrap_or(EndReason::Unknown(code))
    }

    /// Its number.
    pub fn code(self) -> u32 {
        match self {
            EndReason::Unknown(code) => code,
            // There are nine.
            known => KNOWN.iter().position(|reason| *reason == known).unwrap_or_default() as u32,
        }
    }
}
