//! Every command with every role, compared with the written table `command_roles.txt`.

use super::*;
use crate::command::Row;
use crate::command_rules::{Extras, Key, ValueRule};

/// The users of the columns: letter in the table, name.
pub(super) const COLUMNS: [(char, &str); 18] = [
    ('A', "admin"),
    ('B', "bucket-admin"),
    ('W', "writer"),
    ('R', "reader"),
    ('o', "ro_admin"),
    ('s', "security_admin"),
    ('c', "cluster_admin"),
    ('b', "bucket_admin"),
    ('m', "scope_admin"),
    ('f', "bucket_full_access"),
    ('r', "data_reader"),
    ('w', "data_writer"),
    ('d', "data_dcp_reader"),
    ('k', "data_backup"),
    ('n', "data_monitoring"),
    ('t', "replication_target"),
    ('x', "external_stats_reader"),
    ('1', "narrow"),
];
const TABLE: &str = include_str!("command_roles.txt");

/// What is printed above a table: whom its letters stand for. `cargo xtask matrix` reads it.
pub(super) fn heading(what: &str, columns: &[(char, &str)]) -> String {
    columns.iter().fold(format!("matrix of {what}"), |all, (letter, user)| format!("{all} | {letter} {user}"))
}

/// A request that fits the layout of its row. What the handler makes of it does not matter.
pub(super) fn fitting(row: &Row) -> RequestParts<'static> {
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
    let cas = if row.cas == crate::command_rules::CasRule::Required { Cas(1) } else { Cas(0) };
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
    let dcp_open = RequestParts {
        opcode: opcode::DCP_OPEN,
        extras: &[0, 0, 0, 0, 0, 0, 0, 1],
        key: b"k",
        ..RequestParts::default()
    };
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
        ("DcpOpen of a producer", dcp_open),
        ("Stat", group(b"")),
        ("Stat of all buckets", group(b"bucket_details")),
        ("Stat of checkpoints", group(b"checkpoint")),
        ("Stat of a document", group(b"key k 0")),
    ]
}

/// The letters of the roles that are not refused for who they are; `?` for those for whom there is no such collection, and
/// `.` for those who could select no bucket.
fn allowed(node: &Arc<Node>, parts: &RequestParts<'_>) -> String {
    let told = |(letter, name): &(char, &str)| {
        let mut connection = connect(node);
        let login = login(name, "password", "default", &Features::of(FULL).encode());
        feed(&mut connection, &login);
        let (answers, _) = feed(&mut connection, &request(parts));
        let is = |wanted| statuses(&answers).iter().any(|(_, status)| *status == wanted);
        match () {
            () if is(Status::Eaccess) => '-',
            () if is(Status::UnknownCollection) => '?',
            () if is(Status::NoBucket) => '.',
            () => *letter,
        }
    };
    COLUMNS.iter().map(told).collect()
}

#[test]
pub(crate) fn each_command_is_for_the_roles_of_the_table() {
    let node = node();
    let rows = ROWS.iter().map(|row| (row.name, fitting(row)));
    let found: Vec<String> =
        rows.chain(special()).map(|(name, parts)| format!("{} {name}", allowed(&node, &parts))).collect();
    let written: Vec<&str> =
        TABLE.lines().filter(|line| !line.is_empty() && !line.starts_with('#')).collect();
    println!("{}\n{}", heading("commands", &COLUMNS), found.join("\n"));
    assert_eq!(written, found, "what is right? the table now says:\n{}", found.join("\n"));
}

/// A role without a column would never be compared.
#[test]
fn each_role_has_a_column() {
    for role in ROLES {
        assert!(COLUMNS.iter().any(|(_, user)| *user == role.name), "{} is in no column", role.name);
    }
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

pub(super) const COLLECTIONS: &[Feature] = &[
    Feature::Xerror,
    Feature::Json,
    Feature::Xattr,
    Feature::Collections,
    Feature::MutationSeqno,
    Feature::AltRequestSupport,
];

/// Scope `s` (8) with `c` (8) and `d` (9), scope `t` (9) with `e` (10).
pub(super) fn node_with_collections() -> Arc<Node> {
    let node = node();
    let json =
        br#"{"uid":"1","scopes":[{"name":"_default","uid":"0","collections":[{"name":"_default","uid":"0"}]},
        {"name":"s","uid":"8","collections":[{"name":"c","uid":"8"},{"name":"d","uid":"9"}]},
        {"name":"t","uid":"9","collections":[{"name":"e","uid":"a"}]}]}"#;
    let manifest = vbucket::Manifest::parse(json).expect("a manifest");
    node.bucket("default").expect("there is one").collections().set_manifest(manifest).expect("a successor");
    node
}

/// A request for the document `k` of a collection.
pub(super) fn of_collection(opcode: u8, collection: u8, extras: &[u8], value: &[u8]) -> Vec<u8> {
    let key = [collection, b'k'];
    request(&RequestParts { opcode, key: &key, extras, value, vbucket: vb(b"k"), ..RequestParts::default() })
}

pub(super) fn status_of(connection: &mut Connection, bytes: &[u8]) -> Status {
    let (answers, _) = feed(connection, bytes);
    statuses(&answers).last().expect("an answer").1
}

/// The user `narrow` reads `s.c` and writes in `s`.
#[test]
fn a_role_of_a_collection_holds_there_alone() {
    let node = node_with_collections();
    let mut narrow = connect_as(&node, "narrow", COLLECTIONS);
    let mut ask = |opcode, collection, extras: &[u8], value: &[u8]| {
        status_of(&mut narrow, &of_collection(opcode, collection, extras, value))
    };
    let set = &[0; 8];
    let seen = [8, 9, 10, 0].map(|id| ask(opcode::SET, id, set, b"1"));
    assert_eq!(
        seen,
        [Status::Success, Status::Success, Status::UnknownCollection, Status::UnknownCollection]
    );
    let seen = [8, 9, 10, 0].map(|id| ask(opcode::GET, id, b"", b""));
    assert_eq!(
        seen,
        [Status::Success, Status::Eaccess, Status::UnknownCollection, Status::UnknownCollection]
    );
    // Counters read, too, and attributes of the system have privileges of their own.
    let count = &[0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0];
    assert_eq!([8, 9].map(|id| ask(opcode::INCREMENT, id, count, b"")), [Status::Success, Status::Eaccess]);
    let system = |id| of_collection(opcode::SUBDOC_GET, id, &[0, 2, 4], b"_s");
    assert_eq!(status_of(&mut connect_as(&node, "narrow", COLLECTIONS), &system(8)), Status::Eaccess);
    assert_eq!(ask(opcode::GET_META, 8, b"", b""), Status::Success);
    assert_eq!(ask(opcode::GET_META, 9, b"", b""), Status::Eaccess);
    assert_eq!(ask(opcode::SET_WITH_META, 8, &[0; 24], b"1"), Status::Eaccess);
}

#[test]
fn what_names_a_collection_elsewhere_is_checked_too() {
    let node = node_with_collections();
    let mut narrow = connect_as(&node, "narrow", COLLECTIONS);
    let mut ask = |opcode, extras: &[u8], value: &[u8], key: &[u8]| {
        status_of(
            &mut narrow,
            &request(&RequestParts { opcode, extras, value, key, ..RequestParts::default() }),
        )
    };
    assert_eq!(ask(opcode::GET_RANDOM_KEY, &[0, 0, 0, 8], b"", b""), Status::KeyEnoent);
    assert_eq!(ask(opcode::GET_RANDOM_KEY, &[0, 0, 0, 9], b"", b""), Status::Eaccess);
    assert_eq!(ask(opcode::GET_RANDOM_KEY, &[0, 0, 0, 10], b"", b""), Status::UnknownCollection);
    let observe = |id| [0, 0, 0, 2, id, b'k'];
    assert_eq!(ask(opcode::OBSERVE, b"", &observe(8), b""), Status::Success);
    assert_eq!(ask(opcode::OBSERVE, b"", &observe(9), b""), Status::Eaccess);
    assert_eq!(ask(opcode::OBSERVE, b"", &observe(10), b""), Status::UnknownCollection);
    let seqnos = |id| [0, 0, 0, 0, 0, 0, 0, id];
    assert_eq!(ask(opcode::GET_ALL_VB_SEQNOS, &seqnos(8), b"", b""), Status::Success);
    assert_eq!(ask(opcode::GET_ALL_VB_SEQNOS, &seqnos(10), b"", b""), Status::UnknownCollection);
    for (path, status) in [
        ("s.c", Status::Success),
        ("s.d", Status::Success),
        ("t.e", Status::UnknownScope),
        ("_default._default", Status::UnknownScope),
    ] {
        assert_eq!(ask(opcode::GET_COLLECTION_ID, b"", path.as_bytes(), b""), status, "{path}");
    }
    assert_eq!(ask(opcode::GET_SCOPE_ID, b"", b"s", b""), Status::Success);
    assert_eq!(ask(opcode::GET_SCOPE_ID, b"", b"t", b""), Status::UnknownScope);
    assert_eq!(ask(opcode::STAT, b"", b"", b"key k 0 s.c"), Status::Eaccess, "no counters at all");
    assert_eq!(ask(opcode::STAT, b"", b"", b""), Status::Eaccess);
}

#[test]
fn the_manifest_shows_what_the_user_sees() {
    let node = node_with_collections();
    let shown = |name| {
        let bytes = simple(opcode::GET_COLLECTIONS_MANIFEST, 0);
        let (answers, _) = feed(&mut connect_as(&node, name, COLLECTIONS), &bytes);
        each(&answers, |answer| String::from_utf8_lossy(answer.value).into_owned()).remove(0)
    };
    let narrow = shown("narrow");
    assert!(narrow.contains(r#""name":"c""#) && narrow.contains(r#""name":"d""#), "{narrow}");
    assert!(!narrow.contains(r#""name":"t""#) && !narrow.contains(r#""name":"e""#), "{narrow}");
    assert!(shown("data_reader").contains(r#""name":"e""#));
}

/// A role that names a collection holds for the next one of that name, without another login.
#[test]
fn roles_follow_the_manifest() {
    let node = node_with_collections();
    let mut narrow = connect_as(&node, "narrow", COLLECTIONS);
    let get = |id| of_collection(opcode::GET, id, b"", b"");
    assert_eq!(status_of(&mut narrow, &get(8)), Status::KeyEnoent);
    let json =
        br#"{"uid":"2","scopes":[{"name":"_default","uid":"0","collections":[{"name":"_default","uid":"0"}]},
        {"name":"s","uid":"8","collections":[{"name":"c","uid":"b"},{"name":"d","uid":"9"}]}]}"#;
    let manifest = vbucket::Manifest::parse(json).expect("a manifest");
    node.bucket("default").expect("there is one").collections().set_manifest(manifest).expect("a successor");
    assert_eq!(
        [8, 11].map(|id| status_of(&mut narrow, &get(id))),
        [Status::UnknownCollection, Status::KeyEnoent]
    );
}

/// A stream without a filter needs the whole bucket, one with a filter what it names.
#[test]
pub(super) fn streams_need_the_privilege_in_all_that_they_are_about() {
    let node = node_with_collections();
    let dcp = |opcode, extras: &[u8], key: &[u8], value: &[u8]| {
        request(&RequestParts { opcode, extras, key, value, ..RequestParts::default() })
    };
    let open = dcp(opcode::DCP_OPEN, &[0, 0, 0, 0, 0, 0, 0, 1], b"k", b"");
    let noop = dcp(opcode::DCP_CONTROL, b"", b"enable_noop", b"true");
    let streaming = |name, features| {
        let mut connection = connect_as(&node, name, features);
        assert_eq!(status_of(&mut connection, &open), Status::Success, "{name}");
        assert_eq!(status_of(&mut connection, &noop), Status::Success, "{name}");
        connection
    };
    for (name, filter, status) in [
        ("streams", r#"{"collections":["8"]}"#, Status::Success),
        ("streams", r#"{"collections":["8","9"]}"#, Status::UnknownCollection),
        ("streams", r#"{"collections":["0"]}"#, Status::UnknownCollection),
        ("streams", r#"{"scope":"8"}"#, Status::Eaccess),
        ("streams", r#"{"scope":"9"}"#, Status::UnknownScope),
        ("streams", "", Status::Eaccess),
        ("data_dcp_reader", "", Status::Success),
        ("data_dcp_reader", r#"{"scope":"9"}"#, Status::Success),
    ] {
        let asked = dcp(opcode::DCP_STREAM_REQ, &[0; 48], b"", filter.as_bytes());
        let mut connection = streaming(name, COLLECTIONS);
        assert_eq!(status_of(&mut connection, &asked), status, "{name} {filter}");
    }
    // Who does not know collections streams the default one.
    let asked = dcp(opcode::DCP_STREAM_REQ, &[0; 48], b"", b"");
    assert_eq!(status_of(&mut streaming("streams", &[Feature::Xerror]), &asked), Status::UnknownCollection);
    // What was agreed on when the connection was opened decides, not what a later HELLO says.
    const NO_COLLECTIONS: &[Feature] = &[Feature::Xerror];
    for (agreed, later, filter) in [
        (COLLECTIONS, Feature::Xerror, ""),
        (COLLECTIONS, Feature::Xerror, r#"{"collections":["9"]}"#),
        (COLLECTIONS, Feature::Xerror, r#"{"scope":"9"}"#),
        (NO_COLLECTIONS, Feature::Collections, ""),
        (NO_COLLECTIONS, Feature::Collections, r#"{"collections":["8"]}"#),
    ] {
        let later = Features::of(&[later]).encode();
        for name in ["streams", "default-streams"] {
            let asked = dcp(opcode::DCP_STREAM_REQ, &[0; 48], b"", filter.as_bytes());
            let refused = status_of(&mut streaming(name, agreed), &asked);
            let mut connection = streaming(name, agreed);
            assert_eq!(status_of(&mut connection, &dcp(opcode::HELLO, b"", b"", &later)), Status::Success);
            assert_eq!(status_of(&mut connection, &asked), refused, "{name} {filter} {later:?}");
        }
    }
    let consume = dcp(opcode::DCP_OPEN, &[0; 8], b"k", b"");
    assert_eq!(status_of(&mut connect_as(&node, "streams", COLLECTIONS), &consume), Status::Eaccess);
}
