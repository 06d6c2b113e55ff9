//! One slice of a backfill: changes of a snapshot become messages, in buffers of a bounded size.

use std::ops::ControlFlow;

use base::{Account, CollectionId, Seqno};
use kvstore::{Change, ChangesWanted, Failure, Reading, Snapshot, Values};

use super::buffers::Buffers;
use super::frames::{Frames, Piece};
use super::place::Place;
use crate::flusher::is_committed;
use crate::refusal::Refusal;

/// Bytes of one buffer; a larger message has one of its own.
const PIECE_BYTES: usize = 256 << 10;
/// Room for what a message has beside key and value.
const HEAD_BYTES: usize = 128;

/// Makes what a stream sends of changes: it goes with one backfill, and sees all changes of it in order.
pub trait WriteChanges: std::any::Any + Send {
    /// Appends what is sent of the next change to `out`: whole messages, or nothing if the stream is not about it.
    /// Breaks off if nothing after it is wanted. Refused, with nothing appended, if the change cannot be read.
    fn write(&mut self, change: &Change<'_>, out: &mut Vec<u8>) -> Result<ControlFlow<()>, Refusal>;
}

/// What one step reads.
pub(super) struct Slice<'a> {
    pub(super) writer: &'a mut dyn WriteChanges,
    pub(super) account: &'a Account,
    /// Collections whose end is part of what is read, with the seqnos at which they ended: what they held is left out.
    pub(super) dropped: &'a [(CollectionId, Seqno)],
    /// Prepares above this are in flight, and wanted; nothing if none are wanted.
    pub(super) prepares_above: Option<Seqno>,
    /// Whether versions in the history of changes are wanted that newer ones replaced.
    pub(super) with_past: bool,
    /// About so many bytes are made at most.
    pub(super) max_bytes: usize,
    /// A change of more bytes is left to a later step, and all behind it.
    pub(super) most_change: usize,
    pub(super) made: Made,
}

/// What came out of it.
#[derive(Default)]
pub(super) struct Made {
    pub(super) pieces: Vec<Piece>,
    /// What they are charged with.
    pub(super) bytes: usize,
    /// The last change in what is being written.
    last: Seqno,
    /// Where the history of changes begins in what is read; 0 if there is none, or none is wanted.
    history_start: Seqno,
    /// Whether what is being written is of the history of changes.
    is_history: bool,
    /// Where the next step goes on; nothing if this was all.
    pub(super) rest: Option<Place>,
    /// Whether that is at a change that is larger than this step might read.
    pub(super) is_large: bool,
    /// Whether the writer wants nothing more.
    pub(super) is_over: bool,
    /// Whether the last change that was read makes no sense: the ones before it are made.
    pub(super) is_unreadable: bool,
}

impl Slice<'_> {
    /// Reads from a place on.
    pub(super) fn read(
        mut self,
        snapshot: &dyn Snapshot,
        place: Place,
        values: Values,
        buffers: &mut Buffers,
    ) -> Result<Made, Failure> {
        let Buffers { reading, out, .. } = buffers;
        out.clear();
        if self.with_past {
            self.made.history_start = snapshot.history_start();
        }
        let read = match place {
            Place::Seqno(from) => self.read_in_order(snapshot, from, values, reading, out),
            Place::Key(_) => self.read_by_key(snapshot, place, values, out),
        };
        self.finish(out);
        read.map(|()| self.made)
    }

    fn read_in_order(
        &mut self,
        snapshot: &dyn Snapshot,
        from: Seqno,
        values: Values,
        reading: &mut Reading,
        out: &mut Vec<u8>,
    ) -> Result<(), Failure> {
        let prepares = self.prepares_above.is_some();
        let mut next = Some(from);
        while let Some(from) = next
            && !self.made.is_over
        {
            let left = self.max_bytes.saturating_sub(self.made.bytes + out.len());
            if left == 0 {
                self.made.rest = Some(Place::Seqno(from));
                break;
            }
            let wanted = ChangesWanted { from, values, prepares, past: self.with_past, max_bytes: left };
            let mut large = None;
            next = snapshot.changes(&wanted, reading, &mut |change| {
                if change.bytes() > self.most_change && !self.passes(change) {
                    large = Some(change.meta.by_seqno);
                    return ControlFlow::Break(());
                }
                self.take(change, out)
            })?;
            if let Some(at) = large {
                self.made.is_large = true;
                self.made.rest = Some(Place::Seqno(at));
                break;
            }
        }
        Ok(())
    }

    fn read_by_key(
        &mut self,
        snapshot: &dyn Snapshot,
        place: Place,
        values: Values,
        out: &mut Vec<u8>,
    ) -> Result<(), Failure> {
        let mut place = Some(place);
        while let Some(Place::Key(mut range)) = place.take()
            && !self.made.is_over
        {
            let mut is_full = false;
            snapshot.scan_keys(&range.from.clone(), values, &mut |version| {
                let change = Change::of(&version);
                if !change.stored_key.starts_with(&range.prefix) {
                    return ControlFlow::Break(());
                }
                self.made.is_large = change.bytes() > self.most_change && !self.passes(&change);
                if self.made.is_large || self.made.bytes + out.len() >= self.max_bytes {
                    is_full = true;
                    range.from = change.stored_key.to_vec();
                    return ControlFlow::Break(());
                }
                self.take(&change, out)
            })?;
            if self.made.is_unreadable {
                return Ok(());
            }
            if is_full {
                self.made.rest = Some(Place::Key(range));
                return Ok(());
            }
            place = range.next().map(Place::Key);
        }
        Ok(())
    }

    fn hides(&self, change: &Change<'_>) -> bool {
        let (id, seqno) = (change.document_key().collection, change.meta.by_seqno);
        self.dropped.iter().any(|(of, end)| *of == id && seqno <= *end)
    }

    /// Whether nothing is made of it.
    fn passes(&self, change: &Change<'_>) -> bool {
        self.prepares_above.is_some_and(|completed| is_committed(&change.meta, completed))
            || (!self.dropped.is_empty() && self.hides(change))
    }

    fn take(&mut self, change: &Change<'_>, out: &mut Vec<u8>) -> ControlFlow<()> {
        if self.passes(change) {
            return ControlFlow::Continue(());
        }
        let is_history =
            self.made.history_start > Seqno(0) && change.meta.by_seqno >= self.made.history_start;
        if is_history != self.made.is_history {
            // Another snapshot is announced in between.
            self.finish(out);
            self.made.is_history = is_history;
        }
        let room = HEAD_BYTES + change.bytes();
        if out.capacity() - out.len() < room {
            self.finish(out);
            out.reserve_exact(room.max(PIECE_BYTES));
        }
        let before = out.len();
        let flow = match self.writer.write(change, out) {
            Ok(flow) => flow,
            Err(_) => {
                self.made.is_unreadable = true;
                return ControlFlow::Break(());
            }
        };
        if out.len() > before {
            self.made.last = self.made.last.max(change.meta.by_seqno);
        }
        self.made.is_over |= flow.is_break();
        flow
    }

    /// What was written is ready.
    fn finish(&mut self, out: &mut Vec<u8>) {
        if out.is_empty() {
            return;
        }
        let bytes = if out.len() * 2 > out.capacity() {
            std::mem::take(out)
        } else {
            // What would hold on to much more than it needs is copied.
            let exact = out.as_slice().to_vec();
            out.clear();
            exact
        };
        let frames = Frames::new(bytes, self.account);
        self.made.bytes += frames.allocated_bytes();
        let (last, is_history) = (std::mem::take(&mut self.made.last), self.made.is_history);
        self.made.pieces.push(Piece { frames, last, is_history });
    }
}
