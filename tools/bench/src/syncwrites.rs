//! `bench syncwrites`: clients that wait until each of their writes is as safe as they ask, by level and number of
//! clients: one node with its journal and without, two nodes, and Redis with an append-only file.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use clap::{Args, ValueEnum};
use harness::child::{is_installed, release_build};
use harness::client::Client;
use harness::stave::{BUCKET, PASSWORD, Start, Stave, USER};
use harness::tree::{self, Scratch};
use protocol::{RequestParts, opcode};
use serde_json::{Value, json};

use super::load::Peer;
use super::redis::{self, Redis};
use super::report::{Goal, Report};
use super::writers::{self, COLUMNS, MEMORY, Run, Writers, throughput_ratio};

/// What the original reports for the strongest level on two nodes: writes a second. We want two hundred times that,
const ORIGINAL: f64 = 590.0;
const GAIN: f64 = 200.0;
/// and no more than this in the mean,
const MOST_MEAN_US: f64 = 16_000.0;
/// with so many clients.
const MANY_CLIENTS: u32 = 2000;
/// What is left of the throughput without durability when a majority must have each write in memory.
const LEAST_MAJORITY: f64 = 0.5;
const VBUCKETS: u16 = 1024;
const SET_JSON: u8 = 1;

/// Levels, as the load generator calls them.
const LEVELS: [&str; 4] = ["none", "majority", "persist-active", "persist-majority"];
const NONE: &str = LEVELS[0];
const MAJORITY: &str = LEVELS[1];
const PERSIST: &str = LEVELS[3];

/// How long and how much, and who of all.
#[derive(Args)]
#[group(skip)]
pub struct SyncwritesOptions {
    #[command(flatten)]
    writers: writers::WritersOptions,
    /// Only these servers.
    #[arg(long, value_delimiter = ',')]
    only: Vec<Contender>,
    /// Only these levels.
    #[arg(long, value_delimiter = ',', value_parser = LEVELS)]
    levels: Vec<String>,
}

impl SyncwritesOptions {
    fn contenders(&self) -> Vec<Contender> {
        let is_wanted = |one: &Contender| self.only.is_empty() || self.only.contains(one);
        Contender::all().into_iter().filter(is_wanted).collect()
    }

    fn wants(&self, level: &str) -> bool {
        self.levels.is_empty() || self.levels.iter().any(|one| one == level)
    }
}

/// Who takes part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Contender {
    Journal,
    NoJournal,
    TwoNodes,
    Redis,
}

impl Contender {
    fn name(self) -> &'static str {
        match self {
            Contender::Journal => "one node, journal",
            Contender::NoJournal => "one node, no journal",
            Contender::TwoNodes => "two nodes, journal",
            Contender::Redis => "redis",
        }
    }

    fn all() -> Vec<Contender> {
        let mut all = vec![Contender::Journal, Contender::NoJournal, Contender::TwoNodes];
        if is_installed("redis-server") {
            all.push(Contender::Redis);
        }
        all
    }

    fn levels(self) -> &'static [&'static str] {
        // Redis has one way only.
        if self == Contender::Redis { &[PERSIST] } else { &LEVELS }
    }
}

/// Servers that run; the second one follows the first.
enum Running {
    Stave(Box<[Stave]>),
    Redis(Redis),
}

/// The runs of a contender with a level and a number of clients, one for each round.
struct Row {
    contender: Contender,
    level: &'static str,
    clients: u32,
    runs: Vec<Run>,
}

/// Measures.
pub fn run(options: &SyncwritesOptions) -> Result<Report> {
    let writers = &options.writers;
    writers.check()?;
    release_build()?;
    let contenders = options.contenders();
    let mut report = Report::new("syncwrites", writers.output.json);
    if contenders.contains(&Contender::Redis) {
        report.detail("redis", json!(redis::version()?));
    } else if !is_installed("redis-server") {
        println!("redis-server is not installed (`apt-get install redis-server`): its rows are missing");
    }
    let scratch = Scratch::new("syncwrites")?;
    let rows = measure_all(options, &contenders, &scratch)?;
    show_histogram(options, &contenders, &scratch)?;
    report.detail("rows", rows.iter().map(row_json).collect());
    add_figures(&mut report, &rows, &writers.clients);
    Ok(report)
}

fn measure_all(options: &SyncwritesOptions, contenders: &[Contender], scratch: &Scratch) -> Result<Vec<Row>> {
    let mut rows: Vec<Row> = Vec::new();
    let writers = &options.writers;
    for &clients in &writers.clients {
        for &contender in contenders {
            let row = |level: &&'static str| Row { contender, level, clients, runs: Vec::new() };
            rows.extend(contender.levels().iter().filter(|level| options.wants(level)).map(row));
        }
    }
    print_head("round");
    for round in 1..=writers.rounds {
        for row in &mut rows {
            let run = measure(row.contender, row.level, row.clients, writers, scratch)?;
            print_row(&round.to_string(), row, &run);
            row.runs.push(run);
        }
    }
    print_head("median");
    for row in &rows {
        print_row("", row, &Run::median(&row.runs));
    }
    Ok(rows)
}

/// Fresh servers with all keys in them, under load; their folders go with them.
fn measure(
    contender: Contender,
    level: &'static str,
    clients: u32,
    options: &writers::WritersOptions,
    scratch: &Scratch,
) -> Result<Run> {
    with_servers(contender, options, scratch, |peer| writers_of(contender, level, clients, options).run(peer))
}

fn writers_of(
    contender: Contender,
    level: &'static str,
    clients: u32,
    options: &writers::WritersOptions,
) -> Writers {
    let level = (contender != Contender::Redis && level != NONE).then_some(level);
    Writers { clients, seconds: options.seconds, keys: options.keys, level }
}

/// The latencies of the strongest level, as the load generator draws them.
fn show_histogram(options: &SyncwritesOptions, contenders: &[Contender], scratch: &Scratch) -> Result<()> {
    let shown = [Contender::Journal, Contender::TwoNodes].into_iter().filter(|one| contenders.contains(one));
    let options = if options.wants(PERSIST) { &options.writers } else { return Ok(()) };
    for contender in shown {
        let clients = options.most_clients();
        println!("\n{}: {PERSIST}, {clients} clients", contender.name());
        let writers = writers_of(contender, PERSIST, clients, options);
        with_servers(contender, options, scratch, |peer| writers.show(peer))?;
    }
    Ok(())
}

fn with_servers<T>(
    contender: Contender,
    options: &writers::WritersOptions,
    scratch: &Scratch,
    work: impl FnOnce(&Peer) -> Result<T>,
) -> Result<T> {
    let dir = scratch.path().join("data");
    // Nobody pays for what the one before left to the kernel.
    rustix::fs::sync();
    fs::create_dir_all(&dir)?;
    let running = start(contender, &dir, scratch)?;
    let peer = match &running {
        Running::Stave(nodes) => Peer::stave(contender.name(), &nodes[0]),
        Running::Redis(redis) => redis.peer(contender.name()),
    };
    writers::populate(&peer, options.keys)?;
    if let Running::Stave(nodes) = &running {
        Client::connect(&nodes[0].kv)?.await_persisted()?;
        if let [first, second] = &**nodes {
            replicate(first, second, VBUCKETS)?;
        }
    }
    let done = work(&peer)?;
    match running {
        Running::Stave(nodes) => nodes.into_iter().rev().try_for_each(Stave::kill)?,
        Running::Redis(redis) => drop(redis),
    }
    fs::remove_dir_all(&dir)?;
    Ok(done)
}

fn start(contender: Contender, dir: &Path, scratch: &Scratch) -> Result<Running> {
    let node = |name: &str, journal: &str| {
        let bucket = format!("{BUCKET}:{MEMORY}");
        let log = scratch.path().join(format!("{name}.log"));
        let more = ["--bucket", &bucket, "--journal", journal];
        Stave::start(&Start { data: &dir.join(name), log, more: &more })
    };
    Ok(match contender {
        Contender::Redis => Running::Redis(Redis::start(&dir.join("redis"))?),
        Contender::Journal => Running::Stave([node("first", "on")?].into()),
        Contender::NoJournal => Running::Stave([node("first", "off")?].into()),
        Contender::TwoNodes => Running::Stave([node("first", "on")?, node("second", "on")?].into()),
    })
}

/// Has the second node follow the first in the first so many vBuckets, and the first wait for it.
pub(super) fn replicate(first: &Stave, second: &Stave, vbuckets: u16) -> Result<()> {
    let mut command = Command::new(tree::release_binary());
    command.args(["replicate", "--quiet", "--from", &first.kv, "--to", &second.http]);
    command.args(["--bucket", BUCKET, "--vbuckets", &format!("0-{}", vbuckets - 1)]);
    command.args(["--username", USER]).env("STAVE_PASSWORD", PASSWORD).stdout(Stdio::null());
    let status = command.status().context("cannot run stave replicate")?;
    ensure!(status.success(), "stave replicate ended with {status}");
    let topology = json!({ "topology": [[first.kv, second.kv]] }).to_string();
    let mut client = Client::connect(&first.kv)?;
    for vb in 0..vbuckets {
        client.push(&RequestParts {
            opcode: opcode::SET_VBUCKET,
            vbucket: base::VbId(vb),
            datatype: SET_JSON,
            extras: &[base::VbState::Active as u8],
            value: topology.as_bytes(),
            ..RequestParts::default()
        });
    }
    client.flush()?;
    for vb in 0..vbuckets {
        let answer = client.answer()?;
        ensure!(answer.is_ok(), "vBucket {vb} has no topology: status 0x{:02x}", answer.status_code);
    }
    Ok(())
}

fn print_head(first: &str) {
    println!("\n{first:<6} {:>7} {:<21} {:<17} {COLUMNS}", "clients", "server", "level");
}

fn print_row(first: &str, row: &Row, run: &Run) {
    let columns = run.columns();
    println!("{first:<6} {:>7} {:<21} {:<17} {columns}", row.clients, row.contender.name(), row.level);
}

fn row_json(row: &Row) -> Value {
    let mut json = Run::median(&row.runs).json();
    json["server"] = row.contender.name().into();
    json["level"] = row.level.into();
    json["clients"] = row.clients.into();
    json
}

/// Medians of the ratios of the rounds, as far as there are both sides.
fn add_figures(report: &mut Report, rows: &[Row], clients: &[u32]) {
    for &clients in clients {
        let runs = |contender, level| {
            let is_it =
                |row: &&Row| row.contender == contender && row.level == level && row.clients == clients;
            rows.iter().find(is_it).map(|row| &row.runs[..])
        };
        let ahead = Some(Goal::AtLeast(1.0));
        if let (Some(ours), Some(redis)) =
            (runs(Contender::Journal, PERSIST), runs(Contender::Redis, PERSIST))
        {
            report.figure(&format!("one_node_to_redis_{clients}"), throughput_ratio(ours, redis), ahead);
        }
        let two = |level| runs(Contender::TwoNodes, level);
        // The goals for two nodes are for many clients: one alone waits for the way to the replica and back.
        let is_many = clients == MANY_CLIENTS;
        if let (Some(majority), Some(none)) = (two(MAJORITY), two(NONE)) {
            let goal = is_many.then_some(Goal::AtLeast(LEAST_MAJORITY));
            report.figure(&format!("majority_to_none_{clients}"), throughput_ratio(majority, none), goal);
        }
        if let Some(persist) = two(PERSIST) {
            let run = Run::median(persist);
            let gain = is_many.then_some(Goal::AtLeast(GAIN));
            report.figure(&format!("two_nodes_to_original_{clients}"), run.operations_per_s / ORIGINAL, gain);
            let most = is_many.then_some(Goal::AtMost(MOST_MEAN_US / 1e3));
            report.figure(&format!("two_nodes_mean_ms_{clients}"), run.mean_us / 1e3, most);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(contender: Contender, level: &'static str, operations_per_s: f64, mean_us: f64) -> Row {
        let us = 1.0;
        let run = Run {
            operations_per_s,
            mean_us,
            p50_us: us,
            p99_us: us,
            p999_us: us,
            server_cpu_us: us,
            client_cpu_us: us,
        };
        Row { contender, level, clients: MANY_CLIENTS, runs: vec![run] }
    }

    fn holds(persist_per_s: f64, mean_us: f64, majority_per_s: f64) -> bool {
        let rows = [
            row(Contender::TwoNodes, NONE, 100.0, 1.0),
            row(Contender::TwoNodes, MAJORITY, majority_per_s, 1.0),
            row(Contender::TwoNodes, PERSIST, persist_per_s, mean_us),
        ];
        let mut report = Report::new("syncwrites", false);
        add_figures(&mut report, &rows, &[MANY_CLIENTS]);
        report.close()
    }

    #[test]
    fn each_goal_counts() {
        assert!(holds(118_000.0, 16_000.0, 50.0));
        assert!(!holds(117_000.0, 16_000.0, 50.0));
        assert!(!holds(118_000.0, 17_000.0, 50.0));
        assert!(!holds(118_000.0, 16_000.0, 49.0));
    }
}
