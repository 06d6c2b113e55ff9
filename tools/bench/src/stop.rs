//! `bench stop`: how long a clean stop takes when as much as can be is left to be written to the files.

use std::time::{Duration, Instant};

use anyhow::Result;
use clap::Args;
use harness::child::release_build;
use harness::http;
use harness::stave::{BUCKET, Start, Stave};
use harness::tree::Scratch;

use super::Output;
use super::compact::disk_bytes;
use super::load::{Peer, ensure_clean};
use super::report::Report;

/// How much there is to write.
#[derive(Args)]
pub struct StopOptions {
    /// Collections that are made before the first stop: an event for each of 1,024 vBuckets.
    #[arg(long, default_value_t = 1_000)]
    collections: u32,
    /// Documents of 512 bytes that are written as fast as it goes before the second stop.
    #[arg(long, default_value_t = 1_000_000)]
    documents: u64,
    #[command(flatten)]
    output: Output,
}

/// The most that a stop may take.
const MOST_SECONDS: f64 = 5.0;
const ANSWER_WITHIN: Duration = Duration::from_secs(10);
const MIB: f64 = (1u64 << 20) as f64;

/// What is done before a stop.
type Fill<'f> = &'f dyn Fn(&Stave) -> Result<()>;

/// Measures.
pub fn run(options: &StopOptions) -> Result<Report> {
    release_build()?;
    let scratch = Scratch::new("stop")?;
    let mut report = Report::new("stop", options.output.json);
    let collections = |server: &Stave| make_collections(server, options.collections);
    let documents = |server: &Stave| write(server, options.documents);
    let rows: [(&str, Fill<'_>); 3] =
        [("nothing", &|_| Ok(())), ("collections", &collections), ("documents", &documents)];
    println!(
        "{:<12} {:>9} {:>9} {:>17} {:>16}",
        "after", "filled s", "stop s", "files before MiB", "files after MiB"
    );
    for (name, fill) in rows {
        let data = scratch.path().join(name);
        let log = scratch.path().join(format!("{name}.log"));
        let server =
            Stave::start(&Start { data: &data, log, more: &["--bucket", &format!("{BUCKET}:1GiB")] })?;
        let begun = Instant::now();
        fill(&server)?;
        let filled = begun.elapsed().as_secs_f64();
        let before = disk_bytes(&data)? as f64 / MIB;
        let begun = Instant::now();
        server.stop()?;
        let stopped = begun.elapsed().as_secs_f64();
        let after = disk_bytes(&data)? as f64 / MIB;
        println!("{name:<12} {filled:>9.1} {stopped:>9.2} {before:>17.1} {after:>16.1}");
        report.add(&format!("stop_after_{name}_seconds"), stopped, Some(MOST_SECONDS));
    }
    Ok(report)
}

fn make_collections(server: &Stave, count: u32) -> Result<()> {
    let path = format!("/pools/default/buckets/{BUCKET}/scopes/_default/collections");
    for number in 0..count {
        http::form(&server.http, "POST", &path, &format!("name=c{number}"), ANSWER_WITHIN)?;
    }
    Ok(())
}

fn write(server: &Stave, documents: u64) -> Result<()> {
    let (keys, operations) = (documents.to_string(), "1");
    let arguments = [
        "--populate",
        "--keys",
        &keys,
        "--operations",
        operations,
        "--pipeline",
        "64",
        "--connections",
        "50",
    ];
    let result = Peer::stave("stave", server).load(&arguments)?;
    ensure_clean("stave", &result)
}
