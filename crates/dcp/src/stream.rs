//! One stream: the changes of a vBucket, from disk and then from memory, as messages.

use std::collections::VecDeque;
use std::sync::Arc;

use base::{Seqno, VbId, VbState, Version};
use engine::{Backfill, Bucket, Changes, Follower, StreamCursor, StreamStart};
use kvstore::Values;
use protocol::dcp::{EndReason, Marker, Message, OpenFlags, StreamFlags, StreamRequest, What};

use crate::agreement::Agreement;
use crate::content::{Features, write_version};
use crate::filter::Filter;
use crate::sink::Sink;

/// Changes of one range that are merged into one snapshot; a larger first range is sent as it is sealed.
const MOST_MERGED: u64 = 100_000;
/// Changes taken from memory at once.
const RANGE_ITEMS: u64 = 10_000;
/// Bytes taken from a backfill at once.
const TAKE_BYTES: usize = 512 << 10;

/// What a stream says about itself after a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// It waits for news.
    Idle,
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
    pub(crate) name: &'a str,
}

/// Where a stream gets its changes from.
enum Phase {
    /// It has not looked yet.
    Begin,
    /// The disk is read; what comes meanwhile is kept in memory by the cursor.
    Disk { backfill: Arc<Backfill>, cursor: Option<StreamCursor>, has_marker: bool },
    /// Memory.
    Memory { cursor: StreamCursor },
    /// Everything that was asked for is sent.
    Done(EndReason),
}

/// One stream of a producer.
pub(crate) struct Stream {
    vb: VbId,
    opaque: u32,
    pub(crate) stream_id: Option<u16>,
    filter: Filter,
    flags: StreamFlags,
    state: VbState,
    incarnation: u64,
    /// Everything up to here was sent, or is not for this consumer.
    sent: Seqno,
    /// The last change that the consumer wants.
    end: Seqno,
    /// Where the next snapshot begins, as the consumer sees it.
    snapshot_start: Seqno,
    is_first_marker: bool,
    phase: Phase,
    /// Changes of the present snapshot that are not sent yet, in order.
    pending: VecDeque<Version>,
    /// Up to where everything is sent once `pending` is.
    pending_end: Option<Seqno>,
    /// Whether the cursor moves there, too: what is pending was taken with it.
    moves_cursor: bool,
}

impl Stream {
    pub(crate) fn new(
        vb: VbId,
        opaque: u32,
        request: &StreamRequest,
        filter: Filter,
        start: &StreamStart,
    ) -> Stream {
        let mut end = request.end;
        if request.flags.has(StreamFlags::TO_LATEST) {
            end = start.high_seqno;
        }
        if request.flags.has(StreamFlags::DISK_ONLY) {
            end = end.min(start.persisted_seqno);
        }
        Stream {
            vb,
            opaque,
            stream_id: filter.stream_id,
            filter,
            flags: request.flags,
            state: start.state,
            incarnation: start.incarnation,
            sent: request.start,
            end,
            snapshot_start: request.snapshot_start,
            is_first_marker: true,
            phase: if request.start >= end { Phase::Done(EndReason::Ok) } else { Phase::Begin },
            pending: VecDeque::new(),
            pending_end: None,
            moves_cursor: false,
        }
    }

    fn message(&self, what: What) -> Message<'static> {
        Message {
            vb: self.vb,
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
            while let Some(version) = self.pending.pop_front() {
                if allowance.is_used() {
                    self.pending.push_front(version);
                    return Turn::More;
                }
                self.send_version(&version, common, allowance, out);
            }
            if let Some(end) = self.pending_end.take() {
                self.sent = self.sent.max(end);
                if let (Phase::Memory { cursor }, true) =
                    (&self.phase, std::mem::take(&mut self.moves_cursor))
                {
                    common.bucket.advance_stream(self.vb, cursor, end);
                }
            }
            if self.sent >= self.end {
                self.phase = self.left(common.bucket, Phase::Done(EndReason::Ok));
            }
            if allowance.is_used() {
                return Turn::More;
            }
            match self.more(common, allowance, out) {
                More::Some => {}
                More::Nothing => return Turn::Idle,
                More::End(reason) => return self.finish(reason, allowance, out),
            }
        }
    }

    /// Whether the vBucket is not the one any more that the stream began with.
    fn broken_off(&self, bucket: &Bucket) -> Option<EndReason> {
        match bucket.stream_state(self.vb) {
            Some((state, incarnation, _, _)) if state == self.state && incarnation == self.incarnation => {
                None
            }
            Some((state, ..)) if state == self.state => Some(EndReason::Rollback),
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
    pub(crate) fn close(&mut self, bucket: &Bucket) {
        self.pending.clear();
        self.phase = self.left(bucket, Phase::Done(EndReason::Closed));
    }

    fn left(&mut self, bucket: &Bucket, next: Phase) -> Phase {
        match std::mem::replace(&mut self.phase, Phase::Begin) {
            Phase::Memory { cursor } => bucket.leave_memory(self.vb, &cursor),
            Phase::Disk { backfill, cursor, .. } => {
                backfill.cancel();
                if let Some(cursor) = cursor {
                    bucket.leave_memory(self.vb, &cursor);
                }
            }
            Phase::Begin | Phase::Done(_) => {}
        }
        next
    }

    fn send_version(
        &mut self,
        version: &Version,
        common: &Common<'_>,
        allowance: &mut Allowance,
        out: &mut dyn Sink,
    ) {
        let seqno = version.meta().by_seqno;
        if self.is_wanted(version, common.features) {
            let head = self.message(What::End(EndReason::Ok));
            let bytes = write_version(out, head, version, common.agreed, common.features);
            allowance.use_up(bytes);
        }
        self.sent = seqno;
    }

    fn is_wanted(&self, version: &Version, features: Features) -> bool {
        let collection = version.key().collection;
        match &self.filter.collections {
            Some(wanted) => wanted.contains(&collection),
            // There is one scope as yet, the default one.
            None => features.collections || collection == base::CollectionId::DEFAULT,
        }
    }

    fn more(&mut self, common: &Common<'_>, allowance: &mut Allowance, out: &mut dyn Sink) -> More {
        match std::mem::replace(&mut self.phase, Phase::Begin) {
            Phase::Begin => self.begin(common),
            Phase::Done(reason) => {
                self.phase = Phase::Done(reason);
                More::End(reason)
            }
            Phase::Disk { backfill, cursor, has_marker } => {
                self.take_from_disk(common, backfill, cursor, has_marker, allowance, out)
            }
            Phase::Memory { cursor } => self.take_from_memory(common, cursor, allowance, out),
        }
    }

    /// Chooses between memory and disk.
    fn begin(&mut self, common: &Common<'_>) -> More {
        let bucket = common.bucket;
        let disk_only = self.flags.has(StreamFlags::DISK_ONLY);
        let joined = if disk_only {
            None
        } else {
            match bucket.join_memory(self.vb, common.name, self.sent, self.incarnation) {
                Some(cursor) if cursor.from <= self.sent => {
                    self.phase = Phase::Memory { cursor };
                    return More::Some;
                }
                Some(cursor) => Some(cursor),
                // It will be seen as broken off.
                None => return More::Nothing,
            }
        };
        let no_values = OpenFlags::NO_VALUE | OpenFlags::NO_VALUE_WITH_DATATYPE;
        let leave = common.agreed.flags.0 & no_values != 0 && !common.agreed.flags.has(OpenFlags::XATTRS);
        let values = if leave { Values::Leave } else { Values::Read };
        let backfill = bucket.begin_backfill(self.vb, self.sent, values, common.follower);
        self.phase = Phase::Disk { backfill, cursor: joined, has_marker: false };
        More::Nothing
    }

    fn take_from_disk(
        &mut self,
        common: &Common<'_>,
        backfill: Arc<Backfill>,
        cursor: Option<StreamCursor>,
        mut has_marker: bool,
        allowance: &mut Allowance,
        out: &mut dyn Sink,
    ) -> More {
        let taken = common.bucket.take_backfilled(&backfill, TAKE_BYTES);
        if taken.has_failed {
            self.phase = Phase::Disk { backfill, cursor, has_marker };
            self.phase = self.left(common.bucket, Phase::Done(EndReason::BackfillFailed));
            return More::Some;
        }
        let Some(scope) = taken.scope else {
            self.phase = Phase::Disk { backfill, cursor, has_marker };
            return More::Nothing;
        };
        if !has_marker && scope.high_seqno > self.sent {
            let is_empty = taken.items.is_empty() && taken.is_done;
            if !is_empty {
                self.marker(scope.high_seqno, Marker::DISK | Marker::CHECKPOINT, allowance, out);
            }
            has_marker = true;
        }
        let end = self.end;
        let got_any = !taken.items.is_empty();
        self.pending.extend(taken.items.into_iter().filter(|version| version.meta().by_seqno <= end));
        if !taken.is_done {
            self.phase = Phase::Disk { backfill, cursor, has_marker };
            return if got_any { More::Some } else { More::Nothing };
        }
        self.pending_end = Some(scope.high_seqno.min(end).max(self.sent));
        self.phase = match cursor {
            Some(cursor) if cursor.from <= scope.high_seqno => Phase::Memory { cursor },
            // Memory had moved on before the disk was read, which cannot be; or there is no cursor: look again.
            Some(cursor) => {
                common.bucket.leave_memory(self.vb, &cursor);
                Phase::Begin
            }
            None if self.flags.has(StreamFlags::DISK_ONLY) => Phase::Done(EndReason::Ok),
            None => Phase::Begin,
        };
        More::Some
    }

    fn take_from_memory(
        &mut self,
        common: &Common<'_>,
        cursor: StreamCursor,
        allowance: &mut Allowance,
        out: &mut dyn Sink,
    ) -> More {
        let max_items = if self.is_first_marker { MOST_MERGED } else { RANGE_ITEMS };
        let range = match common.bucket.take_changes(self.vb, &cursor, max_items) {
            Changes::Range(range) => range,
            Changes::Nothing => {
                self.phase = Phase::Memory { cursor };
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
        let end = range.end();
        self.phase = Phase::Memory { cursor };
        self.pending_end = Some(end);
        self.moves_cursor = true;
        if newest.is_empty() {
            return More::Some;
        }
        let flags = if self.is_first_marker { Marker::MEMORY | Marker::CHECKPOINT } else { Marker::MEMORY };
        self.marker(end, flags, allowance, out);
        let last = self.end;
        self.pending.extend(newest.into_iter().filter(|version| version.meta().by_seqno <= last));
        More::Some
    }

    /// Announces a snapshot up to `end`.
    fn marker(&mut self, end: Seqno, flags: u32, allowance: &mut Allowance, out: &mut dyn Sink) {
        let start = if self.is_first_marker { self.snapshot_start } else { self.sent.next() };
        self.is_first_marker = flags & Marker::DISK != 0;
        self.snapshot_start = end.next();
        self.send(What::Marker(Marker { start, end, flags, more: None }), allowance, out);
    }
}

/// What a look for more came to.
enum More {
    /// There may be something now.
    Some,
    /// It has to wait.
    Nothing,
    /// That was all.
    End(EndReason),
}
