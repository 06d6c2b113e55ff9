//! Looks at the server while it is under load: its own figures, and what the kernel says about its memory.

use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use harness::client::Client;
use harness::stave::Stave;
use serde_json::{Value, json};

use super::super::cgroup::{Cgroup, Charged};
use super::latencies::Latencies;
use super::load::Tally;
use super::{LOOK, mib};
use crate::process::anonymous_bytes;
use crate::report::Report;

/// The server, and what was seen of its memory.
pub struct Observer {
    server: Stave,
    client: Client,
    cgroup: Option<Cgroup>,
    every: Duration,
    begun: Instant,
    most_anon: u64,
    most_used: u64,
    most_fixed: u64,
    last: Charged,
    /// When most was not charged to the bucket: how much, and what the server said then.
    worst: (u64, Vec<(String, String)>),
}

/// What the server counts since it started.
#[derive(Clone, Copy, Default)]
struct Counted {
    used: u64,
    items: u64,
    not_resident: u64,
    unsaved: u64,
    fetched: u64,
    written: u64,
    refused: u64,
}

/// One row of the table.
#[derive(Clone, Debug)]
pub struct Row {
    at_s: f64,
    used_mib: f64,
    anon_mib: f64,
    cgroup_mib: f64,
    resident_percent: f64,
    unsaved: u64,
    writes_per_s: f64,
    refused_per_s: f64,
    reads_per_s: f64,
    p50_us: f64,
    p99_us: f64,
    longest_us: f64,
    fetches_per_s: f64,
}

impl Row {
    /// For the line of JSON.
    pub fn to_json(&self) -> Value {
        let round = |value: f64| (value * 10.0).round() / 10.0;
        json!({
            "at_s": round(self.at_s),
            "used_mib": round(self.used_mib),
            "anon_mib": round(self.anon_mib),
            "cgroup_mib": round(self.cgroup_mib),
            "resident_percent": round(self.resident_percent),
            "unsaved": self.unsaved,
            "writes_per_s": round(self.writes_per_s),
            "refused_per_s": round(self.refused_per_s),
            "hot_reads_per_s": round(self.reads_per_s),
            "hot_p50_us": round(self.p50_us),
            "hot_p99_us": round(self.p99_us),
            "hot_longest_us": round(self.longest_us),
            "fetches_per_s": round(self.fetches_per_s),
        })
    }

    fn print(&self, phase: &str) {
        println!(
            "{phase:<9} {:>6.0} {:>7.1} {:>7.1} {:>7.1} {:>6.1} {:>8} {:>8.0} {:>8.0} {:>7.0} {:>7.0} {:>8.0} {:>9.0} {:>8.0}",
            self.at_s,
            self.used_mib,
            self.anon_mib,
            self.cgroup_mib,
            self.resident_percent,
            self.unsaved,
            self.writes_per_s,
            self.refused_per_s,
            self.reads_per_s,
            self.p50_us,
            self.p99_us,
            self.longest_us,
            self.fetches_per_s
        );
    }
}

impl Observer {
    /// Looks at `server`, which is in `cgroup` if there is one; a row each `every`.
    pub fn new(server: Stave, cgroup: Option<Cgroup>, every: Duration) -> Result<Observer> {
        let client = Client::connect(&server.kv)?;
        let (begun, last) = (Instant::now(), Charged::default());
        Ok(Observer {
            server,
            client,
            cgroup,
            every,
            begun,
            most_anon: 0,
            most_used: 0,
            most_fixed: 0,
            last,
            worst: Default::default(),
        })
    }

    /// Where the server listens.
    pub fn address(&self) -> String {
        self.server.kv.clone()
    }

    /// Prints what the columns are.
    pub fn print_head(&self) {
        println!(
            "\n{:<9} {:>6} {:>7} {:>7} {:>7} {:>6} {:>8} {:>8} {:>8} {:>7} {:>7} {:>8} {:>9} {:>8}",
            "phase",
            "at s",
            "used",
            "anon",
            "cgroup",
            "res %",
            "unsaved",
            "writes/s",
            "refused",
            "reads/s",
            "p50 us",
            "p99 us",
            "longest",
            "fetches"
        );
    }

    /// Looks until the time is over; each row goes to `take`, with the latencies it was made of.
    pub fn watch(
        &mut self,
        phase: &str,
        duration: Duration,
        tally: &Tally,
        mut take: impl FnMut(Row, Latencies),
    ) -> Result<()> {
        let end = Instant::now() + duration;
        let mut before = (Instant::now(), self.count(tally)?);
        while before.0 < end {
            let next = (before.0 + self.every).min(end);
            while Instant::now() < next {
                self.look()?;
                thread::sleep(LOOK.min(next.saturating_duration_since(Instant::now())));
            }
            let now = (Instant::now(), self.count(tally)?);
            let latencies = tally.take_hot();
            let row = self.row(before, now, &latencies);
            row.print(phase);
            take(row, latencies);
            before = now;
        }
        Ok(())
    }

    fn look(&mut self) -> Result<()> {
        if self.server.has_ended()? {
            bail!("the server is gone; its log ends with:\n{}", self.server.log_tail());
        }
        match &self.cgroup {
            Some(cgroup) => {
                self.last = cgroup.charged()?;
                self.most_anon = self.most_anon.max(self.last.anon);
                self.most_fixed = self.most_fixed.max(self.last.fixed());
            }
            None => {
                let anon = anonymous_bytes(self.server.pid())?;
                self.last = Charged { anon, ..Charged::default() };
                self.most_anon = self.most_anon.max(anon);
                self.most_fixed = self.most_anon;
            }
        }
        Ok(())
    }

    fn count(&mut self, tally: &Tally) -> Result<Counted> {
        self.look()?;
        let stats = self.client.stats("")?.context("the server has no figures")?;
        let of = |name: &str| {
            let found = stats.iter().find(|(found, _)| found == name);
            found.and_then(|(_, value)| value.parse().ok()).unwrap_or_default()
        };
        let counted = Counted {
            used: of("mem_used"),
            items: of("curr_items"),
            not_resident: of("ep_num_non_resident"),
            unsaved: of("ep_diskqueue_items"),
            fetched: of("ep_bg_fetched"),
            written: tally.written.load(Ordering::Relaxed),
            refused: tally.refused.load(Ordering::Relaxed),
        };
        self.most_used = self.most_used.max(counted.used);
        let not_charged = self.last.anon.saturating_sub(counted.used);
        if not_charged > self.worst.0 {
            self.worst = (not_charged, self.client.stats("memory")?.unwrap_or_default());
        }
        Ok(counted)
    }

    fn row(&self, (from, before): (Instant, Counted), (to, now): (Instant, Counted), hot: &Latencies) -> Row {
        let seconds = (to - from).as_secs_f64();
        let rate = |before: u64, now: u64| now.saturating_sub(before) as f64 / seconds;
        Row {
            at_s: (to - self.begun).as_secs_f64(),
            used_mib: mib(now.used),
            anon_mib: mib(self.last.anon),
            cgroup_mib: mib(self.last.all),
            resident_percent: 100.0 - 100.0 * now.not_resident as f64 / now.items.max(1) as f64,
            unsaved: now.unsaved,
            writes_per_s: rate(before.written, now.written),
            refused_per_s: rate(before.refused, now.refused),
            reads_per_s: hot.count() as f64 / seconds,
            p50_us: hot.percentile_us(50.0),
            p99_us: hot.percentile_us(99.0),
            longest_us: hot.longest_us(),
            fetches_per_s: rate(before.fetched, now.fetched),
        }
    }

    /// Adds what was seen of the memory.
    pub fn sum_up(&mut self, report: &mut Report, limit: u64, fixed: u64) {
        let kills = self.cgroup.as_ref().and_then(|cgroup| cgroup.kills().ok()).unwrap_or_default();
        let gone = u64::from(self.server.has_ended().unwrap_or(true));
        report.add("killed", kills.max(gone) as f64, Some(0.0));
        report.add("empty_node_mib", mib(fixed), None);
        report.add("limit_mib", mib(limit), None);
        report.add("used_most_mib", mib(self.most_used), None);
        report.add("anon_peak_mib", mib(self.most_anon), Some(mib(limit)));
        report.add("not_charged_most_mib", mib(self.worst.0), None);
        println!("\n`stats memory` when most was not charged:");
        self.worst.1.iter().for_each(|(name, value)| println!("  {name:<40} {value}"));
        report.add("not_reclaimable_peak_mib", mib(self.most_fixed), None);
        if let Some(charged) = self.cgroup.as_ref().and_then(|cgroup| cgroup.charged().ok()) {
            report.add("cgroup_peak_mib", mib(charged.peak), None);
            report.add("page_cache_at_end_mib", mib(charged.file), None);
        }
    }

    /// Stops the server.
    pub fn end(mut self) -> Result<()> {
        if self.server.has_ended()? {
            return Ok(());
        }
        // What it holds is thrown away, so it need not be saved.
        self.server.kill()
    }
}
