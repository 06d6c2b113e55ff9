//! `bench scrape`: processor time of a scrape of Prometheus of a node with many buckets and collections, and how long a
//! scrape holds the lock of a vBucket.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use base::vbucket_map::vbucket_of;
use clap::Args;
use harness::client::Client;
use harness::http::request;
use harness::stave::{BUCKET, Start, Stave};
use harness::tree::Scratch;
use protocol::{RequestParts, opcode};
use serde_json::{Value, json};

use super::interruptions::{Interruptions, held_s};
use super::locks::{Holds, STATS, added, holds_of_selected, run_on};
use super::output::{Output, Program};
use super::process::{core_share, whole_cpu_seconds};
use super::report::{Report, median};

/// How much there is.
#[derive(Args)]
pub struct ScrapeOptions {
    /// Buckets, each with 1,024 vBuckets.
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u32).range(1..=30))]
    buckets: u32,
    /// Collections in all buckets together.
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=1000))]
    collections: u32,
    /// Measure with so many collections in each bucket, too: that takes minutes to make and 4 GiB of memory.
    #[arg(long)]
    of_each: bool,
    /// Documents of each bucket.
    #[arg(long, default_value_t = 2000)]
    documents: u32,
    /// Scrapes that are measured.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..))]
    scrapes: u32,
    /// Scrapes, each behind a change of all documents, that only the holds of locks are measured with.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    changed: u32,
    #[command(flatten)]
    program: Program,
    #[command(flatten)]
    output: Output,
}

/// The most processor time that a scrape may take, in milliseconds.
const MOST_CPU_MS: f64 = 50.0;
/// The longest hold of a lock that is allowed, in microseconds.
const LONGEST_US: f64 = 50.0;
const VBUCKETS: u16 = 1024;
/// Room for 1,000 collections in each of 1,024 vBuckets.
const QUOTA: &str = "256MiB";
/// A node that uses less of a core than this has nothing left to write; it is waited for so long.
const QUIET_SHARE: f64 = 0.03;
const QUIET_WITHIN: Duration = Duration::from_secs(60);
const LOOK: Duration = Duration::from_secs(2);
/// For so long the idle node is watched.
const IDLE: Duration = Duration::from_secs(10);

/// Measures.
pub fn run(options: &ScrapeOptions) -> Result<Report> {
    let program = options.program.ready()?;
    let scratch = Scratch::new("scrape")?;
    let names: Vec<String> =
        (0..options.buckets).map(|at| if at == 0 { BUCKET.to_owned() } else { format!("b{at}") }).collect();
    let buckets: Vec<String> = names.iter().map(|name| format!("{name}:{QUOTA}")).collect();
    let more: Vec<&str> = buckets.iter().flat_map(|bucket| ["--bucket", bucket.as_str()]).collect();
    let (data, log) = (scratch.path().join("data"), scratch.path().join("server.log"));
    let server = Stave::start_binary(&program, &Start { data: &data, log, more: &more }, None)?;
    if !run_on(server.pid()) {
        println!("the node's threads cannot run on (`chrt`, as root): a hold includes the wait for a CPU");
    }
    let mut clients = names.iter().map(|name| select(&server, name)).collect::<Result<Vec<_>>>()?;
    clients.iter_mut().try_for_each(|client| fill(client, options.documents))?;
    let mut report = Report::new("scrape", options.output.json);
    let in_all = options.collections.div_ceil(options.buckets);
    let rows = [("in_all", in_all), ("of_each", options.collections)];
    for (row, each) in rows.into_iter().take(if options.of_each { 2 } else { 1 }) {
        for name in &names {
            make_collections(&server, name, each)?;
        }
        measure(&server, &mut clients, options, row, each, &mut report)?;
    }
    server.kill()?;
    Ok(report)
}

fn select(server: &Stave, bucket: &str) -> Result<Client> {
    let mut client = Client::connect(&server.kv)?;
    let key = bucket.as_bytes();
    client.push(&RequestParts { opcode: opcode::SELECT_BUCKET, key, ..RequestParts::default() });
    client.flush()?;
    ensure!(client.answer()?.is_ok(), "cannot select {bucket}");
    Ok(client)
}

fn fill(client: &mut Client, documents: u32) -> Result<()> {
    let keys: Vec<String> = (0..documents).map(|at| format!("document-{at}")).collect();
    for key in &keys {
        client.push_set(vbucket_of(key.as_bytes(), VBUCKETS), key.as_bytes(), 0, b"{}", false);
    }
    client.flush()?;
    for _ in &keys {
        ensure!(client.answer()?.is_ok(), "a document was refused");
    }
    client.await_persisted()
}

/// Has a bucket so many collections, the default one among them.
fn make_collections(server: &Stave, bucket: &str, count: u32) -> Result<()> {
    let made: Vec<Value> = (1..count).map(|at| json!({ "name": format!("c{at}") })).collect();
    let scopes = json!({ "scopes": [
        { "name": "_default", "collections": [{ "name": "_default" }] },
        { "name": "made", "collections": made },
    ] });
    let path = format!("/pools/default/buckets/{bucket}/scopes");
    request(&server.http, "PUT", &path, &scopes.to_string()).map(drop)
}

fn measure(
    server: &Stave,
    clients: &mut [Client],
    options: &ScrapeOptions,
    row: &str,
    each: u32,
    report: &mut Report,
) -> Result<()> {
    let text = request(&server.http, "GET", "/metrics", "")?;
    // Every name must be there: a page without them would be cheap.
    let told = text.lines().filter(|line| line.starts_with("stave_collection_items{")).count();
    ensure!(told == clients.len() * each as usize, "the page tells of {told} collections");
    // What so many buckets cost while no client asks anything is not the scrape's.
    let idle = idle_share(server)?;
    let (mut wall_ms, cpu_s) = (Vec::new(), whole_cpu_seconds(server.pid())?);
    for _ in 0..options.scrapes {
        let begun = Instant::now();
        request(&server.http, "GET", "/metrics", "")?;
        wall_ms.push(begun.elapsed().as_secs_f64() * 1e3);
    }
    // The thread that makes a page may have ended: its time counts.
    let spent_ms = (whole_cpu_seconds(server.pid())? - cpu_s) * 1e3 - idle * wall_ms.iter().sum::<f64>();
    let (held, machine) = Interruptions::during(|| changed(server, clients, options))?;
    tell_holds(&held, &machine, row, report);
    report.detail(&format!("bytes_{row}"), json!(text.len()));
    report.detail(&format!("collections_{row}"), json!(told));
    println!("{} buckets, {told} collections {row}: {} bytes", clients.len(), text.len());
    report.add(&format!("idle_percent_of_a_core_{row}"), idle * 100.0, None);
    report.add(&format!("collections_{row}"), told as f64, None);
    report.add(&format!("cpu_ms_{row}"), spent_ms / f64::from(options.scrapes), Some(MOST_CPU_MS));
    report.add(&format!("wall_ms_{row}"), median(&mut wall_ms), None);
    Ok(())
}

/// Holds of locks by scrapes that each come behind a change of all documents: a scrape of a quiet node holds none.
fn changed(server: &Stave, clients: &mut [Client], options: &ScrapeOptions) -> Result<Holds> {
    let before = clients.iter_mut().map(holds).collect::<Result<Vec<_>>>()?;
    for _ in 0..options.changed {
        clients.iter_mut().try_for_each(|client| fill(client, options.documents))?;
        request(&server.http, "GET", "/metrics", "")?;
    }
    let mut new = Holds::new();
    for (client, before) in clients.iter_mut().zip(&before) {
        for (to_ns, count) in added(&holds(client)?, Some(before)) {
            *new.entry(to_ns).or_default() += count;
        }
    }
    Ok(new)
}

/// Tells what the locks were held for. What a hold was interrupted for is not the scrape's.
fn tell_holds(holds: &Holds, machine: &Interruptions, row: &str, report: &mut Report) {
    let longest = machine.longest(holds);
    let long_ns = (LONGEST_US * 1e3) as u64;
    let long: u64 = holds.range(long_ns..).map(|(_, count)| count).sum();
    let expected = machine.expected(long_ns, held_s(holds));
    let count: u64 = holds.values().sum();
    println!(
        "{count} holds of locks, {:.3} s of them; over {LONGEST_US} us {long}, where interruptions of this machine come to {expected:.2}",
        held_s(holds)
    );
    report.detail(&format!("holds_{row}"), count.into());
    report.detail(&format!("long_holds_{row}"), long.into());
    report.detail(&format!("long_interruptions_{row}"), expected.into());
    report.add(&format!("interruption_us_{row}"), machine.longest_ns() as f64 / 1e3, None);
    report.add(&format!("longest_hold_interrupted_or_not_us_{row}"), longest.any_ns as f64 / 1e3, None);
    report.add(&format!("longest_hold_us_{row}"), longest.work_ns as f64 / 1e3, Some(LONGEST_US));
}

/// What an idle node uses of one core, once it has brought its files up to date.
fn idle_share(server: &Stave) -> Result<f64> {
    let begun = Instant::now();
    while core_share(server.pid(), LOOK)? > QUIET_SHARE && begun.elapsed() < QUIET_WITHIN {}
    core_share(server.pid(), IDLE)
}

/// Timed holds of the bucket's locks by what looks at it; the question itself is one of them.
fn holds(client: &mut Client) -> Result<Holds> {
    holds_of_selected(client)?.remove(STATS).context("stats have held locks, those of this question at least")
}
