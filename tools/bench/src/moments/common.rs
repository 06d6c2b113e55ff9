//! What the measurements of this folder share: options, servers, commands of the binary, point reads beside other work.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use clap::Args;
use harness::child::release_build;
use harness::client::Client;
use harness::stave::{BUCKET, PASSWORD, Start, Stave, USER};
use harness::tree;
use harness::tree::Scratch;
use serde_json::Value;

use crate::filling::Filling;
use crate::load::{Peer, ensure_clean, last_json, number};
use crate::report::Report;

/// How much.
#[derive(Args)]
pub struct MomentOptions {
    /// Documents, with values of 512 bytes.
    #[arg(long, default_value_t = 100_000)]
    pub documents: u32,
    /// Rounds, of which the median counts.
    #[arg(long, default_value_t = 3)]
    pub rounds: usize,
    /// Seconds of each load.
    #[arg(long, default_value_t = 3)]
    pub seconds: u32,
    /// Close with one line of JSON.
    #[arg(long)]
    pub json: bool,
}

impl MomentOptions {
    /// Refuses what says nothing.
    pub fn check(&self) -> Result<()> {
        ensure!(self.documents >= 100 && self.rounds > 0, "at least 100 documents and one round");
        ensure!(self.seconds > 0, "at least one second");
        Ok(())
    }

    /// The documents of a generation.
    pub fn filling(&self, generation: u32) -> Filling {
        Filling { documents: self.documents, generation }
    }
}

/// Measures a node that has the documents on disk.
pub fn with_filled(
    name: &'static str,
    options: &MomentOptions,
    measure: impl FnOnce(&Stave, &Path, &mut Report) -> Result<()>,
) -> Result<Report> {
    options.check()?;
    release_build()?;
    let scratch = Scratch::new(name)?;
    let server = filled(&scratch, name, options)?;
    let mut report = Report::new(name, options.json);
    measure(&server, scratch.path(), &mut report)?;
    server.stop()?;
    Ok(report)
}

/// The memory of the bucket: no write is refused, and what is read comes from files or from memory as it does in use.
const MEMORY: &str = "2GiB";

/// A node with an empty bucket.
pub fn start(scratch: &Scratch, name: &str) -> Result<Stave> {
    let bucket = format!("{BUCKET}:{MEMORY}");
    let (data, log) = (scratch.path().join(name), scratch.path().join(format!("{name}.log")));
    Stave::start(&Start { data: &data, log, more: &["--bucket", &bucket] })
}

/// The same with documents that are on disk.
pub fn filled(scratch: &Scratch, name: &str, options: &MomentOptions) -> Result<Stave> {
    let server = start(scratch, name)?;
    let mut client = Client::connect(&server.kv)?;
    options.filling(0).write(&mut client)?;
    client.await_persisted()?;
    Ok(server)
}

/// A command of the binary against a server.
pub fn command(server: &Stave, arguments: &[&str]) -> Command {
    let mut command = Command::new(tree::release_binary());
    command.args(arguments).args(["--addr", &server.kv, "--username", USER, "--password", PASSWORD]);
    command.args(["--bucket", BUCKET, "--json"]).stdout(Stdio::piped()).stderr(Stdio::inherit());
    command
}

/// What such a command prints at its end.
pub fn told(command: &mut Command) -> Result<Value> {
    let output = command.output().with_context(|| format!("cannot run {command:?}"))?;
    ensure!(output.status.success(), "{command:?} ended with {}", output.status);
    last_json(&String::from_utf8_lossy(&output.stdout)).context("it printed no JSON")
}

/// A path as an argument.
pub fn text(path: &Path) -> Result<&str> {
    path.to_str().context("the scratch folder has a name that is no text")
}

/// The 99th percentile of point reads, one after the other on each connection, in microseconds.
fn reads_p99_us(server: &Stave, options: &MomentOptions, more: &[&str]) -> Result<f64> {
    let (keys, seconds) = ((options.documents / 4).max(1).to_string(), options.seconds.to_string());
    let arguments = ["--connections", "4", "--threads", "1", "--keys", &keys, "--key-size", "20"];
    let reads = ["--value-size", "512", "--set-percent", "0", "--pipeline", "1", "--seconds", &seconds];
    let result = Peer::stave("stave", server).load(&[&arguments[..], &reads, more].concat())?;
    ensure_clean("stave", &result)?;
    number(&result, "/get/p99_us")
}

/// How many times as long point reads take at their 99th percentile while `work` is done again and again.
pub fn p99_beside(
    server: &Stave,
    options: &MomentOptions,
    work: &(dyn Fn() -> Result<()> + Sync),
) -> Result<f64> {
    use std::sync::atomic::{AtomicBool, Ordering};
    // The first one stores the keys.
    reads_p99_us(server, options, &["--populate"])?;
    let alone = reads_p99_us(server, options, &[])?;
    let over = AtomicBool::new(false);
    let beside = std::thread::scope(|scope| -> Result<f64> {
        let worker = scope.spawn(|| -> Result<()> {
            while !over.load(Ordering::Relaxed) {
                work()?;
            }
            Ok(())
        });
        let beside = reads_p99_us(server, options, &[]);
        over.store(true, Ordering::Relaxed);
        worker.join().map_err(|_| anyhow::anyhow!("the work beside panicked"))??;
        beside
    })?;
    println!("p99 of point reads: {alone:.0} us alone, {beside:.0} us beside");
    Ok(beside / alone.max(f64::MIN_POSITIVE))
}

/// Documents a second of a stream of the whole bucket.
pub fn stream_rate(server: &Stave) -> Result<f64> {
    let mut command = Command::new(tree::release_binary());
    command.args(["drain", BUCKET, "--json", "--quiet", "--connections", "1", "--addr", &server.kv]);
    command.args(["--username", USER, "--password", PASSWORD]).stderr(Stdio::inherit());
    number(&told(&mut command)?, "/items_per_second")
}
