//! `stave top`: what the nodes of a cluster do in one bucket, on one screen that is drawn again and again.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::Write as _;
use std::time::{Duration, Instant};

use base::env::Env;
use clap::Args;
use serde_json::{Map, Value, json};

use super::timings::{self, Times};
use crate::cli::{Outcome, ServerFlags};
use crate::client::dcp::members;
use crate::client::{Client, ClientError, Dialect, Patience, Target};
use crate::units::{before_page, bytes, duration, parse_duration, thousands};

/// Commands that are shown as the slowest.
const SLOWEST: usize = 3;
/// Slow operations that are shown.
const SLOW: usize = 3;
/// Parts of memory that are shown, the largest.
const PARTS: usize = 4;
/// A node that does not answer within this time has no figures on this screen: the others have not to wait for it.
const ANSWERED_WITHIN: Duration = Duration::from_secs(2);

/// Watch what the nodes of a cluster do, on one screen.
#[derive(Clone, Debug, Args)]
#[command(after_help = "Examples:
  stave top
  stave top --bucket orders --interval 5s
  stave top --once
  stave top --json | jq -c '.nodes[].operations'

Rates and times are those of the last interval; times of commands are those of one turn of a connection in 64, and slow
operations those that took longer than they may (stave stats slow-operations has more of them).
The counters of the node around the bucket are for users of all buckets.")]
pub struct TopFlags {
    /// How often to look: 500ms, 2s, 1m
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = parse_duration)]
    interval: Duration,
    /// Print one screen, after one interval, and end
    #[arg(long)]
    once: bool,
    /// Print a JSON object for each interval, each on a line of its own
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    server: ServerFlags,
}

/// Runs the command.
#[expect(clippy::disallowed_methods, reason = "the client's end is not part of a node")]
pub fn run(env: &Env, flags: &TopFlags) -> anyhow::Result<Outcome> {
    let target = flags.server.target(Dialect::Couchbase)?;
    // Whom we may not ask at all is an error; a node that goes away later is shown as such.
    let mut before = looks(env, members(env, &target)?);
    let target = hasty(target);
    loop {
        std::thread::sleep(flags.interval);
        let mut nodes = members(env, &target).unwrap_or_default();
        if flags.once {
            // Without an earlier answer there are no rates, so that these need not be waited for.
            nodes.retain(|node| before.get(&node.addr).is_some_and(Result::is_ok));
        }
        let mut now = looks(env, nodes);
        if flags.once {
            for (addr, look) in &before {
                let why = look.as_ref().err().cloned().unwrap_or_else(|| NO_ANSWER.to_owned());
                now.entry(addr.clone()).or_insert(Err(why));
            }
        }
        let rates =
            now.iter().map(|(addr, look)| (addr, Rates::since(before.get(addr), look))).collect::<Vec<_>>();
        let bucket = &flags.server.bucket;
        let text = if flags.json {
            format!("{}\n", as_json(bucket, &rates))
        } else if flags.once {
            render(bucket, &rates)
        } else {
            format!("{}{}", before_page(), render(bucket, &rates))
        };
        let mut out = std::io::stdout().lock();
        out.write_all(text.as_bytes())?;
        out.flush()?;
        if flags.once {
            return Ok(Outcome::Done);
        }
        before = now;
    }
}

/// What one node said at one moment.
struct Look {
    at: Instant,
    figures: BTreeMap<String, String>,
    times: Times,
    /// The slow operations that it still knows, the newest last.
    slow: Vec<SlowOperation>,
}

/// An operation that took longer than it may.
#[derive(Clone, Debug, PartialEq, Eq)]
struct SlowOperation {
    command: String,
    took_us: u64,
    /// What it took so long for.
    trace: String,
    /// When it ended, in seconds since 1970, and what the client called it: which one it is.
    which: (u64, u64),
}

/// Why there is nothing to show of a node.
type NoLook = String;
const NO_ANSWER: &str = "no answer yet";

/// The same target, which is waited for no longer than a screen should take.
fn hasty(target: Target) -> Target {
    let patience = Patience(target.patience.0.min(ANSWERED_WITHIN));
    Target { patience, ..target }
}

/// What each node says, or why it says nothing. All are asked at once.
fn looks(env: &Env, nodes: Vec<Target>) -> BTreeMap<String, Result<Look, NoLook>> {
    std::thread::scope(|scope| {
        let ask = |node: Target| {
            let node = hasty(node);
            (node.addr.clone(), scope.spawn(move || look(env, &node).map_err(|error| error.to_string())))
        };
        let asked: Vec<_> = nodes.into_iter().map(ask).collect();
        let looked = asked.into_iter().map(|(addr, look)| (addr, look.join()));
        looked
            .map(|(addr, look)| (addr, look.unwrap_or_else(|panic| std::panic::resume_unwind(panic))))
            .collect()
    })
}

#[expect(clippy::disallowed_methods, reason = "the client's end is not part of a node")]
fn look(env: &Env, node: &Target) -> Result<Look, ClientError> {
    let mut client = Client::open(env, node)?;
    let mut figures = BTreeMap::new();
    for group in ["", "memory", "journal", "dcp"] {
        figures.extend(client.stats(group)?);
    }
    let times = timings::parse(&client.stats("timings")?);
    let slow = slow_of(&client.stats("slow-operations")?.into_iter().collect());
    Ok(Look { at: Instant::now(), figures, times, slow })
}

/// Slow operations as a node tells them: `NUMBER:FIELD` each.
fn slow_of(rows: &BTreeMap<String, String>) -> Vec<SlowOperation> {
    let of = |at: usize| {
        let field = |name: &str| rows.get(&format!("{at}:{name}"));
        let number = |name: &str| field(name).and_then(|value| value.parse().ok());
        Some(SlowOperation {
            command: field("command")?.clone(),
            took_us: number("duration_us")?,
            trace: field("trace")?.clone(),
            which: (number("ended")?, number("opaque").unwrap_or(0)),
        })
    };
    (0..).map_while(of).collect()
}

impl Look {
    fn number(&self, name: &str) -> u64 {
        self.figures.get(name).and_then(|value| value.parse().ok()).unwrap_or(0)
    }
}

/// Counters whose rates are shown: how they are called here, and in stats.
const COUNTERS: [(&str, &str); 6] = [
    ("get", "cmd_get"),
    ("set", "cmd_set"),
    ("delete", "delete_hits"),
    ("miss", "get_misses"),
    ("read_from_disk", "ep_bg_fetched"),
    ("saved", "ep_diskqueue_drain"),
];

/// Figures that are shown as they are.
const FIGURES: [(&str, &str); 12] = [
    ("documents", "curr_items"),
    ("replica_documents", "vb_replica_curr_items"),
    ("active_vbuckets", "vb_active_num"),
    ("replica_vbuckets", "vb_replica_num"),
    ("resident_percent", "vb_active_perc_mem_resident"),
    ("memory_bytes", "mem_used"),
    ("quota_bytes", "ep_max_size"),
    ("high_watermark_bytes", "ep_mem_high_wat"),
    ("disk_queue", "ep_queue_size"),
    ("journal_bytes", "journal_unfiled_bytes"),
    ("streams_out", "ep_dcp_producer_count"),
    ("streams_in", "ep_dcp_consumer_count"),
];

/// What a node did in an interval, and how it is at the end.
struct Rates {
    /// By the name in [`COUNTERS`], a second.
    counters: Map<String, Value>,
    /// By the name in [`FIGURES`].
    figures: BTreeMap<&'static str, u64>,
    /// The largest first.
    memory: Vec<(String, u64)>,
    /// By command or operation: how many were timed, and percentiles in microseconds; the slowest first.
    times: Vec<(String, u64, [u64; 3])>,
    /// The slowest first.
    slow: Vec<SlowOperation>,
}

impl Rates {
    /// What a node did between two looks, or why that is not known.
    fn since(before: Option<&Result<Look, NoLook>>, now: &Result<Look, NoLook>) -> Result<Rates, NoLook> {
        match (before, now) {
            (_, Err(why)) => Err(why.clone()),
            (Some(Ok(before)), Ok(now)) => Ok(Rates::between(before, now)),
            (_, Ok(_)) => Err(NO_ANSWER.to_owned()),
        }
    }

    fn between(before: &Look, now: &Look) -> Rates {
        let seconds = now.at.duration_since(before.at).as_secs_f64().max(0.001);
        let rate = |name: &str| {
            // A node that began again counts from the start.
            let (was, is) = (before.number(name), now.number(name));
            (if is >= was { is - was } else { is } as f64 / seconds).round() as u64
        };
        let counters = COUNTERS.iter().map(|(shown, name)| ((*shown).to_owned(), rate(name).into()));
        let part = |(name, value): (&String, &String)| {
            let part = name.strip_prefix("mem_used_").filter(|part| *part != "estimate")?;
            Some((part.to_owned(), value.parse().ok()?))
        };
        let mut memory: Vec<(String, u64)> = now.figures.iter().filter_map(part).collect();
        memory.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
        let times = timings::since(&now.times, &before.times);
        let of = |(op, times): (&String, &timings::OpTimes)| {
            (op.clone(), times.count(), [500, 990, 999].map(|per_mille| times.percentile_us(per_mille)))
        };
        let mut times: Vec<_> = times.iter().map(of).collect();
        times.sort_by_key(|(_, _, percentiles)| std::cmp::Reverse(percentiles[1]));
        let mut slow: Vec<_> = now.slow.iter().filter(|one| !before.slow.contains(one)).cloned().collect();
        slow.sort_by_key(|one| std::cmp::Reverse(one.took_us));
        Rates {
            counters: counters.collect(),
            figures: FIGURES.iter().map(|(shown, name)| (*shown, now.number(name))).collect(),
            memory,
            times,
            slow,
        }
    }

    fn counter(&self, name: &str) -> u64 {
        self.counters.get(name).and_then(Value::as_u64).unwrap_or(0)
    }

    fn operations(&self) -> u64 {
        ["get", "set", "delete"].into_iter().map(|name| self.counter(name)).sum()
    }

    fn as_json(&self) -> Value {
        let mut times = Map::new();
        for (op, count, [p50, p99, p999]) in &self.times {
            let of = json!({ "timed": count, "p50_us": p50, "p99_us": p99, "p999_us": p999 });
            times.insert(op.clone(), of);
        }
        json!({
            "operations": self.operations(),
            "rates": self.counters,
            "figures": self.figures,
            "memory": self.memory.iter().cloned().collect::<BTreeMap<_, _>>(),
            "times": times,
            "slow": self.slow.iter().map(|one| {
                json!({ "command": one.command, "duration_us": one.took_us, "trace": one.trace })
            }).collect::<Vec<_>>(),
        })
    }

    /// Writing to a string does not fail.
    fn render(&self, out: &mut String) {
        let figure = |name| self.figures.get(name).copied().unwrap_or(0);
        let rate = |name| thousands(self.counter(name));
        let _ = writeln!(
            out,
            "  operations  {}/s: get {}, set {}, delete {}; misses {}/s",
            thousands(self.operations()),
            rate("get"),
            rate("set"),
            rate("delete"),
            rate("miss")
        );
        for (op, _, percentiles) in self.times.iter().take(SLOWEST) {
            let [p50, p99, p999] = percentiles.map(|us| duration(us * 1000));
            let _ = writeln!(out, "  latency     {op}: p50 {p50}, p99 {p99}, p99.9 {p999}");
        }
        for one in self.slow.iter().take(SLOW) {
            let took = duration(one.took_us * 1000);
            let _ = writeln!(out, "  slow        {}: {took}, for {}", one.command, one.trace);
        }
        let _ = writeln!(
            out,
            "  memory      {} of {}, high watermark {}",
            bytes(figure("memory_bytes")),
            bytes(figure("quota_bytes")),
            bytes(figure("high_watermark_bytes"))
        );
        let parts = self.memory.iter().take(PARTS).filter(|(_, used)| *used > 0);
        let parts: Vec<String> = parts.map(|(part, used)| format!("{part} {}", bytes(*used))).collect();
        if !parts.is_empty() {
            let _ = writeln!(out, "              {}", parts.join(", "));
        }
        let _ = writeln!(
            out,
            "  documents   {}, {} % resident; {} on replicas",
            thousands(figure("documents")),
            figure("resident_percent"),
            thousands(figure("replica_documents"))
        );
        let _ = writeln!(
            out,
            "  disk        queue {}, saved {}/s, read for clients {}/s, journal {}",
            thousands(figure("disk_queue")),
            rate("saved"),
            rate("read_from_disk"),
            bytes(figure("journal_bytes"))
        );
        let _ = writeln!(
            out,
            "  vBuckets    {} active, {} replicas; streams {} out, {} in",
            figure("active_vbuckets"),
            figure("replica_vbuckets"),
            figure("streams_out"),
            figure("streams_in")
        );
    }
}

fn as_json(bucket: &str, nodes: &[(&String, Result<Rates, NoLook>)]) -> Value {
    let of = |(addr, rates): &(&String, Result<Rates, NoLook>)| {
        ((*addr).clone(), rates.as_ref().map_or(Value::Null, Rates::as_json))
    };
    json!({ "bucket": bucket, "nodes": nodes.iter().map(of).collect::<Map<_, _>>() })
}

fn render(bucket: &str, nodes: &[(&String, Result<Rates, NoLook>)]) -> String {
    let all: u64 = nodes.iter().filter_map(|(_, rates)| rates.as_ref().ok()).map(Rates::operations).sum();
    let mut out = format!("bucket {bucket}, nodes {}, operations {}/s\n", nodes.len(), thousands(all));
    for (addr, rates) in nodes {
        let _ = writeln!(out, "\n{addr}");
        match rates {
            Ok(rates) => rates.render(&mut out),
            Err(why) => {
                let _ = writeln!(out, "  {why}");
            }
        }
    }
    out
}

#[cfg(test)]
#[allow(clippy::disallowed_methods, reason = "a moment to count from")]
mod tests {
    use expect_test::expect;

    use super::*;
    use crate::test_server::TestServer;

    fn look_of(at: Instant, rows: &[(&str, &str)]) -> Look {
        let figures: Vec<(String, String)> =
            rows.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let (times, figures) = (timings::parse(&figures), figures.into_iter().collect());
        Look { at, times, slow: slow_of(&figures), figures }
    }

    fn rates() -> Rates {
        let begun = Instant::now();
        let before = [("cmd_get", "1000"), ("cmd_set", "500"), ("Get_0,1", "10"), ("Get_mean", "0.5")];
        let now = [
            ("cmd_get", "3000"),
            ("cmd_set", "100"),
            ("Get_0,1", "109"),
            ("Get_8,9", "1"),
            ("Get_mean", "0.5"),
            ("Set_16,18", "4"),
            ("Set_mean", "17"),
            ("mem_used", "1048576"),
            ("mem_used_documents", "524288"),
            ("mem_used_hash_tables", "1024"),
            ("mem_used_estimate", "7"),
            ("ep_max_size", "268435456"),
            ("vb_active_num", "64"),
            ("vb_active_perc_mem_resident", "100"),
            ("0:command", "Set"),
            ("0:duration_us", "900000"),
            ("0:trace", "elsewhere"),
            ("0:ended", "1800000000"),
            ("0:opaque", "7"),
        ];
        Rates::between(&look_of(begun, &before), &look_of(begun + Duration::from_secs(2), &now))
    }

    #[test]
    fn a_node_is_drawn() {
        let (here, away) = ("h:1".to_owned(), "h:2".to_owned());
        expect![[r#"
            bucket b, nodes 2, operations 1,050/s

            h:1
              operations  1,050/s: get 1,000, set 50, delete 0; misses 0/s
              latency     Set: p50 18.0 us, p99 18.0 us, p99.9 18.0 us
              latency     Get: p50 1.00 us, p99 1.00 us, p99.9 9.00 us
              slow        Set: 900 ms, for elsewhere
              memory      1.00 MiB of 256 MiB, high watermark 0 B
                          documents 512 KiB, hash_tables 1.00 KiB
              documents   0, 100 % resident; 0 on replicas
              disk        queue 0, saved 0/s, read for clients 0/s, journal 0 B
              vBuckets    64 active, 0 replicas; streams 0 out, 0 in

            h:2
              cannot connect to h:2
        "#]]
        .assert_eq(&render("b", &[(&here, Ok(rates())), (&away, Err("cannot connect to h:2".to_owned()))]));
    }

    #[test]
    fn a_node_is_told_as_json() {
        let (here, away) = ("h:1".to_owned(), "h:2".to_owned());
        let json = as_json("b", &[(&here, Ok(rates())), (&away, Err(NO_ANSWER.to_owned()))]);
        let node = &json["nodes"]["h:1"];
        assert_eq!((&node["operations"], &node["rates"]["get"]), (&1050.into(), &1000.into()));
        assert_eq!(
            (&node["times"]["Set"]["p99_us"], &node["memory"]["documents"]),
            (&18.into(), &524_288.into())
        );
        assert_eq!(node["slow"][0]["duration_us"], 900_000);
        assert_eq!(json["nodes"]["h:2"], Value::Null);
    }

    #[test]
    fn a_node_that_is_silent_holds_up_no_other() {
        let (env, mut server) = (Env::real(), TestServer::start());
        // What connects here is never answered.
        let silent = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let patience = Patience(Duration::from_secs(1));
        let target = Target { patience, ..server.target() };
        let addr = silent.local_addr().expect("bound").to_string();
        // One after the other, they would take a minute.
        let nodes = (0..60).map(|_| target.at(addr.clone())).chain([target.at(target.addr.clone())]);
        let begun = Instant::now();
        let looks = looks(&env, nodes.collect());
        assert!(begun.elapsed() < 60 * patience.0, "{:?}", begun.elapsed());
        assert!(looks[&addr].is_err() && looks[&target.addr].is_ok());
        server.stop();
    }

    /// Every figure that is shown is one that a node tells.
    #[test]
    fn a_node_tells_all_figures() {
        let (env, mut server) = (Env::real(), TestServer::start());
        let target = server.target();
        let mut looks = looks(&env, members(&env, &target).expect("it answers"));
        let look = looks.pop_first().expect("it is there").1.expect("it answers");
        for (_, name) in COUNTERS.iter().chain(&FIGURES) {
            assert!(look.figures.contains_key(*name), "{name}");
        }
        assert!(look.figures.keys().any(|name| name.starts_with("mem_used_documents")), "{:?}", look.figures);
        server.stop();
    }
}
