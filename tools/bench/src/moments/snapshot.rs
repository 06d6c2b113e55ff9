//! `bench snapshot`: snapshots by file of all vBuckets: the time that it takes, and the memory.

use std::time::Instant;

use anyhow::{Result, ensure};
use base::{Datatype, VbId};
use harness::client::Client;
use harness::stave::Stave;
use protocol::{RequestParts, Status, opcode};

use super::common::{MomentOptions, with_filled};
use crate::process::resident_bytes;
use crate::report::{Report, median};

/// Of all 1,024 vBuckets, in milliseconds.
const TIME_GOAL_MS: f64 = 50.0;
/// The most memory that they take, whatever the documents.
const MEMORY_GOAL_MIB: f64 = 16.0;
const VBUCKETS: u16 = 1024;

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
