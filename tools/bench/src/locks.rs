//! `bench locks`: how long the lock of a vBucket is held while values are as long as they may be, by operation and holder,
//! on a node and on its replica.

use std::collections::BTreeMap;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use base::{Cas, VbId};
use clap::Args;
use harness::client::Client;
use harness::stave::{BUCKET, Start, Stave};
use harness::tree::Scratch;
use protocol::{RequestParts, opcode};
use serde_json::json;

use super::output::{Output, Program};
use super::report::Report;
use super::syncwrites::replicate;

/// How much is done.
#[derive(Args)]
pub struct LocksOptions {
    /// Times that each operation is done; of the holds by operations of clients one in 64 is timed.
    #[arg(long, default_value_t = 192)]
    operations: u32,
    /// Length of the values, in bytes. Documents may have 20 MiB; what lengthens them needs a little of that.
    #[arg(long, default_value_t = (20 << 20) - 4096, value_parser = clap::value_parser!(u32).range(1..=(20 << 20)))]
    value_bytes: u32,
    #[command(flatten)]
    program: Program,
    #[command(flatten)]
    output: Output,
}

/// All operations meet in one vBucket, so that its holds are timed often enough.
const VB: VbId = VbId(0);
const DOCUMENT: &[u8] = b"document";
const MAJORITY: &[u8] = &[0x11, 0x01];
/// The longest hold that is allowed, in microseconds.
const LONGEST_US: f64 = 50.0;
/// Far from now, and different from one operation to the next.
const EXPIRY: u32 = 4_000_000_000;

/// Something a client does, `n` times.
type Operation = fn(&mut Client, &[u8], u32) -> Result<()>;

const OPERATIONS: [(&str, Operation); 8] = [
    ("set", |client, value, _| request(client, &set(value, &[])).map(drop)),
    ("durable set", |client, value, _| request(client, &set(value, MAJORITY)).map(drop)),
    ("get", |client, _, _| request(client, &plain(opcode::GET)).map(drop)),
    ("touch", |client, _, n| touch(client, opcode::TOUCH, n)),
    ("get and touch", |client, _, n| touch(client, opcode::GAT, n)),
    ("lock, unlock", |client, _, _| lock_and_unlock(client)),
    ("sub-document", |client, _, n| change_a_path(client, n)),
    ("set, delete", |client, value, _| {
        request(client, &set(value, &[]))?;
        request(client, &plain(opcode::DELETE)).map(drop)
    }),
];

/// Timed holds by the end of their range in nanoseconds.
pub type Holds = BTreeMap<u64, u64>;

/// Measures.
pub fn run(options: &LocksOptions) -> Result<Report> {
    let program = options.program.ready()?;
    let scratch = Scratch::new("locks")?;
    let start = |name: &str| {
        let log = scratch.path().join(format!("{name}.log"));
        let bucket = format!("{BUCKET}:4GiB");
        let data = scratch.path().join(name);
        Stave::start_binary(&program, &Start { data: &data, log, more: &["--bucket", &bucket] }, None)
    };
    let nodes = [("active", start("active")?), ("replica", start("replica")?)];
    let whole = nodes.iter().all(|(_, node)| run_on(node.pid()));
    if !whole {
        println!(
            "the nodes' threads cannot run on (`chrt`, as root): a hold includes the time in which its thread waits for a CPU"
        );
    }
    replicate(&nodes[0].1, &nodes[1].1, VB.0 + 1)?;
    let mut client = Client::connect(&nodes[0].1.kv)?;
    let value = document(options.value_bytes as usize);
    request(&mut client, &set(&value, MAJORITY))?;
    let mut report = Report::new("locks", options.output.json);
    let mut longest = 0.0;
    println!("{:<14} {:<8} {:<20} {:>7} {:>16}", "operation", "node", "holder", "timed", "longest under us");
    for (name, operation) in OPERATIONS {
        let before = nodes.iter().map(|(_, node)| holds(node)).collect::<Result<Vec<_>>>()?;
        for n in 0..options.operations {
            operation(&mut client, &value, n).with_context(|| format!("{name}, number {n}"))?;
        }
        client.await_persisted()?;
        for ((node, server), before) in nodes.iter().zip(&before) {
            for (holder, now) in holds(server)? {
                let new = newer(&now, before.get(&holder));
                let Some((timed, longest_ns)) = new else { continue };
                let us = longest_ns as f64 / 1e3;
                println!("{name:<14} {node:<8} {holder:<20} {timed:>7} {us:>16.1}");
                let row =
                    json!({ "operation": name, "node": node, "holder": holder, "timed": timed, "us": us });
                report.detail(&format!("{name}, {node}, {holder}"), row);
                longest = f64::max(longest, us);
            }
        }
    }
    report.detail("threads_run_on", whole.into());
    report.add("longest_hold_us", longest, Some(LONGEST_US));
    nodes.into_iter().rev().try_for_each(|(_, node)| node.kill())?;
    Ok(report)
}

/// Has the threads of a process run on until they wait, so that a hold is as long as its work; whether that is allowed.
pub fn run_on(pid: u32) -> bool {
    let mut chrt = Command::new("chrt");
    chrt.args(["--all-tasks", "--fifo", "--pid", "1", &pid.to_string()]);
    chrt.stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|status| status.success())
}

/// Holds that came since.
pub fn added(now: &Holds, before: Option<&Holds>) -> Vec<(u64, u64)> {
    let had = |to: &u64| before.and_then(|before| before.get(to)).copied().unwrap_or_default();
    now.iter().map(|(to, count)| (*to, count - had(to))).filter(|(_, count)| *count > 0).collect()
}

/// How many holds were added and the end of the longest one's range; nothing if none was.
fn newer(now: &Holds, before: Option<&Holds>) -> Option<(u64, u64)> {
    let added = added(now, before);
    let longest_ns = added.last()?.0;
    Some((added.iter().map(|(_, count)| count).sum(), longest_ns))
}

/// The timed holds of a node's bucket by holder; without those of stats, which are ours.
fn holds(server: &Stave) -> Result<BTreeMap<String, Holds>> {
    let mut all = holds_of_selected(&mut Client::connect(&server.kv)?)?;
    all.remove(STATS);
    Ok(all)
}

/// What holds of stats are told as.
pub const STATS: &str = "stats";

/// The timed holds of the bucket that a client has selected, by holder.
pub fn holds_of_selected(client: &mut Client) -> Result<BTreeMap<String, Holds>> {
    let figures = client.stats("locks histogram")?.context("no stats of locks")?;
    let mut all = BTreeMap::<String, Holds>::new();
    for (name, count) in figures {
        let (holder, range) = name.split_once("_ns_").context("a range of a holder")?;
        let to = range.split_once(',').context("a range has two ends")?.1;
        all.entry(holder.to_owned()).or_default().insert(to.parse()?, count.parse()?);
    }
    Ok(all)
}

/// A document of JSON of so many bytes.
fn document(bytes: usize) -> Vec<u8> {
    let (front, back) = (&b"{\"long\":\""[..], &b"\",\"n\":0}"[..]);
    let filling = vec![b'x'; bytes.saturating_sub(front.len() + back.len())];
    [front, &filling, back].concat()
}

fn request(client: &mut Client, parts: &RequestParts<'_>) -> Result<Cas> {
    client.push(parts);
    client.flush()?;
    let answer = client.answer()?;
    ensure!(answer.is_ok(), "status 0x{:02x}", answer.status_code);
    Ok(answer.cas)
}

fn plain(opcode: u8) -> RequestParts<'static> {
    RequestParts { opcode, vbucket: VB, key: DOCUMENT, ..RequestParts::default() }
}

/// Neither flags nor an expiry.
const NO_EXTRAS: [u8; 8] = [0; 8];

fn set<'a>(value: &'a [u8], frame_infos: &'a [u8]) -> RequestParts<'a> {
    RequestParts { extras: &NO_EXTRAS, value, frame_infos, ..plain(opcode::SET) }
}

fn touch(client: &mut Client, opcode: u8, n: u32) -> Result<()> {
    let expiry = (EXPIRY + n).to_be_bytes();
    request(client, &RequestParts { extras: &expiry, ..plain(opcode) }).map(drop)
}

fn lock_and_unlock(client: &mut Client) -> Result<()> {
    let cas = request(client, &plain(opcode::GET_LOCKED))?;
    request(client, &RequestParts { cas, ..plain(opcode::UNLOCK_KEY) }).map(drop)
}

fn change_a_path(client: &mut Client, n: u32) -> Result<()> {
    // Length of the path, and flags.
    let (extras, value) = ([0, 1, 0], n.to_string());
    let parts = RequestParts { extras: &extras, value: &[b"n", value.as_bytes()].concat(), ..plain(0) };
    request(client, &RequestParts { opcode: opcode::SUBDOC_DICT_UPSERT, ..parts }).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_new_holds_count() {
        let before = Holds::from([(10, 3), (9_000, 1)]);
        let now = Holds::from([(10, 5), (200, 1), (9_000, 1)]);
        assert_eq!(newer(&now, Some(&before)), Some((3, 200)));
        assert_eq!(newer(&now, None), Some((7, 9_000)));
        assert_eq!(newer(&before, Some(&before)), None);
    }

    #[test]
    fn a_document_is_as_long_as_was_asked() {
        assert_eq!(document(100).len(), 100);
        assert!(serde_json::from_slice::<serde_json::Value>(&document(100)).is_ok());
    }
}
