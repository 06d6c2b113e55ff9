//! `cargo xtask emulate`: tests and recordings as a program for another processor, by `qemu-user`
//! (docs/adr/0169-sanitizers-and-emulation.md).

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use chaos::replay::{self, ReplayOptions};
use harness::child::{cargo, each_line, headline, is_installed, succeeds};
use harness::totals::Totals;
use harness::tree;

const TARGET: &str = "aarch64-unknown-linux-gnu";
const LINKER: &str = "aarch64-linux-gnu-gcc";
const EMULATOR: &str = "qemu-aarch64";
/// Where Debian puts the libraries of the other processor.
const LIBRARIES: &str = "/usr/aarch64-linux-gnu";

/// Crates of formats and of what threads share: their other tests run, too.
const WHOLE: [&str; 8] =
    ["base", "protocol", "subdoc", "couchstore", "logstore", "vbucket", "kvstore", "engine"];

/// What to run.
#[derive(Debug, clap::Args)]
pub struct EmulateOptions {
    /// Only the tests of these crates, and no recordings; may be repeated
    #[arg(long, value_name = "CRATE")]
    only: Vec<String>,
    /// Only the recordings
    #[arg(long, conflicts_with = "only")]
    only_recordings: bool,
}

/// `cargo xtask emulate`.
pub fn run(options: &EmulateOptions) -> Result<bool> {
    for (program, package) in [(LINKER, "gcc-aarch64-linux-gnu"), (EMULATOR, "qemu-user")] {
        ensure!(is_installed(program), "{program} is missing; Debian's package {package} has it");
    }
    let library = succeeds(Command::new("rustup").args(["target", "add", TARGET]))?;
    ensure!(library, "rustup cannot get the standard library for {TARGET}");
    let mut totals = Totals::default();
    if !options.only_recordings {
        let is_chosen = |name: &&str| options.only.is_empty() || options.only.iter().any(|only| only == name);
        let (whole, others): (Vec<&str>, Vec<&str>) = (
            WHOLE.into_iter().filter(is_chosen).collect(),
            options.only.iter().map(String::as_str).filter(|name| !WHOLE.contains(name)).collect(),
        );
        if !whole.is_empty() {
            headline(&format!("tests of {} for {TARGET}", whole.join(", ")));
            totals +=
                tests_of(packages(ours("test").args(["--tests", "--no-fail-fast"]), "--package", &whole))?;
        }
        if options.only.is_empty() || !others.is_empty() {
            headline(&format!("unit tests of other crates for {TARGET}"));
            let mut tests = ours("test");
            tests.args(["--lib", "--no-fail-fast"]);
            if others.is_empty() {
                // What measures, and what starts other programs, is about this machine.
                packages(tests.arg("--workspace"), "--exclude", &["xtask", "bench", "chaos"]);
                packages(&mut tests, "--exclude", &WHOLE);
            }
            totals += tests_of(packages(&mut tests, "--package", &others))?;
        }
    }
    if options.only.is_empty() {
        headline(&format!("recordings against a program for {TARGET}"));
        let mut build = ours("build");
        ensure!(succeeds(build.args(["--package", "stave"]))?, "the program could not be built");
        totals += replay::run(&ReplayOptions { binary: Some(emulated()?), ..ReplayOptions::default() })?;
    }
    println!("\n{totals}");
    Ok(totals.good())
}

/// Cargo with these packages, or without them.
fn packages<'a>(command: &'a mut Command, how: &str, names: &[&str]) -> &'a mut Command {
    names.iter().for_each(|name| {
        command.args([how, name]);
    });
    command
}

/// Runs tests; what each binary's closing line says.
fn tests_of(tests: &mut Command) -> Result<Totals> {
    let mut totals = Totals::default();
    let succeeded = each_line(tests, |line| totals += Totals::of_cargo_line(line).unwrap_or_default())?;
    if !succeeded && totals.good() {
        totals += Totals::one(false);
    }
    Ok(totals)
}

/// Cargo for the other processor, whose programs it starts by the emulator.
fn ours(verb: &str) -> Command {
    let mut command = cargo(&[verb, "--locked", "--target", TARGET]);
    let variable = TARGET.replace('-', "_");
    let upper = variable.to_uppercase();
    command.env(format!("CARGO_TARGET_{upper}_LINKER"), LINKER);
    command.env(format!("CARGO_TARGET_{upper}_RUNNER"), format!("{EMULATOR} -L {LIBRARIES}"));
    command.env(format!("CC_{variable}"), LINKER).env("PROPTEST_CASES", "16");
    command
}

/// A program of this processor that is the other one in the emulator.
fn emulated() -> Result<PathBuf> {
    let built = tree::target().join(TARGET).join("debug/stave");
    let path = tree::target().join(TARGET).join("emulated-stave");
    let text = format!("#!/bin/sh\nexec {EMULATOR} -L {LIBRARIES} '{}' \"$@\"\n", built.display());
    fs::write(&path, text)
        .and_then(|()| fs::set_permissions(&path, fs::Permissions::from_mode(0o755)))
        .with_context(|| path.display().to_string())?;
    Ok(path)
}
