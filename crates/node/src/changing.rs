//! Changes of the buckets of a node: one at a time, and none begins once the node stops.
//!
//! A stop waits for the change that is under way and for none behind it: those that wait for their turn give up, one
//! after the other, and a change that takes long looks at [`Changing::is_stopping`] between its steps.

use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::{Mutex, MutexGuard};

use crate::management::BucketError;

/// Who changes buckets now.
#[derive(Default)]
pub struct Changing {
    turn: Mutex<()>,
    is_stopping: AtomicBool,
}

impl Changing {
    /// Waits for the turn of a change, which ends when what this returns is dropped.
    ///
    /// # Errors
    ///
    /// If the node stops: nothing is to be changed then.
    pub fn begin(&self) -> Result<MutexGuard<'_, ()>, BucketError> {
        let turn = self.turn.lock();
        if self.is_stopping() {
            return Err(BucketError::NotNow("nothing was changed: the node stops".to_owned()));
        }
        Ok(turn)
    }

    /// The same without waiting; `None` if it is not its turn.
    pub(crate) fn try_begin(&self) -> Option<MutexGuard<'_, ()>> {
        self.turn.try_lock().filter(|_| !self.is_stopping())
    }

    /// No change begins from now on.
    pub fn stop(&self) {
        self.is_stopping.store(true, Ordering::SeqCst);
    }

    /// Whether the node stops: a change that takes long ends.
    pub fn is_stopping(&self) -> bool {
        self.is_stopping.load(Ordering::SeqCst)
    }

    /// Waits until the change that is under way has ended; none begins as long as what this returns is there.
    pub fn wait_for_end(&self) -> MutexGuard<'_, ()> {
        self.turn.lock()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_waits_for_its_turn_gives_up_when_the_node_stops() {
        let changing = Changing::default();
        let turn = changing.begin().expect("no one else changes anything");
        assert!(changing.try_begin().is_none(), "one at a time");
        std::thread::scope(|scope| {
            let waiting: Vec<_> = (0..8).map(|_| scope.spawn(|| changing.begin().is_ok())).collect();
            assert!(waiting.iter().all(|thread| !thread.is_finished()));
            changing.stop();
            drop(turn);
            let has_begun = waiting.into_iter().map(|thread| thread.join().expect("it ends"));
            assert_eq!(has_begun.filter(|has_begun| *has_begun).count(), 0);
        });
        assert!(matches!(changing.begin(), Err(BucketError::NotNow(_))));
        assert!(changing.try_begin().is_none());
        drop(changing.wait_for_end());
    }
}
