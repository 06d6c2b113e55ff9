//! Files of copies are damaged: found at a start if the node is down, else at once, and some of those while the copy is
//! served on from what can be read. Administrators give up what nothing replaces when faults are over.
//!
//! Runs of some seeds have this beside their other faults. What it does is drawn from numbers of its own, so that all
//! other runs are as they were before.

use base::env::sim::SplitMix64;
use cluster::command::Command;
use cluster::state::present;
use cluster::{NodeId, State, Status, Step, View};

use crate::data::Copy;
use crate::node::BUCKET;
use crate::world::{Event, FAULTS_US, VBUCKETS, World};

/// How often administrators look.
const LOOK_EVERY_US: u64 = 300_000;

/// What is damaged in a run.
pub struct Damage {
    /// Whether all copies of a vBucket go at once, sometimes.
    strikes_all: bool,
    rng: SplitMix64,
}

impl Damage {
    pub fn of(seed: u64) -> Option<Damage> {
        let strikes_all = match seed % 16 {
            2 | 4 => false,
            5 => true,
            _ => return None,
        };
        Some(Damage { strikes_all, rng: SplitMix64::new(seed.rotate_left(17) ^ 0x00da_4a6e) })
    }

    /// When the next one comes.
    pub fn next_us(&mut self) -> u64 {
        self.rng.between(200_000, 1_800_000)
    }
}

impl World {
    /// A copy is damaged, or all of a vBucket.
    pub fn damage(&mut self) {
        let Some(mut damage) = self.damage.take() else { return };
        let vb = damage.rng.below(u64::from(VBUCKETS)) as u16;
        let first = damage.rng.below(self.nodes.len() as u64) as usize;
        let is_all = damage.strikes_all && damage.rng.chance(1, 3);
        let count = self.nodes.len();
        let having = (0..count).map(|at| (first + at) % count);
        let having: Vec<usize> =
            having.filter(|at| self.nodes[*at].copies.borrow().contains_key(&vb)).collect();
        for at in having.into_iter().take(if is_all { count } else { 1 }) {
            self.show(|| format!("node {at}: its copy of vBucket {vb} is damaged"));
            self.tally.damages += 1;
            let is_served = self.nodes[at].up && SplitMix64::new(self.now_us() ^ at as u64).chance(1, 2);
            self.tally.damaged_served += u64::from(is_served);
            let node = &mut self.nodes[at];
            if let Some(copy) = node.copies.get_mut().get(&vb).cloned() {
                node.damaged.get_mut().insert(vb, copy);
            }
            if !is_served {
                node.copies.get_mut().remove(&vb);
            }
        }
        if self.now_us() + 600_000 < FAULTS_US {
            let delay = damage.next_us();
            self.push(delay, 0, 0, Event::Damage);
        }
        self.damage = Some(damage);
    }

    /// Administrators look after what waits for them.
    pub fn administer(&mut self) {
        self.push(LOOK_EVERY_US, 0, 0, Event::Administer);
        let awake = (0..self.nodes.len()).find(|at| self.nodes[*at].is_awake(self.now_us()));
        let Some((at, view)) = awake.and_then(|at| Some((at, self.nodes[at].view.clone()?))) else { return };
        if waits(&view) {
            self.ask_for(at, &Command::GiveUpDamaged { name: BUCKET.to_owned() });
        } else if is_unserved(&view.state) {
            self.ask_for(at, &Command::Rebalance { eject: failed_over(&view.state) });
        }
    }

    /// An administrator accepted that durable writes of vBuckets are lost.
    pub fn note_given_up(&mut self, after: &State) {
        let Some(bucket) = after.buckets.get(BUCKET) else { return };
        for vb in bucket.vbuckets() {
            let is_forced = matches!(bucket.steps.get(&vb), Some(Step::Choose { forced: true, .. }));
            // Its node may have served until that was certain.
            if is_forced || bucket.active(vb).is_none() {
                self.committed.remove(&vb);
            }
        }
    }

    /// Whatever a node sets aside another one has.
    pub fn check_set_aside(&mut self, at: usize) {
        for vb in self.nodes[at].set_aside.take() {
            self.show(|| format!("node {at}: vBucket {vb} is set aside"));
            self.tally.set_aside += 1;
            if self.has_lost_active(at, vb) {
                continue;
            }
            let committed = self.committed.get(&vb).cloned().unwrap_or_default();
            let has = |id: &u64| {
                let mut others = self.nodes.iter().enumerate().filter(|(other, _)| *other != at);
                let is_in = |copy: &Copy| copy.log.iter().any(|write| write.id == *id);
                // Damaged ones that no report tells of yet can be put back as well as this one.
                others.any(|(_, node)| {
                    node.copies.borrow().get(&vb).is_some_and(is_in)
                        || node.damaged.borrow().get(&vb).is_some_and(is_in)
                })
            };
            if let Some(lost) = committed.iter().find(|id| !has(id)) {
                self.violation =
                    Some(format!("node {at} set vBucket {vb} aside, and no other node has write {lost:x}"));
            }
        }
    }

    /// Whether the node that serves a vBucket, as this one knows it, has crashed, and its lease does not say so yet. It may
    /// have lost what was on the disks of a majority alone, and these are damaged then. What is set aside is kept.
    fn has_lost_active(&self, at: usize, vb: u16) -> bool {
        let bucket = self.nodes[at].view.as_ref().and_then(|view| view.state.buckets.get(BUCKET));
        let active = bucket.and_then(|bucket| bucket.active(vb)).and_then(|id| self.node_of(id));
        active.is_some_and(|active| !self.nodes[active].up)
    }

    /// When everything is well again no node counts with a damaged copy, and none that was is left without one.
    pub fn check_refilled(&self) -> Result<(), String> {
        let bucket = self.newest.buckets.get(BUCKET).ok_or("there is no bucket")?;
        for (at, node) in self.nodes.iter().enumerate() {
            let counts = |vb: &&u16| present(bucket.chain(**vb)).any(|id| self.node_of(id) == Some(at));
            if let Some(vb) = node.damaged.borrow().keys().find(counts) {
                return Err(format!(
                    "node {at} belongs to the chain of vBucket {vb}, and its copy is damaged"
                ));
            }
        }
        if self.damage.is_some() && !bucket.missing.is_empty() {
            return Err(format!("copies are missing: {:?}", bucket.missing));
        }
        Ok(())
    }
}

/// Whether a vBucket is not served and waits for a damaged copy.
fn waits(view: &View) -> bool {
    view.state.buckets.get(BUCKET).is_some_and(|bucket| {
        bucket.vbuckets().any(|vb| {
            let is_open = matches!(bucket.steps.get(&vb), Some(Step::Choose { .. }));
            let mut members = present(bucket.chain(vb));
            let is_damaged = |id| view.is_damaged(id, BUCKET, vb);
            bucket.active(vb).is_some_and(is_damaged) || (is_open && members.any(is_damaged))
        })
    })
}

/// Who accepts that vBuckets begin empty names all nodes that may have kept them.
pub fn failed_over(state: &State) -> Vec<NodeId> {
    let failed = state.nodes.iter().filter(|(_, node)| node.status == Status::FailedOver);
    failed.map(|(id, _)| *id).collect()
}

/// Whether no node has a vBucket any more.
pub fn is_unserved(state: &State) -> bool {
    let mut buckets = state.buckets.values();
    state.rebalance.is_none() && buckets.any(|bucket| bucket.vbuckets().any(|vb| bucket.active(vb).is_none()))
}
