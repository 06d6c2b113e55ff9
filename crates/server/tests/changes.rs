//! Changes over HTTP: events, positions, cursors, rollback, and who may read them.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "this is a client, outside the server"
)]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;

use base::env::Env;
use base::vbucket_map::vbucket_of;
use base::{Cas, Datatype, DocKey, VbId, VbState};
use engine::{StoreMode, StoreRequest};
use node::{Config, Settings};
use serde_json::Value;
use server::Server;

const CONFIG: &str = r#"
kv = "127.0.0.1:0"
http = "127.0.0.1:0"
password = "password"
vbuckets = 4

[[user]]
name = "reader"
password = "password"
role = "read-only"
"#;
/// "Administrator:password"
const ADMIN: &str = "Basic QWRtaW5pc3RyYXRvcjpwYXNzd29yZA==";
/// "reader:password"
const READER: &str = "Basic cmVhZGVyOnBhc3N3b3Jk";

fn start(folder: &Path) -> Server {
    start_with(folder, CONFIG)
}

fn start_with(folder: &Path, config: &str) -> Server {
    let settings = Settings::parse(config).expect("valid settings");
    let config = Config::new(settings, folder.to_owned(), 1, String::new).expect("a valid configuration");
    server::serve(config, Env::real()).expect("the node starts")
}

fn set(server: &Server, key: &str, value: &str) -> VbId {
    let bucket = server.node().bucket("default").expect("it is served");
    let vb = vbucket_of(key.as_bytes(), bucket.vbuckets());
    let is_json = serde_json::from_str::<Value>(value).is_ok();
    let request = StoreRequest {
        key: DocKey::new(key.as_bytes()),
        body: value.as_bytes(),
        datatype: if is_json { Datatype::JSON } else { Datatype::RAW },
        flags: 0,
        expiry: 0,
        mode: StoreMode::Set,
        cas: Cas::ANY,
        preserve_expiry: false,
    };
    bucket.documents().store(vb, &request, bucket.now()).expect("stored");
    vb
}

/// An answer that is read line by line: the chunks of its body are put together.
struct Answer {
    status: u16,
    head: String,
    reader: BufReader<Unchunked>,
}

struct Unchunked {
    stream: BufReader<TcpStream>,
    chunk_left: usize,
    is_chunked: bool,
}

impl Read for Unchunked {
    fn read(&mut self, buf: &mut [u8]) -> std::io::Result<usize> {
        if !self.is_chunked {
            return self.stream.read(buf);
        }
        if self.chunk_left == 0 {
            let mut size = String::new();
            while size.trim().is_empty() {
                size.clear();
                if self.stream.read_line(&mut size)? == 0 {
                    return Ok(0);
                }
            }
            self.chunk_left = usize::from_str_radix(size.trim(), 16).expect("a chunk's size");
            if self.chunk_left == 0 {
                return Ok(0);
            }
        }
        let most = buf.len().min(self.chunk_left);
        let count = self.stream.read(&mut buf[..most])?;
        self.chunk_left -= count;
        Ok(count)
    }
}

fn ask(server: &Server, method: &str, path: &str, authorization: &str, body: &str) -> Answer {
    ask_with(server, method, path, &format!("Authorization: {authorization}"), body)
}

fn ask_with(server: &Server, method: &str, path: &str, headers: &str, body: &str) -> Answer {
    let mut stream = TcpStream::connect(server.http_addr()).expect("the server listens");
    let request = format!(
        "{method} /v1/buckets/{path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{headers}\r\n\
         Content-Length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes()).expect("the server takes it");
    let mut stream = BufReader::new(stream);
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        assert!(stream.read_line(&mut head).expect("a head") > 0, "{head}");
    }
    let status = head.split(' ').nth(1).and_then(|code| code.parse().ok()).expect("a status");
    let is_chunked = head.to_ascii_lowercase().contains("transfer-encoding: chunked");
    let reader = BufReader::new(Unchunked { stream, chunk_left: 0, is_chunked });
    Answer { status, head, reader }
}

impl Answer {
    fn text(mut self) -> String {
        let mut text = String::new();
        self.reader.read_to_string(&mut text).expect("text");
        text
    }

    fn event(&mut self) -> Value {
        let mut line = String::new();
        assert!(self.reader.read_line(&mut line).expect("a line") > 0, "it ended");
        serde_json::from_str(&line).expect("JSON")
    }

    /// The next event with this name.
    fn next(&mut self, name: &str) -> Value {
        loop {
            let event = self.event();
            if event["event"] == name {
                return event;
            }
        }
    }
}

fn get(server: &Server, path: &str) -> Answer {
    ask(server, "GET", path, ADMIN, "")
}

/// Everything up to now, and the last position.
fn all(server: &Server, query: &str) -> (Vec<Value>, String) {
    let text = get(server, &format!("default/changes?follow=false{query}")).text();
    let mut events: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let last = events.iter().rposition(|event| event["event"] == "position").expect("a position");
    let token = events[last]["token"].as_str().expect("a token").to_owned();
    events.retain(|event| event["event"] != "position");
    (events, token)
}

fn keys(events: &[Value]) -> Vec<&str> {
    let mut keys: Vec<&str> = events.iter().filter_map(|event| event["key"].as_str()).collect();
    keys.sort_unstable();
    keys
}

#[test]
fn everything_then_only_what_is_new() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = start(folder.path());
    let vb = set(&server, "a", r#"{"n":1}"#);
    set(&server, "b", "plain");
    let (events, token) = all(&server, "&include=values");
    assert_eq!(keys(&events), ["a", "b"]);
    let of = |key: &str| events.iter().find(|event| event["key"] == key).expect("an event");
    assert_eq!((&of("a")["value"]["n"], &of("b")["value_base64"]), (&1.into(), &"cGxhaW4=".into()));
    assert_eq!((&of("a")["vbucket"], &of("a")["seqno"]), (&vb.0.into(), &1.into()));
    assert!(all(&server, "").0.iter().all(|event| event.get("value").is_none()));
    // Up to here the reader has everything, also after a restart.
    assert!(all(&server, &format!("&since={token}")).0.is_empty());
    server.stop().expect("a clean stop");
    let server = start(folder.path());
    set(&server, "c", "1");
    assert_eq!(keys(&all(&server, &format!("&since={token}")).0), ["c"]);
    assert_eq!(keys(&all(&server, "&collections=_default").0), ["a", "b", "c"]);
    assert!(all(&server, "&since=now").0.is_empty());
    server.stop().expect("a clean stop");
}

#[test]
fn every_version_comes_with_the_history() {
    let folder = tempfile::tempdir().expect("a folder");
    let history = "[bucket.settings]\nhistory_retention_seconds = 600\n";
    let log = format!("[[bucket]]\nname = \"default\"\nquota = \"100MiB\"\ntype = \"magma\"\n{history}");
    let config = format!("{CONFIG}{log}[[bucket]]\nname = \"plain\"\n");
    let server = start_with(folder.path(), &config);
    for at in 0..5 {
        set(&server, "a", &at.to_string());
    }
    set(&server, "b", "7");
    let values = |events: &[Value]| -> Vec<i64> {
        let of_a = events.iter().filter(|event| event["key"] == "a");
        of_a.map(|event| event["value"].as_i64().expect("a number")).collect()
    };
    let (events, token) = all(&server, "&history=true&include=values");
    assert_eq!((values(&events), events.len()), (vec![0, 1, 2, 3, 4], 6));
    assert_eq!(values(&all(&server, "&include=values").0), [4]);
    assert_eq!(values(&all(&server, "&history=false&include=values").0), [4]);
    server.stop().expect("a clean stop");
    let server = start_with(folder.path(), &config);
    for at in 5..8 {
        set(&server, "a", &at.to_string());
    }
    assert_eq!(values(&all(&server, "&history=true&include=values").0), [0, 1, 2, 3, 4, 5, 6, 7]);
    let since = format!("&history=true&include=values&since={token}");
    assert_eq!(values(&all(&server, &since).0), [5, 6, 7]);
    // The clean stop has brought the first versions into the files.
    let files: Value = serde_json::from_str(&get(&server, "default/stats/diskinfo").text()).expect("JSON");
    let told = |name: &str| {
        let all = files["stats"].as_array().expect("a list");
        all.iter().find(|one| one[0] == name).and_then(|one| one[1].as_str()?.parse::<u64>().ok())
    };
    assert!(told("ep_db_history_file_size").is_some_and(|bytes| bytes > 0), "{files}");
    assert!(told("ep_db_history_start_timestamp").is_some_and(|since_s| since_s > 1_700_000_000), "{files}");
    let refused = get(&server, "plain/changes?follow=false&history=true");
    assert_eq!(refused.status, 400);
    assert!(refused.text().contains("storageBackend=magma"));
    server.stop().expect("a clean stop");
}

/// The console shows the history of a document so.
#[test]
fn the_changes_of_one_document_come_alone() {
    let folder = tempfile::tempdir().expect("a folder");
    let history = "[bucket.settings]\nhistory_retention_seconds = 600\n";
    let log = format!("[[bucket]]\nname = \"default\"\nquota = \"100MiB\"\ntype = \"magma\"\n{history}");
    let server = start_with(folder.path(), &format!("{CONFIG}{log}"));
    // Enough that others are in its vBucket.
    for at in 0..40 {
        set(&server, &format!("k{at}"), "1");
    }
    set(&server, "a b", "1");
    let vb = set(&server, "a b", "2");
    let of_it = "&collections=_default._default&key=a%20b";
    let (events, token) = all(&server, &format!("&history=true&include=values{of_it}"));
    let told: Vec<_> = events.iter().map(|event| (event["key"].as_str(), event["value"].as_i64())).collect();
    assert_eq!(told, [(Some("a b"), Some(1)), (Some("a b"), Some(2))]);
    assert!(events.iter().all(|event| event["vbucket"] == vb.0));
    assert_eq!(all(&server, of_it).0.len(), 1, "without its history it comes once");
    set(&server, "a b", "3");
    set(&server, "k1", "2");
    let (events, _) = all(&server, &format!("&history=true&include=values{of_it}&since={token}"));
    assert_eq!((events.len(), &events[0]["value"]), (1, &3.into()), "a position of it is one to go on from");
    assert!(all(&server, "&collections=_default._default&key=none").0.is_empty());
    for (wrong, told) in
        [("key=a", "`key` needs the collection"), ("key=&collections=_default._default", "`key` has 0 bytes")]
    {
        let refused = get(&server, &format!("default/changes?{wrong}"));
        assert_eq!(refused.status, 400, "{wrong}");
        let text = refused.text();
        assert!(text.contains(told), "{text}");
    }
    server.stop().expect("a clean stop");
}

#[test]
fn what_comes_later_is_sent_when_it_comes() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = start(folder.path());
    set(&server, "before", "1");
    let mut following = get(&server, "default/changes?since=now");
    assert_eq!(following.status, 200);
    assert!(following.head.contains("application/x-ndjson"), "{}", following.head);
    following.next("position");
    for at in 0..5 {
        set(&server, &format!("k{at}"), "1");
        assert_eq!(following.next("mutation")["key"], format!("k{at}"));
    }
    let bucket = server.node().bucket("default").expect("it is served");
    let vb = set(&server, "last", "1");
    following.next("mutation");
    bucket.roles().set_vbucket_state(vb, VbState::Dead, None).expect("there is one");
    assert_eq!(following.next("ended")["vbucket"], vb.0);
    // It ends when the node stops.
    server.stop().expect("a clean stop");
    following.text();
}

#[test]
fn server_sent_events_by_what_the_reader_accepts() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = start(folder.path());
    set(&server, "a", "1");
    let answer = get(&server, "default/changes?follow=false&format=sse");
    assert!(answer.head.contains("text/event-stream"), "{}", answer.head);
    let text = answer.text();
    let events: Vec<&str> = text.split("\n\n").filter(|event| !event.is_empty()).collect();
    assert!(events[0].starts_with("event: mutation\ndata: {"), "{text}");
    assert!(events.last().is_some_and(|last| last.starts_with("event: position\nid: ")), "{text}");
    server.stop().expect("a clean stop");
}

#[test]
fn a_position_that_is_not_part_of_history_is_rolled_back_explicitly() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = start(folder.path());
    let vb = set(&server, "a", "1");
    let (_, token) = all(&server, "");
    // Another vBucket takes its place: the history is a new one.
    let bucket = server.node().bucket("default").expect("it is served");
    bucket.roles().set_vbucket_state(vb, VbState::Dead, None).expect("there is one");
    bucket.roles().delete_vbucket(vb).expect("there is one").expect("the disk works");
    bucket.roles().set_vbucket_state(vb, VbState::Active, None).expect("made anew");
    set(&server, "a", "2");
    let (events, token) = all(&server, &format!("&since={token}"));
    assert_eq!((&events[0]["event"], &events[0]["seqno"]), (&"rollback".into(), &0.into()));
    assert_eq!((events[0]["vbucket"].as_u64(), keys(&events)), (Some(vb.0.into()), vec!["a"]));
    assert!(all(&server, &format!("&since={token}")).0.is_empty());
    server.stop().expect("a clean stop");
}

/// As many vBuckets as buckets have: of each a history has a random number, which alone takes eight kilobytes.
#[test]
fn positions_of_a_large_bucket_are_short_and_survive_a_restart() {
    let folder = tempfile::tempdir().expect("a folder");
    let config = CONFIG.replace("vbuckets = 4", "vbuckets = 1024");
    let server = start_with(folder.path(), &config);
    for at in 0..400 {
        set(&server, &format!("k{at}"), "1");
    }
    let (events, token) = all(&server, "");
    assert_eq!(keys(&events).len(), 400);
    assert!(token.len() <= 200, "{} bytes", token.len());
    let (_, whole) = all(&server, "&tokens=whole");
    assert!(whole.len() > 4000, "{} bytes", whole.len());
    assert!(all(&server, &format!("&since={token}")).0.is_empty());
    // It goes on from one token to the next.
    set(&server, "one", "1");
    let (events, next) = all(&server, &format!("&since={token}"));
    assert_eq!(keys(&events), ["one"]);
    assert!(next.len() <= 200 && next != token, "{next}");
    let kept =
        || std::fs::read_dir(folder.path().join("buckets/default/positions")).expect("a folder").count();
    assert_eq!(kept(), 1, "a reader that comes back needs no further one");
    assert_eq!(ask(&server, "PUT", "default/cursors/c", ADMIN, "").status, 201);
    assert_eq!(ask(&server, "POST", "default/cursors/c", ADMIN, &next).status, 204);
    server.stop().expect("a clean stop");
    let server = start_with(folder.path(), &config);
    set(&server, "two", "1");
    assert_eq!(keys(&all(&server, &format!("&since={next}")).0), ["two"]);
    assert_eq!(keys(&all(&server, &format!("&since={token}")).0), ["one", "two"]);
    assert_eq!(keys(&all(&server, "&cursor=c").0), ["two"]);
    // As a browser says where it was.
    let headers = format!("Authorization: {ADMIN}\r\nAccept: text/event-stream\r\nLast-Event-ID: {next}");
    let text = ask_with(&server, "GET", "default/changes?follow=false", &headers, "").text();
    assert_eq!(text.matches("event: mutation").count(), 1, "{text}");
    let id = text.lines().filter_map(|line| line.strip_prefix("id: ")).next_back().expect("an id");
    assert!(id.len() <= 200 && all(&server, &format!("&since={id}")).0.is_empty(), "{id}");
    server.stop().expect("a clean stop");
}

#[test]
fn a_position_that_is_not_kept_is_told_to_be_gone_and_a_damaged_one_is_not_believed() {
    let folder = tempfile::tempdir().expect("a folder");
    let config = CONFIG.replace("vbuckets = 4", "vbuckets = 64");
    let server = start_with(folder.path(), &config);
    for at in 0..200 {
        set(&server, &format!("k{at}"), "1");
    }
    let (_, token) = all(&server, "");
    let kept = folder.path().join("buckets/default/positions");
    let kept: Vec<_> =
        std::fs::read_dir(kept).expect("a folder").map(|entry| entry.expect("an entry").path()).collect();
    assert_eq!(kept.len(), 1);
    let mut text = std::fs::read(&kept[0]).expect("a file");
    text[7] ^= 1;
    std::fs::write(&kept[0], text).expect("written");
    let since = format!("default/changes?follow=false&since={token}");
    assert_eq!(get(&server, &since).status, 500);
    std::fs::remove_file(&kept[0]).expect("it was there");
    let gone = get(&server, &since);
    assert_eq!(gone.status, 410);
    let said = gone.text();
    assert!(said.contains("since=start") && said.contains("cursor"), "{said}");
    server.stop().expect("a clean stop");
}

/// Each reader that comes back goes by the same number, so that it cannot push out what is kept for others.
#[test]
fn kept_positions_are_bounded() {
    let folder = tempfile::tempdir().expect("a folder");
    let config = CONFIG.replace("vbuckets = 4", "vbuckets = 64");
    let server = start_with(folder.path(), &config);
    let change_all = || {
        for at in 0..150 {
            set(&server, &format!("k{at}"), "1");
        }
    };
    change_all();
    let (_, first) = all(&server, "");
    let mut token = first.clone();
    for _ in 0..40 {
        change_all();
        token = all(&server, &format!("&since={token}")).1;
    }
    let kept = std::fs::read_dir(folder.path().join("buckets/default/positions")).expect("a folder").count();
    assert_eq!(kept, 32);
    assert_eq!(get(&server, &format!("default/changes?follow=false&since={first}")).status, 410);
    assert!(all(&server, &format!("&since={token}")).0.is_empty());
    server.stop().expect("a clean stop");
}

#[test]
fn a_change_of_the_manifest_is_one_event() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = start(folder.path());
    let mut following = get(&server, "default/changes?since=now");
    following.next("position");
    let make = |path: &str, body: &str| {
        let mut stream = TcpStream::connect(server.http_addr()).expect("the server listens");
        let request = format!(
            "POST /pools/default/buckets/default/{path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\
             Authorization: {ADMIN}\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        stream.write_all(request.as_bytes()).expect("the server takes it");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    };
    make("scopes", "name=shop");
    make("scopes/shop/collections", "name=orders");
    make("scopes/shop/collections", "name=bills");
    let named = |event: &Value| (event["change"].clone(), event["name"].clone());
    let seen: Vec<_> = (0..3).map(|_| named(&following.next("system"))).collect();
    let expected = [
        ("scope_created", "shop"),
        ("collection_created", "shop.orders"),
        ("collection_created", "shop.bills"),
    ];
    assert_eq!(seen, expected.map(|(change, name)| (change.into(), name.into())));
    drop(following);
    // Also of what lies on the disk: of four vBuckets three events.
    let (events, token) = all(&server, "");
    assert_eq!(events.iter().filter(|event| event["event"] == "system").count(), 3);
    assert!(all(&server, &format!("&since={token}")).0.is_empty());
    server.stop().expect("a clean stop");
}

#[test]
fn cursors_are_kept_for_their_readers() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = start(folder.path());
    set(&server, "a", "1");
    let status = |method: &str, path: &str, body: &str| ask(&server, method, path, ADMIN, body).status;
    assert_eq!(status("GET", "default/cursors/c", ""), 404);
    assert_eq!(status("GET", "default/changes?cursor=c", ""), 404);
    assert_eq!(status("PUT", "default/cursors/c", ""), 201);
    assert_eq!(status("PUT", "default/cursors/c?since=now", ""), 200);
    let (events, token) = all(&server, "&cursor=c");
    assert_eq!(keys(&events), ["a"]);
    assert_eq!(status("POST", "default/cursors/c", "nonsense"), 400);
    assert_eq!(status("POST", "default/cursors/d", &token), 404);
    assert_eq!(status("POST", "default/cursors/c", &token), 204);
    assert_eq!(status("PUT", "default/cursors/d?since=now", ""), 201);
    assert_eq!(get(&server, "default/cursors").text(), r#"{"cursors":["c","d"]}"#);
    server.stop().expect("a clean stop");
    let server = start(folder.path());
    set(&server, "b", "1");
    assert_eq!(keys(&all(&server, "&cursor=c").0), ["b"]);
    let shown: Value = serde_json::from_str(&get(&server, "default/cursors/c").text()).expect("JSON");
    assert_eq!((&shown["name"], &shown["token"]), (&"c".into(), &token.into()));
    let status = |method: &str, path: &str| ask(&server, method, path, ADMIN, "").status;
    assert_eq!((status("DELETE", "default/cursors/c"), status("DELETE", "default/cursors/c")), (204, 404));
    assert_eq!(status("PUT", "default/cursors/.."), 400);
    assert_eq!(status("PUT", "default/cursors/a.b"), 400);
    server.stop().expect("a clean stop");
}

#[test]
fn cursors_are_bounded_in_number() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = start(folder.path());
    let status = |method: &str, path: &str| ask(&server, method, path, ADMIN, "").status;
    assert_eq!(status("PUT", "default/cursors/first"), 201);
    let bucket = server.node().bucket("default").expect("it is there");
    for at in 1..node::changes::cursor::MOST {
        let file = bucket.config().dir.join("cursors").join(format!("c{at}"));
        std::fs::write(file, "").expect("the disk works");
    }
    drop(bucket);
    assert_eq!(status("PUT", "default/cursors/another"), 503);
    assert_eq!(status("PUT", "default/cursors/first"), 200, "it is there");
    assert_eq!(
        (status("DELETE", "default/cursors/c1"), status("PUT", "default/cursors/another")),
        (204, 201)
    );
    server.stop().expect("a clean stop");
}

#[test]
fn not_everybody_may_read_changes_and_not_everything_is_understood() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = start(folder.path());
    let status = |path: &str, who: &str| ask(&server, "GET", path, who, "").status;
    assert_eq!(status("default/changes", "Basic eDp5"), 401);
    assert_eq!(status("default/changes", READER), 403);
    assert_eq!(status("default/cursors/c", READER), 403);
    assert_eq!(status("none/changes", ADMIN), 404);
    for wrong in
        ["since=x", "format=xml", "follow=maybe", "color=red", "collections=none", "since=now&cursor=c"]
    {
        assert_eq!(status(&format!("default/changes?{wrong}"), ADMIN), 400, "{wrong}");
    }
    // What is known is told.
    for (wrong, told) in [
        ("color=red", "there is no parameter `color`: there are since, cursor, nodes, tokens, collections,"),
        ("format=xml", "`format=xml` is not understood: format takes ndjson or sse"),
    ] {
        let text = get(&server, &format!("default/changes?{wrong}")).text();
        assert!(text.contains(told), "{text}");
    }
    server.stop().expect("a clean stop");
}

/// More than all buffers between the two hold: the server makes what is taken, and a reader that leaves is left.
#[test]
fn a_reader_may_be_slow_or_leave() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = start(folder.path());
    let value = "x".repeat(100_000);
    for at in 0..300 {
        set(&server, &format!("k{at}"), &value);
    }
    let left = get(&server, "default/changes?include=values");
    let mut slow = get(&server, "default/changes?include=values");
    drop(left);
    for _ in 0..300 {
        slow.next("mutation");
    }
    server.stop().expect("a clean stop");
}
