//! Which documents of a vBucket are locked (get-and-lock), by whom and until when.

use std::collections::HashMap;

use base::{Cas, DocKey, Moment, StoredKey};

/// One lock: only a request that carries its CAS may change the document before `until`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lock {
    /// The CAS that the locking request was given.
    pub cas: Cas,
    /// When it ends by itself.
    pub until: Moment,
}

/// The locks of one vBucket. Empty, it owns no memory; ended locks are swept when the number doubles.
#[derive(Default)]
pub struct Locks {
    by_key: HashMap<StoredKey, Lock>,
    sweep_at: usize,
}

impl Locks {
    /// The lock on `key`, if one holds now.
    pub fn holder(&self, key: DocKey<'_>, now: Moment) -> Option<Lock> {
        if self.by_key.is_empty() {
            return None;
        }
        self.by_key.get(&key.to_stored()).copied().filter(|lock| now < lock.until)
    }

    /// Locks `key`.
    pub fn put(&mut self, key: DocKey<'_>, lock: Lock, now: Moment) {
        if self.by_key.len() >= self.sweep_at.max(64) {
            self.by_key.retain(|_, lock| now < lock.until);
            self.sweep_at = self.by_key.len() * 2;
        }
        self.by_key.insert(key.to_stored(), lock);
    }

    /// Ends the lock on `key`.
    pub fn remove(&mut self, key: DocKey<'_>) {
        if !self.by_key.is_empty() {
            self.by_key.remove(&key.to_stored());
        }
    }
}
