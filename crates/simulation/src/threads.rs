//! What a node's threads do, one after the other: connections, rollbacks, a bucket's background work.

use base::VbId;
use cluster::Status;
use cluster::state::Purpose;

use crate::jobs::Job;
use crate::link::Connection;
use crate::links::Ends;
use crate::world::{Event, World};

impl World {
    /// Some of what a node's threads do.
    pub fn work(&mut self, at: usize) {
        self.carry(at);
        let mut rng = self.rng.fork();
        let now_us = self.now_us();
        let worked = self.nodes[at].work(now_us, &mut rng);
        worked.into_iter().for_each(|job| self.works(at, job));
        for source in self.nodes[at].links.sources() {
            let Some(bucket) = self.nodes[at].bucket.clone().filter(|_| self.rng.chance(1, 3)) else {
                continue;
            };
            let is_done = self.nodes[at].links.with(source, |link| link.roll_back(&bucket)).flatten();
            if let Some(VbId(vb)) = is_done {
                self.promises.may_lose(at, vb, now_us);
                self.tally.rollbacks += 1;
                self.show(|| format!("node {at} has gone back in vBucket {vb}, which follows {source}"));
                self.works(at, Job::Rollback);
            }
        }
        match self.newest.rebalance.as_ref().map(|rebalance| &rebalance.purpose) {
            Some(Purpose::GracefulFailover { .. }) => self.works(at, Job::GracefulFailover),
            Some(_) => self.works(at, Job::Rebalance),
            None => {}
        }
        if self.newest.is_choosing() {
            self.works(at, Job::HardFailover);
        }
        if self.newest.nodes.values().any(|node| node.status == Status::DeltaRecovery) {
            self.works(at, Job::DeltaRecovery);
        }
        self.front_end(at).settle_waiting();
        self.check_prepared(at);
        self.check_served(at);
    }

    /// A job does something at a node.
    pub fn works(&mut self, at: usize, job: Job) {
        let now_us = self.now_us();
        self.crossing.works(&mut self.tally, now_us, at, job);
        if let Some((fault, _)) = self.rules.aimed.iter().find(|(_, aimed)| *aimed == job) {
            let (fault, boot) = (*fault, self.nodes[at].boot);
            self.push(0, at, boot, Event::Strike(fault, job));
        }
    }

    /// A job does something at all nodes.
    pub fn cluster_works(&mut self, job: Job) {
        (0..self.nodes.len()).for_each(|at| self.works(at, job));
    }

    /// Connections of a node to those that it follows carry some bytes, and both ends work on them.
    fn carry(&mut self, at: usize) {
        for source in self.nodes[at].links.sources() {
            let Some(target_bucket) = self.nodes[at].bucket.clone() else { return };
            if source >= self.nodes.len() || source == at {
                continue;
            }
            let is_awake = self.nodes[source].is_awake(self.now_us());
            let (goes, comes) = (self.reaches(at, source), self.reaches(source, at));
            let Some(source_bucket) = self.nodes[source].bucket.clone() else {
                self.nodes[at].links.break_with(source, self.now_us() + 50_000);
                continue;
            };
            let mut rng = self.rng.fork();
            let now_us = self.now_us();
            let outcome = self.nodes[at].links.with(source, |link| {
                if link.connection.as_ref().is_some_and(|connection| !connection.is_of(&source_bucket)) {
                    link.disconnect(now_us + 1_000);
                }
                if link.connection.is_none() {
                    if !is_awake || !goes || !comes || now_us < link.again_us {
                        return Ok(Vec::new());
                    }
                    let ends = Ends { source: (source, &source_bucket), target: (at, &target_bucket) };
                    link.connect(Connection::new(&ends, &mut rng));
                }
                let most = [300, 5_000, 40_000][rng.below(3) as usize];
                let Some(connection) = link.connection.as_mut() else { return Ok(Vec::new()) };
                if goes && rng.chance(3, 4) {
                    connection.carry_to_producer(rng.below(most) as usize);
                }
                if is_awake && connection.produce(rng.below(most) as usize + 1).is_err() {
                    link.disconnect(now_us + 20_000);
                    return Ok(Vec::new());
                }
                if comes && rng.chance(3, 4) {
                    connection.carry_to_consumer(rng.below(most) as usize);
                }
                link.drive(&mut rng)
            });
            match outcome {
                None => {}
                Some(Ok(taken_over)) => {
                    for VbId(vb) in taken_over {
                        self.tally.takeovers += 1;
                        self.show(|| format!("node {at} took over vBucket {vb} from {source}"));
                    }
                }
                Some(Err(error)) => {
                    if error.is_violation() {
                        self.violation = Some(format!("node {at} follows {source}: {error}"));
                    }
                    let again_us = self.now_us() + self.rng.between(1_000, 60_000);
                    self.nodes[at].links.break_with(source, again_us);
                }
            }
        }
    }
}
