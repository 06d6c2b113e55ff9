//! `stave bench`: the load generator's command line.

use std::io::Write;

use anyhow::bail;
use base::env::Env;
use clap::{Args, ValueEnum};
use protocol::DurabilityLevel;

use crate::bench::{self, Distribution, Extent, Plan, Protocol, Spread, ValueKind, ValueSize};
use crate::cli::{Outcome, ServerFlags};
use crate::client::Target;

const DEFAULT_SECONDS: f64 = 10.0;
const REDIS_PORT: &str = ":6379";

/// How safe a write must be before it is acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum DurabilityFlag {
    /// In the memory of the active node
    None,
    /// In the memory of a majority of nodes
    Majority,
    /// In the memory of a majority, and on the active node's disk
    PersistActive,
    /// On the disks of a majority
    PersistMajority,
}

impl DurabilityFlag {
    fn level(self) -> Option<DurabilityLevel> {
        match self {
            DurabilityFlag::None => None,
            DurabilityFlag::Majority => Some(DurabilityLevel::Majority),
            DurabilityFlag::PersistActive => Some(DurabilityLevel::MajorityAndPersistOnActive),
            DurabilityFlag::PersistMajority => Some(DurabilityLevel::PersistToMajority),
        }
    }
}

/// Measure a server under load: get and set over many connections, in a closed loop or at a rate.
///
/// It writes documents into the bucket, and leaves them there: their keys are `bench-` and a number.
/// In a cluster any node may be named: connections go to all nodes, requests to the one that is active for their key, and
/// the cluster map is asked for again when one refuses or is gone.
#[derive(Clone, Debug, Args)]
#[command(after_help = "Examples:
  Load a million keys, then read and write them for half a minute:
    STAVE_PASSWORD=... stave bench --populate --keys 1000000 --seconds 30 --pipeline 16
  The same against memcached, with its CPU time:
    stave bench --protocol memcached --addr 127.0.0.1:11211 --server-pid $(pidof memcached) \\
      --populate --keys 1000000 --seconds 30 --pipeline 16
  20,000 operations a second, whatever the server does; latency counts from when each was meant to begin:
    stave bench --rate 20000 --connections 100 --seconds 30
  Keys in 100 collections, which are made for the run and removed after it:
    stave bench --populate --collections 100 --seconds 30
  Only durable writes, one at a time, as JSON:
    stave bench --set-percent 100 -d persist-majority --json")]
pub struct BenchFlags {
    #[command(flatten)]
    server: ServerFlags,
    /// What the server speaks
    #[arg(long, value_enum, default_value_t = Protocol::Couchbase)]
    protocol: Protocol,
    /// Connections in all
    #[arg(long, short = 'c', value_name = "N", default_value_t = 50)]
    connections: u32,
    /// Requests that each connection keeps outstanding
    #[arg(long, short = 'P', value_name = "DEPTH", default_value_t = 1)]
    pipeline: u32,
    /// Threads of the load generator; as many as the connections allow, but no more than 2, if not given
    #[arg(long, short = 't', value_name = "N")]
    threads: Option<u32>,
    /// Spread the keys over this number of collections, which are made in the scope `bench` if they are missing and
    /// removed after the run with their documents; or over these, which must exist; the default collection if not given
    #[arg(long, value_name = "N|NAME,NAME...")]
    collections: Option<Spread>,
    /// Different keys, in all collections together
    #[arg(long, value_name = "N", default_value_t = 100_000)]
    keys: u64,
    /// Bytes of each key
    #[arg(long, value_name = "BYTES", default_value_t = 20)]
    key_size: usize,
    /// Bytes of each value, or a range
    #[arg(long, value_name = "SIZE|MIN:MAX", default_value = "512")]
    value_size: ValueSize,
    /// What values look like
    #[arg(long, value_enum, default_value_t = ValueKind::Random)]
    values: ValueKind,
    /// Share of each value that repeats, so that it can be compressed
    #[arg(long, value_name = "PERCENT", default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=100))]
    compressible: u8,
    /// Share of operations that write
    #[arg(long, value_name = "PERCENT", default_value_t = 20, value_parser = clap::value_parser!(u8).range(0..=100))]
    set_percent: u8,
    /// How keys are chosen: all alike, all alike but each connection its own, or few often and many seldom
    #[arg(long, value_name = "uniform|own|zipf[:THETA]", default_value = "zipf")]
    distribution: Distribution,
    /// How safe a write must be before it is acknowledged
    #[arg(long, short = 'd', value_enum, default_value_t = DurabilityFlag::None)]
    durability: DurabilityFlag,
    /// Measure for so many seconds; 10 if neither this nor --operations is given
    #[arg(
        long,
        short = 's',
        value_name = "SECONDS",
        conflicts_with = "operations",
        allow_negative_numbers = true
    )]
    seconds: Option<f64>,
    /// Measure so many operations
    #[arg(long, short = 'n', value_name = "N")]
    operations: Option<u64>,
    /// Begin this number of operations a second (an open loop); without it each connection waits for its answers (a closed one)
    #[arg(long, value_name = "OPS", allow_negative_numbers = true)]
    rate: Option<f64>,
    /// Seconds of load before measuring begins
    #[arg(long, value_name = "SECONDS", default_value_t = 0.0)]
    warmup: f64,
    /// Write all keys first
    #[arg(long)]
    populate: bool,
    /// Where the random numbers begin; the same seed gives the same requests
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// The server's process on this machine: its CPU time is measured too
    #[arg(long, value_name = "PID")]
    server_pid: Option<u32>,
    /// Print one line of JSON instead of tables
    #[arg(long)]
    json: bool,
    /// Show no progress
    #[arg(long, short = 'q')]
    quiet: bool,
}

impl BenchFlags {
    fn target(&self) -> anyhow::Result<Target> {
        let mut server = self.server.clone();
        if self.protocol == Protocol::Redis && !server.node.addr.contains(':') {
            server.node.addr.push_str(REDIS_PORT);
        }
        server.target(self.protocol.dialect())
    }

    fn plan(&self) -> anyhow::Result<Plan> {
        let extent = match (self.operations, self.seconds) {
            (Some(operations), _) => Extent::Operations(operations),
            (None, seconds) => Extent::Seconds(seconds.unwrap_or(DEFAULT_SECONDS)),
        };
        Ok(Plan {
            target: self.target()?,
            protocol: self.protocol,
            connections: self.connections,
            pipeline: self.pipeline,
            threads: self.threads.unwrap_or(self.connections.clamp(1, 2)),
            collections: self.collections.clone(),
            keys: self.keys,
            key_size_bytes: self.key_size,
            value_size: self.value_size,
            value_kind: self.values,
            compressible_percent: self.compressible,
            set_percent: self.set_percent,
            distribution: self.distribution,
            durability: self.durability.level(),
            populate: self.populate,
            warmup_s: self.warmup,
            rate: self.rate,
            extent,
            seed: self.seed,
            server_pid: self.server_pid,
        })
    }
}

/// Runs the command.
pub fn run(env: &Env, flags: &BenchFlags) -> anyhow::Result<Outcome> {
    let report = bench::run(env, &flags.plan()?, flags.quiet)?;
    let mut out = std::io::stdout().lock();
    if flags.json {
        writeln!(out, "{}", report.json())?;
    } else {
        write!(out, "{}", report.table())?;
    }
    if report.operations == 0 {
        bail!("not one operation was answered as it should be");
    }
    Ok(Outcome::Done)
}
