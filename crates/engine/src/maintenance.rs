//! The housekeeper of a bucket: one thread that runs the background steps over memory, each within its time slice.
//!
//! Production runs [`Maintenance::run_keeper`] on a thread; tests run [`Maintenance::keep_step`] in the order they choose.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use parking_lot::Mutex;

use crate::bucket_core::Core;
use crate::keeper::{Chore, ChoreId, LONGEST_PAUSE, Next, Slice};
use crate::replica::Replicas;
use crate::tasks::TaskStats;
use crate::wakes::Ring;

/// When it is told to end, so that what it has begun ends in time, too.
const END_AFTER: Duration = Duration::from_millis(22);

/// What a chore did so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChoreStats {
    /// Its name.
    pub name: &'static str,
    /// Steps it ran.
    pub steps: u64,
    /// Time it took, in nanoseconds.
    pub total_ns: u64,
    /// Its longest step, in nanoseconds.
    pub longest_ns: u64,
}

/// A chore together with what it works on.
pub(crate) trait Step: Send {
    fn step(&mut self, slice: &Slice<'_>) -> Next;
}

struct Bound<C: Chore>(C, Arc<C::Of>);

impl<C: Chore> Step for Bound<C> {
    fn step(&mut self, slice: &Slice<'_>) -> Next {
        self.0.step(&self.1, slice)
    }
}

/// A chore that works on a part.
pub(crate) fn bound<C: Chore + 'static>(chore: C, of: &Arc<C::Of>) -> Box<dyn Step> {
    Box::new(Bound(chore, Arc::clone(of)))
}

/// The chores of a bucket.
pub struct Maintenance {
    core: Arc<Core>,
    replicas: Arc<Replicas>,
    chores: Vec<Mutex<Box<dyn Step>>>,
}

impl Maintenance {
    /// `chores` are all of them, in the order of their ids.
    pub(crate) fn new(
        core: &Arc<Core>,
        replicas: &Arc<Replicas>,
        chores: Vec<(ChoreId, Box<dyn Step>)>,
    ) -> Maintenance {
        let in_order = chores.iter().enumerate().all(|(at, (id, _))| *id as usize == at);
        assert!(in_order && chores.len() == core.keeper.posts.len(), "each chore has a post");
        let chores = chores.into_iter().map(|(_, chore)| Mutex::new(chore)).collect();
        Maintenance { core: Arc::clone(core), replicas: Arc::clone(replicas), chores }
    }

    /// Runs each chore that is due for one time slice. Says whether any was.
    pub fn keep_step(&self) -> bool {
        let mut any = false;
        for at in 0..self.core.keeper.posts.len() {
            any |= self.keep(at);
        }
        if any {
            self.replicas.tell_replica_room();
        }
        any
    }

    fn keep(&self, at: usize) -> bool {
        let post = &self.core.keeper.posts[at];
        let clock = &*self.core.env.clock;
        let begin = clock.monotonic_ns();
        let due_ns = post.due_ns.load(Ordering::Relaxed);
        if due_ns > begin || self.core.keeper.is_stopping.load(Ordering::Relaxed) {
            return false;
        }
        // Whoever wakes it during the step makes it due again.
        post.due_ns.store(u64::MAX, Ordering::Relaxed);
        let slice = Slice { clock, end_ns: begin + END_AFTER.as_nanos() as u64 };
        // Who woke it did not say when.
        let since_ns = (due_ns > 0).then_some(due_ns);
        let next = post.clock.time(clock, since_ns, || self.chores[at].lock().step(&slice));
        let end = clock.monotonic_ns();
        let due = match next {
            Next::Again => end,
            Next::After(pause) => end.saturating_add(pause.as_nanos() as u64),
        };
        // A wake during the step, also one by the step itself, wrote another time: the earlier one counts.
        post.due_ns.fetch_min(due, Ordering::Relaxed);
        true
    }

    /// Runs chores until the bucket is closed; for a thread of its own.
    pub fn run_keeper(&self) {
        while !self.core.keeper.is_stopping.load(Ordering::Relaxed) {
            self.keep_step();
            let now = self.core.env.clock.monotonic_ns();
            let pause =
                Duration::from_nanos(self.core.keeper.earliest_ns().saturating_sub(now)).min(LONGEST_PAUSE);
            let mut woken = self.core.keeper.is_woken.lock();
            if !std::mem::take(&mut *woken) && !pause.is_zero() {
                self.core.keeper.wake.wait_for(&mut woken, pause);
            }
        }
    }

    /// Lets the keeper's thread end after its present step.
    pub fn stop_keeper(&self) {
        self.core.keeper.is_stopping.store(true, Ordering::Relaxed);
        self.core.keeper.ring();
    }

    /// What each chore did so far.
    pub fn chore_stats(&self) -> Vec<ChoreStats> {
        let stats = |task: TaskStats| ChoreStats {
            name: task.name,
            steps: task.run.total(),
            total_ns: task.run.sum_ns(),
            longest_ns: task.run.longest_ns(),
        };
        self.core.keeper.task_stats().map(stats).collect()
    }
}
