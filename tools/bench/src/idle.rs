//! What a connection costs the server that never says a word.

use std::net::TcpStream;

use anyhow::{Context, Result};
use harness::client::Client;
use harness::stave::Stave;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::process::resident_bytes;

/// Descriptors that either side needs besides.
pub const SPARE: u64 = 200;

/// Resident bytes of the server for each of `count` idle connections; nothing, with a message, where the system
/// does not allow so many.
pub fn bytes_a_connection(server: &Stave, count: u64) -> Result<Option<f64>> {
    let allowed = raise_descriptor_limit(count + SPARE);
    if allowed < count + SPARE {
        println!("idle connections: left out, the system allows {allowed} descriptors (ulimit -Hn)");
        return Ok(None);
    }
    let before = resident_bytes(server.pid())?;
    let mut idle = Vec::new();
    for number in 0..count {
        let stream = TcpStream::connect(&server.kv).with_context(|| format!("idle connection {number}"))?;
        idle.push(stream);
    }
    // One that logs in comes to its turn only after those before it were accepted.
    Client::connect(&server.kv).context("beside the idle connections")?;
    let after = resident_bytes(server.pid())?;
    println!("idle connections: {count}, resident {before} bytes before, {after} with them");
    Ok(Some(after.saturating_sub(before) as f64 / count as f64))
}

/// Raises the limit of this process, which the servers it starts inherit; what it is then.
pub fn raise_descriptor_limit(wanted: u64) -> u64 {
    let limit = getrlimit(Resource::Nofile);
    let maximum = limit.maximum.unwrap_or(u64::MAX);
    let current = limit.current.unwrap_or(u64::MAX);
    if current >= wanted {
        return current;
    }
    // Root may raise the hard limit as well.
    for (current, maximum) in [(wanted, maximum.max(wanted)), (wanted.min(maximum), maximum)] {
        if setrlimit(Resource::Nofile, Rlimit { current: Some(current), maximum: Some(maximum) }).is_ok() {
            return current;
        }
    }
    current
}
