//! The door to the outside: clock, randomness, disk and network, real or simulated.
//!
//! Everything above `base` reaches the world only through an [`Env`]; `clippy.toml` bans the other ways.

pub mod clock;
pub mod disk;
pub mod random;
pub mod sim;

use std::sync::Arc;

pub use clock::{Clock, RealClock};
pub use disk::{Disk, File, OpenMode, RealDisk};
pub use random::{Random, RealRandom};

/// The outside world as one node sees it. Cheap to clone.
#[derive(Clone)]
pub struct Env {
    /// Where time comes from.
    pub clock: Arc<dyn Clock>,
    /// Where randomness comes from.
    pub random: Arc<dyn Random>,
    /// Where files live.
    pub disk: Arc<dyn Disk>,
}

impl Env {
    /// The real world.
    pub fn real() -> Env {
        Env { clock: Arc::new(RealClock::new()), random: Arc::new(RealRandom), disk: Arc::new(RealDisk) }
    }
}
