//! Cursors: how far each reader of the checkpoints has come.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use base::Seqno;

use crate::checkpoint_list::{Node, node_of};

/// Names a cursor of one vBucket; never used again after the cursor is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CursorId(pub(crate) u32);

/// What a reader is called. All its cursors share it, by a pointer that is thin: a hundred readers have one in each of a
/// thousand vBuckets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CursorName(Arc<Box<str>>);

impl<T: Into<Box<str>>> From<T> for CursorName {
    fn from(name: T) -> CursorName {
        CursorName(Arc::new(name.into()))
    }
}

impl Deref for CursorName {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for CursorName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self)
    }
}

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

/// The cursor is not there any more: it was dropped because memory ran short, or by its owner.
/// Its reader goes on from the disk, and registers again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dropped;

/// What a statistics page shows about a cursor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CursorState {
    /// Its id.
    pub id: CursorId,
    /// The name it was registered with.
    pub name: CursorName,
    /// Everything up to here was read and worked on.
    pub position: Seqno,
    /// Changes in memory behind it.
    pub items_behind: u64,
}

/// A reader's position, a number, and the place in the list where it is, so that nobody needs to search.
pub(crate) struct Cursor {
    pub(crate) id: CursorId,
    pub(crate) name: CursorName,
    /// Whether it may be dropped when memory runs short.
    pub(crate) is_droppable: bool,
    /// Everything up to here was read and worked on.
    pub(crate) position: Seqno,
    /// The node that `position + 1` was in, or would have been in, when somebody looked last.
    pub(crate) near: Arc<Node>,
    /// The first node in memory of that one's checkpoint.
    pub(crate) first: Arc<Node>,
    /// The node after the range taken last, which begins where that ends.
    pub(crate) taken: Option<Arc<Node>>,
}

impl Cursor {
    /// Moves to `to`, which must lie ahead or where the cursor is.
    pub(crate) fn advance(&mut self, to: Seqno) {
        assert!(to >= self.position, "a cursor never goes back");
        self.position = to;
        if let Some(next) = self.taken.take_if(|next| next.start <= to.next()) {
            self.first = next.clone();
            self.near = next;
        }
        self.settle();
    }

    /// Finds the node that `position + 1` is in now.
    pub(crate) fn settle(&mut self) {
        let wanted = self.position.next();
        if self.near.next().is_none_or(|next| next.start > wanted) {
            return;
        }
        self.near = node_of(&self.near, wanted).clone();
        if self.first.checkpoint != self.near.checkpoint {
            self.first = node_of(&self.first, self.near.checkpoint_start).clone();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_is_small() {
        // Each idle stream has one.
        assert!(size_of::<Cursor>() <= 48, "{} bytes", size_of::<Cursor>());
    }
}
