//! One stream: the changes of a vBucket, from disk and then from memory, as messages.

use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use base::{CollectionId, Seqno, VbState, Version};
use engine::{Backfill, BackfillReading, Bucket, BucketKind, Changes, Follower, StreamPlace, StreamStart};
use kvstore::Values;
use protocol::dcp::{EndReason, Marker, MarkerMore, Message, OpenFlags, StreamFlags, StreamRequest, What};
use vbucket::collections::event::begins_checkpoint;
use vbucket::{CursorId, Range, RangeLimit};

use crate::agreement::{Agreement, BackfillOrder, OutOfOrder, Priority};
use crate::content::{Features, write_version};
use crate::handover::Handover;
use crate::interest::{Interest, look};
use crate::pending::{Announcement, Pending};
use crate::sink::Sink;

/// Changes of the first range, which are merged into one snapshot; a larger one is sent as it is sealed.
const FIRST_RANGE: RangeLimit = RangeLimit { items: 100_000, bytes: 16 << 20, ..RangeLimit::NONE };
/// Changes taken from memory at once.
const RANGE: RangeLimit = RangeLimit { items: 10_000, bytes: 2 << 20, ..RangeLimit::NONE };
/// Bytes taken from a backfill at once.
const TAKE_BYTES: usize = 512 << 10;

/// What a stream says about itself after a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// It waits for news.
    Idle,
    /// It waits until another stream of the connection is done with the disk.
    Queued,
    /// It has more to send.
    More,
    /// It has ended, and said so.
    Ended,
}

/// What bounds a turn.
pub(crate) struct Allowance {
    /// Bytes that may be sent; the message that exceeds them is the last one.
    most: u64,
    /// Bytes that were sent.
    pub(crate) used: u64,
}

impl Allowance {
    pub(crate) fn new(most: u64) -> Allowance {
        Allowance { most, used: 0 }
    }

    fn is_used(&self) -> bool {
        self.used >= self.most
    }

    fn use_up(&mut self, bytes: usize) {
        self.used += bytes as u64;
    }
}

/// What every stream of a connection has in common.
pub(crate) struct Common<'a> {
    pub(crate) bucket: &'a Bucket,
    pub(crate) follower: &'a Arc<Follower>,
    pub(crate) agreed: &'a Agreement,
    pub(crate) features: Features,
    pub(crate) name: &'a Arc<str>,
    /// Streams of the connection that read from disk.
    pub(crate) on_disk: &'a Cell<usize>,
    /// A collection is read in the order of keys from so many changes of the vBucket on.
    pub(crate) out_of_order_from: u64,
}

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
    handover: Handover,
    next_marker: NextMarker,
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
    ) -> Stream {
        let mut end = request.end;
        if request.flags.has(StreamFlags::TO_LATEST) {
            end = start.high_seqno;
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
            flags: if start.has_all_that_is_wanted {
                StreamFlags(request.flags.0 | StreamFlags::IGNORE_PURGED)
            } else {
                request.flags
            },
            state: start.state,
            sent: request.start,
            end,
            snapshot_start: request.snapshot_start,
            must_reach: if request.start > request.snapshot_start { request.snapshot_end } else { Seqno(0) }
                .max(start.failover.first().map_or(Seqno(0), |newest| newest.seqno)),
            next_marker: NextMarker::First,
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
            if let Some(snapshot) = pending.pop_announcement() {
                self.send_marker(common, &snapshot, allowance, out);
                continue;
            }
            let Some(version) = pending.pop() else { break };
            let head = self.message(What::End(EndReason::Ok));
            allowance.use_up(write_version(out, head, &version, common.agreed, common.features));
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
        } else if pending.last_wanted < end && pending.is_announced && common.features.collections {
            self.send(What::SeqnoAdvanced(end), allowance, out);
        }
        self.sent = self.sent.max(end);
        if let (Phase::Memory(cursor), true) = (&self.phase, pending.moves_cursor) {
            common.bucket.advance_stream(self.place, *cursor, end);
        }
        true
    }

    /// Whether the vBucket is not the one any more that the stream began with.
    fn broken_off(&self, bucket: &Bucket) -> Option<EndReason> {
        match bucket.stream_state(self.place.vb) {
            Some((state, incarnation, _, _)) if state == self.state => {
                (incarnation != self.place.incarnation).then_some(EndReason::Rollback)
            }
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
                    self.state = VbState::Dead;
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
        let end = Seqno(self.snapshot_start.0.saturating_sub(1));
        (end > self.sent).then_some(end)
    }

    /// Whether the snapshot that was announced is to be sent to its end, although the consumer wants no more.
    fn must_complete(&self) -> bool {
        self.unfinished().is_some() && !self.flags.has(StreamFlags::DISK_ONLY)
    }

    /// Appends those of `changes`, the next ones in order, that are wanted.
    fn choose(
        &mut self,
        changes: impl IntoIterator<Item = Version>,
        common: &Common<'_>,
        pending: &mut Pending,
    ) {
        let mut wanted = Vec::new();
        for version in changes {
            let verdict = look(self.interest.as_deref_mut(), &version, common.agreed);
            if verdict.is_wanted() {
                wanted.push(version);
            }
            if verdict.is_final() {
                pending.is_last = true;
                break;
            }
        }
        pending.extend(wanted.into_iter());
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
                Some(joined) if joined.from <= self.sent => {
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
            with_prepares: false,
        };
        let backfill = bucket.begin_backfill(self.place.vb, self.sent, reading, common.follower);
        common.on_disk.set(common.on_disk.get() + 1);
        self.phase = Phase::Disk(Box::new(Disk {
            backfill,
            cursor,
            has_marker: false,
            is_out_of_order: by_key.is_some(),
            last_wanted: Seqno(0),
            rest: None,
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
        let Some(Interest::Collections(wanted)) = self.interest.as_deref() else { return None };
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
        let is_purged = self.sent > Seqno(0) && self.sent < scope.purge_seqno;
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
        self.choose(taken.items, common, &mut pending);
        // Who knows of collections is told up to where it has everything, also if there is nothing for it.
        let tells = self.interest.is_some() && common.features.collections;
        let is_passed = taken.is_done && tells && !disk.is_out_of_order && scope.high_seqno > self.sent;
        if !disk.has_marker && (!pending.is_empty() || is_passed) {
            disk.has_marker = true;
            disk.rest = self.rest_of_snapshot(common, &disk, scope.high_seqno);
            if disk.is_out_of_order {
                self.send(What::OutOfOrder(true), allowance, out);
                (self.snapshot_start, self.next_marker) = (scope.high_seqno.next(), NextMarker::AfterDisk);
            } else {
                let (has, end) = match &disk.rest {
                    Some(rest) => (scope.high_seqno, rest.snapshot_end()),
                    None => (scope.high_seqno, self.visible_end(common, scope.snapshot_end)),
                };
                let more = if end > has { Marker::MAY_DUPLICATE } else { 0 };
                let flags = Marker::DISK | Marker::CHECKPOINT | more;
                let snapshot = self.announce(end, scope.purge_seqno, flags);
                self.send_marker(common, &snapshot, allowance, out);
            }
        }
        pending.last_wanted = pending.last_wanted.max(disk.last_wanted);
        disk.last_wanted = pending.last_wanted;
        let got_any = !pending.is_empty();
        if taken.is_done {
            pending.end = Some(scope.high_seqno.max(self.sent));
            if let Some(rest) = disk.rest.take() {
                let after = scope.high_seqno;
                let fresh = rest.iter().filter(|version| version.meta().by_seqno > after);
                self.choose(newest_in_order(fresh), common, &mut pending);
                pending.end = Some(rest.end());
                pending.moves_cursor = true;
            }
            pending.is_announced = disk.has_marker && self.says_ends() && self.ends_with(pending.end);
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

    /// Whether a snapshot that was announced ends there.
    fn ends_with(&self, end: Option<Seqno>) -> bool {
        end.is_some_and(|end| end.next() == self.snapshot_start)
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
            Some((cursor, from)) if from <= high => Phase::Memory(cursor),
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
        let is_plain = self.next_marker == NextMarker::Plain;
        let limit = if is_plain { RANGE } else { FIRST_RANGE };
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
        let after = self.sent;
        let fresh: Vec<&Version> = range.iter().filter(|version| version.meta().by_seqno > after).collect();
        let mut pending = Pending::new(common.bucket);
        self.plan_snapshots(&fresh, &range, common, &mut pending);
        pending.end = Some(range.end());
        pending.moves_cursor = true;
        self.phase = Phase::Memory(cursor);
        // An active vBucket announces only what it sends.
        pending.is_announced = self.state != VbState::Active && self.ends_with(pending.end);
        self.pending = Some(Box::new(pending));
        More::Some
    }

    /// Makes snapshots of what memory has next: one, and another one wherever a collection begins or ends.
    fn plan_snapshots(
        &mut self,
        fresh: &[&Version],
        range: &Range,
        common: &Common<'_>,
        pending: &mut Pending,
    ) {
        let (end, is_received) = (range.end(), self.state != VbState::Active);
        if is_received || range.snapshot_end() > end {
            // The snapshot that another vBucket made, as far as it is here.
            let is_new = self.unfinished().is_none();
            let mut chosen = Pending::new(common.bucket);
            self.choose(newest_in_order(fresh.iter().copied()), common, &mut chosen);
            if !chosen.is_empty() && is_new {
                let first = if self.next_marker == NextMarker::Plain { 0 } else { Marker::CHECKPOINT };
                let more = if range.snapshot_end() > end { Marker::MAY_DUPLICATE } else { 0 };
                let flags = Marker::MEMORY | first | more;
                pending.announce(self.announce(range.snapshot_end(), Seqno(0), flags));
            }
            pending.is_last = chosen.is_last;
            pending.append(chosen);
            return;
        }
        let must_reach = self.must_reach;
        let is_boundary =
            |version: &Version| begins_checkpoint(version) && version.meta().by_seqno > must_reach;
        let last = fresh.last().map(|version| version.meta().by_seqno);
        for part in fresh.chunk_by(|_, next| !is_boundary(next)) {
            if is_boundary(part[0]) && self.next_marker != NextMarker::First {
                (self.snapshot_start, self.next_marker) = (part[0].meta().by_seqno, NextMarker::AtBoundary);
            }
            let mut chosen = Pending::new(common.bucket);
            // Several sealed checkpoints become one snapshot: newest of each key, in order.
            self.choose(newest_in_order(part.iter().copied()), common, &mut chosen);
            pending.is_last = chosen.is_last;
            if !chosen.is_empty() {
                let part_end = part.last().map(|version| version.meta().by_seqno);
                let part_end = match self.interest {
                    Some(_) => chosen.last_wanted,
                    // What was merged away or passed over at the end belongs to it, too.
                    None if part_end == last => end,
                    None => part_end.unwrap_or(end),
                };
                let is_plain = self.next_marker == NextMarker::Plain;
                let flags = Marker::MEMORY | if is_plain { 0 } else { Marker::CHECKPOINT };
                pending.announce(self.announce(part_end, Seqno(0), flags));
                pending.append(chosen);
            }
            if pending.is_last {
                return;
            }
        }
    }

    /// A snapshot from where the last one ended up to `end`.
    fn announce(&mut self, end: Seqno, purge: Seqno, flags: u32) -> Announcement {
        let start = match self.next_marker {
            NextMarker::First | NextMarker::AtBoundary => self.snapshot_start,
            // What was passed over meanwhile belongs to no snapshot of this consumer.
            NextMarker::AfterDisk | NextMarker::Plain => self.snapshot_start.max(self.sent.next()),
        };
        let is_disk = flags & Marker::DISK != 0;
        self.next_marker = if is_disk { NextMarker::AfterDisk } else { NextMarker::Plain };
        self.snapshot_start = end.next();
        Announcement { start, end, purge, flags }
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
        let more = (takes_part || agreed.marker_2_2).then_some(MarkerMore {
            max_visible: snapshot.end,
            high_completed: Seqno(0),
            purge_and_high_prepared: agreed.marker_2_2.then_some((snapshot.purge, Seqno(0))),
        });
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
mod tests {
    use super::*;

    #[test]
    fn an_idle_stream_is_small() {
        // Beside it there are its slot, its cursor and its place among the followers: see docs/adr/0026-dcp.md.
        assert!(size_of::<Stream>() <= 120, "{} bytes", size_of::<Stream>());
    }
}
