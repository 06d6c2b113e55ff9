//! One bucket: its vBuckets in memory, its store on disk, and what joins them.

use std::collections::BTreeSet;
use std::ops::Deref;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use base::planted::{self, Bug};
use base::{Seqno, VbId, VbState};
use parking_lot::Mutex;
use vbucket::{Removed, Topology};

use crate::backfill::BackfillQueue;
use crate::bucket_core::Core;
use crate::checkpoint_recovery::Checkpoints;
use crate::claims::Roles;
use crate::collections::BucketCollections;
use crate::compaction_queue::CompactionQueue;
use crate::completion::Completion;
use crate::compression::CompressionCounters;
use crate::defragmenter::DefragmenterCounters;
use crate::durability::Durability;
use crate::evict::Eviction;
use crate::expiry::ExpiryCounters;
use crate::failure::Failure;
use crate::fetch_queue::FetchQueue;
use crate::filer::Filer;
use crate::flusher::FlushSpace;
use crate::persistence::PersistenceWaiters;
use crate::range_scan::RangeScanTable;
use crate::refusal::Refusal;
use crate::replica::Replicas;
use crate::shard::{Shard, dead};
use crate::shard_guard::Holder;
use crate::sync_waiters::GivenUp;
use crate::tombstone_purger::PurgeCounters;
use crate::traffic::Traffic;
use crate::warmup::Warmup;

/// One bucket. All methods may be called from any thread.
pub struct Bucket {
    /// What every part may use; who has the bucket may, too.
    pub(crate) core: Arc<Core>,
    pub(crate) checkpoints: Arc<Checkpoints>,
    pub(crate) durability: Arc<Durability>,
    pub(crate) eviction: Arc<Eviction>,
    pub(crate) collections: Arc<BucketCollections>,
    pub(crate) replicas: Arc<Replicas>,
    pub(crate) expiry: ExpiryCounters,
    pub(crate) compression: CompressionCounters,
    pub(crate) defragmented: DefragmenterCounters,
    pub(crate) purged: PurgeCounters,
    /// Who waits until a pending vBucket has another role; the seqno means nothing here.
    pub(crate) parked: PersistenceWaiters,
    /// Whether clients are to try again later, since all documents are being removed.
    pub(crate) is_emptying: AtomicBool,
    /// Whether clients may use documents.
    pub traffic: Traffic,
    pub(crate) filer: Filer,
    pub(crate) compacting: CompactionQueue,
    pub(crate) fetching: Arc<FetchQueue>,
    pub(crate) backfills: Arc<BackfillQueue>,
    pub(crate) range_scans: RangeScanTable,
    pub(crate) warmup: Warmup,
    /// Held while the role of a vBucket changes. Taken before `flushing`.
    pub(crate) roles: Roles,
    /// Held while a batch is written. Taken before any vBucket's lock.
    pub(crate) flushing: Mutex<FlushSpace>,
    /// vBuckets that were found after a crash: their histories begin anew, and that is not on disk before they are saved.
    pub(crate) crashed: Mutex<BTreeSet<VbId>>,
}

impl Deref for Bucket {
    type Target = Core;

    #[inline]
    fn deref(&self) -> &Core {
        &self.core
    }
}

impl Bucket {
    /// The checkpoints' share of the memory.
    pub fn checkpoints(&self) -> &Checkpoints {
        &self.checkpoints
    }

    /// Sync writes, and waiting for the disk.
    pub fn durability(&self) -> &Durability {
        &self.durability
    }

    /// What leaves memory when it runs short.
    pub fn eviction(&self) -> &Eviction {
        &self.eviction
    }

    /// The manifest and what vBuckets make of it.
    pub fn collections(&self) -> &BucketCollections {
        &self.collections
    }

    /// What replicas are sent.
    pub fn replicas(&self) -> &Replicas {
        &self.replicas
    }

    /// Sets a vBucket's role and topology; the vBucket is made if it was deleted.
    pub fn set_vbucket_state(
        &self,
        vb: VbId,
        state: VbState,
        topology: Option<Topology>,
    ) -> Result<(), Refusal> {
        let _roles = self.roles_of(vb);
        self.set_role_alone(vb, state, topology)
    }

    /// Gives an active vBucket another topology; false if it is not active, or not any more.
    pub fn lead_on(&self, vb: VbId, topology: Topology) -> Result<bool, Refusal> {
        // Nobody hands it over between the look and the change.
        let _roles = self.roles_of(vb);
        if self.state_of(vb) != Some(VbState::Active) {
            return Ok(false);
        }
        self.set_role_alone(vb, VbState::Active, Some(topology)).map(|()| true)
    }

    /// For whoever holds the roles.
    fn set_role_alone(&self, vb: VbId, state: VbState, topology: Option<Topology>) -> Result<(), Refusal> {
        if vb.0 >= self.vbuckets() {
            return Err(Refusal::NotMyVbucket);
        }
        // In a cluster another node may have what cannot be read here: that does not begin with nothing.
        let may_begin = state == VbState::Dead || !self.config.needs_topology;
        if !may_begin && self.unreadable.is_dead(vb) {
            return Err(Refusal::Unreadable);
        }
        let mut shard = self.vbuckets.hold(vb, Holder::Roles);
        let removed = self.set_role(&mut shard, state, topology);
        let left =
            self.collections.take_over_manifest(&mut shard, &self.collections.manifest(), None, self.now());
        let mut given_up = GivenUp::default();
        if state != VbState::Active {
            given_up = shard.sync_waiters.give_up();
        }
        drop(shard);
        drop((left, given_up));
        self.checkpoints.dispose(removed);
        self.durability.settle(vb);
        self.parked.persisted(vb, Seqno(u64::MAX));
        Ok(())
    }

    fn set_role(&self, shard: &mut Shard, state: VbState, topology: Option<Topology>) -> Removed {
        let mut removed = Removed::default();
        let (existed, had_role) = (shard.exists, shard.had_role);
        shard.exists = true;
        shard.had_role |= state != VbState::Dead;
        if state != VbState::Dead {
            self.unreadable.begins(shard.vb.id());
        }
        if !existed || !had_role {
            shard.vb.begin_in(state, topology);
        } else {
            if shard.vb.state() != state {
                // What streams find in memory belongs to one stretch of one role.
                shard.vb.checkpoints_mut().close();
                removed = shard.vb.checkpoints_mut().remove_closed();
            }
            shard.vb.set_state(state, topology, || self.new_uuid());
        }
        if !shard.vb.is_following() {
            shard.replica_stream = 0;
        }
        shard.is_half_given = false;
        self.queue_flush(shard);
        removed
    }

    /// Makes an active vBucket dead whose changes another node has, all but the last few: nothing more is written here.
    /// False if it is not active, or another vBucket than when the stream began. One that is dead because this was said
    /// before, and the other node does not have all of it yet, stays so.
    pub fn give_away(&self, vb: VbId, incarnation: u64) -> bool {
        let _roles = self.roles_of(vb);
        let Ok(mut shard) = self.vbuckets.find(vb, Holder::FrontEnd) else { return false };
        if shard.incarnation != incarnation {
            return false;
        }
        if shard.is_half_given {
            return true;
        }
        if shard.vb.state() != VbState::Active {
            return false;
        }
        if !planted::is(Bug::TakeoverLeavesActive) {
            shard.vb.set_state(VbState::Dead, None, || self.new_uuid());
        }
        shard.is_half_given = true;
        self.queue_flush(&mut shard);
        let given_up = shard.sync_waiters.give_up();
        drop(shard);
        drop(given_up);
        true
    }

    /// The other node said that a vBucket that was given away is its own now.
    pub fn given_away(&self, vb: VbId, incarnation: u64) {
        if let Ok(mut shard) = self.vbuckets.find(vb, Holder::FrontEnd)
            && shard.incarnation == incarnation
        {
            shard.is_half_given = false;
        }
    }

    /// Waits until a pending vBucket has another role; nothing if it has one, or too many wait.
    pub fn role_change(&self, vb: VbId) -> Option<Completion<()>> {
        let shard = self.vbuckets.find(vb, Holder::FrontEnd).ok()?;
        if shard.vb.state() == VbState::Pending { self.parked.wait(vb, Seqno(0)) } else { None }
    }

    /// Closes the open checkpoint of a vBucket, and lets go of those that nobody needs.
    pub fn create_checkpoint(&self, vb: VbId) -> Result<(), Refusal> {
        let removed = {
            let mut shard = self.vbuckets.find(vb, Holder::FrontEnd)?;
            let checkpoints = shard.vb.checkpoints_mut();
            checkpoints.close();
            checkpoints.remove_closed()
        };
        self.checkpoints.dispose(removed);
        Ok(())
    }

    /// Deletes a dead vBucket, its documents and its file.
    pub fn delete_vbucket(&self, vb: VbId) -> Result<Result<(), Failure>, Refusal> {
        self.remove_vbucket(vb, || self.store.delete_vbucket(vb))
    }

    /// The same for a vBucket whose files cannot be believed; they are moved to the folder `to`, on the same disk.
    pub fn set_aside(&self, vb: VbId, to: &Path) -> Result<Result<(), Failure>, Refusal> {
        if !self.is_damaged(vb) {
            return Err(Refusal::Invalid);
        }
        self.remove_vbucket(vb, || self.store.set_aside(vb, to))
    }

    fn remove_vbucket(
        &self,
        vb: VbId,
        remove: impl FnOnce() -> Result<(), kvstore::Failure>,
    ) -> Result<Result<(), Failure>, Refusal> {
        let _claim = self.claim(vb)?;
        if self.vbuckets.find(vb, Holder::FrontEnd)?.vb.state() != VbState::Dead {
            return Err(Refusal::Invalid);
        }
        // It is dead and stays so: nobody writes to it, and what is on disk goes first.
        let removed = remove();
        if removed.is_err() && !self.is_not_stored(vb) {
            return Ok(removed.map_err(Failure::from));
        }
        let old = {
            let mut shard = self.vbuckets.find(vb, Holder::Roles)?;
            let old = shard.replace(dead(vb, &self.context, &self.env));
            shard.exists = false;
            // What is written next says that it is dead, so that a restart does not make it anew.
            shard.vb.set_state(VbState::Dead, None, || self.new_uuid());
            self.queue_flush(&mut shard);
            old
        };
        self.unreadable.forget(vb);
        self.durability.waiters.forget(vb);
        self.parked.forget(vb);
        self.warmup.forget(vb);
        drop(old);
        Ok(removed.map_err(Failure::from))
    }
}
