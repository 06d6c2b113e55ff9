//! The connections of an HTTP listener: their sockets, and what is watched of their requests.
//!
//! How many there may be, which one gives way to another and how long each may take is the business of
//! [`::node::http_connections`].

mod listener;
mod stream;
mod watch;

pub use self::listener::{Serving, serve};
pub use self::watch::addresses;
pub(crate) use self::watch::{By, body, by, ends, let_in, peer};
use ::node::config::HttpLimits;
use ::node::http_connections::{Connection, Connections, Cut, Full, NEVER, Phase, SLOWEST_BODY_BYTES_PER_S};
