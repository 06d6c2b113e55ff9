//! `stave export` and `stave import lines` and `csv` against nodes: documents come back as they were.
#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "a test reads what was written")]

use std::collections::BTreeMap;
use std::path::Path;

use clap::Parser;

use crate::cli::{Cli, Command, Outcome};
use crate::test_server::TestServer;
use base::env::Env;

/// Runs a command line against a node; what went wrong, if something did.
fn stave(server: &TestServer, words: &[&str]) -> Result<(), String> {
    let flags = server.flags();
    let password = flags.password.given().expect("no file").map(|secret| secret.0).unwrap_or_default();
    let login = ["--addr", &flags.addr, "--password", &password, "--bucket", "default"];
    let cli = Cli::try_parse_from(["stave"].iter().chain(words).chain(&login))
        .map_err(|error| error.to_string())?;
    let env = Env::real();
    let done = match cli.command {
        Command::Export(flags) => super::run(&env, &flags),
        Command::Import(flags) => crate::commands::import::run(&env, &flags),
        _ => panic!("another command"),
    };
    done.map(|outcome| assert!(matches!(outcome, Outcome::Done))).map_err(|error| format!("{error:#}"))
}

/// Lines of a file by their keys.
fn lines(path: &Path) -> BTreeMap<String, String> {
    let text = std::fs::read_to_string(path).expect("the file is there");
    let line = |line: &str| {
        let value: serde_json::Value = serde_json::from_str(line).expect("JSON");
        let key = value.get("key").or_else(|| value.get("key_base64")).and_then(|key| key.as_str());
        (key.expect("a key").to_owned(), line.to_owned())
    };
    text.lines().map(line).collect()
}

const DOCUMENTS: &str = r#"{"key":"user::1","value":{"b":1, "a":1.50}}
{"key":"text","value_base64":"AAECAw=="}
{"key":"number","flags":33554438,"value":7}
{"key_base64":"//4=","value":"x"}
{"key":"late","expiry":4000000000,"value":[]}
{"key":"with","xattrs":{"_sync":{"rev":  1},"mine":"a"},"flags":5,"value":{"c":null}}
{"key":"empty","value_base64":""}
"#;

#[test]
fn collections_that_the_bucket_lacks_are_made_if_that_is_wanted() {
    let mut server = TestServer::start();
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name).to_str().expect("text").to_owned();
    let text = "{\"key\":\"a\",\"collection\":\"app.users\",\"value\":1}\n\
                {\"key\":\"b\",\"collection\":\"app.orders\",\"value\":2}\n";
    std::fs::write(path("in.jsonl"), text).expect("written");
    let import = |file: &str, more: &[&str]| {
        let file = path(file);
        let words: Vec<&str> = ["import", "lines", &file].iter().chain(more).copied().collect();
        stave(&server, &words)
    };
    let refused = import("in.jsonl", &[]).expect_err("the bucket lacks both");
    assert!(refused.contains("2 lines were rejected"), "{refused}");
    import("in.jsonl", &["--create-collections"]).expect("both are made");
    stave(&server, &["export", "--to", &path("out.jsonl")]).expect("it is written");
    let out = lines(path("out.jsonl").as_ref());
    assert!(out["a"].contains("app.users") && out["b"].contains("app.orders"), "{out:?}");
    // A name that no collection can have is the line's mistake, and the others are sent.
    let text = "{\"key\":\"c\",\"collection\":\"app.!\",\"value\":3}\n{\"key\":\"d\",\"value\":4}\n";
    std::fs::write(path("wrong.jsonl"), text).expect("written");
    let refused = import("wrong.jsonl", &["--create-collections"]).expect_err("one is wrong");
    assert!(refused.contains("1 line was rejected"), "{refused}");
    server.stop();
}

#[test]
fn what_is_exported_can_be_imported_and_is_the_same_again() {
    let mut server = TestServer::start();
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name).to_str().expect("text").to_owned();
    std::fs::write(path("in.jsonl"), DOCUMENTS).expect("written");
    stave(&server, &["import", "lines", &path("in.jsonl")]).expect("all are sent");
    stave(&server, &["export", "--to", &path("out.jsonl")]).expect("it is written");
    let first = lines(path("out.jsonl").as_ref());
    let expected: BTreeMap<String, String> = lines(path("in.jsonl").as_ref())
        .into_iter()
        .map(|(key, line)| {
            let value: serde_json::Value = serde_json::from_str(&line).expect("JSON");
            (key, value.to_string())
        })
        .collect();
    let told: BTreeMap<String, String> = first
        .iter()
        .map(|(key, line)| {
            let mut value: serde_json::Value = serde_json::from_str(line).expect("JSON");
            assert_eq!(value["collection"], "_default._default");
            value.as_object_mut().expect("an object").remove("collection");
            (key.clone(), value.to_string())
        })
        .collect();
    assert_eq!(told, expected);
    assert!(first["user::1"].ends_with(r#""value":{"b":1, "a":1.50}}"#), "JSON stays as it is written");
    let names: Vec<_> =
        std::fs::read_dir(folder.path()).expect("read").flatten().map(|e| e.file_name()).collect();
    assert_eq!(names.len(), 2, "the copy is removed: {names:?}");

    // Into an empty bucket, and out again; then nothing is changed where documents are kept.
    let mut other = TestServer::start();
    stave(&other, &["import", "lines", &path("out.jsonl")]).expect("all are sent");
    stave(&other, &["export", "--to", &path("again.jsonl")]).expect("it is written");
    assert_eq!(lines(path("again.jsonl").as_ref()), first);
    std::fs::write(
        path("newer.jsonl"),
        "{\"key\":\"with\",\"xattrs\":{\"mine\":1},\"value\":8}\n{\"key\":\"number\",\"value\":8}\n",
    )
    .expect("written");
    stave(&other, &["import", "lines", &path("newer.jsonl"), "--keep-existing"]).expect("none is sent");
    stave(&other, &["export", "--to", &path("kept.jsonl")]).expect("it is written");
    assert_eq!(lines(path("kept.jsonl").as_ref()), first);
    stave(&other, &["import", "lines", &path("newer.jsonl")]).expect("both are sent");
    stave(&other, &["export", "--to", &path("newest.jsonl"), "--no-xattrs"]).expect("it is written");
    assert!(lines(path("newest.jsonl").as_ref())["number"].ends_with("\"value\":8}"));

    let refused = stave(&other, &["export", "--to", &path("again.jsonl")]).expect_err("it is there");
    assert!(refused.contains("is there already"), "{refused}");
    server.stop();
    other.stop();
}

#[test]
fn a_table_of_whole_documents_comes_back() {
    let mut server = TestServer::start();
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name).to_str().expect("text").to_owned();
    let quotes = "{\"key\":\"a,\\\"b\\\"\\r\\nc\",\"value\":{\"text\":\"x,\\\"y\\\"\\n;z\"}}\n";
    std::fs::write(path("in.jsonl"), format!("{DOCUMENTS}{quotes}")).expect("written");
    stave(&server, &["import", "lines", &path("in.jsonl")]).expect("all are sent");
    stave(&server, &["export", "--to", &path("out.jsonl")]).expect("it is written");
    let before = lines(path("out.jsonl").as_ref());
    assert_eq!(before.len(), 8);
    stave(&server, &["export", "--to", &path("out.csv")]).expect("it is written");
    let table = std::fs::read_to_string(path("out.csv")).expect("the file is there");
    assert!(
        table.starts_with("key,key_base64,collection,flags,expiry,xattrs,value,value_base64\n"),
        "{table}"
    );
    assert!(table.contains("\"{\"\"b\"\":1, \"\"a\"\":1.50}\""), "JSON stays as it is written: {table}");

    let mut other = TestServer::start();
    stave(&other, &["import", "csv", &path("out.csv")]).expect("all are sent");
    stave(&other, &["export", "--to", &path("again.jsonl")]).expect("it is written");
    assert_eq!(lines(path("again.jsonl").as_ref()), before);
    // A table of something else needs keys.
    std::fs::write(path("users.csv"), "id,name\n1,ann\n").expect("written");
    let refused = stave(&other, &["import", "csv", &path("users.csv")]).expect_err("no whole documents");
    assert!(refused.contains("column `id`") && refused.contains("--key"), "{refused}");
    server.stop();
    other.stop();
}

#[test]
fn members_of_documents_are_columns_and_a_dry_run_writes_none() {
    let mut server = TestServer::start();
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name).to_str().expect("text").to_owned();
    std::fs::write(path("in.jsonl"), DOCUMENTS).expect("written");
    stave(&server, &["import", "lines", &path("in.jsonl")]).expect("all are sent");
    stave(&server, &["export", "--to", &path("out.csv"), "--columns", "a,b"]).expect("it is written");
    let table = std::fs::read_to_string(path("out.csv")).expect("the file is there");
    let mut rows: Vec<&str> = table.lines().collect();
    rows.sort_unstable();
    // What is no object is left out.
    assert_eq!(rows, ["key,a,b", "user::1,1.50,1", "with,,"]);
    let words = ["import", "csv", &path("out.csv"), "--key", "copy::%key%"];
    stave(&server, &words).expect("it is a table like any other");

    for more in [&[][..], &["--format", "csv"], &["--max-rate", "100MiB"]] {
        let (to, none) = (path("none"), ["export", "--dry-run", "--to"]);
        stave(&server, &[&none[..], &[&to], more].concat()).expect("it is counted");
        assert!(!Path::new(&to).exists());
    }
    let wrong = stave(&server, &["export", "--to", &path("x.jsonl"), "--columns", "a"]);
    assert!(wrong.expect_err("no table").contains("--format csv"));
    let names: Vec<_> =
        std::fs::read_dir(folder.path()).expect("read").flatten().map(|e| e.file_name()).collect();
    assert_eq!(names.len(), 2, "the copies are removed: {names:?}");
    server.stop();
}

#[test]
fn a_backup_is_exported_without_a_cluster() {
    let mut server = TestServer::start();
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name).to_str().expect("text").to_owned();
    std::fs::write(path("in.jsonl"), DOCUMENTS).expect("written");
    stave(&server, &["import", "lines", &path("in.jsonl")]).expect("all are sent");
    stave(&server, &["export", "--to", &path("live.jsonl")]).expect("it is written");
    let env = Env::real();
    let repository = crate::backup::Repository::new(&env, folder.path().join("backups").as_ref());
    let never = &crate::test_server::NOT_INTERRUPTED;
    crate::backup::take(&env, &server.target(), &repository, &Default::default(), never, &mut |_| {})
        .expect("a backup");
    server.stop();
    stave(&server_gone(), &["export", "--to", &path("kept.jsonl"), "--backup", &path("backups")])
        .expect("written");
    assert_eq!(lines(path("kept.jsonl").as_ref()), lines(path("live.jsonl").as_ref()));
    let (to, backups) = (path("x"), path("backups"));
    let unknown = ["export", "--to", &to, "--backup", &backups, "--collections", "a.b"];
    let refused = stave(&server_gone(), &unknown).expect_err("there is no such collection");
    assert!(refused.contains("has no collection `a.b`"), "{refused}");
}

/// A node that must not be asked: another bucket's, which has none of the documents.
fn server_gone() -> TestServer {
    TestServer::start()
}

#[test]
fn lines_that_cannot_be_sent_are_rejected_and_the_others_are_sent() {
    let mut server = TestServer::start();
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name).to_str().expect("text").to_owned();
    let long = "k".repeat(251);
    let text = format!(
        "{{\"id\":1,\"name\":\"ann\"}}\n\nnot json\n{{\"name\":\"bob\"}}\n{{\"id\":\"{long}\"}}\n{{\"id\":2}}"
    );
    std::fs::write(path("in.jsonl"), text).expect("written");
    let import = |more: &[&str]| {
        let from = path("in.jsonl");
        let words = ["import", "lines", &from, "--key", "user::%id%"];
        stave(&server, &[&words, more].concat())
    };
    let dry = import(&["--dry-run"]).expect_err("three cannot be sent");
    assert!(dry.contains("3 lines were rejected"), "{dry}");
    let sent =
        import(&["--rejects", &path("rejects.jsonl"), "--rate", "100000"]).expect_err("three are rejected");
    assert!(sent.contains("3 lines were rejected; they are in"), "{sent}");
    let rejects = std::fs::read_to_string(path("rejects.jsonl")).expect("the file is there");
    assert_eq!(rejects, format!("not json\n{{\"name\":\"bob\"}}\n{{\"id\":\"{long}\"}}\n"));
    stave(&server, &["export", "--to", &path("out.jsonl")]).expect("it is written");
    let out = lines(path("out.jsonl").as_ref());
    assert_eq!(out.keys().collect::<Vec<_>>(), ["user::1", "user::2"]);
    for more in [&[][..], &["--dry-run"]] {
        let words = [&["--collection", "no.such"], more].concat();
        let unknown = import(&words).expect_err("there is no such collection");
        assert!(unknown.contains("5 lines were rejected"), "{words:?}: {unknown}");
        let words = [&["--bucket", "other"], more].concat();
        let unknown = import(&words).expect_err("there is no such bucket");
        assert!(!unknown.contains("rejected"), "{words:?}: {unknown}");
    }
    server.stop();
}

#[test]
fn rows_of_a_table_become_documents() {
    let mut server = TestServer::start();
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name).to_str().expect("text").to_owned();
    let text = "\u{feff}id;name;zip\r\n1;\"Ann; \"\"A\"\"\r\nB\";007\r\n2;bob\r\n3;;12\r\n";
    std::fs::write(path("in.csv"), text).expect("written");
    let (from, rejects) = (path("in.csv"), path("rejects.csv"));
    let words = ["import", "csv", &from, "--key", "u%id%", "--separator", ";", "--infer-types"];
    let told =
        stave(&server, &[&words[..], &["--rejects", &rejects]].concat()).expect_err("one row is short");
    assert!(told.contains("1 line was rejected"), "{told}");
    assert_eq!(
        std::fs::read_to_string(path("rejects.csv")).expect("the file is there"),
        "\u{feff}id;name;zip\r\n2;bob\r\n"
    );
    stave(&server, &["export", "--to", &path("out.jsonl")]).expect("it is written");
    let out = lines(path("out.jsonl").as_ref());
    assert!(
        out["u1"].ends_with("\"value\":{\"id\":1,\"name\":\"Ann; \\\"A\\\"\\r\\nB\",\"zip\":\"007\"}}"),
        "{out:?}"
    );
    assert!(out["u3"].ends_with("\"value\":{\"id\":3,\"zip\":12}}"), "{out:?}");
    server.stop();
}
