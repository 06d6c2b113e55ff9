//! A client of one node: one connection, one request at a time.
//!
//! For a quick look and for opening the load generator's connections; it follows no cluster map.

mod connection;
pub mod dcp;
mod error;
mod http;
mod target;

#[cfg(test)]
pub(crate) mod fake_server;
#[cfg(test)]
mod tests;

pub use connection::{Answer, Client, Document, Stored};
pub use error::{ClientError, status_name};
pub use http::HttpTarget;
pub use target::{Dialect, Secret, Target};
