//! Which vBuckets have an open file, the one unused for longest first.

use std::collections::BTreeMap;

use base::VbId;
use parking_lot::Mutex;

use crate::store::Stats;

/// Bounds the descriptors of a bucket. The files themselves are with their vBuckets.
pub(super) struct OpenFiles {
    max: usize,
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    /// By the moment of last use.
    by_use: BTreeMap<u64, VbId>,
    last_use: BTreeMap<VbId, u64>,
    now: u64,
    hits: u64,
    misses: u64,
    evictions: u64,
}

impl Inner {
    fn touch(&mut self, vb: VbId) {
        self.now += 1;
        if let Some(before) = self.last_use.insert(vb, self.now) {
            self.by_use.remove(&before);
        }
        self.by_use.insert(self.now, vb);
    }

    fn remove(&mut self, vb: VbId) {
        if let Some(at) = self.last_use.remove(&vb) {
            self.by_use.remove(&at);
        }
    }
}

impl OpenFiles {
    pub(super) fn new(max: usize) -> OpenFiles {
        OpenFiles { max: max.max(1), inner: Mutex::default() }
    }

    /// A file that was open is used.
    pub(super) fn used(&self, vb: VbId) {
        let mut inner = self.inner.lock();
        inner.hits += 1;
        // it may have been closed meanwhile by someone who needed room
        if inner.last_use.contains_key(&vb) {
            inner.touch(vb);
        }
    }

    /// A file was opened.
    pub(super) fn opened(&self, vb: VbId) {
        let mut inner = self.inner.lock();
        inner.misses += 1;
        inner.touch(vb);
    }

    /// A file was closed for its own reasons.
    pub(super) fn forget(&self, vb: VbId) {
        self.inner.lock().remove(vb);
    }

    /// A file was closed to make room.
    pub(super) fn evicted(&self, vb: VbId) {
        let mut inner = self.inner.lock();
        inner.evictions += 1;
        inner.remove(vb);
    }

    /// Files to close so that one more may be opened.
    pub(super) fn victims(&self) -> Vec<VbId> {
        let inner = self.inner.lock();
        let surplus = (inner.last_use.len() + 1).saturating_sub(self.max);
        inner.by_use.values().take(surplus).copied().collect()
    }

    pub(super) fn stats(&self) -> Stats {
        let inner = self.inner.lock();
        Stats {
            open_files: inner.last_use.len() as u64,
            file_hits: inner.hits,
            file_misses: inner.misses,
            file_evictions: inner.evictions,
            ..Stats::default()
        }
    }
}
