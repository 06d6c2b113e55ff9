//! `bench larger-than-memory`: many more documents than memory, in each store behind the same server and clients, under
//! a cgroup that limits the page cache, too.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::Args;
use harness::child::release_build;
use harness::stave::{BUCKET, Start, Stave};
use harness::tree::Scratch;
use serde_json::{Value, json};

use super::Output;
use super::cgroup::Cgroup;
use super::load::{Peer, number};
use super::process::cpu_seconds;
use super::report::{Goal, Report};

/// How much.
#[derive(Args)]
pub struct LargerOptions {
    /// Documents, each with a value of 1 KiB of which half repeats.
    #[arg(long, default_value_t = 8_000_000)]
    documents: u64,
    /// What each server may use in all, the page cache included, in MiB.
    #[arg(long, default_value_t = 400)]
    limit_mib: u64,
    /// The bucket's quota, in MiB.
    #[arg(long, default_value_t = 128)]
    quota_mib: u64,
    /// Seconds that each work is measured.
    #[arg(long, default_value_t = 30)]
    seconds: u64,
    /// Stores, by the word of a bucket's type; rocksdb with a program that was built with it.
    #[arg(long, value_delimiter = ',', default_value = "couchstore,magma")]
    stores: Vec<String>,
    /// A program in the place of the release build.
    #[arg(long)]
    program: Option<PathBuf>,
    /// An earlier program, measured beside: its log-structured store is called `before`.
    #[arg(long, value_name = "PROGRAM")]
    before: Option<PathBuf>,
    #[command(flatten)]
    output: Output,
}

const VALUE_BYTES: u64 = 1024;
/// The store of an earlier program, in the table.
const BEFORE: &str = "before";
/// Written bytes for each byte of the values that came, once all is settled.
const WRITTEN_GOAL: f64 = 2.2;
/// How long a server may take until it rests after the load.
const REST_WITHIN: Duration = Duration::from_secs(600);
/// A server that used less of a CPU than this for [`REST`] rests.
const RESTING_CPU: f64 = 0.05;
const REST: Duration = Duration::from_secs(3);

/// What is measured on the documents that are there: YCSB's core works by their letters.
struct YcsbWork {
    name: &'static str,
    set_percent: &'static str,
    distribution: &'static str,
}

const WORKS: [YcsbWork; 6] = [
    YcsbWork { name: "C uniform", set_percent: "0", distribution: "uniform" },
    YcsbWork { name: "C zipf", set_percent: "0", distribution: "zipf" },
    YcsbWork { name: "B uniform", set_percent: "5", distribution: "uniform" },
    YcsbWork { name: "B zipf", set_percent: "5", distribution: "zipf" },
    YcsbWork { name: "A uniform", set_percent: "50", distribution: "uniform" },
    YcsbWork { name: "A zipf", set_percent: "50", distribution: "zipf" },
];

/// One server with its store.
struct LoadedStore {
    store: String,
    server: Stave,
    cgroup: Option<Cgroup>,
    folder: PathBuf,
}

/// What the kernel counted for a process.
#[derive(Clone, Copy)]
struct DiskUse {
    read_bytes: f64,
    written_bytes: f64,
}

/// Measures.
pub fn run(options: &LargerOptions) -> Result<Report> {
    ensure!(options.documents > 0 && !options.stores.is_empty(), "a document and a store at least");
    if options.program.is_none() {
        release_build()?;
    }
    let scratch = Scratch::new("larger")?;
    let mut stores = options.stores.clone();
    stores.extend(options.before.as_ref().map(|_| BEFORE.to_owned()));
    let all: Result<Vec<LoadedStore>> =
        stores.iter().map(|store| LoadedStore::start(options, &scratch, store)).collect();
    let all = all?;
    let mut report = Report::new("larger-than-memory", options.output.json);
    println!(
        "{:<12} {:<10} {:>12} {:>11} {:>11} {:>9} {:>13} {:>14}",
        "work",
        "store",
        "operations/s",
        "get p99 us",
        "set p99 us",
        "refused",
        "read KiB/get",
        "written/value"
    );
    let mut rows = Vec::new();
    for one in &all {
        rows.push(one.fill(options, &mut report)?);
    }
    for work in &WORKS {
        for one in &all {
            rows.push(one.measure(options, work)?);
        }
    }
    compare(&mut report, &rows, &stores);
    report.detail("rows", rows.into());
    report.detail("documents", json!(options.documents));
    println!(
        "N = {} documents of {VALUE_BYTES} bytes, {} MiB in all with a quota of {} MiB, {} s each; \
         YCSB D and F and RocksDB are not part of it yet",
        options.documents, options.limit_mib, options.quota_mib, options.seconds
    );
    all.into_iter().try_for_each(|one| one.server.stop())?;
    Ok(report)
}

/// Each store's throughput as a part of the first one's.
fn compare(report: &mut Report, rows: &[Value], stores: &[String]) {
    let Some((first, others)) = stores.split_first() else { return };
    let of = |store: &str, work: &str| {
        let row = rows.iter().find(|row| row["store"] == store && row["work"] == work)?;
        row["operations_per_second"].as_f64()
    };
    for other in others {
        for work in std::iter::once("load").chain(WORKS.iter().map(|work| work.name)) {
            if let (Some(base), Some(value)) = (of(first, work), of(other, work)) {
                report.figure(&format!("{work}: {other} to {first}"), value / base, None);
            }
        }
    }
}

impl LoadedStore {
    fn start(options: &LargerOptions, scratch: &Scratch, store: &str) -> Result<LoadedStore> {
        let cgroup = match Cgroup::make(&format!("stave-larger-{store}")) {
            Ok(cgroup) => {
                cgroup.limit(options.limit_mib << 20)?;
                Some(cgroup)
            }
            Err(error) => {
                println!("NO LIMIT: {error:#}; the page cache holds what fits into the machine");
                None
            }
        };
        let folder = scratch.path().join(store);
        let config = scratch.path().join(format!("{store}.toml"));
        let quota = options.quota_mib;
        let kind = if store == BEFORE { "magma" } else { store };
        let bucket = format!(
            "[[bucket]]\nname = \"{BUCKET}\"\nquota = \"{quota}MiB\"\ntype = \"{kind}\"\n\
             eviction-policy = \"full_eviction\"\n"
        );
        fs::write(&config, bucket)?;
        let config = config.to_string_lossy();
        let log = scratch.path().join(format!("{store}.log"));
        let start = Start { data: &folder, log, more: &["--config", &config] };
        let procs = cgroup.as_ref().map(Cgroup::procs);
        let binary = if store == BEFORE { &options.before } else { &options.program };
        let server = match binary {
            Some(binary) => Stave::start_binary(binary, &start, procs.as_deref())?,
            None => Stave::start_in(&start, procs.as_deref())?,
        };
        Ok(LoadedStore { store: store.to_owned(), server, cgroup, folder })
    }

    fn load(&self, options: &LargerOptions, more: &[&str]) -> Result<Value> {
        let keys = options.documents.to_string();
        let value = VALUE_BYTES.to_string();
        let fixed = ["--keys", &keys, "--value-size", &value, "--compressible", "50", "--connections", "16"];
        Peer::stave("stave", &self.server).load(&[&fixed[..], more].concat())
    }

    /// Writes all documents, and waits until the server rests.
    fn fill(&self, options: &LargerOptions, report: &mut Report) -> Result<Value> {
        let before = DiskUse::of(self.server.pid())?;
        let result = self.load(options, &["--populate", "--pipeline", "16", "--operations", "1"])?;
        self.rest()?;
        let after = DiskUse::of(self.server.pid())?;
        let values = (options.documents * VALUE_BYTES) as f64;
        let written = (after.written_bytes - before.written_bytes) / values;
        let space = folder_bytes(&self.folder)? as f64 / values;
        let per_s = number(&result, "/populate/keys_per_second")?;
        println!("{:<12} {:<10} {per_s:>12.0} {:>61.2}", "load", self.store, written);
        let name = &self.store;
        let goal = (name == "magma").then_some(Goal::AtMost(WRITTEN_GOAL));
        report.figure(&format!("load: {name}, written for a byte"), written, goal);
        report.figure(&format!("load: {name}, on disk for a byte"), space, None);
        Ok(json!({ "work": "load", "store": name, "operations_per_second": per_s, "written": written,
                   "on_disk": space }))
    }

    fn measure(&self, options: &LargerOptions, work: &YcsbWork) -> Result<Value> {
        let seconds = options.seconds.to_string();
        let before = DiskUse::of(self.server.pid())?;
        let arguments = ["--set-percent", work.set_percent, "--distribution", work.distribution];
        let result = self.load(options, &[&arguments[..], &["--seconds", &seconds]].concat())?;
        let after = DiskUse::of(self.server.pid())?;
        let of = |pointer: &str| result.pointer(pointer).and_then(Value::as_f64).unwrap_or(0.0);
        let misses = of("/misses");
        ensure!(misses == 0.0, "{}, {}: {misses} documents were not found", self.store, work.name);
        let refused: f64 =
            result["errors"].as_object().into_iter().flatten().filter_map(|(_, count)| count.as_f64()).sum();
        let (gets, sets) = (of("/get/count"), of("/set/count"));
        let read = (after.read_bytes - before.read_bytes) / gets.max(1.0) / 1024.0;
        let written = (after.written_bytes - before.written_bytes) / (sets * VALUE_BYTES as f64).max(1.0);
        let per_s = of("/operations_per_second");
        let (get, set) = (of("/get/p99_us"), of("/set/p99_us"));
        let shown = if sets > 0.0 { format!("{written:.2}") } else { "-".to_owned() };
        let p99 = |count: f64, us: f64| if count > 0.0 { format!("{us:.0}") } else { "-".to_owned() };
        let (get_shown, set_shown) = (p99(gets, get), p99(sets, set));
        println!(
            "{:<12} {:<10} {per_s:>12.0} {get_shown:>11} {set_shown:>11} {refused:>9.0} {read:>13.2} {shown:>14}",
            work.name, self.store
        );
        if let Some(cgroup) = &self.cgroup {
            ensure!(cgroup.kills()? == 0, "{}: the kernel killed the server for its memory", self.store);
        }
        Ok(json!({ "work": work.name, "store": self.store, "operations_per_second": per_s, "get_p99_us": get,
                   "set_p99_us": set, "refused": refused, "read_kib_per_get": read, "written": written }))
    }

    /// Waits until the server does little any more.
    fn rest(&self) -> Result<()> {
        let begun = Instant::now();
        let mut before = cpu_seconds(self.server.pid())?;
        while begun.elapsed() < REST_WITHIN {
            thread::sleep(REST);
            let now = cpu_seconds(self.server.pid())?;
            if now - before < RESTING_CPU * REST.as_secs_f64() {
                return Ok(());
            }
            before = now;
        }
        println!("{}: still busy after {} s", self.store, REST_WITHIN.as_secs());
        Ok(())
    }
}

impl DiskUse {
    /// Bytes that a process had read from disks and written to them (proc(5), `/proc/PID/io`).
    fn of(pid: u32) -> Result<DiskUse> {
        let text = fs::read_to_string(format!("/proc/{pid}/io"))?;
        let field = |name: &str| -> Result<f64> {
            let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
            Ok(line.with_context(|| format!("/proc/PID/io has no {name}"))?.trim().parse()?)
        };
        Ok(DiskUse { read_bytes: field("read_bytes")?, written_bytes: field("write_bytes")? })
    }
}

/// Bytes that the files of a folder take.
fn folder_bytes(folder: &Path) -> Result<u64> {
    let mut bytes = 0;
    for entry in fs::read_dir(folder).with_context(|| format!("cannot list {}", folder.display()))? {
        let entry = entry?;
        let found = entry.metadata()?;
        bytes += if found.is_dir() { folder_bytes(&entry.path())? } else { found.len() };
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_counts_what_this_process_reads_and_writes() {
        let found = DiskUse::of(std::process::id()).expect("Linux counts");
        assert!(found.read_bytes >= 0.0 && found.written_bytes >= 0.0);
    }

    #[test]
    fn a_store_is_compared_with_the_first() {
        let row = |store: &str, per_s: f64| json!({ "work": "load", "store": store, "operations_per_second": per_s });
        let mut report = Report::new("x", false);
        compare(&mut report, &[row("a", 10.0), row("b", 15.0)], &["a".to_owned(), "b".to_owned()]);
        assert_eq!(report.value("load: b to a"), Some(1.5));
    }
}
