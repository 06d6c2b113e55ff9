//! Buckets without a disk: reading a vBucket's past from memory.

use std::ops::ControlFlow;
use std::sync::Arc;

use base::{ItemKind, Moment, Seqno, VbId, VbState, Version};
use parking_lot::MutexGuard;
use vbucket::{Basis, Change, Existence, FailoverEntry, ReadId, Resume, ResumePoint, SliceLimits};

use crate::bucket::{Bucket, Shard};
use crate::config::BucketKind;
use crate::keeper::ChoreId;
use crate::refusal::Refusal;

/// Items that are looked at under a vBucket's lock at once.
const SLICE_ITEMS: usize = 256;

/// A vBucket of an ephemeral bucket at one moment, to be read at leisure: what a backfill reads in the place of
/// [`kvstore::Snapshot`]. Changes go on meanwhile and do not show.
///
/// What is replaced while it is open stays in memory until it has come by, so nobody should keep one for no reason.
/// Dropping it locks the vBucket.
pub struct MemoryRange {
    bucket: Arc<Bucket>,
    vb: VbId,
    incarnation: u64,
    id: ReadId,
    state: VbState,
    failover: Vec<FailoverEntry>,
    high_seqno: Seqno,
    purge_seqno: Seqno,
    is_done: bool,
}

/// What becomes of a client that asks for a stream.
pub enum Resumed {
    /// It may go on where it stands, with this.
    Range(MemoryRange),
    /// It must first forget everything after this seqno.
    RollBack(Seqno),
}

impl Bucket {
    /// Whether documents are in memory only.
    pub fn is_ephemeral(&self) -> bool {
        self.config.kind == BucketKind::Ephemeral
    }

    /// A vBucket's items with a seqno of `from` or more, as they are now. Refused if the bucket has a disk to read them
    /// from, and as busy if too many read already.
    pub fn memory_range(self: &Arc<Self>, vb: VbId, from: Seqno) -> Result<MemoryRange, Refusal> {
        let shard = self.shard(vb)?;
        self.open_range(shard, from)
    }

    /// The items that a client lacks, if it may go on where it stands. What it is judged by and what it gets are of the
    /// same moment: no tombstone is purged in between.
    pub fn resume_from_memory(self: &Arc<Self>, vb: VbId, client: &ResumePoint) -> Result<Resumed, Refusal> {
        let shard = self.shard(vb)?;
        let (high, purge) = (shard.vb.high_seqno(), shard.vb.purge_seqno());
        match shard.vb.failover().rollback_point(client, high, purge) {
            Resume::Accept => Ok(Resumed::Range(self.open_range(shard, client.start.next())?)),
            Resume::RollBack(to) => Ok(Resumed::RollBack(to)),
        }
    }

    fn open_range(
        self: &Arc<Self>,
        mut shard: MutexGuard<'_, Shard>,
        from: Seqno,
    ) -> Result<MemoryRange, Refusal> {
        if !self.is_ephemeral() {
            return Err(Refusal::Invalid);
        }
        let id = shard.vb.open_range(from).ok_or(Refusal::Busy)?;
        Ok(MemoryRange {
            bucket: Arc::clone(self),
            vb: shard.vb.id(),
            incarnation: shard.incarnation,
            id,
            state: shard.vb.state(),
            failover: shard.vb.failover().to_entries(),
            high_seqno: shard.vb.high_seqno(),
            purge_seqno: shard.vb.purge_seqno(),
            is_done: false,
        })
    }

    /// Deletes exactly this version, which nobody has used lately, to make room: the policy *delete* of ephemeral
    /// buckets. False if it was changed meanwhile, is locked, or has xattrs that cannot be read.
    pub fn delete_cold(&self, vb: VbId, version: &Version, now: Moment) -> bool {
        let kind = ItemKind::Deletion;
        let Ok(new) = crate::write::tombstone_of(&self.context.heap, version, kind, now) else {
            return false;
        };
        let change = Change {
            new,
            existence: Existence::Live,
            cas: base::Cas::ANY,
            basis: Basis::of(Some(version)),
            preserve_expiry: false,
        };
        self.apply(vb, self.hash(version.key()), change, now, |_| {}, |_| {}).is_ok()
    }
}

impl MemoryRange {
    /// The vBucket's role at that moment.
    pub fn state(&self) -> VbState {
        self.state
    }

    /// The vBucket's histories at that moment, newest first.
    pub fn failover(&self) -> &[FailoverEntry] {
        &self.failover
    }

    /// The last change: where the snapshot ends, whether or not that item is in it.
    pub fn high_seqno(&self) -> Seqno {
        self.high_seqno
    }

    /// Seqno up to which tombstones were purged.
    pub fn purge_seqno(&self) -> Seqno {
        self.purge_seqno
    }

    /// Whether everything was delivered.
    pub fn is_done(&self) -> bool {
        self.is_done
    }

    /// The next items, up to `max_items` of them, and so many that they have about `max_bytes`; at least one if there is
    /// any. Empty once everything was delivered. Locks the vBucket for some items at a time.
    ///
    /// Refused once the vBucket was deleted or rolled back: then the stream has nothing to go on with.
    pub fn next(&mut self, max_items: usize, max_bytes: usize) -> Result<Vec<Version>, Refusal> {
        let mut items = Vec::new();
        let mut bytes = 0;
        let mut seen = 0;
        while !self.is_done && items.len() < max_items.max(1) && (items.is_empty() || bytes < max_bytes) {
            let limits = SliceLimits {
                items: SLICE_ITEMS.min(max_items.max(1) - items.len()),
                bytes: max_bytes.saturating_sub(bytes),
            };
            let mut shard = self.shard()?;
            let more = shard.vb.read_range(self.id, limits, &mut items);
            drop(shard);
            self.is_done = !more.ok_or(Refusal::NotMyVbucket)?;
            bytes += items[seen..].iter().map(Version::allocated_bytes).sum::<usize>();
            seen = items.len();
        }
        if self.is_done {
            self.close();
        }
        Ok(items)
    }

    /// Visits what is left, until `visit` breaks.
    pub fn scan(&mut self, visit: &mut dyn FnMut(Version) -> ControlFlow<()>) -> Result<(), Refusal> {
        while !self.is_done {
            for version in self.next(SLICE_ITEMS, usize::MAX)? {
                if visit(version).is_break() {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    fn shard(&self) -> Result<MutexGuard<'_, Shard>, Refusal> {
        let shard = self.bucket.shard(self.vb)?;
        if shard.incarnation == self.incarnation { Ok(shard) } else { Err(Refusal::NotMyVbucket) }
    }

    fn close(&self) {
        if let Ok(mut shard) = self.shard() {
            shard.vb.close_range(self.id);
            let needs_sweep = shard.vb.seq_list().is_some_and(vbucket::SeqList::needs_sweep);
            drop(shard);
            if needs_sweep {
                self.bucket.keeper.wake(ChoreId::TombstonePurger);
            }
        }
    }
}

impl Drop for MemoryRange {
    fn drop(&mut self) {
        if !self.is_done {
            self.close();
        }
    }
}
