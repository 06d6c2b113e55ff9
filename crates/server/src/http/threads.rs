//! Threads of their own for requests that block: a few for each kind, in front of which a bounded number of requests
//! waits.
//!
//! A request whose client goes while it waits is not handled. One that has begun is finished, whether its client is there
//! or not. When the node stops, those that wait are refused.

use std::io;
use std::sync::Arc;

use base::env::Env;
use tokio::sync::{Semaphore, oneshot};

/// Requests that may wait for a thread: changes of buckets or orders to the cluster,
const MOST_WAITING: usize = 32;
/// and others, which take milliseconds each.
const MOST_OTHERS_WAITING: usize = 256;
/// Changes of buckets that may be under way: a node outside of a cluster makes one at a time, and in a cluster they wait
/// for other nodes.
const MOST_CHANGES: usize = 4;
/// Orders to the cluster that may be under way.
const MOST_ORDERS: usize = 8;
/// Requests of other kinds that may be under way: they wait for the disk or the coordination store.
const MOST_OTHERS: usize = 16;

/// Why something was not done, or not to its end.
#[derive(Debug)]
pub(super) enum NotDone {
    /// As many wait as may.
    TooManyWait,
    /// The node stops; it was not begun.
    Stopping,
    /// There is no thread for it.
    NoThread(io::Error),
    /// The thread ended without an outcome.
    Lost,
}

impl NotDone {
    /// What a client is told to whom another time helps.
    pub(super) fn not_now(&self) -> Option<&'static str> {
        match self {
            NotDone::TooManyWait => Some("nothing was done: too many requests of this kind wait; try again"),
            NotDone::Stopping => Some("nothing was done: the node stops"),
            NotDone::NoThread(_) | NotDone::Lost => None,
        }
    }
}

/// The threads for one kind of requests.
pub(super) struct Line {
    thread: &'static str,
    threads: Arc<Semaphore>,
    waiting: Semaphore,
}

impl Line {
    fn new(thread: &'static str, most_running: usize, most_waiting: usize) -> Line {
        let (threads, waiting) = (Arc::new(Semaphore::new(most_running)), Semaphore::new(most_waiting));
        Line { thread, threads, waiting }
    }

    /// Does something on a thread of its own, as soon as there may be one; not if `stopped` is ready before that.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        env: &Env,
        stopped: impl Future<Output = ()>,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, NotDone> {
        let place = match Arc::clone(&self.threads).try_acquire_owned() {
            Ok(place) => place,
            Err(_) => {
                let _waiting = self.waiting.try_acquire().map_err(|_| NotDone::TooManyWait)?;
                tokio::select! {
                    place = Arc::clone(&self.threads).acquire_owned() => place.map_err(|_| NotDone::Stopping)?,
                    () = stopped => return Err(NotDone::Stopping),
                }
            }
        };
        let (sender, receiver) = oneshot::channel();
        let job = move || {
            let _place = place;
            // If the client has gone before this begins, no one awaits it; what has begun is done all the same.
            if !sender.is_closed() {
                let _ = sender.send(work());
            }
        };
        env.spawn.spawn(self.thread, Box::new(job)).map_err(NotDone::NoThread)?;
        receiver.await.map_err(|_| NotDone::Lost)
    }
}

/// All such threads of a node.
pub(super) struct Threads {
    /// For what makes, changes, empties and deletes buckets.
    pub(super) changes: Line,
    /// For orders to the cluster.
    pub(super) orders: Line,
    /// For everything else.
    pub(super) others: Line,
}

impl Default for Threads {
    fn default() -> Threads {
        Threads {
            changes: Line::new("buckets", MOST_CHANGES, MOST_WAITING),
            orders: Line::new("cluster-ask", MOST_ORDERS, MOST_WAITING),
            others: Line::new("blocking", MOST_OTHERS, MOST_OTHERS_WAITING),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::sync::mpsc;
    use std::task::{Context, Poll, Waker};

    use super::*;

    #[test]
    fn few_threads_a_bounded_line_and_no_work_for_those_who_have_gone() {
        let (env, line) = (Env::real(), Line::new("test", 1, MOST_WAITING));
        let (open, gate) = mpsc::channel::<()>();
        let (begun, has_begun) = mpsc::channel();
        let mut cx = Context::from_waker(Waker::noop());
        let held = line.run(&env, std::future::pending(), move || gate.recv().is_err());
        let mut held = pin!(held);
        assert!(held.as_mut().poll(&mut cx).is_pending());
        let request = |n: usize, stopped: bool| {
            let begun = begun.clone();
            let stopped =
                std::future::poll_fn(move |_| if stopped { Poll::Ready(()) } else { Poll::Pending });
            let mut request = Box::pin(line.run(&env, stopped, move || begun.send(n).is_ok()));
            let polled = request.as_mut().poll(&mut Context::from_waker(Waker::noop()));
            (request, polled)
        };
        let mut waiting: Vec<_> = (0..MOST_WAITING).map(|n| request(n, false)).collect();
        assert!(waiting.iter().all(|(_, polled)| polled.is_pending()));
        assert!(matches!(request(100, false).1, Poll::Ready(Err(NotDone::TooManyWait))));
        // All but one go, so that others may wait, and nothing is done for them.
        waiting.truncate(1);
        assert!(request(101, false).1.is_pending());
        assert!(matches!(request(102, true).1, Poll::Ready(Err(NotDone::Stopping))));
        drop(open);
        let last = &mut waiting[0].0;
        let outcome = loop {
            if let Poll::Ready(outcome) = last.as_mut().poll(&mut cx) {
                break outcome;
            }
            std::thread::yield_now();
        };
        assert!(matches!(outcome, Ok(true)));
        drop(begun);
        drop(waiting);
        assert_eq!(has_begun.iter().collect::<Vec<_>>(), [0]);
    }
}
