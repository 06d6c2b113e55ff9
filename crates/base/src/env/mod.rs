//! The door to the outside: clock, randomness, disk, network and threads, real or simulated.
//!
//! Everything above `base` reaches the world only through an [`Env`]; `clippy.toml` bans the other ways.

pub mod clock;
pub mod copy_on_write;
pub mod disk;
mod group_sync;
pub mod network;
mod platform;
pub mod random;
mod relocated;
pub mod sim;
pub mod spawn;
mod step_mark;

use std::sync::Arc;

use crate::memory::Heap;

pub use clock::{Clock, RealClock, counts_suspension};
pub use copy_on_write::CopyOnWriteDisk;
pub use disk::{Disk, File, FolderAccess, GroupSync, OpenMode, RealDisk, Room, SyncEach};
pub use network::{Listener, Network, RealNetwork, Stream};
pub use random::{Random, RealRandom};
pub use relocated::RelocatedDisk;
pub use sim::SimHandles;
pub use spawn::{RealSpawn, Spawn, Task};
pub use step_mark::{DiskCall, Doing, StepLook, StepMarks, marked};

/// The outside world as one node sees it. Cheap to clone.
#[derive(Clone)]
pub struct Env {
    /// Where time comes from.
    pub clock: Arc<dyn Clock>,
    /// Where randomness comes from.
    pub random: Arc<dyn Random>,
    /// Where files live.
    pub disk: Arc<dyn Disk>,
    /// Where connections come from.
    pub network: Arc<dyn Network>,
    /// Where threads come from.
    pub spawn: Arc<dyn Spawn>,
    /// Where the versions of documents come from; a bucket has its own.
    pub heap: Heap,
}

impl Env {
    /// The real world.
    pub fn real() -> Env {
        Env {
            clock: Arc::new(RealClock::new()),
            random: Arc::new(RealRandom),
            disk: Arc::new(RealDisk),
            network: Arc::new(RealNetwork),
            spawn: Arc::new(RealSpawn),
            heap: Heap::default(),
        }
    }

    /// The same world, in which another account pays for memory.
    pub fn with_heap(&self, heap: Heap) -> Env {
        Env { heap, ..self.clone() }
    }

    /// The same world without encryption of files: what is on the disk as it is stored.
    pub fn beneath(&self) -> Env {
        Env { disk: self.disk.beneath().unwrap_or_else(|| Arc::clone(&self.disk)), ..self.clone() }
    }

    /// A world that `seed` decides, and the handles that move it.
    pub fn sim(seed: u64) -> (Env, SimHandles) {
        let handles = SimHandles::new(seed);
        (handles.env(), handles)
    }
}
