//! A sync write begins: its change is prepared.

use base::planted::{self, Bug};
use base::{DurabilityLevel, Moment, NewVersion, VbId};
use vbucket::{Change, NO_DEADLINE, Prepared};

use crate::bucket_core::active_for_change;
use crate::counters::OpCounts;
use crate::mutated::Mutated;
use crate::refusal::Refusal;
use crate::sync_waiters::Durable;
use crate::writer::Writer;

impl Writer<'_> {
    /// Prepares a change of an active vBucket: one lock, once.
    #[expect(clippy::too_many_arguments, reason = "what `apply` has, and how safe it must be")]
    pub(crate) fn prepare(
        &self,
        vb: VbId,
        hash: u64,
        mut change: Change,
        durable: Durable,
        now: Moment,
        count: impl FnOnce(&mut OpCounts),
        finish: impl FnOnce(&mut NewVersion),
    ) -> Result<Mutated, Refusal> {
        let needs_disk = durable.level != DurabilityLevel::Majority;
        if needs_disk && self.core.is_ephemeral() {
            return Err(Refusal::DurabilityInvalidLevel);
        }
        let timeout_ns = u64::try_from(durable.timeout.as_nanos()).unwrap_or(u64::MAX);
        let deadline_ns = self.core.env.clock.monotonic_ns().saturating_add(timeout_ns).min(NO_DEADLINE - 1);
        let (outcome, uuid, pending) = {
            let collection = change.new.document_key().collection;
            let mut shard = active_for_change(&self.core, vb, collection)?;
            if shard.vb.topology().is_none() && self.durability.lacks_replicas() {
                return Err(Refusal::DurabilityImpossible);
            }
            let ttl_s = shard.vb.collections().get(collection).and_then(|one| one.max_ttl_s);
            change.new.meta_mut().expiry = self.capped_expiry(&change.new.meta(), ttl_s, now);
            let is_deletion = change.new.is_deleted();
            let outcome = shard.vb.prepare(hash, change, deadline_ns, now, finish);
            let mut pending = None;
            match outcome.as_ref().map_err(|refused| refused.refusal) {
                Ok(prepared) => {
                    count(&mut shard.ops);
                    shard.ops.sync_accepted += 1;
                    shard.ops.sync_committed += u64::from(prepared.committed.is_some());
                    shard.vb.collections_mut().count_op(collection, |ops| {
                        *(if is_deletion { &mut ops.deletes } else { &mut ops.stores }) += 1;
                    });
                    if prepared.committed.is_none() && !planted::is(Bug::AnswerBeforeCommit) {
                        pending = Some(self.durability.await_prepare(
                            &mut shard,
                            prepared.stored.by_seqno,
                            deadline_ns,
                        ));
                    }
                    if needs_disk {
                        self.core.queue_urgent_flush(&mut shard);
                    } else {
                        self.core.queue_flush(&mut shard);
                    }
                }
                Err(vbucket::Refusal::Changed | vbucket::Refusal::Unknown) => {}
                Err(_) => shard.ops.conflicts += 1,
            }
            (outcome, shard.vb.uuid(), pending)
        };
        match outcome {
            Ok(Prepared { stored, committed }) => {
                let mutated = Mutated::of(&stored, uuid, pending);
                drop((stored.garbage, committed));
                if needs_disk {
                    self.core.flush.hurry(vb);
                }
                Ok(mutated)
            }
            Err(refused) => Err(refused.refusal.into()),
        }
    }
}
