//! Where a password comes from: a flag, the environment, a file, or the terminal, which does not show what is typed.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "a file that the user names is no part of a node"
)]

use std::io::{BufRead, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use anyhow::{Context, bail};
use clap::Args;
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr};

use crate::cli::WrongArguments;
use crate::client::Secret;
use crate::key_source::open_to_all;
use crate::wrong_arguments::cannot_read;

/// The environment variable that has the password if no flag says otherwise.
const PASSWORD: &str = "STAVE_PASSWORD";

/// The password of the user that a command logs in as.
#[derive(Clone, Debug, Default, Args)]
pub struct PasswordFlags {
    /// The user's password; better in the environment or in a file, where others do not see it
    #[arg(long, value_name = "PASSWORD", env = PASSWORD, hide_env_values = true)]
    password: Option<Secret>,
    /// A file whose first line is the user's password, taken instead of STAVE_PASSWORD
    #[arg(long, value_name = "FILE")]
    password_file: Option<PathBuf>,
    /// What the file had: it may be a pipe, which is read once.
    #[arg(skip)]
    read: OnceLock<Secret>,
}

impl PasswordFlags {
    /// As if it had been given by `--password`.
    pub fn of(password: &str) -> PasswordFlags {
        PasswordFlags { password: Some(Secret(password.to_owned())), ..PasswordFlags::default() }
    }

    /// The password; `None` if there is none, or an empty one.
    ///
    /// # Errors
    ///
    /// The file cannot be read, or `--password` is given, too.
    pub fn given(&self) -> anyhow::Result<Option<Secret>> {
        let Some(file) = &self.password_file else {
            return Ok(self.password.clone().filter(|password| !password.0.is_empty()));
        };
        if let Some(password) = self.read.get() {
            return Ok(Some(password.clone()));
        }
        let password = instead_of(&self.password, file, ("--password", PASSWORD))?;
        Ok(Some(self.read.get_or_init(|| password).clone()))
    }

    /// What a command says that was given none.
    pub fn needed(&self) -> WrongArguments {
        let what = match self.password {
            Some(_) => "a password is needed, and STAVE_PASSWORD or --password is empty",
            None => "a password is needed",
        };
        WrongArguments(format!("{what}: set STAVE_PASSWORD, or give --password-file or --password"))
    }
}

/// The password of another cluster, by a flag of its own, its variable, or a file; `None` if they say nothing.
pub(super) fn other_password(
    password: &Option<Secret>,
    file: &Option<PathBuf>,
    names: (&str, &str),
) -> anyhow::Result<Option<Secret>> {
    let Some(file) = file else { return Ok(password.clone()) };
    instead_of(password, file, names).map(Some)
}

/// The password in a file, which takes the place of the variable's, but not of the flag's.
fn instead_of(
    password: &Option<Secret>,
    file: &Path,
    (flag, variable): (&str, &str),
) -> anyhow::Result<Secret> {
    if password.is_some() && *password != std::env::var(variable).ok().map(Secret) {
        bail!(WrongArguments(format!("{flag} and {flag}-file both name a password: give one of them")));
    }
    from_file(file)
}

/// The first line of a file; `-` is standard input.
pub fn from_file(file: &Path) -> anyhow::Result<Secret> {
    let mut line = String::new();
    if file == Path::new("-") {
        std::io::stdin().lock().read_line(&mut line).context("standard input")?;
    } else {
        if let Some(what) = open_to_all(file, "password") {
            eprintln!("stave: {what}");
        }
        let open = std::fs::File::open(file)
            .map_err(|error| cannot_read(file, error).context("the file of the password"))?;
        std::io::BufReader::new(open)
            .read_line(&mut line)
            .with_context(|| format!("the file of the password: {}", file.display()))?;
    }
    let password = first_line(&line);
    if password.is_empty() {
        bail!("the first line of {} is empty; write the password there", file.display());
    }
    Ok(Secret(password.to_owned()))
}

/// A line without its end.
fn first_line(line: &str) -> &str {
    let line = line.strip_suffix('\n').unwrap_or(line);
    line.strip_suffix('\r').unwrap_or(line)
}

/// The terminal, which shows what is typed again when this ends.
struct Hidden(Termios);

impl Hidden {
    fn begin() -> anyhow::Result<Hidden> {
        let shown = tcgetattr(std::io::stdin()).context("the terminal")?;
        let mut hidden = shown.clone();
        hidden.local_modes.remove(LocalModes::ECHO);
        hidden.local_modes.insert(LocalModes::ECHONL);
        tcsetattr(std::io::stdin(), OptionalActions::Flush, &hidden).context("the terminal")?;
        Ok(Hidden(shown))
    }
}

impl Drop for Hidden {
    fn drop(&mut self) {
        // If the terminal is gone, it shows nothing any more.
        let _ = tcsetattr(std::io::stdin(), OptionalActions::Now, &self.0);
    }
}

/// What is typed at the terminal, not shown; `None` if standard input is none.
pub fn ask(prompt: &str) -> anyhow::Result<Option<Secret>> {
    if !std::io::stdin().is_terminal() {
        return Ok(None);
    }
    eprint!("{prompt}");
    std::io::stderr().flush()?;
    let _hidden = Hidden::begin()?;
    let mut line = String::new();
    std::io::stdin().lock().read_line(&mut line)?;
    Ok(Some(Secret(first_line(&line).to_owned())))
}

/// A new password, which is typed twice; `None` if standard input is no terminal.
pub fn ask_new(of: &str) -> anyhow::Result<Option<Secret>> {
    let Some(first) = ask(&format!("new password of {of}: "))? else { return Ok(None) };
    if ask("the same again: ")?.as_ref() != Some(&first) {
        bail!("these are two different passwords; nothing was changed");
    }
    Ok(Some(first))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_line_of_a_file_is_the_password() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("password");
        for (text, password) in [("secret 1", "secret 1"), ("secret-1\r\nmore\n", "secret-1")] {
            std::fs::write(&file, text).expect("written");
            assert_eq!(from_file(&file).expect("there").0, password);
        }
        std::fs::write(&file, "\n").expect("written");
        let empty = from_file(&file).expect_err("there is none").to_string();
        assert!(empty.contains("is empty; write the password there"), "{empty}");
        let missing = format!("{:#}", from_file(&folder.path().join("other")).expect_err("no file"));
        assert!(missing.starts_with("the file of the password: "), "{missing}");
    }

    #[test]
    fn a_file_is_read_once_and_goes_with_no_flag() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("password");
        std::fs::write(&file, "secret-1\n").expect("written");
        let flags = PasswordFlags { password_file: Some(file.clone()), ..PasswordFlags::default() };
        for _ in 0..2 {
            assert_eq!(flags.given().expect("there").expect("a password").0, "secret-1");
            std::fs::write(&file, "secret-2\n").expect("written");
        }
        let both = PasswordFlags { password_file: Some(file), ..PasswordFlags::of("of a flag") };
        let refused = both.given().expect_err("two passwords");
        assert!(refused.is::<WrongArguments>(), "{refused}");
        let names = ("--to-password", "STAVE_TO_PASSWORD");
        let refused = other_password(&both.password, &both.password_file, names).expect_err("two passwords");
        assert!(refused.to_string().starts_with("--to-password and --to-password-file both"), "{refused}");
        let read = other_password(&None, &both.password_file, names).expect("there");
        assert_eq!(read.expect("a password").0, "secret-2");
        let missing = PasswordFlags { password_file: Some("/none".into()), ..PasswordFlags::default() };
        let refused = missing.given().expect_err("no file");
        assert!(refused.chain().any(|cause| cause.is::<WrongArguments>()), "{refused:#}");
    }

    #[test]
    fn an_empty_password_is_none_and_the_variable_is_named() {
        let empty = PasswordFlags::of("");
        assert!(empty.given().expect("no file").is_none());
        assert!(empty.needed().to_string().contains("STAVE_PASSWORD or --password is empty"));
        assert!(!PasswordFlags::default().needed().to_string().contains("empty"));
    }

    #[test]
    fn a_file_that_all_may_read_is_told() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("password");
        std::fs::write(&file, "secret-1\n").expect("written");
        for (mode, is_told) in [(0o600, false), (0o640, false), (0o644, true)] {
            std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode)).expect("set");
            assert_eq!(open_to_all(&file, "password").is_some(), is_told, "{mode:o}");
        }
    }
}
