//! A replica that is killed with `kill -9` again and again while its active node is written to, and now and then the
//! active node itself, so that the replica has to roll back: in the end both must have the same documents.

mod compare;
mod load;

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use std::{process, thread};

use anyhow::{Context, Result, anyhow, bail, ensure};
use base::VbState;
use clap::Args;
use harness::client::Client;
use harness::http;
use harness::rng::Rng;
use harness::stave::{BUCKET, PASSWORD, Start, Stave, USER};
use harness::totals::Totals;
use harness::tree::Scratch;

use load::{Progress, Target};

/// How much, and how often.
#[derive(Args)]
pub struct ResumeOptions {
    /// Changes of documents on the active node.
    #[arg(long, default_value_t = 10_000_000)]
    mutations: u64,
    /// Different documents.
    #[arg(long, default_value_t = 1_000_000)]
    documents: u64,
    /// Bytes of a value.
    #[arg(long, default_value_t = 100)]
    value_bytes: usize,
    /// The longest time between two kills of the replica; the shortest is a tenth of it.
    #[arg(long, default_value_t = 4000)]
    between_ms: u64,
    /// One in so many kills is of the active node, which forgets what was not on its disk: what the replica has beyond
    /// that it must roll back. With 0 only the replica dies, and every acknowledged change must be there.
    #[arg(long, default_value_t = 8)]
    active_one_in: u64,
    /// Decides keys, deletes and the moments of death; the machine decides the rest.
    #[arg(long)]
    seed: Option<u64>,
    /// The quota of the bucket on both nodes, as of `stave serve --bucket`.
    #[arg(long, value_name = "SIZE", default_value = "2GiB")]
    quota: String,
}

impl ResumeOptions {
    /// The defaults with this many changes of a tenth as many documents.
    pub fn small(mutations: u64) -> ResumeOptions {
        ResumeOptions {
            mutations,
            documents: mutations / 10,
            value_bytes: 100,
            between_ms: 1500,
            active_one_in: 0,
            seed: None,
            quota: "512MiB".to_owned(),
        }
    }
}

/// A replica that gets no nearer for so long has lost its way.
const STUCK: Duration = Duration::from_secs(60);
/// Between two looks at how far the replica is.
const LOOK: Duration = Duration::from_millis(200);
/// Between two lines of progress.
const SAY: Duration = Duration::from_secs(2);

/// One node that is written to, and one that follows it; either dies.
struct Pair<'a> {
    options: &'a ResumeOptions,
    folder: &'a Path,
    active: Stave,
    replica: Stave,
    counts: Counts,
}

/// How often what happened.
#[derive(Default)]
struct Counts {
    replica_kills: u32,
    active_kills: u32,
    /// Times that the replica came back with changes of before, and went on from there.
    resumptions: u32,
    /// Rollbacks of a vBucket that the replica's logs tell of, but for its present life.
    rollbacks: usize,
}

/// Runs it; one verdict.
pub fn run(options: &ResumeOptions) -> Result<Totals> {
    ensure!(options.documents > 0 && options.between_ms >= 10, "at least one document and 10 ms");
    let mut scratch = Scratch::new("resume")?;
    let seed =
        options.seed.unwrap_or_else(|| u64::from(process::id()) ^ Rng::new(crate::kill::now_ns()).next());
    println!("seed {seed}");
    let result = follow_and_die(options, scratch.path(), seed);
    if !matches!(&result, Ok(totals) if totals.good()) {
        scratch.keep();
    }
    result
}

fn follow_and_die(options: &ResumeOptions, folder: &Path, seed: u64) -> Result<Totals> {
    let mut rng = Rng::new(seed);
    let mut pair = Pair::start(options, folder)?;
    let target = Target::new(&pair.active.kv, options.active_one_in > 0);
    let progress = Progress::new(options.mutations);
    let is_written = AtomicBool::new(false);
    let begun = Instant::now();
    let ledger = thread::scope(|scope| -> Result<_> {
        let (target, written_flag, shown) = (&target, &is_written, &progress);
        let seed = rng.next();
        let writing = scope.spawn(move || {
            let ledger = load::run(target, options.documents, options.value_bytes, seed, shown);
            written_flag.store(true, Ordering::SeqCst);
            ledger
        });
        let killed = pair.kill_until(&is_written, &progress, target, &mut rng);
        if killed.is_err() {
            target.give_up();
        }
        let written = writing.join().map_err(|_| anyhow!("a writer panicked"))?;
        killed.and(written)
    })?;
    let seconds = begun.elapsed().as_secs_f64();
    await_caught_up(&pair.active, &pair.replica)?;
    let compared = compare::all(&pair.active.kv, &pair.replica.kv, &ledger)?;
    let rollbacks = pair.counts.rollbacks + rollbacks_in(&pair.replica)?;
    println!("\n{:>36} {}", "mutations acknowledged", progress.done());
    println!("{:>36} {seconds:.0}", "  in seconds");
    let Counts { replica_kills, active_kills, resumptions, .. } = pair.counts;
    println!("{:>36} {replica_kills}", "kill -9 of the replica");
    println!("{:>36} {active_kills}", "kill -9 of the active node");
    println!("{:>36} {resumptions}", "resumptions of the replica");
    println!("{:>36} {rollbacks}", "rollbacks of vBuckets");
    compared.rows().iter().for_each(|(name, count)| println!("{name:>36} {count}"));
    compared.print_differences();
    pair.replica.stop()?;
    pair.active.stop()?;
    // Active nodes that died often and took nothing with them prove nothing of rollbacks.
    let has_shown = replica_kills > 0 && (active_kills < 3 || rollbacks > 0);
    Ok(Totals::one(compared.is_equal() && has_shown))
}

/// How many rollbacks of vBuckets a node's log tells of.
fn rollbacks_in(node: &Stave) -> Result<usize> {
    Ok(node.log()?.lines().filter(|line| line.contains("rolled back")).count())
}

fn start(options: &ResumeOptions, folder: &Path, name: &str, life: u32) -> Result<Stave> {
    let bucket = format!("{BUCKET}:{}", options.quota);
    Stave::start(&Start {
        data: &folder.join(name),
        log: folder.join(format!("{name}-{life}.log")),
        more: &["--bucket", &bucket],
    })
}

impl Pair<'_> {
    /// Two nodes, of which the second one's vBuckets are all replicas.
    fn start<'a>(options: &'a ResumeOptions, folder: &'a Path) -> Result<Pair<'a>> {
        let active = start(options, folder, "active", 0)?;
        let replica = start(options, folder, "replica", 0)?;
        let mut client = Client::connect(&replica.kv)?;
        for (vb, _) in client.all_seqnos()? {
            client.set_vbucket_state(vb, VbState::Replica)?;
        }
        let pair = Pair { options, folder, active, replica, counts: Counts::default() };
        pair.declare()?;
        Ok(pair)
    }

    /// Has the replica follow the active node.
    fn declare(&self) -> Result<()> {
        let source = serde_json::json!({ "sources": [{
            "node": self.active.kv, "username": USER, "password": PASSWORD,
            "vbuckets": "0-1023", "mode": "replicate",
        }] });
        let path = format!("/v1/buckets/{BUCKET}/replication");
        http::request(&self.replica.http, "PUT", &path, &source.to_string()).map(drop)
    }

    /// Kills one of the nodes again and again until everything is written.
    fn kill_until(
        &mut self,
        is_written: &AtomicBool,
        progress: &Progress,
        target: &Target,
        rng: &mut Rng,
    ) -> Result<()> {
        let (longest, one_in) = (self.options.between_ms, self.options.active_one_in);
        while !is_written.load(Ordering::SeqCst) {
            let pause = Duration::from_millis(longest / 10 + rng.below(longest * 9 / 10));
            let begun = Instant::now();
            while begun.elapsed() < pause && !is_written.load(Ordering::SeqCst) {
                thread::sleep(Duration::from_millis(5));
                let Counts { replica_kills, active_kills, rollbacks, .. } = self.counts;
                progress
                    .say(SAY, || format!("kills {replica_kills} and {active_kills}, rollbacks {rollbacks}"));
            }
            // The last one to die is the replica.
            if one_in > 0 && rng.below(one_in) == 0 && !is_written.load(Ordering::SeqCst) {
                self.kill_active(target)?;
            } else {
                self.kill_replica()?;
            }
        }
        Ok(())
    }

    fn kill_replica(&mut self) -> Result<()> {
        self.counts.replica_kills += 1;
        self.counts.rollbacks += rollbacks_in(&self.replica)?;
        let log = self.replica.log_tail();
        self.replica.die()?;
        let again = start(self.options, self.folder, "replica", self.counts.replica_kills);
        self.replica = again
            .with_context(|| format!("the replica did not come back; before, its log ended with:\n{log}"))?;
        let stands = Client::connect(&self.replica.kv)?.all_seqnos()?;
        self.counts.resumptions += u32::from(stands.iter().any(|(_, seqno)| seqno.0 > 0));
        self.declare()
    }

    fn kill_active(&mut self, target: &Target) -> Result<()> {
        self.counts.active_kills += 1;
        let log = self.active.log_tail();
        self.active.die()?;
        let again = start(self.options, self.folder, "active", self.counts.active_kills);
        self.active = again.with_context(|| {
            format!("the active node did not come back; before, its log ended with:\n{log}")
        })?;
        self.declare()?;
        target.moved(&self.active.kv);
        Ok(())
    }
}

/// Waits until the replica has every seqno of the active node.
fn await_caught_up(active: &Stave, replica: &Stave) -> Result<()> {
    let goal = Client::connect(&active.kv)?.all_seqnos()?;
    let mut client = Client::connect(&replica.kv)?;
    let sum = |seqnos: &[(base::VbId, base::Seqno)]| seqnos.iter().map(|(_, seqno)| seqno.0).sum::<u64>();
    let (mut reached, mut moved, mut said) = (0, Instant::now(), Instant::now());
    loop {
        let seqnos = client.all_seqnos()?;
        if seqnos == goal {
            return Ok(());
        }
        let now = sum(&seqnos);
        if now != reached {
            (reached, moved) = (now, Instant::now());
        }
        if said.elapsed() >= SAY {
            println!("catching up: {now} of {}", sum(&goal));
            said = Instant::now();
        }
        if moved.elapsed() > STUCK {
            bail!(
                "the replica stands at {now} of {}; its log ends with:\n{}",
                sum(&goal),
                replica.log_tail()
            );
        }
        thread::sleep(LOOK);
    }
}
