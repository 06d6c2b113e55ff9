//! `cargo xtask fuzz`: libFuzzer over every body that takes bytes, with AddressSanitizer
//! (docs/adr/0132-fuzzers-in-one-program.md).

mod recordings;

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use harness::child::{headline, succeeds};
use harness::totals::Totals;
use harness::tree;

/// What libFuzzer needs to see of a program: which branches it takes, and what it compares.
const COVERAGE: &str = "-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares";
/// What the fuzzers are built for: a named target, so that programs which run while it is built have other flags.
const TARGET: &str = "x86_64-unknown-linux-gnu";

/// Which bodies, and for how long.
#[derive(Debug, clap::Args)]
pub struct FuzzOptions {
    /// How long each body is called
    #[arg(long, value_name = "N", default_value_t = 10)]
    seconds: u64,
    /// Only these bodies; may be repeated
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,
    /// The longest input, in bytes
    #[arg(long, value_name = "N", default_value_t = 4096)]
    max_len: u32,
    /// Without AddressSanitizer, which finds what is wrong in unsafe code and costs half of the speed
    #[arg(long)]
    without_sanitizer: bool,
}

/// What came of one body.
#[derive(Debug, Default, PartialEq, Eq)]
struct Figures {
    executions: u64,
    /// Places of the program that were reached.
    coverage: u64,
    /// Inputs that reach all of them.
    corpus: u64,
}

/// `cargo xtask fuzz`.
pub fn run(options: &FuzzOptions) -> Result<bool> {
    headline("build of the fuzzers");
    let Some(program) = build(options)? else { return Ok(false) };
    let mut targets = targets(&program)?;
    if !options.only.is_empty() {
        for name in &options.only {
            ensure!(targets.contains(name), "there is no body {name}; there are {}", targets.join(", "));
        }
        targets.retain(|target| options.only.contains(target));
    }
    headline("fuzzers");
    println!("{:<16} {:>12} {:>9} {:>7}  result", "body", "executions", "coverage", "corpus");
    let (mut totals, mut executions) = (Totals::default(), 0);
    for target in &targets {
        let (found, failure) = fuzz(&program, target, options)?;
        executions += found.executions;
        let result = failure.as_deref().unwrap_or("passed");
        println!("{target:<16} {:>12} {:>9} {:>7}  {result}", found.executions, found.coverage, found.corpus);
        totals += Totals::one(failure.is_none());
    }
    println!("executions: {executions}\n\n{totals}");
    Ok(totals.good())
}

fn folder() -> PathBuf {
    tree::target().join("fuzz")
}

/// The program; `None` if it cannot be built.
fn build(options: &FuzzOptions) -> Result<Option<PathBuf>> {
    let sanitizer = if options.without_sanitizer { "" } else { " -Zsanitizer=address" };
    // Not the cargo that runs this command: it belongs to another toolchain.
    let mut command = Command::new("cargo");
    // Not `--locked`: a crate of the server may have got a dependency that this lock file does not know yet.
    command.args(["+nightly", "build", "--release", "--target", TARGET]);
    command.current_dir(tree::root().join("fuzz")).env("CARGO_TARGET_DIR", folder());
    command
        .env_remove("RUSTUP_TOOLCHAIN")
        .env_remove("CARGO")
        .env("RUSTFLAGS", format!("{COVERAGE}{sanitizer} --cfg fuzzing"));
    Ok(succeeds(&mut command)?.then(|| folder().join(TARGET).join("release/fuzz")))
}

/// The names of all bodies: the program prints them if it is not told which one to call.
fn targets(program: &Path) -> Result<Vec<String>> {
    let output =
        Command::new(program).env_remove("STAVE_FUZZ_TARGET").output().context("cannot run the fuzzers")?;
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    let names: Vec<String> = text.lines().skip(1).map(str::to_owned).collect();
    ensure!(output.status.code() == Some(2) && !names.is_empty(), "the fuzzers name no bodies: {text}");
    Ok(names)
}

/// Calls one body; what it came to, and what went wrong.
fn fuzz(program: &Path, target: &str, options: &FuzzOptions) -> Result<(Figures, Option<String>)> {
    let of = |kind: &str| folder().join(kind).join(target);
    let (corpus, findings) = (of("corpus"), of("findings"));
    std::fs::create_dir_all(&corpus)?;
    std::fs::create_dir_all(&findings)?;
    let longest = usize::try_from(options.max_len).unwrap_or(usize::MAX);
    recordings::seed(&tree::root().join("tests/recordings"), target, &corpus, longest)?;
    let mut command = Command::new(program);
    command.env("STAVE_FUZZ_TARGET", target).env("STAVE_FUZZ_SEEDS", &corpus);
    // What lives as long as the process is no leak.
    command.env("ASAN_OPTIONS", "detect_leaks=0").arg(&corpus);
    command.arg(format!("-max_total_time={}", options.seconds));
    command.arg(format!("-max_len={}", options.max_len));
    command.arg(format!("-artifact_prefix={}/", findings.display()));
    command.args(["-print_final_stats=1", "-timeout=30", "-rss_limit_mb=3072", "-detect_leaks=0"]);
    let output = command.output().with_context(|| program.display().to_string())?;
    let text = String::from_utf8_lossy(&output.stderr);
    let log = of("log").with_extension("txt");
    std::fs::create_dir_all(folder().join("log"))?;
    std::fs::write(&log, text.as_bytes())?;
    let failure = (!output.status.success())
        .then(|| format!("FAILED: {}, input in {}", log.display(), findings.display()));
    Ok((read(&text), failure))
}

/// Reads what libFuzzer prints: `#123 NEW cov: 4 ft: 5 corp: 6/7b ...`, and figures at its end.
fn read(text: &str) -> Figures {
    let mut found = Figures::default();
    for line in text.lines() {
        if let Some(number) = line.strip_prefix("stat::number_of_executed_units:") {
            found.executions = number.trim().parse().unwrap_or_default();
        }
        if !line.starts_with('#') {
            continue;
        }
        let mut words = line.split_ascii_whitespace();
        while let Some(word) = words.next() {
            let number = |text: &str| text.split('/').next().and_then(|text| text.parse().ok());
            match word {
                "cov:" => found.coverage = words.next().and_then(number).unwrap_or(found.coverage),
                "corp:" => found.corpus = words.next().and_then(number).unwrap_or(found.corpus),
                _ => {}
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_of_the_fuzzer_are_read() {
        let text = "INFO: seed\n#2\tINITED cov: 11 ft: 12 corp: 1/1b exec/s: 0 rss: 30Mb\n\
            #65536\tpulse  cov: 21 ft: 22 corp: 7/19b lim: 652 exec/s: 32768 rss: 81Mb\n\
            stat::number_of_executed_units: 70000\nstat::new_units_added: 6\n";
        assert_eq!(read(text), Figures { executions: 70_000, coverage: 21, corpus: 7 });
        assert_eq!(read("nothing of it"), Figures::default());
    }
}
