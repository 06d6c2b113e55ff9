//! The client's ends of the two protocols that a node speaks, over any stream of bytes: no socket, no clock, no TLS.
//!
//! Who uses it brings streams and deadlines of its own.

pub mod http;
pub mod kv;
