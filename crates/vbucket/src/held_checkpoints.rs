//! The checkpoints of a vBucket that are in memory: queueing, closing, taking out, and what they come to.
//!
//! They know nothing of who reads them; that is [`CheckpointManager`](crate::CheckpointManager).

use std::sync::Arc;

use base::{Seqno, Version};

use crate::bucket_context::BucketContext;
use crate::changes::{Changes, Sums};
use crate::checkpoint_list::{Node, Tip};
use crate::checkpoint_memory::{Charge, CheckpointMemory};
use crate::received::Received;
use crate::removed::Removed;

/// The open and the closed checkpoints of a vBucket that are in memory, and the snapshot that a replica receives.
pub struct HeldCheckpoints {
    /// The oldest node in memory,
    pub(crate) oldest: Arc<Node>,
    /// its beginning, and the number of its checkpoint: nobody needs to look at it, it may be far from any cache.
    pub(crate) memory_start: Seqno,
    pub(crate) oldest_id: u64,
    /// The open checkpoint's first node.
    pub(crate) open: Arc<Node>,
    pub(crate) tip: Tip,
    /// The open checkpoint's changes.
    pub(crate) changes: Changes,
    /// What was ever in closed checkpoints.
    pub(crate) closed: Sums,
    /// What has left them.
    pub(crate) removed: Sums,
    /// Bytes of the open checkpoint's nodes.
    pub(crate) open_node_bytes: u64,
    /// Where the run begins that the open checkpoint belongs to: it was not closed since, but for readers.
    pub(crate) run_start: Seqno,
    pub(crate) high: Seqno,
    /// The last change that was passed over.
    pub(crate) passed: Seqno,
    /// Changes that a later one of the same key has replaced here since the vBucket was made.
    pub merged: u64,
    /// What the cursors that read them take.
    pub(crate) cursor_charge: Charge,
    /// The next one's number; here it takes no room of its own.
    pub(crate) next_cursor: u32,
    pub(crate) memory: Arc<CheckpointMemory>,
    /// What the bucket knows of what this one takes.
    pub(crate) told_bytes: u64,
    /// Closed checkpoints that nobody needs, kept for streams that come back soon.
    pub(crate) kept: Kept,
    /// Nothing is kept from before this.
    pub(crate) kept_from: Seqno,
    /// Of a vBucket that is or was a replica: the snapshot that it receives.
    pub(crate) received: Option<Box<Received>>,
}

/// Small, because each vBucket has it.
#[derive(Clone, Copy, Default)]
pub(crate) struct Kept {
    /// Their size in KiB, rounded up.
    pub(crate) kib: u16,
    /// The bucket's epoch when it was looked at last.
    pub(crate) since: u16,
}

impl Kept {
    pub(crate) fn bytes(self) -> u64 {
        u64::from(self.kib) << 10
    }
}

impl HeldCheckpoints {
    pub(crate) fn begin(
        context: &BucketContext,
        starts: [Seqno; 2],
        received: Option<Box<Received>>,
    ) -> HeldCheckpoints {
        let memory = &context.checkpoints;
        let high = Seqno(starts[1].0 - 1);
        let tip = Tip::new(memory.clone(), starts);
        let open = tip.node().clone();
        HeldCheckpoints {
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

    /// After changes were passed over the open checkpoint begins behind them.
    pub(crate) fn begin_behind_passed(&mut self) {
        if self.open.start <= self.passed {
            self.changes = Changes::new(self.high.next(), self.memory.clone());
            self.tip.begin(self.high.next());
            self.open = self.tip.node().clone();
            self.open_node_bytes = self.open.overhead_bytes();
            drop(self.remove_before(self.open.clone()));
        }
    }

    #[inline]
    pub(crate) fn append(&mut self, version: Version, old: Option<Seqno>) -> Option<Version> {
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
    pub(crate) fn is_full(&self, version: &Version) -> bool {
        let limits = self.memory.limits();
        let bytes = self.changes.sums().bytes + version.allocated_bytes() as u64;
        !self.changes.is_unused()
            && (self.changes.slots() >= limits.max_items
                || bytes > u64::from(limits.max_bytes)
                || self.changes.is_full())
    }

    /// Tells the bucket what this one takes, if that has changed enough.
    #[inline]
    pub(crate) fn tell(&mut self) {
        let bytes = self.bytes() + self.overhead_bytes();
        if bytes.abs_diff(self.told_bytes) > self.memory.drift_bytes() {
            self.tell_exactly(bytes);
        }
    }

    #[cold]
    pub(crate) fn tell_exactly(&mut self, bytes: u64) {
        self.memory.add(bytes as i64 - self.told_bytes as i64);
        self.told_bytes = bytes;
    }

    /// Closes the open checkpoint, unless nothing came since the last one; inside a received snapshot a part of it.
    pub fn close(&mut self) {
        self.close_for_reader();
        self.run_start = self.high.next();
    }

    /// The same, but the run goes on in the next one.
    pub(crate) fn close_for_reader(&mut self) {
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

    /// Has a checkpoint begin with what comes next, so that readers can be given everything before it; its first seqno.
    pub(crate) fn close_before_next(&mut self) -> Seqno {
        self.close_for_reader();
        self.high.next()
    }

    pub(crate) fn keep(&mut self, bytes: u64) {
        let kib = bytes.div_ceil(1 << 10).try_into().unwrap_or(u16::MAX);
        let kept = Kept { kib, since: self.memory.epoch() };
        self.memory.keep(kept.bytes() as i64 - self.kept.bytes() as i64);
        self.kept = kept;
    }

    pub(crate) fn remove_before(&mut self, needed: Arc<Node>) -> Removed {
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

    /// Everything that was ever queued and not merged away.
    pub(crate) fn total(&self) -> Sums {
        self.closed + self.changes.sums()
    }

    /// What was ever in the closed checkpoints before a node.
    pub(crate) fn before(&self, node: &Node) -> Sums {
        node.sealed().map_or(self.closed, |sealed| sealed.before)
    }
}

impl Drop for HeldCheckpoints {
    fn drop(&mut self) {
        self.memory.add(-(self.told_bytes as i64));
        self.memory.keep(-(self.kept.bytes() as i64));
    }
}
