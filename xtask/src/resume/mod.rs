//! A replica that is killed with `kill -9` again and again while its active node is written to: in the end both must
//! have the same documents.

mod compare;
mod load;

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use std::{process, thread};

use anyhow::{Context, Result, anyhow, bail, ensure};
use base::VbState;
use clap::Args;

use crate::client::Client;
use crate::http;
use crate::rng::Rng;
use crate::stave::{BUCKET, PASSWORD, Start, Stave, USER};
use crate::totals::Totals;
use crate::tree::Scratch;
use load::Progress;

/// How much, and how often.
#[derive(Args)]
pub struct Options {
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
    /// Decides keys, deletes and the moments of death; the machine decides the rest.
    #[arg(long)]
    seed: Option<u64>,
    /// The quota of the bucket on both nodes, as of `stave serve --bucket`.
    #[arg(long, value_name = "SIZE", default_value = "2GiB")]
    quota: String,
}

/// A replica that gets no nearer for so long has lost its way.
const STUCK: Duration = Duration::from_secs(60);
/// Between two looks at how far the replica is.
const LOOK: Duration = Duration::from_millis(200);
/// Between two lines of progress.
const SAY: Duration = Duration::from_secs(2);

/// One node that is written to, and one that follows it and dies.
struct Pair<'a> {
    options: &'a Options,
    folder: &'a Path,
    active: Stave,
}

/// Runs it; one verdict.
pub fn run(options: &Options) -> Result<Totals> {
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

fn follow_and_die(options: &Options, folder: &Path, seed: u64) -> Result<Totals> {
    let mut rng = Rng::new(seed);
    let active = start(options, folder, "active", 0)?;
    let pair = Pair { options, folder, active };
    let first = pair.first_replica()?;
    let progress = Progress::new(options.mutations);
    let is_written = AtomicBool::new(false);
    let mut kills = 0;
    let begun = Instant::now();
    let (ledger, replica) = thread::scope(|scope| -> Result<_> {
        let (kv, written_flag, shown) = (pair.active.kv.clone(), &is_written, &progress);
        let seed = rng.next();
        let writing = scope.spawn(move || {
            let ledger = load::run(&kv, options.documents, options.value_bytes, seed, shown);
            written_flag.store(true, Ordering::SeqCst);
            ledger
        });
        let mut replica = first;
        while !is_written.load(Ordering::SeqCst) {
            let pause = options.between_ms / 10 + rng.below(options.between_ms * 9 / 10);
            wait_or_end(Duration::from_millis(pause), &is_written, &progress);
            replica = pair.kill_and_resume(replica, &mut kills)?;
        }
        let ledger = writing.join().map_err(|_| anyhow!("a writer panicked"))??;
        Ok((ledger, replica))
    })?;
    println!(
        "{} changes in {:.1} s, the replica was killed {kills} times",
        progress.done(),
        begun.elapsed().as_secs_f64()
    );
    await_caught_up(&pair.active, &replica)?;
    let compared = compare::all(&pair.active.kv, &replica.kv, &ledger)?;
    compared.print();
    replica.stop()?;
    pair.active.stop()?;
    Ok(Totals::one(compared.is_equal() && kills > 0))
}

fn start(options: &Options, folder: &Path, name: &str, life: u32) -> Result<Stave> {
    let bucket = format!("{BUCKET}:{}", options.quota);
    Stave::start(&Start {
        data: &folder.join(name),
        log: folder.join(format!("{name}-{life}.log")),
        more: &["--bucket", &bucket],
    })
}

/// Waits, with a line of progress now and then, or until everything is written.
fn wait_or_end(pause: Duration, is_written: &AtomicBool, progress: &Progress) {
    let begun = Instant::now();
    while begun.elapsed() < pause && !is_written.load(Ordering::SeqCst) {
        thread::sleep(Duration::from_millis(5));
        progress.say(SAY);
    }
}

impl Pair<'_> {
    /// A node whose vBuckets are all replicas.
    fn first_replica(&self) -> Result<Stave> {
        let replica = start(self.options, self.folder, "replica", 0)?;
        let mut client = Client::connect(&replica.kv)?;
        for (vb, _) in client.all_seqnos()? {
            client.set_vbucket_state(vb, VbState::Replica)?;
        }
        self.declare(&replica)?;
        Ok(replica)
    }

    /// Has a node follow the active one.
    fn declare(&self, replica: &Stave) -> Result<()> {
        let source = serde_json::json!({ "sources": [{
            "node": self.active.kv, "username": USER, "password": PASSWORD,
            "vbuckets": "0-1023", "mode": "replicate",
        }] });
        let path = format!("/v1/buckets/{BUCKET}/replication");
        http::request(&replica.http, "PUT", &path, &source.to_string()).map(drop)
    }

    fn kill_and_resume(&self, replica: Stave, kills: &mut u32) -> Result<Stave> {
        let log = replica.log_tail();
        replica.kill()?;
        *kills += 1;
        let again = start(self.options, self.folder, "replica", *kills)
            .with_context(|| format!("the replica did not come back; before, its log ended with:\n{log}"))?;
        self.declare(&again)?;
        Ok(again)
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
