//! Buckets without a disk: reading a vBucket's past from memory.

use std::collections::VecDeque;
use std::ops::ControlFlow;

use base::{DocKey, Seqno, VbId, Version};
use kvstore::{Failure, Snapshot, Values, VbStateDoc};
use parking_lot::Mutex;
use vbucket::{ReadId, SliceLimits};

use crate::flusher::state_document;
use crate::refusal::Refusal;
use crate::shard::Shard;
use crate::shard_guard::{Holder, ShardGuard};
use crate::topology::TopologyValues;
use crate::vbuckets::VBuckets;

/// Items that are looked at under a vBucket's lock at once.
const SLICE_ITEMS: usize = 256;

/// The past of a vBucket of an ephemeral bucket at one moment, to be read once, forwards, at leisure: a [`Snapshot`] for
/// whoever reads in order of seqno. Changes go on meanwhile and do not show.
///
/// What is replaced while it is open stays in memory until it has come by, so nobody should keep one for no reason.
/// Dropping it locks the vBucket for a moment.
pub struct MemoryRange {
    vbuckets: VBuckets,
    vb: VbId,
    incarnation: u64,
    id: ReadId,
    state: VbStateDoc,
    high_seqno: Seqno,
    purge_seqno: Seqno,
    position: Mutex<Position>,
}

/// How far a range is read.
#[derive(Default)]
struct Position {
    /// Taken out of the list and not visited yet.
    ready: VecDeque<Version>,
    /// Whether the list has nothing more.
    is_read: bool,
}

/// What becomes of a client that asks for a stream.
pub enum Resumed {
    /// It may go on where it stands, with this.
    Range(Box<MemoryRange>),
    /// It must first forget everything after this seqno.
    RollBack(Seqno),
}

/// The items of a vBucket of an ephemeral bucket from `from` on.
pub(crate) fn open_range(
    vbuckets: &VBuckets,
    shard: &mut Shard,
    from: Seqno,
) -> Result<MemoryRange, Refusal> {
    let id = shard.vb.open_range(from).ok_or(Refusal::Busy)?;
    // Its reader is told the end of the snapshot that a replica is in the middle of.
    shard.vb.checkpoints_mut().promise();
    Ok(MemoryRange {
        vbuckets: vbuckets.clone(),
        vb: shard.vb.id(),
        incarnation: shard.incarnation,
        id,
        state: state_document(&shard.vb.present_state(), &mut TopologyValues::default()),
        high_seqno: shard.vb.high_seqno(),
        purge_seqno: shard.vb.purge_seqno(),
        position: Mutex::default(),
    })
}

impl MemoryRange {
    /// Whether everything was delivered.
    pub fn is_done(&self) -> bool {
        let position = self.position.lock();
        position.is_read && position.ready.is_empty()
    }

    /// The next items, up to `max_items` of them, and so many that they have about `max_bytes`; at least one if there is
    /// any. Empty once everything was delivered. Locks the vBucket for some items at a time.
    ///
    /// Refused once the vBucket was deleted or rolled back: then the stream has nothing to go on with.
    pub fn next(&mut self, max_items: usize, max_bytes: usize) -> Result<Vec<Version>, Refusal> {
        let mut position = self.position.lock();
        let mut items = Vec::new();
        let mut bytes = 0;
        while items.len() < max_items.max(1) && (items.is_empty() || bytes < max_bytes) {
            let limits = SliceLimits {
                items: SLICE_ITEMS.min(max_items.max(1) - items.len()),
                bytes: max_bytes.saturating_sub(bytes),
            };
            let Some(version) = self.first(&mut position, limits)? else { break };
            if version.meta().sync_write.is_hidden() {
                position.ready.pop_front();
                continue;
            }
            bytes += version.allocated_bytes();
            items.push(version);
            position.ready.pop_front();
        }
        Ok(items)
    }

    /// What comes next, without a step.
    fn first(&self, position: &mut Position, limits: SliceLimits) -> Result<Option<Version>, Refusal> {
        while position.ready.is_empty() && !position.is_read {
            let mut items = Vec::new();
            let more = self.shard()?.vb.read_range(self.id, limits, &mut items);
            position.is_read = !more.ok_or(Refusal::NotMyVbucket)?;
            position.ready.extend(items);
            if position.is_read {
                self.close();
            }
        }
        Ok(position.ready.front().cloned())
    }

    fn shard(&self) -> Result<ShardGuard<'_>, Refusal> {
        let shard = self.vbuckets.find(self.vb, Holder::FrontEnd)?;
        let is_same = shard.incarnation == self.incarnation;
        if is_same { Ok(shard) } else { Err(Refusal::NotMyVbucket) }
    }

    fn close(&self) {
        if let Ok(mut shard) = self.shard() {
            shard.vb.close_range(self.id);
        }
    }
}

impl Snapshot for MemoryRange {
    fn state(&self) -> Result<VbStateDoc, Failure> {
        Ok(self.state.clone())
    }

    fn high_seqno(&self) -> Seqno {
        self.high_seqno
    }

    fn purge_seqno(&self) -> Seqno {
        self.purge_seqno
    }

    fn get(&self, _: DocKey<'_>) -> Result<Option<Version>, Failure> {
        Err(Failure::SeqnosOnly { vb: self.vb })
    }

    fn scan(
        &self,
        from: Seqno,
        values: Values,
        visit: &mut dyn FnMut(Version) -> ControlFlow<()>,
    ) -> Result<(), Failure> {
        self.scan_all(from, values, &mut |version| {
            let is_hidden = version.meta().sync_write.is_hidden();
            if is_hidden { ControlFlow::Continue(()) } else { visit(version) }
        })
    }

    /// Goes on where the last scan ended: what it visited is not kept.
    fn scan_all(
        &self,
        from: Seqno,
        _: Values,
        visit: &mut dyn FnMut(Version) -> ControlFlow<()>,
    ) -> Result<(), Failure> {
        let mut position = self.position.lock();
        let limits = SliceLimits { items: SLICE_ITEMS, bytes: usize::MAX };
        loop {
            let next = self.first(&mut position, limits).map_err(|_| Failure::NoVbucket { vb: self.vb })?;
            let Some(version) = next else { return Ok(()) };
            // One at which the visitor broke off stays: it may ask for it again.
            if version.meta().by_seqno >= from && visit(version).is_break() {
                return Ok(());
            }
            position.ready.pop_front();
        }
    }

    fn scan_keys(
        &self,
        _: &[u8],
        _: Values,
        _: &mut dyn FnMut(Version) -> ControlFlow<()>,
    ) -> Result<(), Failure> {
        Err(Failure::SeqnosOnly { vb: self.vb })
    }
}

impl Drop for MemoryRange {
    fn drop(&mut self) {
        if !self.position.get_mut().is_read {
            self.close();
        }
    }
}
