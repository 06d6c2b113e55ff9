//! The end of a node's membership, which its threads look for and wait for.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

/// Whether the membership has ended.
#[derive(Default)]
pub(super) struct Ending {
    has_come: AtomicBool,
    /// The same, for those who wait.
    is_told: Mutex<bool>,
    told: Condvar,
}

impl Ending {
    pub(super) fn has_come(&self) -> bool {
        self.has_come.load(Ordering::Acquire)
    }

    /// Waits; true if the membership has ended.
    pub(super) fn pause(&self, at_most: Duration) -> bool {
        let mut is_told = self.is_told.lock();
        if !*is_told {
            let _ = self.told.wait_for(&mut is_told, at_most);
        }
        *is_told
    }

    /// The membership ends: the fence is closed for good.
    pub(super) fn come(&self) {
        self.has_come.store(true, Ordering::Release);
        *self.is_told.lock() = true;
        self.told.notify_all();
    }
}
