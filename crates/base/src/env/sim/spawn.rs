//! Jobs that wait until the test runs them.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::env::{Spawn, spawn::Task};

type Job = (String, Box<dyn FnOnce() + Send>);

/// Queues jobs instead of running them. Clones share the queue.
///
/// Long-running loops have no place here: the simulator calls their steps instead.
#[derive(Clone, Default)]
pub struct SimSpawn(Arc<Mutex<VecDeque<Job>>>);

impl SimSpawn {
    /// An empty queue.
    pub fn new() -> SimSpawn {
        SimSpawn::default()
    }

    /// The names of the jobs that wait, oldest first.
    pub fn waiting(&self) -> Vec<String> {
        self.0.lock().iter().map(|(name, _)| name.clone()).collect()
    }

    /// The jobs that wait are gone, as with their process.
    pub fn clear(&self) {
        let gone = std::mem::take(&mut *self.0.lock());
        drop(gone);
    }

    /// Runs the oldest job here and now; false if there is none.
    pub fn run_one(&self) -> bool {
        let job = self.0.lock().pop_front();
        job.map(|(_, job)| job()).is_some()
    }
}

impl Spawn for SimSpawn {
    /// The task of a queued job counts as joined: waiting for it in one thread would never end.
    fn spawn(&self, name: &str, job: Box<dyn FnOnce() + Send>) -> io::Result<Task> {
        self.0.lock().push_back((name.to_owned(), job));
        Ok(Task::done())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering};

    #[test]
    fn jobs_wait_until_they_are_run() {
        let spawn = SimSpawn::new();
        let ran = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&ran);
        spawn.spawn("j", Box::new(move || seen.store(true, Ordering::SeqCst))).expect("queues take jobs");
        assert_eq!(spawn.waiting(), ["j"]);
        assert!(!ran.load(Ordering::SeqCst));
        assert!(spawn.run_one());
        assert!(ran.load(Ordering::SeqCst));
        assert!(!spawn.run_one());
    }
}
