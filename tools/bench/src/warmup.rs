//! `bench warmup`: a restart with many documents, under the usual limit of 1,024 descriptors.

use std::fs;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::Args;
use harness::child::release_build;
use harness::client::Client;
use harness::rng::Rng;
use harness::stave::{BUCKET, Start, Stave};
use harness::tree::Scratch;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::Output;
use super::filling::Filling;
use super::process::{descriptors, resident_bytes};
use super::report::{Goal, Report, median};

/// How much.
#[derive(Args)]
pub struct WarmupOptions {
    /// Documents, with values of 512 bytes.
    #[arg(long, default_value_t = 1_000_000)]
    documents: u32,
    /// Restarts.
    #[arg(long, default_value_t = 3)]
    restarts: u32,
    /// The bucket's quota.
    #[arg(long, default_value = "4GiB")]
    quota: String,
    /// Stop the server politely before each restart; otherwise it is killed.
    #[arg(long)]
    polite: bool,
    /// Make the kernel forget the files before each restart (as root only), so that they are read from the disk.
    #[arg(long)]
    cold: bool,
    /// Chooses the documents that are read.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    #[command(flatten)]
    output: Output,
}

const DESCRIPTORS: u64 = 1024;
const FIRST_READ_GOAL_MS: f64 = 1000.0;
const LOADED_WITHIN: Duration = Duration::from_secs(120);
/// Documents that are read at the end of each restart.
const CHECKED: u32 = 10_000;

/// One restart.
struct Restart {
    ready_ms: f64,
    first_read_ms: f64,
    /// Nothing if the server does not say when everything is loaded.
    loaded_ms: Option<f64>,
    descriptors: usize,
    resident_mib: f64,
}

/// Measures.
pub fn run(options: &WarmupOptions) -> Result<Report> {
    ensure!(options.documents > 0 && options.restarts > 0, "at least one document and one restart");
    release_build()?;
    let limit = limit_descriptors()?;
    let scratch = Scratch::new("warmup")?;
    let filling = Filling { documents: options.documents, generation: 0 };
    let mut server = start(options, &scratch, 0)?;
    println!("ulimit -n {limit}; filling with {} documents of 512 bytes", options.documents);
    fill(&server, filling)?;
    let mut rng = Rng::new(options.seed);
    let mut restarts = Vec::new();
    for number in 1..=options.restarts {
        if options.polite {
            server.stop()?
        } else {
            server.kill()?
        }
        let cold = options.cold && drop_page_cache(Path::new("/proc/sys/vm/drop_caches"));
        if number == 1 {
            print_head(options, cold);
        }
        let (restarted, restart) = restart(options, &scratch, number, filling, &mut rng)?;
        print_restart(number, &restart);
        restarts.push(restart);
        server = restarted;
    }
    server.stop()?;
    Ok(report(options, &mut restarts))
}

/// Lowers the limit of this process, which the servers it starts inherit.
fn limit_descriptors() -> Result<u64> {
    let limit = getrlimit(Resource::Nofile);
    let wanted = DESCRIPTORS.min(limit.maximum.unwrap_or(u64::MAX));
    // The hard limit too, so that the server cannot raise its own.
    let lowered = Rlimit { current: Some(wanted), maximum: Some(wanted) };
    setrlimit(Resource::Nofile, lowered).context("cannot lower the limit of descriptors")?;
    Ok(wanted)
}

fn start(options: &WarmupOptions, scratch: &Scratch, number: u32) -> Result<Stave> {
    let bucket = format!("{BUCKET}:{}", options.quota);
    let log = scratch.path().join(format!("server-{number}.log"));
    Stave::start(&Start { data: &scratch.path().join("data"), log, more: &["--bucket", &bucket] })
}

fn fill(server: &Stave, filling: Filling) -> Result<()> {
    let begun = Instant::now();
    let mut client = Client::connect(&server.kv)?;
    filling.write(&mut client)?;
    let written_s = begun.elapsed().as_secs_f64();
    client.await_persisted()?;
    let (persisted_s, descriptors) = (begun.elapsed().as_secs_f64(), descriptors(server.pid())?);
    println!(
        "in memory after {written_s:.1} s, on disk after {persisted_s:.1} s, {descriptors} descriptors in use"
    );
    Ok(())
}

/// Makes the kernel forget what it read, so that the restart reads from the disk; whether it could.
fn drop_page_cache(switch: &Path) -> bool {
    rustix::fs::sync();
    fs::write(switch, "1").is_ok()
}

fn restart(
    options: &WarmupOptions,
    scratch: &Scratch,
    number: u32,
    filling: Filling,
    rng: &mut Rng,
) -> Result<(Stave, Restart)> {
    let first = filling.any(rng);
    let begun = Instant::now();
    let server = start(options, scratch, number)?;
    let mut client = Client::connect(&server.kv)?;
    filling.check(&mut client, first)?;
    let first_read_ms = milliseconds(begun.elapsed());
    let mut most = descriptors(server.pid())?;
    let loaded_ms = loop {
        match is_loaded(&mut client)? {
            None => break None,
            Some(true) => break Some(milliseconds(begun.elapsed())),
            Some(false) => {}
        }
        ensure!(begun.elapsed() < LOADED_WITHIN, "not everything is loaded within {LOADED_WITHIN:?}");
        most = most.max(descriptors(server.pid())?);
        thread::sleep(Duration::from_millis(1));
    };
    filling.check_some(&mut client, rng, CHECKED)?;
    let restart = Restart {
        ready_ms: milliseconds(server.ready_after),
        first_read_ms,
        loaded_ms,
        descriptors: most.max(descriptors(server.pid())?),
        resident_mib: resident_bytes(server.pid())? as f64 / f64::from(1 << 20),
    };
    Ok((server, restart))
}

/// Whether all documents are in memory, or as many as there shall be; nothing if the server does not say.
fn is_loaded(client: &mut Client) -> Result<Option<bool>> {
    Ok(client.stats("warmup")?.as_deref().and_then(says_loaded))
}

fn says_loaded(figures: &[(String, String)]) -> Option<bool> {
    let figure = |name: &str| figures.iter().find(|(n, _)| n == name).map(|(_, value)| value.as_str());
    match (figure("ep_warmup_thread"), figure("ep_warmup_state")) {
        (Some(thread), _) => Some(thread == "complete"),
        (None, Some(state)) => Some(state == "done"),
        (None, None) => None,
    }
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

fn print_head(options: &WarmupOptions, cold: bool) {
    let cache = match (options.cold, cold) {
        (_, true) => "the page cache dropped",
        (true, false) => "the page cache warm (only root may drop it)",
        (false, false) => "the page cache warm",
    };
    let how = if options.polite { "stopped" } else { "killed" };
    println!("server {how}, {cache}\n");
    println!(
        "{:<8} {:>9} {:>14} {:>10} {:>12} {:>13}",
        "restart", "ready ms", "first read ms", "loaded ms", "descriptors", "resident MiB"
    );
}

fn print_restart(number: u32, restart: &Restart) {
    println!(
        "{number:<8} {:>9.0} {:>14.0} {:>10} {:>12} {:>13.0}",
        restart.ready_ms,
        restart.first_read_ms,
        restart.loaded_ms.map_or("not said".to_owned(), |ms| format!("{ms:.0}")),
        restart.descriptors,
        restart.resident_mib
    );
}

fn report(options: &WarmupOptions, restarts: &mut [Restart]) -> Report {
    let mut report = Report::new("warmup", options.output.json);
    let all = |figure: fn(&Restart) -> f64| median(&mut restarts.iter().map(figure).collect::<Vec<_>>());
    report.add("ready_ms", all(|restart| restart.ready_ms), None);
    report.figure(
        "first_read_ms",
        all(|restart| restart.first_read_ms),
        // The goal is for a million documents, whatever the command line says.
        (options.documents <= 1_000_000).then_some(Goal::AtMost(FIRST_READ_GOAL_MS)),
    );
    let mut loaded: Vec<f64> = restarts.iter().filter_map(|restart| restart.loaded_ms).collect();
    if !loaded.is_empty() {
        report.add("loaded_ms", median(&mut loaded), None);
    }
    let most = restarts.iter().map(|restart| restart.descriptors).max().unwrap_or_default();
    report.add("descriptors", most as f64, Some(DESCRIPTORS as f64));
    report.add("resident_mib", all(|restart| restart.resident_mib), None);
    report
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn knows_when_everything_is_loaded() {
        let figures = |name: &str, value: &str| vec![(name.to_owned(), value.to_owned())];
        assert_eq!(says_loaded(&figures("ep_warmup_thread", "running")), Some(false));
        assert_eq!(says_loaded(&figures("ep_warmup_thread", "complete")), Some(true));
        assert_eq!(says_loaded(&figures("ep_warmup_state", "done")), Some(true));
        assert_eq!(says_loaded(&figures("ep_something", "done")), None);
    }

    #[test]
    fn a_cache_that_cannot_be_dropped_is_said_to_be_warm() {
        assert!(!drop_page_cache(Path::new("no/such/switch")));
    }
}
