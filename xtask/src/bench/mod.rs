//! Measurements with a threshold: beside memcached in the same run, and of the start.

mod idle;
mod memcached;
mod process;
mod report;
mod start;

use anyhow::Result;
use clap::{Args, Subcommand};

/// What to measure.
#[derive(Subcommand)]
pub enum Bench {
    /// Throughput, server CPU an operation and latency beside memcached, with equal threads, client and load.
    Memcached(memcached::Options),
    /// From exec to ready, memory when ready, size of the binary, memory of idle connections.
    Start(start::Options),
}

/// How to print.
#[derive(Args)]
pub struct Output {
    /// Close with one line of JSON.
    #[arg(long)]
    pub json: bool,
}

/// Runs a measurement; whether all thresholds hold.
pub fn run(bench: &Bench) -> Result<bool> {
    let report = match bench {
        Bench::Memcached(options) => memcached::run(options)?,
        Bench::Start(options) => start::run(options)?,
    };
    Ok(report.close())
}
