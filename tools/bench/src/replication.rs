//! `bench replication`: how far a replica is behind under full write load, and how long taking over blocks writes.

mod ledger;

use std::collections::VecDeque;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use clap::Args;
use harness::child::release_build;
use harness::client::Client;
use harness::http;
use harness::stave::{BUCKET, PASSWORD, Start, Stave, USER};
use harness::tree::Scratch;
use serde_json::{Value, json};

use super::Output;
use super::load::{Peer, ensure_clean, number};
use super::report::{Goal, Report};
use ledger::Ledger;

/// How much.
#[derive(Args)]
pub struct ReplicationOptions {
    /// Seconds of full write load.
    #[arg(long, default_value_t = 10)]
    seconds: u32,
    /// vBuckets that are taken over.
    #[arg(long, default_value_t = 512, value_parser = clap::value_parser!(u16).range(1..=1024))]
    vbuckets: u16,
    /// Connections that write while they are taken over, each waiting for every answer.
    #[arg(long, default_value_t = 8)]
    writers: u32,
    #[command(flatten)]
    output: Output,
}

/// Between two looks at both nodes.
const LOOK: Duration = Duration::from_millis(2);
/// A replica or a handover that takes longer has lost its way.
const STUCK: Duration = Duration::from_secs(120);

/// Measures.
pub fn run(options: &ReplicationOptions) -> Result<Report> {
    release_build()?;
    let mut report = Report::new("replication", options.output.json);
    let scratch = Scratch::new("replication")?;
    let start = |name: &str| {
        let (data, log) = (scratch.path().join(name), scratch.path().join(format!("{name}.log")));
        Stave::start(&Start { data: &data, log, more: &["--bucket", &format!("{BUCKET}:2GiB")] })
    };
    let (from, to) = (start("from")?, start("to")?);
    declare(&from, &to, "0-1023", "replicate")?;
    await_status("the replica has not caught up", &to, |link| link["caught_up"] == true)?;
    lag(options, &from, &to, &mut report)?;
    await_status("the replica has not caught up", &to, |link| link["caught_up"] == true)?;
    take_over(options, &from, &to, &mut report)?;
    to.stop()?;
    from.stop()?;
    Ok(report)
}

fn path() -> String {
    format!("/v1/buckets/{BUCKET}/replication")
}

fn declare(from: &Stave, to: &Stave, vbuckets: &str, mode: &str) -> Result<()> {
    let source = json!({ "sources": [{ "node": from.kv, "username": USER, "password": PASSWORD,
        "vbuckets": vbuckets, "mode": mode }] });
    http::request(&to.http, "PUT", &path(), &source.to_string()).map(drop)
}

fn await_status(what: &str, node: &Stave, is_so: impl Fn(&Value) -> bool) -> Result<Value> {
    let begun = Instant::now();
    loop {
        let status: Value = serde_json::from_str(&http::request(&node.http, "GET", &path(), "")?)?;
        let link = &status["links"][0];
        if is_so(link) {
            return Ok(link.clone());
        }
        if begun.elapsed() > STUCK {
            bail!("{what}: {link}; the log of the node ends with:\n{}", node.log_tail());
        }
        thread::sleep(Duration::from_millis(20));
    }
}

fn sum_of_seqnos(client: &mut Client) -> Result<u64> {
    Ok(client.all_seqnos()?.iter().map(|(_, seqno)| seqno.0).sum())
}

/// How far behind a replica was, whenever somebody looked.
#[derive(Default)]
struct Lags {
    seqnos: Vec<f64>,
    ms: Vec<f64>,
}

/// Looks at both nodes until `is_over` and the replica has everything.
fn watch_lag(from: &Stave, to: &Stave, is_over: impl Fn() -> bool) -> Result<Lags> {
    let (mut active, mut replica) = (Client::connect(&from.kv)?, Client::connect(&to.kv)?);
    let mut lags = Lags::default();
    // What the active node had, and when: the replica is as far behind as the oldest of them that it does not have.
    let mut goals: VecDeque<(Instant, u64)> = VecDeque::new();
    let mut over_since = None;
    loop {
        let has = sum_of_seqnos(&mut active)?;
        goals.push_back((Instant::now(), has));
        let reached = sum_of_seqnos(&mut replica)?;
        while let Some((then, goal)) = goals.front().copied().filter(|(_, goal)| *goal <= reached) {
            debug_assert!(goal <= reached);
            lags.ms.push(then.elapsed().as_secs_f64() * 1e3);
            goals.pop_front();
        }
        if over_since.is_none() {
            lags.seqnos.push(has.saturating_sub(reached) as f64);
            over_since = is_over().then(Instant::now);
        } else if goals.is_empty() {
            return Ok(lags);
        }
        if over_since.is_some_and(|since| since.elapsed() > STUCK) {
            bail!("the replica does not catch up: {reached} of {has}; its log:\n{}", to.log_tail());
        }
        thread::sleep(LOOK);
    }
}

fn percentile(values: &mut [f64], percent: usize) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    values.get((values.len() * percent / 100).min(values.len().saturating_sub(1))).copied().unwrap_or(0.0)
}

fn lag(options: &ReplicationOptions, from: &Stave, to: &Stave, report: &mut Report) -> Result<()> {
    let peer = Peer::stave("stave", from);
    let seconds = options.seconds.to_string();
    let (result, mut lags) = thread::scope(|scope| -> Result<_> {
        let load = scope.spawn(move || {
            let arguments =
                ["--connections", "20", "--threads", "1", "--keys", "200000", "--value-size", "512"];
            let more = ["--set-percent", "100", "--pipeline", "8", "--warmup", "0.5", "--seconds", &seconds];
            peer.load(&[&arguments[..], &more].concat())
        });
        let lags = watch_lag(from, to, || load.is_finished())?;
        let result = load.join().map_err(|_| anyhow!("the load panicked"))??;
        Ok((result, lags))
    })?;
    ensure_clean("stave", &result)?;
    report.add("writes_per_s", number(&result, "/operations_per_second")?, None);
    println!("{:<12} {:>12} {:>12} {:>12} {:>12}", "lag", "p50", "p90", "p99", "most");
    for (name, values) in [("seqnos", &mut lags.seqnos), ("ms", &mut lags.ms)] {
        let [p50, p90, p99, most] = [50, 90, 99, 100].map(|percent| percentile(values, percent));
        println!("{name:<12} {p50:>12.1} {p90:>12.1} {p99:>12.1} {most:>12.1}");
        for (of, value) in [("p50", p50), ("p90", p90), ("p99", p99), ("most", most)] {
            report.add(&format!("lag_{name}_{of}"), value, None);
        }
    }
    Ok(())
}

fn take_over(options: &ReplicationOptions, from: &Stave, to: &Stave, report: &mut Report) -> Result<()> {
    let ledger = Ledger::start(&from.kv, &to.kv, options.writers)?;
    ledger.await_writes(1000)?;
    let begun = Instant::now();
    let vbuckets = format!("0-{}", options.vbuckets - 1);
    declare(from, to, &vbuckets, "takeover")?;
    let link =
        await_status("not all are taken over", to, |link| link["taken_over"] == u64::from(options.vbuckets))?;
    let seconds = begun.elapsed().as_secs_f64();
    let then = ledger.writes();
    ledger.await_writes(then + 1000)?;
    let written = ledger.stop()?;
    let (lost, repeated) = written.compare(&from.kv, &to.kv)?;
    let us = |name: &str| link[name].as_f64().with_context(|| format!("no {name}"));
    println!(
        "\n{} vBuckets taken over in {seconds:.2} s under {} writes: longest block {:.2} ms, {} refused first, \
         {lost} lost, {repeated} repeated",
        options.vbuckets,
        written.count,
        us("blocked_longest_us")? / 1e3,
        written.redirected,
    );
    ensure!(written.count > 0, "nothing was written");
    report.add("takeover_s", seconds, None);
    report.add("blocked_longest_ms", us("blocked_longest_us")? / 1e3, None);
    report.add("blocked_mean_ms", us("blocked_total_us")? / 1e3 / f64::from(options.vbuckets), None);
    report.add("write_longest_ms", written.longest.as_secs_f64() * 1e3, None);
    report.figure("lost", lost as f64, Some(Goal::AtMost(0.0)));
    report.figure("repeated", repeated as f64, Some(Goal::AtMost(0.0)));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_values_that_were_seen() {
        let mut values: Vec<f64> = (1..=100).rev().map(f64::from).collect();
        assert_eq!(percentile(&mut values, 50), 51.0);
        assert_eq!(percentile(&mut values, 100), 100.0);
        assert_eq!(percentile(&mut [], 50), 0.0);
    }
}
