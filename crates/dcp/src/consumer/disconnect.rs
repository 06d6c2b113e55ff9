//! Why a consumer gives up its connection.

use std::fmt;

use base::VbId;
use protocol::FrameError;

/// Why the connection is to be closed; nothing of what broke the rules was applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Disconnect {
    /// What came is no frame.
    Frame(FrameError),
    /// A message of this opcode that cannot be read.
    Unreadable(u8),
    /// A message that the protocol does not allow at this point.
    Violation(VbId, &'static str),
    /// The producer does not agree to what is needed: to what, and the status it answered with.
    Refused(&'static str, u16),
    /// The producer sends more than there is room for.
    Overrun,
    /// The producer has been silent for too long.
    Silent,
}

impl fmt::Display for Disconnect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Disconnect::Frame(error) => write!(f, "what the producer sent is no message: {error}"),
            Disconnect::Unreadable(opcode) => {
                write!(f, "a message of the producer cannot be read (opcode 0x{opcode:02x})")
            }
            Disconnect::Violation(vb, what) => write!(f, "vBucket {vb}: {what}"),
            Disconnect::Refused(what, status) => {
                write!(f, "the producer refuses {what} with status 0x{status:02x}")
            }
            Disconnect::Overrun => f.write_str("the producer sends more than its buffer allows"),
            Disconnect::Silent => f.write_str("the producer is silent"),
        }
    }
}

impl std::error::Error for Disconnect {}
