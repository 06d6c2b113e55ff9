//! `bench memcached`: both servers alternate under the same client, so that the machine's mood falls on both.

use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::Args;
use harness::child::{is_installed, release_build};
use harness::client::Client;
use harness::stave::{BUCKET, Start, Stave};
use harness::tree::Scratch;
use serde_json::Value;

use super::Output;
use super::load::{Peer, ensure_clean, number};
use super::report::{Report, median};

/// How long and how much.
#[derive(Args)]
pub struct MemcachedOptions {
    /// Seconds of each single run.
    #[arg(long, default_value_t = 10)]
    seconds: u32,
    /// Rounds; each runs both servers at both depths, in alternating order.
    #[arg(long, default_value_t = 4)]
    rounds: u32,
    /// Threads of each server.
    #[arg(long, default_value_t = 2)]
    threads: u32,
    /// Keys, of 20 bytes each.
    #[arg(long, default_value_t = 1_000_000)]
    keys: u32,
    #[command(flatten)]
    output: Output,
}

/// Pipeline depth, and how much more CPU an operation may cost than memcached's.
const DEPTHS: [(u32, f64); 2] = [(1, 1.15), (16, 1.5)];
/// Memory for the documents, in MiB, on both sides.
const MEMORY_MIB: &str = "4096";

/// One run of the client.
struct Run {
    operations_per_s: f64,
    cpu_us: f64,
    p50_us: f64,
    p99_us: f64,
}

/// Ends memcached when the measurement is over.
pub(super) struct Memcached(Child);

impl Memcached {
    /// Its process.
    pub(super) fn pid(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Memcached {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Measures.
pub fn run(options: &MemcachedOptions) -> Result<Report> {
    ensure!(
        is_installed("memcached"),
        "memcached is not installed: this measurement runs beside it (`apt-get install memcached`)"
    );
    ensure!(options.rounds > 0, "at least one round");
    release_build()?;
    let scratch = Scratch::new("memcached")?;
    let threads = options.threads.to_string();
    let bucket = format!("{BUCKET}:{MEMORY_MIB}MiB");
    let server = Stave::start(&Start {
        data: &scratch.path().join("data"),
        log: scratch.path().join("server.log"),
        more: &["--threads", &threads, "--bucket", &bucket],
    })?;
    let (memcached, address) = start_memcached(&threads)?;
    let peers = [
        Peer::stave("stave", &server),
        Peer { name: "memcached", protocol: "memcached", address, pid: memcached.pid(), ca: None },
    ];
    for peer in &peers {
        println!("populating {} with {} keys", peer.name, options.keys);
        client(peer, options, &["--populate", "--pipeline", "64", "--seconds", "1"])?;
    }
    Client::connect(&server.kv)?.await_persisted()?;
    let report = compare(&peers, options)?;
    server.stop()?;
    Ok(report)
}

/// Starts memcached on a free port; where it listens.
pub(super) fn start_memcached(threads: &str) -> Result<(Memcached, String)> {
    // memcached cannot choose a port and tell: let the kernel choose, and hand it over.
    let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
    let port = address.port().to_string();
    let mut command = Command::new("memcached");
    command.args(["-l", "127.0.0.1", "-p", &port, "-U", "0", "-t", threads, "-m", MEMORY_MIB, "-c", "4096"]);
    if rustix::process::geteuid().is_root() {
        command.args(["-u", "nobody"]);
    }
    let child = command.stdin(Stdio::null()).spawn().context("cannot run memcached")?;
    let memcached = Memcached(child);
    let begun = Instant::now();
    while std::net::TcpStream::connect(address).is_err() {
        ensure!(begun.elapsed() < Duration::from_secs(10), "memcached does not listen");
        thread::sleep(Duration::from_millis(10));
    }
    Ok((memcached, address.to_string()))
}

/// Runs `stave bench` against a server; what it printed as JSON.
fn client(peer: &Peer, options: &MemcachedOptions, more: &[&str]) -> Result<Value> {
    let (threads, keys) = (options.threads.to_string(), options.keys.to_string());
    let mut arguments = vec!["--connections", "50", "--threads", &threads];
    arguments.extend(["--keys", &keys, "--key-size", "20", "--value-size", "512"]);
    arguments.extend(["--set-percent", "20", "--distribution", "zipf"]);
    arguments.extend(more);
    peer.load(&arguments)
}

fn measure(peer: &Peer, options: &MemcachedOptions, depth: u32) -> Result<Run> {
    let (depth, seconds) = (depth.to_string(), options.seconds.to_string());
    let result = client(peer, options, &["--pipeline", &depth, "--warmup", "1", "--seconds", &seconds])?;
    ensure_clean(peer.name, &result)?;
    Ok(Run {
        operations_per_s: number(&result, "/operations_per_second")?,
        cpu_us: number(&result, "/server_cpu_us_per_operation")?,
        p50_us: number(&result, "/get/p50_us")?,
        p99_us: number(&result, "/get/p99_us")?,
    })
}

fn compare(peers: &[Peer; 2], options: &MemcachedOptions) -> Result<Report> {
    let mut report = Report::new("memcached", options.output.json);
    println!(
        "{:<6} {:<6} {:<10} {:>12} {:>10} {:>11} {:>11}",
        "round", "depth", "server", "operations/s", "CPU us/op", "get p50 us", "get p99 us"
    );
    let mut ratios = DEPTHS.map(|_| [const { Vec::new() }; 4]);
    for round in 0..options.rounds {
        for ((depth, _), ratios) in DEPTHS.iter().zip(&mut ratios) {
            let [stave, memcached] = both(peers, options, *depth, round)?;
            ratios[0].push(stave.cpu_us / memcached.cpu_us);
            ratios[1].push(stave.operations_per_s / memcached.operations_per_s);
            ratios[2].push(stave.p50_us / memcached.p50_us);
            ratios[3].push(stave.p99_us / memcached.p99_us);
        }
    }
    let names = [
        ["cpu_depth_1", "throughput_depth_1", "p50_depth_1", "p99_depth_1"],
        ["cpu_depth_16", "throughput_depth_16", "p50_depth_16", "p99_depth_16"],
    ];
    println!("\nstave to memcached, medians of {} rounds:", options.rounds);
    for (((_, most), names), ratios) in DEPTHS.iter().zip(names).zip(&mut ratios) {
        for (at, (name, values)) in names.into_iter().zip(ratios).enumerate() {
            report.add(name, median(values), (at == 0).then_some(*most));
        }
    }
    Ok(report)
}

/// Both servers at one depth, the other one first in every other round.
fn both(peers: &[Peer; 2], options: &MemcachedOptions, depth: u32, round: u32) -> Result<[Run; 2]> {
    let first = (round % 2) as usize;
    let one = print(measure(&peers[first], options, depth)?, &peers[first], depth, round);
    let other = print(measure(&peers[1 - first], options, depth)?, &peers[1 - first], depth, round);
    Ok(if first == 0 { [one, other] } else { [other, one] })
}

fn print(run: Run, peer: &Peer, depth: u32, round: u32) -> Run {
    println!(
        "{:<6} {depth:<6} {:<10} {:>12.0} {:>10.2} {:>11.1} {:>11.1}",
        round + 1,
        peer.name,
        run.operations_per_s,
        run.cpu_us,
        run.p50_us,
        run.p99_us
    );
    run
}
