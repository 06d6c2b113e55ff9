//! Who acknowledges prepares of a replica: told when they have become safer because the disk has them.

use std::sync::Arc;

use base::VbId;

use crate::durability::Durability;
use crate::follower::Follower;
use crate::shard::Shard;
use crate::shard_guard::Holder;

impl Durability {
    /// Has `follower` told whenever [`Durability::replica_prepared`] of a vBucket rises by what is on disk.
    pub fn follow_prepares(&self, vb: VbId, follower: &Arc<Follower>) {
        let Some(mut shard) = self.core.vbuckets.any(vb, Holder::FrontEnd) else { return };
        let followers = &mut shard.prepare_followers;
        if !followers.iter().any(|other| Arc::ptr_eq(other, follower)) {
            followers.push(Arc::clone(follower));
        }
    }

    /// `follower` is told of nothing more that happens to prepares of this vBucket.
    pub fn unfollow_prepares(&self, vb: VbId, follower: &Arc<Follower>) {
        if let Some(mut shard) = self.core.vbuckets.any(vb, Holder::FrontEnd) {
            shard.prepare_followers.retain(|other| !Arc::ptr_eq(other, follower));
        }
    }
}

impl Shard {
    /// Tells those who acknowledge prepares that there are safer ones.
    pub(crate) fn tell_prepare_followers(&mut self) {
        for follower in &self.prepare_followers {
            if follower.note(self.vb.id()) {
                self.wakes.add(Arc::clone(follower) as _);
            }
        }
    }
}
