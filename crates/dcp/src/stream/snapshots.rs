//! The snapshots that a stream announces: where they begin, whether they are complete, their markers.

use base::{Seqno, VbState};
use protocol::dcp::{EndReason, Marker, MarkerMore, StreamFlags, What};

use super::{More, Phase, Stream};
use crate::handover::Handover;
use crate::pending::{Announcement, Pending};
use crate::sink::Sink;
use crate::turn::{Allowance, Common};

/// What the next marker is to this stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NextMarker {
    /// Its first: the snapshot begins where the consumer said.
    First,
    /// Its first, of which the consumer has a part already.
    Resumed,
    /// The first one after a snapshot from disk.
    AfterDisk,
    /// The first one since a collection began or ended: the snapshot begins there.
    AtBoundary,
    /// Any other.
    Plain,
}

impl NextMarker {
    pub(super) fn is_first(self) -> bool {
        matches!(self, NextMarker::First | NextMarker::Resumed)
    }
}

impl Stream {
    /// The consumer has the snapshot that a marker announced.
    pub(crate) fn marker_acknowledged(&mut self) {
        self.unacknowledged = self.unacknowledged.saturating_sub(1);
    }

    /// The end of the snapshot that was announced, if not all of it is sent: a replica had not all of it.
    pub(super) fn unfinished(&self) -> Option<Seqno> {
        let end = self.announced_end();
        (end > self.sent).then_some(end)
    }

    /// The end of the snapshot that was announced last.
    pub(super) fn announced_end(&self) -> Seqno {
        Seqno(self.snapshot_start.0.saturating_sub(1))
    }

    /// Whether the snapshot that was announced is to be sent to its end, although the consumer wants no more.
    pub(super) fn must_complete(&self) -> bool {
        self.unfinished().is_some() && !self.flags.has(StreamFlags::DISK_ONLY)
    }

    /// Ends in the middle of a snapshot that has become part of a larger one: the replica came back to its producer in
    /// between, and what it has now is consistent only at the new end. The consumer asks again from where it is.
    pub(super) fn break_snapshot_off(&mut self, common: &Common<'_>) -> More {
        self.leave(common, Phase::Done(EndReason::StateChanged));
        More::Some
    }

    /// Whether the end of a snapshot may be no change that the consumer is sent: it is told then.
    pub(super) fn says_ends(&self) -> bool {
        self.interest.is_some() || self.state != VbState::Active
    }

    /// Whether the snapshot that was announced is complete once `pending` is sent.
    pub(super) fn is_complete_with(&self, pending: &Pending) -> bool {
        pending.end.is_some_and(|end| end >= self.announced_end())
    }

    /// A snapshot from where the last one ended up to `end`, with `more` for those who understand it. It begins with
    /// `first`, if that is known, unless something else was said.
    pub(super) fn announce(
        &mut self,
        first: Option<Seqno>,
        end: Seqno,
        flags: u32,
        more: MarkerMore,
    ) -> Announcement {
        let start = match self.next_marker {
            NextMarker::First | NextMarker::Resumed | NextMarker::AtBoundary => self.snapshot_start,
            // What was passed over meanwhile belongs to no snapshot of this consumer.
            NextMarker::AfterDisk | NextMarker::Plain => {
                self.snapshot_start.max(first.unwrap_or(self.sent.next()))
            }
        };
        self.is_history = flags & Marker::HISTORY != 0;
        let is_disk = flags & Marker::DISK != 0;
        self.next_marker = if is_disk { NextMarker::AfterDisk } else { NextMarker::Plain };
        self.snapshot_start = end.next();
        Announcement { start, end, flags, more }
    }

    pub(super) fn send_marker(
        &mut self,
        common: &Common<'_>,
        snapshot: &Announcement,
        allowance: &mut Allowance,
        out: &mut dyn Sink,
    ) {
        // What comes from disk is only the beginning: what follows it in memory is waited for.
        let is_handed_over = self.handover != Handover::None && snapshot.flags & Marker::DISK == 0;
        // Who takes part in durable writes gets version 2, and who asked for it the newest one.
        let agreed = common.agreed;
        let takes_part = agreed.sync_writes && agreed.consumer_name.is_some();
        let newest = agreed.marker_2_2.then(|| snapshot.more.purge_and_high_prepared.unwrap_or_default());
        let more = (takes_part || agreed.marker_2_2)
            .then_some(MarkerMore { purge_and_high_prepared: newest, ..snapshot.more });
        let extra = if is_handed_over { Marker::ACKNOWLEDGE | Marker::CHECKPOINT } else { 0 };
        self.unacknowledged += u16::from(is_handed_over);
        let (start, end) = (snapshot.start, snapshot.end);
        let marker = Marker { start, end, flags: snapshot.flags | extra, more };
        self.send(What::Marker(marker), allowance, out);
    }
}
