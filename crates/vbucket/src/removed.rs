//! What has left the checkpoints and waits to be freed.

use std::sync::Arc;

use crate::changes::Sums;
use crate::checkpoint_list::{self, Forgotten, Node};

/// Checkpoints taken out of memory; dropping this frees them, which is best done outside the vBucket lock.
#[derive(Default)]
#[must_use = "drop it, or free it in steps, after the vBucket's lock is released"]
pub struct Removed {
    pub(crate) forgotten: Forgotten,
    pub(crate) oldest: Option<Arc<Node>>,
    pub(crate) checkpoints: u64,
    pub(crate) sums: Sums,
}

impl Removed {
    /// How many whole checkpoints were taken out.
    pub fn checkpoints(&self) -> u64 {
        self.checkpoints
    }

    /// How many changes were taken out.
    pub fn items(&self) -> u64 {
        self.sums.items
    }

    /// Bytes of the versions, which others may hold as well.
    pub fn bytes(&self) -> u64 {
        self.sums.bytes
    }

    /// Whether there is nothing, or nothing any more.
    pub fn is_empty(&self) -> bool {
        self.oldest.is_none()
    }

    /// Asks the processor to bring closer what freeing this looks at first: at depth 0 where that begins, at 1 what that
    /// leads to, and at 2 what this leads to in turn. Pays for many of these, all at one depth before the next.
    pub fn prefetch(&self, depth: usize) {
        if let Some(oldest) = &self.oldest {
            oldest.prefetch(depth);
        }
    }

    /// Frees so many chunks at most, of 256 changes at most each. Whether there are more.
    pub fn free(&mut self, chunks: usize) -> bool {
        self.forgotten.clear();
        self.oldest = self.oldest.take().and_then(|oldest| checkpoint_list::free(oldest, chunks));
        !self.is_empty()
    }
}

// What is taken out is freed by other threads.
const _: () = {
    const fn crosses_threads<T: Send + Sync>() {}
    crosses_threads::<Removed>();
};
