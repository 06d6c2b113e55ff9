//! One node: everything that it does, and that needs no socket and no runtime: bytes in, bytes out.
//!
//! A request's way: [`connection`] cuts bytes into requests, `dispatch` checks each against its row of the
//! `command_table` and calls its handler in `commands`, which answers through `reply`.
//! What a node needs of the outside stands in [`doors`].

pub mod accounts;
pub mod address_places;
mod ahead;
pub mod alternate;
pub mod at_rest;
pub mod audit;
pub mod bucket_form;
pub mod bucket_list;
mod bucket_moves;
pub mod calendar;
pub mod changes;
pub mod client_addresses;
pub mod close_reason;
pub mod cluster;
pub mod cluster_map;
pub mod command;
pub mod command_reference;
pub mod command_rules;
mod command_table;
mod commands;
pub mod config;
pub mod connection;
pub mod connection_memory;
mod context;
pub mod counters;
pub mod data_dir;
pub mod dcp;
pub mod dcp_inbound;
mod dispatch;
pub mod doors;
pub mod down;
pub mod elsewhere;
mod fair_queue;
pub mod folder_keys;
pub mod form;
pub mod fuzz;
pub mod host_failure;
pub mod hosting;
pub mod http_connections;
pub mod injections;
pub mod kept_users;
mod layout;
mod login_throttle;
mod lone_writer;
mod long_work;
pub mod machine;
pub(crate) mod machine_memory;
pub mod management;
pub mod migration;
mod missing;
pub mod naming;
pub mod news;
pub mod node;
pub mod node_alternate;
pub mod node_buckets;
pub mod node_files;
pub mod node_login;
pub mod node_map;
mod notify;
pub mod opened;
pub mod output;
pub mod password_check;
pub mod privilege;
mod push;
pub mod quarantine;
pub mod readiness;
pub mod reaper;
pub mod recent_log;
pub mod reload;
pub mod replication;
mod reply;
pub mod roles;
pub mod sasl;
pub mod served;
mod session;
pub mod settings_reference;
pub mod slow;
pub mod small_files;
pub mod stats;
mod status_map;
mod sync_write;
pub mod tally;
pub mod user;
pub mod version;
pub mod wake_queue;
mod written;

#[cfg(test)]
mod tests;

pub use config::{Config, ConfigError, MetricsLogin, Settings, Switch};
pub use node::Node;
pub use reload::Reloaded;
