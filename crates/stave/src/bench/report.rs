//! The outcome of a run, as a table or as one line of JSON.

use std::collections::BTreeMap;
use std::fmt::Write;

use hdrhistogram::Histogram;
use protocol::Status;
use serde::Serialize;

use super::chart;
use super::plan::Plan;
use super::resp;
use super::tally::Tally;
use super::wire::Protocol;
use crate::units::{bytes, duration, thousands};

/// What a phase measured.
#[derive(Clone, Debug)]
pub struct Measured {
    /// What was counted.
    pub tally: Tally,
    /// For how long.
    pub seconds: f64,
    /// CPU time of the server meanwhile, if its process is known.
    pub server_cpu_s: Option<f64>,
    /// CPU time of this process meanwhile.
    pub client_cpu_s: f64,
}

/// Latencies of one kind of operation.
#[derive(Clone, Debug, Serialize)]
pub struct Latency {
    /// Operations.
    pub count: u64,
    /// Fastest.
    pub min_us: f64,
    /// Mean.
    pub mean_us: f64,
    /// Half of the operations were at least this fast.
    pub p50_us: f64,
    /// Nine of ten.
    pub p90_us: f64,
    /// 99 of a hundred.
    pub p99_us: f64,
    /// 999 of a thousand.
    pub p999_us: f64,
    /// Slowest.
    pub max_us: f64,
}

impl Latency {
    fn of(histogram: &Histogram<u64>) -> Latency {
        // Histograms know values to three digits, so more than a tenth of a microsecond says nothing.
        let us = |ns: f64| (ns / 100.0).round() / 10.0;
        let quantile = |quantile| us(histogram.value_at_quantile(quantile) as f64);
        Latency {
            count: histogram.len(),
            min_us: us(histogram.min() as f64),
            mean_us: us(histogram.mean()),
            p50_us: quantile(0.5),
            p90_us: quantile(0.9),
            p99_us: quantile(0.99),
            p999_us: quantile(0.999),
            max_us: us(histogram.max() as f64),
        }
    }
}

/// What loading the keys took.
#[derive(Clone, Debug, Serialize)]
pub struct Loaded {
    /// Keys written.
    pub keys: u64,
    /// Seconds it took.
    pub seconds: f64,
    /// Keys a second.
    pub keys_per_second: f64,
    /// Refusals that passed, tried again.
    pub retries: u64,
    /// CPU time of the server for each key, if its process is known.
    pub server_cpu_us_per_operation: Option<f64>,
}

/// The outcome of a run.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    name: &'static str,
    /// Where to.
    pub addr: String,
    /// What was spoken.
    pub protocol: &'static str,
    /// Connections.
    pub connections: u32,
    /// Requests outstanding on each.
    pub pipeline: u32,
    /// Threads of the load generator.
    pub threads: u32,
    /// Different keys.
    pub keys: u64,
    /// Collections that they are spread over.
    pub collections: usize,
    /// Size of each key.
    pub key_size: usize,
    /// Sizes of values.
    pub value_size: String,
    /// Share of writes.
    pub set_percent: u8,
    /// How keys were chosen.
    pub distribution: String,
    /// What loading the keys took, if they were loaded.
    pub populate: Option<Loaded>,
    /// Seconds measured.
    pub seconds: f64,
    /// Operations answered.
    pub operations: u64,
    /// Operations answered in a second.
    pub operations_per_second: f64,
    /// Operations that were meant to begin in a second; latencies count from when each was meant to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate: Option<f64>,
    /// Operations that were due at the end and had not begun.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub not_begun: Option<u64>,
    /// Gets.
    pub get: Latency,
    /// Sets.
    pub set: Latency,
    /// Gets of documents that are not there.
    pub misses: u64,
    /// Operations that failed, by kind.
    pub errors: BTreeMap<String, u64>,
    /// Bytes received.
    pub bytes_in: u64,
    /// Bytes sent.
    pub bytes_out: u64,
    /// CPU time of the server, if its process is known.
    pub server_cpu_seconds: Option<f64>,
    /// The same for each operation answered.
    pub server_cpu_us_per_operation: Option<f64>,
    /// CPU time of the load generator for each operation answered.
    pub client_cpu_us_per_operation: f64,
    #[serde(skip)]
    tally: Tally,
}

impl Report {
    /// Of a run, and of the load before it.
    pub fn new(plan: &Plan, collections: usize, loaded: Option<&Measured>, measured: Measured) -> Report {
        let Measured { tally, seconds, server_cpu_s, client_cpu_s } = measured;
        let operations = tally.operations();
        let per_operation = |cpu_s: f64| round(cpu_s * 1e6 / operations.max(1) as f64, 3);
        Report {
            name: "stave bench",
            addr: plan.target.addr.clone(),
            protocol: plan.protocol.name(),
            connections: plan.connections,
            pipeline: plan.pipeline,
            threads: plan.threads,
            keys: plan.keys,
            collections,
            key_size: plan.key_size_bytes,
            value_size: plan.value_size.to_string(),
            set_percent: plan.set_percent,
            distribution: plan.distribution.to_string(),
            populate: loaded.map(Loaded::of),
            seconds: round(seconds, 3),
            operations,
            operations_per_second: round(per_second(operations, seconds), 0),
            rate: plan.rate,
            not_begun: plan.rate.map(|_| tally.unsent),
            get: Latency::of(&tally.gets),
            set: Latency::of(&tally.sets),
            misses: tally.misses,
            errors: errors(&tally, plan.protocol),
            bytes_in: tally.bytes_in,
            bytes_out: tally.bytes_out,
            server_cpu_seconds: server_cpu_s.map(|cpu_s| round(cpu_s, 2)),
            server_cpu_us_per_operation: server_cpu_s.map(per_operation),
            client_cpu_us_per_operation: per_operation(client_cpu_s),
            tally,
        }
    }

    /// Whether every operation was answered.
    pub fn is_clean(&self) -> bool {
        self.tally.failed() == 0
    }

    /// One line of JSON.
    pub fn json(&self) -> String {
        serde_json::to_string(self).expect("numbers and texts can be written as JSON")
    }

    /// For people.
    pub fn table(&self) -> String {
        let mut out = String::new();
        // Writing to a string does not fail.
        let _ = self.write_summary(&mut out);
        let _ = self.write_latencies(&mut out);
        let _ = self.write_errors(&mut out);
        out
    }

    fn write_summary(&self, out: &mut String) -> std::fmt::Result {
        writeln!(
            out,
            "{} ({}): {} connections, pipeline {}, {} threads\n{} keys of {} B, values of {} B, {} % set, {}",
            self.addr,
            self.protocol,
            self.connections,
            self.pipeline,
            self.threads,
            thousands(self.keys),
            self.key_size,
            self.value_size,
            self.set_percent,
            self.distribution
        )?;
        if self.collections > 1 {
            writeln!(out, "spread over {} collections", thousands(self.collections as u64))?;
        }
        if let Some(loaded) = &self.populate {
            let (keys, rate) = (thousands(loaded.keys), thousands(loaded.keys_per_second as u64));
            write!(out, "populate: {keys} keys in {:.2} s, {rate} keys/s", loaded.seconds)?;
            if let Some(cpu_us) = loaded.server_cpu_us_per_operation {
                write!(out, ", {cpu_us:.2} us of server CPU each")?;
            }
            if loaded.retries > 0 {
                write!(out, ", {} refused for a time and tried again", thousands(loaded.retries))?;
            }
            writeln!(out)?;
        }
        let (operations, rate) = (thousands(self.operations), thousands(self.operations_per_second as u64));
        writeln!(out, "{operations} operations in {:.2} s: {rate} operations/s", self.seconds)?;
        if let (Some(rate), Some(not_begun)) = (self.rate, self.not_begun) {
            let (rate, not_begun) = (thousands(rate as u64), thousands(not_begun));
            writeln!(
                out,
                "meant: {rate} operations/s, latency from when each was meant; {not_begun} due at the end"
            )?;
        }
        if self.operations > 0
            && let (Some(cpu_s), Some(cpu_us)) = (self.server_cpu_seconds, self.server_cpu_us_per_operation)
        {
            writeln!(out, "server CPU {cpu_s:.2} s: {cpu_us:.2} us an operation")?;
        }
        write!(out, "sent {}, received {}", bytes(self.bytes_out), bytes(self.bytes_in))?;
        if self.operations > 0 {
            write!(out, ", client CPU {:.2} us an operation", self.client_cpu_us_per_operation)?;
        }
        writeln!(out)
    }

    fn write_latencies(&self, out: &mut String) -> std::fmt::Result {
        if self.operations == 0 {
            return Ok(());
        }
        let columns = ["count", "min", "mean", "p50", "p90", "p99", "p99.9", "max"];
        write!(out, "\n{:<7} {:>13}", "latency", columns[0])?;
        for column in &columns[1..] {
            write!(out, " {column:>9}")?;
        }
        writeln!(out)?;
        let kinds = [("get", &self.get), ("set", &self.set)];
        for (name, l) in kinds.iter().filter(|row| row.1.count > 0) {
            write!(out, "{name:<7} {:>13}", thousands(l.count))?;
            for us in [l.min_us, l.mean_us, l.p50_us, l.p90_us, l.p99_us, l.p999_us, l.max_us] {
                write!(out, " {:>9}", duration((us * 1e3) as u64))?;
            }
            writeln!(out)?;
        }
        let mut all = self.tally.gets.clone();
        all.add(&self.tally.sets).expect("all histograms have the same bounds");
        if !all.is_empty() {
            write!(out, "\n{}", chart::draw(&all))?;
        }
        Ok(())
    }

    fn write_errors(&self, out: &mut String) -> std::fmt::Result {
        writeln!(out)?;
        if self.misses > 0 {
            writeln!(out, "{:>13} gets of documents that are not there", thousands(self.misses))?;
        }
        if self.errors.is_empty() {
            return writeln!(out, "no errors");
        }
        for (kind, count) in &self.errors {
            writeln!(out, "{:>13} {kind}", thousands(*count))?;
        }
        Ok(())
    }
}

impl Loaded {
    fn of(measured: &Measured) -> Loaded {
        let keys = measured.tally.operations();
        let cpu_us = measured.server_cpu_s.map(|cpu_s| round(cpu_s * 1e6 / keys.max(1) as f64, 3));
        Loaded {
            keys,
            seconds: round(measured.seconds, 3),
            keys_per_second: round(per_second(keys, measured.seconds), 0),
            retries: measured.tally.failed(),
            server_cpu_us_per_operation: cpu_us,
        }
    }
}

fn errors(tally: &Tally, protocol: Protocol) -> BTreeMap<String, u64> {
    let name = |code: &u16| match Status::from_code(*code).filter(|_| protocol == Protocol::Couchbase) {
        Some(status) => status.name().to_owned(),
        None if protocol == Protocol::Redis && *code == resp::ERROR => "error answer".to_owned(),
        // The same numbers do not always mean the same to memcached.
        None => format!("status 0x{code:04x}"),
    };
    let mut errors: BTreeMap<String, u64> =
        tally.refused.iter().map(|(code, count)| (name(code), *count)).collect();
    if tally.cut > 0 {
        errors.insert("connection lost".into(), tally.cut);
    }
    errors
}

fn per_second(operations: u64, seconds: f64) -> f64 {
    if seconds > 0.0 { operations as f64 / seconds } else { 0.0 }
}

fn round(number: f64, decimals: i32) -> f64 {
    let unit = 10f64.powi(decimals);
    (number * unit).round() / unit
}
