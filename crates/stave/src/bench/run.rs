//! A run from the first connection to the report: connect, load, warm up, measure.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use base::env::Env;
use protocol::feature::Feature;

use super::collections::Collections;
use super::connection::Connection;
use super::cpu;
use super::plan::{Extent, Plan};
use super::progress::Progress;
use super::report::{Measured, Report};
use super::routes::Routes;
use super::tally::Tally;
use super::traffic::{Purpose, Source, Traffic};
use super::wire::Protocol;
use super::worker::{Signals, Worker};
use crate::cli::WrongArguments;
use crate::client::{Client, Map};

const SECOND_NS: u64 = 1_000_000_000;

/// Does what `plan` says; shows progress unless `quiet`.
pub fn run(env: &Env, plan: &Plan, quiet: bool) -> anyhow::Result<Report> {
    plan.check().map_err(WrongArguments)?;
    let mut progress = Progress::new(quiet);
    let routes = Arc::new(routes(env, plan)?);
    let mut collections = Collections::prepare(env, plan, &routes)?;
    let outcome = run_over(env, plan, &routes, &collections, &mut progress);
    let removed = collections.remove();
    // If the run failed, that is what has to be told.
    let report = outcome?;
    removed.map(|()| report)
}

fn run_over(
    env: &Env,
    plan: &Plan,
    routes: &Arc<Routes>,
    collections: &Collections,
    progress: &mut Progress,
) -> anyhow::Result<Report> {
    let mut workers = open_workers(env, plan, routes, collections)?;
    let loaded = if plan.populate {
        let phase = PhasePlan {
            what: "populate",
            purpose: Purpose::Load,
            end: plan.keys,
            warmup_s: 0.0,
            seconds: None,
        };
        Some(run_phase(env, plan, routes, &mut workers, &phase, progress)?)
    } else {
        None
    };
    let (end, seconds) = match plan.extent {
        Extent::Seconds(seconds) => (u64::MAX / 2, Some(seconds)),
        Extent::Operations(operations) => (operations, None),
    };
    let phase = PhasePlan { what: "bench", purpose: Purpose::Mix, end, warmup_s: plan.warmup_s, seconds };
    let measured = run_phase(env, plan, routes, &mut workers, &phase, progress)?;
    Ok(Report::new(plan, collections.ids.len(), loaded.as_ref(), measured))
}

/// Which nodes there are. A server without a map is a node that has everything.
fn routes(env: &Env, plan: &Plan) -> anyhow::Result<Routes> {
    let addr = &plan.target.addr;
    if plan.protocol != Protocol::Couchbase {
        return Ok(Routes::new(&Map::default(), addr, 1));
    }
    let mut client = Client::open(env, &plan.target)?;
    let (map, vbuckets) = (client.map()?.unwrap_or_default(), client.vbuckets());
    let routes = Routes::new(&map, addr, vbuckets);
    let nodes = routes.nodes().len();
    let least = u64::from(plan.threads) * nodes as u64;
    if u64::from(plan.connections) < least {
        let why = format!(
            "--connections {} is too few: each of {} threads needs one to each of {nodes} nodes; give {least} or more",
            plan.connections, plan.threads
        );
        bail!(WrongArguments(why));
    }
    Ok(routes)
}

/// One thread's connections each; opened one after the other, which lets the server derive the log-in's key once.
fn open_workers(
    env: &Env,
    plan: &Plan,
    routes: &Arc<Routes>,
    spread: &Collections,
) -> anyhow::Result<Vec<Worker>> {
    let mut workers = Vec::new();
    let (mut collections, mut vbuckets) = (false, 1);
    let mut first = 0;
    for number in 0..plan.threads {
        // Threads get equal shares; the first ones take what is left over.
        let share = plan.connections / plan.threads + u32::from(number < plan.connections % plan.threads);
        let mut connections = Vec::with_capacity(share as usize);
        for at in 0..share as usize {
            let addr = &routes.nodes()[at % routes.nodes().len()];
            let client = Client::open_at(env, &plan.target, addr, plan.target.patience.0, &[])?;
            collections = client.features().has(Feature::Collections);
            vbuckets = client.vbuckets();
            let connection = Connection::new(client.into_stream(), plan.protocol, plan.pipeline);
            connections.push(connection.context("socket")?);
        }
        let traffic = Traffic::new(plan, number.into(), first, collections, &spread.ids, vbuckets);
        let traffic = traffic.map_err(|why| anyhow!(why))?;
        first += u64::from(share);
        workers.push(Worker::new(connections, Arc::clone(routes), traffic, env.clock.clone())?);
    }
    Ok(workers)
}

struct PhasePlan {
    what: &'static str,
    purpose: Purpose,
    end: u64,
    warmup_s: f64,
    seconds: Option<f64>,
}

/// The clocks when measuring begins.
struct Start {
    at_ns: u64,
    server_cpu_s: Option<f64>,
    own_cpu_s: f64,
}

impl Start {
    fn now(env: &Env, plan: &Plan) -> anyhow::Result<Start> {
        let server_cpu_s = match plan.server_pid {
            Some(pid) => Some(cpu::seconds(env, &pid.to_string())?),
            None => None,
        };
        let own_cpu_s = cpu::seconds(env, "self")?;
        Ok(Start { at_ns: env.clock.monotonic_ns(), server_cpu_s, own_cpu_s })
    }

    fn until_now(&self, env: &Env, plan: &Plan) -> anyhow::Result<Measured> {
        let end = Start::now(env, plan)?;
        let server_cpu_s = end.server_cpu_s.zip(self.server_cpu_s).map(|(end, start)| end - start);
        let seconds = (end.at_ns - self.at_ns) as f64 / 1e9;
        let client_cpu_s = end.own_cpu_s - self.own_cpu_s;
        Ok(Measured { tally: Tally::new(), seconds, server_cpu_s, client_cpu_s })
    }
}

fn run_phase(
    env: &Env,
    plan: &Plan,
    routes: &Routes,
    workers: &mut [Worker],
    phase: &PhasePlan,
    progress: &mut Progress,
) -> anyhow::Result<Measured> {
    let signals = Signals::new(workers.len());
    let next = AtomicU64::new(0);
    // Without a warm-up the first request counts.
    let start = if phase.warmup_s > 0.0 {
        None
    } else {
        signals.measure();
        Some(Start::now(env, plan)?)
    };
    std::thread::scope(|scope| {
        let (ended, ends) = mpsc::channel();
        for (number, worker) in workers.iter_mut().enumerate() {
            let (ended, signals) = (ended.clone(), &signals);
            let source = Source::new(phase.purpose, &next, phase.end);
            let share = worker.connections() as f64 / f64::from(plan.connections);
            let rate = plan.rate.filter(|_| phase.purpose == Purpose::Mix).map(|rate| rate * share);
            std::thread::Builder::new()
                .name(format!("bench-{number}"))
                .spawn_scoped(scope, move || {
                    // The receiver is gone only if another worker failed first.
                    let _ = ended.send(worker.run(source, rate, signals, number));
                })
                .context("cannot start a thread")?;
        }
        drop(ended);
        let watch =
            Watch { env, plan, routes, signals: &signals, ends: &ends, tallies: Vec::new(), progress };
        let outcome = watch.until_the_end(phase, start);
        signals.stop();
        progress.finish();
        outcome
    })
}

/// Watches the workers of a phase: ends the warm-up and the measured time, shows progress, collects what they counted.
struct Watch<'a> {
    env: &'a Env,
    plan: &'a Plan,
    routes: &'a Routes,
    signals: &'a Signals,
    ends: &'a mpsc::Receiver<anyhow::Result<Tally>>,
    tallies: Vec<Tally>,
    progress: &'a mut Progress,
}

impl Watch<'_> {
    fn until_the_end(mut self, phase: &PhasePlan, start: Option<Start>) -> anyhow::Result<Measured> {
        let start = match start {
            Some(start) => start,
            None => {
                let until_ns = self.env.clock.monotonic_ns() + (phase.warmup_s * 1e9) as u64;
                self.until("warm-up", until_ns, None)?;
                self.signals.measure();
                Start::now(self.env, self.plan)?
            }
        };
        let until_ns = phase.seconds.map_or(u64::MAX, |seconds| start.at_ns + (seconds * 1e9) as u64);
        let end = phase.seconds.is_none().then_some(phase.end);
        self.until(phase.what, until_ns, end)?;
        let mut measured = start.until_now(self.env, self.plan)?;
        self.signals.stop();
        for tally in self.ends {
            self.tallies.push(tally?);
        }
        for tally in &self.tallies {
            measured.tally.add(tally);
        }
        Ok(measured)
    }

    /// Waits until a moment, or until all workers have ended; `end` is the number of operations, if it is known.
    fn until(&mut self, what: &str, until_ns: u64, end: Option<u64>) -> anyhow::Result<()> {
        let clock = &self.env.clock;
        let start_ns = clock.monotonic_ns();
        let first = self.signals.answered();
        let (mut shown_ns, mut shown) = (start_ns, first);
        loop {
            let now_ns = clock.monotonic_ns();
            if now_ns >= until_ns {
                return Ok(());
            }
            let next_ns = (shown_ns + SECOND_NS).min(until_ns);
            match self.ends.recv_timeout(Duration::from_nanos(next_ns.saturating_sub(now_ns))) {
                Ok(tally) => self.tallies.push(tally?),
                Err(RecvTimeoutError::Disconnected) => return Ok(()),
                Err(RecvTimeoutError::Timeout) => {
                    if self.routes.returns.open(self.env, self.plan, self.routes.nodes()) {
                        self.routes.doubt();
                    }
                    self.routes.renew(self.env, &self.plan.target);
                    let (now_ns, answered) = (clock.monotonic_ns(), self.signals.answered());
                    let per_second = (answered - shown) as f64 * 1e9 / (now_ns - shown_ns).max(1) as f64;
                    let done = match end {
                        Some(end) => (answered - first) as f64 / end.max(1) as f64,
                        None => (now_ns - start_ns) as f64 / (until_ns - start_ns).max(1) as f64,
                    };
                    self.progress.show(what, answered - first, per_second, done);
                    (shown_ns, shown) = (now_ns, answered);
                }
            }
        }
    }
}
