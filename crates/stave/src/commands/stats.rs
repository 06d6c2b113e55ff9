//! `stave stats`: a server's figures as a table or as JSON.

mod table;

use std::io::Write;

use anyhow::bail;
use base::env::Env;
use clap::Args;
use node::stats::GROUPS;
use protocol::Status;

use crate::cli::{Outcome, ServerFlags, WrongArguments};
use crate::client::dcp::members;
use crate::client::{Client, ClientError, Dialect, Target};

/// Print a server's figures.
#[derive(Clone, Debug, Args)]
#[command(after_help = format!("Examples:
  stave stats
  stave stats memory
  stave stats vbucket-details 7
  stave stats --json | jq .curr_items
  stave stats --all-nodes --json | jq 'map_values(.curr_items)'

Figures are those of the node that is named; with --all-nodes they come under the address of each node.

Groups:
{}", groups()))]
pub struct StatsFlags {
    /// Which figures, and of what; the general ones if not given
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
    #[command(flatten)]
    server: ServerFlags,
}

/// Runs the command.
pub fn run(env: &Env, flags: &StatsFlags) -> anyhow::Result<Outcome> {
    let target = flags.server.target(flags.protocol)?;
    let text = if flags.all_nodes && flags.protocol == Dialect::Couchbase {
        let members = members(env, &target)?;
        let ask = |node: &Target| anyhow::Ok((node.addr.clone(), figures(env, flags, node)?));
        of_nodes(&members.iter().map(ask).collect::<Result<Vec<_>, _>>()?, flags.json)
    } else {
        let figures = figures(env, flags, &target)?;
        if flags.json { json(&figures) } else { table::render(&figures) }
    };
    std::io::stdout().lock().write_all(text.as_bytes())?;
    Ok(Outcome::Done)
}

type Figures = Vec<(String, String)>;

fn figures(env: &Env, flags: &StatsFlags, node: &Target) -> anyhow::Result<Figures> {
    let mut client = Client::open(env, node)?;
    let asked = flags.group.join(" ");
    match client.stats(&asked) {
        Err(ClientError::Refused { .. }) if missing_arguments(&asked).is_some() => {
            let usage = missing_arguments(&asked).unwrap_or_default();
            let what = format!("the group `{asked}` takes arguments: stave stats {usage}");
            bail!(WrongArguments(what))
        }
        Err(ClientError::Refused { status_code, .. }) if is_unknown(status_code, flags) => {
            bail!("there is no group `{}`; `stave stats --help` names all", flags.group[0])
        }
        figures => Ok(figures?),
    }
}

/// Figures by node.
fn of_nodes(nodes: &[(String, Figures)], as_json: bool) -> String {
    if as_json {
        let member = |(addr, figures): &(String, Figures)| {
            format!("{}:{}", serde_json::Value::from(addr.as_str()), json(figures).trim_end())
        };
        return format!("{{{}}}\n", nodes.iter().map(member).collect::<Vec<_>>().join(","));
    }
    let section = |(addr, figures): &(String, Figures)| format!("{addr}\n{}", table::render(figures));
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
    fn prints_what_each_node_says() {
        let nodes = [("h:1".to_owned(), figures()), ("h:2".to_owned(), figures())];
        let json: serde_json::Value = serde_json::from_str(&of_nodes(&nodes, true)).expect("JSON");
        assert_eq!((&json["h:1"]["pid"], &json["h:2"]["pid"]), (&17.into(), &17.into()));
        let text = of_nodes(&nodes, false);
        assert!(text.starts_with("h:1\n") && text.contains("\n\nh:2\n"), "{text}");
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
