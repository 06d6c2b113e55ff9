//! Clients: [`Client`] is a connection to one node, [`Cluster`] finds the node of each document by the cluster map.

mod cluster;
mod connection;
pub mod dcp;
mod error;
mod flag_names;
mod http;
mod map;
mod target;
mod tls;

#[cfg(test)]
pub(crate) mod fake_server;
#[cfg(test)]
mod tests;

pub use cluster::{Cluster, DocRequest};
pub use connection::{Answer, Client, Document, Stored};
pub use error::{ClientError, status_name};
pub use flag_names::FlagNames;
pub(crate) use http::with_http_port;
pub use http::{HTTP_PATIENCE, HttpTarget};
pub use map::Map;
pub(crate) use target::with_port;
pub use target::{Dialect, Patience, Secret, Target};
pub use tls::{Channel, ClientTlsFlags, Trust};
