//! The server: the only crate that knows the async runtime, SASL, HTTP and configuration files.
//!
//! A request's way: [`socket`] reads bytes, [`connection`] cuts them into requests, [`dispatch`] checks each against
//! its row of the [`command_table`] and calls its handler in [`commands`], which answers through [`reply`].

pub mod acceptor;
pub mod address_places;
pub mod bucket_list;
pub mod cluster;
pub mod cluster_map;
pub mod command;
pub mod command_reference;
pub mod command_table;
pub mod commands;
pub mod config;
pub mod connection;
pub mod connection_memory;
pub mod context;
pub mod counters;
pub mod data_dir;
pub mod dcp;
pub mod dev;
pub mod dispatch;
pub mod down;
pub mod fuzz;
pub mod hosting;
pub mod http;
mod incoming;
pub mod layout;
pub mod login_throttle;
pub mod lone_writer;
pub mod long_work;
pub mod mailbox;
pub mod naming;
pub mod news;
pub mod node;
pub mod node_buckets;
pub mod output;
pub mod privilege;
pub mod push;
mod quarantine;
pub mod readiness;
pub mod reaper;
pub mod reload;
pub mod replication;
pub mod reply;
pub mod sasl;
pub mod server;
pub mod session;
pub mod settings_reference;
pub mod signals;
pub mod small_files;
pub mod socket;
pub mod stats;
pub mod status_map;
pub mod sync_write;
pub mod timer;
pub mod user;
pub mod version;
pub mod worker;

#[cfg(test)]
mod tests;

pub use config::{Config, ConfigError, Settings, Switch};
pub use node::Node;
pub use reload::Reloaded;
pub use server::{Failure, Server, serve, serve_prepared};
