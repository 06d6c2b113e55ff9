//! A snapshot of the store that several readers have, one after the other and at the same time.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use base::{CollectionId, Seqno};
use kvstore::{ForwardingSnapshot, Snapshot};
use parking_lot::Mutex;

use crate::open_files::OpenScan;

/// A snapshot of a vBucket. Clones are of the same one, whose files stay until the last one is dropped. One of them reads at
/// a time.
#[derive(Clone)]
pub struct KeptSnapshot {
    snapshot: Arc<Mutex<Box<dyn Snapshot>>>,
    dropped: Arc<[(CollectionId, Seqno)]>,
    was_read: Arc<AtomicBool>,
    /// Its place among the files that may be open.
    _open: Arc<OpenScan>,
}

impl KeptSnapshot {
    /// `dropped`: collections that were dropped by then, each with the seqno of that; `was_read` is set by each read.
    pub(crate) fn new(
        snapshot: Box<dyn Snapshot>,
        dropped: Arc<[(CollectionId, Seqno)]>,
        was_read: Arc<AtomicBool>,
        open: OpenScan,
    ) -> KeptSnapshot {
        KeptSnapshot { snapshot: Arc::new(Mutex::new(snapshot)), dropped, was_read, _open: Arc::new(open) }
    }

    /// Whether the bucket has left the store that it is of; not known while it is read. It is no read.
    pub(crate) fn is_cut_off(&self) -> bool {
        self.snapshot.try_lock().is_some_and(|snapshot| snapshot.has_ended())
    }

    /// Collections that were dropped by then and whose documents may still be in it.
    pub(crate) fn dropped(&self) -> &[(CollectionId, Seqno)] {
        &self.dropped
    }
}

impl ForwardingSnapshot for KeptSnapshot {
    fn forward<T>(&self, read: impl FnOnce(&dyn Snapshot) -> T) -> T {
        self.was_read.store(true, Ordering::Relaxed);
        read(&**self.snapshot.lock())
    }
}
