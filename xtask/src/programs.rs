//! The test programs of the workspace, run in two rows beside each other: those that mostly compute, with what is left of
//! the processor by those that mostly wait, so that neither the processor nor the time is wasted.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use chaos::simulate;
use harness::child::{Ended, cargo, is_installed, within, without_own_names};
use harness::failures;
use harness::totals::Totals;
use serde_json::Value;

/// Packages whose tests search states and seeds: they use up a processor, and measure no time.
const COMPUTE: [&str; 6] = ["sim", "simulation", "cluster", "kvstore", "logstore", "dcp"];

/// How many programs run at a time beside others.
const ROWS_BESIDE: usize = 2;

/// How long a program may take; the longest need five minutes on a machine with two cores. One that takes longer is killed,
/// and the others still run.
const LONGEST: Duration = Duration::from_secs(40 * 60);

/// A test program, as cargo built it.
pub struct Program {
    package: String,
    /// In the tree, for the headline.
    source: String,
    executable: PathBuf,
    /// Where the package is: tests run there.
    folder: PathBuf,
}

/// All test programs of the workspace, split by what they need.
#[derive(Default)]
pub struct Programs {
    /// Those that use up a processor.
    pub computing: Vec<Program>,
    /// The others: they use sockets, processes and time.
    pub waiting: Vec<Program>,
    /// All of them were built.
    pub complete: bool,
}

impl Programs {
    /// Builds the test programs. What does not compile is told by cargo and makes them incomplete.
    pub fn build() -> Result<Programs> {
        let mut command = cargo(&["test", "--workspace", "--locked", "--no-run", "--quiet"]);
        command.arg("--message-format=json-render-diagnostics").stdout(Stdio::piped());
        let mut child = command.spawn().with_context(|| format!("cannot run {command:?}"))?;
        let output = child.stdout.take().context("the output is piped")?;
        let mut programs = Programs::default();
        for line in BufReader::new(output).lines() {
            // Between the messages may stand what a build script printed.
            let Some(program) = serde_json::from_str(&line?).ok().as_ref().and_then(program) else {
                continue;
            };
            let computes = COMPUTE.contains(&program.package.as_str());
            if computes { &mut programs.computing } else { &mut programs.waiting }.push(program);
        }
        programs.complete = child.wait()?.success();
        for row in [&mut programs.computing, &mut programs.waiting] {
            row.sort_by(|a, b| (&a.package, &a.source).cmp(&(&b.package, &b.source)));
        }
        ensure!(!programs.complete || !programs.waiting.is_empty(), "cargo named no test program");
        Ok(programs)
    }
}

/// A test program in a message of cargo.
fn program(message: &Value) -> Option<Program> {
    if message["reason"] != "compiler-artifact" || message["profile"]["test"] != true {
        return None;
    }
    let folder = Path::new(message["manifest_path"].as_str()?).parent()?.to_owned();
    let source = Path::new(message["target"]["src_path"].as_str()?);
    Some(Program {
        package: folder.file_name()?.to_str()?.to_owned(),
        source: source.strip_prefix(&folder).unwrap_or(source).display().to_string(),
        executable: message["executable"].as_str()?.into(),
        folder,
    })
}

/// Which tests of a program run, and how.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Which {
    /// All but those that look for planted mistakes.
    Tests,
    /// Those alone: what they print is counted, a line each.
    Mistakes,
}

/// Runs the programs and prints what each printed when it ends: one after the other, or `beside` others, with the lowest
/// priority, some at a time, because the last tests of a program leave processors idle.
pub fn run<'a, P>(programs: P, which: Which, beside: bool) -> Result<Totals>
where
    P: IntoIterator<Item = &'a Program>,
    P::IntoIter: Send,
{
    let queue = Mutex::new(programs.into_iter());
    let rows = if beside { ROWS_BESIDE } else { 1 };
    thread::scope(|scope| {
        let rows: Vec<_> = (0..rows).map(|_| scope.spawn(|| row(&queue, which, beside))).collect();
        rows.into_iter().map(|row| row.join().map_err(|_| anyhow!("a row of programs panicked"))?).sum()
    })
}

/// Runs programs of the queue until there is none left.
fn row<'a>(queue: &Mutex<impl Iterator<Item = &'a Program>>, which: Which, beside: bool) -> Result<Totals> {
    let next = || queue.lock().unwrap_or_else(PoisonError::into_inner).next();
    std::iter::from_fn(next).map(|program| one(program, which, beside)).sum()
}

fn one(program: &Program, which: Which, beside: bool) -> Result<Totals> {
    let Ended { status, stdout: text, stderr: errors } = program.run(which, beside)?;
    let succeeded = status.is_some_and(|status| status.success());
    let ran = text.lines().filter_map(Totals::of_cargo_line).sum::<Totals>();
    let counted = match which {
        Which::Tests => judged(ran, succeeded),
        Which::Mistakes => mistakes(&text, ran, succeeded),
    };
    text.lines().for_each(failures::note_line);
    if which == Which::Tests || counted != Totals::default() {
        println!("\n     Running {}: {}\n{text}{errors}", program.package, program.source);
    }
    if counted.failed > ran.failed {
        let how = match status {
            Some(status) => format!("ended with {status}"),
            None => not_ended(&text),
        };
        let what = format!("{}: {} {how}", program.package, program.source);
        println!("FAIL {what}");
        failures::note(&what);
    }
    Ok(counted)
}

impl Program {
    fn run(&self, which: Which, beside: bool) -> Result<Ended> {
        let mut command = if beside && is_installed("nice") {
            let mut nice = Command::new("nice");
            nice.args(["-n", "19"]).arg(&self.executable);
            nice
        } else {
            Command::new(&self.executable)
        };
        without_own_names(&mut command);
        command.current_dir(&self.folder).env("CARGO_MANIFEST_DIR", &self.folder).stdin(Stdio::null());
        match which {
            Which::Tests => {
                simulate::LOOKS_FOR_MISTAKES.iter().for_each(|name| {
                    command.args(["--skip", name]);
                });
            }
            Which::Mistakes => {
                command.arg("--nocapture").args(simulate::LOOKS_FOR_MISTAKES);
            }
        }
        within(LONGEST, &mut command)
    }
}

/// What is said of a program that was killed, with the tests that the runner called slow and that did not end.
fn not_ended(text: &str) -> String {
    const SLOW: &str = " has been running for over 60 seconds";
    let ends = |test: &str| text.lines().any(|line| line.starts_with(&format!("{test} ... ")));
    let slow = text.lines().filter_map(|line| line.strip_suffix(SLOW)).filter(|test| !ends(test));
    let names: Vec<&str> = slow.map(|test| test.trim_start_matches("test ")).collect();
    format!("was killed after {} s; these tests did not end: {}", LONGEST.as_secs(), names.join(", "))
}

/// What a search for mistakes found; a test that failed counts if no mistake does.
fn mistakes(text: &str, ran: Totals, succeeded: bool) -> Totals {
    let mut found = text.lines().filter_map(simulate::verdict).sum::<Totals>();
    if found.failed == 0 {
        found.failed = ran.failed.max(u64::from(!succeeded));
    }
    found
}

/// A program that failed and told of no failure is one.
pub fn judged(mut totals: Totals, passed: bool) -> Totals {
    if !passed && totals.failed == 0 {
        totals += Totals::one(false);
    }
    totals
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn message(test: bool) -> Value {
        json!({
            "reason": "compiler-artifact",
            "manifest_path": "/stave/crates/sim/Cargo.toml",
            "target": {"kind": ["test"], "name": "stops", "src_path": "/stave/crates/sim/tests/stops.rs"},
            "profile": {"test": test},
            "executable": "/stave/target/debug/deps/stops-0",
        })
    }

    #[test]
    fn a_test_program_is_read_from_cargo_s_messages() {
        let stops = program(&message(true)).unwrap();
        assert_eq!((stops.package.as_str(), stops.source.as_str()), ("sim", "tests/stops.rs"));
        assert_eq!(stops.folder, Path::new("/stave/crates/sim"));
        assert!(program(&message(false)).is_none());
        assert!(program(&json!({"reason": "build-finished", "success": true})).is_none());
    }

    #[test]
    fn a_program_that_dies_and_a_mistake_that_is_missed_count_as_failures() {
        assert_eq!(judged(Totals::default(), false), Totals { passed: 0, failed: 1 });
        assert_eq!(judged(Totals { passed: 3, failed: 2 }, false), Totals { passed: 3, failed: 2 });
        let found = "Logic: BlindWrite                   seed     4 after    5: seed 4, at 2 us: epoch";
        let missed = "Clusters: NotSettled was not found in 0..150, and made 172 times";
        let both = mistakes(&format!("{found}\n{missed}"), Totals { passed: 0, failed: 1 }, false);
        assert_eq!(both, Totals { passed: 1, failed: 1 });
        assert_eq!(mistakes(found, Totals { passed: 1, failed: 0 }, false), Totals { passed: 1, failed: 1 });
    }

    #[test]
    fn a_program_that_was_killed_names_the_tests_that_did_not_end() {
        let said = "running 3 tests\ntest quick ... ok\n\
            test slow has been running for over 60 seconds\n\
            test stuck has been running for over 60 seconds\ntest slow ... ok\n";
        assert_eq!(not_ended(said), "was killed after 2400 s; these tests did not end: stuck");
    }

    #[test]
    fn the_packages_that_compute_are_there() {
        let crates = harness::tree::root().join("crates");
        COMPUTE.iter().for_each(|name| assert!(crates.join(name).is_dir(), "there is no crate {name}"));
    }
}
