//! Prepares of collections that are dropped: they end with their collection, in memory and on disk, wherever they are.

mod common;

use std::ops::ControlFlow;
use std::time::Duration;

use base::env::Env;
use base::{
    Cas, CollectionId, DocKey, DurabilityLevel, RevSeqno, ScopeId, Seqno, SyncWrite, VbState, VbUuid,
    VersionMeta,
};
use common::stores::{self, files, journaled};
use common::{VB, World, outcome, set, topology};
use engine::{Durable, Incoming, Mutated, Progress, Refusal, ReplicaStream, SyncOutcome};
use kvstore::Values;
use vbucket::{Collection, FailoverEntry, IncomingSnapshot, Manifest, ManifestUid, Scope, SystemEvent};

const A: CollectionId = CollectionId(8);
const DEFAULT: CollectionId = CollectionId::DEFAULT;
const MAJORITY: DurabilityLevel = DurabilityLevel::Majority;

type Store = fn(&Env) -> std::sync::Arc<dyn kvstore::KvStore>;
const STORES: [(&str, Store); 2] = [("files", files), ("journal", journaled)];

fn collection(id: CollectionId) -> Collection {
    let name = if id == DEFAULT { "_default".into() } else { "a".into() };
    Collection { id, scope: ScopeId(0), name, max_ttl_s: None, history: None }
}

fn manifest(uid: u64, collections: &[CollectionId]) -> Manifest {
    let scope = Scope { id: ScopeId(0), name: "_default".into() };
    let collections = collections.iter().map(|id| collection(*id));
    Manifest::new(ManifestUid(uid), [scope], collections).expect("it is valid")
}

fn key(collection: CollectionId, name: &str) -> DocKey<'_> {
    DocKey { collection, key: name.as_bytes() }
}

fn open(store: Store) -> World {
    let (env, handles) = Env::sim(1);
    stores::open(env, handles, store, |_| {})
}

fn become_active(world: &World, chain: &str) {
    world.bucket.roles().set_vbucket_state(VB, VbState::Active, topology(chain)).expect("there is one");
}

fn prepare(world: &World, collection: CollectionId, name: &str) -> Mutated {
    let durable = Durable { level: MAJORITY, timeout: Duration::from_secs(3600) };
    world
        .bucket
        .documents()
        .durably(Some(durable))
        .store(VB, &set(key(collection, name), "new"), world.now())
        .expect("prepared")
}

fn in_flight(world: &World) -> usize {
    world.bucket.inspect(VB, |vb| vb.sync_writes().prepares_in_flight()).expect("there is one")
}

fn read(world: &World, collection: CollectionId, name: &str) -> Result<Vec<u8>, Refusal> {
    let found = world.bucket.documents().get(VB, key(collection, name), world.now())?;
    Ok(found.version.value().to_vec())
}

/// Runs what runs in the background until nothing dropped is left.
fn erase(world: &World) {
    for _ in 0..50 {
        assert!(world.bucket.flushing().flush_all());
        world.handles.clock.advance(Duration::from_secs(2));
        while world.bucket.maintenance().keep_step() {}
        while world.bucket.compaction().compact_step() != Progress::Idle {}
        if world.bucket.inspect(VB, |vb| vb.collections().dropped().is_empty()) == Some(true) {
            return;
        }
    }
    panic!("what is dropped is never erased");
}

/// Documents, prepares and aborts that the disk has, by collection and key, without those that are over.
fn on_disk(world: World, store: Store) -> (World, Vec<(u32, String)>) {
    let World { env, handles, bucket } = world;
    assert!(bucket.flushing().flush_all());
    drop(bucket);
    let mut all = Vec::new();
    let snapshot = store(&env).snapshot(VB).expect("the disk works").expect("it is saved");
    let scanned = snapshot.scan_all(Seqno(0), Values::Leave, &mut |version| {
        let document = version.document_key();
        if document.collection != CollectionId::SYSTEM {
            all.push((document.collection.0, String::from_utf8_lossy(document.key).into_owned()));
        }
        ControlFlow::Continue(())
    });
    scanned.expect("the disk works");
    drop(snapshot);
    (stores::open(env, handles, store, |_| {}), all)
}

#[test]
fn on_an_active_vbucket_they_are_aborted_and_leave_the_disk() {
    for (name, store) in STORES {
        let world = open(store);
        world.bucket.collections().set_manifest(manifest(1, &[DEFAULT, A])).expect("it follows");
        become_active(&world, r#"[["n_0","n_1"]]"#);
        let first = prepare(&world, A, "first");
        let kept = prepare(&world, DEFAULT, "kept");
        let last = prepare(&world, A, "last");
        assert!(world.bucket.flushing().flush_all());
        world.bucket.collections().set_manifest(manifest(2, &[DEFAULT])).expect("it follows");
        let high = world.bucket.with_vbucket(VB, |vb| vb.high_seqno());
        erase(&world);
        assert_eq!(
            [&first, &kept, &last].map(outcome),
            [Some(SyncOutcome::Aborted), None, Some(SyncOutcome::Aborted)],
            "{name}"
        );
        assert_eq!(world.bucket.with_vbucket(VB, |vb| vb.high_seqno()), high, "no abort is needed");
        assert_eq!(in_flight(&world), 1);
        // A collection that begins anew under the same id is another one.
        world.bucket.collections().set_manifest(manifest(3, &[DEFAULT, A])).expect("it follows");
        world.bucket.durability().acknowledged(VB, "n_1", high.expect("there is one"));
        assert_eq!((outcome(&kept), in_flight(&world)), (Some(SyncOutcome::Committed), 0), "{name}");
        assert_eq!(read(&world, A, "first"), Err(Refusal::NotFound));
        let (world, found) = on_disk(world, store);
        let of_a = found.iter().filter(|(collection, _)| *collection == A.0).count();
        assert_eq!((of_a, in_flight(&world)), (0, 0), "{name}: {found:?}");
        assert_eq!(read(&world, DEFAULT, "kept"), Ok(b"new".to_vec()));
    }
}

#[test]
fn they_are_not_loaded_and_not_committed_when_a_collection_begins_anew_before_they_are_erased() {
    for (name, store) in STORES {
        let world = open(store);
        world.bucket.collections().set_manifest(manifest(1, &[DEFAULT, A])).expect("it follows");
        become_active(&world, r#"[["n_0","n_1"]]"#);
        let pending = prepare(&world, A, "k");
        world.bucket.collections().set_manifest(manifest(2, &[DEFAULT])).expect("it follows");
        world.bucket.collections().set_manifest(manifest(3, &[DEFAULT, A])).expect("it follows");
        assert!(world.bucket.flushing().flush_all());
        let (world, _) = on_disk(world, store);
        assert_eq!(
            (outcome(&pending), in_flight(&world)),
            (Some(SyncOutcome::Aborted), 0),
            "{name}: not loaded"
        );
        drop(world);

        let world = open(store);
        world.bucket.collections().set_manifest(manifest(1, &[DEFAULT, A])).expect("it follows");
        become_active(&world, r#"[["n_0","n_1"]]"#);
        let pending = prepare(&world, A, "k");
        world.bucket.collections().set_manifest(manifest(2, &[DEFAULT])).expect("it follows");
        world.bucket.collections().set_manifest(manifest(3, &[DEFAULT, A])).expect("it follows");
        become_active(&world, r#"[["n_0"]]"#);
        assert_eq!((outcome(&pending), in_flight(&world)), (Some(SyncOutcome::Aborted), 0), "{name}");
        assert_eq!(read(&world, A, "k"), Err(Refusal::NotFound), "{name}");
    }
}

struct Replica {
    world: World,
    stream: ReplicaStream,
}

impl Replica {
    fn new(store: Store) -> Replica {
        let world = open(store);
        world.bucket.roles().set_vbucket_state(VB, VbState::Replica, None).expect("there is one");
        let position = world.bucket.replicas().replica_position(VB).expect("it is a replica");
        let log = vec![FailoverEntry { uuid: VbUuid(7), seqno: Seqno(0) }];
        let stream = world.bucket.replicas().adopt_failover(&position, log).expect("it stands there");
        Replica { world, stream }
    }

    /// A snapshot of one change.
    fn apply(&self, seqno: u64, change: Incoming) {
        let (start, end) = (Seqno(seqno - 1), Seqno(seqno));
        let snapshot =
            IncomingSnapshot { start, end, begins_checkpoint: true, ..IncomingSnapshot::default() };
        self.world.bucket.replicas().begin_snapshot(self.stream, &snapshot).expect("it fits");
        self.world.bucket.replicas().apply_replicated(self.stream, &mut vec![change]).expect("it fits");
    }

    fn event(&self, seqno: u64, event: &SystemEvent) {
        let event = self.world.bucket.replicas().received_event(event, Seqno(seqno), Cas(seqno << 16));
        self.apply(seqno, Incoming::Version(event.expect("it is sound")));
    }

    fn prepare(&self, seqno: u64, collection: CollectionId, name: &str) {
        let meta = VersionMeta {
            cas: Cas(seqno << 16),
            by_seqno: Seqno(seqno),
            rev_seqno: RevSeqno(1),
            sync_write: SyncWrite::Prepare(MAJORITY),
            ..VersionMeta::default()
        };
        let prepare =
            self.world.bucket.replicas().received(meta, key(collection, name), b"new").expect("it is sound");
        self.apply(seqno, Incoming::Version(prepare));
    }
}

#[test]
fn on_a_replica_they_end_with_the_event_that_drops_their_collection() {
    for (name, store) in STORES {
        let replica = Replica::new(store);
        replica
            .event(1, &SystemEvent::CollectionBegin { manifest: ManifestUid(1), collection: collection(A) });
        replica.prepare(2, A, "first");
        replica.prepare(3, DEFAULT, "kept");
        replica.prepare(4, A, "last");
        assert!(replica.world.bucket.flushing().flush_all());
        // The eraser has looked, and found nothing.
        while replica.world.bucket.maintenance().keep_step() {}
        assert_eq!(in_flight(&replica.world), 3);
        let (manifest, scope) = (ManifestUid(2), ScopeId(0));
        replica.event(5, &SystemEvent::CollectionEnd { manifest, scope, id: A });
        erase(&replica.world);
        assert_eq!(in_flight(&replica.world), 1, "{name}");
        assert_eq!(replica.world.bucket.durability().replica_prepared(VB), Some(Seqno(4)), "{name}");
        let (world, found) = on_disk(replica.world, store);
        assert_eq!(found, [(0, "kept".to_owned())], "{name}");
        become_active(&world, r#"[["n_0"]]"#);
        assert_eq!(in_flight(&world), 0);
        assert_eq!(read(&world, DEFAULT, "kept"), Ok(b"new".to_vec()), "{name}");
    }
}
