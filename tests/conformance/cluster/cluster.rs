//! What an application sees through the Rust SDK while nodes of its cluster fail: durable writes, and none of them lost.
//!
//! Every writer owns some documents and counts up in them; a number that was acknowledged must be there afterwards, or a
//! higher one that was tried. The cluster is that of `stave dev`, whose control endpoint brings about the failures.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::exit;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use couchbase::authenticator::PasswordAuthenticator;
use couchbase::cluster::Cluster;
use couchbase::collection::Collection;
use couchbase::durability_level::DurabilityLevel;
use couchbase::error::{Error, ErrorKind};
use couchbase::options::cluster_options::ClusterOptions;
use couchbase::options::diagnostic_options::WaitUntilReadyOptions;
use couchbase::options::kv_options::UpsertOptions;
use couchbase::service_type::ServiceType;
use serde_json::{Value, json};
use tokio::task::spawn_blocking;
use tokio::time::{sleep, timeout};

const LEVELS: [DurabilityLevel; 3] = [
    DurabilityLevel::MAJORITY,
    DurabilityLevel::MAJORITY_AND_PERSIST_ACTIVE,
    DurabilityLevel::PERSIST_TO_MAJORITY,
];
const WRITERS_A_LEVEL: usize = 2;
const KEYS_A_WRITER: usize = 40;
/// The SDK itself has no timeout for an operation.
const TIMEOUT: Duration = Duration::from_millis(2500);
/// How long writers may take until they go on after a failure: an SDK may wait seconds before it connects again.
const GO_ON_WITHIN: Duration = Duration::from_secs(20);
const MINUTE: Duration = Duration::from_secs(60);
const COLUMNS: [&str; 8] =
    ["ok", "retried", "timeouts", "ambiguous", "cancelled", "impossible", "unserved", "other"];

#[derive(Default)]
struct Phase {
    name: &'static str,
    counts: BTreeMap<&'static str, u64>,
    pause: Duration,
    writers: BTreeSet<String>,
}

/// What was seen in each phase, and the last number of each document that was tried and acknowledged.
#[derive(Default)]
struct Tally {
    phases: Vec<Phase>,
    tried: BTreeMap<String, u64>,
    acknowledged: BTreeMap<String, u64>,
    others: BTreeSet<String>,
}

#[derive(Clone, Default)]
struct Shared {
    tally: Arc<Mutex<Tally>>,
    is_done: Arc<AtomicBool>,
}

impl Shared {
    fn begin(&self, name: &'static str) {
        self.tally.lock().unwrap().phases.push(Phase { name, ..Phase::default() });
    }

    fn is_done(&self) -> bool {
        self.is_done.load(Ordering::Relaxed)
    }

    fn refused(&self, what: &'static str, error: &dyn std::fmt::Display) {
        let mut tally = self.tally.lock().unwrap();
        if what == "other" {
            tally.others.insert(format!("{error:.200}"));
        }
        let phase = tally.phases.last_mut().unwrap();
        *phase.counts.entry(what).or_default() += 1;
        *phase.counts.entry("retried").or_default() += 1;
    }

    /// Waits until every writer has gone on; false if some did not.
    async fn wait_for_all(&self) -> bool {
        let writers = |work: fn(&mut BTreeSet<String>)| {
            let mut tally = self.tally.lock().unwrap();
            let writers = &mut tally.phases.last_mut().unwrap().writers;
            work(writers);
            writers.len()
        };
        writers(BTreeSet::clear);
        let deadline = Instant::now() + GO_ON_WITHIN;
        while writers(|_| {}) < LEVELS.len() * WRITERS_A_LEVEL {
            if Instant::now() > deadline {
                return false;
            }
            sleep(Duration::from_millis(20)).await;
        }
        true
    }

    fn acknowledged(&self, key: &str, number: u64, writer: &str, pause: Duration) {
        let mut tally = self.tally.lock().unwrap();
        tally.acknowledged.insert(key.to_owned(), number);
        let phase = tally.phases.last_mut().unwrap();
        *phase.counts.entry("ok").or_default() += 1;
        phase.writers.insert(writer.to_owned());
        phase.pause = phase.pause.max(pause);
    }
}

/// What this version of the SDK says, as text only, of a connection that broke under a request: it may have been done.
const BROKEN: [&str; 4] = ["request cancelled", "close error", "connection ", "dispatch failed"];
/// And of a document that nobody serves at the moment, which other SDKs wait for.
const UNSERVED: &str = "no server assigned";

/// An error as an application would tell them apart.
fn what(error: &Error) -> &'static str {
    match error.kind() {
        ErrorKind::DurabilityImpossible => "impossible",
        ErrorKind::DurabilityAmbiguous => "ambiguous",
        ErrorKind::ServerTimeout => "timeouts",
        ErrorKind::RequestCanceled => "cancelled",
        ErrorKind::OtherFailure(text) if BROKEN.iter().any(|broken| text.starts_with(broken)) => "cancelled",
        ErrorKind::OtherFailure(text) if text.contains("(os error ") => "cancelled",
        ErrorKind::OtherFailure(text) if text.starts_with(UNSERVED) => "unserved",
        _ => "other",
    }
}

/// Writes one document after the other; one that is not acknowledged is written again until it is.
async fn write(collection: Collection, shared: Shared, name: String, level: DurabilityLevel) {
    let mut last = Instant::now();
    let mut round = 0;
    while !shared.is_done() {
        round += 1;
        for at in 0..KEYS_A_WRITER {
            let key = format!("rust:{name}:{at}");
            shared.tally.lock().unwrap().tried.insert(key.clone(), round);
            while !shared.is_done() {
                let options = UpsertOptions::new().durability_level(level.clone());
                match timeout(TIMEOUT, collection.upsert(&key, json!({ "n": round }), options)).await {
                    Ok(Ok(_)) => {
                        shared.acknowledged(&key, round, &name, last.elapsed());
                        last = Instant::now();
                        break;
                    }
                    Ok(Err(error)) => {
                        shared.refused(what(&error), &error);
                        sleep(Duration::from_millis(20)).await;
                    }
                    Err(elapsed) => shared.refused("timeouts", &elapsed),
                }
            }
        }
    }
}

/// Has the control endpoint do something; answers with what it tells.
fn order(method: &str, path: &str) -> Value {
    let control = std::env::var("STAVE_CONTROL").expect("STAVE_CONTROL is set by run.sh");
    let mut stream = TcpStream::connect(control.trim_start_matches("http://")).expect("it listens");
    stream.set_read_timeout(Some(MINUTE)).expect("a timeout");
    write!(stream, "{method} /v1/dev{path} HTTP/1.0\r\n\r\n").expect("it takes it");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    let (head, body) = answer.split_once("\r\n\r\n").expect("head and body");
    assert!(head.contains(" 200 "), "{path}: {body}");
    serde_json::from_str(body).expect("JSON")
}

fn post(paths: &[&str]) {
    for path in paths {
        order("POST", path);
    }
}

fn freeze() {
    post(&["/nodes/3/freeze"]);
    let deadline = Instant::now() + MINUTE;
    while order("GET", "")["nodes"][2]["status"] != "failed_over" {
        assert!(Instant::now() < deadline, "node 3 was not failed over");
    }
    post(&["/nodes/3/thaw", "/nodes/3/recover"]);
}

/// After a restart: on a busy machine a node may be away for so long that others take over from it.
fn bring_back(node: usize) {
    if order("GET", "")["nodes"][node - 1]["status"] == "failed_over" {
        post(&[&format!("/nodes/{node}/recover")]);
    }
}

fn restart() {
    post(&["/nodes/1/restart"]);
    bring_back(1);
}

fn kill() {
    post(&["/nodes/2/kill", "/nodes/2/start"]);
    bring_back(2);
}

type BringAbout = fn();
const FAILURES: [(&str, BringAbout); 4] = [
    ("failover", || post(&["/nodes/2/failover", "/nodes/2/recover"])),
    ("freeze", freeze),
    ("restart", restart),
    ("kill", kill),
];

/// Documents that do not have what was acknowledged.
async fn check(collection: &Collection, tally: &Tally) -> Vec<String> {
    let mut lost = Vec::new();
    for (key, number) in &tally.acknowledged {
        let found = timeout(MINUTE, collection.get(key, None)).await.expect("an answer");
        let found = found.and_then(|result| result.content_as::<Value>());
        let found = found.map(|value| value["n"].as_u64()).map_err(|error| error.to_string());
        if !matches!(found, Ok(Some(found)) if (*number..=tally.tried[key]).contains(&found)) {
            lost.push(format!("{key}: acknowledged {number}, found {found:?}"));
        }
    }
    lost
}

/// Prints what was seen; false if a writer did not go on after a failure, or there were unknown errors.
fn report(tally: &Tally, lost: &[String]) -> bool {
    let heads: String = COLUMNS.iter().map(|column| format!("{column:>11}")).collect();
    println!("{:<10}{heads}   longest pause", "phase");
    let count = |phase: &Phase, column: &str| phase.counts.get(column).copied().unwrap_or(0);
    for phase in &tally.phases {
        let counts: String = COLUMNS.iter().map(|column| format!("{:>11}", count(phase, column))).collect();
        println!("{:<10}{counts}   {} ms", phase.name, phase.pause.as_millis());
        if phase.writers.len() < LEVELS.len() * WRITERS_A_LEVEL {
            println!("only {} writers have gone on", phase.writers.len());
        }
    }
    tally.others.iter().chain(lost.iter().take(10)).for_each(|line| println!("{line}"));
    let sum = |column: &&str| {
        format!("{column} {}", tally.phases.iter().map(|phase| count(phase, column)).sum::<u64>())
    };
    let sums: Vec<String> = COLUMNS.iter().map(sum).collect();
    let pause = tally.phases.iter().map(|phase| phase.pause).max().unwrap_or_default();
    let (sums, documents) = (sums.join(" "), tally.acknowledged.len());
    println!("summary {sums} pause_ms {} documents {documents} lost {}", pause.as_millis(), lost.len());
    tally.others.is_empty()
        && tally.phases.iter().all(|phase| phase.writers.len() == LEVELS.len() * WRITERS_A_LEVEL)
}

#[tokio::main]
async fn main() {
    let env = |name: &str| std::env::var(name).unwrap_or_else(|_| panic!("{name} is not set by run.sh"));
    let authenticator = PasswordAuthenticator::new(env("STAVE_USER"), env("STAVE_PASSWORD"));
    let cluster = Cluster::connect(env("STAVE_CONN"), ClusterOptions::new(authenticator.into())).await;
    // Whoever drops it disconnects all that came of it.
    let cluster = cluster.expect("a connection");
    let bucket = cluster.bucket(env("STAVE_BUCKET"));
    let options = WaitUntilReadyOptions::new().service_types(vec![ServiceType::KV]);
    timeout(MINUTE, bucket.wait_until_ready(options)).await.expect("ready in time").expect("ready");
    let collection = bucket.default_collection();
    let shared = Shared::default();
    shared.begin("steady");
    let writers: Vec<_> = LEVELS
        .iter()
        .flat_map(|level| (0..WRITERS_A_LEVEL).map(move |at| (level.clone(), format!("{level}-{at}"))))
        .map(|(level, name)| tokio::spawn(write(collection.clone(), shared.clone(), name, level)))
        .collect();
    sleep(Duration::from_secs(1)).await;
    let mut goes_on = shared.wait_for_all().await;
    for (name, bring_about) in FAILURES {
        if !goes_on {
            break;
        }
        shared.begin(name);
        spawn_blocking(bring_about).await.expect("it is brought about");
        sleep(Duration::from_secs(1)).await;
        goes_on = shared.wait_for_all().await;
    }
    shared.is_done.store(true, Ordering::Relaxed);
    for writer in writers {
        writer.await.expect("it ends");
    }
    let tally = std::mem::take(&mut *shared.tally.lock().unwrap());
    let lost = check(&collection, &tally).await;
    if !report(&tally, &lost) || !lost.is_empty() {
        exit(1);
    }
}
