//! Replays the recorded conversations against the release binary and compares the verdicts with the lists.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use clap::Args;
use harness::stave::{BUCKET, PASSWORD, Start, Stave, USER};
use harness::totals::Totals;
use harness::tree::{self, Scratch};
use serde_json::Value;

use crate::scenario_list::{self, ScenarioList};

/// What to replay.
#[derive(Args)]
pub struct ReplayOptions {
    /// Only scenarios whose `group/name` matches this pattern.
    #[arg(long)]
    pub only: Option<String>,
    /// Eviction policy of the bucket.
    #[arg(long, default_value = "value_only")]
    pub eviction_policy: String,
    /// Compression mode of the bucket; `off` answers what the recordings have compressed.
    #[arg(long, default_value = "passive")]
    pub compression_mode: String,
    /// What keeps the bucket's documents, by the word of its type: couchstore or magma.
    #[arg(long, default_value = "couchstore")]
    pub store: String,
    /// The program, instead of the release binary.
    #[arg(long, value_name = "FILE")]
    pub binary: Option<PathBuf>,
}

impl Default for ReplayOptions {
    fn default() -> ReplayOptions {
        ReplayOptions {
            only: None,
            eviction_policy: "value_only".to_owned(),
            compression_mode: "passive".to_owned(),
            store: "couchstore".to_owned(),
            binary: None,
        }
    }
}

impl ReplayOptions {
    /// The server's configuration file.
    fn config(&self) -> String {
        let ReplayOptions { eviction_policy, compression_mode, store, .. } = self;
        format!(
            "[[bucket]]\nname = {BUCKET:?}\ntype = {store:?}\neviction-policy = {eviction_policy:?}\ncompression-mode = {compression_mode:?}\n"
        )
    }
}

/// What became of a group's scenarios.
#[derive(Default)]
struct Group {
    agreed: u64,
    not_yet: u64,
    differs: u64,
    wrong: u64,
}

/// Starts a server, replays, stops it. Scenarios that are listed and fail as they should are not counted.
pub fn run(options: &ReplayOptions) -> Result<Totals> {
    let mut scratch = Scratch::new("replay")?;
    let data = scratch.path().join("data");
    let log = scratch.path().join("server.log");
    let config = scratch.path().join("stave.toml");
    fs::write(&config, options.config())?;
    let config = config.to_str().context("the scratch folder has a name in UTF-8")?;
    let start = Start { data: &data, log, more: &["--config", config] };
    let server = match &options.binary {
        Some(binary) => Stave::start_binary(binary, &start, None)?,
        None => Stave::start(&start)?,
    };
    let judged =
        replay(&server.kv, options).and_then(|verdicts| judge(verdicts, options, &KV)).and_then(|kv| {
            let verdicts = replay_dcp(&server.kv, options)?;
            let mut totals = kv;
            totals += judge(verdicts, options, &DCP)?;
            Ok(totals)
        });
    let stopped = server.stop();
    if judged.is_err() || stopped.is_err() {
        scratch.keep();
    }
    let mut totals = judged?;
    let stop_is_clean = stopped.is_ok();
    if let Err(error) = stopped {
        println!("FAIL the server's own end: {error:#}");
    }
    totals += Totals::one(stop_is_clean);
    Ok(totals)
}

fn replay(kv: &str, options: &ReplayOptions) -> Result<Vec<Verdict>> {
    let folder = tree::root().join("tests/recordings");
    let mut command = Command::new("python3");
    command.arg(folder.join("replay.py")).arg(folder.join("kv")).arg(folder.join("derived"));
    command.args(["--addr", kv, "--user", USER, "--password", PASSWORD, "--bucket", BUCKET]);
    command.args(["--newer", "--json"]);
    if let Some(only) = &options.only {
        command.args(["--only", only]);
    }
    let output = command.stderr(Stdio::inherit()).output().context("cannot run python3")?;
    let replayed: Value = serde_json::from_slice(&output.stdout)
        .with_context(|| format!("replay.py ended with {} and without verdicts", output.status))?;
    let results = replayed["results"].as_array().context("replay.py gave no results")?;
    results.iter().map(verdict).collect()
}

fn verdict(result: &Value) -> Result<Verdict> {
    Ok(Verdict {
        name: result["scenario"].as_str().context("a result has a scenario")?.to_owned(),
        passed: result["ok"].as_bool().context("a result has a verdict")?,
        difference: result["difference"].as_str().unwrap_or("").to_owned(),
    })
}

/// A set of recordings: its lists, and what they are called.
struct Set {
    not_yet: &'static str,
    differs: &'static str,
}

const KV: Set = Set { not_yet: "not-yet.txt", differs: "differs.txt" };
const DCP: Set = Set { not_yet: "dcp-not-yet.txt", differs: "dcp-differs.txt" };

/// What became of a scenario.
struct Verdict {
    name: String,
    passed: bool,
    difference: String,
}

/// Runs the DCP scenarios, those that are listed as well: they must go on failing.
fn replay_dcp(kv: &str, options: &ReplayOptions) -> Result<Vec<Verdict>> {
    let folder = tree::root().join("tests/recordings");
    let lists = [DCP.not_yet, DCP.differs].map(|name| folder.join(name).display().to_string()).join(",");
    let mut verdicts = Vec::new();
    for which in ["others", "listed"] {
        let mut command = Command::new("python3");
        command.arg(folder.join("dcp.py")).args([which, &lists]).arg(folder.join("dcp"));
        command.args(["--addr", kv, "--user", USER, "--password", PASSWORD, "--bucket", BUCKET]);
        command.args(["--admin-user", USER, "--admin-password", PASSWORD, "--vbuckets", "1024", "-v"]);
        if let Some(only) = &options.only {
            command.args(["--only", only]);
        }
        let output = command.stderr(Stdio::inherit()).output().context("cannot run python3")?;
        let text = String::from_utf8_lossy(&output.stdout);
        ensure!(text.contains("scenarios"), "dcp.py ended with {} and without a table", output.status);
        verdicts.extend(dcp_verdicts(&text));
    }
    Ok(verdicts)
}

/// Reads what check.py prints: the first difference of a scenario that fails, then a line for each.
fn dcp_verdicts(text: &str) -> Vec<Verdict> {
    let mut verdicts = Vec::new();
    let mut difference = String::new();
    for line in text.lines() {
        let word = line.split_whitespace().next().unwrap_or("");
        let is_verdict = line.ends_with(" s)") && line.contains(" steps, ");
        match word {
            "ok" | "FAIL" if is_verdict => {
                let name = line[word.len()..].split_whitespace().next().unwrap_or("").to_owned();
                let difference = std::mem::take(&mut difference);
                verdicts.push(Verdict { name, passed: word == "ok", difference });
            }
            "FAIL" => difference = line.to_owned(),
            _ if line.starts_with("     ") => difference = format!("{difference}: {}", line.trim()),
            _ => {}
        }
    }
    verdicts
}

/// Compares each verdict with the lists, prints what is wrong and the table.
fn judge(verdicts: Vec<Verdict>, options: &ReplayOptions, set: &Set) -> Result<Totals> {
    let folder = tree::root().join("tests/recordings");
    let not_yet = scenario_list::read(&folder.join(set.not_yet))?;
    let differs = scenario_list::read(&folder.join(set.differs))?;
    ensure!(!verdicts.is_empty() || options.only.is_some(), "no scenario matches");
    let mut groups: BTreeMap<String, Group> = BTreeMap::new();
    let mut totals = Totals::default();
    for Verdict { name, passed, difference } in &verdicts {
        let group = groups.entry(name.split('/').next().unwrap_or(name).to_owned()).or_default();
        let list = if not_yet.contains_key(name) {
            Some(set.not_yet)
        } else {
            differs.contains_key(name).then_some(set.differs)
        };
        match (*passed, list) {
            (true, None) => group.agreed += 1,
            (false, Some(list)) if list == set.not_yet => group.not_yet += 1,
            (false, Some(_)) => group.differs += 1,
            (true, Some(list)) => {
                println!("FAIL {name}: it passes but stands in {list}; take it out");
                group.wrong += 1;
            }
            (false, None) => {
                println!("FAIL {name}: {difference}");
                group.wrong += 1;
            }
        }
    }
    if options.only.is_none() {
        let seen = names(set, &verdicts)?;
        totals += unknown_names(&seen, &[&not_yet, &differs]);
    }
    print_table(&groups);
    for group in groups.values() {
        totals += Totals { passed: group.agreed, failed: group.wrong };
    }
    Ok(totals)
}

/// The names of all scenarios; of DCP not all are run.
fn names(set: &Set, verdicts: &[Verdict]) -> Result<Vec<String>> {
    if set.not_yet != DCP.not_yet {
        return Ok(verdicts.iter().map(|verdict| verdict.name.clone()).collect());
    }
    let mut names = Vec::new();
    for entry in fs::read_dir(tree::root().join("tests/recordings/dcp"))? {
        for line in fs::read_to_string(entry?.path())?.lines() {
            let line: Value = serde_json::from_str(line)?;
            if line.get("head").is_some() {
                names.push(line["scenario"].as_str().context("a head has a name")?.to_owned());
            }
        }
    }
    Ok(names)
}

fn unknown_names(seen: &[String], lists: &[&ScenarioList]) -> Totals {
    let mut totals = Totals::default();
    for name in lists.iter().flat_map(|list| list.keys()).filter(|name| !seen.contains(name)) {
        println!("FAIL {name}: it is listed, but there is no such scenario");
        totals += Totals::one(false);
    }
    totals
}

fn print_table(groups: &BTreeMap<String, Group>) {
    println!("{:<18} {:>7} {:>7} {:>8} {:>6}", "group", "agreed", "differs", "not yet", "wrong");
    let mut sum = Group::default();
    for (name, group) in groups {
        print_row(name, group);
        sum.agreed += group.agreed;
        sum.differs += group.differs;
        sum.not_yet += group.not_yet;
        sum.wrong += group.wrong;
    }
    print_row("total", &sum);
}

fn print_row(name: &str, group: &Group) {
    println!("{name:<18} {:>7} {:>7} {:>8} {:>6}", group.agreed, group.differs, group.not_yet, group.wrong);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_the_tool_prints() {
        let text = "ok   a/b (3 steps, 0.1 s)\nFAIL a/c step 2 {}\n     .st: want 1 got 2\nFAIL a/c (2 steps, 0.0 s)\n\ngroup scenarios steps\n";
        let verdicts = dcp_verdicts(text);
        let seen: Vec<_> = verdicts.iter().map(|v| (v.name.as_str(), v.passed)).collect();
        assert_eq!(seen, [("a/b", true), ("a/c", false)]);
        assert_eq!(verdicts[1].difference, "FAIL a/c step 2 {}: .st: want 1 got 2");
    }
}
