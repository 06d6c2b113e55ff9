//! Flags win over the environment: a variable is left out if its flag cannot be used with one of the command line. An empty
//! variable is one that is not set, as files of containers write it.

use std::collections::BTreeSet;
use std::ffi::OsString;

use clap::builder::{OsStr, Resettable};
use clap::{Arg, Command, Id};

/// A node that leaves its cluster out would serve other documents: with `--bucket` this variable is refused.
const NEVER_LEFT_OUT: &str = "STAVE_JOIN";

/// The command line for these arguments.
pub(super) fn without_overruled(command: Command, args: &[OsString]) -> Command {
    let words = args.iter().filter_map(|arg| arg.to_str()).take_while(|word| *word != "--");
    let flags = words.filter_map(|word| word.strip_prefix("--"));
    let given = flags.map(|flag| flag.split('=').next().unwrap_or(flag)).collect();
    let set = std::env::vars_os();
    let empty = set.filter(|(_, value)| value.is_empty()).map(|(name, _)| name).collect();
    leave_out(command, &given, &empty)
}

fn leave_out(mut command: Command, given: &BTreeSet<&str>, empty: &BTreeSet<OsString>) -> Command {
    let is_empty = |arg: &&Arg| arg.get_env().is_some_and(|name| empty.contains(name));
    let mut ids = overruled(&command, given);
    ids.extend(command.get_arguments().filter(is_empty).map(|arg| arg.get_id().clone()));
    for id in ids {
        command = command.mut_arg(id, |arg| arg.env(Resettable::<OsStr>::Reset));
    }
    command.mut_subcommands(|sub| leave_out(sub, given, empty))
}

/// The arguments whose variables are left out.
fn overruled(command: &Command, given: &BTreeSet<&str>) -> Vec<Id> {
    let is_given = |arg: &Arg| arg.get_long().is_some_and(|long| given.contains(long));
    let mut ids = Vec::new();
    for one in command.get_arguments() {
        // The rule is written beside one of the two.
        for other in command.get_arg_conflicts_with(one) {
            for (flag, variable) in [(one, other), (other, one)] {
                let has_variable = variable.get_env().is_some_and(|name| name != NEVER_LEFT_OUT);
                if has_variable && is_given(flag) && !is_given(variable) {
                    ids.push(variable.get_id().clone());
                }
            }
        }
    }
    ids
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::cli::Cli;

    /// The variables of `serve` that are left out.
    fn left_out(words: &str) -> Vec<&'static str> {
        let args: Vec<OsString> = words.split_ascii_whitespace().map(OsString::from).collect();
        let command = without_overruled(Cli::command(), &args);
        let serve = command.find_subcommand("serve").expect("there is one");
        let has = |command: &Command, name: &str| {
            let mut variables = command.get_arguments().filter_map(Arg::get_env);
            variables.any(|variable| variable == name)
        };
        let known = [
            "STAVE_PASSWORD",
            "STAVE_PASSWORD_FILE",
            "STAVE_ENCRYPTION_KEY_FILE",
            "STAVE_ENCRYPTION_KEY_COMMAND",
            "STAVE_BUCKETS",
            "STAVE_JOIN",
        ];
        let all = Cli::command();
        let all = all.find_subcommand("serve").expect("there is one");
        assert!(known.iter().all(|name| has(all, name)), "a variable has another name");
        known.into_iter().filter(|name| !has(serve, name)).collect()
    }

    #[test]
    fn a_flag_wins_over_the_variable_of_a_flag_that_it_excludes() {
        assert_eq!(left_out("stave serve"), [""; 0]);
        assert_eq!(left_out("stave serve --password-file f"), ["STAVE_PASSWORD"]);
        assert_eq!(left_out("stave serve --password=secret"), ["STAVE_PASSWORD_FILE"]);
        assert_eq!(left_out("stave serve --encryption-key-file f"), ["STAVE_ENCRYPTION_KEY_COMMAND"]);
        assert_eq!(left_out("stave serve --encryption-key-command c"), ["STAVE_ENCRYPTION_KEY_FILE"]);
        assert_eq!(left_out("stave serve --join etcd://h:1/c"), ["STAVE_BUCKETS"]);
        // Two flags are refused, whatever the environment says.
        assert_eq!(left_out("stave serve --password-file f --password secret"), [""; 0]);
        // What comes behind `--` is no flag.
        assert_eq!(left_out("stave set k -- --password-file"), [""; 0]);
    }

    #[test]
    fn an_empty_variable_is_not_set() {
        let empty = BTreeSet::from([OsString::from("STAVE_DATA"), OsString::from("STAVE_ADDR")]);
        let command = leave_out(Cli::command(), &BTreeSet::new(), &empty);
        let variables = |name: &str| {
            let command = command.find_subcommand(name).expect("there is one");
            command.get_arguments().filter_map(Arg::get_env).map(|name| name.to_owned()).collect::<Vec<_>>()
        };
        assert!(!variables("serve").contains(&"STAVE_DATA".into()));
        assert!(!variables("get").contains(&"STAVE_ADDR".into()));
        assert!(variables("serve").contains(&"STAVE_KV".into()));
    }

    #[test]
    fn a_cluster_is_never_left_out() {
        assert_eq!(left_out("stave serve --bucket b"), [""; 0]);
    }
}
