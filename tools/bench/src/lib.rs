//! Measurements, most with a threshold: beside others in the same run where there are others.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "this tool stands outside the server: it starts and measures it in the real world"
)]

mod accounting;
mod cgroup;
mod checkpoints;
mod compact;
mod console;
mod cycles;
mod dcp;
mod durable;
mod encryption;
mod engines;
mod failover;
mod filling;
mod flush;
mod hit_rate;
mod idle;
mod interruptions;
mod larger;
mod load;
mod locks;
mod memcached;
mod memory;
mod moments;
mod output;
mod overhead;
mod page;
mod pressure;
mod process;
mod redis;
mod replication;
mod report;
mod scrape;
mod start;
mod stop;
mod strangers;
mod syncwrites;
mod tls;
mod warmup;
mod writers;

use anyhow::{Result, bail};
use clap::Subcommand;

pub use output::Output;
use report::Report;

/// What to measure.
#[derive(Subcommand)]
pub enum Bench {
    /// Throughput, server CPU an operation and latency beside memcached, with equal threads, client and load.
    Memcached(memcached::MemcachedOptions),
    /// Processor time an operation and tails beside memcached and Redis, each server on one CPU.
    Cycles(cycles::CyclesOptions),
    /// From exec to ready, memory when ready, size of the binary, memory of idle connections.
    Start(start::StartOptions),
    /// How long a clean stop takes with as much left for the files as there can be.
    Stop(stop::StopOptions),
    /// How long the lock of a vBucket is held by operations on values of 20 MiB, on a node and on its replica.
    Locks(locks::LocksOptions),
    /// Server CPU an operation and a handshake with TLS, beside Redis with TLS and Stave without.
    Tls(tls::TlsOptions),
    /// What each request costs that needs no user: processor time and memory.
    Strangers(strangers::StrangersOptions),
    /// Server CPU of writes, and backfills, with encryption at rest beside a node without.
    Encryption(encryption::EncryptionOptions),
    /// Clients that wait until each write is on disk: journal on, journal off, and Redis with appendfsync always.
    Durable(writers::WritersOptions),
    /// Clients that wait until a majority has each write: levels, numbers of clients, one node and two, and Redis.
    Syncwrites(syncwrites::SyncwritesOptions),
    /// Saving batches of one vBucket, and single commits, beside a raw append.
    Flush(flush::FlushOptions),
    /// The storage beside fjall, RocksDB, LMDB and redb (the workspace in `tools/engines`).
    Engines(engines::EnginesOptions),
    /// A restart with many documents: time to ready, to the first correct read, until everything is in memory.
    Warmup(warmup::WarmupOptions),
    /// What the pager keeps in memory, beside plain LRU and the optimum, and how long it holds locks.
    HitRate(hit_rate::HitRateOptions),
    /// The checkpoint manager: taking checkpoints out, queueing, ranges, cursors, at 1 to 100,000 checkpoints.
    Checkpoints(checkpoints::CheckpointsOptions),
    /// What accounts and the heap cost: charging, the estimate under load, versions beside the system's allocator.
    Accounting(accounting::AccountingOptions),
    /// Bytes that a document costs beyond key and value, beside memcached and Redis.
    Memory(memory::MemoryOptions),
    /// The front end while all files are compacted, and the disk space before, during and after.
    Compact(compact::CompactOptions),
    /// Twice the quota of incoming data under a limit of memory: nothing is killed, no read refused, hot reads stay fast.
    Pressure(pressure::PressureOptions),
    /// Many more documents than memory, in each store, under a limit for the page cache, too: YCSB's A, B and C.
    LargerThanMemory(larger::LargerOptions),
    /// Streams of changes: look-up, from memory beside the front end, from disk, and what idle ones cost.
    Dcp(dcp::DcpOptions),
    /// Hard failovers of a small cluster, one after the other: how long until everything can be written again.
    Failover(failover::FailoverOptions),
    /// Two nodes: how far a replica is behind under full write load, how long taking over blocks writes, what is lost.
    Replication(replication::ReplicationOptions),
    /// Range scans of everything by one client, beside a stream: rate, memory, 1,000 at once, point reads beside.
    Scan(moments::MomentOptions),
    /// Full, encrypted and incremental backups, beside a stream: rate, what an incremental one has, point reads beside.
    Backup(moments::MomentOptions),
    /// A restore into an empty bucket, beside what the load generator stores.
    Restore(moments::MomentOptions),
    /// A continuous backup at full write load: how long changes wait, what it costs the node.
    Follow(moments::MomentOptions),
    /// Snapshots by file of all 1,024 vBuckets: time and memory.
    Snapshot(moments::MomentOptions),
    /// Processor time an operation beside an earlier program, by turns: what was added since costs, at depth 1 and 16.
    Overhead(overhead::OverheadOptions),
    /// Processor time of a scrape of Prometheus with many buckets and collections, and how long it holds locks.
    Scrape(scrape::ScrapeOptions),
    /// How long the first page of the console takes in a browser, and what an idle node and an open page cost.
    Console(console::ConsoleOptions),
    /// The comparisons with other servers, one behind the other, and a page of what they came to.
    Report(page::ReportOptions),
}

/// Runs a measurement; whether all thresholds hold.
pub fn run(bench: &Bench) -> Result<bool> {
    match bench {
        Bench::Engines(options) => engines::run(options),
        Bench::Report(options) => page::run(options),
        bench => Ok(measure(bench)?.close()),
    }
}

/// Runs a measurement that ends with figures.
fn measure(bench: &Bench) -> Result<Report> {
    Ok(match bench {
        Bench::Memcached(options) => memcached::run(options)?,
        Bench::Cycles(options) => cycles::run(options)?,
        Bench::Locks(options) => locks::run(options)?,
        Bench::Tls(options) => tls::run(options)?,
        Bench::Start(options) => start::run(options)?,
        Bench::Stop(options) => stop::run(options)?,
        Bench::Strangers(options) => strangers::run(options)?,
        Bench::Encryption(options) => encryption::run(options)?,
        Bench::Durable(options) => durable::run(options)?,
        Bench::Syncwrites(options) => syncwrites::run(options)?,
        Bench::Flush(options) => flush::run(options)?,
        Bench::Warmup(options) => warmup::run(options)?,
        Bench::HitRate(options) => hit_rate::run(options)?,
        Bench::Checkpoints(options) => checkpoints::run(options)?,
        Bench::Accounting(options) => accounting::run(options)?,
        Bench::Memory(options) => memory::run(options)?,
        Bench::Compact(options) => compact::run(options)?,
        Bench::Pressure(options) => pressure::run(options)?,
        Bench::LargerThanMemory(options) => larger::run(options)?,
        Bench::Dcp(options) => dcp::run(options)?,
        Bench::Failover(options) => failover::run(options)?,
        Bench::Replication(options) => replication::run(options)?,
        Bench::Scan(options) => moments::scan::run(options)?,
        Bench::Backup(options) => moments::backup::run(options)?,
        Bench::Restore(options) => moments::restore::run(options)?,
        Bench::Follow(options) => moments::follow::run(options)?,
        Bench::Snapshot(options) => moments::snapshot::run(options)?,
        Bench::Overhead(options) => overhead::run(options)?,
        Bench::Scrape(options) => scrape::run(options)?,
        Bench::Console(options) => console::run(options)?,
        Bench::Engines(_) | Bench::Report(_) => bail!("it prints tables of its own"),
    })
}
