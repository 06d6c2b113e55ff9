//! Passwords that do not stand in the list of processes: in a file, or typed at the terminal without being shown.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "a file that the user names is no part of a node"
)]

use std::io::{BufRead, IsTerminal, Write};
use std::path::Path;

use anyhow::{Context, bail};
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr};

use crate::client::Secret;

/// The first line of a file; `-` is standard input.
pub fn from_file(file: &Path) -> anyhow::Result<Secret> {
    let mut line = String::new();
    if file == Path::new("-") {
        std::io::stdin().lock().read_line(&mut line).context("standard input")?;
    } else {
        let open = std::fs::File::open(file)
            .with_context(|| format!("the file of the password: {}", file.display()))?;
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
}
