//! `cargo xtask miri`: unit tests in Miri, for this processor or, of the formats, for one with the other order of bytes
//! (docs/adr/0169-sanitizers-and-emulation.md).

use std::process::Command;

use anyhow::{Result, ensure};
use harness::child::{headline, is_installed, succeeds};
use harness::totals::Totals;
use harness::tree;

/// Which unit tests of which package run.
const TESTS: [(&str, &str); 8] = [
    ("base", "version::"),
    ("base", "memory::"),
    ("base", "doc_key::"),
    ("base", "small_file::"),
    ("vbucket", ""),
    ("couchstore", ""),
    ("protocol", ""),
    ("subdoc", ""),
];
/// The same of what writes and reads bytes of files and sockets, without tests that take many minutes here. Tests of
/// `base` need a crate that knows no such processor; what they are about is below all of these.
const FORMATS: [(&str, &str); 9] = [
    ("protocol", ""),
    ("subdoc", ""),
    ("couchstore", "chunk::"),
    ("couchstore", "header::"),
    ("couchstore", "rev_meta::"),
    ("couchstore", "append_node::"),
    ("couchstore", "a_file_of_ours_is_clean"),
    ("couchstore", "files_of_the_original_are_clean"),
    ("logstore", "the_hash_is_part_of_the_format"),
];
/// A processor that has the highest byte of a number first.
const BIG_ENDIAN: &str = "s390x-unknown-linux-gnu";
const BIG_ENDIAN_COMPILER: &str = "s390x-linux-gnu-gcc";

/// What to run.
#[derive(Debug, clap::Args)]
pub struct MiriOptions {
    /// The tests of formats, for a processor that has the highest byte of a number first (s390x)
    #[arg(long)]
    big_endian: bool,
    /// Only the tests of these crates; may be repeated
    #[arg(long, value_name = "CRATE")]
    only: Vec<String>,
}

/// `cargo xtask miri`.
pub fn run(options: &MiriOptions) -> Result<bool> {
    let rows: &[(&str, &str)] = if options.big_endian { &FORMATS } else { &TESTS };
    for name in &options.only {
        ensure!(rows.iter().any(|(package, _)| package == name), "no tests of {name} are run here");
    }
    let is_chosen =
        |package: &str| options.only.is_empty() || options.only.iter().any(|only| only == package);
    // One of the libraries has parts in C, which are compiled and not run.
    ensure!(
        !options.big_endian || is_installed(BIG_ENDIAN_COMPILER),
        "{BIG_ENDIAN_COMPILER} is missing; Debian's packages gcc-s390x-linux-gnu and libc6-dev-s390x-cross have it"
    );
    let mut totals = Totals::default();
    for (package, filter) in rows.iter().filter(|(package, _)| is_chosen(package)) {
        headline(&format!("{package} {filter}"));
        // Not the cargo that runs this command: it belongs to another toolchain.
        let mut command = Command::new("cargo");
        command.args(["+nightly", "miri", "test", "--lib", "--package", package]);
        if options.big_endian {
            command.args(["--target", BIG_ENDIAN]);
        }
        command.args(["--", filter]);
        command.current_dir(tree::root()).env("CARGO_TARGET_DIR", tree::target().join("miri"));
        command.env_remove("RUSTUP_TOOLCHAIN").env_remove("CARGO").env("PROPTEST_CASES", "4");
        // Versions go through numbers in the hash table, and property tests read where they are kept.
        // Without the last one Miri rounds otherwise at each call: durations would not be what they were.
        let flags = "-Zmiri-permissive-provenance -Zmiri-disable-isolation -Zmiri-deterministic-floats";
        command.env("MIRIFLAGS", flags);
        totals += Totals::one(succeeds(&mut command)?);
    }
    println!("\n{totals}");
    Ok(totals.good())
}
