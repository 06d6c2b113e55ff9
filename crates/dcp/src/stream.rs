//! One stream: the changes of a vBucket, from disk and then from memory, as messages.

mod disk;
mod giving;
mod memory;
mod snapshots;

use std::cell::Cell;
use std::sync::Arc;

use base::planted::{self, Bug};
use base::{Seqno, VbId, VbState, VbUuid, Version};
use engine::{Bucket, KeptSnapshot, Refusal, StreamPlace, StreamStart};
use kvstore::Change;
use protocol::dcp::{EndReason, Message, StreamFlags, StreamRequest, What};
use vbucket::CursorId;

use crate::agreement::OutOfOrder;
use crate::content::write_version;
use crate::figures::{StreamFigures, StreamMoment, StreamStage};
use crate::handover::Handover;
use crate::interest::{Interest, look};
use crate::pending::{self, Notice, Pending};
use crate::sink::Sink;
use crate::sync_writes::Look;
use crate::turn::{Allowance, Common, Turn};
use disk::Disk;
use snapshots::NextMarker;

/// Where a stream gets its changes from. What is large and seldom is boxed: there are many streams, mostly idle.
enum Phase {
    /// It has not looked yet.
    Begin,
    /// It has not looked yet, and reads a snapshot that is kept.
    Kept(Box<KeptSnapshot>),
    /// The disk is read.
    Disk(Box<Disk>),
    /// Memory.
    Memory(CursorId),
    /// Everything that was asked for is sent.
    Done(EndReason),
}

/// One stream of a producer, and behind it the next one of the same vBucket.
pub(crate) struct Stream {
    /// With `vb` the place of the stream, in parts: together they would take eight bytes more.
    incarnation: u64,
    vb: VbId,
    /// Everything up to here was sent, or is not for this consumer.
    pub(crate) sent: Seqno,
    /// The last change that the consumer wants; the snapshot that it is in is sent as a whole.
    end: Seqno,
    /// Where the next snapshot begins, as the consumer sees it.
    snapshot_start: Seqno,
    /// The first snapshot must not end before this: the consumer has a part of one that goes so far, from which changes
    /// are missing that later ones replaced. What came from another vBucket is one snapshot, too.
    must_reach: Seqno,
    phase: Phase,
    /// Nothing if it is about everything. The one that most have is their connection's.
    pub(crate) interest: Option<Arc<Interest>>,
    /// Collections that the interest is charged for.
    pub(crate) interest_size: u16,
    /// Changes of the present snapshot that are not sent yet.
    pending: Option<Box<Pending>>,
    pub(crate) next: Option<Box<Stream>>,
    /// What it is for other threads, and what never changes of it.
    pub(crate) figures: Arc<StreamFigures>,
    flags: StreamFlags,
    /// Markers that the consumer has not acknowledged.
    unacknowledged: u16,
    state: VbState,
    /// The history that the consumer was told of.
    uuid: VbUuid,
    handover: Handover,
    next_marker: NextMarker,
    look: Look,
    /// Whether the snapshot that was announced last is history of changes: no version is left out of it.
    is_history: bool,
    /// The last change up to `sent` that readers can see, or some seqno between that and `sent`.
    max_visible: Seqno,
}

/// Tells other threads how far a stream is.
pub(crate) fn note(stream: &Stream) {
    let stage = match (&stream.phase, stream.handover) {
        (Phase::Done(_), _) => StreamStage::Dead,
        (Phase::Disk(_), _) => StreamStage::Backfilling,
        (_, handover) if handover.waits() => StreamStage::TakeoverWait,
        (Phase::Memory(_), Handover::None) => StreamStage::InMemory,
        (Phase::Memory(_), _) => StreamStage::TakeoverSend,
        (Phase::Begin | Phase::Kept(_), _) => StreamStage::Pending,
    };
    let has_cursor = match &stream.phase {
        Phase::Memory(_) => true,
        Phase::Disk(disk) => disk.cursor.is_some(),
        Phase::Begin | Phase::Kept(_) | Phase::Done(_) => false,
    };
    let pending = stream.pending.as_deref();
    stream.figures.note(&StreamMoment {
        stage,
        has_cursor,
        sent: stream.sent,
        read: pending
            .map_or(stream.sent, |pending| pending.end.unwrap_or(pending.last_wanted))
            .max(stream.sent),
        snapshot_end: if stream.next_marker.is_first() { Seqno(0) } else { stream.announced_end() },
        waiting_items: pending.map_or(0, Pending::items),
        waiting_list_bytes: pending.map_or(0, Pending::list_bytes),
        backfill_bytes: pending.map_or(0, Pending::frame_bytes),
    });
}

/// Has a stream that was just made read a snapshot that is kept.
pub(crate) fn read_kept(stream: &mut Stream, kept: KeptSnapshot) {
    // One that ends where it begins reads nothing.
    if matches!(stream.phase, Phase::Begin) {
        stream.phase = Phase::Kept(Box::new(kept));
    }
}

impl Stream {
    pub(crate) fn new(
        opaque: u32,
        request: &StreamRequest,
        stream_id: Option<u16>,
        interest: Option<Arc<Interest>>,
        start: &StreamStart,
        hears_of_prepares: bool,
    ) -> Stream {
        let mut end = request.end;
        if request.flags.has(StreamFlags::TO_LATEST) {
            // Prepares, or gaps in their places.
            end = if hears_of_prepares { start.high_seqno } else { start.max_visible };
        }
        // Whatever end was asked for.
        if request.flags.has(StreamFlags::DISK_ONLY) {
            end = start.persisted_seqno;
        }
        let is_handover = request.flags.has(StreamFlags::TAKEOVER);
        let is_done = request.start >= end && !is_handover;
        Stream {
            incarnation: start.place.incarnation,
            vb: start.place.vb,
            figures: Arc::new(StreamFigures::new(start.place.vb, stream_id, opaque, request, end)),
            interest_size: interest.as_deref().map_or(0, Interest::most_collections),
            interest,
            flags: request.flags,
            state: start.state,
            uuid: start.failover.first().map_or(VbUuid(0), |entry| entry.uuid),
            sent: request.start,
            end,
            snapshot_start: request.snapshot_start,
            must_reach: if request.start > request.snapshot_start { request.snapshot_end } else { Seqno(0) }
                .max(start.failover.first().map_or(Seqno(0), |newest| newest.seqno)),
            next_marker: if request.start > request.snapshot_start && request.start < request.snapshot_end {
                NextMarker::Resumed
            } else {
                NextMarker::First
            },
            look: Look::First,
            is_history: false,
            max_visible: start.max_visible.min(request.start),
            phase: if is_done { Phase::Done(EndReason::Ok) } else { Phase::Begin },
            pending: None,
            next: None,
            unacknowledged: 0,
            handover: if is_handover { Handover::Sending } else { Handover::None },
        }
    }

    fn place(&self) -> StreamPlace {
        StreamPlace { vb: self.vb, incarnation: self.incarnation }
    }

    fn message(&self, what: What) -> Message<'static> {
        Message {
            vb: self.vb,
            opaque: self.figures.opaque,
            stream_id: self.figures.stream_id,
            cas: base::Cas(0),
            datatype: 0,
            key: b"",
            value: b"",
            what,
        }
    }

    fn send(&self, what: What, allowance: &mut Allowance, out: &mut dyn Sink) {
        let message = self.message(what);
        message.write(out.bytes());
        allowance.use_up(message.wire_bytes());
    }

    /// Sends what there is, as far as it may.
    pub(crate) fn turn(
        &mut self,
        common: &Common<'_>,
        allowance: &mut Allowance,
        out: &mut dyn Sink,
    ) -> Turn {
        if let Some(reason) = self.broken_off(common.bucket) {
            return self.finish(reason, allowance, out);
        }
        loop {
            if !self.send_pending(common, allowance, out) {
                return Turn::More;
            }
            let is_over = matches!(self.phase, Phase::Done(_)) || self.must_complete();
            if self.sent >= self.end && self.handover == Handover::None && !is_over {
                self.leave(common, Phase::Done(EndReason::Ok));
            }
            if allowance.is_used() {
                return Turn::More;
            }
            match self.more(common, allowance, out) {
                More::Some => {}
                More::Nothing => return Turn::Idle,
                More::Queued => return Turn::Queued,
                More::End(reason) => return self.finish(reason, allowance, out),
            }
        }
    }

    /// Sends what is pending; false if that was more than may be sent now.
    fn send_pending(&mut self, common: &Common<'_>, allowance: &mut Allowance, out: &mut dyn Sink) -> bool {
        let Some(mut pending) = self.pending.take() else { return true };
        while !allowance.is_used() {
            match pending.pop_notice() {
                Some(Notice::Snapshot(snapshot)) => {
                    self.send_marker(common, &snapshot, allowance, out);
                    continue;
                }
                Some(Notice::Advanced(to)) => {
                    self.send(What::SeqnoAdvanced(to), allowance, out);
                    continue;
                }
                None => {}
            }
            if let Some((frames, part)) = pending.pop_frames(allowance.left()) {
                allowance.use_up(part.len());
                let changes = pending::count_messages(&frames[part.clone()]);
                allowance.changes += changes;
                self.figures.add_from_disk(changes);
                out.frames(&frames, part);
                continue;
            }
            let Some(version) = pending.pop() else { break };
            let head = self.message(What::End(EndReason::Ok));
            let has_prepare = common.agreed.sync_writes && pending.has_prepare(&version);
            match write_version(out, head, &version, has_prepare, common.agreed, common.features) {
                Ok(bytes) => {
                    allowance.use_up(bytes);
                    allowance.changes += 1;
                    self.figures.add_from_memory(1);
                }
                Err(_) => {
                    self.give_up_unreadable(common);
                    return true;
                }
            }
        }
        if !pending.is_empty() {
            self.pending = Some(pending);
            return false;
        }
        if !pending.is_out_of_order {
            self.figures.note_sent(pending.last_wanted);
        }
        if pending.is_last {
            self.leave(common, Phase::Done(EndReason::FilterEmpty));
            return true;
        }
        let Some(end) = pending.end else { return true };
        if pending.is_out_of_order {
            if common.agreed.out_of_order == OutOfOrder::WithSeqnoAdvanced {
                self.send(What::SeqnoAdvanced(end), allowance, out);
            }
            self.send(What::OutOfOrder(false), allowance, out);
        } else if pending.last_wanted.max(self.sent) < pending.marker_end
            && pending.is_announced
            && common.features.collections
        {
            self.send(What::SeqnoAdvanced(pending.marker_end), allowance, out);
        }
        self.sent = self.sent.max(end);
        if let (Phase::Memory(cursor), true) = (&self.phase, pending.moves_cursor) {
            common.bucket.streams().advance_stream(self.place(), *cursor, end);
        }
        true
    }

    /// Whether the vBucket is not the one any more that the stream began with. One that was given another role and its
    /// own again in between has another history, of which the consumer has to hear.
    fn broken_off(&self, bucket: &Bucket) -> Option<EndReason> {
        match bucket.streams().stream_state(self.vb) {
            Some((state, incarnation, _, _)) if state == self.state && incarnation != self.incarnation => {
                Some(EndReason::Rollback)
            }
            Some((state, _, uuid, _)) if state == self.state && uuid == self.uuid => None,
            _ => Some(EndReason::StateChanged),
        }
    }

    /// Ends, and says so.
    pub(crate) fn finish(
        &mut self,
        reason: EndReason,
        allowance: &mut Allowance,
        out: &mut dyn Sink,
    ) -> Turn {
        self.send(What::End(reason), allowance, out);
        Turn::Ended
    }

    /// Leaves memory and disk.
    pub(crate) fn close(&mut self, bucket: &Bucket, on_disk: &Cell<usize>) {
        self.pending = None;
        let before = std::mem::replace(&mut self.phase, Phase::Done(EndReason::Closed));
        self.left(before, bucket, on_disk);
    }

    fn leave(&mut self, common: &Common<'_>, next: Phase) {
        let before = std::mem::replace(&mut self.phase, next);
        self.left(before, common.bucket, common.on_disk);
    }

    fn left(&self, before: Phase, bucket: &Bucket, on_disk: &Cell<usize>) {
        match before {
            Phase::Memory(cursor) => bucket.streams().leave_memory(self.place(), cursor),
            Phase::Disk(disk) => {
                on_disk.set(on_disk.get() - 1);
                bucket.streams().backfills().cancel(&disk.backfill);
                if let Some((cursor, _)) = disk.cursor {
                    bucket.streams().leave_memory(self.place(), cursor);
                }
            }
            Phase::Begin | Phase::Kept(_) | Phase::Done(_) => {}
        }
    }

    /// Ends because a change cannot be read: a consumer that was told of what follows would never hear of it.
    fn give_up_unreadable(&mut self, common: &Common<'_>) -> More {
        common.bucket.fetching().note_unreadable(self.vb);
        self.leave(common, Phase::Done(EndReason::BackfillFailed));
        More::Some
    }

    /// Those of `changes`, the next ones in order, that are wanted, of whatever kind; and whether nothing is wanted
    /// after them. Refused if one cannot be read.
    fn choose(
        &mut self,
        changes: impl IntoIterator<Item = Version>,
        common: &Common<'_>,
    ) -> Result<(Vec<Version>, bool), Refusal> {
        let mut wanted = Vec::new();
        for version in changes {
            let verdict = look(self.interest.as_mut(), &Change::of(&version), common.agreed)?;
            if verdict.is_wanted() {
                wanted.push(version);
            }
            if verdict.is_final() {
                return Ok((wanted, true));
            }
        }
        Ok((wanted, false))
    }

    /// Appends those of `changes`, the next ones in order, that are wanted and that the consumer knows of.
    fn show(
        &mut self,
        changes: impl IntoIterator<Item = Version>,
        common: &Common<'_>,
        pending: &mut Pending,
    ) -> Result<(), Refusal> {
        let (wanted, is_last) = self.choose(changes, common)?;
        pending.is_last |= is_last;
        pending.extend(common.shown(wanted, self.sent).into_iter());
        Ok(())
    }

    fn more(&mut self, common: &Common<'_>, allowance: &mut Allowance, out: &mut dyn Sink) -> More {
        if self.handover.waits() {
            return More::Nothing;
        }
        match std::mem::replace(&mut self.phase, Phase::Begin) {
            Phase::Begin => self.begin(common, None),
            Phase::Kept(kept) => self.begin(common, Some(kept)),
            Phase::Done(reason) => {
                self.phase = Phase::Done(reason);
                More::End(reason)
            }
            Phase::Disk(disk) => self.take_from_disk(common, disk, allowance, out),
            Phase::Memory(cursor)
                if self.handover == Handover::SendingRest && planted::is(Bug::TakeoverForgetsRest) =>
            {
                self.phase = Phase::Memory(cursor);
                self.hand_over(common, allowance, out)
            }
            Phase::Memory(cursor) => match self.take_from_memory(common, cursor) {
                More::Nothing if self.handover != Handover::None => self.hand_over(common, allowance, out),
                more => more,
            },
        }
    }
}

/// What a look for more came to.
enum More {
    /// There may be something now.
    Some,
    /// It has to wait.
    Nothing,
    /// It has to wait for another stream.
    Queued,
    /// That was all.
    End(EndReason),
}

#[cfg(test)]
mod tests;
