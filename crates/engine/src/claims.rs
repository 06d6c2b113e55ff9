//! One vBucket at a time is claimed by the thread that replaces what is stored of it: its role stays as it is and nothing
//! of it is written until then, while other vBuckets change roles and are written.

use std::collections::BTreeSet;

use base::VbId;
use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::bucket::Bucket;
use crate::refusal::Refusal;
use crate::shard_guard::Holder;

/// Held while the role of a vBucket changes, and which vBuckets are claimed.
#[derive(Default)]
pub(crate) struct Roles {
    claimed: Mutex<BTreeSet<VbId>>,
    released: Condvar,
}

/// A claimed vBucket. Dropping it lets its role change and its changes be written.
pub(crate) struct Claim<'a> {
    bucket: &'a Bucket,
    vb: VbId,
}

impl Bucket {
    /// Holds the roles, as soon as no thread has this vBucket claimed.
    pub(crate) fn roles_of(&self, vb: VbId) -> MutexGuard<'_, BTreeSet<VbId>> {
        let mut claimed = self.roles.claimed.lock();
        while claimed.contains(&vb) {
            self.roles.released.wait(&mut claimed);
        }
        claimed
    }

    /// Claims a vBucket. What was taken of it to be written is on disk, or refused by it, when this returns.
    pub(crate) fn claim(&self, vb: VbId) -> Result<Claim<'_>, Refusal> {
        let mut claimed = self.roles_of(vb);
        self.vbuckets.find(vb, Holder::Roles)?.is_claimed = true;
        claimed.insert(vb);
        drop(claimed);
        // The flusher takes nothing more of it; this waits for what it has taken.
        drop(self.flushing.lock());
        Ok(Claim { bucket: self, vb })
    }

    /// Waits until no vBucket is claimed.
    pub(crate) fn wait_for_claims(&self) {
        let mut claimed = self.roles.claimed.lock();
        while !claimed.is_empty() {
            self.roles.released.wait(&mut claimed);
        }
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        let bucket = self.bucket;
        let mut claimed = bucket.roles.claimed.lock();
        claimed.remove(&self.vb);
        {
            let mut shard = bucket.vbuckets.hold(self.vb, Holder::Roles);
            shard.is_claimed = false;
            // What came meanwhile was passed over.
            bucket.queue_flush(&mut shard);
        }
        drop(claimed);
        bucket.roles.released.notify_all();
    }
}
