//! The links of a node, which `node::replication` declares and runs: here they have their turns, and their lines break.

use std::cell::RefCell;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Waker};

use ::node::doors::LinkRunner;
use ::node::replication::{self, Link, LinkLimits, LinkState, Replication};
use base::env::sim::SimClock;
use base::env::{Clock, Env, Task};
use dcp::{Mode, Stage, VbProgress};

use crate::link::{Line, SimDial};
use crate::node::BUCKET;
use crate::target::place_of_name;

/// So often a link that is closed is looked at until it has ended: it waits for one thing after the other.
const TURNS_TO_END: usize = 8;

/// Bytes that may be on their way on a link: of some starts of a node they are few.
const BUFFER_BYTES: [u32; 2] = [20_000, 1 << 20];
/// vBuckets that a link takes over at once.
pub const TAKEN_OVER_AT_ONCE: usize = 2;

/// Takes the links of a node; its turns are the node's.
pub struct Runner {
    links: OnceLock<Arc<replication::Links>>,
    limits: LinkLimits,
}

impl Runner {
    /// Of a node that has started so often before.
    pub fn new(at: usize, boot: u64) -> Runner {
        let buffer_bytes = BUFFER_BYTES[(at + boot as usize) % BUFFER_BYTES.len()];
        let limits = LinkLimits { buffer_bytes, noop_interval_s: 1, taken_over_at_once: TAKEN_OVER_AT_ONCE };
        Runner { links: OnceLock::new(), limits }
    }
}

impl LinkRunner for Runner {
    fn start(&self, _: &Env, links: Arc<replication::Links>) -> std::io::Result<Task> {
        let _ = self.links.set(links);
        Ok(Task::done())
    }

    fn limits(&self) -> LinkLimits {
        self.limits
    }
}

/// A link that is run.
struct Running {
    /// The place of the node that it follows.
    source: usize,
    link: Arc<Link>,
    line: Rc<RefCell<Line>>,
    /// When it may be connected again, in microseconds of the world.
    again_us: u64,
    /// Breaches of the protocol that were seen.
    violations: u64,
    task: Pin<Box<dyn Future<Output = ()>>>,
}

impl Running {
    fn new(link: Arc<Link>, clock: &Arc<SimClock>) -> Running {
        let line = Rc::default();
        let task =
            replication::run(Arc::clone(&link), SimDial::new(&line, Arc::clone(clock) as Arc<dyn Clock>));
        let source = place_of_name(link.node()).expect("nodes follow nodes");
        Running { source, link, line, again_us: 0, violations: 0, task: Box::pin(task) }
    }

    /// Has its turn; whether it has ended.
    fn poll(&mut self) -> bool {
        self.task.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready()
    }
}

/// All links of a node that run.
#[derive(Default)]
pub struct Links {
    runner: Option<Arc<Runner>>,
    running: RefCell<Vec<Running>>,
}

impl Links {
    /// Those that a node has this runner for.
    pub fn of(runner: Arc<Runner>) -> Links {
        Links { runner: Some(runner), running: RefCell::default() }
    }

    /// Begins to run what is new.
    pub fn take_new(&self, clock: &Arc<SimClock>) {
        let new = self.runner.as_ref().and_then(|runner| runner.links.get()).map(|links| links.take_new());
        let running = new.into_iter().flatten().map(|link| Running::new(link, clock));
        self.running.borrow_mut().extend(running);
    }

    /// By link: the node that it follows. Those that are closed and have not ended are among them.
    pub fn sources(&self) -> Vec<usize> {
        self.running.borrow().iter().map(|running| running.source).collect()
    }

    /// What is between a link and the node that it follows, and whether it may be connected now.
    pub fn line(&self, number: usize, now_us: u64) -> (Rc<RefCell<Line>>, bool) {
        let running = &self.running.borrow()[number];
        (Rc::clone(&running.line), now_us >= running.again_us)
    }

    /// Each link has a turn, and those that have ended go; an error is a breach of the protocol that one has seen.
    pub fn turn(&self) -> Result<(), String> {
        let mut running = self.running.borrow_mut();
        running.retain_mut(|running| !running.poll());
        running.iter_mut().try_for_each(|running| {
            let (violations, error) = running.link.violations();
            match std::mem::replace(&mut running.violations, violations) == violations {
                true => Ok(()),
                false => Err(format!("it follows {}: {}", running.source, error.unwrap_or_default())),
            }
        })
    }

    /// The connections with a node break, and stay so until this time; whether there was one.
    pub fn break_with(&self, source: usize, again_us: u64) -> bool {
        let mut is_broken = false;
        for running in self.running.borrow_mut().iter_mut().filter(|running| running.source == source) {
            running.again_us = again_us;
            is_broken |= running.line.borrow_mut().pipe.take().is_some();
        }
        is_broken
    }

    /// All links are closed: they end, and hold nothing of their bucket any more.
    pub fn end(&self) {
        let is_over = (0..TURNS_TO_END).any(|_| {
            self.running.borrow_mut().retain_mut(|running| !running.poll());
            self.running.borrow().is_empty()
        });
        assert!(is_over, "a link that is closed does not end");
    }
}

/// A link that takes over more vBuckets at once than it may: how many.
pub fn takes_too_many(replication: &Replication) -> Option<usize> {
    let is_taken = |vb: &&VbProgress| {
        vb.mode == Mode::TakeOver && matches!(vb.stage, Stage::Asked | Stage::RollingBack | Stage::Streaming)
    };
    let taken = |status: replication::LinkStatus| status.vbuckets.iter().filter(is_taken).count();
    replication.status(Some(BUCKET)).into_iter().map(taken).find(|taken| *taken > TAKEN_OVER_AT_ONCE)
}

/// Whether everything that is wanted streams.
pub fn are_streaming(replication: &Replication) -> bool {
    let streams = |status: &replication::LinkStatus| {
        status.state == LinkState::Connected && status.streaming() == status.vbuckets.len()
    };
    replication.status(Some(BUCKET)).iter().all(streams)
}

/// How far each vBucket is, for whoever looks for a reason.
pub fn describe(replication: &Replication) -> String {
    let describe = |status: replication::LinkStatus| {
        let progress = status.vbuckets.iter().map(|vb| (vb.vb, vb.mode, vb.stage, vb.trouble));
        let progress: Vec<_> = progress.collect();
        format!(" from {}: {:?} {:?} {progress:?}", status.node, status.state, status.last_error)
    };
    replication.status(Some(BUCKET)).into_iter().map(describe).collect()
}
