//! `bench durable`: clients that wait until each of their writes is on disk. Stave with its journal and without, and
//! Redis, take turns under the same load generator, each time with an empty folder.

use std::fs;
use std::process::Command;

use anyhow::Result;
use harness::child::{self, release_build};
use harness::client::Client;
use harness::stave::{BUCKET, Start, Stave};
use harness::tree::{self, Scratch};
use serde_json::{Value, json};

use super::load::Peer;
use super::redis::{self, Redis};
use super::report::{Goal, Report};
use super::writers::{self, COLUMNS, MEMORY, Run, Writers, WritersOptions, throughput_ratio};

/// How much faster the journal must be at this many clients.
const MANY_CLIENTS: u32 = 2000;
const JOURNAL_GAIN: f64 = 30.0;
/// By how much it must be ahead of Redis, by the number of clients; with others it must not be behind.
const AHEAD_OF_REDIS: [(u32, f64); 5] = [(1, 1.5), (2, 1.2), (16, 1.5), (256, 2.0), (2_000, 1.6)];

/// Who takes part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Contender {
    JournalOn,
    JournalOff,
    /// Of a time when there was no journal.
    NoJournal,
    Redis,
}

impl Contender {
    fn name(self) -> &'static str {
        match self {
            Contender::JournalOn => "stave, journal on",
            Contender::JournalOff | Contender::NoJournal => "stave, journal off",
            Contender::Redis => "redis",
        }
    }

    /// Those there are, in the order of the table.
    fn all(has_journal: bool) -> Vec<Contender> {
        if has_journal {
            vec![Contender::JournalOn, Contender::JournalOff, Contender::Redis]
        } else {
            vec![Contender::NoJournal, Contender::Redis]
        }
    }
}

/// A contender that runs.
enum Running {
    Stave(Stave),
    Redis(Redis),
}

/// The runs of a contender with a number of clients, one for each round.
struct Row {
    contender: Contender,
    clients: u32,
    runs: Vec<Run>,
}

/// Measures.
pub fn run(options: &WritersOptions) -> Result<Report> {
    options.check()?;
    let redis_version = redis::version()?;
    release_build()?;
    let contenders = Contender::all(has_journal()?);
    if !contenders.contains(&Contender::JournalOn) {
        println!("`stave serve` has no --journal: the row with the journal is missing");
    }
    println!("Redis {redis_version}, appendfsync always; Stave: persist to majority, 1,024 vBuckets");
    let mut report = Report::new("durable", options.output.json);
    let rows = measure_all(options, &contenders)?;
    print_table(&rows);
    report.detail("redis", json!(redis_version));
    report.detail("rows", rows.iter().map(row_json).collect());
    add_cells(&mut report, &rows);
    add_ratios(&mut report, &rows, &options.clients);
    Ok(report)
}

/// For the page of `bench report`.
fn add_cells(report: &mut Report, rows: &[Row]) {
    type Figure = fn(&Run) -> f64;
    let tables: [(&str, Figure); 3] = [
        ("durable writes a second", |run| run.operations_per_s),
        ("processor time of the server, µs a durable write", |run| run.server_cpu_us),
        ("99th percentile of a durable write, µs", |run| run.p99_us),
    ];
    for (table, figure) in tables {
        for row in rows {
            let values: Vec<f64> = row.runs.iter().map(figure).collect();
            report.cell(table, &format!("{} clients", row.clients), row.contender.name(), &values);
        }
    }
}

fn has_journal() -> Result<bool> {
    Ok(child::output(Command::new(tree::release_binary()).args(["serve", "--help"]))?.contains("--journal"))
}

fn measure_all(options: &WritersOptions, contenders: &[Contender]) -> Result<Vec<Row>> {
    let scratch = Scratch::new("durable")?;
    let mut rows: Vec<Row> = options
        .clients
        .iter()
        .flat_map(|clients| {
            contenders.iter().map(|contender| Row {
                contender: *contender,
                clients: *clients,
                runs: Vec::new(),
            })
        })
        .collect();
    print_head("round");
    for round in 0..options.rounds {
        for rows in rows.chunks_mut(contenders.len()) {
            let first = round as usize % rows.len();
            rows.rotate_left(first);
            for row in rows.iter_mut() {
                let run = measure(row.contender, row.clients, options, &scratch)?;
                print_run(&format!("{}", round + 1), row.clients, row.contender, &run);
                row.runs.push(run);
            }
            rows.rotate_right(first);
        }
    }
    Ok(rows)
}

/// A fresh server with all keys in it, under load; its folder goes with it.
fn measure(contender: Contender, clients: u32, options: &WritersOptions, scratch: &Scratch) -> Result<Run> {
    let dir = scratch.path().join("data");
    // Nobody pays for what the one before left to the kernel.
    rustix::fs::sync();
    let server = start(contender, &dir, scratch)?;
    let peer = server.peer(contender);
    writers::populate(&peer, options.keys)?;
    let mut writers = Writers { clients, seconds: options.seconds, keys: options.keys, level: None };
    if let Running::Stave(server) = &server {
        Client::connect(&server.kv)?.await_persisted()?;
        writers.level = Some("persist-majority");
    }
    let run = writers.run(&peer)?;
    server.end()?;
    fs::remove_dir_all(&dir)?;
    Ok(run)
}

fn start(contender: Contender, dir: &std::path::Path, scratch: &Scratch) -> Result<Running> {
    let bucket = format!("{BUCKET}:{MEMORY}");
    let mut more = vec!["--bucket", &bucket];
    match contender {
        Contender::Redis => return Ok(Running::Redis(Redis::start(dir)?)),
        Contender::JournalOn => more.extend(["--journal", "on"]),
        Contender::JournalOff => more.extend(["--journal", "off"]),
        Contender::NoJournal => {}
    }
    let log = scratch.path().join("server.log");
    Ok(Running::Stave(Stave::start(&Start { data: dir, log, more: &more })?))
}

impl Running {
    fn peer(&self, contender: Contender) -> Peer {
        match self {
            Running::Stave(server) => Peer::stave(contender.name(), server),
            Running::Redis(redis) => redis.peer(contender.name()),
        }
    }

    /// At once: what it holds is thrown away.
    fn end(self) -> Result<()> {
        match self {
            Running::Stave(server) => server.kill(),
            Running::Redis(redis) => {
                drop(redis);
                Ok(())
            }
        }
    }
}

fn print_head(first: &str) {
    println!("\n{first:<6} {:>7} {:<18} {COLUMNS}", "clients", "server");
}

fn print_run(first: &str, clients: u32, contender: Contender, run: &Run) {
    println!("{first:<6} {clients:>7} {:<18} {}", contender.name(), run.columns());
}

fn print_table(rows: &[Row]) {
    print_head("median");
    for row in rows {
        print_run("", row.clients, row.contender, &Run::median(&row.runs));
    }
}

fn row_json(row: &Row) -> Value {
    let mut json = Run::median(&row.runs).json();
    json["server"] = row.contender.name().into();
    json["clients"] = row.clients.into();
    json
}

/// Medians of the ratios of the rounds, as far as there are both sides.
fn add_ratios(report: &mut Report, rows: &[Row], clients: &[u32]) {
    for &clients in clients {
        let runs = |contender| {
            let row = rows.iter().find(|row| row.contender == contender && row.clients == clients);
            row.map(|row| &row.runs[..])
        };
        let on = runs(Contender::JournalOn);
        let off = runs(Contender::JournalOff).or(runs(Contender::NoJournal));
        let redis = runs(Contender::Redis);
        let goal =
            AHEAD_OF_REDIS.iter().find(|(number, _)| *number == clients).map_or(1.0, |(_, goal)| *goal);
        let ahead = Some(Goal::AtLeast(goal));
        let gain = (clients == MANY_CLIENTS).then_some(Goal::AtLeast(JOURNAL_GAIN));
        for (name, ours, theirs, goal) in [
            ("on_to_redis", on, redis, ahead),
            ("off_to_redis", off, redis, None),
            ("on_to_off", on, off, gain),
        ] {
            if let (Some(ours), Some(theirs)) = (ours, theirs) {
                report.figure(&format!("{name}_{clients}"), throughput_ratio(ours, theirs), goal);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_journal_its_rows_are_missing() {
        assert_eq!(Contender::all(false), [Contender::NoJournal, Contender::Redis]);
        let rows = [Contender::NoJournal, Contender::Redis].map(|contender| Row {
            contender,
            clients: 2000,
            runs: Vec::new(),
        });
        let mut report = Report::new("durable", false);
        add_ratios(&mut report, &rows[..1], &[2000]);
        assert!(report.close(), "nothing is asked of what is not there");
    }
}
