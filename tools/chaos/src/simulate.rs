//! `cargo xtask simulate`: whole clusters by seed, in a release build; streams and replicas by seed; planted mistakes.

mod dcp;

use anyhow::Result;
use clap::Args;
use harness::child::{cargo, each_line, succeeds};
use harness::totals::Totals;

/// How much and from where.
#[derive(Args)]
pub struct SimulateOptions {
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
pub fn run(options: &SimulateOptions) -> Result<bool> {
    if let Some(seeds) = options.planted {
        return Ok(search_mistakes(seeds)?.good());
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

/// What tests are called that look for planted mistakes.
pub const LOOKS_FOR_MISTAKES: [&str; 2] = ["mistakes_in_the_product", "each_mistake"];

/// Looks for the mistakes that are planted in the product with so many seeds from 0 on. Each mistake that a simulator
/// found counts.
fn search_mistakes(seeds: u64) -> Result<Totals> {
    // Of the whole workspace: a choice of packages would be built with other features of what they need.
    let mut command = cargo(&["test", "--workspace", "--locked", "--no-fail-fast", "--lib", "--tests"]);
    command.args(["--", "--nocapture"]).args(LOOKS_FOR_MISTAKES);
    command.env("PLANTED_SEARCH", seeds.to_string());
    let mut found = Totals::default();
    let mut tests = Totals::default();
    let passed = each_line(&mut command, |line| {
        found += verdict(line).unwrap_or_default();
        tests += Totals::of_cargo_line(line).unwrap_or_default();
    })?;
    // A search may miss what no seed is known to find; the tests say what is wrong.
    Ok(Totals { failed: tests.failed.max(u64::from(!passed)), ..found })
}

/// Reads what a simulator says of one mistake: `Logic: BlindWrite seed 4 after 1: ...`, or that it was not found.
pub fn verdict(line: &str) -> Option<Totals> {
    // The first one stands behind the name of its test.
    let says = line.rsplit("... ").next()?;
    let (simulator, of) = says.split_once(": ")?;
    let is_simulator = !simulator.is_empty() && simulator.chars().all(|c| c.is_ascii_alphabetic());
    let mut words = of.split_ascii_whitespace().skip(1);
    match (is_simulator, words.next()?, words.next()?) {
        (true, "seed", seed) if seed.parse::<u64>().is_ok() => Some(Totals::one(true)),
        (true, "was", "not") => Some(Totals::one(false)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_simulators_say_of_mistakes() {
        let found = "Logic: BlindWrite                   seed     4 after    5: seed 4, at 2 us: epoch";
        assert_eq!(verdict(found), Some(Totals::one(true)));
        assert_eq!(verdict(&format!("test planted::mistakes ... {found}")), Some(Totals::one(true)));
        let missed = "Clusters: NotSettled was not found in 0..150, and made 172 times";
        assert_eq!(verdict(missed), Some(Totals::one(false)));
        assert_eq!(verdict("not found: [NotSettled]"), None);
        assert_eq!(verdict("test result: ok. 2 passed; 0 failed; 0 ignored; 0 measured"), None);
    }
}
