//! What the tools share: servers as child processes, clients, folders that go away, seeded numbers, verdicts.
//!
//! Knows no measurement, no fault and no rule: `tools/bench`, `tools/chaos` and `xtask` are made of it.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "tools stand outside the server: they start it and talk to it in the real world"
)]

pub mod child;
pub mod client;
pub mod failures;
pub mod http;
pub mod rng;
pub mod stave;
pub mod totals;
pub mod tree;
