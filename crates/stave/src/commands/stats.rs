//! `stave stats`: a server's figures as a table or as JSON.

mod table;

use std::io::Write;

use anyhow::bail;
use base::env::Env;
use clap::Args;
use protocol::Status;
use server::stats::GROUPS;

use crate::cli::{Outcome, ServerFlags};
use crate::client::{Client, ClientError, Dialect};

/// Print a server's figures.
#[derive(Clone, Debug, Args)]
#[command(after_help = format!("Examples:
  stave stats
  stave stats memory
  stave stats vbucket-details 7
  stave stats --json | jq .curr_items

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
    #[command(flatten)]
    server: ServerFlags,
}

/// Runs the command.
pub fn run(env: &Env, flags: &StatsFlags) -> anyhow::Result<Outcome> {
    let mut client = Client::open(env, &flags.server.target(flags.protocol)?)?;
    let group = flags.group.join(" ");
    let figures = match client.stats(&group) {
        Err(ClientError::Refused { status_code, .. }) if is_unknown(status_code, flags) => {
            bail!("there is no group `{}`; `stave stats --help` names all", flags.group[0])
        }
        figures => figures?,
    };
    let mut out = std::io::stdout().lock();
    let text = if flags.json { json(&figures) } else { table::render(&figures) };
    out.write_all(text.as_bytes())?;
    Ok(Outcome::Done)
}

/// Whether a refusal means the group itself, not what was asked about.
fn is_unknown(status_code: u16, flags: &StatsFlags) -> bool {
    let known = |name: &String| GROUPS.iter().any(|group| group.name == name);
    status_code == Status::KeyEnoent.code() && !flags.group.first().is_none_or(known)
}

/// A line for each group: how to ask for it and what it tells.
fn groups() -> String {
    let usage = |group: &server::stats::Group| format!("{} {}", group.name, group.args.usage);
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
    fn prints_json() {
        let json = json(&figures());
        assert!(serde_json::from_str::<serde_json::Value>(&json).is_ok());
        expect![[r#"
            {"pid":17,"uptime":1200345,"version":"0.1.0","say \"hi\"":""}
        "#]]
        .assert_eq(&json);
    }
}
