//! One stream: the changes of a vBucket, from disk and then from memory, as messages.

use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use base::{Seqno, VbState, VbUuid, Version};
use engine::{Backfill, BackfillReading, Bucket, BucketKind, Changes, Follower, StreamPlace, StreamStart};
use kvstore::Values;
use protocol::dcp::{EndReason, Marker, MarkerMore, Message, OpenFlags, StreamFlags, StreamRequest, What};
use vbucket::{CursorId, Range, RangeLimit};

use crate::agreement::{Agreement, BackfillOrder, OutOfOrder, Priority};
use crate::content::{Features, write_version};
use crate::filter::Filter;
use crate::handover::Handover;
use crate::pending::Pending;
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
    /// are missing that later ones replaced.
    must_reach: Seqno,
    phase: Phase,
    /// Nothing if it is about everything.
    filter: Option<Box<Filter>>,
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
    is_first_marker: bool,
}

impl Stream {
    pub(crate) fn new(opaque: u32, request: &StreamRequest, filter: Filter, start: &StreamStart) -> Stream {
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
            stream_id: filter.stream_id,
            filter: (!filter.is_everything()).then(|| Box::new(filter)),
            flags: request.flags,
            state: start.state,
            uuid: start.failover.first().map_or(VbUuid(0), |entry| entry.uuid),
            sent: request.start,
            end,
            snapshot_start: request.snapshot_start,
            must_reach: if request.start > request.snapshot_start { request.snapshot_end } else { Seqno(0) },
            is_first_marker: true,
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
            if self.sent >= self.end && self.handover == Handover::None && !self.must_complete() {
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
            let Some(version) = pending.pop() else { break };
            let head = self.message(What::End(EndReason::Ok));
            allowance.use_up(write_version(out, head, &version, common.agreed, common.features));
        }
        if !pending.is_empty() {
            self.pending = Some(pending);
            return false;
        }
        let Some(end) = pending.end else { return true };
        if pending.is_out_of_order {
            if common.agreed.out_of_order == OutOfOrder::WithSeqnoAdvanced {
                self.send(What::SeqnoAdvanced(end), allowance, out);
            }
            self.send(What::OutOfOrder(false), allowance, out);
        } else if pending.last_wanted.max(self.sent) < end
            && pending.is_announced
            && common.features.collections
        {
            self.send(What::SeqnoAdvanced(end), allowance, out);
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

    fn is_wanted(&self, version: &Version, features: Features) -> bool {
        let collection = version.key().collection;
        match self.filter.as_ref().and_then(|filter| filter.collections.as_ref()) {
            Some(wanted) => wanted.contains(&collection),
            // There is one scope as yet, the default one.
            None => features.collections || collection == base::CollectionId::DEFAULT,
        }
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
            Phase::Memory(cursor) => match self.take_from_memory(common, cursor, allowance, out) {
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
    fn collection_by_key(&self, common: &Common<'_>) -> Option<base::CollectionId> {
        let may = common.agreed.out_of_order != OutOfOrder::No
            && self.sent == Seqno(0)
            && self.end == Seqno(u64::MAX)
            && !self.flags.has(StreamFlags::DISK_ONLY)
            // What a replica has of a snapshot is consistent in no order.
            && self.state == VbState::Active
            // Without a disk there is nothing in that order.
            && common.bucket.config().kind == BucketKind::Persistent;
        let wanted = self.filter.as_ref()?.collections.as_deref()?;
        let (_, _, _, high) = common.bucket.stream_state(self.place.vb)?;
        match wanted {
            [only] if may && high.0 >= common.out_of_order_from => Some(*only),
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
        pending.extend(taken.items.into_iter().filter(|version| self.is_wanted(version, common.features)));
        if !disk.has_marker && !pending.is_empty() {
            disk.has_marker = true;
            disk.rest = self.rest_of_snapshot(common, &disk, scope.high_seqno);
            if disk.is_out_of_order {
                self.send(What::OutOfOrder(true), allowance, out);
                self.snapshot_start = scope.high_seqno.next();
            } else {
                let (has, end) = match &disk.rest {
                    Some(rest) => (scope.high_seqno, rest.snapshot_end()),
                    None => (scope.high_seqno, scope.snapshot_end),
                };
                let more = if end > has { Marker::MAY_DUPLICATE } else { 0 };
                let flags = Marker::DISK | Marker::CHECKPOINT | more;
                self.marker(common, end, scope.purge_seqno, flags, allowance, out);
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
                let mut newest = kvstore::newest_of(fresh);
                newest.sort_unstable_by_key(|version| version.meta().by_seqno);
                pending.extend(newest.into_iter().filter(|version| self.is_wanted(version, common.features)));
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
        if got_any {
            self.pending = Some(Box::new(pending));
            return More::Some;
        }
        More::Nothing
    }

    /// Ends in the middle of a snapshot that has become part of a larger one: the replica came back to its producer in
    /// between, and what it has now is consistent only at the new end. The consumer asks again from where it is.
    fn break_snapshot_off(&mut self, common: &Common<'_>) -> More {
        self.leave(common, Phase::Done(EndReason::StateChanged));
        More::Some
    }

    /// Whether the end of a snapshot may be no change that the consumer is sent: it is told then.
    fn says_ends(&self) -> bool {
        self.filter.is_some() || self.state != VbState::Active
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

    fn take_from_memory(
        &mut self,
        common: &Common<'_>,
        cursor: CursorId,
        allowance: &mut Allowance,
        out: &mut dyn Sink,
    ) -> More {
        let limit = if self.is_first_marker { FIRST_RANGE } else { RANGE };
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
        let fresh = range.iter().filter(|version| version.meta().by_seqno > after);
        // Several sealed checkpoints become one snapshot: newest of each key, in order.
        let mut newest = kvstore::newest_of(fresh);
        newest.sort_unstable_by_key(|version| version.meta().by_seqno);
        let mut pending = Pending::new(common.bucket);
        pending.extend(newest.into_iter().filter(|version| self.is_wanted(version, common.features)));
        pending.end = Some(range.end());
        pending.moves_cursor = true;
        self.phase = Phase::Memory(cursor);
        if !pending.is_empty() && unfinished.is_none() {
            let first = if self.is_first_marker { Marker::CHECKPOINT } else { 0 };
            let more = if range.snapshot_end() > range.end() { Marker::MAY_DUPLICATE } else { 0 };
            let flags = Marker::MEMORY | first | more;
            self.marker(common, range.snapshot_end(), Seqno(0), flags, allowance, out);
        }
        pending.is_announced = self.says_ends() && self.ends_with(pending.end);
        self.pending = Some(Box::new(pending));
        More::Some
    }

    /// Announces a snapshot up to `end`.
    fn marker(
        &mut self,
        common: &Common<'_>,
        end: Seqno,
        purge: Seqno,
        flags: u32,
        allowance: &mut Allowance,
        out: &mut dyn Sink,
    ) {
        let is_handed_over = self.handover != Handover::None;
        // Who takes part in durable writes gets version 2, and who asked for it the newest one.
        let agreed = common.agreed;
        let takes_part = agreed.sync_writes && agreed.consumer_name.is_some();
        let more = (takes_part || agreed.marker_2_2).then_some(MarkerMore {
            max_visible: end,
            high_completed: Seqno(0),
            purge_and_high_prepared: agreed.marker_2_2.then_some((purge, Seqno(0))),
        });
        let marker = Marker {
            start: if self.is_first_marker { self.snapshot_start } else { self.sent.next() },
            end,
            flags: flags | if is_handed_over { Marker::ACKNOWLEDGE | Marker::CHECKPOINT } else { 0 },
            more,
        };
        self.unacknowledged += u16::from(is_handed_over);
        self.is_first_marker = flags & Marker::DISK != 0;
        self.snapshot_start = end.next();
        self.send(What::Marker(marker), allowance, out);
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
mod tests {
    use super::*;

    #[test]
    fn an_idle_stream_is_small() {
        // Beside it there are its slot, its cursor and its place among the followers: see docs/adr/0026-dcp.md.
        assert!(size_of::<Stream>() <= 120, "{} bytes", size_of::<Stream>());
    }
}
