//! Other programs: run them, pass on what they print, read totals out of it.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

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

/// How long between two looks at whether a program has ended.
const LOOK: Duration = Duration::from_millis(20);
/// How long what a program printed may take to come once it has ended: one that it started may hold the pipe open.
const LAST_WORDS: Duration = Duration::from_secs(5);

/// What a program printed and how it ended.
pub struct Ended {
    /// `None` if it was killed because it took too long.
    pub status: Option<ExitStatus>,
    /// What it printed up to then.
    pub stdout: String,
    /// The same on standard error.
    pub stderr: String,
}

/// Runs a command and keeps what it prints. After `limit` it is killed; what it started by itself may live on.
pub fn within(limit: Duration, command: &mut Command) -> Result<Ended> {
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot run {command:?}"))?;
    let stdout = Collected::of(child.stdout.take());
    let stderr = Collected::of(child.stderr.take());
    let begun = Instant::now();
    let mut status = child.try_wait()?;
    while status.is_none() && begun.elapsed() < limit {
        thread::sleep(LOOK);
        status = child.try_wait()?;
    }
    if status.is_none() {
        child.kill()?;
        child.wait()?;
    }
    Ok(Ended { status, stdout: stdout.text(), stderr: stderr.text() })
}

/// What comes out of a pipe, collected by a thread that may outlive who waits for it.
struct Collected {
    bytes: Arc<Mutex<Vec<u8>>>,
    reader: JoinHandle<()>,
}

impl Collected {
    fn of(pipe: Option<impl Read + Send + 'static>) -> Collected {
        let bytes = Arc::<Mutex<Vec<u8>>>::default();
        let kept = Arc::clone(&bytes);
        let reader = thread::spawn(move || {
            let (mut pipe, mut part) = (pipe, [0; 1 << 14]);
            while let Some(pipe) = &mut pipe {
                match pipe.read(&mut part) {
                    Ok(count) if count > 0 => {
                        let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
                        kept.extend_from_slice(part.get(..count).unwrap_or_default());
                    }
                    Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                    _ => break,
                }
            }
        });
        Collected { bytes, reader }
    }

    fn text(self) -> String {
        let begun = Instant::now();
        while !self.reader.is_finished() && begun.elapsed() < LAST_WORDS {
            thread::sleep(LOOK);
        }
        String::from_utf8_lossy(&self.bytes.lock().unwrap_or_else(PoisonError::into_inner)).into_owned()
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(line: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", line]);
        command
    }

    #[test]
    fn a_program_that_ends_is_told_with_all_that_it_printed() {
        let line = "i=0; while [ $i -lt 20000 ]; do echo $i; i=$((i + 1)); done; echo no >&2; exit 3";
        let ended = within(Duration::from_secs(60), &mut shell(line)).unwrap();
        assert_eq!(ended.status.and_then(|status| status.code()), Some(3));
        assert_eq!((ended.stdout.lines().count(), ended.stderr.as_str()), (20_000, "no\n"));
    }

    /// The program that it started holds its pipes open.
    #[test]
    fn a_program_that_does_not_end_is_killed_and_what_it_said_is_kept() {
        let line = "echo begun; sleep 100 & echo $!; wait";
        let ended = within(Duration::from_secs(10), &mut shell(line)).unwrap();
        assert!(ended.status.is_none());
        let mut lines = ended.stdout.lines();
        assert_eq!(lines.next(), Some("begun"));
        succeeds(Command::new("kill").arg(lines.next().unwrap())).unwrap();
    }
}
