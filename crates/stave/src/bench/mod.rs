//! The load generator: get and set over many connections, in a closed loop or at a rate, in the spirit of
//! cbc-pillowfight.
//!
//! It is made to be cheap, because it usually shares a machine with the server it measures: keys are computed, values
//! are slices of one pool, a wake-up of a connection costs one read, one write and one look at the clock.

mod chart;
mod collections;
mod connection;
mod cpu;
mod distribution;
mod keys;
mod plan;
mod poller;
mod progress;
mod report;
mod resp;
mod returns;
mod rng;
mod routes;
mod run;
mod schedule;
mod tally;
mod traffic;
mod values;
mod wire;
mod worker;

#[cfg(test)]
mod tests;

pub use chart::bar;
pub use collections::Spread;
pub use distribution::Distribution;
pub use plan::{Extent, Plan};
pub use report::Report;
pub use run::run;
pub use values::{ValueKind, ValueSize};
pub use wire::Protocol;
