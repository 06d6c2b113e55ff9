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

use std::sync::Arc;

use base::{Seqno, Version};

use crate::bucket_context::BucketContext;
use crate::changes::{Changes, Sums};
use crate::checkpoint_list::{Node, Sealed, Tip, last_before, node_of};
use crate::checkpoint_memory::{Charge, CheckpointMemory, rounded};
use crate::cursor::{Cursor, CursorId, CursorName, CursorState, Dropped, RegisterRefusal};
use crate::range::{Range, RangeLimit};
use crate::received::{Received, SnapshotBounds};
use crate::removed::Removed;

/// The open and the closed checkpoints of a vBucket, and the cursors that read them.
pub struct CheckpointManager {
    /// The oldest node in memory,
    oldest: Arc<Node>,
    /// its beginning, and the number of its checkpoint: nobody needs to look at it, it may be far from any cache.
    memory_start: Seqno,
    oldest_id: u64,
    /// The open checkpoint's first node.
    open: Arc<Node>,
    tip: Tip,
    /// The open checkpoint's changes.
    changes: Changes,
    /// What was ever in closed checkpoints.
    closed: Sums,
    /// What has left them.
    removed: Sums,
    /// Bytes of the open checkpoint's nodes.
    open_node_bytes: u64,
    /// Where the run begins that the open checkpoint belongs to: it was not closed since, but for readers.
    run_start: Seqno,
    pub(crate) high: Seqno,
    /// The last change that was passed over.
    passed: Seqno,
    /// Changes that a later one of the same key has replaced here since the vBucket was made.
    pub merged: u64,
    cursors: Vec<Cursor>,
    cursor_charge: Charge,
    next_cursor: u32,
    memory: Arc<CheckpointMemory>,
    /// What the bucket knows of what this one takes.
    told_bytes: u64,
    /// Closed checkpoints that nobody needs, kept for streams that come back soon.
    kept: Kept,
    /// Nothing is kept from before this.
    kept_from: Seqno,
    /// Of a vBucket that is or was a replica: the snapshot that it receives.
    pub(crate) received: Option<Box<Received>>,
}

/// Small, because each vBucket has it.
#[derive(Clone, Copy, Default)]
struct Kept {
    /// Their size in KiB, rounded up.
    kib: u16,
    /// The bucket's epoch when it was looked at last.
    since: u16,
}

impl Kept {
    fn bytes(self) -> u64 {
        u64::from(self.kib) << 10
    }
}

impl CheckpointManager {
    /// An empty one for a vBucket whose last change was `high`.
    pub fn new(context: &BucketContext, high: Seqno) -> CheckpointManager {
        CheckpointManager::begin(context, [high.next(); 2], None)
    }

    /// One for a replica that stopped at `high` inside a snapshot.
    pub(crate) fn inside(
        context: &BucketContext,
        high: Seqno,
        snapshot: SnapshotBounds,
    ) -> CheckpointManager {
        let received = Received { snapshot, is_promised: true, ..Received::default() };
        CheckpointManager::begin(context, [snapshot.start.next(), high.next()], Some(Box::new(received)))
    }

    fn begin(
        context: &BucketContext,
        starts: [Seqno; 2],
        received: Option<Box<Received>>,
    ) -> CheckpointManager {
        let memory = &context.checkpoints;
        let high = Seqno(starts[1].0 - 1);
        let tip = Tip::new(memory.clone(), starts);
        let open = tip.node().clone();
        CheckpointManager {
            oldest: open.clone(),
            memory_start: open.start,
            oldest_id: open.checkpoint,
            open_node_bytes: open.overhead_bytes(),
            run_start: starts[0],
            open,
            tip,
            changes: Changes::new(high.next(), memory.clone()),
            closed: Sums::default(),
            removed: Sums::default(),
            high,
            passed: Seqno(0),
            merged: 0,
            cursors: Vec::new(),
            cursor_charge: Charge::new(memory, 0),
            next_cursor: 0,
            memory: memory.clone(),
            told_bytes: 0,
            kept: Kept::default(),
            kept_from: Seqno(0),
            received,
        }
    }

    /// The last change.
    pub fn high_seqno(&self) -> Seqno {
        self.high
    }

    /// Every change from here on is in memory, or was de-duplicated.
    pub fn memory_start(&self) -> Seqno {
        self.memory_start.max(self.passed.next())
    }

    /// Number of the open checkpoint.
    pub fn open_id(&self) -> u64 {
        self.open.checkpoint
    }

    /// Checkpoints in memory, the open one included.
    pub fn checkpoints(&self) -> u64 {
        self.open.checkpoint - self.oldest_id + 1
    }

    /// Changes in memory.
    pub fn items(&self) -> u64 {
        self.total().items - self.removed.items
    }

    /// Changes in the open checkpoint.
    pub fn open_items(&self) -> u64 {
        self.changes.sums().items
    }

    /// Bytes of the versions in memory, which the hash table may hold as well.
    pub fn bytes(&self) -> u64 {
        self.total().bytes - self.removed.bytes
    }

    /// Bytes allocated for checkpoints and cursors, without the versions.
    pub fn overhead_bytes(&self) -> u64 {
        let cursors = self.cursor_charge.bytes() as u64;
        self.total().overhead - self.removed.overhead + self.open_node_bytes + cursors
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

    /// Closes the open checkpoint, and ends its run, if the change `old` stands in that.
    pub fn close_behind(&mut self, old: Seqno) {
        if old >= self.run_start {
            self.close();
        }
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
            self.changes = Changes::new(self.high.next(), self.memory.clone());
            self.tip.begin(self.high.next());
            self.open = self.tip.node().clone();
            self.open_node_bytes = self.open.overhead_bytes();
            drop(self.remove_before(self.open.clone()));
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
            self.merged += 1;
        }
        if self.changes.push(seqno, version) {
            self.tip.extend(self.high.next());
            self.open_node_bytes += self.tip.node().overhead_bytes();
        }
        self.high = seqno;
        self.tell();
        merged
    }

    #[inline]
    fn is_full(&self, version: &Version) -> bool {
        let limits = self.memory.limits();
        let bytes = self.changes.sums().bytes + version.allocated_bytes() as u64;
        !self.changes.is_unused()
            && (self.changes.slots() >= limits.max_items
                || bytes > u64::from(limits.max_bytes)
                || self.changes.is_full())
    }

    /// Tells the bucket what this one takes, if that has changed enough.
    #[inline]
    fn tell(&mut self) {
        let bytes = self.bytes() + self.overhead_bytes();
        if bytes.abs_diff(self.told_bytes) > self.memory.drift_bytes() {
            self.tell_exactly(bytes);
        }
    }

    #[cold]
    fn tell_exactly(&mut self, bytes: u64) {
        self.memory.add(bytes as i64 - self.told_bytes as i64);
        self.told_bytes = bytes;
    }

    /// Closes the open checkpoint, unless nothing came since the last one; inside a received snapshot a part of it.
    pub fn close(&mut self) {
        self.close_for_reader();
        self.run_start = self.high.next();
    }

    /// The same, but the run goes on in the next one.
    fn close_for_reader(&mut self) {
        if self.changes.is_unused() && (self.high < self.open.start || self.high == self.passed) {
            return;
        }
        let next = Changes::new(self.high.next(), self.memory.clone());
        let changes = std::mem::replace(&mut self.changes, next);
        let snapshot_end = self.snapshot().end;
        if snapshot_end > self.high {
            self.tip.extend(self.high.next());
            self.promise();
        } else {
            self.tip.begin(self.high.next());
        }
        let mut at = &self.open;
        for chunk in changes.into_chunks() {
            let sums = chunk.sums();
            let overhead = sums.overhead + at.overhead_bytes();
            at.seal(chunk, [self.high, snapshot_end, self.run_start], self.closed);
            self.closed = self.closed + Sums { overhead, ..sums };
            at = at.next().expect("a node for each chunk, and one for the next checkpoint");
        }
        assert!(Arc::ptr_eq(at, self.tip.node()), "a chunk for each node");
        self.open = self.tip.node().clone();
        self.open_node_bytes = self.open.overhead_bytes();
    }

    /// Closes the open checkpoint, and what comes next stands apart from it: nothing from before is kept for readers
    /// that come back soon. They find it on disk, where it is one snapshot, and without what is dropped.
    pub fn close_apart(&mut self) {
        self.close();
        self.kept_from = self.high.next();
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
        if from.next() < self.memory_start() {
            return Err(RegisterRefusal::BelowMemory { memory_start: self.memory_start() });
        }
        if from > self.high {
            return Err(RegisterRefusal::AboveHigh { high: self.high });
        }
        self.begin_behind_passed();
        let id = CursorId(self.next_cursor);
        self.next_cursor += 1;
        let begin = if from.next() >= self.open.start { &self.open } else { &self.oldest };
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
        self.cursor_charge.resize(rounded(self.cursors.capacity() * size_of::<Cursor>()));
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
        let needed = self.before(needed.unwrap_or(&self.open));
        let slowest = self.cursors.iter().filter(|cursor| cursor.is_droppable).min_by_key(|c| c.position)?;
        let before = self.before(&slowest.near);
        let won = (needed.bytes + needed.overhead).saturating_sub(before.bytes + before.overhead);
        if won < least_bytes.max(1) {
            return None;
        }
        let (id, name) = (slowest.id, slowest.name.clone());
        self.drop_cursor(id);
        Some((id, name))
    }

    /// Has a checkpoint begin with what comes next, so that readers can be given everything before it; its first seqno.
    pub(crate) fn close_before_next(&mut self) -> Seqno {
        self.close_for_reader();
        self.high.next()
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
        let high = self.high;
        let at = self.cursors.iter().position(|cursor| cursor.id == id).ok_or(Dropped)?;
        let cursor = &mut self.cursors[at];
        if cursor.position >= high || cursor.position.next() >= end {
            return Ok(None);
        }
        let limit = limit.through(limit.through.min(Seqno(end.0 - 1)));
        cursor.settle();
        let read = self.read_by(&self.cursors[at]);
        let next = self.range_end(&self.cursors[at], read, limit).unwrap_or_else(|| {
            self.close_for_reader();
            self.open.clone()
        });
        let items = self.before(&next).items - read.items;
        let cursor = &mut self.cursors[at];
        let (start, end) = (cursor.position.next(), Seqno(next.start.0 - 1));
        let first = cursor.near.clone();
        let last = node_of(&first, end).sealed().expect("everything before the next node is closed");
        // A snapshot that was given up ends where its part of it does.
        let given_up = self.received.as_ref().map_or(Seqno(0), |received| received.given_up);
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
        if is_few(self.closed) && self.high <= limit.through && self.run_start <= last_run {
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
        assert!(to < self.open.start || to == cursor.position, "only what was taken can be worked on");
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
        self.keep(0);
        self.remove_before(needed)
    }

    /// The same, but for the newest ones, as far as the bucket has room for them: who comes back soon finds its place.
    pub fn remove_closed_but_newest(&mut self) -> Removed {
        let needed = self.needed();
        let most = self.memory.may_keep(self.kept.bytes());
        let until = self.before(&needed);
        let kept_from = self.kept_from.min(needed.start);
        let is_too_far = |node: &Node| {
            if node.start < kept_from {
                return true;
            }
            let kept = until - self.before(node);
            kept.bytes + kept.overhead > most
        };
        let from = if is_too_far(&self.oldest) {
            let last = last_before(&self.oldest, |node| node.start < needed.start && is_too_far(node));
            match last.sealed() {
                Some(sealed) => node_of(last, sealed.checkpoint_end.next()).clone(),
                None => needed,
            }
        } else {
            self.oldest.clone()
        };
        let kept = until - self.before(&from);
        self.keep(kept.bytes + kept.overhead);
        self.remove_before(from)
    }

    /// Takes out what is kept for so many epochs of the bucket.
    pub fn remove_kept(&mut self, epochs: u16) -> Removed {
        let age = self.memory.epoch().wrapping_sub(self.kept.since);
        if self.kept.kib > 0 && age >= epochs { self.remove_closed() } else { Removed::default() }
    }

    fn keep(&mut self, bytes: u64) {
        let kib = bytes.div_ceil(1 << 10).try_into().unwrap_or(u16::MAX);
        let kept = Kept { kib, since: self.memory.epoch() };
        self.memory.keep(kept.bytes() as i64 - self.kept.bytes() as i64);
        self.kept = kept;
    }

    /// The first node of the oldest checkpoint that a cursor has not passed.
    fn needed(&mut self) -> Arc<Node> {
        self.settle();
        let needed = self.cursors.iter().map(|cursor| &cursor.first).min_by_key(|node| node.start);
        needed.unwrap_or(&self.open).clone()
    }

    /// Takes out everything that every cursor has passed: of the checkpoint that the slowest one is in what lies
    /// before it, in whole chunks, too. Readers hold on to what they have taken, but nobody can register there again.
    pub fn expel(&mut self) -> Removed {
        if self.cursors.iter().all(|cursor| cursor.position == self.high) {
            self.close();
        }
        self.settle();
        let needed = self.cursors.iter().map(|cursor| &cursor.near).min_by_key(|node| node.start);
        let needed = needed.filter(|node| node.start < self.open.start).unwrap_or(&self.open).clone();
        self.keep(0);
        for cursor in &mut self.cursors {
            if cursor.first.start < needed.start {
                cursor.first = needed.clone();
            }
        }
        self.remove_before(needed)
    }

    fn settle(&mut self) {
        self.cursors.iter_mut().for_each(Cursor::settle);
    }

    fn remove_before(&mut self, needed: Arc<Node>) -> Removed {
        if needed.start <= self.memory_start {
            return Removed::default();
        }
        let forgotten = self.tip.forget_before(&needed);
        let until = self.before(&needed);
        let sums = until - self.removed;
        self.removed = until;
        self.memory_start = needed.start;
        let before = std::mem::replace(&mut self.oldest_id, needed.checkpoint);
        let oldest = Some(std::mem::replace(&mut self.oldest, needed));
        self.tell();
        Removed { forgotten, oldest, checkpoints: self.oldest_id - before, sums }
    }

    fn cursor(&self, id: CursorId) -> Option<&Cursor> {
        self.cursors.iter().find(|cursor| cursor.id == id)
    }

    /// Everything that was ever queued and not merged away.
    fn total(&self) -> Sums {
        self.closed + self.changes.sums()
    }

    /// What was ever in the closed checkpoints before a node.
    fn before(&self, node: &Node) -> Sums {
        node.sealed().map_or(self.closed, |sealed| sealed.before)
    }

    /// What is before the cursor's position; the bytes only up to the chunk it is in.
    fn read_by(&self, cursor: &Cursor) -> Sums {
        Sums { items: self.total().items - self.behind(cursor), ..self.before(&cursor.near) }
    }

    fn behind(&self, cursor: &Cursor) -> u64 {
        let from = cursor.position.next();
        let near = node_of(&cursor.near, from);
        match near.sealed() {
            None => self.changes.live_from(from),
            Some(sealed) => {
                let chunk = &sealed.chunk;
                let until = sealed.before.items + chunk.sums().items;
                self.total().items - until + chunk.live_from(from)
            }
        }
    }
}

impl Drop for CheckpointManager {
    fn drop(&mut self) {
        self.memory.add(-(self.told_bytes as i64));
        self.memory.keep(-(self.kept.bytes() as i64));
    }
}
