//! Snapshots that keep their store, so that its files stay until they are dropped.

use std::collections::btree_map::Entry;
use std::ops::ControlFlow;
use std::sync::Arc;

use base::{DocKey, Seqno, VbId, Version};

use super::Side;
use crate::change::{Change, ChangesWanted, Reading};
use crate::failure::Failure;
use crate::state::VbStateDoc;
use crate::store::{Snapshot, Values};

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

impl Snapshot for HeldSnapshot {
    fn state(&self) -> Result<VbStateDoc, Failure> {
        self.snapshot.state()
    }

    fn high_seqno(&self) -> Seqno {
        self.snapshot.high_seqno()
    }

    fn purge_seqno(&self) -> Seqno {
        self.snapshot.purge_seqno()
    }

    fn get(&self, key: DocKey<'_>) -> Result<Option<Version>, Failure> {
        self.snapshot.get(key)
    }

    fn scan(
        &self,
        from: Seqno,
        values: Values,
        visit: &mut dyn FnMut(Version) -> ControlFlow<()>,
    ) -> Result<(), Failure> {
        self.snapshot.scan(from, values, visit)
    }

    fn scan_all(
        &self,
        from: Seqno,
        values: Values,
        visit: &mut dyn FnMut(Version) -> ControlFlow<()>,
    ) -> Result<(), Failure> {
        self.snapshot.scan_all(from, values, visit)
    }

    fn changes(
        &self,
        wanted: &ChangesWanted,
        reading: &mut Reading,
        visit: &mut dyn FnMut(&Change<'_>) -> ControlFlow<()>,
    ) -> Result<Option<Seqno>, Failure> {
        self.snapshot.changes(wanted, reading, visit)
    }

    fn history_start(&self) -> Seqno {
        self.snapshot.history_start()
    }

    fn prepare_bytes(&self) -> Result<u64, Failure> {
        self.snapshot.prepare_bytes()
    }

    fn scan_keys(
        &self,
        from: &[u8],
        values: Values,
        visit: &mut dyn FnMut(Version) -> ControlFlow<()>,
    ) -> Result<(), Failure> {
        self.snapshot.scan_keys(from, values, visit)
    }
}
