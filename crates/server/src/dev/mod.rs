//! A cluster in one process, for people who test their applications: several nodes on this machine, a control endpoint
//! that stops, freezes and cuts them off, and clocks that can be moved.
//!
//! Who serves what is a fixed plan that changes when a node is failed over or comes back.

mod cluster;
mod control;
mod doors;
mod management;
mod node;
mod plan;

pub use cluster::{DevCluster, DevConfig, DevError, MOST_NODES};
