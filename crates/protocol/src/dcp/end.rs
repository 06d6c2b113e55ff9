//! Why a stream ends.

use std::fmt;

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

impl fmt::Display for EndReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self {
            EndReason::Ok => "everything that was asked for was sent",
            EndReason::Closed => "it was closed as the consumer asked",
            EndReason::StateChanged => "the vBucket's role changed on the server",
            EndReason::Disconnected => "the server closes the connection",
            EndReason::TooSlow => "the consumer is too slow",
            EndReason::BackfillFailed => "what the server has on disk cannot be read: its log says why",
            EndReason::Rollback => "the vBucket went back behind what was sent: ask again from there",
            EndReason::FilterEmpty => "every collection that was asked for was deleted",
            EndReason::LostPrivileges => {
                "the user has lost the right to stream (DcpProducer and DcpStream, of roles like data_dcp_reader)"
            }
            EndReason::Unknown(code) => return write!(f, "the server gives reason {code}"),
        };
        f.write_str(text)
    }
}

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
