//! `bench pressure`: twice the quota of incoming data, for minutes, in a cgroup that allows the quota, 5 % and what an
//! empty node takes; hot documents are read all the while.

mod documents;
mod latencies;
mod load;
mod observer;

use std::fs;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use clap::{Args, ValueEnum};
use harness::child::release_build;
use harness::stave::{BUCKET, Start, Stave};
use harness::tree::Scratch;
use serde_json::{Value, json};

use super::Output;
use super::cgroup::Cgroup;
use super::report::{Goal, Report};

use documents::{Documents, MEAN_BYTES, Set, Zipf};
use latencies::Latencies;
use load::{Load, Stream, Tally};
use observer::{Observer, Row};

/// How long and how much.
#[derive(Args)]
pub struct PressureOptions {
    /// The bucket's quota, in MiB.
    #[arg(long, default_value_t = 256)]
    quota_mib: u64,
    /// How long writers write more than there is room for.
    #[arg(long, default_value_t = 10)]
    minutes: u64,
    /// The same in seconds, for a short run.
    #[arg(long, conflicts_with = "minutes")]
    seconds: Option<u64>,
    /// Seconds of the runs before it, without pressure: readers alone, then readers and writers whose documents fit.
    #[arg(long, default_value_t = 10)]
    calm_seconds: u64,
    /// Bytes of the documents that are written, as a multiple of the quota; writers go round and round.
    #[arg(long, default_value_t = 2.0)]
    times: f64,
    /// What the writers write together, in MiB a second; 0 for as much as the server takes.
    #[arg(long, default_value_t = 16)]
    rate_mib: u64,
    /// Writers.
    #[arg(long, default_value_t = 4)]
    writers: u64,
    /// Readers of hot documents.
    #[arg(long, default_value_t = 2)]
    readers: u64,
    /// Hot documents, read by Zipf's law with 0.99.
    #[arg(long, default_value_t = 1000)]
    hot: u32,
    /// What leaves memory.
    #[arg(long, value_enum, default_value = "value_only")]
    policy: Policy,
    /// Whether a journal goes before the files.
    #[arg(long, value_enum, default_value = "on")]
    journal: Switch,
    /// What the cgroup allows beyond the quota and an empty node, in percent of the quota.
    #[arg(long, default_value_t = 5)]
    allowance_percent: u64,
    /// Seconds between two rows of the table.
    #[arg(long, default_value_t = 10)]
    every: u64,
    /// More arguments for `stave serve`.
    #[arg(long, value_name = "ARGUMENT", allow_hyphen_values = true)]
    serve: Vec<String>,
    #[command(flatten)]
    output: Output,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
#[value(rename_all = "snake_case")]
enum Policy {
    ValueOnly,
    FullEviction,
}

impl Policy {
    fn name(self) -> &'static str {
        match self {
            Policy::ValueOnly => "value_only",
            Policy::FullEviction => "full_eviction",
        }
    }
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Switch {
    On,
    Off,
}

/// How much slower hot reads may be under pressure.
const SLOWER_GOAL: f64 = 3.0;
/// How long an empty node settles before its memory counts.
const SETTLE: Duration = Duration::from_secs(2);
/// How often memory is looked at.
const LOOK: Duration = Duration::from_millis(50);
const MIB: u64 = 1 << 20;
/// Of the quota, what writers write while memory is not short.
const CALM_SHARE: u64 = 10;

/// One phase of the run.
struct Phase<'a> {
    name: &'static str,
    stream: Option<&'a Stream>,
    duration: Duration,
}

/// What a phase found.
struct Outcome {
    hot: Latencies,
    cold: Latencies,
    tally: Tally,
    rows: Vec<Row>,
    /// The first thread that could not go on, and why.
    broken: Option<anyhow::Error>,
}

/// Measures.
pub fn run(options: &PressureOptions) -> Result<Report> {
    ensure!(options.writers > 0 && options.readers > 0 && options.hot > 0, "one of each at least");
    ensure!(options.quota_mib >= 16 && options.every > 0, "a quota of 16 MiB at least, rows a second apart");
    release_build()?;
    let scratch = Scratch::new("pressure")?;
    let fixed = fixed_cost(options, &scratch)?;
    let quota = options.quota_mib * MIB;
    let limit = quota / 100 * (100 + options.allowance_percent) + fixed;
    let cgroup = make_cgroup();
    if let Some(cgroup) = &cgroup {
        cgroup.limit(limit)?;
        println!("{}: limit {:.1} MiB", cgroup.version(), mib(limit));
    }
    let server = start(options, &scratch, "limited", cgroup.as_ref())?;
    let mut observer = Observer::new(server, cgroup, Duration::from_secs(options.every))?;
    let documents = Documents::new();
    let outcomes = run_phases(options, &documents, &mut observer)?;
    let mut report = Report::new("pressure", options.output.json);
    report.detail("policy", json!(options.policy.name()));
    report.detail("journal", json!(format!("{:?}", options.journal)));
    sum_up(options, &mut report, &outcomes);
    observer.sum_up(&mut report, limit, fixed);
    observer.end()?;
    Ok(report)
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / MIB as f64
}

fn make_cgroup() -> Option<Cgroup> {
    match Cgroup::make("stave-pressure") {
        Ok(cgroup) => Some(cgroup),
        Err(error) => {
            println!("NO LIMIT: {error:#}; memory is looked at in /proc only, and nothing can be killed");
            None
        }
    }
}

fn start(options: &PressureOptions, scratch: &Scratch, name: &str, cgroup: Option<&Cgroup>) -> Result<Stave> {
    let (quota, policy) = (options.quota_mib, options.policy.name());
    let config = scratch.path().join("stave.toml");
    let bucket =
        format!("[[bucket]]\nname = \"{BUCKET}\"\nquota = \"{quota}MiB\"\neviction-policy = \"{policy}\"\n");
    fs::write(&config, bucket)?;
    let config = config.to_string_lossy();
    let journal = match options.journal {
        Switch::On => "on",
        Switch::Off => "off",
    };
    let mut more = vec!["--config", &config, "--journal", journal];
    more.extend(options.serve.iter().map(String::as_str));
    let (data, log) = (scratch.path().join(name), scratch.path().join(format!("{name}.log")));
    let procs = cgroup.map(Cgroup::procs);
    Stave::start_in(&Start { data: &data, log, more: &more }, procs.as_deref())
}

/// What an empty node takes that the kernel cannot take back.
fn fixed_cost(options: &PressureOptions, scratch: &Scratch) -> Result<u64> {
    let cgroup = make_cgroup();
    let server = start(options, scratch, "empty", cgroup.as_ref())?;
    let mut fixed = 0;
    let begun = Instant::now();
    while begun.elapsed() < SETTLE {
        thread::sleep(LOOK);
        let now = match &cgroup {
            Some(cgroup) => cgroup.charged()?.fixed(),
            None => super::process::anonymous_bytes(server.pid())?,
        };
        fixed = now.max(fixed);
    }
    let anon = super::process::anonymous_bytes(server.pid())?;
    println!("an empty node takes {:.1} MiB, {:.1} of them anonymous", mib(fixed), mib(anon));
    server.stop()?;
    Ok(fixed)
}

fn stream(options: &PressureOptions, set: Set, bytes: u64) -> Stream {
    Stream {
        set,
        documents: (bytes / MEAN_BYTES).max(options.writers),
        bytes_per_s: options.rate_mib * MIB,
        stored: (0..options.writers).map(|_| AtomicU64::new(0)).collect(),
    }
}

fn run_phases(
    options: &PressureOptions,
    documents: &Documents,
    observer: &mut Observer,
) -> Result<Vec<Outcome>> {
    let hot = Zipf::new(options.hot);
    let (tally, is_over) = (Tally::default(), AtomicBool::new(false));
    let address = observer.address();
    let load = Load { address: &address, documents, hot: &hot, tally: &tally, is_over: &is_over };
    load.fill(Set::Hot, options.hot.into())?;
    let quota = options.quota_mib * MIB;
    let small = stream(options, Set::Calm, quota / CALM_SHARE);
    let large = stream(options, Set::Stream, (quota as f64 * options.times) as u64);
    let calm = Duration::from_secs(options.calm_seconds);
    let long = Duration::from_secs(options.seconds.unwrap_or(options.minutes * 60));
    let mut outcomes = Vec::new();
    observer.print_head();
    for phase in [
        Phase { name: "quiet", stream: None, duration: calm },
        Phase { name: "calm", stream: Some(&small), duration: calm },
        Phase { name: "pressure", stream: Some(&large), duration: long },
    ] {
        let outcome = run_phase(options, &phase, &load, observer)?;
        let is_broken = outcome.broken.is_some();
        outcomes.push(outcome);
        if is_broken {
            break;
        }
    }
    Ok(outcomes)
}

fn run_phase(
    options: &PressureOptions,
    phase: &Phase<'_>,
    all: &Load<'_>,
    observer: &mut Observer,
) -> Result<Outcome> {
    let (tally, is_over) = (Tally::default(), AtomicBool::new(false));
    let load = Load { tally: &tally, is_over: &is_over, ..*all };
    let (mut hot, mut cold, mut rows) = (Latencies::default(), Latencies::default(), Vec::new());
    let broken = thread::scope(|scope| {
        let load = &load;
        let mut threads = Vec::new();
        for reader in 0..options.readers {
            threads.push(scope.spawn(move || load.read_hot(reader)));
        }
        if let Some(stream) = phase.stream {
            threads.push(scope.spawn(move || load.read_cold(stream, options.readers)));
            for writer in 0..options.writers {
                threads.push(scope.spawn(move || load.write(stream, writer)));
            }
        }
        let watched = observer.watch(phase.name, phase.duration, load.tally, |row, latencies| {
            hot.merge(&latencies);
            cold.merge(&load.tally.take_cold());
            rows.push(row);
        });
        is_over.store(true, Ordering::Relaxed);
        let ended = threads.into_iter().map(|thread| thread.join().expect("a thread of the load panicked"));
        let broken = ended.filter_map(Result::err).last();
        watched.err().or(broken)
    });
    if let Some(error) = &broken {
        println!("the run is broken off: {error:#}");
    }
    hot.merge(&tally.take_hot());
    cold.merge(&tally.take_cold());
    Ok(Outcome { hot, cold, tally, rows, broken })
}

fn sum_up(options: &PressureOptions, report: &mut Report, outcomes: &[Outcome]) {
    let names = ["quiet", "calm", "pressure"];
    for (name, outcome) in names.iter().zip(outcomes) {
        report.add(&format!("{name}_hot_p50_us"), outcome.hot.percentile_us(50.0), None);
        report.add(&format!("{name}_hot_p99_us"), outcome.hot.percentile_us(99.0), None);
        report.add(&format!("{name}_hot_p999_us"), outcome.hot.percentile_us(99.9), None);
        report.add(&format!("{name}_hot_longest_us"), outcome.hot.longest_us(), None);
        report.detail(name, outcome.rows.iter().map(Row::to_json).collect::<Value>());
    }
    let odd = |of: fn(&Tally) -> std::collections::BTreeMap<String, u64>, what: &str| {
        let mut total = 0;
        for (status, count) in outcomes.iter().flat_map(|outcome| of(&outcome.tally)) {
            println!("{count} {what} got `{status}`");
            total += count;
        }
        total as f64
    };
    report.add("refused_or_wrong_reads", odd(Tally::odd_reads, "reads"), Some(0.0));
    report.add("writes_neither_stored_nor_tmpfail", odd(Tally::odd_writes, "writes"), Some(0.0));
    let [quiet, calm, pressure] = outcomes else {
        report.add("phases_missing", (names.len() - outcomes.len()) as f64, Some(0.0));
        return;
    };
    let load = |count: &AtomicU64| count.load(Ordering::Relaxed) as f64;
    let quota = (options.quota_mib * MIB) as f64;
    let (written, refused) = (load(&pressure.tally.written), load(&pressure.tally.refused));
    report.add("cold_reads", pressure.cold.count() as f64, None);
    report.add("cold_p99_us", pressure.cold.percentile_us(99.0), None);
    report.add("refused_share_of_writes", refused / (written + refused).max(1.0), None);
    let stored = load(&pressure.tally.written_bytes) / quota;
    report.figure("stored_under_pressure_to_quota", stored, Some(Goal::AtLeast(options.times)));
    let p99 = |outcome: &Outcome| outcome.hot.percentile_us(99.0);
    report.add("p99_pressure_to_quiet", p99(pressure) / p99(quiet).max(1e-3), None);
    report.add("p99_pressure_to_calm", p99(pressure) / p99(calm).max(1e-3), Some(SLOWER_GOAL));
}
