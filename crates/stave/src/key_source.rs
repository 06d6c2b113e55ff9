//! Where a key of encryption comes from: a file, a command or the environment.

use std::io::{self, Read};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver};
use std::time::Duration;

use anyhow::{Context, bail};
use base::encryption::WrappingKeys;
use base::env::{Env, OpenMode};
use node::data_dir::is_open_to_all;
use rustix::process::{Pid, Signal, kill_process_group};

use crate::wrong_arguments::cannot_read;

/// More than any list of keys takes.
const MOST_BYTES: usize = 64 << 10;

/// For how long a command may take that prints a key.
pub(crate) const KEY_COMMAND_LIMIT: Duration = Duration::from_secs(30);
/// Between two looks at whether it has ended.
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// More of what it says is not told.
const MOST_SAID_BYTES: usize = 4 << 10;

/// What was given of the three.
pub(crate) struct KeySource<'a> {
    pub(crate) file: Option<&'a Path>,
    /// A command of the shell that prints the key.
    pub(crate) command: Option<&'a str>,
    /// The flag that names the command, for errors.
    pub(crate) command_flag: &'static str,
    /// The environment variable with the key itself.
    pub(crate) variable: &'static str,
    /// For how long the command may take.
    pub(crate) limit: Duration,
}

/// What a command has printed.
struct Printed {
    status: ExitStatus,
    out: Vec<u8>,
    said: Vec<u8>,
}

impl KeySource<'_> {
    /// The key that was given, from the first of file, command and environment that there is. A command is ended early once
    /// it is `cancelled`.
    pub(crate) fn read(&self, env: &Env, cancelled: &AtomicBool) -> anyhow::Result<Option<WrappingKeys>> {
        let (text, source) = match (self.file, self.command) {
            (Some(path), _) => (read_text(env, path)?, path.display().to_string()),
            (None, Some(command)) => {
                (self.output_of(env, command, cancelled)?, format!("what `{command}` prints"))
            }
            (None, None) => match std::env::var(self.variable) {
                Ok(text) => (text, self.variable.to_owned()),
                Err(_) => return Ok(None),
            },
        };
        Ok(Some(WrappingKeys::parse(&text, &source)?))
    }

    fn output_of(&self, env: &Env, command: &str, cancelled: &AtomicBool) -> anyhow::Result<String> {
        let (flag, limit) = (self.command_flag, self.limit);
        let failed = || format!("cannot run `{command}`, which {flag} names");
        let Some(Printed { status, out, said }) = self.run(env, command, cancelled).with_context(failed)?
        else {
            bail!(
                "`{command}`, which {flag} names, has not ended after {} seconds, and was ended: look at what it waits for",
                limit.as_secs()
            );
        };
        if !status.success() {
            let said = String::from_utf8_lossy(&said);
            let said = if said.trim().is_empty() { "it said nothing" } else { said.trim() };
            bail!("`{command}`, which {flag} names, ended with {status}: {said}");
        }
        if out.len() == MOST_BYTES {
            bail!(
                "`{command}`, which {flag} names, prints more than keys: at most {MOST_BYTES} bytes are read"
            );
        }
        String::from_utf8(out).with_context(failed)
    }

    /// Runs the command until it has ended. `None` if it took too long, or is not waited for any more: it is killed then.
    #[allow(clippy::disallowed_methods, reason = "a process that ends wakes no one here")]
    fn run(&self, env: &Env, command: &str, cancelled: &AtomicBool) -> io::Result<Option<Printed>> {
        let mut shell = Command::new("sh");
        // What stave reads from its standard input is not the command's; who asks a person opens the terminal.
        shell.arg("-c").arg(command).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // A group of its own, so that what the command has started ends with it. One that asks a person at the terminal must
        // stay in the terminal's.
        let is_group = env.disk.open(Path::new("/dev/tty"), OpenMode::Read).is_err();
        if is_group {
            shell.process_group(0);
        }
        let mut child = shell.spawn()?;
        let begun = env.clock.monotonic();
        let pipes = read_pipes(env, &mut child).inspect_err(|_| kill(&mut child, is_group))?;
        let is_over = || env.clock.monotonic() - begun > self.limit || cancelled.load(Ordering::SeqCst);
        let mut texts = [Vec::new(), Vec::new()];
        // What it has started may hold the pipes when it has ended, so that these have the same limit.
        for (text, pipe) in texts.iter_mut().zip(pipes) {
            let Some(pipe) = pipe else { continue };
            loop {
                match pipe.recv_timeout(LOOK_EVERY) {
                    Ok(read) => break *text = read,
                    Err(mpsc::RecvTimeoutError::Disconnected) => break,
                    Err(mpsc::RecvTimeoutError::Timeout) if is_over() => {
                        kill(&mut child, is_group);
                        return Ok(None);
                    }
                    Err(mpsc::RecvTimeoutError::Timeout) => {}
                }
            }
        }
        let [out, said] = texts;
        loop {
            if let Some(status) = child.try_wait()? {
                return Ok(Some(Printed { status, out, said }));
            }
            if is_over() {
                kill(&mut child, is_group);
                return Ok(None);
            }
            std::thread::sleep(LOOK_EVERY);
        }
    }
}

/// What the command prints and says.
fn read_pipes(env: &Env, child: &mut Child) -> io::Result<[Option<Receiver<Vec<u8>>>; 2]> {
    let out = child.stdout.take().map(|pipe| read_all(env, pipe, MOST_BYTES)).transpose()?;
    let said = child.stderr.take().map(|pipe| read_all(env, pipe, MOST_SAID_BYTES)).transpose()?;
    Ok([out, said])
}

/// Reads a pipe on a thread of its own, so that it can be left when it does not end.
fn read_all(env: &Env, pipe: impl Read + Send + 'static, most: usize) -> io::Result<Receiver<Vec<u8>>> {
    let (done, read) = mpsc::channel();
    let reads = move || {
        let mut bytes = Vec::new();
        let mut pipe = pipe;
        if pipe.by_ref().take(most as u64).read_to_end(&mut bytes).is_ok() {
            // So that a command that says more than is told does not wait for room, or fail for the want of it.
            let is_awaited = done.send(bytes).is_ok();
            let _ = is_awaited.then(|| io::copy(&mut pipe, &mut io::sink()));
        }
    };
    env.spawn.spawn("key-command", Box::new(reads))?;
    Ok(read)
}

/// What fails has ended already.
fn kill(child: &mut Child, is_group: bool) {
    let group = i32::try_from(child.id()).ok().and_then(Pid::from_raw).filter(|_| is_group);
    if let Some(group) = group {
        let _ = kill_process_group(group, Signal::KILL);
    }
    let _ = child.kill().and_then(|()| child.wait().map(drop));
}

/// What is wrong with the rights of a file with a secret, if something is.
pub(crate) fn open_to_all(file: &Path, secret: &str) -> Option<String> {
    let name = file.display();
    is_open_to_all(file).then(|| {
        format!(
            "{name} holds a {secret}, and every user of this machine may read or write it: chmod 600 {name}"
        )
    })
}

/// Warns whoever runs a command if its file with keys is open to all users.
pub(crate) fn warn_of_rights(file: Option<&Path>) {
    if let Some(what) = file.and_then(|file| open_to_all(file, "key")) {
        eprintln!("stave: {what}");
    }
}

/// The text of a file with keys.
pub(crate) fn read_text(env: &Env, path: &Path) -> anyhow::Result<String> {
    let failed = || format!("cannot read the encryption key in {}", path.display());
    let file = env.disk.open(path, OpenMode::Read).map_err(|error| {
        let error = cannot_read(path, error);
        error.context(failed())
    })?;
    let mut bytes = vec![0; MOST_BYTES];
    let read = file.read_at(&mut bytes, 0).with_context(failed)?;
    bytes.truncate(read);
    String::from_utf8(bytes).with_context(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(command: &str, limit: Duration) -> KeySource<'_> {
        KeySource {
            file: None,
            command: Some(command),
            command_flag: "--key-command",
            variable: "NOT_SET",
            limit,
        }
    }

    fn refused(command: &str, limit: Duration, is_cancelled: bool) -> String {
        let read = source(command, limit).read(&Env::real(), &AtomicBool::new(is_cancelled));
        format!("{:#}", read.expect_err("refused"))
    }

    #[test]
    fn a_command_prints_the_key() {
        let command = format!("echo {}", "ab".repeat(32));
        let read = source(&command, KEY_COMMAND_LIMIT).read(&Env::real(), &AtomicBool::new(false));
        assert!(read.expect("it ends").is_some());
        let why = refused("echo no vault >&2; exit 3", KEY_COMMAND_LIMIT, false);
        assert!(why.contains("exit status: 3") && why.contains("no vault"), "{why}");
        let why = refused("head -c 100000 /dev/zero", KEY_COMMAND_LIMIT, false);
        assert!(why.contains("prints more than keys"), "{why}");
    }

    #[test]
    fn a_command_that_does_not_end_is_ended() {
        let clock = Env::real().clock;
        let begun = clock.monotonic();
        // What the shell has started holds the pipes, too.
        for command in ["sleep 600", "sleep 600; true", "sleep 600 & exit 0"] {
            let why = refused(command, Duration::from_millis(50), false);
            assert!(why.contains("has not ended") && why.contains("--key-command"), "{why}");
            refused(command, KEY_COMMAND_LIMIT, true);
        }
        assert!(clock.monotonic() - begun < KEY_COMMAND_LIMIT);
    }
}
