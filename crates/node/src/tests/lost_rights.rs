//! Users whose rights change under their connections: what a lost right allowed ends, and nothing else.

use protocol::dcp::{EndReason, Message, What};
use protocol::{Limits, Parsed, parse};

use super::roles::{COLLECTIONS, node_with_collections, of_collection, status_of};
use super::*;

pub(super) fn dcp(opcode: u8, vbucket: u16, extras: &[u8], key: &[u8], value: &[u8]) -> Vec<u8> {
    let vbucket = VbId(vbucket);
    request(&RequestParts { opcode, vbucket, extras, key, value, ..RequestParts::default() })
}

fn stream(vbucket: u16, filter: &str) -> Vec<u8> {
    let end = [&[0; 16][..], &[0xff; 8], &[0; 24]].concat();
    dcp(opcode::DCP_STREAM_REQ, vbucket, &end, b"", filter.as_bytes())
}

/// A connection of `user` that streams.
pub(super) fn streaming(node: &Arc<Node>, user: &str) -> Connection {
    let mut connection = connect_as(node, user, COLLECTIONS);
    let open = dcp(opcode::DCP_OPEN, 0, &[0, 0, 0, 0, 0, 0, 0, 1], b"k", b"");
    let noop = dcp(opcode::DCP_CONTROL, 0, b"", b"enable_noop", b"true");
    assert_eq!(status_of(&mut connection, &[open, noop].concat()), Status::Success);
    connection
}

/// The ends of streams that the connection sends when it looks at its user.
fn ends(connection: &mut Connection) -> Vec<(u16, EndReason)> {
    let mut out = Output::default();
    connection.hear(true, &mut out);
    let bytes = out.to_vec();
    let (mut rest, mut ends) = (&bytes[..], Vec::new());
    while let Parsed::Request { request, total_len } = parse(rest, Limits::AUTHENTICATED) {
        if let Some(Message { vb, what: What::End(reason), .. }) = Message::read(&request) {
            ends.push((vb.0, reason));
        }
        rest = &rest[total_len..];
    }
    ends
}

pub(super) fn node_with(user: &str, grants: &str) -> Arc<Node> {
    let node = node_with_collections();
    change(&node, user, grants);
    node
}

pub(super) fn change(node: &Arc<Node>, user: &str, grants: &str) {
    node.accounts().change_configured(node, &[granted(user, grants)]);
}

const LOST: EndReason = EndReason::LostPrivileges;

/// A change of roles holds from the next request on, without another login.
#[test]
pub(super) fn what_a_lost_role_allowed_is_refused_with_the_next_request() {
    let node = node_with("ann", "data_reader[default],data_writer[default]");
    let mut ann = connect_as(&node, "ann", FULL);
    let told = |ann: &mut Connection, opaque| {
        let bytes = [set(b"k", b"v", opaque), get(b"k", opaque + 1)].concat();
        let (answers, _) = feed(ann, &bytes);
        statuses(&answers).into_iter().map(|(_, status)| status).collect::<Vec<_>>()
    };
    assert_eq!(told(&mut ann, 1), [Status::Success, Status::Success]);
    change(&node, "ann", "data_reader[default]");
    assert_eq!(told(&mut ann, 3), [Status::Eaccess, Status::Success]);
    change(&node, "ann", "data_writer[default]");
    assert_eq!(told(&mut ann, 5), [Status::Success, Status::Eaccess]);
}

/// Whoever has selected a bucket that is deleted does not go on with it, nor with another one that gets its name.
#[test]
pub(super) fn a_session_ends_with_its_bucket() {
    let looks = |connection: &mut Connection| {
        connection.hear(true, &mut Output::default());
        connection.closing()
    };
    let node = node();
    let (mut admin, mut guest) = (connect_as(&node, "admin", FULL), connect_as(&node, "guest", FULL));
    assert_eq!((looks(&mut admin), looks(&mut guest)), (None, None));
    let bucket = node.bucket("default").expect("it is served");
    node.served().forget("default");
    assert_eq!(looks(&mut admin), Some(CloseReason::BucketGone));
    assert_eq!(looks(&mut guest), None, "its bucket is another one");

    let again = node_of(false).bucket("default").expect("it is served");
    let spec = BucketSpec::parse("default").expect("valid");
    node.served().serve(Served { spec: spec.clone(), bucket: Arc::clone(&bucket) });
    let mut admin = connect_as(&node, "admin", FULL);
    node.served().serve(Served { spec, bucket: again });
    assert_eq!(looks(&mut admin), Some(CloseReason::BucketGone), "another one has its name");
}

#[test]
fn streams_end_one_by_one() {
    let both = "data_dcp_reader[default:s:c],data_dcp_reader[default:s:d]";
    let node = node_with("ann", both);
    let mut ann = streaming(&node, "ann");
    for (vb, filter) in [
        (0, r#"{"collections":["8"]}"#),
        (1, r#"{"collections":["9"]}"#),
        (2, r#"{"collections":["8","9"]}"#),
    ] {
        assert_eq!(status_of(&mut ann, &stream(vb, filter)), Status::Success);
    }
    change(&node, "ann", "data_dcp_reader[default:s:c],data_writer[default:s:c]");
    assert_eq!(ends(&mut ann), [(1, LOST), (2, LOST)]);
    assert_eq!(ann.closing(), None, "the connection goes on");
    assert_eq!(ends(&mut ann), [], "they are told once");
    assert_eq!(status_of(&mut ann, &stream(1, r#"{"collections":["9"]}"#)), Status::UnknownCollection);
    assert_eq!(status_of(&mut ann, &stream(1, r#"{"collections":["8"]}"#)), Status::Success);

    // More rights end nothing, and a right to something else does not either.
    change(&node, "ann", both);
    assert_eq!(ends(&mut ann), []);
    change(&node, "ann", "data_writer[default]");
    assert_eq!(ends(&mut ann), [(0, LOST), (1, LOST)]);
    assert_eq!(status_of(&mut ann, &stream(0, r#"{"collections":["8"]}"#)), Status::Eaccess);
    assert_eq!(ann.closing(), None);
}

#[test]
fn a_stream_of_a_scope_or_of_everything_ends_with_the_whole() {
    let node = node_with("ann", "data_dcp_reader[default]");
    let mut ann = streaming(&node, "ann");
    for (vb, filter) in [(0, ""), (1, r#"{"scope":"8"}"#), (2, r#"{"scope":"9"}"#)] {
        assert_eq!(status_of(&mut ann, &stream(vb, filter)), Status::Success);
    }
    change(&node, "ann", "data_dcp_reader[default:s],data_dcp_reader[default:t:e]");
    assert_eq!(ends(&mut ann), [(0, LOST), (2, LOST)]);
}

/// The end comes before the answer to the request that notices it.
#[test]
fn a_request_notices_it_too() {
    let node = node_with("ann", "data_dcp_reader[default]");
    let mut ann = streaming(&node, "ann");
    assert_eq!(status_of(&mut ann, &stream(0, "")), Status::Success);
    change(&node, "ann", "data_reader[default]");
    let (answers, _) = feed(&mut ann, &stream(1, ""));
    let Parsed::Request { request, total_len } = parse(&answers, Limits::AUTHENTICATED) else {
        panic!("no message first: {answers:?}")
    };
    let told = Message::read(&request).expect("a message");
    assert!(matches!(told.what, What::End(LOST)), "{told:?}");
    assert_eq!(statuses(&answers[total_len..])[0].1, Status::Eaccess);
}

/// Who loses the last right in the selected bucket is refused until there is one again.
#[test]
fn a_lost_bucket_is_refused_and_comes_back() {
    let node = node_with("ann", "data_dcp_reader[default]");
    let mut ann = streaming(&node, "ann");
    assert_eq!(status_of(&mut ann, &stream(0, "")), Status::Success);
    change(&node, "ann", "data_reader[other]");
    assert_eq!(ends(&mut ann), [(0, LOST)]);
    let manifest = simple(opcode::GET_COLLECTIONS_MANIFEST, 0);
    let of_default = of_collection(opcode::GET, 0, b"", b"");
    for bytes in [of_default.clone(), stream(1, ""), manifest.clone()] {
        assert_eq!(status_of(&mut ann, &bytes), Status::Eaccess);
    }
    assert_eq!(ann.closing(), None);
    change(&node, "ann", "data_reader[default:s:c]");
    assert_eq!(status_of(&mut ann, &manifest), Status::Success);
    assert_eq!(status_of(&mut ann, &of_default), Status::UnknownCollection);

    node.accounts().change_configured(&node, &[]);
    assert!(matches!(feed(&mut ann, &manifest).1, Next::Close(CloseReason::UserChanged)), "the user is gone");
}
