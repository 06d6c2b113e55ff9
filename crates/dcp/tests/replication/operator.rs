//! Who decides which node is active, keeps the links as they must be, and lets things happen.

use std::time::Duration;

use base::{VbId, VbState};
use dcp::{Disconnect, Mode};
use protocol::dcp::StreamRequest;

use crate::dice::{Dice, show};
use crate::link::Link;
use crate::mistakes::Mistake;
use crate::served::Asked;
use crate::third::Third;
use crate::world::World;
use crate::{Counts, VBUCKETS, rule};

/// In one of so many seeds the third party knows of no collections.
const PLAIN_ONE_IN: u64 = 5;

/// Who is to have a vBucket.
#[derive(Clone, Copy, Debug)]
struct Plan {
    active: usize,
    /// To whom it is being handed over.
    heir: Option<usize>,
}

pub struct Operator {
    world: World,
    dice: Dice,
    mistake: Mistake,
    plans: Vec<Plan>,
    links: Vec<Link>,
    third: Third,
    /// Connections are slow for so many steps.
    slow: u64,
    /// Only mending from here on.
    is_mending: bool,
}

fn vbuckets() -> impl Iterator<Item = VbId> {
    (0..VBUCKETS).map(VbId)
}

impl Operator {
    pub fn new(seed: u64, mistake: Mistake) -> Operator {
        let mut dice = Dice(seed);
        let nodes = 2 + usize::from(dice.one_in(3));
        let world = World::new(seed, nodes, mistake, &mut dice);
        let plans = vbuckets().map(|_| Plan { active: 0, heir: None }).collect();
        let third = Third::new(dice.below(nodes as u64) as usize, seed % PLAIN_ONE_IN == PLAIN_ONE_IN - 1);
        Operator { world, dice, mistake, plans, links: Vec::new(), third, slow: 0, is_mending: false }
    }

    pub fn run(mut self, steps: usize) -> Result<Counts, String> {
        for _ in 0..steps {
            self.happen()?;
            self.reconcile()?;
            self.turn_links()?;
        }
        self.mend()?;
        Ok(self.world.counts)
    }

    fn nodes(&self) -> usize {
        self.world.nodes.len()
    }

    fn any_node(&mut self) -> usize {
        self.dice.below(self.world.nodes.len() as u64) as usize
    }

    fn happen(&mut self) -> Result<(), String> {
        let (at, vb) = (self.any_node(), VbId(self.dice.below(VBUCKETS.into()) as u16));
        match self.dice.below(100) {
            0..35 => (0..self.dice.below(6) + 1).for_each(|_| self.world.change(&mut self.dice)),
            35..50 => self.world.flush(at),
            50..62 => _ = self.world.nodes[at].bucket.streams().backfills().step(),
            62..74 => self.world.upkeep(at, &mut self.dice),
            74..80 => self.world.advance(Duration::from_millis(self.dice.below(3000))),
            80..86 => self.third.act(&self.world, &mut self.dice)?,
            86..89 if !self.links.is_empty() => {
                let at = self.dice.below(self.links.len() as u64) as usize;
                self.links.remove(at);
                self.world.counts.disconnects += 1;
            }
            89 => {
                self.slow = 10 + self.dice.below(30);
                self.world.counts.slow += 1;
            }
            90 if self.dice.one_in(2) => self.crash(at)?,
            91 if self.dice.one_in(2) => self.fail_over(vb, at)?,
            92 => self.hand_over(vb, at),
            93..96 => self.world.look(at, vb)?,
            _ => {}
        }
        Ok(())
    }

    fn crash(&mut self, at: usize) -> Result<(), String> {
        if self.third.at == at {
            self.third.catch_up(&self.world)?;
            self.third.disconnect();
        }
        self.links.retain(|link| link.from != at && link.to != at);
        let seed = self.dice.below(1 << 40);
        show(|| format!("node {at} crashes"));
        self.world.crash(at, seed)
    }

    fn set_role(&mut self, at: usize, vb: VbId, role: VbState) -> Result<(), String> {
        if self.third.at == at {
            self.third.catch_up(&self.world)?;
        }
        self.world.set_role(at, vb, role)?;
        show(|| format!("node {at} {vb:?} becomes {role:?} at {:?}", self.world.place(at, vb)));
        Ok(())
    }

    fn fail_over(&mut self, vb: VbId, to: usize) -> Result<(), String> {
        let plan = self.plans[usize::from(vb.0)];
        if to == plan.active || self.world.role(to, vb) != Some(VbState::Replica) || plan.heir.is_some() {
            return Ok(());
        }
        self.world.counts.failovers += 1;
        if self.dice.one_in(2) {
            self.set_role(plan.active, vb, VbState::Replica)?;
        } else {
            // It goes on until somebody tells it.
            self.world.counts.stale += 1;
        }
        self.unlink(to, vb);
        self.set_role(to, vb, VbState::Active)?;
        self.plans[usize::from(vb.0)].active = to;
        Ok(())
    }

    fn hand_over(&mut self, vb: VbId, to: usize) {
        let is_replica = self.world.role(to, vb) == Some(VbState::Replica);
        let plan = &mut self.plans[usize::from(vb.0)];
        if to != plan.active && plan.heir.is_none() && is_replica {
            plan.heir = Some(to);
            self.world.counts.takeovers += 1;
        }
    }

    fn unlink(&mut self, to: usize, vb: VbId) {
        self.links.iter_mut().filter(|link| link.to == to).for_each(|link| link.drop_vb(vb));
    }

    /// Brings roles and links a step closer to what they must be.
    fn reconcile(&mut self) -> Result<(), String> {
        for vb in vbuckets() {
            self.reconcile_handover(vb)?;
            let Plan { active, heir } = self.plans[usize::from(vb.0)];
            if heir.is_none() && self.world.role(active, vb) != Some(VbState::Active) {
                self.unlink(active, vb);
                self.set_role(active, vb, VbState::Active)?;
            }
            for at in 0..self.nodes() {
                if at == active || !(self.is_mending || self.dice.one_in(6)) {
                    continue;
                }
                let role = self.world.role(at, vb);
                let wanted = if heir == Some(at) { VbState::Pending } else { VbState::Replica };
                if role != Some(wanted) {
                    self.unlink(at, vb);
                    self.set_role(at, vb, wanted)?;
                }
                self.link(active, at, vb, if heir == Some(at) { Mode::TakeOver } else { Mode::Replicate });
            }
        }
        Ok(())
    }

    fn reconcile_handover(&mut self, vb: VbId) -> Result<(), String> {
        let plan = self.plans[usize::from(vb.0)];
        let Some(heir) = plan.heir else { return Ok(()) };
        if self.world.role(heir, vb) == Some(VbState::Active) {
            self.world.counts.taken_over += 1;
            self.unlink(heir, vb);
            self.plans[usize::from(vb.0)] = Plan { active: heir, heir: None };
        } else if self.dice.one_in(if self.is_mending { 2000 } else { 60 }) {
            self.unlink(heir, vb);
            self.plans[usize::from(vb.0)].heir = None;
        }
        Ok(())
    }

    fn link(&mut self, from: usize, to: usize, vb: VbId, mode: Mode) {
        for link in &mut self.links {
            if link.to == to && (link.from != from || link.wanted.get(&vb).is_some_and(|has| *has != mode)) {
                link.drop_vb(vb);
            }
        }
        let at = self.links.iter().position(|link| (link.from, link.to) == (from, to)).unwrap_or_else(|| {
            let nodes = &self.world.nodes;
            let ends = ((from, &nodes[from].bucket), (to, &nodes[to].bucket));
            self.links.push(Link::new(ends.0, ends.1, self.mistake, &mut self.dice));
            self.links.len() - 1
        });
        if !self.links[at].wanted.contains_key(&vb) {
            self.links[at].want(vb, mode);
        }
    }

    /// Lets connections work.
    fn turn_links(&mut self) -> Result<(), String> {
        let mut at = 0;
        self.slow = self.slow.saturating_sub(1);
        let most = match self.slow {
            0 if self.is_mending => 60_000,
            0 => [200, 5_000, 40_000][self.dice.below(3) as usize],
            _ => 40,
        };
        while at < self.links.len() {
            if !self.is_mending && self.dice.one_in(3) {
                at += 1;
                continue;
            }
            let (from, to) = (self.links[at].from, self.links[at].to);
            if self.third.at == to {
                self.third.catch_up(&self.world)?;
            }
            let roles: Vec<_> = vbuckets().map(|vb| (vb, self.world.role(to, vb))).collect();
            let stepped = self.links[at].step(&mut self.dice, most);
            for (vb, before) in roles {
                if before != self.world.role(to, vb) && self.world.role(to, vb) == Some(VbState::Active) {
                    if self.world.role(from, vb) == Some(VbState::Active) {
                        return Err(format!("{vb:?} is active on {from} and was handed over to {to}"));
                    }
                    self.world.took_over(to, vb, from)?;
                }
            }
            let stepped = match stepped {
                Ok(stepped) => stepped,
                Err(Disconnect::Silent) => {
                    self.links.remove(at);
                    continue;
                }
                Err(error) => return Err(format!("{from} to {to}: {error}")),
            };
            self.world.counts.messages += stepped.messages;
            self.world.counts.full += u64::from(stepped.is_full);
            for asked in &stepped.asked {
                self.check_answer(from, to, asked)?;
            }
            self.world.check_rising(to)?;
            self.roll_back(at)?;
            at += 1;
        }
        Ok(())
    }

    /// Does what a link has ordered, some time.
    fn roll_back(&mut self, at: usize) -> Result<(), String> {
        if self.links[at].rollbacks.is_empty() || !(self.is_mending || self.dice.one_in(3)) {
            return Ok(());
        }
        let to = self.links[at].to;
        if self.third.at == to {
            self.third.catch_up(&self.world)?;
        }
        let rollback = self.links[at].rollbacks.remove(0);
        let before = self.world.place(to, rollback.vb).high;
        if let Some(back) = self.links[at].roll_back(rollback) {
            self.world.counts.rollbacks += 1;
            show(|| format!("node {to} rolls back {rollback:?}: {back:?}"));
            if before > rollback.to.0 {
                self.world.rolled_back(to, rollback.vb, rollback.to.0, back.0)?;
            }
        }
        Ok(())
    }

    /// A stream begins only where the histories are one, and a rollback goes to where the rule says.
    fn check_answer(&mut self, from: usize, to: usize, asked: &Asked) -> Result<(), String> {
        let Asked { vb, request, answer } = asked;
        show(|| format!("{from} answers {to} {vb:?} {request:?}: {answer:?}"));
        let StreamRequest { start, snapshot_start, snapshot_end, .. } = *request;
        let is_inside = snapshot_start < start && start < snapshot_end;
        let source = self.world.place(from, *vb);
        let log = self.world.nodes[from].bucket.with_vbucket(*vb, |vb| vb.failover().to_entries());
        let wanted = rule::rollback(request, &log.unwrap_or_default(), source.high, source.purge);
        if wanted != answer.err().map(|to| to.0) {
            return Err(format!("{request:?} of {to} was answered {answer:?}, not {wanted:?}"));
        }
        let (theirs, ours) = (self.world.branch(from, *vb)?, self.world.branch(to, *vb)?);
        // What counts is where the node stands, not where it says.
        let place = self.world.place(to, *vb);
        let needed = if place.start == place.high { place.high } else { place.end };
        let shared = answer.err().map_or(needed, |to| to.0);
        // It may have been on its way when the node was told something else.
        let is_meant =
            self.links.iter().any(|link| (link.from, link.to) == (from, to) && link.wanted.contains_key(vb));
        let is_there = place.high == start.0;
        if start.0 > 0 && is_meant && is_there && !rule::agree(theirs, ours, shared) {
            return Err(format!("{request:?} of {to} was answered {answer:?}: not the same up to {shared}"));
        }
        if answer.is_ok() {
            self.world.counts.streams += 1;
            self.world.counts.inside += u64::from(is_inside);
        }
        Ok(())
    }

    /// Nothing happens any more; all come to have the same.
    fn mend(&mut self) -> Result<(), String> {
        (self.is_mending, self.slow) = (true, 0);
        for at in 0..self.nodes() {
            self.world.set_memory(at, false);
        }
        let (mut quiet, mut has_expired) = (0, false);
        for _ in 0..3000 {
            self.reconcile()?;
            self.turn_links()?;
            for at in 0..self.nodes() {
                self.world.flush(at);
                self.world.keep(at);
                self.world.nodes[at].bucket.streams().backfills().step();
            }
            quiet = if self.is_level() { quiet + 1 } else { 0 };
            self.world.advance(Duration::from_millis(50));
            if quiet > 30 && !std::mem::replace(&mut has_expired, true) {
                // Documents that are still to expire do so while somebody listens.
                self.world.advance(Duration::from_secs(30));
                (0..self.nodes()).for_each(|at| vbuckets().for_each(|vb| self.world.expire(at, vb)));
                quiet = 0;
            } else if quiet > 30 {
                return self.check_end();
            }
        }
        let at: Vec<_> = self.links.iter().flat_map(|link| link.consumer.progress()).collect();
        Err(format!("it does not become quiet: {:?} {at:?}", self.plans))
    }

    /// Whether all replicas stream and have got as far as their active node.
    fn is_level(&self) -> bool {
        let is_level = |vb: VbId| {
            let Plan { active, heir } = self.plans[usize::from(vb.0)];
            let high = self.world.place(active, vb).high;
            heir.is_none() && (0..self.nodes()).all(|at| self.world.place(at, vb).high == high)
        };
        vbuckets().all(is_level) && self.links.iter().all(Link::is_streaming)
    }

    fn check_end(&mut self) -> Result<(), String> {
        for vb in vbuckets() {
            let active = self.plans[usize::from(vb.0)].active;
            let log =
                |at: usize| self.world.nodes[at].bucket.with_vbucket(vb, |vb| vb.failover().to_entries());
            let (wanted, histories) = (self.world.place(active, vb), log(active));
            for at in 0..self.nodes() {
                let place = self.world.place(at, vb);
                if place.high != wanted.high || log(at) != histories {
                    let (has, wants) = (log(at), &histories);
                    return Err(format!("node {at} {vb:?}: {place:?} {has:?}, active: {wanted:?} {wants:?}"));
                }
            }
            for at in 0..self.nodes() {
                self.world.look(at, vb)?;
                self.world.check_reads(at, vb)?;
            }
        }
        let mut counts = std::mem::take(&mut self.world.counts);
        let finished = self.third.finish(&self.world, &mut self.dice, &mut counts);
        self.world.counts = counts;
        finished
    }
}
