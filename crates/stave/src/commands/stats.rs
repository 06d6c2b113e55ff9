//! `stave stats`: a server's figures as a table or as JSON.

mod table;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::Write as _;
use std::time::Duration;

use anyhow::bail;
use base::env::Env;
use clap::Args;
use node::stats::GROUPS;
use protocol::Status;

use crate::cli::{Outcome, ServerFlags, WrongArguments, explain};
use crate::client::dcp::members;
use crate::client::{Client, ClientError, Dialect, Target};
use crate::units::{before_page, parse_duration};

/// Print a server's figures.
#[derive(Clone, Debug, Args)]
#[command(after_help = format!("Examples:
  stave stats
  stave stats all
  stave stats memory
  stave stats vbucket-details 7
  stave stats --json | jq .curr_items
  stave stats --all-nodes --json | jq 'map_values(.curr_items)'
  stave stats memory --watch --interval 10s

With --watch the figures are drawn again and again until the command is interrupted, with those behind them that have
changed since the last time; with --json each time is an object on a line of its own.

Figures are those of the node that is named; with --all-nodes they come under the address of each node.

Groups:
{}", groups()))]
pub struct StatsFlags {
    /// Which figures, and of what; the general ones if not given, or with `all`
    #[arg(value_name = "GROUP")]
    group: Vec<String>,
    /// Which dialect of the binary protocol the server speaks
    #[arg(long, value_enum, default_value_t = Dialect::Couchbase)]
    protocol: Dialect,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Ask every node of the cluster, not only the one that is named
    #[arg(long)]
    all_nodes: bool,
    /// Print the figures again and again, and how they change
    #[arg(long)]
    watch: bool,
    /// How often with --watch: 500ms, 2s, 1m
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = parse_duration, requires = "watch")]
    interval: Duration,
    #[command(flatten)]
    server: ServerFlags,
}

/// Runs the command.
#[expect(clippy::disallowed_methods, reason = "the client's end is not part of a node")]
pub fn run(env: &Env, flags: &StatsFlags) -> anyhow::Result<Outcome> {
    let target = flags.server.target(flags.protocol)?;
    let (mut before, failed) = look(env, flags, &target)?;
    let is_redrawn = flags.watch && !flags.json;
    let clear = if is_redrawn { before_page() } else { "" };
    print(&format!("{clear}{}", shown(flags, &before)))?;
    if !flags.watch {
        return silent(failed).map_or(Ok(Outcome::Done), Err);
    }
    // Until the person ends it.
    loop {
        std::thread::sleep(flags.interval);
        let (now, failed) = look(env, flags, &target)?;
        let changed = if is_redrawn { changes(&before, &now) } else { String::new() };
        print(&format!("{clear}{}{changed}", shown(flags, &now)))?;
        if let Some(error) = silent(failed) {
            eprintln!("stave: {error}");
        }
        before = now;
    }
}

fn print(text: &str) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}

type Figures = Vec<(String, String)>;

/// The figures of each node that is asked, by its address, and what failed at other nodes.
///
/// # Errors
///
/// If no node answers.
fn look(env: &Env, flags: &StatsFlags, target: &Target) -> anyhow::Result<Looked> {
    let of = |node: &Target| (node.addr.clone(), figures(env, flags, node));
    if !asks_all(flags) {
        return Ok((vec![(target.addr.clone(), figures(env, flags, target)?)], Vec::new()));
    }
    apart(members(env, target)?.iter().map(of))
}

/// The figures of nodes that answer, and what is said of the others.
type Looked = (Vec<(String, Figures)>, Vec<String>);

fn apart(answers: impl Iterator<Item = (String, anyhow::Result<Figures>)>) -> anyhow::Result<Looked> {
    let (mut told, mut failed, mut first) = (Vec::new(), Vec::new(), None);
    for (addr, answer) in answers {
        match answer {
            Ok(figures) => told.push((addr, figures)),
            Err(error) => {
                failed.push(format!("{addr}: {}", explain(&error)));
                first.get_or_insert(error);
            }
        }
    }
    match first {
        // What is wrong for all of them is wrong with what was asked.
        Some(error) if told.is_empty() => Err(error),
        _ => Ok((told, failed)),
    }
}

/// The error of nodes that did not answer, beside others that did.
fn silent(failed: Vec<String>) -> Option<anyhow::Error> {
    (!failed.is_empty()).then(|| anyhow::anyhow!("without {}", failed.join("; ")))
}

fn asks_all(flags: &StatsFlags) -> bool {
    flags.all_nodes && flags.protocol == Dialect::Couchbase
}

fn shown(flags: &StatsFlags, nodes: &[(String, Figures)]) -> String {
    match nodes {
        [(_, figures)] if !asks_all(flags) => {
            if flags.json {
                json(figures)
            } else {
                table_of(&flags.group, figures)
            }
        }
        nodes => of_nodes(nodes, flags.json, &flags.group),
    }
}

/// A line for each whole number that is another one than before.
fn changes(before: &[(String, Figures)], now: &[(String, Figures)]) -> String {
    let mut out = String::new();
    for (addr, figures) in now {
        let Some((_, old)) = before.iter().find(|(of, _)| of == addr) else { continue };
        let old: BTreeMap<&str, &str> = old.iter().map(|(name, value)| (&**name, &**value)).collect();
        for (name, value) in figures {
            let was = old.get(&**name).and_then(|value| value.parse::<i128>().ok());
            let by = value.parse::<i128>().ok().zip(was).map_or(0, |(is, was)| is - was);
            if by != 0 {
                // Writing to a string does not fail.
                let node = if now.len() > 1 { format!(" of {addr}") } else { String::new() };
                let _ = writeln!(out, "  {by:>+14}  {name}{node}");
            }
        }
    }
    if out.is_empty() { out } else { format!("\nchanged since the last time:\n{out}") }
}

fn figures(env: &Env, flags: &StatsFlags, node: &Target) -> anyhow::Result<Figures> {
    let mut client = Client::open(env, node)?;
    let asked = asked(&flags.group);
    match client.stats(&asked) {
        Err(ClientError::Refused { .. }) if missing_arguments(&asked).is_some() => {
            let usage = missing_arguments(&asked).unwrap_or_default();
            let what = format!("the group `{asked}` takes arguments: stave stats {usage}");
            bail!(WrongArguments(what))
        }
        Err(ClientError::Refused { status_code, .. }) if is_unknown(status_code, flags) => {
            let group = &flags.group[0];
            let what = format!("there is no group `{group}`; `stave stats --help` names all");
            bail!(WrongArguments(what))
        }
        figures => Ok(figures?),
    }
}

/// The group as the server knows it: `all` is the one without a name, as `cbstats` has it.
fn asked(group: &[String]) -> String {
    if group == ["all"] { String::new() } else { group.join(" ") }
}

/// A table, or that there is nothing to put in one.
fn table_of(group: &[String], figures: &[(String, String)]) -> String {
    match asked(group).as_str() {
        _ if !figures.is_empty() => table::render(figures),
        "" => "all: none now\n".to_owned(),
        group if group == "reset" || group.starts_with("reset ") => format!("{group}: done\n"),
        group => format!("{group}: none now\n"),
    }
}

/// Figures by node.
fn of_nodes(nodes: &[(String, Figures)], as_json: bool, group: &[String]) -> String {
    if as_json {
        let member = |(addr, figures): &(String, Figures)| {
            format!("{}:{}", serde_json::Value::from(addr.as_str()), json(figures).trim_end())
        };
        return format!("{{{}}}\n", nodes.iter().map(member).collect::<Vec<_>>().join(","));
    }
    let section = |(addr, figures): &(String, Figures)| format!("{addr}\n{}", table_of(group, figures));
    nodes.iter().map(section).collect::<Vec<_>>().join("\n")
}

/// Whether a refusal means the group itself, not what was asked about.
fn is_unknown(status_code: u16, flags: &StatsFlags) -> bool {
    let known = |name: &String| GROUPS.iter().any(|group| group.name == name);
    status_code == Status::KeyEnoent.code() && !flags.group.first().is_none_or(known)
}

/// How to ask for a group that needs more arguments than it was given; `None` if it has enough, or there is no such group.
fn missing_arguments(asked: &str) -> Option<String> {
    let (name, args) = asked.split_once(' ').unwrap_or((asked, ""));
    let count = args.split_whitespace().count();
    let of_name = || GROUPS.iter().filter(move |group| group.name == name);
    let group = of_name().next().filter(|_| of_name().all(|group| count < group.args.least))?;
    Some(format!("{name} {}", group.args.usage))
}

/// A line for each group: how to ask for it and what it tells.
fn groups() -> String {
    let usage = |group: &node::stats::Group| format!("{} {}", group.name, group.args.usage);
    let width = GROUPS.iter().map(|group| usage(group).len()).max().unwrap_or(0);
    let named = GROUPS.iter().filter(|group| !group.name.is_empty());
    let lines = named.map(|group| format!("  {:<width$}  {}", usage(group), group.doc));
    lines.collect::<Vec<_>>().join("\n")
}

/// One object, in the server's order; numbers as numbers.
fn json(figures: &[(String, String)]) -> String {
    let text = |text: &str| serde_json::Value::from(text).to_string();
    let members = figures.iter().map(|(name, value)| {
        let number = value.parse::<u64>().map(|n| n.to_string());
        format!("{}:{}", text(name), number.unwrap_or_else(|_| text(value)))
    });
    format!("{{{}}}\n", members.collect::<Vec<_>>().join(","))
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;

    fn figures() -> Vec<(String, String)> {
        let pairs = [("pid", "17"), ("uptime", "1200345"), ("version", "0.1.0"), ("say \"hi\"", "")];
        pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec()
    }

    #[test]
    fn a_node_that_does_not_answer_is_told_beside_those_that_do() {
        let one = |addr: &str, answer: anyhow::Result<Figures>| (addr.to_owned(), answer);
        let failure = || Err(anyhow::anyhow!("gave up"));
        let answers = [one("h:1", Ok(Vec::new())), one("h:2", failure())];
        let (told, failed) = apart(answers.into_iter()).expect("one has answered");
        assert_eq!(told, [("h:1".to_owned(), Figures::new())]);
        let error = silent(failed).expect("one has not").to_string();
        assert_eq!(error, "without h:2: gave up");
        assert!(silent(Vec::new()).is_none());
        let error = apart([one("h:1", failure())].into_iter()).err().map(|error| error.to_string());
        assert_eq!(error.as_deref(), Some("gave up"));
    }

    #[test]
    fn prints_what_each_node_says() {
        let nodes = [("h:1".to_owned(), figures()), ("h:2".to_owned(), figures())];
        let json: serde_json::Value = serde_json::from_str(&of_nodes(&nodes, true, &[])).expect("JSON");
        assert_eq!((&json["h:1"]["pid"], &json["h:2"]["pid"]), (&17.into(), &17.into()));
        let text = of_nodes(&nodes, false, &[]);
        assert!(text.starts_with("h:1\n") && text.contains("\n\nh:2\n"), "{text}");
    }

    #[test]
    fn a_group_that_has_nothing_says_so() {
        let group = |name: &str| vec![name.to_owned()];
        assert_eq!(table_of(&group("slow-operations"), &[]), "slow-operations: none now\n");
        assert_eq!(table_of(&group("reset"), &[]), "reset: done\n");
        assert!(table_of(&group("all"), &figures()).contains("1200345"));
        let nodes = [("h:1".to_owned(), figures()), ("h:2".to_owned(), Figures::new())];
        let text = of_nodes(&nodes, false, &group("range-scans"));
        assert!(text.ends_with("\n\nh:2\nrange-scans: none now\n"), "{text}");
        assert!(of_nodes(&nodes, true, &group("range-scans")).contains("\"h:2\":{}"));
    }

    #[test]
    fn what_changes_is_told_by_how_much() {
        let look = |addr: &str, items: &str| {
            let figures = [("curr_items", items), ("version", "0.1.0"), ("uptime", "5"), ("new", "1")];
            (addr.to_owned(), figures.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec())
        };
        let (mut before, now) = (look("h:1", "1200"), look("h:1", "1000"));
        before.1.pop();
        let told = changes(std::slice::from_ref(&before), std::slice::from_ref(&now));
        assert_eq!(told, "\nchanged since the last time:\n            -200  curr_items\n");
        assert_eq!(changes(std::slice::from_ref(&now), std::slice::from_ref(&now)), "");
        let told = changes(&[before, look("h:2", "1")], &[now, look("h:2", "3"), look("h:3", "9")]);
        assert!(told.ends_with("  curr_items of h:1\n              +2  curr_items of h:2\n"), "{told}");
    }

    #[test]
    fn the_general_figures_have_the_name_that_cbstats_gives_them() {
        let asked = |group: &[&str]| asked(&group.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>());
        assert_eq!((asked(&[]), asked(&["all"])), (String::new(), String::new()));
        assert_eq!(
            (asked(&["vbucket-details", "7"]), asked(&["all", "7"])),
            ("vbucket-details 7".into(), "all 7".into())
        );
    }

    #[test]
    fn a_group_without_its_arguments_is_told_how_to_be_asked_for() {
        assert_eq!(missing_arguments("vkey").as_deref(), Some("vkey KEY VB [SCOPE.COLLECTION|0xID]"));
        assert!(missing_arguments("key k").is_some());
        for enough in ["key k 1", "memory", "vbucket-details 7", "", "nonsense"] {
            assert_eq!(missing_arguments(enough), None, "{enough}");
        }
    }

    #[test]
    fn prints_json() {
        let json = json(&figures());
        assert!(serde_json::from_str::<serde_json::Value>(&json).is_ok());
        expect![[r#"
            {"pid":17,"uptime":1200345,"version":"0.1.0","say \"hi\"":""}
        "#]]
        .assert_eq(&json);
    }
}
