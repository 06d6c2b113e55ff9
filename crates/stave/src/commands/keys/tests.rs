//! `stave keys` against a real node.

use std::collections::BTreeSet;

use clap::Parser;

use super::*;
use crate::client::Client;
use crate::test_server::{BUCKET, TestServer};

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    flags: KeysFlags,
}

/// What the command writes; words are separated by spaces.
fn keys(server: &TestServer, line: &str) -> Result<Vec<u8>, String> {
    let addr = server.flags().addr;
    let to = ["--addr", &addr, "--username", "Administrator", "--password", "password"];
    let words = ["stave"].into_iter().chain(line.split_ascii_whitespace()).chain(to);
    let flags = Line::try_parse_from(words).expect("a command line").flags;
    let mut out = Vec::new();
    let written = write_keys(&Env::real(), &flags, &mut out);
    written.map(|()| out).map_err(|error| format!("{error:#}"))
}

fn lines(server: &TestServer, line: &str) -> Vec<String> {
    let text = keys(server, line).unwrap_or_else(|error| panic!("{line}: {error}"));
    String::from_utf8(text).expect("text").lines().map(str::to_owned).collect()
}

fn store(client: &mut Client, keys: impl IntoIterator<Item = Vec<u8>>) {
    for key in keys {
        client.set(&key, b"v", 0).expect("stored");
    }
}

fn flush(server: &TestServer) {
    assert!(server.bucket().flushing().flush_all());
}

#[test]
fn all_keys_come_once_and_those_with_a_prefix_alone_if_that_is_wanted() {
    let server = TestServer::start();
    let named = |prefix: &str, count: u32| -> BTreeSet<String> {
        (0..count).map(|n| format!("{prefix}{n:04}")).collect()
    };
    // More than a page in each of the four vBuckets, and neighbours of the prefix on both sides.
    let all: BTreeSet<String> =
        [named("a", 200), named("user::", 2_500), named("user:;", 20)].into_iter().flatten().collect();
    let mut client = server.client();
    store(&mut client, all.iter().map(|key| key.clone().into_bytes()));
    client.delete(b"a0007").expect("deleted");
    flush(&server);
    let check = |line: &str, expected: &BTreeSet<String>| {
        let listed = lines(&server, line);
        assert_eq!(listed.len(), expected.len(), "{line}: each once");
        assert_eq!(listed.into_iter().collect::<BTreeSet<_>>(), *expected, "{line}");
    };
    check("", &all.iter().filter(|key| *key != "a0007").cloned().collect());
    check("--prefix user::", &named("user::", 2_500));
    check("--prefix user:;0", &named("user:;", 20));
    check("--prefix nobody", &BTreeSet::new());
    for limit in [0, 1, 300, 1_100] {
        let listed = lines(&server, &format!("--prefix user:: --limit {limit}"));
        assert_eq!(listed.len(), limit);
        assert!(listed.iter().all(|key| key.starts_with("user::")), "{listed:?}");
    }
}

#[test]
fn keys_of_a_collection_are_listed_and_bytes_that_are_no_text() {
    let server = TestServer::start();
    let http = server.http_target();
    http.form("/pools/default/buckets/default/scopes", &[("name", "shop")]).expect("made");
    let collections = "/pools/default/buckets/default/scopes/shop/collections";
    http.form(collections, &[("name", "carts")]).expect("made");
    let mut client = server.client();
    store(&mut client, [b"outside".to_vec()]);
    let id = client.collection_id("shop.carts").expect("it is there");
    client.use_collection(id);
    // The longest keys, the last of which has no other one behind it.
    let longest = [vec![b'k'; 246], vec![0xff; 246]];
    store(&mut client, longest.clone().into_iter().chain([b"\xff".to_vec(), b"text".to_vec()]));
    flush(&server);
    let raw = keys(&server, "--collection shop.carts --raw").expect("keys");
    let mut found: Vec<&[u8]> = raw.split(|byte| *byte == b'\n').filter(|key| !key.is_empty()).collect();
    found.sort_unstable();
    assert_eq!(found, [&longest[0][..], b"text", b"\xff", &longest[1][..]]);
    let shown = lines(&server, "--collection shop.carts");
    assert!(shown.contains(&"\\xff".to_owned()) && shown.contains(&"text".to_owned()), "{shown:?}");
    let listed = lines(&server, "--collection shop.carts --json");
    for line in ["{\"key\":\"text\"}", "{\"key_base64\":\"/w==\"}"] {
        assert!(listed.iter().any(|told| told == line), "{listed:?}");
    }
    assert_eq!(lines(&server, ""), ["outside"]);
    let why = keys(&server, "--collection shop.none").expect_err("no such collection");
    assert!(why.contains("there is no collection `shop.none`"), "{why}");
}

#[test]
fn a_key_does_not_command_the_terminal() {
    let shown = |key: &[u8]| {
        let mut out = Vec::new();
        write_shown(key, &mut out).expect("written");
        String::from_utf8(out).expect("text")
    };
    assert_eq!(shown("a\u{1b}[2Jb\n\u{9b}é\\".as_bytes()), "a\\u{1b}[2Jb\\n\\u{9b}é\\");
    assert_eq!(shown(b"\xff\x00k"), "\\xff\\u{0}k");
}

#[test]
fn an_ephemeral_bucket_has_no_keys_to_list() {
    let server = TestServer::start();
    let fields = [("name", "cache"), ("bucketType", "ephemeral"), ("ramQuota", "100")];
    server.http_target().form("/pools/default/buckets", &fields).expect("made");
    let why = keys(&server, "--bucket cache").expect_err("it has no disk");
    assert!(why.starts_with("this bucket has no keys on disk to list; `stave export"), "{why}");
    assert_eq!(lines(&server, &format!("--bucket {BUCKET}")), Vec::<String>::new());
}
