//! A vBucket and what the engine keeps under the same lock.

use std::collections::BTreeMap;
use std::sync::Arc;

use base::env::Env;
use base::{CollectionId, VbId, VbState, VbUuid};
use vbucket::{BucketContext, CollectionOps, Origin, VBucket};

use crate::checkpoint_stats::CheckpointStats;
use crate::counters::OpCounts;
use crate::follower::Follower;
use crate::snapshot_table::WantedSnapshot;
use crate::sync_waiters::SyncWaiters;
use crate::wakes::Wakes;

/// A producer's acceptance to send a vBucket's changes. It is void once another stream of the vBucket is accepted,
/// or the vBucket gets another role or another content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplicaStream {
    /// Which vBucket.
    pub vb: VbId,
    /// Which of its streams; never used again.
    pub(crate) number: u64,
}

/// A vBucket and what the engine keeps under the same lock.
///
/// In memory the fields lie in this order: what each operation touches in front, so that few lines of the cache hold it, and
/// so that [`VBuckets::prefetch`](crate::vbuckets::VBuckets::prefetch) asks for it.
#[repr(C)]
pub(crate) struct Shard {
    /// False once it was deleted, until its state is set again.
    pub(crate) exists: bool,
    /// Whether it ever had a role, in this life of the node or before. The first role begins no new history: there is
    /// none that could have gone on elsewhere.
    pub(crate) had_role: bool,
    pub(crate) flush_queued: bool,
    /// What is stored of it is being replaced: nothing of it is to be written.
    pub(crate) is_claimed: bool,
    /// It is dead because another node takes it over, and it is not known whether that node has it yet.
    pub(crate) is_half_given: bool,
    /// Holds by the front end, around and around: which of them are timed.
    pub(crate) held: u8,
    /// How much is on disk, while its documents are not loaded yet; only what needs none of them can be done then.
    pub(crate) unloaded: Option<kvstore::Counts>,
    /// Who is woken when the lock is released.
    pub(crate) wakes: Wakes,
    /// Connections that stream its changes.
    pub(crate) followers: Vec<Arc<Follower>>,
    pub(crate) ops: OpCounts,
    pub(crate) vb: VBucket,
    /// Those of its followers that acknowledge prepares to the active node.
    pub(crate) prepare_followers: Vec<Arc<Follower>>,
    /// Who waits for prepares.
    pub(crate) sync_waiters: SyncWaiters,
    /// Counts up whenever another vBucket takes its place, so that what was read for the old one is recognised.
    pub(crate) incarnation: u64,
    /// The stream whose changes a replica takes; 0 for none.
    pub(crate) replica_stream: u64,
    /// What the flusher is to keep: nothing behind its last change is saved before.
    pub(crate) wanted_snapshot: Option<WantedSnapshot>,
    /// What clients did with collections of the vBuckets that were here before; of those collections that the bucket
    /// still has.
    pub(crate) collection_ops_before: BTreeMap<CollectionId, CollectionOps>,
}

const _: () = assert!(std::mem::offset_of!(Shard, vb) <= 256, "what each operation touches lies in front");

impl Shard {
    /// Whether figures tell of it: a vBucket that was deleted, or never had a role at this member, is none of the node's.
    pub(crate) fn is_told(&self) -> bool {
        self.exists && (self.had_role || self.vb.state() != VbState::Dead)
    }

    /// Puts another vBucket in the place of this one, which is to be dropped outside the lock.
    pub(crate) fn replace(&mut self, vb: VBucket) -> VBucket {
        self.unloaded = None;
        self.replica_stream = 0;
        self.is_half_given = false;
        self.incarnation += 1;
        let old = CheckpointStats::of(self.vb.checkpoints());
        self.ops.merged_before += old.merged;
        self.ops.discarded += old.unpersisted_items;
        let old = std::mem::replace(&mut self.vb, vb);
        for one in old.collections().open() {
            let ops = old.collections().ops(one.id);
            if ops != CollectionOps::default() {
                self.collection_ops_before.entry(one.id).or_default().add(&ops);
            }
        }
        old
    }

    /// Has a connection told of what happens from now on.
    pub(crate) fn follow(&mut self, follower: &Arc<Follower>) {
        if !self.followers.iter().any(|other| Arc::ptr_eq(other, follower)) {
            self.followers.push(Arc::clone(follower));
        }
    }

    /// Tells those who follow that something happened.
    pub(crate) fn tell_followers(&mut self) {
        for follower in &self.followers {
            if follower.note(self.vb.id()) {
                self.wakes.add(Arc::clone(follower) as _);
            }
        }
    }

    /// Whether a stream of a replica's changes is not void.
    pub(crate) fn follows(&self, stream: ReplicaStream) -> bool {
        self.vb.is_following() && self.replica_stream == stream.number
    }

    /// Seqnos that are not on disk yet; none will be if there is no disk.
    pub(crate) fn unflushed(&self) -> u64 {
        self.vb.high_seqno().0 - self.vb.persisted_seqno().0
    }
}

/// A fresh identity for a history: never 0, below 2^48.
pub(crate) fn new_uuid(env: &Env) -> VbUuid {
    VbUuid((env.random.next_u64() & 0xffff_ffff_ffff).max(1))
}

/// An empty, dead vBucket, in the place of one that is deleted or damaged.
pub(crate) fn dead(id: VbId, context: &BucketContext, env: &Env) -> VBucket {
    VBucket::new(id, context, Origin::empty(VbState::Dead, new_uuid(env)))
}
