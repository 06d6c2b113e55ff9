//! The command against a node in the same process.

use base::VbId;
use base::env::Env;
use base::vbucket_map::vbucket_of;
use protocol::{RequestParts, Status, opcode};

use super::*;
use crate::client::dcp::{Session, follow};
use crate::test_server::{BUCKET, NOT_INTERRUPTED, TestServer};

fn flags(server: &TestServer) -> DcpTailFlags {
    DcpTailFlags {
        bucket: BUCKET.to_owned(),
        from: From::Start,
        vbucket: None,
        collections: Vec::new(),
        keys_only: false,
        history: false,
        count: None,
        json: false,
        node: server.flags(),
    }
}

fn lines(flags: &DcpTailFlags) -> Vec<String> {
    let mut out = Vec::new();
    tail(&Env::real(), flags, &NOT_INTERRUPTED, &mut out, &mut |_| ()).expect("it ends");
    let mut lines: Vec<String> = String::from_utf8(out).expect("text").lines().map(str::to_owned).collect();
    lines.sort();
    lines
}

#[test]
fn prints_changes_from_the_start() {
    let mut server = TestServer::start();
    let mut client = server.client();
    client.set(b"a", br#"{"n":1}"#, 0).expect("stored");
    client.set(b"b", &[0xff, 0], 0).expect("stored");
    client.set(b"c", b"x", 0).expect("stored");
    client.delete(b"c").expect("there");
    let vb = |key: &[u8]| vbucket_of(key, 4);
    let text = lines(&DcpTailFlags { count: Some(3), ..flags(&server) });
    assert_eq!(text.len(), 3);
    assert!(text[0].starts_with("deletion") && text[0].ends_with("  c"), "{text:?}");
    assert!(text[1].contains(&format!(" {} ", vb(b"a"))) || text[2].contains(&format!(" {} ", vb(b"a"))));
    assert!(text.iter().any(|line| line.ends_with(r#"  a  {"n":1}"#)), "{text:?}");
    assert!(text.iter().any(|line| line.ends_with("  b  (2 bytes)")), "{text:?}");
    let json = lines(&DcpTailFlags { count: Some(3), json: true, ..flags(&server) });
    let json: Vec<serde_json::Value> =
        json.iter().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let of = |key: &str| json.iter().find(|line| line["key"] == key).expect("a line").clone();
    assert_eq!((&of("a")["value"]["n"], &of("b")["value_base64"]), (&1.into(), &"/wA=".into()));
    assert_eq!((&of("c")["event"], &of("a")["vbucket"]), (&"deletion".into(), &vb(b"a").0.into()));
    let keys = lines(&DcpTailFlags { count: Some(3), json: true, keys_only: true, ..flags(&server) });
    assert!(keys.iter().all(|line| !line.contains("value")), "{keys:?}");
    server.stop();
}

#[test]
fn begins_at_a_seqno_of_a_vbucket_or_in_a_collection() {
    let mut server = TestServer::start();
    let mut client = server.client();
    for value in ["1", "2", "3"] {
        client.set(b"a", value.as_bytes(), 0).expect("stored");
    }
    client.set(b"elsewhere", b"4", 0).expect("stored");
    let vbucket = Some(vbucket_of(b"a", 4).0);
    let after = DcpTailFlags { from: From::Seqno(2), vbucket, count: Some(1), ..flags(&server) };
    let seen = lines(&after);
    assert!(seen.len() == 1 && seen[0].ends_with("  a  3"), "{seen:?}");
    let default = vec!["_default".to_owned()];
    assert_eq!(lines(&DcpTailFlags { collections: default, count: Some(2), ..flags(&server) }).len(), 2);
    let refused = |flags: &DcpTailFlags| {
        let tailed = tail(&Env::real(), flags, &NOT_INTERRUPTED, &mut Vec::new(), &mut |_| ());
        tailed.expect_err("refused").to_string()
    };
    assert!(refused(&DcpTailFlags { vbucket: None, ..after.clone() }).contains("--vbucket"));
    assert!(
        refused(&DcpTailFlags { vbucket: Some(9), ..after.clone() })
            .contains("there is no vBucket 9: the last one is 3")
    );
    let unknown = DcpTailFlags { collections: vec!["nowhere".into()], ..flags(&server) };
    assert!(refused(&unknown).contains("nowhere"));
    server.stop();
}

#[test]
fn every_version_of_a_history_is_shown_if_it_is_asked_for() {
    let mut server = TestServer::start();
    let fields = [
        ("name", "orders"),
        ("ramQuota", "128"),
        ("storageBackend", "magma"),
        ("historyRetentionSeconds", "3600"),
        ("replicaNumber", "0"),
    ];
    server.http_target().form("/pools/default/buckets", &fields).expect("the bucket is made");
    let target = server.flags().target("orders", Dialect::Couchbase).expect("a password");
    let mut client = Client::open(&Env::real(), &target).expect("the node lets us in");
    for value in ["1", "2", "3"] {
        client.set(b"a", value.as_bytes(), 0).expect("stored");
    }
    let vbucket = Some(vbucket_of(b"a", 4).0);
    let of_bucket = DcpTailFlags { bucket: "orders".to_owned(), vbucket, history: true, ..flags(&server) };
    let seen = lines(&DcpTailFlags { count: Some(3), ..of_bucket });
    let ends: Vec<bool> = seen
        .iter()
        .zip(["1", "2", "3"])
        .map(|(line, value)| line.ends_with(&format!("  a  {value}")))
        .collect();
    assert_eq!(ends, [true; 3], "{seen:?}");
    // A bucket in couchstore files keeps none.
    let refused = DcpTailFlags { history: true, count: Some(1), ..flags(&server) };
    let why = tail(&Env::real(), &refused, &NOT_INTERRUPTED, &mut Vec::new(), &mut |_| ());
    let why = why.expect_err("refused");
    assert!(why.is::<WrongArguments>() && why.to_string().contains("leave --history out"), "{why}");
    server.stop();
}

#[test]
fn collections_are_shown_by_name() {
    let mut server = TestServer::start();
    let mut client = server.client();
    let manifest = br#"{"uid": "2", "scopes": [
        {"name": "_default", "uid": "0", "collections": [{"name": "_default", "uid": "0"}]},
        {"name": "shop", "uid": "8", "collections": [{"name": "orders", "uid": "9"}]}]}"#;
    let parts =
        RequestParts { opcode: opcode::SET_COLLECTIONS_MANIFEST, value: manifest, ..RequestParts::default() };
    assert!(client.request("manifest", parts).expect("an answer").is(Status::Success));
    let id = client.collection_id("shop.orders").expect("it is there");
    client.use_collection(id);
    client.set(b"a", b"{}", 0).expect("stored");
    for missing in ["shop.bills", "nowhere.bills"] {
        let refused = client.collection_id(missing).expect_err("it is not there").to_string();
        assert!(
            refused.starts_with(&format!("there is no collection `{missing}` in the bucket; ")),
            "{refused}"
        );
    }
    let vbucket = Some(vbucket_of(b"a", 4).0);
    let all = DcpTailFlags { vbucket, count: Some(3), ..flags(&server) };
    let text = lines(&all);
    assert!(text[0].ends_with("  shop.orders:a  {}"), "{text:?}");
    assert!(text[1].ends_with("  scope created shop"), "{text:?}");
    assert!(text[2].ends_with("  collection created shop.orders"), "{text:?}");
    let json = lines(&DcpTailFlags { json: true, ..all.clone() });
    let json: Vec<serde_json::Value> =
        json.iter().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let of = |event: &str| json.iter().find(|line| line["event"] == event).expect("a line").clone();
    assert_eq!(
        (&of("mutation")["collection_name"], &of("mutation")["key"]),
        (&"shop.orders".into(), &"a".into())
    );
    assert!(json.iter().any(|line| line["change"] == "collection_created" && line["collection"] == "9"));
    // The names are known, too, to whoever was not there when they were made.
    let collections = vec!["shop.orders".to_owned()];
    let from = From::Seqno(2);
    assert_eq!(lines(&DcpTailFlags { from, collections, count: Some(1), ..all }), text[..1]);
    server.stop();
}

/// Writes when it is idle for the first time, restarts the node then, and ends when it is told to.
#[test]
fn now_means_what_comes_after() {
    let mut server = TestServer::start();
    let mut client = server.client();
    client.set(b"before", b"1", 0).expect("stored");
    let flags = DcpTailFlags { from: From::Now, count: Some(1), ..flags(&server) };
    let target = server.target();
    let (mut out, mut said) = (Vec::new(), |_: &str| ());
    let (wishes, starts, tail) =
        begin(&Env::real(), &flags, &target, &NOT_INTERRUPTED, &mut out, &mut said).expect("begun");
    client.set(b"after", b"2", 0).expect("stored");
    let mut tail = tail;
    follow_everywhere(&Env::real(), &target, &wishes, starts, None, &mut tail).expect("it ends");
    let text = String::from_utf8(out).expect("text");
    assert!(text.ends_with("  after  2\n") && text.lines().count() == 1, "{text}");
    server.stop();
}

#[test]
fn goes_on_after_the_node_was_restarted() {
    let mut server = TestServer::start();
    let mut client = server.client();
    client.set(b"a", b"1", 0).expect("stored");
    let vb: VbId = vbucket_of(b"a", 4);
    let flags = DcpTailFlags { count: Some(1), ..flags(&server) };
    let run = |session: &mut Option<Session>, server: &TestServer| {
        let target = server.target();
        let (mut out, mut said) = (Vec::new(), |_: &str| ());
        let (wishes, starts, mut tail) =
            begin(&Env::real(), &flags, &target, &NOT_INTERRUPTED, &mut out, &mut said).expect("begun");
        let session = session.get_or_insert_with(|| Session::new(wishes, &starts));
        follow(&Env::real(), &target, session, &mut tail).expect("it ends");
        String::from_utf8(out).expect("text")
    };
    let mut session = None;
    assert!(run(&mut session, &server).ends_with("  a  1\n"));
    server.restart();
    server.client().set(b"a", b"2", 0).expect("stored");
    let text = run(&mut session, &server);
    assert!(text.ends_with("  a  2\n") && text.lines().count() == 1, "{text}");
    let position = session.as_ref().and_then(|session| session.position(vb)).expect("it is followed");
    assert_eq!(position.seqno.0, 2);
    server.stop();
}

#[test]
fn ends_when_it_is_told_to() {
    let mut server = TestServer::start();
    let interrupted = std::sync::atomic::AtomicBool::new(true);
    let mut out = Vec::new();
    let flags = flags(&server);
    tail(&Env::real(), &flags, &interrupted, &mut out, &mut |_| ()).expect("a clean end");
    assert!(out.is_empty());
    server.stop();
}
