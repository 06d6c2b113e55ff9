//! What goes wrong on purpose: processes that are killed, networks, disks and power that fail, files that are damaged,
//! simulators by seed; and recorded conversations that are played again.
//!
//! Each module is a command of `cargo xtask`, which declares its arguments by the module's type and runs it.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "this tool stands outside the server: it starts and kills it in the real world"
)]

pub mod cluster;
pub mod crash;
mod image;
pub mod kill;
pub mod mutate;
pub mod netfaults;
pub mod powercut;
pub mod replay;
pub mod resume;
mod scenario_list;
pub mod simulate;
