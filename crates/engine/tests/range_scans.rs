//! Range scans: a vBucket's documents in the order of their keys, as they were when the scan was made.

mod common;

use std::ops::{Bound, ControlFlow};
use std::time::Duration;

use base::{CollectionId, Seqno, VbId, VbState, VbUuid};
use common::{VB, World, stores};
use engine::{
    BucketKind, Progress, RangeScanId, RangeScanProgress, RangeScanRefusal, RangeScanWanted, Refusal,
    Sampling, SnapshotRequirement, StoreMode,
};

fn wanted() -> RangeScanWanted {
    RangeScanWanted {
        collection: CollectionId::DEFAULT,
        start: Bound::Unbounded,
        end: Bound::Unbounded,
        is_key_only: false,
        with_xattrs: false,
        sampling: None,
        requirement: None,
        name: String::new(),
    }
}

/// Keys with values of at most `most` documents, and whether there may be more.
fn next(
    world: &World,
    id: RangeScanId,
    most: usize,
) -> Result<(Vec<String>, RangeScanProgress), RangeScanRefusal> {
    let mut told = Vec::new();
    let until = world.env.clock.monotonic() + Duration::from_secs(1);
    let progress = world.bucket.range_scans().go_on(VB, id, until, &mut |version| {
        let (key, value) = (version.key().key, version.value());
        told.push(format!("{}={}", String::from_utf8_lossy(key), String::from_utf8_lossy(value)));
        if told.len() >= most { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })?;
    Ok((told, progress))
}

fn all(world: &World, wanted: RangeScanWanted) -> Result<String, RangeScanRefusal> {
    let id = world.bucket.range_scans().create(VB, wanted)?;
    let (told, progress) = next(world, id, usize::MAX)?;
    assert_eq!(progress, RangeScanProgress::Complete);
    assert_eq!(next(world, id, 1), Err(RangeScanRefusal::Unknown), "a scan that is complete is gone");
    Ok(told.join(" "))
}

/// On files alone, and with some of the documents in a journal only.
fn worlds() -> impl Iterator<Item = World> {
    [stores::files, stores::journaled].into_iter().map(|store| {
        let (env, handles) = base::env::Env::sim(5);
        let world = stores::open(env, handles, store, |_| {});
        for key in ["d", "b", "e", "a", "c"] {
            world.set(key, "1").expect("stored");
        }
        assert!(world.bucket.flushing().flush_all());
        while world.bucket.flushing().file_step() == Progress::Worked {}
        world.set("b", "2").expect("stored");
        world.store("c", "", StoreMode::Set, base::Cas::ANY, 0).expect("stored");
        assert!(world.bucket.flushing().flush_all());
        world
    })
}

#[test]
fn documents_come_in_the_order_of_keys_within_the_range() {
    use Bound::{Excluded, Included, Unbounded};
    let key = |text: &str| text.as_bytes().to_vec();
    for world in worlds() {
        let cases = [
            (Unbounded, Unbounded, Ok("a=1 b=2 c= d=1 e=1")),
            (Included(key("b")), Included(key("d")), Ok("b=2 c= d=1")),
            (Excluded(key("b")), Excluded(key("d")), Ok("c=")),
            (Excluded(key("a")), Unbounded, Ok("b=2 c= d=1 e=1")),
            (Included(key("bb")), Included(key("bz")), Err(RangeScanRefusal::Empty)),
            (Included(key("d")), Included(key("b")), Err(RangeScanRefusal::Empty)),
        ];
        for (start, end, expected) in cases {
            let told = all(&world, RangeScanWanted { start, end, ..wanted() });
            assert_eq!(told.as_deref().map_err(|refusal| *refusal), expected);
        }
    }
}

#[test]
fn a_scan_shows_the_moment_of_its_beginning_however_slowly_it_goes_on() {
    for world in worlds() {
        let scans = world.bucket.range_scans();
        let id = scans.create(VB, wanted()).expect("made");
        assert_eq!(next(&world, id, 2), Ok((vec!["a=1".into(), "b=2".into()], RangeScanProgress::More)));
        world.set("bb", "new").expect("stored");
        world.set("d", "new").expect("stored");
        world
            .bucket
            .documents()
            .delete(VB, common::doc("e"), base::Cas::ANY, world.now())
            .expect("it is there");
        assert!(world.bucket.flushing().flush_all());
        while world.bucket.flushing().file_step() == Progress::Worked {}
        world.bucket.compaction().compact(VB, Default::default()).expect("taken");
        while world.bucket.compaction().compact_step() == Progress::Worked {}
        let rest = vec!["c=".to_owned(), "d=1".into(), "e=1".into()];
        assert_eq!(next(&world, id, 9), Ok((rest, RangeScanProgress::Complete)));
        assert_eq!(all(&world, wanted()).as_deref(), Ok("a=1 b=2 bb=new c= d=new"));
    }
}

#[test]
fn what_expired_is_not_shown() {
    let world = worlds().next().expect("one");
    let expiry = world.now().unix_s() + 10;
    world.store("a", "short", StoreMode::Set, base::Cas::ANY, expiry).expect("stored");
    assert!(world.bucket.flushing().flush_all());
    assert_eq!(all(&world, wanted()).as_deref(), Ok("a=short b=2 c= d=1 e=1"));
    world.handles.clock.advance(Duration::from_secs(20));
    assert_eq!(all(&world, wanted()).as_deref(), Ok("b=2 c= d=1 e=1"));
}

#[test]
fn the_snapshot_has_what_was_asked_for() {
    let world = worlds().next().expect("one");
    let scans = world.bucket.range_scans();
    let (uuid, high) = world.bucket.inspect(VB, |vb| (vb.uuid(), vb.high_seqno())).expect("there is one");
    let create = |uuid, seqno, must_be_newest| {
        let requirement = Some(SnapshotRequirement { uuid, seqno, must_be_newest });
        scans.create(VB, RangeScanWanted { requirement, ..wanted() }).map(drop)
    };
    assert_eq!(create(uuid, high, true), Ok(()));
    let other = VbUuid(uuid.0 ^ 1);
    assert_eq!(create(other, high, false), Err(RangeScanRefusal::Refused(Refusal::OtherHistory)));
    assert_eq!(create(uuid, high.next(), false), Err(RangeScanRefusal::NotPersisted));
    // The first "b", which is replaced.
    assert_eq!(create(uuid, Seqno(2), false), Ok(()));
    assert_eq!(create(uuid, Seqno(2), true), Err(RangeScanRefusal::IsReplaced));
}

#[test]
fn a_scan_ends_with_the_role_of_its_vbucket_and_with_its_time() {
    let world = worlds().next().expect("one");
    let scans = world.bucket.range_scans();
    let id = scans.create(VB, wanted()).expect("made");
    for state in [VbState::Replica, VbState::Active] {
        world.bucket.roles().set_vbucket_state(VB, state, None).expect("there is one");
    }
    // Another history, although it is active again.
    assert_eq!(next(&world, id, 1), Err(RangeScanRefusal::Refused(Refusal::NotMyVbucket)));
    assert_eq!(next(&world, id, 1), Err(RangeScanRefusal::Unknown));
    let id = scans.create(VB, wanted()).expect("made");
    world.handles.clock.advance(Duration::from_secs(179));
    world.bucket.maintenance().keep_step();
    assert_eq!(scans.figures().len(), 1);
    assert!(next(&world, id, 1).is_ok());
    world.handles.clock.advance(Duration::from_secs(2));
    world.bucket.maintenance().keep_step();
    assert!(scans.figures().is_empty(), "it keeps no file open any more");
    assert_eq!(next(&world, id, 1), Err(RangeScanRefusal::Unknown));
}

#[test]
fn there_is_a_limit_and_what_ends_makes_room() {
    let (env, handles) = base::env::Env::sim(6);
    let world = stores::open(env, handles, stores::files, |config| config.most_range_scans = 2);
    world.set("k", "v").expect("stored");
    assert!(world.bucket.flushing().flush_all());
    let scans = world.bucket.range_scans();
    let first = scans.create(VB, wanted()).expect("made");
    scans.create(VB, wanted()).expect("made");
    assert_eq!(scans.create(VB, wanted()), Err(RangeScanRefusal::TooMany));
    assert_eq!(scans.cancel(VbId(1), first), Err(RangeScanRefusal::Unknown), "it is of another vBucket");
    assert_eq!(scans.cancel(VB, first), Ok(()));
    assert_eq!(scans.cancel(VB, first), Err(RangeScanRefusal::Unknown));
    scans.create(VB, wanted()).expect("made");
    // A range in which nothing is takes no place.
    for _ in 0..3 {
        let start = Bound::Included(b"z".to_vec());
        assert_eq!(scans.create(VB, RangeScanWanted { start, ..wanted() }), Err(RangeScanRefusal::TooMany));
    }
    assert_eq!(scans.figures().len(), 2);
}

#[test]
fn a_request_that_goes_on_excludes_others_and_learns_of_a_cancel() {
    let world = worlds().next().expect("one");
    let scans = world.bucket.range_scans();
    let id = scans.create(VB, wanted()).expect("made");
    let until = world.env.clock.monotonic() + Duration::from_secs(1);
    let went = scans.go_on(VB, id, until, &mut |_| {
        assert!(scans.figures()[0].is_continuing);
        assert_eq!(next(&world, id, 1), Err(RangeScanRefusal::IsContinuing));
        assert_eq!(scans.cancel(VB, id), Ok(()));
        ControlFlow::Continue(())
    });
    assert_eq!(went, Err(RangeScanRefusal::Cancelled));
    assert_eq!(next(&world, id, 1), Err(RangeScanRefusal::Unknown));
}

#[test]
fn a_sample_is_spread_over_continuations_and_all_is_told_where_there_is_less() {
    let world = worlds().next().expect("one");
    let sample = |samples, seed| RangeScanWanted { sampling: Some(Sampling { samples, seed }), ..wanted() };
    assert_eq!(all(&world, sample(5, 1)).as_deref(), Ok("a=1 b=2 c= d=1 e=1"));
    for n in 0..400 {
        world.set(&format!("k{n}"), "v").expect("stored");
    }
    assert!(world.bucket.flushing().flush_all());
    let scans = world.bucket.range_scans();
    let once = all(&world, sample(100, 7)).expect("some");
    let id = scans.create(VB, sample(100, 7)).expect("made");
    let mut in_parts = Vec::new();
    loop {
        let (told, progress) = next(&world, id, 3).expect("it goes on");
        in_parts.extend(told);
        if progress == RangeScanProgress::Complete {
            break;
        }
    }
    assert_eq!(once, in_parts.join(" "));
    assert!((50..150).contains(&in_parts.len()), "{}", in_parts.len());
}

#[test]
fn an_ephemeral_bucket_has_nothing_that_could_be_scanned() {
    let (env, handles) = base::env::Env::sim(6);
    let world = stores::open(
        env,
        handles,
        |_| std::sync::Arc::new(kvstore::Nothing),
        |config| {
            config.kind = BucketKind::Ephemeral;
        },
    );
    world.set("k", "v").expect("stored");
    let refused = world.bucket.range_scans().create(VB, wanted());
    assert_eq!(refused, Err(RangeScanRefusal::Refused(Refusal::NoDisk)));
}

/// The stored keys from one on.
fn keys_from(world: &World, from: &str, until: Duration) -> Result<String, RangeScanRefusal> {
    let mut told = Vec::new();
    world.bucket.range_scans().keys(VB, common::doc(from), until, &mut |version| {
        told.push(String::from_utf8_lossy(version.key().key).into_owned());
        ControlFlow::Continue(())
    })?;
    Ok(told.join(" "))
}

#[test]
fn keys_are_those_of_stored_documents_in_their_order() {
    for world in worlds() {
        let late = world.env.clock.monotonic() + Duration::from_secs(3600);
        let expiry = world.now().unix_s() + 10;
        world.store("dd", "short", StoreMode::Set, base::Cas::ANY, expiry).expect("stored");
        world
            .bucket
            .documents()
            .delete(VB, common::doc("a"), base::Cas::ANY, world.now())
            .expect("it is there");
        assert_eq!(
            keys_from(&world, "\0", late).as_deref(),
            Ok("a b c d e"),
            "what is not stored is not told"
        );
        assert!(world.bucket.flushing().flush_all());
        assert_eq!(keys_from(&world, "\0", late).as_deref(), Ok("b c d dd e"));
        assert_eq!(keys_from(&world, "bb", late).as_deref(), Ok("c d dd e"));
        assert_eq!(keys_from(&world, "f", late).as_deref(), Ok(""));
        world.handles.clock.advance(Duration::from_secs(20));
        assert_eq!(keys_from(&world, "c", late).as_deref(), Ok("c d e"));
        // The time is over from the beginning on; yet whoever asks again with what he got comes to the end.
        for n in 0..40 {
            world.set(&format!("k{n:02}"), "1").expect("stored");
        }
        assert!(world.bucket.flushing().flush_all());
        let cut = keys_from(&world, "k", Duration::ZERO).expect("read");
        assert_eq!((cut.split(' ').next(), cut.split(' ').count()), (Some("k00"), 16));
        let nowhere = world.bucket.range_scans().keys(VbId(9), common::doc("a"), late, &mut |_| panic!());
        assert_eq!(nowhere, Err(RangeScanRefusal::Refused(Refusal::NotMyVbucket)));
    }
}

#[test]
fn the_time_of_tombstones_does_not_make_an_answer_without_keys() {
    for world in worlds() {
        for n in 0..40 {
            world.set(&format!("k{n:02}"), "1").expect("stored");
        }
        for n in 0..39 {
            let key = format!("k{n:02}");
            world
                .bucket
                .documents()
                .delete(VB, common::doc(&key), base::Cas::ANY, world.now())
                .expect("it is there");
        }
        assert!(world.bucket.flushing().flush_all());
        assert_eq!(keys_from(&world, "k", Duration::ZERO).as_deref(), Ok("k39"));
    }
}
