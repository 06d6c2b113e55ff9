//! Range scans on the wire.

use serde_json::json;

use super::*;

const VB0: VbId = VbId(0);

/// Keys of vBucket 0.
fn keys() -> Vec<String> {
    (0..40).map(|n| format!("k{n:02}")).filter(|key| vb(key.as_bytes()) == VB0).collect()
}

fn filled(node: &Arc<Node>) -> Connection {
    let mut admin = connect_as(node, "admin", FULL);
    for key in keys() {
        let (answers, _) = feed(&mut admin, &set(key.as_bytes(), b"{\"v\":1}", 1));
        assert_eq!(statuses(&answers), [(1, Status::Success)]);
    }
    assert!(node.bucket("default").expect("it is served").flush_all());
    admin
}

/// The statuses, extras and values of all answers.
fn ask(
    connection: &mut Connection,
    opcode: u8,
    extras: &[u8],
    value: &[u8],
) -> Vec<(Status, Vec<u8>, Vec<u8>)> {
    let datatype = if value.is_empty() { 0 } else { base::Datatype::JSON.0 };
    let parts = RequestParts { opcode, extras, value, datatype, vbucket: VB0, ..RequestParts::default() };
    let (answers, next) = feed(connection, &request(&parts));
    assert!(!answers.is_empty(), "{next:?}");
    each(&answers, |answer| {
        (answer.status().expect("a known status"), answer.extras.to_vec(), answer.value.to_vec())
    })
}

fn create(connection: &mut Connection, json: &serde_json::Value) -> (Status, Vec<u8>) {
    let answers = ask(connection, opcode::RANGE_SCAN_CREATE, &[], json.to_string().as_bytes());
    let [(status, _, value)] = &answers[..] else { panic!("one answer: {answers:?}") };
    (*status, value.clone())
}

fn go_on(connection: &mut Connection, id: &[u8], items: u32) -> Vec<(Status, Vec<u8>, Vec<u8>)> {
    let extras = [id, &items.to_be_bytes(), &[0; 8]].concat();
    ask(connection, opcode::RANGE_SCAN_CONTINUE, &extras, &[])
}

/// Base64 of `k00` and of `k` with the highest byte.
fn whole_range() -> serde_json::Value {
    json!({ "start": "azAw", "end": "a/8=" })
}

#[test]
fn keys_and_documents_come_in_batches_until_the_scan_is_complete() {
    let node = node();
    let mut admin = filled(&node);
    let keys = keys();
    let (status, id) = create(&mut admin, &json!({ "range": whole_range(), "key_only": true }));
    assert_eq!((status, id.len()), (Status::Success, 16));
    let encoded = |keys: &[String]| -> Vec<u8> {
        keys.iter().flat_map(|key| [&[key.len() as u8], key.as_bytes()].concat()).collect()
    };
    let answers = go_on(&mut admin, &id, 3);
    assert_eq!(answers, [(Status::RangeScanMore, vec![0; 4], encoded(&keys[..3]))]);
    let answers = go_on(&mut admin, &id, 0);
    assert_eq!(answers, [(Status::RangeScanComplete, vec![0; 4], encoded(&keys[3..]))]);
    assert_eq!(go_on(&mut admin, &id, 0)[0].0, Status::KeyEnoent);

    let (_, id) = create(&mut admin, &json!({ "range": whole_range() }));
    let answers = go_on(&mut admin, &id, 1);
    let [(Status::RangeScanMore, flags, document)] = &answers[..] else { panic!("{answers:?}") };
    assert_eq!(flags, &[0, 0, 0, 1]);
    let (meta, rest) = document.split_at(25);
    assert_eq!((&meta[..8], meta[24]), (&[0; 8][..], base::Datatype::JSON.0));
    let seqno = u64::from_be_bytes(meta[8..16].try_into().expect("eight bytes"));
    let cas = u64::from_be_bytes(meta[16..24].try_into().expect("eight bytes"));
    assert!(seqno > 0 && cas > 0);
    let expected = [&[3][..], keys[0].as_bytes(), &[7], b"{\"v\":1}"].concat();
    assert_eq!(rest, expected);
    let cancelled = ask(&mut admin, opcode::RANGE_SCAN_CANCEL, &id, &[]);
    assert_eq!(cancelled[0].0, Status::Success);
    assert_eq!(ask(&mut admin, opcode::RANGE_SCAN_CANCEL, &id, &[])[0].0, Status::KeyEnoent);
    assert_eq!(go_on(&mut admin, &id, 1)[0].0, Status::KeyEnoent);
}

#[test]
fn what_cannot_be_scanned_is_refused_with_a_reason() {
    let node = node();
    let mut admin = filled(&node);
    let long = "a".repeat(336);
    let cases = [
        (json!({ "range": whole_range(), "sampling": { "samples": 1 } }), Status::Einval),
        (json!({ "range": { "start": "azAw" } }), Status::Einval),
        (json!({ "range": { "start": "azAw", "excl_start": "azAw", "end": "a/8=" } }), Status::Einval),
        (json!({ "range": { "start": "no base64!", "end": "a/8=" } }), Status::Einval),
        (json!({ "range": { "start": long, "end": "a/8=" } }), Status::Einval),
        (json!({ "range": { "start": 1, "end": "a/8=" } }), Status::Einval),
        (json!({ "range": { "start": "eg==", "end": "ev8=" } }), Status::KeyEnoent),
        (json!({ "sampling": {} }), Status::Einval),
        (json!({ "sampling": { "samples": -1 } }), Status::Einval),
        (json!({ "key_only": true, "include_xattrs": true }), Status::Einval),
        (json!({ "name": "n".repeat(51) }), Status::Einval),
        (json!({ "collection": "zz" }), Status::Einval),
        (json!({ "collection": "99" }), Status::UnknownCollection),
        (json!({ "snapshot_requirements": { "vb_uuid": 1, "seqno": 1 } }), Status::Einval),
        (json!({ "snapshot_requirements": { "vb_uuid": "1" } }), Status::Einval),
        (json!({ "snapshot_requirements": { "vb_uuid": "1", "seqno": 1 } }), Status::VbUuidNotEqual),
        (json!([]), Status::Einval),
        (json!({}), Status::Success),
        (json!({ "something": "else" }), Status::Success),
    ];
    for (json, expected) in cases {
        assert_eq!(create(&mut admin, &json).0, expected, "{json}");
    }
    let uuid = node.bucket("default").expect("served").inspect(VB0, |vb| vb.uuid().0).expect("there");
    let requirement =
        |seqno: u64| json!({ "snapshot_requirements": { "vb_uuid": uuid.to_string(), "seqno": seqno } });
    assert_eq!(create(&mut admin, &requirement(1)).0, Status::Success);
    assert_eq!(create(&mut admin, &requirement(1_000)).0, Status::Etmpfail);
    let long = json!({ "something": "x".repeat(64 << 10) });
    assert_eq!(create(&mut admin, &long).0, Status::Einval, "whatever it says");
    assert_eq!(ask(&mut admin, opcode::RANGE_SCAN_CREATE, &[], b"{")[0].0, Status::Einval);
    let bucket = node.bucket("default").expect("served");
    bucket.set_vbucket_state(VB0, base::VbState::Replica, None).expect("there");
    assert_eq!(create(&mut admin, &json!({})).0, Status::NotMyVbucket);
}

#[test]
fn xattrs_are_shown_to_those_who_ask_for_them() {
    let node = node();
    let mut admin = connect_as(&node, "admin", FULL);
    let key = keys().remove(0);
    let pair = |pair: &[u8]| [&(pair.len() as u32).to_be_bytes()[..], pair].concat();
    let pairs = [pair(b"_sys\0{}\0"), pair(b"user\0{}\0")].concat();
    let value = [&(pairs.len() as u32).to_be_bytes()[..], &pairs, b"body"].concat();
    let meta = [&[0; 8][..], &1u64.to_be_bytes(), &1u64.to_be_bytes()].concat();
    let parts = RequestParts {
        opcode: opcode::SET_WITH_META,
        key: key.as_bytes(),
        extras: &meta,
        value: &value,
        datatype: base::Datatype::XATTR.0,
        vbucket: VB0,
        ..RequestParts::default()
    };
    assert_eq!(statuses(&feed(&mut admin, &request(&parts)).0)[0].1, Status::Success);
    assert!(node.bucket("default").expect("served").flush_all());
    let document = |connection: &mut Connection, json: &serde_json::Value| {
        let (status, id) = create(connection, json);
        assert_eq!(status, Status::Success);
        let answers = go_on(connection, &id, 0);
        let document = &answers[0].2;
        (document[24], document[25 + 1 + key.len() + 1..].to_vec())
    };
    let all = json!({ "include_xattrs": true });
    assert_eq!(document(&mut admin, &json!({})), (0, b"body".to_vec()));
    assert_eq!(document(&mut admin, &all), (base::Datatype::XATTR.0, value.clone()));
    let mut reader = connect_as(&node, "data_reader", FULL);
    let users = pair(b"user\0{}\0");
    let shown = [&(users.len() as u32).to_be_bytes()[..], &users, b"body"].concat();
    assert_eq!(document(&mut reader, &all), (base::Datatype::XATTR.0, shown));
}

#[test]
fn a_scan_needs_the_right_in_its_collection_all_the_time() {
    let node = node();
    let mut admin = filled(&node);
    let (_, id) = create(&mut admin, &json!({}));
    for name in ["data_writer", "narrow"] {
        let mut other = connect_as(&node, name, FULL);
        assert_ne!(create(&mut other, &json!({})).0, Status::Success, "{name}");
        let refused = go_on(&mut other, &id, 1)[0].0;
        assert!(matches!(refused, Status::Eaccess | Status::UnknownCollection), "{name}: {refused:?}");
        let refused = ask(&mut other, opcode::RANGE_SCAN_CANCEL, &id, &[])[0].0;
        assert!(matches!(refused, Status::Eaccess | Status::UnknownCollection), "{name}: {refused:?}");
    }
    let mut reader = connect_as(&node, "data_reader", FULL);
    assert_eq!(go_on(&mut reader, &id, 1)[0].0, Status::RangeScanMore);
}
