//! A bucket of one cluster that is sent to a bucket of another one by a client that follows it: once, for moving in, or
//! for as long as both are there.
//!
//! # Guarantees
//!
//! - A change is in the checkpoint only when the bucket that is sent to has it, or has a later one by the rule for
//!   conflicts.
//! - What that bucket loses in a failover is sent again: it is known of each vBucket up to where it has kept what.
//! - Memory is bounded: what is not answered yet has a limit, and the cluster that is read waits meanwhile.
#![allow(clippy::disallowed_methods, reason = "the client's end is not part of a node")]

mod checkpoint;
mod kept;
mod moving;
#[cfg(test)]
mod tests;
mod url;

pub(crate) use moving::{MoveCounts, MoveEnd, MoveNews, MoveOptions, Moved, move_in};
pub(crate) use url::{ClusterUrl, parse_url};
