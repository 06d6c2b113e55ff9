//! The simulated doors: everything a seed decides, nothing the machine does.

mod clock;
mod content;
mod crash;
mod disk;
mod documents;
mod fault;
mod inode;
mod names;
mod network;
mod pipe;
mod random;
mod spawn;
mod trace;

#[cfg(test)]
mod real_tests;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use super::Env;

pub use clock::SimClock;
pub use crash::Survival;
pub use disk::SimDisk;
pub use documents::DocumentNames;
pub use fault::{Call, Effect, Fault, On};
pub use network::SimNetwork;
pub use pipe::NetFaults;
pub use random::{SimRandom, SplitMix64};
pub use spawn::SimSpawn;
pub use trace::{Recording, Replay};

/// What a disk writes whole or not at all.
pub const SECTOR_BYTES: u64 = 512;

/// What moves a simulated world.
#[derive(Clone)]
pub struct SimHandles {
    /// Its time.
    pub clock: Arc<SimClock>,
    /// Its randomness.
    pub random: Arc<SimRandom>,
    /// Its disk.
    pub disk: SimDisk,
    /// Its network.
    pub network: SimNetwork,
    /// Its queue of jobs.
    pub spawn: SimSpawn,
}

impl SimHandles {
    /// A fresh world.
    pub fn new(seed: u64) -> SimHandles {
        let mut rng = SplitMix64::new(seed);
        SimHandles {
            clock: Arc::new(SimClock::new()),
            random: Arc::new(SimRandom::new(rng.next_u64())),
            disk: SimDisk::new(),
            network: SimNetwork::new(rng.next_u64()),
            spawn: SimSpawn::new(),
        }
    }

    /// The world as a node sees it.
    pub fn env(&self) -> Env {
        Env {
            clock: self.clock.clone(),
            random: self.random.clone(),
            disk: Arc::new(self.disk.clone()),
            network: Arc::new(self.network.clone()),
            spawn: Arc::new(self.spawn.clone()),
            heap: crate::memory::Heap::default(),
        }
    }

    /// The same world after a restart that finds another disk, such as one from [`SimDisk::image`].
    pub fn with_disk(&self, disk: SimDisk) -> SimHandles {
        SimHandles { disk, spawn: SimSpawn::new(), ..self.clone() }
    }
}
