//! Settings of the bucket, users and groups in a backup, and back in another cluster.

use base::env::Env;
use clap::Parser;
use serde_json::Value;

use crate::cli::{Cli, Command, Outcome};
use crate::client::{Client, HttpTarget, Target};
use crate::test_server::TestServer;

/// Runs `stave backup` or `stave restore` against a node.
fn stave(server: &TestServer, words: &[&str]) -> Result<Outcome, String> {
    let flags = server.flags();
    let password = flags.password.given().expect("no file").map(|secret| secret.0).unwrap_or_default();
    let http = server.http_addr();
    let login = ["--addr", &flags.addr, "--password", &password, "--http", &http];
    let cli = Cli::try_parse_from(["stave"].iter().chain(words).chain(&login));
    let env = Env::real();
    let done = match cli.map_err(|error| error.to_string())?.command {
        Command::Backup(flags) => super::run(&env, &flags),
        Command::Restore(flags) => crate::commands::restore::run(&env, &flags),
        _ => panic!("another command"),
    };
    done.map_err(|error| format!("{error:#}"))
}

fn bucket_of(http: &HttpTarget, name: &str) -> Value {
    http.request("GET", &format!("/pools/default/buckets/{name}"), None).expect("it is there")
}

fn put(http: &HttpTarget, path: &str, fields: &[(&str, &str)]) {
    http.send("PUT", path, fields).expect("taken");
}

/// A bucket with settings, a user and a group, and a user with the role of security alone.
fn furnish(http: &HttpTarget) {
    let settings = [
        ("name", "travel"),
        ("ramQuotaMB", "111"),
        ("flushEnabled", "1"),
        ("maxTTL", "4000000"),
        ("compressionMode", "active"),
        ("conflictResolutionType", "lww"),
        ("evictionPolicy", "fullEviction"),
        ("replicaNumber", "0"),
    ];
    http.form("/pools/default/buckets", &settings).expect("a bucket");
    put(
        http,
        "/settings/rbac/groups/readers",
        &[("roles", "data_reader[travel]"), ("description", "who reads")],
    );
    let ann = [
        ("password", "canary-77"),
        ("name", "Ann A"),
        ("groups", "readers"),
        ("roles", "data_writer[travel]"),
    ];
    put(http, "/settings/rbac/users/local/ann", &ann);
    put(http, "/settings/rbac/users/local/guard", &[("password", "password"), ("roles", "security_admin")]);
}

/// As a user of the node.
fn as_user(http: &HttpTarget, name: &str, password: &str) -> HttpTarget {
    HttpTarget { username: name.to_owned(), password: password.to_owned().into(), ..http.clone() }
}

#[test]
fn settings_users_and_groups_come_back() {
    let (mut server, mut other) = (TestServer::start(), TestServer::start());
    let folder = tempfile::tempdir().expect("a folder");
    let dir = folder.path().to_str().expect("text");
    let (http, there) = (server.http_target(), other.http_target());
    furnish(&http);
    stave(&server, &["backup", "--to", dir, "--bucket", "travel", "--users"]).expect("a backup");
    let restore = |more: &[&str]| {
        let words = [&["restore", "--from", dir, "--bucket", "travel"], more].concat();
        stave(&other, &words)
    };
    assert!(restore(&[]).is_err(), "the bucket is missing");
    restore(&["--create-bucket", "--users"]).expect("restored");
    let (was, is) = (bucket_of(&http, "travel"), bucket_of(&there, "travel"));
    for field in ["maxTTL", "compressionMode", "conflictResolutionType", "evictionPolicy", "replicaNumber"] {
        assert_eq!(is[field], was[field], "{field}");
    }
    assert_eq!(
        (&is["quota"]["rawRAM"], is["controllers"]["flush"].is_string()),
        (&was["quota"]["rawRAM"], true)
    );
    // The password is checked as before, and nothing of it is in the files.
    let who =
        as_user(&there, "ann", "canary-77").request("GET", "/whoami", None).expect("the password is right");
    assert_eq!((who["id"].as_str(), who["roles"].as_array().map(Vec::len)), (Some("ann"), Some(2)));
    assert!(as_user(&there, "ann", "canary-78").request("GET", "/whoami", None).is_err());
    let group = there.request("GET", "/settings/rbac/groups/readers", None).expect("it was made");
    assert_eq!(group["description"], "who reads");
    // Again: the same settings are no conflict, and users who are there stay as they are.
    put(
        &there,
        "/settings/rbac/users/local/ann",
        &[("password", "another-1"), ("roles", "data_reader[travel]")],
    );
    restore(&["--create-bucket", "--users"]).expect("the same settings");
    as_user(&there, "ann", "another-1").request("GET", "/whoami", None).expect("it stays");
    restore(&["--users", "--conflict", "force"]).expect("replaced");
    as_user(&there, "ann", "canary-77").request("GET", "/whoami", None).expect("the one of the backup");
    // Other settings are a conflict.
    there.form("/pools/default/buckets/travel", &[("maxTTL", "5")]).expect("changed");
    let said = restore(&["--create-bucket"]).expect_err("another setting");
    assert!(
        said.contains("maxTTL is 5, and was 4000000") && said.contains("leave --create-bucket out"),
        "{said}"
    );
    server.stop();
    other.stop();
}

#[test]
fn users_are_for_a_full_administrator_and_for_backups_that_have_them() {
    let mut server = TestServer::start();
    let folder = tempfile::tempdir().expect("a folder");
    let dir = folder.path().to_str().expect("text");
    let http = server.http_target();
    furnish(&http);
    let guard = as_user(&http, "guard", "password");
    let said = crate::backup::read_users(&guard).expect_err("security_admin").to_string();
    assert!(said.contains("--users"), "{said}");
    let all = crate::backup::read_users(&http).expect("the administrator");
    assert!(!all.to_string().contains("canary"), "{all}");
    let hash = all["users"][0]["passwordHash"].to_string();
    let put_as = |http: &HttpTarget, hash: &str| {
        let fields = [("passwordHash", hash), ("roles", "data_reader[travel]")];
        http.send("PUT", "/settings/rbac/users/local/bob", &fields).map_err(|error| error.to_string())
    };
    assert!(put_as(&guard, &hash).is_err());
    let said = put_as(&http, "{\"changed_s\":1,\"secrets\":[]}").expect_err("no secrets");
    assert!(said.contains("cannot be read"), "{said}");
    put_as(&http, &hash).expect("the administrator");
    as_user(&http, "bob", "canary-77").request("GET", "/whoami", None).expect("the password of ann");

    stave(&server, &["backup", "--to", dir, "--bucket", "travel"]).expect("a backup");
    let said =
        stave(&server, &["restore", "--from", dir, "--bucket", "travel", "--users"]).expect_err("no users");
    assert!(said.ends_with("was made without --users"), "{said}");
    stave(&server, &["backup", "--to", dir, "--bucket", "travel", "--users"]).expect("one with users");
    stave(&server, &["backup", "--to", dir, "--bucket", "travel"]).expect("one that goes on from it");
    let said =
        stave(&server, &["restore", "--from", dir, "--bucket", "travel", "--users"]).expect_err("no users");
    assert!(said.contains("from which it goes on, has them: --id "), "{said}");
    server.stop();
}

#[test]
fn users_of_a_moment_are_those_of_the_backup_in_front_of_it() {
    let (mut server, mut other) = (TestServer::start(), TestServer::start());
    let folder = tempfile::tempdir().expect("a folder");
    let dir = folder.path().to_str().expect("text");
    let (http, there) = (server.http_target(), other.http_target());
    furnish(&http);
    let follow = ["backup", "--to", dir, "--bucket", "travel", "--users", "--follow", "--once-caught-up"];
    stave(&server, &follow).expect("a backup and a log");
    // Later there is another user, another setting, and a document.
    put(
        &http,
        "/settings/rbac/users/local/late",
        &[("password", "canary-99"), ("roles", "data_reader[travel]")],
    );
    http.form("/pools/default/buckets/travel", &[("maxTTL", "5000000")]).expect("changed");
    let target = Target { bucket: "travel".to_owned(), ..server.target() };
    let mut client = Client::open(&Env::real(), &target).expect("the bucket is there");
    client.set(b"k", b"v", 0).expect("stored");
    drop(client);
    stave(&server, &follow).expect("the log goes on");
    stave(&server, &["backup", "--to", dir, "--bucket", "travel", "--users"]).expect("a newer backup");

    let restore =
        ["restore", "--from", dir, "--bucket", "travel", "--create-bucket", "--users", "--before", "k"];
    stave(&other, &restore).expect("restored");
    assert_eq!(bucket_of(&there, "travel")["maxTTL"], 4_000_000);
    as_user(&there, "ann", "canary-77").request("GET", "/whoami", None).expect("of that moment");
    assert!(as_user(&there, "late", "canary-99").request("GET", "/whoami", None).is_err(), "made later");
    server.stop();
    other.stop();
}
