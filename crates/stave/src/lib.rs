//! The command line of Stave, the client it uses, and the load generator.
//!
//! Everything behind the binary stands in a library so that tests can use the same client.

#![cfg_attr(not(test), deny(clippy::print_stdout))]

mod backup;
pub mod bench;
mod between_clusters;
pub mod cli;
pub mod client;
pub mod commands;
#[doc(hidden)]
pub mod fuzz;
mod key_source;
mod lines;
mod log;
mod new_file;
mod output;
#[cfg(test)]
mod test_server;
pub mod units;
mod with_meta;
mod wrong_arguments;
