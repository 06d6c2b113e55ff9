//! A lock for some nanoseconds: taken with one atomic exchange and left with a plain store.

use std::cell::UnsafeCell;
use std::hint::spin_loop;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, Ordering};

/// Looks at the lock before the processor is left to somebody else, who may be its holder.
const SPINS: u32 = 100;

/// What it guards may only be held for a few dozen instructions, without a call of the system.
pub(super) struct Lock<T> {
    is_held: AtomicBool,
    value: UnsafeCell<T>,
}

// SAFETY: the value is reached only through a guard, and there is one guard at a time.
unsafe impl<T: Send> Sync for Lock<T> {}

/// What holds the lock. Who borrows it from another thread reads the value there, so it is `Sync` only if the value is.
pub(super) struct Guard<'a, T>(&'a Lock<T>, PhantomData<&'a mut T>);

impl<T> Lock<T> {
    pub(super) const fn new(value: T) -> Lock<T> {
        Lock { is_held: AtomicBool::new(false), value: UnsafeCell::new(value) }
    }

    #[inline]
    pub(super) fn lock(&self) -> Guard<'_, T> {
        if self.is_held.swap(true, Ordering::Acquire) {
            self.wait();
        }
        Guard(self, PhantomData)
    }

    pub(super) fn try_lock(&self) -> Option<Guard<'_, T>> {
        // A guard that is made too early would release, when it is dropped, what somebody else holds.
        if self.is_held.swap(true, Ordering::Acquire) { None } else { Some(Guard(self, PhantomData)) }
    }

    #[cold]
    fn wait(&self) {
        loop {
            for _ in 0..SPINS {
                if !self.is_held.load(Ordering::Relaxed) && !self.is_held.swap(true, Ordering::Acquire) {
                    return;
                }
                spin_loop();
            }
            std::thread::yield_now();
        }
    }
}

impl<T> Drop for Guard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        self.0.is_held.store(false, Ordering::Release);
    }
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: there is one guard at a time, and it is borrowed.
        unsafe { &*self.0.value.get() }
    }
}

impl<T> DerefMut for Guard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: there is one guard at a time, and it is borrowed exclusively.
        unsafe { &mut *self.0.value.get() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A guard used to be made and dropped where there was none to give: that released the holder's lock, two threads
    /// changed one shard, and its counts went below zero when the heap was given up.
    #[test]
    fn whoever_tries_in_vain_leaves_the_lock_to_its_holder() {
        let lock = Lock::new(1);
        let held = lock.lock();
        assert!(lock.try_lock().is_none());
        assert!(lock.try_lock().is_none());
        drop(held);
        *lock.try_lock().expect("nobody holds it") = 2;
        assert_eq!(*lock.lock(), 2);
    }
}
