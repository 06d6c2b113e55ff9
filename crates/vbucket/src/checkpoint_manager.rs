//! The checkpoint manager of a vBucket: what changed lately, in order, for the flusher and the streams.
//!
//! Changes are queued in the open checkpoint. A change of a key whose last change is still in the open checkpoint
//! takes its place: the old version's seqno says which slot to empty, no index is needed.
//! Taking a range seals it: the open checkpoint is closed, and later changes go into the next one. What one reader has
//! been promised never changes under it, so every closed checkpoint is one consistent snapshot; de-duplication reaches
//! back only to the last seal, and a reader that comes later may meet a key twice, in two snapshots.
//!
//! Nothing here costs more when there are more changes or checkpoints: ranges and removed checkpoints are handed out
//! as counted pointers, to be walked and freed outside the vBucket lock.
//! No cursor ever stands inside the open checkpoint with a promise to keep, and closed checkpoints have a limited size,
//! so memory is recovered by taking out whole checkpoints, and by dropping the slowest cursor where that is not enough.

use std::sync::Arc;

use base::{Seqno, Version};

use crate::checkpoint::{Changes, CheckpointLimits, NODE_BYTES, Node, Range, Removed};
use crate::cursor::{Cursor, CursorId, CursorState, MOST_STEPS, RegisterRefusal};

/// The open and the closed checkpoints of a vBucket, and the cursors that read them.
pub struct CheckpointManager {
    /// The oldest checkpoint in memory.
    oldest: Arc<Node>,
    /// The open checkpoint's place in the list.
    open: Arc<Node>,
    /// The open checkpoint's changes.
    changes: Changes,
    high: Seqno,
    /// The last change that was passed over.
    passed: Seqno,
    cursors: Vec<Cursor>,
    next_cursor: u32,
    limits: CheckpointLimits,
}

impl CheckpointManager {
    /// An empty one for a vBucket whose last change was `high`.
    pub fn new(high: Seqno, limits: CheckpointLimits) -> CheckpointManager {
        let open = Node::first(1, high.next());
        CheckpointManager {
            oldest: open.clone(),
            open,
            changes: Changes::new(high.next()),
            high,
            passed: Seqno(0),
            cursors: Vec::new(),
            next_cursor: 0,
            limits,
        }
    }

    /// The last change.
    pub fn high_seqno(&self) -> Seqno {
        self.high
    }

    /// Every change from here on is in memory, or was de-duplicated.
    pub fn memory_start(&self) -> Seqno {
        self.oldest.start.max(self.passed.next())
    }

    /// Number of the open checkpoint.
    pub fn open_id(&self) -> u64 {
        self.open.id
    }

    /// Checkpoints in memory, the open one included.
    pub fn checkpoints(&self) -> u64 {
        self.open.id - self.oldest.id + 1
    }

    /// Changes in memory.
    pub fn items(&self) -> u64 {
        self.total() - self.oldest.items_before
    }

    /// Changes in the open checkpoint.
    pub fn open_items(&self) -> u64 {
        self.changes.live()
    }

    /// Bytes of the versions in memory, which the hash table may hold as well.
    pub fn bytes(&self) -> u64 {
        self.open.bytes_before + self.changes.bytes() - self.oldest.bytes_before
    }

    /// Bytes allocated for checkpoints and cursors, without the versions; looks at each chunk of the open checkpoint.
    pub fn overhead_bytes(&self) -> u64 {
        let cursors = self.cursors.capacity() * size_of::<Cursor>();
        let open = NODE_BYTES + (self.changes.slot_bytes() + cursors) as u64;
        self.open.overhead_before - self.oldest.overhead_before + open
    }

    /// Changes the limits, from the next queued change on.
    pub fn set_limits(&mut self, limits: CheckpointLimits) {
        self.limits = limits;
    }

    /// Queues the change `version`, whose seqno must be the one after the last.
    ///
    /// `old` is the seqno of the key's version that this one replaces. If that is queued in the open checkpoint and
    /// may be merged away, its slot becomes empty, and it is returned to be dropped outside the lock.
    #[inline]
    pub fn queue(&mut self, version: Version, old: Option<Seqno>) -> Option<Version> {
        assert_eq!(version.meta().by_seqno, self.high.next(), "seqnos of an active vBucket have no gaps");
        self.append(version, old)
    }

    /// Queues a change received from an active vBucket, which may have left out seqnos that it de-duplicated.
    pub fn queue_received(&mut self, version: Version, old: Option<Seqno>) -> Option<Version> {
        assert!(version.meta().by_seqno > self.high, "received changes come in seqno order");
        self.append(version, old)
    }

    /// Whether anybody reads.
    pub fn has_cursors(&self) -> bool {
        !self.cursors.is_empty()
    }

    /// Notes a change that is not queued, because nobody reads and whoever comes later finds it elsewhere. What is still
    /// in memory is returned to be dropped outside the lock.
    #[inline]
    pub fn pass_over(&mut self, seqno: Seqno) -> Option<Box<Removed>> {
        assert!(self.cursors.is_empty() && seqno > self.high, "changes are passed over when nobody reads");
        (self.high, self.passed) = (seqno, seqno);
        let is_empty = self.changes.is_unused() && Arc::ptr_eq(&self.oldest, &self.open);
        (!is_empty).then(|| {
            self.close();
            Box::new(self.remove_closed())
        })
    }

    /// After changes were passed over the open checkpoint begins behind them.
    fn begin_behind_passed(&mut self) {
        if self.open.start <= self.passed {
            self.open = Node::first(self.open.id + 1, self.high.next());
            self.oldest = self.open.clone();
            self.changes = Changes::new(self.high.next());
        }
    }

    #[inline]
    fn append(&mut self, version: Version, old: Option<Seqno>) -> Option<Version> {
        let seqno = version.meta().by_seqno;
        if self.is_full(&version) {
            // before merging: a closed checkpoint must not miss a change that another checkpoint replaces
            self.close();
        }
        let merged = match old {
            Some(old) if old >= self.open.start => self.changes.remove(old),
            _ => None,
        };
        if let Some(merged) = &merged {
            assert_eq!(merged.stored_key(), version.stored_key(), "only changes of one key are merged");
        }
        self.changes.push(seqno, version);
        self.high = seqno;
        merged
    }

    #[inline]
    fn is_full(&self, version: &Version) -> bool {
        let bytes = self.changes.bytes() + version.allocated_bytes() as u64;
        self.changes.slots() >= self.limits.max_items
            || (bytes > u64::from(self.limits.max_bytes) && !self.changes.is_unused())
    }

    /// Closes the open checkpoint, unless it never held anything.
    pub fn close(&mut self) {
        if self.changes.is_unused() {
            return;
        }
        let changes = std::mem::replace(&mut self.changes, Changes::new(self.high.next()));
        self.open = self.open.close(self.high, changes);
    }

    /// Registers a reader that knows everything up to `from`, and wants what follows.
    pub fn register_cursor(
        &mut self,
        name: impl Into<Arc<str>>,
        from: Seqno,
    ) -> Result<CursorId, RegisterRefusal> {
        if from.next() < self.memory_start() {
            return Err(RegisterRefusal::BelowMemory { memory_start: self.memory_start() });
        }
        if from > self.high {
            return Err(RegisterRefusal::AboveHigh { high: self.high });
        }
        self.begin_behind_passed();
        let id = CursorId(self.next_cursor);
        self.next_cursor += 1;
        let near = if from.next() >= self.open.start { &self.open } else { &self.oldest };
        let mut cursor = Cursor { id, name: name.into(), position: from, near: near.clone(), taken: None };
        cursor.settle();
        self.cursors.push(cursor);
        Ok(id)
    }

    /// Forgets a cursor; false if it is not there any more.
    pub fn drop_cursor(&mut self, id: CursorId) -> bool {
        let at = self.cursors.iter().position(|cursor| cursor.id == id);
        at.map(|at| self.cursors.swap_remove(at)).is_some()
    }

    /// Takes what follows the cursor's position, sealing it; nothing if there is nothing, or no such cursor.
    ///
    /// The range ends at the end of a checkpoint, the first one with which `max_items` are reached.
    /// The cursor stays where it is until [`CheckpointManager::advance`]; taking again begins at the same place.
    pub fn take_range(&mut self, id: CursorId, max_items: u64) -> Option<Range> {
        let high = self.high;
        let at = self.cursors.iter().position(|cursor| cursor.id == id)?;
        if self.cursors[at].position >= high {
            return None;
        }
        let settled = self.cursors[at].settle();
        let cursor = &self.cursors[at];
        // mostly all that follows is few enough, and then nothing but the cursor's own checkpoint is looked at
        let limited = settled && self.total() - cursor.near.items_before > max_items;
        let next = if limited { range_end(cursor, max_items) } else { None };
        let next = next.unwrap_or_else(|| {
            self.close();
            self.open.clone()
        });
        let cursor = &mut self.cursors[at];
        let (start, end) = (cursor.position.next(), Seqno(next.start.0 - 1));
        let range = Range { first: cursor.near.clone(), start, end, items_until: next.items_before };
        cursor.taken = Some((end, next));
        Some(range)
    }

    /// Moves the cursor: everything up to `to` was worked on. False if the cursor is not there any more.
    ///
    /// `to` must not lie before the position, nor after the last range taken.
    pub fn advance(&mut self, id: CursorId, to: Seqno) -> bool {
        let Some(cursor) = self.cursors.iter_mut().find(|cursor| cursor.id == id) else { return false };
        assert!(to < self.open.start || to == cursor.position, "only what was taken can be worked on");
        cursor.advance(to);
        true
    }

    /// The cursor's position.
    pub fn position(&self, id: CursorId) -> Option<Seqno> {
        self.cursor(id).map(|cursor| cursor.position)
    }

    /// Changes in memory behind the cursor: exact, or too high if it was registered far behind.
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

    /// Takes out the closed checkpoints that every cursor has passed, to be dropped outside the lock.
    pub fn remove_closed(&mut self) -> Removed {
        self.cursors.iter_mut().for_each(|cursor| {
            cursor.settle();
        });
        let needed = self.cursors.iter().map(|cursor| &cursor.near).min_by_key(|node| node.start);
        let needed = needed.unwrap_or(&self.open).clone();
        if Arc::ptr_eq(&needed, &self.oldest) {
            return Removed::default();
        }
        let oldest = std::mem::replace(&mut self.oldest, needed);
        Removed {
            checkpoints: self.oldest.id - oldest.id,
            items: self.oldest.items_before - oldest.items_before,
            bytes: self.oldest.bytes_before - oldest.bytes_before,
            oldest: Some(oldest),
        }
    }

    fn cursor(&self, id: CursorId) -> Option<&Cursor> {
        self.cursors.iter().find(|cursor| cursor.id == id)
    }

    /// Changes ever queued and not merged away.
    fn total(&self) -> u64 {
        self.open.items_before + self.changes.live()
    }

    fn behind(&self, cursor: &Cursor) -> u64 {
        let from = cursor.position.next();
        let items = match (cursor.near.unread_when_closed(from), cursor.near.next()) {
            (Some(unread), Some(next)) => self.total() - next.items_before + unread,
            _ => self.changes.live_from(from),
        };
        items.min(self.high.0 - cursor.position.0)
    }
}

/// The checkpoint after the first one with which `max_items` are reached; nothing if that is the open one.
fn range_end(cursor: &Cursor, max_items: u64) -> Option<Arc<Node>> {
    let mut next = cursor.near.next()?;
    let read = next.items_before - cursor.near.unread_when_closed(cursor.position.next())?;
    for _ in 0..MOST_STEPS {
        if next.items_before - read >= max_items {
            break;
        }
        next = next.next()?;
    }
    Some(next.clone())
}
