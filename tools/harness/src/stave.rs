//! The server as a child process: started on free ports, stopped politely or not.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};

use crate::tree;

/// The user that the server is started with.
pub const USER: &str = "Administrator";
/// The user's password; the server listens on loopback only and lives as long as the run.
pub const PASSWORD: &str = "password";
/// The bucket that is there from the start.
pub const BUCKET: &str = "default";

/// How long a server may take to become ready.
const READY_WITHIN: Duration = Duration::from_secs(60);
/// How long it may take to flush and end.
const STOP_WITHIN: Duration = Duration::from_secs(120);

/// A running server.
pub struct Stave {
    child: Child,
    log: PathBuf,
    /// Where it speaks the key-value protocol.
    pub kv: String,
    /// Where it speaks HTTP.
    pub http: String,
    /// Where it speaks the key-value protocol with TLS, if it does.
    pub kvs: Option<String>,
    /// From `exec` until it said that it is ready.
    pub ready_after: Duration,
}

/// How to start it.
pub struct Start<'a> {
    /// Its data folder.
    pub data: &'a Path,
    /// Where its log goes; appended to nothing, so one file a start.
    pub log: PathBuf,
    /// More arguments.
    pub more: &'a [&'a str],
}

/// The program, or a shell that writes its id into `procs` and then becomes the program: so all its memory is charged
/// to that cgroup from the first byte.
fn program(binary: &Path, procs: Option<&Path>) -> Command {
    let Some(procs) = procs else { return Command::new(binary) };
    let mut command = Command::new("sh");
    command.arg("-c").arg("echo $$ > \"$0\" && exec \"$@\"").arg(procs).arg(binary);
    command
}

/// The program as users have it.
fn release_binary() -> Result<PathBuf> {
    let binary = tree::release_binary();
    ensure!(binary.exists(), "{} is missing: run `cargo build --release` first", binary.display());
    Ok(binary)
}

impl Stave {
    /// Starts the release binary and waits until it can serve.
    pub fn start(start: &Start<'_>) -> Result<Stave> {
        Stave::start_in(start, None)
    }

    /// The same in a cgroup, whose `cgroup.procs` is given.
    pub fn start_in(start: &Start<'_>, procs: Option<&Path>) -> Result<Stave> {
        Stave::start_binary(&release_binary()?, start, procs)
    }

    /// The same with another program.
    pub fn start_binary(binary: &Path, start: &Start<'_>, procs: Option<&Path>) -> Result<Stave> {
        let mut command = program(binary, procs);
        command.arg("serve").arg("--data").arg(start.data);
        Stave::launch(command, &start.log, start.more)
    }

    /// Starts a development cluster, whose documents are in memory, and waits until all its nodes serve.
    pub fn start_dev(log: &Path, more: &[&str]) -> Result<Stave> {
        let mut command = Command::new(release_binary()?);
        command.arg("dev");
        Stave::launch(command, log, more)
    }

    /// Starts a command that is the program, and waits until it can serve.
    pub fn launch(mut command: Command, log: &Path, more: &[&str]) -> Result<Stave> {
        command.args(["--kv", "127.0.0.1:0", "--http", "127.0.0.1:0"]);
        command.args(["--username", USER, "--password", PASSWORD]).args(more);
        // What `/proc` tells of a process that hides its memory is for root alone.
        command.env("STAVE_CORE_DUMPS", "on");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(File::create(log)?);
        let begun = Instant::now();
        let mut child = command.spawn().with_context(|| format!("cannot run {command:?}"))?;
        let output = child.stdout.take().context("the output is piped")?;
        match await_ready(output) {
            Ok(Ready { kv, http, kvs }) => {
                Ok(Stave { child, log: log.to_owned(), kv, http, kvs, ready_after: begun.elapsed() })
            }
            Err(error) => {
                // It may have ended by itself already.
                let _ = child.kill();
                let status = child.wait()?;
                bail!("{error}; {status}; its log ends with:\n{}", tail(log));
            }
        }
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Whether it ended by itself, or was ended by somebody else.
    pub fn has_ended(&mut self) -> Result<bool> {
        Ok(self.child.try_wait()?.is_some())
    }

    /// `kill -9`.
    pub fn kill(mut self) -> Result<()> {
        self.die()
    }

    /// The same of one that is held until another takes its place.
    pub fn die(&mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    /// All that it said.
    pub fn log(&self) -> Result<String> {
        Ok(String::from_utf8_lossy(&std::fs::read(&self.log)?).into_owned())
    }

    /// The end of its log.
    pub fn log_tail(&self) -> String {
        tail(&self.log)
    }

    /// SIGTERM, after which it must flush and exit with 0.
    pub fn stop(mut self) -> Result<()> {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw).context("a child has a pid")?;
        kill_process(pid, Signal::TERM)?;
        let status = self.wait_for_end()?;
        ensure!(
            status.success(),
            "after SIGTERM the server ended with {status}; its log:\n{}",
            tail(&self.log)
        );
        Ok(())
    }

    fn wait_for_end(&mut self) -> Result<ExitStatus> {
        let begun = Instant::now();
        while begun.elapsed() < STOP_WITHIN {
            if let Some(status) = self.child.try_wait()? {
                return Ok(status);
            }
            thread::sleep(Duration::from_millis(5));
        }
        bail!("the server did not end within {STOP_WITHIN:?} after SIGTERM");
    }
}

impl Drop for Stave {
    fn drop(&mut self) {
        // Only on the way out of an error: `stop` and `kill` have waited already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Where a server says that it serves.
struct Ready {
    kv: String,
    http: String,
    kvs: Option<String>,
}

/// Reads until `ready kv=HOST:PORT ...`; a thread goes on reading, so that the server never meets a closed pipe.
fn await_ready(output: std::process::ChildStdout) -> Result<Ready> {
    let (said, heard) = mpsc::channel();
    thread::spawn(move || {
        for line in BufReader::new(output).lines().map_while(Result::ok) {
            // After the line that counts nobody listens any more.
            let _ = said.send(line);
        }
    });
    let begun = Instant::now();
    loop {
        let left = READY_WITHIN.saturating_sub(begun.elapsed());
        match heard.recv_timeout(left) {
            Ok(line) => {
                if let (Some(kv), Some(http)) = (address(&line, "kv="), address(&line, "http=")) {
                    let kvs = address(&line, "kvs=").map(str::to_owned);
                    return Ok(Ready { kv: kv.to_owned(), http: http.to_owned(), kvs });
                }
            }
            Err(mpsc::RecvTimeoutError::Timeout) => bail!("the server was not ready within {READY_WITHIN:?}"),
            Err(mpsc::RecvTimeoutError::Disconnected) => bail!("the server ended before it was ready"),
        }
    }
}

fn address<'a>(line: &'a str, what: &str) -> Option<&'a str> {
    line.strip_prefix("ready ")?.split(' ').find_map(|word| word.strip_prefix(what))
}

/// The last lines of a log.
fn tail(log: &Path) -> String {
    let text = std::fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(15)..].join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_address_in_the_ready_line() {
        let line = "ready kv=127.0.0.1:11210 http=127.0.0.1:8091 data=/d";
        assert_eq!(address(line, "kv="), Some("127.0.0.1:11210"));
        assert_eq!(address(line, "http="), Some("127.0.0.1:8091"));
        assert_eq!(address("password: x", "kv="), None);
    }
}
