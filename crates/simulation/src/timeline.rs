//! Simulated time: what will happen, in which order, and what two runs share if everything happened in the same way.

use std::collections::BTreeMap;
use std::time::Duration;

use base::env::SimHandles;
use base::env::sim::SplitMix64;
use cluster::promise::Ask;

use crate::jobs::{Fault, Job};
use crate::ops::Outcome;
use crate::store::{Reply, Request};

/// No message takes longer, in microseconds.
pub const MOST_DELAY_US: u64 = 400_000;

/// Something that will happen.
pub enum Event {
    /// A node's lease is to be renewed.
    Lease,
    /// A node looks at the store.
    Look,
    /// A node's other threads do something.
    Work,
    /// The store is asked; when that was sent by the node's clock, in nanoseconds.
    AtStore(Request, u64),
    /// The store answers.
    Reply(Reply, u64),
    /// A node asks another one for a promise; when it did, by its clock.
    Ask(usize, Box<Ask>, u64),
    /// A node has promised something to a life, which asked then.
    Promise(usize, u64, u64),
    /// A client does something.
    Client(usize),
    /// A client's request arrives.
    Arrive(usize),
    /// An answer arrives at its client.
    Answer(usize, Outcome),
    /// A client has waited for long enough.
    TimeOut(usize),
    /// Something goes wrong, or somebody asks for something.
    Fault,
    /// A fault strikes a node that is at this job.
    Strike(Fault, Job),
    /// A fault is over.
    Heal(Fault),
}

/// An event that is due.
pub struct Due {
    /// When, in microseconds.
    pub at_us: u64,
    /// At which node.
    pub at: usize,
    /// For which start of that node.
    pub boot: u64,
    /// What happens.
    pub event: Event,
}

/// The time of a world, and what will happen.
pub struct Timeline {
    handles: SimHandles,
    queue: BTreeMap<(u64, u64), Due>,
    next: u64,
    now_us: u64,
    trace: u64,
    is_shown: bool,
}

impl Timeline {
    /// The beginning: nothing will happen yet.
    pub fn new(handles: SimHandles) -> Timeline {
        Timeline {
            handles,
            queue: BTreeMap::new(),
            next: 0,
            now_us: 0,
            trace: 0xcbf2_9ce4_8422_2325,
            is_shown: std::env::var_os("SIMULATION_SHOW").is_some(),
        }
    }

    /// The time, in microseconds.
    pub fn now_us(&self) -> u64 {
        self.now_us
    }

    /// Has something happen later; what is meant for a start of a node that is over by then does not.
    pub fn push(&mut self, delay_us: u64, at: usize, boot: u64, event: Event) {
        self.next += 1;
        let at_us = self.now_us + delay_us;
        self.queue.insert((at_us, self.next), Due { at_us, at, boot, event });
    }

    /// What happens next. The time stays as it is until [`Timeline::go_to`].
    pub fn pop(&mut self) -> Option<Due> {
        self.queue.pop_first().map(|(_, due)| due)
    }

    /// The time is this from now on.
    pub fn go_to(&mut self, at_us: u64) {
        self.handles.clock.advance(Duration::from_micros(at_us - self.now_us));
        self.now_us = at_us;
    }

    /// What two runs share if everything happened in the same way.
    pub fn trace(&self) -> u64 {
        self.trace
    }

    /// Makes a number part of the trace.
    pub fn note(&mut self, number: u64) {
        self.trace = (self.trace ^ number).wrapping_mul(0x0100_0000_01b3).rotate_left(17);
    }

    /// Prints what happens, if that is asked for.
    pub fn show(&self, what: impl FnOnce() -> String) {
        if self.is_shown {
            println!("{:>10} {}", self.now_us, what());
        }
    }
}

/// How long a message takes; a few take very long.
pub fn delay_us(rng: &mut SplitMix64) -> u64 {
    if rng.chance(1, 40) { rng.between(1_000, MOST_DELAY_US) } else { rng.between(50, 2_000) }
}
