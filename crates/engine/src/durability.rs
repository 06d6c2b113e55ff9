//! Waiting until a change is as safe as a client asks for.

use base::{Seqno, VbId};

use crate::bucket::Bucket;
use crate::completion::Completion;
use crate::refusal::Refusal;

impl Bucket {
    /// Whether this node alone is a majority of those that shall hold the vBucket. Until there are replicas, a
    /// durable write of any other vBucket cannot be honoured.
    pub fn can_be_durable(&self, vb: VbId) -> bool {
        self.with_vbucket(vb, |vb| vb.is_majority_alone()).unwrap_or(true)
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
