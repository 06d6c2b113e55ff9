//! What connections make the node hold beside its buckets: every command with an unfinished, an oversized and an inflating
//! frame, readers that do not read, strangers that pipeline. The limit holds, and others are served.
#![allow(clippy::disallowed_methods, reason = "this is a client, outside the server")]

mod support;

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::path::Path;

use base::Datatype;
use base::env::Env;
use node::command::ROWS;
use protocol::dcp::{OpenFlags, StreamFlags, StreamRequest};
use protocol::feature::Feature;
use protocol::{RequestParts, Status, opcode, write_request};
use serde_json::Value;
use server::Server;
use support::{Client, Reach, http, start, start_in, vb, world};

const MIB: usize = 1 << 20;
const LIMIT: u64 = 40 << 20;
const VALUE_BYTES: usize = 20 << 20;

fn node(folder: &std::path::Path) -> Server {
    start(folder, "connection-memory = \"40MiB\"\nbuckets = [\"default:1GiB\"]")
}

/// A frame's header that promises a body of this number of bytes.
fn header(opcode: u8, body_bytes: u32, datatype: Datatype) -> [u8; 24] {
    let mut header = [0; 24];
    (header[0], header[1], header[5]) = (0x80, opcode, datatype.0);
    header[8..12].copy_from_slice(&body_bytes.to_be_bytes());
    header
}

/// A client that has logged in, and what it has sent and not said.
fn stream(server: &Server) -> TcpStream {
    let mut stream = TcpStream::connect(server.kv()).expect("the server listens");
    stream.write_all(&node::fuzz::login("Administrator", "password", "default", &[])).expect("it is read");
    // Three empty answers.
    stream.read_exact(&mut [0; 3 * 24]).expect("answers");
    stream
}

/// Sends as much as the server takes.
fn push(stream: &mut TcpStream, mut bytes: &[u8]) {
    stream.set_nonblocking(true).expect("a socket");
    while !bytes.is_empty() {
        match stream.write(bytes) {
            Ok(0) | Err(_) => break,
            Ok(sent) => bytes = &bytes[sent..],
        }
    }
    stream.set_nonblocking(false).expect("a socket");
}

fn is_served(server: &Server, client: &mut Client) {
    assert_eq!(client.set(b"honest", b"value"), Some(Status::Success));
    assert_eq!(client.get(b"honest").map(|frame| frame.value), Some(b"value".to_vec()));
    let memory = server.node().connection_memory();
    let (used, limit) = (memory.used_bytes(), memory.limit_bytes());
    assert!(used <= limit, "{used} of {limit}");
}

/// Waits until the server has noticed that clients have gone.
fn wait_until_free(server: &Server, client: &mut Client) {
    while server.node().connection_memory().used_bytes() > 0 {
        is_served(server, client);
    }
}

#[test]
fn unfinished_frames_of_every_command_are_bounded() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = node(folder.path());
    let mut client = Client::connect(&server, "default", &[]);
    let half = vec![0; 4 * MIB];
    let mut streams = Vec::new();
    for row in ROWS {
        let mut stream = stream(&server);
        push(&mut stream, &header(row.opcode, VALUE_BYTES as u32, Datatype::RAW));
        push(&mut stream, &half);
        is_served(&server, &mut client);
        streams.push(stream);
    }
    let memory = server.node().connection_memory();
    assert!(memory.paused() > ROWS.len() as u64 / 2, "{}", memory.paused());
    assert!(memory.highest_bytes() > LIMIT / 2, "{}", memory.highest_bytes());
    drop(streams);
    wait_until_free(&server, &mut client);
    server.stop().expect("a clean stop");
}

#[test]
fn a_large_frame_that_stops_has_the_patience_of_a_small_one() {
    let folder = tempfile::tempdir().expect("a folder");
    let (env, clock) = world();
    let server = start_in(env, folder.path(), "threads = 1");
    let mut client = Client::connect(&server, "default", &[]);
    // It is closed when the worker has looked at the clock.
    let mut stranger = TcpStream::connect(server.kv()).expect("the server listens");
    let [mut stops, mut goes_on] = [stream(&server), stream(&server)];
    for stream in [&mut stops, &mut goes_on] {
        stream.write_all(&header(opcode::SET, VALUE_BYTES as u32, Datatype::RAW)).expect("it is read");
        stream.write_all(&vec![0; MIB]).expect("it is read");
    }
    let received = || server.node().totals().received_bytes;
    while received() < 2 * MIB as u64 {
        is_served(&server, &mut client);
    }
    clock.advance(40);
    assert_eq!(stranger.read(&mut [0]).unwrap_or(0), 0, "it did not log in");
    let before = received();
    goes_on.write_all(&vec![0; 4 * MIB]).expect("it is read");
    while received() < before + 4 * MIB as u64 {
        is_served(&server, &mut client);
    }
    clock.advance(30);
    assert_eq!(stops.read(&mut [0]).unwrap_or(0), 0, "it was closed");
    assert!(goes_on.write_all(&vec![0; MIB]).is_ok());
    drop(goes_on);
    wait_until_free(&server, &mut client);
    server.stop().expect("a clean stop");
}

#[test]
fn oversized_frames_of_every_command_close_their_connection() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = node(folder.path());
    let mut client = Client::connect(&server, "default", &[]);
    for row in ROWS {
        let mut stream = stream(&server);
        let large = base::limits::MAX_FRAME_BODY_BYTES as u32 + 1;
        push(&mut stream, &header(row.opcode, large, Datatype::RAW));
        assert_eq!(stream.read(&mut [0]).unwrap_or(0), 0, "{}", row.name);
        let mut stranger = TcpStream::connect(server.kv()).expect("the server listens");
        let large = base::limits::MAX_UNAUTHENTICATED_BODY_BYTES as u32 + 1;
        push(&mut stranger, &header(row.opcode, large, Datatype::RAW));
        assert_eq!(stranger.read(&mut [0]).unwrap_or(0), 0, "{}", row.name);
        is_served(&server, &mut client);
    }
    server.stop().expect("a clean stop");
}

/// A Snappy block that becomes as large as it says: a letter, then copies of 64 bytes.
fn inflating(bytes: usize) -> Vec<u8> {
    let mut block = Vec::new();
    let mut rest = bytes;
    while rest >= 0x80 {
        block.push(rest as u8 | 0x80);
        rest >>= 7;
    }
    block.extend([rest as u8, 0, b'v']);
    let mut left = bytes - 1;
    while left > 0 {
        let len = left.min(64);
        block.extend([((len - 1) << 2 | 2) as u8, 1, 0]);
        left -= len;
    }
    block
}

fn send_request(stream: &mut TcpStream, parts: &RequestParts<'_>) {
    let mut bytes = Vec::new();
    assert!(write_request(&mut bytes, parts));
    push(stream, &bytes);
}

#[test]
fn inflating_frames_of_every_command_are_answered_or_closed() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = node(folder.path());
    let mut client = Client::connect(&server, "default", &[]);
    let bombs = [inflating(VALUE_BYTES + 1), inflating(VALUE_BYTES), vec![0xff; 100]];
    for row in ROWS {
        for bomb in &bombs {
            let mut stream = TcpStream::connect(server.kv()).expect("the server listens");
            let features = protocol::feature::Features::of(&[Feature::Xerror, Feature::Snappy]).encode();
            let login = node::fuzz::login("Administrator", "password", "default", &features);
            stream.write_all(&login).expect("it is read");
            let parts = RequestParts {
                opcode: row.opcode,
                key: b"key",
                value: bomb,
                datatype: Datatype::SNAPPY.0,
                vbucket: vb(b"key"),
                ..RequestParts::default()
            };
            send_request(&mut stream, &parts);
            send_request(&mut stream, &RequestParts { opcode: opcode::QUIT, ..RequestParts::default() });
            stream.shutdown(Shutdown::Write).expect("a socket");
            is_served(&server, &mut client);
            // It is answered to its end, or closed.
            let _ = stream.read_to_end(&mut Vec::new());
        }
    }
    wait_until_free(&server, &mut client);
    server.stop().expect("a clean stop");
}

#[test]
fn readers_of_inflated_values_that_do_not_read_are_bounded() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = node(folder.path());
    let mut client = Client::connect(&server, "default", &[]);
    let mut writer = Client::connect(&server, "default", &[Feature::Snappy]);
    let block = inflating(VALUE_BYTES);
    let parts = RequestParts {
        opcode: opcode::SET,
        key: b"large",
        value: &block,
        extras: &[0; 8],
        datatype: Datatype::SNAPPY.0,
        vbucket: vb(b"large"),
        ..RequestParts::default()
    };
    assert_eq!(writer.request(&parts).status, Status::Success);
    let mut streams = Vec::new();
    for opcode in [opcode::GET, opcode::GETK, opcode::GAT].into_iter().cycle().take(60) {
        let mut stream = stream(&server);
        let extras: &[u8] = if opcode == opcode::GAT { &[0; 4] } else { &[] };
        for _ in 0..4 {
            let parts = RequestParts {
                opcode,
                key: b"large",
                extras,
                vbucket: vb(b"large"),
                ..RequestParts::default()
            };
            send_request(&mut stream, &parts);
        }
        is_served(&server, &mut client);
        streams.push(stream);
    }
    // Values are inflated on threads for long work.
    while server.node().lanes().long_work.under_way() > 0 {}
    let memory = server.node().connection_memory();
    assert!(memory.refused() > 0 && memory.highest_bytes() <= LIMIT, "{}", memory.highest_bytes());
    // A client that reads gets it, now or later.
    drop(streams);
    wait_until_free(&server, &mut client);
    let answer = client.get(b"large").expect("an answer");
    assert_eq!((answer.status, answer.value.len()), (Status::Success, VALUE_BYTES));
    server.stop().expect("a clean stop");
}

#[test]
fn a_look_up_of_a_whole_document_again_and_again_asks_for_room_before_it_is_made() {
    const DOCUMENT: usize = 4 * MIB;
    let folder = tempfile::tempdir().expect("a folder");
    let server = node(folder.path());
    let mut client = Client::connect(&server, "default", &[]);
    let document = [b"\"", &vec![b'x'; DOCUMENT - 2][..], b"\""].concat();
    assert_eq!(client.set(b"large", &document), Some(Status::Success));
    let mut look_up = |paths: usize| {
        // GET with an empty path: the document.
        let value = [0u8; 4].repeat(paths);
        let (opcode, key, vbucket) = (opcode::SUBDOC_MULTI_LOOKUP, b"large", vb(b"large"));
        client.request(&RequestParts { opcode, key, value: &value, vbucket, ..RequestParts::default() })
    };
    let few = look_up(4);
    assert_eq!((few.status, few.value.len()), (Status::Success, 4 * (6 + DOCUMENT)));
    let many = look_up(16);
    assert_eq!((many.status, many.value.len()), (Status::Etmpfail, 0));
    let highest = server.node().connection_memory().highest_bytes();
    assert!(highest <= LIMIT, "{highest}");
    drop(client);
    server.stop().expect("a clean stop");
}

fn request(client: &mut Client, opcode: u8, key: &[u8], extras: &[u8], value: &[u8]) -> Status {
    client.request(&RequestParts { opcode, key, extras, value, ..RequestParts::default() }).status
}

fn dcp_open(client: &mut Client, name: &str) {
    let extras = OpenFlags(OpenFlags::PRODUCER).encode();
    assert_eq!(request(client, opcode::DCP_OPEN, name.as_bytes(), &extras, b""), Status::Success);
}

/// Asks for everything of vBucket 0.
fn dcp_stream(client: &mut Client, filter: &str) -> Status {
    let (start, end, flags) = (base::Seqno(0), base::Seqno(u64::MAX), StreamFlags(0));
    let (snapshot_start, snapshot_end, uuid) = (start, start, base::VbUuid(0));
    let extras = StreamRequest { flags, start, end, uuid, snapshot_start, snapshot_end }.encode();
    request(client, opcode::DCP_STREAM_REQ, b"", &extras, filter.as_bytes())
}

#[test]
fn what_waits_for_consumers_that_do_not_read_is_charged() {
    const CONSUMERS: usize = 16;
    let folder = tempfile::tempdir().expect("a folder");
    let server = node(folder.path());
    let mut client = Client::connect(&server, "default", &[]);
    // Values that are copied, and that no socket takes all of.
    let value: Vec<u8> = (0..15_000_u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let keys = (0..).map(|at| format!("k{at}")).filter(|key| vb(key.as_bytes()) == base::VbId(0));
    for key in keys.take(800) {
        assert_eq!(client.set(key.as_bytes(), &value), Some(Status::Success));
    }
    server.stop().expect("a clean stop");
    // What is not in memory is read from disk for each of them.
    let server = node(folder.path());
    let mut client = Client::connect(&server, "default", &[]);
    let mut consumers = Vec::new();
    for at in 0..CONSUMERS {
        let mut consumer = Client::connect(&server, "default", &[]);
        dcp_open(&mut consumer, &format!("consumer {at}"));
        assert_eq!(dcp_stream(&mut consumer, ""), Status::Success);
        consumers.push(consumer);
    }
    let memory = server.node().connection_memory();
    let least = CONSUMERS as u64 * (512 << 10);
    // Others are answered meanwhile.
    let is_charged = (0..100_000).any(|_| {
        client.get(b"nothing").expect("an answer");
        memory.used_bytes() >= least
    });
    assert!(is_charged, "{} of {least}", memory.used_bytes());
    assert!(memory.highest_bytes() <= memory.limit_bytes(), "{}", memory.highest_bytes());
    drop(consumers);
    wait_until_free(&server, &mut client);
    server.stop().expect("a clean stop");
}

#[test]
fn readers_of_changes_that_do_not_read_are_bounded() {
    const READERS: usize = 100;
    // What one step makes, which becomes more as text.
    const FRAME_BYTES: u64 = 256 << 10;
    let folder = tempfile::tempdir().expect("a folder");
    let limits =
        "connection-memory = \"40MiB\"\nmax-http-connections = 200\nmax-http-connections-per-address = 200";
    let server = start(folder.path(), &format!("{limits}\nbuckets = [\"default:1GiB\"]"));
    let mut client = Client::connect(&server, "default", &[]);
    // More than sockets take.
    for at in 0..2_500 {
        assert_eq!(client.set(format!("k{at}").as_bytes(), &[b'v'; 4096]), Some(Status::Success));
    }
    let ask = "GET /v1/buckets/default/changes?include=values HTTP/1.1\r\nHost: x\r\n\
        Authorization: Basic QWRtaW5pc3RyYXRvcjpwYXNzd29yZA==\r\n\r\n";
    let (mut readers, mut refused) = (Vec::new(), 0);
    for _ in 0..READERS {
        let mut stream = TcpStream::connect(server.http()).expect("the server listens");
        stream.write_all(ask.as_bytes()).expect("it is read");
        let mut status = [0; 12];
        stream.read_exact(&mut status).expect("an answer");
        match &status {
            b"HTTP/1.1 200" => readers.push(stream),
            b"HTTP/1.1 503" => refused += 1,
            status => panic!("{}", String::from_utf8_lossy(status)),
        }
    }
    assert!(readers.len() >= 5 && refused > 0, "{} read, {refused} were refused", readers.len());
    let memory = server.node().connection_memory();
    let most = LIMIT + readers.len() as u64 * FRAME_BYTES;
    for _ in 0..1_000 {
        assert_eq!(client.set(b"honest", b"value"), Some(Status::Success));
    }
    assert!(memory.highest_bytes() <= most, "{} of {most}", memory.highest_bytes());
    drop(readers);
    while memory.used_bytes() > 0 {
        client.get(b"honest").expect("an answer");
    }
    server.stop().expect("a clean stop");
}

/// It would keep others from reading anything large for as long as it stays.
#[test]
fn a_reader_of_changes_that_waits_holds_nothing_of_the_large_document_it_had() {
    const VALUE_BYTES: usize = 8 << 20;
    const LOOKS: u32 = 100_000;
    let folder = tempfile::tempdir().expect("a folder");
    let server = start(folder.path(), "connection-memory = \"64MiB\"\nbuckets = [\"default:1GiB\"]");
    let mut client = Client::connect(&server, "default", &[]);
    assert_eq!(client.set(b"large", &vec![b'v'; VALUE_BYTES]), Some(Status::Success));
    let mut reader = ask(&server, "/v1/buckets/default/changes?include=values");
    assert_eq!(status(&mut reader), "200");
    let mut document = vec![0; VALUE_BYTES];
    reader.read_exact(&mut document).expect("the document, as text");
    // The rest of it comes while it is read.
    let rest = std::thread::spawn(move || std::io::copy(&mut reader, &mut std::io::sink()));
    let memory = server.node().connection_memory();
    let waits = (0..LOOKS).any(|_| {
        client.get(b"none");
        memory.used_bytes() < 1 << 20
    });
    assert!(waits, "{} bytes are held", memory.used_bytes());
    assert!(memory.highest_bytes() > VALUE_BYTES as u64, "it was charged");
    server.stop().expect("a clean stop");
    drop(rest.join().expect("a reader"));
}

/// A request of the administrator.
fn ask(server: &Server, path: &str) -> TcpStream {
    let ask = format!(
        "GET {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Basic QWRtaW5pc3RyYXRvcjpwYXNzd29yZA==\r\n\r\n"
    );
    let mut stream = TcpStream::connect(server.http()).expect("the server listens");
    stream.write_all(ask.as_bytes()).expect("it is read");
    stream
}

/// The status of an answer that begins.
fn status(stream: &mut TcpStream) -> String {
    let mut line = [0; 12];
    stream.read_exact(&mut line).expect("an answer");
    String::from_utf8_lossy(&line[9..]).into_owned()
}

/// The body of an answer that comes in chunks.
fn chunked(mut stream: TcpStream) -> Vec<u8> {
    let mut all = Vec::new();
    let mut some = [0; 64 << 10];
    while !all.ends_with(b"\r\n0\r\n\r\n") {
        let count = stream.read(&mut some).expect("the answer goes on");
        assert!(count > 0, "the answer was broken off");
        all.extend_from_slice(&some[..count]);
    }
    let head = all.windows(4).position(|four| four == b"\r\n\r\n").expect("the end of the head");
    let (mut body, mut rest) = (Vec::new(), &all[head + 4..]);
    loop {
        let line = rest.windows(2).position(|two| two == b"\r\n").expect("the size of a chunk");
        let size = str::from_utf8(&rest[..line]).expect("text");
        let size = usize::from_str_radix(size, 16).expect("a number");
        if size == 0 {
            return body;
        }
        body.extend_from_slice(&rest[line + 2..][..size]);
        rest = &rest[line + 2 + size + 2..];
    }
}

/// A node with many users, who have many roles each.
fn node_with_users(folder: &Path, users: usize, more: &str) -> Server {
    const ROLES: usize = 100;
    let server = start(folder, more);
    assert_eq!(http(&server, "PUT", "/settings/rbac/users/local/user", "password=password").0, 200);
    server.stop().expect("a clean stop");
    let (env, file) = (Env::real(), node::kept_users::file(folder));
    let read = |bytes: &[u8], _| serde_json::from_slice::<Value>(bytes).map_err(|error| error.to_string());
    let found = file.open(&*env.disk, read, |fault| panic!("{fault}")).expect("sound");
    let mut kept = found.expect("the user is in the file");
    let mut user = kept["users"]["user"].clone();
    user["roles"] =
        (0..ROLES).map(|at| format!("data_reader[default:scope{at}:collection]")).collect::<Value>();
    for at in 1..users {
        kept["users"][format!("user{at:04}")] = user.clone();
    }
    file.write(&*env.disk, &serde_json::to_vec(&kept).expect("JSON")).expect("written");
    start(folder, more)
}

#[test]
fn clients_that_do_not_read_a_long_list_hold_little_of_it() {
    const CLIENTS: usize = 60;
    const USERS: usize = 300;
    // What a connection has on its way before it waits for its client.
    const MOST_EACH: u64 = 512 << 10;
    let folder = tempfile::tempdir().expect("a folder");
    let limits =
        "connection-memory = \"40MiB\"\nmax-http-connections = 200\nmax-http-connections-per-address = 200";
    let server = node_with_users(folder.path(), USERS, limits);
    let mut client = Client::connect(&server, "default", &[]);
    let mut clients: Vec<TcpStream> = (0..CLIENTS).map(|_| ask(&server, "/settings/rbac/users")).collect();
    clients.iter_mut().for_each(|stream| assert_eq!(status(stream), "200"));
    // One that reads gets all of it meanwhile.
    let whole = chunked(ask(&server, "/settings/rbac/users/local"));
    let listed: Value = serde_json::from_slice(&whole).expect("JSON");
    assert_eq!(listed.as_array().map(Vec::len), Some(USERS));
    assert!(whole.len() as u64 > LIMIT / CLIENTS as u64, "{}", whole.len());
    let page = "/settings/rbac/users/local?pageSize=100&startFrom=user0150";
    let page: Value = serde_json::from_slice(&chunked(ask(&server, page))).expect("JSON");
    assert_eq!((page["users"].as_array().map(Vec::len), &page["skipped"]), (Some(100), &150.into()));
    is_served(&server, &mut client);
    let (highest, most) =
        (server.node().connection_memory().highest_bytes(), (CLIENTS as u64 + 2) * MOST_EACH);
    assert!(highest <= most, "{highest} of {most}");
    assert_eq!(server.node().connection_memory().refused(), 0);
    drop(clients);
    wait_until_free(&server, &mut client);
    server.stop().expect("a clean stop");
}

/// An answer that is made as a whole is charged before it is sent: what finds no room is refused.
#[test]
fn clients_that_do_not_read_documents_over_http_are_bounded() {
    const CLIENTS: usize = 60;
    let folder = tempfile::tempdir().expect("a folder");
    let limits =
        "connection-memory = \"40MiB\"\nmax-http-connections = 200\nmax-http-connections-per-address = 200";
    let server = start(folder.path(), limits);
    let mut client = Client::connect(&server, "default", &[]);
    assert_eq!(client.set(b"large", &vec![b'x'; MIB]), Some(Status::Success));
    let mut clients = Vec::new();
    for _ in 0..CLIENTS {
        let mut stream = ask(&server, "/v1/buckets/default/document?key=large");
        let told = status(&mut stream);
        assert!(told == "200" || told == "503", "{told}");
        if told == "200" {
            clients.push(stream);
        }
        assert_eq!(client.set(b"honest", b"value"), Some(Status::Success));
    }
    // What one request holds while it is worked on comes beside what others were answered.
    let (highest, most) = (server.node().connection_memory().highest_bytes(), LIMIT + 8 * MIB as u64);
    assert!(highest <= most, "{highest} of {most}");
    assert!((10..CLIENTS).contains(&clients.len()), "{} are answered", clients.len());
    drop(clients);
    wait_until_free(&server, &mut client);
    assert_eq!(status(&mut ask(&server, "/v1/buckets/default/document?key=large")), "200");
    server.stop().expect("a clean stop");
}

#[test]
fn streams_are_charged_with_what_they_are_about() {
    const STREAMS: usize = 300;
    let folder = tempfile::tempdir().expect("a folder");
    let server = node(folder.path());
    let mut client = Client::connect(&server, "default", &[]);
    let mut consumer = Client::connect(&server, "default", &[Feature::Collections]);
    dcp_open(&mut consumer, "many streams");
    for control in ["enable_noop", "enable_stream_id"] {
        assert_eq!(
            request(&mut consumer, opcode::DCP_CONTROL, control.as_bytes(), b"", b"true"),
            Status::Success
        );
    }
    let used = || server.node().connection_memory().used_bytes() as usize;
    assert_eq!(dcp_stream(&mut consumer, r#"{"collections":["0"],"sid":1}"#), Status::Success);
    let one = used();
    for id in 2..=STREAMS {
        let filter = format!(r#"{{"scope":"0","sid":{id}}}"#);
        assert_eq!(dcp_stream(&mut consumer, &filter), Status::Success);
    }
    assert_eq!(dcp_stream(&mut consumer, r#"{"scope":"0","sid":1}"#), Status::KeyEexists);
    assert!(used() >= one + (STREAMS - 1) * (512 + 1200 * 4), "{} after {one}", used());
    let all = used();
    let closed: Vec<Status> = (1..=STREAMS as u16)
        .map(|id| {
            let infos = [0x22, (id >> 8) as u8, id as u8];
            let parts = RequestParts {
                opcode: opcode::DCP_CLOSE_STREAM,
                frame_infos: &infos,
                ..RequestParts::default()
            };
            consumer.request(&parts).status
        })
        .collect();
    assert!(closed.iter().all(|status| *status == Status::Success), "{closed:?}");
    assert_eq!(dcp_stream(&mut consumer, r#"{"sid":0}"#), Status::DcpStreamIdInvalid);
    assert!(used() <= all / 10, "{} of {all}", used());
    drop(consumer);
    wait_until_free(&server, &mut client);
    server.stop().expect("a clean stop");
}

#[test]
fn strangers_hold_16_kib_at_most() {
    const STRANGERS: usize = 20;
    let folder = tempfile::tempdir().expect("a folder");
    let server = node(folder.path());
    let mut client = Client::connect(&server, "default", &[]);
    let asks = [
        RequestParts { opcode: opcode::GET_ERROR_MAP, value: &[0, 2], ..RequestParts::default() },
        RequestParts { opcode: opcode::HELLO, key: b"stranger", value: &[0, 7], ..RequestParts::default() },
        RequestParts { opcode: opcode::SASL_LIST_MECHS, ..RequestParts::default() },
        RequestParts {
            opcode: opcode::SASL_AUTH,
            key: b"PLAIN",
            value: b"\0a\0b",
            ..RequestParts::default()
        },
    ];
    let pipeline = |ask: &RequestParts<'_>| {
        let mut one = Vec::new();
        assert!(write_request(&mut one, ask));
        one.repeat((16 << 20) / one.len())
    };
    // The largest frame, which does not end.
    let largest = base::limits::MAX_UNAUTHENTICATED_BODY_BYTES;
    let unfinished =
        [&header(opcode::HELLO, largest as u32, Datatype::RAW)[..], &vec![b'x'; largest - 1]].concat();
    for pipeline in asks.iter().map(pipeline).chain([unfinished]) {
        let mut strangers = Vec::new();
        for _ in 0..STRANGERS {
            let mut stream = TcpStream::connect(server.kv()).expect("the server listens");
            push(&mut stream, &pipeline);
            strangers.push(stream);
        }
        is_served(&server, &mut client);
        drop(strangers);
        wait_until_free(&server, &mut client);
    }
    let highest = server.node().connection_memory().highest_bytes();
    assert!(highest <= (STRANGERS * (16 << 10)) as u64, "{highest}");
    server.stop().expect("a clean stop");
}
