//! Builds the program that is packed, so that its bytes depend on the commit and the compiler, and not on folders.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use harness::child::{cargo, headline, output, succeeds};
use harness::tree;

/// Between the flags in `CARGO_ENCODED_RUSTFLAGS`, so that folders may have blanks in their names.
const BETWEEN_FLAGS: &str = "\u{1f}";

/// The folders of a build.
#[derive(Debug)]
pub struct Folders {
    /// The checkout.
    pub checkout: PathBuf,
    /// Cargo's output folder.
    pub target: PathBuf,
    /// Cargo's home, with the sources of other crates.
    pub home: PathBuf,
}

impl Folders {
    /// Those that every command uses.
    pub fn of_tree() -> Result<Folders> {
        let home = match std::env::var_os("CARGO_HOME") {
            Some(home) => PathBuf::from(home),
            None => std::env::home_dir().context("this user has no home: set CARGO_HOME")?.join(".cargo"),
        };
        let target = std::path::absolute(tree::target())?;
        Ok(Folders { checkout: tree::root(), target, home: std::path::absolute(home)? })
    }

    /// What the compiler is to write instead of them into the program, which names sources where it panics.
    fn remaps(&self) -> Result<Vec<(PathBuf, &'static str)>> {
        // Where the last one that fits counts.
        let mut remaps = vec![
            (self.checkout.clone(), "/stave"),
            (self.target.clone(), "/target"),
            (self.home.clone(), "/cargo"),
        ];
        let sources = self.home.join("registry/src");
        if sources.is_dir() {
            let listed = fs::read_dir(&sources).with_context(|| sources.display().to_string())?;
            for registry in listed {
                // It is named after the registry's address, or that of a mirror.
                remaps.push((registry?.path(), "/cargo/registry"));
            }
        }
        Ok(remaps)
    }
}

/// Builds the release for a target, or this machine; `None` if that fails.
pub fn build(folders: &Folders, target: Option<&str>, commit: &str) -> Result<Option<PathBuf>> {
    headline(&format!("release build in {}", folders.target.display()));
    // Before the compiler is told of them, the sources have to be there.
    let mut fetch = cargo(&["fetch", "--locked"]);
    if !succeeds(fetch.current_dir(&folders.checkout).env("CARGO_HOME", &folders.home))? {
        return Ok(None);
    }
    let mut build = cargo(&["build", "--release", "--locked", "--package", "stave"]);
    let mut made_in = folders.target.clone();
    if let Some(target) = target {
        build.args(["--target", target]);
        made_in.push(target);
    }
    build.current_dir(&folders.checkout).env("CARGO_TARGET_DIR", &folders.target);
    build.env("CARGO_HOME", &folders.home).env("CARGO_ENCODED_RUSTFLAGS", flags(&folders.remaps()?));
    // `stave version` prints it: the same commit makes the same bytes.
    build.env("STAVE_COMMIT", commit);
    Ok(succeeds(&mut build)?.then(|| made_in.join("release/stave")))
}

/// The commit that is built, with a word if the tree has other changes.
pub fn commit() -> Result<String> {
    let mut git = Command::new("git");
    git.args(["describe", "--always", "--abbrev=40", "--dirty=-changed", "--exclude=*"]);
    Ok(output(git.current_dir(tree::root()))?.trim().to_owned())
}

/// Flags for the compiler, behind those that are there already.
fn flags(remaps: &[(PathBuf, &str)]) -> OsString {
    let mut flags: Vec<OsString> = match std::env::var("RUSTFLAGS") {
        Ok(flags) => flags.split_whitespace().map(OsString::from).collect(),
        Err(_) => Vec::new(),
    };
    for (from, to) in remaps {
        let mut flag = OsString::from("--remap-path-prefix=");
        flag.push(Path::as_os_str(from));
        flag.push("=");
        flag.push(to);
        flags.push(flag);
    }
    flags.join(BETWEEN_FLAGS.as_ref())
}
