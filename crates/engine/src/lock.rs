//! Get-and-lock and unlock.

use base::{Cas, DocKey, Moment, NewVersion, VbId};
use vbucket::Basis;

use crate::documents::Documents;
use crate::read::Found;
use crate::refusal::Refusal;

/// How long a lock lasts when the client does not say, in seconds.
const DEFAULT_LOCK_S: u32 = 15;
/// The longest lock, in seconds.
const MAX_LOCK_S: u32 = 30;

impl Documents {
    /// Locks a document for `seconds` (0 and over 30 mean 15) and returns it under the lock's CAS.
    pub fn get_and_lock(
        &self,
        vb: VbId,
        key: DocKey<'_>,
        seconds: u32,
        now: Moment,
    ) -> Result<Found, Refusal> {
        let seconds = if seconds == 0 || seconds > MAX_LOCK_S { DEFAULT_LOCK_S } else { seconds };
        let until = Moment(now.0 + u64::from(seconds) * 1_000_000_000);
        let hash = self.core.hash(key);
        for _ in 0..crate::write::MAX_TRIES {
            let found = self.get_unprepared(vb, key, now).map_err(not_parked)?;
            if found.cas == Cas::LOCKED {
                return Err(Refusal::Locked);
            }
            let old = found.version;
            // A lock is a version of its own because it shows another CAS.
            let copy = NewVersion::like(&self.core.context.heap, old.meta(), key, &old);
            base::frequency::copy_frequency(old.frequency(), copy.frequency());
            let outcome = {
                let mut shard = self.core.active_with(vb, key.collection).map_err(not_parked)?;
                shard.vb.lock(hash, copy, Basis::of(Some(&old)), until, now)
            };
            match outcome.map_err(|refused| Refusal::from(refused.refusal)) {
                Ok((cas, garbage)) => {
                    drop(garbage);
                    return Ok(Found { version: old, cas });
                }
                Err(Refusal::Busy) => {}
                Err(refusal) => return Err(refusal),
            }
        }
        Err(Refusal::Busy)
    }

    /// Ends a lock. A sync write that is in progress has used it up, and is told instead.
    pub fn unlock(&self, vb: VbId, key: DocKey<'_>, cas: Cas, now: Moment) -> Result<(), Refusal> {
        let hash = self.core.hash(key);
        let mut shard = self.core.active_with(vb, key.collection).map_err(not_parked)?;
        if let Some(refusal) = shard.vb.sync_writes().sync_write_in_the_way(key) {
            return Err(refusal.into());
        }
        Ok(shard.vb.unlock(hash, key, cas, now)?)
    }
}

/// Locks belong to the node that is active: they do not wait for a vBucket that is about to be.
fn not_parked(refusal: Refusal) -> Refusal {
    if refusal == Refusal::Pending { Refusal::NotMyVbucket } else { refusal }
}
