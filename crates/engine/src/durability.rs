//! Waiting until a change is as safe as a client asks for.

use std::time::Duration;

use base::{DurabilityLevel, Seqno, VbId};
use vbucket::Topology;

use crate::bucket::Bucket;
use crate::completion::Completion;
use crate::refusal::Refusal;

/// What a client asks of a sync write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Durable {
    /// How safe it must be before it is told of.
    pub level: DurabilityLevel,
    /// How long that may take; then it is aborted.
    pub timeout: Duration,
}

/// What became of a sync write. A [`Completion`] that is dropped means [`SyncOutcome::GivenUp`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SyncOutcome {
    /// It is as safe as asked for, and readers see it.
    Committed,
    /// Its time was over: readers will not see it, unless another node becomes active.
    Aborted,
    /// Nobody here decides about it any more: it may be committed or aborted elsewhere.
    GivenUp,
}

impl Bucket {
    /// Whether a sync write to a vBucket could be committed: each of its chains has a majority of defined members.
    pub fn can_be_durable(&self, vb: VbId) -> bool {
        self.with_vbucket(vb, |vb| vb.topology().is_none_or(Topology::is_possible)).unwrap_or(true)
    }

    /// A node says that it has all prepares of an active vBucket up to `prepared` as safe as their levels ask.
    pub fn acknowledged(&self, _vb: VbId, _node: &str, _prepared: Seqno) {}

    /// Up to where a replica may acknowledge prepares; nothing if it is none.
    pub fn replica_prepared(&self, _vb: VbId) -> Option<Seqno> {
        None
    }

    /// Waits until `seqno` of a vBucket is on disk, synced. Nothing: it is there already.
    /// Refused if there is no disk.
    pub fn persisted(&self, vb: VbId, seqno: Seqno) -> Result<Option<Completion<()>>, Refusal> {
        let waiting = {
            let shard = self.shard(vb)?;
            if self.is_ephemeral() {
                return Err(Refusal::NoDisk);
            }
            if shard.vb.persisted_seqno() >= seqno {
                return Ok(None);
            }
            self.waiters.wait(vb, seqno).ok_or(Refusal::Busy)?
        };
        self.flush.hurry(vb);
        Ok(Some(waiting))
    }
}
