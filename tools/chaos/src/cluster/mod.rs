//! `cargo xtask cluster`: nodes on an etcd of the run, clients that write durably, and everything that happens to a cluster
//! one after the other: a node is added, the vBuckets are spread, a node dies and is failed over, and comes back.

mod etcd;
mod load;
mod map;
mod upgrade;

use std::path::PathBuf;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use harness::child::{commit, headline, release_build};
use harness::http;
use harness::stave::{BUCKET, Start, Stave};
use harness::tree::Scratch;
use serde_json::{Value, json};

use etcd::Etcd;
use load::{Load, Tally, Verdict};
use map::Maps;

/// How much.
#[derive(Args)]
pub struct ClusterOptions {
    /// Connections that write durably, each waiting for every answer.
    #[arg(long, default_value_t = 8)]
    writers: usize,
    /// Seconds of quiet before, between and after what happens.
    #[arg(long, default_value_t = 5)]
    seconds: u64,
    /// Copies of each vBucket beside the active one: with one, what a dead node had a copy of takes no durable writes
    /// until the copies are spread again.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..=2))]
    replicas: u8,
    /// Seconds after a lease has run out until its node is failed over.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=3600))]
    auto_failover: u64,
    /// Instead: three nodes of this program, an older version, are replaced by the release one after the other.
    #[arg(long, value_name = "PROGRAM")]
    upgrade_from: Option<PathBuf>,
    /// Close with one line of JSON.
    #[arg(long)]
    json: bool,
}

/// Between two looks at the cluster.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// What takes longer has lost its way.
const STUCK: Duration = Duration::from_secs(180);

/// One part of the run.
struct Part {
    name: &'static str,
    took: Duration,
    /// What there is to say about it.
    remark: String,
}

/// The cluster of the run.
struct Run {
    nodes: Vec<Stave>,
    scratch: Scratch,
    join: String,
    maps: Maps,
    started: usize,
    /// What nodes are started with; `None`: the release.
    program: Option<PathBuf>,
    _etcd: Etcd,
}

/// Runs it; whether nothing was lost.
pub fn run(options: &ClusterOptions) -> Result<bool> {
    release_build()?;
    headline("a cluster on etcd");
    let scratch = Scratch::new("cluster")?;
    let etcd = Etcd::start(scratch.path())?;
    let join = format!("etcd://{}/run", etcd.address);
    let program = options.upgrade_from.clone();
    let (nodes, maps) = (Vec::new(), Maps::default());
    let mut run = Run { nodes, scratch, join, maps, started: 0, program, _etcd: etcd };
    let result = match options.upgrade_from {
        Some(_) => upgrade::all_parts(options, &mut run),
        None => all_parts(options, &mut run),
    };
    if result.is_err() {
        run.scratch.keep();
    }
    let (parts, tallies, verdict) = result?;
    print_table(&parts, &tallies);
    let Verdict { keys, acknowledged, lost, invented } = verdict;
    println!(
        "\n{acknowledged} durable writes were acknowledged, {keys} keys read back: {lost} lost, {invented} invented"
    );
    if options.json {
        println!("{}", to_json(&parts, &tallies, verdict));
    }
    Ok(lost == 0 && invented == 0)
}

fn all_parts(options: &ClusterOptions, run: &mut Run) -> Result<(Vec<Part>, Vec<Tally>, Verdict)> {
    let quiet = Duration::from_secs(options.seconds);
    run.begin(options)?;
    let load = Load::start(&run.maps, options.writers);
    let mut parts = Vec::new();
    let mut part = |name: &'static str, what: &mut dyn FnMut() -> Result<String>| -> Result<()> {
        println!("{name} ...");
        let begun = Instant::now();
        let remark = what()?;
        parts.push(Part { name, took: begun.elapsed(), remark });
        load.check()?;
        load.next_part();
        Ok(())
    };
    let mut rest = || {
        thread::sleep(quiet);
        Ok(String::new())
    };
    part("three nodes", &mut rest)?;
    part("a node is added", &mut || {
        run.start_node("added")?;
        run.tell_maps();
        Ok(String::new())
    })?;
    part("rebalance", &mut || {
        run.post(0, "/controller/rebalance", "")?;
        let moved = run.document(0)?["rebalance"]["total"].as_u64().unwrap_or(0);
        run.await_quiet(0)?;
        Ok(format!("{moved} vBuckets moved"))
    })?;
    part("four nodes", &mut rest)?;
    part("kill -9, until all is served again", &mut || {
        let victim = run.nodes.remove(1);
        let address = victim.kv.clone();
        run.tell_maps();
        let begun = Instant::now();
        victim.kill()?;
        let noticed = run.await_document(0, "the dead node is failed over", |document| {
            status_of(document, &address) == Some("failed_over")
        })?;
        let decided = begun.elapsed();
        while !run.maps.newest().is_whole_without(&address) {
            ensure!(begun.elapsed() < STUCK, "not all vBuckets are served again: {noticed}");
            run.maps.ask();
            thread::sleep(LOOK_EVERY);
        }
        let served = begun.elapsed();
        Ok(format!(
            "failed over after {:.2} s, served {:.0} ms later",
            decided.as_secs_f64(),
            (served - decided).as_secs_f64() * 1e3
        ))
    })?;
    part("three nodes are left", &mut rest)?;
    part("it comes back with its copies", &mut || {
        run.take_back(1, "node")?;
        run.started = 4;
        Ok("delta recovery and rebalance".to_owned())
    })?;
    part("four nodes again", &mut rest)?;
    part("a node leaves", &mut || {
        let address = run.nodes[1].kv.clone();
        let id = id_of(&run.document(0)?, &address).context("it is a node")?;
        run.post(0, "/controller/rebalance", &format!("ejectedNodes={id}"))?;
        run.await_quiet(0)?;
        Ok(String::new())
    })?;
    part("three nodes stay", &mut rest)?;
    let written = load.stop()?;
    let verdict = written.verify()?;
    for node in run.nodes.drain(..) {
        node.stop()?;
    }
    Ok((parts, written.parts, verdict))
}

impl Run {
    /// Three nodes with a bucket.
    fn begin(&mut self, options: &ClusterOptions) -> Result<()> {
        for _ in 0..3 {
            self.start_node("node")?;
        }
        self.post(0, "/controller/rebalance", "")?;
        self.await_quiet(0)?;
        let form = format!("enabled=true&timeout={}&maxCount=10", options.auto_failover);
        self.post(0, "/settings/autoFailover", &form)?;
        let form = format!("name={BUCKET}&ramQuotaMB=256&replicaNumber={}", options.replicas);
        self.post(0, "/pools/default/buckets", &form)?;
        self.tell_maps();
        self.maps.ask();
        Ok(())
    }

    /// Starts a node that joins; its folder goes by how many were started before.
    fn start_node(&mut self, what: &str) -> Result<()> {
        let number = self.started;
        self.started += 1;
        let data = self.scratch.path().join(format!("n{number}"));
        let log = self.scratch.path().join(format!("n{number}-{what}-{}.log", self.nodes.len()));
        let more = ["--join", &self.join, "--threads", "1"];
        let node = match &self.program {
            None => Stave::start(&Start { data: &data, log, more: &more })?,
            Some(program) => {
                let mut command = Command::new(program);
                command.arg("serve").arg("--data").arg(&data);
                Stave::launch(command, &log, &more)?
            }
        };
        self.nodes.push(node);
        Ok(())
    }

    /// Starts the node again that was started as this number and was failed over, and takes it back with its copies.
    fn take_back(&mut self, number: usize, what: &str) -> Result<()> {
        self.started = number;
        self.start_node(what)?;
        let address = self.nodes.last().map(|node| node.kv.clone()).unwrap_or_default();
        let found = self.await_document(0, "the node is known again", |document| {
            status_of(document, &address) == Some("failed_over")
        })?;
        let id = id_of(&found, &address).context("it is a node")?;
        self.tell_maps();
        self.post(0, "/controller/setRecoveryType", &format!("otpNode={id}&recoveryType=delta"))?;
        self.post(0, "/controller/rebalance", "")?;
        self.await_quiet(0)
    }

    fn tell_maps(&self) {
        self.maps.ask_at(self.nodes.iter().map(|node| node.http.clone()).collect());
    }

    /// Asks until it is not refused: what happened before may have to end.
    fn post(&self, node: usize, path: &str, form: &str) -> Result<()> {
        let begun = Instant::now();
        loop {
            match http::request(&self.nodes[node].http, "POST", path, form) {
                Ok(_) => return Ok(()),
                Err(error) if begun.elapsed() > STUCK => return Err(error),
                Err(_) => thread::sleep(LOOK_EVERY),
            }
        }
    }

    fn document(&self, node: usize) -> Result<Value> {
        let answer = http::request(&self.nodes[node].http, "GET", "/v1/cluster", "")?;
        Ok(serde_json::from_str::<Value>(&answer)?["state"].take())
    }

    fn await_document(&self, node: usize, what: &str, is_so: impl Fn(&Value) -> bool) -> Result<Value> {
        let begun = Instant::now();
        loop {
            let document = self.document(node)?;
            if is_so(&document) {
                return Ok(document);
            }
            if begun.elapsed() > STUCK {
                bail!("{what}: not so; the log of the node ends with:\n{}", self.nodes[node].log_tail());
            }
            thread::sleep(LOOK_EVERY);
        }
    }

    fn await_quiet(&self, node: usize) -> Result<()> {
        let document =
            self.await_document(node, "the rebalance ends", |document| document["rebalance"].is_null())?;
        let outcome = &document["finished"]["outcome"];
        ensure!(outcome == "done", "the rebalance ended as {outcome}");
        Ok(())
    }
}

fn nodes(document: &Value) -> impl Iterator<Item = (&String, &Value)> {
    document["nodes"].as_object().into_iter().flatten()
}

fn is_at(node: &Value, kv: &str) -> bool {
    let address = &node["address"];
    format!("{}:{}", address["host"].as_str().unwrap_or_default(), address["kv"]) == kv
}

fn status_of<'d>(document: &'d Value, kv: &str) -> Option<&'d str> {
    nodes(document).find(|(_, node)| is_at(node, kv))?.1["status"].as_str()
}

fn id_of(document: &Value, kv: &str) -> Option<String> {
    nodes(document).find(|(_, node)| is_at(node, kv)).map(|(id, _)| format!("n_{id}"))
}

/// The value that so many percent of the sorted ones do not exceed, in milliseconds.
fn percentile_ms(sorted_us: &[u64], percent: usize) -> f64 {
    let at = (sorted_us.len() * percent).div_ceil(100).max(1) - 1;
    sorted_us.get(at).map_or(0.0, |us| *us as f64 / 1e3)
}

fn print_table(parts: &[Part], tallies: &[Tally]) {
    println!(
        "\n{:<36}{:>9}{:>10}{:>11}{:>10}{:>12}  seen by clients",
        "", "seconds", "writes", "p50, ms", "p99, ms", "most, ms"
    );
    for (at, part) in parts.iter().enumerate() {
        let mut sorted = tallies.get(at).map(|tally| tally.took_us.clone()).unwrap_or_default();
        sorted.sort_unstable();
        let of = |percent| percentile_ms(&sorted, percent);
        let errors = tallies.get(at).into_iter().flat_map(|tally| &tally.errors);
        let mut seen: Vec<String> = errors.map(|(name, count)| format!("{count} {name}")).collect();
        if !part.remark.is_empty() {
            seen.insert(0, part.remark.clone());
        }
        println!(
            "{:<36}{:>9.2}{:>10}{:>11.2}{:>10.2}{:>12.2}  {}",
            part.name,
            part.took.as_secs_f64(),
            sorted.len(),
            of(50),
            of(99),
            of(100),
            seen.join(", ")
        );
    }
}

fn to_json(parts: &[Part], tallies: &[Tally], verdict: Verdict) -> Value {
    let part = |(at, part): (usize, &Part)| {
        let mut sorted = tallies.get(at).map(|tally| tally.took_us.clone()).unwrap_or_default();
        sorted.sort_unstable();
        json!({
            "name": part.name, "seconds": part.took.as_secs_f64(), "remark": part.remark, "writes": sorted.len(),
            "p50_ms": percentile_ms(&sorted, 50), "p99_ms": percentile_ms(&sorted, 99),
            "most_ms": percentile_ms(&sorted, 100), "errors": tallies.get(at).map(|tally| &tally.errors),
        })
    };
    json!({
        "bench": "cluster", "commit": commit(), "parts": parts.iter().enumerate().map(part).collect::<Vec<_>>(),
        "acknowledged": verdict.acknowledged, "keys": verdict.keys, "lost": verdict.lost, "invented": verdict.invented,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_are_found_by_address() {
        let document = json!({ "nodes": {
            "3": { "address": { "host": "h", "kv": 1 }, "status": "active" },
            "4": { "address": { "host": "h", "kv": 2 }, "status": "failed_over" },
        } });
        assert_eq!(
            (status_of(&document, "h:2"), id_of(&document, "h:2")),
            (Some("failed_over"), Some("n_4".to_owned()))
        );
        assert_eq!(status_of(&document, "h:3"), None);
    }

    #[test]
    fn percentiles_are_values() {
        let values: Vec<u64> = (1..=100).map(|at| at * 1_000).collect();
        assert_eq!(
            (percentile_ms(&values, 50), percentile_ms(&values, 100), percentile_ms(&[], 50)),
            (50.0, 100.0, 0.0)
        );
    }
}
