//! `stave user`: users that are made while nodes run, with their roles and passwords.

use std::path::PathBuf;

use anyhow::bail;
use base::env::Env;
use clap::builder::NonEmptyStringValueParser;
use clap::{Args, Subcommand};
use serde_json::Value;

use super::http_flags::HttpFlags;
use super::password;
use super::rbac::{self, cell, done, roles, texts, titled};
use crate::cli::{Outcome, WrongArguments};
use crate::client::Secret;
use crate::output::print;

/// Users that are made while nodes run: look at them, make, change and delete them.
#[derive(Clone, Debug, Args)]
#[command(after_help = "Examples:
  stave user list
  stave user add ann --roles 'data_reader[default],data_writer[default:app]'
  stave user edit ann --groups readers
  stave user passwd ann
  stave user delete ann

Users of the configuration file are not among them. New passwords are asked for at the terminal, or come from
STAVE_NEW_PASSWORD or --new-password-file.")]
pub struct UserFlags {
    #[command(subcommand)]
    what: UserCommand,
}

#[derive(Clone, Debug, Subcommand)]
enum UserCommand {
    /// Print all users with their groups and roles
    #[command(after_help = "Examples:
  stave user list
  stave user list --json | jq '.[].id'")]
    List {
        #[command(flatten)]
        to: HttpFlags,
    },
    /// Print one user
    #[command(after_help = "Examples:
  stave user show ann")]
    Show {
        /// The user
        #[arg(value_parser = NonEmptyStringValueParser::new())]
        name: String,
        #[command(flatten)]
        to: HttpFlags,
    },
    /// Make a user
    #[command(after_help = "Examples:
  stave user add ann --roles 'data_reader[default],data_writer[default:app]'
  stave user add bob --groups readers --title 'Bob B' --new-password-file bob.txt")]
    Add {
        /// The user
        #[arg(value_parser = NonEmptyStringValueParser::new())]
        name: String,
        #[command(flatten)]
        change: UserChange,
        #[command(flatten)]
        new: NewPasswordFlags,
        #[command(flatten)]
        to: HttpFlags,
    },
    /// Change roles, groups or title of a user; what is not named stays
    #[command(after_help = "Examples:
  stave user edit ann --roles 'data_reader[*]'
  stave user edit ann --groups ''               takes the user out of all groups")]
    Edit {
        /// The user
        #[arg(value_parser = NonEmptyStringValueParser::new())]
        name: String,
        #[command(flatten)]
        change: UserChange,
        #[command(flatten)]
        to: HttpFlags,
    },
    /// Give a user another password; without a name, the one that the command logs in as
    #[command(after_help = "Examples:
  stave user passwd ann
  stave user passwd --username ann")]
    Passwd {
        /// The user
        #[arg(value_parser = NonEmptyStringValueParser::new())]
        name: Option<String>,
        #[command(flatten)]
        new: NewPasswordFlags,
        #[command(flatten)]
        to: HttpFlags,
    },
    /// Delete users
    #[command(after_help = "Examples:
  stave user delete ann")]
    Delete {
        /// The users
        #[arg(required = true, value_parser = NonEmptyStringValueParser::new())]
        names: Vec<String>,
        #[command(flatten)]
        to: HttpFlags,
    },
    /// Print the roles that there are, and what each is for
    #[command(after_help = "Examples:
  stave user roles")]
    Roles {
        #[command(flatten)]
        to: HttpFlags,
    },
}

/// What a user is to have.
#[derive(Clone, Debug, Args)]
struct UserChange {
    /// Roles, with commas between them: admin, data_reader[BUCKET], data_reader[BUCKET:SCOPE:COLLECTION]
    #[arg(long, value_name = "ROLE,...")]
    roles: Option<String>,
    /// Groups, with commas between them
    #[arg(long, value_name = "GROUP,...")]
    groups: Option<String>,
    /// How people call the user
    #[arg(long, value_name = "TEXT")]
    title: Option<String>,
}

/// Where a new password comes from, if not from the terminal.
#[derive(Clone, Debug, Args)]
struct NewPasswordFlags {
    /// A file whose first line is the new password; - is standard input
    #[arg(long, value_name = "FILE")]
    new_password_file: Option<PathBuf>,
}

impl NewPasswordFlags {
    fn password(&self, of: &str) -> anyhow::Result<Secret> {
        if let Some(file) = &self.new_password_file {
            return password::from_file(file);
        }
        if let Ok(given) = std::env::var("STAVE_NEW_PASSWORD") {
            return Ok(Secret(given));
        }
        match password::ask_new(of)? {
            Some(password) => Ok(password),
            None => bail!(WrongArguments(
                "a new password is needed: set STAVE_NEW_PASSWORD or give --new-password-file".to_owned()
            )),
        }
    }
}

/// Runs the command.
pub fn run(_: &Env, flags: &UserFlags) -> anyhow::Result<Outcome> {
    print(&said(flags)?)?;
    Ok(Outcome::Done)
}

fn said(flags: &UserFlags) -> anyhow::Result<String> {
    match &flags.what {
        UserCommand::List { to } => {
            let users = to.target()?.request("GET", "/settings/rbac/users", None)?;
            Ok(if to.json { format!("{users}\n") } else { list(&users) })
        }
        UserCommand::Show { name, to } => {
            let user = present(to, name)?;
            Ok(if to.json { format!("{user}\n") } else { describe(&user) })
        }
        UserCommand::Add { name, change, new, to } => {
            if rbac::find(to, &rbac::users(name))?.is_some() {
                bail!("there is a user {name} already; `stave user edit` and `stave user passwd` change one");
            }
            put(to, name, change, None, Some(&new.password(name)?))?;
            let idle = rbac::idle_roles(change.roles.as_deref());
            Ok(done(to, &format!("user {name} was added{idle}")))
        }
        UserCommand::Edit { name, change, to } => {
            if change.roles.is_none() && change.groups.is_none() && change.title.is_none() {
                bail!(WrongArguments("what is to change? give --roles, --groups or --title".to_owned()));
            }
            put(to, name, change, Some(&present(to, name)?), None)?;
            let idle = rbac::idle_roles(change.roles.as_deref());
            Ok(done(to, &format!("user {name} was changed{idle}")))
        }
        UserCommand::Passwd { name: Some(name), new, to } => {
            let (change, user) = (UserChange { roles: None, groups: None, title: None }, present(to, name)?);
            put(to, name, &change, Some(&user), Some(&new.password(name)?))?;
            Ok(done(to, &format!("user {name} has another password")))
        }
        UserCommand::Passwd { name: None, new, to } => {
            let (target, name) = (to.target()?, &to.username);
            let password = new.password(name)?;
            target.form("/controller/changePassword", &[("password", &password.0)])?;
            Ok(done(to, &format!("user {name} has another password")))
        }
        UserCommand::Delete { names, to } => rbac::delete(to, ("user", "users"), names, rbac::users),
        UserCommand::Roles { to } => {
            let all = to.target()?.request("GET", "/settings/rbac/roles", None)?;
            Ok(if to.json { format!("{all}\n") } else { list_roles(&all) })
        }
    }
}

fn present(to: &HttpFlags, name: &str) -> anyhow::Result<Value> {
    rbac::show(
        to,
        &rbac::users(name),
        &format!("user {name} (those of the configuration file are not meant)"),
    )
}

/// Puts what is asked for into the place of what a user has: an address takes all of it.
fn put(
    to: &HttpFlags,
    name: &str,
    change: &UserChange,
    present: Option<&Value>,
    password: Option<&Secret>,
) -> anyhow::Result<()> {
    let had = |texts: fn(&Value) -> String| present.map(texts).unwrap_or_default();
    let given = |asked: &Option<String>, had: String| asked.clone().unwrap_or(had);
    let own_roles = given(&change.roles, had(|user| roles(user, true).join(",")));
    let groups = given(&change.groups, had(|user| texts(user, "groups").join(",")));
    let title = given(&change.title, had(|user| user["name"].as_str().unwrap_or_default().to_owned()));
    let mut fields = vec![("roles", own_roles.as_str()), ("groups", &groups), ("name", &title)];
    fields.extend(password.map(|password| ("password", password.0.as_str())));
    to.target()?.send("PUT", &rbac::users(name), &fields).map(drop)
}

fn text(of: &Value, field: &str) -> String {
    of[field].as_str().filter(|text| !text.is_empty()).unwrap_or("-").to_owned()
}

fn list(users: &Value) -> String {
    let line = |user: &Value| {
        let groups = cell(&texts(user, "groups"));
        vec![text(user, "id"), text(user, "name"), groups, cell(&roles(user, false))]
    };
    let lines = users.as_array().into_iter().flatten().map(line).collect();
    titled(&["USER", "TITLE", "GROUPS", "ROLES"], lines)
}

/// One user, a line for each thing, and a line for each role with where it comes from.
fn describe(user: &Value) -> String {
    let fields = [
        ("user", text(user, "id")),
        ("title", text(user, "name")),
        ("groups", cell(&texts(user, "groups"))),
        ("password set", text(user, "password_change_date")),
    ];
    let mut lines: Vec<Vec<String>> = fields.map(|(name, value)| vec![name.to_owned(), value]).into();
    for role in user["roles"].as_array().into_iter().flatten() {
        let origins = role["origins"].as_array().into_iter().flatten();
        let groups: Vec<&str> = origins.filter_map(|origin| origin["name"].as_str()).collect();
        let from = if groups.is_empty() { String::new() } else { format!("  (group {})", groups.join(", ")) };
        lines.push(vec!["role".to_owned(), format!("{}{from}", rbac::role(role))]);
    }
    rbac::table(&lines)
}

fn list_roles(all: &Value) -> String {
    let line = |role: &Value| vec![rbac::role(role), text(role, "name"), text(role, "desc")];
    let lines = all.as_array().into_iter().flatten().map(line).collect();
    titled(&["ROLE", "NAME", "IS FOR"], lines)
}

#[cfg(test)]
mod tests;
