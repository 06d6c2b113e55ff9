//! How long background tasks run and wait, and how long operations of the store take.
//!
//! *Units*: nanoseconds of the monotonic clock.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use base::env::{Clock, StepMarks};
use base::{Histogram, HistogramCounts};

use crate::progress::Progress;

/// What a task mostly does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TaskKind {
    /// Reads from the store for clients.
    Reader,
    /// Writes to the store.
    Writer,
    /// Reads from the store for streams and after a start.
    AuxIo,
    /// Works on memory.
    NonIo,
}

/// Tasks that have threads of their own; chores share the keeper's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub(crate) enum TaskId {
    /// Saves changes.
    Flusher,
    /// Brings files up to date behind the journal.
    Filer,
    /// Compacts files.
    Compactor,
    /// Reads what clients wait for.
    Fetcher,
    /// Loads documents and values after a start.
    Loader,
    /// Reads for streams.
    Backfiller,
}

/// A row for each: name, kind, and what it does.
type TaskRow = (&'static str, TaskKind, &'static str);
pub(crate) static TASKS: [TaskRow; 6] = [
    ("flusher", TaskKind::Writer, "Saves changes"),
    ("filer", TaskKind::Writer, "Brings files up to date behind the journal"),
    ("compactor", TaskKind::Writer, "Compacts files"),
    ("fetcher", TaskKind::Reader, "Reads documents that clients wait for"),
    ("loader", TaskKind::AuxIo, "Loads documents and values after a start"),
    ("backfiller", TaskKind::AuxIo, "Reads changes for streams"),
];

/// What the store is asked to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub(crate) enum StoreOp {
    /// Make a group of batches durable.
    Commit,
    /// Bring files up to date behind the journal, a piece at a time.
    Save,
    /// Compact one file.
    Compact,
    /// Read several documents.
    Fetch,
    /// Read a slice of changes for a stream.
    Backfill,
}

pub(crate) static STORE_OPS: [&str; 5] = ["commit", "save", "compact", "fetch", "backfill"];

/// When one task runs and how long that takes. Several threads may run it at the same time.
#[derive(Default)]
pub(crate) struct TaskClock {
    running: AtomicU64,
    started_ns: AtomicU64,
    previous_ns: AtomicU64,
    pub(crate) wait: Histogram,
    run: Histogram,
    /// What its threads do.
    pub(crate) marks: StepMarks,
}

impl TaskClock {
    /// Runs a step of the task, which was due at `due_ns`, if that is known.
    pub(crate) fn time<T>(&self, clock: &dyn Clock, due_ns: Option<u64>, step: impl FnOnce() -> T) -> T {
        self.time_if(clock, due_ns, step, |_| true)
    }

    /// The same; a step that did nothing is not counted.
    pub(crate) fn time_if<T>(
        &self,
        clock: &dyn Clock,
        due_ns: Option<u64>,
        step: impl FnOnce() -> T,
        did_something: impl FnOnce(&T) -> bool,
    ) -> T {
        let started_ns = clock.monotonic_ns();
        if let Some(due_ns) = due_ns {
            self.wait.record(started_ns.saturating_sub(due_ns));
        }
        self.started_ns.store(started_ns, Ordering::Relaxed);
        self.running.fetch_add(1, Ordering::Relaxed);
        let done = self.marks.run(step);
        self.running.fetch_sub(1, Ordering::Relaxed);
        let took_ns = clock.monotonic_ns().saturating_sub(started_ns);
        if did_something(&done) {
            self.previous_ns.store(took_ns, Ordering::Relaxed);
            self.run.record(took_ns);
        }
        done
    }

    pub(crate) fn stats(
        &self,
        name: &'static str,
        kind: TaskKind,
        does: &'static str,
        due_ns: u64,
    ) -> TaskStats {
        TaskStats {
            name,
            kind,
            does,
            due_ns,
            running: self.running.load(Ordering::Relaxed),
            started_ns: self.started_ns.load(Ordering::Relaxed),
            previous_ns: self.previous_ns.load(Ordering::Relaxed),
            wait: self.wait.counts(),
            run: self.run.counts(),
        }
    }
}

/// What a background task did so far.
#[derive(Clone, Debug)]
pub struct TaskStats {
    /// Its name.
    pub name: &'static str,
    /// What it mostly does.
    pub kind: TaskKind,
    /// What it does, in words.
    pub does: &'static str,
    /// When it runs next if nothing wakes it; `u64::MAX` if it waits for work.
    pub due_ns: u64,
    /// Threads that run a step of it now.
    pub running: u64,
    /// When its last step began.
    pub started_ns: u64,
    /// How long the last finished step took.
    pub previous_ns: u64,
    /// How long it was due before it ran, or how long those waited that it worked for, where that is known.
    pub wait: HistogramCounts,
    /// How long its steps took.
    pub run: HistogramCounts,
}

/// The clocks of a bucket's tasks that have threads of their own, and of what its store does.
pub(crate) struct Tasks {
    clock: Arc<dyn Clock>,
    pub(crate) tasks: [TaskClock; TASKS.len()],
    pub(crate) store: [Histogram; STORE_OPS.len()],
}

impl Tasks {
    pub(crate) fn new(clock: &Arc<dyn Clock>) -> Tasks {
        Tasks { clock: Arc::clone(clock), tasks: Default::default(), store: Default::default() }
    }

    /// Runs a step of a task; one that found nothing to do is not counted.
    pub(crate) fn step(&self, task: TaskId, step: impl FnOnce() -> Progress) -> Progress {
        self.tasks[task as usize].time_if(&*self.clock, None, step, |progress| *progress != Progress::Idle)
    }

    /// Runs a step of a task that has something to do.
    pub(crate) fn run<T>(&self, task: TaskId, step: impl FnOnce() -> T) -> T {
        self.tasks[task as usize].time(&*self.clock, None, step)
    }

    /// A client had to wait for a fetcher since a moment on the monotonic clock.
    pub(crate) fn waited_for_fetcher(&self, since_ns: u64) {
        let waited_ns = self.clock.monotonic_ns().saturating_sub(since_ns);
        self.tasks[TaskId::Fetcher as usize].wait.record(waited_ns);
    }

    /// Has the store do something.
    pub(crate) fn store_op<T>(&self, op: StoreOp, work: impl FnOnce() -> T) -> T {
        self.store_op_if(op, work, |_| true)
    }

    /// The same, with the moments from which and until which it did so.
    pub(crate) fn store_op_timed<T>(&self, op: StoreOp, work: impl FnOnce() -> T) -> (T, (u64, u64)) {
        let from_ns = self.clock.monotonic_ns();
        let done = work();
        let until_ns = self.clock.monotonic_ns();
        self.store[op as usize].record(until_ns.saturating_sub(from_ns));
        (done, (from_ns, until_ns))
    }

    /// The same without them; what turned out to be nothing is not counted.
    pub(crate) fn store_op_if<T>(
        &self,
        op: StoreOp,
        work: impl FnOnce() -> T,
        did_something: impl FnOnce(&T) -> bool,
    ) -> T {
        let started_ns = self.clock.monotonic_ns();
        let done = work();
        if did_something(&done) {
            self.store[op as usize].record(self.clock.monotonic_ns().saturating_sub(started_ns));
        }
        done
    }
}

#[cfg(test)]
mod tests {
    use base::env::Env;

    use super::*;

    #[test]
    fn a_task_is_told_while_it_runs_and_afterwards() {
        let (env, handles) = Env::sim(1);
        let advance = |ns| handles.clock.advance(std::time::Duration::from_nanos(ns));
        let task = TaskClock::default();
        let stats = || task.stats("task", TaskKind::NonIo, "Works", u64::MAX);
        advance(5000);
        let due_ns = env.clock.monotonic_ns() - 3000;
        task.time(&*env.clock, Some(due_ns), || {
            advance(7000);
            assert_eq!((stats().running, stats().started_ns), (1, due_ns + 3000));
        });
        task.time(&*env.clock, None, || advance(1000));
        let stats = stats();
        assert_eq!((stats.running, stats.previous_ns), (0, 1000));
        assert_eq!((stats.wait.total(), stats.wait.sum_ns()), (1, 3000));
        assert_eq!((stats.run.total(), stats.run.sum_ns()), (2, 8000));
    }

    #[test]
    fn every_task_and_operation_has_a_row() {
        assert_eq!(TaskId::Backfiller as usize + 1, TASKS.len());
        assert_eq!(StoreOp::Backfill as usize + 1, STORE_OPS.len());
    }
}
