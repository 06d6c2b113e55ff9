//! One stream: the changes of a vBucket, from disk and then from memory, as messages.

use std::any::Any;
use std::cell::Cell;
use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use base::planted::{self, Bug};
use base::{CollectionId, Seqno, VbState, VbUuid, Version};
use engine::{Backfill, BackfillReading, Bucket, BucketKind, Changes, StreamPlace, StreamStart};
use kvstore::{Change, Values};
use protocol::dcp::{EndReason, Marker, MarkerMore, Message, OpenFlags, StreamFlags, StreamRequest, What};
use vbucket::collections::event::begins_checkpoint;
use vbucket::{CursorId, Range, RangeLimit};

use crate::agreement::{BackfillOrder, OutOfOrder, Priority};
use crate::content::write_version;
use crate::frame_writer::FrameWriter;
use crate::handover::Handover;
use crate::interest::{Interest, look};
use crate::pending::{Announcement, Notice, Pending};
use crate::sink::Sink;
use crate::sync_writes::{self, last_visible};
use crate::turn::{Allowance, Common, Turn};

/// Changes of the first range, which are merged into one snapshot; a larger one is sent as it is sealed.
const FIRST_RANGE: RangeLimit = RangeLimit { items: 100_000, bytes: 16 << 20, ..RangeLimit::NONE };
/// Changes taken from memory at once.
const RANGE: RangeLimit = RangeLimit { items: 10_000, bytes: 2 << 20, ..RangeLimit::NONE };
/// The same for those who take part in sync writes: a prepare and what became of an earlier one of its key may not meet
/// in a snapshot.
const RUN: RangeLimit = RangeLimit { one_run: true, ..RANGE };
/// Bytes taken from a backfill at once.
const TAKE_BYTES: usize = 512 << 10;

/// A stream that reads from disk.
struct Disk {
    backfill: Arc<Backfill>,
    /// What comes meanwhile is kept in memory for it: everything after this seqno.
    cursor: Option<(CursorId, Seqno)>,
    has_marker: bool,
    is_out_of_order: bool,
    /// The last change of the snapshot that the consumer wanted.
    last_wanted: Seqno,
    /// What belongs to the snapshot although it is not on disk yet.
    rest: Option<Range>,
    /// Whether the last change of that came to nothing.
    is_abort_last: bool,
}

/// Where a stream gets its changes from. What is large and seldom is boxed: there are many streams, mostly idle.
enum Phase {
    /// It has not looked yet.
    Begin,
    /// The disk is read.
    Disk(Box<Disk>),
    /// Memory.
    Memory(CursorId),
    /// Everything that was asked for is sent.
    Done(EndReason),
}

/// One stream of a producer, and behind it the next one of the same vBucket.
pub(crate) struct Stream {
    place: StreamPlace,
    /// Everything up to here was sent, or is not for this consumer.
    sent: Seqno,
    /// The last change that the consumer wants; the snapshot that it is in is sent as a whole.
    end: Seqno,
    /// Where the next snapshot begins, as the consumer sees it.
    snapshot_start: Seqno,
    /// The first snapshot must not end before this: the consumer has a part of one that goes so far, from which changes
    /// are missing that later ones replaced. What came from another vBucket is one snapshot, too.
    must_reach: Seqno,
    phase: Phase,
    /// Nothing if it is about everything.
    interest: Option<Box<Interest>>,
    /// Changes of the present snapshot that are not sent yet.
    pending: Option<Box<Pending>>,
    pub(crate) next: Option<Box<Stream>>,
    pub(crate) opaque: u32,
    flags: StreamFlags,
    pub(crate) stream_id: Option<u16>,
    /// Markers that the consumer has not acknowledged.
    unacknowledged: u16,
    state: VbState,
    /// The history that the consumer was told of.
    uuid: VbUuid,
    handover: Handover,
    next_marker: NextMarker,
    /// The last change up to `sent` that readers can see, or some seqno between that and `sent`.
    max_visible: Seqno,
}

/// What the next marker is to this stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NextMarker {
    /// Its first: the snapshot begins where the consumer said.
    First,
    /// The first one after a snapshot from disk.
    AfterDisk,
    /// The first one since a collection began or ended: the snapshot begins there.
    AtBoundary,
    /// Any other.
    Plain,
}

impl Stream {
    pub(crate) fn new(
        opaque: u32,
        request: &StreamRequest,
        stream_id: Option<u16>,
        interest: Option<Interest>,
        start: &StreamStart,
        sync_writes: bool,
    ) -> Stream {
        let mut end = request.end;
        if request.flags.has(StreamFlags::TO_LATEST) {
            // Of prepares only those are told who know of them.
            end = if sync_writes { start.high_seqno } else { start.max_visible };
        }
        if request.flags.has(StreamFlags::DISK_ONLY) {
            end = end.min(start.persisted_seqno);
        }
        let is_handover = request.flags.has(StreamFlags::TAKEOVER);
        let is_done = request.start >= end && !is_handover;
        Stream {
            place: start.place,
            opaque,
            stream_id,
            interest: interest.map(Box::new),
            flags: request.flags,
            state: start.state,
            uuid: start.failover.first().map_or(VbUuid(0), |entry| entry.uuid),
            sent: request.start,
            end,
            snapshot_start: request.snapshot_start,
            must_reach: if request.start > request.snapshot_start { request.snapshot_end } else { Seqno(0) }
                .max(start.failover.first().map_or(Seqno(0), |newest| newest.seqno)),
            next_marker: NextMarker::First,
            max_visible: start.max_visible.min(request.start),
            phase: if is_done { Phase::Done(EndReason::Ok) } else { Phase::Begin },
            pending: None,
            next: None,
            unacknowledged: 0,
            handover: if is_handover { Handover::Sending } else { Handover::None },
        }
    }

    fn message(&self, what: What) -> Message<'static> {
        Message {
            vb: self.place.vb,
            opaque: self.opaque,
            stream_id: self.stream_id,
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
                out.frames(&frames, part);
                continue;
            }
            let Some(version) = pending.pop() else { break };
            let head = self.message(What::End(EndReason::Ok));
            let has_prepare = common.agreed.sync_writes && pending.has_prepare(&version);
            allowance.use_up(write_version(out, head, &version, has_prepare, common.agreed, common.features));
        }
        if !pending.is_empty() {
            self.pending = Some(pending);
            return false;
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
            common.bucket.advance_stream(self.place, *cursor, end);
        }
        true
    }

    /// Whether the vBucket is not the one any more that the stream began with. One that was given another role and its
    /// own again in between has another history, of which the consumer has to hear.
    fn broken_off(&self, bucket: &Bucket) -> Option<EndReason> {
        match bucket.stream_state(self.place.vb) {
            Some((state, incarnation, _, _))
                if state == self.state && incarnation != self.place.incarnation =>
            {
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
            Phase::Memory(cursor) => bucket.leave_memory(self.place, cursor),
            Phase::Disk(disk) => {
                on_disk.set(on_disk.get() - 1);
                bucket.cancel_backfill(&disk.backfill);
                if let Some((cursor, _)) = disk.cursor {
                    bucket.leave_memory(self.place, cursor);
                }
            }
            Phase::Begin | Phase::Done(_) => {}
        }
    }

    /// Whether it waits for the disk.
    pub(crate) fn is_on_disk(&self) -> bool {
        matches!(self.phase, Phase::Disk(_))
    }

    /// Gives up a backfill for which the consumer has no room for too long: it would hold on to files that are no
    /// longer in use. Whether it did.
    pub(crate) fn give_up_if_stalled(
        &mut self,
        bucket: &Bucket,
        on_disk: &Cell<usize>,
        now: Duration,
    ) -> bool {
        let Phase::Disk(disk) = &self.phase else { return false };
        if !bucket.is_backfill_stalled(&disk.backfill, now) {
            return false;
        }
        self.pending = None;
        let before = std::mem::replace(&mut self.phase, Phase::Done(EndReason::TooSlow));
        self.left(before, bucket, on_disk);
        true
    }

    /// The consumer has the snapshot that a marker announced.
    pub(crate) fn marker_acknowledged(&mut self) {
        self.unacknowledged = self.unacknowledged.saturating_sub(1);
    }

    /// The consumer has given the vBucket the role that it was sent.
    pub(crate) fn state_acknowledged(&mut self, bucket: &Bucket) {
        match self.handover {
            Handover::PendingSent => {
                // From here on nothing is written any more: what is left is soon sent.
                if bucket.give_away(self.place.vb, self.place.incarnation) {
                    let still = planted::is(Bug::TakeoverLeavesActive);
                    self.state = if still { VbState::Active } else { VbState::Dead };
                    self.handover = Handover::SendingRest;
                }
            }
            Handover::ActiveSent => {
                bucket.given_away(self.place.vb, self.place.incarnation);
                self.handover = Handover::Done;
            }
            Handover::None | Handover::Sending | Handover::SendingRest | Handover::Done => {}
        }
    }

    /// The end of the snapshot that was announced, if not all of it is sent: a replica had not all of it.
    fn unfinished(&self) -> Option<Seqno> {
        let end = self.announced_end();
        (end > self.sent).then_some(end)
    }

    /// The end of the snapshot that was announced last.
    fn announced_end(&self) -> Seqno {
        Seqno(self.snapshot_start.0.saturating_sub(1))
    }

    /// Up to here the consumer has, or had when it came, everything that it wants.
    fn complete_to(&self) -> Seqno {
        match self.interest.as_deref() {
            Some(Interest::Collections(_, complete_to)) => self.sent.max(*complete_to),
            _ => self.sent,
        }
    }

    /// Whether the snapshot that was announced is to be sent to its end, although the consumer wants no more.
    fn must_complete(&self) -> bool {
        self.unfinished().is_some() && !self.flags.has(StreamFlags::DISK_ONLY)
    }

    /// Those of `changes`, the next ones in order, that are wanted, of whatever kind; and whether nothing is wanted
    /// after them.
    fn choose(
        &mut self,
        changes: impl IntoIterator<Item = Version>,
        common: &Common<'_>,
    ) -> (Vec<Version>, bool) {
        let mut wanted = Vec::new();
        for version in changes {
            let verdict = look(self.interest.as_deref_mut(), &Change::of(&version), common.agreed);
            if verdict.is_wanted() {
                wanted.push(version);
            }
            if verdict.is_final() {
                return (wanted, true);
            }
        }
        (wanted, false)
    }

    /// Appends those of `changes`, the next ones in order, that are wanted and that the consumer knows of.
    fn show(
        &mut self,
        changes: impl IntoIterator<Item = Version>,
        common: &Common<'_>,
        pending: &mut Pending,
    ) {
        let (wanted, is_last) = self.choose(changes, common);
        pending.is_last |= is_last;
        pending.extend(wanted.into_iter().filter(|version| common.is_shown(version)));
    }

    fn more(&mut self, common: &Common<'_>, allowance: &mut Allowance, out: &mut dyn Sink) -> More {
        if self.handover.waits() {
            return More::Nothing;
        }
        match std::mem::replace(&mut self.phase, Phase::Begin) {
            Phase::Begin => self.begin(common),
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

    /// Everything is sent: the next step of handing over the vBucket.
    fn hand_over(&mut self, common: &Common<'_>, allowance: &mut Allowance, out: &mut dyn Sink) -> More {
        if self.unacknowledged > 0 {
            return More::Nothing;
        }
        match self.handover {
            Handover::Sending => {
                self.send(What::SetVbucketState(VbState::Pending), allowance, out);
                self.handover = Handover::PendingSent;
            }
            Handover::SendingRest => {
                self.send(What::SetVbucketState(VbState::Active), allowance, out);
                self.handover = Handover::ActiveSent;
            }
            Handover::Done => {
                self.leave(common, Phase::Done(EndReason::Ok));
                return More::Some;
            }
            Handover::None | Handover::PendingSent | Handover::ActiveSent => {}
        }
        More::Nothing
    }

    /// Chooses between memory and disk.
    fn begin(&mut self, common: &Common<'_>) -> More {
        let (bucket, agreed) = (common.bucket, common.agreed);
        if agreed.backfill_order == BackfillOrder::Sequential && common.on_disk.get() > 0 {
            return More::Queued;
        }
        let mut cursor = None;
        if !self.flags.has(StreamFlags::DISK_ONLY) {
            match bucket.join_memory(self.place, common.name, self.sent) {
                Some(joined) if joined.from <= self.sent || planted::is(Bug::StreamSkipsDisk) => {
                    self.phase = Phase::Memory(joined.id);
                    return More::Some;
                }
                Some(joined) => cursor = Some((joined.id, joined.from)),
                // It will be seen as broken off.
                None => return More::Nothing,
            }
        }
        let no_values = OpenFlags::NO_VALUE | OpenFlags::NO_VALUE_WITH_DATATYPE;
        let leave = agreed.flags.0 & no_values != 0 && !agreed.flags.has(OpenFlags::XATTRS);
        let by_key = self.collection_by_key(common);
        let reading = BackfillReading {
            values: if leave { Values::Leave } else { Values::Read },
            by_key,
            is_urgent: agreed.priority == Priority::High,
            with_prepares: agreed.sync_writes,
        };
        let writer = Box::new(FrameWriter {
            head: self.message(What::End(EndReason::Ok)),
            agreed: agreed.clone(),
            features: common.features,
            interest: self.interest.clone(),
        });
        let backfill = bucket.begin_backfill(self.place.vb, self.sent, reading, writer, common.follower);
        common.on_disk.set(common.on_disk.get() + 1);
        self.phase = Phase::Disk(Box::new(Disk {
            backfill,
            cursor,
            has_marker: false,
            is_out_of_order: by_key.is_some(),
            last_wanted: Seqno(0),
            rest: None,
            is_abort_last: false,
        }));
        More::Nothing
    }

    /// The collection that is read in the order of keys: the only one wanted, from the beginning, of a large vBucket.
    /// In order of seqno all others would be read as well.
    fn collection_by_key(&self, common: &Common<'_>) -> Option<CollectionId> {
        let may = common.agreed.out_of_order != OutOfOrder::No
            && self.sent == Seqno(0)
            && self.end == Seqno(u64::MAX)
            && !self.flags.has(StreamFlags::DISK_ONLY)
            // What a replica has of a snapshot is consistent in no order.
            && self.state == VbState::Active
            // Without a disk there is nothing in that order.
            && common.bucket.config().kind == BucketKind::Persistent;
        let Some(Interest::Collections(wanted, _)) = self.interest.as_deref() else { return None };
        match &wanted[..] {
            [only] if may => {
                let part = common.bucket.stream_part(self.place.vb, *only)?;
                let is_large = part.high_seqno.0 >= common.out_of_order_from;
                (is_large || part.is_small_beside_others()).then_some(*only)
            }
            _ => None,
        }
    }

    fn take_from_disk(
        &mut self,
        common: &Common<'_>,
        mut disk: Box<Disk>,
        allowance: &mut Allowance,
        out: &mut dyn Sink,
    ) -> More {
        let taken = common.bucket.take_backfilled(&disk.backfill, TAKE_BYTES);
        let scope = match taken.scope {
            Some(scope) if !taken.has_failed => scope,
            _ => {
                self.phase = Phase::Disk(disk);
                if taken.has_failed {
                    self.leave(common, Phase::Done(EndReason::BackfillFailed));
                    return More::Some;
                }
                return More::Nothing;
            }
        };
        // Tombstones of documents that the consumer has may be gone since it came.
        let is_purged = self.sent > Seqno(0) && self.complete_to() < scope.purge_seqno;
        if is_purged && !disk.has_marker && !self.flags.has(StreamFlags::IGNORE_PURGED) {
            self.phase = Phase::Disk(disk);
            self.leave(common, Phase::Done(EndReason::Rollback));
            return More::Some;
        }
        let unfinished = if disk.has_marker { None } else { self.unfinished() };
        if unfinished.is_some_and(|end| scope.snapshot_end > end) {
            self.phase = Phase::Disk(disk);
            return self.break_snapshot_off(common);
        }
        // What is read belongs to the snapshot that was announced.
        disk.has_marker |= unfinished.is_some();
        let mut pending = Pending::new(common.bucket);
        pending.is_out_of_order = disk.is_out_of_order;
        pending.is_of_documents = true;
        pending.is_last = taken.is_over;
        pending.take_frames(taken.frames, taken.last);
        if let Some(writer) = taken.writer {
            let writer: Box<dyn Any> = writer;
            // Whatever it was told of collections meanwhile.
            let interest = writer.downcast::<FrameWriter>().expect("it is the one of this stream").interest;
            self.interest = interest;
        }
        // Without sync writes the end is one that may be asked about.
        let readable = if common.agreed.sync_writes { scope.high_seqno } else { scope.max_visible };
        let visible = self.visible_end(common, readable);
        // Who knows of collections is told up to where it has everything, also if there is nothing for it.
        let tells = self.interest.is_some() && common.features.collections;
        let is_passed = taken.is_done && tells && !disk.is_out_of_order && visible > self.sent;
        if !disk.has_marker && (!pending.is_empty() || is_passed) {
            disk.has_marker = true;
            disk.rest = self.rest_of_snapshot(common, &disk, scope.high_seqno);
            if disk.is_out_of_order {
                self.send(What::OutOfOrder(true), allowance, out);
                (self.snapshot_start, self.next_marker) = (scope.high_seqno.next(), NextMarker::AfterDisk);
            } else {
                let mut max_visible = scope.max_visible;
                let (end, more) = match &disk.rest {
                    Some(rest) => {
                        let newest = newest_in_order(after(rest, scope.high_seqno));
                        let part = common.visible(&newest, rest.end());
                        let is_whole = rest.snapshot_end() <= rest.end();
                        max_visible = max_visible.max(last_visible(&newest));
                        disk.is_abort_last = is_whole && part.is_abort_last;
                        let end = if is_whole { part.end.max(visible) } else { rest.snapshot_end() };
                        (end, Marker::MAY_DUPLICATE)
                    }
                    // Inside of a snapshot that has not come as a whole nobody knows what of it is for the consumer.
                    None if scope.snapshot_end > scope.high_seqno => {
                        (scope.snapshot_end, Marker::MAY_DUPLICATE)
                    }
                    None => (visible, 0),
                };
                self.max_visible = max_visible;
                let flags = Marker::DISK | Marker::CHECKPOINT | more;
                let more = MarkerMore {
                    max_visible,
                    high_completed: scope.high_completed,
                    purge_and_high_prepared: Some((scope.purge_seqno, scope.high_prepared)),
                };
                let snapshot = self.announce(end, flags, more);
                self.send_marker(common, &snapshot, allowance, out);
            }
        }
        pending.last_wanted = pending.last_wanted.max(disk.last_wanted);
        disk.last_wanted = pending.last_wanted;
        let got_any = !pending.is_empty();
        if taken.is_done {
            let repeated = u64::from(planted::is(Bug::SwitchRepeatsOne));
            pending.end = Some(Seqno(scope.high_seqno.0 - repeated).max(self.sent));
            if let Some(rest) = disk.rest.take() {
                self.show(newest_in_order(after(&rest, scope.high_seqno)), common, &mut pending);
                pending.end = Some(rest.end());
                pending.moves_cursor = true;
            }
            pending.marker_end = self.announced_end();
            let is_told = disk.is_abort_last || self.says_ends();
            pending.is_announced = disk.has_marker && is_told && self.is_complete_with(&pending);
            pending.is_out_of_order &= disk.has_marker;
            self.pending = Some(Box::new(pending));
            self.leave_disk(common, *disk, scope.high_seqno);
            return More::Some;
        }
        self.phase = Phase::Disk(disk);
        if got_any || pending.is_last {
            self.pending = Some(Box::new(pending));
            return More::Some;
        }
        More::Nothing
    }

    /// Where a snapshot from disk that goes up to `high` ends for the consumer. Who knows of no collections cannot be
    /// told that the rest is for others.
    fn visible_end(&self, common: &Common<'_>, high: Seqno) -> Seqno {
        if self.interest.as_deref() != Some(&Interest::Default) {
            return high;
        }
        let part = common.bucket.stream_part(self.place.vb, CollectionId::DEFAULT);
        part.map_or(high, |part| part.high_seqno.min(high))
    }

    /// Ends in the middle of a snapshot that has become part of a larger one: the replica came back to its producer in
    /// between, and what it has now is consistent only at the new end. The consumer asks again from where it is.
    fn break_snapshot_off(&mut self, common: &Common<'_>) -> More {
        self.leave(common, Phase::Done(EndReason::StateChanged));
        More::Some
    }

    /// Whether the end of a snapshot may be no change that the consumer is sent: it is told then.
    fn says_ends(&self) -> bool {
        self.interest.is_some() || self.state != VbState::Active
    }

    /// Whether the snapshot that was announced is complete once `pending` is sent.
    fn is_complete_with(&self, pending: &Pending) -> bool {
        pending.end.is_some_and(|end| end >= self.announced_end())
    }

    /// What follows the disk's state in memory, if that is older than the snapshot that the consumer has a part of.
    fn rest_of_snapshot(&self, common: &Common<'_>, disk: &Disk, high: Seqno) -> Option<Range> {
        let (cursor, _) = disk.cursor.filter(|(_, from)| *from <= high && high < self.must_reach)?;
        match common.bucket.take_changes(self.place, cursor, RangeLimit::NONE) {
            Changes::Range(range) => Some(range),
            Changes::Nothing | Changes::Dropped => None,
        }
    }

    fn leave_disk(&mut self, common: &Common<'_>, disk: Disk, high: Seqno) {
        common.on_disk.set(common.on_disk.get() - 1);
        self.phase = match disk.cursor {
            Some((cursor, from)) if from <= high || planted::is(Bug::SwitchSkips) => Phase::Memory(cursor),
            // Memory had moved on before the disk was read; or there is no cursor: look again.
            Some((cursor, _)) => {
                common.bucket.leave_memory(self.place, cursor);
                Phase::Begin
            }
            None if self.flags.has(StreamFlags::DISK_ONLY) => Phase::Done(EndReason::Ok),
            None => Phase::Begin,
        };
    }

    fn take_from_memory(&mut self, common: &Common<'_>, cursor: CursorId) -> More {
        let limit = match self.next_marker {
            _ if common.agreed.sync_writes => RUN,
            NextMarker::Plain => RANGE,
            NextMarker::First | NextMarker::AfterDisk | NextMarker::AtBoundary => FIRST_RANGE,
        };
        let unfinished = self.unfinished();
        let limit = limit.through(unfinished.unwrap_or(limit.through));
        let take = |limit| common.bucket.take_changes(self.place, cursor, limit);
        let range = match take(limit) {
            Changes::Range(range) if unfinished.is_some_and(|end| range.snapshot_end() > end) => {
                self.phase = Phase::Memory(cursor);
                return self.break_snapshot_off(common);
            }
            Changes::Range(range) if range.end() < self.must_reach => match take(RangeLimit::NONE) {
                Changes::Range(whole) => whole,
                Changes::Nothing | Changes::Dropped => range,
            },
            Changes::Range(range) => range,
            Changes::Nothing => {
                self.phase = Phase::Memory(cursor);
                return More::Nothing;
            }
            // Back to the disk, from where it stopped.
            Changes::Dropped => return More::Some,
        };
        let mut pending = Pending::new(common.bucket);
        pending.end = Some(range.end());
        pending.moves_cursor = true;
        // What was announced with the disk's part goes on without a marker, also in a vBucket that is active by now.
        let goes_on = unfinished.is_some();
        if self.state != VbState::Active || goes_on || range.snapshot_end() > range.end() {
            self.plan_received(&range, common, &mut pending);
        } else {
            self.plan_snapshots(&range, common, &mut pending);
        }
        self.phase = Phase::Memory(cursor);
        self.pending = Some(Box::new(pending));
        More::Some
    }

    /// Makes one snapshot of what memory has next: the one that another vBucket made, as far as it is here.
    fn plan_received(&mut self, range: &Range, common: &Common<'_>, pending: &mut Pending) {
        let is_new = self.unfinished().is_none();
        let is_whole = range.snapshot_end() <= range.end();
        let newest = newest_in_order(after(range, self.sent));
        // Inside of a snapshot that has not come as a whole nobody knows what its end will be.
        let visible = common.visible(&newest, range.end());
        let comes_to_nothing = is_whole && visible.is_abort_last;
        self.max_visible = self.max_visible.max(last_visible(&newest));
        let mut chosen = Pending::new(common.bucket);
        chosen.as_documents = told_as_documents(range, &newest, self.sent, common);
        self.show(newest, common, &mut chosen);
        let is_marked = is_new && (comes_to_nothing || !chosen.is_empty());
        if is_marked {
            let more = if is_whole { 0 } else { Marker::MAY_DUPLICATE };
            let flags = Marker::MEMORY | self.checkpoint_flag(range, range.start(), range.end()) | more;
            let end = if is_whole { visible.end } else { range.snapshot_end() };
            let more = MarkerMore { max_visible: self.max_visible, ..MarkerMore::default() };
            pending.announce(self.announce(end, flags, more));
        }
        pending.is_last = chosen.is_last;
        pending.append(chosen);
        pending.marker_end = self.announced_end();
        // An active vBucket announces only what it sends, unless it was none when that was saved.
        let is_told = comes_to_nothing || self.state != VbState::Active || !is_new;
        pending.is_announced = is_told && (is_marked || !is_new) && self.is_complete_with(pending);
    }

    /// Makes snapshots of what memory has next: one, and another one wherever a collection begins or ends.
    fn plan_snapshots(&mut self, range: &Range, common: &Common<'_>, pending: &mut Pending) {
        let fresh: Vec<&Version> = after(range, self.sent).collect();
        let must_reach = self.must_reach;
        let is_boundary =
            |version: &Version| begins_checkpoint(version) && version.meta().by_seqno > must_reach;
        let last = fresh.last().map(|version| version.meta().by_seqno);
        // Everything up to here is in the parts before.
        let mut before = self.sent;
        for part in fresh.chunk_by(|_, next| !is_boundary(next)) {
            if is_boundary(part[0]) && self.next_marker != NextMarker::First {
                (self.snapshot_start, self.next_marker) = (part[0].meta().by_seqno, NextMarker::AtBoundary);
            }
            let part_end = match part.last().map(|version| version.meta().by_seqno) {
                Some(end) if Some(end) != last => end,
                // What was merged away or passed over at the end belongs to it, too.
                _ => range.end(),
            };
            // Several sealed checkpoints become one snapshot: newest of each key, in order.
            let (wanted, is_last) = self.choose(newest_in_order(part.iter().copied()), common);
            let end = match (&self.interest, wanted.last()) {
                (Some(_), Some(last)) => last.meta().by_seqno,
                _ => part_end,
            };
            let visible = common.visible(&wanted, end);
            self.max_visible = self.max_visible.max(last_visible(&wanted));
            let mut chosen = Pending::new(common.bucket);
            chosen.as_documents = told_as_documents(range, &wanted, before, common);
            chosen.extend(wanted.into_iter().filter(|version| common.is_shown(version)));
            pending.is_last = is_last;
            if !chosen.is_empty() || visible.is_abort_last {
                let flags = Marker::MEMORY | self.checkpoint_flag(range, before.next(), part_end);
                let more = MarkerMore { max_visible: self.max_visible, ..MarkerMore::default() };
                pending.announce(self.announce(visible.end, flags, more));
                pending.append(chosen);
                if visible.is_abort_last {
                    pending.advance(visible.end);
                }
            }
            if pending.is_last {
                return;
            }
            before = part_end;
        }
    }

    /// What the marker of a snapshot from memory says if a checkpoint begins there, as far as a consumer has to know:
    /// at the first one, and where a run begins between `from` and `to`.
    fn checkpoint_flag(&self, range: &Range, from: Seqno, to: Seqno) -> u32 {
        let begins = self.next_marker != NextMarker::Plain || range.begins_run(from, to);
        if begins { Marker::CHECKPOINT } else { 0 }
    }

    /// A snapshot from where the last one ended up to `end`, with `more` for those who understand it.
    fn announce(&mut self, end: Seqno, flags: u32, more: MarkerMore) -> Announcement {
        let start = match self.next_marker {
            NextMarker::First | NextMarker::AtBoundary => self.snapshot_start,
            // What was passed over meanwhile belongs to no snapshot of this consumer.
            NextMarker::AfterDisk | NextMarker::Plain => self.snapshot_start.max(self.sent.next()),
        };
        let is_disk = flags & Marker::DISK != 0;
        self.next_marker = if is_disk { NextMarker::AfterDisk } else { NextMarker::Plain };
        self.snapshot_start = end.next();
        Announcement { start, end, flags, more }
    }

    fn send_marker(
        &mut self,
        common: &Common<'_>,
        snapshot: &Announcement,
        allowance: &mut Allowance,
        out: &mut dyn Sink,
    ) {
        let is_handed_over = self.handover != Handover::None;
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

/// The newest version of each key, in order of seqno.
fn newest_in_order<'a>(changes: impl Iterator<Item = &'a Version>) -> Vec<Version> {
    let mut newest = kvstore::newest_of(changes);
    newest.sort_unstable_by_key(|version| version.meta().by_seqno);
    newest
}

/// What of a range comes after a seqno.
fn after(range: &Range, seqno: Seqno) -> impl Iterator<Item = &Version> {
    range.iter().filter(move |version| version.meta().by_seqno > seqno)
}

/// Which commits of `items`, a snapshot of a range from behind `sent`, are told as the documents that they made.
fn told_as_documents(range: &Range, items: &[Version], sent: Seqno, common: &Common<'_>) -> HashSet<Seqno> {
    // Within one checkpoint nothing takes another one's place.
    let is_merged = common.agreed.sync_writes && range.checkpoints().nth(1).is_some();
    if is_merged { sync_writes::commits_without_prepares(items, sent) } else { HashSet::new() }
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
