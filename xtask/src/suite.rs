//! What `check`, `test`, `ci` and `fix` consist of.

use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use chaos::{kill, netfaults, powercut, replay, resume};
use harness::child::{Background, cargo, each_line, headline, succeeds};
use harness::totals::Totals;
use harness::{failures, tree};

use crate::programs::{self, Programs, Which};
use crate::steps::{close, step, within};
use crate::{dashboards, dist, portable, readme, rules, start_pages};

/// Changes that a replica follows while it is killed.
const RESUME_MUTATIONS: u64 = 500_000;
/// Rounds of the kill -9 loop in `cargo xtask test`.
const KILL_ROUNDS: u32 = 12;
/// Rounds of the same without a journal.
const KILL_ROUNDS_WITHOUT_JOURNAL: u32 = 4;
/// Rounds of the same with encrypted files.
const KILL_ROUNDS_ENCRYPTED: u32 = 4;

/// How long faults come to a cluster of real processes in `cargo xtask test`.
const FAULT_SECONDS: u64 = 30;

/// How long `cargo xtask ci` may take, from an empty folder and with everything to fetch; it usually takes 45 minutes.
const CI_LIMIT: Duration = Duration::from_secs(75 * 60);

/// `cargo xtask check`.
pub fn check() -> Result<bool> {
    close(check_steps()?)
}

/// `cargo xtask test`.
pub fn test(quick: bool) -> Result<bool> {
    close(test_steps(quick, start_release_build()?)?)
}

/// `cargo xtask test --cluster`.
pub fn test_cluster() -> Result<bool> {
    close(cluster_steps()?)
}

/// `cargo xtask ci`.
pub fn ci() -> Result<bool> {
    within(CI_LIMIT, || {
        let release = start_release_build()?;
        let mut totals = check_steps()?;
        totals += step("other systems", portable::totals);
        totals += test_steps(false, release)?;
        close(totals)
    })
}

/// `cargo xtask replay`.
pub fn replay(options: &replay::ReplayOptions) -> Result<bool> {
    let mut totals = build_release()?;
    if totals.good() {
        totals += replay::run(options)?;
    }
    close(totals)
}

/// `cargo xtask kill`.
pub fn kill(options: &kill::KillOptions) -> Result<bool> {
    let mut totals = build_release()?;
    if totals.good() {
        totals += kill::run(options)?;
    }
    close(totals)
}

/// `cargo xtask resume`.
pub fn resume(options: &resume::ResumeOptions) -> Result<bool> {
    let mut totals = build_release()?;
    if totals.good() {
        totals += resume::run(options)?;
    }
    close(totals)
}

/// `cargo xtask powercut`.
pub fn powercut(options: &powercut::PowercutOptions) -> Result<bool> {
    if let Some(why) = powercut::cannot() {
        println!("skipped: {why}");
        return Ok(true);
    }
    let mut totals = build_release()?;
    if totals.good() {
        totals += powercut::run(options)?;
    }
    close(totals)
}

/// `cargo xtask faults`.
pub fn faults(options: &netfaults::NetfaultsOptions) -> Result<bool> {
    if let Some(cleaned) = netfaults::is_janitor(options) {
        return cleaned.map(|()| true);
    }
    if let Some(why) = netfaults::cannot() {
        bail!("{why}");
    }
    let mut totals = if options.no_build { Totals::default() } else { build_release()? };
    if totals.failed == 0 {
        totals += netfaults::run(options)?;
    }
    if options.json { Ok(totals.good()) } else { close(totals) }
}

/// `cargo xtask dashboards`.
pub fn dashboards(options: &dashboards::DashboardOptions) -> Result<bool> {
    let mut totals = if options.no_build { Totals::default() } else { build_release()? };
    if totals.failed == 0 {
        totals += dashboards::run(options)?;
    }
    close(totals)
}

/// `cargo xtask fix`.
pub fn fix() -> Result<bool> {
    let clippy = ["clippy", "--fix", "--allow-dirty", "--allow-staged", "--workspace", "--all-targets"];
    Ok(succeeds(&mut cargo(&clippy))? && succeeds(&mut cargo(&["fmt", "--all"]))?)
}

fn check_steps() -> Result<Totals> {
    let mut totals = Totals::default();
    headline("format");
    totals += Totals::one(succeeds(&mut cargo(&["fmt", "--all", "--check"]))?);
    headline("lints");
    let clippy = ["clippy", "--workspace", "--all-targets", "--locked", "--", "-D", "warnings"];
    totals += Totals::one(succeeds(&mut cargo(&clippy))?);
    headline("documentation of the code");
    let doc = ["doc", "--workspace", "--no-deps", "--locked"];
    totals += Totals::one(succeeds(cargo(&doc).env("RUSTDOCFLAGS", "-D warnings"))?);
    for (name, violations) in rules::all()? {
        headline(name);
        for violation in &violations {
            println!("{violation}");
            failures::note(&format!("{name}: {violation}"));
        }
        totals += Totals::one(violations.is_empty());
    }
    println!("checks: {totals}");
    Ok(totals)
}

fn test_steps(quick: bool, release: Background) -> Result<Totals> {
    headline("build of the tests");
    let programs = Programs::build()?;
    // Waited for before a test runs: some tests measure time.
    headline("release build");
    let mut totals = Totals::one(release.wait()?);
    let built = totals.good();
    totals += Totals::one(programs.complete);
    let is_whole = built && !quick;
    totals += thread::scope(|scope| {
        let beside = scope.spawn(|| beside_steps(&programs, is_whole));
        let mut totals = waiting_steps(&programs, built, is_whole);
        totals += beside.join().map_err(|_| anyhow!("the thread that runs steps beside others panicked"))?;
        anyhow::Ok(totals)
    })?;
    if is_whole {
        totals += last_steps();
    }
    Ok(totals)
}

/// What leaves a processor idle most of the time. `built`: there is a release binary.
fn waiting_steps(programs: &Programs, built: bool, is_whole: bool) -> Totals {
    let mut totals = step("tests that mostly wait", || waiting_tests(programs));
    if built {
        totals += step("recordings", || replay::run(&replay::ReplayOptions::default()));
    }
    if is_whole {
        totals += step("kill -9", || kill::run(&kill::KillOptions::rounds(KILL_ROUNDS)));
        let without = kill::KillOptions::rounds(KILL_ROUNDS_WITHOUT_JOURNAL).without_journal();
        totals += step("kill -9 without a journal", || kill::run(&without));
        let encrypted = kill::KillOptions::rounds(KILL_ROUNDS_ENCRYPTED).encrypted(true);
        totals += step("kill -9 with encrypted files", || kill::run(&encrypted));
    }
    totals
}

/// What uses up a processor, beside steps that mostly wait.
fn beside_steps(programs: &Programs, is_whole: bool) -> Totals {
    let mut totals = step("tests that compute", || programs::run(&programs.computing, Which::Tests, true));
    if is_whole {
        let all = programs.computing.iter().chain(&programs.waiting);
        totals += step("planted mistakes", || programs::run(all, Which::Mistakes, true));
        // Fetched and built ahead; what fails here is told by its suite.
        let mut prepare = conformance_command();
        prepare.arg("--prepare");
        if !Background::start(prepare).and_then(Background::wait).unwrap_or(false) {
            println!("what the SDK suites need could not be prepared ahead; each is prepared once more");
        }
    }
    totals
}

/// What measures times, and so has the machine for itself.
fn last_steps() -> Totals {
    let mut totals =
        step("kill -9 of a replica", || resume::run(&resume::ResumeOptions::small(RESUME_MUTATIONS)));
    totals += step("SDK conformance", conformance);
    totals += step("the README's first session", readme::run);
    totals += step("an image for containers", || dist::try_image::run(&tree::release_binary()));
    totals += step("the pages for beginners", || start_pages::run(&tree::release_binary(), None));
    totals
}

/// Tests that use sockets, processes and time, and the examples in comments.
fn waiting_tests(programs: &Programs) -> Result<Totals> {
    let mut totals = programs::run(&programs.waiting, Which::Tests, false)?;
    let mut examples = Totals::default();
    let passed =
        each_line(&mut cargo(&["test", "--workspace", "--no-fail-fast", "--locked", "--doc"]), |line| {
            examples += Totals::of_cargo_line(line).unwrap_or_default();
        })?;
    totals += programs::judged(examples, passed);
    Ok(totals)
}

/// What a whole cluster goes through, where there can be one: too long for each change.
fn cluster_steps() -> Result<Totals> {
    let mut totals = build_release()?;
    if totals.good() {
        totals += step("faults in a cluster of real processes", short_faults);
    }
    Ok(totals)
}

/// Beside other builds: its last minutes, when it links, need one core only.
fn start_release_build() -> Result<Background> {
    Background::start(cargo(&["build", "--release", "--locked", "--package", "stave"]))
}

fn build_release() -> Result<Totals> {
    headline("release build");
    Ok(Totals::one(succeeds(&mut cargo(&["build", "--release", "--locked", "--package", "stave"]))?))
}

/// Passed over where there can be no network namespaces.
fn short_faults() -> Result<Totals> {
    match netfaults::cannot() {
        Some(why) => {
            println!("passed over: {why}");
            Ok(Totals::default())
        }
        None => netfaults::run(&netfaults::NetfaultsOptions::short(FAULT_SECONDS)),
    }
}

fn conformance_command() -> Command {
    let mut command = Command::new(tree::root().join("tests/conformance/run.sh"));
    command.arg("--stave").arg(tree::release_binary()).current_dir(tree::root());
    command
}

/// Suites that run beside each other, each with servers of its own: they mostly wait.
const BESIDE: [&[&str]; 3] = [
    &["python", "node", "helpers", "s3"],
    &["go", "rust", "collections", "cbc", "console"],
    &["java", "upstream", "kubernetes"],
];
/// Suites that measure how long nodes take to fail: they run alone.
const ALONE: &[&str] = &["cluster"];

fn conformance() -> Result<Totals> {
    let [first, others @ ..] = BESIDE;
    let mut totals = thread::scope(|scope| {
        let others = others.map(|names| scope.spawn(|| suites_beside(names)));
        // It waits for Prometheus, as they do for their servers.
        let watched = scope.spawn(|| {
            step("dashboard and alerts", || dashboards::run(&dashboards::DashboardOptions::default()))
        });
        let mut totals = suites(first)?;
        totals += watched.join().map_err(|_| anyhow!("the thread of the dashboard panicked"))?;
        for other in others {
            totals +=
                other.join().map_err(|_| anyhow!("the thread that reads the suites' output panicked"))??;
        }
        anyhow::Ok(totals)
    })?;
    totals += suites(ALONE)?;
    Ok(totals)
}

/// Runs suites, and prints what they printed when they have ended.
fn suites_beside(names: &[&str]) -> Result<Totals> {
    let mut command = conformance_command();
    command.args(names).stdin(Stdio::null()).stderr(Stdio::inherit());
    let output = command.stdout(Stdio::piped()).output().context("cannot run the SDK suites")?;
    let text = String::from_utf8_lossy(&output.stdout);
    print!("{text}");
    text.lines().for_each(failures::note_line);
    let totals = text.lines().filter_map(conformance_row).sum();
    Ok(programs::judged(totals, output.status.success()))
}

fn suites(names: &[&str]) -> Result<Totals> {
    let mut totals = Totals::default();
    let passed = each_line(conformance_command().args(names), |line| {
        totals += conformance_row(line).unwrap_or_default();
    })?;
    Ok(programs::judged(totals, passed))
}

/// Reads a row of the closing table: `python   120   0 ...`, or `go - - ... not run`, which is a failure.
fn conformance_row(line: &str) -> Option<Totals> {
    let mut words = line.split_ascii_whitespace();
    let suite = words.next()?;
    // The programs that write while nodes fail are called cluster-SDK, suites against three nodes SDK-3, the own suites of
    // SDKs upstream-WHERE, helpers for tests helpers-LANGUAGE.
    let name = suite.trim_start_matches("cluster-").split('-').next().unwrap_or(suite);
    if !BESIDE.into_iter().flatten().chain(ALONE).any(|known| *known == name) {
        return None;
    }
    match (words.next()?, words.next()?) {
        ("-", "-") => Some(Totals::one(false)),
        (passed, failed) => Some(Totals { passed: passed.parse().ok()?, failed: failed.parse().ok()? }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_table_of_the_sdks() {
        let totals = |passed, failed| Some(Totals { passed, failed });
        assert_eq!(conformance_row("python       120       1   20 / 0    FAILED"), totals(120, 1));
        assert_eq!(conformance_row("rust           -       -   -         not run"), totals(0, 1));
        assert_eq!(conformance_row("java            18       0   0 / 0     passed"), totals(18, 0));
        assert_eq!(conformance_row("cluster-go       1       0   12808 / 492   passed"), totals(1, 0));
        assert_eq!(conformance_row("node-3          21       0   3 / 0     passed"), totals(21, 0));
        assert_eq!(conformance_row("upstream-dev   265       2   -         FAILED"), totals(265, 2));
        assert_eq!(conformance_row("go: downloading x v1.0.0"), None);
        assert_eq!(conformance_row("helpers-java     6       0   -             passed"), totals(6, 0));
        assert_eq!(conformance_row("console         12       0   -             passed"), totals(12, 0));
        assert_eq!(conformance_row("kubernetes   13       0   -             passed"), totals(13, 0));
        assert_eq!(conformance_row("cbc           10       0   -             passed"), totals(10, 0));
        assert_eq!(conformance_row("collections    1       0   -          passed"), totals(1, 0));
        assert_eq!(conformance_row("cluster-go: ok 12808 retried 509"), None);
        assert_eq!(conformance_row("suite passed failed"), None);
    }
}
