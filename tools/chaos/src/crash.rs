//! `cargo xtask crash`: crash states, failing calls and flipped bits in great number, in a release build.

use anyhow::Result;
use clap::Args;
use harness::child::{cargo, succeeds};

/// How much and from where.
#[derive(Args)]
pub struct CrashOptions {
    /// How many crash states are tried, at least.
    #[arg(long, default_value_t = 1_000_000)]
    states: u64,
    /// Seed of the first workload; the others follow. A violation names the one that it was found with.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Only this store: couch, journaled, log or "journaled log"; each but log also with "encrypted" before it.
    #[arg(long)]
    store: Option<String>,
    /// Print counts as JSON, a line for each store.
    #[arg(long)]
    json: bool,
}

/// Builds and runs the harness; whether nothing was violated.
pub fn run(options: &CrashOptions) -> Result<bool> {
    let (states, seed) = (options.states.to_string(), options.seed.to_string());
    let mut arguments =
        vec!["run", "--release", "--locked", "--quiet", "-p", "sim", "--example", "crash_states", "--"];
    arguments.extend(["--states", &states, "--seed", &seed]);
    if let Some(store) = &options.store {
        arguments.extend(["--store", store]);
    }
    if options.json {
        arguments.push("--json");
    }
    succeeds(&mut cargo(&arguments))
}
