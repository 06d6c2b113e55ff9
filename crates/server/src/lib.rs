//! The server: what a node needs of the outside. No crate below it knows the async runtime, sockets or HTTP.
//!
//! A request's way: `socket` reads bytes, and the crate `node` makes answers of them.

pub mod acceptor;
mod check;
pub mod etcd;
pub mod http;
mod http_client;
mod incoming;
mod inside;
mod links;
mod peers;
mod server;
pub mod signals;
mod socket;
mod timer;
pub mod tls;
mod traces;
pub mod watchdog;
mod worker;

pub use check::check;
pub use server::{Failure, Server, host_told_by, plain_addrs, serve, serve_prepared};
