//! The checkpoint manager of a vBucket: what changed lately, in order, for the flusher and the streams.
//!
//! Changes are queued in the open checkpoint. A change of a key whose last change is still in the open checkpoint
//! takes its place: the old version's seqno says which slot to empty, no index is needed.
//! Taking a range seals it: the open checkpoint is closed, and later changes go into the next one. What one reader has
//! been promised never changes under it, so every closed checkpoint is one consistent snapshot; de-duplication reaches
//! back only to the last seal, and a reader that comes later may meet a key twice, in two snapshots.
//!
//! On a replica a checkpoint holds whole snapshots of the active vBucket. Sealing inside a snapshot closes a part of the
//! checkpoint: what follows has the same number, and the part says where the snapshot ends.
//!
//! Nothing here costs more when there are more changes or checkpoints, but for searches, which cost the logarithm:
//! ranges and removed checkpoints are handed out as counted pointers, to be walked and freed outside the vBucket lock.
//! Memory is recovered by taking out whole checkpoints that all cursors have passed, then the chunks that they have
//! passed of the next one, then by dropping the slowest cursor. All three leave the ranges alone that readers hold.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use base::Seqno;

use crate::bucket_context::BucketContext;
use crate::changes::Sums;
use crate::checkpoint_list::{Node, Sealed, last_before, node_of};
use crate::checkpoint_memory::rounded;

use crate::cursor::{Cursor, CursorId, CursorName, CursorState, Dropped, RegisterRefusal};
use crate::held_checkpoints::HeldCheckpoints;
use crate::range::{Range, RangeLimit};
use crate::received::{Received, SnapshotBounds};
use crate::removed::Removed;

/// The checkpoints of a vBucket, and the cursors that read them. It dereferences to the checkpoints: what needs no cursor
/// is theirs.
pub struct CheckpointManager {
    held: HeldCheckpoints,
    cursors: Vec<Cursor>,
}

impl Deref for CheckpointManager {
    type Target = HeldCheckpoints;

    #[inline]
    fn deref(&self) -> &HeldCheckpoints {
        &self.held
    }
}

impl DerefMut for CheckpointManager {
    #[inline]
    fn deref_mut(&mut self) -> &mut HeldCheckpoints {
        &mut self.held
    }
}

impl CheckpointManager {
    fn of(held: HeldCheckpoints) -> CheckpointManager {
        CheckpointManager { held, cursors: Vec::new() }
    }

    /// An empty one for a vBucket whose last change was `high`.
    pub fn new(context: &BucketContext, high: Seqno) -> CheckpointManager {
        CheckpointManager::of(HeldCheckpoints::begin(context, [high.next(); 2], None))
    }

    /// One for a replica that stopped at `high` inside a snapshot.
    pub(crate) fn inside(
        context: &BucketContext,
        high: Seqno,
        snapshot: SnapshotBounds,
    ) -> CheckpointManager {
        let received = Received { snapshot, is_promised: true, ..Received::default() };
        let starts = [snapshot.start.next(), high.next()];
        CheckpointManager::of(HeldCheckpoints::begin(context, starts, Some(Box::new(received))))
    }

    /// Whether anybody reads.
    pub fn has_cursors(&self) -> bool {
        !self.cursors.is_empty()
    }

    /// Notes a change that is not queued, because nobody reads and whoever comes later finds it elsewhere. What is still
    /// in memory is returned to be dropped outside the lock.
    #[inline]
    pub fn pass_over(&mut self, seqno: Seqno) -> Option<Box<Removed>> {
        assert!(
            self.cursors.is_empty() && seqno > self.held.high,
            "changes are passed over when nobody reads"
        );
        (self.held.high, self.held.passed) = (seqno, seqno);
        let is_empty = self.held.changes.is_unused() && Arc::ptr_eq(&self.held.oldest, &self.held.open);
        (!is_empty).then(|| {
            self.held.close();
            Box::new(self.remove_closed())
        })
    }

    /// Registers a reader that knows everything up to `from`, and wants what follows. It is dropped if memory runs
    /// short and it is the slowest one.
    pub fn register_cursor(
        &mut self,
        name: impl Into<CursorName>,
        from: Seqno,
    ) -> Result<CursorId, RegisterRefusal> {
        self.register(name.into(), from, true)
    }

    /// Registers a reader that is never dropped, whatever it costs: that of the flusher.
    pub fn register_lasting_cursor(
        &mut self,
        name: impl Into<CursorName>,
        from: Seqno,
    ) -> Result<CursorId, RegisterRefusal> {
        self.register(name.into(), from, false)
    }

    fn register(
        &mut self,
        name: CursorName,
        from: Seqno,
        is_droppable: bool,
    ) -> Result<CursorId, RegisterRefusal> {
        if from.next() < self.held.memory_start() {
            return Err(RegisterRefusal::BelowMemory { memory_start: self.held.memory_start() });
        }
        if from > self.held.high {
            return Err(RegisterRefusal::AboveHigh { high: self.held.high });
        }
        self.held.begin_behind_passed();
        let id = CursorId(self.held.next_cursor);
        self.held.next_cursor += 1;
        let begin = if from.next() >= self.held.open.start { &self.held.open } else { &self.held.oldest };
        let near = node_of(begin, from.next()).clone();
        let first = node_of(begin, near.checkpoint_start).clone();
        if self.cursors.len() == self.cursors.capacity() {
            // A hundred readers of a thousand vBuckets: room for twice as many would cost megabytes.
            self.cursors.reserve_exact(1 + self.cursors.len() / 8);
        }
        self.cursors.push(Cursor { id, name, is_droppable, position: from, near, first, taken: None });
        self.charge_cursors();
        Ok(id)
    }

    fn charge_cursors(&mut self) {
        // Their names are their readers'.
        self.held.cursor_charge.resize(rounded(self.cursors.capacity() * size_of::<Cursor>()));
    }

    /// Forgets a cursor; false if it is not there any more.
    pub fn drop_cursor(&mut self, id: CursorId) -> bool {
        let Some(at) = self.cursors.iter().position(|cursor| cursor.id == id) else { return false };
        self.cursors.swap_remove(at);
        self.charge_cursors();
        true
    }

    /// Drops the slowest cursor if it is one that may be dropped, and keeps so many bytes at least that no lasting one
    /// needs: its name and id. Its reader is told when it comes to take what follows.
    pub fn drop_slowest_cursor(&mut self, least_bytes: u64) -> Option<(CursorId, CursorName)> {
        self.settle();
        let lasting = self.cursors.iter().filter(|cursor| !cursor.is_droppable);
        let needed = lasting.map(|cursor| &cursor.near).min_by_key(|node| node.start);
        let needed = self.held.before(needed.unwrap_or(&self.held.open));
        let slowest = self.cursors.iter().filter(|cursor| cursor.is_droppable).min_by_key(|c| c.position)?;
        let before = self.held.before(&slowest.near);
        let won = (needed.bytes + needed.overhead).saturating_sub(before.bytes + before.overhead);
        if won < least_bytes.max(1) {
            return None;
        }
        let (id, name) = (slowest.id, slowest.name.clone());
        self.drop_cursor(id);
        Some((id, name))
    }

    /// Takes what follows the cursor's position, sealing it; nothing if there is nothing.
    ///
    /// The range ends at the end of a checkpoint, the first one with which the limit is reached.
    /// The cursor stays where it is until [`CheckpointManager::advance`]; taking again begins at the same place.
    pub fn take_range(&mut self, id: CursorId, limit: RangeLimit) -> Result<Option<Range>, Dropped> {
        self.take_range_before(id, limit, Seqno(u64::MAX))
    }

    /// The same, but nothing from `end` on, where a checkpoint begins.
    pub(crate) fn take_range_before(
        &mut self,
        id: CursorId,
        limit: RangeLimit,
        end: Seqno,
    ) -> Result<Option<Range>, Dropped> {
        let high = self.held.high;
        let at = self.cursors.iter().position(|cursor| cursor.id == id).ok_or(Dropped)?;
        let cursor = &mut self.cursors[at];
        if cursor.position >= high || cursor.position.next() >= end {
            return Ok(None);
        }
        let limit = limit.through(limit.through.min(Seqno(end.0 - 1)));
        cursor.settle();
        let read = self.read_by(&self.cursors[at]);
        let next = self.range_end(&self.cursors[at], read, limit).unwrap_or_else(|| {
            self.held.close_for_reader();
            self.held.open.clone()
        });
        let items = self.held.before(&next).items - read.items;
        let cursor = &mut self.cursors[at];
        let (start, end) = (cursor.position.next(), Seqno(next.start.0 - 1));
        let first = cursor.near.clone();
        let last = node_of(&first, end).sealed().expect("everything before the next node is closed");
        // A snapshot that was given up ends where its part of it does.
        let given_up = self.held.received.as_ref().map_or(Seqno(0), |received| received.given_up);
        let snapshot_end = if end <= given_up { last.snapshot_end.min(given_up) } else { last.snapshot_end };
        let range = Range { first, start, end, snapshot_end, items };
        cursor.taken = Some(next);
        Ok(Some(range))
    }

    /// The node after the checkpoint with which `limit` is reached; nothing if that is the open one.
    fn range_end(&self, cursor: &Cursor, read: Sums, limit: RangeLimit) -> Option<Arc<Node>> {
        // Who is in the open checkpoint takes the rest of that.
        let first = cursor.near.sealed()?;
        let last_run = if limit.one_run { first.run_start } else { Seqno(u64::MAX) };
        let is_few = |until: Sums| {
            let taken = until - read;
            taken.items < limit.items.max(1) && taken.bytes < limit.bytes.max(1)
        };
        // mostly all that follows is few enough, and nothing needs to be searched
        if is_few(self.held.closed) && self.held.high <= limit.through && self.held.run_start <= last_run {
            return None;
        }
        let is_within =
            |s: &Sealed| is_few(s.before) && s.checkpoint_end <= limit.through && s.run_start <= last_run;
        let sealed = last_before(&cursor.near, |n| n.sealed().is_some_and(is_within)).sealed()?;
        let after = sealed.checkpoint_end.next();
        Some(node_of(&cursor.near, after).clone())
    }

    /// Moves the cursor: everything up to `to` was worked on. False if the cursor is not there any more.
    ///
    /// `to` must not lie before the position, nor after the last range taken.
    pub fn advance(&mut self, id: CursorId, to: Seqno) -> bool {
        let Some(cursor) = self.cursors.iter_mut().find(|cursor| cursor.id == id) else { return false };
        assert!(to < self.held.open.start || to == cursor.position, "only what was taken can be worked on");
        cursor.advance(to);
        true
    }

    /// The cursor's position.
    pub fn position(&self, id: CursorId) -> Option<Seqno> {
        self.cursor(id).map(|cursor| cursor.position)
    }

    /// Changes in memory behind the cursor.
    pub fn items_behind(&self, id: CursorId) -> Option<u64> {
        self.cursor(id).map(|cursor| self.behind(cursor))
    }

    /// The state of every cursor.
    pub fn cursors(&self) -> impl Iterator<Item = CursorState> {
        self.cursors.iter().map(|cursor| CursorState {
            id: cursor.id,
            name: cursor.name.clone(),
            position: cursor.position,
            items_behind: self.behind(cursor),
        })
    }

    /// Takes out the closed checkpoints that every cursor has passed, to be freed outside the lock.
    pub fn remove_closed(&mut self) -> Removed {
        let needed = self.needed();
        self.held.keep(0);
        self.held.remove_before(needed)
    }

    /// The same, but for the newest ones, as far as the bucket has room for them: who comes back soon finds its place.
    pub fn remove_closed_but_newest(&mut self) -> Removed {
        let needed = self.needed();
        let most = self.held.memory.may_keep(self.held.kept.bytes());
        let until = self.held.before(&needed);
        let kept_from = self.held.kept_from.min(needed.start);
        let is_too_far = |node: &Node| {
            if node.start < kept_from {
                return true;
            }
            let kept = until - self.held.before(node);
            kept.bytes + kept.overhead > most
        };
        let from = if is_too_far(&self.held.oldest) {
            let last = last_before(&self.held.oldest, |node| node.start < needed.start && is_too_far(node));
            match last.sealed() {
                Some(sealed) => node_of(last, sealed.checkpoint_end.next()).clone(),
                None => needed,
            }
        } else {
            self.held.oldest.clone()
        };
        let kept = until - self.held.before(&from);
        self.held.keep(kept.bytes + kept.overhead);
        self.held.remove_before(from)
    }

    /// Takes out what is kept for so many epochs of the bucket.
    pub fn remove_kept(&mut self, epochs: u16) -> Removed {
        let age = self.held.memory.epoch().wrapping_sub(self.held.kept.since);
        if self.held.kept.kib > 0 && age >= epochs { self.remove_closed() } else { Removed::default() }
    }

    /// The first node of the oldest checkpoint that a cursor has not passed.
    fn needed(&mut self) -> Arc<Node> {
        self.settle();
        let needed = self.cursors.iter().map(|cursor| &cursor.first).min_by_key(|node| node.start);
        needed.unwrap_or(&self.held.open).clone()
    }

    /// Takes out everything that every cursor has passed: of the checkpoint that the slowest one is in what lies
    /// before it, in whole chunks, too. Readers hold on to what they have taken, but nobody can register there again.
    pub fn expel(&mut self) -> Removed {
        if self.cursors.iter().all(|cursor| cursor.position == self.held.high) {
            self.held.close();
        }
        self.settle();
        let needed = self.cursors.iter().map(|cursor| &cursor.near).min_by_key(|node| node.start);
        let needed =
            needed.filter(|node| node.start < self.held.open.start).unwrap_or(&self.held.open).clone();
        self.held.keep(0);
        for cursor in &mut self.cursors {
            if cursor.first.start < needed.start {
                cursor.first = needed.clone();
            }
        }
        self.held.remove_before(needed)
    }

    fn settle(&mut self) {
        self.cursors.iter_mut().for_each(Cursor::settle);
    }

    fn cursor(&self, id: CursorId) -> Option<&Cursor> {
        self.cursors.iter().find(|cursor| cursor.id == id)
    }

    /// What is before the cursor's position; the bytes only up to the chunk it is in.
    fn read_by(&self, cursor: &Cursor) -> Sums {
        Sums { items: self.held.total().items - self.behind(cursor), ..self.held.before(&cursor.near) }
    }

    fn behind(&self, cursor: &Cursor) -> u64 {
        let from = cursor.position.next();
        let near = node_of(&cursor.near, from);
        match near.sealed() {
            None => self.held.changes.live_from(from),
            Some(sealed) => {
                let chunk = &sealed.chunk;
                let until = sealed.before.items + chunk.sums().items;
                self.held.total().items - until + chunk.live_from(from)
            }
        }
    }

    /// There is no change up to `seqno`, which must be higher than the last one. What leaves memory is to be dropped
    /// outside the lock.
    pub(crate) fn skip_to(&mut self, seqno: Seqno) -> Option<Box<Removed>> {
        assert!(seqno > self.held.high, "seqnos rise");
        if !self.has_cursors() {
            return self.pass_over(seqno);
        }
        self.held.high = seqno;
        None
    }
}
