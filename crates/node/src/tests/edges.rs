//! Answers where two things are wrong at once, which no recording shows.

use base::{Datatype, VbState};

use super::*;

const JSON: &[u8] = b"{\"a\":1}";
const LOCKED: Cas = Cas(u64::MAX);
const OTHER: Cas = Cas(5);

/// A client of one document.
struct Client {
    connection: Connection,
    key: &'static [u8],
}

impl Client {
    fn new() -> Client {
        Client { connection: connect_as(&node(), "admin", FULL), key: b"k" }
    }

    /// Sends a request about the document; the answer's status, CAS and value.
    fn ask(&mut self, opcode: u8, extras: &[u8], value: &[u8], cas: Cas) -> (Status, Cas, Vec<u8>) {
        let parts = RequestParts {
            opcode,
            extras,
            key: self.key,
            value,
            cas,
            vbucket: vb(self.key),
            ..RequestParts::default()
        };
        let (answers, _) = feed(&mut self.connection, &request(&parts));
        each(&answers, |answer| (answer.status().expect("a known status"), answer.cas, answer.value.to_vec()))
            .remove(0)
    }

    fn store(&mut self, value: &[u8]) {
        assert_eq!(self.ask(opcode::SET, &[0; 8], value, Cas::ANY).0, Status::Success);
    }

    /// Locks the document; the CAS that unlocks it.
    fn lock(&mut self) -> Cas {
        let (status, cas, _) = self.ask(opcode::GET_LOCKED, &15u32.to_be_bytes(), b"", Cas::ANY);
        assert_eq!(status, Status::Success);
        cas
    }

    /// A single-path operation on `a`, or on what is named.
    fn at_path(&mut self, opcode: u8, path: &str, value: &str, doc_flags: &[u8], cas: Cas) -> Status {
        let mut extras = (path.len() as u16).to_be_bytes().to_vec();
        extras.push(0);
        extras.extend_from_slice(doc_flags);
        self.ask(opcode, &extras, format!("{path}{value}").as_bytes(), cas).0
    }

    fn with_meta(&mut self, opcode: u8, rev: u64, cas: Cas) -> Status {
        let extras = [&[0; 8], &rev.to_be_bytes()[..], &1_000u64.to_be_bytes()].concat();
        self.ask(opcode, &extras, b"", cas).0
    }
}

#[test]
fn a_cas_opens_a_locked_document_to_look_ups() {
    let mut client = Client::new();
    client.store(JSON);
    client.lock();
    let look = |client: &mut Client, cas| client.ask(opcode::SUBDOC_GET, &[0, 1, 0], b"a", cas);
    assert_eq!(look(&mut client, Cas::ANY).0, Status::Locked);
    assert_eq!(look(&mut client, LOCKED).0, Status::Locked);
    assert_eq!(look(&mut client, OTHER), (Status::Success, OTHER, b"1".to_vec()));
    assert_eq!(client.at_path(opcode::SUBDOC_GET, "z", "", &[], OTHER), Status::SubdocPathEnoent);
}

#[test]
fn what_cannot_be_done_is_told_before_a_lock_that_a_cas_does_not_open() {
    const ADD: &[u8] = &[2];
    let mut client = Client::new();
    client.store(JSON);
    let lock = client.lock();
    let mut change =
        |path: &str, doc_flags: &[u8], cas| client.at_path(opcode::SUBDOC_REPLACE, path, "2", doc_flags, cas);
    assert_eq!(change("z", &[], Cas::ANY), Status::Locked);
    assert_eq!(change("z", &[], LOCKED), Status::Locked);
    assert_eq!(change("z", &[], OTHER), Status::SubdocPathEnoent);
    assert_eq!(change("a", &[], OTHER), Status::Locked);
    assert_eq!(change("a", ADD, Cas::ANY), Status::KeyEexists, "a document that is there is not added");
    assert_eq!(change("a", &[], lock), Status::Success);
}

#[test]
fn adding_with_a_cas_says_why_it_is_refused() {
    let mut client = Client::new();
    let (status, _, value) = client.ask(opcode::SUBDOC_DICT_UPSERT, &[0, 1, 0, 2], b"a1", OTHER);
    assert_eq!(status, Status::Einval);
    assert!(String::from_utf8_lossy(&value).contains("must have CAS 0"), "{value:?}");
}

#[test]
fn a_conflict_is_decided_before_lock_and_cas() {
    let mut client = Client::new();
    client.store(b"v");
    client.store(b"v");
    client.lock();
    for opcode in [opcode::SET_WITH_META, opcode::DELETE_WITH_META] {
        assert_eq!(client.with_meta(opcode, 1, Cas::ANY), Status::KeyEexists, "an older revision loses");
        assert_eq!(client.with_meta(opcode, 9, Cas::ANY), Status::Locked);
    }
    // What is there is not added, locked or not.
    assert_eq!(client.with_meta(opcode::ADD_WITH_META, 9, Cas::ANY), Status::KeyEexists);
}

#[test]
fn a_cas_of_another_version_is_told_to_deletions_of_what_is_not_there() {
    let mut client = Client::new();
    assert_eq!(client.with_meta(opcode::SET_WITH_META, 9, OTHER), Status::KeyEnoent);
    assert_eq!(client.with_meta(opcode::DELETE_WITH_META, 9, OTHER), Status::KeyEexists);
    assert_eq!(client.with_meta(opcode::DELETE_WITH_META, 3, Cas::ANY), Status::Success);
    assert_eq!(client.with_meta(opcode::SET_WITH_META, 9, OTHER), Status::KeyEnoent, "a tombstone");
    assert_eq!(client.with_meta(opcode::DELETE_WITH_META, 9, OTHER), Status::KeyEexists);
}

#[test]
fn a_version_without_a_value_has_no_datatype() {
    let mut client = Client::new();
    let extras = [&[0; 8], &9u64.to_be_bytes()[..], &1_000u64.to_be_bytes()].concat();
    let key = client.key;
    let parts = RequestParts {
        opcode: opcode::SET_WITH_META,
        extras: &extras,
        key,
        datatype: Datatype::JSON.0,
        vbucket: vb(key),
        ..RequestParts::default()
    };
    let (answers, _) = feed(&mut client.connection, &request(&parts));
    assert_eq!(statuses(&answers)[0].1, Status::Success);
    let parts = RequestParts {
        opcode: opcode::GET_META,
        extras: &[2],
        key,
        vbucket: vb(key),
        ..RequestParts::default()
    };
    let (answers, _) = feed(&mut client.connection, &request(&parts));
    assert_eq!(each(&answers, |answer| answer.extras[20]), [0]);
}

#[test]
fn json_is_found_for_clients_that_do_not_mark_it() {
    let datatype_of = |features: &[Feature], value: &[u8]| {
        let mut connection = connect_as(&node(), "admin", features);
        let extras = [&[0; 8], &9u64.to_be_bytes()[..], &1_000u64.to_be_bytes()].concat();
        let set = RequestParts {
            opcode: opcode::SET_WITH_META,
            extras: &extras,
            key: b"k",
            value,
            vbucket: vb(b"k"),
            ..RequestParts::default()
        };
        feed(&mut connection, &request(&set));
        let meta =
            RequestParts { opcode: opcode::GET_META, extras: &[2], value: b"", ..RequestParts { ..set } };
        let (answers, _) = feed(&mut connection, &request(&meta));
        each(&answers, |answer| answer.extras[20])[0]
    };
    assert_eq!(datatype_of(&[Feature::Xattr], JSON), Datatype::JSON.0);
    assert_eq!(datatype_of(&[Feature::Xattr], b"{"), 0);
    assert_eq!(datatype_of(&[Feature::Xattr, Feature::Json], JSON), 0, "such a client marks it");
}

/// Attributes `NAME` with the value 1, and the length in front.
fn attributes(names: &[&str]) -> Vec<u8> {
    let pairs: Vec<u8> = names
        .iter()
        .flat_map(|name| {
            let pair = format!("{name}\u{0}1\u{0}").into_bytes();
            [&(pair.len() as u32).to_be_bytes()[..], &pair].concat()
        })
        .collect();
    [&(pairs.len() as u32).to_be_bytes()[..], &pairs].concat()
}

#[test]
fn deletions_with_meta_keep_the_attributes_they_bring_or_those_of_the_system() {
    let mut client = Client::new();
    let toc = |client: &mut Client| {
        let extras = [0, 5, 4, 4];
        client.ask(opcode::SUBDOC_GET, &extras, b"$XTOC", Cas::ANY)
    };
    let delete = |client: &mut Client, rev: u64, value: &[u8]| {
        let extras = [&[0; 8], &rev.to_be_bytes()[..], &1_000u64.to_be_bytes()].concat();
        let parts = RequestParts {
            opcode: opcode::DELETE_WITH_META,
            extras: &extras,
            key: client.key,
            value,
            datatype: if value.is_empty() { 0 } else { Datatype::XATTR.0 },
            vbucket: vb(client.key),
            ..RequestParts::default()
        };
        let (answers, _) = feed(&mut client.connection, &request(&parts));
        assert_eq!(statuses(&answers)[0].1, Status::Success);
    };
    delete(&mut client, 5, &[&attributes(&["_s", "u"])[..], b"body"].concat());
    assert_eq!(toc(&mut client).2, b"[\"_s\",\"u\"]", "those that came, and no body");
    client.store(JSON);
    for name in ["_s", "u"] {
        let extras = [0, name.len() as u8, 4];
        let value = format!("{name}1");
        assert_eq!(
            client.ask(opcode::SUBDOC_DICT_UPSERT, &extras, value.as_bytes(), Cas::ANY).0,
            Status::Success
        );
    }
    delete(&mut client, 50, b"");
    assert_eq!(toc(&mut client).2, b"[\"_s\"]", "of the document those of the system");
    delete(&mut client, 51, b"");
    assert_eq!(toc(&mut client).2, b"[\"_s\"]", "of a tombstone, too");
    delete(&mut client, 52, &[0; 4]);
    let (status, _, told) = toc(&mut client);
    assert_ne!(told, b"[\"_s\"]", "a section without attributes says that there are none: {status:?}");
}

/// The flags that GET_META tells.
fn flags_of(client: &mut Client) -> u32 {
    let key = client.key;
    let parts =
        RequestParts { opcode: opcode::GET_META, extras: &[2], key, vbucket: vb(key), ..Default::default() };
    let (answers, _) = feed(&mut client.connection, &request(&parts));
    let extras = each(&answers, |answer| answer.extras.to_vec()).remove(0);
    u32::from_be_bytes(extras[4..8].try_into().expect("four bytes"))
}

#[test]
fn a_tombstone_that_keeps_attributes_of_the_system_has_no_flags() {
    const FLAGS: [u8; 8] = [0, 0, 0, 5, 0, 0, 0, 0];
    for (attribute, wanted) in [(None, 5), (Some("user"), 5), (Some("_sys"), 0)] {
        let mut client = Client::new();
        assert_eq!(client.ask(opcode::SET, &FLAGS, JSON, Cas::ANY).0, Status::Success);
        if let Some(path) = attribute {
            let extras = [0, path.len() as u8, 4];
            let change = format!("{path}1");
            let status = client.ask(opcode::SUBDOC_DICT_UPSERT, &extras, change.as_bytes(), Cas::ANY).0;
            assert_eq!(status, Status::Success);
        }
        assert_eq!(flags_of(&mut client), 5);
        assert_eq!(client.ask(opcode::DELETE, &[], b"", Cas::ANY).0, Status::Success);
        assert_eq!(flags_of(&mut client), wanted, "{attribute:?}");
    }
}

#[test]
fn clients_without_extended_errors_are_told_of_locks_in_old_words() {
    let connection = connect_as(&node(), "admin", &[Feature::Json, Feature::Xattr]);
    let mut client = Client { connection, key: b"k" };
    client.store(JSON);
    client.lock();
    let set = client.ask(opcode::SET, &[0; 8], JSON, Cas::ANY).0;
    assert_eq!(set, Status::KeyEexists);
    assert_eq!(client.ask(opcode::DELETE, b"", b"", Cas::ANY).0, Status::KeyEexists);
    assert_eq!(client.ask(opcode::DELETE, b"", b"", OTHER).0, Status::Etmpfail);
    assert_eq!(client.ask(opcode::SET, &[0; 8], JSON, OTHER).0, Status::KeyEexists);
    assert_eq!(client.with_meta(opcode::SET_WITH_META, 99, Cas::ANY), Status::KeyEexists);
    assert_eq!(client.with_meta(opcode::DELETE_WITH_META, 99, Cas::ANY), Status::Etmpfail);
    assert_eq!(client.at_path(opcode::SUBDOC_GET, "a", "", &[], Cas::ANY), Status::Etmpfail);
    assert_eq!(client.at_path(opcode::SUBDOC_DICT_UPSERT, "a", "2", &[], Cas::ANY), Status::Etmpfail);
    assert_eq!(client.ask(opcode::UNLOCK_KEY, b"", b"", OTHER).0, Status::Etmpfail);
}

#[test]
fn old_clients_know_no_statuses_of_durable_writes() {
    use crate::status_map::visible;
    let old = |status| visible(status, opcode::SET, false, false);
    assert_eq!(old(Status::SyncWriteInProgress), Some(Status::Etmpfail));
    assert_eq!(old(Status::SyncWriteReCommitInProgress), Some(Status::Etmpfail));
    assert_eq!(old(Status::DurabilityImpossible), None);
    assert_eq!(old(Status::SyncWriteAmbiguous), None);
    assert_eq!(old(Status::DurabilityInvalidLevel), Some(Status::DurabilityInvalidLevel));
}

/// Who has not logged in is told, whatever the client understands.
#[test]
fn old_clients_that_lack_a_right_are_disconnected() {
    let node = node();
    let (answers, next) = feed(&mut connect(&node), &get(b"k", 1));
    assert_eq!(statuses(&answers), [(1, Status::Eaccess)]);
    assert!(!matches!(next, Next::Close(_)));
    let refused = Next::Close(CloseReason::StatusNotUnderstood(Status::Eaccess));
    let mut old = connect_as(&node, "reader", &[Feature::Json]);
    assert_eq!(statuses(&feed(&mut old, &get(b"k", 1)).0), [(1, Status::KeyEnoent)], "what the user may do");
    let (answers, next) = feed(&mut old, &set(b"k", b"v", 2));
    assert_eq!((answers.len(), next), (0, refused));
    let select = RequestParts { opcode: opcode::SELECT_BUCKET, key: b"none", ..RequestParts::default() };
    let mut old = connect_as(&node, "reader", &[Feature::Json]);
    assert!(matches!(feed(&mut old, &request(&select)).1, Next::Close(_)));
    let mut new = connect_as(&node, "reader", FULL);
    assert_eq!(statuses(&feed(&mut new, &set(b"k", b"v", 2)).0), [(2, Status::Eaccess)]);
}

#[test]
fn attributes_of_the_system_that_are_too_long_are_invalid_with_meta() {
    let mut client = Client::new();
    let attribute = [b"_s\0\"", &vec![b'x'; 1 << 20][..], b"\"\0"].concat();
    let section = [&(attribute.len() as u32).to_be_bytes()[..], &attribute].concat();
    let value = [&(section.len() as u32).to_be_bytes()[..], &section, b"{}"].concat();
    let extras = [&[0; 8], &1u64.to_be_bytes()[..], &1_000u64.to_be_bytes()].concat();
    let parts = RequestParts {
        opcode: opcode::SET_WITH_META,
        extras: &extras,
        key: client.key,
        value: &value,
        datatype: Datatype::XATTR.0,
        vbucket: vb(client.key),
        ..RequestParts::default()
    };
    let (answers, _) = feed(&mut client.connection, &request(&parts));
    assert_eq!(statuses(&answers)[0].1, Status::Einval);
}

#[test]
fn what_is_not_on_disk_yet_is_not_evicted() {
    let mut client = Client::new();
    client.store(b"v");
    assert_eq!(client.ask(opcode::EVICT_KEY, b"", b"", Cas::ANY).0, Status::KeyEexists);
}

/// A key of a collection that there is not, as clients that know of collections send it.
const NO_COLLECTION: &[u8] = b"\x77k";

fn of_no_collection(connection: &mut Connection, opcode: u8, extras: &[u8], vbucket: VbId) -> Status {
    let parts =
        RequestParts { opcode, extras, key: NO_COLLECTION, value: b"", vbucket, ..RequestParts::default() };
    let (answers, _) = feed(connection, &request(&parts));
    statuses(&answers)[0].1
}

#[test]
fn a_collection_that_there_is_not_is_told_before_role_and_rights() {
    let node = node();
    let features = [FULL, &[Feature::Collections]].concat();
    let mut admin = connect_as(&node, "admin", &features);
    let mut reader = connect_as(&node, "reader", &features);
    let bucket = node.bucket("default").expect("it is served");
    bucket.roles().set_vbucket_state(VbId(1), VbState::Replica, None).expect("any state may come");
    for vb in [VbId(0), VbId(1)] {
        for opcode in [opcode::GET, opcode::DELETE, opcode::GET_REPLICA, opcode::EVICT_KEY, opcode::GET_META]
        {
            let status = of_no_collection(&mut admin, opcode, b"", vb);
            assert_eq!(status, Status::UnknownCollection, "{opcode:#x} {vb:?}");
        }
        assert_eq!(of_no_collection(&mut reader, opcode::SET, &[0; 8], vb), Status::UnknownCollection);
    }
    assert_eq!(of_no_collection(&mut admin, opcode::GET, b"", VbId(9)), Status::NotMyVbucket);
    assert_eq!(of_no_collection(&mut reader, opcode::SET, &[0; 8], VbId(9)), Status::Eaccess);
}

#[test]
fn hello_grants_what_there_is_of_the_later_features() {
    let node = node();
    let mut connection = connect(&node);
    let mut hello = |features: &[u16]| {
        let value: Vec<u8> = features.iter().flat_map(|feature| feature.to_be_bytes()).collect();
        let parts = RequestParts { opcode: opcode::HELLO, value: &value, ..RequestParts::default() };
        let (answers, _) = feed(&mut connection, &request(&parts));
        each(&answers, |answer| (answer.status().expect("a known status"), answer.value.to_vec())).remove(0)
    };
    assert_eq!(hello(&[0x22, 0x25, 0x06]), (Status::Success, vec![0, 0x06, 0, 0x22, 0, 0x25]));
    assert_eq!(hello(&[0x22]).0, Status::Einval, "range scans with attributes need attributes");
    assert_eq!(hello(&[0x26]), (Status::Success, vec![0, 0x26]));
    assert_eq!(hello(&[0x24, 0x06, 0x0b]).0, Status::Einval, "a random document needs all values compressed");
    let all = hello(&[0x06, 0x0a, 0x0b, 0x13, 0x24]);
    assert_eq!(all, (Status::Success, vec![0, 0x06, 0, 0x0a, 0, 0x0b, 0, 0x13, 0, 0x24]));
    assert_eq!(hello(&[0x23]), (Status::Success, Vec::new()));
}
