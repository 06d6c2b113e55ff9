//! `bench dcp`: streams of changes: look-up, from memory beside the front end, from disk, and what idle ones cost.

use std::fs;
use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use clap::Args;
use serde_json::{Value, json};

use super::Output;
use super::filling::Filling;
use super::idle::{SPARE, raise_descriptor_limit};
use super::load::{Peer, ensure_clean, last_json, number};
use super::process::resident_bytes;
use super::report::{Goal, Report, median};
use crate::child::{cargo, output, release_build};
use crate::client::Client;
use crate::stave::{BUCKET, PASSWORD, Start, Stave, USER};
use crate::tree::{self, Scratch};

mod idle_streams;

/// How much.
#[derive(Args)]
pub struct Options {
    /// Documents on disk, with values of 512 bytes.
    #[arg(long, default_value_t = 1_000_000)]
    documents: u32,
    /// Rounds of backfill and of raw reading, in turn.
    #[arg(long, default_value_t = 5)]
    rounds: u32,
    /// Connections that share the vBuckets of a backfill.
    #[arg(long, default_value_t = 1)]
    connections: u32,
    /// Seconds of each load.
    #[arg(long, default_value_t = 5)]
    seconds: u32,
    /// Connections with idle streams.
    #[arg(long, default_value_t = 100)]
    idle: u32,
    /// Leave parts out: lookup, memory, backfill, idle.
    #[arg(long, value_delimiter = ',')]
    without: Vec<String>,
    #[command(flatten)]
    output: Output,
}

const LOOKUP_GOAL_NS: f64 = 1.0;
const BACKFILL_GOAL: f64 = 0.5;
const CONNECTION_GOAL_BYTES: f64 = 65_536.0;
const STREAM_GOAL_BYTES: f64 = 200.0;
const STREAMS: u32 = 1024;
/// Bytes of one raw read.
const READ_BYTES: usize = 1 << 20;
const LOADED_WITHIN: Duration = Duration::from_secs(120);
const LOOK: Duration = Duration::from_millis(50);
/// How far a follower may be behind when the load ends and still keeps up.
const LAG_GOAL_S: f64 = 1.0;

/// Measures.
pub fn run(options: &Options) -> Result<Report> {
    ensure!(options.rounds > 0 && options.documents > 0, "at least one round and one document");
    release_build()?;
    let mut report = Report::new("dcp", options.output.json);
    let wants = |part: &str| !options.without.iter().any(|left_out| left_out == part);
    if wants("lookup") {
        lookup(&mut report)?;
    }
    if wants("memory") {
        memory(options, &mut report)?;
    }
    if wants("backfill") {
        backfill(options, &mut report)?;
    }
    if wants("idle") && options.idle > 0 {
        idle_connections(options, &mut report)?;
    }
    Ok(report)
}

fn lookup(report: &mut Report) -> Result<()> {
    let mut command = cargo(&["run", "--quiet", "--release", "-p", "dcp", "--example", "lookup"]);
    let found = last_json(&output(&mut command)?).context("the example printed no JSON")?;
    for streams in [1, STREAMS] {
        let name = format!("lookup_{streams}_ns");
        let ns = number(&found, &format!("/{name}"))?;
        report.figure(&name, ns, Some(Goal::AtMost(LOOKUP_GOAL_NS)));
    }
    Ok(())
}

fn start(scratch: &Scratch, name: &str) -> Result<Stave> {
    let (data, log) = (scratch.path().join("data"), scratch.path().join(format!("{name}.log")));
    Stave::start(&Start { data: &data, log, more: &["--bucket", &format!("{BUCKET}:4GiB")] })
}

/// A command of the binary against a server.
fn stave(server: &Stave, arguments: &[&str]) -> Command {
    let mut command = Command::new(tree::release_binary());
    command.args(arguments).args(["--addr", &server.kv, "--username", USER, "--password", PASSWORD]);
    command.stderr(Stdio::inherit());
    command
}

fn drain(server: &Stave, connections: u32) -> Result<Value> {
    let connections = connections.to_string();
    let text =
        output(&mut stave(server, &["drain", BUCKET, "--json", "--quiet", "--connections", &connections]))?;
    last_json(&text).context("stave drain printed no JSON")
}

/// The front end at full write speed, alone and with one who follows.
fn memory(options: &Options, report: &mut Report) -> Result<()> {
    let scratch = Scratch::new("dcp-memory")?;
    let server = start(&scratch, "memory")?;
    let peer = Peer::stave("stave", &server);
    let seconds = options.seconds.to_string();
    let load = || -> Result<Value> {
        let arguments = ["--connections", "20", "--threads", "1", "--keys", "200000", "--value-size", "512"];
        let more = ["--set-percent", "100", "--pipeline", "8", "--warmup", "0.5", "--seconds", &seconds];
        let result = peer.load(&[&arguments[..], &more].concat())?;
        ensure_clean(peer.name, &result)?;
        Ok(result)
    };
    let (mut rates, mut p99s, mut lags, mut shares) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    println!("{:<10} {:>12} {:>10} {:>12} {:>8}", "memory", "writes/s", "p99 us", "received/s", "lag s");
    for _ in 0..3 {
        let alone = load()?;
        let follower = idle_streams::Follower::start(&server.kv)?;
        let before = follower.received();
        let begun = Instant::now();
        let with = load()?;
        let loaded = begun.elapsed().as_secs_f64();
        let received = (follower.received() - before) as f64 / loaded;
        let goal = idle_streams::high_seqnos(&server.kv)?;
        let ended = Instant::now();
        while !follower.has(&goal)? {
            thread::sleep(Duration::from_millis(1));
        }
        let lag = ended.elapsed().as_secs_f64();
        follower.stop()?;
        let figure = |run: &Value, name: &str| number(run, name);
        let (rate_alone, rate) =
            (figure(&alone, "/operations_per_second")?, figure(&with, "/operations_per_second")?);
        let (p99_alone, p99) = (figure(&alone, "/set/p99_us")?, figure(&with, "/set/p99_us")?);
        println!("{:<10} {rate_alone:>12.0} {p99_alone:>10.0} {:>12} {:>8}", "alone", "", "");
        println!("{:<10} {rate:>12.0} {p99:>10.0} {received:>12.0} {lag:>8.3}", "followed");
        rates.push(rate / rate_alone);
        p99s.push(p99 / p99_alone);
        lags.push(lag);
        shares.push(received);
    }
    server.stop()?;
    report.add("memory_writes_followed_to_alone", median(&mut rates), None);
    report.add("memory_p99_followed_to_alone", median(&mut p99s), None);
    report.add("memory_received_per_s", median(&mut shares), None);
    report.figure("memory_lag_s", median(&mut lags), Some(Goal::AtMost(LAG_GOAL_S)));
    Ok(())
}

/// From disk, beside reading the same files with checksums.
fn backfill(options: &Options, report: &mut Report) -> Result<()> {
    let scratch = Scratch::new("dcp-backfill")?;
    let server = start(&scratch, "fill")?;
    println!("filling with {} documents of 512 bytes", options.documents);
    let mut client = Client::connect(&server.kv)?;
    Filling { documents: options.documents, generation: 0 }.write(&mut client)?;
    client.await_persisted()?;
    drop(client);
    // What is in the journal goes to the files when the server stops, and nothing is in its memory then.
    server.stop()?;
    let files = files_of(&scratch.path().join("data"))?;
    let server = start(&scratch, "backfill")?;
    await_loaded(&server)?;
    let (mut ratios, mut rates, mut raws) = (Vec::new(), Vec::new(), Vec::new());
    println!("{:<10} {:>12} {:>10} {:>10} {:>8}", "backfill", "items/s", "MB/s", "raw MB/s", "ratio");
    // The first of each warms the cache.
    raw_rate(&files)?;
    drain(&server, options.connections)?;
    for round in 0..options.rounds {
        let (file_bytes, seconds) = raw_rate(&files)?;
        let raw = file_bytes as f64 / seconds;
        let drained = drain(&server, options.connections)?;
        let got = number(&drained, "/mutations")?;
        ensure!(got >= f64::from(options.documents), "only {got} documents were read");
        let rate = number(&drained, "/bytes")? / number(&drained, "/seconds")?;
        let items = number(&drained, "/items_per_second")?;
        println!("{round:<10} {items:>12.0} {:>10.0} {:>10.0} {:>8.2}", rate / 1e6, raw / 1e6, rate / raw);
        ratios.push(rate / raw);
        rates.push(rate / 1e6);
        raws.push(raw / 1e6);
    }
    server.stop()?;
    report.add("backfill_mb_per_s", median(&mut rates), None);
    report.add("raw_mb_per_s", median(&mut raws), None);
    report.figure("backfill_to_raw", median(&mut ratios), Some(Goal::AtLeast(BACKFILL_GOAL)));
    Ok(())
}

/// Every file with documents below a folder.
fn files_of(folder: &Path) -> Result<Vec<std::path::PathBuf>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            files.append(&mut files_of(&path)?);
        } else if path.to_string_lossy().contains(".couch.") {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

/// Reads files from front to end, with a checksum over everything: bytes and seconds.
fn raw_rate(files: &[std::path::PathBuf]) -> Result<(u64, f64)> {
    let mut buffer = vec![0; READ_BYTES];
    let (mut bytes, mut sum) = (0_u64, 0_u32);
    let begun = Instant::now();
    for path in files {
        let mut file = fs::File::open(path)?;
        loop {
            let count = file.read(&mut buffer)?;
            if count == 0 {
                break;
            }
            sum = crc32c::crc32c_append(sum, &buffer[..count]);
            bytes += count as u64;
        }
    }
    let seconds = begun.elapsed().as_secs_f64();
    ensure!(bytes > 0, "there is nothing to read");
    std::hint::black_box(sum);
    Ok((bytes, seconds))
}

fn await_loaded(server: &Stave) -> Result<()> {
    let mut client = Client::connect(&server.kv)?;
    let begun = Instant::now();
    while begun.elapsed() < LOADED_WITHIN {
        let figures = client.stats("warmup")?.context("the server knows its warm-up")?;
        if figures.iter().any(|(name, value)| name == "ep_warmup_thread" && value == "complete") {
            return Ok(());
        }
        thread::sleep(LOOK);
    }
    Err(anyhow!("not everything was loaded within {LOADED_WITHIN:?}"))
}

/// Connections whose streams have nothing to send.
fn idle_connections(options: &Options, report: &mut Report) -> Result<()> {
    let wanted = u64::from(options.idle) + SPARE;
    ensure!(raise_descriptor_limit(wanted) >= wanted, "the system does not allow so many descriptors");
    let scratch = Scratch::new("dcp-idle")?;
    let server = start(&scratch, "idle")?;
    let peer = Peer::stave("stave", &server);
    let p99 = || -> Result<f64> {
        let seconds = options.seconds.to_string();
        // Reads: what is written is sent to everybody, and that is no idle stream any more.
        let common = ["--connections", "20", "--threads", "1", "--keys", "100000", "--set-percent", "0"];
        let result = peer.load(&[&common[..], &["--warmup", "0.5", "--seconds", &seconds]].concat())?;
        ensure_clean(peer.name, &result)?;
        number(&result, "/get/p99_us")
    };
    peer.load(&["--populate", "--operations", "50", "--keys", "100000", "--pipeline", "64"])?;
    Client::connect(&server.kv)?.await_persisted()?;
    let mut without = vec![p99()?, p99()?, p99()?];
    let before = resident_bytes(server.pid())?;
    let bare = idle_streams::open(&server.kv, options.idle, 0)?;
    let with_connections = resident_bytes(server.pid())?;
    let streaming = idle_streams::open(&server.kv, options.idle, STREAMS)?;
    let with_streams = resident_bytes(server.pid())?;
    let mut with = vec![p99()?, p99()?, p99()?];
    drop((bare, streaming));
    server.stop()?;
    let per_connection = with_connections.saturating_sub(before) as f64 / f64::from(options.idle);
    let growth = with_streams.saturating_sub(with_connections) as f64 / f64::from(options.idle);
    let per_stream = (growth - per_connection).max(0.0) / f64::from(STREAMS);
    println!(
        "idle: {} connections of {STREAMS} streams; resident MiB: {:.1} before, {:.1} with bare connections, {:.1} with streams",
        options.idle,
        before as f64 / 1_048_576.0,
        with_connections as f64 / 1_048_576.0,
        with_streams as f64 / 1_048_576.0,
    );
    report.figure("connection_bytes", per_connection, Some(Goal::AtMost(CONNECTION_GOAL_BYTES)));
    report.figure("idle_stream_bytes", per_stream, Some(Goal::AtMost(STREAM_GOAL_BYTES)));
    let (without, with) = (median(&mut without), median(&mut with));
    report.add("p99_without_us", without, None);
    report.add("p99_with_us", with, None);
    report.add("p99_with_to_without", with / without, None);
    report.detail("idle", json!({ "connections": options.idle, "streams": STREAMS }));
    Ok(())
}
