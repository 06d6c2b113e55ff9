//! Whether the product compiles for systems that it is not tested on.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use clap::Args;
use harness::child::{cargo, headline, succeeds};
use harness::totals::Totals;
use harness::tree;

/// Which systems to compile for.
#[derive(Args)]
pub struct PortableOptions {
    /// Only this target of `rustc`.
    #[arg(long)]
    target: Option<String>,
}

/// A system, and what has to compile for it.
struct Portable {
    target: &'static str,
    packages: &'static [&'static str],
}

const ALL: [Portable; 2] = [
    Portable { target: "aarch64-apple-darwin", packages: &["stave"] },
    Portable {
        target: "x86_64-pc-windows-gnu",
        packages: &["base", "subdoc", "protocol", "vbucket", "couchstore", "logstore"],
    },
];

/// In place of a C compiler: makes the files that it is asked for, empty. Nothing is linked by a check.
const NO_COMPILER: &str = r#"#!/bin/sh
while [ $# -gt 0 ]; do
    case "$1" in
    -o) : > "$2"; shift ;;
    -o*) : > "${1#-o}" ;;
    esac
    shift
done
"#;

/// In place of an archiver.
const NO_ARCHIVER: &str = r#"#!/bin/sh
for argument in "$@"; do
    case "$argument" in *.a) : > "$argument" ;; esac
done
"#;

/// Checks all targets, or the one that is asked for; whether all compile.
pub fn run(options: &PortableOptions) -> Result<bool> {
    let chosen: Vec<&Portable> = ALL
        .iter()
        .filter(|one| options.target.as_deref().is_none_or(|target| target == one.target))
        .collect();
    let known = ALL.map(|one| one.target).join(", ");
    ensure!(!chosen.is_empty(), "there is nothing for this target; known are {known}");
    let mut all_compile = true;
    for one in chosen {
        headline(&format!("{}: cargo check of {}", one.target, one.packages.join(", ")));
        ensure!(
            one.has_library()?,
            "the standard library for {} is missing, and rustup cannot get it",
            one.target
        );
        all_compile &= one.check()?;
    }
    Ok(all_compile)
}

/// As CI runs it: a target whose library cannot be had is passed over.
pub fn totals() -> Result<Totals> {
    let mut totals = Totals::default();
    for one in &ALL {
        if one.has_library()? {
            totals += Totals::one(one.check()?);
        } else {
            println!("passed over: rustup cannot get the standard library for {}", one.target);
        }
    }
    Ok(totals)
}

impl Portable {
    /// Gets the target's standard library; whether it is there.
    fn has_library(&self) -> Result<bool> {
        match Command::new("rustup").args(["target", "add", self.target]).status() {
            Ok(status) => Ok(status.success()),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error).context("rustup"),
        }
    }

    fn check(&self) -> Result<bool> {
        let folder = tree::root().join("target/portable");
        fs::create_dir_all(&folder)?;
        let (compiler, archiver) = (folder.join("cc"), folder.join("ar"));
        put_program(&compiler, NO_COMPILER)?;
        put_program(&archiver, NO_ARCHIVER)?;
        let mut arguments = vec!["check", "--locked", "--target", self.target];
        self.packages.iter().for_each(|package| arguments.extend(["--package", package]));
        let mut check = cargo(&arguments);
        let variable = self.target.replace('-', "_");
        for (name, program) in [("CC", &compiler), ("CXX", &compiler), ("AR", &archiver)] {
            check.env(format!("{name}_{variable}"), program);
        }
        succeeds(&mut check)
    }
}

fn put_program(path: &Path, text: &str) -> Result<()> {
    let written =
        fs::write(path, text).and_then(|()| fs::set_permissions(path, fs::Permissions::from_mode(0o755)));
    written.with_context(|| path.display().to_string())
}
