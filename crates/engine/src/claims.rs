//! One vBucket at a time is claimed by the thread that replaces what is stored of it: its role stays as it is and nothing
//! of it is written until then, while other vBuckets change roles and are written.

use std::collections::BTreeSet;

use base::VbId;
use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::flusher::Flushing;
use crate::refusal::Refusal;
use crate::shard_guard::Holder;

/// Held while the role of a vBucket changes, and which vBuckets are claimed.
#[derive(Default)]
pub(crate) struct Claims {
    claimed: Mutex<BTreeSet<VbId>>,
    released: Condvar,
}

/// A claimed vBucket. Dropping it lets its role change and its changes be written.
pub(crate) struct Claim<'a> {
    flushing: &'a Flushing,
    vb: VbId,
}

impl Flushing {
    /// Holds the roles, as soon as no thread has this vBucket claimed.
    pub(crate) fn roles_of(&self, vb: VbId) -> MutexGuard<'_, BTreeSet<VbId>> {
        let mut claimed = self.claims.claimed.lock();
        while claimed.contains(&vb) {
            self.claims.released.wait(&mut claimed);
        }
        claimed
    }

    /// Claims a vBucket. What was taken of it to be written is on disk, or refused by it, when this returns.
    pub(crate) fn claim(&self, vb: VbId) -> Result<Claim<'_>, Refusal> {
        let mut claimed = self.roles_of(vb);
        self.core.vbuckets.find(vb, Holder::Roles)?.is_claimed = true;
        claimed.insert(vb);
        drop(claimed);
        // The flusher takes nothing more of it; this waits for what it has taken.
        drop(self.space.lock());
        Ok(Claim { flushing: self, vb })
    }

    /// Waits until no vBucket is claimed.
    pub(crate) fn wait_for_claims(&self) {
        let mut claimed = self.claims.claimed.lock();
        while !claimed.is_empty() {
            self.claims.released.wait(&mut claimed);
        }
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        let flushing = self.flushing;
        let mut claimed = flushing.claims.claimed.lock();
        claimed.remove(&self.vb);
        {
            let mut shard = flushing.core.vbuckets.hold(self.vb, Holder::Roles);
            shard.is_claimed = false;
            // What came meanwhile was passed over.
            flushing.core.queue_flush(&mut shard);
        }
        drop(claimed);
        flushing.claims.released.notify_all();
    }
}
