//! What streams take out of a bucket's memory, vBucket by vBucket.

use base::{Seqno, VbId};
use vbucket::{CursorId, Dropped, Range, RangeLimit, RegisterRefusal};

use crate::bucket::Bucket;
use crate::refusal::Refusal;

/// A stream's cursor: which one, in which incarnation of the vBucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamCursor {
    vb: VbId,
    id: CursorId,
    incarnation: u64,
}

impl StreamCursor {
    /// The vBucket that it reads.
    pub fn vb(&self) -> VbId {
        self.vb
    }
}

impl Bucket {
    /// Registers a stream that knows everything up to `from`. If memory begins only later it has to read from the
    /// disk up to there first.
    pub fn register_stream(
        &self,
        vb: VbId,
        name: &str,
        from: Seqno,
    ) -> Result<Result<StreamCursor, RegisterRefusal>, Refusal> {
        let mut shard = self.shard(vb)?;
        let incarnation = shard.incarnation;
        let registered = shard.vb.register_stream(name, from);
        Ok(registered.map(|id| StreamCursor { vb, id, incarnation }))
    }

    /// What follows the stream's position, sealed: it never changes, and is read without any lock.
    pub fn take_stream(&self, cursor: StreamCursor, limit: RangeLimit) -> Result<Option<Range>, Dropped> {
        self.with_stream(cursor, |vb, id| vb.take_stream(id, limit))
    }

    /// The stream has sent everything up to `to`.
    pub fn advance_stream(&self, cursor: StreamCursor, to: Seqno) -> Result<(), Dropped> {
        let removed = self.with_stream(cursor, |vb, id| vb.advance_stream(id, to))?;
        self.dispose(removed);
        Ok(())
    }

    /// How many changes the stream has before it.
    pub fn stream_items_behind(&self, cursor: StreamCursor) -> Result<u64, Dropped> {
        self.with_stream(cursor, |vb, id| vb.checkpoints().items_behind(id).ok_or(Dropped))
    }

    /// Ends a stream, whether its cursor is still there or not.
    pub fn end_stream(&self, cursor: StreamCursor) {
        if let Ok(removed) = self.with_stream(cursor, |vb, id| Ok(vb.end_stream(id))) {
            self.dispose(removed);
        }
    }

    /// A vBucket that was deleted or went back in time has forgotten its streams.
    fn with_stream<T>(
        &self,
        cursor: StreamCursor,
        work: impl FnOnce(&mut vbucket::VBucket, CursorId) -> Result<T, Dropped>,
    ) -> Result<T, Dropped> {
        let mut shard = self.shard(cursor.vb).map_err(|_| Dropped)?;
        if shard.incarnation == cursor.incarnation { work(&mut shard.vb, cursor.id) } else { Err(Dropped) }
    }
}
