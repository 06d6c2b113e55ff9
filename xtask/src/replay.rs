//! Replays the recorded conversations against the release binary and compares the verdicts with the two lists.

use std::collections::BTreeMap;
use std::fs;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use clap::Args;
use serde_json::Value;

use crate::scenario_list::{self, ScenarioList};
use crate::stave::{BUCKET, PASSWORD, Start, Stave, USER};
use crate::totals::Totals;
use crate::tree::{self, Scratch};

/// What to replay.
#[derive(Args)]
pub struct Options {
    /// Only scenarios whose `group/name` matches this pattern.
    #[arg(long)]
    pub only: Option<String>,
    /// Eviction policy of the bucket.
    #[arg(long, default_value = "value_only")]
    pub eviction_policy: String,
    /// Compression mode of the bucket; `off` answers what the recordings have compressed.
    #[arg(long, default_value = "passive")]
    pub compression_mode: String,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            only: None,
            eviction_policy: "value_only".to_owned(),
            compression_mode: "passive".to_owned(),
        }
    }
}

impl Options {
    /// The server's configuration file.
    fn config(&self) -> String {
        let Options { eviction_policy, compression_mode, .. } = self;
        format!(
            "[[bucket]]\nname = {BUCKET:?}\neviction-policy = {eviction_policy:?}\ncompression-mode = {compression_mode:?}\n"
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
pub fn run(options: &Options) -> Result<Totals> {
    let mut scratch = Scratch::new("replay")?;
    let data = scratch.path().join("data");
    let log = scratch.path().join("server.log");
    let config = scratch.path().join("stave.toml");
    fs::write(&config, options.config())?;
    let config = config.to_str().context("the scratch folder has a name in UTF-8")?;
    let server = Stave::start(&Start { data: &data, log, more: &["--config", config] })?;
    let judged = replay(&server.kv, options).and_then(|verdicts| judge(&verdicts, options));
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

fn replay(kv: &str, options: &Options) -> Result<Value> {
    let folder = tree::root().join("tests/recordings");
    let mut command = Command::new("python3");
    command.arg(folder.join("replay.py")).arg(folder.join("kv"));
    command.args(["--addr", kv, "--user", USER, "--password", PASSWORD, "--bucket", BUCKET]);
    command.args(["--newer", "--json"]);
    if let Some(only) = &options.only {
        command.args(["--only", only]);
    }
    let output = command.stderr(Stdio::inherit()).output().context("cannot run python3")?;
    serde_json::from_slice(&output.stdout)
        .with_context(|| format!("replay.py ended with {} and without verdicts", output.status))
}

/// Compares each verdict with the lists, prints what is wrong and the table.
fn judge(replayed: &Value, options: &Options) -> Result<Totals> {
    let folder = tree::root().join("tests/recordings");
    let not_yet = scenario_list::read(&folder.join("not-yet.txt"))?;
    let differs = scenario_list::read(&folder.join("differs.txt"))?;
    let results = replayed["results"].as_array().context("replay.py gave no results")?;
    ensure!(!results.is_empty(), "no scenario matches");
    let mut groups: BTreeMap<String, Group> = BTreeMap::new();
    let mut totals = Totals::default();
    let mut seen = Vec::new();
    for result in results {
        let name = result["scenario"].as_str().context("a result has a scenario")?;
        let passed = result["ok"].as_bool().context("a result has a verdict")?;
        let difference = result["difference"].as_str().unwrap_or("");
        seen.push(name);
        let group = groups.entry(name.split('/').next().unwrap_or(name).to_owned()).or_default();
        match (passed, list_of(name, &not_yet, &differs)) {
            (true, None) => group.agreed += 1,
            (false, Some("not-yet.txt")) => group.not_yet += 1,
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
        totals += unknown_names(&seen, &[&not_yet, &differs]);
    }
    print_table(&groups);
    for group in groups.values() {
        totals += Totals { passed: group.agreed, failed: group.wrong };
    }
    Ok(totals)
}

fn list_of(name: &str, not_yet: &ScenarioList, differs: &ScenarioList) -> Option<&'static str> {
    if not_yet.contains_key(name) {
        Some("not-yet.txt")
    } else if differs.contains_key(name) {
        Some("differs.txt")
    } else {
        None
    }
}

fn unknown_names(seen: &[&str], lists: &[&ScenarioList]) -> Totals {
    let mut totals = Totals::default();
    for name in lists.iter().flat_map(|list| list.keys()).filter(|name| !seen.contains(&name.as_str())) {
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
