//! The housekeeper of a bucket: one thread that runs the background steps over memory, each within its time slice.
//!
//! Production runs [`Maintenance::run_keeper`] on a thread; tests run [`Maintenance::keep_step`] in the order they choose.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use parking_lot::Mutex;

use crate::bucket_core::Core;
use crate::keeper::{Chore, ChoreId, Next, Slice};
use crate::replica::Replicas;
use crate::tasks::TaskStats;
use crate::wakes::Ring;

/// When it is told to end, so that what it has begun ends in time, too.
const END_AFTER: Duration = Duration::from_millis(22);

/// A bucket whose memory has not changed for so long is at rest. By then checkpoints that were kept for streams have gone,
/// and what was needed only for work is given back.
const REST_AFTER: Duration = Duration::from_secs(12);

/// Whether a bucket does anything, as its account of memory tells.
struct Activity {
    used_bytes: u64,
    /// Since when it has not changed, on the monotonic clock.
    since_ns: u64,
}

impl Activity {
    /// Looks at the bucket, and notes whether it is at rest.
    fn look(&mut self, core: &Core, now_ns: u64) {
        let used_bytes = core.memory.used_bytes();
        let is_roused = core.keeper.is_roused.swap(false, Ordering::Relaxed);
        // Where there is no disk, no save tells that work begins.
        if is_roused || used_bytes != self.used_bytes || core.is_ephemeral() {
            *self = Activity { used_bytes, since_ns: now_ns };
        }
        let is_at_rest = now_ns.saturating_sub(self.since_ns) >= REST_AFTER.as_nanos() as u64;
        let was_at_rest = core.keeper.is_at_rest.swap(is_at_rest, Ordering::AcqRel);
        if !is_at_rest && (was_at_rest || is_roused) {
            core.keeper.look_soon(now_ns);
        }
    }
}

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
        let mut activity = Activity { used_bytes: 0, since_ns: self.core.env.clock.monotonic_ns() };
        while !self.core.keeper.is_stopping.load(Ordering::Relaxed) {
            let pause = self.keep_round(&mut activity);
            let mut woken = self.core.keeper.is_woken.lock();
            if !std::mem::take(&mut *woken) && !pause.is_zero() {
                self.core.keeper.wake.wait_for(&mut woken, pause);
            }
        }
    }

    /// A round of the thread; how long it sleeps then, if nobody wakes it.
    fn keep_round(&self, activity: &mut Activity) -> Duration {
        self.keep_step();
        let now_ns = self.core.env.clock.monotonic_ns();
        activity.look(&self.core, now_ns);
        self.core.keeper.pause(now_ns)
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

#[cfg(test)]
mod tests {
    use base::env::{Env, SimHandles};
    use base::{Account, Cas, Datatype, DocKey, Heap, VbId};

    use super::*;
    use crate::bucket::Bucket;
    use crate::config::BucketConfig;
    use crate::store::{StoreMode, StoreRequest};

    fn opened() -> (Bucket, SimHandles) {
        let (mut env, handles) = Env::sim(1);
        env.heap = Heap::new(Account::new());
        let mut config = BucketConfig::new("test", "/data/test".into());
        config.vbuckets = 8;
        let store = kvstore::Couch::open(env.clone(), &config.dir, kvstore::CouchConfig::default());
        let store = Arc::new(store.expect("the disk works"));
        (Bucket::open(config, env, store).expect("the disk works"), handles)
    }

    fn save(bucket: &Bucket, key: &str) {
        let request = StoreRequest {
            key: DocKey::new(key.as_bytes()),
            body: b"{}",
            datatype: Datatype::RAW,
            flags: 0,
            expiry: 0,
            mode: StoreMode::Set,
            cas: Cas::ANY,
            preserve_expiry: false,
        };
        bucket.documents.store(VbId(1), &request, bucket.now()).expect("there is room");
        assert!(bucket.flushing.flush_all());
    }

    /// Runs rounds, each behind the pause of the one before, until so much time is over; how many.
    fn rounds(bucket: &Bucket, handles: &SimHandles, activity: &mut Activity, time: Duration) -> usize {
        let mut left = time;
        let mut count = 0;
        while !left.is_zero() {
            // A chore that has more to do runs again at once, for no time of this clock.
            let pause = bucket.maintenance.keep_round(activity).max(Duration::from_millis(1)).min(left);
            handles.clock.advance(pause);
            left -= pause;
            count += 1;
        }
        count
    }

    #[test]
    fn a_bucket_without_changes_rests_until_something_is_saved() {
        let (bucket, handles) = opened();
        let is_at_rest = || bucket.core.keeper.is_at_rest.load(Ordering::Relaxed);
        let mut activity = Activity { used_bytes: 0, since_ns: bucket.core.env.clock.monotonic_ns() };
        let minute = Duration::from_secs(60);
        for key in ["first", "second"] {
            save(&bucket, key);
            assert!(!is_at_rest(), "a save ends the rest");
            let working = rounds(&bucket, &handles, &mut activity, REST_AFTER - Duration::from_secs(1));
            assert!(working >= 11 && !is_at_rest(), "it looks every second: {working} rounds");
            rounds(&bucket, &handles, &mut activity, minute);
            assert!(is_at_rest());
            let resting = rounds(&bucket, &handles, &mut activity, minute);
            assert!((12..=24).contains(&resting) && is_at_rest(), "{resting} rounds in a minute of rest");
        }
    }
}
