//! Several nodes in one process, for people's tests: a cluster like any other over a coordination store of its own, with
//! doors through which nodes can be stopped, killed, frozen and cut off, and clocks be moved.

mod cluster;
mod config;
mod control;
mod disk;
mod doors;
mod gate;
mod node;
mod orders;
mod peer_user;
mod shared;
mod status;

pub use cluster::DevCluster;
pub use config::{DevConfig, DevError, DevTimes, DevTls, MOST_NODES, Seed};
