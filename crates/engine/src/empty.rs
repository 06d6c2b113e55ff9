//! Removing all documents of a bucket at once.

use std::sync::atomic::Ordering;

use base::{VbId, VbState};
use vbucket::{Origin, VBucket};

use crate::failure::Failure;
use crate::roles::Roles;
use crate::shard::new_uuid;
use crate::shard_guard::Holder;

impl Roles {
    /// Whether clients are to try again later: other nodes remove the bucket's documents, too.
    #[inline]
    pub fn is_emptying(&self) -> bool {
        self.is_emptying.load(Ordering::Relaxed)
    }

    /// Has clients try again later, or lets them in again.
    pub fn set_emptying(&self, is_emptying: bool) {
        self.is_emptying.store(is_emptying, Ordering::Relaxed);
    }

    /// Removes all documents, in memory and on disk. Each vBucket keeps its role and begins a new history at seqno 0, so
    /// that whoever follows it starts anew.
    ///
    /// Blocks while the disk works. An active vBucket lets operations wait while its file goes; one that cannot be
    /// emptied stays as it was, keeps no other one from being emptied, and is told. If its file went and the disk failed
    /// behind that, it is empty all the same, and told.
    pub fn remove_all_documents(&self) -> Result<(), Failure> {
        self.remove_documents_while(|| true)
    }

    /// The same, as long as `goes_on` says so, which is asked before each vBucket. What was not begun then stays as it
    /// was: that is no transaction.
    ///
    /// # Errors
    ///
    /// [`Failure::GivenUp`] if it was not done for all of them, beside what failed.
    pub fn remove_documents_while(&self, mut goes_on: impl FnMut() -> bool) -> Result<(), Failure> {
        let vbuckets = self.core.vbuckets();
        let (mut emptied, mut outcomes) = (0, Vec::new());
        for vb in 0..vbuckets {
            if !goes_on() {
                let bucket = self.core.name().to_owned();
                outcomes.push(Err(Failure::GivenUp { bucket, emptied, vbuckets }));
                break;
            }
            let removed = self.remove_documents(VbId(vb));
            emptied += u16::from(removed.is_ok());
            outcomes.push(removed);
        }
        Failure::all(outcomes)
    }

    fn remove_documents(&self, vb: VbId) -> Result<(), Failure> {
        // Nothing of it may be on its way to disk, and its role stays as it is.
        let Ok(_claim) = self.flushing.claim(vb) else { return Ok(()) };
        let (state, topology) = {
            let mut shard = self.core.vbuckets.hold(vb, Holder::Roles);
            if !shard.exists {
                return Ok(());
            }
            let (state, topology) = (shard.vb.state(), shard.vb.topology().cloned());
            if state == VbState::Active {
                shard.vb.begin_in(VbState::Pending, topology.clone());
            }
            (state, topology)
        };
        let removed = self.core.store.delete_vbucket(vb);
        let is_gone = removed.is_ok() || self.core.is_not_stored(vb);
        let old = {
            let mut shard = self.core.vbuckets.hold(vb, Holder::Roles);
            let old = is_gone.then(|| {
                let given_up = shard.sync_waiters.give_up();
                let new =
                    VBucket::new(vb, &self.core.context, Origin::empty(state, new_uuid(&self.core.env)));
                (shard.replace(new), given_up)
            });
            shard.vb.begin_in(state, topology);
            let events = match state {
                // Collections stay, without their documents.
                VbState::Active => self.collections.take_over_manifest(
                    &mut shard,
                    &self.collections.manifest(),
                    None,
                    self.core.now(),
                ),
                _ => None,
            };
            self.core.queue_flush(&mut shard);
            (old, events)
        };
        if old.0.is_some() {
            self.core.unreadable.forget(vb);
            self.durability.waiters.forget(vb);
            self.loading.warmup.forget(vb);
        }
        self.parked.persisted(vb, base::Seqno(u64::MAX));
        drop(old);
        Ok(removed?)
    }
}
