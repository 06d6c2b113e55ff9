//! Every command with every role, compared with the written table `command_roles.txt`.

use super::*;
use crate::command::{Extras, Key, Row, ValueRule};

/// The users of the columns: letter in the table, name.
const ROLES: [(char, &str); 4] = [('A', "admin"), ('B', "bucket-admin"), ('W', "writer"), ('R', "reader")];
const TABLE: &str = include_str!("command_roles.txt");

/// A request that fits the layout of its row. What the handler makes of it does not matter.
fn fitting(row: &Row) -> RequestParts<'static> {
    let extras_len = match row.extras {
        Extras::None | Extras::Any => 0,
        Extras::Exactly(len) => usize::from(len),
        Extras::OneOf(lens) => usize::from(lens[0]),
    };
    let (key, vbucket): (&[u8], _) = match row.key {
        // The one key that must name something.
        Key::Optional if row.opcode == opcode::SELECT_BUCKET => (b"default", VbId(0)),
        Key::Forbidden | Key::Optional => (b"", VbId(0)),
        Key::Required => (b"k", VbId(0)),
        Key::Document => (b"k", vb(b"k")),
    };
    let value_len = match row.value {
        ValueRule::Forbidden | ValueRule::Optional | ValueRule::InsteadOfKey => 0,
        ValueRule::Required => 1,
        ValueRule::Exactly(len) => usize::from(len),
    };
    let cas = if row.cas == crate::command::CasRule::Required { Cas(1) } else { Cas(0) };
    let (extras, value) = (&[0; 48][..extras_len], &[b'1'; 8][..value_len]);
    RequestParts { opcode: row.opcode, extras, key, value, vbucket, cas, ..RequestParts::default() }
}

/// Requests whose privileges depend on what they ask for.
fn special() -> Vec<(&'static str, RequestParts<'static>)> {
    let document = |opcode, extras, value| {
        let parts = RequestParts { opcode, extras, key: b"k", value, ..RequestParts::default() };
        RequestParts { vbucket: vb(b"k"), ..parts }
    };
    let mode = |extras| document(opcode::RETURN_META, extras, &b"1"[..]);
    let changes = |value| document(opcode::SUBDOC_MULTI_MUTATION, &[1][..], value);
    let setting = |key, value| RequestParts {
        opcode: opcode::SET_PARAM,
        extras: &[0, 0, 0, 1],
        key,
        value,
        ..RequestParts::default()
    };
    let group = |key| RequestParts { opcode: opcode::STAT, key, ..RequestParts::default() };
    let other = RequestParts { opcode: opcode::SELECT_BUCKET, key: b"other", ..RequestParts::default() };
    vec![
        ("SelectBucket of another bucket", other),
        ("ReturnMeta set", mode(&[0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0])),
        ("ReturnMeta add", mode(&[0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0])),
        ("ReturnMeta delete", mode(&[0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 0])),
        ("SubdocGet of a user attribute", document(opcode::SUBDOC_GET, &[0, 2, 4], b"u.")),
        ("SubdocGet of a system attribute", document(opcode::SUBDOC_GET, &[0, 2, 4], b"_s")),
        ("SubdocExists of a system attribute", document(opcode::SUBDOC_EXISTS, &[0, 4, 4], b"_s.a")),
        (
            "SubdocMultiLookup of a system attribute",
            document(opcode::SUBDOC_MULTI_LOOKUP, &[], b"\xc5\x04\x00\x02_s"),
        ),
        (
            "SubdocDictUpsert of a user attribute",
            document(opcode::SUBDOC_DICT_UPSERT, &[0, 3, 5, 1], b"u.a1"),
        ),
        (
            "SubdocDictUpsert of a system attribute",
            document(opcode::SUBDOC_DICT_UPSERT, &[0, 4, 5, 1], b"_s.a1"),
        ),
        ("SubdocMultiMutation of a user attribute", changes(b"\xc8\x05\x00\x03\x00\x00\x00\x01u.a1")),
        ("SubdocMultiMutation of a system attribute", changes(b"\xc8\x05\x00\x04\x00\x00\x00\x01_s.a1")),
        ("SubdocMultiMutation that counts", changes(b"\xcf\x01\x00\x01\x00\x00\x00\x01a1")),
        ("SubdocMultiMutation that deletes", changes(b"\x04\x00\x00\x00\x00\x00\x00\x00")),
        ("SetParam of the quota", setting(b"max_size", b"104857600")),
        ("SetParam of a watermark", setting(b"mem_low_wat_percent", b"60")),
        ("Stat", group(b"")),
        ("Stat of all buckets", group(b"bucket_details")),
        ("Stat of checkpoints", group(b"checkpoint")),
        ("Stat of a document", group(b"key k 0")),
    ]
}

/// The letters of the roles that are not refused for who they are.
fn allowed(node: &Arc<Node>, parts: &RequestParts<'_>) -> String {
    let is_allowed = |name: &str| {
        let (answers, _) = feed(&mut connect_as(node, name, FULL), &request(parts));
        !statuses(&answers).iter().any(|(_, status)| *status == Status::Eaccess)
    };
    ROLES.iter().map(|(letter, name)| if is_allowed(name) { *letter } else { '-' }).collect()
}

#[test]
fn each_command_is_for_the_roles_of_the_table() {
    let node = node();
    let rows = ROWS.iter().map(|row| (row.name, fitting(row)));
    let found: Vec<String> =
        rows.chain(special()).map(|(name, parts)| format!("{} {name}", allowed(&node, &parts))).collect();
    let written: Vec<&str> =
        TABLE.lines().filter(|line| !line.is_empty() && !line.starts_with('#')).collect();
    assert_eq!(written, found, "what is right? the table now says:\n{}", found.join("\n"));
}

/// The list of attributes leaves out what the user must not read.
#[test]
fn system_attributes_are_not_listed_to_those_who_may_not_read_them() {
    let node = node();
    for name in ["_s", "u"] {
        let path = format!("{name}.a");
        let value = format!("{path}1");
        let extras = [0, path.len() as u8, 5, 1];
        let set =
            RequestParts { opcode: opcode::SUBDOC_DICT_UPSERT, extras: &extras, ..RequestParts::default() };
        let set = RequestParts { key: b"k", value: value.as_bytes(), vbucket: vb(b"k"), ..set };
        let (answers, _) = feed(&mut connect_as(&node, "admin", FULL), &request(&set));
        assert_eq!(statuses(&answers), [(0, Status::Success)], "{name}");
    }
    let list = RequestParts { opcode: opcode::SUBDOC_GET, extras: &[0, 5, 4], ..RequestParts::default() };
    let list = RequestParts { key: b"k", value: b"$XTOC", vbucket: vb(b"k"), ..list };
    let seen = |name| {
        let (answers, _) = feed(&mut connect_as(&node, name, FULL), &request(&list));
        each(&answers, |answer| String::from_utf8_lossy(answer.value).into_owned())
    };
    assert_eq!(seen("admin"), [r#"["_s","u"]"#]);
    assert_eq!(seen("reader"), [r#"["u"]"#]);
}
