//! A whole node in the test's own process, and clients of it: plain HTTP, and frames as they are on the wire.
#![allow(clippy::disallowed_methods, reason = "this is a client, outside the server")]
#![allow(dead_code, reason = "each test uses a part")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use base::Cas;
use base::env::{Clock, Env};
use base64::Engine;
use node::{Config, Settings};
use protocol::feature::{Feature, Features};
use protocol::{RequestParts, Status, opcode, write_request};
use serde_json::Value;
use server::Server;

/// vBuckets of each bucket.
pub const VBUCKETS: u16 = 4;

/// Starts a node in a folder, with more lines for its configuration.
pub fn start(folder: &Path, more: &str) -> Server {
    start_in(Env::real(), folder, more)
}

/// The same in another world.
pub fn start_in(env: Env, folder: &Path, more: &str) -> Server {
    try_start_in(env, folder, more).expect("the node starts")
}

/// The same for a node that may not start.
pub fn try_start(folder: &Path, more: &str) -> Result<Server, server::Failure> {
    try_start_in(Env::real(), folder, more)
}

fn try_start_in(env: Env, folder: &Path, more: &str) -> Result<Server, server::Failure> {
    server::serve(config(folder, 2, more), env)
}

/// The configuration of a node with [`VBUCKETS`] vBuckets, and with more lines.
pub fn config(folder: &Path, threads: usize, more: &str) -> Config {
    let settings = format!(
        "kv = \"127.0.0.1:0\"\nhttp = \"127.0.0.1:0\"\npassword = \"password\"\nvbuckets = {VBUCKETS}\n{more}"
    );
    let settings = Settings::parse(&settings).expect("valid settings");
    Config::new(settings, folder.to_owned(), threads, String::new).expect("a valid configuration")
}

/// Starts a node that is to join a cluster.
pub fn start_member(folder: &Path) -> Server {
    start_member_with(folder, "")
}

/// The same, with more lines for its configuration.
pub fn start_member_with(folder: &Path, more: &str) -> Server {
    let config = Config { is_member: true, ..config(folder, 1, more) };
    server::serve(config, Env::real()).expect("the node starts")
}

/// The machine's clock, and how far it was moved.
pub struct Moved(Arc<dyn Clock>, AtomicU64);

impl Clock for Moved {
    fn unix_ns(&self) -> u64 {
        self.0.unix_ns() + self.1.load(Ordering::SeqCst)
    }

    fn monotonic_ns(&self) -> u64 {
        self.0.monotonic_ns() + self.1.load(Ordering::SeqCst)
    }
}

impl Moved {
    pub fn advance(&self, seconds: u64) {
        self.1.fetch_add(seconds * 1_000_000_000, Ordering::SeqCst);
    }
}

/// The real world with a clock that can be moved.
pub fn world() -> (Env, Arc<Moved>) {
    let real = Env::real();
    let clock = Arc::new(Moved(Arc::clone(&real.clock), AtomicU64::new(0)));
    (Env { clock: Arc::clone(&clock) as Arc<dyn Clock>, ..real }, clock)
}

/// Where a node is reached.
pub trait Reach {
    /// For clients.
    fn kv(&self) -> SocketAddr;
    /// For HTTP.
    fn http(&self) -> SocketAddr;
}

impl Reach for Server {
    fn kv(&self) -> SocketAddr {
        self.kv_addr()
    }

    fn http(&self) -> SocketAddr {
        self.http_addr()
    }
}

impl Reach for (SocketAddr, SocketAddr) {
    fn kv(&self) -> SocketAddr {
        self.0
    }

    fn http(&self) -> SocketAddr {
        self.1
    }
}

/// Status code and body of an answer over HTTP to the administrator.
pub fn http(server: &impl Reach, method: &str, path: &str, body: &str) -> (u16, String) {
    http_as("Administrator", server.http(), method, path, body)
}

/// The same for any user and address.
pub fn http_as(user: &str, addr: SocketAddr, method: &str, path: &str, body: &str) -> (u16, String) {
    let mut stream = ask(user, addr, method, path, body, "close");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer in text");
    let (head, body) = answer.split_once("\r\n\r\n").expect("head and body");
    let code = head.split(' ').nth(1).and_then(|code| code.parse().ok()).expect("a status code");
    (code, body.to_owned())
}

/// What a member of a cluster answers to a change. Where etcd does not answer the member in time, it is asked again, as it
/// says, for up to a minute; what was done all the same is refused then as being there, and has `done` as its code.
pub fn change(server: &impl Reach, path: &str, body: &str, done: u16) -> (u16, String) {
    let mut last = (0, String::new());
    let clock = Env::real().clock;
    let end = clock.monotonic() + Duration::from_secs(60);
    while clock.monotonic() < end {
        let (code, told) = http(server, "POST", path, body);
        if last.0 == 503 && told.contains("already exists") {
            return (done, told);
        }
        last = (code, told);
        if code != 503 || !last.1.contains("the coordination store") {
            break;
        }
    }
    last
}

/// Asks as `http_as` does, and leaves the answer to the caller.
pub fn ask(
    user: &str,
    addr: SocketAddr,
    method: &str,
    path: &str,
    body: &str,
    connection: &str,
) -> TcpStream {
    let mut stream = TcpStream::connect(addr).expect("the server listens");
    let encoded = base64::engine::general_purpose::STANDARD.encode(format!("{user}:password"));
    // A client without a name says nothing of who it is.
    let login = if user.is_empty() { String::new() } else { format!("Authorization: Basic {encoded}\r\n") };
    let request = format!(
        "{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: {connection}\r\n{login}\
         Content-Length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes()).expect("the server takes it");
    stream
}

/// JSON that the administrator gets.
pub fn json(server: &impl Reach, path: &str) -> Value {
    let (code, body) = http(server, "GET", path, "");
    assert_eq!(code, 200, "{path}: {body}");
    serde_json::from_str(&body).expect("JSON")
}

/// The lines of an answer that does not end by itself.
pub struct Lines(BufReader<TcpStream>);

impl Lines {
    pub fn of(server: &impl Reach, path: &str) -> Lines {
        Lines(BufReader::new(ask("Administrator", server.http(), "GET", path, "", "keep-alive")))
    }

    /// The next line that is JSON; nothing at the end.
    pub fn next_json(&mut self) -> Option<Value> {
        loop {
            let mut line = String::new();
            if self.0.read_line(&mut line).unwrap_or(0) == 0 || line.trim_end() == "0" {
                return None;
            }
            if let Some(value) = serde_json::from_str(line.trim()).ok().filter(Value::is_object) {
                return Some(value);
            }
        }
    }
}

/// A message of the server.
#[derive(Debug)]
pub struct Frame {
    pub magic: u8,
    pub opcode: u8,
    pub status: Status,
    pub cas: Cas,
    pub extras: Vec<u8>,
    pub key: Vec<u8>,
    pub value: Vec<u8>,
}

impl Frame {
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.value).expect("JSON")
    }
}

/// A client that has logged in.
pub struct Client {
    stream: TcpStream,
}

impl Client {
    pub fn connect(server: &impl Reach, bucket: &str, features: &[Feature]) -> Client {
        let (client, selected) = Client::try_connect(server, bucket, features);
        assert_eq!(selected, Status::Success, "{bucket}");
        client
    }

    /// A client, and whether it could select the bucket.
    pub fn try_connect(server: &impl Reach, bucket: &str, features: &[Feature]) -> (Client, Status) {
        let stream = TcpStream::connect(server.kv()).expect("the server listens");
        let mut client = Client { stream };
        let features = [&[Feature::Xerror, Feature::Json], features].concat();
        let login = node::fuzz::login("Administrator", "password", bucket, &Features::of(&features).encode());
        client.send(&login);
        for _ in 0..2 {
            assert_eq!(client.receive().status, Status::Success);
        }
        let selected = client.receive().status;
        (client, selected)
    }

    /// A client that has said hello, and has no answer yet.
    pub fn silent(server: &impl Reach) -> Client {
        let stream = TcpStream::connect(server.kv()).expect("the server listens");
        let mut client = Client { stream };
        client.send(&node::fuzz::login("Administrator", "password", "default", &[]));
        client
    }

    /// Another one of the same server, that has said nothing.
    pub fn again(&self) -> Client {
        let server = self.stream.peer_addr().expect("it is connected");
        Client { stream: TcpStream::connect(server).expect("the server listens") }
    }

    /// A client that has said nothing.
    pub fn over(stream: TcpStream) -> Client {
        Client { stream }
    }

    pub fn send(&mut self, bytes: &[u8]) {
        // Whether the server still listens shows when an answer is read.
        let _ = self.stream.write_all(bytes);
    }

    pub fn request(&mut self, parts: &RequestParts<'_>) -> Frame {
        self.try_request(parts).expect("an answer")
    }

    pub fn try_request(&mut self, parts: &RequestParts<'_>) -> Option<Frame> {
        let mut bytes = Vec::new();
        assert!(write_request(&mut bytes, parts));
        self.send(&bytes);
        self.try_receive()
    }

    /// Whether the server closes the connection without another word.
    pub fn is_closed(&mut self) -> bool {
        self.try_receive().is_none()
    }

    pub fn set(&mut self, key: &[u8], value: &[u8]) -> Option<Status> {
        let parts =
            RequestParts { opcode: opcode::SET, key, value, extras: &[0; 8], ..RequestParts::default() };
        self.try_request(&RequestParts { vbucket: vb(key), ..parts }).map(|frame| frame.status)
    }

    pub fn get(&mut self, key: &[u8]) -> Option<Frame> {
        let parts = RequestParts { opcode: opcode::GET, key, vbucket: vb(key), ..RequestParts::default() };
        self.try_request(&parts)
    }

    /// One of a group of stats; empty if there is none.
    pub fn stat(&mut self, group: &str, name: &str) -> String {
        let mut bytes = Vec::new();
        let parts = RequestParts { opcode: opcode::STAT, key: group.as_bytes(), ..RequestParts::default() };
        assert!(write_request(&mut bytes, &parts));
        self.send(&bytes);
        let mut value = String::new();
        loop {
            let frame = self.receive();
            if frame.key.is_empty() {
                return value;
            }
            if frame.key == name.as_bytes() {
                value = String::from_utf8(frame.value).expect("text");
            }
        }
    }

    /// Whether nothing comes for a while.
    pub fn is_silent(&mut self) -> bool {
        self.stream.set_read_timeout(Some(Duration::from_millis(50))).expect("a timeout");
        let silent = self.stream.peek(&mut [0]).is_err();
        self.stream.set_read_timeout(None).expect("no timeout");
        silent
    }

    pub fn receive(&mut self) -> Frame {
        self.try_receive().expect("a message")
    }

    /// The next message; nothing once the server has closed the connection.
    pub fn try_receive(&mut self) -> Option<Frame> {
        let mut head = [0; 24];
        self.stream.read_exact(&mut head).ok()?;
        let body_len = u32::from_be_bytes([head[8], head[9], head[10], head[11]]) as usize;
        let mut body = vec![0; body_len];
        self.stream.read_exact(&mut body).ok()?;
        let (extras_len, key_len) =
            (usize::from(head[4]), usize::from(u16::from_be_bytes([head[2], head[3]])));
        let (extras, rest) = body.split_at(extras_len);
        let (key, value) = rest.split_at(key_len);
        Some(Frame {
            magic: head[0],
            opcode: head[1],
            status: Status::from_code(u16::from_be_bytes([head[6], head[7]])).expect("a known status"),
            cas: Cas(u64::from_be_bytes(*head[16..].first_chunk().expect("it is there"))),
            extras: extras.to_vec(),
            key: key.to_vec(),
            value: value.to_vec(),
        })
    }
}

pub fn vb(key: &[u8]) -> base::VbId {
    base::vbucket_map::vbucket_of(key, VBUCKETS)
}
