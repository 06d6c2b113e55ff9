//! `bench memory`: what the same documents cost beside each other, of the whole process.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use clap::Args;
use harness::child::{is_installed, release_build};
use harness::client::Client;
use harness::stave::{BUCKET, Start, Stave};
use harness::tree::Scratch;
use serde_json::json;

use super::Output;
use super::load::Peer;
use super::memcached::start_memcached;
use super::process::{peak_resident_bytes, resident_bytes};
use super::redis::{self, Redis};
use super::report::Report;

/// How much.
#[derive(Args)]
pub struct MemoryOptions {
    /// Documents, with keys of 20 bytes and values of 512.
    #[arg(long, default_value_t = 1_000_000)]
    documents: u32,
    /// Threads of each server that has threads.
    #[arg(long, default_value_t = 2)]
    threads: u32,
    #[command(flatten)]
    output: Output,
}

const KEY_AND_VALUE_BYTES: f64 = 20.0 + 512.0;
/// What a document that is not saved yet may cost more.
const DIRTY_BYTES: f64 = 24.0;
/// The goal at rest, of what memcached takes in the same run.
const OF_MEMCACHED: f64 = 0.75;
/// Memory has come to rest when it changes by less than this in so long, some times in a row: work that goes on in the
/// background changes little in a few seconds on a busy machine.
const REST_BYTES: u64 = 256 << 10;
const REST: Duration = Duration::from_secs(3);
const RESTS: u32 = 3;
const REST_WITHIN: Duration = Duration::from_secs(180);

/// Resident bytes of one server.
struct Resident {
    name: &'static str,
    empty: u64,
    /// The most while the documents were loaded.
    peak: u64,
    /// When the last one was in.
    loaded: u64,
    /// When nothing is left to do.
    clean: u64,
}

impl Resident {
    /// Bytes of a document beyond key and value, the whole process divided by the documents.
    fn whole(&self, resident: u64, documents: f64) -> f64 {
        resident as f64 / documents - KEY_AND_VALUE_BYTES
    }

    /// The same without what the process had when it was empty.
    fn delta(&self, resident: u64, documents: f64) -> f64 {
        self.whole(resident.saturating_sub(self.empty), documents)
    }
}

/// Measures.
pub fn run(options: &MemoryOptions) -> Result<Report> {
    ensure!(
        is_installed("memcached"),
        "memcached is not installed: this measurement runs beside it (`apt-get install memcached`)"
    );
    ensure!(options.documents > 0, "at least one document");
    println!("beside Redis {}", redis::version()?);
    release_build()?;
    let scratch = Scratch::new("memory")?;
    let all = [stave(options, &scratch)?, memcached(options)?, redis(options, &scratch)?];
    Ok(report(options, &all))
}

fn stave(options: &MemoryOptions, scratch: &Scratch) -> Result<Resident> {
    let (threads, bucket) = (options.threads.to_string(), format!("{BUCKET}:4GiB"));
    let server = Stave::start(&Start {
        data: &scratch.path().join("data"),
        log: scratch.path().join("server.log"),
        more: &["--threads", &threads, "--bucket", &bucket],
    })?;
    let resident =
        load(options, &Peer::stave("stave", &server), || Client::connect(&server.kv)?.await_persisted())?;
    server.stop()?;
    Ok(resident)
}

fn memcached(options: &MemoryOptions) -> Result<Resident> {
    let (memcached, address) = start_memcached(&options.threads.to_string())?;
    let peer = Peer { name: "memcached", protocol: "memcached", address, pid: memcached.pid(), ca: None };
    load(options, &peer, || Ok(()))
}

fn redis(options: &MemoryOptions, scratch: &Scratch) -> Result<Resident> {
    let redis = Redis::start_in_memory(&scratch.path().join("redis"))?;
    load(options, &redis.peer("redis"), || Ok(()))
}

/// Loads the documents into a server; `save` waits until they are where they shall be.
fn load(options: &MemoryOptions, peer: &Peer, save: impl FnOnce() -> Result<()>) -> Result<Resident> {
    let empty = at_rest(peer.pid)?;
    let keys = options.documents.to_string();
    let mut arguments = vec!["--populate", "--operations", "1", "--set-percent", "0", "--keys", &keys];
    arguments.extend(["--key-size", "20", "--value-size", "512", "--pipeline", "64", "--threads", "2"]);
    peer.load(&arguments)?;
    let loaded = resident_bytes(peer.pid)?;
    save()?;
    let clean = at_rest(peer.pid)?;
    let resident = Resident { name: peer.name, empty, peak: peak_resident_bytes(peer.pid)?, loaded, clean };
    println!(
        "{:<10} resident MiB: empty {:.1}, loaded {:.1}, at most {:.1}, at rest {:.1}",
        peer.name,
        mib(empty),
        mib(loaded),
        mib(resident.peak),
        mib(clean)
    );
    Ok(resident)
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

/// Resident memory once it does not change any more.
fn at_rest(pid: u32) -> Result<u64> {
    let begun = Instant::now();
    let (mut last, mut rests) = (resident_bytes(pid)?, 0);
    loop {
        thread::sleep(REST);
        let now = resident_bytes(pid)?;
        rests = if now.abs_diff(last) < REST_BYTES { rests + 1 } else { 0 };
        if rests == RESTS {
            return Ok(now);
        }
        ensure!(begun.elapsed() < REST_WITHIN, "the memory of process {pid} does not come to rest");
        last = now;
    }
}

fn report(options: &MemoryOptions, all: &[Resident; 3]) -> Report {
    let documents = f64::from(options.documents);
    println!("\nbytes a document beyond key and value, {documents} documents:");
    println!(
        "{:<10} {:>22} {:>22} {:>22}",
        "", "at rest, whole process", "without the empty one", "at most, whole"
    );
    for r in all {
        println!(
            "{:<10} {:>22.1} {:>22.1} {:>22.1}",
            r.name,
            r.whole(r.clean, documents),
            r.delta(r.clean, documents),
            r.whole(r.peak, documents)
        );
    }
    let [stave, memcached, redis] = all;
    let mut report = Report::new("memory", options.output.json);
    let table = "bytes a document beyond key and value";
    for r in all {
        report.cell(table, "at rest, whole process", r.name, &[r.whole(r.clean, documents)]);
        report.cell(table, "at rest, without the empty process", r.name, &[r.delta(r.clean, documents)]);
        report.cell(table, "at most", r.name, &[r.whole(r.peak, documents)]);
    }
    let most = memcached.whole(memcached.clean, documents);
    report.add("stave_bytes", stave.whole(stave.clean, documents), Some(most * OF_MEMCACHED));
    report.add("stave_bytes_without_empty", stave.delta(stave.clean, documents), None);
    report.add("memcached_bytes", most, None);
    report.add("redis_bytes", redis.whole(redis.clean, documents), None);
    let dirty = (stave.peak.max(stave.loaded) - stave.clean.min(stave.loaded)) as f64 / documents;
    report.add("stave_dirty_bytes_more", dirty, Some(DIRTY_BYTES));
    let rows: Vec<_> = all
        .iter()
        .map(|r| json!({ "name": r.name, "empty": r.empty, "loaded": r.loaded, "peak": r.peak, "clean": r.clean }))
        .collect();
    report.detail("resident_bytes", json!(rows));
    report
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_document_costs_what_is_beyond_key_and_value() {
        let resident = Resident { name: "x", empty: 1000, peak: 0, loaded: 0, clean: 61_000 };
        assert!((resident.whole(resident.clean, 100.0) - (610.0 - 532.0)).abs() < 1e-9);
        assert!((resident.delta(resident.clean, 100.0) - (600.0 - 532.0)).abs() < 1e-9);
    }
}
