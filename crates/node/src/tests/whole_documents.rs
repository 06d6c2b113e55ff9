//! Documents with their xattrs in one answer.

use base::Datatype;

use super::*;

const NEEDED: &[Feature] =
    &[Feature::Xattr, Feature::Json, Feature::Snappy, Feature::SnappyEverywhere, Feature::Collections];

/// A value with these xattrs in front.
fn value(xattrs: &[(&str, &str)], body: &str) -> Vec<u8> {
    let pair = |(name, value): &(&str, &str)| {
        let pair = [name.as_bytes(), b"\0", value.as_bytes(), b"\0"].concat();
        [&(pair.len() as u32).to_be_bytes()[..], &pair].concat()
    };
    let pairs: Vec<u8> = xattrs.iter().flat_map(pair).collect();
    if pairs.is_empty() {
        return body.as_bytes().to_vec();
    }
    [&(pairs.len() as u32).to_be_bytes()[..], &pairs, body.as_bytes()].concat()
}

fn packed(plain: &[u8]) -> Vec<u8> {
    snap::raw::Encoder::new().compress_vec(plain).expect("it fits")
}

/// A key of the default collection as clients with collections send it.
fn ask(client: &mut Connection, opcode: u8, key: &str) -> (Option<Status>, Datatype, Vec<u8>, Vec<u8>) {
    let (key, vbucket) = ([b"\0", key.as_bytes()].concat(), vb(key.as_bytes()));
    let parts = RequestParts { opcode, key: &key, vbucket, ..RequestParts::default() };
    let (answers, _) = feed(client, &request(&parts));
    let told = each(&answers, |answer| {
        let status = Status::from_code(answer.status_code);
        (status, Datatype(answer.datatype), answer.extras.to_vec(), answer.value.to_vec())
    });
    told.into_iter().next().expect("one answer")
}

/// Stores a value as another cluster would send it.
fn store(client: &mut Connection, key: &str, datatype: Datatype, value: &[u8]) {
    let (key, vbucket) = ([b"\0", key.as_bytes()].concat(), vb(key.as_bytes()));
    let mut extras = [0; 24];
    (extras[3], extras[15], extras[23]) = (7, 1, 1);
    let parts = RequestParts {
        opcode: opcode::SET_WITH_META,
        key: &key,
        extras: &extras,
        datatype: datatype.0,
        value,
        vbucket,
        ..RequestParts::default()
    };
    let (answers, _) = feed(client, &request(&parts));
    assert_eq!(statuses(&answers)[0].1, Status::Success);
}

#[test]
fn system_xattrs_are_shown_to_those_who_may_read_them() {
    let node = node();
    let mut admin = connect_as(&node, "admin", NEEDED);
    let mut reader = connect_as(&node, "reader", NEEDED);
    let body = format!("{{\"a\":\"{}\"}}", "x".repeat(500));
    let (user, system) = (("u", "1"), ("_s", "2"));
    let json = Datatype::JSON;
    for (n, xattrs) in [vec![], vec![user], vec![system], vec![user, system]].into_iter().enumerate() {
        let of_users: Vec<_> = xattrs.iter().copied().filter(|pair| *pair == user).collect();
        let (all, some) = (value(&xattrs, &body), value(&of_users, &body));
        let with = |xattrs: &[_]| if xattrs.is_empty() { json } else { json.with(Datatype::XATTR) };
        for is_packed in [false, true] {
            let key = format!("k{n}{is_packed}");
            let (sent, datatype) = match is_packed {
                true => (packed(&all), with(&xattrs).with(Datatype::SNAPPY)),
                false => (all.clone(), with(&xattrs)),
            };
            store(&mut admin, &key, datatype, &sent);
            let flags = vec![0, 0, 0, 7];
            let whole = (Some(Status::Success), datatype, flags.clone(), sent);
            assert_eq!(ask(&mut admin, opcode::GET_EX, &key), whole, "{key}");
            let shown = if of_users.len() == xattrs.len() {
                whole
            } else {
                (Some(Status::Success), with(&of_users), flags, some.clone())
            };
            assert_eq!(ask(&mut reader, opcode::GET_EX, &key), shown, "{key}");
        }
    }
}

#[test]
fn a_client_must_have_agreed_to_all_that_a_whole_document_may_have() {
    let node = node();
    store(&mut connect_as(&node, "admin", NEEDED), "k", Datatype::RAW, b"v");
    let without = |lacks: Feature| {
        let features: Vec<_> = NEEDED.iter().copied().filter(|feature| *feature != lacks).collect();
        ask(&mut connect_as(&node, "admin", &features), opcode::GET_EX, "k").0
    };
    for lacks in [Feature::Xattr, Feature::Json, Feature::SnappyEverywhere] {
        assert_eq!(without(lacks), Some(Status::NotSupported), "{lacks:?}");
    }
    let mut admin = connect_as(&node, "admin", NEEDED);
    assert_eq!(ask(&mut admin, opcode::GET_EX, "none").0, Some(Status::KeyEnoent));
    assert_eq!(ask(&mut admin, opcode::GET_EX_REPLICA, "k").0, Some(Status::NotMyVbucket), "it is active");
}

#[test]
fn a_replica_shows_whole_documents_too() {
    let node = node();
    let mut admin = connect_as(&node, "admin", NEEDED);
    let all = value(&[("u", "1")], "{}");
    store(&mut admin, "k", Datatype::JSON.with(Datatype::XATTR), &all);
    let bucket = node.bucket("default").expect("it is served");
    bucket.roles().set_vbucket_state(vb(b"k"), base::VbState::Replica, None).expect("there");
    assert_eq!(ask(&mut admin, opcode::GET_EX_REPLICA, "k").3, all);
    assert_eq!(ask(&mut admin, opcode::GET_EX, "k").0, Some(Status::NotMyVbucket));
}

/// Looks attributes up, and says what the document and each of them comes to.
fn look_up(
    client: &mut Connection,
    key: &str,
    flags: u8,
    attributes: &[&str],
) -> (Status, Vec<(Status, String)>) {
    let mut value = Vec::new();
    for attribute in attributes {
        value.extend_from_slice(&[opcode::SUBDOC_GET, 0x04]);
        value.extend_from_slice(&(attribute.len() as u16).to_be_bytes());
        value.extend_from_slice(attribute.as_bytes());
    }
    let (key, vbucket) = ([b"\0", key.as_bytes()].concat(), vb(key.as_bytes()));
    let parts =
        RequestParts { opcode: opcode::SUBDOC_MULTI_LOOKUP, key: &key, vbucket, ..Default::default() };
    let (answers, _) = feed(client, &request(&RequestParts { extras: &[flags], value: &value, ..parts }));
    let told = each(&answers, |answer| {
        let status = answer.status().expect("a known status");
        // What is refused as a whole has no results, but may have something else to say.
        let has_results = matches!(status, Status::Success | Status::SubdocSuccessDeleted);
        let mut rest: &[u8] = if has_results { answer.value } else { &[] };
        let mut results = Vec::new();
        while let [a, b, c, d, e, f, behind @ ..] = rest {
            let status = Status::from_code(u16::from_be_bytes([*a, *b])).expect("a known status");
            let (value, next) = behind.split_at(u32::from_be_bytes([*c, *d, *e, *f]) as usize);
            results.push((status, String::from_utf8_lossy(value).into_owned()));
            rest = next;
        }
        (status, results)
    });
    told.into_iter().next().expect("one answer")
}

#[test]
fn a_replica_shows_the_attributes_of_a_tombstone_to_who_asks_for_deleted_documents() {
    const ACCESS_DELETED: u8 = 0x04;
    const REPLICA_READ: u8 = 0x20;
    let node = node();
    let features = [NEEDED, &[Feature::SubdocReplicaRead]].concat();
    let mut admin = connect_as(&node, "admin", &features);
    let all = value(&[("_txn", "{\"id\":7}"), ("u", "1")], "{}");
    store(&mut admin, "k", Datatype::JSON.with(Datatype::XATTR), &all);
    assert_eq!(ask(&mut admin, opcode::DELETE, "k").0, Some(Status::Success));
    let bucket = node.bucket("default").expect("it is served");
    bucket.roles().set_vbucket_state(vb(b"k"), base::VbState::Replica, None).expect("there");
    // What a deletion leaves is the node's own attributes.
    let (status, results) = look_up(&mut admin, "k", ACCESS_DELETED | REPLICA_READ, &["_txn.id"]);
    assert_eq!((status, results), (Status::SubdocSuccessDeleted, vec![(Status::Success, "7".to_owned())]));
    assert_eq!(look_up(&mut admin, "k", REPLICA_READ, &["_txn.id"]).0, Status::KeyEnoent);
    assert_eq!(look_up(&mut admin, "k", ACCESS_DELETED, &["_txn.id"]).0, Status::NotMyVbucket);
    assert_eq!(ask(&mut admin, opcode::GET_REPLICA, "k").0, Some(Status::KeyEnoent));
    assert_eq!(ask(&mut admin, opcode::GET_EX_REPLICA, "k").0, Some(Status::KeyEnoent));
}

#[test]
fn several_attributes_of_users_are_looked_up_at_once_by_those_who_agreed_to_it() {
    let node = node();
    let all = value(&[("a", "1"), ("b", "2")], "{}");
    let mut plain = connect_as(&node, "admin", NEEDED);
    store(&mut plain, "k", Datatype::JSON.with(Datatype::XATTR), &all);
    assert_eq!(look_up(&mut plain, "k", 0, &["a", "b"]).0, Status::SubdocXattrInvalidKeyCombo);
    let features = [NEEDED, &[Feature::SubdocAllowsAccessOnMultipleXattrKeys]].concat();
    let mut agreed = connect_as(&node, "admin", &features);
    let both = vec![(Status::Success, "1".to_owned()), (Status::Success, "2".to_owned())];
    assert_eq!(look_up(&mut agreed, "k", 0, &["a", "b"]), (Status::Success, both));
}

#[test]
fn a_document_chosen_by_chance_has_its_attributes_if_that_is_asked() {
    let node = node();
    let agreed = [NEEDED, &[Feature::SnappyEverywhere, Feature::GetRandomKeyIncludeXattr]].concat();
    let mut admin = connect_as(&node, "admin", &agreed);
    let json = Datatype::JSON.with(Datatype::XATTR);
    store(&mut admin, "k", json, &value(&[("u", "1"), ("_s", "2")], "{}"));
    let random = |client: &mut Connection, extras: &[u8]| {
        let parts = RequestParts { opcode: opcode::GET_RANDOM_KEY, extras, ..RequestParts::default() };
        let (answers, _) = feed(client, &request(&parts));
        let told = each(&answers, |answer| {
            let status = Status::from_code(answer.status_code).expect("a known status");
            (status, Datatype(answer.datatype), answer.key.to_vec(), answer.value.to_vec())
        });
        told.into_iter().next().expect("one answer")
    };
    let of = |datatype, value: &[u8]| (Status::Success, datatype, b"\0k".to_vec(), value.to_vec());
    let whole = value(&[("u", "1"), ("_s", "2")], "{}");
    assert_eq!(random(&mut admin, &[0, 0, 0, 0, 1]), of(json, &whole));
    assert_eq!(random(&mut admin, &[0, 0, 0, 0, 0]), of(Datatype::JSON, b"{}"));
    assert_eq!(random(&mut admin, &[0; 4]), of(Datatype::JSON, b"{}"));
    assert_eq!(random(&mut admin, &[0; 6]).0, Status::Einval);
    let mut reader = connect_as(&node, "reader", &agreed);
    assert_eq!(random(&mut reader, &[0, 0, 0, 0, 1]), of(json, &value(&[("u", "1")], "{}")));
    let mut old = connect_as(&node, "admin", &[Feature::Collections, Feature::Json]);
    assert_eq!(random(&mut old, &[0, 0, 0, 0, 1]).0, Status::Einval);
    assert_eq!(random(&mut old, &[0; 4]), of(Datatype::JSON, b"{}"));
}
