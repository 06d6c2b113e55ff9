//! `cargo xtask sanitize`: threaded tests and a loaded cluster under ThreadSanitizer or AddressSanitizer
//! (docs/adr/0169-sanitizers-and-emulation.md).

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use harness::child::{Background, headline, release_build, succeeds};
use harness::http;
use harness::stave::{BUCKET, PASSWORD, Stave, USER};
use harness::totals::Totals;
use harness::tree::{self, Scratch};

/// What the program is built for: a named target, so that programs which run while it is built have other flags.
const TARGET: &str = "x86_64-unknown-linux-gnu";
/// Crates whose tests have threads, or hold `unsafe`.
const PACKAGES: [&str; 7] = ["base", "vbucket", "logstore", "couchstore", "kvstore", "engine", "node"];
/// A bucket of the other store.
const LOG_BUCKET: &str = "log";

/// Which sanitizer, and for how long.
#[derive(Debug, clap::Args)]
pub struct SanitizeOptions {
    /// What to look for: `thread` finds unsynchronised accesses, `address` uses of memory that is not theirs
    #[arg(value_enum)]
    sanitizer: Sanitizer,
    /// How long each kind of load lasts
    #[arg(long, value_name = "N", default_value_t = 20)]
    seconds: u32,
    /// Only these crates' tests; may be repeated
    #[arg(long, value_name = "CRATE")]
    only: Vec<String>,
    /// Only the loaded cluster, no tests
    #[arg(long, conflicts_with = "only")]
    only_cluster: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Sanitizer {
    Thread,
    Address,
}

impl Sanitizer {
    fn name(self) -> &'static str {
        match self {
            Sanitizer::Thread => "thread",
            Sanitizer::Address => "address",
        }
    }

    /// How a report begins.
    fn report(self) -> &'static str {
        match self {
            Sanitizer::Thread => "WARNING: ThreadSanitizer",
            Sanitizer::Address => "ERROR: AddressSanitizer",
        }
    }

    fn target_folder(self) -> PathBuf {
        tree::target().join("sanitize").join(self.name())
    }

    /// A nightly cargo that builds the standard library with the sanitizer, too.
    fn cargo(self, verb: &str) -> Command {
        // Not the cargo that runs this command: it belongs to another toolchain.
        let mut command = Command::new("cargo");
        command.args(["+nightly", verb, "-Zbuild-std", "--target", TARGET]).current_dir(tree::root());
        command.env_remove("RUSTUP_TOOLCHAIN").env_remove("CARGO");
        command.env("CARGO_TARGET_DIR", self.target_folder());
        command.env("RUSTFLAGS", format!("-Zsanitizer={}", self.name()));
        command.env("PROPTEST_CASES", "16");
        self.set(&mut command);
        command
    }

    /// What the sanitizer's own code reads. What lives as long as the process is no leak.
    fn set(self, command: &mut Command) {
        match self {
            Sanitizer::Thread => command.env("TSAN_OPTIONS", "halt_on_error=0 second_deadlock_stack=1"),
            Sanitizer::Address => command.env("ASAN_OPTIONS", "detect_leaks=0"),
        };
    }
}

/// `cargo xtask sanitize`.
pub fn run(options: &SanitizeOptions) -> Result<bool> {
    for name in &options.only {
        ensure!(
            PACKAGES.contains(&&**name),
            "no tests of {name} are run here, but of {}",
            PACKAGES.join(", ")
        );
    }
    let mut totals = Totals::default();
    if !options.only_cluster {
        let is_chosen = |name: &&str| options.only.is_empty() || options.only.iter().any(|only| only == name);
        for package in PACKAGES.into_iter().filter(is_chosen) {
            headline(&format!("tests of {package} under the {} sanitizer", options.sanitizer.name()));
            let mut tests = options.sanitizer.cargo("test");
            tests.args(["--lib", "--no-fail-fast", "--package", package]);
            totals += Totals::one(succeeds(&mut tests)?);
        }
    }
    if options.only.is_empty() {
        totals += Totals::one(cluster(options)?);
    }
    println!("\n{totals}");
    Ok(totals.good())
}

/// Two nodes in one process under loads of each kind; whether nothing was reported.
fn cluster(options: &SanitizeOptions) -> Result<bool> {
    let sanitizer = options.sanitizer;
    headline(&format!("a cluster under the {} sanitizer", sanitizer.name()));
    release_build()?;
    let mut build = sanitizer.cargo("build");
    ensure!(
        succeeds(build.args(["--package", "stave"]))?,
        "the program could not be built with the sanitizer"
    );
    let mut scratch = Scratch::new("sanitize")?;
    let log = scratch.path().join("cluster.log");
    let data = scratch.path().join("data");
    let data = data.to_str().context("the scratch folder has a name in UTF-8")?;
    let mut command = Command::new(sanitizer.target_folder().join(TARGET).join("debug/stave"));
    command.arg("dev");
    sanitizer.set(&mut command);
    let log_bucket = format!("{LOG_BUCKET}:256MiB:magma");
    let more = ["--nodes", "2", "--replicas", "1", "--threads", "2", "--vbuckets", "64", "--data", data];
    // It is 5 to 15 times slower: leases that end would be all that is tried.
    let more = [&more[..], &["--lease-ms", "20000", "--bucket", BUCKET, "--bucket", &log_bucket]].concat();
    let server = Stave::launch(command, &log, &more)?;
    let loaded = loads(&server, scratch.path(), options);
    let told = server.log()?;
    let stopped = server.stop();
    let reports = std::fs::read_to_string(&log)?
        .matches(sanitizer.report())
        .count()
        .max(told.matches(sanitizer.report()).count());
    println!("reports: {reports}");
    if reports > 0 || loaded.is_err() || stopped.is_err() {
        scratch.keep();
        println!("the log is {}", log.display());
    }
    loaded?;
    // With reports the process ends with a code of the sanitizer's.
    Ok(reports == 0 && stopped.map(|()| true)?)
}

/// The kinds of load, one behind the other, each with readers of changes, a backup, figures and compaction beside it.
fn loads(server: &Stave, scratch: &Path, options: &SanitizeOptions) -> Result<()> {
    let seconds = options.seconds.to_string();
    let kinds: [(&str, &[&str]); 4] = [
        ("reads and writes", &["--set-percent", "50", "--populate", "--pipeline", "8"]),
        ("durable writes", &["--set-percent", "100", "--durability", "persist-majority"]),
        ("collections", &["--set-percent", "50", "--collections", "5"]),
        ("compressible JSON", &["--set-percent", "80", "--values", "json", "--compressible", "50"]),
    ];
    for bucket in [BUCKET, LOG_BUCKET] {
        for (at, (name, arguments)) in kinds.iter().enumerate() {
            println!("{bucket}: {name}");
            let backups = scratch.join(format!("backups-{bucket}-{at}"));
            let backups = backups.to_str().context("the scratch folder has a name in UTF-8")?;
            let beside = Background::start(client(server, &["backup", "--to", backups, "--bucket", bucket]))?;
            let mut bench =
                client(server, &["bench", "--bucket", bucket, "--connections", "16", "--keys", "5000"]);
            bench.args(["--timeout", "60s", "--seconds", &seconds, "--quiet"]).args(*arguments);
            ensure!(succeeds(&mut bench)?, "the load `{name}` failed");
            for group in ["all", "dcp", "timings", "vbucket-details", "checkpoint", "collections"] {
                let mut stats = client(server, &["stats", group, "--bucket", bucket]);
                ensure!(succeeds(stats.stdout(std::process::Stdio::null()))?, "stats {group} failed");
            }
            let path = format!("/pools/default/buckets/{bucket}/controller/compactBucket");
            http::request(&server.http, "POST", &path, "")?;
            if !beside.wait()? {
                bail!("the backup beside the load `{name}` failed");
            }
        }
    }
    Ok(())
}

/// A command of the program, as users have it.
fn client(server: &Stave, arguments: &[&str]) -> Command {
    let mut command = Command::new(tree::release_binary());
    command.args(arguments).args(["--addr", &server.kv, "--username", USER]);
    command.env("STAVE_PASSWORD", PASSWORD);
    command
}
