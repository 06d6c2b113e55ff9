//! `cargo xtask dist`: what people install. Two runs of the same commit with the same binary give the same bytes
//! (docs/adr/0105-packages.md).

mod archive;
mod deb;
mod sbom;
mod shell;

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use sha2::{Digest, Sha256};

use self::archive::Entry;
use self::shell::ShellFiles;
use crate::child::{cargo, headline, output, succeeds};
use crate::tree;

/// What is made, and where.
#[derive(Debug, clap::Args)]
pub struct Packages {
    /// The folder that gets the files
    #[arg(long, value_name = "DIR", default_value = "target/dist")]
    out: PathBuf,
    /// A binary that is there already; otherwise the release is built
    #[arg(long, value_name = "FILE")]
    binary: Option<PathBuf>,
}

/// What all files that are made say of themselves.
struct Release {
    version: String,
    /// Of the commit, in seconds since 1970: what was written when does not change what is made.
    time: u64,
    maintainer: String,
    /// As compilers have it, like `x86_64`.
    machine: &'static str,
}

impl Release {
    fn of_tree() -> Result<Release> {
        let of_commit = |format: &str| {
            let mut git = Command::new("git");
            let text =
                output(git.args(["log", "-1", &format!("--format={format}")]).current_dir(tree::root()))?;
            anyhow::Ok(text.trim().to_owned())
        };
        let time = match std::env::var("SOURCE_DATE_EPOCH") {
            Ok(time) => time,
            Err(_) => of_commit("%ct")?,
        };
        let time =
            time.parse().with_context(|| format!("SOURCE_DATE_EPOCH={time:?} is no number of seconds"))?;
        let version = sbom::version()?;
        Ok(Release { version, time, maintainer: of_commit("%cn <%ce>")?, machine: std::env::consts::ARCH })
    }

    /// The processor as Debian has it.
    fn debian_machine(&self) -> Result<&'static str> {
        match self.machine {
            "x86_64" => Ok("amd64"),
            "aarch64" => Ok("arm64"),
            other => bail!("there is no Debian package for {other}"),
        }
    }
}

/// `cargo xtask dist`.
pub fn run(options: &Packages) -> Result<bool> {
    let binary = match &options.binary {
        Some(binary) => binary.clone(),
        None => {
            headline("release build");
            if !succeeds(&mut cargo(&["build", "--release", "--locked", "--package", "stave"]))? {
                return Ok(false);
            }
            tree::target().join("release/stave")
        }
    };
    std::fs::create_dir_all(&options.out)?;
    let made = make(&binary, &options.out)?;
    println!("{:<44} {:>12}  sha256", "file", "bytes");
    let mut sums = String::new();
    for path in &made {
        let (bytes, name) = (std::fs::read(path)?, name_of(path));
        let sum: String = Sha256::digest(&bytes).iter().map(|byte| format!("{byte:02x}")).collect();
        println!("{name:<44} {:>12}  {sum}", bytes.len());
        sums.push_str(&format!("{sum}  {name}\n"));
    }
    std::fs::write(options.out.join("SHA256SUMS"), sums)?;
    Ok(true)
}

fn name_of(path: &Path) -> String {
    path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}

/// Makes all files; returns their paths.
fn make(binary: &Path, out: &Path) -> Result<Vec<PathBuf>> {
    let release = Release::of_tree()?;
    let program = stripped(binary, out)?;
    let shell = ShellFiles::of(binary, out)?;
    let Release { version, machine, .. } = &release;
    let put = |name: String, bytes: Vec<u8>| {
        let path = out.join(name);
        std::fs::write(&path, bytes).with_context(|| path.display().to_string())?;
        anyhow::Ok(path)
    };
    let archive = archive::make(&archive_entries(&release, &program, &shell)?, release.time)?;
    Ok(vec![
        put(format!("stave-{version}-{machine}-linux-gnu.tar.gz"), archive)?,
        put(
            format!("stave_{version}_{}.deb", release.debian_machine()?),
            deb::make(&release, &program, &shell)?,
        )?,
        put(format!("stave-{version}.cdx.json"), sbom::make(&release)?)?,
    ])
}

/// The program without what only debuggers read.
fn stripped(binary: &Path, out: &Path) -> Result<Vec<u8>> {
    let path = out.join("stave.stripped");
    output(Command::new("strip").arg("-o").arg(&path).arg(binary))?;
    let bytes = std::fs::read(&path)?;
    std::fs::remove_file(&path)?;
    Ok(bytes)
}

fn archive_entries(release: &Release, program: &[u8], shell: &ShellFiles) -> Result<Vec<Entry>> {
    let top = format!("stave-{}", release.version);
    let of_tree = |path: &str| Entry::read(format!("{top}/{path}"), path, 0o644);
    let mut entries = vec![
        Entry::new(format!("{top}/stave"), program.to_vec(), 0o755),
        of_tree("LICENSE")?,
        of_tree("README.md")?,
        of_tree("SECURITY.md")?,
        of_tree("deploy/stave.toml")?,
        of_tree("deploy/systemd/stave.service")?,
        of_tree("deploy/grafana/stave.json")?,
        of_tree("deploy/prometheus/prometheus.yml")?,
        of_tree("deploy/prometheus/alerts.yml")?,
    ];
    entries.extend(shell.in_archive(&top));
    Ok(entries)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_runs_make_the_same_bytes_and_the_program_is_in_both_packages() {
        let program = b"no program, but bytes".to_vec();
        let shell = ShellFiles {
            completions: shell::SHELLS.map(|_| b"a script".to_vec()),
            pages: vec![("stave.1".to_owned(), b"a page".to_vec())],
        };
        let make = || {
            let release = Release::of_tree().expect("a commit");
            let entries = archive_entries(&release, &program, &shell).expect("files of the tree");
            let archive = archive::make(&entries, release.time).expect("an archive");
            (
                archive,
                deb::make(&release, &program, &shell).expect("a package"),
                sbom::make(&release).expect("a list"),
            )
        };
        let (first, second) = (make(), make());
        assert_eq!(first, second);
        let names = archive::names(&first.0).expect("it can be read");
        assert!(names.iter().any(|name| name.ends_with("/stave")), "{names:?}");
        let names = deb::data_names(&first.1).expect("it can be read");
        for expected in [
            "./usr/bin/stave",
            "./usr/lib/systemd/system/stave.service",
            "./etc/stave/stave.toml",
            "./usr/share/bash-completion/completions/stave",
            "./usr/share/man/man1/stave.1.gz",
        ] {
            assert!(names.iter().any(|name| name == expected), "{expected} in {names:?}");
        }
    }
}
