//! `cargo xtask dist`: what people install. Two runs of the same commit with the same binary give the same bytes
//! (docs/adr/0105-packages.md, docs/adr/0126-static-binaries-and-images.md).

mod archive;
mod build;
mod clean;
mod dates;
mod deb;
mod oci;
mod provenance;
mod rpm;
mod sbom;
mod shell;
pub mod try_image;
mod twice;

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use harness::child::{cargo, headline, output, succeeds};
use harness::totals::Totals;
use harness::tree;
use sha2::{Digest, Sha256};

use self::archive::Entry;
use self::build::{Folders, commit};
use self::shell::ShellFiles;

/// What is made, and where.
#[derive(Debug, clap::Args)]
pub struct Packages {
    /// The folder that gets the files
    #[arg(long, value_name = "DIR", default_value = "target/dist")]
    out: PathBuf,
    /// A binary that is there already; otherwise the release is built
    #[arg(long, value_name = "FILE")]
    binary: Option<PathBuf>,
    /// What it is built for, as rustc names it, like x86_64-unknown-linux-musl, which needs no libraries
    #[arg(long, value_name = "TRIPLE", conflicts_with = "binary")]
    target: Option<String>,
    /// Build again, from another checkout with other folders, and compare what is made byte by byte
    #[arg(long, conflicts_with = "binary")]
    twice: bool,
    /// An image for containers, too
    #[arg(long)]
    image: bool,
    /// Start what the image holds, as a container would, and store a document (as root)
    #[arg(long, requires = "image")]
    start: bool,
    /// Install the packages in a clean Debian: first document, upgrade under load, removal (as root, with debootstrap)
    #[arg(long, conflicts_with = "target")]
    try_packages: bool,
    /// The older program whose packages are upgraded, instead of the same ones
    #[arg(long, value_name = "PROGRAM", requires = "try_packages")]
    upgrade_from: Option<PathBuf>,
}

/// What all files that are made say of themselves.
struct Release {
    version: String,
    /// Of the commit, in seconds since 1970: what was written when does not change what is made.
    time: u64,
    maintainer: String,
    /// As compilers have it, like `x86_64`.
    machine: &'static str,
    /// The C library as compilers have it: `gnu`, or `musl` for programs that bring it along.
    libc: &'static str,
}

impl Release {
    fn of_tree(program: &[u8]) -> Result<Release> {
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
        let libc = if deb::glibc(program).is_some() { "gnu" } else { "musl" };
        Ok(Release { version, time, maintainer: of_commit("%cn <%ce>")?, machine: machine(program)?, libc })
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

/// What a program is for, by its header (elf(5)).
fn machine(program: &[u8]) -> Result<&'static str> {
    match program.get(..20) {
        Some([0x7f, b'E', b'L', b'F', .., 62, 0]) => Ok("x86_64"),
        Some([0x7f, b'E', b'L', b'F', .., 183, 0]) => Ok("aarch64"),
        _ => bail!("it is no program for Linux on x86-64 or aarch64"),
    }
}

/// `cargo xtask dist`.
pub fn run(options: &Packages) -> Result<bool> {
    if options.twice {
        twice::check_tree()?;
    }
    let binary = match &options.binary {
        Some(binary) => binary.clone(),
        None => {
            let built = build::build(&Folders::of_tree()?, options.target.as_deref(), &commit()?)?;
            let Some(binary) = built else { return Ok(false) };
            binary
        }
    };
    let made = make_all(&binary, options, &options.out)?;
    println!("{:<44} {:>12}  sha256", "file", "bytes");
    let mut sums = String::new();
    for path in &made {
        let (bytes, name) = (std::fs::read(path)?, name_of(path));
        let sum = sha256(&bytes);
        println!("{name:<44} {:>12}  {sum}", bytes.len());
        sums.push_str(&format!("{sum}  {name}\n"));
    }
    std::fs::write(options.out.join("SHA256SUMS"), sums)?;
    // What was asked for is made.
    let mut totals = Totals::one(true);
    if options.twice {
        totals +=
            twice::run(&made, options.target.as_deref(), |program, out| make_all(program, options, out))?;
    }
    if options.start {
        totals += try_image::run(&binary)?;
    }
    if options.try_packages {
        totals += try_packages(&made, options)?;
    }
    println!("\n{totals}");
    Ok(totals.good())
}

/// Installs, upgrades and removes the packages that were made.
fn try_packages(made: &[PathBuf], options: &Packages) -> Result<Totals> {
    let read = |kind: &str| {
        let path = made.iter().find(|path| path.extension().is_some_and(|found| found == kind));
        let path = path.with_context(|| format!("no package of the kind {kind} was made"))?;
        std::fs::read(path).with_context(|| path.display().to_string())
    };
    let new = clean::Made { deb: read("deb")?, rpm: read("rpm")? };
    let Some(program) = &options.upgrade_from else {
        println!("the packages are upgraded to themselves: --upgrade-from names an older program");
        return clean::run(&new, &new);
    };
    clean::run(&packages_of(program, &options.out)?, &new)
}

/// The packages of a program; `out` is a folder for what lies around meanwhile.
fn packages_of(program: &Path, out: &Path) -> Result<clean::Made> {
    let name = || program.display().to_string();
    let whole = std::fs::read(program).with_context(name)?;
    let release = Release::of_tree(&whole).with_context(name)?;
    ensure!(release.machine == std::env::consts::ARCH, "{} is for {}", name(), release.machine);
    let (shell, stripped) = (ShellFiles::of(program, out)?, stripped(program, release.machine, out)?);
    Ok(clean::Made {
        deb: deb::make(&release, &stripped, &shell)?,
        rpm: rpm::make(&release, &stripped, &shell)?,
    })
}

/// Writes where these files come from.
fn told_from(made: &[PathBuf], options: &Packages, out: &Path) -> Result<PathBuf> {
    let sum_of =
        |path: &Path| anyhow::Ok(sha256(&std::fs::read(path).with_context(|| path.display().to_string())?));
    let mut inputs = vec![("Cargo.lock".to_owned(), sum_of(&tree::root().join("Cargo.lock"))?)];
    if let Some(program) = &options.binary {
        inputs.push(("program".to_owned(), sum_of(program)?));
    }
    let compiler = output(Command::new("rustc").arg("--version").current_dir(tree::root()))?;
    let origin = provenance::Origin {
        commit: commit()?,
        inputs,
        compiler: compiler.trim().to_owned(),
        target: options.target.clone(),
        image: options.image,
    };
    let files = made.iter().map(|path| Ok((name_of(path), sum_of(path)?))).collect::<Result<Vec<_>>>()?;
    let path = out.join(format!("stave-{}.intoto.json", sbom::version()?));
    std::fs::write(&path, provenance::make(&origin, &files)?).with_context(|| path.display().to_string())?;
    Ok(path)
}

fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

fn name_of(path: &Path) -> String {
    path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}

/// Makes all files of a program in a folder, with the one that says where they come from; returns their paths.
fn make_all(binary: &Path, options: &Packages, out: &Path) -> Result<Vec<PathBuf>> {
    std::fs::create_dir_all(out)?;
    let mut made = make(binary, options, out)?;
    made.push(told_from(&made, options, out)?);
    Ok(made)
}

fn make(binary: &Path, options: &Packages, out: &Path) -> Result<Vec<PathBuf>> {
    let whole = std::fs::read(binary).with_context(|| binary.display().to_string())?;
    let release = Release::of_tree(&whole).with_context(|| binary.display().to_string())?;
    let program = stripped(binary, release.machine, out)?;
    let shell = ShellFiles::of(&runnable(binary, release.machine)?, out)?;
    let Release { version, machine, libc, .. } = &release;
    let put = |name: String, bytes: Vec<u8>| {
        let path = out.join(name);
        std::fs::write(&path, bytes).with_context(|| path.display().to_string())?;
        anyhow::Ok(path)
    };
    let archive = archive::make(&archive_entries(&release, &program, &shell)?, release.time)?;
    let mut made = vec![
        put(format!("stave-{version}-{machine}-linux-{libc}.tar.gz"), archive)?,
        put(
            format!("stave_{version}_{}.deb", release.debian_machine()?),
            deb::make(&release, &program, &shell)?,
        )?,
        put(format!("stave-{version}-1.{machine}.rpm"), rpm::make(&release, &program, &shell)?)?,
        put(format!("stave-{version}.cdx.json"), sbom::make(&release)?)?,
    ];
    if options.image {
        made.push(put(format!("stave-{version}-{machine}.oci.tar"), image(&release, binary, &program)?)?);
    }
    Ok(made)
}

/// An image of a program; `out` is a folder for what lies around meanwhile.
fn image_of(binary: &Path, out: &Path) -> Result<Vec<u8>> {
    let program = std::fs::read(binary).with_context(|| binary.display().to_string())?;
    let release = Release::of_tree(&program)?;
    image(&release, binary, &stripped(binary, release.machine, out)?)
}

fn image(release: &Release, binary: &Path, program: &[u8]) -> Result<Vec<u8>> {
    if release.libc == "gnu" && release.machine != std::env::consts::ARCH {
        bail!("this machine has no libraries for {}: build it for musl", release.machine);
    }
    oci::make(release, program, &oci::libraries(binary, program)?)
}

/// The largest program.
const MOST_BYTES: usize = 20 << 20;

/// The program without what only debuggers read. Another processor's is stripped by its own tools.
fn stripped(binary: &Path, machine: &str, out: &Path) -> Result<Vec<u8>> {
    let path = out.join("stave.stripped");
    let strip = match machine == std::env::consts::ARCH {
        true => "strip".to_owned(),
        false => format!("{machine}-linux-gnu-strip"),
    };
    output(Command::new(strip).arg("-o").arg(&path).arg(binary))?;
    let bytes = std::fs::read(&path)?;
    std::fs::remove_file(&path)?;
    let size = bytes.len();
    ensure!(size < MOST_BYTES, "the program has {size} bytes: {MOST_BYTES} are too many");
    Ok(bytes)
}

/// A program that this machine can run and that says of itself what `binary` does: that, or a development build.
fn runnable(binary: &Path, machine: &str) -> Result<PathBuf> {
    if machine == std::env::consts::ARCH {
        return Ok(binary.to_owned());
    }
    headline("development build, for completions and manual pages");
    let built = succeeds(&mut cargo(&["build", "--locked", "--package", "stave"]))?;
    ensure!(built, "the development build failed");
    Ok(tree::target().join("debug/stave"))
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
        // The header of a program for this processor, and nothing more.
        let mut program = vec![0; 64];
        program[..4].copy_from_slice(b"\x7fELF");
        program[18] = 62;
        let shell = ShellFiles {
            completions: shell::SHELLS.map(|_| b"a script".to_vec()),
            pages: vec![("stave.1".to_owned(), b"a page".to_vec())],
        };
        let make = || {
            let release = Release::of_tree(&program).expect("a commit");
            let entries = archive_entries(&release, &program, &shell).expect("files of the tree");
            let archive = archive::make(&entries, release.time).expect("an archive");
            (
                archive,
                deb::make(&release, &program, &shell).expect("a package"),
                sbom::make(&release).expect("a list"),
                rpm::make(&release, &program, &shell).expect("a package"),
                oci::make(&release, &program, &[]).expect("an image"),
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
