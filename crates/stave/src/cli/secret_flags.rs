//! A secret among the arguments is read by every user of the machine: the process begins again without it, and with its
//! variable, which only its own user and root read.

use std::ffi::OsString;
use std::process::ExitStatus;

use clap::parser::ValueSource;
use clap::{ArgMatches, Command};

/// The arguments and the environment with which a process begins again.
#[derive(Debug, PartialEq, Eq)]
struct Rerun {
    args: Vec<OsString>,
    /// Variables with their values.
    set: Vec<(OsString, OsString)>,
    /// Variables that cannot be used beside those.
    unset: Vec<OsString>,
}

/// Replaces this process if a secret is among its arguments. Comes back if none is, or if the program cannot be begun
/// again: it then goes on with what it was given.
pub(super) fn leave_the_process_list(command: &Command, args: &[OsString], matches: &ArgMatches) {
    let Some(again) = without_secrets(command, args, matches) else { return };
    let Ok(program) = std::env::current_exe() else { return };
    let mut process = std::process::Command::new(program);
    process.args(&again.args).envs(again.set);
    again.unset.iter().for_each(|name| {
        process.env_remove(name);
    });
    let _ = replace(process, args);
}

#[cfg(unix)]
fn replace(mut process: std::process::Command, args: &[OsString]) -> std::io::Result<ExitStatus> {
    use std::os::unix::process::CommandExt as _;

    if let Some(name) = args.first() {
        process.arg0(name);
    }
    Err(process.exec())
}

/// A process cannot be replaced here; another one would have another number.
#[cfg(not(unix))]
fn replace(_: std::process::Command, _: &[OsString]) -> std::io::Result<ExitStatus> {
    Err(std::io::ErrorKind::Unsupported.into())
}

/// What is left of the arguments without secrets; nothing if they have none.
fn without_secrets(command: &Command, args: &[OsString], matches: &ArgMatches) -> Option<Rerun> {
    let (mut command, mut matches) = (command, matches);
    while let Some((name, inner)) = matches.subcommand() {
        (command, matches) = (command.find_subcommand(name)?, inner);
    }
    let mut again = Rerun { args: args.get(1..)?.to_vec(), set: Vec::new(), unset: Vec::new() };
    for arg in command.get_arguments().filter(|arg| arg.is_hide_env_values_set()) {
        if matches.value_source(arg.get_id().as_str()) != Some(ValueSource::CommandLine) {
            continue;
        }
        let (Some(long), Some(name)) = (arg.get_long(), arg.get_env()) else { continue };
        // Both are refused, which is said with the flags.
        let file = format!("{}_file", arg.get_id());
        let has_flag = matches.try_contains_id(&file).is_ok();
        if has_flag && matches.value_source(&file) == Some(ValueSource::CommandLine) {
            return None;
        }
        // An empty variable is one that is not there.
        let value = take(&mut again.args, long).filter(|value| !value.is_empty())?;
        again.set.push((name.to_owned(), value));
        again.unset.push(format!("{}_FILE", name.to_string_lossy()).into());
    }
    (!again.set.is_empty()).then_some(again)
}

/// Takes a flag that has a value out of the arguments.
fn take(args: &mut Vec<OsString>, long: &str) -> Option<OsString> {
    let flag = format!("--{long}");
    let with_value = format!("{flag}=");
    let end = args.iter().position(|arg| arg == "--").unwrap_or(args.len());
    let is_it =
        |arg: &OsString| *arg == *flag || arg.to_str().is_some_and(|arg| arg.starts_with(&with_value));
    let at = args.iter().take(end).position(is_it)?;
    let found = args.remove(at);
    match found.to_str().and_then(|arg| arg.strip_prefix(&with_value)) {
        Some(value) => Some(value.into()),
        None => (at < args.len()).then(|| args.remove(at)),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::super::Cli;
    use super::*;

    fn again(words: &str) -> Option<(String, Vec<String>, Vec<String>)> {
        let args: Vec<OsString> = words.split(' ').map(OsString::from).collect();
        let command = Cli::command();
        let matches = command.clone().try_get_matches_from(&args).expect("sound arguments");
        let again = without_secrets(&command, &args, &matches)?;
        let text = |one: &OsString| one.to_str().expect("it is text").to_owned();
        let set = again.set.iter().map(|(name, value)| format!("{}={}", text(name), text(value))).collect();
        Some((
            again.args.iter().map(text).collect::<Vec<_>>().join(" "),
            set,
            again.unset.iter().map(text).collect(),
        ))
    }

    #[test]
    fn a_secret_goes_from_the_arguments_into_its_variable() {
        let (args, set, unset) = again("stave serve --password s1 --kv 127.0.0.1:1").expect("there is one");
        assert_eq!((args.as_str(), set), ("serve --kv 127.0.0.1:1", vec!["STAVE_PASSWORD=s1".to_owned()]));
        assert_eq!(unset, ["STAVE_PASSWORD_FILE"]);
        let (args, set, _) = again("stave get k --password=a=b").expect("there is one");
        assert_eq!((args.as_str(), set), ("get k", vec!["STAVE_PASSWORD=a=b".to_owned()]));
    }

    /// A variable that is set and empty is left out of the command line, and the secret goes into it all the same.
    #[test]
    fn a_secret_goes_into_a_variable_that_is_empty() {
        let args: Vec<OsString> = "stave serve --password s1".split(' ').map(OsString::from).collect();
        let reset = |sub: Command| {
            sub.mut_arg("password", |arg| arg.env(clap::builder::Resettable::<clap::builder::OsStr>::Reset))
        };
        let left_out = Cli::command().mut_subcommand("serve", reset);
        let matches = left_out.clone().try_get_matches_from(&args).expect("sound arguments");
        assert_eq!(without_secrets(&left_out, &args, &matches), None);
        let again = without_secrets(&Cli::command(), &args, &matches).expect("there is one");
        assert_eq!((again.args.len(), again.set), (1, vec![("STAVE_PASSWORD".into(), "s1".into())]));
    }

    #[test]
    fn what_has_no_secret_goes_on_as_it_is() {
        assert_eq!(again("stave serve --kv 127.0.0.1:1"), None);
        assert_eq!(again("stave dev"), None, "a default is no argument");
        assert_eq!(again("stave get k --password a --password-file f"), None, "the two are refused");
        assert_eq!(again("stave set k -- --password"), None, "a value that looks like the flag");
    }
}
