//! The pages of `docs/reference/` that are made from tables in the code: what stands behind the mark in each page is
//! what the tables say. With `UPDATE_REFERENCE=1` the pages are written instead of compared.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

use super::every_command::commands;
use crate::test_server::TestServer;

/// Where the generated part of a page begins.
const MARK: &str = "<!-- generated from ";

fn page(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference").join(name)
}

/// Compares the part behind the mark with what it is to be, or writes it.
#[allow(clippy::disallowed_methods, reason = "a document of the project, not a node's file")]
fn compare(name: &str, generated: &str) {
    let text = fs::read_to_string(page(name)).expect("the page is there");
    let mark = text.find(MARK).and_then(|at| text[at..].find("-->").map(|len| at + len + 3)).expect("a mark");
    let (head, tail) = text.split_at(mark);
    let wanted = format!("\n\n{}\n", generated.trim());
    if std::env::var_os("UPDATE_REFERENCE").is_some() {
        fs::write(page(name), format!("{head}{wanted}")).expect("it can be written");
    } else {
        let is_same = tail == wanted;
        assert!(
            is_same,
            "docs/reference/{name} is not what the code says: UPDATE_REFERENCE=1 cargo test -p stave reference"
        );
    }
}

/// A text in a cell of a table.
fn cell(text: &str) -> String {
    text.replace('|', "\\|").replace('\n', " ").replace('<', "\\<")
}

/// The values that a flag takes, if it takes certain ones, and what each means.
fn one_of(arg: &clap::Arg) -> String {
    // Before the command is built, flags without a value have the values of a `bool`.
    let values = if arg.get_action().takes_values() { arg.get_possible_values() } else { Vec::new() };
    let one = |value: &clap::builder::PossibleValue| {
        let help = value.get_help().map(|help| format!(" ({help})")).unwrap_or_default();
        format!("`{}`{help}", value.get_name())
    };
    let values: Vec<String> = values.iter().filter(|value| !value.is_hide_set()).map(one).collect();
    if values.is_empty() { String::new() } else { format!("; one of {}", values.join(", ")) }
}

fn flags(command: &clap::Command) -> String {
    let mut rows = String::new();
    for arg in command.get_arguments().filter(|arg| !arg.is_hide_set() && arg.get_id() != "help") {
        let names = arg.get_value_names().unwrap_or_default();
        let takes =
            arg.get_action().takes_values().then(|| names.join(" ")).filter(|takes| !takes.is_empty());
        let shown = match (arg.get_long(), takes) {
            (Some(long), Some(takes)) => format!("`--{long} {takes}`"),
            (Some(long), None) => format!("`--{long}`"),
            (None, takes) => format!("`{}`", takes.unwrap_or_else(|| arg.get_id().to_string())),
        };
        let defaults: Vec<_> = arg.get_default_values().iter().map(|value| value.to_string_lossy()).collect();
        let default = if arg.get_action().takes_values() { defaults.join(" ") } else { String::new() };
        let help = arg.get_long_help().or(arg.get_help()).map(ToString::to_string).unwrap_or_default();
        let env = arg.get_env().map(|env| format!("; also `{}`", env.to_string_lossy())).unwrap_or_default();
        let help = cell(&format!("{help}{}", one_of(arg)));
        let _ = writeln!(rows, "| {} | {} | {help}{env} |", cell(&shown), cell(&default));
    }
    if rows.is_empty() { rows } else { format!("\n| flag | default | meaning |\n|---|---|---|\n{rows}") }
}

#[test]
fn the_page_of_commands_is_what_the_command_line_says() {
    let mut out = String::new();
    for (name, command) in commands() {
        let about = command.get_about().map(ToString::to_string).unwrap_or_default();
        let _ = writeln!(out, "## stave {name}\n\n{about}.\n{}", flags(&command));
    }
    compare("commands.md", &out);
}

#[test]
fn the_page_of_settings_is_what_the_table_says() {
    compare("settings.md", &node::settings_reference::markdown());
}

#[test]
fn the_page_of_the_protocol_is_what_the_table_says() {
    compare("protocol.md", &node::command_reference::markdown());
}

#[test]
fn the_page_of_stats_is_what_the_table_says() {
    let mut out = String::from("| group | arguments | tells |\n|---|---|---|\n");
    for group in node::stats::GROUPS {
        let name = if group.name.is_empty() { "(none)".to_owned() } else { format!("`{}`", group.name) };
        let _ = writeln!(out, "| {name} | {} | {} |", cell(group.args.usage), cell(group.doc));
    }
    compare("stats.md", &out);
}

#[test]
fn the_page_of_addresses_is_what_the_table_says() {
    let mut paths: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for (method, path) in server::http::addresses() {
        paths.entry(path).or_default().push(method);
    }
    let mut out = String::from("| address | methods |\n|---|---|\n");
    for (path, methods) in paths {
        let _ = writeln!(out, "| `{path}` | {} |", methods.join(", "));
    }
    compare("http.md", &out);
}

#[test]
fn the_page_of_metrics_is_what_a_node_answers() {
    let mut server = TestServer::start();
    let target = server.http_target();
    let (status, mut text) = target.exchange("GET", "/metrics", String::new()).expect("an answer");
    server.stop();
    // The node of the test has no certificate and follows no other one.
    node::stats::metrics::families_left_out(&mut text);
    assert_eq!(status, 200);
    let mut kinds = BTreeMap::new();
    let mut helps = BTreeMap::new();
    for line in text.lines() {
        if let Some((name, help)) = line.strip_prefix("# HELP ").and_then(|rest| rest.split_once(' ')) {
            helps.insert(name, help);
        } else if let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' '))
        {
            kinds.insert(name, kind);
        }
    }
    assert!(helps.len() > 20, "{text}");
    let mut out = String::from("| name | type | meaning |\n|---|---|---|\n");
    for (name, help) in helps {
        let _ = writeln!(out, "| `{name}` | {} | {} |", kinds.get(name).unwrap_or(&""), cell(help));
    }
    compare("metrics.md", &out);
}
