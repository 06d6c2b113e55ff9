//! What every command of the binary must have: generated from the command line itself, so that a new one cannot be without.

use super::*;
use crate::client::Client;
use crate::test_server::TestServer;
use base::env::Env;

/// Commands without `--json`, and why.
const WITHOUT_JSON: [(&str, &str); 4] = [
    ("serve", "its one line is read by scripts as it is"),
    ("completions", "it prints what a shell reads"),
    ("man", "it writes files"),
    ("decrypt", "it prints a file as it is"),
];
/// Commands whose examples are run against a node; the others need files, other nodes, or do not end by themselves.
const RUN: [&str; 7] = ["get", "set", "delete", "keys", "stats", "set-param", "timings"];

/// Every command that does something, with its whole name.
pub(super) fn commands() -> Vec<(String, clap::Command)> {
    fn walk(name: &str, command: &clap::Command, all: &mut Vec<(String, clap::Command)>) {
        // A command may do something without any of its subcommands.
        if !command.has_subcommands() || command.is_args_conflicts_with_subcommands_set() {
            all.push((name.to_owned(), command.clone()));
        }
        for sub in command.get_subcommands().filter(|sub| sub.get_name() != "help") {
            walk(format!("{name} {}", sub.get_name()).trim(), sub, all);
        }
    }
    let mut all = Vec::new();
    walk("", &Cli::command(), &mut all);
    all
}

/// The words of an example as a shell makes them, up to where another command, a file or a remark begins.
fn words(line: &str) -> Vec<String> {
    let (mut words, mut word, mut quote) = (Vec::new(), None::<String>, None);
    let mut rest = line.chars().peekable();
    while let Some(char) = rest.next() {
        match (quote, char) {
            (Some(open), _) if char == open => quote = None,
            (None, '\'' | '"') => {
                quote = Some(char);
                word.get_or_insert_default();
            }
            (None, '|' | '<' | '>' | '&' | '#' | '(') if word.is_none() => break,
            (None, ' ') => {
                words.extend(word.take());
                // Two spaces stand before a remark.
                if rest.peek() == Some(&' ') {
                    break;
                }
            }
            _ => word.get_or_insert_default().push(char),
        }
    }
    words.extend(word);
    words
}

/// The examples of a help text: its lines that begin with `stave`, without what is set before it.
fn examples(command: &clap::Command) -> Vec<Vec<String>> {
    let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    // A line that ends with a backslash goes on in the next one.
    let help = help.split("\\\n").map(str::trim_start).collect::<Vec<_>>().concat();
    let help = help.replace("$(pidof memcached)", "1");
    let lines = help.lines().map(str::trim).filter_map(|line| {
        let line = line.strip_prefix("STAVE_PASSWORD=... ").unwrap_or(line);
        line.starts_with("stave ").then(|| line.to_owned())
    });
    lines.map(|line| words(&line)).collect()
}

#[test]
fn every_command_has_examples_that_parse() {
    let mut wrong = Vec::new();
    for (name, command) in commands() {
        let examples = examples(&command);
        let is_own =
            |example: &Vec<String>| format!("{} ", example[1..].join(" ")).starts_with(&format!("{name} "));
        if !examples.iter().any(is_own) {
            wrong.push(format!("{name}: no example of its own"));
        }
        for example in examples {
            if let Err(error) = Cli::try_parse_from(&example) {
                wrong.push(format!("{name}: {example:?}: {error}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_command_has_json_and_those_that_wait_have_a_timeout() {
    let mut wrong = Vec::new();
    for (name, command) in commands() {
        let has = |flag: &str| command.get_arguments().any(|arg| arg.get_long() == Some(flag));
        if has("json") == WITHOUT_JSON.iter().any(|(without, _)| *without == name) {
            wrong.push(format!("{name}: --json"));
        }
        let talks = has("addr") || has("to");
        if talks && !has("timeout") {
            wrong.push(format!("{name}: --timeout"));
        }
        for arg in command.get_arguments() {
            if arg.get_help().is_none_or(|help| help.to_string().is_empty()) && !arg.is_hide_set() {
                wrong.push(format!("{name}: {} says nothing", arg.get_id()));
            }
        }
        if command.get_about().is_none() {
            wrong.push(format!("{name}: it says nothing of itself"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn help_is_all_that_a_command_says_of_itself() {
    let all = commands();
    for name in ["serve", "bench", "compact", "migrate", "dump", "import", "restore", "replicate"] {
        let (_, command) = all.iter().find(|(found, _)| found == name).expect("there is one");
        assert!(command.get_long_about().is_some(), "stave {name} --help says one line");
    }
}

#[test]
fn examples_work_against_a_node() {
    let (env, mut server) = (Env::real(), TestServer::start());
    let flags = server.flags();
    let mut client = Client::open(&env, &server.target()).expect("the node lets us in");
    // What the examples read and the buckets and collections that they name.
    for key in ["user::42", "order::7"] {
        client.set(key.as_bytes(), b"{\"name\":\"Ada\"}", 0).expect("stored");
    }
    let mut count = 0;
    for (name, command) in commands().into_iter().filter(|(name, _)| RUN.contains(&&**name)) {
        for mut example in examples(&command) {
            // These name what a lone test node has not: another host, another bucket, a collection, standard input.
            let needs = [
                "10.0.0.2",
                "orders",
                "shop.orders",
                "-",
                "exp_pager_stime",
                "7",
                // A file of an earlier example; times that only another node has; ten seconds.
                "before.json",
                "sync_write_commit_persist_to_majority",
                "10s",
            ];
            if example.iter().any(|word| needs.contains(&&**word)) {
                continue;
            }
            for (flag, value) in [("--addr", flags.addr.as_str()), ("--password", "password")] {
                example.extend([flag.to_owned(), value.to_owned()]);
            }
            let cli = Cli::try_parse_from(&example).unwrap_or_else(|error| panic!("{example:?}: {error}"));
            match dispatch(&env, cli.command) {
                Ok(Outcome::Done | Outcome::NotFound) => count += 1,
                other => panic!("{name}: {example:?}: {other:?}"),
            }
        }
    }
    assert!(count >= 12, "{count} examples were run");
    drop(client);
    server.stop();
}

/// What a person reads: README and manual.
const MANUAL: &str = concat!(
    include_str!("../../../../README.md"),
    include_str!("../../../../docs/developing.md"),
    include_str!("../../../../docs/operating-a-node.md"),
    include_str!("../../../../docs/operating-a-cluster.md"),
    include_str!("../../../../docs/streaming.md"),
    include_str!("../../../../docs/measurements.md"),
    include_str!("../../../../docs/reference/configuration.md"),
    include_str!("../../../../docs/reference/commands.md"),
    include_str!("../../../../docs/reference/http.md"),
);
/// Flags of other programs that the manual names.
const FLAGS_OF_OTHERS: [&str; 10] = [
    "--features",
    "--release",
    "--example",
    "--quick",
    "--data-dir",
    "--data-binary",
    "--client-cert-auth",
    "--idle",
    "--rounds",
    "--only",
];

/// Every `--flag` of a text.
fn flags_in(text: &str) -> impl Iterator<Item = &str> {
    text.match_indices("--").filter_map(|(at, _)| {
        let is_begin = !text[..at].ends_with(|char: char| char == '-' || char.is_ascii_alphanumeric());
        let rest = &text[at..];
        let is_in = |char: char| char == '-' || char.is_ascii_lowercase() || char.is_ascii_digit();
        let len = rest.find(|char| !is_in(char)).unwrap_or(rest.len());
        let flag = rest[..len].trim_end_matches('-');
        (is_begin && flag.len() > 2).then_some(flag)
    })
}

#[test]
fn the_manual_names_every_command_and_no_flag_that_there_is_not() {
    let mut wrong = Vec::new();
    let mut known: Vec<String> = FLAGS_OF_OTHERS.map(str::to_owned).to_vec();
    for (name, command) in commands() {
        if !MANUAL.contains(&format!("stave {name}")) {
            wrong.push(format!("the manual does not name `stave {name}`"));
        }
        let longs: Vec<&str> = command.get_arguments().filter_map(clap::Arg::get_long).collect();
        known.extend(longs.iter().map(|flag| format!("--{flag}")));
        if matches!(&*name, "serve" | "dev") {
            for flag in longs {
                if !MANUAL.contains(&format!("--{flag}")) && !matches!(flag, "help" | "version") {
                    wrong.push(format!("the manual does not name --{flag} of `stave {name}`"));
                }
            }
        }
    }
    known.push("--help".to_owned());
    wrong.extend(
        flags_in(MANUAL)
            .filter(|flag| !known.iter().any(|there| there == flag))
            .map(|flag| format!("the manual names {flag}, which no command has")),
    );
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_manual_names_groups_of_stats_that_there_are() {
    let begin = MANUAL.find("| `stave stats` | tells |").expect("the table of groups");
    let rows = MANUAL[begin..].lines().skip(2).take_while(|line| line.starts_with('|'));
    let cells = rows.filter_map(|row| row.split('|').nth(1));
    let names: Vec<&str> = cells.flat_map(|cell| cell.split('`').skip(1).step_by(2)).collect();
    assert!(names.len() > 8, "{names:?}");
    for name in names {
        assert!(node::stats::GROUPS.iter().any(|group| group.name == name), "there is no group `{name}`");
    }
}

/// Addresses are in the manual's words, long ones maybe with `...` for their beginning.
#[test]
fn the_manual_names_every_address() {
    let names = [
        ("{bucket}", "B"),
        ("{scope}", "S"),
        ("{collection}", "C"),
        ("{uid}", "UID"),
        ("{name}", "NAME"),
        ("{names}", "NAMES"),
        ("{since}", "SINCE"),
        ("{file}", "FILE"),
        ("{span}", "SPAN"),
        ("{act}", "ACT"),
        ("{service}", "SERVICE"),
        ("{field}", "FIELD"),
    ];
    for (method, path) in server::http::addresses() {
        let path = names.iter().fold(path.to_owned(), |path, (field, name)| path.replace(field, name));
        let is_named = |(at, _): (usize, &str)| MANUAL.contains(&format!("`...{}`", &path[at..]));
        let in_full = [path.clone(), path.replace("/B", "/BUCKET")];
        let is_there = in_full.iter().any(|path| MANUAL.contains(&format!("`{path}`")));
        assert!(
            is_there || path.match_indices('/').any(is_named),
            "the manual does not name {method} {path}"
        );
    }
}
