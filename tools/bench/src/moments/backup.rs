//! `bench backup`: full and incremental backups, plain and encrypted, beside a stream of the same documents.

use std::fs;
use std::path::Path;
use std::time::Instant;

use anyhow::{Result, ensure};
use harness::client::Client;
use harness::stave::Stave;

use super::common::{MomentOptions, command, p99_beside, stream_rate, text, told, with_filled};
use crate::filling::Filling;
use crate::load::number;
use crate::report::{Goal, Report, median};

/// The least of a stream's rate.
const RATE_GOAL: f64 = 0.7;
/// The most that point reads take beside a backup.
const P99_GOAL: f64 = 1.5;
/// The most of what changed that an incremental backup has.
const INCREMENTAL_GOAL: f64 = 1.1;
/// One document of so many changes before the incremental backup.
const CHANGED_SHARE: u32 = 20;
/// Any will do: it protects nothing.
const KEY: &str = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";

/// Measures.
pub fn run(options: &MomentOptions) -> Result<Report> {
    with_filled("backup", options, |server, scratch, report| measure(server, scratch, options, report))
}

fn measure(server: &Stave, scratch: &Path, options: &MomentOptions, report: &mut Report) -> Result<()> {
    let key = scratch.join("key");
    fs::write(&key, KEY)?;
    let mut rates = [Vec::new(), Vec::new()];
    stream_rate(server)?;
    println!("{:<6} {:>14} {:>14} {:>14}", "round", "stream/s", "backup/s", "encrypted/s");
    for round in 1..=options.rounds {
        let stream = stream_rate(server)?;
        let folder = |name: &str| scratch.join(format!("{name}-{round}"));
        let plain = backup_rate(server, &folder("plain"), &["--full"])?;
        let encrypted = backup_rate(server, &folder("encrypted"), &["--full", "--key-file", text(&key)?])?;
        println!("{round:<6} {stream:>14.0} {plain:>14.0} {encrypted:>14.0}");
        rates[0].push(plain / stream);
        rates[1].push(encrypted / stream);
    }
    let [plain, encrypted] = &mut rates;
    report.figure("backup_of_stream", median(plain), Some(Goal::AtLeast(RATE_GOAL)));
    report.figure("encrypted_of_stream", median(encrypted), None);
    incremental(server, &scratch.join("chain"), options, report)?;
    let beside = scratch.join("beside");
    let again = || backup_rate(server, &beside, &["--full"]).map(drop);
    report.add("point_reads_p99_beside", p99_beside(server, options, &again)?, Some(P99_GOAL));
    Ok(())
}

/// Documents a second of a backup.
fn backup_rate(server: &Stave, to: &Path, more: &[&str]) -> Result<f64> {
    let begun = Instant::now();
    let made = told(command(server, &["backup", "--to", text(to)?]).args(more))?;
    Ok(number(&made, "/documents")? / begun.elapsed().as_secs_f64())
}

/// What an incremental backup has of what changed, in documents and in bytes of files.
fn incremental(server: &Stave, to: &Path, options: &MomentOptions, report: &mut Report) -> Result<()> {
    let make = || told(&mut command(server, &["backup", "--to", text(to)?]));
    let full = make()?;
    let changed = options.documents / CHANGED_SHARE;
    let mut client = Client::connect(&server.kv)?;
    Filling { documents: changed, generation: 1 }.write(&mut client)?;
    client.await_persisted()?;
    let later = make()?;
    ensure!(later["base"] == full["id"], "it goes on from the full one");
    let of_changed = number(&later, "/documents")? / f64::from(changed);
    let bytes_each = |of: &serde_json::Value| -> Result<f64> {
        Ok(number(of, "/stored_bytes")? / number(of, "/documents")?.max(1.0))
    };
    report.add("incremental_of_changed", of_changed, Some(INCREMENTAL_GOAL));
    report.add(
        "incremental_bytes_each_of_full",
        bytes_each(&later)? / bytes_each(&full)?,
        Some(INCREMENTAL_GOAL),
    );
    Ok(())
}
