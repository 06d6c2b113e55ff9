//! Seeds that aim at rollbacks bring them about: a node is cut off from those that follow it until it has changes that
//! nobody else has, is failed over, and comes back with them. By chance alone that is rare.

use cluster::command::Command;
use cluster::{NodeId, Status};

use crate::jobs::Job;
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

impl World {
    /// The next step, in a seed that aims at a rollback which it has not met yet.
    pub fn go_for_a_rollback(&mut self) {
        if !self.rules.aimed.iter().any(|(_, job)| *job == Job::Rollback) {
            return;
        }
        self.tail = match self.tail {
            Tail::None => self.grow_tail(),
            Tail::Grows(at, until_us) if self.now_us() >= until_us && !self.may_leave(at) => Tail::None,
            Tail::Grows(at, until_us) if self.now_us() >= until_us => {
                let node = NodeId(at as u32 + 1);
                let asked = self.ask_for(self.other_than(at), &Command::FailOver { node, force: false });
                if asked { Tail::Left(at) } else { Tail::None }
            }
            Tail::Left(at) => self.fetch_back(at),
            grows @ Tail::Grows(..) => grows,
        };
    }

    /// Whether it was asked that a node be failed over, and it is not: who is left in its chains then may be alone.
    pub fn is_one_leaving(&self) -> bool {
        let is_there = |at: usize| {
            let node = self.newest.nodes.get(&NodeId(at as u32 + 1));
            node.is_some_and(|node| node.status == Status::Active)
        };
        matches!(self.tail, Tail::Left(at) if is_there(at))
    }

    fn other_than(&self, at: usize) -> usize {
        (at + 1) % self.nodes.len()
    }

    /// Connections to a node break, for longer than it takes until it is failed over.
    fn grow_tail(&mut self) -> Tail {
        let is_whole = self.newest.nodes.values().all(|node| node.status == Status::Active);
        let is_led = is_whole && self.newest.rebalance.is_none() && !self.newest.is_choosing();
        if !is_led || !self.is_calm() {
            return Tail::None;
        }
        let at = self.rng.below(self.nodes.len() as u64) as usize;
        let until_us = self.now_us() + self.rng.between(50_000, 250_000);
        self.show(|| format!("nobody follows node {at} for a while"));
        for other in &self.nodes {
            other.links.break_with(at, until_us + 200_000);
        }
        self.waits.hinder();
        Tail::Grows(at, until_us)
    }

    /// A node that was failed over comes back with what it has.
    fn fetch_back(&mut self, at: usize) -> Tail {
        let node = NodeId(at as u32 + 1);
        let status = self.newest.nodes.get(&node).map(|node| node.status);
        let is_free = self.newest.rebalance.is_none() && !self.newest.is_choosing();
        match status {
            Some(Status::FailedOver) if is_free => {
                self.ask_for(self.other_than(at), &Command::Recover { node, delta: true });
            }
            Some(Status::DeltaRecovery) if is_free => {
                self.ask_for(self.other_than(at), &Command::Rebalance { eject: Vec::new() });
            }
            Some(Status::FailedOver | Status::DeltaRecovery) => {}
            // It is there again, or others wrote before it was failed over.
            _ => return Tail::None,
        }
        Tail::Left(at)
    }
}
