//! The simulated doors: everything a seed decides, nothing the machine does.

mod clock;
mod content;
mod crash;
mod disk;
mod fault;
mod inode;
mod names;
mod random;
mod trace;

#[cfg(test)]
mod tests;

pub use clock::SimClock;
pub use crash::Survival;
pub use disk::SimDisk;
pub use fault::{Call, Effect, Fault, On};
pub use random::{SimRandom, SplitMix64};
pub use trace::{Recording, Replay};

/// What a disk writes whole or not at all.
pub const SECTOR_BYTES: u64 = 512;
