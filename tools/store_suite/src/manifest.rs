//! The collections of a vBucket, which events tell.

use base::{Heap, ScopeId};
use kvstore::{Compaction, StoredDrop, StoredManifest};
use vbucket::{Collection, ManifestUid, Scope, SystemEvent};

use super::*;

pub(super) fn run<S: Subject>(fresh: &impl Fn() -> S) {
    a_vbucket_begins_with_the_default_collection(fresh());
    events_make_the_manifest(fresh());
    what_was_never_written_needs_no_erasing(fresh());
    one_that_begins_and_ends_in_a_batch_leaves_its_documents(fresh());
    going_back_brings_back_collections(fresh());
    one_that_comes_back_under_its_number_is_another(fresh());
}

fn event(seqno: u64, event: &SystemEvent) -> Version {
    let mut new = event.to_version(Heap::shared());
    (new.meta_mut().by_seqno, new.meta_mut().cas) = (Seqno(seqno), Cas(seqno));
    new.publish()
}

fn collection(id: u32, max_ttl_s: Option<u32>) -> Collection {
    Collection { id: CollectionId(id), scope: ScopeId(8), name: format!("c{id}"), max_ttl_s, history: None }
}

fn scope_begin(seqno: u64, uid: u64) -> Version {
    let scope = Scope { id: ScopeId(8), name: "s8".into() };
    event(seqno, &SystemEvent::ScopeBegin { manifest: ManifestUid(uid), scope })
}

fn begin(seqno: u64, uid: u64, collection: Collection) -> Version {
    event(seqno, &SystemEvent::CollectionBegin { manifest: ManifestUid(uid), collection })
}

fn end(seqno: u64, uid: u64, id: u32) -> Version {
    let (scope, id) = (ScopeId(8), CollectionId(id));
    event(seqno, &SystemEvent::CollectionEnd { manifest: ManifestUid(uid), scope, id })
}

fn manifest(subject: &impl Subject) -> StoredManifest {
    stored(subject.store(), VB).expect("it is there").manifest
}

/// Ids with their first seqno and max TTL, in order.
fn open(manifest: &StoredManifest) -> Vec<(u32, u64, Option<u32>)> {
    let mut open: Vec<_> = manifest
        .open
        .iter()
        .map(|one| (one.collection.id.0, one.start.0, one.collection.max_ttl_s))
        .collect();
    open.sort_unstable();
    open
}

fn a_vbucket_begins_with_the_default_collection(mut subject: impl Subject) {
    save(subject.store(), VB, vec![version(0, "a", 1, b"")]);
    assert_eq!(manifest(&subject), StoredManifest::default());
    subject.restart();
    assert_eq!(manifest(&subject), StoredManifest::default());
}

fn events_make_the_manifest(mut subject: impl Subject) {
    let of_9 = Collection { history: Some(false), ..collection(9, Some(60)) };
    let changed = SystemEvent::CollectionChanged { manifest: ManifestUid(3), collection: of_9 };
    save(
        subject.store(),
        VB,
        vec![
            scope_begin(1, 1),
            begin(2, 1, collection(8, None)),
            begin(3, 2, collection(9, Some(5))),
            version(8, "a", 4, b"1"),
            version(9, "a", 5, b"2"),
            event(6, &changed),
        ],
    );
    for _ in 0..2 {
        let now = manifest(&subject);
        assert_eq!((now.uid, now.dropped.len()), (ManifestUid(3), 0));
        assert_eq!(open(&now), [(0, 0, None), (8, 2, None), (9, 3, Some(60))]);
        let scopes: Vec<_> = now.scopes.iter().map(|one| (&*one.scope.name, one.start.0)).collect();
        assert_eq!(scopes, [("_default", 0), ("s8", 1)]);
        let names: Vec<_> = now.open.iter().map(|one| &*one.collection.name).collect();
        assert_eq!(names, ["_default", "c8", "c9"]);
        let history: Vec<_> = now.open.iter().map(|one| one.collection.history).collect();
        assert_eq!(history, [None, None, Some(false)]);
        subject.restart();
    }
    // The batch that drops it brings one of its documents, too.
    save(subject.store(), VB, vec![version(8, "b", 7, b"3"), end(8, 4, 8), version(0, "a", 9, b"")]);
    for _ in 0..2 {
        let now = manifest(&subject);
        let [StoredDrop { id, start, end }] = now.dropped[..] else { panic!("{:?}", now.dropped) };
        assert_eq!((now.uid, id, end), (ManifestUid(4), CollectionId(8), Seqno(8)));
        // A store that makes one of several saves has the drop in the place of the beginning: 0 covers all of it.
        assert!([Seqno(0), Seqno(2)].contains(&start), "{start:?}");
        assert_eq!(open(&now), [(0, 0, None), (9, 3, Some(60))]);
        subject.restart();
    }
    assert_eq!(counts(subject.store(), VB).0, 2);
    let is_dropped = |id: CollectionId, seqno: Seqno| id == CollectionId(8) && seqno <= Seqno(8);
    let request = Compaction { is_dropped: &is_dropped, ..Compaction::default() };
    let compacted = subject.store().compact(VB, &request).expect("a compaction");
    assert_eq!(compacted.documents_dropped, 2);
    for _ in 0..2 {
        assert_eq!((manifest(&subject).dropped.len(), counts(subject.store(), VB).0), (0, 2));
        assert_eq!(open(&manifest(&subject)), [(0, 0, None), (9, 3, Some(60))]);
        subject.restart();
    }
}

fn what_was_never_written_needs_no_erasing(mut subject: impl Subject) {
    save(subject.store(), VB, vec![scope_begin(1, 1), begin(2, 1, collection(8, None))]);
    save(subject.store(), VB, vec![end(3, 2, 8)]);
    assert!(manifest(&subject).dropped.is_empty());
    subject.restart();
    assert!(manifest(&subject).dropped.is_empty());
}

fn one_that_begins_and_ends_in_a_batch_leaves_its_documents(mut subject: impl Subject) {
    save(subject.store(), VB, vec![version(0, "a", 1, b"")]);
    // Its beginning, with seqno 2, is under the same key as its end.
    save(subject.store(), VB, vec![version(8, "a", 3, b""), end(4, 2, 8)]);
    let dropped = [StoredDrop { id: CollectionId(8), start: Seqno(0), end: Seqno(4) }];
    for _ in 0..2 {
        let found = manifest(&subject);
        assert_eq!((open(&found), &found.dropped[..]), (vec![(0, 0, None)], &dropped[..]));
        assert_eq!(counts(subject.store(), VB).0, 1);
        subject.restart();
    }
    let is_dropped = |id: CollectionId, seqno: Seqno| id == CollectionId(8) && seqno <= Seqno(4);
    let request = Compaction { is_dropped: &is_dropped, ..Compaction::default() };
    assert_eq!(subject.store().compact(VB, &request).expect("a compaction").documents_dropped, 1);
    assert_eq!((counts(subject.store(), VB).0, manifest(&subject).dropped.len()), (1, 0));
}

fn going_back_brings_back_collections(mut subject: impl Subject) {
    save(subject.store(), VB, vec![scope_begin(1, 1), begin(2, 1, collection(8, None))]);
    save(subject.store(), VB, vec![version(8, "a", 3, b"")]);
    save(subject.store(), VB, vec![end(4, 2, 8)]);
    subject.store().rollback(VB, Seqno(3)).expect("a rollback");
    for _ in 0..2 {
        let now = stored(subject.store(), VB).map(|stored| (stored.high_seqno.0, stored.manifest));
        let (high_seqno, now) = now.unwrap_or_default();
        // A store that makes one of several saves may go back to nothing.
        let is_open = now.open.iter().any(|one| one.collection.id == CollectionId(8));
        assert_eq!(is_open, high_seqno == 3);
        assert!(high_seqno == 3 || !subject.keeps_commits());
        subject.restart();
    }
}

fn one_that_comes_back_under_its_number_is_another(mut subject: impl Subject) {
    let of = |uid| SystemEvent::CollectionBegin {
        manifest: ManifestUid(uid),
        collection: StoredManifest::default().open[0].collection.clone(),
    };
    save(subject.store(), VB, vec![version(0, "a", 1, b""), version(0, "b", 2, b"")]);
    save(subject.store(), VB, vec![version(0, "c", 3, b"")]);
    // Its end, with seqno 4, is under the same key as its new beginning.
    save(subject.store(), VB, vec![event(5, &of(2)), version(0, "b", 6, b"")]);
    for _ in 0..2 {
        let found = manifest(&subject);
        let dropped = [StoredDrop { id: CollectionId(0), start: Seqno(0), end: Seqno(4) }];
        assert_eq!((open(&found), &found.dropped[..]), (vec![(0, 5, None)], &dropped[..]));
        assert_eq!(counts(subject.store(), VB).0, 1);
        subject.restart();
    }
    save(subject.store(), VB, vec![version(0, "c", 7, b"")]);
    assert_eq!(counts(subject.store(), VB).0, 2);
    let is_dropped = |id: CollectionId, seqno: Seqno| id == CollectionId(0) && seqno <= Seqno(4);
    let request = Compaction { is_dropped: &is_dropped, ..Compaction::default() };
    assert_eq!(subject.store().compact(VB, &request).expect("a compaction").documents_dropped, 1);
    assert_eq!((counts(subject.store(), VB).0, manifest(&subject).dropped.len()), (2, 0));
    save(subject.store(), VB, vec![tombstone(0, "c", 8, ItemKind::Deletion)]);
    assert_eq!(counts(subject.store(), VB).0, 1);
}
