//! A store in memory, for the nodes of one process.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use base::env::Clock;
use base::planted::{self, Bug};
use parking_lot::{Condvar, Mutex};

use super::{Commit, Entry, LeaseId, Put, Snapshot, Store, StoreFailure, Swap, Swapped, Version};
use crate::state::MAX_COMMIT_BYTES;

/// A store in memory. Its time is that of the clock it was made with.
pub struct MemoryStore {
    clock: Arc<dyn Clock>,
    inner: Mutex<Inner>,
    changed: Condvar,
    siblings: Mutex<BTreeMap<String, Arc<MemoryStore>>>,
}

#[derive(Default)]
struct Inner {
    version: u64,
    entries: BTreeMap<String, Held>,
    leases: BTreeMap<LeaseId, Lease>,
    next_lease: i64,
}

struct Held {
    entry: Entry,
    lease: Option<LeaseId>,
}

struct Lease {
    ttl: Duration,
    ends: Duration,
}

impl Inner {
    /// Removes what has run out.
    fn expire(&mut self, now: Duration) -> bool {
        let over: Vec<LeaseId> =
            self.leases.iter().filter(|(_, lease)| lease.ends <= now).map(|(id, _)| *id).collect();
        let before = self.version;
        over.into_iter().for_each(|id| {
            self.end(id);
        });
        self.version != before
    }

    /// Ends a lease; true if an entry went with it.
    fn end(&mut self, id: LeaseId) -> bool {
        self.leases.remove(&id);
        let before = self.entries.len();
        self.entries.retain(|_, held| held.lease != Some(id));
        let changed = self.entries.len() != before;
        self.version += u64::from(changed);
        changed
    }

    fn swap(&mut self, swap: Swap<'_>) -> Swapped {
        if swap.lease.is_some_and(|id| !self.leases.contains_key(&id)) {
            return Swapped::NoLease;
        }
        let is = self.entries.get(swap.key).map_or(Version::ABSENT, |held| held.entry.version);
        if swap.expected.is_some_and(|expected| expected != is) && !planted::is(Bug::BlindWrite) {
            return Swapped::Conflict;
        }
        self.version += 1;
        let version = Version(self.version);
        match swap.value {
            Some(value) => {
                let entry = Entry { value: value.to_vec(), version };
                self.entries.insert(swap.key.to_owned(), Held { entry, lease: swap.lease });
            }
            None => {
                self.entries.remove(swap.key);
            }
        }
        Swapped::Done(version)
    }
}

impl Inner {
    fn commit(&mut self, commit: Commit<'_>) -> Swapped {
        if commit.lease.is_some_and(|id| !self.leases.contains_key(&id)) {
            return Swapped::NoLease;
        }
        let is = |key: &str| self.entries.get(key).map_or(Version::ABSENT, |held| held.entry.version);
        let is_other = commit.guard.is_some_and(|(key, expected)| is(key) != expected);
        if is_other && !planted::is(Bug::BlindWrite) {
            return Swapped::Conflict;
        }
        self.version += 1;
        let version = Version(self.version);
        for put in commit.puts {
            match &put.value {
                Some(value) => {
                    let entry = Entry { value: value.clone(), version };
                    self.entries.insert(put.key.clone(), Held { entry, lease: commit.lease });
                }
                None => drop(self.entries.remove(&put.key)),
            }
        }
        Swapped::Done(version)
    }
}

impl MemoryStore {
    /// An empty store.
    pub fn new(clock: Arc<dyn Clock>) -> MemoryStore {
        let inner = Inner { version: 1, ..Inner::default() };
        MemoryStore { clock, inner: Mutex::new(inner), changed: Condvar::new(), siblings: Mutex::default() }
    }

    /// A store with these entries, none of them under a lease.
    pub(super) fn with(
        clock: Arc<dyn Clock>,
        version: Version,
        entries: BTreeMap<String, Entry>,
    ) -> MemoryStore {
        let held = |entry| Held { entry, lease: None };
        let entries = entries.into_iter().map(|(key, entry)| (key, held(entry))).collect();
        let inner = Inner { version: version.0.max(1), entries, ..Inner::default() };
        MemoryStore { clock, inner: Mutex::new(inner), changed: Condvar::new(), siblings: Mutex::default() }
    }

    /// The moment of the last change.
    pub fn version(&self) -> Version {
        self.with_inner(|inner| Version(inner.version))
    }

    /// What is there without a lease.
    pub(super) fn lasting(&self) -> Snapshot {
        let inner = self.inner.lock();
        let lasting = inner.entries.iter().filter(|(_, held)| held.lease.is_none());
        let entries = lasting.map(|(key, held)| (key.clone(), held.entry.clone())).collect();
        Snapshot { version: Version(inner.version), entries }
    }

    /// Works on what is there now.
    fn with_inner<T>(&self, work: impl FnOnce(&mut Inner) -> T) -> T {
        let mut inner = self.inner.lock();
        let before = inner.version;
        inner.expire(self.clock.monotonic());
        let result = work(&mut inner);
        if inner.version != before {
            self.changed.notify_all();
        }
        result
    }
}

impl Store for MemoryStore {
    fn sibling(&self, name: &str) -> Result<Option<Arc<dyn Store>>, StoreFailure> {
        let mut siblings = self.siblings.lock();
        let new = || Arc::new(MemoryStore::new(Arc::clone(&self.clock)));
        Ok(Some(Arc::clone(siblings.entry(name.to_owned()).or_insert_with(new)) as Arc<dyn Store>))
    }

    fn read(&self) -> Result<Snapshot, StoreFailure> {
        Ok(self.with_inner(|inner| Snapshot {
            version: Version(inner.version),
            entries: inner.entries.iter().map(|(key, held)| (key.clone(), held.entry.clone())).collect(),
        }))
    }

    fn swap(&self, swap: Swap<'_>) -> Result<Swapped, StoreFailure> {
        if swap.value.is_some_and(|value| value.len() > super::MAX_ENTRY_BYTES) {
            return Err(StoreFailure { operation: "swap", reason: "the entry is too large".to_owned() });
        }
        Ok(self.with_inner(|inner| inner.swap(swap)))
    }

    fn commit(&self, commit: Commit<'_>) -> Result<Swapped, StoreFailure> {
        let values = commit.puts.iter().filter_map(|put| put.value.as_ref());
        let is_too_large = values.map(Vec::len).any(|len| len > super::MAX_ENTRY_BYTES)
            || commit.puts.len() > super::MAX_PUTS
            || commit.puts.iter().map(Put::bytes).sum::<usize>() > MAX_COMMIT_BYTES;
        if is_too_large {
            return Err(StoreFailure { operation: "swap", reason: "the change is too large".to_owned() });
        }
        Ok(self.with_inner(|inner| inner.commit(commit)))
    }

    fn wait(&self, after: Version, at_most: Duration) -> Result<(), StoreFailure> {
        let mut inner = self.inner.lock();
        if inner.expire(self.clock.monotonic()) {
            self.changed.notify_all();
        }
        if inner.version > after.0 {
            return Ok(());
        }
        // A lease that runs out is a change that nobody makes.
        let now = self.clock.monotonic();
        let soonest = inner.leases.values().map(|lease| lease.ends.saturating_sub(now)).min();
        let _ = self.changed.wait_for(&mut inner, soonest.map_or(at_most, |soonest| soonest.min(at_most)));
        Ok(())
    }

    fn grant(&self, ttl: Duration) -> Result<LeaseId, StoreFailure> {
        let ends = self.clock.monotonic() + ttl;
        Ok(self.with_inner(|inner| {
            inner.next_lease += 1;
            let id = LeaseId(inner.next_lease);
            inner.leases.insert(id, Lease { ttl, ends });
            id
        }))
    }

    fn keep_alive(&self, lease: LeaseId) -> Result<bool, StoreFailure> {
        let now = self.clock.monotonic();
        Ok(self.with_inner(|inner| match inner.leases.get_mut(&lease) {
            Some(lease) => {
                lease.ends = now + lease.ttl;
                true
            }
            None => false,
        }))
    }

    fn revoke(&self, lease: LeaseId) -> Result<(), StoreFailure> {
        self.with_inner(|inner| inner.end(lease));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use base::env::Env;

    use super::*;
    use crate::store::suite;

    #[test]
    fn does_what_a_store_must() {
        let (env, handles) = Env::sim(1);
        let store = MemoryStore::new(env.clock.clone());
        suite::run(&store, &|by| handles.clock.advance(by));
    }
}
