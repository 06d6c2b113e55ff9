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
    assert!(node.bucket("default").expect("it is served").flushing().flush_all());
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
    bucket.roles().set_vbucket_state(VB0, base::VbState::Replica, None).expect("there");
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
    assert!(node.bucket("default").expect("served").flushing().flush_all());
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

/// Keys with their lengths in front.
fn with_lengths(keys: &[Vec<u8>]) -> Vec<u8> {
    keys.iter().flat_map(|key| [&(key.len() as u16).to_be_bytes()[..], key].concat()).collect()
}

fn with_collections() -> Vec<Feature> {
    FULL.iter().copied().chain([Feature::Collections]).collect()
}

fn get_keys(connection: &mut Connection, from: &[u8], extras: &[u8], vbucket: VbId) -> (Status, Vec<u8>) {
    let parts =
        RequestParts { opcode: opcode::GET_KEYS, key: from, extras, vbucket, ..RequestParts::default() };
    let (answers, _) = feed(connection, &request(&parts));
    let answers = each(&answers, |it| {
        assert!(it.key.is_empty() && it.extras.is_empty());
        (it.status().expect("a known status"), it.value.to_vec())
    });
    let [answer] = &answers[..] else { panic!("one answer: {answers:?}") };
    answer.clone()
}

#[test]
fn stored_keys_come_in_order_with_their_collection_where_that_was_agreed_on() {
    let node = node();
    drop(filled(&node));
    let stored: Vec<Vec<u8>> = keys().into_iter().map(String::into_bytes).collect();
    let prefixed: Vec<Vec<u8>> = stored.iter().map(|key| [b"\0", &key[..]].concat()).collect();
    for (features, keys, all) in [(&with_collections()[..], &prefixed, &b"\0\0"[..]), (FULL, &stored, b"\0")]
    {
        let mut client = connect_as(&node, "data_reader", features);
        let mut ask = |from: &[u8], extras: &[u8]| get_keys(&mut client, from, extras, VB0);
        assert_eq!(ask(all, &[]), (Status::Success, with_lengths(keys)));
        assert_eq!(ask(all, &[0, 0, 0, 2]), (Status::Success, with_lengths(&keys[..2])));
        assert_eq!(ask(&keys[1], &[0, 0, 0, 3]), (Status::Success, with_lengths(&keys[1..4])));
        assert_eq!(ask(all, &[0; 4]), (Status::Success, Vec::new()));
        let behind = [&keys.last().expect("some")[..], b"\0"].concat();
        assert_eq!(ask(&behind, &[]), (Status::Success, Vec::new()));
        for (from, extras) in [(&b""[..], &[][..]), (all, &[0]), (all, &[0; 8])] {
            assert_eq!(ask(from, extras).0, Status::Einval, "{from:?} {extras:?}");
        }
        let bucket = node.bucket("default").expect("served");
        bucket.roles().set_vbucket_state(VB0, base::VbState::Replica, None).expect("there");
        assert_eq!(get_keys(&mut client, all, &[], VB0).0, Status::NotMyVbucket);
        assert_eq!(get_keys(&mut client, all, &[], VbId(99)).0, Status::NotMyVbucket);
        bucket.roles().set_vbucket_state(VB0, base::VbState::Active, None).expect("there");
    }
    let mut client = connect_as(&node, "data_reader", &with_collections());
    assert_eq!(get_keys(&mut client, b"\x7fk", &[], VB0).0, Status::UnknownCollection);
    assert_eq!(get_keys(&mut client, b"\x80k", &[], VB0).0, Status::Einval);
    for (name, refusal) in [("data_writer", Status::Eaccess), ("narrow", Status::UnknownCollection)] {
        let mut other = connect_as(&node, name, &with_collections());
        assert_eq!(get_keys(&mut other, b"\0k", &[], VB0).0, refusal, "{name}");
    }
}

#[test]
fn an_answer_of_keys_is_as_large_as_it_may_be() {
    let node = node();
    let mut admin = connect_as(&node, "admin", &with_collections());
    let bucket = node.bucket("default").expect("served");
    // 1 MiB of the longest keys is less than these.
    for n in 0..4_200_u32 {
        let key = [b"\0", format!("{n:08}").as_bytes(), &[b'k'; 242]].concat();
        let parts = RequestParts { opcode: opcode::SET, key: &key, opaque: n, ..RequestParts::default() };
        let parts = RequestParts { vbucket: VB0, extras: &[0; 8], ..parts };
        assert_eq!(statuses(&feed(&mut admin, &request(&parts)).0), [(n, Status::Success)]);
    }
    assert!(bucket.flushing().flush_all());
    let (status, first) = get_keys(&mut admin, b"\0\0", &u32::MAX.to_be_bytes(), VB0);
    assert_eq!((status, first.len()), (Status::Success, (1 << 20) / 253 * 253));
    let behind = [&first[first.len() - 251..], b"\0"].concat();
    let (_, rest) = get_keys(&mut admin, &behind[..251], &u32::MAX.to_be_bytes(), VB0);
    assert_eq!((first.len() - 253 + rest.len()) / 253, 4_200, "it goes on where it has ended");
    let (_, usual) = get_keys(&mut admin, b"\0\0", &[], VB0);
    assert_eq!(usual.len(), 1_000 * 253);
}
