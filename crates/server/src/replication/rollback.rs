//! Going back in history reads and writes files, so it happens on a thread of its own.

use std::io;
use std::sync::{Arc, mpsc};

use base::env::{Env, Task};
use base::{Seqno, VbId};
use dcp::RollBack;
use engine::Bucket;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

/// How a rollback went: the vBucket, and where it stands now, or why it could not be done.
pub(super) type RolledBack = (VbId, Result<Seqno, &'static str>);

/// The thread that rolls back for one link, started with the first one. There is at most one rollback under way or
/// asked for of each vBucket and connection.
pub(super) struct Rollbacks {
    env: Env,
    bucket: Arc<Bucket>,
    orders: Option<mpsc::Sender<RollBack>>,
    thread: Option<Task>,
    done: UnboundedSender<RolledBack>,
    outcomes: UnboundedReceiver<RolledBack>,
}

impl Rollbacks {
    pub(super) fn new(env: Env, bucket: Arc<Bucket>) -> Rollbacks {
        let (done, outcomes) = unbounded_channel();
        Rollbacks { env, bucket, orders: None, thread: None, done, outcomes }
    }

    /// Has it done; an error means that there is no thread for it.
    pub(super) fn order(&mut self, rollback: RollBack) -> io::Result<()> {
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
        let (bucket, done) = (Arc::clone(&self.bucket), self.done.clone());
        let job = move || {
            for RollBack { vb, to } in ordered {
                // Nobody may want to know any more.
                let _ = done.send((vb, roll_back(&bucket, vb, to)));
            }
        };
        let name = format!("rollback-{}", self.bucket.name());
        self.thread = Some(self.env.spawn.spawn(&name, Box::new(job))?);
        Ok(self.orders.insert(orders))
    }

    /// The next one that is done.
    pub(super) async fn next(&mut self) -> RolledBack {
        match self.outcomes.recv().await {
            Some(outcome) => outcome,
            // Not while we hold a sender ourselves.
            None => std::future::pending().await,
        }
    }

    /// The next one, if it is done already.
    pub(super) fn try_next(&mut self) -> Option<RolledBack> {
        self.outcomes.try_recv().ok()
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
    match bucket.rollback(vb, to) {
        Ok(Ok(seqno)) => {
            tracing::info!(bucket = bucket.name(), %vb, %to, %seqno, "rolled back");
            Ok(seqno)
        }
        Ok(Err(failure)) => {
            tracing::error!(bucket = bucket.name(), %vb, %to, %failure, "cannot roll back");
            Err("its files cannot be rolled back: see the log of this node")
        }
        Err(_) => Err("the vBucket here is no replica"),
    }
}
