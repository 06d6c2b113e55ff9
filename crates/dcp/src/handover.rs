//! How far the handing over of a vBucket to another node is.

/// The steps, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Handover {
    /// It is not to be handed over.
    None,
    /// Everything there is goes to the other node, while changes are still made here.
    Sending,
    /// The other node was told to be ready.
    PendingSent,
    /// Nothing is written here any more; the last changes go over.
    SendingRest,
    /// The other node was told that the vBucket is its own.
    ActiveSent,
    /// It is.
    Done,
}

impl Handover {
    /// Whether it is the other node's turn.
    pub(crate) fn waits(self) -> bool {
        matches!(self, Handover::PendingSent | Handover::ActiveSent)
    }
}
