//! Snapshots that keep their store, so that its files stay until they are dropped, or are ended because a move has waited
//! for them long enough.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::sync::{Arc, Weak};

use base::{DocKey, Seqno, VbId, Version};
use parking_lot::{Mutex, ReentrantMutex};

use crate::failure::Failure;
use crate::files::StorageBackend;
use crate::state::VbStateDoc;
use crate::store::{ForwardingSnapshot, KvStore, Snapshot, Values};

/// One of two stores.
pub(super) struct Side {
    pub(super) store: Arc<dyn KvStore>,
    pub(super) backend: StorageBackend,
    /// The snapshots that are held: the store is left when there is none.
    pub(super) readers: Readers,
}

impl Side {
    pub(super) fn new(store: Arc<dyn KvStore>, backend: StorageBackend) -> Arc<Side> {
        Arc::new(Side { store, backend, readers: Readers::default() })
    }
}

/// Who reads a store. The store is left when there is no reader.
#[derive(Default)]
pub(super) struct Readers(Mutex<ReaderTable>);

#[derive(Default)]
struct ReaderTable {
    next: u64,
    held: BTreeMap<u64, (VbId, Weak<Place>)>,
}

impl Readers {
    /// The vBuckets that are read.
    pub(super) fn vbuckets(&self) -> BTreeSet<VbId> {
        self.0.lock().held.values().map(|(vb, _)| *vb).collect()
    }

    /// Ends every snapshot that is not being read just now: its next read fails, and it keeps the store no more.
    pub(super) fn end_all(&self) {
        // Dropping one takes it off the list.
        let held: Vec<_> = self.0.lock().held.values().filter_map(|(_, place)| place.upgrade()).collect();
        for place in held {
            let Some(free) = place.try_lock() else { continue };
            let ended = free.try_borrow_mut().ok().and_then(|mut held| held.take());
            drop(free);
            drop(ended);
        }
    }
}

/// Reads nest, as a visitor may read, too. No other thread waits for a read: it asks again later.
type Place = ReentrantMutex<RefCell<Option<Held>>>;

/// A snapshot, and behind it what keeps its store.
struct Held {
    snapshot: Box<dyn Snapshot>,
    _reader: SideReader,
}

/// Keeps a store, which knows who reads it.
struct SideReader {
    side: Arc<Side>,
    number: u64,
}

impl Drop for SideReader {
    fn drop(&mut self) {
        self.side.readers.0.lock().held.remove(&self.number);
    }
}

/// A snapshot and the store that it is of.
pub(super) struct HeldSnapshot {
    place: Arc<Place>,
    /// What is said of a snapshot that was ended.
    ended: Ended,
}

impl HeldSnapshot {
    pub(super) fn new(snapshot: Box<dyn Snapshot>, side: &Arc<Side>, vb: VbId) -> HeldSnapshot {
        let ended = Ended {
            vb,
            high_seqno: snapshot.high_seqno(),
            purge_seqno: snapshot.purge_seqno(),
            history_start: snapshot.history_start(),
        };
        let mut readers = side.readers.0.lock();
        let number = readers.next;
        readers.next += 1;
        let held = Held { snapshot, _reader: SideReader { side: Arc::clone(side), number } };
        let place = Arc::new(ReentrantMutex::new(RefCell::new(Some(held))));
        readers.held.insert(number, (vb, Arc::downgrade(&place)));
        HeldSnapshot { place, ended }
    }
}

impl ForwardingSnapshot for HeldSnapshot {
    fn forward<T>(&self, read: impl FnOnce(&dyn Snapshot) -> T) -> T {
        let place = self.place.lock();
        let held = place.borrow();
        match &*held {
            Some(held) => read(&*held.snapshot),
            None => read(&self.ended),
        }
    }
}

/// A snapshot whose store was left.
struct Ended {
    vb: VbId,
    high_seqno: Seqno,
    purge_seqno: Seqno,
    history_start: Seqno,
}

impl Ended {
    fn refuse<T>(&self) -> Result<T, Failure> {
        Err(Failure::SnapshotEnded { vb: self.vb })
    }
}

impl Snapshot for Ended {
    fn state(&self) -> Result<VbStateDoc, Failure> {
        self.refuse()
    }

    fn high_seqno(&self) -> Seqno {
        self.high_seqno
    }

    fn purge_seqno(&self) -> Seqno {
        self.purge_seqno
    }

    fn history_start(&self) -> Seqno {
        self.history_start
    }

    fn has_ended(&self) -> bool {
        true
    }

    fn prepare_bytes(&self) -> Result<u64, Failure> {
        self.refuse()
    }

    fn get(&self, _: DocKey<'_>) -> Result<Option<Version>, Failure> {
        self.refuse()
    }

    fn scan(
        &self,
        _: Seqno,
        _: Values,
        _: &mut dyn FnMut(Version) -> ControlFlow<()>,
    ) -> Result<(), Failure> {
        self.refuse()
    }

    fn scan_all(
        &self,
        _: Seqno,
        _: Values,
        _: &mut dyn FnMut(Version) -> ControlFlow<()>,
    ) -> Result<(), Failure> {
        self.refuse()
    }

    fn scan_keys(
        &self,
        _: &[u8],
        _: Values,
        _: &mut dyn FnMut(Version) -> ControlFlow<()>,
    ) -> Result<(), Failure> {
        self.refuse()
    }
}
