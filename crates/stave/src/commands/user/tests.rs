//! `stave user` and `stave group` against a real node.
#![allow(clippy::disallowed_methods, reason = "a file that the user names is no part of a node")]

use clap::Parser;

use super::*;
use crate::commands::group::{self, GroupFlags};
use crate::test_server::TestServer;

/// A command line of one of the two commands.
#[derive(Parser)]
enum Line {
    User(UserFlags),
    Group(GroupFlags),
}

struct World {
    server: TestServer,
    folder: tempfile::TempDir,
}

impl World {
    /// What a command says that logs in as the administrator; words are separated by spaces.
    fn run(&self, line: &str) -> Result<String, String> {
        self.run_as("Administrator", "password", line)
    }

    fn run_as(&self, user: &str, password: &str, line: &str) -> Result<String, String> {
        let (addr, own) = (self.server.http_addr(), self.file("own", password));
        let to = ["--addr", &addr, "--username", user, "--password-file", &own];
        let words = std::iter::once("stave").chain(line.split(' ')).chain(to);
        let parsed = Line::try_parse_from(words).expect("a command line");
        let said = match parsed {
            Line::User(flags) => said(&flags),
            Line::Group(flags) => group::said(&flags),
        };
        said.map_err(|error| format!("{error:#}"))
    }

    /// A file with a password.
    fn file(&self, name: &str, password: &str) -> String {
        let path = self.folder.path().join(name);
        std::fs::write(&path, format!("{password}\n")).expect("written");
        path.display().to_string()
    }
}

fn world() -> World {
    World { server: TestServer::start(), folder: tempfile::tempdir().expect("a folder") }
}

#[test]
fn users_and_groups_come_change_and_go() {
    let world = world();
    let run = |line: &str| world.run(line).unwrap_or_else(|error| panic!("{line}: {error}"));
    let secret = world.file("new", "secret-1");
    assert_eq!(
        run("group add readers --roles data_reader[*] --description all"),
        "group readers was added\n"
    );
    let add = format!(
        "user add ann --roles data_writer[default:_default] --groups readers --new-password-file {secret}"
    );
    assert_eq!(run(&add), "user ann was added\n");
    assert_eq!(
        run("user list"),
        "USER  TITLE  GROUPS   ROLES\nann   -      readers  data_reader[*],data_writer[default:_default]\n"
    );
    assert!(world.run(&add).expect_err("there is one").starts_with("there is a user ann already"));

    // What is not named stays.
    assert_eq!(run("user edit ann --title Ann"), "user ann was changed\n");
    let shown = run("user show ann");
    for line in ["title         Ann", "role          data_reader[*]  (group readers)"] {
        assert!(shown.lines().any(|shown| shown == line), "{shown}");
    }
    assert!(shown.contains("data_writer[default:_default]\n"), "{shown}");
    assert_eq!(run("group edit readers --roles data_reader[default]"), "group readers was changed\n");
    assert_eq!(
        run("group show readers"),
        "GROUP    ROLES                 DESCRIPTION\nreaders  data_reader[default]  all\n"
    );

    assert_eq!(run("user edit ann --groups= --roles admin"), "user ann was changed\n");
    assert_eq!(run("user list"), "USER  TITLE  GROUPS  ROLES\nann   Ann    -       admin\n");
    let json: Value = serde_json::from_str(&run("user show ann --json")).expect("JSON");
    assert_eq!((&json["id"], &json["domain"]), (&"ann".into(), &"local".into()));
    for line in ["user edit ann", "group edit readers"] {
        let refused = world.run(line).expect_err("it names no change");
        assert!(refused.starts_with("what is to change? give --roles"), "{refused}");
    }
    // One name that is wrong, and nothing is deleted.
    let refused = world.run("group delete readers none").expect_err("there is no such group");
    assert!(refused.starts_with("there is no group none; nothing was deleted"), "{refused}");
    let refused = world.run("user delete ann none").expect_err("there is no such user");
    let told = "there is no user none (those of the configuration file are not meant); nothing was deleted";
    assert!(refused.starts_with(told), "{refused}");
    assert_eq!(run("group delete readers"), "group readers was deleted\n");
    assert_eq!(run("group list"), "GROUP  ROLES  DESCRIPTION\n");
    assert_eq!(run("user delete ann"), "user ann was deleted\n");
    let gone = world.run("user show ann").expect_err("it is gone");
    assert!(gone.starts_with("there is no user ann"), "{gone}");
    let gone = world.run("user delete ann").expect_err("it is gone");
    assert!(gone.starts_with("there is no user ann"), "{gone}");
}

#[test]
fn passwords_are_changed_by_administrators_and_by_users_themselves() {
    let world = world();
    let run = |line: &str| world.run(line).unwrap_or_else(|error| panic!("{line}: {error}"));
    let first = world.file("first", "secret-1");
    run(&format!("user add ann --roles ro_admin --new-password-file {first}"));
    assert!(world.run_as("ann", "secret-1", "user list").is_ok());
    let second = world.file("second", "secret-2");
    assert_eq!(
        run(&format!("user passwd ann --new-password-file {second}")),
        "user ann has another password\n"
    );
    let refused = world.run_as("ann", "secret-1", "user list").expect_err("that was before");
    assert!(refused.contains("the password is another one"), "{refused}");
    let third = world.file("third", "secret-3");
    let own = world.run_as("ann", "secret-2", &format!("user passwd --new-password-file {third}"));
    assert_eq!(own.as_deref(), Ok("user ann has another password\n"));
    let listed = world.run_as("ann", "secret-3", "user list").expect("the new one");
    assert!(listed.contains("ro_admin"), "the roles stay: {listed}");
    let short = world.file("short", "x");
    let refused = world.run(&format!("user passwd ann --new-password-file {short}")).expect_err("too short");
    assert!(refused.contains("at least 6 characters"), "{refused}");
    let refused = world.run_as("ann", "secret-3", "user delete ann").expect_err("only looks");
    assert!(refused.contains("security_admin"), "{refused}");
}

#[test]
fn roles_are_listed() {
    let said = world().run("user roles").expect("an answer");
    assert!(said.starts_with("ROLE") && said.contains("\ndata_reader[*]  "), "{said}");
}
