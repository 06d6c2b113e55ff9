//! Where a key of encryption comes from: a file, a command or the environment.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, bail};
use base::encryption::WrappingKeys;
use base::env::{Env, OpenMode};

use crate::commands::serve::cannot_read;

/// More than any list of keys takes.
const MOST_BYTES: usize = 64 << 10;

/// What was given of the three.
pub(crate) struct KeySource<'a> {
    pub(crate) file: Option<&'a Path>,
    /// A command of the shell that prints the key.
    pub(crate) command: Option<&'a str>,
    /// The flag that names the command, for errors.
    pub(crate) command_flag: &'static str,
    /// The environment variable with the key itself.
    pub(crate) variable: &'static str,
}

impl KeySource<'_> {
    /// The key that was given, from the first of file, command and environment that there is.
    pub(crate) fn read(&self, env: &Env) -> anyhow::Result<Option<WrappingKeys>> {
        let (text, source) = match (self.file, self.command) {
            (Some(path), _) => (read_text(env, path)?, path.display().to_string()),
            (None, Some(command)) => (self.output_of(command)?, format!("what `{command}` prints")),
            (None, None) => match std::env::var(self.variable) {
                Ok(text) => (text, self.variable.to_owned()),
                Err(_) => return Ok(None),
            },
        };
        Ok(Some(WrappingKeys::parse(&text, &source)?))
    }

    fn output_of(&self, command: &str) -> anyhow::Result<String> {
        let flag = self.command_flag;
        let failed = || format!("cannot run `{command}`, which {flag} names");
        let output = Command::new("sh").arg("-c").arg(command).output().with_context(failed)?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            let said = if said.trim().is_empty() { "it said nothing" } else { said.trim() };
            bail!("`{command}`, which {flag} names, ended with {}: {said}", output.status);
        }
        String::from_utf8(output.stdout).with_context(failed)
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
