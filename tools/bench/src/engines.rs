//! `bench engines`: builds and runs the comparison in `tools/engines`.

use std::process::Command;

use anyhow::{Result, ensure};
use clap::Args;
use harness::child::{each_line, is_installed, succeeds};
use harness::tree::{self, Scratch};

use super::Output;

/// What to leave out.
#[derive(Args)]
pub struct EnginesOptions {
    /// Leave out RocksDB, which takes long to build and needs clang's library.
    #[arg(long)]
    without_rocksdb: bool,
    /// Rounds; medians count.
    #[arg(long, default_value_t = 3)]
    rounds: u32,
    #[command(flatten)]
    output: Output,
    /// More arguments for the comparison, behind `--`.
    #[arg(last = true)]
    more: Vec<String>,
}

/// Builds, runs and passes on what is printed; whether it went well.
pub fn run(options: &EnginesOptions) -> Result<bool> {
    compare(options, |_| {})
}

/// The same, and shows each line of the comparison to `look`.
pub fn compare(options: &EnginesOptions, look: impl FnMut(&str)) -> Result<bool> {
    let rocksdb = !options.without_rocksdb && can_build_rocksdb();
    let folder = tree::root().join("tools/engines");
    let mut build = Command::new(tree::cargo());
    build.args(["build", "--release"]).current_dir(&folder);
    if !rocksdb {
        build.arg("--no-default-features");
    }
    println!(
        "building the comparison{}",
        if rocksdb { "; RocksDB takes many minutes the first time" } else { "" }
    );
    ensure!(succeeds(&mut build)?, "the comparison could not be built");
    let scratch = Scratch::new("engines")?;
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| folder.join("target"), Into::into);
    let mut command = Command::new(target.join("release/engines"));
    command.arg("run").arg("--dir").arg(scratch.path()).args(["--rounds", &options.rounds.to_string()]);
    if options.output.json {
        command.arg("--json");
    }
    each_line(command.args(&options.more), look)
}

/// Its bindings are made by clang's library, itself by a C++ compiler.
fn can_build_rocksdb() -> bool {
    let can = is_installed("clang") && is_installed("c++");
    if !can {
        println!(
            "RocksDB is left out: it needs clang with its library, and a C++ compiler (`apt-get install clang libclang-dev g++`)"
        );
    }
    can
}
