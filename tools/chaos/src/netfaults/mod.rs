//! `cargo xtask faults`: a cluster of real processes in network namespaces, an application with a real SDK, and faults
//! from a seed; the application's history is checked for lost writes and for linearizability, key by key.

mod admin;
mod check;
mod client;
mod fault;
mod history;
mod janitor;
mod plant;
mod process;
mod report;
mod schedule;
mod world;

use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::Args;
use harness::child::is_installed;
use harness::totals::Totals;
use harness::tree::Scratch;

use admin::Admin;
use client::Client;
use fault::{Fault, Field, UnderWay};
use janitor::Janitor;
use process::{Etcd, Node};
use report::{Done, Report};
use schedule::{Round, Schedule};
use world::World;

/// How long, and with what.
#[derive(Args, Clone)]
pub struct NetfaultsOptions {
    /// So long new faults come.
    #[arg(long, default_value_t = 300)]
    seconds: u64,
    /// Decides faults, victims and operations; the machine decides the rest.
    #[arg(long)]
    seed: Option<u64>,
    /// Nodes of the cluster.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u8).range(3..=9))]
    nodes: u8,
    /// Replicas of each vBucket. With one, writes wait until a node that fails is back.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..=3))]
    replicas: u8,
    /// vBuckets of the bucket.
    #[arg(long, default_value_t = 64)]
    vbuckets: u16,
    /// What keeps the bucket's documents, by the word of its type.
    #[arg(long, default_value = "couchstore", value_parser = ["couchstore", "magma"])]
    store: String,
    /// Only these kinds of faults; may be repeated.
    #[arg(long, value_parser = Fault::parse)]
    only: Vec<Fault>,
    /// Prints the outcome as one JSON object.
    #[arg(long)]
    pub json: bool,
    /// Takes the release binary as it is.
    #[arg(long)]
    pub no_build: bool,
    #[arg(long, hide = true)]
    clean_up_after: Option<u32>,
}

impl NetfaultsOptions {
    /// So many seconds, with what is usual.
    pub fn short(seconds: u64) -> NetfaultsOptions {
        NetfaultsOptions {
            seconds,
            seed: None,
            nodes: 3,
            replicas: 2,
            vbuckets: 64,
            store: "couchstore".to_owned(),
            only: Vec::new(),
            json: false,
            no_build: true,
            clean_up_after: None,
        }
    }
}

/// How long a cluster may take to be whole again when nothing is wrong any more.
const WHOLE_WITHIN: Duration = Duration::from_secs(120);
/// How long the application works before the first fault and after the last one.
const QUIET: Duration = Duration::from_secs(3);
/// Between two looks while faults last.
const LOOK_EVERY: Duration = Duration::from_millis(25);

/// Why it cannot be done here, if so.
pub fn cannot() -> Option<String> {
    let programs = ["etcd", "go", "mount", "umount", "mkfs.ext4", "fsfreeze"];
    if let Some(why) = world::cannot() {
        Some(why.to_owned())
    } else if let Some(missing) = programs.into_iter().find(|program| !is_installed(program)) {
        Some(format!("{missing} is not installed"))
    } else if !Path::new("/dev/loop-control").exists() {
        Some("there are no loop devices".to_owned())
    } else {
        None
    }
}

/// Only cleans up, if this process was started for that.
pub fn is_janitor(options: &NetfaultsOptions) -> Option<Result<()>> {
    options.clean_up_after.map(janitor::wait_and_clean)
}

/// Runs it; one verdict for each key.
pub fn run(options: &NetfaultsOptions) -> Result<Totals> {
    janitor::sweep()?;
    let mut scratch = Scratch::new(janitor::SCRATCH)?;
    let result = run_in(options, scratch.path());
    if !matches!(&result, Ok(totals) if totals.good()) {
        scratch.keep();
    }
    result
}

fn run_in(options: &NetfaultsOptions, folder: &Path) -> Result<Totals> {
    let seed = options.seed.unwrap_or_else(|| u64::from(std::process::id()));
    let workload = client::build(folder)?;
    let history = folder.join("history.jsonl");
    let rounds = {
        let _janitor = Janitor::start()?;
        let mut run = Run::begin(options, folder)?;
        let client = run.start_client(&workload, seed, &history)?;
        run.go_through(options, seed, client)?
    };
    let history = history::read(&history)?;
    let verdicts = check::check(&history);
    let planted = if verdicts.bad.is_empty() { plant::found(&history) } else { (0, 0, Vec::new()) };
    let (nodes, replicas) = (options.nodes, options.replicas);
    let report =
        Report { seed, nodes, replicas, history: &history, rounds: &rounds, verdicts: &verdicts, planted };
    if options.json {
        println!("{}", report.json());
    } else {
        report.print();
    }
    let bad = verdicts.bad.len() as u64;
    let all: u64 = verdicts.keys.values().sum();
    let mut totals = Totals { passed: all - bad, failed: bad };
    if !report.is_good() && bad == 0 {
        totals += Totals::one(false);
    }
    Ok(totals)
}

/// A run under way.
struct Run {
    field: Field,
    begun: Instant,
    nodes: u8,
    says: fn(&str),
}

impl Run {
    /// Makes the network and a cluster that is whole.
    fn begin(options: &NetfaultsOptions, folder: &Path) -> Result<Run> {
        let says: fn(&str) =
            if options.json { |line| eprintln!("{line}") } else { |line| println!("{line}") };
        let begun = Instant::now();
        let world = World::make(std::process::id(), options.nodes)?;
        let etcd = Etcd::start(&world, folder)?;
        let nodes = (1..=options.nodes).map(|n| Node::start(&world, n, folder, options.vbuckets));
        let nodes: Vec<Node> = nodes.collect::<Result<_>>()?;
        let admin = Admin::new(options.nodes);
        let field = Field { world, etcd, nodes, admin };
        let run = Run { field, begun, nodes: options.nodes, says };
        run.field.admin.make_whole(&run.field.world, &[], WHOLE_WITHIN, || Ok(()))?;
        run.field.admin.set_up(&run.field.world, options.replicas, &options.store)?;
        run.field.admin.make_whole(&run.field.world, &[], WHOLE_WITHIN, || Ok(()))?;
        run.say(&format!("{} nodes with {} replicas serve", options.nodes, options.replicas));
        Ok(run)
    }

    fn start_client(&self, workload: &Path, seed: u64, history: &Path) -> Result<Client> {
        let log = history.with_extension("log");
        Client::start(&self.field.world, workload, self.nodes, seed, history, log)
    }

    fn say(&self, what: &str) {
        (self.says)(&format!("{:>7.1} s  {what}", self.begun.elapsed().as_secs_f64()));
    }

    /// Lets faults come as long as it shall last, and the application read everything in the end.
    fn go_through(&mut self, options: &NetfaultsOptions, seed: u64, mut client: Client) -> Result<Vec<Done>> {
        let kinds: &[Fault] = if options.only.is_empty() { &Fault::ALL } else { &options.only };
        let mut done = Vec::new();
        self.wait(&mut client, &mut [], QUIET)?;
        let first = Instant::now();
        for round in Schedule::new(seed, options.nodes, kinds) {
            if first.elapsed() > Duration::from_secs(options.seconds) {
                break;
            }
            done.push(self.round(round, &mut client)?);
        }
        self.wait(&mut client, &mut [], QUIET)?;
        self.say("everything is read once more");
        client.finish()?;
        self.crashes()?;
        Ok(done)
    }

    fn round(&mut self, round: Round, client: &mut Client) -> Result<Done> {
        let what = round.to_string();
        self.say(&what);
        let life = self.field.admin.look(&self.field.world)?.member(round.victim)?.life;
        let forgets = round.faults.iter().any(|fault| fault.forgets());
        let from = now_ns();
        let mut under_way = Vec::new();
        let mut refused = Vec::new();
        for fault in &round.faults {
            let mut begun = UnderWay::begin(&mut self.field, *fault, round.victim)?;
            refused.extend(begun.refused.take().map(|why| format!("{}: {why}", fault.name())));
            under_way.push(begun);
            self.wait(client, &mut under_way, round.apart)?;
        }
        self.wait(client, &mut under_way, round.lasts)?;
        for fault in under_way.into_iter().rev() {
            fault.end(&mut self.field)?;
        }
        let ended = Instant::now();
        let Field { world, admin, .. } = &self.field;
        let old = if forgets { vec![life] } else { Vec::new() };
        admin.make_whole(world, &old, WHOLE_WITHIN, || client.look()).with_context(|| what.clone())?;
        self.crashes()?;
        let [ok, no, maybe] = client.done;
        self.say(&format!(
            "   whole {:.1} s later; {ok} operations done, {no} refused, {maybe} in doubt",
            ended.elapsed().as_secs_f64()
        ));
        Ok(Done { round, from, until: now_ns(), refused })
    }

    /// Lets time pass.
    fn wait(&mut self, client: &mut Client, under_way: &mut [UnderWay], time: Duration) -> Result<()> {
        let begun = Instant::now();
        while begun.elapsed() < time {
            client.look()?;
            for fault in under_way.iter_mut() {
                fault.go_on(&mut self.field)?;
            }
            thread::sleep(LOOK_EVERY);
        }
        Ok(())
    }

    /// A node that ends by itself is a failure, whatever the history says.
    fn crashes(&mut self) -> Result<()> {
        for node in &mut self.field.nodes {
            ensure!(
                !node.has_crashed()?,
                "node {} ended by itself: see {}",
                node.number,
                node.log().display()
            );
        }
        Ok(())
    }
}

/// The clock that the application writes down, too.
fn now_ns() -> u64 {
    let at = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    at.tv_sec.unsigned_abs() * 1_000_000_000 + at.tv_nsec.unsigned_abs()
}
