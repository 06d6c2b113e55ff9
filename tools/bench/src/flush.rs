//! `bench flush`: what saving batches of one vBucket costs, and single commits, each beside a raw append of the same run.

use std::path::Path;

use anyhow::{Context, Result};
use clap::Args;
use harness::child::{cargo, output};
use harness::tree::{self, Scratch};
use serde_json::Value;

use super::Output;
use super::load::last_json;
use super::report::{Goal, Report};

/// How much.
#[derive(Args)]
pub struct FlushOptions {
    /// Files of up to 10,000,000 documents, too.
    #[arg(long)]
    long: bool,
    #[command(flatten)]
    output: Output,
}

/// What a batch of so many items must reach of a raw append, insert and replace.
const RATIO_GOALS: [(u64, f64, f64); 2] = [(10_000, 0.28, 0.22), (1_000_000, 0.15, 0.15)];
/// Memory for an item beyond the queued item, in batches of this size or more.
const PEAK_GOAL_BYTES: f64 = 100.0;
const PEAK_FROM_BATCH: u64 = 10_000;
/// A key that is queued twice may cost so much more than one that is queued once.
const DEDUP_GOAL: f64 = 1.10;
/// Lines of the example `journal`, and how many commits it shall do.
const PREWRITTEN: &str = "journal, prewritten segments";
const PLAIN: &str = "plain append of 700 bytes";
const SINGLE_COMMITS: &str = "5000";
/// 12,000 commits a second where a plain append with one sync does 9,000.
const SINGLE_GOAL: f64 = 1.33;

/// Measures.
pub fn run(options: &FlushOptions) -> Result<Report> {
    let scratch = Scratch::new("flush")?;
    let dir = scratch.path().to_str().context("the output folder's name is text")?;
    let mut arguments = vec!["shape", "--json", "--dir", dir];
    if options.long {
        arguments.push("--long");
    }
    let shape = example("flush", &arguments)?;
    let mut report = Report::new("flush", options.output.json);
    print_rows(&shape);
    add_rows(&mut report, &shape);
    add_dedup(&mut report, &shape);
    add_growth(&mut report, &shape);
    report.detail("shape", shape);
    add_single(&mut report, dir)?;
    Ok(report)
}

/// Runs an example of `kvstore`; what it printed as JSON.
fn example(name: &str, arguments: &[&str]) -> Result<Value> {
    let text = run_example(name, arguments)?;
    last_json(&text).with_context(|| format!("the example `{name}` printed no line of JSON"))
}

fn run_example(name: &str, arguments: &[&str]) -> Result<String> {
    println!("running crates/kvstore/examples: {name} {}", arguments.join(" "));
    let fixed = ["run", "--quiet", "--release", "--locked", "--package", "kvstore", "--example", name, "--"];
    output(&mut cargo(&[&fixed[..], arguments].concat()))
}

fn figure(row: &Value, name: &str) -> f64 {
    row[name].as_f64().unwrap_or(f64::NAN)
}

fn rows(measured: &Value, name: &str) -> Vec<Value> {
    measured[name].as_array().cloned().unwrap_or_default()
}

fn batch(row: &Value) -> u64 {
    row["batch"].as_u64().unwrap_or_default()
}

fn print_rows(measured: &Value) {
    println!("\none vBucket, one commit a batch, keys `key<i>`, values of 1 byte");
    println!(
        "{:>9} {:>11} {:>11} {:>13} {:>13} {:>11} {:>7} {:>7} {:>9} {:>9} {:>11}",
        "batch",
        "insert/s",
        "replace/s",
        "insert/CPU s",
        "replace/CPU s",
        "raw/s",
        "ratio",
        "ratio",
        "B/insert",
        "B/replace",
        "peak B/item"
    );
    for row in rows(measured, "rows") {
        let f = |name| figure(&row, name);
        println!(
            "{:>9} {:>11.0} {:>11.0} {:>13.0} {:>13.0} {:>11.0} {:>7.3} {:>7.3} {:>9.0} {:>9.0} {:>11.1}",
            batch(&row),
            f("insert_per_s"),
            f("replace_per_s"),
            f("insert_cpu_per_s"),
            f("replace_cpu_per_s"),
            f("raw_per_s"),
            f("insert_ratio"),
            f("replace_ratio"),
            f("bytes_per_item_insert"),
            f("bytes_per_item_replace"),
            f("peak_bytes_per_item")
        );
    }
}

fn add_rows(report: &mut Report, measured: &Value) {
    let rows = rows(measured, "rows");
    for row in &rows {
        let n = batch(row);
        let goals = RATIO_GOALS.iter().find(|goals| goals.0 == n);
        let insert = goals.map(|goals| Goal::AtLeast(goals.1));
        let replace = goals.map(|goals| Goal::AtLeast(goals.2));
        report.figure(&format!("insert_to_raw_{n}"), figure(row, "insert_ratio"), insert);
        report.figure(&format!("replace_to_raw_{n}"), figure(row, "replace_ratio"), replace);
        if n >= PEAK_FROM_BATCH {
            let peak = figure(row, "peak_bytes_per_item");
            report.figure(&format!("peak_bytes_per_item_{n}"), peak, Some(Goal::AtMost(PEAK_GOAL_BYTES)));
        }
    }
    let cost = |n, name| {
        let row = rows.iter().find(|row| batch(row) == n)?;
        Some(1.0 / figure(row, name))
    };
    for name in ["insert_per_s", "replace_per_s"] {
        if let (Some(small), Some(large)) = (cost(10_000, name), cost(1_000_000, name)) {
            let kind = name.trim_end_matches("_per_s");
            let goal = Goal::AtMost(logarithmic(10_000.0, 1_000_000.0));
            report.figure(&format!("{kind}_cost_growth_batch_10k_to_1m"), large / small, Some(goal));
        }
    }
}

/// How much more an item may cost at `large` than at `small`, if cost is the logarithm.
fn logarithmic(small: f64, large: f64) -> f64 {
    (large.ln() / small.ln() * 1e3).round() / 1e3
}

fn add_dedup(report: &mut Report, measured: &Value) {
    let dedup = &measured["dedup"];
    if dedup.is_object() {
        let (once_s, twice_s) = (figure(dedup, "once_s"), figure(dedup, "twice_s"));
        println!(
            "\nevery key once: {:.1} ms; twice, the same survivors: {:.1} ms",
            once_s * 1e3,
            twice_s * 1e3
        );
        report.figure("twice_to_once", figure(dedup, "ratio"), Some(Goal::AtMost(DEDUP_GOAL)));
    }
}

/// Replaces at random in files of growing size.
fn add_growth(report: &mut Report, measured: &Value) {
    let rows = rows(measured, "growth");
    let (Some(first), Some(last)) = (rows.first(), rows.last()) else { return };
    println!(
        "\n{:>10} {:>6} {:>11} {:>12} {:>8}",
        "documents", "batch", "replace/s", "CPU us/item", "B/item"
    );
    for row in &rows {
        println!(
            "{:>10} {:>6} {:>11.0} {:>12.2} {:>8.0}",
            figure(row, "documents"),
            batch(row),
            figure(row, "replace_per_s"),
            figure(row, "replace_cpu_us"),
            figure(row, "bytes_per_item")
        );
    }
    let (small, large) = (figure(first, "documents"), figure(last, "documents"));
    let growth = figure(last, "replace_cpu_us") / figure(first, "replace_cpu_us");
    let goal = Goal::AtMost(logarithmic(small, large));
    report.figure(&format!("cpu_growth_file_{small}_to_{large}"), growth, Some(goal));
}

/// Single commits through the journal beside a plain append with one sync.
fn add_single(report: &mut Report, dir: &str) -> Result<()> {
    if !has_example(&tree::root(), "journal") {
        println!("\ncrates/kvstore has no example `journal`: the row of single commits is missing");
        return Ok(());
    }
    println!();
    let text = run_example("journal", &[dir, SINGLE_COMMITS])?;
    let of =
        |line| commits_per_s(&text, line).with_context(|| format!("the journal says nothing of `{line}`"));
    let (journal, plain) = (of(PREWRITTEN)?, of(PLAIN)?);
    println!("single commits of 512 bytes: {journal:.0}/s, plain append and one sync: {plain:.0}/s");
    report.add("single_commits_per_s", journal, None);
    report.figure("single_commits_to_plain_append", journal / plain, Some(Goal::AtLeast(SINGLE_GOAL)));
    Ok(())
}

/// The figure in front of `commits/s` in the line that begins so.
fn commits_per_s(text: &str, line: &str) -> Option<f64> {
    let (before, _) = text.lines().find(|l| l.starts_with(line))?.split_once(" commits/s")?;
    before.split_ascii_whitespace().last()?.parse().ok()
}

fn has_example(root: &Path, name: &str) -> bool {
    let folder = root.join("crates/kvstore/examples");
    folder.join(format!("{name}.rs")).is_file() || folder.join(name).join("main.rs").is_file()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn measured(ratio: f64) -> Value {
        let row = |batch: u64, per_s: f64| {
            json!({
                "batch": batch, "insert_per_s": per_s, "replace_per_s": per_s, "insert_ratio": ratio,
                "replace_ratio": ratio, "peak_bytes_per_item": 80.0,
            })
        };
        json!({
            "rows": [row(1, 1e3), row(10_000, 2e6), row(1_000_000, 1.5e6)],
            "dedup": { "once_s": 1.0, "twice_s": 1.05, "ratio": 1.05 },
            "growth": [
                { "documents": 10_000, "batch": 1_000, "replace_cpu_us": 1.0 },
                { "documents": 1_000_000, "batch": 1_000, "replace_cpu_us": 1.4 },
            ],
        })
    }

    fn holds(measured: &Value) -> bool {
        let mut report = Report::new("flush", false);
        add_rows(&mut report, measured);
        add_dedup(&mut report, measured);
        add_growth(&mut report, measured);
        report.close()
    }

    #[test]
    fn goals_are_held_against_what_was_measured() {
        assert!(holds(&measured(0.3)));
        assert!(!holds(&measured(0.2)), "0.28 at 10,000");
        let mut slow = measured(0.3);
        slow["growth"][1]["replace_cpu_us"] = json!(1.6);
        assert!(!holds(&slow), "more than the logarithm");
        let mut figures_missing = measured(0.3);
        figures_missing["rows"][1]["insert_ratio"] = Value::Null;
        assert!(!holds(&figures_missing), "what is missing does not hold");
    }

    #[test]
    fn commits_are_read_from_the_journals_lines() {
        let text = "no disk:\nplain append of 700 bytes + fdatasync   7000 commits/s  p50 9 p99 9 us\n\
                    journal, prewritten segments      12345 commits/s  p50 1 us\n    JournalStats {}\n";
        assert_eq!(commits_per_s(text, PREWRITTEN), Some(12_345.0));
        assert_eq!(commits_per_s(text, PLAIN), Some(7_000.0));
        assert_eq!(commits_per_s("journal, prewritten segments: none\n", PREWRITTEN), None);
    }

    #[test]
    fn an_example_is_a_file_or_a_folder() {
        assert!(has_example(&tree::root(), "flush"));
        assert!(!has_example(&tree::root(), "no-such-example"));
    }
}
