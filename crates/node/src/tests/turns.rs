//! What a connection may do in one turn: others of its worker wait for that.

use base::Datatype;
use protocol::{RequestParts, Status, opcode};

use super::{connect_as, feed, node_of, request, simple, statuses, vb};
use crate::connection::Next;
use crate::long_work::LONG_BYTES;
use crate::output::Output;

const KEY: &[u8] = b"k";
/// Two of them are a turn.
const DOCUMENT_BYTES: usize = LONG_BYTES / 2;
const REQUESTS: usize = 40;

fn parts<'a>(opcode: u8, extras: &'a [u8], value: &'a [u8]) -> RequestParts<'a> {
    RequestParts { opcode, key: KEY, vbucket: vb(KEY), extras, value, ..RequestParts::default() }
}

/// Requests that are short themselves, and each read or write the whole document.
fn short_requests() -> Vec<(&'static str, Vec<u8>)> {
    let subdoc = [&[0, 1][..], &[0]].concat();
    vec![
        ("get", request(&parts(opcode::GET, &[], &[]))),
        ("get and touch", request(&parts(opcode::GAT, &[0; 4], &[]))),
        ("get and lock", request(&parts(opcode::GET_LOCKED, &[0, 0, 0, 1], &[]))),
        ("touch", request(&parts(opcode::TOUCH, &[0, 0, 1, 0], &[]))),
        ("increment", request(&parts(opcode::INCREMENT, &[0; 20], &[]))),
        ("append", request(&parts(opcode::APPEND, &[], b""))),
        ("look up a path", request(&parts(opcode::SUBDOC_EXISTS, &subdoc, b"p"))),
        ("change a path", request(&parts(opcode::SUBDOC_DICT_UPSERT, &subdoc, b"p1"))),
    ]
}

#[test]
pub(crate) fn short_requests_about_large_documents_end_a_turn() {
    for (what, bytes) in short_requests() {
        let node = node_of(true);
        let mut connection = connect_as(&node, "admin", super::FULL_WITHOUT_SNAPPY);
        let plain = [&b"{\"a\":\""[..], &vec![b'x'; DOCUMENT_BYTES - 8], b"\"}"].concat();
        let block = snap::raw::Encoder::new().compress_vec(&plain).expect("it fits");
        let mut packs = connect_as(&node, "admin", super::FULL);
        let set = parts(opcode::SET, &[0; 8], &block);
        let set = request(&RequestParts { datatype: Datatype::SNAPPY.0, ..set });
        assert_eq!(statuses(&feed(&mut packs, &set).0), [(0, Status::Success)]);
        let all = bytes.repeat(REQUESTS);
        let mut out = Output::default();
        let received = connection.receive(&all, &mut out);
        assert_eq!(received.next, Next::Turn, "{what}");
        let handled = received.consumed / bytes.len();
        assert!((1..=3).contains(&handled), "{what}: {handled} in one turn");
        // The rest is answered in later turns.
        let (answers, _) = feed(&mut connection, &all[received.consumed..]);
        assert_eq!(statuses(&answers).len(), REQUESTS - handled, "{what}");
    }
}

#[test]
pub(crate) fn what_takes_long_leaves_its_worker() {
    let node = node_of(true);
    let mut connection = connect_as(&node, "admin", super::FULL);
    let value = vec![b'x'; LONG_BYTES];
    let mut out = Output::default();
    let received = connection.receive(&request(&parts(opcode::SET, &[0; 8], &value)), &mut out);
    assert_eq!((received.next, out.to_vec().len()), (Next::Later, 0));
}

#[test]
fn short_requests_about_small_documents_share_a_turn() {
    let node = node_of(true);
    let mut connection = connect_as(&node, "admin", super::FULL);
    let set = request(&parts(opcode::SET, &[0; 8], b"{}"));
    assert_eq!(statuses(&feed(&mut connection, &set).0), [(0, Status::Success)]);
    let bytes = request(&parts(opcode::TOUCH, &[0, 0, 1, 0], &[])).repeat(REQUESTS);
    let all = [bytes, simple(opcode::NOOP, 7)].concat();
    let mut out = Output::default();
    let received = connection.receive(&all, &mut out);
    assert_eq!((received.consumed, statuses(&out.to_vec()).len()), (all.len(), REQUESTS + 1));
}
