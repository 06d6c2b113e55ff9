//! `bench cycles`: processor time an operation, and tails at equal throughput, beside memcached and Redis. Each server has
//! one thread for its clients and one CPU for all its threads, the client another CPU; the servers alternate.

use std::collections::BTreeMap;
use std::process::Command;

use anyhow::{Result, ensure};
use clap::Args;
use harness::child::{is_installed, output, release_build};
use harness::client::Client;
use harness::stave::{BUCKET, Start, Stave};
use harness::tree::Scratch;
use serde_json::{Value, json};

use super::Output;
use super::load::{Peer, ensure_clean, number};
use super::memcached::start_memcached;
use super::redis::{self, Redis};
use super::report::{Report, median};

/// How long and how much.
#[derive(Args)]
pub struct CyclesOptions {
    /// Seconds of each single run, behind one of warming up.
    #[arg(long, default_value_t = 5)]
    seconds: u32,
    /// Rounds; each runs all servers with all work, in an order that turns.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Keys, of 20 bytes each, with values of 512.
    #[arg(long, default_value_t = 1_000_000)]
    keys: u32,
    #[command(flatten)]
    output: Output,
}

/// Where the servers run.
pub const SERVERS_CPU: &str = "0";
/// Where the client runs.
pub const CLIENTS_CPU: &str = "1";
/// Share of what the slower one answers as fast as it can that is asked for when tails are compared.
const RATE: f64 = 0.7;

/// What is asked for.
struct Work {
    name: &'static str,
    depth: u32,
    arguments: &'static [&'static str],
    /// Whose processor time Stave's is compared with, and what share of it is enough.
    goals: &'static [(&'static str, f64)],
}

const READS: &[&str] = &["--set-percent", "0", "--distribution", "zipf"];
const MIXED: &[&str] = &["--set-percent", "20", "--distribution", "zipf"];
const WRITES: &[&str] = &["--set-percent", "100", "--distribution", "zipf"];
const ONE: &[(&str, f64)] = &[("memcached", 0.90), ("redis", 0.90)];
const SIXTEEN: &[(&str, f64)] = &[("memcached", 0.75), ("redis", 0.75)];
const WRITING: &[(&str, f64)] = &[("memcached", 1.0), ("redis-aof", 0.75)];
const WORKS: [Work; 6] = [
    Work { name: "mixed_1", depth: 1, arguments: MIXED, goals: ONE },
    Work { name: "mixed_16", depth: 16, arguments: MIXED, goals: SIXTEEN },
    Work { name: "reads_1", depth: 1, arguments: READS, goals: ONE },
    Work { name: "reads_16", depth: 16, arguments: READS, goals: SIXTEEN },
    Work { name: "writes_1", depth: 1, arguments: WRITES, goals: WRITING },
    Work { name: "writes_16", depth: 16, arguments: WRITES, goals: WRITING },
];

/// The keys are written for the first time once, before all rounds.
const INSERT: Work =
    Work { name: "insert_64", depth: 64, arguments: &[], goals: &[("memcached", 0.6), ("redis-aof", 0.6)] };

const CPU_TABLE: &str = "processor time of the server, µs an operation";
const TAIL_TABLE: &str = "latency of reads at 70 % of the slower one's most, depth 16, 80 % reads, µs";

/// Figures of all rounds by work and server.
type Figures = BTreeMap<(&'static str, &'static str), Vec<f64>>;

/// Measures.
pub fn run(options: &CyclesOptions) -> Result<Report> {
    ensure!(is_installed("memcached"), "memcached is not installed (`apt-get install memcached`)");
    ensure!(options.rounds > 0, "at least one round");
    println!("beside Redis {}", redis::version()?);
    release_build()?;
    let scratch = Scratch::new("cycles")?;
    // The client and what else this starts run beside the servers.
    pin(std::process::id(), CLIENTS_CPU)?;
    let bucket = format!("{BUCKET}:4GiB");
    let server = Stave::start(&Start {
        data: &scratch.path().join("data"),
        log: scratch.path().join("server.log"),
        more: &["--threads", "1", "--bucket", &bucket],
    })?;
    let (memcached, address) = start_memcached("1")?;
    let in_memory = Redis::start_in_memory(&scratch.path().join("redis"))?;
    let with_file = Redis::start_every_second(&scratch.path().join("redis-aof"))?;
    let peers = [
        Peer::stave("stave", &server),
        Peer { name: "memcached", protocol: "memcached", address, pid: memcached.pid(), ca: None },
        in_memory.peer("redis"),
        with_file.peer("redis-aof"),
    ];
    let mut cpu_us = Figures::new();
    for peer in &peers {
        pin(peer.pid, SERVERS_CPU)?;
        println!("writing {} keys to {}", options.keys, peer.name);
        let result = client(peer, options, &["--populate", "--pipeline", "64", "--operations", "1"])?;
        let insert = number(&result, "/populate/server_cpu_us_per_operation")?;
        cpu_us.insert((INSERT.name, peer.name), vec![insert]);
    }
    Client::connect(&server.kv)?.await_persisted()?;
    let report = compare(&peers, options, cpu_us)?;
    server.stop()?;
    Ok(report)
}

/// Keeps all threads of a process on one CPU, and those that they start.
pub fn pin(pid: u32, cpu: &str) -> Result<()> {
    output(Command::new("taskset").args(["--all-tasks", "--cpu-list", "--pid", cpu, &pid.to_string()]))?;
    Ok(())
}

fn client(peer: &Peer, options: &CyclesOptions, more: &[&str]) -> Result<Value> {
    let keys = options.keys.to_string();
    let mut arguments = vec!["--connections", "50", "--threads", "1", "--keys", &keys];
    arguments.extend(more);
    let result = peer.load(&arguments)?;
    ensure_clean(peer.name, &result)?;
    Ok(result)
}

fn compare(peers: &[Peer], options: &CyclesOptions, mut cpu_us: Figures) -> Result<Report> {
    let (mut per_s, mut tails) = (Figures::new(), Figures::new());
    println!("{:<6} {:<10} {:<10} {:>12} {:>10}", "round", "work", "server", "operations/s", "CPU us/op");
    let seconds = options.seconds.to_string();
    for round in 0..options.rounds {
        for work in &WORKS {
            for at in 0..peers.len() {
                let peer = &peers[(at + round) % peers.len()];
                let depth = work.depth.to_string();
                let rest = ["--pipeline", &depth, "--warmup", "1", "--seconds", &seconds];
                let result = client(peer, options, &[work.arguments, &rest].concat())?;
                let cpu = number(&result, "/server_cpu_us_per_operation")?;
                let speed = number(&result, "/operations_per_second")?;
                println!("{:<6} {:<10} {:<10} {speed:>12.0} {cpu:>10.2}", round + 1, work.name, peer.name);
                cpu_us.entry((work.name, peer.name)).or_default().push(cpu);
                per_s.entry((work.name, peer.name)).or_default().push(speed);
            }
        }
        measure_tails(peers, options, round, &mut per_s, &mut tails)?;
    }
    Ok(conclude(options, cpu_us, tails))
}

/// Latencies while as much is asked of Stave and of memcached, which is less than either can do.
fn measure_tails(
    peers: &[Peer],
    options: &CyclesOptions,
    round: usize,
    per_s: &mut Figures,
    tails: &mut Figures,
) -> Result<()> {
    let mut most = |name| median(per_s.get_mut(&("mixed_16", name)).expect("it was measured"));
    let rate = format!("{:.0}", RATE * f64::min(most("stave"), most("memcached")));
    let seconds = options.seconds.to_string();
    for at in 0..2 {
        let peer = &peers[(at + round) % 2];
        let rest = ["--pipeline", "16", "--rate", &rate, "--warmup", "1", "--seconds", &seconds];
        let result = client(peer, options, &[MIXED, &rest].concat())?;
        for (name, pointer) in [("p99_us", "/get/p99_us"), ("p999_us", "/get/p999_us")] {
            tails.entry((name, peer.name)).or_default().push(number(&result, pointer)?);
        }
    }
    Ok(())
}

fn conclude(options: &CyclesOptions, mut cpu_us: Figures, mut tails: Figures) -> Report {
    let mut report = Report::new("cycles", options.output.json);
    for (table, figures) in [(CPU_TABLE, &cpu_us), (TAIL_TABLE, &tails)] {
        for ((work, server), values) in figures {
            report.cell(table, work, server, values);
        }
    }
    let middles = |of: &mut Figures| -> BTreeMap<(&str, &str), f64> {
        of.iter_mut().map(|(key, values)| (*key, median(values))).collect()
    };
    let (cpu_us, tails) = (middles(&mut cpu_us), middles(&mut tails));
    println!("\nmedians of {} rounds, CPU us an operation:", options.rounds);
    for work in WORKS.iter().chain([&INSERT]) {
        for (other, most) in work.goals {
            let (own, others) = (cpu_us[&(work.name, "stave")], cpu_us[&(work.name, *other)]);
            println!("{:<10} stave {own:.2}, {other} {others:.2}", work.name);
            report.add(&format!("{}_to_{other}", work.name), own / others, Some(*most));
        }
    }
    for name in ["p99_us", "p999_us"] {
        let (own, others) = (tails[&(name, "stave")], tails[&(name, "memcached")]);
        println!("{name:<10} stave {own:.0}, memcached {others:.0}");
        report.add(&format!("{name}_to_memcached"), own / others, Some(1.0));
    }
    let rows: Vec<Value> = cpu_us
        .iter()
        .chain(&tails)
        .map(|((what, server), value)| json!({"what": what, "server": server, "value": value}))
        .collect();
    report.detail("medians", rows.into());
    report
}
