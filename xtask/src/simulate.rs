//! `cargo xtask simulate`: whole clusters by seed, in a release build.

use anyhow::Result;
use clap::Args;

use crate::child::{cargo, succeeds};

/// How much and from where.
#[derive(Args)]
pub struct Options {
    /// How many seeds are run.
    #[arg(long, default_value_t = 1_000)]
    seeds: u64,
    /// The first seed; the others follow. A violation names the one that it was found with.
    #[arg(long, default_value_t = 0)]
    first: u64,
    /// Print what happened as JSON.
    #[arg(long)]
    json: bool,
}

/// Builds and runs the simulator; whether nothing was violated.
pub fn run(options: &Options) -> Result<bool> {
    let (seeds, first) = (options.seeds.to_string(), options.first.to_string());
    let mut arguments =
        vec!["run", "--release", "--locked", "--quiet", "-p", "simulation", "--example", "simulate", "--"];
    arguments.extend(["--seeds", &seeds, "--first", &first]);
    if options.json {
        arguments.push("--json");
    }
    succeeds(&mut cargo(&arguments))
}
