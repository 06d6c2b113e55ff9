//! Sync writes of one vBucket: who must have a prepare before it is committed, and how far they are.
//!
//! State machines without clock and I/O. What a reader of documents sees changes only when a prepare is committed.

mod active;
mod passive;
mod prepares;
mod topology;

pub use active::{ActiveMonitor, MAX_NODES};
pub use passive::PassiveMonitor;
pub use prepares::{InFlight, NO_DEADLINE};
pub(crate) use prepares::{NOT_HELD, Prepares};
pub use topology::{Chain, MAX_CHAIN, MAX_NODE_NAME_BYTES, Topology, TopologyError};
