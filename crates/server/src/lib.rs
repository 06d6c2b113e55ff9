//! The server: what a node needs of the outside. The only crate that knows the async runtime, sockets and HTTP.
//!
//! A request's way: [`socket`] reads bytes, and the crate `node` makes answers of them.

pub mod acceptor;
pub mod etcd;
pub mod http;
mod incoming;
mod links;
mod peers;
pub mod server;
pub mod signals;
pub mod socket;
pub mod timer;
pub mod worker;

pub use ::node::Node;
pub use ::node::{
    address_places, bucket_list, cluster, cluster_map, command, command_reference, command_table, commands,
    config, connection, connection_memory, context, counters, data_dir, dcp, dispatch, down, fuzz, hosting,
    layout, login_throttle, lone_writer, long_work, naming, news, node, node_buckets, output, privilege,
    push, quarantine, readiness, reaper, reload, replication, reply, sasl, session, settings_reference,
    small_files, stats, status_map, sync_write, user, version,
};
pub use config::{Config, ConfigError, Settings, Switch};
pub use reload::Reloaded;
pub use server::{Failure, Server, serve, serve_prepared};
