//! Faults that aim: at who was just chosen, at those that a choice waits for, at who has just taken something over.
//!
//! Most of what can go wrong with a choice takes one failure right behind another one while some copy is far behind;
//! chance alone seldom brings that about. Nothing that is durable is lost when processes end here, so that any number of
//! nodes may be in trouble.

use base::env::sim::SplitMix64;
use cluster::command::Command;
use cluster::state::present;
use cluster::{Bucket, NodeId, State, Step};

use crate::node::BUCKET;
use crate::world::{Event, FAULTS_US, STORE, World};

/// What a seed aims at.
#[derive(Clone, Copy, Debug)]
pub struct Aims {
    /// Those of whom a choice wants to hear.
    during_choice: bool,
    /// Who was just chosen.
    after_choice: bool,
    /// Who leads a chain that was just moved.
    after_move: bool,
    /// So many nodes may be in trouble when another fault strikes that aims at nobody.
    most_troubled: usize,
}

impl Aims {
    pub fn of(rng: &mut SplitMix64) -> Aims {
        Aims {
            during_choice: rng.chance(2, 3),
            after_choice: rng.chance(2, 3),
            after_move: rng.chance(2, 3),
            most_troubled: rng.below(2) as usize,
        }
    }
}

/// Something that happens to a node, for so many microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blow {
    /// It reaches no other node, nor they it; all reach the store.
    Lag(u64),
    /// It does not reach the store.
    StoreCut(u64),
    /// It reaches nobody.
    Partition(u64),
    /// Its process ends, and starts again.
    Crash(u64),
    /// It stands still.
    Freeze(u64),
    /// It takes long to become what it reads.
    Slow(u64),
    /// Somebody asks for it to be failed over.
    FailOver,
}

impl World {
    /// A blow falls in a while.
    fn aim(&mut self, at: usize, within_us: u64, blow: Blow) {
        let delay = self.rng.below(within_us.max(1));
        self.push(delay, at, 0, Event::Blow(blow));
    }

    /// Something that keeps a node from doing its part, quickly over or not.
    fn any_blow(&mut self) -> Blow {
        match self.rng.below(8) {
            0..=2 => Blow::Crash(self.rng.between(2_000, 500_000)),
            3 | 4 => Blow::StoreCut(self.rng.between(100_000, 2_000_000)),
            5 => Blow::Partition(self.rng.between(100_000, 1_500_000)),
            6 => Blow::Freeze(self.rng.between(50_000, 1_500_000)),
            _ => Blow::Slow(self.rng.between(50_000, 800_000)),
        }
    }

    /// A fault that aims at nobody, so that there is something to aim at; returns when the next one comes.
    pub fn provoke(&mut self, aims: Aims) -> u64 {
        let at = self.any_node();
        let is_calm = self.troubled() <= aims.most_troubled;
        match self.rng.below(16) {
            0..=2 => {
                let length = self.rng.between(300_000, 2_500_000);
                self.blow(at, Blow::Lag(length));
            }
            3 | 4 if is_calm => {
                let length = self.rng.between(300_000, 2_500_000);
                self.blow(at, Blow::StoreCut(length));
                self.aim(at, 600_000, Blow::FailOver);
            }
            5..=7 if is_calm => {
                let blow = self.any_blow();
                self.blow(at, blow);
                if self.rng.chance(1, 3) {
                    self.aim(at, 600_000, Blow::FailOver);
                }
            }
            13 if is_calm => self.estrange(at),
            14 => {
                self.blow(at, Blow::Slow(800_000));
                self.aim(at, 400_000, Blow::FailOver);
            }
            8 | 9 => self.ask_for_rebalance(at),
            10 => self.ask_for(at, &Command::FailOverGracefully { node: NodeId(at as u32 + 1) }),
            11 => self.take_back(at),
            12 => self.ask_for(at, &Command::CancelRebalance),
            _ => {}
        }
        self.rng.between(20_000, 400_000)
    }

    /// A node writes what nobody else gets, and then begins a new life.
    fn estrange(&mut self, at: usize) {
        self.estranged = Some(at);
        self.blow(at, Blow::Lag(2_500_000));
        let away_us = self.rng.between(2_000, 30_000);
        self.aim(at, 500_000, Blow::Crash(away_us));
    }

    pub fn blow(&mut self, at: usize, blow: Blow) {
        if self.now_us() + 500_000 >= FAULTS_US || !self.nodes[at].up {
            return;
        }
        let others: Vec<usize> = (0..self.nodes.len()).filter(|other| *other != at).collect();
        let ends = match blow {
            Blow::Lag(_) => others,
            Blow::StoreCut(_) => vec![STORE],
            Blow::Partition(_) => others.into_iter().chain([STORE]).collect(),
            _ => Vec::new(),
        };
        self.cut.extend(ends.into_iter().flat_map(|end| [(at, end), (end, at)]));
        match blow {
            Blow::Lag(us) | Blow::StoreCut(us) | Blow::Partition(us) => {
                self.tally.cuts += 1;
                self.push(us, at, 0, Event::Heal(blow));
            }
            Blow::Crash(us) => {
                self.tally.crashes += 1;
                self.nodes[at].crash();
                self.push(us, at, 0, Event::Heal(blow));
            }
            Blow::Freeze(us) => {
                self.tally.freezes += 1;
                self.nodes[at].frozen_until_us = self.now_us() + us;
            }
            Blow::Slow(us) => self.nodes[at].slow_until_us = self.now_us() + us,
            Blow::FailOver => {
                let reaches = |other: &usize| {
                    *other != at && self.reaches(*other, STORE) && self.nodes[*other].is_awake(self.now_us())
                };
                let asked = (0..self.nodes.len()).find(reaches);
                if let Some(asked) = asked {
                    let node = NodeId(at as u32 + 1);
                    self.ask_for(asked, &Command::FailOver { node, force: false });
                }
            }
        }
    }

    pub fn heal_from(&mut self, at: usize, blow: Blow) {
        match blow {
            Blow::Lag(_) => {
                self.cut.retain(|(from, to)| (*from != at && *to != at) || *from == STORE || *to == STORE);
                if self.rng.chance(1, 3) {
                    self.strike_behind(at);
                }
            }
            Blow::StoreCut(_) => self.cut.retain(|cut| *cut != (at, STORE) && *cut != (STORE, at)),
            Blow::Partition(_) => self.cut.retain(|(from, to)| *from != at && *to != at),
            Blow::Crash(_) => self.restart(at),
            Blow::Freeze(_) | Blow::Slow(_) | Blow::FailOver => {}
        }
    }

    /// Another document was written: what it says may be worth aiming at.
    pub fn take_aim(&mut self, before: &State, after: &State) {
        let (Some(aims), Some(was), Some(is)) =
            (self.aims, before.buckets.get(BUCKET), after.buckets.get(BUCKET))
        else {
            return;
        };
        let is_choice = |step: Option<&Step>| matches!(step, Some(Step::Choose { .. }));
        let is_open = |of: &Bucket, vb: u16| is_choice(of.steps.get(&vb));
        let has_settled =
            |vb: &u16| matches!(was.steps.get(vb), Some(Step::Settle { .. })) && !is.steps.contains_key(vb);
        let has_changed = |vb: &u16| {
            is_open(was, *vb) != is_open(is, *vb) || was.chain(*vb) != is.chain(*vb) || has_settled(vb)
        };
        let changed: Vec<u16> = is.vbuckets().filter(has_changed).collect();
        if changed.is_empty() {
            return;
        }
        let vb = changed[self.rng.below(changed.len() as u64) as usize];
        let active = is.active(vb).and_then(|id| self.node_of(id));
        match (is_open(was, vb), is_open(is, vb)) {
            (false, true) if aims.during_choice => {
                let asked = present(is.chain(vb)).filter_map(|id| self.node_of(id)).collect();
                self.strike_asked(active, asked);
            }
            (true, false) if aims.after_choice => self.strike_active(active),
            (false, false) if aims.after_move => self.strike_active(active),
            _ => {}
        }
    }

    /// Of those of whom a choice wants to hear some do not say what they have, or not what they have later.
    fn strike_asked(&mut self, active: Option<usize>, asked: Vec<usize>) {
        if let Some(at) = active.filter(|at| self.estranged == Some(*at)) {
            let length = self.rng.between(350_000, 900_000);
            self.aim(at, 40_000, Blow::StoreCut(length));
            return;
        }
        if self.rng.chance(1, 3) {
            // All have told what they had: some of them go on, the others do not.
            let within_us = self.rng.between(20_000, 300_000);
            let mut is_cut = self.rng.chance(1, 2);
            for at in asked.into_iter().filter(|at| active != Some(*at)) {
                let length = self.rng.between(600_000, 1_500_000);
                self.aim(at, within_us, if is_cut { Blow::StoreCut(length) } else { Blow::Lag(length) });
                is_cut = !is_cut;
            }
            return;
        }
        for _ in 0..self.rng.between(0, 2) {
            let at = asked[self.rng.below(asked.len() as u64) as usize];
            let blow = self.any_blow();
            self.aim(at, 60_000, blow);
        }
    }

    /// One copy is far behind and gets much at once, another one is cut off, and then somebody fails.
    fn strike_behind(&mut self, at: usize) {
        let (other, third) = (self.any_node(), self.any_node());
        if other == at || third == at || other == third {
            return;
        }
        let length = self.rng.between(800_000, 1_500_000);
        self.aim(other, 100_000, Blow::Lag(length));
        let away_us = self.rng.between(1_000_000, 2_500_000);
        let blow = if self.rng.chance(1, 2) { Blow::Crash(away_us) } else { Blow::StoreCut(away_us) };
        self.aim(third, 400_000, blow);
        self.aim(third, 800_000, Blow::FailOver);
    }

    fn strike_active(&mut self, active: Option<usize>) {
        let Some(at) = active.filter(|_| self.rng.chance(1, 2)) else { return };
        let blow = self.any_blow();
        let within_us = [5_000, 60_000, 400_000][self.rng.below(3) as usize];
        self.aim(at, within_us, blow);
        if self.rng.chance(1, 2) {
            self.aim(at, 600_000, Blow::FailOver);
        }
    }
}
