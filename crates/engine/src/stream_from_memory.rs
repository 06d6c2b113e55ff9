//! Streams of an ephemeral bucket, whose past is in memory.

use base::{Seqno, VbId};
use vbucket::{Resume, ResumePoint};

use crate::ephemeral::{MemoryRange, Resumed, open_range};
use crate::refusal::Refusal;
use crate::shard_guard::Holder;
use crate::stream::Streams;

impl Streams {
    /// A vBucket's items with a seqno of `from` or more, as they are now. Refused if the bucket has a disk to read them
    /// from, and as busy if too many read already.
    pub fn memory_range(&self, vb: VbId, from: Seqno) -> Result<MemoryRange, Refusal> {
        let mut shard = self.core.vbuckets.find(vb, Holder::FrontEnd)?;
        if !self.core.is_ephemeral() {
            return Err(Refusal::Invalid);
        }
        open_range(&self.core.vbuckets, &mut shard, from)
    }

    /// The items that a client lacks, if it may go on where it stands. What it is judged by and what it gets are of the
    /// same moment: no tombstone is purged in between.
    pub fn resume_from_memory(&self, vb: VbId, client: &ResumePoint) -> Result<Resumed, Refusal> {
        let mut shard = self.core.vbuckets.find(vb, Holder::FrontEnd)?;
        let (high, purge) = (shard.vb.high_seqno(), shard.vb.purge_seqno());
        match shard.vb.failover().rollback_point(client, high, purge) {
            Resume::Accept if !self.core.is_ephemeral() => Err(Refusal::Invalid),
            Resume::Accept => {
                let range = open_range(&self.core.vbuckets, &mut shard, client.start.next())?;
                Ok(Resumed::Range(Box::new(range)))
            }
            Resume::RollBack(to) => Ok(Resumed::RollBack(to)),
        }
    }
}
