//! A bucket whose vBucket follows another one: what it takes, where it stands after any stop, what it goes back to.

mod common;

use std::sync::Arc;

use base::env::Env;
use base::{Cas, Datatype, ItemKind, RevSeqno, Seqno, StoredKey, VbState, VbUuid, VersionMeta};
use common::stores::{self, files, journaled};
use common::{VB, World, doc};
use engine::{
    BucketConfig, BucketKind, Incoming, Progress, Refusal, ReplicaPosition, ReplicaRefusal, ReplicaStream,
};
use kvstore::KvStore;
use vbucket::{FailoverEntry, IncomingSnapshot, Misplaced, SnapshotKind};

fn world(store: fn(&Env) -> Arc<dyn KvStore>) -> World {
    let (env, handles) = Env::sim(1);
    let world = stores::open(env, handles, store, |_| ());
    world.bucket.roles().set_vbucket_state(VB, VbState::Replica, None).expect("set");
    world
}

/// The process ends without a word, and begins again with what is on the disk.
fn crash(world: World, store: fn(&Env) -> Arc<dyn KvStore>) -> World {
    let World { env, handles, bucket } = world;
    drop(bucket);
    stores::open(env, handles, store, |_| ())
}

fn log(entries: &[(u64, u64)]) -> Vec<FailoverEntry> {
    entries.iter().map(|(uuid, seqno)| FailoverEntry { uuid: VbUuid(*uuid), seqno: Seqno(*seqno) }).collect()
}

fn position(world: &World) -> ReplicaPosition {
    world.bucket.replicas().replica_position(VB).expect("a replica")
}

fn accepted(world: &World, entries: &[(u64, u64)]) -> ReplicaStream {
    world.bucket.replicas().adopt_failover(&position(world), log(entries)).expect("it stands there")
}

fn snapshot(start: u64, end: u64) -> IncomingSnapshot {
    IncomingSnapshot { start: Seqno(start), end: Seqno(end), ..IncomingSnapshot::default() }
}

/// A document, or a deletion if there is no value.
fn change(world: &World, seqno: u64, key: &str, value: Option<&str>) -> Incoming {
    let meta = VersionMeta {
        cas: Cas(seqno << 16),
        by_seqno: Seqno(seqno),
        rev_seqno: RevSeqno(seqno),
        kind: if value.is_some() { ItemKind::Mutation } else { ItemKind::Deletion },
        ..VersionMeta::default()
    };
    let value = value.unwrap_or_default().as_bytes();
    Incoming::Version(world.bucket.replicas().received(meta, doc(key), value).expect("well formed"))
}

/// Sends changes of one snapshot.
fn send(world: &World, stream: ReplicaStream, changes: &[(u64, &str, Option<&str>)]) {
    let changes = changes.iter().map(|(seqno, key, value)| change(world, *seqno, key, *value));
    let mut changes: Vec<Incoming> = changes.collect();
    let applied = world.bucket.replicas().apply_replicated(stream, &mut changes).expect("in order");
    assert!(changes.is_empty() && applied.changes > 0);
}

/// What it stands at: seqno, history, and the snapshot around it.
fn stands(world: &World) -> (u64, u64, u64, u64) {
    let at = position(world);
    (at.start.0, at.uuid.0, at.snapshot_start.0, at.snapshot_end.0)
}

/// How far the disk is, and how far it has all that there was.
fn on_disk(world: &World) -> (u64, u64) {
    let of = |vb: &vbucket::VBucket| (vb.persisted_seqno().0, vb.persisted_whole().0);
    world.bucket.inspect(VB, of).expect("there is one")
}

fn read(world: &World, key: &str) -> Result<String, Refusal> {
    let mut found = world.bucket.documents().get_replica(VB, doc(key), world.now());
    if let Err(Refusal::NotResident) = found {
        let fetch = world.bucket.fetching().fetch(VB, doc(key)).expect("few wait");
        assert_eq!(world.bucket.fetching().fetch_step(), Progress::Worked);
        let _held = fetch.try_take().expect("it was fetched");
        found = world.bucket.documents().get_replica(VB, doc(key), world.now());
    }
    let found = found?;
    Ok(String::from_utf8_lossy(found.version.value()).into_owned())
}

fn knows_where_it_stands(store: fn(&Env) -> Arc<dyn KvStore>) {
    let world = world(store);
    assert_eq!(stands(&world), (0, 0, 0, 0));
    let stream = accepted(&world, &[(11, 0)]);
    world.bucket.replicas().begin_snapshot(stream, &snapshot(0, 3)).expect("it follows");
    send(&world, stream, &[(1, "a", Some("1")), (3, "b", Some("1"))]);
    assert_eq!(stands(&world), (3, 11, 3, 3));
    assert!(world.bucket.flushing().flush_all());
    world.bucket.replicas().begin_snapshot(stream, &snapshot(4, 9)).expect("it follows");
    assert_eq!(on_disk(&world), (3, 3));
    send(&world, stream, &[(5, "c", Some("1"))]);
    assert!(world.bucket.flushing().flush_all());
    assert_eq!(on_disk(&world), (5, 3));
    send(&world, stream, &[(7, "b", None)]);
    assert_eq!(stands(&world), (7, 11, 3, 9));

    // What was flushed is there, and where it lies.
    let world = crash(world, store);
    assert_eq!(stands(&world), (5, 11, 3, 9));
    assert_eq!(on_disk(&world), (5, 3));
    assert_eq!((read(&world, "a"), read(&world, "c")), (Ok("1".into()), Ok("1".into())));
    assert_eq!(read(&world, "b"), Ok("1".into()));

    // It goes on inside, and the rest may have become a larger snapshot meanwhile.
    let stream = accepted(&world, &[(11, 0)]);
    world.bucket.replicas().begin_snapshot(stream, &snapshot(3, 10)).expect("it follows");
    send(&world, stream, &[(7, "b", None), (10, "a", Some("2"))]);
    assert_eq!(stands(&world), (10, 11, 10, 10));
    assert_eq!(on_disk(&world), (5, 3), "all of it is there, in memory");
    assert!(world.bucket.flushing().flush_all());
    assert_eq!(on_disk(&world), (10, 10));
    let world = crash(world, store);
    assert_eq!(stands(&world), (10, 11, 10, 10));
    assert_eq!((read(&world, "a"), read(&world, "b")), (Ok("2".into()), Err(Refusal::NotFound)));
    let stats = world.bucket.vbucket_stats(VB).expect("it is there");
    assert_eq!((stats.documents, stats.tombstones), (2, 1));
}

#[test]
fn after_any_stop_a_replica_with_files_knows_where_it_stands() {
    knows_where_it_stands(files);
}

#[test]
fn after_any_stop_a_replica_with_a_journal_knows_where_it_stands() {
    knows_where_it_stands(journaled);
}

#[test]
fn what_breaks_the_order_is_refused_without_a_trace() {
    let world = world(files);
    let asked = position(&world);
    assert_eq!(
        world.bucket.replicas().adopt_failover(&asked, vec![]).err(),
        Some(ReplicaRefusal::BadFailoverLog)
    );
    let unordered = log(&[(1, 4), (2, 5)]);
    assert_eq!(
        world.bucket.replicas().adopt_failover(&asked, unordered).err(),
        Some(ReplicaRefusal::BadFailoverLog)
    );
    let old = world.bucket.replicas().adopt_failover(&asked, log(&[(11, 0)])).expect("it stands there");
    let stream = accepted(&world, &[(11, 0)]);
    let begun = world.bucket.replicas().begin_snapshot(old, &snapshot(1, 9));
    assert_eq!(begun, Err(ReplicaRefusal::NotReplica), "another stream took over");

    let refused = |seqno, why| {
        let mut changes = vec![change(&world, seqno, "k", Some("1"))];
        let applied = world.bucket.replicas().apply_replicated(stream, &mut changes);
        assert_eq!((applied, changes.len()), (Err(ReplicaRefusal::Misplaced(why)), 1));
        assert!(read(&world, "k").is_err());
    };
    refused(1, Misplaced::NoSnapshot);
    let bad = world.bucket.replicas().begin_snapshot(stream, &snapshot(5, 4));
    assert_eq!(bad, Err(ReplicaRefusal::Misplaced(Misplaced::BadSnapshot)));
    world.bucket.replicas().begin_snapshot(stream, &snapshot(3, 6)).expect("it follows");
    refused(2, Misplaced::OutsideSnapshot);
    refused(7, Misplaced::OutsideSnapshot);
    send(&world, stream, &[(4, "a", Some("1"))]);
    refused(4, Misplaced::NotRising);

    // Of several that come together those before are applied, and the others are handed back.
    let mut changes = vec![
        change(&world, 5, "b", Some("1")),
        change(&world, 5, "c", Some("1")),
        change(&world, 6, "d", Some("1")),
    ];
    let applied = world.bucket.replicas().apply_replicated(stream, &mut changes);
    assert_eq!(applied, Err(ReplicaRefusal::Misplaced(Misplaced::NotRising)));
    assert_eq!((changes.len(), position(&world).start), (2, Seqno(5)));
    let commit =
        Incoming::Commit { key: StoredKey(b"\0a".as_slice().into()), prepared: Seqno(5), seqno: Seqno(6) };
    let applied = world.bucket.replicas().apply_replicated(stream, &mut vec![commit]);
    assert_eq!(applied, Err(ReplicaRefusal::Misplaced(Misplaced::NotPrepared)));

    world.bucket.roles().set_vbucket_state(VB, VbState::Dead, None).expect("set");
    world.bucket.roles().set_vbucket_state(VB, VbState::Replica, None).expect("set");
    let applied =
        world.bucket.replicas().apply_replicated(stream, &mut vec![change(&world, 6, "d", Some("1"))]);
    assert_eq!(applied, Err(ReplicaRefusal::NotReplica), "its role was another one meanwhile");
    assert_eq!(stands(&world), (5, 11, 0, 6));
    assert_eq!(
        world.bucket.replicas().adopt_failover(&asked, log(&[(11, 0)])).err(),
        Some(ReplicaRefusal::NotReplica),
        "that was asked for another place"
    );
}

#[test]
fn what_cannot_be_is_not_even_made() {
    let world = world(files);
    let good = VersionMeta { cas: Cas(1), by_seqno: Seqno(1), ..VersionMeta::default() };
    let received =
        |meta, key: &str, value: &[u8]| world.bucket.replicas().received(meta, doc(key), value).err();
    assert_eq!(received(good, "k", b"v"), None);
    let bad = Some(ReplicaRefusal::Malformed);
    assert_eq!(received(good, "", b"v"), bad);
    assert_eq!(received(good, &"k".repeat(251), b"v"), bad);
    assert_eq!(received(good, "k", &vec![0; (20 << 20) + 1]), bad);
    for meta in [
        VersionMeta { by_seqno: Seqno(0), ..good },
        VersionMeta { by_seqno: Seqno(1 << 48), ..good },
        VersionMeta { rev_seqno: RevSeqno(1 << 48), ..good },
        VersionMeta { cas: Cas(0), ..good },
        VersionMeta { cas: Cas(u64::MAX), ..good },
        VersionMeta { datatype: Datatype::SNAPPY, ..good },
        VersionMeta { datatype: Datatype::XATTR, ..good },
        VersionMeta { kind: ItemKind::SystemEvent, ..good },
    ] {
        assert_eq!(received(meta, "k", b"\xff\xff\xff\xff"), bad, "{meta:?}");
    }
}

#[test]
fn nothing_up_to_the_end_of_a_snapshot_completes_it() {
    let world = world(files);
    let stream = accepted(&world, &[(11, 0)]);
    world.bucket.replicas().begin_snapshot(stream, &snapshot(1, 5)).expect("it follows");
    send(&world, stream, &[(2, "a", Some("1"))]);
    let inside = world.bucket.replicas().seqno_advanced(stream, Seqno(4)).expect("it lies in the snapshot");
    assert_eq!((inside.high_seqno, inside.is_complete), (Seqno(2), false));
    let end = world.bucket.replicas().seqno_advanced(stream, Seqno(5)).expect("it lies in the snapshot");
    assert_eq!((end.high_seqno, end.is_complete), (Seqno(5), true));
    assert!(world.bucket.flushing().flush_all());
    let world = crash(world, files);
    assert_eq!(stands(&world), (5, 11, 5, 5));
}

#[test]
fn who_was_told_that_nothing_changed_up_to_a_seqno_goes_back_before_it() {
    for store in [files as fn(&Env) -> Arc<dyn KvStore>, journaled] {
        let world = world(store);
        let stream = accepted(&world, &[(11, 0)]);
        world.bucket.replicas().begin_snapshot(stream, &snapshot(1, 5)).expect("it follows");
        send(&world, stream, &[(2, "a", Some("1"))]);
        world.bucket.replicas().seqno_advanced(stream, Seqno(5)).expect("it lies in the snapshot");
        assert!(world.bucket.flushing().flush_all());
        let seqno = world.bucket.roles().rollback(VB, Seqno(4)).expect("a replica").expect("the disk works");
        assert_eq!((seqno, position(&world).start), (Seqno(2), Seqno(2)));
    }
}

#[test]
fn becoming_active_inside_a_snapshot_gives_up_the_rest() {
    let world = world(files);
    let stream = accepted(&world, &[(11, 0)]);
    world.bucket.replicas().begin_snapshot(stream, &snapshot(1, 3)).expect("it follows");
    send(&world, stream, &[(1, "a", Some("1")), (3, "b", Some("1"))]);
    world.bucket.replicas().begin_snapshot(stream, &snapshot(4, 9)).expect("it follows");
    send(&world, stream, &[(5, "c", Some("1")), (6, "d", Some("1"))]);
    assert!(world.bucket.flushing().flush_all());
    world.bucket.roles().set_vbucket_state(VB, VbState::Active, None).expect("set");
    let (uuid, histories) =
        world.bucket.with_vbucket(VB, |vb| (vb.uuid(), vb.failover().to_entries())).expect("it is there");
    assert_eq!(histories, [FailoverEntry { uuid, seqno: Seqno(3) }, log(&[(11, 0)])[0]]);
    assert_eq!(world.set("e", "2").expect("it is active").seqno, Seqno(7));

    // Another replica that had more of the old history goes back to where both were the same.
    let resume = |start: u64, snapshot: (u64, u64)| {
        let at = vbucket::ResumePoint {
            start: Seqno(start),
            uuid: VbUuid(11),
            snapshot_start: Seqno(snapshot.0),
            snapshot_end: Seqno(snapshot.1),
            ..vbucket::ResumePoint::default()
        };
        world.bucket.with_vbucket(VB, |vb| vb.failover().rollback_point(&at, vb.high_seqno(), Seqno(0)))
    };
    assert_eq!(resume(9, (9, 9)), Some(vbucket::Resume::RollBack(Seqno(3))));
    assert_eq!(resume(5, (3, 9)), Some(vbucket::Resume::RollBack(Seqno(3))));
    assert_eq!(resume(3, (3, 3)), Some(vbucket::Resume::Accept));

    // And when it follows again, it stands at a place of its own history.
    world.bucket.roles().set_vbucket_state(VB, VbState::Replica, None).expect("set");
    assert_eq!(stands(&world), (7, uuid.0, 7, 7));
    assert!(world.bucket.flushing().flush_all());
    assert_eq!(stands(&crash(world, files)), (7, uuid.0, 7, 7));
}

#[test]
fn who_was_active_and_crashed_goes_on_in_the_history_that_others_know() {
    let newest =
        |world: &World| world.bucket.with_vbucket(VB, |vb| vb.failover().newest()).expect("it is there");
    let world = world(files);
    world.bucket.roles().set_vbucket_state(VB, VbState::Active, None).expect("set");
    world.set("a", "1").expect("it is active");
    let known = newest(&world);
    assert!(world.bucket.flushing().flush_all());
    let world = crash(world, files);
    let own = newest(&world);
    assert!(own.uuid != known.uuid && own.seqno == Seqno(1), "more than this may have been lost");
    world.bucket.roles().set_vbucket_state(VB, VbState::Replica, None).expect("set");
    assert_eq!(stands(&world), (1, known.uuid.0, 1, 1));
}

fn goes_back(store: fn(&Env) -> Arc<dyn KvStore>) {
    let world = world(store);
    let stream = accepted(&world, &[(11, 0)]);
    world.bucket.replicas().begin_snapshot(stream, &snapshot(1, 2)).expect("it follows");
    send(&world, stream, &[(1, "a", Some("1")), (2, "b", Some("1"))]);
    assert!(world.bucket.flushing().flush_all());
    let stream = accepted(&world, &[(22, 2), (11, 0)]);
    world.bucket.replicas().begin_snapshot(stream, &snapshot(3, 8)).expect("it follows");
    send(&world, stream, &[(4, "a", Some("2"))]);
    assert!(world.bucket.flushing().flush_all());
    send(&world, stream, &[(8, "c", Some("2"))]);
    assert!(world.bucket.flushing().flush_all());
    let unchanged = world.bucket.roles().rollback(VB, Seqno(8)).expect("a replica").expect("the disk works");
    assert_eq!((unchanged, stands(&world)), (Seqno(8), (8, 22, 8, 8)));

    // The commit at 4 is inside a snapshot that goes beyond 7: nobody could go on from there.
    let back = world.bucket.roles().rollback(VB, Seqno(7)).expect("a replica").expect("the disk works");
    // Of the newer history it has nothing now: whoever never heard of that knows the older one.
    assert_eq!((back, stands(&world)), (Seqno(2), (2, 11, 2, 2)));
    let applied =
        world.bucket.replicas().apply_replicated(stream, &mut vec![change(&world, 9, "d", Some("1"))]);
    assert_eq!(applied, Err(ReplicaRefusal::NotReplica), "the stream ended with what it was about");
    assert_eq!((read(&world, "a"), read(&world, "c")), (Ok("1".into()), Err(Refusal::NotFound)));

    // Then it follows another history.
    assert!(world.bucket.flushing().flush_all());
    let world = crash(world, store);
    assert_eq!(stands(&world), (2, 11, 2, 2));
    let histories = world.bucket.with_vbucket(VB, |vb| vb.failover().to_entries());
    assert_eq!(histories, Some(log(&[(22, 2), (11, 0)])), "the histories that it had survive");
    let stream = accepted(&world, &[(33, 2), (11, 0)]);
    world.bucket.replicas().begin_snapshot(stream, &snapshot(2, 3)).expect("it follows");
    send(&world, stream, &[(3, "c", Some("3"))]);
    assert_eq!((stands(&world), read(&world, "c")), ((3, 33, 3, 3), Ok("3".into())));
    let back = world.bucket.roles().rollback(VB, Seqno(0)).expect("a replica").expect("the disk works");
    assert_eq!((back, stands(&world)), (Seqno(0), (0, 0, 0, 0)));
    let stats = world.bucket.vbucket_stats(VB).expect("it is there");
    assert_eq!((stats.state, stats.documents), (VbState::Replica, 0));
}

/// What it has of a snapshot was chosen by the history in which the snapshot ends: that one it must name, or a node of
/// an older history would send it what follows there.
fn goes_back_into_a_snapshot(store: fn(&Env) -> Arc<dyn KvStore>) {
    let world = world(store);
    let stream = accepted(&world, &[(22, 6), (11, 0)]);
    world.bucket.replicas().begin_snapshot(stream, &snapshot(1, 8)).expect("it follows");
    send(&world, stream, &[(2, "a", Some("1"))]);
    assert!(world.bucket.flushing().flush_all());
    send(&world, stream, &[(8, "b", Some("1"))]);
    world.bucket.replicas().begin_snapshot(stream, &snapshot(9, 12)).expect("it follows");
    send(&world, stream, &[(12, "c", Some("1"))]);
    assert!(world.bucket.flushing().flush_all());
    let back = world.bucket.roles().rollback(VB, Seqno(9)).expect("a replica").expect("the disk works");
    assert_eq!((back, stands(&world)), (Seqno(2), (2, 22, 0, 8)));
    let world = crash(world, store);
    assert_eq!(stands(&world), (2, 22, 0, 8));
}

#[test]
fn a_replica_with_files_goes_back() {
    goes_back(files);
    goes_back_into_a_snapshot(files);
}

#[test]
fn a_replica_with_a_journal_goes_back() {
    goes_back(journaled);
    goes_back_into_a_snapshot(journaled);
}

#[test]
fn a_replica_without_a_disk_goes_back_to_nothing() {
    let (env, handles) = Env::sim(2);
    let mut config = BucketConfig::new("test", "/data/test".into());
    (config.vbuckets, config.kind) = (8, BucketKind::Ephemeral);
    let bucket = engine::Bucket::open(config, env.clone(), Arc::new(kvstore::Nothing)).expect("it opens");
    let world = World { env, handles, bucket };
    world.bucket.roles().set_vbucket_state(VB, VbState::Replica, None).expect("set");
    let stream = accepted(&world, &[(11, 0)]);
    world.bucket.replicas().begin_snapshot(stream, &snapshot(1, 9)).expect("it follows");
    send(&world, stream, &[(2, "a", Some("1")), (5, "a", Some("2")), (7, "b", None)]);
    assert_eq!((stands(&world), read(&world, "a")), ((7, 11, 0, 9), Ok("2".into())));
    let mut range = world.bucket.streams().memory_range(VB, Seqno(1)).expect("few read");
    let seqnos: Vec<u64> =
        range.next(9, 9999).expect("it is there").iter().map(|version| version.meta().by_seqno.0).collect();
    assert_eq!(seqnos, [5, 7]);
    let back = world.bucket.roles().rollback(VB, Seqno(5)).expect("a replica").expect("there is no disk");
    assert_eq!((back, stands(&world)), (Seqno(0), (0, 0, 0, 0)));
}

#[test]
fn what_a_producer_has_purged_is_known_after_a_restart() {
    let world = world(files);
    let stream = accepted(&world, &[(11, 0)]);
    let disk = IncomingSnapshot {
        kind: SnapshotKind::InitialDisk,
        purge: Some(Seqno(6)),
        begins_checkpoint: true,
        ..snapshot(1, 9)
    };
    world.bucket.replicas().begin_snapshot(stream, &disk).expect("it follows");
    send(&world, stream, &[(2, "a", Some("1"))]);
    assert!(world.bucket.flushing().flush_all());
    let world = crash(world, files);
    assert_eq!((stands(&world), position(&world).purge), ((2, 11, 0, 9), Seqno(6)));
}

#[test]
fn a_replica_waits_for_room() {
    let (env, handles) = Env::sim(3);
    let env = env.with_heap(base::Heap::default());
    let world = stores::open(env, handles, files, |config| config.quota_bytes = 4 << 20);
    world.bucket.roles().set_vbucket_state(VB, VbState::Replica, None).expect("set");
    let stream = accepted(&world, &[(11, 0)]);
    world.bucket.replicas().begin_snapshot(stream, &snapshot(1, 1000)).expect("it follows");
    let value = "v".repeat(64 << 10);
    let mut waiting = Vec::new();
    for seqno in 1..=1000 {
        waiting.push(change(&world, seqno, &format!("k{seqno}"), Some(&value)));
        match world.bucket.replicas().apply_replicated(stream, &mut waiting) {
            Ok(_) => assert!(world.bucket.flushing().flush_all()),
            Err(refusal) => {
                assert_eq!((refusal, waiting.len()), (ReplicaRefusal::Full, 1));
                break;
            }
        }
    }
    assert_eq!(waiting.len(), 1, "memory is bounded");
    let memory = world.bucket.memory();
    assert!(memory.held_bytes() > memory.quota_bytes() / 100 * 99, "replicas get more than clients");
    let room = world.bucket.replicas().replica_room().expect("there is none now");
    assert!(room.try_take().is_none());
    for _ in 0..100 {
        world.handles.clock.advance(std::time::Duration::from_secs(1));
        world.bucket.maintenance().keep_step();
    }
    assert_eq!(room.try_take(), Some(()), "values that are on disk made room");
    assert!(world.bucket.replicas().replica_room().is_none());
    let applied = world.bucket.replicas().apply_replicated(stream, &mut waiting);
    assert_eq!((applied.map(|applied| applied.changes), waiting.len()), (Ok(1), 0));
}

#[test]
fn nothing_is_taken_before_the_documents_are_loaded() {
    let world = world(files);
    let stream = accepted(&world, &[(11, 0)]);
    world.bucket.replicas().begin_snapshot(stream, &snapshot(1, 1)).expect("it follows");
    send(&world, stream, &[(1, "a", Some("1"))]);
    assert!(world.bucket.flushing().flush_all());
    let World { env, bucket, .. } = world;
    drop(bucket);
    let mut config = BucketConfig::new("test", "/data/test".into());
    config.vbuckets = 8;
    let bucket = engine::Bucket::open_cold(config, env.clone(), files(&env)).expect("it opens");
    assert_eq!(bucket.replicas().replica_position(VB), Err(Refusal::Loading));
    while bucket.loading().load_step() != Progress::Idle {}
    assert_eq!(bucket.replicas().replica_position(VB).map(|at| at.start), Ok(Seqno(1)));
}
