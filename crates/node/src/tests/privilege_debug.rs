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

/// A node in this mode whose audit log is on.
fn debugged() -> Arc<Node> {
    let node = node();
    node.env().disk.create_dir_all(DATA.as_ref()).expect("a folder");
    node.audit.read(DATA.as_ref());
    audit(&node, &[("auditdEnabled", "true")]);
    switch_on(&node);
    node
}

fn ask(connection: &mut Connection, parts: &RequestParts<'_>) -> Status {
    statuses(&feed(connection, &request(parts)).0)[0].1
}

/// Sets a system attribute of a document, which is made if it is missing.
fn set_system_attribute<'a>(value: &'a mut Vec<u8>, key: &'a [u8]) -> RequestParts<'a> {
    let (path, body) = (b"_sys.a", b"1");
    value.extend([opcode::SUBDOC_DICT_UPSERT, 0x05]);
    value.extend((path.len() as u16).to_be_bytes());
    value.extend((body.len() as u32).to_be_bytes());
    value.extend(path.iter().chain(body));
    let parts =
        RequestParts { opcode: opcode::SUBDOC_MULTI_MUTATION, key, extras: &[1], ..RequestParts::default() };
    RequestParts { vbucket: vb(key), value, ..parts }
}

#[test]
fn each_missing_privilege_is_told_once() {
    let node = debugged();
    let mut reader = connect_as(&node, "reader", FULL);
    let mut value = Vec::new();
    assert_eq!(ask(&mut reader, &set_system_attribute(&mut value, b"k")), Status::Success);
    let told = |privilege: &str| recorded(&node, &format!(r#""privilege":"{privilege}""#));
    assert_eq!((told("Upsert"), told("SystemXattrWrite")), (1, 1));
    assert_eq!(recorded(&node, "\"id\":20487"), 2);
    // Of groups of stats, too.
    let mut guest = connect_as(&node, "guest", FULL);
    assert_eq!(select(&mut guest, b"default"), Status::Success);
    assert_eq!(told("SelectBucket"), 1);
    let stats = RequestParts { opcode: opcode::STAT, key: b"checkpoint", ..RequestParts::default() };
    assert_eq!(ask(&mut guest, &stats), Status::Success);
    assert_eq!((told("SimpleStats"), told("Stats")), (1, 1));
}

#[test]
fn what_every_user_is_refused_is_not_told() {
    let node = debugged();
    let mut reader = connect_as(&node, "reader", FULL);
    let set = |vbucket, key| {
        let parts = RequestParts { opcode: opcode::SET, extras: &[0; 8], ..RequestParts::default() };
        RequestParts { vbucket, key, ..parts }
    };
    // The vBucket is served elsewhere, and there is no such collection.
    assert_eq!(ask(&mut reader, &set(VbId(4), b"k")), Status::NotMyVbucket);
    let mut with_collections = connect_as(&node, "reader", &[FULL, &[Feature::Collections]].concat());
    assert_eq!(ask(&mut with_collections, &set(VbId(0), b"\x42k")), Status::UnknownCollection);
    assert_eq!(recorded(&node, "\"id\":20487"), 0);
}

#[test]
fn what_the_client_gave_up_itself_stays_away() {
    let node = debugged();
    let mut reader = connect_as(&node, "reader", FULL);
    let parts = RequestParts { opcode: opcode::DROP_PRIVILEGE, key: b"Read", ..RequestParts::default() };
    assert_eq!(ask(&mut reader, &parts), Status::Success);
    assert_eq!(statuses(&feed(&mut reader, &get(b"k", 1)).0), [(1, Status::Eaccess)]);
    assert_eq!(recorded(&node, "\"id\":20487"), 0);
}

#[test]
fn nothing_is_let_through_for_another_user() {
    let node = debugged();
    let mut admin = connect_as(&node, "admin", FULL);
    let mut infos = Vec::new();
    FrameInfos { impersonate: Some(b"data_writer"), ..FrameInfos::default() }.encode(&mut infos);
    let mut value = Vec::new();
    let parts = set_system_attribute(&mut value, b"k");
    let acting = RequestParts { frame_infos: &infos, ..parts };
    assert_eq!(ask(&mut admin, &acting), Status::Eaccess);
    let group = RequestParts { opcode: opcode::STAT, key: b"checkpoint", ..RequestParts::default() };
    assert_eq!(ask(&mut admin, &RequestParts { frame_infos: &infos, ..group }), Status::Eaccess);
    assert_eq!(recorded(&node, "\"id\":20487"), 0);
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
