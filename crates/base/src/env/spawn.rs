//! Where threads come from.

use std::io;

/// Starts threads. In the simulator there are none: the simulator calls the steps itself, in the order it chooses.
pub trait Spawn: Send + Sync {
    /// Runs `job` on a thread of its own.
    fn spawn(&self, name: &str, job: Box<dyn FnOnce() + Send>) -> io::Result<Task>;
}

/// A started thread.
pub struct Task(TaskState);

enum TaskState {
    Thread(std::thread::JoinHandle<()>),
    Done,
}

impl Task {
    /// A job that needs no waiting for.
    pub fn done() -> Task {
        Task(TaskState::Done)
    }

    /// Whether its thread has not ended yet.
    pub fn is_running(&self) -> bool {
        match &self.0 {
            TaskState::Thread(handle) => !handle.is_finished(),
            TaskState::Done => false,
        }
    }

    /// Waits for its end; false if it panicked.
    pub fn join(self) -> bool {
        match self.0 {
            TaskState::Thread(handle) => handle.join().is_ok(),
            TaskState::Done => true,
        }
    }
}

/// The machine's threads.
pub struct RealSpawn;

impl Spawn for RealSpawn {
    #[allow(clippy::disallowed_methods, reason = "this is the door itself")]
    fn spawn(&self, name: &str, job: Box<dyn FnOnce() + Send>) -> io::Result<Task> {
        let handle = std::thread::Builder::new().name(name.to_owned()).spawn(job)?;
        Ok(Task(TaskState::Thread(handle)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn a_real_job_runs_beside() {
        let (send, receive) = mpsc::channel();
        let job = Box::new(move || {
            send.send(std::thread::current().name().map(str::to_owned)).expect("somebody waits");
        });
        let task = RealSpawn.spawn("flusher", job).expect("threads are there");
        assert_eq!(receive.recv().expect("the job runs").as_deref(), Some("flusher"));
        assert!(task.join());
    }
}
