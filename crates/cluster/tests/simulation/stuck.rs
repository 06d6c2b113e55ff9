//! The bucket of a node cannot be made what the document says, for a while: a full disk, or settings that it does not know.
//! Some of these nodes are failed over meanwhile.
//!
//! Runs of some seeds have this beside their other faults. What it does is drawn from numbers of its own.

use base::env::sim::SplitMix64;

use crate::aims::Blow;
use crate::world::{Event, FAULTS_US, World};

/// Whose bucket is stuck in a run.
pub struct Stuck {
    rng: SplitMix64,
}

impl Stuck {
    pub fn of(seed: u64) -> Option<Stuck> {
        let rng = SplitMix64::new(seed.rotate_left(31) ^ 0x0005_70c4);
        matches!(seed % 16, 6 | 14).then_some(Stuck { rng })
    }

    /// When the next one is stuck.
    pub fn next_us(&mut self) -> u64 {
        self.rng.between(100_000, 1_500_000)
    }
}

impl World {
    /// Some node's bucket stays as it is.
    pub fn stick(&mut self) {
        let Some(mut stuck) = self.stuck.take() else { return };
        let at = stuck.rng.below(self.nodes.len() as u64) as usize;
        let length = stuck.rng.between(100_000, 2_500_000);
        if self.now_us() + 500_000 < FAULTS_US {
            self.show(|| format!("node {at}: its bucket is stuck"));
            self.nodes[at].stuck_until_us = (self.now_us() + length).min(FAULTS_US);
            if stuck.rng.chance(1, 2) {
                let delay = stuck.rng.below(length);
                self.push(delay, at, 0, Event::Blow(Blow::FailOver));
            }
            let delay = stuck.next_us();
            self.push(delay, 0, 0, Event::Stuck);
        }
        self.stuck = Some(stuck);
    }
}
