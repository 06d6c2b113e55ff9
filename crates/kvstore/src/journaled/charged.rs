//! Lists of versions that are charged to the bucket: eight bytes for each, as the versions are charged by themselves.

use std::ops::Deref;

use base::{Account, Part, Version};

/// A list of versions that stays as it is.
pub(super) struct Charged {
    versions: Vec<Version>,
    account: Account,
}

impl Charged {
    /// Charges a list until it is dropped.
    pub(super) fn new(mut versions: Vec<Version>, account: &Account) -> Charged {
        versions.shrink_to_fit();
        account.charge(Part::Storage, bytes(&versions));
        Charged { versions, account: account.clone() }
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
