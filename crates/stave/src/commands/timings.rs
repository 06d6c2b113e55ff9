//! `stave timings`: how long commands and other operations of a node took, as bars or as JSON.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, bail};
use base::env::{Env, OpenMode};
use clap::builder::NonEmptyStringValueParser;
use clap::{Args, ValueEnum};
use node::stats::timings::SAMPLED_TURNS;
use protocol::opcode;
use serde_json::{Map, Value, json};

use crate::bench::bar;
use crate::cli::{Outcome, ServerFlags};
use crate::client::{Client, Dialect};
use crate::units::{duration, parse_duration, thousands};

/// A file of earlier times is not larger.
const MOST_BYTES: u64 = 16 << 20;

/// Print how long operations of a node took.
#[derive(Clone, Debug, Args)]
#[command(after_help = "Examples:
  stave timings
  stave timings get set --bucket orders
  stave timings sync_write_commit_persist_to_majority
  stave timings --of tasks
  stave timings --interval 10s
  stave timings --json > before.json
  stave timings --since before.json

Times of commands (Get, Set, ...) are sampled: measured are the requests of one turn of a connection in 64, so there were
about 64 times as many; with --json their measured_one_in is 64. All others are all there were; their measured_one_in is 1.
work_queue and fetch_queue are waits of requests that left their worker: for a thread for long work, for the fetcher.
Times are those of the bucket, since the node started or the bucket was made.")]
pub struct TimingsFlags {
    /// Which ones; all of which there are any if not given
    #[arg(value_name = "OP", value_parser = NonEmptyStringValueParser::new())]
    ops: Vec<String>,
    /// Times of what
    #[arg(long, value_enum, default_value_t = Of::Requests)]
    of: Of,
    /// Print only what was recorded during this time from now on: 500ms, 10s, 2m
    #[arg(long, value_name = "TIME", value_parser = parse_duration, conflicts_with = "since")]
    interval: Option<Duration>,
    /// Print only what was recorded since an earlier output with --json
    #[arg(long, value_name = "FILE")]
    since: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    server: ServerFlags,
}

/// Groups of times.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Of {
    /// Commands, sync writes, waiting for what is on disk
    Requests,
    /// Operations of the store
    Store,
    /// Steps of background tasks
    Tasks,
    /// How long background tasks were due, or waited for
    Waits,
}

impl Of {
    fn group(self) -> &'static str {
        match self {
            Of::Requests => "timings",
            Of::Store => "kvtimings",
            Of::Tasks => "runtimes",
            Of::Waits => "scheduler",
        }
    }
}

/// Runs the command.
#[expect(clippy::disallowed_methods, reason = "the client's end is not part of a node")]
pub fn run(env: &Env, flags: &TimingsFlags) -> anyhow::Result<Outcome> {
    let target = flags.server.target(Dialect::Couchbase)?;
    let earlier = flags.since.as_ref().map(|path| read_earlier(env, path)).transpose()?;
    let mut client = Client::open(env, &target)?;
    let mut ask = || anyhow::Ok(parse(&client.stats(flags.of.group())?));
    let first = ask()?;
    let times = match (flags.interval, &earlier) {
        (Some(interval), _) => {
            std::thread::sleep(interval);
            since(&ask()?, &first)
        }
        (None, Some(earlier)) => since(&first, earlier),
        (None, None) => first,
    };
    let chosen = choose(times, &flags.ops)?;
    let text = if flags.json { format!("{}\n", as_json(&chosen)) } else { render(&chosen) };
    std::io::stdout().lock().write_all(text.as_bytes())?;
    Ok(Outcome::Done)
}

/// The times of one operation, in microseconds.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct OpTimes {
    /// Counts of times, by where their range begins; with that, where it ends.
    ranges: BTreeMap<u64, (u64, u64)>,
    total_us: f64,
}

impl OpTimes {
    pub(super) fn count(&self) -> u64 {
        self.ranges.values().map(|(_, count)| count).sum()
    }

    /// So many of a thousand times were no longer than this, in microseconds: the end of a range.
    pub(super) fn percentile_us(&self, per_mille: u64) -> u64 {
        let wanted = (self.count() * per_mille).div_ceil(1000).max(1);
        let mut counted = 0;
        let range = self.ranges.values().find(|(_, count)| {
            counted += count;
            counted >= wanted
        });
        range.map_or(0, |(to, _)| *to)
    }

    fn mean_us(&self) -> f64 {
        if self.count() == 0 { 0.0 } else { self.total_us / self.count() as f64 }
    }
}

pub(super) type Times = BTreeMap<String, OpTimes>;

/// Takes the rows of a group apart: `NAME_FROM,TO` and `NAME_mean`. What is neither is left out.
pub(super) fn parse(figures: &[(String, String)]) -> Times {
    let mut times = Times::new();
    let mut means = Vec::new();
    for (name, value) in figures {
        let Some((op, last)) = name.rsplit_once('_') else { continue };
        if last == "mean" {
            means.push((op, value.parse().unwrap_or(0.0)));
        } else if let Some((from, to)) = last.split_once(',')
            && let (Ok(from), Ok(to), Ok(count)) = (from.parse(), to.parse(), value.parse())
        {
            times.entry(op.to_owned()).or_default().ranges.insert(from, (to, count));
        }
    }
    for (op, mean_us) in means {
        if let Some(times) = times.get_mut(op) {
            times.total_us = mean_us * times.count() as f64;
        }
    }
    times
}

/// What was recorded between two moments. If there is less than before, the node began again in between, and all
/// of it is new.
pub(super) fn since(now: &Times, earlier: &Times) -> Times {
    let difference = |(op, now): (&String, &OpTimes)| {
        let none = OpTimes::default();
        let before = earlier.get(op).filter(|before| before.count() <= now.count()).unwrap_or(&none);
        let ranges = now.ranges.iter().filter_map(|(from, (to, count))| {
            let count = count.saturating_sub(before.ranges.get(from).map_or(0, |(_, count)| *count));
            (count > 0).then_some((*from, (*to, count)))
        });
        let times = OpTimes { ranges: ranges.collect(), total_us: (now.total_us - before.total_us).max(0.0) };
        (times.count() > 0).then(|| (op.clone(), times))
    };
    now.iter().filter_map(difference).collect()
}

/// Those that were asked for, whatever the case of their letters.
fn choose(times: Times, ops: &[String]) -> anyhow::Result<Times> {
    if ops.is_empty() {
        return Ok(times);
    }
    let is = |op: &str, wanted: &String| op.eq_ignore_ascii_case(wanted);
    if let Some(unknown) = ops.iter().find(|wanted| !times.keys().any(|op| is(op, wanted))) {
        let known: Vec<&str> = times.keys().map(String::as_str).collect();
        let known = if known.is_empty() { "nothing".to_owned() } else { known.join(", ") };
        bail!("no time of `{unknown}` was recorded; there are times of {known}");
    }
    Ok(times.into_iter().filter(|(op, _)| ops.iter().any(|wanted| is(op, wanted))).collect())
}

/// Of how many requests of this operation one is measured. Only commands are sampled; no other operation has such a name.
fn measured_one_in(op: &str) -> u64 {
    let is_command = (0..=u8::MAX).any(|code| opcode::name(code) == Some(op));
    if is_command { SAMPLED_TURNS } else { 1 }
}

fn render(times: &Times) -> String {
    if times.is_empty() {
        return "no times were recorded\n".to_owned();
    }
    let sections: Vec<String> = times.iter().map(|(op, times)| section(op, times)).collect();
    sections.join("\n")
}

fn section(op: &str, times: &OpTimes) -> String {
    let ns = |us: f64| (us * 1000.0) as u64;
    let total = times.count();
    let recorded = match measured_one_in(op) {
        1 => "recorded".to_owned(),
        many => format!("measured (one turn of a connection in {many})"),
    };
    let mut out = format!(
        "{op}: {} {recorded}, average {}, total {}\n",
        thousands(total),
        duration(ns(times.mean_us())),
        duration(ns(times.total_us))
    );
    let largest = times.ranges.values().map(|(_, count)| *count).max().unwrap_or(0) as f64;
    let width = thousands(largest as u64).len();
    let mut counted = 0;
    for (from, (to, count)) in &times.ranges {
        counted += count;
        let percent = counted as f64 * 100.0 / total as f64;
        let (from, to) = (duration(from * 1000), duration(to * 1000));
        let line = format!(
            "{from:>8} - {to:>8}  {:>width$}  {percent:6.2} %  {}",
            thousands(*count),
            bar(*count as f64 / largest)
        );
        // Writing to a string does not fail.
        let _ = writeln!(out, "{}", line.trim_end());
    }
    out
}

fn as_json(times: &Times) -> Value {
    let of = |op: &str, times: &OpTimes| {
        let ranges: Vec<[u64; 3]> =
            times.ranges.iter().map(|(from, (to, count))| [*from, *to, *count]).collect();
        json!({
            "count": times.count(),
            "measured_one_in": measured_one_in(op),
            "mean_us": times.mean_us(),
            "total_us": times.total_us,
            "ranges_us": ranges,
        })
    };
    Value::Object(times.iter().map(|(op, times)| (op.clone(), of(op, times))).collect::<Map<_, _>>())
}

fn read_earlier(env: &Env, path: &std::path::Path) -> anyhow::Result<Times> {
    let read = || {
        let file = env.disk.open(path, OpenMode::Read)?;
        let mut bytes = vec![0; file.len()?.min(MOST_BYTES) as usize];
        let len = file.read_at(&mut bytes, 0)?;
        bytes.truncate(len);
        std::io::Result::Ok(bytes)
    };
    let bytes = read().with_context(|| format!("cannot read {}", path.display()))?;
    from_json(&bytes).with_context(|| {
        format!("{} is not what `stave timings --json` printed; give such a file", path.display())
    })
}

fn from_json(bytes: &[u8]) -> anyhow::Result<Times> {
    let all: BTreeMap<String, Value> = serde_json::from_slice(bytes)?;
    let of = |(op, times): (String, Value)| {
        let ranges: Vec<[u64; 3]> = serde_json::from_value(times["ranges_us"].clone())?;
        let ranges = ranges.into_iter().map(|[from, to, count]| (from, (to, count))).collect();
        let total_us = times["total_us"].as_f64().context("total_us is missing")?;
        anyhow::Ok((op, OpTimes { ranges, total_us }))
    };
    all.into_iter().map(of).collect()
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;

    fn times(rows: &[(&str, &str)]) -> Times {
        parse(&rows.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect::<Vec<_>>())
    }

    const ROWS: [(&str, &str); 7] = [
        ("Get_0,1", "1500"),
        ("Get_1,2", "400"),
        ("Get_36864,40960", "100"),
        ("Get_mean", "2000.25"),
        ("sync_write_commit_majority_128,144", "1"),
        ("sync_write_commit_majority_mean", "130"),
        ("something_else", "7"),
    ];

    #[test]
    fn times_are_drawn() {
        expect![[r#"
            Get: 2,000 measured (one turn of a connection in 64), average 2.00 ms, total 4.00 s
             0.00 us -  1.00 us  1,500   75.00 %  ██████████████████████████████████████████████████
             1.00 us -  2.00 us    400   95.00 %  █████████████▍
             36.9 ms -  41.0 ms    100  100.00 %  ███▍

            sync_write_commit_majority: 1 recorded, average 130 us, total 130 us
              128 us -   144 us  1  100.00 %  ██████████████████████████████████████████████████
        "#]]
        .assert_eq(&render(&times(&ROWS)));
        assert_eq!(render(&Times::new()), "no times were recorded\n");
    }

    #[test]
    fn what_is_printed_as_json_is_read_again() {
        let times = times(&ROWS);
        let read = from_json(as_json(&times).to_string().as_bytes()).expect("it was printed so");
        assert_eq!(read, times);
        assert!(from_json(b"[]").is_err() && from_json(b"{\"Get\":{}}").is_err());
    }

    #[test]
    fn json_says_what_is_sampled() {
        let told = as_json(&times(&ROWS));
        assert_eq!(told["Get"]["measured_one_in"], 64);
        assert_eq!(told["sync_write_commit_majority"]["measured_one_in"], 1);
        for all in ["bg_wait", "disk_commit", "work_queue", "flusher"] {
            assert_eq!(measured_one_in(all), 1, "{all}");
        }
    }

    #[test]
    fn two_moments_differ_by_what_came_between() {
        let earlier = times(&[("Get_0,1", "1000"), ("Get_mean", "0.5"), ("Set_0,1", "5"), ("Set_mean", "1")]);
        let now = times(&[
            ("Get_0,1", "1001"),
            ("Get_8,9", "3"),
            ("Get_mean", "0.524900398406"),
            ("Set_0,1", "5"),
            ("Set_mean", "1"),
            ("Add_0,1", "2"),
            ("Add_mean", "1"),
        ]);
        let since = since(&now, &earlier);
        assert_eq!(since.keys().collect::<Vec<_>>(), ["Add", "Get"]);
        assert_eq!(since["Get"].ranges, BTreeMap::from([(0, (1, 1)), (8, (9, 3))]));
        assert!((since["Get"].total_us - 27.0).abs() < 0.001, "{}", since["Get"].total_us);
    }

    #[test]
    fn a_node_that_began_again_counts_from_the_start() {
        let (earlier, now) = (times(&ROWS), times(&[("Get_0,1", "3"), ("Get_mean", "1")]));
        assert_eq!(since(&now, &earlier), now);
    }

    #[test]
    fn operations_are_chosen_by_name() {
        let chosen = choose(times(&ROWS), &["get".to_owned()]).expect("it is there");
        assert_eq!(chosen.keys().collect::<Vec<_>>(), ["Get"]);
        let error = choose(times(&ROWS), &["get".to_owned(), "put".to_owned()]).expect_err("unknown");
        expect!["no time of `put` was recorded; there are times of Get, sync_write_commit_majority"]
            .assert_eq(&error.to_string());
    }
}
