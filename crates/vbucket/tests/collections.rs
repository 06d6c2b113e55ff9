//! Collections of one vBucket: the events that a manifest makes, and events that come from another vBucket.

use base::{
    Cas, CollectionId, DocKey, ItemKind, Moment, NewVersion, ScopeId, Seqno, VbId, VbState, VbUuid, Version,
    VersionMeta,
};
use vbucket::{
    Basis, BucketContext, Change, Collection, Existence, IncomingSnapshot, Manifest, ManifestChange,
    ManifestUid, Misplaced, Origin, RangeLimit, Scope, SystemEvent, VBucket,
};

fn vbucket(context: &BucketContext) -> VBucket {
    VBucket::new(VbId(0), context, Origin::empty(VbState::Active, VbUuid(1)))
}

fn manifest(uid: u64, scopes: &[u32], collections: &[(u32, u32)]) -> Manifest {
    let name = |id: u32| if id == 0 { "_default".to_owned() } else { format!("n{id}") };
    let scopes = scopes.iter().map(|id| Scope { id: ScopeId(*id), name: name(*id) });
    let collections = collections.iter().map(|(scope, id)| Collection {
        id: CollectionId(*id),
        scope: ScopeId(*scope),
        name: name(*id),
        max_ttl_s: None,
        history: None,
    });
    Manifest::new(ManifestUid(uid), scopes, collections).expect("it is valid")
}

fn take(vb: &mut VBucket, manifest: &Manifest) {
    drop(vb.apply_manifest(manifest, None, Moment(7_000_000_000)).expect("it is newer"));
}

fn set(context: &BucketContext, vb: &mut VBucket, collection: u32, key: &[u8]) {
    let key = DocKey { collection: CollectionId(collection), key };
    let change = Change {
        new: NewVersion::new(&context.heap, VersionMeta::default(), key, &[b"value"]),
        existence: Existence::Any,
        cas: Cas::ANY,
        basis: Basis::Nothing,
        preserve_expiry: false,
    };
    let stored = vb.apply(context.seed.hash(key), change, Moment(1), |_| {});
    drop(stored.map_err(|refused| refused.refusal).expect("nothing is in the way").garbage);
}

/// Everything queued, with the numbers of the checkpoints that it is in.
fn queued(vb: &mut VBucket) -> Vec<(Version, bool)> {
    let cursor = vb.checkpoints_mut().register_cursor("test", Seqno(0)).expect("all is in memory");
    let mut all = Vec::new();
    while let Some(range) =
        vb.checkpoints_mut().take_range(cursor, RangeLimit::items(1)).expect("it is there")
    {
        all.extend(range.iter().enumerate().map(|(i, version)| (version.clone(), i == 0)));
        let end = range.end();
        vb.checkpoints_mut().advance(cursor, end);
    }
    vb.checkpoints_mut().drop_cursor(cursor);
    all
}

#[test]
fn a_manifest_becomes_events_in_order() {
    let context = BucketContext::new(1, 2, base::Heap::default());
    let mut vb = vbucket(&context);
    take(&mut vb, &manifest(1, &[0, 8], &[(0, 0), (8, 8)]));
    set(&context, &mut vb, 8, b"k");
    take(&mut vb, &manifest(2, &[0, 9], &[(0, 0), (9, 9), (9, 10)]));
    assert!(vb.apply_manifest(&manifest(2, &[0], &[]), None, Moment(1)).is_none(), "it has that one");
    let all = queued(&mut vb);
    let events: Vec<_> =
        all.iter().filter_map(|(version, begins)| Some((SystemEvent::of(version)?, begins))).collect();
    let told: Vec<_> = events
        .iter()
        .map(|(event, begins)| {
            (event.is_end(), event.scope().0, event.collection().map(|id| id.0), event.manifest().0, **begins)
        })
        .collect();
    assert_eq!(
        told,
        [
            (false, 8, None, 0, true),
            (false, 8, Some(8), 1, true),
            // Dropped before the new ones; the uid is the new one with the last event.
            (true, 8, Some(8), 1, true),
            (true, 8, None, 1, false),
            (false, 9, None, 1, false),
            (false, 9, Some(9), 1, true),
            (false, 9, Some(10), 2, true),
        ]
    );
    let seqnos: Vec<u64> = all.iter().map(|(version, _)| version.meta().by_seqno.0).collect();
    assert_eq!(seqnos, (1..=8).collect::<Vec<_>>());
    let ends = all.iter().filter(|(version, _)| version.is_deleted());
    assert!(ends.clone().count() == 2 && ends.clone().all(|(version, _)| version.meta().expiry == 7));
    assert!(all.iter().all(|(version, _)| version.meta().cas > Cas(0)));
    assert_eq!(vb.table().len(), 1, "events are in no table");
}

#[test]
fn events_make_the_same_of_another_vbucket() {
    let context = BucketContext::new(1, 2, base::Heap::default());
    let (mut active, mut replica) = (vbucket(&context), vbucket(&context));
    take(&mut active, &manifest(1, &[0, 8], &[(0, 0), (8, 8), (8, 9)]));
    take(&mut active, &manifest(2, &[0, 8], &[(8, 9)]));
    let copy =
        |version: &Version| NewVersion::new(&context.heap, version.meta(), version.key(), &[version.value()]);
    let events: Vec<Version> = queued(&mut active).into_iter().map(|(version, _)| version).collect();
    replica.begin_in(VbState::Replica, None);
    let snapshot = IncomingSnapshot { end: Seqno(100), ..IncomingSnapshot::default() };
    replica.begin_snapshot(&snapshot).expect("it may begin");
    for version in &events {
        assert!(replica.apply_replicated(0, copy(version), Moment(1)).is_ok());
    }
    let shape = |vb: &VBucket| {
        let collections = vb.collections();
        let open: Vec<_> = collections.open().map(|one| (one.id, one.scope, one.start)).collect();
        (collections.uid(), open, collections.scopes().to_vec(), vb.high_seqno())
    };
    assert_eq!(shape(&replica), shape(&active));
    let refused = |replica: &mut VBucket, new: NewVersion| {
        replica
            .apply_replicated(0, new, Moment(1))
            .map_err(|(misplaced, _)| misplaced)
            .map(|stored| stored.by_seqno)
    };
    assert_eq!(refused(&mut replica, copy(&events[0])), Err(Misplaced::NotRising));
    let meta = VersionMeta { by_seqno: Seqno(100), kind: ItemKind::SystemEvent, ..VersionMeta::default() };
    let key = DocKey { collection: CollectionId::SYSTEM, key: b"\x00\x08_collection" };
    let damaged = NewVersion::new(&context.heap, meta, key, &[b"?"]);
    assert_eq!(refused(&mut replica, damaged), Err(Misplaced::BadEvent));
    assert_eq!(shape(&replica), shape(&active), "nothing of it was taken");
}

#[test]
fn a_change_worked_out_once_makes_the_same_events() {
    let context = BucketContext::new(1, 2, base::Heap::default());
    let steps = [
        manifest(0, &[0], &[(0, 0)]),
        manifest(1, &[0, 8], &[(0, 0), (8, 8), (8, 12)]),
        manifest(2, &[0, 8], &[(0, 0), (8, 8), (8, 10), (8, 12)]),
        manifest(3, &[0, 9], &[(9, 10)]),
    ];
    let (mut told, mut compares) = (vbucket(&context), vbucket(&context));
    for pair in steps.windows(2) {
        let change = ManifestChange::between(&pair[0], &pair[1]);
        drop(told.apply_manifest(&pair[1], Some(&change), Moment(1)).expect("it is newer"));
        take(&mut compares, &pair[1]);
    }
    let events = |vb: &mut VBucket| {
        let event = |(version, begins): &(Version, bool)| {
            (version.key().key.to_vec(), version.value().to_vec(), version.meta().by_seqno, *begins)
        };
        queued(vb).iter().map(event).collect::<Vec<_>>()
    };
    assert_eq!(events(&mut told), events(&mut compares));
}

#[test]
fn a_change_from_a_manifest_that_it_does_not_have_is_not_believed() {
    let context = BucketContext::new(1, 2, base::Heap::default());
    // It followed a node whose manifest 1 is another one.
    let (mut other, mut vb) = (vbucket(&context), vbucket(&context));
    take(&mut other, &manifest(1, &[0, 8], &[(0, 0), (8, 20)]));
    vb.begin_in(VbState::Replica, None);
    let snapshot = IncomingSnapshot { end: Seqno(100), ..IncomingSnapshot::default() };
    vb.begin_snapshot(&snapshot).expect("it may begin");
    for (version, _) in queued(&mut other) {
        let copy = NewVersion::new(&context.heap, version.meta(), version.key(), &[version.value()]);
        assert!(vb.apply_replicated(0, copy, Moment(1)).is_ok());
    }
    let (old, new) = (manifest(1, &[0], &[(0, 0)]), manifest(2, &[0, 9], &[(0, 0), (9, 9)]));
    let change = ManifestChange::between(&old, &new);
    drop(vb.apply_manifest(&new, Some(&change), Moment(1)).expect("it is newer"));
    let open: Vec<u32> = vb.collections().open().map(|one| one.id.0).collect();
    assert_eq!(open, [0, 9], "the collection of the other manifest is dropped");
}

#[test]
fn what_is_dropped_leaves_memory_in_slices() {
    for context in [
        BucketContext::new(1, 2, base::Heap::default()),
        BucketContext::ephemeral(1, 2, base::Heap::default()),
    ] {
        let mut vb = vbucket(&context);
        take(&mut vb, &manifest(1, &[0, 8], &[(0, 0), (8, 8)]));
        for i in 0..1000_u32 {
            set(&context, &mut vb, if i % 2 == 0 { 0 } else { 8 }, &i.to_be_bytes());
        }
        take(&mut vb, &manifest(2, &[0, 8], &[(0, 0)]));
        assert_eq!((vb.documents(), vb.held_by(CollectionId::DEFAULT).in_memory), (500, 500));
        let (mut slices, mut freed) = (0, Vec::new());
        while vb.erase_dropped(50, &mut freed) {
            slices += 1;
            // The others are used meanwhile.
            set(&context, &mut vb, 0, b"meanwhile");
        }
        assert!(slices > 5, "{slices}");
        assert_eq!((vb.table().len(), vb.documents()), (501, 501));
        assert_eq!(vb.collections().dropped().len(), usize::from(!context.is_ephemeral));
        let end = vb.collections().dropped().first().map(|one| (one.id, one.end));
        vb.erased_from_disk(end.as_slice());
        assert!(vb.collections().dropped().is_empty());
        drop((vb, freed));
        assert_eq!(context.account().exact(), [0; base::memory::PARTS]);
    }
}
