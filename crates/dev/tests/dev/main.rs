//! A development cluster: several nodes in this process, and what its control endpoint does to them.
#![allow(clippy::disallowed_methods, reason = "this is a client, outside the server")]

mod changes;
mod cluster;
mod failures;
mod injections;
mod lives;
mod maps;
mod members;
mod removals;
#[path = "../../../server/tests/support/mod.rs"]
mod support;
