//! Privilege debug: what is refused otherwise is done, and what was missing is recorded.

use super::certificates::{DATA, audit, recorded};
use super::*;
use crate::let_through::switch_on;

/// What a reader asks for and lacks privileges for: a write, a group of stats, and another user's commands.
fn asked(connection: &mut Connection) -> Vec<Status> {
    let stats = request(&RequestParts {
        opcode: opcode::STAT,
        key: b"checkpoint",
        opaque: 2,
        ..RequestParts::default()
    });
    [set(b"k", b"v", 1), stats, simple(opcode::GET_CMD_TIMER, 3), get(b"k", 4)]
        .iter()
        .map(|bytes| statuses(&feed(connection, bytes).0)[0].1)
        .collect()
}

fn select(connection: &mut Connection, bucket: &[u8]) -> Status {
    let parts = RequestParts { opcode: opcode::SELECT_BUCKET, key: bucket, ..RequestParts::default() };
    statuses(&feed(connection, &request(&parts)).0)[0].1
}

#[test]
fn what_a_user_lacks_privileges_for_is_done_and_recorded() {
    let node = node();
    node.env().disk.create_dir_all(DATA.as_ref()).expect("a folder");
    node.audit.read(DATA.as_ref());
    audit(&node, &[("auditdEnabled", "true")]);
    let mut reader = connect_as(&node, "reader", FULL);
    let before = asked(&mut reader);
    assert_eq!((before[0], before[1], before[3]), (Status::Eaccess, Status::Eaccess, Status::KeyEnoent));
    let lacks = r#""command":"Set""#;
    assert_eq!(recorded(&node, r#""privilege":"Upsert""#), 1, "a refusal says what is missing");
    assert_eq!((recorded(&node, lacks), recorded(&node, "\"id\":20487")), (1, 0));
    switch_on(&node);
    assert_eq!((recorded(&node, "\"id\":20486"), recorded(&node, r#""enable":true"#)), (1, 1));
    let after = asked(&mut reader);
    assert_eq!((after[0], after[1], after[3]), (Status::Success, Status::Success, Status::Success));
    assert!(recorded(&node, "\"id\":20487") >= 2 && recorded(&node, lacks) == 2);
    assert!(!reader.session().may(crate::privilege::Privilege::Upsert), "its rights are its own");
    // A bucket in which the user may do nothing.
    let mut guest = connect_as(&node, "guest", FULL);
    assert_eq!(select(&mut guest, b"default"), Status::Success);
    assert_eq!(statuses(&feed(&mut guest, &get(b"k", 1)).0), [(1, Status::Success)]);
    assert_eq!(select(&mut guest, b"no-such-bucket"), Status::Eaccess);
    // Who has not logged in gets nothing, and a wrong password is wrong.
    let (told, _) = feed(&mut connect(&node), &get(b"k", 1));
    assert_eq!(statuses(&told), [(1, Status::Eaccess)]);
    let (told, _) = feed(&mut connect(&node), &login("reader", "wrong", "default", &[]));
    assert_eq!(statuses(&told)[1].1, Status::AuthError);
}
