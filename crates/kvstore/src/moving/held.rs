//! Snapshots that keep their store, so that its files stay until they are dropped.

use std::collections::btree_map::Entry;
use std::sync::Arc;

use base::VbId;

use super::Side;
use crate::store::{ForwardingSnapshot, Snapshot};

/// A snapshot and the store that it is of.
pub(super) struct HeldSnapshot {
    snapshot: Box<dyn Snapshot>,
    /// Dropped behind the snapshot.
    _reader: SideReader,
}

/// Keeps a store, which counts those that read it.
struct SideReader {
    side: Arc<Side>,
    vb: VbId,
}

impl HeldSnapshot {
    pub(super) fn new(snapshot: Box<dyn Snapshot>, side: &Arc<Side>, vb: VbId) -> HeldSnapshot {
        *side.readers.lock().entry(vb).or_default() += 1;
        HeldSnapshot { snapshot, _reader: SideReader { side: Arc::clone(side), vb } }
    }
}

impl Drop for SideReader {
    fn drop(&mut self) {
        if let Entry::Occupied(mut count) = self.side.readers.lock().entry(self.vb) {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
    }
}

impl ForwardingSnapshot for HeldSnapshot {
    fn forward<T>(&self, read: impl FnOnce(&dyn Snapshot) -> T) -> T {
        read(&*self.snapshot)
    }
}
