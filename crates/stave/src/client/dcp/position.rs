//! How far a consumer has come in a vBucket: what it asks with when it comes back.

use base::{Seqno, VbUuid};

/// How far a consumer has come in a vBucket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Position {
    /// The history that it follows.
    pub uuid: VbUuid,
    /// The last change that it has.
    pub seqno: Seqno,
    /// Where the snapshot begins that this change is in.
    pub snapshot_start: Seqno,
    /// Where that snapshot ends.
    pub snapshot_end: Seqno,
}

impl Position {
    /// Before everything.
    pub const START: Position =
        Position { uuid: VbUuid(0), seqno: Seqno(0), snapshot_start: Seqno(0), snapshot_end: Seqno(0) };

    /// Behind a change at which a snapshot ends.
    pub fn at(uuid: VbUuid, seqno: Seqno) -> Position {
        if seqno == Seqno(0) {
            return Position::START;
        }
        Position { uuid, seqno, snapshot_start: seqno, snapshot_end: seqno }
    }

    /// The same after going back to `to`, where the history that is followed and the producer's still are one.
    pub fn rolled_back(self, to: Seqno) -> Position {
        Position::at(self.uuid, to)
    }

    /// Takes a change at `seqno` of the snapshot from `start` to `end` into account.
    pub fn advance(&mut self, seqno: Seqno, (start, end): (Seqno, Seqno)) {
        self.seqno = seqno;
        // Where a snapshot is complete, it does not matter any more where it began.
        self.snapshot_start = if seqno == end { seqno } else { start.min(seqno) };
        self.snapshot_end = end.max(seqno);
    }
}
