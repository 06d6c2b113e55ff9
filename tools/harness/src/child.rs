//! Other programs: run them, pass on what they print, read totals out of it.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::thread::{self, JoinHandle};
use std::time::Instant;

use anyhow::{Context, Result};

use crate::{failures, tree};

/// When the first headline was printed.
static BEGUN: OnceLock<Instant> = OnceLock::new();

/// Prints a headline, with the seconds since the first one: so a log can be read from afar, and tells what took how long.
pub fn headline(text: &str) {
    let seconds = BEGUN.get_or_init(Instant::now).elapsed().as_secs();
    println!("\n== {text} ({seconds} s)");
}

/// Cargo, run in the root.
pub fn cargo(arguments: &[impl AsRef<OsStr>]) -> Command {
    let mut command = Command::new(tree::cargo());
    command.args(arguments).current_dir(tree::root());
    without_own_names(&mut command);
    command
}

/// Takes away what cargo told this program about itself: it would build crates again whose build scripts look at it
/// (ring's does), and is not true of the program that is started.
pub fn without_own_names(command: &mut Command) {
    let of_this = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok()).filter(|name| {
        ["CARGO_PKG_", "CARGO_MANIFEST_", "CARGO_BIN_", "CARGO_CRATE_"]
            .iter()
            .any(|begin| name.starts_with(begin))
    });
    of_this.for_each(|name| {
        command.env_remove(name);
    });
}

/// Builds the release binary.
pub fn release_build() -> Result<()> {
    let built = succeeds(&mut cargo(&["build", "--release", "--locked", "--package", "stave"]))?;
    anyhow::ensure!(built, "the release binary could not be built");
    Ok(())
}

/// Runs a command to its end; whether it succeeded.
pub fn succeeds(command: &mut Command) -> Result<bool> {
    Ok(command.status().with_context(|| format!("cannot run {command:?}"))?.success())
}

/// A command that runs beside others; what it tells on standard error is kept until it is waited for.
pub struct Background {
    child: Child,
    printed: JoinHandle<std::io::Result<Vec<u8>>>,
}

impl Background {
    /// Starts the command.
    pub fn start(mut command: Command) -> Result<Background> {
        let mut child = command
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot run {command:?}"))?;
        let mut errors = child.stderr.take().context("the errors are piped")?;
        let printed = thread::spawn(move || {
            let mut text = Vec::new();
            errors.read_to_end(&mut text)?;
            Ok(text)
        });
        Ok(Background { child, printed })
    }

    /// Waits for its end and prints what it told on standard error; whether it succeeded.
    pub fn wait(mut self) -> Result<bool> {
        let succeeded = self.child.wait()?.success();
        let text = self.printed.join().map_err(|_| anyhow::anyhow!("the reader of its output died"))??;
        eprint!("{}", String::from_utf8_lossy(&text));
        Ok(succeeded)
    }
}

/// Runs a command, passes each line of its output on and shows it to `look`; whether it succeeded.
pub fn each_line(command: &mut Command, mut look: impl FnMut(&str)) -> Result<bool> {
    let mut child =
        command.stdout(Stdio::piped()).spawn().with_context(|| format!("cannot run {command:?}"))?;
    let output = child.stdout.take().context("the output is piped")?;
    for line in BufReader::new(output).split(b'\n') {
        let line = String::from_utf8_lossy(&line?).into_owned();
        println!("{line}");
        failures::note_line(&line);
        look(&line);
    }
    Ok(child.wait()?.success())
}

/// What a command prints, if it succeeds.
pub fn output(command: &mut Command) -> Result<String> {
    let output =
        command.stderr(Stdio::inherit()).output().with_context(|| format!("cannot run {command:?}"))?;
    anyhow::ensure!(output.status.success(), "{command:?} ended with {}", output.status);
    Ok(String::from_utf8(output.stdout)?)
}

/// Whether a program of this name can be found.
pub fn is_installed(program: &str) -> bool {
    std::env::var_os("PATH")
        .is_some_and(|path| std::env::split_paths(&path).any(|folder| is_file(&folder.join(program))))
}

fn is_file(path: &Path) -> bool {
    path.metadata().is_ok_and(|meta| meta.is_file())
}

/// The commit the tree stands at, with a mark if there are changes on top of it.
pub fn commit() -> String {
    let mut command = Command::new("git");
    command.args(["describe", "--always", "--dirty", "--abbrev=12"]).current_dir(tree::root());
    output(&mut command).map_or_else(|_| "unknown".to_owned(), |text| text.trim().to_owned())
}
