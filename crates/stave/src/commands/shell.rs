//! `stave completions` and `stave man`: what shells and `man` know of the command line, made from the command line itself.

use std::io::Write;
use std::path::PathBuf;

use anyhow::Context;
use clap::Args;
use clap_complete::Shell;

use crate::cli::Outcome;

/// Flags of `stave completions`.
#[derive(Clone, Debug, Args)]
#[command(after_help = "Examples:
  stave completions bash > /etc/bash_completion.d/stave
  stave completions zsh > ~/.zfunc/_stave
  stave completions fish > ~/.config/fish/completions/stave.fish")]
pub struct CompletionsFlags {
    /// The shell
    #[arg(value_name = "SHELL")]
    shell: Shell,
}

/// Flags of `stave man`.
#[derive(Clone, Debug, Args)]
#[command(after_help = "Example:
  stave man /usr/local/share/man/man1")]
pub struct ManFlags {
    /// The folder that gets stave.1, stave-serve.1 and so on; it is made if it is not there
    #[arg(value_name = "DIR")]
    dir: PathBuf,
}

/// Prints what has a shell complete words of `stave`.
pub(crate) fn completions(mut cli: clap::Command, flags: &CompletionsFlags) -> anyhow::Result<Outcome> {
    // Collected first: the generator does not tell of a reader that went away.
    let mut script = Vec::new();
    clap_complete::generate(flags.shell, &mut cli, "stave", &mut script);
    std::io::stdout().write_all(&script)?;
    Ok(Outcome::Done)
}

/// Writes a manual page for each command.
#[allow(clippy::disallowed_methods, reason = "the node's disk makes folders that others may not read")]
pub(crate) fn man(cli: clap::Command, flags: &ManFlags) -> anyhow::Result<Outcome> {
    std::fs::create_dir_all(&flags.dir)
        .and_then(|()| clap_mangen::generate_to(cli, &flags.dir))
        .with_context(|| format!("cannot write manual pages to {}", flags.dir.display()))?;
    Ok(Outcome::Done)
}

#[cfg(test)]
#[allow(clippy::disallowed_methods, reason = "a test reads what was written")]
mod tests {
    use clap::{Command, ValueEnum};

    use super::*;

    fn cli() -> Command {
        Command::new("stave").subcommand(Command::new("serve").about("Run a node"))
    }

    #[test]
    fn each_shell_is_told_the_commands() {
        for shell in Shell::value_variants() {
            let mut script = Vec::new();
            clap_complete::generate(*shell, &mut cli(), "stave", &mut script);
            let script = String::from_utf8(script).expect("text");
            assert!(script.contains("stave") && script.contains("serve"), "{shell}: {script}");
        }
    }

    #[test]
    fn each_command_has_a_page() {
        let folder = tempfile::tempdir().expect("a folder");
        man(cli(), &ManFlags { dir: folder.path().into() }).expect("written");
        for (page, text) in [("stave.1", "serve"), ("stave-serve.1", "Run a node")] {
            let found = std::fs::read_to_string(folder.path().join(page)).expect(page);
            assert!(found.contains(text), "{page}: {found}");
        }
        let new = folder.path().join("share/man1");
        man(cli(), &ManFlags { dir: new.clone() }).expect("written");
        assert!(new.join("stave.1").exists());
        let wrong = ManFlags { dir: new.join("stave.1/none") };
        assert!(man(cli(), &wrong).expect_err("no folder").to_string().contains("none"));
    }
}
