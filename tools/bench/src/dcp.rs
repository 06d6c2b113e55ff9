//! `bench dcp`: streams of changes: look-up, from memory beside the front end, from disk, and what idle ones cost.

use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use clap::Args;
use harness::child::{cargo, output, release_build};
use harness::client::Client;
use harness::stave::{BUCKET, PASSWORD, Start, Stave, USER};
use harness::tree::{self, Scratch};
use serde_json::{Value, json};

use super::Output;
use super::filling::Filling;
use super::idle::{SPARE, raise_descriptor_limit};
use super::load::{Peer, ensure_clean, last_json, number};
use super::process::{children_cpu_seconds, cpu_seconds, resident_bytes};
use super::report::{Goal, Report, median};

mod idle_streams;

/// How much.
#[derive(Args)]
pub struct DcpOptions {
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
/// Streams between two measurements of a look-up.
const STEP: u32 = 128;
const LOADED_WITHIN: Duration = Duration::from_secs(120);
const LOOK: Duration = Duration::from_millis(50);
/// How far a follower may be behind when the load ends and still keeps up.
const LAG_GOAL_S: f64 = 1.0;

/// Measures.
pub fn run(options: &DcpOptions) -> Result<Report> {
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
    for streams in std::iter::once(1).chain((STEP..=STREAMS).step_by(STEP as usize)) {
        let name = format!("lookup_{streams}_ns");
        let ns = number(&found, &format!("/{name}"))?;
        report.figure(&name, ns, Some(Goal::AtMost(LOOKUP_GOAL_NS)));
        // What is part of that, and what it is when each look-up waits for the one before.
        for name in ["loop", "chained", "chained_loop"].map(|name| format!("{name}_{streams}_ns")) {
            report.add(&name, number(&found, &format!("/{name}"))?, None);
        }
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

pub(super) fn drain(server: &Stave, connections: u32) -> Result<Value> {
    let connections = connections.to_string();
    let text =
        output(&mut stave(server, &["drain", BUCKET, "--json", "--quiet", "--connections", &connections]))?;
    last_json(&text).context("stave drain printed no JSON")
}

/// The front end at full write speed, alone and with one who follows.
fn memory(options: &DcpOptions, report: &mut Report) -> Result<()> {
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

/// From disk, beside reading the same files with checksums: the time of the one divided by that of the other.
fn backfill(options: &DcpOptions, report: &mut Report) -> Result<()> {
    let scratch = Scratch::new("dcp-backfill")?;
    let server = start(&scratch, "fill")?;
    println!("filling with {} documents of 512 bytes", options.documents);
    let mut client = Client::connect(&server.kv)?;
    Filling { documents: options.documents, generation: 0 }.write(&mut client)?;
    client.await_persisted()?;
    drop(client);
    // What is in the journal goes to the files when the server stops, and nothing is in its memory then.
    server.stop()?;
    let bucket = scratch.path().join("data/buckets").join(BUCKET);
    let server = start(&scratch, "backfill")?;
    await_loaded(&server)?;
    println!("over a socket; raw: the same files, read by one thread with the checksum of each chunk");
    println!(
        "{:<10} {:>12} {:>8} {:>10} {:>12} {:>8} {:>8} {:>10}",
        "backfill", "items/s", "s", "server CPU", "consumer CPU", "raw s", "ratio", "CPU ratio"
    );
    let (mut ratios, mut cpu_ratios, mut rates) = (Vec::new(), Vec::new(), Vec::new());
    // The first of each warms the cache.
    raw(&bucket)?;
    drain(&server, options.connections)?;
    for round in 0..options.rounds {
        let read = raw(&bucket)?;
        let (raw_seconds, raw_cpu) = (number(&read, "/raw_seconds")?, number(&read, "/raw_cpu_seconds")?);
        let (server_cpu, consumer_cpu) = (cpu_seconds(server.pid())?, children_cpu_seconds()?);
        let drained = drain(&server, options.connections)?;
        let server_cpu = cpu_seconds(server.pid())? - server_cpu;
        let consumer_cpu = children_cpu_seconds()? - consumer_cpu;
        let got = number(&drained, "/mutations")?;
        ensure!(got >= f64::from(options.documents), "only {got} documents were read");
        let (items, seconds) = (number(&drained, "/items_per_second")?, number(&drained, "/seconds")?);
        let (ratio, cpu_ratio) = (raw_seconds / seconds, raw_cpu / server_cpu);
        println!(
            "{round:<10} {items:>12.0} {seconds:>8.3} {server_cpu:>10.3} {consumer_cpu:>12.2} {raw_seconds:>8.3} {ratio:>8.2} {cpu_ratio:>10.2}"
        );
        ratios.push(ratio);
        cpu_ratios.push(cpu_ratio);
        rates.push(items);
    }
    server.stop()?;
    report.add("socket_backfill_items_per_s", median(&mut rates), None);
    report.add("socket_backfill_to_raw", median(&mut ratios), None);
    report.add("socket_backfill_server_cpu_to_raw", median(&mut cpu_ratios), None);
    for threads in ["1", "2"] {
        println!("in process, {threads} thread(s) for either: messages are made and thrown away");
        let found = example(&bucket, &[&options.rounds.to_string(), threads])?;
        report.add(&format!("backfill_items_per_s_{threads}"), number(&found, "/items_per_s")?, None);
        report.add(&format!("raw_mb_per_s_{threads}"), number(&found, "/raw_mb_per_s")?, None);
        let (ratio, goal) = (number(&found, "/to_raw")?, Goal::AtLeast(BACKFILL_GOAL));
        report.figure(&format!("backfill_to_raw_{threads}"), ratio, Some(goal));
    }
    Ok(())
}

/// Reads the files of a bucket from front to end, each as a whole, and checks the checksum of each chunk in them.
fn raw(bucket: &Path) -> Result<Value> {
    example(bucket, &["0", "1"])
}

/// What the example prints that makes messages of a bucket's files without a socket.
fn example(bucket: &Path, arguments: &[&str]) -> Result<Value> {
    let mut command = cargo(&["run", "--quiet", "--release", "-p", "dcp", "--example", "backfill", "--"]);
    command.arg(bucket).args(arguments).stderr(Stdio::inherit());
    last_json(&output(&mut command)?).context("the example printed no JSON")
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
fn idle_connections(options: &DcpOptions, report: &mut Report) -> Result<()> {
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
