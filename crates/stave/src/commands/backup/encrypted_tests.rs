//! Encrypted backups of a node: nothing that is known is in clear, in a folder and in an object store.
#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "a test reads what was written")]

use std::path::{Path, PathBuf};

use base::encryption::WrappingKeys;
use clap::Parser;

use super::follow_tests::{State, followed_in, state_in};
use super::tests::restored;
use super::*;
use crate::backup::{FakeStore, WantedMoment};
use crate::cli::{Cli, Command};
use crate::test_server::{BUCKET, NOT_INTERRUPTED, TestServer, differences};

/// What is looked for; the words are in no name of the program's own.
const KEY: &str = "zebrakey";
const BODY: &str = "quaggabody";
const XATTR: &str = "okapixattr";
const COLLECTION: &str = "tapircollection";

fn key(digit: &str) -> WrappingKeys {
    WrappingKeys::parse(&digit.repeat(64), "the test").expect("a key")
}

/// Documents with a known key, body and attribute, in a known collection; from `begin` on.
fn write(server: &TestServer, folder: &Path, begin: u32) {
    let line = |at: u32| {
        format!(
            "{{\"key\":\"{KEY}{at}\",\"collection\":\"app.{COLLECTION}\",\"xattrs\":{{\"{XATTR}\":{at}}},\"value\":\"{BODY}{at}\"}}\n"
        )
    };
    let path = folder.join("in.jsonl");
    std::fs::write(&path, (begin..begin + 20).map(line).collect::<String>()).expect("written");
    let flags = server.flags();
    let password = flags.password.given().expect("no file").map(|secret| secret.0).unwrap_or_default();
    let words =
        ["stave", "import", "lines", path.to_str().expect("text"), "--create-collections", "--bucket"];
    let login = [BUCKET, "--addr", &flags.addr, "--password", &password];
    let cli = Cli::try_parse_from(words.iter().chain(&login)).expect("it is a command");
    let Command::Import(flags) = cli.command else { panic!("another command") };
    crate::commands::import::run(&Env::real(), &flags).expect("stored");
}

fn files(folder: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            found.extend(files(&path));
        } else {
            let bytes = std::fs::read(&path).expect("read");
            found.push((path, bytes));
        }
    }
    found
}

fn known_in(bytes: &[u8]) -> Option<&'static str> {
    [KEY, BODY, XATTR, COLLECTION]
        .into_iter()
        .find(|known| bytes.windows(known.len()).any(|part| part == known.as_bytes()))
}

#[test]
fn nothing_of_an_encrypted_backup_and_its_log_is_in_clear_in_a_folder() {
    let (mut server, env) = (TestServer::start(), Env::real());
    let (folder, input) = (tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("a folder"));
    let dir = folder.path();
    write(&server, input.path(), 0);
    // What is plain has all of them, so that the search is one.
    let plain = tempfile::tempdir().expect("a folder");
    let repository = Repository::new(&env, plain.path());
    take(&env, &server.target(), &repository, &TakeOptions::default(), &NOT_INTERRUPTED, &mut |_| {})
        .expect("a backup");
    assert!(files(plain.path()).iter().any(|(_, bytes)| known_in(bytes).is_some()));

    let repository = Repository::new(&env, dir).with_keys(Some(key("a")));
    let counts = followed_in(&env, &server, &repository, |follower| {
        follower.catch_up(&env);
        write(&server, input.path(), 100);
        follower.catch_up(&env);
    });
    assert!(counts.versions >= 20 && counts.epochs == 1, "{counts:?}");
    // One that was broken off and one that goes on from another are encrypted, too.
    write(&server, input.path(), 200);
    let again = std::sync::atomic::AtomicBool::new(true);
    let broken = take(&env, &server.target(), &repository, &TakeOptions::default(), &again, &mut |_| {});
    assert!(broken.is_err(), "it was interrupted");
    let taken =
        take(&env, &server.target(), &repository, &TakeOptions::default(), &NOT_INTERRUPTED, &mut |_| {});
    let taken = taken.expect("a backup");
    // How much of it was complete depends on how fast the node sends.
    assert!(taken.manifest.base.is_some(), "{taken:?}");
    assert_eq!(taken.without_moment, None, "it goes on with the snapshot of the one that was broken off");
    let all = files(dir);
    assert!(all.iter().any(|(path, _)| path.to_string_lossy().contains("segment-")), "{all:?}");
    for (path, bytes) in &all {
        assert_eq!(known_in(bytes), None, "{}", path.display());
    }

    let key_file = input.path().join("key");
    std::fs::write(&key_file, "a".repeat(64)).expect("written");
    let named = ["--key-file", key_file.to_str().expect("text")];
    let mut other = TestServer::start();
    restored(&other, dir, &named).expect("restored");
    assert_eq!(differences(&server, &other), Vec::<String>::new());
    let refused =
        |result: anyhow::Result<crate::with_meta::SentCounts>| format!("{:#}", result.expect_err("refused"));
    let said = refused(restored(&other, dir, &[]));
    assert!(said.contains("no key was given") && said.contains("--key-file"), "{said}");
    std::fs::write(&key_file, "b".repeat(64)).expect("written");
    let said = refused(restored(&other, dir, &named));
    assert!(said.contains("encrypted under the key"), "{said}");
    let commands = [&["list"][..], &["show"], &["verify"], &["prune", "--keep", "1"]];
    for words in commands {
        let (name, more) = words.split_first().expect("a name");
        let place = dir.to_str().expect("text");
        let line = ["stave", "backup", name, place].into_iter().chain(more.iter().copied()).chain(named);
        let Command::Backup(flags) = Cli::try_parse_from(line).expect("it is a command").command else {
            panic!("another command")
        };
        let said = format!("{:#}", run(&env, &flags).expect_err("another key"));
        assert!(said.contains("encrypted under the key"), "{name}: {said}");
    }
    server.stop();
    other.stop();
}

#[test]
fn nothing_of_an_encrypted_backup_and_its_log_is_in_clear_in_an_object_store() {
    let (mut server, env, fake) = (TestServer::start(), Env::real(), FakeStore::start());
    let input = tempfile::tempdir().expect("a folder");
    let place = |keys| BackupPlace::of_store(&env, "s3://b/prod", fake.store(&env)).with_keys(keys);
    let first = place(Some(key("a")));
    write(&server, input.path(), 0);
    let mut moments = Vec::new();
    followed_in(first.env(), &server, &first.repository(), |follower| {
        follower.catch_up(&env);
        write(&server, input.path(), 100);
        moments.push(follower.catch_up(&env));
        for (name, bytes) in &fake.kept().objects {
            assert_eq!(known_in(bytes), None, "{name}");
        }
    });
    for (name, bytes) in &fake.kept().objects {
        assert_eq!(known_in(bytes), None, "{name}");
    }
    let wanted = WantedMoment::At(moments[0]);
    let state: State = state_in(&place(Some(key("a"))).repository(), &wanted).expect("it is there").1;
    assert_eq!(state.len(), 40);
    for keys in [None, Some(key("b"))] {
        let refused = state_in(&place(keys).repository(), &wanted).expect_err("refused");
        assert!(matches!(refused, BackupError::Key(_)), "{refused}");
    }
    server.stop();
}

#[test]
fn a_backup_with_a_key_goes_on_from_no_plain_one() {
    let (mut server, env) = (TestServer::start(), Env::real());
    let folder = tempfile::tempdir().expect("a folder");
    let mut client = server.client();
    client.set(b"k", b"v", 0).expect("stored");
    let make = |keys: Option<WrappingKeys>, since: Option<String>| {
        let repository = Repository::new(&env, folder.path()).with_keys(keys);
        let options = TakeOptions { since, ..TakeOptions::default() };
        take(&env, &server.target(), &repository, &options, &NOT_INTERRUPTED, &mut |_| {})
    };
    let plain = make(None, None).expect("a plain one").manifest;
    let said = make(Some(key("a")), Some(plain.id.clone())).expect_err("named").to_string();
    assert!(said.contains("is not encrypted"), "{said}");
    let encrypted = make(Some(key("a")), None).expect("an encrypted one").manifest;
    assert_eq!(encrypted.base, None, "it is full");
    assert_eq!(make(Some(key("a")), None).expect("a later one").manifest.base, Some(encrypted.id));
    let said = make(None, None).expect_err("without the key").to_string();
    assert!(said.contains("no key was given"), "{said}");
    drop(client);
    server.stop();
}
