//! `cargo xtask`: the project's own commands, in plain Rust and with plain cargo.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "this tool stands outside the server: it starts, kills and measures it in the real world"
)]

mod dashboards;
mod dist;
mod emulate;
mod fuzz;
mod matrix;
mod miri;
mod portable;
mod programs;
mod readme;
mod rules;
mod sanitize;
mod start_pages;
mod steps;
mod suite;

use std::process::ExitCode;

use anyhow::Result;
use chaos::{cluster, crash, kill, mutate, netfaults, powercut, replay, resume, simulate};
use clap::{Parser, Subcommand};

/// The project's own commands.
#[derive(Parser)]
#[command(name = "cargo xtask")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Format, lints, floors and tidiness.
    Check,
    /// Everything the README promises: tests, release build, recordings, kill -9, SDKs.
    Test {
        /// Only the tests of the workspace and the recordings; no planted mistakes, no kill -9 loops, no SDKs.
        #[arg(long)]
        quick: bool,
        /// What CI leaves out: faults in a cluster of real processes (as root, with etcd).
        #[arg(long, conflicts_with = "quick")]
        cluster: bool,
    },
    /// What CI runs: check, then test.
    Ci,
    /// Format the tree and apply what clippy can repair by itself.
    Fix,
    /// Print the list of what is above the rules' limits, as it is now. For changes that move code:
    /// `cargo xtask exceptions > exceptions; mv exceptions xtask/src/rules/exceptions.txt`
    Exceptions,
    /// Print the circles of files, and of those that are too large the edges to cut.
    Circles {
        /// The crate; all, if none is named.
        name: Option<String>,
    },
    /// Print who may use which command, group of stats and address, as the tests find it and compare with what is written.
    Matrix,
    /// Run the unit tests of the crates that hold `unsafe`, or read bytes of files, in Miri (a nightly toolchain with
    /// `miri` and `rust-src`).
    Miri(miri::MiriOptions),
    /// Call every body that takes bytes with what libFuzzer thinks up (a nightly toolchain, and a C++ compiler).
    Fuzz(fuzz::FuzzOptions),
    /// Run threaded tests and a loaded cluster under ThreadSanitizer or AddressSanitizer (a nightly toolchain with
    /// `rust-src`).
    Sanitize(sanitize::SanitizeOptions),
    /// Run tests and recordings as a program for aarch64 (Debian's packages gcc-aarch64-linux-gnu and qemu-user).
    Emulate(emulate::EmulateOptions),
    /// Replay the recorded conversations against the release binary.
    Replay(replay::ReplayOptions),
    /// Kill the server under load, again and again, and look for lost documents.
    Kill(kill::KillOptions),
    /// `kill -9` of a replica's process under load, again and again, and now and then of its active node's, so that the
    /// replica has to roll back; then both are compared document by document.
    Resume(resume::ResumeOptions),
    /// A cluster on etcd: add a node, rebalance under load, kill a node, automatic failover; what clients see, what is lost.
    Cluster(cluster::ClusterOptions),
    /// Try crash states, failing calls and flipped bits in great number, on a simulated disk.
    Crash(crash::CrashOptions),
    /// Start with a damaged file, in each place of each kind of file, and compare everything that is served.
    Mutate(mutate::MutateOptions),
    /// Run whole simulated clusters, or streams and replicas, each decided by a seed, and look for what must not happen.
    Simulate(simulate::SimulateOptions),
    /// Cut the power of a real file system under load, again and again, and look for lost documents (as root, on Linux).
    Powercut(powercut::PowercutOptions),
    /// Break a cluster of real processes while an application with a real SDK works, and check what it saw (as root, on
    /// Linux; needs etcd and Go).
    Faults(netfaults::NetfaultsOptions),
    /// Run the commands of the pages for beginners (docs/start) as they are written (needs etcd, curl and jq).
    Start(start_pages::StartOptions),
    /// Make what people install: an archive, packages, an image, checksums, and a list of what is in the program.
    Dist(dist::Packages),
    /// Check that the product compiles for macOS, and its parts without sockets for Windows (needs rustup).
    Portable(portable::PortableOptions),
    /// Check the dashboard and the alerts in `deploy/` against nodes that run (needs the packages of Prometheus).
    Dashboards(dashboards::DashboardOptions),
    /// Measure, side by side with others where there are others.
    Bench {
        #[command(subcommand)]
        bench: bench::Bench,
    },
}

fn run(command: Command) -> Result<bool> {
    match command {
        Command::Check => suite::check(),
        Command::Test { cluster: true, .. } => suite::test_cluster(),
        Command::Test { quick, .. } => suite::test(quick),
        Command::Ci => suite::ci(),
        Command::Fix => suite::fix(),
        Command::Exceptions => {
            print!("{}", rules::exceptions()?);
            Ok(true)
        }
        Command::Circles { name } => {
            print!("{}", rules::circles(name.as_deref())?);
            Ok(true)
        }
        Command::Matrix => matrix::run(),
        Command::Miri(options) => miri::run(&options),
        Command::Fuzz(options) => fuzz::run(&options),
        Command::Sanitize(options) => sanitize::run(&options),
        Command::Emulate(options) => emulate::run(&options),
        Command::Replay(options) => suite::replay(&options),
        Command::Kill(options) => suite::kill(&options),
        Command::Resume(options) => suite::resume(&options),
        Command::Cluster(options) => cluster::run(&options),
        Command::Crash(options) => crash::run(&options),
        Command::Mutate(options) => mutate::run(&options),
        Command::Simulate(options) => simulate::run(&options),
        Command::Powercut(options) => suite::powercut(&options),
        Command::Faults(options) => suite::faults(&options),
        Command::Start(options) => start_pages::command(&options),
        Command::Dist(options) => dist::run(&options),
        Command::Portable(options) => portable::run(&options),
        Command::Dashboards(options) => suite::dashboards(&options),
        Command::Bench { bench } => bench::run(&bench),
    }
}

fn main() -> ExitCode {
    match run(Arguments::parse().command) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn arguments_are_unambiguous() {
        Arguments::command().debug_assert();
    }
}
