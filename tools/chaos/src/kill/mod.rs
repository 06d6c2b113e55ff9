//! `kill -9` under load, round after round on one data folder, with a ledger of what the server promised.

mod document;
mod ledger;
mod search;
mod verify;
mod writer;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use std::{fs, process, thread};

use anyhow::{Context, Result, anyhow, ensure};
use clap::Args;
use harness::http;
use harness::rng::Rng;
use harness::stave::{BUCKET, Start, Stave};
use harness::totals::Totals;
use harness::tree::{self, Scratch};

use ledger::Ledger;
use search::{InClear, Sought};
use verify::Verified;

/// How long and how hard.
#[derive(Args)]
pub struct KillOptions {
    /// How often the server is killed.
    #[arg(long, default_value_t = 50)]
    rounds: u32,
    /// Connections that write; each has its own documents.
    #[arg(long, default_value_t = 8)]
    connections: u32,
    /// Decides keys, values, deletes and the moments of death; the machine decides the rest.
    #[arg(long)]
    seed: Option<u64>,
    /// The longest time under load before a kill.
    #[arg(long, default_value_t = 1500)]
    load_ms: u64,
    /// The bucket's memory quota, as of `stave serve --bucket`; with a small one the journal is small, too.
    #[arg(long, value_name = "SIZE")]
    quota: Option<String>,
    /// Whether the server has a journal, as of `stave serve --journal`.
    #[arg(long, value_name = "on|off")]
    journal: Option<String>,
    /// What keeps the bucket's documents, by the word of its type.
    #[arg(long, value_name = "couchstore|magma")]
    store: Option<String>,
    /// Whether the server encrypts its files.
    #[arg(long)]
    encrypted: bool,
}

impl KillOptions {
    /// The defaults with this number of rounds.
    pub fn rounds(rounds: u32) -> KillOptions {
        KillOptions {
            rounds,
            connections: 8,
            seed: None,
            load_ms: 1500,
            quota: None,
            journal: None,
            store: None,
            encrypted: false,
        }
    }

    /// The same with encrypted files.
    pub fn encrypted(self, encrypted: bool) -> KillOptions {
        KillOptions { encrypted, ..self }
    }

    /// The same with a bucket in such a store, by the word of its type.
    pub fn in_store(self, store: Option<String>) -> KillOptions {
        KillOptions { store, ..self }
    }

    /// The same without a journal.
    pub fn without_journal(self) -> KillOptions {
        KillOptions { journal: Some("off".to_owned()), ..self }
    }

    /// The same with this seed, if there is one, and this longest time under load.
    pub fn with(self, seed: Option<u64>, load_ms: u64) -> KillOptions {
        KillOptions { seed, load_ms, ..self }
    }

    /// What the server is started with beside its place.
    fn arguments(&self) -> Vec<String> {
        let is_said = self.quota.is_some() || self.store.is_some();
        let (quota, store) = (self.quota.as_deref(), self.store.as_deref());
        let bucket = format!("{BUCKET}:{}:{}", quota.unwrap_or("256MiB"), store.unwrap_or("couchstore"));
        let bucket = is_said.then(|| ["--bucket".to_owned(), bucket]).into_iter().flatten();
        let journal = self.journal.iter().flat_map(|journal| ["--journal".to_owned(), journal.clone()]);
        bucket.chain(journal).collect()
    }
}

/// The key of encrypted files. Any will do: it protects nothing.
const KEY: &str = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";

/// The password of a user of a node with encrypted files.
const PASSWORD: &str = "a-password-in-clear-4711";

/// How long a node may take to store a user.
const SETTINGS_WITHIN: Duration = Duration::from_secs(30);

/// The shortest time under load before a kill.
const MIN_LOAD_MS: u64 = 50;

/// How many lost documents a round prints.
const SHOWN: usize = 10;

/// Where the server lives, and how it dies.
pub struct Place<'a> {
    /// Its data folder.
    pub data: &'a Path,
    /// Where its logs go.
    pub logs: &'a Path,
    /// Ends it without a warning; answers when it may be started again.
    pub kill: &'a dyn Fn(Stave) -> Result<()>,
}

impl Place<'_> {
    /// Where the key of encrypted files is.
    fn key(&self) -> PathBuf {
        self.logs.join("key")
    }
}

/// Runs the rounds; each is one verdict.
pub fn run(options: &KillOptions) -> Result<Totals> {
    let mut scratch = Scratch::new("kill")?;
    let data = scratch.path().join("data");
    let result = rounds(options, &Place { data: &data, logs: scratch.path(), kill: &Stave::kill });
    if !matches!(&result, Ok(totals) if totals.good()) {
        scratch.keep();
    }
    result
}

pub(crate) fn now_ns() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |since| since.as_nanos() as u64)
}

/// Kills the server under load, again and again, in a place of the caller's choice.
pub fn rounds(options: &KillOptions, place: &Place<'_>) -> Result<Totals> {
    ensure!(options.rounds > 0 && options.connections > 0, "at least one round and one connection");
    let seed = options.seed.unwrap_or_else(|| u64::from(process::id()) ^ Rng::new(now_ns()).next());
    println!("seed {seed}");
    let mut rng = Rng::new(seed);
    let mut ledgers: Vec<Ledger> =
        (0..options.connections).map(|writer| Ledger::new(writer, rng.next())).collect();
    let mut totals = Totals::default();
    let mut sum = Verified::default();
    println!(
        "{:>5} {:>8} {:>10} {:>10} {:>10} {:>7} {:>5}",
        "round", "load ms", "changes", "persisted", "verified", "newer", "lost"
    );
    fs::write(place.key(), KEY)?;
    let mut server = start(options, place, 0)?;
    for round in 1..=options.rounds {
        let load = Duration::from_millis(MIN_LOAD_MS + rng.below(options.load_ms.max(1)));
        load_and_kill(server, &mut ledgers, load, place).with_context(|| format!("round {round}"))?;
        let is_last = round == options.rounds;
        if is_last {
            totals += Totals::one(check(options, place)?);
        }
        if is_last || options.encrypted {
            totals += Totals::one(search(options, place)?);
        }
        server = start(options, place, round)?;
        let verified = verify::all(&server.kv, &mut ledgers).with_context(|| format!("round {round}"))?;
        print_round(round, load, &ledgers, &verified);
        totals += Totals::one(verified.lost.is_empty());
        sum.add(verified);
    }
    server.stop()?;
    close(options, &ledgers, &sum);
    Ok(totals)
}

fn start(options: &KillOptions, place: &Place<'_>, round: u32) -> Result<Stave> {
    let log = place.logs.join(format!("server-{round}.log"));
    let (arguments, key) = (options.arguments(), place.key().display().to_string());
    let mut more: Vec<&str> = arguments.iter().map(String::as_str).collect();
    if options.encrypted {
        more.extend(["--encryption-key-file", &key]);
    }
    let server = Stave::start(&Start { data: place.data, log, more: &more })?;
    if options.encrypted {
        // The audit log names keys, and users have secrets.
        let set = |method, path, form: &str| http::form(&server.http, method, path, form, SETTINGS_WITHIN);
        set("POST", "/settings/audit", "auditdEnabled=true&disabled=")?;
        let user = format!("password={PASSWORD}&roles=data_writer[*]");
        set("PUT", "/settings/rbac/users/local/kill", &user)?;
    }
    Ok(server)
}

/// Whether what a killed server left has in clear what it may have: without encryption keys and bodies, which shows that the
/// search finds them, and with it nothing.
fn search(options: &KillOptions, place: &Place<'_>) -> Result<bool> {
    let sought = || Sought::new(options.connections, PASSWORD, KEY);
    let mut found = InClear::default();
    sought().below(place.data, &mut found)?;
    let mut is_as_it_should = if options.encrypted { found.is_nothing() } else { found.is_documents_alone() };
    println!("{}", found.told());
    let (mut of_logs, secrets) = (InClear::default(), sought().without_keys());
    for entry in fs::read_dir(place.logs)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "log") {
            secrets.in_file(&path, &mut of_logs)?;
        }
    }
    if !of_logs.is_nothing() {
        println!("logs: {}", of_logs.told());
        is_as_it_should = false;
    }
    if !is_as_it_should {
        println!("FAIL what stands in clear in the files is not what may");
    }
    Ok(is_as_it_should)
}

/// Whether what a killed server left is sound: its journal, and its files as of what the journal says.
fn check(options: &KillOptions, place: &Place<'_>) -> Result<bool> {
    let mut command = Command::new(tree::release_binary());
    command.arg("check").arg(place.data);
    if options.encrypted {
        command.arg("--encryption-key-file").arg(place.key());
    }
    let status = command.status()?;
    if !status.success() {
        println!("FAIL stave check: {status}");
    }
    Ok(status.success())
}

/// Writes through all connections at once and kills the server in the middle.
fn load_and_kill(server: Stave, ledgers: &mut [Ledger], load: Duration, place: &Place<'_>) -> Result<()> {
    let dying = AtomicBool::new(false);
    let kv = server.kv.clone();
    thread::scope(|scope| {
        let (kv, dying) = (&kv, &dying);
        let writers: Vec<_> = ledgers
            .iter_mut()
            .map(|ledger| scope.spawn(move || writer::run(kv, ledger, &|| dying.load(Ordering::SeqCst))))
            .collect();
        let begun = Instant::now();
        // A writer that ends early met an error: no need to wait.
        while begun.elapsed() < load && !writers.iter().any(|writer| writer.is_finished()) {
            thread::sleep(Duration::from_millis(1));
        }
        // From here on a lost connection is what the writers expect.
        dying.store(true, Ordering::SeqCst);
        let log = server.log_tail();
        (place.kill)(server)?;
        for writer in writers {
            let written = writer.join().map_err(|_| anyhow!("a writer panicked"))?;
            written.with_context(|| format!("the server failed under load; its log ends with:\n{log}"))?;
        }
        Ok(())
    })
}

fn print_round(round: u32, load: Duration, ledgers: &[Ledger], verified: &Verified) {
    let changes: u64 = ledgers.iter().map(Ledger::acknowledged).sum();
    let persisted: u64 = ledgers.iter().map(Ledger::persisted).sum();
    println!(
        "{round:>5} {:>8} {changes:>10} {persisted:>10} {:>10} {:>7} {:>5}",
        load.as_millis(),
        verified.documents,
        verified.newer,
        verified.lost.len()
    );
    for lost in verified.lost.iter().take(SHOWN) {
        println!("FAIL {lost}");
    }
}

fn close(options: &KillOptions, ledgers: &[Ledger], sum: &Verified) {
    println!("rounds: {}", options.rounds);
    println!("changes acknowledged: {}", ledgers.iter().map(Ledger::acknowledged).sum::<u64>());
    println!("changes acknowledged as persisted: {}", ledgers.iter().map(Ledger::persisted).sum::<u64>());
    println!("documents written: {}", ledgers.iter().map(Ledger::documents).sum::<u64>());
    println!("documents verified after restarts: {}", sum.documents);
    println!("documents lost: {}", sum.lost.len());
}
