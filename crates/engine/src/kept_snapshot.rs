//! A snapshot of the store that several readers have, one after the other and at the same time.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use base::{CollectionId, DocKey, Seqno, Version};
use kvstore::{Change, ChangesWanted, Failure, Reading, Snapshot, Values, VbStateDoc};
use parking_lot::{Mutex, MutexGuard};

/// A snapshot of a vBucket. Clones are of the same one, whose files stay until the last one is dropped. One of them reads at
/// a time.
#[derive(Clone)]
pub struct KeptSnapshot {
    snapshot: Arc<Mutex<Box<dyn Snapshot>>>,
    dropped: Arc<[(CollectionId, Seqno)]>,
    was_read: Arc<AtomicBool>,
}

impl KeptSnapshot {
    /// `dropped`: collections that were dropped by then, each with the seqno of that; `was_read` is set by each read.
    pub(crate) fn new(
        snapshot: Box<dyn Snapshot>,
        dropped: Arc<[(CollectionId, Seqno)]>,
        was_read: Arc<AtomicBool>,
    ) -> KeptSnapshot {
        KeptSnapshot { snapshot: Arc::new(Mutex::new(snapshot)), dropped, was_read }
    }

    /// Collections that were dropped by then and whose documents may still be in it.
    pub(crate) fn dropped(&self) -> &[(CollectionId, Seqno)] {
        &self.dropped
    }

    fn read(&self) -> MutexGuard<'_, Box<dyn Snapshot>> {
        self.was_read.store(true, Ordering::Relaxed);
        self.snapshot.lock()
    }
}

impl Snapshot for KeptSnapshot {
    fn state(&self) -> Result<VbStateDoc, Failure> {
        self.read().state()
    }

    fn high_seqno(&self) -> Seqno {
        self.read().high_seqno()
    }

    fn purge_seqno(&self) -> Seqno {
        self.read().purge_seqno()
    }

    fn get(&self, key: DocKey<'_>) -> Result<Option<Version>, Failure> {
        self.read().get(key)
    }

    fn scan(
        &self,
        from: Seqno,
        values: Values,
        visit: &mut dyn FnMut(Version) -> ControlFlow<()>,
    ) -> Result<(), Failure> {
        self.read().scan(from, values, visit)
    }

    fn scan_all(
        &self,
        from: Seqno,
        values: Values,
        visit: &mut dyn FnMut(Version) -> ControlFlow<()>,
    ) -> Result<(), Failure> {
        self.read().scan_all(from, values, visit)
    }

    fn changes(
        &self,
        wanted: &ChangesWanted,
        reading: &mut Reading,
        visit: &mut dyn FnMut(&Change<'_>) -> ControlFlow<()>,
    ) -> Result<Option<Seqno>, Failure> {
        self.read().changes(wanted, reading, visit)
    }

    fn history_start(&self) -> Seqno {
        self.read().history_start()
    }

    fn prepare_bytes(&self) -> Result<u64, Failure> {
        self.read().prepare_bytes()
    }

    fn scan_keys(
        &self,
        from: &[u8],
        values: Values,
        visit: &mut dyn FnMut(Version) -> ControlFlow<()>,
    ) -> Result<(), Failure> {
        self.read().scan_keys(from, values, visit)
    }
}
