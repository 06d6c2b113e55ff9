//! A replica without changes takes the file of its active: it has all of it, in memory and on disk, or nothing, whenever the
//! power goes.

mod common;

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use base::encryption::{DataKeys, EncryptedDisk};
use base::env::sim::{Call, Effect, Fault, On, Survival};
use base::env::{Env, OpenMode};
use base::{Cas, DurabilityLevel, RevSeqno, ScopeId, Seqno, VbState, VersionMeta};
use common::{VB, World, doc, set, stores, topology};
use engine::{Durable, FileFillFailure, Incoming, Progress, Refusal, SnapshotReader, StoreMode};
use kvstore::{KvStore, Values};
use vbucket::{FailoverEntry, IncomingSnapshot, Manifest, ManifestUid, Scope};

type Store = fn(&Env) -> Arc<dyn KvStore>;

/// An active vBucket with documents, tombstones and a prepare in flight.
fn source(store: Store) -> World {
    let (env, handles) = Env::sim(5);
    let world = stores::open(env, handles, store, |_| {});
    let roles = world.bucket.roles();
    roles.set_vbucket_state(VB, VbState::Active, topology(r#"[["n_0","n_1"]]"#)).expect("set");
    for at in 0..300 {
        world
            .store(&format!("k{at}"), &"value ".repeat(at % 40), StoreMode::Set, Cas::ANY, 0)
            .expect("stored");
        if at % 50 == 49 {
            assert!(world.bucket.flushing().flush_all());
        }
    }
    for at in (0..300).step_by(7) {
        let key = format!("k{at}");
        world.bucket.documents().delete(VB, doc(&key), Cas::ANY, world.now()).expect("deleted");
    }
    let durable = Durable { level: DurabilityLevel::Majority, timeout: Duration::from_secs(10) };
    let documents = world.bucket.documents();
    documents.durably(Some(durable)).store(VB, &set(doc("prepared"), "v"), world.now()).expect("prepared");
    assert!(world.bucket.flushing().flush_all());
    world
}

fn image(world: &World) -> Vec<u8> {
    let snapshots = world.bucket.file_snapshots();
    let made = snapshots.prepare(VB, None, &SnapshotReader::default()).expect("made");
    let mut bytes = vec![0; made.len as usize];
    snapshots.read(made.id, &mut bytes, 0).expect("read");
    bytes
}

fn histories(world: &World) -> Vec<FailoverEntry> {
    world.bucket.inspect(VB, |vb| vb.failover().entries().to_vec()).expect("there is one")
}

/// A replica that follows the source, and has nothing.
fn replica(env: Env, handles: base::env::SimHandles, store: Store, source: &World) -> World {
    let world = stores::open(env, handles, store, |_| {});
    world.bucket.roles().set_vbucket_state(VB, VbState::Replica, None).expect("set");
    let position = world.bucket.replicas().replica_position(VB).expect("a replica");
    world.bucket.replicas().adopt_failover(&position, histories(source)).expect("it stands there");
    assert!(world.bucket.flushing().flush_all());
    world
}

/// Puts a file where a download puts it.
fn arrive(world: &World, env: &Env, bytes: &[u8]) {
    let file = world.bucket.file_snapshots().incoming(VB).expect("there is a place");
    env.disk.create_dir_all_synced(file.folder()).expect("made");
    let whole = env.disk.open(&file.path(), OpenMode::Create).expect("made");
    whole.set_len(0).expect("empty");
    whole.write_at(bytes, 0).expect("written");
    whole.sync_data().expect("synced");
    env.disk.sync_dir(file.folder()).expect("synced");
}

fn fill(world: &World) -> Result<Seqno, FileFillFailure> {
    let file = world.bucket.file_snapshots().incoming(VB).expect("there is a place");
    world.bucket.roles().fill_with_file(VB, &file)
}

/// All that a store has of the vBucket: seqno, revision, CAS and value by key, prepares included.
fn content(store: &dyn KvStore) -> BTreeMap<Vec<u8>, (u64, u64, u64, Vec<u8>)> {
    let mut content = BTreeMap::new();
    let Some(snapshot) = store.snapshot(VB).expect("readable") else { return content };
    let scanned = snapshot.scan_all(Seqno(0), Values::Read, &mut |version| {
        let meta = version.meta();
        let entry = (meta.by_seqno.0, meta.rev_seqno.0, meta.cas.0, version.value().to_vec());
        content.insert(version.stored_key().to_vec(), entry);
        ControlFlow::Continue(())
    });
    scanned.expect("readable");
    content
}

fn stats(world: &World) -> (VbState, u64, u64, u64, u64) {
    let stats = world.bucket.vbucket_stats(VB).expect("it is there");
    (stats.state, stats.high_seqno.0, stats.persisted_seqno.0, stats.documents, stats.tombstones)
}

fn check_filled(world: &World, source: &World) {
    let (_, high, _, documents, tombstones) = stats(source);
    assert_eq!(stats(world), (VbState::Replica, high, high, documents, tombstones));
    let position = world.bucket.replicas().replica_position(VB).expect("a replica");
    assert_eq!((position.start.0, position.snapshot_end.0), (high, high), "between two snapshots");
    assert_eq!(histories(world), histories(source));
    let of = |world: &World| {
        let of = |vb: &vbucket::VBucket| {
            let writes = vb.sync_writes();
            (
                writes.prepares_in_flight(),
                writes.high_completed_seqno(),
                vb.max_visible_seqno(),
                vb.purge_seqno(),
            )
        };
        world.bucket.inspect(VB, of).expect("there is one")
    };
    assert_eq!(of(world), of(source));
    assert_eq!(
        world.bucket.durability().replica_prepared(VB),
        Some(Seqno(high)),
        "it acknowledges the prepare"
    );
}

fn a_replica_has_the_file(store: Store) {
    let source = source(store);
    let bytes = image(&source);
    let (env, handles) = Env::sim(6);
    let world = replica(env.clone(), handles, store, &source);
    assert!(matches!(fill(&world), Err(FileFillFailure::NoFile)));
    arrive(&world, &env, &bytes);
    let (_, high, ..) = stats(&source);
    assert_eq!(fill(&world).expect("filled"), Seqno(high));
    check_filled(&world, &source);
    let found = world.bucket.documents().get_replica(VB, doc("k41"), world.now());
    assert_eq!(found.expect("its value is in memory").version.value(), b"value ");
    assert!(matches!(fill(&world), Err(FileFillFailure::NoFile)), "the file is gone");
    arrive(&world, &env, &bytes);
    assert!(matches!(fill(&world), Err(FileFillFailure::Changed)), "it has changes");
    assert!(!env.disk.read_dir("/data/test/downloads".as_ref()).is_ok_and(|names| !names.is_empty()));
    // Saved, compacted and opened again it is what it was, and becomes active with all of it.
    assert!(world.bucket.flushing().flush_all());
    let World { env, handles, bucket } = world;
    bucket.close().expect("closed");
    drop(bucket);
    let world = stores::open(env, handles, store, |_| {});
    check_filled(&world, &source);
    assert_eq!(content(&*store(&world.env)), content(&*store(&source.env)));
    world.bucket.roles().set_vbucket_state(VB, VbState::Active, topology(r#"[["n_1"]]"#)).expect("set");
    assert_eq!(world.get("prepared"), Ok("v".to_owned()), "it commits what it has");
    assert_eq!(world.get("k0"), Err(Refusal::NotFound));
    assert_eq!(world.get("k299").map(|value| value.len()), Ok(299 % 40 * 6));
}

#[test]
fn a_replica_has_the_file_in_its_files() {
    a_replica_has_the_file(stores::files);
}

#[test]
fn a_replica_has_the_file_behind_a_journal() {
    a_replica_has_the_file(stores::journaled);
}

fn nothing_or_all(store: Store) {
    let source = source(store);
    let bytes = image(&source);
    let (env, handles) = Env::sim(7);
    let world = replica(env.clone(), handles, store, &source);
    arrive(&world, &env, &bytes);
    world.handles.disk.record();
    fill(&world).expect("filled");
    let filled_at = world.handles.disk.changes();
    assert!(world.bucket.flushing().flush_all(), "its role is saved again");
    let recording = world.handles.disk.recording().expect("recorded");
    let expected = content(&*store(&source.env));
    let (mut replay, mut whole, mut empty) = (recording.replay(), 0, 0);
    loop {
        let survivals = [Survival::Synced, Survival::Everything, Survival::Seeded(3), Survival::Seeded(8)];
        let disks = survivals.map(|survival| replay.image(survival));
        for disk in disks.into_iter().chain([replay.killed()]) {
            let found = content(&*store(&world.handles.with_disk(disk.clone()).env()));
            assert!(found.is_empty() || found == expected, "{} of {}", found.len(), expected.len());
            assert!(!found.is_empty() || (replay.done() as u64) < filled_at, "it was filled");
            (whole, empty) = (whole + u32::from(!found.is_empty()), empty + u32::from(found.is_empty()));
            let handles = world.handles.with_disk(disk);
            let again = stores::open(handles.env(), handles, store, |_| {});
            let (state, high, ..) =
                again.bucket.vbucket_stats(VB).map_or((VbState::Dead, 0, 0, 0, 0), |_| stats(&again));
            assert!(state != VbState::Active, "no crash makes it active");
            assert_eq!(high > 0, !found.is_empty());
        }
        if !replay.step() {
            break;
        }
    }
    assert!(whole > 5 && empty > 5, "{whole} {empty}");
}

#[test]
fn a_crash_leaves_nothing_or_all_of_it_in_files() {
    nothing_or_all(stores::files);
}

#[test]
fn a_crash_leaves_nothing_or_all_of_it_behind_a_journal() {
    nothing_or_all(stores::journaled);
}

#[test]
fn a_file_that_is_not_that_of_the_history_is_not_used() {
    let source = source(stores::journaled);
    let bytes = image(&source);
    let (env, handles) = Env::sim(8);
    let world = stores::open(env.clone(), handles, stores::journaled, |_| {});
    world.bucket.roles().set_vbucket_state(VB, VbState::Replica, None).expect("set");
    arrive(&world, &env, &bytes);
    assert!(matches!(fill(&world), Err(FileFillFailure::Changed)), "another history");
    assert_eq!(stats(&world).1, 0);
    let expected = content(&*stores::journaled(&source.env));
    // The value that was written last is there: only who reads all of the file sees that it is damaged.
    let value = bytes.windows(6).rposition(|text| text == b"value ").expect("it begins as it is");
    // Bits in the middle: of a node or a body.
    for at in [bytes.len() / 3, bytes.len() / 2, bytes.len() * 2 / 3, value] {
        let (env, handles) = Env::sim(9);
        let world = replica(env.clone(), handles, stores::journaled, &source);
        let mut flipped = bytes.clone();
        flipped[at] ^= 4;
        arrive(&world, &env, &flipped);
        let outcome = fill(&world);
        if outcome.is_err() {
            // It was seen before anything of the vBucket changed: it is dead if its file is found out later.
            assert_eq!(stats(&world), (VbState::Replica, 0, 0, 0, 0), "{outcome:?}");
            continue;
        }
        assert_ne!(at, value, "a damaged value is refused");
        // Some bytes belong to nodes that later ones replaced.
        check_filled(&world, &source);
        assert_eq!(content(&*stores::journaled(&env)), expected);
    }
}

#[test]
fn a_file_that_was_not_taken_is_on_record_no_more_when_it_is_removed() {
    let source = source(stores::journaled);
    let bytes = image(&source);
    let mut failed = 0;
    for on in [On::Changes, On::Kind(Call::Sync)] {
        for nth in 1.. {
            let (env, handles) = Env::sim(13);
            let world = replica(env.clone(), handles, stores::journaled, &source);
            arrive(&world, &env, &bytes);
            world.handles.disk.plan(Fault::once(on, nth, Effect::IO_ERROR));
            let outcome = fill(&world);
            let was_struck = world.handles.disk.was_struck();
            world.handles.disk.heal();
            // The filer looks before anything is saved; then the process is killed.
            (0..3).for_each(|_| {
                let _ = world.bucket.flushing().file_step();
            });
            let World { env, handles, bucket } = world;
            drop(bucket);
            let again = stores::open(env, handles, stores::journaled, |_| {});
            let unreadable = again.bucket.unreadable();
            assert!(unreadable.is_empty(), "{on:?} {nth}: {outcome:?}, {unreadable:?}");
            failed += u32::from(outcome.is_err());
            if !was_struck {
                break;
            }
        }
    }
    assert!(failed > 3, "{failed}");
}

/// Nothing goes on with a part that came before the bucket was opened; a whole file that a client ordered is used later.
#[test]
fn parts_of_files_are_gone_when_the_bucket_is_opened_again() {
    let (env, handles) = Env::sim(7);
    let world = stores::open(env.clone(), handles.clone(), stores::files, |_| {});
    let place = |vb: u16, name: &str| {
        let file = world.bucket.file_snapshots().incoming(base::VbId(vb)).expect("there is a place");
        env.disk.create_dir_all_synced(file.folder()).expect("made");
        let path = if name.is_empty() { file.path() } else { file.folder().join(name) };
        env.disk.open(&path, OpenMode::Create).expect("made");
        path
    };
    let (alone, beside, whole) = (place(0, "a.part"), place(1, "b.part"), place(1, ""));
    let folder = alone.parent().expect("it has one").to_owned();
    drop(world);
    stores::open(env.clone(), handles, stores::files, |_| {});
    let names = |folder: &std::path::Path| env.disk.read_dir(folder).unwrap_or_default();
    assert_eq!(names(&folder), Vec::<String>::new());
    let left = names(beside.parent().expect("it has one"));
    assert_eq!(left.len(), 1, "{left:?}");
    assert!(whole.ends_with(&left[0]));
}

/// Documents of a collection that was dropped are in the file, and hidden: they leave the disk of the replica, too.
#[test]
fn what_is_dropped_in_a_file_is_erased() {
    let source = source(stores::files);
    let scope = Scope { id: ScopeId(0), name: "_default".into() };
    let empty = Manifest::new(ManifestUid(1), [scope], []).expect("it is valid");
    source.bucket.collections().set_manifest(empty).expect("it follows");
    assert!(source.bucket.flushing().flush_all());
    let bytes = image(&source);
    let (env, handles) = Env::sim(6);
    let world = replica(env.clone(), handles, stores::files, &source);
    // It has looked at what it has before the file comes.
    let chores = || {
        world.handles.clock.advance(Duration::from_secs(2));
        while world.bucket.maintenance().keep_step() {}
        while world.bucket.compaction().compact_step() != Progress::Idle {}
        assert!(world.bucket.flushing().flush_all());
    };
    chores();
    arrive(&world, &env, &bytes);
    fill(&world).expect("filled");
    let dropped =
        || world.bucket.with_vbucket(VB, |vb| vb.collections().dropped().len()).expect("it is there");
    assert_eq!(dropped(), 1);
    (0..50).for_each(|_| chores());
    assert_eq!(dropped(), 0, "nothing of it is left");
}

#[test]
fn a_rollback_goes_back_to_no_commit_of_the_other_node() {
    for store in [stores::files as Store, stores::journaled] {
        let source = source(store);
        let bytes = image(&source);
        let (env, handles) = Env::sim(10);
        let world = replica(env.clone(), handles, store, &source);
        arrive(&world, &env, &bytes);
        let high = fill(&world).expect("filled");
        let to =
            world.bucket.roles().rollback(VB, Seqno(high.0 - 1)).expect("a replica").expect("the disk works");
        assert_eq!(to, Seqno(0), "it has one commit of its own");
        assert_eq!(stats(&world), (VbState::Replica, 0, 0, 0, 0));
        arrive(&world, &env, &bytes);
        let position = world.bucket.replicas().replica_position(VB).expect("a replica");
        world.bucket.replicas().adopt_failover(&position, histories(&source)).expect("it stands there");
        assert_eq!(fill(&world).expect("filled again"), high);
        check_filled(&world, &source);
    }
}

#[test]
fn a_file_is_stored_under_the_keys_of_the_node() {
    let source = source(stores::journaled);
    let bytes = image(&source);
    let (plain, handles) = Env::sim(11);
    let env = EncryptedDisk::env(&plain, DataKeys::ephemeral(&plain));
    let world = replica(env.clone(), handles, stores::journaled, &source);
    arrive(&world, &env, &bytes);
    fill(&world).expect("filled");
    check_filled(&world, &source);
    assert_eq!(content(&*stores::journaled(&env)), content(&*stores::journaled(&source.env)));
    for (path, stored) in world.handles.disk.contents() {
        let has = |text: &[u8]| stored.windows(text.len()).any(|window| window == text);
        assert!(!has(b"value value") && !has(b"vbstate"), "{} is in clear", path.display());
    }
}

/// A document that the producer sends instead.
fn send_one(world: &World, source: &World) {
    let position = world.bucket.replicas().replica_position(VB).expect("a replica");
    let stream =
        world.bucket.replicas().adopt_failover(&position, histories(source)).expect("it stands there");
    let snapshot = IncomingSnapshot { start: Seqno(0), end: Seqno(1), ..IncomingSnapshot::default() };
    world.bucket.replicas().begin_snapshot(stream, &snapshot).expect("it follows");
    let (cas, by_seqno, rev_seqno) = (Cas(1 << 16), Seqno(1), RevSeqno(1));
    let meta = VersionMeta { cas, by_seqno, rev_seqno, ..VersionMeta::default() };
    let version = world.bucket.replicas().received(meta, doc("sent"), b"v").expect("well formed");
    let mut changes = vec![Incoming::Version(version)];
    world.bucket.replicas().apply_replicated(stream, &mut changes).expect("in order");
}

/// The disk refuses one call: what the replica has then is what a restart finds, and documents take its place.
fn refused(store: Store, source: &World, bytes: &[u8], fault: Fault) -> Option<bool> {
    let expected = content(&*store(&source.env));
    let (env, handles) = Env::sim(12);
    let world = replica(env.clone(), handles, store, source);
    arrive(&world, &env, bytes);
    world.handles.disk.plan(fault);
    let outcome = fill(&world);
    let was_struck = world.handles.disk.was_struck();
    world.handles.disk.heal();
    let (state, high, ..) = stats(&world);
    assert!(outcome.is_ok() == (high > 0), "{fault:?}: {outcome:?} {high}");
    let is_replica = state == VbState::Replica;
    if outcome.is_err() && is_replica {
        send_one(&world, source);
    }
    assert!(world.bucket.flushing().flush_all());
    let World { env, handles, bucket } = world;
    drop(bucket);
    let again = stores::open(env, handles, store, |_| {});
    let found = content(&*store(&again.env));
    match (&outcome, is_replica) {
        (Ok(_), _) => assert_eq!(found, expected, "{fault:?}"),
        (Err(_), true) => assert_eq!(found.len(), 1, "{fault:?}: documents and nothing else"),
        // It could not be read behind the switch: nothing was lost, and the next start reads it.
        (Err(_), false) => assert!(found.is_empty() || found == expected, "{fault:?}"),
    }
    was_struck.then(|| outcome.is_ok())
}

fn each_call_is_refused(store: Store) {
    let source = source(store);
    let bytes = image(&source);
    let (mut failed, mut filled) = (0, 0);
    for (on, step) in [(On::Changes, 1), (On::Kind(Call::Read), 7), (On::Kind(Call::Len), 1)] {
        for nth in (1..).step_by(step) {
            match refused(store, &source, &bytes, Fault::once(on, nth, Effect::IO_ERROR)) {
                Some(true) => filled += 1,
                Some(false) => failed += 1,
                None => break,
            }
        }
    }
    assert!(failed > 10 && filled > 0, "{failed} {filled}");
}

#[test]
fn a_disk_that_refuses_leaves_nothing_or_all_in_files() {
    each_call_is_refused(stores::files);
}

#[test]
fn a_disk_that_refuses_leaves_nothing_or_all_behind_a_journal() {
    each_call_is_refused(stores::journaled);
}
