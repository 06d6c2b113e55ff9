//! What goes wrong, and what administrators ask for meanwhile.

use cluster::command::Command;
use cluster::{NodeId, Status};

use crate::world::{FAULTS_US, STORE, World};

impl World {
    pub fn any_node(&mut self) -> usize {
        self.rng.below(self.nodes.len() as u64) as usize
    }

    /// How many nodes are in trouble: durable writes survive that of a minority of each chain, here of one.
    pub fn troubled(&self) -> usize {
        let is_store = |(from, to): &&(usize, usize)| self.aims.is_none() || *from == STORE || *to == STORE;
        let cuts = || self.cut.iter().filter(is_store);
        let cut = |at: usize| cuts().any(|(from, to)| *from == at || *to == at);
        (0..self.nodes.len()).filter(|at| !self.nodes[*at].is_awake(self.now_us()) || cut(*at)).count()
    }

    /// One fault or request; returns when the next one comes, in microseconds.
    pub fn fault(&mut self) -> u64 {
        if self.now_us() + 500_000 >= FAULTS_US {
            self.heal();
            return 250_000;
        }
        if let Some(aims) = self.aims {
            return self.provoke(aims);
        }
        let at = self.any_node();
        let is_calm = self.troubled() == 0;
        match self.rng.below(12) {
            0 | 1 if is_calm => {
                self.tally.crashes += 1;
                self.nodes[at].crash();
            }
            2 if is_calm => {
                self.tally.freezes += 1;
                let length = self.rng.between(100_000, 2_500_000);
                self.nodes[at].frozen_until_us = self.now_us() + length;
            }
            3 | 4 if is_calm => self.cut_off(at),
            5 => self.cut.clear(),
            6 => self.restart_all(),
            7 => self.ask_for_failover(at),
            8 | 9 => self.ask_for_rebalance(at),
            10 => self.ask_for(at, &Command::CancelRebalance),
            11 => self.take_back(at),
            _ => {}
        }
        self.rng.between(20_000, 700_000)
    }

    fn cut_off(&mut self, at: usize) {
        self.tally.cuts += 1;
        let others: Vec<usize> = (0..self.nodes.len()).filter(|other| *other != at).chain([STORE]).collect();
        let kind = self.rng.below(4);
        for other in others {
            let is_store = other == STORE;
            if kind != 1 && (kind != 2 || is_store) {
                self.cut.insert((at, other));
            }
            if kind != 0 && (kind != 2 || is_store) {
                self.cut.insert((other, at));
            }
        }
    }

    fn restart_all(&mut self) {
        (0..self.nodes.len()).for_each(|at| self.restart(at));
    }

    pub fn restart(&mut self, at: usize) {
        if !self.nodes[at].up {
            let (random, bug) = (self.rng.next_u64(), self.bug);
            let now_ns = self.nodes[at].local_ns(self.now_us());
            self.nodes[at].restart(random, now_ns, bug);
            self.start(at);
        }
    }

    fn ask_for_failover(&mut self, at: usize) {
        let node = NodeId(self.any_node() as u32 + 1);
        if self.rng.chance(1, 2) {
            self.ask_for(at, &Command::FailOver { node, force: false });
        } else {
            self.ask_for(at, &Command::FailOverGracefully { node });
        }
    }

    pub fn ask_for_rebalance(&mut self, at: usize) {
        let eject = NodeId(self.any_node() as u32 + 1);
        // At least two nodes stay, so that there is somebody to fail over to.
        let stay = self.nodes[at].view.as_ref().map_or(0, |view| {
            let stays = |id: &NodeId| *id != eject && view.state.is_active(*id);
            view.state.nodes.keys().filter(|id| stays(id)).count()
        });
        let eject = if stay >= 3 && self.rng.chance(1, 4) { vec![eject] } else { Vec::new() };
        self.ask_for(at, &Command::Rebalance { eject });
    }

    /// Nodes that were failed over come back.
    pub fn take_back(&mut self, at: usize) {
        let Some(view) = self.nodes[at].view.clone() else { return };
        let failed = view.state.nodes.iter().find(|(_, node)| node.status == Status::FailedOver);
        if let Some((node, _)) = failed {
            let delta = self.rng.chance(1, 2);
            self.ask_for(at, &Command::Recover { node: *node, delta });
        }
    }

    fn heal(&mut self) {
        self.cut.clear();
        for node in &mut self.nodes {
            (node.frozen_until_us, node.slow_until_us, node.stuck_until_us) = (0, 0, 0);
        }
        self.restart_all();
    }
}
