//! The table against `HashMap`, through growth and shrinking.

use std::collections::HashMap;

use base::{DocKey, NewVersion, Seqno, Version, VersionMeta};
use proptest::prelude::*;

use crate::bucket_context::BucketContext;
use crate::hash_seed::HashSeed;
use crate::hash_table::HashTable;

fn version(key: &[u8], seqno: u64) -> Version {
    let meta = VersionMeta { by_seqno: Seqno(seqno), ..VersionMeta::default() };
    NewVersion::new(base::Heap::shared(), meta, DocKey::new(key), &[b"v"]).publish()
}

fn context() -> BucketContext {
    BucketContext::new(1, 2, base::Heap::default())
}

fn table() -> HashTable {
    HashTable::new(&context())
}

fn set(table: &mut HashTable, key: &[u8], seqno: u64) -> Option<u64> {
    let key = DocKey::new(key);
    let hash = table.hash(key);
    let old = table.find_slot(hash, key).set(version(key.key, seqno));
    old.map(|old| old.meta().by_seqno.0)
}

fn remove(table: &mut HashTable, key: &[u8]) -> Option<u64> {
    let key = DocKey::new(key);
    let hash = table.hash(key);
    let slot = table.find_slot(hash, key);
    let there = slot.get().is_some();
    there.then(|| slot.remove().meta().by_seqno.0)
}

fn get(table: &HashTable, key: &[u8]) -> Option<u64> {
    let key = DocKey::new(key);
    table.find(table.hash(key), key).map(|found| found.meta().by_seqno.0)
}

#[test]
fn an_empty_table_is_small_and_answers() {
    let mut table = table();
    assert!(size_of::<HashTable>() + table.allocated_bytes() <= 128);
    assert_eq!(get(&table, b"a"), None);
    assert_eq!(table.visit(0, 10, |_| ()), None);
    assert!(table.random(7, |_| true).is_none());
    assert!(table.take().is_empty());
}

#[test]
fn grows_to_many_and_shrinks_to_none() {
    let mut table = table();
    let n = 60_000_u64;
    for i in 0..n {
        assert_eq!(set(&mut table, &i.to_be_bytes(), i), None);
    }
    assert_eq!(table.len(), n as usize);
    assert!((0..n).all(|i| get(&table, &i.to_be_bytes()) == Some(i)));
    assert!((n..2 * n).all(|i| get(&table, &i.to_be_bytes()).is_none()));
    assert!(table.allocated_bytes() < 15 * n as usize, "{} bytes", table.allocated_bytes());
    for i in 0..n {
        assert_eq!(remove(&mut table, &i.to_be_bytes()), Some(i));
        if i % 1000 == 0 {
            assert!((i + 1..n).all(|i| get(&table, &i.to_be_bytes()) == Some(i)));
        }
    }
    assert_eq!((table.len(), table.bucket_counts()), (0, (1, 0)));
}

#[test]
fn taking_leaves_an_empty_table() {
    let mut table = table();
    (0..100_u64).for_each(|i| _ = set(&mut table, &i.to_be_bytes(), i));
    let taken = table.take();
    assert_eq!((taken.len(), table.len()), (100, 0));
    assert_eq!(set(&mut table, b"again", 1), None);
    assert_eq!(get(&taken, &7_u64.to_be_bytes()), Some(7));
}

#[test]
fn random_reaches_every_version() {
    let mut table = table();
    (0..200_u64).for_each(|i| _ = set(&mut table, &i.to_be_bytes(), i));
    let mut seen = [0; 200];
    for r in 0..20_000_u64 {
        let r = r.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let version = table.random(r, |_| true).expect("the table is not empty");
        seen[version.meta().by_seqno.0 as usize] += 1;
    }
    assert!(seen.iter().all(|times| *times > 0));
    let only = table.random(3, |version| version.meta().by_seqno == Seqno(17));
    assert_eq!(only.map(|version| version.meta().by_seqno), Some(Seqno(17)));
}

#[test]
fn a_visit_sees_each_version_once_while_the_table_grows() {
    let mut table = table();
    (0..500_u64).for_each(|i| _ = set(&mut table, &i.to_be_bytes(), i));
    let mut seen = vec![0; 500];
    let (mut cursor, mut next) = (Some(0), 500_u64);
    while let Some(at) = cursor {
        cursor = table.visit(at, 5, |version| {
            if let Some(times) = seen.get_mut(version.meta().by_seqno.0 as usize) {
                *times += 1;
            }
        });
        for _ in 0..40 {
            set(&mut table, &next.to_be_bytes(), next);
            next += 1;
        }
    }
    assert!(next > 2000, "the table grew");
    assert!(seen.iter().all(|times| *times == 1));
}

/// Keys whose hashes agree in so many bits that they share a bucket whatever happens.
fn colliding(count: usize) -> Vec<[u8; 4]> {
    let seed = HashSeed::new(1, 2);
    let keys = (0_u32..).map(u32::to_be_bytes);
    keys.filter(|key| seed.hash(DocKey::new(key)) & 0x3ff == 5).take(count).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    #[test]
    fn long_chains_lose_nothing(ops in proptest::collection::vec((0..60_usize, any::<bool>()), 1..600)) {
        let (mut table, mut model) = (table(), HashMap::new());
        let keys = colliding(60);
        for (i, (key, adds)) in ops.into_iter().enumerate() {
            let seqno = i as u64;
            if adds {
                prop_assert_eq!(set(&mut table, &keys[key], seqno), model.insert(key, seqno));
            } else {
                prop_assert_eq!(remove(&mut table, &keys[key]), model.remove(&key));
            }
            for (key, bytes) in keys.iter().enumerate() {
                prop_assert_eq!(get(&table, bytes), model.get(&key).copied());
            }
            let lines = table.bucket_counts().1;
            prop_assert!(lines <= model.len().saturating_sub(1) / 7, "{} lines hang on", lines);
        }
    }
}

#[derive(Clone, Debug)]
enum Op {
    Set(u16),
    Remove(u16),
    RemoveMany(u16),
    Get(u16),
    Take,
    VisitAll(u8),
}

fn op() -> impl Strategy<Value = Op> {
    let key = 0..3000_u16;
    prop_oneof![
        60 => key.clone().prop_map(Op::Set),
        20 => key.clone().prop_map(Op::Remove),
        2 => key.clone().prop_map(Op::RemoveMany),
        20 => key.prop_map(Op::Get),
        1 => Just(Op::Take),
        2 => (1..50_u8).prop_map(Op::VisitAll),
    ]
}

fn visited(table: &HashTable, max: usize) -> Vec<u64> {
    let (mut seen, mut cursor) = (Vec::new(), Some(0));
    while let Some(at) = cursor {
        cursor = table.visit(at, max, |version| seen.push(version.meta().by_seqno.0));
    }
    seen.sort_unstable();
    seen
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    #[test]
    fn behaves_as_a_hash_map(ops in proptest::collection::vec(op(), 1..4000)) {
        let (mut table, mut model) = (table(), HashMap::new());
        for (i, op) in ops.into_iter().enumerate() {
            let seqno = i as u64;
            match op {
                Op::Set(key) => {
                    prop_assert_eq!(set(&mut table, &key.to_be_bytes(), seqno), model.insert(key, seqno));
                }
                Op::Remove(key) => prop_assert_eq!(remove(&mut table, &key.to_be_bytes()), model.remove(&key)),
                Op::RemoveMany(from) => {
                    for key in from..from + 500 {
                        prop_assert_eq!(remove(&mut table, &key.to_be_bytes()), model.remove(&key));
                    }
                }
                Op::Get(key) => prop_assert_eq!(get(&table, &key.to_be_bytes()), model.get(&key).copied()),
                Op::Take if i % 7 == 0 => {
                    prop_assert_eq!(table.take().len(), model.len());
                    model.clear();
                }
                Op::Take => {}
                Op::VisitAll(max) => {
                    let mut all: Vec<u64> = model.values().copied().collect();
                    all.sort_unstable();
                    prop_assert_eq!(visited(&table, usize::from(max)), all);
                }
            }
            prop_assert_eq!(table.len(), model.len());
        }
        let mut all: Vec<u64> = table.iter().map(|version| version.meta().by_seqno.0).collect();
        all.sort_unstable();
        let mut expected: Vec<u64> = model.into_values().collect();
        expected.sort_unstable();
        prop_assert_eq!(all, expected);
    }
}

#[test]
fn a_table_with_room_splits_no_bucket_and_shrinks_again() {
    for items in [1_u64, 5, 6, 7, 1000, 6 * 257] {
        let mut table = HashTable::with_room(&context(), items as usize);
        let (buckets, _) = table.bucket_counts();
        (0..items).for_each(|i| assert_eq!(set(&mut table, &i.to_be_bytes(), i), None));
        assert_eq!(table.bucket_counts().0, buckets, "{items} fit in");
        assert!((0..items).all(|i| get(&table, &i.to_be_bytes()) == Some(i)));
        (0..items).for_each(|i| assert_eq!(remove(&mut table, &i.to_be_bytes()), Some(i)));
        assert!(table.is_empty());
    }
}
