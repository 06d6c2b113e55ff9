//! Whole clusters in one thread: real buckets on simulated disks, real streams between them, the real cluster logic over
//! a simulated coordination store, clients, and everything that can go wrong, decided by a seed.
//!
//! The order of reading: [`rules`] (what a seed makes of a cluster), [`timeline`] (time and events), [`world`]
//! (what happens when an event is due), [`nodes`], [`node`] and [`member`] (the nodes, a node's data, and its part in the
//! cluster), [`link`] (streams between two), [`clients`], [`ops`] and [`administrators`] (what is asked and answered),
//! [`faults`], [`calm`], [`troubles`], [`damage`], [`tails`], [`gone`] and [`jobs`] (what goes wrong during what, and when it
//! may), [`history`], [`promises`], [`available`], [`copies`], [`disks`] and [`memory`] (what must hold).

pub mod administrators;
pub mod available;
#[cfg(debug_assertions)]
pub mod bugs;
pub mod calm;
pub mod checks;
pub mod clients;
pub mod connections;
pub mod copies;
pub mod damage;
mod dice;
pub mod disks;
pub mod faults;
pub mod front_end;
pub mod gone;
pub mod history;
pub mod jobs;
#[cfg(debug_assertions)]
pub mod known;
pub mod lease;
pub mod link;
pub mod links;
pub mod member;
pub mod memory;
pub mod mistakes;
pub mod node;
pub mod nodes;
pub mod ops;
pub mod promises;
pub mod requests;
mod rule;
pub mod rules;
pub mod store;
pub mod streams;
mod strict;
pub mod tails;
pub mod tap;
pub mod target;
pub mod threads;
pub mod timeline;
pub mod troubles;
pub mod world;

pub use jobs::{Matrix, Tally};
pub use mistakes::{MISTAKES, Mistake};
pub use rules::Rules;
pub use streams::StreamCounts;
pub use world::World;

use std::panic::{AssertUnwindSafe, catch_unwind};

/// What a run came to.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// What decided it.
    pub seed: u64,
    /// What happened.
    pub tally: Tally,
    /// What was violated, if anything was.
    pub violation: Option<String>,
    /// A number that two runs share if everything happened in the same way.
    pub trace: u64,
}

/// Runs the cluster that a seed decides. A panic of the product is a violation, too.
pub fn run(seed: u64) -> Outcome {
    run_with(Rules::of(seed))
}

/// Runs two or three nodes with streams between them, without a cluster, as a seed decides. What happened.
///
/// # Errors
///
/// What was violated.
pub fn run_streams(seed: u64, mistake: Mistake) -> Result<StreamCounts, String> {
    let mut world = World::new(Rules::of_streams(seed, mistake));
    let violation = violation_of(&mut world);
    match (violation, &world.streams) {
        (Some(violation), _) => Err(violation),
        (None, Some(streams)) => Ok(streams.counts().clone()),
        (None, None) => Err("a run of streams without streams".to_owned()),
    }
}

/// Runs a cluster by rules of one's own.
pub fn run_with(rules: Rules) -> Outcome {
    let seed = rules.seed;
    let mut world = World::new(rules);
    let violation = violation_of(&mut world);
    Outcome { seed, tally: world.tally.clone(), violation, trace: world.time.trace() }
}

/// Runs a world; what was violated.
fn violation_of(world: &mut World) -> Option<String> {
    let ended = catch_unwind(AssertUnwindSafe(|| world.run()));
    let violation = match ended {
        Ok(result) => result.err(),
        Err(panic) => {
            let text = panic.downcast_ref::<String>().cloned();
            let text = text.or_else(|| panic.downcast_ref::<&str>().map(|&text| text.to_owned()));
            Some(format!("a panic: {}", text.unwrap_or_default()))
        }
    };
    violation.map(|what| format!("at {} us: {what}\n{:?}", world.time.now_us(), world.rules))
}
