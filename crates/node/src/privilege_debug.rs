//! Privilege debug: whether a node is in this mode, and what it has told of it (record 223).

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

/// The most different lines of the log; what is beyond that is in the audit log alone.
const MOST_TOLD: usize = 1_000;

/// Whether a node is in this mode. It is not at first.
#[derive(Debug, Default)]
pub struct PrivilegeDebug {
    is_on: AtomicBool,
    told: Mutex<BTreeSet<String>>,
}

impl PrivilegeDebug {
    /// Switches it on for good.
    pub(crate) fn switch_on(&self) {
        self.is_on.store(true, Ordering::Relaxed);
    }

    /// Whether it is on: one load, and only where a request would be refused.
    pub(crate) fn is_on(&self) -> bool {
        self.is_on.load(Ordering::Relaxed)
    }

    /// Whether this was not told yet.
    pub(crate) fn is_new(&self, line: String) -> bool {
        let mut told = self.told.lock();
        told.len() < MOST_TOLD && told.insert(line)
    }
}
