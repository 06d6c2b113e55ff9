//! Snapshots by file: one of a vBucket, with a lease, for as long as the vBucket is what it was.

mod common;

use std::sync::Arc;
use std::time::Duration;

use base::VbId;
use base::VbState;
use base::env::Env;
use common::{VB, World, stores};
use engine::{
    BucketKind, FILE_SNAPSHOT_LEASE, FileSnapshotRefusal, Progress, RangeScanRefusal, Refusal,
    SnapshotReader, StoreMode,
};
use kvstore::{FilesConfig, Journaled, JournaledConfig, KvStore, LogConfig};

/// On files alone, and with documents in a journal only.
fn worlds() -> impl Iterator<Item = World> {
    [stores::files, stores::journaled].into_iter().map(|store| {
        let (env, handles) = Env::sim(5);
        let world = stores::open(env, handles, store, |_| {});
        for key in ["d", "b", "e", "a", "c"] {
            world.set(key, "1").expect("stored");
        }
        assert!(world.bucket.flushing().flush_all());
        world
    })
}

/// A client that is gone when it has asked.
fn reader() -> SnapshotReader {
    SnapshotReader::default()
}

fn bytes(world: &World, id: u128) -> Result<Vec<u8>, FileSnapshotRefusal> {
    let snapshots = world.bucket.file_snapshots();
    let mut bytes = vec![0; snapshots.len(id)? as usize];
    snapshots.read(id, &mut bytes, 0)?;
    Ok(bytes)
}

#[test]
fn a_snapshot_has_what_is_stored_and_stays_as_it_is() {
    for world in worlds() {
        let snapshots = world.bucket.file_snapshots();
        let made = snapshots.prepare(VB, None, &reader()).expect("made");
        let high = world.bucket.inspect(VB, |vb| vb.high_seqno()).expect("there is one");
        assert_eq!((made.seqno, made.vb), (high, VB), "what was in the journal is in the file");
        let first = bytes(&world, made.id).expect("read");
        world.set("d", "new").expect("stored");
        world.store("f", "", StoreMode::Set, base::Cas::ANY, 0).expect("stored");
        assert!(world.bucket.flushing().flush_all());
        while world.bucket.flushing().file_step() == Progress::Worked {}
        world.bucket.compaction().compact(VB, Default::default()).expect("taken");
        while world.bucket.compaction().compact_step() == Progress::Worked {}
        assert_eq!(bytes(&world, made.id).as_ref(), Ok(&first), "behind a compaction");
        let again = snapshots.prepare(VB, None, &reader()).expect("there is one");
        assert_eq!((again.id, again.seqno), (made.id, made.seqno), "a vBucket has one snapshot");
        assert_eq!(again.read_bytes, 2 * made.len);
        let past = |offset, len| snapshots.read(made.id, &mut vec![0; len], offset);
        assert_eq!(past(made.len - 1, 1), Ok(()));
        assert_eq!(past(made.len - 1, 2), Err(FileSnapshotRefusal::OutOfRange));
        assert_eq!(past(u64::MAX, 2), Err(FileSnapshotRefusal::OutOfRange));
        assert_eq!(snapshots.len(made.id ^ 1), Err(FileSnapshotRefusal::Unknown));
        assert_eq!(snapshots.release_by_id(made.id ^ 1, &reader()), Err(FileSnapshotRefusal::Unknown));
        assert_eq!(snapshots.release(VbId(1), &reader()), Err(FileSnapshotRefusal::Unknown));
        assert_eq!(snapshots.release_by_id(made.id, &reader()), Ok(()));
        assert_eq!(snapshots.release(VB, &reader()), Err(FileSnapshotRefusal::Unknown));
        let next = snapshots.prepare(VB, None, &reader()).expect("another one");
        assert!(next.id != made.id && next.seqno > made.seqno);
        assert_eq!(snapshots.release(VB, &reader()), Ok(()));
        assert_eq!(bytes(&world, next.id), Err(FileSnapshotRefusal::Unknown));
    }
}

#[test]
fn a_snapshot_stays_for_the_other_clients_that_asked_for_it() {
    let world = worlds().next().expect("one");
    let snapshots = world.bucket.file_snapshots();
    let (first, second) = (reader(), reader());
    let made = snapshots.prepare(VB, None, &first).expect("made");
    for client in [&first, &second, &second] {
        assert_eq!(snapshots.prepare(VB, None, client).expect("there is one").id, made.id);
    }
    assert_eq!(snapshots.release_by_id(made.id, &first), Ok(()));
    assert!(bytes(&world, made.id).is_ok(), "the second one reads it");
    assert_eq!(snapshots.release(VB, &second), Ok(()), "however often it asked");
    assert_eq!(bytes(&world, made.id), Err(FileSnapshotRefusal::Unknown));
    // One that is not connected any more is not waited for.
    let made = snapshots.prepare(VB, None, &first).expect("made");
    snapshots.prepare(VB, None, &second).expect("there is one");
    drop(second);
    assert_eq!(snapshots.release(VB, &first), Ok(()));
    assert_eq!(bytes(&world, made.id), Err(FileSnapshotRefusal::Unknown));
    // One that did not ask for it ends it for all: an order of an administrator.
    let made = snapshots.prepare(VB, None, &first).expect("made");
    assert_eq!(snapshots.release(VB, &reader()), Ok(()));
    assert_eq!(bytes(&world, made.id), Err(FileSnapshotRefusal::Unknown));
}

#[test]
fn a_snapshot_ends_with_its_lease_which_reading_renews() {
    let world = worlds().next().expect("one");
    let snapshots = world.bucket.file_snapshots();
    let made = snapshots.prepare(VB, None, &reader()).expect("made");
    let second = Duration::from_secs(1);
    for _ in 0..3 {
        world.handles.clock.advance(FILE_SNAPSHOT_LEASE - second);
        world.bucket.maintenance().keep_step();
        assert!(bytes(&world, made.id).is_ok(), "it is in use");
    }
    world.handles.clock.advance(FILE_SNAPSHOT_LEASE);
    assert_eq!(bytes(&world, made.id), Err(FileSnapshotRefusal::Unknown), "before the chore comes, too");
    world.bucket.maintenance().keep_step();
    assert!(snapshots.figures().is_empty(), "it keeps no file open any more");
}

#[test]
fn a_snapshot_ends_with_the_role_and_the_history_of_its_vbucket() {
    for world in worlds() {
        let snapshots = world.bucket.file_snapshots();
        let made = snapshots.prepare(VB, None, &reader()).expect("made");
        for state in [VbState::Replica, VbState::Active] {
            world.bucket.roles().set_vbucket_state(VB, state, None).expect("there is one");
        }
        // Another history, although it is active again.
        assert_eq!(bytes(&world, made.id), Err(FileSnapshotRefusal::Unknown));
        let next = snapshots.prepare(VB, None, &reader()).expect("made");
        assert!(next.id != made.id && next.uuid != made.uuid);
        world.bucket.roles().set_vbucket_state(VB, VbState::Replica, None).expect("there is one");
        let refused = Err(FileSnapshotRefusal::Refused(Refusal::NotMyVbucket));
        assert_eq!(bytes(&world, next.id), refused);
        assert_eq!(snapshots.prepare(VB, None, &reader()).map(drop), refused.map(drop));
        world.bucket.maintenance().keep_step();
        world.handles.clock.advance(Duration::from_secs(2));
        world.bucket.maintenance().keep_step();
        assert!(snapshots.figures().is_empty());
    }
}

#[test]
fn snapshots_and_scans_share_what_may_be_open() {
    let (env, handles) = Env::sim(6);
    let world = stores::open(env, handles, stores::files, |config| config.most_range_scans = 1);
    world.set("k", "v").expect("stored");
    assert!(world.bucket.flushing().flush_all());
    let snapshots = world.bucket.file_snapshots();
    assert_eq!(snapshots.prepare(VbId(1), None, &reader()).map(drop), Err(FileSnapshotRefusal::NotPersisted));
    snapshots.prepare(VB, None, &reader()).expect("made");
    assert_eq!(snapshots.prepare(VbId(1), None, &reader()).map(drop), Err(FileSnapshotRefusal::TooMany));
    let wanted = engine::RangeScanWanted {
        collection: base::CollectionId::DEFAULT,
        start: std::ops::Bound::Unbounded,
        end: std::ops::Bound::Unbounded,
        is_key_only: true,
        with_xattrs: false,
        sampling: None,
        requirement: None,
        name: String::new(),
    };
    let scans = world.bucket.range_scans();
    assert_eq!(scans.create(VB, wanted.clone()), Err(RangeScanRefusal::TooMany));
    snapshots.release(VB, &reader()).expect("there is one");
    scans.create(VB, wanted).expect("made");
}

#[test]
fn a_bucket_without_files_of_its_vbuckets_refuses() {
    let (env, handles) = Env::sim(7);
    let ephemeral = |config: &mut engine::BucketConfig| config.kind = BucketKind::Ephemeral;
    let world = stores::open(env, handles, |_| Arc::new(kvstore::Nothing), ephemeral);
    world.set("k", "v").expect("stored");
    let refused = world.bucket.file_snapshots().prepare(VB, None, &reader()).map(drop);
    assert_eq!(refused, Err(FileSnapshotRefusal::Refused(Refusal::NoDisk)));
    let log = |env: &Env| -> Arc<dyn KvStore> {
        let files = FilesConfig::Log(LogConfig::default());
        let config = JournaledConfig { files, ..JournaledConfig::default() };
        Arc::new(Journaled::open(env.clone(), "/data/test".as_ref(), config).expect("the disk works"))
    };
    let (env, handles) = Env::sim(8);
    let world = stores::open(env, handles, log, |_| {});
    world.set("k", "v").expect("stored");
    assert!(world.bucket.flushing().flush_all());
    assert_eq!(
        world.bucket.file_snapshots().prepare(VB, None, &reader()).map(drop),
        Err(FileSnapshotRefusal::NoFiles)
    );
}
