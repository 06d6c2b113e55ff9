//! Operations that take long leave their worker: others are served meanwhile, and what is answered is the same.
#![allow(clippy::disallowed_methods, reason = "this is a client, outside the server")]

mod support;

use std::net::TcpStream;

use base::{Datatype, limits};
use node::command::{ROWS, Row};
use node::command_rules::{Extras, Key, Leaves, ValueRule};
use protocol::feature::Feature;
use protocol::{RequestParts, Status, opcode};
use server::Server;
use support::{Client, http, http_as, start, vb};

const CONFIG: &str = "threads = 1\nbuckets = [\"default:1GiB\"]";
const KEY: &[u8] = b"large";
const PATHS: usize = 16;
const CLIENTS: usize = 4;
/// Changes that each of them sends at once: together they take far longer than a login.
const CHANGES: usize = 30;

fn document() -> Vec<u8> {
    let mut document = b"{\"filler\":\"".to_vec();
    document.resize(17 << 20, b'x');
    document.extend_from_slice(b"\"}");
    document
}

/// Path `p0` or another one, with this value if it is a change.
fn spec(opcode: u8, n: usize, value: Option<&[u8]>) -> Vec<u8> {
    let path = format!("p{n}");
    let mut spec = vec![opcode, 0];
    spec.extend((path.len() as u16).to_be_bytes());
    spec.extend(value.map_or(Vec::new(), |value| (value.len() as u32).to_be_bytes().to_vec()));
    spec.extend_from_slice(path.as_bytes());
    spec.extend_from_slice(value.unwrap_or_default());
    spec
}

/// The same of many paths.
fn specs(opcode: u8, value: Option<&[u8]>) -> Vec<u8> {
    (0..PATHS).flat_map(|n| spec(opcode, n, value)).collect()
}

fn request(opcode: u8, value: &[u8]) -> RequestParts<'_> {
    RequestParts { opcode, key: KEY, value, vbucket: vb(KEY), ..RequestParts::default() }
}

/// Figures take long where there are many collections: other requests over HTTP do not wait for them.
#[test]
fn metrics_hold_up_no_other_request_over_http() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = start(folder.path(), CONFIG);
    let overviews = &server.node().lanes().overviews;
    let (open, gate) = std::sync::mpsc::channel::<()>();
    let wait = move || {
        let _ = gate.recv();
    };
    let busy = overviews.begin(server.node().env(), None, wait);
    assert!(busy.is_some(), "the one thread is busy");
    let at = (server.kv_addr(), server.http_addr());
    std::thread::scope(|scope| {
        let scrape = scope.spawn(move || http(&at, "GET", "/metrics", ""));
        while overviews.under_way() < 2 {}
        assert_eq!(http(&at, "GET", "/livez", "").0, 200);
        drop(open);
        let (code, text) = scrape.join().expect("an answer");
        assert!(code == 200 && text.contains("\nstave_may_serve 1\n"), "{code} {text}");
    });
    server.stop().expect("a clean stop");
}

#[test]
fn changes_of_many_paths_of_a_large_document_hold_nobody_up() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = start(folder.path(), CONFIG);
    let mut clients: Vec<_> = (0..CLIENTS).map(|_| Client::connect(&server, "default", &[])).collect();
    assert_eq!(clients[0].set(KEY, &document()), Some(Status::Success));
    for user in ["ann", "bob"] {
        let path = format!("/settings/rbac/users/local/{user}");
        assert_eq!(http(&server, "PUT", &path, "password=password&roles=admin").0, 200);
    }
    let changes = specs(opcode::SUBDOC_DICT_UPSERT, Some(b"17"));
    let mut bytes = Vec::new();
    assert!(protocol::write_request(&mut bytes, &request(opcode::SUBDOC_MULTI_MUTATION, &changes)));
    clients.iter_mut().for_each(|client| client.send(&bytes.repeat(CHANGES)));
    // They all have begun.
    for client in &mut clients {
        assert_eq!(client.receive().status, Status::Success);
    }
    let lanes = server.node().lanes();
    // Of new passwords, too: they are counted a moment behind their answers.
    while lanes.passwords.under_way() > 0 {}
    let passwords = lanes.passwords.done();
    let mut other = Client::connect(&server, "default", &[]);
    assert_eq!(other.set(b"k", b"v"), Some(Status::Success));
    // Keys are derived of the first password of a user who is kept, and stats and the manifest look at all vBuckets.
    let mut ann = Client::over(TcpStream::connect(server.kv_addr()).expect("the server listens"));
    ann.send(&node::fuzz::login("ann", "password", "default", &[]));
    (0..3).for_each(|_| assert_eq!(ann.receive().status, Status::Success));
    assert_eq!(http_as("bob", server.http_addr(), "GET", "/pools", "").0, 200);
    for opcode in [opcode::STAT, opcode::GET_COLLECTIONS_MANIFEST] {
        let parts = RequestParts { opcode, ..RequestParts::default() };
        assert_eq!(other.request(&parts).status, Status::Success);
        while opcode == opcode::STAT && !other.receive().key.is_empty() {}
    }
    while lanes.passwords.under_way() + lanes.overviews.under_way() > 0 {}
    assert_eq!(lanes.passwords.done() - passwords, 2);
    assert!(lanes.overviews.done() >= 2);
    let (done, all) = (lanes.long_work.done(), (CLIENTS * CHANGES) as u64);
    assert!(done < all / 2, "{done} of {all} changes were waited for");
    drop(clients);
    let stat = RequestParts { opcode: opcode::STAT, key: b"timings", ..RequestParts::default() };
    let mut answer = other.request(&stat);
    let mut waited = 0;
    while !answer.key.is_empty() {
        let name = String::from_utf8_lossy(&answer.key).into_owned();
        if name.starts_with("work_queue_") && !name.ends_with("_mean") {
            waited += String::from_utf8_lossy(&answer.value).parse::<u64>().expect("a number");
        }
        answer = other.receive();
    }
    assert!(waited > 0, "waits for a thread are in the timings");
    let lookups = specs(opcode::SUBDOC_GET, None);
    let found = other.request(&request(opcode::SUBDOC_MULTI_LOOKUP, &lookups));
    let each = [&[0, 0, 0, 0, 0, 2][..], b"17"].concat();
    assert_eq!((found.status, found.value), (Status::Success, each.repeat(PATHS)));
    server.stop().expect("a clean stop");
}

#[test]
fn a_stop_waits_for_what_is_under_way() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = start(folder.path(), CONFIG);
    let mut client = Client::connect(&server, "default", &[]);
    assert_eq!(client.set(KEY, &document()), Some(Status::Success));
    // One path alone: last answers have five seconds, and sixteen took more than that on a busy machine.
    let changes = spec(opcode::SUBDOC_DICT_UPSERT, 15, Some(b"17"));
    let mut bytes = Vec::new();
    assert!(protocol::write_request(&mut bytes, &request(opcode::SUBDOC_MULTI_MUTATION, &changes)));
    let long_work = std::sync::Arc::clone(&server.node().lanes().long_work);
    // Storing the document may have been such work, too, which ends and is counted a moment behind its answer.
    while long_work.under_way() > 0 {}
    let done = long_work.done();
    client.send(&bytes);
    while long_work.under_way() == 0 && long_work.done() == done {
        assert_eq!(Client::connect(&server, "default", &[]).set(b"k", b"v"), Some(Status::Success));
    }
    server.stop().expect("a clean stop");
    assert_eq!(client.receive().status, Status::Success);
    let server = start(folder.path(), CONFIG);
    let mut client = Client::connect(&server, "default", &[]);
    let found = client.get(KEY).expect("an answer");
    assert!(found.value.windows(9).any(|at| at == b"\"p15\":17}" || at == b"\"p15\":17,"), "it was written");
    server.stop().expect("a clean stop");
}

/// Commands that stay at their worker with a value of any size, and why that does not take long.
const STAY: &[(u8, &str)] = &[
    (opcode::HELLO, "it changes its session; each feature is looked at once"),
    (opcode::SASL_AUTH, "it changes its session; a long proof is refused unread"),
    (opcode::SASL_STEP, "it changes its session; a long proof is refused unread"),
    (opcode::SET_PARAM, "a setting is looked up by its name, and a long value is refused unread"),
    (opcode::GET_COLLECTION_ID, "a name that is too long is refused"),
    (opcode::GET_SCOPE_ID, "a name that is too long is refused"),
    (opcode::SET_CLUSTER_CONFIG, "it is not supported"),
    (opcode::UPDATE_EXTERNAL_USER_PERMISSIONS, "it is not supported"),
    (opcode::EWOULDBLOCK_CTL, "it is not supported"),
    (opcode::DOWNLOAD_SNAPSHOT, "a long value is refused, and another thread copies"),
    (opcode::DCP_OPEN, "it changes its session; a long value is refused"),
    (opcode::DCP_STREAM_REQ, "it changes its streams; what a long value names is refused"),
    (opcode::DCP_CONTROL, "it changes its session; a long value is refused"),
    (opcode::DCP_SNAPSHOT_MARKER, "the producer's messages are applied in their order, a copy of each"),
    (opcode::DCP_MUTATION, "the producer's messages are applied in their order, a copy of each"),
    (opcode::DCP_DELETION, "the producer's messages are applied in their order, a copy of each"),
    (opcode::DCP_EXPIRATION, "the producer's messages are applied in their order, a copy of each"),
    (opcode::DCP_SYSTEM_EVENT, "the producer's messages are applied in their order, a copy of each"),
    (opcode::DCP_PREPARE, "the producer's messages are applied in their order, a copy of each"),
];

/// Sends a request and waits for all that it is answered; whether it was handled elsewhere.
fn leaves(server: &Server, client: &mut Client, parts: &RequestParts<'_>) -> bool {
    let lanes = server.node().lanes();
    let [long_work, overviews] = [&lanes.long_work, &lanes.overviews];
    // A request is counted a moment behind its answer.
    let done = || {
        while long_work.under_way() + overviews.under_way() > 0 {}
        long_work.done() + overviews.done()
    };
    let before = done();
    let mut bytes = Vec::new();
    assert!(protocol::write_request(&mut bytes, parts));
    let noop = RequestParts { opcode: opcode::NOOP, ..RequestParts::default() };
    assert!(protocol::write_request(&mut bytes, &noop));
    client.send(&bytes);
    // Answers keep their order: the last one is that of the last request. Some requests close the connection.
    while client.try_receive().is_some_and(|frame| frame.opcode != opcode::NOOP) {}
    done() > before
}

/// A request with the largest value that a command may have.
fn largest<'a>(row: &Row, value: &'a [u8]) -> RequestParts<'a> {
    let extras: &[u8] = match row.extras {
        Extras::Exactly(len) => &[0; 64][..usize::from(len)],
        Extras::OneOf(lens) => &[0; 64][..usize::from(lens[0])],
        Extras::None | Extras::Any => &[],
    };
    let is_document = row.key == Key::Document;
    RequestParts {
        opcode: row.opcode,
        key: if is_document || row.key == Key::Required { KEY } else { &[] },
        vbucket: if is_document { vb(KEY) } else { base::VbId(0) },
        extras,
        value: if takes_value(row) { &value[..value.len().min(row.most_value_bytes)] } else { &[] },
        ..RequestParts::default()
    }
}

fn takes_value(row: &Row) -> bool {
    matches!(row.value, ValueRule::Optional | ValueRule::Required | ValueRule::InsteadOfKey)
}

/// The whole table: whichever command has the largest value, or a document with it, leaves its worker, or is named above.
/// With `--nocapture` it tells the longest turns.
#[test]
fn each_command_that_may_take_long_leaves_its_worker() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = start(folder.path(), CONFIG);
    let large = [&b"\""[..], &vec![b'x'; limits::MAX_VALUE_BYTES - 2], b"\""].concat();
    let mut left = 0;
    for row in ROWS {
        let may_be_long = match row.leaves {
            Leaves::Never | Leaves::LargeValue => takes_value(row),
            Leaves::LargeDocument | Leaves::Always | Leaves::Overview => true,
        };
        if !may_be_long {
            continue;
        }
        let stays = STAY.iter().any(|(opcode, _)| *opcode == row.opcode);
        let mut client = Client::connect(&server, "default", &[]);
        if row.leaves == Leaves::LargeDocument {
            assert_eq!(client.set(KEY, &large), Some(Status::Success), "{}", row.name);
        }
        assert_eq!(leaves(&server, &mut client, &largest(row, &large)), !stays, "{}", row.name);
        left += usize::from(!stays);
    }
    assert!(left > 40, "{left}");
    let mut client = Client::connect(&server, "default", &[]);
    let short = RequestParts { extras: &[0; 8], ..request(opcode::SET, b"1") };
    assert!(!leaves(&server, &mut client, &short), "what is short stays");
    for (command, ns) in node::node::longest_turns(server.node()) {
        println!("{command}: {} us", ns / 1000);
    }
    server.stop().expect("a clean stop");
}

#[test]
fn large_values_are_inflated_elsewhere() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = start(folder.path(), CONFIG);
    let large = vec![b'x'; 2 << 20];
    let block = snap::raw::Encoder::new().compress_vec(&large).expect("it fits");
    let mut packs = Client::connect(&server, "default", &[Feature::Snappy]);
    let parts =
        RequestParts { datatype: Datatype::SNAPPY.0, extras: &[0; 8], ..request(opcode::SET, &block) };
    assert!(leaves(&server, &mut packs, &parts), "it is small, and what is in it is not");
    let mut unpacks = Client::connect(&server, "default", &[]);
    for opcode in [opcode::GET, opcode::GETK] {
        let parts = RequestParts { opcode, key: KEY, vbucket: vb(KEY), ..RequestParts::default() };
        assert!(!leaves(&server, &mut packs, &parts), "it is sent as it is");
        assert!(leaves(&server, &mut unpacks, &parts));
        assert_eq!(unpacks.request(&parts).value, large);
    }
    server.stop().expect("a clean stop");
}

/// What takes long is handled on a thread without timers, and waits while changes are held for a snapshot of the bucket.
#[test]
fn a_large_value_waits_while_changes_are_held() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = start(folder.path(), CONFIG);
    let mut admin = Client::connect(&server, "default", &[Feature::Json]);
    let value = br#"{"do":"hold","id":"f7970e20-ca1b-4059-8542-3196e93f6927","most_ms":1000}"#;
    let hold = RequestParts {
        opcode: opcode::BUCKET_SNAPSHOT,
        value,
        datatype: Datatype::JSON.0,
        ..RequestParts::default()
    };
    assert_eq!(admin.request(&hold).status, Status::Success);
    let mut writer = Client::connect(&server, "default", &[]);
    assert_eq!(writer.set(KEY, &vec![b'x'; 2 << 20]), Some(Status::Success), "when the hold is over");
    server.stop().expect("a clean stop");
}
