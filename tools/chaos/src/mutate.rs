//! `cargo xtask mutate`: starts with a damaged file in each place of each kind of file, in a release build.

use anyhow::Result;
use clap::Args;
use harness::child::{cargo, succeeds};

/// How much and from where.
#[derive(Args)]
pub struct MutateOptions {
    /// How many starts are tried, at least.
    #[arg(long, default_value_t = 20_000)]
    starts: u64,
    /// Seed of the first world; the others follow. A violation names the one that it was found with.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Only this damage: flip, zero, cut, stale, swap or remove.
    #[arg(long, value_name = "KIND")]
    only: Option<String>,
    /// Print counts as JSON, a line for each kind of file and damage.
    #[arg(long)]
    json: bool,
}

/// Builds and runs the harness; whether nothing was violated.
pub fn run(options: &MutateOptions) -> Result<bool> {
    let (starts, seed) = (options.starts.to_string(), options.seed.to_string());
    let mut arguments =
        vec!["run", "--release", "--locked", "--quiet", "-p", "sim", "--example", "mutate", "--"];
    arguments.extend(["--starts", &starts, "--seed", &seed]);
    if let Some(only) = &options.only {
        arguments.extend(["--only", only]);
    }
    if options.json {
        arguments.push("--json");
    }
    succeeds(&mut cargo(&arguments))
}
