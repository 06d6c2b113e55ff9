//! Waking the reader of a stream of changes.

use std::task::Waker;

use parking_lot::Mutex;

/// Who is woken when there is something to send.
#[derive(Default)]
pub struct Bell(Mutex<Option<Waker>>);

impl Bell {
    /// From now on this one.
    pub fn listen(&self, waker: &Waker) {
        let mut heard = self.0.lock();
        if !heard.as_ref().is_some_and(|before| before.will_wake(waker)) {
            *heard = Some(waker.clone());
        }
    }

    /// Wakes the listeners.
    pub fn ring(&self) {
        if let Some(waker) = &*self.0.lock() {
            waker.wake_by_ref();
        }
    }
}
