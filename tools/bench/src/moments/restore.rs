//! `bench restore`: a restore into an empty bucket, beside what `stave bench` stores in one.

use std::path::Path;
use std::time::Instant;

use anyhow::{Result, ensure};
use harness::child::release_build;
use harness::stave::Stave;
use harness::tree::Scratch;

use super::common::{MomentOptions, command, filled, start, text, told};
use crate::load::{Peer, ensure_clean, number};
use crate::report::{Goal, Report, median};

/// The least of the rate of `stave bench`.
const RATE_GOAL: f64 = 0.5;

/// Measures.
pub fn run(options: &MomentOptions) -> Result<Report> {
    options.check()?;
    release_build()?;
    let scratch = Scratch::new("restore")?;
    let server = filled(&scratch, "source", options)?;
    let backups = scratch.path().join("backups");
    told(&mut command(&server, &["backup", "--to", text(&backups)?]))?;
    server.stop()?;
    let mut report = Report::new("restore", options.json);
    let mut ratios = Vec::new();
    println!("{:<6} {:>14} {:>14}", "round", "load/s", "restore/s");
    for round in 1..=options.rounds {
        let server = start(&scratch, &format!("load-{round}"))?;
        let load = load_rate(&server, options)?;
        server.stop()?;
        let server = start(&scratch, &format!("target-{round}"))?;
        let restored = restore_rate(&server, &backups, options)?;
        server.stop()?;
        println!("{round:<6} {load:>14.0} {restored:>14.0}");
        ratios.push(restored / load);
    }
    report.figure("restore_of_load", median(&mut ratios), Some(Goal::AtLeast(RATE_GOAL)));
    Ok(report)
}

/// Documents a second of the load generator, which sends as many at once on one connection as a restore does.
fn load_rate(server: &Stave, options: &MomentOptions) -> Result<f64> {
    let (keys, seconds) = (options.documents.to_string(), options.seconds.to_string());
    let arguments = ["--connections", "1", "--threads", "1", "--keys", &keys, "--key-size", "20"];
    let more = ["--value-size", "512", "--set-percent", "100", "--pipeline", "64", "--seconds", &seconds];
    let result = Peer::stave("stave", server).load(&[&arguments[..], &more].concat())?;
    ensure_clean("stave", &result)?;
    number(&result, "/operations_per_second")
}

/// Documents a second of a restore, all of which must be stored.
fn restore_rate(server: &Stave, backups: &Path, options: &MomentOptions) -> Result<f64> {
    let begun = Instant::now();
    let restored = told(&mut command(server, &["restore", "--from", text(backups)?]))?;
    let documents = number(&restored, "/documents")?;
    ensure!(documents == f64::from(options.documents), "{documents} of {} were restored", options.documents);
    Ok(documents / begun.elapsed().as_secs_f64())
}
