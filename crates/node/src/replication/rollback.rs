//! Going back in history reads and writes files, so it happens on a thread of its own.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::pin;
use std::sync::{Arc, OnceLock};
use std::task::Poll;

use base::env::{Env, Task};
use base::{Seqno, VbId};
use dcp::RollBack;
use engine::Bucket;
use parking_lot::Mutex;

use super::login::LinkError;
use crate::notify::Notify;

/// How a rollback went: the vBucket, and where it stands now, or why it could not be done.
pub type RolledBack = (VbId, Result<Seqno, &'static str>);

/// Rollbacks under way whose connections have ended: neither waits for the other, and who closes the buckets waits for both.
#[derive(Default)]
pub struct LeftRollbacks(Mutex<Vec<Task>>);

impl LeftRollbacks {
    fn keep(&self, thread: Task) {
        let mut left = self.0.lock();
        // No more than are under way.
        left.retain(Task::is_running);
        left.push(thread);
    }

    /// Waits for all of them; false if one panicked that had not ended when another one was left.
    pub fn join(&self) -> bool {
        let left = std::mem::take(&mut *self.0.lock());
        left.into_iter().map(Task::join).filter(|sound| !sound).count() == 0
    }
}

/// What is said of a vBucket whose file came and cannot be used.
const UNFIT: &str = "its file cannot be used: see file_refused of the link";

/// What reads and writes the files of a vBucket.
enum Job {
    Back(RollBack),
    /// A file that came takes the place of a vBucket.
    Fill(VbId),
}

/// Hears of a vBucket whose file cannot be used, and why not.
type NoteRefused = Arc<dyn Fn(VbId, &str) + Send + Sync>;

/// Rolls back for one link, and puts files in place: one vBucket after the other, each on a thread that ends with it.
///
/// There is at most one rollback under way or asked for of each vBucket and connection. The outcome of a file that was put
/// in place for an earlier connection may be taken for it; the vBucket is asked for again then, behind the rollback.
pub struct Rollbacks {
    env: Env,
    bucket: Arc<Bucket>,
    /// Ordered, and not begun.
    ordered: VecDeque<Job>,
    /// What rolls back, until its outcome is taken.
    thread: Option<Task>,
    outcome: Arc<FinishedRollback>,
    /// Is told of files that came and cannot be used.
    refused: Option<NoteRefused>,
    /// Who waits for what is under way when this is dropped; nothing if that waits itself.
    left: Option<Arc<LeftRollbacks>>,
}

/// The outcome of the rollback under way.
#[derive(Default)]
struct FinishedRollback {
    done: Mutex<Option<RolledBack>>,
    news: Notify,
    /// Is told, too.
    wake: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

impl Rollbacks {
    pub(crate) fn new(env: Env, bucket: Arc<Bucket>) -> Rollbacks {
        Rollbacks {
            env,
            bucket,
            ordered: VecDeque::new(),
            thread: None,
            outcome: Arc::default(),
            refused: None,
            left: None,
        }
    }

    /// Leaves what is under way there when it is dropped: on a thread that others wait for, too.
    pub(crate) fn leaving(mut self, left: &Arc<LeftRollbacks>) -> Rollbacks {
        self.left = Some(Arc::clone(left));
        self
    }

    /// Calls `refused`, from any thread, when a file came and cannot be used.
    pub(super) fn noting(mut self, refused: impl Fn(VbId, &str) + Send + Sync + 'static) -> Rollbacks {
        self.refused = Some(Arc::new(refused));
        self
    }

    /// Calls `wake`, from any thread, when one is done: for who looks with [`Rollbacks::try_next`] alone.
    pub(crate) fn waking(self, wake: impl Fn() + Send + Sync + 'static) -> Rollbacks {
        self.outcome.wake.get_or_init(|| Box::new(wake));
        self
    }

    /// Has it done.
    ///
    /// # Errors
    ///
    /// There is no thread for it.
    pub fn order(&mut self, rollback: RollBack) -> Result<(), LinkError> {
        self.ordered.push_back(Job::Back(rollback));
        self.begin()
    }

    /// Has the file that came for a vBucket put in place.
    ///
    /// # Errors
    ///
    /// There is no thread for it.
    pub(super) fn order_fill(&mut self, vb: VbId) -> Result<(), LinkError> {
        self.ordered.push_back(Job::Fill(vb));
        self.begin()
    }

    /// What is ordered and was not begun is not done, and no outcome that is there is told: both are of a connection that
    /// is gone.
    pub(super) fn forget(&mut self) {
        self.ordered.clear();
        if self.outcome.done.lock().take().is_some() {
            self.join();
        }
    }

    /// Begins with the next one, if none is under way.
    fn begin(&mut self) -> Result<(), LinkError> {
        if self.thread.is_some() {
            return Ok(());
        }
        let Some(job) = self.ordered.pop_front() else { return Ok(()) };
        let (bucket, outcome) = (Arc::clone(&self.bucket), Arc::clone(&self.outcome));
        let refused = self.refused.clone();
        let job = move || {
            let done = match job {
                Job::Back(RollBack { vb, to }) => (vb, roll_back(&bucket, vb, to)),
                Job::Fill(vb) => {
                    let filled = fill(&bucket, vb).map_err(|why| {
                        refused.iter().for_each(|refused| refused(vb, &why));
                        UNFIT
                    });
                    (vb, filled)
                }
            };
            *outcome.done.lock() = Some(done);
            // Who hears of it may close the bucket.
            drop(bucket);
            outcome.news.notify_one();
            outcome.wake.get().into_iter().for_each(|wake| wake());
        };
        let name = format!("rollback-{}", self.bucket.name());
        self.thread = Some(self.env.spawn.spawn(&name, Box::new(job)).map_err(LinkError::Thread)?);
        Ok(())
    }

    /// The next one that is done.
    ///
    /// # Errors
    ///
    /// There is no thread for the one behind it.
    pub async fn next(&mut self) -> Result<RolledBack, LinkError> {
        let outcome = Arc::clone(&self.outcome);
        let mut news = pin!(outcome.news.notified());
        std::future::poll_fn(|cx| {
            loop {
                if let Some(done) = self.try_next().transpose() {
                    return Poll::Ready(done);
                }
                if news.as_mut().poll(cx).is_pending() {
                    return Poll::Pending;
                }
                news.set(outcome.news.notified());
            }
        })
        .await
    }

    /// The next one, if it is done already.
    ///
    /// # Errors
    ///
    /// There is no thread for the one behind it.
    pub fn try_next(&mut self) -> Result<Option<RolledBack>, LinkError> {
        let done = self.outcome.done.lock().take();
        if done.is_some() {
            self.join();
            self.begin()?;
        }
        Ok(done)
    }

    /// Waits for the end of the thread, which has nothing more to do but end.
    fn join(&mut self) {
        if let Some(thread) = self.thread.take()
            && !thread.join()
        {
            tracing::error!(
                event = "rollback_panicked",
                bucket = self.bucket.name(),
                "the thread that rolls back panicked"
            );
        }
    }
}

impl Drop for Rollbacks {
    /// What was begun is brought to its end: the bucket may be closed behind that.
    fn drop(&mut self) {
        if let Some(left) = &self.left
            && let Some(thread) = self.thread.take()
        {
            left.keep(thread);
        }
        self.join();
    }
}

fn roll_back(bucket: &Bucket, vb: VbId, to: Seqno) -> Result<Seqno, &'static str> {
    match bucket.roles().rollback(vb, to) {
        Ok(Ok(seqno)) => {
            if let Some(left_out) = engine::admit_log(bucket, "rollback") {
                tracing::info!(
                    event = "vbucket_rolled_back", bucket = bucket.name(), %vb, %to, %seqno, left_out,
                    "rolled back"
                );
            }
            Ok(seqno)
        }
        Ok(Err(failure)) => {
            if let Some(left_out) = engine::admit_log(bucket, "failed rollback") {
                tracing::error!(
                    event = "rollback_failed", bucket = bucket.name(), %vb, %to, %failure, left_out,
                    "cannot roll back"
                );
            }
            Err("its files cannot be rolled back: see the log of this node")
        }
        Err(_) => Err("the vBucket here is no replica"),
    }
}

fn fill(bucket: &Bucket, vb: VbId) -> Result<Seqno, String> {
    let file = bucket.file_snapshots().incoming(vb);
    let file = file.map_err(|_| "its file is being read or written by another command".to_owned())?;
    match bucket.roles().fill_with_file(vb, &file) {
        Ok(seqno) => {
            if let Some(left_out) = engine::admit_log(bucket, "filled with a file") {
                tracing::info!(
                    event = "vbucket_filled_with_file", bucket = bucket.name(), %vb, %seqno, left_out,
                    "a vBucket was filled with the file of another node"
                );
            }
            Ok(seqno)
        }
        Err(failure) => {
            if let Some(left_out) = engine::admit_log(bucket, "file not put in place") {
                tracing::warn!(
                    event = "vbucket_file_not_used", bucket = bucket.name(), %vb, %failure, left_out,
                    "the file that came for a vBucket cannot be used: it is filled by documents"
                );
            }
            Err(failure.to_string())
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::mpsc::{Receiver, channel};

    use base::env::{RealSpawn, Spawn};
    use engine::BucketConfig;

    use super::*;

    /// Threads that begin when they are let.
    struct Gated(Mutex<Option<Receiver<()>>>);

    impl Spawn for Gated {
        fn spawn(&self, name: &str, job: Box<dyn FnOnce() + Send>) -> io::Result<Task> {
            let gate = self.0.lock().take();
            let gated = move || {
                let _ = gate.map(|gate| gate.recv());
                job();
            };
            RealSpawn.spawn(name, Box::new(gated))
        }
    }

    #[test]
    fn what_is_under_way_is_left_to_those_who_wait_for_it() {
        let (env, _handles) = Env::sim(1);
        let config = BucketConfig { vbuckets: 1, ..BucketConfig::new("default", "/data".into()) };
        let bucket = Bucket::open(config, env.clone(), Arc::new(kvstore::Memory::default()));
        let bucket = Arc::new(bucket.expect("an empty bucket opens"));
        let (open, gate) = channel();
        let env = Env { spawn: Arc::new(Gated(Mutex::new(Some(gate)))), ..env };
        let left = Arc::<LeftRollbacks>::default();
        let mut rollbacks = Rollbacks::new(env, bucket).leaving(&left);
        let outcome = Arc::clone(&rollbacks.outcome);
        rollbacks.order(RollBack { vb: VbId(0), to: Seqno(0) }).expect("a thread");
        // It would wait without end.
        drop(rollbacks);
        assert!(outcome.done.lock().is_none());
        open.send(()).expect("it waits");
        assert!(left.join(), "it ends soundly");
        assert!(outcome.done.lock().is_some(), "it was brought to its end");
    }
}
