//! Operations that take long leave their worker: others are served meanwhile, and what is answered is the same.
#![allow(clippy::disallowed_methods, reason = "this is a client, outside the server")]

mod support;

use protocol::{RequestParts, Status, opcode};
use support::{Client, start, vb};

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

/// Paths `p0` and so on, each with this value if it is a change.
fn specs(opcode: u8, value: Option<&[u8]>) -> Vec<u8> {
    let mut specs = Vec::new();
    for n in 0..PATHS {
        let path = format!("p{n}");
        specs.extend([opcode, 0]);
        specs.extend((path.len() as u16).to_be_bytes());
        specs.extend(value.map_or(Vec::new(), |value| (value.len() as u32).to_be_bytes().to_vec()));
        specs.extend_from_slice(path.as_bytes());
        specs.extend_from_slice(value.unwrap_or_default());
    }
    specs
}

fn request(opcode: u8, value: &[u8]) -> RequestParts<'_> {
    RequestParts { opcode, key: KEY, value, vbucket: vb(KEY), ..RequestParts::default() }
}

#[test]
fn changes_of_many_paths_of_a_large_document_hold_nobody_up() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = start(folder.path(), "threads = 1\nbuckets = [\"default:1GiB\"]");
    let mut clients: Vec<_> = (0..CLIENTS).map(|_| Client::connect(&server, "default", &[])).collect();
    assert_eq!(clients[0].set(KEY, &document()), Some(Status::Success));
    let changes = specs(opcode::SUBDOC_DICT_UPSERT, Some(b"17"));
    let mut bytes = Vec::new();
    assert!(protocol::write_request(&mut bytes, &request(opcode::SUBDOC_MULTI_MUTATION, &changes)));
    clients.iter_mut().for_each(|client| client.send(&bytes.repeat(CHANGES)));
    // They all have begun.
    for client in &mut clients {
        assert_eq!(client.receive().status, Status::Success);
    }
    let long_work = server.node().long_work();
    let mut other = Client::connect(&server, "default", &[]);
    assert_eq!(other.set(b"k", b"v"), Some(Status::Success));
    assert!(long_work.done() < (CLIENTS * CHANGES) as u64, "one logged in and wrote meanwhile");
    drop(clients);
    let lookups = specs(opcode::SUBDOC_GET, None);
    let found = other.request(&request(opcode::SUBDOC_MULTI_LOOKUP, &lookups));
    let each = [&[0, 0, 0, 0, 0, 2][..], b"17"].concat();
    assert_eq!((found.status, found.value), (Status::Success, each.repeat(PATHS)));
    server.stop().expect("a clean stop");
}

#[test]
fn a_stop_waits_for_what_is_under_way() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = start(folder.path(), "threads = 1\nbuckets = [\"default:1GiB\"]");
    let mut client = Client::connect(&server, "default", &[]);
    assert_eq!(client.set(KEY, &document()), Some(Status::Success));
    let changes = specs(opcode::SUBDOC_DICT_UPSERT, Some(b"17"));
    let mut bytes = Vec::new();
    assert!(protocol::write_request(&mut bytes, &request(opcode::SUBDOC_MULTI_MUTATION, &changes)));
    client.send(&bytes);
    while server.node().long_work().under_way() + server.node().long_work().done() as usize == 0 {
        assert_eq!(Client::connect(&server, "default", &[]).set(b"k", b"v"), Some(Status::Success));
    }
    server.stop().expect("a clean stop");
    assert_eq!(client.receive().status, Status::Success);
    let server = start(folder.path(), "threads = 1\nbuckets = [\"default:1GiB\"]");
    let mut client = Client::connect(&server, "default", &[]);
    let found = client.get(KEY).expect("an answer");
    assert!(found.value.windows(9).any(|at| at == b"\"p15\":17}" || at == b"\"p15\":17,"), "it was written");
    server.stop().expect("a clean stop");
}
