//! What a command that fails ends with and says: text on standard error and, with `--json`, an object on standard output.

use std::ffi::OsString;
use std::io;
use std::process::ExitCode;

use base::encryption::KeyError;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use node::ConfigError;
use serde_json::json;

use super::{FAILED, WRONG_ARGUMENTS, WrongArguments};
use crate::backup::BackupError;
use crate::output::print;

/// Commands that print one line of JSON once they are ready: what starts them takes any line for that.
const SERVERS: [&str; 2] = ["serve", "dev"];

/// Whether the arguments ask for JSON in which a failure is told. They may be wrong otherwise, so they are not parsed.
pub(super) fn is_json_wanted(args: &[OsString]) -> bool {
    let is_server = args.get(1).is_some_and(|command| SERVERS.iter().any(|server| command == server));
    !is_server && args.iter().skip(1).take_while(|arg| *arg != "--").any(|arg| arg == "--json")
}

/// Says why a command failed.
pub(super) fn end(error: &anyhow::Error, in_json: bool) -> ExitCode {
    let (told, code) = (explain(error), code(error));
    eprintln!("stave: {told}");
    if in_json {
        // Nothing is left to be told if it is not read.
        let _ = print(&object(&told, code));
    }
    ExitCode::from(code)
}

/// What the parser says, where it would mislead: a flag that its variable gave is named by the variable, the usage is that
/// of the command and not of what the variables gave, and a mistyped flag is not taken for a value.
pub(super) fn worded(mut error: clap::Error, mut command: clap::Command, args: &[OsString]) -> clap::Error {
    if !error.use_stderr() {
        return error;
    }
    // Names the commands as they are called.
    command.build();
    let words: Vec<&str> = args.iter().skip(1).filter_map(|arg| arg.to_str()).collect();
    for word in &words {
        if let Some(sub) = command.find_subcommand(word).cloned() {
            command = sub;
        }
    }
    if error.get(ContextKind::Usage).is_some() {
        error.insert(ContextKind::Usage, ContextValue::StyledStr(command.render_usage()));
    }
    match error.kind() {
        ErrorKind::UnknownArgument => {
            let is_flag = |value: &ContextValue| value.to_string().starts_with("--");
            if error.get(ContextKind::InvalidArg).is_some_and(is_flag) {
                error.remove(ContextKind::Suggested);
            }
        }
        // A variable that is wrong is named, and not a flag that was not given.
        ErrorKind::ArgumentConflict | ErrorKind::InvalidValue | ErrorKind::ValueValidation => {
            for kind in [ContextKind::InvalidArg, ContextKind::PriorArg] {
                let variable = error.get(kind).and_then(|told| variable_of(told, &command, &words));
                if let Some(variable) = variable {
                    error.insert(kind, ContextValue::String(variable));
                }
            }
        }
        _ => {}
    }
    error
}

/// The variable of a flag that is told like `--name <VALUE>`, if the command line does not have the flag.
fn variable_of(told: &ContextValue, command: &clap::Command, words: &[&str]) -> Option<String> {
    let told = told.to_string();
    let flag = told.split([' ', '=']).next()?;
    let is_given = words.iter().any(|word| word.split('=').next() == Some(flag));
    let arg = command.get_arguments().find(|arg| arg.get_long() == flag.strip_prefix("--"))?;
    arg.get_env().filter(|_| !is_given).map(|name| name.to_string_lossy().into_owned())
}

/// Says what is wrong with the arguments, or prints the help that they ask for.
pub(super) fn refuse(error: &clap::Error, in_json: bool) -> ExitCode {
    let _ = error.print();
    if !error.use_stderr() {
        return ExitCode::SUCCESS;
    }
    if in_json {
        let _ = print(&object(&first_paragraph(&error.to_string()), WRONG_ARGUMENTS));
    }
    ExitCode::from(WRONG_ARGUMENTS)
}

fn object(told: &str, code: u8) -> String {
    format!("{}\n", json!({ "error": told, "exit_code": code }))
}

/// What the parser says without the usage, in one line.
fn first_paragraph(text: &str) -> String {
    let lines = text.lines().map(str::trim).take_while(|line| !line.is_empty());
    let line = lines.collect::<Vec<_>>().join(" ");
    line.strip_prefix("error: ").unwrap_or(&line).to_owned()
}

/// The error and its causes, each said once: many errors quote their cause already.
pub(crate) fn explain(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if !text.contains(cause.trim_end()) {
            text.push_str(if text.is_empty() { "" } else { ": " });
            text.push_str(cause.trim_end());
        }
    }
    text
}

fn code(error: &anyhow::Error) -> u8 {
    if is_wrong_arguments(error) { WRONG_ARGUMENTS } else { FAILED }
}

fn is_wrong_arguments(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        let is_configured = |failure: &server::Failure| failure.is_configuration();
        let is_io_of_key = |error: &io::Error| key_error(error).is_some_and(KeyError::is_configuration);
        cause.is::<WrongArguments>()
            || cause.is::<ConfigError>()
            || cause.downcast_ref().is_some_and(is_configured)
            || cause.is::<server::tls::TlsError>()
            || cause.downcast_ref().is_some_and(KeyError::is_configuration)
            || cause.downcast_ref().is_some_and(is_io_of_key)
            || matches!(cause.downcast_ref(), Some(BackupError::Key(_)))
    })
}

/// The key that an encrypted file lacks: a disk tells it as the content of its error, which is no cause in a chain.
pub(crate) fn key_error(error: &io::Error) -> Option<&KeyError> {
    error.get_ref()?.downcast_ref()
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::super::Cli;
    use super::*;

    #[test]
    fn a_cause_is_said_once() {
        let io = io::Error::other("disk on fire");
        let error = anyhow::Error::new(io).context("cannot write: disk on fire").context("bucket b");
        assert_eq!(explain(&error), "bucket b: cannot write: disk on fire");
    }

    #[test]
    fn a_wrong_configuration_ends_like_wrong_arguments() {
        assert!(is_wrong_arguments(&anyhow::Error::new(ConfigError::Threads(0)).context("stave.toml")));
        assert!(!is_wrong_arguments(&anyhow::anyhow!("disk on fire")));
    }

    #[test]
    fn a_key_that_is_missing_ends_like_wrong_arguments() {
        let missing = io::Error::other(KeyError::NotGiven("data".to_owned()));
        assert!(is_wrong_arguments(&anyhow::Error::new(missing).context("cannot read data/0.couch.1")));
        assert!(is_wrong_arguments(&BackupError::Key("no key was given".to_owned()).into()));
        assert!(!is_wrong_arguments(&io::Error::other("disk on fire").into()));
    }

    #[test]
    fn json_is_asked_for_before_the_end_of_flags() {
        let of = |words: &str| is_json_wanted(&words.split(' ').map(OsString::from).collect::<Vec<_>>());
        assert!(of("stave get k --json") && of("stave --json"));
        assert!(
            !of("stave dev --json") && !of("stave serve --json"),
            "what starts it waits for the ready line"
        );
        assert!(!of("stave set k --json-check v") && !of("stave set k -- --json"));
    }

    #[test]
    fn the_parser_says_what_the_user_did() {
        let args = |line: &str| line.split(' ').map(OsString::from).collect::<Vec<_>>();
        let line = args("stave bucket list --type x");
        let error = Cli::command().try_get_matches_from(&line).expect_err("no such flag");
        let told = worded(error, Cli::command(), &line).to_string();
        assert!(told.contains("'--type' found") && !told.contains("-- --type"), "{told}");
        assert!(told.contains("Usage: stave bucket list [OPTIONS]"), "{told}");
        // Both by their variables.
        let line = args("stave serve");
        let mut error = clap::Error::new(ErrorKind::ArgumentConflict).with_cmd(&Cli::command());
        error.insert(ContextKind::InvalidArg, ContextValue::String("--password <PASSWORD>".to_owned()));
        error.insert(ContextKind::PriorArg, ContextValue::String("--password-file <FILE>".to_owned()));
        let told = worded(error, Cli::command(), &line).to_string();
        assert!(told.contains("'STAVE_PASSWORD' cannot be used with 'STAVE_PASSWORD_FILE'"), "{told}");
        // Flags stay as they are.
        let line = args("stave bench --seconds 5 --operations 7");
        let error = Cli::command().try_get_matches_from(&line).expect_err("one of them");
        let told = worded(error, Cli::command(), &line).to_string();
        assert!(told.contains("'--seconds <SECONDS>' cannot be used with '--operations <N>'"), "{told}");
    }

    #[test]
    fn an_error_is_an_object() {
        let object: serde_json::Value = serde_json::from_str(&object("no \"k\"", 3)).expect("JSON");
        assert_eq!(object, json!({ "error": "no \"k\"", "exit_code": 3 }));
        let error = Cli::command().try_get_matches_from(["stave", "get"]).expect_err("a key is needed");
        let told = first_paragraph(&error.to_string());
        assert_eq!(told, "the following required arguments were not provided: <KEY>");
    }
}
