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
    pub(crate) hash: u64,
}

impl InFlight {
    /// How safe it must be.
    pub fn level(&self) -> DurabilityLevel {
        match self.version.meta().sync_write {
            SyncWrite::Prepare(level) | SyncWrite::Alone(level) => level,
            _ => unreachable!("only prepares are in flight"),
        }
    }

    /// Whether it is its document already, which nobody sees before it is safe: [`SyncWrite::Alone`].
    pub fn is_alone(&self) -> bool {
        is_alone(&self.version)
    }
}

fn is_alone(version: &Version) -> bool {
    matches!(version.meta().sync_write, SyncWrite::Alone(_))
}

/// The seqno of a prepare that is in flight as this version.
fn prepared_of(version: &Version) -> Seqno {
    let meta = version.meta();
    match meta.sync_write.stored(meta.by_seqno) {
        SyncWrite::Commit { prepared } => prepared,
        _ => meta.by_seqno,
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
    /// How many of them are [`SyncWrite::Alone`], and their bytes.
    alone: usize,
    alone_bytes: u64,
    /// Streams get nothing from here on, where a checkpoint begins: the first of those stands in it.
    held_from: Seqno,
}

/// Nothing is held back from streams.
pub(crate) const NOT_HELD: Seqno = Seqno(u64::MAX);

impl Prepares {
    pub(crate) fn new(context: &BucketContext) -> Prepares {
        Prepares {
            table: HashTable::new(context),
            queue: VecDeque::new(),
            bytes: 0,
            alone: 0,
            alone_bytes: 0,
            held_from: NOT_HELD,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.queue.len()
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Those that are prepares on disk as well.
    pub(crate) fn stored_len(&self) -> usize {
        self.queue.len() - self.alone
    }

    /// Bytes of those.
    pub(crate) fn stored_bytes(&self) -> u64 {
        self.bytes - self.alone_bytes
    }

    /// The last one that is [`SyncWrite::Alone`].
    pub(crate) fn last_alone(&self) -> Option<&InFlight> {
        if self.alone == 0 {
            return None;
        }
        self.queue.iter().rev().find(|one| one.is_alone())
    }

    /// The first one that is [`SyncWrite::Alone`].
    pub(crate) fn first_alone(&self) -> Option<&InFlight> {
        if self.alone == 0 {
            return None;
        }
        // Mostly there are no others.
        self.queue.iter().find(|one| one.is_alone())
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
        let alone = if self.alone > 0 { self.entered(document) } else { None };
        self.get(alone.or_else(|| with_prepared(document, |key| self.entered(key)))?)
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
        let prepared = prepared_of(&version);
        assert!(
            self.queue.back().is_none_or(|last| last.prepared < prepared),
            "prepares come in seqno order"
        );
        debug_assert!(self.of(version.document_key()).is_none(), "a document has one prepare at most");
        let bytes = version.allocated_bytes() as u64;
        self.bytes += bytes;
        if is_alone(&version) {
            (self.alone, self.alone_bytes) = (self.alone + 1, self.alone_bytes + bytes);
        }
        let hash = self.table.hash(version.document_key());
        self.queue.push_back(InFlight { version, prepared, deadline_ns, is_inherited, hash });
        if self.queue.len() == FEW + 1 && self.table.is_empty() {
            (0..FEW).for_each(|at| self.enter(at));
        }
        if self.queue.len() > FEW || !self.table.is_empty() {
            self.enter(self.queue.len() - 1);
        }
    }

    /// The seqno of the prepare that is in the table under this key.
    fn entered(&self, key: DocKey<'_>) -> Option<Seqno> {
        self.table.find(self.table.hash(key), key).map(|version| prepared_of(&version))
    }

    fn enter(&mut self, at: usize) {
        let version = &self.queue[at].version;
        let hash = self.table.hash(version.key());
        self.table.find_slot(hash, version.key()).insert(version.clone());
    }

    /// Takes a prepare out; nothing if there is no such one. Cheap for the first and the last.
    pub(crate) fn remove(&mut self, prepared: Seqno) -> Option<InFlight> {
        let gone = self.queue.remove(self.place(prepared)?)?;
        let bytes = gone.version.allocated_bytes() as u64;
        self.bytes -= bytes;
        if gone.is_alone() {
            (self.alone, self.alone_bytes) = (self.alone - 1, self.alone_bytes - bytes);
        }
        if !self.table.is_empty() {
            let key = gone.version.key();
            let hash = self.table.hash(key);
            // The queue held the version, too: nothing is freed here.
            drop(self.table.find_slot(hash, key).remove());
        }
        Some(gone)
    }

    /// Streams get nothing from here on.
    pub(crate) fn held_from(&self) -> Seqno {
        self.held_from
    }

    /// Holds back what comes from `from` on, unless something is held back already.
    pub(crate) fn hold(&mut self, from: Seqno) {
        self.held_from = self.held_from.min(from);
    }

    /// Lets streams have what is held back, as far as it is committed, with the disk at `persisted`.
    pub(crate) fn release(&mut self, persisted: Seqno) {
        match self.first_alone() {
            None => self.held_from = NOT_HELD,
            // Everything on disk is committed, and it ends with a range.
            Some(first) if first.prepared > persisted => {
                self.held_from = self.held_from.max(persisted.next());
            }
            Some(_) => {}
        }
    }

    /// A prepare waits from now on for as long as it takes.
    pub(crate) fn forget_deadline(&mut self, prepared: Seqno) {
        if let Some(at) = self.place(prepared) {
            self.queue[at].deadline_ns = NO_DEADLINE;
        }
    }

    fn place(&self, prepared: Seqno) -> Option<usize> {
        if self.queue.front()?.prepared == prepared {
            return Some(0);
        }
        self.queue.binary_search_by_key(&prepared, |other| other.prepared).ok()
    }
}
