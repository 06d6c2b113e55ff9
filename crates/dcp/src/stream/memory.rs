//! From memory: which snapshots become of the changes that a cursor has next.

use std::collections::HashSet;

use base::{Seqno, VbState, Version};
use engine::{Changes, Refusal};
use protocol::dcp::{Marker, MarkerMore};
use vbucket::collections::event::begins_checkpoint;
use vbucket::{CursorId, Range, RangeLimit};

use super::snapshots::NextMarker;
use super::{More, Phase, Stream};
use crate::pending::Pending;
use crate::sync_writes::{self, Look, last_visible};
use crate::turn::Common;

/// Changes of the first range, which are one snapshot. In it no part of a sync write may meet another one of its key:
/// where that would be, the field's checkpoints and snapshots end, too.
const FIRST_RANGE: RangeLimit =
    RangeLimit { items: 100_000, bytes: 16 << 20, one_run: true, ..RangeLimit::NONE };
/// Changes taken from memory at once.
const RANGE: RangeLimit = RangeLimit { items: 10_000, bytes: 2 << 20, ..FIRST_RANGE };

/// Whether the snapshot that is being sent was announced as history of changes, and from what follows in it versions
/// may be missing: its replica has gone over to a producer that left some out.
fn lost_history(stream: &Stream, common: &Common<'_>) -> bool {
    stream.is_history && history_flags(stream, common) != Some(Marker::HISTORY)
}

impl Stream {
    pub(super) fn take_from_memory(&mut self, common: &Common<'_>, cursor: CursorId) -> More {
        let limit = match self.next_marker {
            _ if common.agreed.sync_writes => RANGE,
            NextMarker::Plain => RANGE,
            NextMarker::First | NextMarker::Resumed | NextMarker::AfterDisk | NextMarker::AtBoundary => {
                FIRST_RANGE
            }
        };
        let unfinished = self.unfinished();
        // What came from another node has its snapshots, which are larger than those for consumers of prepares.
        let is_own = self.state == VbState::Active && unfinished.is_none() && self.sent >= self.must_reach;
        let limit = RangeLimit { one_run: is_own || common.agreed.sync_writes, ..limit };
        let limit = limit.through(unfinished.unwrap_or(limit.through));
        let take = |limit| common.bucket.streams().take_changes(self.place(), cursor, limit);
        let range = match take(limit) {
            Changes::Range(range)
                if unfinished.is_some_and(|end| range.snapshot_end() > end || lost_history(self, common)) =>
            {
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
                self.look = Look::Live;
                return More::Nothing;
            }
            // Back to the disk, from where it stopped.
            Changes::Dropped => return More::Some,
        };
        let mut pending = Pending::new(common);
        pending.end = Some(range.end());
        pending.moves_cursor = true;
        // What was announced with the disk's part goes on without a marker, also in a vBucket that is active by now.
        let goes_on = unfinished.is_some();
        let planned = if self.state != VbState::Active || goes_on || range.snapshot_end() > range.end() {
            self.plan_received(&range, common, &mut pending)
        } else {
            self.plan_snapshots(&range, common, &mut pending)
        };
        self.phase = Phase::Memory(cursor);
        if planned.is_err() {
            return self.give_up_unreadable(common);
        }
        self.pending = Some(Box::new(pending));
        More::Some
    }

    /// Makes one snapshot of what memory has next: the one that another vBucket made, as far as it is here.
    fn plan_received(
        &mut self,
        range: &Range,
        common: &Common<'_>,
        pending: &mut Pending,
    ) -> Result<(), Refusal> {
        let is_new = self.unfinished().is_none();
        let is_whole = range.snapshot_end() <= range.end();
        let history = history_flags(self, common);
        let newest = in_order(after(range, self.sent), history.is_some());
        // Inside of a snapshot that has not come as a whole nobody knows what its end will be.
        let visible = common.visible(&newest, range.end(), self.look);
        let comes_to_nothing = is_whole && visible.is_hidden_last;
        self.max_visible = self.max_visible.max(last_visible(&newest));
        let mut chosen = Pending::new(common);
        chosen.as_documents = told_as_documents(range, &newest, self.sent, common);
        self.show(newest, common, &mut chosen)?;
        let is_marked = is_new && (comes_to_nothing || !chosen.is_empty());
        if is_marked {
            let more = if is_whole { 0 } else { Marker::MAY_DUPLICATE };
            let more = more | history.unwrap_or(0);
            let flags = Marker::MEMORY | self.checkpoint_flag(range, range.start(), range.end()) | more;
            let end = if is_whole { visible.end } else { range.snapshot_end() };
            let more = MarkerMore { max_visible: self.max_visible, ..MarkerMore::default() };
            pending.announce(self.announce(None, end, flags, more));
        }
        pending.is_last = chosen.is_last;
        pending.append(chosen);
        pending.marker_end = self.announced_end();
        // An active vBucket announces only what it sends, unless it was none when that was saved.
        let is_told = comes_to_nothing || self.state != VbState::Active || !is_new;
        pending.is_announced = is_told && (is_marked || !is_new) && self.is_complete_with(pending);
        Ok(())
    }

    /// Makes snapshots of what memory has next: one, and another one wherever a collection begins or ends.
    fn plan_snapshots(
        &mut self,
        range: &Range,
        common: &Common<'_>,
        pending: &mut Pending,
    ) -> Result<(), Refusal> {
        let fresh: Vec<&Version> = after(range, self.sent).collect();
        let history = history_flags(self, common);
        let must_reach = self.must_reach;
        let is_boundary =
            |version: &Version| begins_checkpoint(version) && version.meta().by_seqno > must_reach;
        let last = fresh.last().map(|version| version.meta().by_seqno);
        // Everything up to here is in the parts before.
        let mut before = self.sent;
        for part in fresh.chunk_by(|_, next| !is_boundary(next)) {
            if is_boundary(part[0]) && !self.next_marker.is_first() {
                (self.snapshot_start, self.next_marker) = (part[0].meta().by_seqno, NextMarker::AtBoundary);
            }
            let part_end = match part.last().map(|version| version.meta().by_seqno) {
                Some(end) if Some(end) != last => end,
                // What was merged away or passed over at the end belongs to it, too.
                _ => range.end(),
            };
            // Several sealed checkpoints become one snapshot.
            let (wanted, is_last) = self.choose(in_order(part.iter().copied(), history.is_some()), common)?;
            let end = match (&self.interest, wanted.last()) {
                (Some(_), Some(last)) => last.meta().by_seqno,
                _ => part_end,
            };
            let visible = common.visible(&wanted, end, self.look);
            self.max_visible = self.max_visible.max(last_visible(&wanted));
            let lead = wanted.first().map_or(end, |version| version.meta().by_seqno);
            let mut chosen = Pending::new(common);
            chosen.as_documents = told_as_documents(range, &wanted, before, common);
            chosen.extend(common.shown(wanted, self.sent).into_iter());
            pending.is_last = is_last;
            let checkpoint = self.checkpoint_flag(range, before.next(), part_end);
            if !chosen.is_empty() || visible.is_hidden_last {
                let more = MarkerMore { max_visible: self.max_visible, ..MarkerMore::default() };
                // What readers do not see, or others get, before the first change is not part of it.
                let first = match chosen.first() {
                    Some(first) if checkpoint == 0 && (self.interest.is_some() || lead < first) => first,
                    None => visible.end,
                    Some(_) => before.next(),
                };
                let flags = Marker::MEMORY | checkpoint | history.unwrap_or(0);
                pending.announce(self.announce(Some(first), visible.end, flags, more));
                pending.append(chosen);
                if visible.is_hidden_last {
                    pending.advance(visible.end);
                }
            } else if checkpoint != 0 && self.next_marker == NextMarker::Plain {
                // What is passed over begins a checkpoint, and the next snapshot with it.
                (self.snapshot_start, self.next_marker) = (range.run_start(part_end), NextMarker::AtBoundary);
            }
            if pending.is_last {
                return Ok(());
            }
            before = part_end;
        }
        if self.next_marker == NextMarker::Resumed && before >= self.must_reach && common.tells_gaps() {
            self.complete_resumed(pending, history.unwrap_or(0));
        }
        Ok(())
    }

    /// The rest of the snapshot that the consumer has a part of has nothing for it: it is told that it is complete.
    fn complete_resumed(&mut self, pending: &mut Pending, history: u32) {
        let flags = Marker::MEMORY | Marker::CHECKPOINT | history;
        let more = MarkerMore { max_visible: self.max_visible, ..MarkerMore::default() };
        let end = self.must_reach;
        pending.announce(self.announce(None, end, flags, more));
        pending.advance(end);
    }

    /// What the marker of a snapshot from memory says if a checkpoint begins there, as far as a consumer has to know:
    /// at the first one, and where a run begins between `from` and `to`.
    fn checkpoint_flag(&self, range: &Range, from: Seqno, to: Seqno) -> u32 {
        let begins = self.next_marker != NextMarker::Plain || range.begins_run(from, to);
        if begins { Marker::CHECKPOINT } else { 0 }
    }
}

/// What the marker of a snapshot from memory says of the history of changes, behind what a stream has sent: whether all of
/// it is history, or only its later part. `None` if each key comes once.
pub(super) fn history_flags(stream: &Stream, common: &Common<'_>) -> Option<u32> {
    if !common.agreed.change_streams {
        return None;
    }
    match common.bucket.streams().history_from(stream.place()) {
        Seqno(0) => None,
        from if stream.sent.next() >= from => Some(Marker::HISTORY),
        _ => Some(Marker::MAY_DUPLICATE),
    }
}

/// The newest version of each key of changes in order of seqno, in that order, or all of them.
pub(super) fn in_order<'a>(changes: impl Iterator<Item = &'a Version>, keeps_past: bool) -> Vec<Version> {
    if keeps_past {
        return changes.cloned().collect();
    }
    let mut newest = kvstore::newest_of(changes);
    newest.sort_unstable_by_key(|version| version.meta().by_seqno);
    newest
}

/// What of a range comes after a seqno.
pub(super) fn after(range: &Range, seqno: Seqno) -> impl Iterator<Item = &Version> {
    range.iter().filter(move |version| version.meta().by_seqno > seqno)
}

/// Which commits of `items`, a snapshot of a range from behind `sent`, are told as the documents that they made.
fn told_as_documents(range: &Range, items: &[Version], sent: Seqno, common: &Common<'_>) -> HashSet<Seqno> {
    // Within one checkpoint nothing takes another one's place.
    let is_merged = common.agreed.sync_writes && range.checkpoints().nth(1).is_some();
    if is_merged { sync_writes::commits_without_prepares(items, sent) } else { HashSet::new() }
}
