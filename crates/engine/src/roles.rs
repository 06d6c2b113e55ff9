//! Roles of vBuckets: who gives them, and what happens to a vBucket then. Rolling back and emptying are beside it.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};

use base::planted::{self, Bug};
use base::{Seqno, VbId, VbState};
use vbucket::{Removed, Topology};

use crate::bucket_core::Core;
use crate::checkpoint_recovery::Checkpoints;
use crate::collections::BucketCollections;
use crate::completion::Completion;
use crate::durability::Durability;
use crate::failure::Failure;
use crate::flusher::Flushing;
use crate::loader::Loading;
use crate::persistence::PersistenceWaiters;
use crate::refusal::Refusal;
use crate::shard::{ReplicaStream, Shard, dead};
use crate::shard_guard::Holder;
use crate::sync_waiters::GivenUp;

/// Roles of vBuckets, and what goes with them: deletion, rollback, emptying.
pub struct Roles {
    pub(crate) core: Arc<Core>,
    pub(crate) checkpoints: Arc<Checkpoints>,
    pub(crate) collections: Arc<BucketCollections>,
    pub(crate) durability: Arc<Durability>,
    pub(crate) flushing: Arc<Flushing>,
    pub(crate) loading: Arc<Loading>,
    /// Who waits until a pending vBucket has another role; the seqno means nothing here.
    pub(crate) parked: PersistenceWaiters,
    /// Whether clients are to try again later, since all documents are being removed.
    pub(crate) is_emptying: AtomicBool,
    /// Bytes that the keys of files are expected to take that are being put in place.
    pub(crate) filling_bytes: AtomicU64,
}

impl Roles {
    pub(crate) fn new(
        core: &Arc<Core>,
        checkpoints: &Arc<Checkpoints>,
        collections: &Arc<BucketCollections>,
        durability: &Arc<Durability>,
        flushing: &Arc<Flushing>,
        loading: &Arc<Loading>,
    ) -> Roles {
        Roles {
            core: Arc::clone(core),
            checkpoints: Arc::clone(checkpoints),
            collections: Arc::clone(collections),
            durability: Arc::clone(durability),
            flushing: Arc::clone(flushing),
            loading: Arc::clone(loading),
            parked: PersistenceWaiters::default(),
            is_emptying: AtomicBool::new(false),
            filling_bytes: AtomicU64::new(0),
        }
    }

    /// Sets a vBucket's role and topology; the vBucket is made if it was deleted.
    pub fn set_vbucket_state(
        &self,
        vb: VbId,
        state: VbState,
        topology: Option<Topology>,
    ) -> Result<(), Refusal> {
        let _roles = self.flushing.roles_of(vb);
        self.set_role_alone(vb, state, topology)
    }

    /// Gives an active vBucket another topology; false if it is not active, or not any more.
    pub fn lead_on(&self, vb: VbId, topology: Topology) -> Result<bool, Refusal> {
        // Nobody hands it over between the look and the change.
        let _roles = self.flushing.roles_of(vb);
        if self.core.state_of(vb) != Some(VbState::Active) {
            return Ok(false);
        }
        self.set_role_alone(vb, VbState::Active, Some(topology)).map(|()| true)
    }

    /// Gives a vBucket another role if it has the one `from`, or is not there; false if it has another one by now.
    pub fn change_role(&self, vb: VbId, from: Option<VbState>, to: VbState) -> Result<bool, Refusal> {
        // No other role is given between the look and the change.
        let _roles = self.flushing.roles_of(vb);
        if self.core.state_of(vb) != from {
            return Ok(false);
        }
        if from == Some(to) { Ok(true) } else { self.set_role_alone(vb, to, None).map(|()| true) }
    }

    /// Gives the vBucket of a stream a role that its producer hands over; false if the stream is void by now.
    pub fn hand_over(&self, stream: ReplicaStream, state: VbState) -> Result<bool, Refusal> {
        let vb = stream.vb;
        // No other role is given between the look and the change.
        let _roles = self.flushing.roles_of(vb);
        let has_role = match self.core.vbuckets.loaded(vb, Holder::Roles) {
            Ok(shard) if shard.follows(stream) => shard.vb.state() == state,
            _ => return Ok(false),
        };
        if has_role { Ok(true) } else { self.set_role_alone(vb, state, None).map(|()| true) }
    }

    /// For whoever holds the roles.
    fn set_role_alone(&self, vb: VbId, state: VbState, topology: Option<Topology>) -> Result<(), Refusal> {
        if vb.0 >= self.core.vbuckets() {
            return Err(Refusal::NotMyVbucket);
        }
        // In a cluster another node may have what cannot be read here: that does not begin with nothing.
        let may_begin = state == VbState::Dead || !self.core.config.needs_topology;
        if !may_begin && self.core.unreadable.is_dead(vb) {
            return Err(Refusal::Unreadable);
        }
        let mut shard = self.core.vbuckets.hold(vb, Holder::Roles);
        let removed = self.set_role(&mut shard, state, topology);
        let left = self.collections.take_over_manifest(
            &mut shard,
            &self.collections.manifest(),
            None,
            self.core.now(),
        );
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
            self.core.unreadable.begins(shard.vb.id());
        }
        if !existed || !had_role {
            shard.vb.begin_in(state, topology);
        } else {
            if shard.vb.state() != state {
                // What streams find in memory belongs to one stretch of one role.
                shard.vb.checkpoints_mut().close();
                removed = shard.vb.checkpoints_mut().remove_closed();
            }
            shard.vb.set_state(state, topology, || self.core.new_uuid());
        }
        if !shard.vb.is_following() {
            shard.replica_stream = 0;
        }
        shard.is_half_given = false;
        self.core.queue_flush(shard);
        removed
    }

    /// Makes an active vBucket dead whose changes another node has, all but the last few: nothing more is written here.
    /// False if it is not active, or another vBucket than when the stream began. One that is dead because this was said
    /// before, and the other node does not have all of it yet, stays so.
    pub fn give_away(&self, vb: VbId, incarnation: u64) -> bool {
        let _roles = self.flushing.roles_of(vb);
        let Ok(mut shard) = self.core.vbuckets.find(vb, Holder::FrontEnd) else { return false };
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
            shard.vb.set_state(VbState::Dead, None, || self.core.new_uuid());
        }
        shard.is_half_given = true;
        self.core.queue_flush(&mut shard);
        let given_up = shard.sync_waiters.give_up();
        drop(shard);
        drop(given_up);
        true
    }

    /// The other node said that a vBucket that was given away is its own now.
    pub fn given_away(&self, vb: VbId, incarnation: u64) {
        if let Ok(mut shard) = self.core.vbuckets.find(vb, Holder::FrontEnd)
            && shard.incarnation == incarnation
        {
            shard.is_half_given = false;
        }
    }

    /// Waits until a pending vBucket has another role; nothing if it has one, or too many wait.
    pub fn role_change(&self, vb: VbId) -> Option<Completion<()>> {
        let shard = self.core.vbuckets.find(vb, Holder::FrontEnd).ok()?;
        if shard.vb.state() == VbState::Pending { self.parked.wait(vb, Seqno(0)) } else { None }
    }

    /// Closes the open checkpoint of a vBucket, and lets go of those that nobody needs.
    pub fn create_checkpoint(&self, vb: VbId) -> Result<(), Refusal> {
        let removed = {
            let mut shard = self.core.vbuckets.find(vb, Holder::FrontEnd)?;
            let checkpoints = shard.vb.checkpoints_mut();
            checkpoints.close();
            checkpoints.remove_closed()
        };
        self.checkpoints.dispose(removed);
        Ok(())
    }

    /// Deletes a dead vBucket, its documents and its file.
    pub fn delete_vbucket(&self, vb: VbId) -> Result<Result<(), Failure>, Refusal> {
        self.remove_vbucket(vb, || self.core.store.delete_vbucket(vb))
    }

    /// The same for a vBucket whose files cannot be believed; they are moved to the folder `to`, on the same disk.
    pub fn set_aside(&self, vb: VbId, to: &Path) -> Result<Result<(), Failure>, Refusal> {
        if !self.core.is_damaged(vb) {
            return Err(Refusal::Invalid);
        }
        self.remove_vbucket(vb, || self.core.store.set_aside(vb, to))
    }

    fn remove_vbucket(
        &self,
        vb: VbId,
        remove: impl FnOnce() -> Result<(), kvstore::Failure>,
    ) -> Result<Result<(), Failure>, Refusal> {
        let _claim = self.flushing.claim(vb)?;
        if self.core.vbuckets.find(vb, Holder::FrontEnd)?.vb.state() != VbState::Dead {
            return Err(Refusal::Invalid);
        }
        // It is dead and stays so: nobody writes to it, and what is on disk goes first.
        let removed = remove();
        if removed.is_err() && !self.core.is_not_stored(vb) {
            return Ok(removed.map_err(Failure::from));
        }
        let old = {
            let mut shard = self.core.vbuckets.find(vb, Holder::Roles)?;
            let old = shard.replace(dead(vb, &self.core.context, &self.core.env));
            shard.exists = false;
            // What is written next says that it is dead, so that a restart does not make it anew.
            shard.vb.set_state(VbState::Dead, None, || self.core.new_uuid());
            self.core.queue_flush(&mut shard);
            old
        };
        self.core.unreadable.forget(vb);
        self.durability.waiters.forget(vb);
        self.parked.forget(vb);
        self.loading.warmup.forget(vb);
        drop(old);
        Ok(removed.map_err(Failure::from))
    }
}
