//! `cargo xtask dist --twice`: that what is made depends on the commit alone. The second time it is built from a checkout
//! in another folder, with another output folder and another home of cargo, and everything is compared byte by byte.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use harness::child::{headline, succeeds};
use harness::totals::Totals;
use harness::tree::{self, Scratch};

use super::build::{Folders, build, commit};

/// Refuses a tree that is not its commit: a checkout of that would be another one.
pub fn check_tree() -> Result<()> {
    let commit = commit()?;
    ensure!(
        !commit.ends_with("-changed"),
        "--twice builds the commit from another checkout, and this tree has other changes: commit them, or stash them"
    );
    Ok(())
}

/// Builds the same commit again elsewhere, and compares what is made with `first`. `make` makes files of a program, in a
/// folder.
pub fn run(
    first: &[PathBuf],
    target: Option<&str>,
    make: impl Fn(&Path, &Path) -> Result<Vec<PathBuf>>,
) -> Result<Totals> {
    let mut scratch = Scratch::new("dist-twice")?;
    let folders = elsewhere(scratch.path())?;
    let out = scratch.path().join("out");
    let built = build(&folders, target, &commit()?)?;
    let program = built.context("the second build failed")?;
    let second = make(&program, &out)?;
    headline("both builds");
    let totals = compare(&read_all(first)?, &read_all(&second)?);
    if !totals.good() {
        scratch.keep();
    }
    Ok(totals)
}

/// A checkout, an output folder and a home of cargo that are other ones, with names of other lengths.
fn elsewhere(scratch: &Path) -> Result<Folders> {
    let checkout = scratch.join("a checkout of the same commit");
    let mut clone = Command::new("git");
    clone.args(["clone", "--quiet", "--shared", "--no-checkout"]).arg(tree::root()).arg(&checkout);
    ensure!(succeeds(&mut clone)?, "the tree could not be cloned");
    let mut take = Command::new("git");
    take.args(["checkout", "--quiet", "--detach", &commit()?]).current_dir(&checkout);
    ensure!(succeeds(&mut take)?, "the commit could not be checked out");
    let here = Folders::of_tree()?;
    let home = scratch.join("home");
    fs::create_dir(&home)?;
    let listed = fs::read_dir(&here.home).with_context(|| here.home.display().to_string())?;
    for entry in listed {
        let entry = entry?;
        // What was downloaded need not be downloaded again.
        std::os::unix::fs::symlink(entry.path(), home.join(entry.file_name()))?;
    }
    Ok(Folders { checkout, target: scratch.join("output"), home })
}

type Files = BTreeMap<String, Vec<u8>>;

fn read_all(paths: &[PathBuf]) -> Result<Files> {
    let read = |path: &PathBuf| {
        let bytes = fs::read(path).with_context(|| path.display().to_string())?;
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned());
        Ok((name.unwrap_or_default(), bytes))
    };
    paths.iter().map(read).collect()
}

/// Compares file by file, and says where those that differ begin to.
fn compare(first: &Files, second: &Files) -> Totals {
    let mut totals = Totals::default();
    let names: std::collections::BTreeSet<&String> = first.keys().chain(second.keys()).collect();
    for name in names {
        let difference = match (first.get(name), second.get(name)) {
            (Some(a), Some(b)) => difference(a, b),
            _ => Some("made by one of the builds alone".to_owned()),
        };
        println!("{name:<44} {}", difference.as_deref().unwrap_or("same bytes"));
        totals += Totals::one(difference.is_none());
    }
    totals
}

fn difference(a: &[u8], b: &[u8]) -> Option<String> {
    if a == b {
        return None;
    }
    let same = a.iter().zip(b).take_while(|(a, b)| a == b).count();
    Some(format!("DIFFERENT from byte {same} on ({} and {} bytes)", a.len(), b.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(of: &[(&str, &[u8])]) -> Files {
        of.iter().map(|(name, bytes)| ((*name).to_owned(), bytes.to_vec())).collect()
    }

    #[test]
    fn files_that_differ_or_are_missing_are_failures() {
        let first = files(&[("a", b"1234"), ("b", b"12")]);
        assert_eq!(compare(&first, &first), Totals { passed: 2, failed: 0 });
        assert_eq!(compare(&first, &files(&[("a", b"1234")])), Totals { passed: 1, failed: 1 });
        assert_eq!(
            compare(&first, &files(&[("a", b"1235"), ("b", b"12"), ("c", b"")])),
            Totals { passed: 1, failed: 2 }
        );
        assert_eq!(difference(b"1234", b"12").as_deref(), Some("DIFFERENT from byte 2 on (4 and 2 bytes)"));
    }
}
