//! The server: the only crate that knows the async runtime, SASL, HTTP and configuration files.
//!
//! A request's way: [`socket`] reads bytes, [`connection`] cuts them into requests, [`dispatch`] checks each against
//! its row of the [`command_table`] and calls its handler in [`commands`], which answers through [`reply`].

pub mod acceptor;
pub mod bucket_list;
pub mod cluster;
pub mod cluster_map;
pub mod command;
pub mod command_reference;
pub mod command_table;
pub mod commands;
pub mod config;
pub mod connection;
pub mod context;
pub mod counters;
pub mod dev;
pub mod dispatch;
pub mod down;
pub mod fuzz;
pub mod hosting;
pub mod http;
mod incoming;
pub mod layout;
pub mod long_work;
pub mod node;
pub mod node_buckets;
pub mod push;
pub mod readiness;
pub mod reaper;
pub mod reload;
pub mod replication;
pub mod reply;
pub mod server;
pub mod session;
pub mod settings_reference;
pub mod signals;
pub mod small_files;
pub mod socket;
pub mod stats;
pub mod sync_write;
pub mod timer;
pub mod user;
pub mod worker;

#[cfg(test)]
mod tests;

use ::node::quarantine;
pub use ::node::{
    address_places, connection_memory, data_dir, dcp, login_throttle, lone_writer, mailbox, naming, news,
    output, privilege, sasl, status_map, version,
};
pub use config::{Config, ConfigError, Settings, Switch};
pub use node::Node;
pub use reload::Reloaded;
pub use server::{Failure, Server, serve, serve_prepared};
