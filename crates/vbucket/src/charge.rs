//! Bytes charged to an account, which gets them back with the last of them.

use base::{Account, Part};

/// Charged bytes.
pub(crate) struct Charge {
    account: Account,
    bytes: usize,
}

impl Charge {
    /// Nothing so far.
    pub(crate) fn new(account: Account) -> Charge {
        Charge { account, bytes: 0 }
    }

    /// What is charged.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// What took `before` takes `after` now.
    pub(crate) fn change(&mut self, before: usize, after: usize) {
        self.bytes = self.bytes + after - before;
        if after > before {
            self.account.charge(Part::Other, after - before);
        } else if before > after {
            self.account.release(Part::Other, before - after);
        }
    }

    /// All of it takes so many bytes now.
    pub(crate) fn set(&mut self, bytes: usize) {
        self.change(self.bytes, bytes);
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.account.release(Part::Other, self.bytes);
    }
}
