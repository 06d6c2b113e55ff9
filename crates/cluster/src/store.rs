//! The coordination store: few small entries under one prefix, compare-and-swap, leases, and waiting for changes.

mod file;
mod memory;
pub mod suite;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::state::Invalid;

pub use file::FileStore;
pub use memory::MemoryStore;

/// A moment in the life of a store: rises with every change of any entry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version(pub u64);

impl Version {
    /// The version of an entry that is not there.
    pub const ABSENT: Version = Version(0);
}

/// A promise to be heard of again; what is bound to it goes when it runs out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LeaseId(pub i64);

/// An entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its bytes.
    pub value: Vec<u8>,
    /// The change that wrote it.
    pub version: Version,
}

/// All entries at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// The moment.
    pub version: Version,
    /// The entries by key.
    pub entries: BTreeMap<String, Entry>,
}

impl Snapshot {
    /// The version of an entry; [`Version::ABSENT`] if there is none.
    pub fn version_of(&self, key: &str) -> Version {
        self.entries.get(key).map_or(Version::ABSENT, |entry| entry.version)
    }
}

/// A change of one entry.
#[derive(Clone, Copy, Debug)]
pub struct Swap<'a> {
    /// Which.
    pub key: &'a str,
    /// What it must be at; nothing if that does not matter.
    pub expected: Option<Version>,
    /// What it becomes; nothing removes it.
    pub value: Option<&'a [u8]>,
    /// The lease it goes with; nothing if it stays.
    pub lease: Option<LeaseId>,
}

/// What an entry becomes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Put {
    /// Which.
    pub key: String,
    /// What it becomes; nothing removes it.
    pub value: Option<Vec<u8>>,
}

impl Put {
    /// An entry that is written, if it is not larger than this.
    pub(crate) fn of(key: &str, value: Vec<u8>, at_most: usize) -> Result<Put, Invalid> {
        if value.len() > at_most {
            return Err(Invalid::TooLarge(value.len()));
        }
        Ok(Put { key: key.to_owned(), value: Some(value) })
    }

    /// About so many bytes it takes in a request.
    pub fn bytes(&self) -> usize {
        self.key.len() + self.value.as_ref().map_or(0, Vec::len) + PUT_OVERHEAD
    }
}

/// Bytes that a store needs beside key and value.
const PUT_OVERHEAD: usize = 64;
/// The most entries that are changed at once: etcd takes 128.
pub const MAX_PUTS: usize = 120;

/// A change of several entries: all of it is done, or nothing.
#[derive(Clone, Copy, Debug)]
pub struct Commit<'a> {
    /// An entry and the version that it must be at; nothing if that does not matter.
    pub guard: Option<(&'a str, Version)>,
    /// What becomes of which, each key once.
    pub puts: &'a [Put],
    /// The lease that the entries go with; nothing if they stay.
    pub lease: Option<LeaseId>,
}

/// How a change ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Swapped {
    /// The entry is at this version now.
    Done(Version),
    /// It was at another version than expected.
    Conflict,
    /// The lease has run out.
    NoLease,
}

/// Why the store did not answer. What was asked may have been done.
#[derive(Debug, thiserror::Error)]
#[error("the coordination store: {operation}: {reason}")]
pub struct StoreFailure {
    /// What was asked.
    pub operation: &'static str,
    /// What went wrong.
    pub reason: String,
}

/// The most bytes of an entry.
pub const MAX_ENTRY_BYTES: usize = crate::state::MAX_BYTES;

/// A coordination store. All methods may be called from any thread, and may block for as long as the store's own
/// bound on a request; what they say is linearizable.
pub trait Store: Send + Sync {
    /// Where its entries are, in words that no other store has, and that stay; empty if nobody needs to tell it from
    /// others.
    fn place(&self) -> String {
        String::new()
    }
    /// A store beside this one, which has entries, versions and waiting of its own; `None` if there can be none.
    fn sibling(&self, _name: &str) -> Result<Option<Arc<dyn Store>>, StoreFailure> {
        Ok(None)
    }
    /// What is wrong with what is shown to the store, such as a certificate or a login, if its last request found that:
    /// a text for everybody, without names and addresses. `None` if it was answered, or not reached at all.
    fn fault(&self) -> Option<&'static str> {
        None
    }
    /// All entries at one moment, not before the call.
    fn read(&self) -> Result<Snapshot, StoreFailure>;
    /// Changes an entry if it is at the expected version.
    fn swap(&self, swap: Swap<'_>) -> Result<Swapped, StoreFailure>;
    /// Changes several entries at once, at most [`MAX_PUTS`], if the guard is at the expected version.
    fn commit(&self, commit: Commit<'_>) -> Result<Swapped, StoreFailure>;
    /// The version of one entry, not before the call.
    fn version_of(&self, key: &str) -> Result<Version, StoreFailure> {
        Ok(self.read()?.version_of(key))
    }
    /// Waits until something has changed after `known`, or for about so long, and says what there is then: all entries
    /// at one moment, which may be over when this returns, and is never before `known` as long as the store itself does
    /// not go back. Returns early at will.
    fn follow(&self, known: Snapshot, at_most: Duration) -> Result<Snapshot, StoreFailure> {
        self.wait(known.version, at_most)?;
        self.read()
    }
    /// Waits until something has changed after `after`, or for about so long. Returns early at will.
    fn wait(&self, after: Version, at_most: Duration) -> Result<(), StoreFailure>;
    /// Grants a lease that runs out when nothing is heard for `ttl`.
    fn grant(&self, ttl: Duration) -> Result<LeaseId, StoreFailure>;
    /// Renews a lease for its whole time, counted from a moment after the call. False if it has run out.
    fn keep_alive(&self, lease: LeaseId) -> Result<bool, StoreFailure>;
    /// Ends a lease, and removes what is bound to it. Fine if it has run out.
    fn revoke(&self, lease: LeaseId) -> Result<(), StoreFailure>;
}
