//! Stave's storage beside other embedded engines: the same work, in turn, each engine in a process of its own.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "this tool stands outside the server: it measures in the real world"
)]

mod child;
mod engine;
mod meter;
mod run;
mod table;
mod work;

use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

/// Compare storage engines.
#[derive(Parser)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Every engine in turn, several times; a table at the end.
    Run(run::Options),
    /// One engine once; a line of JSON.
    #[command(hide = true)]
    Child(child::Options),
}

fn run(command: &Command) -> Result<()> {
    match command {
        Command::Run(options) => run::run(options),
        Command::Child(options) => child::run(options),
    }
}

fn main() -> ExitCode {
    match run(&Arguments::parse().command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
