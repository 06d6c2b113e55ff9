//! Lists of versions that are charged to the bucket: eight bytes for each, as the versions are charged by themselves.

use std::ops::Deref;

use base::{Account, Part, Version};

use crate::sort::sort_newest;

/// A list of versions that never grows beyond the room that it was made with.
pub(super) struct Charged {
    versions: Vec<Version>,
    account: Account,
}

impl Charged {
    /// Charges a list until it is dropped.
    pub(super) fn new(mut versions: Vec<Version>, account: &Account) -> Charged {
        versions.shrink_to_fit();
        Charged::with_room(versions, account)
    }

    /// An empty list with room for so many versions.
    pub(super) fn with_capacity(most: usize, account: &Account) -> Charged {
        Charged::with_room(Vec::with_capacity(most), account)
    }

    fn with_room(versions: Vec<Version>, account: &Account) -> Charged {
        account.charge(Part::Storage, bytes(&versions));
        Charged { versions, account: account.clone() }
    }

    /// How many more it has room for.
    pub(super) fn room(&self) -> usize {
        self.versions.capacity() - self.versions.len()
    }

    /// Appends versions that it has room for.
    pub(super) fn extend(&mut self, more: &[Version]) {
        assert!(more.len() <= self.room(), "it was charged as large as it is");
        self.versions.extend_from_slice(more);
    }

    /// Sorts by stored key, and keeps the newest version of each. All of them are asked for first, as nobody looked at
    /// them for long.
    pub(super) fn sort_newest(&mut self) {
        self.versions.iter().for_each(|version| version.prefetch());
        sort_newest(&mut self.versions);
    }
}

fn bytes(versions: &Vec<Version>) -> usize {
    versions.capacity() * size_of::<Version>() + size_of::<Charged>()
}

impl Deref for Charged {
    type Target = [Version];

    fn deref(&self) -> &[Version] {
        &self.versions
    }
}

impl Drop for Charged {
    fn drop(&mut self) {
        self.account.release(Part::Storage, bytes(&self.versions));
    }
}
