//! What streams take out of a vBucket's memory: each has a cursor of its own.

use std::sync::Arc;

use base::Seqno;

use crate::cursor::{CursorId, Dropped, RegisterRefusal};
use crate::range::{Range, RangeLimit};
use crate::removed::Removed;
use crate::vbucket::VBucket;

impl VBucket {
    /// Registers a stream's cursor: it knows everything up to `from`.
    pub fn register_stream(
        &mut self,
        name: impl Into<Arc<str>>,
        from: Seqno,
    ) -> Result<CursorId, RegisterRefusal> {
        self.history.checkpoints.register_cursor(name, from)
    }

    /// What follows the stream's position, to be read without the lock; nothing if there is nothing.
    pub fn take_stream(&mut self, id: CursorId, limit: RangeLimit) -> Result<Option<Range>, Dropped> {
        self.history.checkpoints.take_range(id, limit)
    }

    /// The stream has sent everything up to `to`. What nobody needs any more is to be freed outside the lock.
    pub fn advance_stream(&mut self, id: CursorId, to: Seqno) -> Result<Removed, Dropped> {
        let checkpoints = &mut self.history.checkpoints;
        if checkpoints.advance(id, to) { Ok(checkpoints.remove_closed()) } else { Err(Dropped) }
    }

    /// Ends a stream; it is fine if its cursor is gone already.
    pub fn end_stream(&mut self, id: CursorId) -> Removed {
        assert!(id != self.persistence, "the flusher's cursor is never dropped");
        self.history.checkpoints.drop_cursor(id);
        self.history.checkpoints.remove_closed()
    }

    /// Takes out the closed checkpoints that every cursor has passed.
    pub fn remove_closed_checkpoints(&mut self) -> Removed {
        self.history.checkpoints.remove_closed()
    }

    /// Takes out all changes that every cursor has passed, of checkpoints that are still being read, too.
    pub fn expel_checkpoints(&mut self) -> Removed {
        self.history.checkpoints.expel()
    }

    /// Drops the slowest stream if it needs at least so many bytes that the flusher has passed, and takes out what
    /// only it needed.
    pub fn drop_slowest_stream(&mut self, least_bytes: u64) -> Option<(Arc<str>, Removed)> {
        let (_, name) = self.history.checkpoints.drop_slowest_cursor(least_bytes)?;
        Some((name, self.history.checkpoints.expel()))
    }
}
