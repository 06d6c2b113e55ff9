//! `bench hit-rate`: what the pager keeps, beside plain LRU and the optimum, and how long it holds a vBucket's lock.

use anyhow::{Context, Result};
use clap::Args;
use harness::child::{cargo, output};
use serde_json::Value;

use super::Output;
use super::load::last_json;
use super::report::{Goal, Report};

/// How much.
#[derive(Args)]
pub struct HitRateOptions {
    /// Documents, each with a value of 512 bytes.
    #[arg(long, default_value_t = 20_000)]
    documents: u32,
    /// Reads a document, the last two thirds of them measured.
    #[arg(long, default_value_t = 30)]
    reads: u32,
    #[command(flatten)]
    output: Output,
}

/// Hit rate as a part of plain LRU's, by trace.
const LRU_GOALS: [(&str, f64); 3] =
    [("zipf 0.99", 1.0), ("zipf 0.99, scans", 1.05), ("zipf 0.99, moving", 0.98)];
/// Hit rate as a part of the best set that never changes, where popularity never does.
const UNCHANGING_GOAL: f64 = 0.95;
const LONGEST_STEP_MS: f64 = 25.0;
const LONGEST_HOLD_US: f64 = 100.0;

/// Measures.
pub fn run(options: &HitRateOptions) -> Result<Report> {
    let mut report = Report::new("hit-rate", options.output.json);
    let rates = example("hit_rate", &[&options.documents.to_string(), &options.reads.to_string()])?;
    let rows = rates["rows"].as_array().cloned().unwrap_or_default();
    rows.iter().for_each(|row| add_row(&mut report, row));
    report.detail("rows", rows.into());
    let pager = example("pager", &[])?;
    let figure = |name: &str| pager[name].as_f64().unwrap_or(f64::NAN);
    report.add("longest step, ms", figure("longest_step_ms"), Some(LONGEST_STEP_MS));
    report.add("longest lock hold, us", figure("longest_hold_us"), Some(LONGEST_HOLD_US));
    report.add("counting an access, ns", figure("raise_ns"), None);
    report.detail("pager", pager);
    Ok(report)
}

fn add_row(report: &mut Report, row: &Value) {
    let figure = |name: &str| row[name].as_f64().unwrap_or(f64::NAN);
    let trace = row["trace"].as_str().unwrap_or_default();
    let percent = row["resident_percent"].as_u64().unwrap_or_default();
    let goal = LRU_GOALS.iter().find(|(name, _)| *name == trace).map(|(_, goal)| Goal::AtLeast(*goal));
    report.figure(&format!("{trace}, {percent} %: of LRU"), figure("stave") / figure("lru"), goal);
    if trace == LRU_GOALS[0].0 {
        let of_best = figure("stave") / figure("best_unchanging");
        let name = format!("{trace}, {percent} %: of best set");
        report.figure(&name, of_best, Some(Goal::AtLeast(UNCHANGING_GOAL)));
    }
}

/// Runs an example of `engine`, shows what it prints, and gives back its line of JSON.
fn example(name: &str, arguments: &[&str]) -> Result<Value> {
    println!("running crates/engine/examples: {name} {}", arguments.join(" "));
    let fixed =
        ["run", "--quiet", "--release", "--locked", "--package", "engine", "--example", name, "--", "--json"];
    let text = output(&mut cargo(&[&fixed[..], arguments].concat()))?;
    let is_table = |line: &&str| !line.starts_with('{');
    text.lines().filter(is_table).for_each(|line| println!("{line}"));
    last_json(&text).with_context(|| format!("the example `{name}` printed no line of JSON"))
}
