//! The snapshot that a replica receives, as its checkpoints see it.

use base::Seqno;

use crate::held_checkpoints::HeldCheckpoints;
use crate::ops::{IncomingSnapshot, SnapshotKind};

/// The snapshot that a seqno lies in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SnapshotBounds {
    /// The last seqno before it: up to here everything is complete.
    pub start: Seqno,
    /// Its last seqno.
    pub end: Seqno,
    /// Where it came from.
    pub kind: SnapshotKind,
}

impl SnapshotBounds {
    /// Those of a vBucket that stands between snapshots.
    pub fn at(seqno: Seqno) -> SnapshotBounds {
        SnapshotBounds { start: seqno, end: seqno, kind: SnapshotKind::Memory }
    }

    /// Whether `high`, the last seqno that there is, lies inside: some of it has come, and not all.
    pub fn is_inside(&self, high: Seqno) -> bool {
        self.start < high && high < self.end
    }
}

/// What a manager of received changes knows about their snapshot.
#[derive(Default)]
pub(crate) struct Received {
    pub(crate) snapshot: SnapshotBounds,
    /// As it was announced last.
    pub(crate) announced: IncomingSnapshot,
    /// A reader was, or may have been, told its end: no checkpoint goes on beyond that.
    pub(crate) is_promised: bool,
    /// Up to here snapshots were given up: what came of them is all there is.
    pub(crate) given_up: Seqno,
}

impl HeldCheckpoints {
    /// The snapshot that the last change lies in: that change alone, unless a replica is in the middle of one.
    pub fn snapshot(&self) -> SnapshotBounds {
        let received = self.received.as_ref().map(|received| received.snapshot);
        received.filter(|snapshot| snapshot.is_inside(self.high)).unwrap_or(SnapshotBounds::at(self.high))
    }

    /// The snapshot that is being received, or was last.
    pub(crate) fn receiving(&self) -> SnapshotBounds {
        self.received.as_ref().map(|received| received.snapshot).unwrap_or_default()
    }

    /// Up to where its producer has nothing in flight.
    pub(crate) fn announced_completed(&self) -> Option<Seqno> {
        self.received.as_ref().and_then(|received| received.announced.high_completed)
    }

    /// The bounds that what comes next has to keep to: the first seqno that may come, and the last one. Nothing if no
    /// snapshot was announced, or all of it has come.
    pub(crate) fn expected(&self) -> Option<(Seqno, Seqno)> {
        let received = self.received.as_ref()?;
        let first = received.announced.start.max(self.high.next());
        (first <= received.snapshot.end).then_some((first, received.snapshot.end))
    }

    /// What is received from now on lies in this snapshot, which begins a checkpoint or continues the present one.
    ///
    /// A snapshot that is not complete goes on in this one: together they are one.
    pub(crate) fn begin_snapshot(&mut self, announced: &IncomingSnapshot) {
        let present = self.snapshot();
        let is_promised = self.received.as_ref().is_some_and(|received| received.is_promised);
        if announced.begins_checkpoint || is_promised {
            self.close();
        }
        let kind = if present.kind == SnapshotKind::Memory { announced.kind } else { present.kind };
        let end = present.end.max(announced.end);
        let received = self.received.get_or_insert_default();
        received.is_promised = is_promised && present.is_inside(self.high);
        received.snapshot = SnapshotBounds { start: present.start, end, kind };
        received.announced = *announced;
    }

    /// The connection is gone over which the snapshot came: nothing more is expected before another one is announced.
    pub(crate) fn expect_nothing(&mut self) {
        let present = self.snapshot();
        if let Some(received) = &mut self.received {
            received.snapshot = present;
            // nothing lies behind it
            received.announced.start = Seqno(u64::MAX);
        }
    }

    /// Whoever asks now may be told the end of the snapshot that is being received.
    pub fn promise(&mut self) {
        if let Some(received) = &mut self.received {
            received.is_promised = true;
        }
    }

    /// Nothing more comes of the snapshot that was being received: the vBucket goes on with what it has.
    pub(crate) fn give_up_snapshot(&mut self) {
        if self.snapshot().is_inside(self.high) {
            self.close();
        }
        let high = self.high;
        if let Some(received) = &mut self.received {
            received.given_up = high;
            received.snapshot = SnapshotBounds::at(high);
        }
    }
}
