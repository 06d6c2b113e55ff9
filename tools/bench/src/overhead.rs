//! `bench overhead`: processor time an operation beside an earlier program. Each server has one thread for its clients and
//! one CPU for all its threads, the client another CPU; the two alternate, and each round compares only its own two runs.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use clap::Args;
use harness::client::Client;
use harness::stave::{BUCKET, Start, Stave};
use harness::tree::Scratch;
use serde_json::{Value, json};

use super::cycles::{CLIENTS_CPU, SERVERS_CPU, pin};
use super::load::{Peer, ensure_clean, number};
use super::output::{Output, Program};
use super::report::{Report, median};

/// Beside what, how long and how much.
#[derive(Args)]
pub struct OverheadOptions {
    /// The program before.
    #[arg(long, value_name = "PROGRAM")]
    before: PathBuf,
    /// Seconds of each single run, behind one of warming up.
    #[arg(long, default_value_t = 5)]
    seconds: u32,
    /// Rounds; each runs both programs with all work, another one first each time.
    #[arg(long, default_value_t = 9)]
    rounds: usize,
    /// Keys, of 20 bytes each, with values of 512.
    #[arg(long, default_value_t = 200_000)]
    keys: u32,
    #[command(flatten)]
    program: Program,
    #[command(flatten)]
    output: Output,
}

/// Requests under way of each connection, and how much of the CPU before an operation may cost.
const DEPTHS: [(u32, f64); 2] = [(1, 1.01), (16, 1.02)];
const MIXED: [&str; 4] = ["--set-percent", "20", "--distribution", "zipf"];
const TABLE: &str = "processor time of the server, µs an operation";
const NAMES: [&str; 2] = ["before", "now"];

/// Measures.
pub fn run(options: &OverheadOptions) -> Result<Report> {
    ensure!(options.rounds > 0, "at least one round");
    ensure!(options.before.exists(), "--before {}: there is no such program", options.before.display());
    let now = options.program.ready()?;
    let scratch = Scratch::new("overhead")?;
    // The client and what else this starts run beside the servers.
    pin(std::process::id(), CLIENTS_CPU)?;
    let before = start(&options.before, scratch.path(), NAMES[0])?;
    let servers = [before, start(&now, scratch.path(), NAMES[1])?];
    for (name, server) in NAMES.into_iter().zip(&servers) {
        pin(server.pid(), SERVERS_CPU)?;
        println!("writing {} keys to {name}", options.keys);
        client(&now, server, name, options, &["--populate", "--pipeline", "64", "--operations", "1"])?;
        Client::connect(&server.kv)?.await_persisted()?;
    }
    let report = compare(&now, &servers, options)?;
    servers.into_iter().try_for_each(Stave::stop)?;
    Ok(report)
}

fn start(program: &Path, folder: &Path, name: &str) -> Result<Stave> {
    let bucket = format!("{BUCKET}:2GiB");
    let log = folder.join(format!("{name}.log"));
    let start = Start { data: &folder.join(name), log, more: &["--threads", "1", "--bucket", &bucket] };
    Stave::start_binary(program, &start, None).with_context(|| format!("the program {name}"))
}

fn client(
    program: &Path,
    server: &Stave,
    name: &'static str,
    options: &OverheadOptions,
    more: &[&str],
) -> Result<Value> {
    let keys = options.keys.to_string();
    let load = ["--connections", "50", "--threads", "1", "--keys", &keys];
    let result = Peer::stave(name, server).load_by(program, &[&load[..], more].concat())?;
    ensure_clean(name, &result)?;
    Ok(result)
}

fn compare(program: &Path, servers: &[Stave; 2], options: &OverheadOptions) -> Result<Report> {
    let seconds = options.seconds.to_string();
    let mut costs = BTreeMap::<u32, Vec<[f64; 2]>>::new();
    println!("{:<6} {:>6} {:<8} {:>12} {:>10}", "round", "depth", "program", "operations/s", "CPU us/op");
    for round in 0..options.rounds {
        for (depth, _) in DEPTHS {
            let text = depth.to_string();
            let rest = ["--pipeline", &text, "--warmup", "1", "--seconds", &seconds];
            let mut cost = [0.0; 2];
            for at in [round % 2, (round + 1) % 2] {
                let result =
                    client(program, &servers[at], NAMES[at], options, &[&MIXED[..], &rest].concat())?;
                cost[at] = number(&result, "/server_cpu_us_per_operation")?;
                let speed = number(&result, "/operations_per_second")?;
                println!("{:<6} {depth:>6} {:<8} {speed:>12.0} {:>10.3}", round + 1, NAMES[at], cost[at]);
            }
            costs.entry(depth).or_default().push(cost);
        }
    }
    Ok(conclude(&costs, options))
}

fn conclude(costs: &BTreeMap<u32, Vec<[f64; 2]>>, options: &OverheadOptions) -> Report {
    let mut report = Report::new("overhead", options.output.json);
    for (depth, most) in DEPTHS {
        let of_depth = costs.get(&depth).map_or(&[][..], Vec::as_slice);
        for (at, name) in NAMES.iter().enumerate() {
            let mut values: Vec<f64> = of_depth.iter().map(|cost| cost[at]).collect();
            report.cell(TABLE, &format!("depth {depth}"), name, &values);
            report.detail(&format!("{name}_{depth}_us"), json!(median(&mut values)));
        }
        report.add(&format!("cpu_depth_{depth}_of_before"), paired(of_depth), Some(most));
    }
    report
}

/// What now costs of what it cost before: the middle of the rounds' ratios, so that a slow minute counts for both.
fn paired(rounds: &[[f64; 2]]) -> f64 {
    let mut ratios: Vec<f64> = rounds.iter().map(|[before, now]| now / before).collect();
    median(&mut ratios)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_round_is_compared_with_itself() {
        // The second round was slow for both.
        assert_eq!(paired(&[[1.0, 1.1], [2.0, 2.2], [1.0, 1.1]]), 1.1);
        assert_eq!(paired(&[[2.0, 1.0]]), 0.5);
    }
}
