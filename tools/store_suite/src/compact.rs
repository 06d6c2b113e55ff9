//! Compaction.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

use kvstore::{Compacted, Compaction, Expired, Failure};

use super::*;

pub(super) fn run<S: Subject>(fresh: &impl Fn() -> S) {
    nothing_is_lost(fresh());
    old_tombstones_are_purged(fresh());
    the_highest_seqno_stays(fresh());
    expired_documents_are_asked_about(fresh());
    dropped_collections_go(fresh());
    a_collection_that_is_there_again_stays(fresh());
    saves_go_on(fresh());
    a_scan_goes_on(fresh());
    it_can_be_ended(fresh());
    one_at_a_time(fresh());
    deletion_and_rollback_end_it(fresh());
    nothing_stored_is_no_compaction(fresh());
}

fn compact(store: &dyn KvStore, request: &Compaction<'_>) -> Compacted {
    store.compact(VB, request).expect("a compaction")
}

fn aged(key: &str, seqno: u64, deleted_at_s: u32) -> Version {
    tuned(0, key, seqno, b"", |meta| {
        meta.kind = ItemKind::Deletion;
        meta.expiry = deleted_at_s;
    })
}

fn expiring(key: &str, seqno: u64, expiry: u32) -> Version {
    tuned(0, key, seqno, b"value", |meta| meta.expiry = expiry)
}

fn event(collection: u32, deleted: bool, seqno: u64) -> Version {
    assert!(collection < 128, "an id of one byte");
    let key = format!("\u{0}{}_collection", char::from(collection as u8));
    tuned(1, &key, seqno, b"", |meta| {
        meta.kind = if deleted { ItemKind::Deletion } else { ItemKind::SystemEvent };
    })
}

/// Seqnos of everything stored.
fn seqnos(store: &dyn KvStore) -> Vec<u64> {
    scan(store, VB, 0).iter().map(|version| version.meta().by_seqno.0).collect()
}

/// Documents of each collection that is counted.
fn counted(store: &dyn KvStore) -> BTreeMap<u32, (u64, u64)> {
    let found = settled(store, VB);
    found.collections.iter().map(|(id, s)| (id.0, (s.item_count, s.high_seqno.0))).collect()
}

/// The counts are those of what a scan shows.
#[track_caller]
fn assert_counted(store: &dyn KvStore) {
    let found = settled(store, VB);
    let all = scan(store, VB, 0);
    let tombstones = all.iter().filter(|version| version.is_deleted()).count() as u64;
    assert_eq!(found.counts.tombstones, tombstones);
    for (id, stats) in &found.collections {
        let of = all.iter().filter(|version| version.key().collection == *id && !version.is_deleted());
        assert_eq!(stats.item_count, of.count() as u64, "collection {}", id.0);
    }
    assert_eq!(found.counts.documents, found.collections.iter().map(|(_, s)| s.item_count).sum::<u64>());
    assert!(found.counts.used_bytes <= found.counts.file_bytes);
}

fn nothing_is_lost(mut subject: impl Subject) {
    let state = VbStateDoc { max_cas: 99, state: VbState::Active, ..VbStateDoc::default() };
    for round in 0..5u64 {
        let mut items: Vec<Version> = (0..40)
            .map(|i| {
                let seqno = round * 40 + i + 1;
                let value = vec![seqno as u8; (i * i) as usize];
                match i % 9 {
                    8 => tombstone(0, &format!("k{}", (i + round * 3) % 70), seqno, ItemKind::Expiration),
                    _ => version((i % 3 * 8) as u32, &format!("k{}", (i + round * 3) % 70), seqno, &value),
                }
            })
            .collect();
        items.sort_by(|a, b| a.stored_key().cmp(b.stored_key()));
        items.dedup_by(|a, b| a.stored_key() == b.stored_key());
        subject.store().save(VB, SaveBatch { items: &items, state: &state }).expect("a save");
    }
    let (before, all) = (settled(subject.store(), VB), scan(subject.store(), VB, 0));
    for _ in 0..2 {
        let compacted = compact(subject.store(), &Compaction::default());
        assert!(compacted.after_bytes <= compacted.before_bytes);
        let left_out =
            (compacted.tombstones_purged, compacted.documents_dropped, compacted.documents_expired);
        assert_eq!((left_out, compacted.purge_seqno), ((0, 0, 0), Seqno(0)));
        for _ in 0..2 {
            let scanned = scan(subject.store(), VB, 0);
            assert_eq!(scanned.len(), all.len());
            scanned.iter().zip(&all).for_each(|(a, b)| assert_same(a, b));
            for version in &all {
                let got = subject.store().get(VB, version.key()).expect("a get").expect("it is there");
                assert_same(&got, version);
            }
            let after = settled(subject.store(), VB);
            assert_eq!((&after.state, after.high_seqno), (&state, before.high_seqno));
            let sorted = |found: &StoredVb| {
                let mut all = found.collections.clone();
                all.sort_unstable_by_key(|(id, _)| *id);
                all
            };
            assert_eq!(sorted(&after), sorted(&before));
            assert_eq!(
                (after.counts.documents, after.counts.tombstones),
                (before.counts.documents, before.counts.tombstones)
            );
            subject.restart();
        }
    }
    assert_counted(subject.store());
}

fn old_tombstones_are_purged(mut subject: impl Subject) {
    let items = vec![
        aged("a", 1, 100),
        aged("b", 2, 200),
        aged("c", 3, 150),
        aged("unknown age", 4, 0),
        expiring("d", 5, 100),
        version(0, "e", 6, b"v"),
    ];
    save(subject.store(), VB, items);
    let at = |purge_before_s| Compaction { purge_before_s, ..Compaction::default() };
    assert_eq!(compact(subject.store(), &at(Some(100))).tombstones_purged, 0);
    let compacted = compact(subject.store(), &at(Some(200)));
    assert_eq!((compacted.tombstones_purged, compacted.purge_seqno), (2, Seqno(3)));
    for _ in 0..2 {
        assert_eq!(seqnos(subject.store()), [2, 4, 5, 6]);
        let found = settled(subject.store(), VB);
        assert_eq!((found.purge_seqno, found.high_seqno), (Seqno(3), Seqno(6)));
        assert_counted(subject.store());
        assert!(get(subject.store(), "a").is_none());
        subject.restart();
    }
    // what was purged may come back, and the purge seqno never goes down
    save(subject.store(), VB, vec![version(0, "a", 7, b"again"), version(0, "f", 8, b"")]);
    let compacted = compact(subject.store(), &at(Some(1000)));
    assert_eq!((compacted.tombstones_purged, compacted.purge_seqno), (1, Seqno(3)));
    assert_eq!(seqnos(subject.store()), [4, 5, 6, 7, 8]);
    assert_counted(subject.store());
}

fn the_highest_seqno_stays(mut subject: impl Subject) {
    let items = vec![aged("a", 1, 1), aged("b", 2, 1), aged("c", 3, 1)];
    save(subject.store(), VB, items);
    let request = Compaction {
        purge_before_s: Some(u32::MAX),
        expired_before_s: Some(u32::MAX),
        is_dropped: &|_, _| true,
        on_expired: &|_| Expired::LeaveOut,
        ..Compaction::default()
    };
    for _ in 0..2 {
        compact(subject.store(), &request);
        subject.restart();
        assert_eq!(seqnos(subject.store()), [3]);
        assert_eq!(settled(subject.store(), VB).high_seqno, Seqno(3));
        assert_counted(subject.store());
    }
    save(subject.store(), VB, vec![expiring("d", 4, 1)]);
    compact(subject.store(), &request);
    assert_eq!(seqnos(subject.store()), [4]);
    assert_counted(subject.store());
}

fn expired_documents_are_asked_about(mut subject: impl Subject) {
    let items = vec![
        expiring("a", 1, 50),
        expiring("b", 2, 51),
        expiring("c", 3, 50),
        version(0, "never", 4, b""),
        version(0, "last", 5, b""),
    ];
    save(subject.store(), VB, items.clone());
    let asked = RefCell::new(Vec::new());
    let request = Compaction {
        expired_before_s: Some(51),
        on_expired: &|version| {
            asked.borrow_mut().push(version.clone());
            if version.key().key == b"a" { Expired::LeaveOut } else { Expired::Keep }
        },
        ..Compaction::default()
    };
    let compacted = compact(subject.store(), &request);
    assert_eq!((compacted.documents_expired, compacted.purge_seqno), (1, Seqno(0)));
    let asked = asked.into_inner();
    assert_eq!(asked.len(), 2);
    assert_eq!((asked[0].meta(), asked[0].key()), (items[0].meta(), items[0].key()));
    assert_eq!((asked[1].meta(), asked[1].key()), (items[2].meta(), items[2].key()));
    for _ in 0..2 {
        assert_eq!(seqnos(subject.store()), [2, 3, 4, 5]);
        assert_counted(subject.store());
        subject.restart();
    }
}

fn dropped_collections_go(mut subject: impl Subject) {
    let items = vec![
        event(8, false, 1),
        event(9, false, 2),
        version(8, "a", 3, b"v"),
        version(9, "a", 4, b"v"),
        tombstone(9, "b", 5, ItemKind::Deletion),
        version(9, "c", 6, b"v"),
        version(0, "a", 7, b"v"),
    ];
    save(subject.store(), VB, items);
    // the store need not know of the drop yet
    let request = Compaction {
        is_dropped: &|collection, seqno| collection == CollectionId(9) && seqno <= Seqno(7),
        ..Compaction::default()
    };
    assert_eq!(compact(subject.store(), &request).documents_dropped, 3);
    assert_eq!(counted(subject.store()), BTreeMap::from([(0, (1, 7)), (8, (1, 3)), (9, (0, 6))]));
    save(subject.store(), VB, vec![event(9, true, 8)]);
    for _ in 0..2 {
        assert_eq!(seqnos(subject.store()), [1, 3, 7, 8]);
        assert_eq!(counted(subject.store()), BTreeMap::from([(0, (1, 7)), (8, (1, 3))]));
        assert_counted(subject.store());
        subject.restart();
    }
    // or it does
    save(subject.store(), VB, vec![event(8, true, 9)]);
    save(subject.store(), VB, vec![version(0, "b", 10, b"")]);
    let request = Compaction {
        is_dropped: &|collection, seqno| collection == CollectionId(8) && seqno <= Seqno(9),
        ..Compaction::default()
    };
    let compacted = compact(subject.store(), &request);
    assert_eq!((compacted.documents_dropped, compacted.purge_seqno), (1, Seqno(0)));
    assert_eq!(seqnos(subject.store()), [7, 8, 9, 10]);
    assert_eq!(counted(subject.store()), BTreeMap::from([(0, (2, 10))]));
}

fn a_collection_that_is_there_again_stays(subject: impl Subject) {
    let store = subject.store();
    save(store, VB, vec![event(9, false, 1), version(9, "a", 2, b""), version(9, "b", 3, b"")]);
    save(store, VB, vec![event(9, true, 4)]);
    save(store, VB, vec![event(9, false, 5), version(9, "c", 6, b""), version(9, "d", 7, b"")]);
    let request = Compaction {
        is_dropped: &|collection, seqno| collection == CollectionId(9) && seqno <= Seqno(4),
        ..Compaction::default()
    };
    assert_eq!(compact(store, &request).documents_dropped, 2);
    assert_eq!(seqnos(store), [5, 6, 7]);
    assert_eq!(counted(store), BTreeMap::from([(9, (2, 7))]));
}

fn saves_go_on(mut subject: impl Subject) {
    let value = vec![7; 30_000];
    let first: Vec<Version> = (1..=100)
        .map(|i| match i % 5 {
            0 => aged(&format!("k{i:03}"), i, 100),
            1 => expiring(&format!("k{i:03}"), i, 100),
            2 => version(9, &format!("k{i:03}"), i, &value),
            _ => version(0, &format!("k{i:03}"), i, &value),
        })
        .collect();
    save(subject.store(), VB, first);
    let (store, seqno, rounds) = (subject.store(), Cell::new(100), Cell::new(0));
    // between two steps: of each kind some are changed, deleted, made
    let save_some = || {
        rounds.set(rounds.get() + 1);
        if rounds.get() > 6 {
            return;
        }
        let mut items = Vec::new();
        for i in 0..12u64 {
            seqno.set(seqno.get() + 1);
            let (seqno, key) = (seqno.get(), format!("k{:03}", (rounds.get() * 17 + i * 7) % 130));
            items.push(match i % 4 {
                0 => aged(&key, seqno, 100),
                1 => expiring(&key, seqno, 100),
                2 => version(9, &key, seqno, b"new"),
                _ => version(0, &key, seqno, b"new"),
            });
        }
        save(store, VB, items);
    };
    let request = Compaction {
        purge_before_s: Some(200),
        expired_before_s: Some(200),
        on_expired: &|_| Expired::LeaveOut,
        is_dropped: &|collection, seqno| collection == CollectionId(9) && seqno <= Seqno(50),
        observe: &|_| {
            save_some();
            ControlFlow::Continue(())
        },
        ..Compaction::default()
    };
    let compacted = compact(store, &request);
    assert!(rounds.get() > 1, "{} rounds", rounds.get());
    assert_eq!((compacted.tombstones_purged, compacted.documents_expired), (19, 20));
    assert_eq!((compacted.documents_dropped, compacted.purge_seqno), (10, Seqno(95)));
    let newest = scan(store, VB, 101);
    assert_eq!(newest.last().map(|version| version.meta().by_seqno.0), Some(seqno.get()));
    assert_counted(store);
    let (all, counts) = (scan(store, VB, 0), counted(store));
    subject.restart();
    assert_eq!(scan(subject.store(), VB, 0).len(), all.len());
    assert_eq!(counted(subject.store()), counts);
    assert_counted(subject.store());
    for version in all {
        let got = subject.store().get(VB, version.key()).expect("a get").expect("it is there");
        assert_same(&got, &version);
    }
    // nothing of what was left out came back, and what was saved meanwhile is judged the next time
    let again = Compaction {
        purge_before_s: Some(200),
        expired_before_s: Some(200),
        on_expired: &|_| Expired::LeaveOut,
        ..Compaction::default()
    };
    compact(subject.store(), &again);
    let left = scan(subject.store(), VB, 0);
    let highest = left.last().expect("something is there").meta().by_seqno;
    assert!(left.iter().all(|v| v.meta().by_seqno == highest || v.meta().expiry == 0));
    assert_counted(subject.store());
}

fn a_scan_goes_on(subject: impl Subject) {
    let store = subject.store();
    save(store, VB, (1..=50).map(|i| version(0, &format!("k{i}"), i, b"value")).collect());
    let mut seen = Vec::new();
    store
        .scan(VB, Seqno(0), Values::Read, &mut |version| {
            if seen.len() % 10 == 5 {
                let seqno = 51 + seen.len() as u64;
                save(store, VB, vec![version_of(seqno)]);
                compact(store, &Compaction::default());
            }
            seen.push((version.meta().by_seqno.0, version.value().to_vec()));
            ControlFlow::Continue(())
        })
        .expect("a scan");
    assert_eq!(seen, (1..=50).map(|i| (i, b"value".to_vec())).collect::<Vec<_>>());
    assert_eq!(scan(store, VB, 51).len(), 5);
}

fn version_of(seqno: u64) -> Version {
    version(0, &format!("late{seqno}"), seqno, b"value")
}

fn it_can_be_ended(mut subject: impl Subject) {
    save(subject.store(), VB, vec![version(0, "a", 1, b""), aged("b", 2, 1), version(0, "c", 3, b"")]);
    let request = Compaction {
        purge_before_s: Some(100),
        observe: &|_| ControlFlow::Break(()),
        ..Compaction::default()
    };
    for _ in 0..2 {
        let ended = subject.store().compact(VB, &request);
        assert!(matches!(ended, Err(Failure::CompactionEnded { vb: VB, .. })), "{ended:?}");
        assert_eq!(seqnos(subject.store()), [1, 2, 3]);
        subject.restart();
    }
    assert_eq!(subject.store().stats().failures, 0);
}

fn one_at_a_time(subject: impl Subject) {
    let store = subject.store();
    save(store, VB, vec![version(0, "a", 1, b"")]);
    save(store, VbId(4), vec![version(0, "a", 1, b"")]);
    let tried = Cell::new(0);
    let request = Compaction {
        observe: &|_| {
            tried.set(tried.get() + 1);
            let second = store.compact(VB, &Compaction::default());
            assert!(matches!(second, Err(Failure::CompactionRuns { vb: VB })), "{second:?}");
            store.compact(VbId(4), &Compaction::default()).expect("another vBucket");
            ControlFlow::Continue(())
        },
        ..Compaction::default()
    };
    compact(store, &request);
    assert!(tried.get() > 0);
    compact(store, &Compaction::default());
}

fn deletion_and_rollback_end_it(mut subject: impl Subject) {
    for how in 0..3 {
        save(subject.store(), VB, vec![version(0, "a", 1, b"1")]);
        // a commit of its own, that a rollback can find
        settled(subject.store(), VB);
        save(subject.store(), VB, vec![version(0, "b", 2, b"2")]);
        let store = subject.store();
        let request = Compaction {
            observe: &|_| {
                if how == 0 {
                    drop(store.rollback(VB, Seqno(1)).expect("a rollback"));
                } else {
                    store.delete_vbucket(VB).expect("a delete");
                }
                if how == 2 {
                    save(store, VB, vec![version(0, "c", 1, b"3")]);
                }
                ControlFlow::Continue(())
            },
            ..Compaction::default()
        };
        let ended = store.compact(VB, &request);
        assert!(matches!(ended, Err(Failure::CompactionEnded { vb: VB, .. })), "{ended:?}");
        for _ in 0..2 {
            let found: Vec<_> = scan(subject.store(), VB, 0).iter().map(|v| v.value().to_vec()).collect();
            let expected: [&[&[u8]]; 3] = [&[b"1"], &[], &[b"3"]];
            assert_eq!(found, expected[how]);
            subject.restart();
        }
        subject.store().delete_vbucket(VB).expect("a delete");
    }
}

fn nothing_stored_is_no_compaction(subject: impl Subject) {
    let none = subject.store().compact(VB, &Compaction::default());
    assert!(matches!(none, Err(Failure::NoVbucket { vb: VB })), "{none:?}");
}
