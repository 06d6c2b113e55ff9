//! The prepares of a vBucket that are neither committed nor aborted: by key, and in seqno order.

use std::collections::VecDeque;

use base::{CollectionId, DocKey, DurabilityLevel, Seqno, SyncWrite, Version};

use crate::bucket_context::BucketContext;
use crate::hash_table::HashTable;

/// The deadline of a prepare that waits as long as it takes.
pub const NO_DEADLINE: u64 = u64::MAX;

/// A prepare that is neither committed nor aborted.
pub struct InFlight {
    /// The prepare itself.
    pub version: Version,
    /// Its seqno.
    pub prepared: Seqno,
    /// When its time is over, in nanoseconds of the monotonic clock.
    pub deadline_ns: u64,
    /// Whether it was made elsewhere, or before a restart.
    pub is_inherited: bool,
    /// The hash of its document's key.
    hash: u64,
}

impl InFlight {
    /// How safe it must be.
    pub fn level(&self) -> DurabilityLevel {
        match self.version.meta().sync_write {
            SyncWrite::Prepare(level) => level,
            _ => unreachable!("only prepares are in flight"),
        }
    }
}

/// Calls `look` with the key under which the prepare of `document` is kept.
fn with_prepared<T>(document: DocKey<'_>, look: impl FnOnce(DocKey<'_>) -> T) -> T {
    let (key, len) = document.to_prepared();
    look(DocKey { collection: CollectionId::PREPARES, key: &key[..len] })
}

/// So many are found faster by looking at the hash of each than in a table.
const FEW: usize = 16;

/// The prepares in flight of one vBucket.
pub(crate) struct Prepares {
    /// Has all of them, or none while there are few.
    table: HashTable,
    /// In seqno order.
    queue: VecDeque<InFlight>,
    bytes: u64,
}

impl Prepares {
    pub(crate) fn new(context: &BucketContext) -> Prepares {
        Prepares { table: HashTable::new(context), queue: VecDeque::new(), bytes: 0 }
    }

    pub(crate) fn len(&self) -> usize {
        self.queue.len()
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(crate) fn front(&self) -> Option<&InFlight> {
        self.queue.front()
    }

    /// The prepare of a document.
    pub(crate) fn of(&self, document: DocKey<'_>) -> Option<&InFlight> {
        if self.queue.is_empty() {
            return None;
        }
        if self.table.is_empty() {
            let hash = self.table.hash(document);
            let is_it = |one: &&InFlight| one.hash == hash && one.version.document_key() == document;
            return self.queue.iter().find(is_it);
        }
        let prepared = with_prepared(document, |key| {
            let hash = self.table.hash(key);
            self.table.find(hash, key).map(|version| version.meta().by_seqno)
        })?;
        self.get(prepared)
    }

    /// The prepare with this seqno.
    pub(crate) fn get(&self, prepared: Seqno) -> Option<&InFlight> {
        self.queue.get(self.place(prepared)?)
    }

    /// Prepares from `from` on, in seqno order.
    pub(crate) fn from(&self, from: Seqno) -> impl Iterator<Item = &InFlight> {
        self.queue.range(self.queue.partition_point(|other| other.prepared < from)..)
    }

    /// Puts in a prepare that is later than all others. There must be none of its key.
    pub(crate) fn insert(&mut self, version: Version, deadline_ns: u64, is_inherited: bool) {
        let prepared = version.meta().by_seqno;
        assert!(
            self.queue.back().is_none_or(|last| last.prepared < prepared),
            "prepares come in seqno order"
        );
        debug_assert!(self.of(version.document_key()).is_none(), "a document has one prepare at most");
        self.bytes += version.allocated_bytes() as u64;
        let hash = self.table.hash(version.document_key());
        self.queue.push_back(InFlight { version, prepared, deadline_ns, is_inherited, hash });
        if self.queue.len() == FEW + 1 && self.table.is_empty() {
            (0..FEW).for_each(|at| self.enter(at));
        }
        if self.queue.len() > FEW || !self.table.is_empty() {
            self.enter(self.queue.len() - 1);
        }
    }

    fn enter(&mut self, at: usize) {
        let version = &self.queue[at].version;
        let hash = self.table.hash(version.key());
        self.table.find_slot(hash, version.key()).insert(version.clone());
    }

    /// Takes a prepare out; nothing if there is no such one. Cheap for the first and the last.
    pub(crate) fn remove(&mut self, prepared: Seqno) -> Option<InFlight> {
        let gone = self.queue.remove(self.place(prepared)?)?;
        self.bytes -= gone.version.allocated_bytes() as u64;
        if !self.table.is_empty() {
            let key = gone.version.key();
            let hash = self.table.hash(key);
            // The queue held the version, too: nothing is freed here.
            drop(self.table.find_slot(hash, key).remove());
        }
        Some(gone)
    }

    fn place(&self, prepared: Seqno) -> Option<usize> {
        if self.queue.front()?.prepared == prepared {
            return Some(0);
        }
        self.queue.binary_search_by_key(&prepared, |other| other.prepared).ok()
    }
}
