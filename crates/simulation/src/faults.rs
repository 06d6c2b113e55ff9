//! What goes wrong, and when it is over.

use cluster::command::Command;

use crate::administrators;
use crate::available::Service;
use crate::calm::Calm;
use crate::damage;
use crate::gone::{self, Gone};
use crate::jobs::{Fault, Job};
use crate::tails;
use crate::timeline::Event;
use crate::world::World;

impl World {
    /// One fault or request.
    pub fn fault(&mut self) {
        if self.streams.is_some() {
            return self.step_of_streams();
        }
        let checked = self.nodes.check_accounts();
        self.note_check(checked);
        let (nodes, now_us) = (&self.nodes, self.time.now_us());
        let service = Service { nodes, rules: &self.rules, crossing: &self.crossing, now_us };
        let checked = self.waits.check(&service);
        self.note_check(checked);
        damage::look(self);
        if now_us >= self.rules.faults_us {
            self.mend();
            return;
        }
        if self.forgetful.is_some() && self.nodes.are_level(now_us) {
            self.forgetful = None;
        }
        tails::go_for_a_rollback(self);
        let at = self.nodes.any(&mut self.rng);
        let calm = self.calm();
        let (is_troubled, is_calm_but_one) = (calm.is_troubled(at), calm.is_calm_but_one());
        let is_calm = calm.is_calm_but(at) && !is_troubled;
        // A node that stands still or is cut off loses nothing: more than a minority may be, at times.
        let may_stop = is_calm || (!is_troubled && is_calm_but_one && self.rng.chance(1, 3));
        match self.rng.below(34) {
            0 | 1 if is_calm && self.calm().may_forget(at) => {
                let is_power = self.rng.chance(1, 2);
                self.crash(at, if is_power { Fault::PowerLoss } else { Fault::Crash });
            }
            2 if may_stop => self.bring(at, Fault::Freeze),
            3 if may_stop => self.bring(at, Fault::Partition),
            4 if may_stop => self.bring(at, Fault::OneWay),
            5 if is_calm => self.bring(at, Fault::StoreCut),
            6 if is_calm => self.bring(at, Fault::LeaseLoss),
            7 | 8 => self.bring(at, Fault::Disconnect),
            9 if is_calm => self.bring(at, Fault::SlowDisk),
            10 if is_calm && self.nodes[at].is_up => self.bring(at, Fault::FullDisk),
            11 | 12 if self.nodes[at].is_up => self.bring(at, Fault::FailingSync),
            13 => self.bring(at, Fault::Clock),
            14..=17 => {
                if self.nodes[at].do_chore(&self.clients.keys, &mut self.rng) {
                    self.works(at, Job::Eviction);
                }
            }
            request => self.request(at, request),
        }
        let delay = self.rng.between(10_000, 200_000);
        self.time.push(delay, 0, 0, Event::Fault);
    }

    /// One thing happens to nodes without a cluster.
    fn step_of_streams(&mut self) {
        let now_us = self.time.now_us();
        let World { streams: Some(streams), nodes, rules, .. } = self else { return };
        let delay_us = if now_us >= rules.faults_us {
            let mended = streams.mend(nodes, now_us);
            self.is_done = mended == Ok(true);
            self.note_check(mended.map(drop));
            20_000
        } else {
            match streams.step(rules, nodes, now_us) {
                Ok(started) => started.into_iter().for_each(|at| self.begin(at)),
                violated => self.note_check(violated.map(drop)),
            }
            self.rng.between(2_000, 8_000)
        };
        self.time.push(delay_us, 0, 0, Event::Fault);
    }

    /// An administrator asks a node for something, as a number has decided.
    fn request(&mut self, at: usize, number: u64) {
        let command = match number {
            18 => {
                if let Some((command, collection)) = administrators::change_collections(&self.nodes[at])
                    && self.ask_for(at, &command)
                {
                    self.history.collection = collection;
                }
                None
            }
            19 | 20 => {
                let (nodes, now_us) = (&self.nodes, self.time.now_us());
                let damage = self.damage.as_ref();
                let calm = Calm::of(nodes, damage, &self.rules, self.forgetful, self.tail, now_us);
                administrators::fail_over(&calm, nodes, &mut self.rng)
            }
            21..=24 => Some(administrators::rebalance(&self.nodes, at, &mut self.rng)),
            25 => Some(Command::CancelRebalance),
            26 | 27 => administrators::take_back(&self.nodes[at], &mut self.rng),
            _ => None,
        };
        if let Some(command) = command {
            self.ask_for(at, &command);
        }
    }

    /// A fault strikes a node that is at work, as the seed has decided; whether it may do so now.
    pub fn strike_at_work(&mut self, at: usize, fault: Fault) -> bool {
        let calm = self.calm();
        let is_calm = calm.is_calm_but(at) && !calm.is_troubled(at) && self.nodes[at].is_up;
        let forgets = matches!(fault, Fault::Crash | Fault::PowerLoss);
        if self.time.now_us() >= self.rules.faults_us || !is_calm || (forgets && !calm.may_forget(at)) {
            return false;
        }
        if fault == Fault::Damage {
            return false;
        }
        self.bring(at, fault);
        true
    }

    /// Brings a fault about, if it can be.
    fn bring(&mut self, at: usize, fault: Fault) {
        let now_us = self.time.now_us();
        let length_us = match fault {
            Fault::Crash | Fault::PowerLoss => return self.crash(at, fault),
            Fault::Partition | Fault::OneWay | Fault::StoreCut | Fault::LeaseLoss => {
                Some(self.nodes.cut_off(at, fault, &mut self.rng))
            }
            Fault::Disconnect => self.nodes[at].lose_a_connection(now_us, &mut self.rng),
            _ => self.nodes[at].suffer(fault, now_us, &mut self.rng),
        };
        if let Some(length_us) = length_us {
            self.strike(at, fault, length_us);
        }
    }

    /// A fault begins, and lasts so long.
    pub fn strike(&mut self, at: usize, fault: Fault, length_us: u64) {
        let now_us = self.time.now_us();
        self.time.show(|| format!("node {at}: {fault:?} for {length_us}"));
        self.crossing.strikes(&mut self.tally, now_us, at, fault, now_us + length_us);
        self.waits.hinder();
        let boot = self.nodes[at].boot;
        self.time.push(length_us, at, boot, Event::Heal(fault));
    }

    /// A process ends, by itself, with its power, or so that its files can be damaged.
    pub fn crash(&mut self, at: usize, fault: Fault) {
        let now_us = self.time.now_us();
        self.history.note_crash(&self.nodes, at, now_us);
        self.forgetful = Some(at);
        self.nodes.vbuckets().for_each(|vb| self.promises.may_lose(at, vb, now_us));
        self.nodes[at].stood_inside = self.nodes[at].snapshots();
        let seed = self.rng.next_u64();
        let again_us = now_us + self.rng.between(1_000, 50_000);
        // What was not synced is lost or torn.
        self.nodes[at].crash((fault == Fault::PowerLoss).then_some(seed));
        self.nodes.break_with(at, again_us);
        let away_us = self.rng.between(5_000, 1_800_000);
        self.strike(at, fault, away_us);
    }

    /// A fault is over.
    pub fn heal(&mut self, at: usize, fault: Fault) {
        match fault {
            Fault::Crash | Fault::PowerLoss | Fault::Damage => self.restart(at),
            Fault::Partition | Fault::OneWay | Fault::StoreCut | Fault::LeaseLoss => {
                self.nodes.join_again(at);
            }
            Fault::FullDisk | Fault::FailingSync => self.nodes[at].handles.disk.heal(),
            _ => {}
        }
    }

    fn restart(&mut self, at: usize) {
        if self.nodes[at].is_up || matches!(self.gone, Gone::Away(gone, _) if gone == at) {
            return;
        }
        if starts_alone(self, at) {
            return;
        }
        let random = self.rng.next_u64();
        self.time.show(|| format!("node {at} starts"));
        match self.nodes[at].start(&self.rules, random) {
            Ok(()) => {
                let before = std::mem::take(&mut self.nodes[at].stood_inside);
                let checked = self.nodes[at].check_inside(&before);
                self.note_check(checked);
                damage::check_start(self, at);
                self.begin(at);
            }
            Err(what) => self.violation = Some(what),
        }
    }

    /// No more faults: everything that is over ends now, and it is looked whether all is well.
    fn mend(&mut self) {
        self.nodes.heal_all();
        (0..self.nodes.len()).for_each(|at| self.restart(at));
        let is_one_gone = matches!(self.gone, Gone::Away(..));
        if !self.nodes.are_active() && !is_one_gone && self.nodes.newest.rebalance.is_none() {
            // Nodes that were failed over come back, so that what is undecided can be decided.
            let at = self.nodes.any(&mut self.rng);
            if let Some(command) = administrators::take_back(&self.nodes[at], &mut self.rng) {
                self.ask_for(at, &command);
            }
            self.ask_for(at, &Command::Rebalance { eject: Vec::new() });
        }
        // The last clients hear of their requests, and what expires does so.
        let is_over = self.time.now_us() >= self.rules.faults_us + 4_000_000;
        if is_over && !gone::is_one_gone(self) && self.is_well() {
            self.is_done = !gone::let_one_go(self);
        }
        self.time.push(50_000, 0, 0, Event::Fault);
    }
}

/// Starts the node without its cluster first, at every fourth boot; whether it runs like that.
fn starts_alone(world: &mut World, at: usize) -> bool {
    if !(world.rules.seed + world.nodes[at].boot).is_multiple_of(4) || world.damage.is_some() {
        return false;
    }
    match world.nodes[at].start_alone(&world.rules) {
        Ok(false) => return false,
        Ok(true) => {
            world.time.show(|| format!("node {at} starts without its cluster"));
            let boot = world.nodes[at].boot;
            world.time.push(1_000, at, boot, Event::Work);
        }
        Err(what) => world.violation = Some(what),
    }
    true
}
