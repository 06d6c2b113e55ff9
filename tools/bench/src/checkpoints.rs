//! `bench checkpoints`: what happens to checkpoints under a vBucket's lock, whatever their number.

use anyhow::{Context, Result};
use clap::Args;
use harness::child::{cargo, output};
use serde_json::Value;

use super::Output;
use super::load::last_json;
use super::report::{Goal, Report};

/// How much.
#[derive(Args)]
pub struct CheckpointsOptions {
    #[command(flatten)]
    output: Output,
}

/// Taking out closed checkpoints that nobody needs any more.
const EXTRACT_GOAL_NS: f64 = 500.0;
/// It must be the same whatever their number; what is left is where the processor finds a few lines of memory.
const EXTRACT_SPREAD_GOAL_NS: f64 = 250.0;
/// What a search may take at most under the lock.
const SEARCH_GOAL_NS: f64 = 100_000.0;
const SEARCHES: [&str; 6] =
    ["take_ns", "take_half_ns", "register_ns", "register_mid_ns", "advance_mid_ns", "behind_mid_ns"];

/// Measures.
pub fn run(options: &CheckpointsOptions) -> Result<Report> {
    let arguments =
        ["run", "--quiet", "--release", "--locked", "--package", "vbucket", "--example", "checkpoints"];
    let text = output(&mut cargo(&[&arguments[..], &["--", "--json"]].concat()))?;
    text.lines().filter(|line| !line.starts_with('{')).for_each(|line| println!("{line}"));
    let measured = last_json(&text).context("the example `checkpoints` printed no line of JSON")?;
    let mut report = Report::new("checkpoints", options.output.json);
    add(&mut report, &measured);
    report.detail("measured", measured);
    Ok(report)
}

fn add(report: &mut Report, measured: &Value) {
    let rows = measured["checkpoints"].as_array().cloned().unwrap_or_default();
    let figure = |row: &Value, name: &str| row[name].as_f64().unwrap_or(f64::NAN);
    for row in &rows {
        let name = format!("extract_ns_{}", row["count"]);
        report.figure(&name, figure(row, "extract_ns"), Some(Goal::AtMost(EXTRACT_GOAL_NS)));
    }
    // By the call of the flusher and of streams, whatever the number of readers.
    for row in measured["readers"].as_array().into_iter().flatten() {
        let name = format!("extract_but_newest_ns_{}_readers", row["count"]);
        report.figure(&name, figure(row, "extract_but_newest_ns"), Some(Goal::AtMost(EXTRACT_GOAL_NS)));
    }
    if let (Some(first), Some(last)) = (rows.first(), rows.last()) {
        let spread = figure(last, "extract_ns") - figure(first, "extract_ns");
        report.figure("extract_last_less_first_ns", spread, Some(Goal::AtMost(EXTRACT_SPREAD_GOAL_NS)));
        report.add("queue_new_ns", figure(first, "queue_new_ns"), None);
        report.add("queue_merged_ns", figure(first, "queue_merged_ns"), None);
        for name in SEARCHES {
            let most = rows.iter().map(|row| figure(row, name)).fold(0.0, f64::max);
            report.figure(&format!("most_{name}"), most, Some(Goal::AtMost(SEARCH_GOAL_NS)));
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn holds(first_ns: f64, last_ns: f64) -> bool {
        let row = |count: u64, ns: f64| {
            json!({
                "count": count, "extract_ns": ns, "queue_new_ns": 30.0, "queue_merged_ns": 40.0, "take_ns": 80.0,
                "take_half_ns": 90.0, "register_ns": 10.0, "register_mid_ns": 20.0, "advance_mid_ns": 20.0,
                "behind_mid_ns": 5.0,
            })
        };
        let mut report = Report::new("checkpoints", false);
        add(&mut report, &json!({ "checkpoints": [row(1, first_ns), row(100_000, last_ns)] }));
        report.close()
    }

    #[test]
    fn extraction_behind_many_readers_counts() {
        let holds = |ns: f64| {
            let mut report = Report::new("checkpoints", false);
            add(&mut report, &json!({ "readers": [{ "count": 100, "extract_but_newest_ns": ns }] }));
            report.close()
        };
        assert!(holds(400.0));
        assert!(!holds(600.0));
    }

    #[test]
    fn extraction_is_short_and_flat() {
        assert!(holds(10.0, 80.0));
        assert!(!holds(10.0, 400.0), "not flat");
        assert!(!holds(600.0, 600.0), "too long");
        assert!(!holds(10.0, f64::NAN), "a figure is missing");
    }
}
