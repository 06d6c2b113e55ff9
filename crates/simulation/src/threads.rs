//! What a node's threads do, one after the other: connections, rollbacks, a bucket's background work.

use base::env::sim::SplitMix64;
use base::{VbId, VbState};
use cluster::Status;
use cluster::state::Purpose;

use crate::jobs::Job;
use crate::link::Pipe;
use crate::links::{self, TAKEN_OVER_AT_ONCE};
use crate::timeline::Event;
use crate::world::World;

impl World {
    /// Some of what a node's threads do.
    pub fn work(&mut self, at: usize) {
        self.carry(at);
        let mut rng = self.rng.fork();
        let now_us = self.time.now_us();
        let worked = self.nodes[at].work(now_us, &mut rng);
        worked.into_iter().for_each(|job| self.works(at, job));
        if let Some(streams) = &mut self.streams {
            streams.after_work(&self.nodes, at);
        }
        if self.rng.chance(1, 3) {
            roll_back(self, at);
        }
        match self.nodes.newest.rebalance.as_ref().map(|rebalance| &rebalance.purpose) {
            Some(Purpose::GracefulFailover { .. }) => self.works(at, Job::GracefulFailover),
            Some(_) => self.works(at, Job::Rebalance),
            None => {}
        }
        if self.nodes.newest.is_choosing() {
            self.works(at, Job::HardFailover);
        }
        if self.nodes.newest.nodes.values().any(|node| node.status == Status::DeltaRecovery) {
            self.works(at, Job::DeltaRecovery);
        }
        self.front_end(at).settle_waiting();
        let prepared = self.nodes[at].check_prepared();
        self.note_check(prepared);
        let (now_us, asked) = (self.time.now_us(), self.history.about(&self.clients.keys));
        let served = self.promises.check_served(&self.nodes[at], asked, now_us);
        self.note_check(served);
    }

    /// The links of a node work, and it is looked at what that has changed.
    fn carry(&mut self, at: usize) {
        let before = self.streams.as_mut().map(|streams| streams.before_work(&self.nodes, at));
        let before = before.transpose().map_err(|what| self.violation = Some(what)).ok().flatten();
        carry(self, at);
        if let (Some(streams), Some(before)) = (&mut self.streams, before) {
            let checked = streams.after_links(&self.nodes, at, before);
            self.note_check(checked);
        }
    }

    /// A job does something at a node.
    pub fn works(&mut self, at: usize, job: Job) {
        let now_us = self.time.now_us();
        self.crossing.works(&mut self.tally, now_us, at, job);
        if let Some((fault, _)) = self.rules.aimed.iter().find(|(_, aimed)| *aimed == job) {
            let (fault, boot) = (*fault, self.nodes[at].boot);
            self.time.push(0, at, boot, Event::Strike(fault, job));
        }
    }
}

/// What a thread that rolls back does.
fn roll_back(world: &mut World, at: usize) {
    let Some(bucket) = world.nodes[at].bucket.clone() else { return };
    let place = |vb: u16| bucket.standing(VbId(vb)).map(|at| (at.high_seqno, at.uuid));
    let before: Vec<_> = world.nodes.vbuckets().map(place).collect();
    if !world.nodes[at].handles.spawn.run_one() {
        return;
    }
    let now_us = world.time.now_us();
    for vb in world.nodes.vbuckets().filter(|vb| before[usize::from(*vb)] != place(*vb)) {
        world.promises.may_lose(at, vb, now_us);
        world.tally.rollbacks += 1;
        world.time.show(|| format!("node {at} has gone back in vBucket {vb}"));
        world.works(at, Job::Rollback);
        let is_lower = place(vb).map(|at| at.0) < before[usize::from(vb)].map(|at| at.0);
        let World { streams, nodes, .. } = &mut *world;
        if let Some(streams) = streams.as_mut().filter(|_| is_lower) {
            let checked = streams.rolled_back(nodes, at, vb);
            world.note_check(checked);
        }
    }
}

/// Connections of a node to those that it follows carry some bytes, and both ends work on them.
fn carry(world: &mut World, at: usize) {
    world.nodes[at].links.take_new(&world.nodes[at].handles.clock);
    for (number, source) in world.nodes[at].links.sources().into_iter().enumerate() {
        let mut rng = world.rng.fork();
        carry_one(world, at, number, source, &mut rng);
    }
    let before = taking_over(world, at);
    if let Err(what) = world.nodes[at].links.turn() {
        world.violation = Some(format!("node {at}: {what}"));
    }
    // Few vBuckets are within the limit of a link in any case.
    let too_many = (before.len() > TAKEN_OVER_AT_ONCE)
        .then(|| links::takes_too_many(world.nodes[at].front_end.replication()))
        .flatten();
    if let Some(taken) = too_many {
        world.violation = Some(format!("node {at} takes over {taken} vBuckets at once on a link"));
    }
    for vb in before {
        if world.nodes[at].role(vb) == Some(VbState::Active) {
            world.tally.takeovers += 1;
            world.time.show(|| format!("node {at} took over vBucket {vb}"));
        }
    }
}

/// vBuckets that a node takes over.
fn taking_over(world: &World, at: usize) -> Vec<u16> {
    let is_pending = |vb: &u16| world.nodes[at].role(*vb) == Some(VbState::Pending);
    world.nodes.vbuckets().filter(is_pending).collect()
}

/// What is between a link and the node that it follows.
fn carry_one(world: &mut World, at: usize, number: usize, source: usize, rng: &mut SplitMix64) {
    let (line, may_connect) = world.nodes[at].links.line(number, world.time.now_us());
    let (goes, comes) = (world.nodes.reaches(at, source), world.nodes.reaches(source, at));
    let far = &world.nodes[source];
    let is_awake = far.is_awake(world.time.now_us());
    let mut line = line.borrow_mut();
    if line.pipe.as_ref().is_some_and(|pipe| pipe.boot != far.boot) {
        line.pipe = None;
    }
    if line.is_asked && may_connect && goes && comes {
        if is_awake {
            let tap = world.streams.as_ref().map(|streams| streams.tap(&world.nodes, source, at));
            line.open(Pipe::new(&far.front_end, far.boot).tapped(tap));
        } else if !far.is_up {
            line.refuse();
        }
    }
    let Some(pipe) = &mut line.pipe else { return };
    let most = [300, 5_000, 40_000][rng.below(3) as usize];
    let most = world.streams.as_ref().map_or(most, |streams| streams.most_bytes(most));
    if goes && rng.chance(3, 4) {
        pipe.carry_to_source(rng.below(most) as usize);
    }
    if is_awake && let Err(what) = pipe.serve(rng.below(most) as usize + 1) {
        world.violation = Some(format!("node {at} follows {source}: {what}"));
    }
    if let Some(streams) = &mut world.streams {
        for asked in pipe.take_asked() {
            let checked = streams.check_answer(&world.nodes, source, at, &asked);
            checked.unwrap_or_else(|what| world.violation = Some(what));
        }
    }
    if comes && rng.chance(3, 4) {
        pipe.carry_to_target(rng.below(most) as usize);
    }
}
