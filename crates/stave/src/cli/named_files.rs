//! Files and folders that a command is to read: one that is missing is a wrong argument, for all commands alike.
#![allow(clippy::disallowed_methods, reason = "a file that the user names is no part of a node")]

use std::io::ErrorKind;
use std::path::Path;

use clap::ArgMatches;

use super::WrongArguments;

/// Commands, and the argument that names what they read.
const READ: [(&str, &str); 15] = [
    ("check", "path"),
    ("dump", "path"),
    ("decrypt", "file"),
    ("compact", "file"),
    ("import", "dir"),
    ("import lines", "file"),
    ("import csv", "file"),
    ("export", "backup"),
    ("backup list", "dir"),
    ("backup show", "dir"),
    ("backup verify", "dir"),
    ("backup prune", "dir"),
    ("backup drill", "from"),
    ("restore", "from"),
    ("timings", "since"),
];
/// The same of `stave collect`, which may be given several logs.
const LOGS: (&str, &str) = ("collect", "log");

/// Looks whether all that a command is to read is there.
///
/// # Errors
///
/// If something is missing.
pub(super) fn are_there(matches: &ArgMatches) -> Result<(), WrongArguments> {
    let (mut name, mut of) = (String::new(), matches);
    while let Some((sub, matches)) = of.subcommand() {
        name = format!("{name} {sub}").trim_start().to_owned();
        of = matches;
    }
    for (_, id) in READ.iter().chain([&LOGS]).filter(|(command, _)| *command == name) {
        for path in of.try_get_raw(id).ok().flatten().into_iter().flatten() {
            is_there(Path::new(path))?;
        }
    }
    Ok(())
}

fn is_there(path: &Path) -> Result<(), WrongArguments> {
    let is_elsewhere = path.as_os_str() == "-" || path.to_str().is_some_and(|path| path.starts_with("s3:"));
    if is_elsewhere {
        return Ok(());
    }
    match std::fs::metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            Err(WrongArguments(format!("cannot read {}: {error}", path.display())))
        }
        // Another failure is told by the command, which reads it.
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::super::Cli;
    use super::super::every_command::commands;
    use super::*;

    #[test]
    fn the_table_names_arguments_that_there_are() {
        let all = commands();
        for (name, id) in READ.iter().chain([&LOGS]) {
            let (_, command) =
                all.iter().find(|(known, _)| known == name).unwrap_or_else(|| panic!("{name}"));
            assert!(command.get_arguments().any(|arg| arg.get_id() == *id), "{name}: {id}");
        }
    }

    fn look(words: &str) -> Result<(), WrongArguments> {
        are_there(
            &Cli::command().try_get_matches_from(words.split_ascii_whitespace()).expect("sound arguments"),
        )
    }

    #[test]
    fn what_is_missing_is_a_wrong_argument() {
        for words in [
            "stave check /no/such",
            "stave import /no/such",
            "stave import lines /no/such",
            "stave backup list /no/such",
            "stave restore --from /no/such",
            "stave timings --since /no/such",
            "stave collect --log /dev/null --log /no/such",
        ] {
            let refused = look(words).expect_err(words).to_string();
            assert!(refused.starts_with("cannot read /no/such: "), "{words}: {refused}");
        }
        for words in [
            "stave check /dev/null",
            "stave import lines -",
            "stave backup list s3://backups/prod",
            "stave timings",
            "stave get k",
        ] {
            look(words).expect(words);
        }
    }
}
