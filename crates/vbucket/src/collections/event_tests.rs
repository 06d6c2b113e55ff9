//! Events of collections: keys, values, versions.

use base::Account;
use proptest::prelude::*;

use super::*;

/// Values of the original, from the golden file of vBucket 0 (seqnos 1, 2, 5 and 72).
const SCOPE_8: &str =
    "1000000000000a000c000000040008000a000000080000000400000009000000696e76656e746f7279000000";
const COLLECTION_8: &str = "1400000010001000000004000800000000000c0010000000080000000800000004000000070000006169726c\
                            696e6500";
const COLLECTION_11: &str = "180000000000000010002000180008000c000700100014001000000000000001080000000b000000100e0000\
                             0c00000001000000000000000300000074746c00";
const END_10: &str = "140000000000000000000a0014000c00040008000a000000080000000a0000000200000000000000";

fn unhex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
    digits.chunks(2).map(byte).collect()
}

fn collection(id: u32, name: &str, max_ttl_s: Option<u32>) -> Collection {
    Collection { id: CollectionId(id), scope: ScopeId(8), name: name.into(), max_ttl_s, history: None }
}

#[test]
fn events_of_the_original_are_read() {
    let of = |key: &[u8], is_deleted, value| SystemEvent::parse(key, is_deleted, &unhex(value));
    let scope = Scope { id: ScopeId(8), name: "inventory".into() };
    let manifest = ManifestUid(0);
    assert_eq!(of(b"\x01\x08_scope", false, SCOPE_8), Some(SystemEvent::ScopeBegin { manifest, scope }));
    let airline = collection(8, "airline", None);
    let begin = SystemEvent::CollectionBegin { manifest, collection: airline };
    assert_eq!(of(b"\x00\x08_collection", false, COLLECTION_8), Some(begin));
    let (manifest, ttl) = (ManifestUid(1), collection(11, "ttl", Some(3600)));
    let begin = SystemEvent::CollectionBegin { manifest, collection: ttl };
    assert_eq!(of(b"\x00\x0b_collection", false, COLLECTION_11), Some(begin));
    let end =
        SystemEvent::CollectionEnd { manifest: ManifestUid(2), scope: ScopeId(8), id: CollectionId(10) };
    assert_eq!(of(b"\x00\x0a_collection", true, END_10), Some(end));
}

/// The seventh field of the table is the original's `history`; a reader of before passes over it.
#[test]
fn the_history_of_a_collection_is_the_seventh_field() {
    let manifest = ManifestUid(1);
    for (history, fields) in [(None, 6), (Some(false), 7), (Some(true), 7)] {
        let collection = Collection { history, ..collection(8, "c", Some(5)) };
        let value = SystemEvent::CollectionChanged { manifest, collection: collection.clone() }.to_value();
        let table = Table::root(&value).expect("a table");
        assert_eq!((table.has(fields - 1), table.has(fields)), (true, false));
        assert_eq!(
            (table.u32(4), table.text(5), table.bool(6)),
            (Some(5), Some("c"), Some(history == Some(true)))
        );
        let read = SystemEvent::from_value(EventKind::CollectionChanged, &value);
        assert_eq!(read, Some(SystemEvent::CollectionChanged { manifest, collection }));
    }
}

#[test]
fn key_and_value_must_agree() {
    assert_eq!(SystemEvent::parse(b"\x00\x09_collection", false, &unhex(COLLECTION_8)), None);
    assert_eq!(SystemEvent::parse(b"\x07\x08_collection", false, &unhex(COLLECTION_8)), None);
    assert_eq!(SystemEvent::parse(b"", false, &unhex(COLLECTION_8)), None);
}

#[test]
fn an_end_is_a_tombstone_under_the_key_of_its_beginning() {
    let heap = Heap::new(Account::new());
    let begin =
        SystemEvent::CollectionBegin { manifest: ManifestUid(1), collection: collection(0x12f, "c", None) };
    let end =
        SystemEvent::CollectionEnd { manifest: ManifestUid(2), scope: ScopeId(8), id: CollectionId(0x12f) };
    assert_eq!(begin.key().as_bytes(), b"\x00\xaf\x02_collection");
    let (begin, end) = (begin.to_version(&heap).publish(), end.to_version(&heap).publish());
    assert_eq!(begin.stored_key(), end.stored_key());
    assert_eq!((begin.meta().kind, end.meta().kind), (ItemKind::SystemEvent, ItemKind::Deletion));
}

fn any_event() -> impl Strategy<Value = SystemEvent> {
    let ids = (any::<u64>(), any::<u32>(), any::<u32>());
    let said = (any::<Option<u32>>(), any::<Option<bool>>());
    (ids, "[a-zA-Z0-9-]{1,251}", said, 0..5).prop_map(
        |((manifest, scope, id), name, (max_ttl_s, history), which)| {
            let (manifest, scope, id) = (ManifestUid(manifest), ScopeId(scope), CollectionId(id));
            let collection = Collection { id, scope, name: name.clone(), max_ttl_s, history };
            match which {
                0 => SystemEvent::CollectionBegin { manifest, collection },
                1 => SystemEvent::CollectionEnd { manifest, scope, id },
                2 => SystemEvent::CollectionChanged { manifest, collection },
                3 => SystemEvent::ScopeBegin { manifest, scope: Scope { id: scope, name } },
                _ => SystemEvent::ScopeEnd { manifest, id: scope },
            }
        },
    )
}

proptest! {
    #[test]
    fn an_event_survives_being_a_version(event in any_event()) {
        let heap = Heap::new(Account::new());
        let version = event.to_version(&heap).publish();
        prop_assert_eq!(SystemEvent::of(&version), Some(event));
    }

    #[test]
    fn any_bytes_are_read_or_refused(
        event in any_event(),
        damage in proptest::collection::vec((any::<proptest::sample::Index>(), any::<u8>()), 1..6),
        cut in any::<proptest::sample::Index>(),
    ) {
        let (mut value, key) = (event.to_value(), event.key());
        for (at, byte) in damage {
            let at = at.index(value.len());
            value[at] = byte;
        }
        let whole = value.len();
        value.truncate(whole - cut.index(whole) / 2);
        if let Some(read) = SystemEvent::parse(key.as_bytes(), event.is_end(), &value) {
            let read = read.key();
            prop_assert_eq!(read.as_bytes(), key.as_bytes());
        }
    }
}
