//! Cursors: how far each reader of the checkpoints has come.

use std::sync::Arc;

use base::Seqno;

use crate::checkpoint::Node;

/// Names a cursor of one vBucket; never used again after the cursor is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CursorId(pub(crate) u32);

/// Why a cursor cannot be registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RegisterRefusal {
    /// Changes after the wanted position are no longer in memory; those from `memory_start` on are.
    BelowMemory {
        /// Every change from this seqno on is in memory.
        memory_start: Seqno,
    },
    /// The position lies beyond the last change.
    AboveHigh {
        /// The last change.
        high: Seqno,
    },
}

/// What a statistics page shows about a cursor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CursorState {
    /// Its id.
    pub id: CursorId,
    /// The name it was registered with.
    pub name: Arc<str>,
    /// Everything up to here was read and worked on.
    pub position: Seqno,
    /// Changes in memory behind it.
    pub items_behind: u64,
}

/// Most checkpoints that one call walks over for a cursor.
pub(crate) const MOST_STEPS: usize = 64;

/// A reader's position, a number, and a checkpoint near it so that nobody needs to search.
pub(crate) struct Cursor {
    pub(crate) id: CursorId,
    pub(crate) name: Arc<str>,
    /// Everything up to here was read and worked on.
    pub(crate) position: Seqno,
    /// A checkpoint that begins at or before `position + 1`: usually the one which holds that seqno, never a later one.
    pub(crate) near: Arc<Node>,
    /// The end of the range taken last, and the checkpoint after it.
    pub(crate) taken: Option<(Seqno, Arc<Node>)>,
}

impl Cursor {
    /// Moves to `to`, which must lie ahead or where the cursor is.
    pub(crate) fn advance(&mut self, to: Seqno) {
        assert!(to >= self.position, "a cursor never goes back");
        self.position = to;
        if let Some((_, next)) = self.taken.take_if(|(end, _)| *end <= to) {
            self.near = next;
        }
        self.settle();
    }

    /// Brings `near` closer to the position, in bounded time. Whether it is there now.
    pub(crate) fn settle(&mut self) -> bool {
        for _ in 0..MOST_STEPS {
            match self.near.next() {
                Some(next) if self.near.is_passed_by(self.position) => self.near = next.clone(),
                _ => return true,
            }
        }
        !self.near.is_passed_by(self.position)
    }
}
