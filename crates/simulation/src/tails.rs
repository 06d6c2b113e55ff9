//! Seeds that aim at rollbacks bring them about: a node is cut off from those that follow it until it has changes that
//! nobody else has, is failed over, and comes back with them. By chance alone that is rare.

use cluster::Status;
use cluster::command::Command;

use crate::jobs::Job;
use crate::nodes::id_of;
use crate::world::World;

/// How far that is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tail {
    /// It has not begun, or is over.
    #[default]
    None,
    /// Nobody follows this node; it is failed over at this time, in microseconds.
    Grows(usize, u64),
    /// It was asked that this node be failed over.
    Left(usize),
}

/// The next step, in a seed that aims at a rollback which it has not met yet.
pub fn go_for_a_rollback(world: &mut World) {
    if !world.rules.aimed.iter().any(|(_, job)| *job == Job::Rollback) {
        return;
    }
    let now_us = world.time.now_us();
    world.tail = match world.tail {
        Tail::None => grow(world),
        Tail::Grows(at, until_us) if now_us >= until_us && !world.calm().may_leave(at) => Tail::None,
        Tail::Grows(at, until_us) if now_us >= until_us => {
            let fail_over = Command::FailOver { node: id_of(at), force: false };
            let asked = world.ask_for(other_than(world, at), &fail_over);
            if asked { Tail::Left(at) } else { Tail::None }
        }
        Tail::Left(at) => fetch_back(world, at),
        grows @ Tail::Grows(..) => grows,
    };
}

fn other_than(world: &World, at: usize) -> usize {
    (at + 1) % world.nodes.len()
}

/// Connections to a node break, for longer than it takes until it is failed over.
fn grow(world: &mut World) -> Tail {
    let is_led = world.nodes.are_active() && world.nodes.is_settled();
    if !is_led || !world.calm().is_calm() {
        return Tail::None;
    }
    let at = world.nodes.any(&mut world.rng);
    let until_us = world.time.now_us() + world.rng.between(50_000, 250_000);
    world.time.show(|| format!("nobody follows node {at} for a while"));
    world.nodes.break_with(at, until_us + 200_000);
    world.waits.hinder();
    Tail::Grows(at, until_us)
}

/// A node that was failed over comes back with what it has.
fn fetch_back(world: &mut World, at: usize) -> Tail {
    let (node, is_free, other) = (id_of(at), world.nodes.is_settled(), other_than(world, at));
    match world.nodes.status(at) {
        Some(Status::FailedOver) if is_free => {
            world.ask_for(other, &Command::Recover { node, delta: true });
        }
        Some(Status::DeltaRecovery) if is_free => {
            world.ask_for(other, &Command::Rebalance { eject: Vec::new() });
        }
        Some(Status::FailedOver | Status::DeltaRecovery) => {}
        // It is there again, or others wrote before it was failed over.
        _ => return Tail::None,
    }
    Tail::Left(at)
}
