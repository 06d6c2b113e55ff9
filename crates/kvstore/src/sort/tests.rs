//! Versions are sorted by key, and of each key the newest stays, as a map would have it.

use std::collections::BTreeMap;

use base::{CollectionId, DocKey, NewVersion, Seqno, VersionMeta};
use proptest::prelude::*;

use super::*;

fn version(seqno: u64, collection: u32, key: &[u8]) -> Version {
    let meta = VersionMeta { by_seqno: Seqno(seqno), ..VersionMeta::default() };
    NewVersion::new(base::Heap::shared(), meta, DocKey { collection: CollectionId(collection), key }, &[b"v"])
        .publish()
}

fn check(mut items: Vec<Version>, from: usize) {
    let before: Vec<u64> = items[..from].iter().map(|item| item.meta().by_seqno.0).collect();
    let mut newest: BTreeMap<Vec<u8>, u64> = BTreeMap::new();
    for item in &items[from..] {
        let seqno = newest.entry(item.stored_key().to_vec()).or_default();
        *seqno = item.meta().by_seqno.0.max(*seqno);
    }
    sort_newest_from(&mut items, from);
    assert_eq!(items[..from].iter().map(|item| item.meta().by_seqno.0).collect::<Vec<_>>(), before);
    let sorted = items[from..].iter().map(|item| (item.stored_key().to_vec(), item.meta().by_seqno.0));
    assert_eq!(sorted.collect::<Vec<_>>(), newest.into_iter().collect::<Vec<_>>());
}

/// Keys that are alike in every way that matters: long common beginnings, zeros, one the beginning of another.
fn keys() -> impl Strategy<Value = Vec<Vec<u8>>> {
    let few = proptest::collection::vec(0u8..3, 0..12);
    let numbered = (0u32..500).prop_map(|i| format!("key{i}").into_bytes());
    let long = (0u32..500).prop_map(|i| format!("a common beginning that is long{i:09}").into_bytes());
    let any = proptest::collection::vec(any::<u8>(), 0..20);
    prop_oneof![
        proptest::collection::vec(few, 1..300),
        proptest::collection::vec(numbered, 1..300),
        proptest::collection::vec(long, 1..300),
        proptest::collection::vec(any, 1..300),
    ]
}

proptest! {
    #[test]
    fn the_newest_of_each_key_comes_out_in_order(
        keys in keys(), collections in 1u32..300, from in 0usize..3, ascending in 0usize..300,
    ) {
        let mut keys = keys;
        let split = ascending.min(keys.len());
        keys[..split].sort();
        keys[split..].sort_by_key(|key| key.len());
        let item = |(i, key): (usize, &Vec<u8>)| version(i as u64 + 1, i as u32 % collections, key);
        let items: Vec<Version> = keys.iter().enumerate().map(item).collect();
        let from = from.min(items.len());
        check(items, from);
    }

    #[test]
    fn runs_are_merged(lens in proptest::collection::vec(1usize..100, 1..40), step in 1usize..5) {
        let mut seqno = 0;
        let mut items = Vec::new();
        for (run, len) in lens.into_iter().enumerate() {
            for i in 0..len {
                seqno += 1;
                items.push(version(seqno, 0, format!("{:04}", i * step + run % 3).as_bytes()));
            }
        }
        check(items, 0);
    }
}

#[test]
fn versions_of_one_key_in_any_order_leave_the_newest() {
    for seqnos in [[1, 2, 3], [3, 2, 1], [2, 3, 1]] {
        let items: Vec<Version> =
            (0..100).flat_map(|_| seqnos).map(|seqno| version(seqno, 0, b"key")).collect();
        check(items, 0);
    }
    check(Vec::new(), 0);
    check(vec![version(1, 0, b"key")], 1);
}

#[test]
fn a_key_that_no_sample_shows_may_begin_differently() {
    let mut items: Vec<Version> =
        (0..1000u64).map(|i| version(i + 1, 0, format!("common{:04}", i * 617 % 1000).as_bytes())).collect();
    items[7] = version(2000, 0, b"com");
    items[9] = version(2001, 0, b"other");
    check(items, 0);
}
