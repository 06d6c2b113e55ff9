//! `bench encryption`: what encryption at rest costs: durable writes, batches that are filed, and backfills, by turns beside
//! a node without it.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::Args;
use harness::child::release_build;
use harness::client::Client;
use harness::stave::{BUCKET, Start, Stave};
use harness::tree::Scratch;

use super::Output;
use super::dcp::drain;
use super::filling::Filling;
use super::load::{Peer, ensure_clean, number};
use super::process::cpu_seconds;
use super::report::{Goal, Report, median};
use super::writers::{Writers, populate};

/// How much.
#[derive(Args)]
pub struct EncryptionOptions {
    /// Seconds of each single run.
    #[arg(long, default_value_t = 5)]
    seconds: u32,
    /// Rounds; each runs both servers.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Documents, with values of 512 bytes.
    #[arg(long, default_value_t = 400_000)]
    documents: u32,
    #[command(flatten)]
    output: Output,
}

/// The most of the CPU without encryption that a durable write, or a write until it is in its file, may cost.
const WRITE_GOAL: f64 = 1.15;
/// The least of the throughput without encryption that a backfill has to have.
const BACKFILL_GOAL: f64 = 0.8;
/// Any will do: it protects nothing.
const KEY: &str = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";
/// No write is refused; a backfill reads files whatever is in memory.
const MEMORY: &str = "2GiB";
/// How long filing may take once nothing is written any more.
const FILED_WITHIN: Duration = Duration::from_secs(120);
const LOOK: Duration = Duration::from_millis(50);

/// Measures.
pub fn run(options: &EncryptionOptions) -> Result<Report> {
    ensure!(options.rounds > 0 && options.documents > 0, "at least one round and one document");
    release_build()?;
    let scratch = Scratch::new("encryption")?;
    let key = scratch.path().join("key");
    fs::write(&key, KEY)?;
    let key = key.display().to_string();
    let bucket = format!("{BUCKET}:{MEMORY}");
    let start = |name: &str, more: &[&str]| {
        let data = scratch.path().join(name);
        let log = scratch.path().join(format!("{name}.log"));
        let more = [&["--threads", "1", "--bucket", &bucket][..], more].concat();
        Stave::start(&Start { data: &data, log, more: &more })
    };
    let servers = [start("plain", &[])?, start("encrypted", &["--encryption-key-file", &key])?];
    let mut report = Report::new("encryption", options.output.json);
    writes(&servers, options, &mut report)?;
    backfills(&servers, options, &mut report)?;
    servers.into_iter().try_for_each(Stave::stop)?;
    Ok(report)
}

const NAMES: [&str; 2] = ["plain", "encrypted"];

/// The servers with their names, another one first in each round.
fn in_turn(servers: &[Stave; 2], round: usize) -> impl Iterator<Item = (usize, &Stave)> {
    (0..servers.len()).map(move |at| (at + round) % servers.len()).map(|at| (at, &servers[at]))
}

/// Writes that wait for the disk, and writes that do not with all that is done for them behind.
fn writes(servers: &[Stave; 2], options: &EncryptionOptions, report: &mut Report) -> Result<()> {
    for (at, server) in in_turn(servers, 0) {
        populate(&Peer::stave(NAMES[at], server), options.documents / 4)?;
    }
    println!("{:<6} {:<10} {:>14} {:>14}", "round", "server", "durable us/op", "filed us/op");
    let (mut durable, mut filed) = (Vec::new(), Vec::new());
    for round in 0..options.rounds {
        let mut costs = [[0.0; 2]; 2];
        for (at, server) in in_turn(servers, round) {
            let peer = Peer::stave(NAMES[at], server);
            let (seconds, keys) = (options.seconds, options.documents / 4);
            let writers = Writers { clients: 50, seconds, keys, level: Some("persist-majority") };
            costs[at] = [writers.run(&peer)?.server_cpu_us, until_filed(server, &peer, options)?];
            println!("{:<6} {:<10} {:>14.2} {:>14.2}", round + 1, peer.name, costs[at][0], costs[at][1]);
        }
        durable.push(costs[1][0] / costs[0][0]);
        filed.push(costs[1][1] / costs[0][1]);
    }
    report.add("durable_cpu_of_plain", median(&mut durable), Some(WRITE_GOAL));
    report.add("filed_cpu_of_plain", median(&mut filed), Some(WRITE_GOAL));
    Ok(())
}

/// Server CPU of a write until it is in its file, in microseconds.
fn until_filed(server: &Stave, peer: &Peer, options: &EncryptionOptions) -> Result<f64> {
    let (keys, seconds) = ((options.documents / 4).to_string(), options.seconds.to_string());
    let load = ["--connections", "10", "--threads", "1", "--keys", &keys, "--key-size", "20"];
    let more = ["--value-size", "512", "--set-percent", "100", "--pipeline", "16", "--seconds", &seconds];
    let before = cpu_seconds(server.pid())?;
    let result = peer.load(&[&load[..], &more].concat())?;
    ensure_clean(peer.name, &result)?;
    await_filed(server)?;
    let spent = cpu_seconds(server.pid())? - before;
    Ok(spent * 1e6 / number(&result, "/operations")?)
}

/// Waits until the journal holds nothing that is not in its file.
fn await_filed(server: &Stave) -> Result<()> {
    let mut client = Client::connect(&server.kv)?;
    client.await_persisted()?;
    let begun = Instant::now();
    while begun.elapsed() < FILED_WITHIN {
        let figures = client.stats("journal")?.context("the server has a journal")?;
        if figures.iter().any(|(name, value)| name == "journal_unfiled_bytes" && value == "0") {
            return Ok(());
        }
        thread::sleep(LOOK);
    }
    anyhow::bail!("the journal is not empty after {FILED_WITHIN:?}")
}

/// The whole bucket by DCP, from its files.
fn backfills(servers: &[Stave; 2], options: &EncryptionOptions, report: &mut Report) -> Result<()> {
    for (_, server) in in_turn(servers, 0) {
        Filling { documents: options.documents, generation: 0 }.write(&mut Client::connect(&server.kv)?)?;
        await_filed(server)?;
        // The first one warms the cache of the system.
        drain(server, 1)?;
    }
    println!("{:<6} {:<10} {:>12}", "round", "backfill", "items/s");
    let mut ratios = Vec::new();
    for round in 0..options.rounds {
        let mut rates = [0.0; 2];
        for (at, server) in in_turn(servers, round) {
            rates[at] = number(&drain(server, 1)?, "/items_per_second")?;
            println!("{:<6} {:<10} {:>12.0}", round + 1, NAMES[at], rates[at]);
        }
        ratios.push(rates[1] / rates[0]);
    }
    report.figure("backfill_of_plain", median(&mut ratios), Some(Goal::AtLeast(BACKFILL_GOAL)));
    Ok(())
}
