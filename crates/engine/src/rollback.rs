//! Going back: a vBucket forgets what came after a seqno, on disk and in memory.

use base::planted::{self, Bug};
use base::{Seqno, VbId, VbState};
use kvstore::{RolledBack, StoredVb};
use vbucket::VBucket;

use crate::failure::Failure;
use crate::failure_log::Failed;
use crate::origin::origin;
use crate::refusal::Refusal;
use crate::roles::Roles;
use crate::shard::dead;
use crate::shard_guard::Holder;

impl Roles {
    /// Goes back to the newest commit with a seqno of `to` or less that is not inside a snapshot which goes beyond that,
    /// and says which seqno that is; to nothing if there is no such commit, or no disk. For whoever follows another node: active vBuckets do not go back.
    ///
    /// Blocks while the disk works; meanwhile operations on documents wait as while they are loaded.
    pub fn rollback(&self, vb: VbId, to: Seqno) -> Result<Result<Seqno, Failure>, Refusal> {
        // Nothing of it may be on its way to disk, and its role stays as it is.
        let _claim = self.flushing.claim(vb)?;
        let others = (0..self.core.vbuckets()).map(VbId).filter(|other| *other != vb);
        let others = others.take_while(|_| planted::is(Bug::RollbackHoldsAll));
        let _others: Vec<_> = others.map(|other| self.flushing.claim(other)).collect();
        if self.core.vbuckets.find(vb, Holder::FrontEnd)?.vb.state() == VbState::Active {
            return Err(Refusal::Invalid);
        }
        let high_seqno = self.core.vbuckets.find(vb, Holder::FrontEnd)?.vb.high_seqno();
        if high_seqno <= to {
            return Ok(Ok(high_seqno));
        }
        // A disk that refused once may be well again; going back there twice does no more than once.
        let rolled_back = match self.roll_store_back(vb, to).or_else(|_| self.roll_store_back(vb, to)) {
            Ok(rolled_back) => rolled_back,
            Err(failure) => {
                self.follow_store(vb, &failure)?;
                return Ok(Err(failure.into()));
            }
        };
        if planted::is(Bug::RollbackLeavesMemory) {
            return Ok(Ok(rolled_back.seqno));
        }
        self.begin_again(vb, rolled_back.stored)?;
        if let Ok(mut shard) = self.core.vbuckets.find(vb, Holder::Roles) {
            shard.ops.rollbacks += 1;
            shard.ops.rolled_back += high_seqno.0.saturating_sub(rolled_back.seqno.0);
        }
        self.durability.waiters.forget(vb);
        let reloaded = self.reload(vb);
        // Whoever waited for documents to be loaded looks again.
        self.loading.warmup.forget(vb);
        Ok(reloaded.map(|()| rolled_back.seqno).map_err(Failure::from))
    }

    /// A commit inside a snapshot that ends behind `to` is of no use: the producer would send its consumer back to the
    /// snapshot's start. So it goes there at once, as far as the disk can.
    fn roll_store_back(&self, vb: VbId, to: Seqno) -> Result<RolledBack, kvstore::Failure> {
        let mut rolled_back = self.core.store.rollback(vb, to)?;
        while let Some(start) = rolled_back.stored.as_ref().and_then(|stored| stored.unfinished_behind(to)) {
            match self.core.store.rollback(vb, start) {
                Ok(further) => rolled_back = further,
                // What was reached is a commit, too: its producer says the rest. Unless the store went further.
                Err(failure) => {
                    let stands = self.core.store.snapshot(vb)?.map_or(Seqno(0), |stored| stored.high_seqno());
                    if stands != rolled_back.seqno {
                        return Err(failure);
                    }
                    self.core.failure_log.failed(self.core.name(), vb, Failed::FurtherRollback, &failure);
                    break;
                }
            }
        }
        if let Some(stored) = rolled_back.stored.as_mut().filter(|stored| stored.state.snap_start > to.0) {
            // It was told that nothing had changed up to there, in a history of which it keeps a part only: to stand
            // there again would be to be sent back again.
            let high = stored.high_seqno.0;
            (stored.state.snap_start, stored.state.snap_end) = (high, high);
        }
        Ok(rolled_back)
    }

    /// A rollback that failed may have gone back all the same, so that the store has less than the memory says: then
    /// the memory does not go on, because the next save would vouch for what is not there. A vBucket of which nothing is
    /// stored begins empty; one that went back in part, or cannot be read, is dead until it is read again.
    fn follow_store(&self, vb: VbId, failure: &kvstore::Failure) -> Result<(), Refusal> {
        if planted::is(Bug::FailedRollbackIgnored) {
            return Ok(());
        }
        let persisted = self.core.vbuckets.hold(vb, Holder::Roles).vb.persisted_seqno();
        match self.core.store.snapshot(vb) {
            Ok(Some(stored)) if stored.high_seqno() >= persisted => return Ok(()),
            Ok(None) if persisted == Seqno(0) => return Ok(()),
            Ok(None) => self.begin_again(vb, None)?,
            Ok(Some(_)) | Err(_) => {
                self.core.unreadable.note_dead(self.core.name(), vb, failure);
                let (old, given_up) = {
                    let mut shard = self.core.vbuckets.hold(vb, Holder::Roles);
                    (
                        shard.replace(dead(vb, &self.core.context, &self.core.env)),
                        shard.sync_waiters.give_up(),
                    )
                };
                drop((old, given_up));
            }
        }
        self.durability.waiters.forget(vb);
        self.loading.warmup.forget(vb);
        Ok(())
    }

    /// Puts what is stored now in the place of a vBucket, without its documents.
    pub(crate) fn begin_again(&self, vb: VbId, stored: Option<StoredVb>) -> Result<(), Refusal> {
        let counts = stored.as_ref().map(|stored| stored.counts);
        let new = match stored {
            Some(stored) => VBucket::new(vb, &self.core.context, origin(&self.core.env, stored)),
            None => dead(vb, &self.core.context, &self.core.env),
        };
        let (old, given_up) = {
            let mut shard = self.core.vbuckets.find(vb, Holder::Roles)?;
            let (state, topology) = (shard.vb.state(), shard.vb.topology().cloned());
            let histories = shard.vb.failover().clone();
            let old = shard.replace(new);
            // The role and the histories that it has, not those of back then.
            shard.vb.take_over(state, topology, histories);
            shard.unloaded = counts;
            self.core.queue_flush(&mut shard);
            (old, shard.sync_waiters.give_up())
        };
        drop((old, given_up));
        Ok(())
    }

    /// Loads the documents of a vBucket that has none in memory; one whose documents cannot be read is dead.
    pub(crate) fn reload(&self, vb: VbId) -> Result<(), kvstore::Failure> {
        let Some(counts) = self.core.vbuckets.hold(vb, Holder::Roles).unloaded else { return Ok(()) };
        match self.loading.read_documents(vb, &counts) {
            Ok(Some(loaded)) => {
                let mut shard = self.core.vbuckets.hold(vb, Holder::Roles);
                shard.unloaded = None;
                let nothing = shard.vb.install(loaded);
                // What is stored may have documents of collections that it says are dropped.
                self.collections.manifest.note_dropped(&mut shard, &self.core.keeper);
                drop(shard);
                drop(nothing);
                Ok(())
            }
            // The bucket is being closed: nobody will ask.
            Ok(None) => Ok(()),
            Err(failure) => {
                self.core.unreadable.note_dead(self.core.name(), vb, &failure);
                let old = self.core.vbuckets.hold(vb, Holder::Roles).replace(dead(
                    vb,
                    &self.core.context,
                    &self.core.env,
                ));
                drop(old);
                Err(failure)
            }
        }
    }
}
