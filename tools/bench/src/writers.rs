//! Clients that wait for each of their writes: the load, and what one run of it came to.

use anyhow::{Result, ensure};
use clap::Args;
use serde_json::{Value, json};

use super::Output;
use super::idle::{SPARE, raise_descriptor_limit};
use super::load::{Peer, ensure_clean, number};
use super::report::median;

/// Bytes of keys and values.
const SIZES: [&str; 4] = ["--key-size", "20", "--value-size", "512"];

/// How long and how much.
#[derive(Args)]
pub struct WritersOptions {
    /// Seconds of each single run.
    #[arg(long, default_value_t = 5)]
    pub seconds: u32,
    /// Numbers of clients, each with one request outstanding.
    #[arg(long, value_delimiter = ',', default_value = "1,2,16,256,2000")]
    pub clients: Vec<u32>,
    /// Rounds; each runs all servers with all numbers of clients.
    #[arg(long, default_value_t = 3)]
    pub rounds: u32,
    /// Keys, all there before the clock starts.
    #[arg(long, default_value_t = 100_000)]
    pub keys: u32,
    #[command(flatten)]
    pub output: Output,
}

impl WritersOptions {
    /// Refuses what would measure nothing, or needs more descriptors than the system gives; has it give them.
    pub fn check(&self) -> Result<()> {
        ensure!(self.rounds > 0 && self.seconds > 0, "at least one round of one second");
        let wanted = u64::from(self.most_clients()) + SPARE;
        let allowed = raise_descriptor_limit(wanted);
        ensure!(allowed >= wanted, "the system allows {allowed} descriptors only (ulimit -Hn)");
        Ok(())
    }

    /// The largest number of clients.
    pub fn most_clients(&self) -> u32 {
        self.clients.iter().copied().max().unwrap_or(1)
    }
}

/// Memory for the documents: nothing is evicted.
pub const MEMORY: &str = "4GiB";

/// Clients, each with one request outstanding and keys of its own: no two sync writes of a document meet.
#[derive(Clone, Debug)]
pub struct Writers {
    /// How many.
    pub clients: u32,
    /// For how long.
    pub seconds: u32,
    /// Keys, all there before the clock starts.
    pub keys: u32,
    /// How safe each write must be, as `stave bench` calls it; nothing if the server cannot be asked.
    pub level: Option<&'static str>,
}

/// What a run came to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Run {
    /// Writes.
    pub operations_per_s: f64,
    /// What a write took.
    pub mean_us: f64,
    /// The same, of half of them at most.
    pub p50_us: f64,
    /// Of 99 in a hundred.
    pub p99_us: f64,
    /// Of 999 in a thousand.
    pub p999_us: f64,
    /// CPU time of the server for each.
    pub server_cpu_us: f64,
    /// CPU time of the load generator for each.
    pub client_cpu_us: f64,
}

/// Writes all keys.
pub fn populate(peer: &Peer, keys: u32) -> Result<()> {
    let keys = keys.to_string();
    let load = ["--keys", &keys, "--set-percent", "100", "--populate", "--connections", "50"];
    let load = [&SIZES[..], &load, &["--pipeline", "64", "--operations", "50"]].concat();
    peer.load(&load).map(drop)
}

impl Writers {
    fn arguments(&self) -> Vec<String> {
        let mut arguments: Vec<String> = SIZES.map(str::to_owned).into();
        let mut add = |flag: &str, value: String| arguments.extend([flag.to_owned(), value]);
        add("--keys", self.keys.to_string());
        add("--set-percent", "100".to_owned());
        add("--connections", self.clients.to_string());
        add("--threads", "1".to_owned());
        add("--distribution", "own".to_owned());
        add("--warmup", "1".to_owned());
        add("--seconds", self.seconds.to_string());
        if let Some(level) = self.level {
            add("--durability", level.to_owned());
        }
        arguments
    }

    /// Lets them write.
    pub fn run(&self, peer: &Peer) -> Result<Run> {
        let result = peer.load(&self.arguments())?;
        ensure_clean(peer.name, &result)?;
        Run::of(&result)
    }

    /// The same, for people: what the load generator shows, its histogram included.
    pub fn show(&self, peer: &Peer) -> Result<()> {
        peer.show(&self.arguments())
    }
}

impl Run {
    /// Out of the load generator's report.
    pub fn of(result: &Value) -> Result<Run> {
        Ok(Run {
            operations_per_s: number(result, "/operations_per_second")?,
            mean_us: number(result, "/set/mean_us")?,
            p50_us: number(result, "/set/p50_us")?,
            p99_us: number(result, "/set/p99_us")?,
            p999_us: number(result, "/set/p999_us")?,
            server_cpu_us: number(result, "/server_cpu_us_per_operation")?,
            client_cpu_us: number(result, "/client_cpu_us_per_operation")?,
        })
    }

    /// The median of each figure.
    pub fn median(runs: &[Run]) -> Run {
        let of = |figure: fn(&Run) -> f64| median(&mut runs.iter().map(figure).collect::<Vec<_>>());
        Run {
            operations_per_s: of(|run| run.operations_per_s),
            mean_us: of(|run| run.mean_us),
            p50_us: of(|run| run.p50_us),
            p99_us: of(|run| run.p99_us),
            p999_us: of(|run| run.p999_us),
            server_cpu_us: of(|run| run.server_cpu_us),
            client_cpu_us: of(|run| run.client_cpu_us),
        }
    }

    /// Its columns under [`COLUMNS`].
    pub fn columns(&self) -> String {
        format!(
            "{:>9.0} {:>9.2} {:>9.2} {:>9.2} {:>9.2} {:>10.1} {:>10.1}",
            self.operations_per_s,
            self.mean_us / 1e3,
            self.p50_us / 1e3,
            self.p99_us / 1e3,
            self.p999_us / 1e3,
            self.server_cpu_us,
            self.client_cpu_us
        )
    }

    /// For the line of JSON.
    pub fn json(&self) -> Value {
        json!({
            "writes_per_s": self.operations_per_s,
            "mean_us": self.mean_us,
            "p50_us": self.p50_us,
            "p99_us": self.p99_us,
            "p999_us": self.p999_us,
            "server_cpu_us_per_write": self.server_cpu_us,
            "client_cpu_us_per_write": self.client_cpu_us,
        })
    }
}

/// What stands above the columns of a run.
pub const COLUMNS: &str = " writes/s   mean ms    p50 ms    p99 ms  p99.9 ms  CPU us/op  client us";

/// The median of the ratios of throughput, round by round.
pub fn throughput_ratio(ours: &[Run], theirs: &[Run]) -> f64 {
    let ratio = |(ours, theirs): (&Run, &Run)| ours.operations_per_s / theirs.operations_per_s;
    median(&mut ours.iter().zip(theirs).map(ratio).collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(operations_per_s: f64) -> Run {
        let us = 1.0;
        Run {
            operations_per_s,
            mean_us: us,
            p50_us: us,
            p99_us: us,
            p999_us: us,
            server_cpu_us: us,
            client_cpu_us: us,
        }
    }

    #[test]
    fn ratios_are_of_the_same_round() {
        let (ours, theirs) = ([10.0, 100.0, 60.0].map(run), [5.0, 100.0, 20.0].map(run));
        assert_eq!(throughput_ratio(&ours, &theirs), 2.0);
        assert_eq!(Run::median(&ours).operations_per_s, 60.0);
    }

    #[test]
    fn a_run_is_read_from_the_report() {
        let result = json!({
            "operations_per_second": 7.0,
            "set": { "mean_us": 1.5, "p50_us": 1.0, "p99_us": 2.0, "p999_us": 3.0 },
            "server_cpu_us_per_operation": 4.0,
            "client_cpu_us_per_operation": 5.0,
        });
        assert_eq!(Run::of(&result).expect("all is there").mean_us, 1.5);
        assert!(Run::of(&json!({})).is_err());
    }
}
