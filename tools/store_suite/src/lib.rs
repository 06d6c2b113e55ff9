//! What every backend of `kvstore` must do; each backend's tests run it. Of tests alone.

mod compact;
mod manifest;
mod rollback;
mod sync_writes;

use std::ops::ControlFlow;

use base::{
    Cas, CollectionId, Datatype, DocKey, ItemKind, NewVersion, RevSeqno, Seqno, SyncWrite, VbId, VbState,
    Version, VersionMeta,
};
use kvstore::{
    ChangesWanted, FailoverEntry, KvStore, Reading, SaveBatch, Snapshot, StoredVb, Values, VbStateDoc,
};

/// A store under test.
pub trait Subject {
    /// The store.
    fn store(&self) -> &dyn KvStore;
    /// Stops and starts it: only what is durable stays.
    fn restart(&mut self);
    /// Whether it can go back to every save, or whether some are made one on the way to their final place.
    fn keeps_commits(&self) -> bool {
        true
    }
}

const VB: VbId = VbId(3);

/// Runs everything, each part on a store that `fresh` makes.
pub fn run<S: Subject>(fresh: impl Fn() -> S) {
    an_empty_store_answers(fresh());
    metadata_comes_back_whole(fresh());
    values_of_every_kind_come_back(fresh());
    counts_are_exact(fresh());
    collections_are_counted_apart(fresh());
    a_scan_is_in_order_and_sees_one_moment(fresh());
    state_comes_back(fresh());
    a_deleted_vbucket_is_gone(fresh());
    saving_again_changes_nothing(fresh());
    vbuckets_are_apart(fresh());
    many_batches_end_in_the_newest_versions(fresh());
    a_group_is_many_saves(fresh());
    rollback::run(&fresh);
    manifest::run(&fresh);
    compact::run(&fresh);
    sync_writes::run(&fresh);
}

/// A version for tests.
pub fn version(collection: u32, key: &(impl AsRef<[u8]> + ?Sized), seqno: u64, value: &[u8]) -> Version {
    tuned(collection, key, seqno, value, |_| ())
}

/// A version for tests, changed at will.
pub fn tuned(
    collection: u32,
    key: &(impl AsRef<[u8]> + ?Sized),
    seqno: u64,
    value: &[u8],
    tune: impl FnOnce(&mut VersionMeta),
) -> Version {
    let mut meta = VersionMeta {
        cas: Cas(seqno << 16),
        by_seqno: Seqno(seqno),
        rev_seqno: RevSeqno(1),
        ..VersionMeta::default()
    };
    tune(&mut meta);
    let key = DocKey { collection: CollectionId(collection), key: key.as_ref() };
    NewVersion::new(base::Heap::shared(), meta, key, &[value]).publish()
}

fn tombstone(collection: u32, key: &str, seqno: u64, kind: ItemKind) -> Version {
    tuned(collection, key, seqno, b"", |meta| {
        meta.kind = kind;
        meta.expiry = 1_700_000_000;
    })
}

fn save(store: &dyn KvStore, vb: VbId, mut items: Vec<Version>) {
    items.sort_by(|a, b| a.stored_key().cmp(b.stored_key()));
    store.save(vb, SaveBatch { items: &items, state: &VbStateDoc::default() }).expect("a save")
}

/// Documents and tombstones.
fn counts(store: &dyn KvStore, vb: VbId) -> (u64, u64) {
    let counts = store.counts(vb).expect("counts");
    (counts.documents, counts.tombstones)
}

fn get(store: &dyn KvStore, key: &str) -> Option<Version> {
    store.get(VB, DocKey::new(key.as_bytes())).expect("a get")
}

fn scan(store: &dyn KvStore, vb: VbId, from: u64) -> Vec<Version> {
    let mut all = Vec::new();
    store
        .scan(vb, Seqno(from), Values::Read, &mut |version| {
            all.push(version);
            ControlFlow::Continue(())
        })
        .expect("a scan");
    let snapshot = store.snapshot(vb).expect("a snapshot");
    if let Some(snapshot) = snapshot {
        assert_changes(&*snapshot, from, false, &all);
    }
    all
}

/// What a snapshot shows borrowed is what it shows as versions, whatever is wanted at once.
fn assert_changes(snapshot: &dyn Snapshot, from: u64, prepares: bool, expected: &[Version]) {
    let expected: Vec<_> =
        expected.iter().map(|v| (v.stored_key().to_vec(), v.meta(), Some(v.value().to_vec()))).collect();
    let mut reading = Reading::default();
    for max_bytes in [1, 700, usize::MAX] {
        let (mut found, mut next) = (Vec::new(), Some(Seqno(from)));
        while let Some(from) = next {
            let wanted = ChangesWanted { from, values: Values::Read, prepares, past: false, max_bytes };
            let read = snapshot.changes(&wanted, &mut reading, &mut |change| {
                found.push((change.stored_key.to_vec(), change.meta, change.value.map(<[u8]>::to_vec)));
                ControlFlow::Continue(())
            });
            next = read.expect("a sound vBucket");
            assert!(next.is_none_or(|next| next > from), "it goes on: {next:?}");
        }
        assert_eq!(found, expected, "{max_bytes} bytes at once");
    }
}

fn stored(store: &dyn KvStore, vb: VbId) -> Option<StoredVb> {
    let states = store.states().expect("states");
    states.into_iter().find(|(id, _)| *id == vb).map(|(_, stored)| stored.expect("a sound vBucket"))
}

/// The same, with everything counted.
fn settled(store: &dyn KvStore, vb: VbId) -> StoredVb {
    store.counts(vb).expect("counts");
    stored(store, vb).expect("it is there")
}

#[track_caller]
fn assert_same(a: &Version, b: &Version) {
    assert_eq!((a.stored_key(), a.meta(), a.value()), (b.stored_key(), b.meta(), b.value()));
}

fn an_empty_store_answers(mut subject: impl Subject) {
    for _ in 0..2 {
        let store = subject.store();
        assert!(get(store, "key").is_none());
        assert!(scan(store, VB, 0).is_empty());
        assert!(store.states().expect("states").is_empty());
        assert_eq!(store.counts(VB).expect("counts").documents, 0);
        store.delete_vbucket(VB).expect("nothing to delete");
        subject.restart();
    }
}

fn metadata_comes_back_whole(mut subject: impl Subject) {
    let full = tuned(0, "full", 7, b"{}", |meta| {
        *meta = VersionMeta {
            cas: Cas(u64::MAX - 1),
            by_seqno: Seqno(7),
            rev_seqno: RevSeqno((1 << 48) - 1),
            flags: u32::MAX,
            expiry: u32::MAX,
            datatype: Datatype::JSON,
            kind: ItemKind::Mutation,
            sync_write: SyncWrite::No,
        }
    });
    let deleted = tombstone(0, "deleted", 8, ItemKind::Deletion);
    let expired = tombstone(0, "expired", 9, ItemKind::Expiration);
    let event = tuned(1, "\u{0}\u{8}_collection", 10, b"flat", |meta| meta.kind = ItemKind::SystemEvent);
    let all = [full, deleted, expired, event];
    save(subject.store(), VB, all.to_vec());
    for _ in 0..2 {
        for version in &all {
            let read = subject.store().get(VB, version.key()).expect("a get").expect("it is there");
            assert_same(&read, version);
        }
        let scanned = scan(subject.store(), VB, 0);
        assert_eq!(scanned.len(), all.len());
        scanned.iter().zip(&all).for_each(|(a, b)| assert_same(a, b));
        subject.restart();
    }
}

fn values_of_every_kind_come_back(mut subject: impl Subject) {
    let noise: Vec<u8> = (0u32..100_000).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    let blocky = b"\x0b\x28hello world";
    let kind = |datatype: Datatype| move |meta: &mut VersionMeta| meta.datatype = datatype;
    let all = [
        version(0, "empty", 1, b""),
        version(0, "small", 2, b"x"),
        version(0, "long", 3, &[b'a'; 100_000]),
        version(0, "noise", 4, &noise),
        tuned(0, "json", 5, b"{\"a\": 1}", kind(Datatype::JSON)),
        tuned(0, "snappy", 6, blocky, kind(Datatype::SNAPPY)),
        tuned(0, "xattr", 7, b"\0\0\0\0doc", kind(Datatype::XATTR.with(Datatype::JSON))),
        tuned(0, "tombstone", 8, b"\0\0\0\0", |meta| {
            meta.datatype = Datatype::XATTR;
            meta.kind = ItemKind::Deletion;
        }),
        version(0, &"k".repeat(250), 9, b"v"),
    ];
    save(subject.store(), VB, all.to_vec());
    subject.restart();
    for version in &all {
        let read = subject.store().get(VB, version.key()).expect("a get").expect("it is there");
        assert_same(&read, version);
    }
}

fn counts_are_exact(mut subject: impl Subject) {
    let store = subject.store();
    save(store, VB, vec![version(0, "a", 1, b"1"), version(0, "b", 2, b"2")]);
    assert_eq!(counts(store, VB), (2, 0));
    // a document updated, one deleted, one inserted, and a tombstone of something that never was
    save(
        store,
        VB,
        vec![
            version(0, "a", 3, b"3"),
            tombstone(0, "b", 4, ItemKind::Deletion),
            version(0, "c", 5, b"5"),
            tombstone(0, "d", 6, ItemKind::Expiration),
        ],
    );
    assert_eq!(counts(store, VB), (2, 2));
    // from tombstone to tombstone, and back to life
    save(store, VB, vec![tombstone(0, "b", 7, ItemKind::Deletion), version(0, "d", 8, b"8")]);
    assert_eq!(counts(store, VB), (3, 1));
    subject.restart();
    assert_eq!(counts(subject.store(), VB), (3, 1));
    assert_eq!(stored(subject.store(), VB).expect("it is there").high_seqno, Seqno(8));
}

fn collections_are_counted_apart(mut subject: impl Subject) {
    let event = |deleted: bool, seqno| {
        tuned(1, "\u{0}\u{9}_collection", seqno, b"", |meta| {
            meta.kind = if deleted { ItemKind::Deletion } else { ItemKind::SystemEvent };
        })
    };
    save(
        subject.store(),
        VB,
        vec![
            event(false, 1),
            version(0, "a", 2, b""),
            version(9, "a", 3, b""),
            version(9, "b", 4, b""),
            tombstone(9, "c", 5, ItemKind::Deletion),
        ],
    );
    subject.restart();
    assert_eq!(counts(subject.store(), VB).0, 3);
    let found = stored(subject.store(), VB).expect("it is there");
    let count = |id: u32, found: &StoredVb| {
        let one = found.collections.iter().find(|(c, _)| *c == CollectionId(id));
        one.map(|(_, stats)| (stats.item_count, stats.high_seqno.0))
    };
    assert_eq!((count(0, &found), count(9, &found)), (Some((1, 2)), Some((2, 5))));
    assert_eq!(found.counts.documents, 3);
    save(subject.store(), VB, vec![event(true, 6)]);
    subject.restart();
    assert_eq!(counts(subject.store(), VB).0, 1);
    let found = stored(subject.store(), VB).expect("it is there");
    assert_eq!((count(0, &found), count(9, &found)), (Some((1, 2)), None));
}

fn a_scan_is_in_order_and_sees_one_moment(subject: impl Subject) {
    let store = subject.store();
    save(store, VB, (1..=50).map(|i| version(0, &format!("k{}", i * 7 % 50), i, b"v")).collect());
    save(store, VB, vec![version(0, "k7", 51, b"new")]);
    let seqnos: Vec<u64> = scan(store, VB, 0).iter().map(|v| v.meta().by_seqno.0).collect();
    assert_eq!(seqnos, (2..=51).collect::<Vec<_>>());
    assert_eq!(scan(store, VB, 51).len(), 1);
    assert!(scan(store, VB, 52).is_empty());
    let mut seen = 0;
    store
        .scan(VB, Seqno(49), Values::Read, &mut |_| {
            // what is saved while the scan runs does not show
            seen += 1;
            save(store, VB, vec![version(0, "late", 100 + seen, b"")]);
            ControlFlow::Continue(())
        })
        .expect("a scan");
    assert_eq!(seen, 3);
    let mut seen = 0;
    store
        .scan(VB, Seqno(0), Values::Read, &mut |_| {
            seen += 1;
            if seen == 5 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })
        .expect("a scan");
    assert_eq!(seen, 5);
}

fn state_comes_back(mut subject: impl Subject) {
    let state = VbStateDoc {
        state: VbState::Active,
        failover_table: vec![FailoverEntry { id: u64::MAX, seq: 5 }, FailoverEntry { id: 1, seq: 0 }],
        max_cas: u64::MAX,
        hlc_epoch: -1,
        snap_start: 1,
        snap_end: 2,
        max_deleted_seqno: 3,
        might_contain_xattrs: true,
        ..VbStateDoc::default()
    };
    subject.store().save_state(VB, &state).expect("a save");
    subject.restart();
    assert_eq!(stored(subject.store(), VB).expect("it is there").state, state);
    let next = VbStateDoc { state: VbState::Replica, ..state };
    let items = [version(0, "k", 1, b"")];
    subject.store().save(VB, SaveBatch { items: &items, state: &next }).expect("a save");
    subject.restart();
    assert_eq!(stored(subject.store(), VB).expect("it is there").state, next);
}

fn a_deleted_vbucket_is_gone(mut subject: impl Subject) {
    for _ in 0..3 {
        save(subject.store(), VB, vec![version(0, "a", 1, b"")]);
        assert_eq!(subject.store().counts(VB).expect("counts").documents, 1);
        subject.store().delete_vbucket(VB).expect("a delete");
        assert!(get(subject.store(), "a").is_none());
        subject.restart();
        assert!(stored(subject.store(), VB).is_none());
        assert!(scan(subject.store(), VB, 0).is_empty());
    }
}

fn saving_again_changes_nothing(subject: impl Subject) {
    let items: Vec<_> = (1..=20).map(|i| version(0, &format!("k{i}"), i, b"v")).collect();
    for _ in 0..3 {
        save(subject.store(), VB, items.clone());
        assert_eq!(counts(subject.store(), VB), (20, 0));
    }
    assert_eq!(scan(subject.store(), VB, 0).len(), 20);
}

fn vbuckets_are_apart(mut subject: impl Subject) {
    for vb in 0..20 {
        save(subject.store(), VbId(vb), vec![version(0, "k", 1, &[vb as u8])]);
    }
    subject.store().delete_vbucket(VbId(7)).expect("a delete");
    subject.restart();
    let states = subject.store().states().expect("states");
    let found: Vec<u16> = states.iter().map(|(vb, _)| vb.0).collect();
    assert_eq!(found, (0..20).filter(|vb| *vb != 7).collect::<Vec<_>>());
    for vb in found {
        let read = subject.store().get(VbId(vb), DocKey::new(b"k")).expect("a get").expect("it is there");
        assert_eq!(read.value(), [vb as u8]);
    }
}

fn many_batches_end_in_the_newest_versions(mut subject: impl Subject) {
    let mut newest = std::collections::BTreeMap::new();
    let mut seqno = 0;
    for batch in 0..40u64 {
        let mut items = std::collections::BTreeMap::new();
        for i in 0..50u64 {
            seqno += 1;
            let key = format!("key-{}", (batch * 131 + i * 17) % 900);
            let item = if (batch + i) % 7 == 0 {
                tombstone(0, &key, seqno, ItemKind::Deletion)
            } else {
                version(0, &key, seqno, format!("value of {seqno}").as_bytes())
            };
            items.insert(key, item);
        }
        newest.extend(items.clone());
        save(subject.store(), VB, items.into_values().collect());
        let live = newest.values().filter(|version| !version.is_deleted()).count() as u64;
        if batch % 3 == 0 {
            assert_eq!(counts(subject.store(), VB), (live, newest.len() as u64 - live));
        }
    }
    subject.restart();
    let scanned = scan(subject.store(), VB, 0);
    assert_eq!(scanned.len(), newest.len());
    assert!(scanned.is_sorted_by_key(|version| version.meta().by_seqno));
    for version in &scanned {
        let key = String::from_utf8_lossy(version.key().key).into_owned();
        assert_same(version, &newest[&key]);
    }
}

fn a_group_is_many_saves(mut subject: impl Subject) {
    save(subject.store(), VbId(1), vec![version(0, "old", 1, b"")]);
    assert!(subject.store().save_group(&[]).is_empty());
    let vbuckets = [9, 1, 4, 7, 0, 12, 3];
    for round in 0..3 {
        let batches: Vec<(VbId, Vec<Version>, VbStateDoc)> = vbuckets
            .iter()
            .map(|&vb| {
                // one of them has nothing but a state
                let documents = if vb == 7 { 0 } else { u64::from(vb) + 1 };
                let items = (0..documents).map(|i| {
                    version(0, &format!("k{i:02}"), 2 + round * 20 + i, format!("{vb} {round}").as_bytes())
                });
                let state = VbStateDoc { max_cas: round, ..VbStateDoc::default() };
                (VbId(vb), items.collect(), state)
            })
            .collect();
        let group: Vec<_> =
            batches.iter().map(|(vb, items, state)| (*vb, SaveBatch { items, state })).collect();
        let saved = subject.store().save_group(&group);
        assert_eq!(saved.len(), group.len());
        for ((vb, batch), saved) in group.iter().zip(saved) {
            saved.expect("a save");
            let n = batch.items.len() as u64;
            assert_eq!(counts(subject.store(), *vb).0, n + u64::from(*vb == VbId(1)));
        }
        if round == 1 {
            subject.restart();
        }
    }
    subject.restart();
    for vb in vbuckets {
        let found = stored(subject.store(), VbId(vb)).expect("it is there");
        assert_eq!(found.state.max_cas, 2);
        let newest = scan(subject.store(), VbId(vb), 42);
        assert_eq!(newest.len(), if vb == 7 { 0 } else { usize::from(vb) + 1 });
        assert!(newest.iter().all(|version| version.value() == format!("{vb} 2").as_bytes()));
    }
}
