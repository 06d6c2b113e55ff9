//! Prepares, commits and aborts come back, and compaction leaves out what is over.

use std::ops::ControlFlow;

use base::{CollectionId, DocKey, DurabilityLevel, ItemKind, Seqno, SyncWrite, Version};
use kvstore::{Compaction, KvStore, SaveBatch, Values, VbStateDoc};

use super::{Subject, VB, assert_changes, counts, get, scan, tuned, version};

pub(super) fn run<S: Subject>(fresh: &impl Fn() -> S) {
    sync_writes_come_back(fresh());
    what_is_over_is_left_out(fresh());
}

/// A version of a document's part in a sync write, under the document's key or its prepare's.
fn part(key: &str, seqno: u64, value: &[u8], sync_write: SyncWrite, kind: ItemKind) -> Version {
    let (prepared, len) = DocKey::new(key.as_bytes()).to_prepared();
    let (collection, key) = match sync_write {
        SyncWrite::Prepare(_) | SyncWrite::Abort { .. } => (CollectionId::PREPARES, &prepared[..len]),
        _ => (CollectionId::DEFAULT, key.as_bytes()),
    };
    tuned(collection.0, key, seqno, value, |meta| {
        (meta.sync_write, meta.kind) = (sync_write, kind);
        meta.expiry = if kind.is_deleted() { 1_700_000_000 } else { 0 };
    })
}

fn save_as_of(store: &dyn KvStore, completed: u64, prepared: u64, mut items: Vec<Version>) {
    items.sort_by(|a, b| a.stored_key().cmp(b.stored_key()));
    let state = VbStateDoc { completed_seqno: completed, prepared_seqno: prepared, ..VbStateDoc::default() };
    store.save(VB, SaveBatch { items: &items, state: &state }).expect("a save");
}

fn scan_all(store: &dyn KvStore, from: u64) -> Vec<Version> {
    let mut all = Vec::new();
    let snapshot = store.snapshot(VB).expect("a snapshot").expect("it is there");
    let scanned = snapshot.scan_all(Seqno(from), Values::Read, &mut |version| {
        all.push(version);
        ControlFlow::Continue(())
    });
    scanned.expect("a scan");
    assert_changes(&*snapshot, from, true, &all);
    all
}

#[track_caller]
fn assert_are(found: &[Version], expected: &[&Version]) {
    let whole = |v: &Version| (v.stored_key().to_vec(), v.meta(), v.value().to_vec());
    let found: Vec<_> = found.iter().map(whole).collect();
    assert_eq!(found, expected.iter().map(|v| whole(v)).collect::<Vec<_>>());
}

/// Two prepares and a document; then one is committed, one aborted, and another prepared.
fn fill(store: &dyn KvStore) -> [Version; 6] {
    let majority = SyncWrite::Prepare(DurabilityLevel::Majority);
    let on_disk = SyncWrite::Prepare(DurabilityLevel::PersistToMajority);
    let all = [
        part("a", 1, b"{\"a\":1}", majority, ItemKind::Mutation),
        version(0, "c", 3, b"c"),
        part("a", 4, b"{\"a\":1}", SyncWrite::Commit { prepared: Seqno(1) }, ItemKind::Mutation),
        part("b", 5, b"", SyncWrite::Abort { prepared: Seqno(2) }, ItemKind::Deletion),
        part("d", 6, b"", on_disk, ItemKind::Deletion),
        part("e", 7, b"e", SyncWrite::No, ItemKind::Mutation),
    ];
    let aborted = part("b", 2, b"", on_disk, ItemKind::Deletion);
    save_as_of(store, 0, 2, vec![all[0].clone(), aborted, all[1].clone()]);
    save_as_of(store, 2, 6, all[2..].to_vec());
    all
}

fn sync_writes_come_back(mut subject: impl Subject) {
    let all = fill(subject.store());
    let [a_prepared, c, a, b_aborted, d_prepared, e] = &all;
    for _ in 0..2 {
        let store = subject.store();
        assert_are(&scan(store, VB, 0), &[c, a, e]);
        assert_are(&scan_all(store, 0), &[a_prepared, c, a, b_aborted, d_prepared, e]);
        assert_are(&scan_all(store, 4), &[a, b_aborted, d_prepared, e]);
        assert_are(get(store, "a").as_slice(), &[a]);
        assert!(get(store, "d").is_none(), "it is only prepared");
        for prepare in [a_prepared, d_prepared] {
            assert_are(store.get(VB, prepare.key()).expect("a get").as_slice(), &[prepare]);
        }
        // An abort is a record of something that is gone.
        assert_eq!(counts(store, VB), (3, 1));
        subject.restart();
    }
}

fn what_is_over_is_left_out(mut subject: impl Subject) {
    let all = fill(subject.store());
    let [_, c, a, _, d_prepared, e] = &all;
    // What waits to be written to the file goes there first.
    subject.store().counts(VB).expect("counts");
    let request = Compaction { purge_before_s: Some(u32::MAX), ..Compaction::default() };
    let compacted = subject.store().compact(VB, &request).expect("a compaction");
    assert_eq!((compacted.prepares_committed, compacted.tombstones_purged), (1, 1));
    assert_eq!(compacted.purge_seqno, Seqno(5));
    for _ in 0..2 {
        assert_are(&scan_all(subject.store(), 0), &[c, a, d_prepared, e]);
        assert_eq!(counts(subject.store(), VB), (3, 0));
        subject.restart();
    }
}
