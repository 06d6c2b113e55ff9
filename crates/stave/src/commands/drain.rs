//! `stave drain`: reads everything that a bucket holds, as fast as it comes.

#[cfg(test)]
mod tests;

use std::io::IsTerminal;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use anyhow::anyhow;
use base::env::Env;
use base::{Seqno, VbId};
use clap::Args;
use protocol::dcp::{EndReason, OpenFlags, What};
use serde_json::json;

use super::dcp_tail::watch_interrupt;
use crate::cli::{NodeFlags, Outcome};
use crate::client::dcp::{
    Event, Position, Start, Watch, Wishes, ask_everywhere, follow_everywhere, high_seqnos,
};
use crate::client::{ClientError, Dialect, Target};
use crate::output::print;
use crate::units::{bytes, thousands};

/// Bytes on their way on each connection.
const BUFFER_BYTES: u32 = 20 << 20;
const NOOP_INTERVAL_S: u32 = 20;
/// How often progress is said.
const SAY_EVERY: Duration = Duration::from_secs(1);

/// Read a whole bucket by DCP, as fast as it comes.
#[derive(Clone, Debug, Args)]
#[command(after_help = "Examples:
  stave drain default
  stave drain default --connections 2
  stave drain default --keys-only --json | jq .items_per_second

Reads up to the changes that are the last ones when it begins, and counts them; in a cluster from all of its nodes,
any of which may be named. While vBuckets move it waits for them, as long as --timeout.")]
pub struct DrainFlags {
    /// The bucket to read
    #[arg(value_name = "BUCKET")]
    pub(crate) bucket: String,
    /// Connections to each node that share its vBuckets
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub(crate) connections: u16,
    /// Leave the values out; they are not sent at all
    #[arg(long)]
    pub(crate) keys_only: bool,
    /// Say nothing while it reads
    #[arg(long)]
    pub(crate) quiet: bool,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) node: NodeFlags,
}

/// What was read so far, by all connections.
#[derive(Default)]
struct Counters {
    mutations: AtomicU64,
    deletions: AtomicU64,
    others: AtomicU64,
    bytes: AtomicU64,
    streams_ended: AtomicU64,
    rollbacks: AtomicU64,
    reconnects: AtomicU64,
}

/// What was read.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Summary {
    pub(crate) vbuckets: u64,
    pub(crate) mutations: u64,
    pub(crate) deletions: u64,
    pub(crate) others: u64,
    pub(crate) bytes: u64,
    pub(crate) rollbacks: u64,
    pub(crate) reconnects: u64,
    pub(crate) connections: u16,
    pub(crate) seconds: f64,
}

/// Runs the command.
pub fn run(env: &Env, flags: &DrainFlags) -> anyhow::Result<Outcome> {
    let interrupted = watch_interrupt(env)?;
    let summary = drain(env, flags, &interrupted)?;
    print(&if flags.json { summary.json() } else { summary.table() })?;
    Ok(Outcome::Done)
}

/// Reads everything; what was read.
pub(crate) fn drain(env: &Env, flags: &DrainFlags, interrupted: &AtomicBool) -> anyhow::Result<Summary> {
    let target = flags.node.target(&flags.bucket, Dialect::Couchbase)?;
    let all = ask_everywhere(env, &target, None, &mut high_seqnos)?;
    let filled: Vec<(VbId, Seqno)> = all.into_iter().filter(|(_, high)| high.0 > 0).collect();
    let goal: u64 = filled.iter().map(|(_, high)| high.0).sum();
    let counters = Counters::default();
    let begun_ns = env.clock.monotonic_ns();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let readers: Vec<_> = (0..flags.connections)
            .map(|at| {
                let share = filled.iter().skip(at.into()).step_by(flags.connections.into());
                let starts = share.map(|(vb, high)| Start { vb: *vb, position: Position::START, end: *high });
                let starts: Vec<Start> = starts.collect();
                let (target, counters) = (&target, &counters);
                scope.spawn(move || read(env, flags, target, &starts, counters, interrupted))
            })
            .collect();
        let showing = (!flags.quiet).then(|| {
            let (counters, is_over) = (&counters, &is_over);
            scope.spawn(move || show(env, counters, goal, is_over))
        });
        let outcomes: Vec<_> = readers.into_iter().map(std::thread::ScopedJoinHandle::join).collect();
        is_over.store(true, Ordering::Relaxed);
        if let Some(showing) = showing {
            showing.thread().unpark();
        }
        outcomes
            .into_iter()
            .try_for_each(|outcome| outcome.map_err(|_| anyhow!("a thread that reads panicked"))?)
    })?;
    let seconds = (env.clock.monotonic_ns() - begun_ns) as f64 / 1e9;
    Ok(counters.summary(filled.len() as u64, flags.connections, seconds))
}

/// One connection's share.
fn read(
    env: &Env,
    flags: &DrainFlags,
    target: &Target,
    starts: &[Start],
    counters: &Counters,
    interrupted: &AtomicBool,
) -> anyhow::Result<()> {
    let wishes = Wishes {
        name: format!("stave-drain:{:016x}", env.random.next_u64()),
        flags: OpenFlags(if flags.keys_only { OpenFlags::NO_VALUE } else { OpenFlags::XATTRS }),
        buffer_bytes: BUFFER_BYTES,
        noop_interval_s: NOOP_INTERVAL_S,
        filter: Vec::new(),
        sync_writes: false,
        history: false,
    };
    let heard = env.clock.monotonic();
    let patience = target.patience.0;
    let mut reader = Reading { env, counters, interrupted, patience, heard, broken_off: None };
    follow_everywhere(env, target, &wishes, starts.to_vec(), Some(patience), &mut reader)?;
    match reader.broken_off {
        Some((vb, reason)) => Err(anyhow!("vBucket {vb}: the stream ended before its end: {reason}")),
        None => Ok(()),
    }
}

struct Reading<'a> {
    env: &'a Env,
    patience: Duration,
    /// When something came last.
    heard: Duration,
    counters: &'a Counters,
    interrupted: &'a AtomicBool,
    broken_off: Option<(VbId, EndReason)>,
}

impl Watch for Reading<'_> {
    fn event(&mut self, event: Event<'_>) -> ControlFlow<()> {
        self.heard = self.env.clock.monotonic();
        let add = |counter: &AtomicU64, n: usize| counter.fetch_add(n as u64, Ordering::Relaxed);
        match event {
            Event::Message(message) => {
                let kind = match message.what {
                    What::Mutation(_) => &self.counters.mutations,
                    What::Deletion(_) | What::Expiration(_) => &self.counters.deletions,
                    _ => &self.counters.others,
                };
                add(kind, 1);
                add(&self.counters.bytes, message.wire_bytes());
            }
            Event::Began(..) => {}
            Event::RolledBack(..) => {
                add(&self.counters.rollbacks, 1);
            }
            Event::Ended(vb, reason) => {
                add(&self.counters.streams_ended, 1);
                if reason != EndReason::Ok {
                    self.broken_off = Some((vb, reason));
                    return ControlFlow::Break(());
                }
            }
        }
        ControlFlow::Continue(())
    }

    fn idle(&mut self) -> ControlFlow<()> {
        if self.interrupted.load(Ordering::Relaxed) {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    }

    fn disconnected(&mut self, _error: &ClientError) -> ControlFlow<()> {
        if self.env.clock.monotonic() - self.heard >= self.patience {
            return ControlFlow::Break(());
        }
        self.counters.reconnects.fetch_add(1, Ordering::Relaxed);
        ControlFlow::Continue(())
    }
}

/// A line each second on standard error, rewritten in place on a terminal.
fn show(env: &Env, counters: &Counters, goal: u64, is_over: &AtomicBool) {
    let in_place = std::io::stderr().is_terminal();
    let (mut items_before, mut bytes_before, mut before_ns) = (0, 0, env.clock.monotonic_ns());
    loop {
        std::thread::park_timeout(SAY_EVERY);
        if is_over.load(Ordering::Relaxed) {
            if in_place {
                eprintln!();
            }
            return;
        }
        let now_ns = env.clock.monotonic_ns();
        let seconds = (now_ns - before_ns).max(1) as f64 / 1e9;
        let (items, count) = (counters.items(), counters.bytes.load(Ordering::Relaxed));
        let line = format!(
            "{} items of at most {}, {}/s, {}/s",
            thousands(items),
            thousands(goal),
            thousands(((items - items_before) as f64 / seconds) as u64),
            bytes(((count - bytes_before) as f64 / seconds) as u64),
        );
        if in_place {
            eprint!("\r{line:<70}")
        } else {
            eprintln!("{line}")
        }
        (items_before, bytes_before, before_ns) = (items, count, now_ns);
    }
}

impl Counters {
    fn items(&self) -> u64 {
        self.mutations.load(Ordering::Relaxed) + self.deletions.load(Ordering::Relaxed)
    }

    fn summary(&self, vbuckets: u64, connections: u16, seconds: f64) -> Summary {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Summary {
            vbuckets,
            mutations: get(&self.mutations),
            deletions: get(&self.deletions),
            others: get(&self.others),
            bytes: get(&self.bytes),
            rollbacks: get(&self.rollbacks),
            reconnects: get(&self.reconnects),
            connections,
            seconds,
        }
    }
}

impl Summary {
    fn per_second(&self, count: u64) -> f64 {
        count as f64 / self.seconds.max(1e-9)
    }

    fn table(&self) -> String {
        let items = self.mutations + self.deletions;
        let rows = [
            ("mutations", thousands(self.mutations)),
            ("deletions", thousands(self.deletions)),
            ("other messages", thousands(self.others)),
            ("vBuckets", thousands(self.vbuckets)),
            ("connections/node", self.connections.to_string()),
            ("rollbacks", self.rollbacks.to_string()),
            ("reconnects", self.reconnects.to_string()),
            ("bytes", bytes(self.bytes)),
            ("seconds", format!("{:.2}", self.seconds)),
            ("items/s", thousands(self.per_second(items) as u64)),
            ("MB/s", format!("{:.1}", self.per_second(self.bytes) / 1e6)),
        ];
        rows.iter().map(|(name, value)| format!("{name:<16} {value:>14}\n")).collect()
    }

    fn json(&self) -> String {
        let items = self.mutations + self.deletions;
        let object = json!({
            "mutations": self.mutations,
            "deletions": self.deletions,
            "other_messages": self.others,
            "vbuckets": self.vbuckets,
            "connections": self.connections,
            "rollbacks": self.rollbacks,
            "reconnects": self.reconnects,
            "bytes": self.bytes,
            "seconds": self.seconds,
            "items_per_second": self.per_second(items),
            "mb_per_second": self.per_second(self.bytes) / 1e6,
        });
        format!("{object}\n")
    }
}
