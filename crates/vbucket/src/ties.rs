//! Keys whose version must not leave the table for now: somebody looks for them on disk, or only memory knows their CAS.

use std::collections::HashMap;

use base::memory::Part;
use base::{Account, DocKey};

use crate::locks::with_encoded;

/// What a tie takes besides its key: its place in the map, and the allocation.
const TIE_BYTES: usize = 48;

/// Why a key is tied.
#[derive(Clone, Copy, Debug, Default)]
struct Tie {
    /// How many look for it, or have not looked yet at what was found.
    lookers: u32,
    /// The disk was asked since it was tied: there is nothing for the key that the table does not know.
    known: bool,
    /// A lock gave its version a CAS that is not on disk.
    relocked: bool,
}

/// The tied keys of one vBucket. Empty, it owns no memory.
///
/// While a key is tied its version does not leave the table. So what the disk was found to hold, once it is in the
/// table, or the certainty that the disk holds nothing, stays right until the tie ends.
pub(crate) struct Ties {
    account: Account,
    by_key: HashMap<Box<[u8]>, Tie>,
}

impl Ties {
    pub(crate) fn new(account: &Account) -> Ties {
        Ties { account: account.clone(), by_key: HashMap::new() }
    }

    /// Whether the key is tied.
    #[inline]
    pub(crate) fn hold(&self, key: DocKey<'_>) -> bool {
        self.get(key).is_some()
    }

    /// Whether the table says all that there is about the key.
    pub(crate) fn know(&self, key: DocKey<'_>) -> bool {
        self.get(key).is_some_and(|tie| tie.known)
    }

    /// Somebody is about to ask the disk for the key; [`Ties::release`] it in the end.
    pub(crate) fn look(&mut self, key: DocKey<'_>) {
        self.tie(key).lookers += 1;
    }

    /// What the disk says about the key is in the table now, or it has nothing to say.
    pub(crate) fn found(&mut self, key: DocKey<'_>) {
        self.tie(key).known = true;
    }

    /// Somebody who looked for the key has seen what came of it.
    pub(crate) fn release(&mut self, key: DocKey<'_>) {
        self.change(key, |tie| tie.lookers -= 1);
    }

    /// A lock gave the key's version a CAS of its own.
    pub(crate) fn relock(&mut self, key: DocKey<'_>) {
        self.tie(key).relocked = true;
    }

    /// The key has a new version, whose CAS will be on disk.
    #[inline]
    pub(crate) fn changed(&mut self, key: DocKey<'_>) {
        if !self.by_key.is_empty() {
            self.change(key, |tie| tie.relocked = false);
        }
    }

    fn get(&self, key: DocKey<'_>) -> Option<&Tie> {
        if self.by_key.is_empty() {
            return None;
        }
        with_encoded(key, |key| self.by_key.get(key))
    }

    fn tie(&mut self, key: DocKey<'_>) -> &mut Tie {
        let key = key.to_stored().0;
        self.by_key.entry(key).or_insert_with_key(|key| {
            self.account.charge(Part::Other, key.len() + TIE_BYTES);
            Tie::default()
        })
    }

    fn change(&mut self, key: DocKey<'_>, change: impl FnOnce(&mut Tie)) {
        with_encoded(key, |key| {
            let Some(tie) = self.by_key.get_mut(key) else { return };
            change(tie);
            if tie.lookers == 0 && !tie.relocked {
                self.by_key.remove(key);
                self.account.release(Part::Other, key.len() + TIE_BYTES);
            }
        });
        if self.by_key.is_empty() {
            self.by_key = HashMap::new();
        }
    }
}

impl Drop for Ties {
    fn drop(&mut self) {
        let bytes = self.by_key.keys().map(|key| key.len() + TIE_BYTES).sum();
        self.account.release(Part::Other, bytes);
    }
}
