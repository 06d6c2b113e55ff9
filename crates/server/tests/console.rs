//! The console's files and the addresses that it alone asks: documents, groups of stats, samples.
#![allow(clippy::disallowed_methods, reason = "this is a client, outside the server")]

#[path = "support/mod.rs"]
mod support;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

use base64::Engine;
use serde_json::{Value, json};
use support::start;

const USERS: &str = r#"
[[user]]
name = "reader"
password = "password"
role = "data_reader[default:things:small]"
[[user]]
name = "nobody"
password = "password"
role = "external_stats_reader"
"#;

/// An answer: status, head in lower case, body.
struct Answer(u16, String, String);

impl Answer {
    fn json(&self) -> Value {
        assert_eq!(self.0, 200, "{}", self.2);
        serde_json::from_str(&self.2).expect("JSON")
    }
}

/// Asks as a user; without a name, as nobody.
fn ask(
    addr: SocketAddr,
    user: &str,
    method: &str,
    path: &str,
    fields: &[(&str, &str)],
    body: &str,
) -> Answer {
    let encoded = base64::engine::general_purpose::STANDARD.encode(format!("{user}:password"));
    let mut head = format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n");
    if !user.is_empty() {
        head += &format!("Authorization: Basic {encoded}\r\n");
    }
    fields.iter().for_each(|(name, value)| head += &format!("{name}: {value}\r\n"));
    let mut stream = TcpStream::connect(addr).expect("the server listens");
    write!(stream, "{head}Content-Length: {}\r\n\r\n{body}", body.len()).expect("the server takes it");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer in text");
    let (head, body) = answer.split_once("\r\n\r\n").expect("head and body");
    let code = head.split(' ').nth(1).and_then(|code| code.parse().ok()).expect("a status code");
    Answer(code, head.to_ascii_lowercase(), body.to_owned())
}

#[test]
fn files_come_without_a_user_and_nothing_else_does() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = start(folder.path(), "");
    let get = |path: &str| ask(server.http_addr(), "", "GET", path, &[], "");
    for (path, kind) in [
        ("/ui", "text/html"),
        ("/ui/", "text/html"),
        ("/ui/index.html", "text/html"),
        ("/ui/app.js", "text/javascript"),
        ("/ui/style.css", "text/css"),
        ("/ui/icon.svg", "image/svg+xml"),
    ] {
        let Answer(code, head, body) = get(path);
        assert_eq!(code, 200, "{path}");
        for field in [
            &format!("content-type: {kind}"),
            "content-security-policy: default-src 'none'; script-src 'self'; style-src 'self';",
            "x-content-type-options: nosniff",
            "cache-control: no-cache",
            "etag: \"",
        ] {
            assert!(head.contains(field), "{path}: {field} is not in {head}");
        }
        assert!(!body.is_empty(), "{path}");
    }
    for path in ["/ui/mod.rs", "/ui/../ui.rs", "/ui/%2e%2e%2fui.rs", "/ui/APP.JS", "/ui/app.js%00"] {
        assert_eq!(get(path).0, 404, "{path}");
    }
    for path in [
        "/whoami",
        "/v1/buckets/default/document?key=k",
        "/v1/buckets/default/documents",
        "/v1/buckets/default/stats/timings",
        "/v1/buckets/default/samples",
        "/v1/samples/default/0",
    ] {
        assert_eq!(get(path).0, 401, "{path}");
    }
    // Pages of other sites do not even get the files.
    let other = [("Origin", "http://evil.example")];
    assert_eq!(ask(server.http_addr(), "", "GET", "/ui/app.js", &other, "").0, 403);
    server.stop().expect("a clean stop");
}

#[test]
fn documents_are_stored_read_listed_and_deleted() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = start(folder.path(), "");
    let ask = |method: &str, path: &str, fields: &[(&str, &str)], body: &str| {
        ask(server.http_addr(), "Administrator", method, path, fields, body)
    };
    let one = "/v1/buckets/default/document?key=a%2Fb%20c";
    let absent = [("If-None-Match", "*")];
    assert_eq!(ask("GET", one, &[], "").0, 404);
    assert_eq!(ask("PUT", one, &[], "{}").0, 428, "it says what the document must be");
    let made = ask("PUT", one, &absent, r#"{"n": 1}"#).json();
    assert_eq!(ask("PUT", one, &absent, "{}").0, 409, "it is there");
    let read = ask("GET", one, &[], "").json();
    assert_eq!(
        (&read["text"], &read["cas"], &read["isJson"]),
        (&json!(r#"{"n": 1}"#), &made["cas"], &json!(true))
    );
    assert_eq!((&read["key"], &read["meta"]["flags"]), (&json!("a/b c"), &json!(0x0200_0000)));
    let cas = made["cas"].as_str().expect("text").to_owned();
    let changed = ask("PUT", one, &[("If-Match", &cas)], r#"{"n": 2}"#).json();
    assert_ne!(changed["cas"], made["cas"]);
    assert_eq!(ask("PUT", one, &[("If-Match", &cas)], "{}").0, 409, "it was changed meanwhile");
    let read = ask("GET", one, &[], "").json();
    assert_eq!((&read["text"], &read["meta"]["flags"]), (&json!(r#"{"n": 2}"#), &json!(0x0200_0000)));
    assert_eq!(ask("DELETE", one, &[("If-Match", &cas)], "").0, 409);
    let cas = changed["cas"].as_str().expect("text").to_owned();
    ask("DELETE", one, &[("If-Match", &cas)], "").json();
    assert_eq!(ask("GET", one, &[], "").0, 404);
    for (path, code) in [
        ("/v1/buckets/default/document?key=", 400),
        ("/v1/buckets/default/document", 400),
        ("/v1/buckets/default/document?key=k&collection=none", 404),
        ("/v1/buckets/none/document?key=k", 404),
        ("/v1/buckets/default/documents?from=9.", 400),
        (&format!("/v1/buckets/default/documents?prefix={}", "k".repeat(251)), 400),
        (&format!("/v1/buckets/default/document?key={}", "k".repeat(251)), 400),
    ] {
        assert_eq!(ask("GET", path, &[], "").0, code, "{path}");
    }
    let expires = "/v1/buckets/default/document?key=e&expiry=1000";
    ask("PUT", expires, &absent, "not json").json();
    let read = ask("GET", "/v1/buckets/default/document?key=e", &[], "").json();
    assert_eq!((&read["isJson"], &read["text"]), (&json!(false), &json!("not json")));
    let expiry = read["meta"]["exptime"].clone();
    assert_ne!(expiry, json!(0));
    let cas = read["cas"].as_str().expect("text").to_owned();
    ask("PUT", "/v1/buckets/default/document?key=e", &[("If-Match", &cas)], "other").json();
    let read = ask("GET", "/v1/buckets/default/document?key=e", &[], "").json();
    assert_eq!(read["meta"]["exptime"], expiry, "it stays");
    server.stop().expect("a clean stop");
}

#[test]
fn pages_of_keys_follow_each_other() {
    let folder = tempfile::tempdir().expect("a folder");
    let run = || start(folder.path(), "");
    let server = run();
    for number in 0..30 {
        let path = format!("/v1/buckets/default/document?key=k{number:02}");
        ask(server.http_addr(), "Administrator", "PUT", &path, &[("If-None-Match", "*")], "{}").json();
    }
    let longest = "z".repeat(250);
    let path = format!("/v1/buckets/default/document?key={longest}");
    ask(server.http_addr(), "Administrator", "PUT", &path, &[("If-None-Match", "*")], "{}").json();
    // A stop saves all of them.
    server.stop().expect("a clean stop");
    let server = run();
    let mut found = Vec::new();
    let mut from = String::new();
    for _ in 0..30 {
        let path = format!("/v1/buckets/default/documents?prefix=k&limit=7{from}");
        let page = ask(server.http_addr(), "Administrator", "GET", &path, &[], "").json();
        let keys = page["keys"].as_array().expect("keys");
        assert!(keys.len() <= 7);
        found.extend(keys.iter().map(|key| key["key"].as_str().expect("text").to_owned()));
        match page["next"].as_str() {
            Some(next) => from = format!("&from={}", next.replace('=', "%3D").replace('+', "%2B")),
            None => break,
        }
    }
    found.sort();
    assert_eq!(found, (0..30).map(|number| format!("k{number:02}")).collect::<Vec<_>>());
    let other =
        ask(server.http_addr(), "Administrator", "GET", "/v1/buckets/default/documents?prefix=x", &[], "");
    assert_eq!(other.json()["keys"], json!([]));
    for prefix in ["z", &longest] {
        let path = format!("/v1/buckets/default/documents?prefix={prefix}");
        let page = ask(server.http_addr(), "Administrator", "GET", &path, &[], "").json();
        assert_eq!((&page["keys"][0]["key"], &page["next"]), (&json!(longest), &json!(null)));
    }
    server.stop().expect("a clean stop");
}

#[test]
fn rights_in_a_collection_are_those_of_the_kv_protocol() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = start(folder.path(), USERS);
    let ask = |user: &str, method: &str, path: &str, fields: &[(&str, &str)], body: &str| {
        ask(server.http_addr(), user, method, path, fields, body)
    };
    let scopes = "/pools/default/buckets/default/scopes";
    assert_eq!(ask("Administrator", "POST", scopes, &[], "name=things").0, 200);
    assert_eq!(
        ask("Administrator", "POST", &format!("{scopes}/things/collections"), &[], "name=small").0,
        200
    );
    let there = "/v1/buckets/default/document?key=k&scope=things&collection=small";
    let made = ask("Administrator", "PUT", there, &[("If-None-Match", "*")], "{}").json();
    let cas = made["cas"].as_str().expect("text").to_owned();
    assert_eq!(ask("reader", "GET", there, &[], "").json()["cas"], made["cas"]);
    let elsewhere = "/v1/buckets/default/document?key=k";
    assert_eq!(ask("reader", "GET", elsewhere, &[], "").0, 404, "that collection is hidden");
    assert_eq!(ask("reader", "PUT", there, &[("If-Match", &cas)], "{}").0, 403);
    assert_eq!(ask("reader", "DELETE", there, &[("If-Match", &cas)], "").0, 403);
    assert_eq!(ask("reader", "GET", "/v1/buckets/default/stats/timings", &[], "").0, 403);
    let long = format!("/v1/buckets/default/document?scope=things&collection=small&key={}", "k".repeat(247));
    assert_eq!(ask("reader", "GET", &long, &[], "").0, 400, "keys are shorter in collections with names");
    let hidden = "/v1/buckets/default/documents?scope=_default&collection=_default";
    assert_eq!(ask("reader", "GET", hidden, &[], "").0, 404);
    for path in [there, "/v1/buckets/default/samples", "/v1/buckets/default/stats/uuid"] {
        assert_eq!(
            ask("nobody", "GET", path, &[], "").0,
            404,
            "{path}: a bucket that the user may not select"
        );
    }
    server.stop().expect("a clean stop");
}

#[test]
fn groups_of_stats_and_samples_are_told() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = start(folder.path(), "");
    let get = |path: &str| ask(server.http_addr(), "Administrator", "GET", path, &[], "");
    let told = get("/v1/buckets/default/stats/vbucket").json();
    let stats = told["stats"].as_array().expect("stats");
    assert_eq!(stats.len(), usize::from(support::VBUCKETS), "{told}");
    assert_eq!(told["node"], "n_0");
    assert_eq!(
        get("/v1/buckets/default/stats/vbucket%201?node=n_0").json()["stats"].as_array().map(Vec::len),
        Some(1)
    );
    for (path, code) in [
        ("/v1/buckets/default/stats/none", 404),
        ("/v1/buckets/default/stats/reset", 400),
        ("/v1/buckets/default/stats/%20reset%20timings", 400),
        ("/v1/buckets/default/stats/timings?node=n_7", 404),
        ("/v1/buckets/default/samples?node=n_7", 404),
        ("/v1/buckets/none/samples", 404),
    ] {
        assert_eq!(get(path).0, code, "{path}");
    }
    assert_eq!(get("/v1/buckets/default/samples").json()["everyS"], 5);
    for path in [
        "/logs?limit=abc",
        "/v1/buckets/default/samples?since=abc",
        "/v1/buckets/default/document",
        "/v1/buckets/default/document?key=k&expiry=abc",
    ] {
        let Answer(code, _, body) = get(path);
        let told: Value = serde_json::from_str(&body).expect("JSON");
        assert!(code == 400 && told["errors"]["_"].is_string(), "{path}: {code} {body}");
    }
    server.stop().expect("a clean stop");
}
