//! `stave group`: groups of users, which share their roles.

use anyhow::bail;
use base::env::Env;
use clap::builder::NonEmptyStringValueParser;
use clap::{Args, Subcommand};
use serde_json::Value;

use super::http_flags::HttpFlags;
use super::rbac::{self, cell, done, roles, titled};
use crate::cli::{Outcome, WrongArguments};
use crate::output::print;

/// Groups of users, which share their roles: look at them, make, change and delete them.
#[derive(Clone, Debug, Args)]
#[command(after_help = "Examples:
  stave group add readers --roles 'data_reader[*]'
  stave user edit ann --groups readers
  stave group list
  stave group delete readers")]
pub struct GroupFlags {
    #[command(subcommand)]
    what: GroupCommand,
}

#[derive(Clone, Debug, Subcommand)]
enum GroupCommand {
    /// Print all groups with their roles
    #[command(after_help = "Examples:
  stave group list
  stave group list --json | jq '.[].id'")]
    List {
        #[command(flatten)]
        to: HttpFlags,
    },
    /// Print one group
    #[command(after_help = "Examples:
  stave group show readers")]
    Show {
        /// The group
        #[arg(value_parser = NonEmptyStringValueParser::new())]
        name: String,
        #[command(flatten)]
        to: HttpFlags,
    },
    /// Make a group
    #[command(after_help = "Examples:
  stave group add readers --roles 'data_reader[*]' --description 'people of the help desk'")]
    Add {
        /// The group
        #[arg(value_parser = NonEmptyStringValueParser::new())]
        name: String,
        #[command(flatten)]
        change: GroupChange,
        #[command(flatten)]
        to: HttpFlags,
    },
    /// Change roles or description of a group; what is not named stays
    #[command(after_help = "Examples:
  stave group edit readers --roles 'data_reader[default]'")]
    Edit {
        /// The group
        #[arg(value_parser = NonEmptyStringValueParser::new())]
        name: String,
        #[command(flatten)]
        change: GroupChange,
        #[command(flatten)]
        to: HttpFlags,
    },
    /// Delete groups; their members lose the roles
    #[command(after_help = "Examples:
  stave group delete readers")]
    Delete {
        /// The groups
        #[arg(required = true, value_parser = NonEmptyStringValueParser::new())]
        names: Vec<String>,
        #[command(flatten)]
        to: HttpFlags,
    },
}

/// What a group is to have.
#[derive(Clone, Debug, Args)]
struct GroupChange {
    /// Roles, with commas between them: admin, data_reader[BUCKET], data_reader[BUCKET:SCOPE:COLLECTION]
    #[arg(long, value_name = "ROLE,...")]
    roles: Option<String>,
    /// What the group is for
    #[arg(long, value_name = "TEXT")]
    description: Option<String>,
}

/// Runs the command.
pub fn run(_: &Env, flags: &GroupFlags) -> anyhow::Result<Outcome> {
    print(&said(flags)?)?;
    Ok(Outcome::Done)
}

pub(super) fn said(flags: &GroupFlags) -> anyhow::Result<String> {
    match &flags.what {
        GroupCommand::List { to } => {
            let groups = to.target()?.request("GET", "/settings/rbac/groups", None)?;
            Ok(if to.json { format!("{groups}\n") } else { list(&groups) })
        }
        GroupCommand::Show { name, to } => {
            let group = present(to, name)?;
            Ok(if to.json { format!("{group}\n") } else { list(&Value::Array(vec![group])) })
        }
        GroupCommand::Add { name, change, to } => {
            if rbac::find(to, &rbac::groups(name))?.is_some() {
                bail!("there is a group {name} already; `stave group edit` changes it");
            }
            put(to, name, change, None)?;
            let idle = rbac::idle_roles(change.roles.as_deref());
            Ok(done(to, &format!("group {name} was added{idle}")))
        }
        GroupCommand::Edit { name, change, to } => {
            if change.roles.is_none() && change.description.is_none() {
                bail!(WrongArguments("what is to change? give --roles or --description".to_owned()));
            }
            put(to, name, change, Some(&present(to, name)?))?;
            let idle = rbac::idle_roles(change.roles.as_deref());
            Ok(done(to, &format!("group {name} was changed{idle}")))
        }
        GroupCommand::Delete { names, to } => rbac::delete(to, ("group", "groups"), names, rbac::groups),
    }
}

fn present(to: &HttpFlags, name: &str) -> anyhow::Result<Value> {
    rbac::show(to, &rbac::groups(name), &format!("group {name}"))
}

/// Puts what is asked for into the place of what a group has: an address takes all of it.
fn put(to: &HttpFlags, name: &str, change: &GroupChange, present: Option<&Value>) -> anyhow::Result<()> {
    let text = |field: &str| present.and_then(|group| group[field].as_str()).unwrap_or_default().to_owned();
    let had = present.map(|group| roles(group, false).join(",")).unwrap_or_default();
    let own_roles = change.roles.clone().unwrap_or(had);
    let description = change.description.clone().unwrap_or_else(|| text("description"));
    let reference = text("ldap_group_ref");
    let fields =
        [("roles", own_roles.as_str()), ("description", &description), ("ldap_group_ref", &reference)];
    to.target()?.send("PUT", &rbac::groups(name), &fields).map(drop)
}

fn list(groups: &Value) -> String {
    let text = |group: &Value, field: &str| {
        group[field].as_str().filter(|text| !text.is_empty()).unwrap_or("-").to_owned()
    };
    let line =
        |group: &Value| vec![text(group, "id"), cell(&roles(group, false)), text(group, "description")];
    let lines = groups.as_array().into_iter().flatten().map(line).collect();
    titled(&["GROUP", "ROLES", "DESCRIPTION"], lines)
}
