//! Why a connection is closed.

use std::fmt;

use dcp::Disconnect;
use protocol::{FrameError, Status};

/// Why a connection is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CloseReason {
    /// The client said so.
    Quit,
    /// The client closed it.
    ByClient,
    /// The node stops.
    Shutdown,
    /// What came is not a frame.
    Frame(FrameError),
    /// The client has not agreed to the status that would have to be sent.
    StatusNotUnderstood(Status),
    /// The request cannot be answered by any server of this protocol.
    Violation(&'static str),
    /// What a client that feeds vBuckets passes on cannot be gone on with.
    Feed(Disconnect),
    /// The client took too long.
    TooSlow(&'static str),
    /// Another client came when all places were taken, and this one had not logged in.
    CrowdedOut,
    /// The memory for connections was short, and this one held most of it.
    HeldMost,
    /// Another connection that streams took its name.
    Replaced,
    /// The selected bucket was deleted.
    BucketGone,
    /// The user is not there any more, or has another password.
    UserChanged,
    /// The node must not serve any more what it has just done.
    Fenced,
    /// The client did not speak TLS as it must.
    Tls(&'static str),
    /// The network failed.
    Network(std::io::ErrorKind),
}

impl fmt::Display for CloseReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CloseReason::Quit => f.write_str("the client quit"),
            CloseReason::ByClient => f.write_str("the client closed the connection"),
            CloseReason::Shutdown => f.write_str("the node stops"),
            CloseReason::Frame(error) => write!(f, "malformed frame: {error}"),
            CloseReason::StatusNotUnderstood(status) => {
                write!(f, "{} would have to be sent without extended errors agreed on", status.name())
            }
            CloseReason::Violation(what) => write!(f, "protocol violation: {what}"),
            CloseReason::Feed(disconnect) => write!(f, "protocol violation: {disconnect}"),
            CloseReason::TooSlow(what) => write!(f, "too slow: {what}"),
            CloseReason::CrowdedOut => f.write_str("another client came, and this one had not logged in"),
            CloseReason::HeldMost => {
                f.write_str("memory for connections was short, and this one held most of it")
            }
            CloseReason::UserChanged => f.write_str("its user was changed"),
            CloseReason::BucketGone => f.write_str("its bucket was deleted"),
            CloseReason::Replaced => f.write_str("another connection took its name"),
            CloseReason::Fenced => f.write_str("the node's lease ended before the answer"),
            CloseReason::Tls(what) => write!(f, "TLS: {what}"),
            CloseReason::Network(kind) => write!(f, "network error: {kind}"),
        }
    }
}

impl CloseReason {
    /// Whether it was neither the client's wish nor the end of the node.
    pub fn is_fault(&self) -> bool {
        !matches!(
            self,
            CloseReason::Quit | CloseReason::ByClient | CloseReason::Shutdown | CloseReason::CrowdedOut
        )
    }

    /// Which kind of mistake the client made, as a number below [`CloseReason::MISTAKES`], that an operator has to do
    /// something about.
    pub fn mistake(&self) -> Option<usize> {
        match self {
            CloseReason::Frame(_) => Some(0),
            CloseReason::StatusNotUnderstood(_) => Some(1),
            CloseReason::Violation(_) | CloseReason::Feed(_) => Some(2),
            CloseReason::TooSlow(_) => Some(3),
            CloseReason::Tls(_) => Some(4),
            CloseReason::Quit
            | CloseReason::ByClient
            | CloseReason::Shutdown
            | CloseReason::Replaced
            | CloseReason::CrowdedOut
            | CloseReason::HeldMost
            | CloseReason::BucketGone
            | CloseReason::UserChanged
            | CloseReason::Fenced
            | CloseReason::Network(_) => None,
        }
    }

    /// Kinds of mistakes.
    pub const MISTAKES: usize = 5;
}
