//! `bench follow`: a continuous backup at full write load: how far it is behind, and what it costs the node.

use std::path::Path;
use std::process::Child;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use harness::client::Client;
use harness::stave::Stave;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::common::{MomentOptions, command, text, with_filled};
use crate::load::{Peer, ensure_clean, last_json, number};
use crate::process::cpu_seconds;
use crate::report::{Report, median};

/// The longest that a change waits until it is durable in the log, in milliseconds.
const LAG_GOAL_MS: f64 = 1000.0;
/// The most CPU of an operation with the follower, in terms of one without.
const CPU_GOAL: f64 = 1.1;
/// How long the first backup may take, and the end.
const PATIENCE: Duration = Duration::from_secs(120);
const LOOK: Duration = Duration::from_millis(50);

/// Measures.
pub fn run(options: &MomentOptions) -> Result<Report> {
    with_filled("follow", options, |server, scratch, report| measure(server, scratch, options, report))
}

fn measure(server: &Stave, scratch: &Path, options: &MomentOptions, report: &mut Report) -> Result<()> {
    let (mut costs, mut lags, mut own, mut gaps) = (Vec::new(), Vec::new(), Vec::new(), 0.0);
    println!(
        "{:<6} {:>12} {:>12} {:>14} {:>10}",
        "round", "alone us/op", "with us/op", "follower us/op", "wait ms"
    );
    load(server, options)?;
    for round in 1..=options.rounds {
        let (alone, _) = load(server, options)?;
        let follower = LogFollower::start(server, &scratch.join(format!("log-{round}")))?;
        let before = cpu_seconds(follower.0.id())?;
        let (with, operations) = load(server, options)?;
        let follower_us = (cpu_seconds(follower.0.id())? - before) * 1e6 / operations;
        let told = follower.end()?;
        gaps += number(&told, "/gaps")?;
        let lag = number(&told, "/longest_wait_ms")?;
        println!("{round:<6} {alone:>12.2} {with:>12.2} {follower_us:>14.2} {lag:>10.0}");
        costs.push(with / alone);
        lags.push(lag);
        own.push(follower_us / alone);
    }
    report.add("longest_wait_ms", lags.iter().copied().fold(0.0, f64::max), Some(LAG_GOAL_MS));
    report.add("server_cpu_of_alone", median(&mut costs), Some(CPU_GOAL));
    report.add("follower_cpu_of_server", median(&mut own), None);
    // Changes of one key that follow each other faster than they are sent are merged, and named as gaps.
    report.add("gaps", gaps, None);
    Ok(())
}

/// Server CPU of a write in microseconds, and how many there were.
fn load(server: &Stave, options: &MomentOptions) -> Result<(f64, f64)> {
    let (keys, seconds) = (options.documents.to_string(), options.seconds.to_string());
    let arguments = ["--connections", "8", "--threads", "1", "--keys", &keys, "--key-size", "20"];
    let more = ["--value-size", "512", "--set-percent", "100", "--pipeline", "8", "--seconds", &seconds];
    let before = cpu_seconds(server.pid())?;
    let result = Peer::stave("stave", server).load(&[&arguments[..], &more].concat())?;
    ensure_clean("stave", &result)?;
    // What is left for the disk belongs to it.
    Client::connect(&server.kv)?.await_persisted()?;
    let operations = number(&result, "/operations")?;
    Ok(((cpu_seconds(server.pid())? - before) * 1e6 / operations, operations))
}

/// `stave backup --follow`, which ends with this value.
struct LogFollower(Child);

impl LogFollower {
    /// Starts it, and waits until its first backup is complete and the log has begun.
    fn start(server: &Stave, to: &Path) -> Result<LogFollower> {
        let mut command = command(server, &["backup", "--follow", "--to", text(to)?]);
        command.stderr(std::process::Stdio::null());
        let mut follower = LogFollower(command.spawn().context("cannot start the follower")?);
        let begun = Instant::now();
        let log = to.join(harness::stave::BUCKET).join("log");
        while !log.join("segment-00000001").exists() {
            if let Some(status) = follower.0.try_wait()? {
                bail!("the follower ended with {status}");
            }
            ensure!(begun.elapsed() < PATIENCE, "the log has not begun after {PATIENCE:?}");
            thread::sleep(LOOK);
        }
        Ok(follower)
    }

    /// Ends it as an operator does; what it prints.
    fn end(mut self) -> Result<Value> {
        let pid = Pid::from_raw(self.0.id().try_into()?).context("a process has a number")?;
        kill_process(pid, Signal::INT)?;
        let begun = Instant::now();
        let status = loop {
            match self.0.try_wait()? {
                Some(status) => break status,
                None if begun.elapsed() > PATIENCE => bail!("the follower does not end"),
                None => thread::sleep(LOOK),
            }
        };
        ensure!(status.success(), "the follower ended with {status}");
        let mut printed = String::new();
        let mut out = self.0.stdout.take().context("its output is piped")?;
        std::io::Read::read_to_string(&mut out, &mut printed)?;
        last_json(&printed).context("the follower printed no JSON")
    }
}

impl Drop for LogFollower {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
