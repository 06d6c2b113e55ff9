//! `bench snapshot`: snapshots by file of all vBuckets, and of the bucket at one moment: the time that it takes, for how long
//! changes are held, and the memory.

use std::time::Instant;

use anyhow::{Result, ensure};
use base::{Datatype, VbId};
use harness::client::Client;
use harness::stave::Stave;
use protocol::{RequestParts, Status, opcode};
use serde_json::{Value, json};

use super::common::{MomentOptions, with_filled};
use crate::process::resident_bytes;
use crate::report::{Report, median};

/// Of all 1,024 vBuckets, in milliseconds.
const TIME_GOAL_MS: f64 = 50.0;
/// The most memory that they take, whatever the documents.
const MEMORY_GOAL_MIB: f64 = 16.0;
/// For how long changes are held for one moment of all vBuckets, in milliseconds.
const HELD_GOAL_MS: f64 = 10.0;
const VBUCKETS: u16 = 1024;
/// The name of a snapshot, which is dropped before the next one.
const ID: &str = "5b0c7d0e-3c1f-4f43-8a51-0d9f6f0a7f11";

/// Measures.
pub fn run(options: &MomentOptions) -> Result<Report> {
    with_filled("snapshot", options, |server, _, report| measure(server, options, report))
}

fn measure(server: &Stave, options: &MomentOptions, report: &mut Report) -> Result<()> {
    let mut client = Client::connect(&server.kv)?;
    // What is in the journal alone is filed by the first one.
    let first = prepare_all(&mut client)?;
    release_all(&mut client)?;
    let before = resident_bytes(server.pid())?;
    let (mut times, mut refused, mut grown) = (Vec::new(), 0, 0.0_f64);
    println!("{:<6} {:>12} {:>10} {:>10}", "round", "ms", "kept", "refused");
    for round in 1..=options.rounds {
        let made = prepare_all(&mut client)?;
        let mib = resident_bytes(server.pid())?.saturating_sub(before) as f64 / f64::from(1 << 20);
        println!("{round:<6} {:>12.1} {:>10} {:>10}", made.ms, made.kept, made.refused);
        times.push(made.ms);
        (refused, grown) = (made.refused, grown.max(mib));
        release_all(&mut client)?;
    }
    let (mut times_of_bucket, mut held, mut grown_of_bucket) = (Vec::new(), Vec::new(), 0.0_f64);
    println!("{:<6} {:>12} {:>10}", "round", "bucket ms", "held ms");
    for round in 1..=options.rounds {
        let (ready_ms, held_ms) = keep_bucket(&mut client)?;
        let mib = resident_bytes(server.pid())?.saturating_sub(before) as f64 / f64::from(1 << 20);
        println!("{round:<6} {ready_ms:>12.1} {held_ms:>10.1}");
        times_of_bucket.push(ready_ms);
        held.push(held_ms);
        grown_of_bucket = grown_of_bucket.max(mib);
        step(&mut client, "drop")?;
    }
    report.add("bucket_ms", median(&mut times_of_bucket), Some(TIME_GOAL_MS));
    report.add("held_ms", median(&mut held), Some(HELD_GOAL_MS));
    report.add("bucket_memory_mib", grown_of_bucket, Some(MEMORY_GOAL_MIB));
    report.add("first_ms", first.ms, None);
    report.add("all_vbuckets_ms", median(&mut times), Some(TIME_GOAL_MS));
    report.add("refused", refused as f64, Some(0.0));
    report.add("memory_mib", grown, Some(MEMORY_GOAL_MIB));
    Ok(())
}

/// What preparing all of them came to.
struct Prepared {
    ms: f64,
    kept: usize,
    /// There were as many as there may be.
    refused: usize,
}

/// Prepares a snapshot of each vBucket that has documents, all asked for at once.
fn prepare_all(client: &mut Client) -> Result<Prepared> {
    let seqnos = client.all_seqnos()?;
    let with_documents = seqnos.into_iter().filter(|(_, seqno)| seqno.0 > 0);
    let mut left: Vec<VbId> = with_documents.map(|(vb, _)| vb).collect();
    let mut made = Prepared { ms: 0.0, kept: 0, refused: 0 };
    let begun = Instant::now();
    while !left.is_empty() {
        for vb in &left {
            client.push(&RequestParts {
                opcode: opcode::PREPARE_SNAPSHOT,
                vbucket: *vb,
                datatype: Datatype::JSON.0,
                value: b"{}",
                ..RequestParts::default()
            });
        }
        client.flush()?;
        let mut again = Vec::new();
        for vb in left {
            let answer = client.answer()?;
            match Status::from_code(answer.status_code) {
                Some(Status::Success) => made.kept += 1,
                Some(Status::Ebusy) => made.refused += 1,
                // Files of others are being written.
                Some(Status::Etmpfail) => again.push(vb),
                _ => anyhow::bail!("no snapshot of vBucket {vb}: status 0x{:02x}", answer.status_code),
            }
        }
        left = again;
        ensure!(begun.elapsed().as_secs() < 60, "{} vBuckets have no snapshot after a minute", left.len());
    }
    made.ms = begun.elapsed().as_secs_f64() * 1e3;
    Ok(made)
}

fn release_all(client: &mut Client) -> Result<()> {
    for vb in (0..VBUCKETS).map(VbId) {
        client.push(&RequestParts {
            opcode: opcode::RELEASE_SNAPSHOT,
            vbucket: vb,
            ..RequestParts::default()
        });
    }
    client.flush()?;
    (0..VBUCKETS).try_for_each(|_| client.answer().map(drop))
}

/// One step of a snapshot of the bucket: the status, and what the node tells.
fn step(client: &mut Client, what: &str) -> Result<(Status, Value)> {
    let value = json!({ "do": what, "id": ID, "most_ms": 1000 }).to_string();
    client.push(&RequestParts {
        opcode: opcode::BUCKET_SNAPSHOT,
        datatype: Datatype::JSON.0,
        value: value.as_bytes(),
        ..RequestParts::default()
    });
    client.flush()?;
    let answer = client.answer()?;
    let status = Status::from_code(answer.status_code).unwrap_or_default();
    Ok((status, serde_json::from_slice(&answer.value).unwrap_or_default()))
}

/// Has all vBuckets kept as of one moment: milliseconds until all of them can be read, and those for which changes were held.
fn keep_bucket(client: &mut Client) -> Result<(f64, f64)> {
    let waiting = Instant::now();
    // The node rests behind the hold before.
    let begun = loop {
        let begun = Instant::now();
        match step(client, "hold")?.0 {
            Status::Success => break begun,
            Status::Etmpfail if waiting.elapsed().as_secs() < 60 => {}
            status => anyhow::bail!("changes are not held: {status:?}"),
        }
    };
    let (status, _) = step(client, "take")?;
    ensure!(status == Status::Success, "the moment is not taken: {status:?}");
    let told = loop {
        let (status, told) = step(client, "look")?;
        ensure!(status == Status::Success, "the snapshot is not kept: {status:?}");
        ensure!(told["lost"].as_array().is_some_and(Vec::is_empty), "vBuckets were lost: {told}");
        if told["waiting"] == 0 {
            break told;
        }
        ensure!(begun.elapsed().as_secs() < 60, "not everything was saved after a minute: {told}");
    };
    let held_ms = told["held_us"].as_f64().unwrap_or(f64::MAX) / 1e3;
    Ok((begun.elapsed().as_secs_f64() * 1e3, held_ms))
}
