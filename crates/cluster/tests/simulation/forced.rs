//! A node that has the last copies of vBuckets is cut off from the store and goes on serving by promises, while an
//! administrator fails it over by force and lets the vBuckets begin empty.
//!
//! Runs of some seeds have this beside their other faults, and a bucket without replicas.

use base::env::sim::SplitMix64;
use cluster::NodeId;
use cluster::command::Command;

use crate::aims::Blow;
use crate::damage::{failed_over, is_unserved};
use crate::world::{Event, FAULTS_US, STORE, World};

/// How often the administrator looks.
const LOOK_EVERY_US: u64 = 40_000;
/// So long before the end of all faults a node is cut off at the latest.
const OWN_FAULT_US: u64 = 1_500_000;

/// What is forced in a run.
pub struct Forced {
    rng: SplitMix64,
    /// Who was cut off.
    cut_off: Option<usize>,
}

impl Forced {
    pub fn of(seed: u64) -> Option<Forced> {
        let rng = SplitMix64::new(seed.rotate_left(23) ^ 0x0f_0cce);
        (seed % 16 == 13).then_some(Forced { rng, cut_off: None })
    }

    /// When a node is cut off.
    pub fn next_us(&mut self) -> u64 {
        self.rng.between(800_000, 3_000_000)
    }
}

impl World {
    /// A node is cut off from the store; then the administrator looks, again and again.
    pub fn force(&mut self) {
        self.push(LOOK_EVERY_US, 0, 0, Event::Forced);
        let Some(mut forced) = self.forced.take() else { return };
        match forced.cut_off {
            None if self.troubled() == 0 && self.now_us() + OWN_FAULT_US < FAULTS_US => {
                let at = forced.rng.below(self.nodes.len() as u64) as usize;
                self.blow(at, Blow::StoreCut(forced.rng.between(1_500_000, 3_000_000)));
                forced.cut_off = Some(at);
            }
            None => {}
            Some(at) => self.give_up(at),
        }
        self.forced = Some(forced);
    }

    /// A node is failed over as soon as it has no lease, and what nobody has any more begins empty.
    fn give_up(&mut self, gone: usize) {
        let reaches =
            |at: &usize| *at != gone && self.nodes[*at].is_awake(self.now_us()) && self.reaches(*at, STORE);
        let asked = (0..self.nodes.len()).find(reaches);
        let Some((at, view)) = asked.and_then(|at| Some((at, self.nodes[at].view.clone()?))) else { return };
        let node = NodeId(gone as u32 + 1);
        if view.state.is_active(node) && view.alive(node).is_none() {
            self.ask_for(at, &Command::FailOver { node, force: true });
        } else if is_unserved(&view.state) {
            self.ask_for(at, &Command::Rebalance { eject: failed_over(&view.state) });
        }
    }
}
