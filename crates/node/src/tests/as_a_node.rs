//! What nodes do to each other over streams, asked for by users who may stream: refused, and without an effect.

use base::VbState;
use protocol::dcp::StreamFlags;

use super::lost_rights::{change, dcp, node_with, streaming};
use super::roles::{COLLECTIONS, node_with_collections, status_of};
use super::*;

/// All that a user without an administrator's role can be given of streams.
const READERS: [&str; 3] =
    ["data_dcp_reader[default]", "bucket_full_access[default]", "data_backup[default]"];

fn state(node: &Node) -> Option<VbState> {
    node.bucket("default").expect("it is served").state_of(VbId(0))
}

fn stream(flags: u32) -> Vec<u8> {
    let extras = [&flags.to_be_bytes()[..], &[0; 12], &[0xff; 8], &[0; 24]].concat();
    dcp(opcode::DCP_STREAM_REQ, 0, &extras, b"", b"")
}

fn control(key: &str, value: &str) -> Vec<u8> {
    dcp(opcode::DCP_CONTROL, 0, b"", key.as_bytes(), value.as_bytes())
}

/// A stream that takes its vBucket over is none of a reader's.
#[test]
fn vbuckets_are_taken_over_by_nodes_alone() {
    for grants in READERS {
        let node = node_with("ann", grants);
        let mut ann = streaming(&node, "ann");
        assert_eq!(status_of(&mut ann, &stream(StreamFlags::TAKEOVER)), Status::Eaccess, "{grants}");
        assert_eq!(status_of(&mut ann, &stream(0)), Status::Success, "{grants}");
        assert_eq!(state(&node), Some(VbState::Active));
    }
    let node = node_with("ann", "admin");
    let mut ann = streaming(&node, "ann");
    assert_eq!(status_of(&mut ann, &stream(StreamFlags::TAKEOVER)), Status::Success);
    change(&node, "ann", "data_dcp_reader[default]");
    ann.hear(true, &mut Output::default());
    assert_eq!(ann.closing(), Some(CloseReason::UserChanged), "what it began is not gone on with");
}

/// Nor does a reader's word that it has a prepare count.
#[test]
fn prepares_are_acknowledged_by_nodes_alone() {
    let acknowledge = dcp(opcode::DCP_SEQNO_ACKNOWLEDGED, 0, &1_u64.to_be_bytes(), b"", b"");
    for grants in READERS {
        let node = node_with("ann", grants);
        let mut ann = streaming(&node, "ann");
        // To be sent prepares is a reader's right.
        assert_eq!(status_of(&mut ann, &control("enable_sync_writes", "true")), Status::Success, "{grants}");
        assert_eq!(status_of(&mut ann, &control("consumer_name", "replica")), Status::Eaccess, "{grants}");
        assert_eq!(status_of(&mut ann, &stream(0)), Status::Success, "{grants}");
        // It has no name to count by; a link that goes on without one is told nothing.
        assert!(feed(&mut ann, &acknowledge).0.is_empty(), "{grants}");
    }
    let node = node_with("ann", "admin");
    let mut ann = streaming(&node, "ann");
    for (key, value) in [("enable_sync_writes", "true"), ("consumer_name", "replica")] {
        assert_eq!(status_of(&mut ann, &control(key, value)), Status::Success, "{key}");
    }
    assert_eq!(status_of(&mut ann, &stream(0)), Status::Success);
    assert!(feed(&mut ann, &acknowledge).0.is_empty(), "it counts");
    change(&node, "ann", "data_dcp_reader[default]");
    ann.hear(true, &mut Output::default());
    assert_eq!(ann.closing(), Some(CloseReason::UserChanged));
}

/// The names of links between nodes are in every cluster map.
#[test]
fn a_name_is_taken_over_by_its_owner_alone() {
    let node = node_with_collections();
    let is_replaced = |connection: &mut Connection| {
        let mut out = Output::default();
        connection.stream(1 << 10, &Context::from_waker(Waker::noop()), &mut out);
        connection.closing() == Some(CloseReason::Replaced)
    };
    let mut link = streaming(&node, "admin");
    let mut ann = streaming(&node, "data_dcp_reader");
    let mut other = streaming(&node, "data_backup");
    assert!(!is_replaced(&mut link) && !is_replaced(&mut ann) && !is_replaced(&mut other));
    assert_eq!(node.streams().all().len(), 3);
    let again = streaming(&node, "data_dcp_reader");
    assert!(is_replaced(&mut ann) && !is_replaced(&mut link) && !is_replaced(&mut other));
    drop((again, ann));
    let _link = streaming(&node, "admin");
    assert!(is_replaced(&mut link) && !is_replaced(&mut other), "nodes go on as before");
}

/// A login that was begun counts as memory of the connection until it ends, and is bounded.
#[test]
fn a_login_under_way_is_charged() {
    let node = node();
    let first = |nonce: usize| {
        let message = format!("n,,n=admin,r={}", "n".repeat(nonce));
        let parts =
            RequestParts { opcode: opcode::SASL_AUTH, key: b"SCRAM-SHA512", ..RequestParts::default() };
        request(&RequestParts { value: message.as_bytes(), ..parts })
    };
    let mut stranger = connect(&node);
    assert_eq!(stranger.held_bytes(), 0);
    let (answers, _) = feed(&mut stranger, &first(1_000));
    assert_eq!(statuses(&answers)[0].1, Status::AuthContinue);
    let held = stranger.held_bytes();
    assert!((3_000..4_500).contains(&held), "{held}");
    let (answers, _) = feed(&mut stranger, &first(1_025));
    assert_eq!((statuses(&answers)[0].1, stranger.held_bytes()), (Status::Einval, 0));
    assert_eq!(connect_as(&node, "admin", COLLECTIONS).held_bytes(), 0, "a user's session is not looked at");
}
