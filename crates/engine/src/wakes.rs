//! Threads that are to be woken when the lock of a vBucket is released.
//!
//! *Guarantee:* no thread is woken under that lock. A wake-up is a call of the system, which may take longer than all that
//! is done under the lock, and the thread that wakes may want the same lock.
//!
//! What is found under the lock (a connection has news, the flusher has work) is noted in the shard; the guard takes the
//! notes along and wakes when it has released the lock.

use std::sync::Arc;

#[cfg(debug_assertions)]
thread_local! {
    /// Locks of vBuckets that this thread holds.
    static HELD: std::cell::Cell<u32> = const { std::cell::Cell::new(0) };
}

/// This thread has taken the lock of a vBucket.
#[inline]
pub(crate) fn note_locked() {
    #[cfg(debug_assertions)]
    HELD.set(HELD.get() + 1);
}

/// It releases the lock before it does anything else.
#[inline]
pub(crate) fn note_unlocked() {
    #[cfg(debug_assertions)]
    HELD.set(HELD.get() - 1);
}

/// Ends a debug build that is about to wake a thread under the lock of a vBucket.
#[inline]
pub(crate) fn assert_unlocked() {
    #[cfg(debug_assertions)]
    assert_eq!(HELD.get(), 0, "no thread is woken under the lock of a vBucket");
}

/// Something that a thread waits for; its state was changed before.
pub(crate) trait Ring: Send + Sync {
    /// Wakes the thread. Not to be called under a vBucket's lock.
    fn ring(&self);
}

/// The threads to wake. Dropping it wakes them, in the order in which they were added.
///
/// It is a pointer alone, since it goes along with the guard of each operation, and most of them wake nobody.
#[derive(Default)]
pub(crate) struct Wakes(Option<Box<WakeList>>);

#[derive(Default)]
struct WakeList(Vec<Arc<dyn Ring>>);

impl Wakes {
    /// Adds a thread to wake.
    pub(crate) fn add(&mut self, woken: Arc<dyn Ring>) {
        self.0.get_or_insert_default().0.push(woken);
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_none()
    }
}

impl Drop for WakeList {
    fn drop(&mut self) {
        assert_unlocked();
        self.0.drain(..).for_each(|one| one.ring());
    }
}
