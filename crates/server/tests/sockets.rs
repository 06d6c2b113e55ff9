//! A whole node with its threads and sockets: what the connection's own tests cannot see.
#![allow(clippy::disallowed_methods, reason = "this is a client, outside the server")]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;

use base::VbId;
use base::env::Env;
use node::{Config, Settings};
use protocol::response::ParsedResponse;
use protocol::{RequestParts, Status, opcode, parse_response, write_request};
use server::Server;

fn start(folder: &Path, more: &str) -> Server {
    let settings = format!(
        "kv = \"127.0.0.1:0\"\nhttp = \"127.0.0.1:0\"\npassword = \"password\"\nvbuckets = 4\n{more}"
    );
    let settings = Settings::parse(&settings).expect("valid settings");
    let config = Config::new(settings, folder.to_owned(), 2, String::new).expect("a valid configuration");
    server::serve(config, Env::real()).expect("the node starts")
}

struct Client {
    stream: TcpStream,
    received: Vec<u8>,
}

impl Client {
    fn connect(server: &Server) -> Client {
        let stream = TcpStream::connect(server.kv_addr()).expect("the server listens");
        let mut client = Client { stream, received: Vec::new() };
        client.send(&node::fuzz::login("Administrator", "password", "default", &[]));
        for _ in 0..3 {
            assert_eq!(client.receive().0, Status::Success);
        }
        client
    }

    fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).expect("the server takes it");
    }

    /// The next answer; nothing once the server has closed the connection.
    fn try_receive(&mut self) -> Option<(Status, Vec<u8>)> {
        loop {
            if let ParsedResponse::Response { response, total_len } = parse_response(&self.received, 64 << 20)
            {
                let answer = (response.status().expect("a known status"), response.value.to_vec());
                self.received.drain(..total_len);
                return Some(answer);
            }
            let mut chunk = vec![0; 1 << 20];
            // A reset is an end, too.
            let read = self.stream.read(&mut chunk).unwrap_or(0);
            if read == 0 {
                return None;
            }
            self.received.extend_from_slice(&chunk[..read]);
        }
    }

    fn receive(&mut self) -> (Status, Vec<u8>) {
        self.try_receive().expect("an answer")
    }
}

fn request(opcode: u8, key: &[u8], value: &[u8]) -> Vec<u8> {
    let vbucket: VbId = base::vbucket_map::vbucket_of(key, 4);
    let extras: &[u8] = if opcode == opcode::SET { &[0; 8] } else { &[] };
    let mut out = Vec::new();
    let parts = RequestParts { opcode, key, value, extras, vbucket, ..RequestParts::default() };
    assert!(write_request(&mut out, &parts));
    out
}

#[test]
fn the_largest_value_comes_back_and_survives_a_restart() {
    let folder = tempfile::tempdir().expect("a folder");
    let value: Vec<u8> = (0..20u32 << 20).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let server = start(folder.path(), "");
    let mut client = Client::connect(&server);
    client.send(&[request(opcode::SET, b"large", &value), request(opcode::GET, b"large", b"")].concat());
    assert_eq!(client.receive().0, Status::Success);
    assert!(client.receive() == (Status::Success, value.clone()));
    client.send(&request(opcode::SET, b"larger", &vec![b'x'; (20 << 20) + 1]));
    assert_eq!(client.receive().0, Status::E2big);
    server.stop().expect("a clean stop");
    let server = start(folder.path(), "");
    let mut client = Client::connect(&server);
    client.send(&request(opcode::GET, b"large", b""));
    assert!(client.receive() == (Status::Success, value));
    server.stop().expect("a clean stop");
}

#[test]
fn a_client_that_reads_late_gets_everything() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = start(folder.path(), "");
    let mut client = Client::connect(&server);
    let value = vec![b'v'; 1 << 20];
    let mut bytes = request(opcode::SET, b"k", &value);
    for _ in 0..40 {
        bytes.extend(request(opcode::GET, b"k", b""));
        bytes.extend(request(opcode::GET, b"none", b""));
    }
    client.send(&bytes);
    assert_eq!(client.receive().0, Status::Success);
    for _ in 0..40 {
        assert!(client.receive() == (Status::Success, value.clone()));
        assert_eq!(client.receive().0, Status::KeyEnoent);
    }
    server.stop().expect("a clean stop");
}

#[test]
fn requests_trickle_in_byte_by_byte() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = start(folder.path(), "");
    let mut client = Client::connect(&server);
    client.stream.set_nodelay(true).expect("TCP");
    for byte in [request(opcode::SET, b"k", b"v"), request(opcode::GET, b"k", b"")].concat() {
        client.send(&[byte]);
    }
    assert_eq!(client.receive().0, Status::Success);
    assert_eq!(client.receive(), (Status::Success, b"v".to_vec()));
    server.stop().expect("a clean stop");
}

#[test]
fn a_bad_frame_closes_its_own_connection_only() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = start(folder.path(), "");
    let (mut good, mut bad) = (Client::connect(&server), Client::connect(&server));
    bad.send(&[request(opcode::SET, b"k", b"v"), b"GET / HTTP/1.1\r\n\r\n".to_vec()].concat());
    assert_eq!(bad.receive().0, Status::Success);
    assert_eq!(bad.try_receive(), None);
    good.send(&request(opcode::GET, b"k", b""));
    assert_eq!(good.receive().0, Status::Success);
    server.stop().expect("a clean stop");
    assert_eq!(good.try_receive(), None);
}

#[test]
fn there_are_not_more_connections_than_allowed() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = start(folder.path(), "max-connections = 2");
    let (mut a, _b) = (Client::connect(&server), Client::connect(&server));
    let stream = TcpStream::connect(server.kv_addr()).expect("the system accepts");
    let mut third = Client { stream, received: Vec::new() };
    assert_eq!(third.try_receive(), None);
    a.send(&request(opcode::GET, b"none", b""));
    assert_eq!(a.receive().0, Status::KeyEnoent);
    server.stop().expect("a clean stop");
}

#[test]
fn an_address_has_no_more_connections_than_it_may_have() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = start(folder.path(), "max-connections-per-address = 2");
    let connect = |address: [u8; 4]| {
        let socket =
            socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).expect("a socket");
        socket.bind(&SocketAddr::from((address, 0)).into()).expect("an address of this machine");
        socket.connect(&server.kv_addr().into()).expect("the system accepts");
        let mut client = Client { stream: socket.into(), received: Vec::new() };
        let _ = client.stream.write_all(&node::fuzz::login("Administrator", "password", "default", &[]));
        client.try_receive().is_some().then_some(client)
    };
    let (here, there) = ([127, 0, 0, 1], [127, 0, 0, 2]);
    let clients = [connect(here).expect("a place"), connect(here).expect("a place")];
    assert!(connect(here).is_none(), "it has its two");
    assert!(connect(there).is_some(), "another address has its own");
    drop(clients);
    // The server notices sooner or later that the two have gone; a place is there again then.
    while connect(here).is_none() {}
    server.stop().expect("a clean stop");
}

#[test]
fn who_has_not_logged_in_gives_way_to_the_next_client() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = start(folder.path(), "max-connections = 2");
    let stranger = || TcpStream::connect(server.kv_addr()).expect("the system accepts");
    let mut strangers = vec![stranger(), stranger()];
    for _ in 0..8 {
        // It may come before the server has noticed that the two others are there, and have not logged in.
        let mut client = loop {
            let stream = TcpStream::connect(server.kv_addr()).expect("the system accepts");
            let mut client = Client { stream, received: Vec::new() };
            let _ = client.stream.write_all(&node::fuzz::login("Administrator", "password", "default", &[]));
            if client.try_receive().is_some() {
                break client;
            }
        };
        assert!((0..2).all(|_| client.receive().0 == Status::Success));
        client.send(&request(opcode::GET, b"none", b""));
        assert_eq!(client.receive().0, Status::KeyEnoent);
        strangers.extend([stranger(), stranger()]);
    }
    assert_eq!(strangers[0].read(&mut [0]).unwrap_or(0), 0, "it was closed");
    server.stop().expect("a clean stop");
}

#[test]
fn a_folder_serves_one_node_at_a_time() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = start(folder.path(), "");
    let settings =
        Settings::parse("kv = \"127.0.0.1:0\"\nhttp = \"127.0.0.1:0\"\npassword = \"x\"").expect("valid");
    let config = Config::new(settings, folder.path().to_owned(), 1, String::new).expect("valid");
    let refused = server::serve(config, Env::real()).err().expect("the folder is taken");
    assert!(refused.to_string().contains("in use"), "{refused}");
    server.stop().expect("a clean stop");
}

/// Status line and body of an answer.
fn http(server: &Server, path: &str, authorization: &str) -> (String, String) {
    let mut stream = TcpStream::connect(server.http_addr()).expect("the server listens");
    let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{authorization}\r\n");
    stream.write_all(request.as_bytes()).expect("the server takes it");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer in text");
    let (head, body) = answer.split_once("\r\n\r\n").expect("head and body");
    (head.lines().next().unwrap_or_default().to_owned(), body.to_owned())
}

#[test]
fn http_says_what_clients_ask() {
    // "Administrator:password"
    const LOGIN: &str = "Authorization: Basic QWRtaW5pc3RyYXRvcjpwYXNzd29yZA==\r\n";
    let folder = tempfile::tempdir().expect("a folder");
    let server = start(folder.path(), "");
    // What the node is, without the cluster's identity, is told to everyone.
    let (status, body) = http(&server, "/pools", "");
    assert_eq!(status, "HTTP/1.1 200 OK");
    assert!(
        body.contains("\"uuid\":\"\"") && http(&server, "/pools", LOGIN).0 == "HTTP/1.1 200 OK",
        "{body}"
    );
    for path in ["/", "/whoami", "/pools/default", "/pools/nodes", "/pools/default/nodeServices"] {
        assert_eq!(http(&server, path, LOGIN).0, "HTTP/1.1 200 OK", "{path}");
        assert_eq!(http(&server, path, "").0, "HTTP/1.1 401 Unauthorized", "{path}");
    }
    for path in ["/pools/default/buckets", "/pools/default/buckets/default", "/pools/default/b/default"] {
        let (status, body) = http(&server, path, LOGIN);
        assert_eq!(status, "HTTP/1.1 200 OK", "{path}");
        let json: serde_json::Value = serde_json::from_str(&body).expect("JSON");
        let bucket = json.get(0).unwrap_or(&json);
        assert_eq!(bucket["name"], "default");
        assert_eq!(bucket["nodes"][0]["hostname"], server.http_addr().to_string());
    }
    assert_eq!(http(&server, "/pools/default/buckets/none", LOGIN).0, "HTTP/1.1 404 Not Found");
    assert_eq!(http(&server, "/healthz", ""), ("HTTP/1.1 200 OK".to_owned(), "ok\n".to_owned()));
    assert_eq!(http(&server, "/metrics", "").0, "HTTP/1.1 401 Unauthorized");
    let metrics = http(&server, "/metrics", LOGIN).1;
    assert!(metrics.contains("\nstave_connections 0\n"), "{metrics}");
    assert!(metrics.contains("\nstave_may_serve 1\n"), "{metrics}");
    server.stop().expect("a clean stop");
}

#[test]
fn a_wrong_login_is_told_apart_from_none() {
    // "Administrator:guess" and "stranger:password"
    const GUESS: &str = "Authorization: Basic QWRtaW5pc3RyYXRvcjpndWVzcw==\r\n";
    const STRANGER: &str = "Authorization: Basic c3RyYW5nZXI6cGFzc3dvcmQ=\r\n";
    let folder = tempfile::tempdir().expect("a folder");
    let server = start(folder.path(), "");
    for (authorization, told) in [
        ("", "are needed"),
        (GUESS, "no such user, or the password is another one"),
        (STRANGER, "no such user, or the password is another one"),
        ("Authorization: Bearer abc\r\n", "not the one of basic authentication"),
        ("Authorization: Basic ?\r\n", "not the one of basic authentication"),
    ] {
        let (status, body) = http(&server, "/pools/default", authorization);
        assert_eq!(status, "HTTP/1.1 401 Unauthorized", "{authorization}");
        assert!(body.contains(told), "{authorization}: {body}");
    }
    server.stop().expect("a clean stop");
}

#[test]
fn the_stream_of_maps_stays_open_until_the_node_stops() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = start(folder.path(), "");
    let mut stream = TcpStream::connect(server.http_addr()).expect("the server listens");
    let request = "GET /pools/default/bs/default HTTP/1.1\r\nHost: x\r\nAuthorization: Basic QWRtaW5pc3RyYXRvcjpwYXNzd29yZA==\r\n\r\n";
    stream.write_all(request.as_bytes()).expect("the server takes it");
    let mut received = Vec::new();
    while !received.windows(4).any(|four| four == b"\n\n\n\n") {
        let mut chunk = [0; 4096];
        let read = stream.read(&mut chunk).expect("more comes");
        assert!(read > 0, "the stream ended");
        received.extend_from_slice(&chunk[..read]);
    }
    server.stop().expect("a clean stop");
    stream.read_to_end(&mut received).expect("the stream ends");
    assert!(received.ends_with(b"0\r\n\r\n"), "the last chunk was sent");
}

/// On a closed network the operator may let monitors in that cannot log in.
#[test]
fn metrics_ask_for_no_user_if_the_operator_says_so() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = start(folder.path(), "metrics-login = \"none\"");
    let (status, metrics) = http(&server, "/metrics", "");
    assert_eq!(status, "HTTP/1.1 200 OK");
    assert!(metrics.contains("\nstave_may_serve 1\n"), "{metrics}");
    assert_eq!(http(&server, "/pools/default", "").0, "HTTP/1.1 401 Unauthorized");
    server.stop().expect("a clean stop");
}
