//! Which documents of a vBucket are locked (get-and-lock), by whom and until when.

use std::collections::HashMap;

use base::{Cas, DocKey, Moment};

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
    /// By the key with its collection prefix.
    by_key: HashMap<Box<[u8]>, Lock>,
    sweep_at: usize,
}

/// Longest key with its prefix that is looked up without allocating: every key that a version can have.
const MAX_ENCODED_BYTES: usize = 255;

/// Calls `look` with the encoded key.
pub(crate) fn with_encoded<T>(key: DocKey<'_>, look: impl FnOnce(&[u8]) -> T) -> T {
    let (prefix, prefix_len) = key.prefix();
    let len = prefix_len + key.key.len();
    let mut buffer = [0; MAX_ENCODED_BYTES];
    let Some(encoded) = buffer.get_mut(..len) else { return look(&key.to_stored().0) };
    encoded[..prefix_len].copy_from_slice(&prefix[..prefix_len]);
    encoded[prefix_len..].copy_from_slice(key.key);
    look(encoded)
}

impl Locks {
    /// The lock on `key`, if one holds now.
    pub fn holder(&self, key: DocKey<'_>, now: Moment) -> Option<Lock> {
        if self.by_key.is_empty() {
            return None;
        }
        with_encoded(key, |key| self.by_key.get(key).copied()).filter(|lock| now < lock.until)
    }

    /// Locks `key`.
    pub fn put(&mut self, key: DocKey<'_>, lock: Lock, now: Moment) {
        if self.by_key.len() >= self.sweep_at.max(64) {
            self.by_key.retain(|_, lock| now < lock.until);
            self.sweep_at = self.by_key.len() * 2;
        }
        self.by_key.insert(key.to_stored().0, lock);
    }

    /// Ends the lock on `key`.
    pub fn remove(&mut self, key: DocKey<'_>) {
        if !self.by_key.is_empty() {
            with_encoded(key, |key| self.by_key.remove(key));
        }
    }
}

#[cfg(test)]
mod tests {
    use base::CollectionId;

    use super::*;

    fn lock(until: u64) -> Lock {
        Lock { cas: Cas(until), until: Moment(until) }
    }

    #[test]
    fn a_lock_belongs_to_one_key_of_one_collection() {
        let mut locks = Locks::default();
        let long = [b'k'; 300];
        let keys =
            [&b"k"[..], b"kk", &long[..250], &long].map(|key| DocKey { collection: CollectionId(300), key });
        for (at, key) in keys.into_iter().enumerate() {
            assert_eq!(locks.holder(key, Moment(1)), None);
            locks.put(key, lock(10 + at as u64), Moment(1));
            assert_eq!(locks.holder(key, Moment(1)), Some(lock(10 + at as u64)));
            assert_eq!(locks.holder(DocKey::new(key.key), Moment(1)), None);
        }
        locks.remove(keys[1]);
        assert_eq!(keys.map(|key| locks.holder(key, Moment(1)).is_some()), [true, false, true, true]);
        assert_eq!(locks.holder(keys[0], Moment(10)), None, "it has ended");
    }

    #[test]
    fn ended_locks_do_not_pile_up() {
        let mut locks = Locks::default();
        for n in 0..10_000u64 {
            locks.put(DocKey::new(&n.to_be_bytes()), lock(n + 100), Moment(n));
        }
        assert!(locks.by_key.len() <= 300, "{} of which 100 hold", locks.by_key.len());
    }
}
