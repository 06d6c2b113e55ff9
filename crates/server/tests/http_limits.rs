//! What clients over HTTP may take: places, time, bytes. Whatever they do, others are served.
#![allow(clippy::disallowed_methods, reason = "this is a client, outside the server")]

mod support;

use std::io::{Read, Write};
use std::net::TcpStream;

use protocol::Status;
use server::Server;
use support::{Client, Reach, http, start, start_in, world};

const LOGIN: &str = "Authorization: Basic QWRtaW5pc3RyYXRvcjpwYXNzd29yZA==\r\n";
const HALF: &str = "GET /metrics HTTP/1.1\r\nHost: x\r\n";

fn connect(server: &Server, bytes: &str) -> TcpStream {
    let mut stream = TcpStream::connect(server.http()).expect("the server listens");
    stream.write_all(bytes.as_bytes()).expect("the server takes it");
    stream
}

/// What comes until the server closes the connection; a reset is an end, too.
fn rest(mut stream: TcpStream) -> String {
    let mut received = Vec::new();
    let _ = stream.read_to_end(&mut received);
    String::from_utf8(received).expect("text")
}

/// Reads up to the end of the first answer's head.
fn head(stream: &mut TcpStream) -> String {
    let mut received = Vec::new();
    while !received.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).expect("an answer");
        received.push(byte[0]);
    }
    String::from_utf8(received).expect("text")
}

fn stat(server: &Server, name: &str) -> u64 {
    let metrics = http(server, "GET", "/metrics", "").1;
    let line = metrics.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.and_then(|value| value.parse().ok()).unwrap_or_else(|| panic!("{name}: {metrics}"))
}

#[test]
fn half_sent_requests_keep_nobody_out() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = start(folder.path(), "max-http-connections = 8\nmax-http-connections-per-address = 8");
    let mut kept = Vec::new();
    for _ in 0..10 {
        kept.extend((0..8).map(|_| connect(&server, HALF)));
        assert_eq!(http(&server, "GET", "/healthz", "").0, 200);
        let mut client = Client::connect(&server, "default", &[]);
        assert_eq!(client.set(b"k", b"v"), Some(Status::Success));
    }
    assert!(stat(&server, "stave_http_connections_crowded_out_total") >= 72);
    assert_eq!(stat(&server, "stave_http_connections_refused_total"), 0);
    assert!(stat(&server, "stave_http_connections") <= 8);
    assert_eq!(rest(kept.swap_remove(0)), "");
    server.stop().expect("a clean stop");
}

#[test]
fn all_places_are_taken_by_streams_and_the_next_client_is_told() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = start(folder.path(), "max-http-connections = 3\nmax-http-connections-per-address = 2");
    let ask = format!("GET /pools/default/bs/default HTTP/1.1\r\nHost: x\r\n{LOGIN}\r\n");
    let mut streams = [connect(&server, &ask), connect(&server, &ask)];
    streams.iter_mut().for_each(|stream| assert!(head(stream).starts_with("HTTP/1.1 200 OK")));
    let refused = rest(connect(&server, ""));
    assert!(refused.starts_with("HTTP/1.1 503 ") && refused.contains("from this address"), "{refused}");
    Client::connect(&server, "default", &[]);
    let [one, _other] = streams;
    drop(one);
    // The server has to notice that it went.
    while http_code(&server) != 200 {}
    server.stop().expect("a clean stop");
}

fn http_code(server: &Server) -> u16 {
    let answer = rest(connect(server, "GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"));
    answer.split(' ').nth(1).and_then(|code| code.parse().ok()).unwrap_or(0)
}

#[test]
fn heads_and_bodies_have_a_largest_size() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = start(folder.path(), "");
    let long = format!("GET /healthz HTTP/1.1\r\nHost: x\r\nX: {}", "x".repeat(40 << 10));
    assert!(rest(connect(&server, &long)).starts_with("HTTP/1.1 431 "));
    // However it is cut into pieces, no more than 16 KiB are taken.
    for (bytes, code) in [((16 << 10) - 1, "200"), ((16 << 10) + 1, "431")] {
        let ends = ["GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\nX: ", "\r\n\r\n"];
        let filling = "x".repeat(bytes - ends[0].len() - ends[1].len());
        let answer = rest(connect(&server, &ends.join(&filling)));
        assert!(answer.starts_with(&format!("HTTP/1.1 {code} ")), "{bytes} bytes: {answer}");
    }
    let post = "POST /pools/default/buckets HTTP/1.1\r\nHost: x\r\n";
    let declared = rest(connect(&server, &format!("{post}{LOGIN}Content-Length: 3000000\r\n\r\n")));
    assert!(declared.starts_with("HTTP/1.1 413 ") && declared.contains("2097152"), "{declared}");
    // The body of an unknown user is not waited for.
    let nobody = rest(connect(&server, &format!("{post}Content-Length: 3000000\r\n\r\n")));
    assert!(nobody.starts_with("HTTP/1.1 401 "), "{nobody}");
    assert_eq!(http_code(&server), 200);
    server.stop().expect("a clean stop");
}

/// What hyper holds for a connection is more than a client may have that has not logged in: its body is not waited for with
/// that.
#[test]
fn the_body_of_a_client_without_a_login_comes_with_its_head() {
    let folder = tempfile::tempdir().expect("a folder");
    let (env, clock) = world();
    let server = start_in(env, folder.path(), "");
    let post = |path: &str, fields: &str, body: &str| {
        format!("POST {path} HTTP/1.1\r\nHost: x\r\n{fields}\r\n{body}")
    };
    let answer = |request: &str| rest(connect(&server, request));
    // In pieces, however they are cut.
    let whole = post("/pools/default", "Content-Length: 13\r\n", "memoryQuota=1");
    for cut in 1..whole.len() {
        let (one, other) = whole.split_at(cut);
        let mut stream = connect(&server, one);
        stream.write_all(other.as_bytes()).expect("the server takes it");
        let told = rest(stream);
        assert!(told.starts_with("HTTP/1.1 200 "), "{one:?}: {told}");
    }
    for (path, fields, code) in [
        ("/pools/default", "Content-Length: 4097\r\n", "413"),
        ("/pools/default", "Content-Length: 13\r\nExpect: 100-continue\r\n", "417"),
        ("/pools/default", "Transfer-Encoding: chunked\r\n", "411"),
        ("/settings/web", &format!("X: {}\r\nContent-Length: 4000\r\n", "x".repeat(13 << 10)), "411"),
        ("/v1/promise", "Content-Type: application/json\r\nContent-Length: 2000000\r\n", "413"),
        ("/v1/promise", "Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n", "411"),
        // A name and a password that are not looked at change nothing.
        ("/pools/default", "Authorization: Basic bm9ib2R5OnB3\r\nTransfer-Encoding: chunked\r\n", "411"),
    ] {
        let told = answer(&post(path, fields, ""));
        assert!(told.starts_with(&format!("HTTP/1.1 {code} ")), "{path} {fields}: {told}");
    }
    // Clients that log in have bodies as before.
    let chunks = "b\r\nminLength=6\r\n0\r\n\r\n";
    let fields = format!("{LOGIN}Connection: close\r\nTransfer-Encoding: chunked\r\n");
    let told = answer(&post("/settings/passwordPolicy", &fields, chunks));
    assert!(told.starts_with("HTTP/1.1 200 "), "{told}");
    let late = connect(&server, &post("/pools/default", "Content-Length: 13\r\n", "memory"));
    clock.advance(11);
    assert!(rest(late).starts_with("HTTP/1.1 408 "));
    let told = answer(&post("/livez", "Content-Length: 2000000\r\n", "").replace("POST", "GET"));
    assert!(told.starts_with("HTTP/1.1 413 "), "{told}");
    server.stop().expect("a clean stop");
}

#[test]
fn requests_have_deadlines() {
    let folder = tempfile::tempdir().expect("a folder");
    let (env, clock) = world();
    let server = start_in(env, folder.path(), "");
    let slow_head = connect(&server, HALF);
    let post = "POST /pools/default/buckets HTTP/1.1\r\nHost: x\r\n";
    let slow_body = connect(&server, &format!("{post}{LOGIN}Content-Length: 5000\r\n\r\nname"));
    let ask = format!("GET /pools/default/bs/default HTTP/1.1\r\nHost: x\r\n{LOGIN}\r\n");
    let mut stream = connect(&server, &ask);
    head(&mut stream);
    let mut idle = connect(&server, "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n");
    head(&mut idle);
    clock.advance(11);
    assert!(rest(slow_head).starts_with("HTTP/1.1 408 "));
    clock.advance(20);
    let told = rest(slow_body);
    assert!(told.starts_with("HTTP/1.1 408 ") && told.contains("within 30 seconds"), "{told}");
    clock.advance(30);
    assert_eq!(rest(idle), "ok\n");
    // A stream that has nothing to say is not late.
    stream.set_nonblocking(true).expect("a socket");
    let mut received = [0; 64 << 10];
    let read = loop {
        match stream.read(&mut received) {
            Ok(0) => break Ok(0),
            Ok(_) => {}
            Err(error) => break Err(error.kind()),
        }
    };
    assert_eq!(read, Err(std::io::ErrorKind::WouldBlock));
    assert_eq!(stat(&server, "stave_http_connections_late_total"), 2);
    server.stop().expect("a clean stop");
}

/// Each address that takes a body of a client without a login.
const OPEN: [&str; 5] = [
    "/v1/promise",
    "/node/controller/rename",
    "/node/controller/setupServices",
    "/pools/default",
    "/settings/web",
];

/// A client that sends part of a body keeps no other client out, has a deadline, and may send 4 KiB.
#[test]
fn bodies_of_clients_without_a_login_are_bounded() {
    let folder = tempfile::tempdir().expect("a folder");
    let (env, clock) = world();
    let server =
        start_in(env, folder.path(), "max-http-connections = 8\nmax-http-connections-per-address = 8");
    let post = |path: &str, bytes: usize| {
        let kind = "Content-Type: application/json";
        format!("POST {path} HTTP/1.1\r\nHost: x\r\n{kind}\r\nContent-Length: {bytes}\r\n\r\n{{")
    };
    for path in OPEN {
        let answer = rest(connect(&server, &post(path, 5_000)));
        assert!(answer.starts_with("HTTP/1.1 413 "), "{path}: {answer}");
        let kept: Vec<_> = (0..10).map(|_| connect(&server, &post(path, 1_000))).collect();
        assert_eq!(http(&server, "GET", "/healthz", "").0, 200, "{path}");
        drop(kept);
        let slow = connect(&server, &post(path, 1_000));
        // The server has seen it once it has answered a client that came behind it.
        assert_eq!(http_code(&server), 200);
        clock.advance(31);
        let told = rest(slow);
        assert!(told.starts_with("HTTP/1.1 408 "), "{path}: {told}");
    }
    server.stop().expect("a clean stop");
}

/// What HTTP holds for a connection that may go on is more than a stranger may have.
#[test]
fn a_connection_stays_once_its_client_has_logged_in() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = start(folder.path(), "");
    for path in ["/healthz", "/nothing", "/pools", "/ui"] {
        let answer = rest(connect(&server, &format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n")));
        assert!(answer.to_ascii_lowercase().contains("connection: close\r\n"), "{path}: {answer}");
    }
    let mut known = connect(&server, &format!("GET /pools HTTP/1.1\r\nHost: x\r\n{LOGIN}\r\n"));
    let told = head(&mut known).to_ascii_lowercase();
    assert!(told.starts_with("http/1.1 200 ") && !told.contains("connection: close"), "{told}");
    // It goes on, without a user, too, until the client ends it.
    known.write_all(b"GET /livez HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").expect("it is there");
    assert!(rest(known).contains("HTTP/1.1 200 "));
    server.stop().expect("a clean stop");
}

/// The end of a head may come in any pieces, and with what follows it.
#[test]
fn a_head_is_answered_however_it_is_cut() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = start(folder.path(), "");
    let whole = format!(
        "POST /settings/passwordPolicy HTTP/1.1\r\nHost: x\r\n{LOGIN}Content-Length: 11\r\n\r\nminLength=6"
    );
    let end = whole.find("\r\n\r\n").expect("an end");
    for cut in [1, 3, 16, 17, end, end + 1, end + 2, end + 3, end + 4, end + 5] {
        let (first, second) = whole.split_at(cut);
        let mut stream = connect(&server, first);
        stream.set_nodelay(true).expect("a socket");
        stream.write_all(second.as_bytes()).expect("the server takes it");
        assert!(head(&mut stream).starts_with("HTTP/1.1 200 "), "cut at {cut}");
    }
    for garbage in ["\u{1}\u{2}", "hello\r\n", "GET /\r\n"] {
        let answer = rest(connect(&server, garbage));
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 400 "), "{garbage:?}: {answer}");
    }
    server.stop().expect("a clean stop");
}

#[test]
fn a_reader_of_changes_that_stops_is_given_up() {
    let folder = tempfile::tempdir().expect("a folder");
    let (env, clock) = world();
    let server = start_in(env, folder.path(), "");
    let mut writer = Client::connect(&server, "default", &[]);
    let value = "v".repeat(512 << 10);
    for n in 0..64 {
        assert_eq!(writer.set(format!("k{n}").as_bytes(), value.as_bytes()), Some(Status::Success));
    }
    let path = "/v1/buckets/default/changes?include=values";
    let mut stopped = connect(&server, &format!("GET {path} HTTP/1.1\r\nHost: x\r\n{LOGIN}\r\n"));
    head(&mut stopped);
    // Asked over the other protocol: an HTTP client may be late, too, when the clock jumps.
    while writer.stat("connections", "late_http_connections") == "0" {
        clock.advance(10);
    }
    server.stop().expect("a clean stop");
}
