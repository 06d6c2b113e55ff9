//! Why a connection is closed.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use base::RateLimit;
use dcp::Disconnect;
use parking_lot::Mutex;
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

    /// Which mistake the client made that an operator has to do something about: its kind, and what of it has another cure.
    fn mistake(&self) -> Option<(usize, &'static str)> {
        match self {
            CloseReason::Frame(_) => Some((0, "")),
            CloseReason::StatusNotUnderstood(_) => Some((1, "")),
            CloseReason::Violation(_) | CloseReason::Feed(_) => Some((2, "")),
            CloseReason::TooSlow(_) => Some((3, "")),
            CloseReason::Tls(why) => Some((4, *why)),
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
}

/// How often closed connections are logged. Each reason has a limit of its own: a client that tries again and again with one
/// fault does not hide another client's. There are as many as this program has texts for them.
#[derive(Default)]
pub struct CloseLimits(Mutex<BTreeMap<(usize, &'static str), RateLimit>>);

impl CloseLimits {
    /// A connection was closed. Whether that is to be logged as a mistake: then how many of the same were left out.
    pub fn admit(&self, reason: CloseReason, now: Duration) -> CloseTold {
        let Some(mistake) = reason.mistake() else { return CloseTold::NoMistake };
        let mut limits = self.0.lock();
        limits.entry(mistake).or_default().admit(now).map_or(CloseTold::LeftOut, CloseTold::Now)
    }
}

/// What is logged of a closed connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CloseTold {
    /// It is no mistake of the client.
    NoMistake,
    /// One of the same was logged just now.
    LeftOut,
    /// It is logged, and so many of the same were left out before.
    Now(u64),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_fault_of_tls_does_not_hide_another_one() {
        let (limits, now) = (CloseLimits::default(), Duration::from_secs(1));
        let [ca, clear] = [CloseReason::Tls("a CA"), CloseReason::Tls("clear text")];
        assert_eq!(limits.admit(ca, now), CloseTold::Now(0));
        assert_eq!([limits.admit(ca, now), limits.admit(ca, now)], [CloseTold::LeftOut; 2]);
        assert_eq!(limits.admit(clear, now), CloseTold::Now(0));
        assert_eq!(limits.admit(ca, now + Duration::from_secs(5)), CloseTold::Now(2));
        assert_eq!(limits.admit(CloseReason::Quit, now), CloseTold::NoMistake);
    }
}
