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
#[derive(Default)]
pub(crate) struct Wakes(Vec<Arc<dyn Ring>>);

impl Wakes {
    /// Adds a thread to wake.
    pub(crate) fn add(&mut self, woken: Arc<dyn Ring>) {
        self.0.push(woken);
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Drop for Wakes {
    #[inline]
    fn drop(&mut self) {
        if !self.0.is_empty() {
            ring_all(&mut self.0);
        }
    }
}

#[cold]
fn ring_all(woken: &mut Vec<Arc<dyn Ring>>) {
    assert_unlocked();
    woken.drain(..).for_each(|one| one.ring());
}
