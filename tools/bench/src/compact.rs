//! `bench compact`: the front end while all files are compacted, and without, in turn; and the disk space meanwhile.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use base::VbId;
use clap::Args;
use harness::child::release_build;
use harness::client::Client;
use harness::rng::Rng;
use harness::stave::{BUCKET, Start, Stave};
use harness::tree::Scratch;
use protocol::Status;
use serde_json::{Value, json};

use super::Output;
use super::filling::Filling;
use super::load::{Peer, ensure_clean, number};
use super::report::{Report, median};

/// How long and how much.
#[derive(Args)]
pub struct CompactOptions {
    /// Documents, with values of 512 bytes, beside those of the load.
    #[arg(long, default_value_t = 300_000)]
    documents: u32,
    /// How often all of them are written before, so that files hold what nobody needs.
    #[arg(long, default_value_t = 3)]
    generations: u32,
    /// Seconds of each single run.
    #[arg(long, default_value_t = 5)]
    seconds: u32,
    /// Rounds, each with and without compaction.
    #[arg(long, default_value_t = 3)]
    rounds: u32,
    #[command(flatten)]
    output: Output,
}

const VBUCKETS: u16 = 1024;
/// Compactions that are asked for at once; the server may do fewer.
const AT_ONCE: u16 = 4;
const LOOK: Duration = Duration::from_millis(50);
/// How long a vBucket that is busy is left alone.
const PAUSE: Duration = Duration::from_millis(5);
const CHECKED: u32 = 10_000;

/// One run of the load.
#[derive(Clone, Copy)]
struct Run {
    operations_per_s: f64,
    cpu_us: f64,
    p50_us: f64,
    p99_us: f64,
    p999_us: f64,
}

/// What was compacted meanwhile, and the disk space.
#[derive(Default)]
struct Compacted {
    /// When every vBucket had been compacted once.
    first_pass_s: Option<f64>,
    vbuckets: u64,
    most_bytes: u64,
}

/// Measures.
pub fn run(options: &CompactOptions) -> Result<Report> {
    ensure!(options.rounds > 0 && options.generations > 0, "at least one round and one generation");
    release_build()?;
    let scratch = Scratch::new("compact")?;
    let data = scratch.path().join("data");
    let bucket = format!("{BUCKET}:4GiB");
    let log = scratch.path().join("server.log");
    let server = Stave::start(&Start { data: &data, log, more: &["--bucket", &bucket] })?;
    let filling = fill(&server, options)?;
    let peer = Peer::stave("stave", &server);
    load(&peer, &["--populate", "--operations", "50", "--pipeline", "64"])?;
    Client::connect(&server.kv)?.await_persisted()?;
    let mut report = Report::new("compact", options.output.json);
    if compact(&mut Client::connect(&server.kv)?, VbId(0))? {
        compare(options, &peer, &data, &mut report)?;
    } else {
        println!("the server does not compact by command: the rows with compaction are missing");
        print_head();
        print_run("without", &measure(&peer, options)?);
    }
    let mut client = Client::connect(&server.kv)?;
    filling.check_some(&mut client, &mut Rng::new(1), CHECKED)?;
    server.stop()?;
    Ok(report)
}

fn fill(server: &Stave, options: &CompactOptions) -> Result<Filling> {
    let mut client = Client::connect(&server.kv)?;
    println!("filling with {} documents, {} times", options.documents, options.generations);
    let mut filling = Filling { documents: options.documents, generation: 0 };
    for generation in 0..options.generations {
        filling.generation = generation;
        filling.write(&mut client)?;
        client.await_persisted()?;
    }
    Ok(filling)
}

fn load(peer: &Peer, more: &[&str]) -> Result<Value> {
    let common = ["--connections", "50", "--threads", "1", "--keys", "200000", "--value-size", "512"];
    peer.load(&[&common[..], &["--set-percent", "50", "--distribution", "zipf"], more].concat())
}

fn measure(peer: &Peer, options: &CompactOptions) -> Result<Run> {
    let result = load(peer, &["--warmup", "0.5", "--seconds", &options.seconds.to_string()])?;
    ensure_clean(peer.name, &result)?;
    Run::of(&result)
}

impl Run {
    fn of(result: &Value) -> Result<Run> {
        // Reads and writes differ little from memory: the worse of both is what users feel.
        let worse = |figure: &str| {
            let of = |kind: &str| number(result, &format!("/{kind}/{figure}"));
            anyhow::Ok(of("get")?.max(of("set")?))
        };
        Ok(Run {
            operations_per_s: number(result, "/operations_per_second")?,
            cpu_us: number(result, "/server_cpu_us_per_operation")?,
            p50_us: worse("p50_us")?,
            p99_us: worse("p99_us")?,
            p999_us: worse("p999_us")?,
        })
    }
}

/// Asks for the compaction of one vBucket until it is done; whether the server knows the command.
fn compact(client: &mut Client, vbucket: VbId) -> Result<bool> {
    loop {
        client.push_compact(vbucket);
        client.flush()?;
        let status = client.answer()?.status_code;
        match Status::from_code(status) {
            Some(Status::Success) => return Ok(true),
            Some(Status::UnknownCommand | Status::NotSupported) => return Ok(false),
            Some(Status::Ebusy | Status::Etmpfail) => thread::sleep(PAUSE),
            _ => return Err(anyhow!("vBucket {} was not compacted: status 0x{status:02x}", vbucket.0)),
        }
    }
}

fn compare(options: &CompactOptions, peer: &Peer, data: &Path, report: &mut Report) -> Result<()> {
    let before_bytes = disk_bytes(data)?;
    let (mut without, mut with, mut first) = (Vec::new(), Vec::new(), Compacted::default());
    print_head();
    for round in 0..options.rounds {
        without.push(measure(peer, options)?);
        print_run("without", &without[without.len() - 1]);
        let (run, compacted) = measure_compacting(options, peer, data)?;
        print_run("with", &run);
        println!("{:<8} {} compactions meanwhile", "", compacted.vbuckets);
        with.push(run);
        if round == 0 {
            first = compacted;
        }
    }
    rustix::fs::sync();
    let after_bytes = disk_bytes(data)?;
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    println!(
        "\ndisk: {:.0} MiB before, {:.0} MiB at most during, {:.0} MiB after",
        mib(before_bytes),
        mib(first.most_bytes),
        mib(after_bytes)
    );
    let ratio = |figure: fn(&Run) -> f64| {
        median(&mut with.iter().zip(&without).map(|(a, b)| figure(a) / figure(b)).collect::<Vec<_>>())
    };
    report.add("throughput_with_to_without", ratio(|run| run.operations_per_s), None);
    report.add("p99_with_to_without", ratio(|run| run.p99_us), None);
    report.add("p999_with_to_without", ratio(|run| run.p999_us), None);
    report.add("disk_most_to_before", first.most_bytes as f64 / before_bytes as f64, None);
    report.add("disk_after_to_before", after_bytes as f64 / before_bytes as f64, None);
    if let Some(seconds) = first.first_pass_s {
        report.add("all_vbuckets_under_load_s", seconds, None);
    }
    let rows = |runs: &[Run]| runs.iter().map(run_json).collect::<Value>();
    report.detail("without", rows(&without));
    report.detail("with", rows(&with));
    report.detail(
        "disk_bytes",
        json!({ "before": before_bytes, "most": first.most_bytes, "after": after_bytes }),
    );
    Ok(())
}

/// The load while all vBuckets are compacted, again and again if there is time.
fn measure_compacting(options: &CompactOptions, peer: &Peer, data: &Path) -> Result<(Run, Compacted)> {
    let (over, done) = (AtomicBool::new(false), AtomicU64::new(0));
    let mut compacted = Compacted::default();
    let begun = Instant::now();
    let run = thread::scope(|scope| {
        let workers: Vec<_> = (0..AT_ONCE)
            .map(|first| {
                let (over, done) = (&over, &done);
                scope.spawn(move || compact_all(&peer.address, first, over, done))
            })
            .collect();
        let loaded = scope.spawn(|| measure(peer, options));
        while !loaded.is_finished() {
            thread::sleep(LOOK);
            compacted.vbuckets = done.load(Ordering::Relaxed);
            // A file may go while it is looked at: the next look will do.
            compacted.most_bytes = compacted.most_bytes.max(disk_bytes(data).unwrap_or(0));
            if compacted.vbuckets >= VBUCKETS.into() && compacted.first_pass_s.is_none() {
                compacted.first_pass_s = Some(begun.elapsed().as_secs_f64());
            }
        }
        over.store(true, Ordering::Relaxed);
        for worker in workers {
            worker.join().map_err(|_| anyhow!("a thread that compacts panicked"))??;
        }
        loaded.join().map_err(|_| anyhow!("the thread of the load panicked"))?
    })?;
    Ok((run, compacted))
}

/// Every fourth vBucket, beginning with `first`, until it is over.
fn compact_all(address: &str, first: u16, over: &AtomicBool, done: &AtomicU64) -> Result<()> {
    let mut client = Client::connect(address)?;
    for vbucket in (first..VBUCKETS).step_by(AT_ONCE.into()).cycle() {
        if over.load(Ordering::Relaxed) {
            return Ok(());
        }
        ensure!(compact(&mut client, VbId(vbucket))?, "the server does not know the command any more");
        done.fetch_add(1, Ordering::Relaxed);
    }
    Ok(())
}

/// Blocks that everything below a folder takes.
pub fn disk_bytes(folder: &Path) -> Result<u64> {
    let mut bytes = 0;
    for entry in fs::read_dir(folder).with_context(|| format!("cannot list {}", folder.display()))? {
        let entry = entry?;
        let meta = entry.metadata()?;
        bytes += if meta.is_dir() { disk_bytes(&entry.path())? } else { meta.blocks() * 512 };
    }
    Ok(bytes)
}

fn print_head() {
    println!(
        "\n{:<8} {:>12} {:>10} {:>10} {:>10} {:>10}",
        "compact", "operations/s", "CPU us/op", "p50 us", "p99 us", "p99.9 us"
    );
}

fn print_run(name: &str, run: &Run) {
    println!(
        "{name:<8} {:>12.0} {:>10.2} {:>10.1} {:>10.1} {:>10.1}",
        run.operations_per_s, run.cpu_us, run.p50_us, run.p99_us, run.p999_us
    );
}

fn run_json(run: &Run) -> Value {
    json!({
        "operations_per_s": run.operations_per_s,
        "server_cpu_us_per_operation": run.cpu_us,
        "p50_us": run.p50_us,
        "p99_us": run.p99_us,
        "p999_us": run.p999_us,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worse_kind_of_operation_counts() {
        let latency = |us: f64| json!({ "p50_us": us, "p99_us": 2.0 * us, "p999_us": 3.0 * us });
        let result = json!({
            "operations_per_second": 9.0,
            "server_cpu_us_per_operation": 1.0,
            "get": latency(5.0),
            "set": latency(7.0),
        });
        assert_eq!(Run::of(&result).unwrap().p99_us, 14.0);
    }
}
