//! Snapshots of a bucket: changes are held, a moment is taken, and what the flusher keeps of it is exactly that.

mod common;

use std::time::Duration;

use base::env::Env;
use base::{Cas, Seqno, VbId, VbState};
use common::{VB, World, stores};
use engine::{
    BUCKET_SNAPSHOT_LEASE, BucketSnapshotRefusal, LONGEST_HOLD, Progress, Refusal, SnapshotFiles, StoreMode,
    VbMoment,
};
use kvstore::{
    CouchConfig, FilesConfig, Journaled, JournaledConfig, KvStore, LONGEST_WAIT, Log, LogConfig, Movable,
    MoveStep, Snapshot, StorageBackend, Values,
};

const MOST: Duration = Duration::from_millis(100);

fn log(env: &Env) -> std::sync::Arc<dyn KvStore> {
    std::sync::Arc::new(Log::open(env.clone(), "/data/test".as_ref(), LogConfig::default()).expect("opened"))
}

/// On files alone, with documents in a journal only, and on a log-structured store.
fn worlds() -> impl Iterator<Item = World> {
    [stores::files, stores::journaled, log].into_iter().map(|store| {
        let (env, handles) = Env::sim(5);
        stores::open(env, handles, store, |_| {})
    })
}

fn cut(world: &World, id: u128) -> Vec<VbMoment> {
    let snapshots = world.bucket.snapshots();
    let held = snapshots.hold(id, MOST).expect("held");
    let taken = snapshots.take(id, world.bucket.collections().manifest()).expect("taken");
    assert_eq!(held, taken, "nothing came in between");
    // Nodes rest behind a hold.
    world.handles.clock.advance(Duration::from_secs(1));
    taken
}

/// Keys and values of what is kept of a vBucket.
fn kept(world: &World, id: u128, vb: VbId) -> Result<Vec<(String, String)>, BucketSnapshotRefusal> {
    let opened = world.bucket.snapshots().open(id, vb)?;
    let mut all = Vec::new();
    let mut visit = |version: base::Version| {
        assert!(version.meta().by_seqno <= opened.moment.seqno, "of a later moment");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        all.push((text(version.key().key), text(version.value())));
        std::ops::ControlFlow::Continue(())
    };
    opened.snapshot.scan(Seqno(1), Values::Read, &mut visit).expect("read");
    all.sort();
    Ok(all)
}

fn pairs(of: &[(&str, &str)]) -> Vec<(String, String)> {
    of.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

#[test]
fn what_is_kept_is_what_there_was_at_the_moment() {
    for world in worlds() {
        // On the disk, in memory alone, and replaced in memory before and after.
        world.set("a", "1").expect("stored");
        assert!(world.bucket.flushing().flush_all());
        world.set("b", "1").expect("stored");
        world.set("c", "1").expect("stored");
        world.set("c", "2").expect("stored");
        let taken = cut(&world, 7);
        assert_eq!(taken.len(), 8, "all vBuckets are active");
        assert_eq!(taken[usize::from(VB.0)].seqno, Seqno(4));
        assert_eq!(kept(&world, 7, VB), Err(BucketSnapshotRefusal::NotReady), "nothing was saved yet");
        for key in ["a", "b", "c", "d"] {
            world.set(key, "later").expect("nothing is held any more");
        }
        assert!(world.bucket.flushing().flush_all());
        let at_the_moment = pairs(&[("a", "1"), ("b", "1"), ("c", "2")]);
        assert_eq!(kept(&world, 7, VB), Ok(at_the_moment.clone()));
        assert_eq!(kept(&world, 7, VbId(0)), Err(BucketSnapshotRefusal::Unknown), "it had nothing");
        // Whatever becomes of the files.
        world.store("a", "", StoreMode::Set, Cas::ANY, 0).expect("stored");
        assert!(world.bucket.flushing().flush_all());
        while world.bucket.flushing().file_step() == Progress::Worked {}
        world.bucket.compaction().compact(VB, Default::default()).expect("taken");
        while world.bucket.compaction().compact_step() == Progress::Worked {}
        assert_eq!(kept(&world, 7, VB), Ok(at_the_moment.clone()), "behind a compaction");
        // Another one beside it.
        cut(&world, 8);
        assert!(world.bucket.flushing().flush_all());
        assert_eq!(kept(&world, 8, VB).expect("read").len(), 4);
        assert_eq!(kept(&world, 7, VB), Ok(at_the_moment));
        let told = world.bucket.snapshots().figures();
        assert_eq!(
            told.iter().map(|one| (one.id, one.waiting, one.lost.len())).collect::<Vec<_>>(),
            [(7, 0, 0), (8, 0, 0)]
        );
        assert_eq!(world.bucket.snapshots().end(7), Ok(()));
        assert_eq!(world.bucket.snapshots().end(7), Err(BucketSnapshotRefusal::Unknown));
        assert_eq!(kept(&world, 7, VB), Err(BucketSnapshotRefusal::Unknown));
        assert_eq!(kept(&world, 8, VB).expect("read").len(), 4);
    }
}

/// That is no change of a client.
#[test]
fn documents_expire_while_changes_are_held() {
    let (env, handles) = Env::sim(5);
    let world = stores::open(env, handles, stores::files, |_| {});
    let second = u32::try_from(world.now().0 / 1_000_000_000).expect("a time") + 1;
    world.store("a", "1", StoreMode::Set, Cas::ANY, second).expect("stored");
    world.handles.clock.advance(Duration::from_secs(2));
    world.bucket.snapshots().hold(1, MOST).expect("held");
    let key = base::DocKey::new(b"a");
    let seen = world.bucket.documents().peek(VB, key, world.now()).expect("it is not busy");
    assert!(seen.expect("a tombstone").version.is_deleted());
    assert_eq!(world.set("a", "2").err(), Some(Refusal::Held));
}

#[test]
fn changes_wait_while_they_are_held_and_no_longer() {
    let (env, handles) = Env::sim(5);
    let world = stores::open(env, handles, stores::files, |_| {});
    world.set("a", "1").expect("stored");
    let snapshots = world.bucket.snapshots();
    assert!(snapshots.released().is_none());
    snapshots.hold(1, MOST).expect("held");
    assert_eq!(world.set("a", "2").err(), Some(Refusal::Held));
    assert_eq!(world.get("a").as_deref(), Ok("1"), "reads go on");
    assert_eq!(snapshots.hold(2, MOST), Err(BucketSnapshotRefusal::Busy));
    assert_eq!(
        snapshots.take(2, world.bucket.collections().manifest()),
        Err(BucketSnapshotRefusal::HoldOver),
        "it is another one's"
    );
    let (released, left) = snapshots.released().expect("changes are held");
    assert_eq!((released.try_take(), left), (None, MOST));
    assert!(snapshots.release(1));
    assert_eq!(released.try_take(), Some(()));
    world.set("a", "2").expect("nothing is held any more");
    assert!(!snapshots.release(1));
    assert_eq!(
        snapshots.take(1, world.bucket.collections().manifest()),
        Err(BucketSnapshotRefusal::HoldOver)
    );
    // One that no client ends, however long it was asked for, ends by itself, and then there is rest.
    snapshots.hold(3, Duration::from_secs(3600)).expect("held");
    world.handles.clock.advance(LONGEST_HOLD - Duration::from_millis(1));
    assert_eq!(world.set("a", "3").err(), Some(Refusal::Held));
    world.handles.clock.advance(Duration::from_millis(1));
    world.set("a", "3").expect("the hold is over");
    assert_eq!(
        snapshots.take(3, world.bucket.collections().manifest()),
        Err(BucketSnapshotRefusal::HoldOver)
    );
    assert_eq!(
        snapshots.hold(4, MOST),
        Err(BucketSnapshotRefusal::Busy),
        "changes are not held all the time"
    );
    world.handles.clock.advance(LONGEST_HOLD * 9);
    snapshots.hold(4, MOST).expect("held");
    assert!(snapshots.figures().is_empty(), "nothing was taken");
}

#[test]
fn a_snapshot_ends_with_its_lease_and_a_vbucket_of_it_with_its_history() {
    for world in worlds() {
        world.set("a", "1").expect("stored");
        cut(&world, 7);
        assert!(world.bucket.flushing().flush_all());
        let second = Duration::from_secs(1);
        assert!(kept(&world, 7, VB).is_ok(), "its lease begins again");
        for _ in 0..3 {
            world.handles.clock.advance(BUCKET_SNAPSHOT_LEASE - second);
            world.bucket.maintenance().keep_step();
            assert_eq!(kept(&world, 7, VB), Ok(pairs(&[("a", "1")])), "it is in use");
        }
        for state in [VbState::Replica, VbState::Active] {
            world.bucket.roles().set_vbucket_state(VB, state, None).expect("there is one");
        }
        world.handles.clock.advance(second * 2);
        world.bucket.maintenance().keep_step();
        assert_eq!(kept(&world, 7, VB), Err(BucketSnapshotRefusal::Lost), "another history");
        assert_eq!(world.bucket.snapshots().figures()[0].lost, [VB]);
        world.handles.clock.advance(BUCKET_SNAPSHOT_LEASE);
        world.bucket.maintenance().keep_step();
        assert!(world.bucket.snapshots().figures().is_empty(), "it keeps no file open any more");
        cut(&world, 7);
    }
}

#[test]
fn a_bucket_without_a_file_for_each_vbucket_refuses() {
    let (env, handles) = Env::sim(6);
    let world =
        stores::open(env, handles, stores::files, |config| config.snapshot_files = SnapshotFiles::new(7));
    assert_eq!(world.bucket.snapshots().hold(1, MOST), Err(BucketSnapshotRefusal::TooMany));
    world.set("a", "1").expect("nothing is held");
    let (env, handles) = Env::sim(6);
    let world =
        stores::open(env, handles, stores::files, |config| config.snapshot_files = SnapshotFiles::new(8));
    world.set("a", "1").expect("nothing is held");
    cut(&world, 1);
    assert_eq!(world.bucket.snapshots().hold(2, MOST), Err(BucketSnapshotRefusal::Busy), "one is being made");
    assert!(world.bucket.flushing().flush_all());
    assert_eq!(world.bucket.snapshots().hold(2, MOST), Err(BucketSnapshotRefusal::TooMany));
    assert_eq!(world.bucket.snapshots().end(1), Ok(()));
    cut(&world, 2);
}

#[test]
fn a_vbucket_that_is_lost_leaves_its_place_to_others() {
    let (env, handles) = Env::sim(6);
    let files = SnapshotFiles::new(8);
    let world = stores::open(env, handles, stores::files, |config| config.snapshot_files = files.clone());
    world.set("a", "1").expect("nothing is held");
    cut(&world, 1);
    assert_eq!(files.left(), 0, "each may need one");
    assert!(world.bucket.flushing().flush_all());
    assert_eq!(files.left(), 7, "of the others there is no file");
    let reader = world.bucket.snapshots().open(1, VB).expect("it is kept");
    world.bucket.roles().set_vbucket_state(VB, VbState::Dead, None).expect("allowed");
    assert!(matches!(world.bucket.snapshots().open(1, VB), Err(BucketSnapshotRefusal::Lost)));
    assert_eq!(files.left(), 7, "it is read");
    drop(reader);
    assert_eq!(files.left(), 8);
}

/// It is read again and again, so that its lease does not end: the move that waits for it goes on all the same.
#[test]
fn a_bucket_that_goes_to_another_store_ends_what_is_kept_of_the_one_before() {
    let (env, handles) = Env::sim(5);
    let of = |env: Env, backend| {
        let files = match backend {
            StorageBackend::Couchstore => FilesConfig::Couch(CouchConfig::default()),
            StorageBackend::LogStructured => FilesConfig::Log(LogConfig::default()),
            StorageBackend::RocksDb => FilesConfig::Rocks(kvstore::RocksConfig::default()),
        };
        let config = JournaledConfig { files, ..JournaledConfig::default() };
        let store = Journaled::open(env, "/data/test".as_ref(), config)?;
        Ok(std::sync::Arc::new(store) as std::sync::Arc<dyn KvStore>)
    };
    let dir = "/data/test".as_ref();
    let movable =
        Movable::open(env.clone(), dir, 8, StorageBackend::Couchstore, Box::new(of)).expect("opened");
    let movable = std::sync::Arc::new(movable);
    let world = stores::open(env, handles, |_| movable.clone(), |_| {});
    world.set("a", "1").expect("stored");
    cut(&world, 7);
    assert!(world.bucket.flushing().flush_all());
    world.set("a", "2").expect("stored");
    movable.begin(StorageBackend::LogStructured).expect("it begins");
    while movable.step().expect("a step") != MoveStep::Waiting {}
    let minute = Duration::from_secs(60);
    for _ in 0..LONGEST_WAIT.as_secs() / minute.as_secs() {
        assert_eq!(kept(&world, 7, VB), Ok(pairs(&[("a", "1")])), "it is in use");
        assert_eq!(movable.step().expect("a step"), MoveStep::Waiting);
        world.handles.clock.advance(minute);
        world.bucket.maintenance().keep_step();
    }
    while !matches!(movable.step().expect("a step"), MoveStep::Moved(_)) {}
    // The chore looks each second.
    world.handles.clock.advance(Duration::from_secs(2));
    world.bucket.maintenance().keep_step();
    assert_eq!(world.bucket.snapshots().figures()[0].lost, [VB]);
    assert_eq!(kept(&world, 7, VB), Err(BucketSnapshotRefusal::Lost));
    assert_eq!(world.get("a").as_deref(), Ok("2"));
    cut(&world, 8);
    assert!(world.bucket.flushing().flush_all());
    assert_eq!(kept(&world, 8, VB), Ok(pairs(&[("a", "2")])), "of the new store");
}
