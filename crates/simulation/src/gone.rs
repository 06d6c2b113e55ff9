//! A node that does not come back: once all is well one ends, is failed over, and others serve what it served while it
//! is away.

use cluster::Status;
use cluster::command::{self, Command};

use crate::jobs::Fault;
use crate::nodes::id_of;
use crate::store::TTL;
use crate::world::World;

/// How long that may take once the lease is over, in microseconds: a leader is elected, and choices are made.
const SOON_US: u64 = 3_000_000;
/// So long before the end of a run nobody goes any more: who comes back has to catch up.
const LEAST_LEFT_US: u64 = 7_000_000;

/// How far that is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Gone {
    /// Nobody has gone yet.
    #[default]
    Nobody,
    /// This node, at this time, in microseconds.
    Away(usize, u64),
    /// Others served everything, or nobody can go.
    Over,
}

/// All is well: one of the nodes goes, if everything is safe without it. Whether one does.
pub fn let_one_go(world: &mut World) -> bool {
    let is_late = world.time.now_us() + LEAST_LEFT_US > world.rules.end_us;
    if world.gone == Gone::Over || is_late {
        return false;
    }
    let at = world.nodes.any(&mut world.rng);
    let Some(view) = world.nodes[at].member.view.clone() else { return false };
    if let Err(refusal) = command::apply(&view, &fail_over(at)) {
        world.time.show(|| format!("node {at} cannot go: {refusal:?}"));
        world.gone = Gone::Over;
        return false;
    }
    world.crash(at, Fault::Crash);
    world.gone = Gone::Away(at, world.time.now_us());
    true
}

/// Whether a node is away. Others must serve what it served in time.
pub fn is_one_gone(world: &mut World) -> bool {
    let Gone::Away(at, since_us) = world.gone else { return false };
    let now_us = world.time.now_us();
    let is_failed_over = world.nodes.status(at) != Some(Status::Active);
    if !is_failed_over {
        world.ask_for((at + 1) % world.nodes.len(), &fail_over(at));
    }
    let is_served = |vb: &u16| world.nodes.iter().any(|node| node.serves(*vb, now_us));
    let unserved = world.nodes.vbuckets().find(|vb| !is_served(vb));
    if is_failed_over && unserved.is_none() {
        world.gone = Gone::Over;
        world.tally.gone += 1;
        return false;
    }
    if now_us - since_us > TTL.as_micros() as u64 + SOON_US {
        let what =
            unserved.map_or("it is not failed over".to_owned(), |vb| format!("nobody serves vBucket {vb}"));
        world.violation = Some(format!("node {at} is gone, and {what}: {}", world.nodes.describe()));
    }
    true
}

fn fail_over(at: usize) -> Command {
    Command::FailOver { node: id_of(at), force: false }
}
