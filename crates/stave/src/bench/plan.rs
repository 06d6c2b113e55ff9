//! What a run shall do.

use protocol::DurabilityLevel;

use super::collections::Spread;
use super::distribution::Distribution;
use super::keys::KeySpace;
use super::values::{ValueKind, ValuePool, ValueSize};
use super::wire::Protocol;
use crate::client::Target;

/// Requests that a connection may have outstanding at most.
pub const MAX_PIPELINE: u32 = 4_096;
/// Beyond this the key numbers would overflow when they are scattered.
const MAX_KEYS: u64 = 1 << 32;
const MAX_CONNECTIONS: u32 = 60_000;
/// More cannot be told apart in nanoseconds.
const MAX_RATE: f64 = 1e9;

/// When a run is over.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Extent {
    /// After so many seconds.
    Seconds(f64),
    /// After so many operations.
    Operations(u64),
}

/// What a run shall do.
#[derive(Debug)]
pub struct Plan {
    /// The server.
    pub target: Target,
    /// What it speaks.
    pub protocol: Protocol,
    /// Connections in all.
    pub connections: u32,
    /// Requests that each connection keeps outstanding.
    pub pipeline: u32,
    /// Threads of the load generator.
    pub threads: u32,
    /// The collections that keys are spread over; `None` for the default one.
    pub collections: Option<Spread>,
    /// Different keys, in all collections together.
    pub keys: u64,
    /// Size of each key.
    pub key_size_bytes: usize,
    /// Sizes of the values.
    pub value_size: ValueSize,
    /// What the values look like.
    pub value_kind: ValueKind,
    /// Share of each value that repeats.
    pub compressible_percent: u8,
    /// Share of operations that write.
    pub set_percent: u8,
    /// How keys are chosen.
    pub distribution: Distribution,
    /// How safe a write must be before it is acknowledged; nothing for "in memory".
    pub durability: Option<DurabilityLevel>,
    /// Whether all keys are written first.
    pub populate: bool,
    /// Seconds of load that are not measured.
    pub warmup_s: f64,
    /// Operations that are begun in a second, by all threads; nothing for a closed loop.
    pub rate: Option<f64>,
    /// When it is over.
    pub extent: Extent,
    /// Where the random numbers begin.
    pub seed: u64,
    /// The server's process, if its CPU time shall be measured.
    pub server_pid: Option<u32>,
}

impl Plan {
    /// Says what is wrong with it, in terms of the command line.
    pub fn check(&self) -> Result<(), String> {
        let within = |flag: &str, number: u64, most: u64| {
            if (1..=most).contains(&number) {
                Ok(())
            } else {
                Err(format!("{flag} {number} is out of range; give 1 to {most}"))
            }
        };
        within("--keys", self.keys, MAX_KEYS)?;
        within("--connections", self.connections.into(), MAX_CONNECTIONS.into())?;
        within("--pipeline", self.pipeline.into(), MAX_PIPELINE.into())?;
        within("--threads", self.threads.into(), 1_024)?;
        if self.threads > self.connections {
            return Err(format!(
                "--threads {} leaves threads without a connection; give at most {}",
                self.threads, self.connections
            ));
        }
        for (flag, percent) in
            [("--set-percent", self.set_percent), ("--compressible", self.compressible_percent)]
        {
            if percent > 100 {
                return Err(format!("{flag} {percent} is out of range; give 0 to 100"));
            }
        }
        if let Extent::Seconds(seconds) = self.extent
            && !(seconds > 0.0 && seconds.is_finite())
        {
            return Err(format!("--seconds {seconds} is out of range; give a number above 0"));
        }
        if self.extent == Extent::Operations(0) {
            return Err("--operations 0 is out of range; give 1 or more".into());
        }
        if !(self.warmup_s >= 0.0 && self.warmup_s.is_finite()) {
            return Err(format!("--warmup {} is out of range; give 0 or more seconds", self.warmup_s));
        }
        if let Some(rate) = self.rate
            && !(rate > 0.0 && rate <= MAX_RATE)
        {
            return Err(format!(
                "--rate {rate} is out of range; give operations a second above 0, up to {MAX_RATE}"
            ));
        }
        if self.durability.is_some() && self.protocol != Protocol::Couchbase {
            return Err(format!(
                "requests to {} cannot ask for durability; leave --durability out, or --protocol",
                self.protocol.name()
            ));
        }
        if self.collections.is_some() && self.protocol != Protocol::Couchbase {
            return Err(format!(
                "{} has no collections; leave --collections out, or --protocol",
                self.protocol.name()
            ));
        }
        if self.distribution == Distribution::Own && self.keys < self.connections.into() {
            return Err(format!(
                "--keys {} leaves connections without keys of their own; give at least {}",
                self.keys, self.connections
            ));
        }
        self.key_space()?;
        self.value_pool()?;
        Ok(())
    }

    pub(super) fn key_space(&self) -> Result<KeySpace, String> {
        KeySpace::new(self.keys, self.key_size_bytes)
    }

    pub(super) fn value_pool(&self) -> Result<ValuePool, String> {
        ValuePool::new(self.value_size, self.value_kind, self.compressible_percent, self.seed)
    }
}
