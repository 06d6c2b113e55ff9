//! Disk errors that come and go during each background task, then a stop or a kill, and a start whose whole contents are
//! compared.

mod deletion;
mod found;
mod hooked;
mod ill;
mod model;
mod tally;
mod tasks;
mod trial;
mod world;

pub use deletion::Deletions;
pub use tally::Tally;
pub use tasks::TASKS;
pub use trial::{Much, all_of, calls_of};
pub use world::{Base, Kind};

/// The folder that trials with a store begin with.
pub fn base(kind: Kind) -> Base {
    world::World::base(kind)
}
