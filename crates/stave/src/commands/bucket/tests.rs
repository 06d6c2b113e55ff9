//! `stave bucket`, `stave scope` and `stave collection` against a real node.

use clap::Parser;

use super::*;
use crate::commands::collection::{self, CollectionFlags};
use crate::commands::scope::{self, ScopeFlags};
use crate::test_server::TestServer;

/// A command line of one of the three commands.
#[derive(Parser)]
enum Line {
    Bucket(BucketFlags),
    Scope(ScopeFlags),
    Collection(CollectionFlags),
}

/// What a command says; words are separated by spaces.
fn said_by(server: &TestServer, line: &str) -> Result<String, String> {
    let addr = server.http_addr();
    let to = ["--addr", &addr, "--username", "Administrator", "--password", "password"];
    let words = std::iter::once("stave").chain(line.split(' ')).chain(to);
    let said = match Line::try_parse_from(words).map_err(|error| error.to_string())? {
        Line::Bucket(flags) => said(&flags),
        Line::Scope(flags) => scope::said(&flags),
        Line::Collection(flags) => collection::said(&flags),
    };
    said.map_err(|error| format!("{error:#}"))
}

fn refused(server: &TestServer, line: &str) -> String {
    said_by(server, line).expect_err(line)
}

/// The line of `stave bucket show` with this name.
fn field(shown: &str, name: &str) -> String {
    let line = shown.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix("  "));
    line.unwrap_or_else(|| panic!("no {name}: {shown}")).trim().to_owned()
}

#[test]
fn buckets_come_change_and_go() {
    let server = TestServer::start();
    let run = |line: &str| said_by(&server, line).unwrap_or_else(|error| panic!("{line}: {error}"));
    assert_eq!(
        run(
            "bucket add orders --quota 128MiB --backend magma --replicas 0 --max-ttl 60 --conflict-resolution lww"
        ),
        "bucket orders was added\n"
    );
    assert_eq!(
        run("bucket add cache --quota 100MiB --type ephemeral --eviction nruEviction --flush"),
        "bucket cache was added without replicas, as there is one node; `stave bucket edit cache --replicas 1` gives it some \
         when there are more\n"
    );
    assert!(
        run("bucket add large --quota 100MiB --type magma --replicas 0").contains("bucket large was added")
    );
    let listed = run("bucket list");
    let mut lines = listed.lines().map(|line| line.split_ascii_whitespace().collect::<Vec<_>>());
    let head = ["BUCKET", "TYPE", "STORE", "QUOTA", "REPLICAS", "DOCUMENTS", "MEMORY", "DISK"];
    assert_eq!(lines.next().as_deref(), Some(&head[..]));
    let of = |name: &str| {
        let mut lines = listed.lines().map(|line| line.split_ascii_whitespace().collect::<Vec<_>>());
        lines.find(|line| line[0] == name).unwrap_or_else(|| panic!("no {name}: {listed}"))
    };
    assert_eq!(of("orders")[1..7], ["couchbase", "magma", "128", "MiB", "0", "0"], "{listed}");
    assert_eq!(of("large")[1..3], ["couchbase", "magma"], "{listed}");
    assert_eq!(of("cache")[1..7], ["ephemeral", "-", "100", "MiB", "0", "0"], "{listed}");
    assert_eq!(of("default")[1..3], ["couchbase", "couchstore"], "{listed}");

    let shown = run("bucket show orders");
    for (name, value) in [
        ("quota", "128 MiB on each node, 128 MiB on all"),
        ("max TTL", "60 s"),
        ("conflict resolution", "lww"),
        ("flush", "refused"),
        ("encryption at rest", "off"),
        ("vBuckets", "4"),
    ] {
        assert_eq!(field(&shown, name), value, "{shown}");
    }
    assert_eq!(
        run("bucket edit orders --quota 256MiB --max-ttl 0 --flush --compression active"),
        "bucket orders was changed\n"
    );
    let shown = run("bucket show orders");
    for (name, value) in [("max TTL", "none"), ("flush", "allowed"), ("compression", "active")] {
        assert_eq!(field(&shown, name), value, "{shown}");
    }
    assert!(field(&shown, "quota").starts_with("256 MiB on each"), "{shown}");
    let told = run("bucket edit orders --replicas 1");
    assert!(
        told.contains("`stave cluster rebalance`; warning: there are too few nodes (1) for 1 replica"),
        "{told}"
    );
    assert_eq!(run("bucket edit orders --no-flush"), "bucket orders was changed\n");
    let json: Value = serde_json::from_str(&run("bucket show orders --json")).expect("JSON");
    assert_eq!((&json["maxTTL"], &json["replicaNumber"]), (&0.into(), &1.into()));

    assert_eq!(run("bucket delete cache --yes"), "bucket cache was deleted\n");
    assert_eq!(run("bucket delete large --yes"), "bucket large was deleted\n");
    let json = run("bucket delete orders --yes --json");
    assert_eq!(json, "{\"done\":\"bucket orders was deleted\"}\n");
    assert_eq!(run("bucket list").lines().count(), 2);
}

#[test]
fn a_history_is_kept_as_flags_say() {
    let server = TestServer::start();
    let run = |line: &str| said_by(&server, line).unwrap_or_else(|error| panic!("{line}: {error}"));
    run(
        "bucket add orders --quota 128MiB --backend magma --replicas 0 --history-seconds 3600 --history-collections false",
    );
    let history = || field(&run("bucket show orders"), "history");
    assert_eq!(history(), "3600 s");
    run("bucket edit orders --history-bytes 2GiB --history-seconds 60");
    assert_eq!(history(), "60 s, 2.00 GiB");
    run("collection add kept --bucket orders --history true");
    run("collection add plain --bucket orders");
    let listed = run("collection list --bucket orders");
    let of = |name: &str| {
        let line = listed.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("{listed}"));
        line.split_ascii_whitespace().last().map(str::to_owned)
    };
    assert_eq!((of("_default.kept").as_deref(), of("_default.plain").as_deref()), (Some("yes"), Some("no")));
    run("bucket edit orders --history-bytes 0 --history-seconds 0");
    assert_eq!(history(), "none");
    assert_eq!(field(&run("bucket show default"), "history"), "none");
    for line in ["bucket edit default --history-seconds 60", "collection add new --history true"] {
        let why = refused(&server, line);
        assert!(why.contains("magma") || why.contains("log-structured"), "{line}: {why}");
    }
}

#[test]
fn a_bucket_that_cannot_be_made_or_changed_is_told_with_what_to_do() {
    let server = TestServer::start();
    for (line, told) in [
        ("bucket show none", "there is no bucket none; `stave bucket list` shows all"),
        ("bucket edit none --flush", "there is no bucket none"),
        ("bucket delete none --yes", "there is no bucket none"),
        ("bucket add default --quota 1GiB", "there is a bucket default already; `stave bucket edit`"),
        ("bucket add orders", "--quota <SIZE>"),
        ("bucket add orders --quota 300", "`300` is not a whole number of MiB"),
        ("bucket add orders --quota 1.5KiB", "is not a size"),
        ("bucket add orders --quota 128MiB --type ephemeral --eviction valueOnly", "ephemeral buckets"),
        (
            "bucket add orders --quota 128MiB --type magma --backend couchstore",
            "--type magma is a bucket in magma, and --backend says couchstore",
        ),
        ("bucket add orders --quota 128MiB --replicas 4", "Replica number larger than 3"),
        ("bucket add .orders --quota 128MiB", "cannot start with dot"),
        ("bucket edit default", "what is to change? give --quota"),
        ("bucket edit default --flush --no-flush", "cannot be used with"),
        ("bucket edit default --backend magma", "unexpected argument"),
    ] {
        let why = refused(&server, line);
        assert!(why.contains(told), "{line}: {why}");
    }
}

#[test]
fn documents_are_removed_only_if_that_is_said() {
    let server = TestServer::start();
    let run = |line: &str| said_by(&server, line).unwrap_or_else(|error| panic!("{line}: {error}"));
    server.client().set(b"k", b"v", 0).expect("stored");
    let why = refused(&server, "bucket flush default --yes");
    assert_eq!(why, "bucket default must not be flushed; `stave bucket edit default --flush` allows it");
    let why = refused(&server, "bucket delete default");
    assert_eq!(why, "deleting bucket default removes its 1 document for good; add --yes to do it");
    run("bucket add cache --quota 100MiB --flush");
    assert!(refused(&server, "bucket flush cache").contains("0 documents for good; add --yes"));
    assert_eq!(run("bucket flush cache --yes"), "all documents of bucket cache were removed\n");
    assert!(server.client().get(b"k").expect("an answer").is_some());
}

#[test]
fn scopes_and_collections_come_and_go() {
    let server = TestServer::start();
    let run = |line: &str| said_by(&server, line).unwrap_or_else(|error| panic!("{line}: {error}"));
    assert_eq!(run("scope list"), "SCOPE     COLLECTIONS\n_default  _default\n");
    assert_eq!(run("scope add shop"), "scope shop was added\n");
    assert_eq!(run("collection add shop.carts --max-ttl 60"), "collection shop.carts was added\n");
    assert_eq!(run("collection add shop.kept --max-ttl -1"), "collection shop.kept was added\n");
    assert_eq!(run("collection add plain"), "collection _default.plain was added\n");
    let scopes = run("scope list --bucket default");
    assert!(scopes.lines().any(|line| line == "shop      carts,kept"), "{scopes}");
    let listed = run("collection list");
    for line in [
        "COLLECTION         MAX TTL        NUMBER  HISTORY",
        "_default._default  of the bucket  0x0     no",
        "_default.plain     of the bucket  0xa     no",
        "shop.carts         60 s           0x8     no",
        "shop.kept          none           0x9     no",
    ] {
        assert!(listed.lines().any(|told| told == line), "{line}: {listed}");
    }
    let json: Value = serde_json::from_str(&run("collection list --json")).expect("JSON");
    assert_eq!(json["scopes"].as_array().map(Vec::len), Some(2));

    for (line, told) in [
        ("scope add shop", "there is a scope shop in bucket default already"),
        ("scope delete none --yes", "there is no scope none in bucket default; `stave scope list"),
        ("scope delete shop", "removes its 2 collections with all documents for good; add --yes"),
        ("scope list --bucket none", "there is no bucket none; `stave bucket list`"),
        ("scope add _shop", "not begin with _"),
        ("collection add shop.carts", "there is a collection shop.carts in bucket default already"),
        ("collection add new.carts", "`stave scope add new --bucket default` makes it"),
        ("collection add a.b.c", "`a.b.c` is no collection; write SCOPE.NAME"),
        ("collection delete shop.none --yes", "there is no collection shop.none in bucket default"),
        ("collection delete shop.carts", "removes its documents for good; add --yes"),
    ] {
        let why = refused(&server, line);
        assert!(why.contains(told), "{line}: {why}");
    }
    assert_eq!(run("collection delete shop.carts --yes"), "collection shop.carts was deleted\n");
    assert_eq!(run("scope delete shop --yes"), "scope shop was deleted\n");
    assert_eq!(run("scope list"), "SCOPE     COLLECTIONS\n_default  _default,plain\n");
}

#[test]
fn figures_that_lack_a_node_are_marked() {
    let bucket = |missing: Value| serde_json::json!({ "name": "a", "basicStats": { "itemCount": 7 }, "nodesWithoutFigures": missing });
    let marked =
        list(&serde_json::json!([bucket(serde_json::json!(["h:1"])), bucket(serde_json::json!(["h:1"]))]));
    let last = marked.lines().last().expect("a line");
    assert!(last.starts_with("incomplete: documents, memory and disk lack those of h:1, which"), "{marked}");
    assert!(describe(&bucket(serde_json::json!(["h:1"]))).contains("incomplete: "));
    assert!(!list(&serde_json::json!([bucket(Value::Null)])).contains("incomplete"));
}

#[test]
fn what_is_doubtful_is_done_with_a_warning() {
    let server = TestServer::start();
    let run = |line: &str| said_by(&server, line).unwrap_or_else(|error| panic!("{line}: {error}"));
    let told = run("bucket add tiny --quota 1MiB --replicas 0");
    assert!(told.starts_with("bucket tiny was added; warning: a document may have 20 MiB"), "{told}");
    run("bucket delete tiny --yes");
    let told = run("bucket add many --quota 100MiB --replicas 2");
    assert!(
        told.starts_with("bucket many was added; warning: there are too few nodes (1) for 2 replicas"),
        "{told}"
    );
    run("bucket delete many --yes");
    // The next start takes it from the configuration again.
    let told = run("bucket edit default --max-ttl 60");
    assert!(told.starts_with("bucket default was changed; warning: only until the node stops"), "{told}");
}
