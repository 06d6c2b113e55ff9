//! `bench start`: how soon the server is ready, and how small it is; how soon a development cluster is.

use anyhow::Result;
use clap::Args;
use harness::child::release_build;
use harness::stave::{Start, Stave};
use harness::tree::{self, Scratch};

use super::Output;
use super::idle;
use super::process::resident_bytes;
use super::report::{Report, median};

/// How often, and with how many connections.
#[derive(Args)]
pub struct StartOptions {
    /// Starts, each with an empty data folder.
    #[arg(long, default_value_t = 10)]
    starts: u32,
    /// Connections that do nothing, not even log in; 0 leaves this part out.
    #[arg(long, default_value_t = 20_000)]
    idle: u64,
    #[command(flatten)]
    output: Output,
}

const MIB: f64 = (1u64 << 20) as f64;
const KIB: f64 = 1024.0;

/// Measures.
pub fn run(options: &StartOptions) -> Result<Report> {
    anyhow::ensure!(options.starts > 0, "at least one start");
    release_build()?;
    let scratch = Scratch::new("start")?;
    let mut report = Report::new("start", options.output.json);
    let (mut ready_ms, mut resident_mib) = (Vec::new(), Vec::new());
    for number in 0..options.starts {
        let server = start(&scratch, &format!("{number}"))?;
        ready_ms.push(server.ready_after.as_secs_f64() * 1e3);
        resident_mib.push(resident_bytes(server.pid())? as f64 / MIB);
        server.stop()?;
    }
    let mut dev_ms = Vec::new();
    for number in 0..options.starts {
        let log = scratch.path().join(format!("dev-{number}.log"));
        let cluster = Stave::start_dev(&log, &["--nodes", "3", "--replicas", "1"])?;
        dev_ms.push(cluster.ready_after.as_secs_f64() * 1e3);
        cluster.stop()?;
    }
    println!("{:<8} {:>10} {:>14} {:>18}", "start", "ready ms", "resident MiB", "three nodes ms");
    for (number, ((ready, resident), dev)) in ready_ms.iter().zip(&resident_mib).zip(&dev_ms).enumerate() {
        println!("{number:<8} {ready:>10.1} {resident:>14.1} {dev:>18.1}");
    }
    report.cell("start, ms until ready", "one node", "stave", &ready_ms);
    report.cell("start, ms until ready", "`stave dev`, three nodes", "stave", &dev_ms);
    report.add("ready_ms", median(&mut ready_ms), Some(100.0));
    report.add("dev_three_nodes_ready_ms", median(&mut dev_ms), Some(300.0));
    report.add("resident_mib", median(&mut resident_mib), Some(30.0));
    report.add("binary_mib", tree::release_binary().metadata()?.len() as f64 / MIB, Some(20.0));
    if options.idle > 0 {
        // Before the start: the server inherits the limit.
        idle::raise_descriptor_limit(options.idle + idle::SPARE);
        let server = start(&scratch, "idle")?;
        if let Some(bytes) = idle::bytes_a_connection(&server, options.idle)? {
            report.add("idle_connection_kib", bytes / KIB, Some(16.0));
        }
        server.stop()?;
    }
    Ok(report)
}

fn start(scratch: &Scratch, name: &str) -> Result<Stave> {
    let data = scratch.path().join(format!("data-{name}"));
    let log = scratch.path().join(format!("server-{name}.log"));
    Stave::start(&Start { data: &data, log, more: &[] })
}
