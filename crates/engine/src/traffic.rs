//! Whether clients may use a bucket's documents.

use std::sync::atomic::{AtomicBool, Ordering};

/// Whether clients may read and write documents of a bucket. They may from its opening on, until an administrator says
/// otherwise; it is not kept over a restart.
#[derive(Debug, Default)]
pub struct Traffic {
    is_disabled: AtomicBool,
}

impl Traffic {
    /// Whether they may.
    #[inline]
    pub fn is_enabled(&self) -> bool {
        !self.is_disabled.load(Ordering::Relaxed)
    }

    /// Lets clients in, or keeps them out. Operations that have begun go on.
    pub fn enable(&self, is_enabled: bool) {
        self.is_disabled.store(!is_enabled, Ordering::Relaxed);
    }
}
