//! From the disk: where a stream begins, and what it makes of a backfill.

use std::any::Any;
use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use base::planted::{self, Bug};
use base::{CollectionId, Seqno, VbState, Version};
use engine::{
    Backfill, BackfillReading, BackfillScope, Backfilled, Bucket, BucketKind, Changes, KeptSnapshot,
};
use kvstore::Values;
use protocol::dcp::{EndReason, Marker, MarkerMore, OpenFlags, StreamFlags, What};
use vbucket::{CursorId, Range, RangeLimit};

use super::memory::{after, history_flags, in_order};
use super::snapshots::NextMarker;
use super::{More, Phase, Stream};
use crate::agreement::{BackfillOrder, OutOfOrder, Priority};
use crate::frame_writer::FrameWriter;
use crate::interest::Interest;
use crate::pending::{Announcement, Pending};
use crate::sink::Sink;
use crate::sync_writes::last_visible;
use crate::turn::{Allowance, Common};

/// Bytes taken from a backfill at once.
const TAKE_BYTES: usize = 512 << 10;

/// A stream that reads from disk.
pub(super) struct Disk {
    pub(super) backfill: Arc<Backfill>,
    /// What comes meanwhile is kept in memory for it: everything after this seqno.
    pub(super) cursor: Option<(CursorId, Seqno)>,
    has_marker: bool,
    is_out_of_order: bool,
    /// The last change of the snapshot that the consumer wanted.
    last_wanted: Seqno,
    /// What belongs to the snapshot although it is not on disk yet.
    rest: Option<Range>,
    /// Whether the last change of that is not shown.
    is_hidden_last: bool,
    /// Announces the part that is history of changes, if what is before that is none.
    history: Option<Announcement>,
}

/// How much of a snapshot is history of changes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum HistoryIn {
    None,
    LaterPart,
    All,
}

/// How what a backfill reads belongs to what the consumer has.
enum Fit {
    /// It is a snapshot of its own.
    Begins,
    /// It belongs to the snapshot that was announced.
    GoesOn,
    /// Tombstones of documents that the consumer has may be missing.
    Purged,
    /// The consumer has a part of another snapshot.
    Other,
}

impl Stream {
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
        if !bucket.streams().backfills().is_stalled(&disk.backfill, now) {
            return false;
        }
        self.pending = None;
        let before = std::mem::replace(&mut self.phase, Phase::Done(EndReason::TooSlow));
        self.left(before, bucket, on_disk);
        true
    }

    /// Up to here the consumer has, or had when it came, everything that it wants.
    fn complete_to(&self) -> Seqno {
        match self.interest.as_deref() {
            Some(Interest::Collections(_, complete_to)) => self.sent.max(*complete_to),
            _ => self.sent,
        }
    }

    /// Chooses between memory and disk.
    pub(super) fn begin(&mut self, common: &Common<'_>, kept: Option<Box<KeptSnapshot>>) -> More {
        let (bucket, agreed) = (common.bucket, common.agreed);
        if agreed.backfill_order == BackfillOrder::Sequential && common.on_disk.get() > 0 {
            self.phase = kept.map_or(Phase::Begin, Phase::Kept);
            return More::Queued;
        }
        let mut cursor = None;
        if !self.flags.has(StreamFlags::DISK_ONLY) {
            match bucket.streams().join_memory(self.place(), common.name, self.sent) {
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
            with_past: agreed.change_streams,
        };
        let writer = Box::new(FrameWriter {
            head: self.message(What::End(EndReason::Ok)),
            agreed: agreed.clone(),
            features: common.features,
            interest: self.interest.clone(),
            skips_deletions: self.sent == Seqno(0) && common.may_skip_deletions(),
        });
        let backfill = bucket.streams().backfills().begin_in(
            self.vb,
            self.sent,
            reading,
            kept.map(|kept| *kept),
            writer,
            common.follower,
        );
        common.on_disk.set(common.on_disk.get() + 1);
        self.phase = Phase::Disk(Box::new(Disk {
            backfill,
            cursor,
            has_marker: false,
            is_out_of_order: by_key.is_some(),
            last_wanted: Seqno(0),
            rest: None,
            is_hidden_last: false,
            history: None,
        }));
        More::Nothing
    }

    /// The collection that is read in the order of keys: the only one wanted, from the beginning, of a large vBucket.
    /// In order of seqno all others would be read as well.
    fn collection_by_key(&self, common: &Common<'_>) -> Option<CollectionId> {
        let may = common.agreed.out_of_order != OutOfOrder::No
            && self.sent == Seqno(0)
            && self.end == Seqno(u64::MAX)
            // In that order nothing is there twice.
            && !common.agreed.change_streams
            && !self.flags.has(StreamFlags::DISK_ONLY)
            // What a replica has of a snapshot is consistent in no order.
            && self.state == VbState::Active
            // Without a disk there is nothing in that order.
            && common.bucket.config().kind == BucketKind::Persistent;
        let Some(Interest::Collections(wanted, _)) = self.interest.as_deref() else { return None };
        match &wanted[..] {
            [only] if may => {
                let part = common.bucket.streams().stream_part(self.vb, *only)?;
                let is_large = part.high_seqno.0 >= common.out_of_order_from;
                (is_large || part.is_small_beside_others()).then_some(*only)
            }
            _ => None,
        }
    }

    pub(super) fn take_from_disk(
        &mut self,
        common: &Common<'_>,
        mut disk: Box<Disk>,
        allowance: &mut Allowance,
        out: &mut dyn Sink,
    ) -> More {
        let taken = common.bucket.streams().backfills().take(&disk.backfill, TAKE_BYTES);
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
        match fit(self, common, &disk, &scope) {
            Fit::Begins => {}
            // What is read belongs to the snapshot that was announced.
            Fit::GoesOn => disk.has_marker = true,
            Fit::Purged => {
                self.phase = Phase::Disk(disk);
                self.leave(common, Phase::Done(EndReason::Rollback));
                return More::Some;
            }
            Fit::Other => {
                self.phase = Phase::Disk(disk);
                return self.break_snapshot_off(common);
            }
        }
        send_from_disk(self, common, disk, (taken, scope), allowance, out)
    }

    /// Where a snapshot from disk that goes up to `high` ends for the consumer. Who knows of no collections cannot be
    /// told that the rest is for others.
    fn visible_end(&self, common: &Common<'_>, high: Seqno) -> Seqno {
        if self.interest.as_deref() != Some(&Interest::Default) {
            return high;
        }
        let part = common.bucket.streams().stream_part(self.vb, CollectionId::DEFAULT);
        part.map_or(high, |part| part.high_seqno.min(high))
    }

    /// What follows the disk's state in memory, if that is older than the snapshot that the consumer has a part of.
    fn rest_of_snapshot(&self, common: &Common<'_>, disk: &Disk, high: Seqno) -> Option<Range> {
        let (cursor, _) = disk.cursor.filter(|(_, from)| *from <= high && high < self.must_reach)?;
        match common.bucket.streams().take_changes(self.place(), cursor, RangeLimit::NONE) {
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
                common.bucket.streams().leave_memory(self.place(), cursor);
                Phase::Begin
            }
            None if self.flags.has(StreamFlags::DISK_ONLY) => Phase::Done(EndReason::Ok),
            None => Phase::Begin,
        };
    }
}

/// How what a backfill reads belongs to what the consumer has.
fn fit(stream: &Stream, common: &Common<'_>, disk: &Disk, scope: &BackfillScope) -> Fit {
    if disk.has_marker {
        return Fit::GoesOn;
    }
    // Tombstones of documents that the consumer has may be gone since it came.
    let is_purged = stream.sent > Seqno(0) && stream.complete_to() < scope.purge_seqno;
    if is_purged && !stream.flags.has(StreamFlags::IGNORE_PURGED) {
        return Fit::Purged;
    }
    let Some(end) = stream.unfinished() else { return Fit::Begins };
    let lost_history = stream.is_history && history_in(stream, common, scope, false) != HistoryIn::All;
    if scope.snapshot_end > end || lost_history { Fit::Other } else { Fit::GoesOn }
}

/// Sends what was taken of a backfill, with its marker if that was not sent.
fn send_from_disk(
    stream: &mut Stream,
    common: &Common<'_>,
    mut disk: Box<Disk>,
    (taken, scope): (Backfilled, BackfillScope),
    allowance: &mut Allowance,
    out: &mut dyn Sink,
) -> More {
    let mut pending = Pending::new(common);
    pending.is_out_of_order = disk.is_out_of_order;
    pending.is_of_documents = true;
    pending.is_last = taken.is_over;
    pending.take_frames(taken.frames, taken.last);
    if let Some(writer) = taken.writer {
        let writer: Box<dyn Any> = writer;
        // Whatever it was told of collections meanwhile.
        stream.interest = writer.downcast::<FrameWriter>().expect("it is the one of this stream").interest;
    }
    // Without sync writes the end is one that may be asked about, or a gap.
    let readable = if common.hears_of_prepares() { scope.high_seqno } else { scope.max_visible };
    let visible = stream.visible_end(common, readable);
    // Who knows of collections is told up to where it has everything, also if there is nothing for it.
    let tells = (stream.interest.is_some() && common.features.collections) || common.tells_gaps();
    let is_passed = taken.is_done && tells && !disk.is_out_of_order && visible > stream.sent;
    if !disk.has_marker && (!pending.is_empty() || is_passed) {
        announce_backfill(stream, common, &mut disk, (&scope, visible), allowance, out);
    }
    if taken.is_history
        && let Some(later) = disk.history.take()
    {
        stream.is_history = true;
        stream.send_marker(common, &later, allowance, out);
    }
    pending.last_wanted = pending.last_wanted.max(disk.last_wanted);
    disk.last_wanted = pending.last_wanted;
    if taken.is_done {
        return end_disk(stream, common, disk, pending, scope.high_seqno);
    }
    stream.phase = Phase::Disk(disk);
    if !pending.is_empty() || pending.is_last {
        stream.pending = Some(Box::new(pending));
        return More::Some;
    }
    More::Nothing
}

/// The backfill has given all that it has, up to `high`; what belongs to its snapshot and is in memory follows.
fn end_disk(
    stream: &mut Stream,
    common: &Common<'_>,
    mut disk: Box<Disk>,
    mut pending: Pending,
    high: Seqno,
) -> More {
    let repeated = u64::from(planted::is(Bug::SwitchRepeatsOne));
    let skipped = u64::from(planted::is(Bug::SwitchSkips));
    pending.end = Some(Seqno(high.0 - repeated + skipped).max(stream.sent));
    if let Some(rest) = disk.rest.take() {
        if stream.show(rest_of(stream, common, &rest, high), common, &mut pending).is_err() {
            stream.phase = Phase::Disk(disk);
            return stream.give_up_unreadable(common);
        }
        pending.end = Some(rest.end());
        pending.moves_cursor = true;
    }
    pending.marker_end = stream.announced_end();
    let is_told = disk.is_hidden_last || stream.says_ends() || common.tells_gaps();
    pending.is_announced = disk.has_marker && is_told && stream.is_complete_with(&pending);
    pending.is_out_of_order &= disk.has_marker;
    stream.pending = Some(Box::new(pending));
    stream.leave_disk(common, *disk, high);
    More::Some
}

/// Announces the snapshot that a backfill is, which ends with `visible` for the consumer if nothing follows in it. One
/// of which the later part alone is history has two markers, with the same bounds, as the whole is consistent only at
/// its end: the second one stands where the history begins. The first one is sent even if nothing comes before that,
/// so that a consumer learns that versions are missing.
fn announce_backfill(
    stream: &mut Stream,
    common: &Common<'_>,
    disk: &mut Disk,
    (scope, visible): (&BackfillScope, Seqno),
    allowance: &mut Allowance,
    out: &mut dyn Sink,
) {
    disk.has_marker = true;
    disk.rest = stream.rest_of_snapshot(common, disk, scope.high_seqno);
    if disk.is_out_of_order {
        stream.send(What::OutOfOrder(true), allowance, out);
        (stream.snapshot_start, stream.next_marker) = (scope.high_seqno.next(), NextMarker::AfterDisk);
        return;
    }
    let mut max_visible = scope.max_visible;
    let (end, more) = match &disk.rest {
        Some(rest) => {
            let newest = rest_of(stream, common, rest, scope.high_seqno);
            let part = common.visible(&newest, rest.end(), stream.look);
            let is_whole = rest.snapshot_end() <= rest.end();
            max_visible = max_visible.max(last_visible(&newest));
            disk.is_hidden_last = is_whole && part.is_hidden_last;
            let end = if is_whole { part.end.max(visible) } else { rest.snapshot_end() };
            (end, Marker::MAY_DUPLICATE)
        }
        // Inside of a snapshot that has not come as a whole nobody knows what of it is for the consumer.
        None if scope.snapshot_end > scope.high_seqno => (scope.snapshot_end, Marker::MAY_DUPLICATE),
        None => (visible, 0),
    };
    stream.max_visible = max_visible;
    let history = history_in(stream, common, scope, disk.rest.is_some());
    let of_history = Marker::HISTORY | Marker::MAY_DUPLICATE;
    let flags = Marker::DISK | Marker::CHECKPOINT | more;
    let flags = if history == HistoryIn::All { flags | of_history } else { flags };
    let more = MarkerMore {
        max_visible,
        high_completed: scope.high_completed,
        purge_and_high_prepared: Some((scope.purge_seqno, scope.high_prepared)),
    };
    let snapshot = stream.announce(None, end, flags, more);
    stream.send_marker(common, &snapshot, allowance, out);
    disk.history =
        (history == HistoryIn::LaterPart).then_some(Announcement { flags: flags | of_history, ..snapshot });
}

/// How much of a snapshot from disk is history of changes, behind what was sent; `has_rest` if changes from memory
/// follow in it.
fn history_in(stream: &Stream, common: &Common<'_>, scope: &BackfillScope, has_rest: bool) -> HistoryIn {
    if !common.agreed.change_streams || scope.history_start == Seqno(0) {
        return HistoryIn::None;
    }
    let from = if has_rest { common.bucket.streams().history_from(stream.place()) } else { Seqno(1) };
    // What memory has left out is missing, whatever the disk has.
    if from == Seqno(0) || from > scope.high_seqno.next() {
        return HistoryIn::None;
    }
    if stream.sent.next() >= scope.history_start { HistoryIn::All } else { HistoryIn::LaterPart }
}

/// The changes of a range behind a seqno that the stream sends.
fn rest_of(stream: &Stream, common: &Common<'_>, rest: &Range, behind: Seqno) -> Vec<Version> {
    in_order(after(rest, behind), history_flags(stream, common).is_some())
}
