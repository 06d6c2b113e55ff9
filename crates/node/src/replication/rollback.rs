//! Going back in history reads and writes files, so it happens on a thread of its own.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, mpsc};

use base::env::{Env, Task};
use base::{Seqno, VbId};
use dcp::RollBack;
use engine::Bucket;
use parking_lot::Mutex;

use crate::notify::Notify;

/// How a rollback went: the vBucket, and where it stands now, or why it could not be done.
pub type RolledBack = (VbId, Result<Seqno, &'static str>);

/// The thread that rolls back for one link, started with the first one. There is at most one rollback under way or
/// asked for of each vBucket and connection.
pub struct Rollbacks {
    env: Env,
    bucket: Arc<Bucket>,
    orders: Option<mpsc::Sender<RollBack>>,
    thread: Option<Task>,
    outcomes: Arc<Outcomes>,
}

/// Rollbacks that are done and were not told; at most one of each vBucket and connection.
#[derive(Default)]
struct Outcomes {
    done: Mutex<VecDeque<RolledBack>>,
    news: Notify,
}

impl Outcomes {
    fn push(&self, outcome: RolledBack) {
        self.done.lock().push_back(outcome);
        self.news.notify_one();
    }
}

impl Rollbacks {
    pub(super) fn new(env: Env, bucket: Arc<Bucket>) -> Rollbacks {
        Rollbacks { env, bucket, orders: None, thread: None, outcomes: Arc::default() }
    }

    /// Has it done; an error means that there is no thread for it.
    pub fn order(&mut self, rollback: RollBack) -> io::Result<()> {
        let orders = match &self.orders {
            Some(orders) => orders,
            None => self.start()?,
        };
        // The thread listens for as long as there is somebody to order.
        let _ = orders.send(rollback);
        Ok(())
    }

    fn start(&mut self) -> io::Result<&mpsc::Sender<RollBack>> {
        let (orders, ordered) = mpsc::channel::<RollBack>();
        let (bucket, outcomes) = (Arc::clone(&self.bucket), Arc::clone(&self.outcomes));
        let job = move || {
            for RollBack { vb, to } in ordered {
                outcomes.push((vb, roll_back(&bucket, vb, to)));
            }
        };
        let name = format!("rollback-{}", self.bucket.name());
        self.thread = Some(self.env.spawn.spawn(&name, Box::new(job))?);
        Ok(self.orders.insert(orders))
    }

    /// The next one that is done.
    pub async fn next(&mut self) -> RolledBack {
        loop {
            if let Some(outcome) = self.try_next() {
                return outcome;
            }
            self.outcomes.news.notified().await;
        }
    }

    /// The next one, if it is done already.
    pub fn try_next(&mut self) -> Option<RolledBack> {
        self.outcomes.done.lock().pop_front()
    }
}

impl Drop for Rollbacks {
    /// What was begun is brought to its end: the bucket may be closed behind that.
    fn drop(&mut self) {
        self.orders = None;
        if let Some(thread) = self.thread.take()
            && !thread.join()
        {
            tracing::error!(bucket = self.bucket.name(), "the thread that rolls back panicked");
        }
    }
}

fn roll_back(bucket: &Bucket, vb: VbId, to: Seqno) -> Result<Seqno, &'static str> {
    match bucket.roles().rollback(vb, to) {
        Ok(Ok(seqno)) => {
            if let Some(left_out) = engine::admit_log(bucket, "rollback") {
                tracing::info!(bucket = bucket.name(), %vb, %to, %seqno, left_out, "rolled back");
            }
            Ok(seqno)
        }
        Ok(Err(failure)) => {
            if let Some(left_out) = engine::admit_log(bucket, "failed rollback") {
                tracing::error!(bucket = bucket.name(), %vb, %to, %failure, left_out, "cannot roll back");
            }
            Err("its files cannot be rolled back: see the log of this node")
        }
        Err(_) => Err("the vBucket here is no replica"),
    }
}
