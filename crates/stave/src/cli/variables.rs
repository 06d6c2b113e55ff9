//! Variables of the environment that look like Stave's and are not: a misspelt one is named at the start of a node.

use std::collections::BTreeSet;

use clap::Command;
use node::Settings;

const PREFIX: &str = "STAVE_";
/// Variables that are not a flag's: of the log, of secrets, of tests, and those of the helpers for tests.
const WITHOUT_FLAG: [&str; 11] = [
    "STAVE_BACKUP_KEY",
    "STAVE_BIN",
    "STAVE_CONNECTION_STRING",
    "STAVE_CORE_DUMPS",
    "STAVE_ENCRYPTION_KEY",
    "STAVE_ETCD_PASSWORD",
    "STAVE_LOG",
    "STAVE_LOG_FORMAT",
    "STAVE_NEW_PASSWORD",
    "STAVE_PLANTED",
    "STAVE_WAIT",
];
/// Variables that are named; the others are counted.
const MOST_NAMED: usize = 20;

/// What is said of variables with these names that no command reads, a line each.
pub(super) fn unknown(command: &Command, names: impl Iterator<Item = String>) -> Vec<String> {
    let given: BTreeSet<String> = names.filter(|name| name.starts_with(PREFIX)).collect();
    if given.is_empty() {
        return Vec::new();
    }
    let mut known: BTreeSet<String> = WITHOUT_FLAG.map(str::to_owned).into();
    add_known(command, &mut known);
    let unknown: Vec<&String> =
        given.iter().filter(|name| !known.contains(*name) && !is_of_kubernetes(name)).collect();
    let mut lines: Vec<String> = unknown
        .iter()
        .take(MOST_NAMED)
        .map(|name| format!("{name} is ignored: {}", advice(name, &known)))
        .collect();
    if let Some(more) = unknown.len().checked_sub(MOST_NAMED).filter(|more| *more > 0) {
        lines.push(format!("{more} more variables that begin with {PREFIX} are ignored"));
    }
    lines
}

fn add_known(command: &Command, known: &mut BTreeSet<String>) {
    let variables = command.get_arguments().filter_map(clap::Arg::get_env);
    known.extend(variables.filter_map(|name| name.to_str()).map(str::to_owned));
    command.get_subcommands().for_each(|sub| add_known(sub, known));
}

/// Whether Kubernetes, or a container's `--link`, sets it for a service that is called stave or stave-SOMETHING.
fn is_of_kubernetes(name: &str) -> bool {
    let is_port = |rest: &str| {
        let mut parts = rest.split('_');
        let is_number = parts.next().is_some_and(|port| port.parse::<u16>().is_ok());
        is_number && matches!(parts.next(), Some("TCP" | "UDP" | "SCTP"))
    };
    name.ends_with("_PORT")
        || name.ends_with("_SERVICE_HOST")
        || name.contains("_SERVICE_PORT")
        || name.split("_PORT_").skip(1).any(is_port)
}

/// What to do about a variable.
fn advice(name: &str, known: &BTreeSet<String>) -> String {
    let key = name.trim_start_matches(PREFIX).to_ascii_lowercase().replace('_', "-");
    if is_key_of_file(&key) {
        return format!("{key} is set in the configuration file alone");
    }
    let nearest = known.iter().min_by_key(|known| distance(name.as_bytes(), known.as_bytes()));
    match nearest {
        Some(nearest) => format!("there is no such variable; the nearest one is {nearest}"),
        None => "there is no such variable".to_owned(),
    }
}

/// Whether the configuration file knows a key.
fn is_key_of_file(key: &str) -> bool {
    let is_plain = key.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-') && !key.is_empty();
    is_plain
        && match Settings::parse(&format!("{key} = 0")) {
            Ok(_) => true,
            // A value of another kind is the complaint about a key that there is.
            Err(error) => !error.to_string().contains("unknown field"),
        }
}

/// How many letters have to be changed, added or left out to make one of the other (Levenshtein).
pub(crate) fn distance(one: &[u8], other: &[u8]) -> usize {
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (at, byte) in one.iter().enumerate() {
        let mut diagonal = at;
        let mut left = at + 1;
        for (cell, found) in row.iter_mut().skip(1).zip(other) {
            let above = *cell;
            left = (diagonal + usize::from(byte != found)).min(above + 1).min(left + 1);
            (diagonal, *cell) = (above, left);
        }
        if let Some(first) = row.first_mut() {
            *first = at + 1;
        }
    }
    row.last().copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::super::Cli;
    use super::*;

    fn told(names: &[&str]) -> Vec<String> {
        unknown(&Cli::command(), names.iter().map(|name| (*name).to_owned()))
    }

    #[test]
    fn a_misspelt_variable_is_named_with_the_nearest_one() {
        for (name, words) in [
            (
                "STAVE_PASWORD",
                "STAVE_PASWORD is ignored: there is no such variable; the nearest one is STAVE_PASSWORD",
            ),
            ("STAVE_BUCKETZ", "the nearest one is STAVE_BUCKET"),
            ("STAVE_TLS_CYPHER_SUITES", "the nearest one is STAVE_TLS_CIPHER_SUITES"),
            ("STAVE_MAX_CONNECTIONS", "max-connections is set in the configuration file alone"),
            ("STAVE_AUDIT", "audit is set in the configuration file alone"),
            ("STAVE_", "there is no such variable"),
        ] {
            let said = told(&[name]);
            assert!(said.len() == 1 && said[0].contains(words), "{name}: {said:?}");
        }
    }

    #[test]
    fn known_variables_and_those_of_kubernetes_are_passed_over() {
        let known = [
            "STAVE_PASSWORD",
            "STAVE_LOG",
            "STAVE_ENCRYPTION_KEY",
            "STAVE_BACKUP_KEY",
            "STAVE_NEW_PASSWORD",
            "STAVE_TLS_CIPHER_SUITES",
            "STAVE_SASL_MECHANISMS",
            "STAVE_TLS_SASL_MECHANISMS",
            "STAVE_TLS_CLIENT_USER",
            "STAVE_SCRAM_ITERATIONS",
            "STAVE_ARGON2ID_MEMORY",
            "STAVE_ARGON2ID_TIME",
            "STAVE_HTTP_ADDR",
        ];
        let of_kubernetes = [
            "STAVE_PORT",
            "STAVE_SERVICE_HOST",
            "STAVE_SERVICE_PORT",
            "STAVE_SERVICE_PORT_KV",
            "STAVE_PORT_11210_TCP",
            "STAVE_PORT_11210_TCP_PROTO",
            "STAVE_PORT_8091_TCP_ADDR",
            "STAVE_NODES_SERVICE_HOST",
            "STAVE_NODES_PORT_8091_TCP_PORT",
        ];
        assert_eq!(told(&[&known[..], &of_kubernetes].concat()), [""; 0]);
        assert_eq!(told(&["HOME", "PATH", "MY_STAVE_X"]), [""; 0]);
        assert_eq!(told(&["STAVE_PORT_X_TCP"]).len(), 1);
    }

    #[test]
    fn many_variables_are_counted() {
        let names: Vec<String> = (0..30).map(|n| format!("STAVE_X{n}")).collect();
        let said = unknown(&Cli::command(), names.into_iter());
        assert_eq!(said.len(), MOST_NAMED + 1);
        assert!(said[MOST_NAMED].starts_with("10 more variables"), "{said:?}");
    }

    #[test]
    fn a_distance_counts_changes() {
        for (one, other, expected) in
            [("", "", 0), ("a", "", 1), ("", "ab", 2), ("kitten", "sitting", 3), ("ab", "ab", 0)]
        {
            assert_eq!(distance(one.as_bytes(), other.as_bytes()), expected, "{one} {other}");
        }
    }
}
