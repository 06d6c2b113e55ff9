//! `cargo xtask simulate`: whole clusters by seed, in a release build; streams and replicas by seed; planted mistakes.

mod dcp;

use anyhow::Result;
use clap::Args;

use crate::child::{cargo, each_line, succeeds};
use crate::totals::Totals;

/// How much and from where.
#[derive(Args)]
pub struct Options {
    /// How many seeds are run.
    #[arg(long, default_value_t = 1_000)]
    seeds: u64,
    /// The first seed; the others follow. A violation names the one that it was found with.
    #[arg(long, default_value_t = 0)]
    first: u64,
    /// Run producers, consumers and replicas under faults instead of clusters.
    #[arg(long, conflicts_with = "planted")]
    dcp: bool,
    /// Look for the mistakes that are planted in the product instead, with at most so many seeds each from the first on.
    #[arg(long, value_name = "SEEDS", num_args = 0..=1, default_missing_value = "200")]
    planted: Option<u64>,
    /// Print what happened as JSON.
    #[arg(long)]
    json: bool,
}

/// Builds and runs the simulator; whether nothing was violated.
pub fn run(options: &Options) -> Result<bool> {
    if options.planted.is_some() {
        return Ok(planted(options.planted)?.good());
    }
    if options.dcp {
        return dcp::run(options.first, options.seeds, options.json);
    }
    let (seeds, first) = (options.seeds.to_string(), options.first.to_string());
    let mut arguments =
        vec!["run", "--release", "--locked", "--quiet", "-p", "simulation", "--example", "simulate", "--"];
    arguments.extend(["--seeds", &seeds, "--first", &first]);
    if options.json {
        arguments.push("--json");
    }
    succeeds(&mut cargo(&arguments))
}

/// Crates with a simulator that looks for planted mistakes, and the tests that do.
const SIMULATORS: [(&str, &[&str]); 4] = [
    ("simulation", &["planted"]),
    ("cluster", &["simulation"]),
    ("dcp", &["replication"]),
    ("sim", &["engine", "sync_writes", "crash_states"]),
];

/// Looks for the mistakes that are planted in the product: with the seeds that are known to find them, or with so many
/// seeds from 0 on.
pub fn planted(search: Option<u64>) -> Result<Totals> {
    let features = SIMULATORS.map(|(name, _)| format!("{name}/planted")).join(",");
    let mut arguments = vec!["test", "--locked", "--no-fail-fast", "--features", &features];
    for (name, tests) in SIMULATORS {
        arguments.extend(["--package", name]);
        arguments.extend(tests.iter().flat_map(|test| ["--test", test]));
    }
    arguments.extend(["--", "--nocapture", "mistakes_in_the_product", "each_mistake"]);
    let mut command = cargo(&arguments);
    if let Some(seeds) = search {
        command.env("PLANTED_SEARCH", seeds.to_string());
    }
    let mut totals = Totals::default();
    let passed = each_line(&mut command, |line| {
        totals += Totals::of_cargo_line(line).unwrap_or_default();
    })?;
    if !passed && totals.failed == 0 {
        totals += Totals::one(false);
    }
    Ok(totals)
}
