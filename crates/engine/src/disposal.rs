//! What has left the checkpoints and waits to be freed by a background step: freeing many versions takes long.

use std::collections::VecDeque;

use parking_lot::Mutex;
use vbucket::Removed;

/// So many changes are freed on the spot: it takes no longer than to queue them.
const FEW_ITEMS: u64 = 1024;
/// Most entries that wait; who comes with more frees it himself.
const MOST_ENTRIES: usize = 1024;
/// Chunks that are freed before somebody looks at the clock.
const CHUNKS_A_LOOK: usize = 8;

/// What has left the checkpoints and waits to be freed.
#[derive(Default)]
pub(crate) struct Disposal {
    waiting: Mutex<VecDeque<Removed>>,
}

impl Disposal {
    /// Frees a little at once, and keeps more for later. Whether there is something for later now. Not to be called
    /// under a vBucket's lock.
    pub(crate) fn put(&self, removed: Removed) -> bool {
        let left = if removed.items() <= FEW_ITEMS { Some(removed) } else { self.keep(removed) };
        left.is_none()
    }

    fn keep(&self, removed: Removed) -> Option<Removed> {
        let mut waiting = self.waiting.lock();
        if waiting.len() >= MOST_ENTRIES {
            return Some(removed);
        }
        waiting.push_back(removed);
        None
    }

    /// Frees what waits until `is_over`. Whether nothing is left.
    pub(crate) fn free(&self, is_over: impl Fn() -> bool) -> bool {
        while let Some(mut removed) = self.take() {
            while removed.free(CHUNKS_A_LOOK) {
                if is_over() {
                    self.waiting.lock().push_front(removed);
                    return false;
                }
            }
        }
        true
    }

    fn take(&self) -> Option<Removed> {
        self.waiting.lock().pop_front()
    }

    /// Changes that wait.
    pub(crate) fn items(&self) -> u64 {
        self.waiting.lock().iter().map(Removed::items).sum()
    }
}
