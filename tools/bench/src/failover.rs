//! `bench failover`: from the moment a hard failover is asked for until every vBucket of the failed node takes writes.
//!
//! A development cluster of three nodes, real sockets, an embedded coordination store. Each failover is followed by the
//! node's recovery with its copies, so that the next one finds everything spread again.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, IsTerminal};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use base::VbId;
use base::vbucket_map::vbucket_of;
use clap::Args;
use harness::child::release_build;
use harness::client::Client;
use harness::http;
use harness::stave::{BUCKET, PASSWORD};
use harness::tree;
use protocol::Status;
use serde_json::{Value, json};

use super::Output;
use super::report::{Goal, Report};

/// How much.
#[derive(Args)]
pub struct FailoverOptions {
    /// Failovers, one after the other, of one node after the other.
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..))]
    failovers: u32,
    /// vBuckets of the bucket, a power of two: what a failover has to hand over is a third of them.
    #[arg(long, default_value_t = 64)]
    vbuckets: u16,
    /// So many minutes at most: the report says how many failovers there were.
    #[arg(long, default_value_t = 30)]
    minutes: u64,
    #[command(flatten)]
    output: Output,
}

/// Between two tries of writes that nobody takes yet.
const TRY_AGAIN: Duration = Duration::from_micros(500);
/// Between two looks at how far a rebalance is.
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// What takes longer has lost its way.
const STUCK: Duration = Duration::from_secs(60);
/// The goal, in milliseconds.
const WRITABLE_WITHIN_MS: f64 = 1_000.0;

/// Measures.
pub fn run(options: &FailoverOptions) -> Result<Report> {
    ensure!(options.vbuckets.is_power_of_two() && options.vbuckets <= 1024, "a power of two up to 1,024");
    release_build()?;
    let mut report = Report::new("failover", options.output.json);
    let cluster = DevCluster::start(options.vbuckets)?;
    let mut clients = Clients::connect(&cluster, options.vbuckets)?;
    let end = Instant::now() + Duration::from_secs(options.minutes * 60);
    let (mut times_ms, mut recoveries_ms) = (Vec::new(), Vec::new());
    for at in 0..options.failovers {
        if Instant::now() > end {
            break;
        }
        let victim = at as usize % cluster.nodes.len();
        let asked = (victim + 1) % cluster.nodes.len();
        let took = fail_over(&cluster, &mut clients, victim, asked)
            .with_context(|| format!("failover {} of node {}", at + 1, victim + 1))?;
        times_ms.push(took.as_secs_f64() * 1e3);
        let begun = Instant::now();
        recover(&cluster, victim, asked).with_context(|| format!("recovery of node {}", victim + 1))?;
        recoveries_ms.push(begun.elapsed().as_secs_f64() * 1e3);
        progress(at + 1, options.failovers, &times_ms);
    }
    cluster.stop()?;
    times_ms.sort_by(f64::total_cmp);
    recoveries_ms.sort_by(f64::total_cmp);
    let of = |percent: usize| percentile(&times_ms, percent);
    report.figure("failovers", times_ms.len() as f64, None);
    report.figure("writable again after, p50, ms", of(50), None);
    report.figure("writable again after, p99, ms", of(99), Some(Goal::AtMost(WRITABLE_WITHIN_MS)));
    report.figure("writable again after, most, ms", of(100), None);
    report.figure("recovered and spread again, p50, ms", percentile(&recoveries_ms, 50), None);
    report.detail("vbuckets", json!(options.vbuckets));
    report.detail("asked_for", json!(options.failovers));
    Ok(report)
}

fn progress(done: u32, of: u32, times_ms: &[f64]) {
    let most = times_ms.iter().copied().fold(0.0, f64::max);
    let last = times_ms.last().copied().unwrap_or_default();
    if std::io::stderr().is_terminal() {
        eprint!("\r{done} of {of} failovers, the last one {last:.1} ms, at most {most:.1} ms\x1b[K");
        if done == of {
            eprintln!();
        }
    } else if done.is_multiple_of(100) {
        eprintln!("{done} of {of} failovers, at most {most:.1} ms");
    }
}

/// The least value that so many percent of the sorted values do not exceed.
fn percentile(sorted: &[f64], percent: usize) -> f64 {
    let at = (sorted.len() * percent).div_ceil(100).max(1) - 1;
    sorted.get(at).copied().unwrap_or_default()
}

/// `stave dev` with three nodes, which ends with this value.
struct DevCluster {
    child: Child,
    /// KV and HTTP of each.
    nodes: Vec<(String, String)>,
}

impl DevCluster {
    fn start(vbuckets: u16) -> Result<DevCluster> {
        let mut child = Command::new(tree::release_binary())
            .args(["dev", "--nodes", "3", "--replicas", "1", "--kv", "127.0.0.1:0", "--http", "127.0.0.1:0"])
            .args(["--vbuckets", &vbuckets.to_string(), "--auto-failover-ms", "off", "--json"])
            .args(["--bucket", BUCKET, "--password", PASSWORD])
            // Nobody fails but who is told to: a busy machine renews leases late.
            .args(["--lease-ms", "10000"])
            .env("STAVE_LOG", "error")
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot run stave dev")?;
        let stdout = child.stdout.take().context("the output is piped")?;
        let mut cluster = DevCluster { child, nodes: Vec::new() };
        let mut line = String::new();
        BufReader::new(stdout).read_line(&mut line)?;
        let told: Value = serde_json::from_str(&line).context("stave dev did not say that it is ready")?;
        let text = |node: &Value, name: &str| node[name].as_str().map(str::to_owned);
        let nodes = told["nodes"].as_array().into_iter().flatten();
        let nodes: Option<Vec<_>> =
            nodes.map(|node| Some((text(node, "kv")?, text(node, "http")?))).collect();
        cluster.nodes = nodes.filter(|nodes| nodes.len() == 3).context("stave dev tells of three nodes")?;
        Ok(cluster)
    }

    /// The cluster's document as a node sees it.
    fn document(&self, asked: usize) -> Result<Value> {
        let answer = http::request(&self.nodes[asked].1, "GET", "/v1/cluster", "")?;
        Ok(serde_json::from_str::<Value>(&answer)?["state"].take())
    }

    /// The document once every vBucket has all of its copies.
    fn whole(&self, asked: usize) -> Result<Value> {
        let begun = Instant::now();
        loop {
            let document = self.document(asked)?;
            if document["rebalance"].is_null() && is_whole(&document) {
                return Ok(document);
            }
            ensure!(begun.elapsed() < STUCK, "the copies are not there again: {document}");
            thread::sleep(LOOK_EVERY);
        }
    }

    /// Asks until it is not refused: what a failover leaves to do takes a moment.
    fn ask(&self, asked: usize, path: &str, form: &str) -> Result<()> {
        let begun = Instant::now();
        loop {
            match http::request(&self.nodes[asked].1, "POST", path, form) {
                Ok(_) => return Ok(()),
                Err(error) if begun.elapsed() > STUCK => return Err(error),
                Err(_) => thread::sleep(LOOK_EVERY),
            }
        }
    }

    fn stop(mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }
}

impl Drop for DevCluster {
    fn drop(&mut self) {
        // Only on the way out of an error: `stop` has waited already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A connection to each node, and a key of each vBucket.
struct Clients {
    nodes: Vec<Client>,
    keys: Vec<Vec<u8>>,
}

impl Clients {
    fn connect(cluster: &DevCluster, vbuckets: u16) -> Result<Clients> {
        let nodes = cluster.nodes.iter().map(|(kv, _)| Client::connect(kv)).collect::<Result<Vec<_>>>()?;
        let mut keys = vec![Vec::new(); usize::from(vbuckets)];
        let mut missing = keys.len();
        for at in 0_u64.. {
            let key = format!("failover-{at}").into_bytes();
            let place = &mut keys[usize::from(vbucket_of(&key, vbuckets).0)];
            if place.is_empty() {
                *place = key;
                missing -= 1;
            }
            if missing == 0 {
                break;
            }
        }
        Ok(Clients { nodes, keys })
    }

    /// Writes to vBuckets at one node; those that it does not take.
    fn write(&mut self, node: usize, vbs: &[u16]) -> Result<Vec<u16>> {
        let client = &mut self.nodes[node];
        for vb in vbs {
            client.push_set(VbId(*vb), &self.keys[usize::from(*vb)], 0, b"written", false);
        }
        client.flush()?;
        let mut left = Vec::new();
        for vb in vbs {
            match Status::from_code(client.answer()?.status_code) {
                Some(Status::Success) => {}
                Some(Status::NotMyVbucket | Status::Etmpfail | Status::Ebusy) => left.push(*vb),
                other => bail!("a write to vBucket {vb} was answered {other:?}"),
            }
        }
        Ok(left)
    }
}

/// What a node is active for, by who has the next copy.
fn heirs(cluster: &DevCluster, document: &Value, id: u64) -> Result<BTreeMap<usize, Vec<u16>>> {
    let map = document["buckets"][BUCKET]["map"].as_array().context("the document has a map")?;
    let mut heirs: BTreeMap<usize, Vec<u16>> = BTreeMap::new();
    for (vb, chain) in (0_u16..).zip(map) {
        if chain[0].as_u64() == Some(id) {
            let heir = chain[1].as_u64().with_context(|| format!("vBucket {vb} has no replica"))?;
            let node = &document["nodes"][heir.to_string()]["address"];
            let kv = format!("{}:{}", node["host"].as_str().unwrap_or_default(), node["kv"]);
            let place = cluster.nodes.iter().position(|(address, _)| *address == kv);
            heirs.entry(place.context("a node is where it was")?).or_default().push(vb);
        }
    }
    Ok(heirs)
}

fn id_of(cluster: &DevCluster, document: &Value, node: usize) -> Result<u64> {
    let nodes = document["nodes"].as_object().into_iter().flatten();
    let kv = |node: &Value| {
        let address = &node["address"];
        format!("{}:{}", address["host"].as_str().unwrap_or_default(), address["kv"])
    };
    let mut ids = nodes.filter(|(_, of)| kv(of) == cluster.nodes[node].0);
    ids.next().and_then(|(id, _)| id.parse().ok()).context("the node belongs to the cluster")
}

/// From the request until the last vBucket has taken a write.
fn fail_over(cluster: &DevCluster, clients: &mut Clients, victim: usize, asked: usize) -> Result<Duration> {
    let document = cluster.whole(asked)?;
    let id = id_of(cluster, &document, victim)?;
    let mut left = heirs(cluster, &document, id)?;
    ensure!(!left.is_empty(), "the node is active for nothing");
    thread::scope(|scope| {
        let begun = Instant::now();
        let decision = scope.spawn(|| {
            let form = format!("otpNode=n_{id}");
            http::request(&cluster.nodes[asked].1, "POST", "/controller/failOver", &form)
        });
        while !left.is_empty() {
            ensure!(begun.elapsed() < STUCK, "vBuckets take no writes: {left:?}");
            for (node, vbs) in &mut left {
                *vbs = clients.write(*node, vbs)?;
            }
            left.retain(|_, vbs| !vbs.is_empty());
            if !left.is_empty() {
                thread::sleep(TRY_AGAIN);
            }
        }
        let took = begun.elapsed();
        decision.join().map_err(|_| anyhow!("whoever asked panicked"))??;
        Ok(took)
    })
}

/// The node comes back with its copies, and everything is spread again.
fn recover(cluster: &DevCluster, victim: usize, asked: usize) -> Result<()> {
    let id = id_of(cluster, &cluster.document(asked)?, victim)?;
    cluster.ask(asked, "/controller/setRecoveryType", &format!("otpNode=n_{id}&recoveryType=delta"))?;
    cluster.ask(asked, "/controller/rebalance", "")?;
    cluster.whole(asked).map(drop)
}

/// Whether every vBucket has all of its copies, and nothing is under way. On a machine that is too busy to renew leases
/// in time copies are repaired after a rebalance.
fn is_whole(document: &Value) -> bool {
    let bucket = &document["buckets"][BUCKET];
    let mut chains = bucket["map"].as_array().into_iter().flatten().filter_map(Value::as_array);
    bucket["steps"].is_null() && chains.all(|chain| chain.iter().all(Value::is_u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_copy_is_waited_for() {
        let document =
            |map: Value, steps: Value| json!({ "buckets": { BUCKET: { "map": map, "steps": steps } } });
        assert!(is_whole(&document(json!([[1, 2], [2, 1]]), Value::Null)));
        assert!(!is_whole(&document(json!([[1, 2], [2, null]]), Value::Null)));
        assert!(!is_whole(&document(json!([[1, 2]]), json!({ "0": { "settle": { "since": 1 } } }))));
    }

    #[test]
    fn percentiles_are_values() {
        let values: Vec<f64> = (1..=200).map(f64::from).collect();
        assert_eq!(
            (percentile(&values, 50), percentile(&values, 99), percentile(&values, 100)),
            (100.0, 198.0, 200.0)
        );
        assert_eq!(percentile(&[7.0], 99), 7.0);
    }
}
