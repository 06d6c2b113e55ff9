//! Collections: documents that are apart, manifests that every vBucket takes over, and what is dropped.

mod common;

use std::sync::Arc;
use std::time::Duration;

use base::env::{Env, SimHandles};
use base::{Cas, CollectionId, Datatype, DocKey, Part, ScopeId, Seqno, VbState};
use common::VB;
use common::stores::{files, journaled};
use engine::settings::Key;
use engine::{
    Bucket, BucketConfig, BucketKind, CollectionTotals, CounterRequest, EvictionPolicy, Fetched,
    ManifestRefusal, Progress, Refusal, StoreMode, StoreRequest,
};
use kvstore::{KvStore, Nothing};
use vbucket::collections::manifest::SuccessorRefusal;
use vbucket::{Collection, Manifest, ManifestUid, Scope};

/// Named collections of the tests, in one scope.
const A: CollectionId = CollectionId(8);
const B: CollectionId = CollectionId(9);
const DEFAULT: CollectionId = CollectionId::DEFAULT;
/// Nobody makes it.
const NONE: CollectionId = CollectionId(77);

/// What kind of bucket.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Files,
    Journaled,
    FullEviction,
    Ephemeral,
}

const ALL: [Kind; 4] = [Kind::Files, Kind::Journaled, Kind::FullEviction, Kind::Ephemeral];
const ON_DISK: [Kind; 3] = [Kind::Files, Kind::Journaled, Kind::FullEviction];

struct World {
    env: Env,
    handles: SimHandles,
    kind: Kind,
    bucket: Bucket,
}

fn open(env: &Env, kind: Kind) -> Bucket {
    let mut config = BucketConfig::new("test", "/data/test".into());
    config.vbuckets = 8;
    let store: Arc<dyn KvStore> = match kind {
        Kind::Files => files(env),
        Kind::Journaled => journaled(env),
        Kind::FullEviction => {
            config.settings.put(Key::EvictionPolicy, EvictionPolicy::Full as u64);
            journaled(env)
        }
        Kind::Ephemeral => {
            config.kind = BucketKind::Ephemeral;
            Arc::new(Nothing)
        }
    };
    Bucket::open(config, env.clone(), store).expect("the disk works")
}

/// A manifest of these collections, all but the default one in a scope of their own.
fn manifest(uid: u64, collections: &[(CollectionId, Option<u32>)]) -> Manifest {
    let scopes = [(0, "_default"), (8, "s")].map(|(id, name)| Scope { id: ScopeId(id), name: name.into() });
    let collections = collections.iter().map(|(id, max_ttl_s)| {
        let is_default = *id == DEFAULT;
        let name = if is_default { "_default".into() } else { format!("c{id}") };
        let scope = ScopeId(if is_default { 0 } else { 8 });
        Collection { id: *id, scope, name, max_ttl_s: *max_ttl_s, history: None }
    });
    Manifest::new(ManifestUid(uid), scopes, collections).expect("it is valid")
}

fn key(collection: CollectionId, name: &str) -> DocKey<'_> {
    DocKey { collection, key: name.as_bytes() }
}

impl World {
    fn new(kind: Kind) -> World {
        let (env, handles) = Env::sim(1);
        let bucket = open(&env, kind);
        World { env, handles, kind, bucket }
    }

    /// With the default collection, A and B.
    fn with_collections(kind: Kind) -> World {
        let world = World::new(kind);
        world.take(1, &[(DEFAULT, None), (A, None), (B, None)]);
        world
    }

    fn restart(self) -> World {
        let World { env, handles, kind, bucket } = self;
        drop(bucket);
        let bucket = open(&env, kind);
        World { env, handles, kind, bucket }
    }

    fn take(&self, uid: u64, collections: &[(CollectionId, Option<u32>)]) {
        self.bucket.collections().set_manifest(manifest(uid, collections)).expect("it follows");
    }

    fn set_for(&self, collection: CollectionId, name: &str, expiry: u32) -> Result<Seqno, Refusal> {
        let request = StoreRequest {
            key: key(collection, name),
            body: name.as_bytes(),
            datatype: Datatype::RAW,
            flags: 0,
            expiry,
            mode: StoreMode::Set,
            cas: Cas::ANY,
            preserve_expiry: false,
        };
        self.bucket.documents().store(VB, &request, self.bucket.now()).map(|mutated| mutated.seqno)
    }

    fn set(&self, collection: CollectionId, name: &str) -> Seqno {
        self.set_for(collection, name, 0).expect("stored")
    }

    /// Looks again when something had to come from the disk.
    fn get(&self, collection: CollectionId, name: &str) -> Result<u32, Refusal> {
        let mut held = None;
        loop {
            match self.bucket.documents().get(VB, key(collection, name), self.bucket.now()) {
                Err(Refusal::NotResident) => {
                    let fetch = self.bucket.fetching().fetch(VB, key(collection, name)).expect("few wait");
                    while held.is_none() || fetch.try_take().is_none() {
                        if self.bucket.fetching().fetch_step() == Progress::Idle {
                            break;
                        }
                        held = Some(Fetched::Look(None));
                    }
                }
                found => return found.map(|found| found.version.meta().expiry),
            }
        }
    }

    /// Documents that clients may see, by collection.
    fn documents(&self) -> Vec<(u32, u64)> {
        self.totals().iter().map(|(id, totals)| (id.0, totals.documents)).collect()
    }

    fn totals(&self) -> Vec<(CollectionId, CollectionTotals)> {
        self.bucket.collections().collection_totals()
    }

    fn stats_documents(&self) -> u64 {
        self.bucket.vbucket_stats(VB).expect("it is there").documents
    }

    fn dropped(&self) -> usize {
        self.bucket.with_vbucket(VB, |vb| vb.collections().dropped().len()).expect("it is there")
    }

    /// Runs what runs in the background until nothing dropped is left.
    fn erase(&self) {
        for _ in 0..50 {
            assert!(self.kind == Kind::Ephemeral || self.bucket.flushing().flush_all());
            self.handles.clock.advance(Duration::from_secs(2));
            while self.bucket.maintenance().keep_step() {}
            while self.kind != Kind::Ephemeral && self.bucket.compaction().compact_step() != Progress::Idle {}
            if self.dropped() == 0 {
                return;
            }
        }
        panic!("{:?}: what is dropped is never erased", self.kind);
    }

    /// What the tables hold, counted one by one, is what the counts say.
    fn check_counts(&self) {
        self.bucket.with_vbucket(VB, |vb| {
            for one in vb.collections().open() {
                let live = |of: &base::Version| of.key().collection == one.id && !of.is_deleted();
                let counted = vb.table().iter().filter(|of| live(of)).count() as u64;
                let bytes = vb.table().iter().filter(|of| of.key().collection == one.id);
                let bytes: u64 = bytes.map(|of| of.allocated_bytes() as u64).sum();
                let held = vb.held_by(one.id);
                assert_eq!((held.in_memory, held.bytes), (counted, bytes), "{:?} {}", self.kind, one.id);
            }
        });
    }
}

#[test]
fn documents_of_collections_are_apart() {
    for kind in ALL {
        let world = World::with_collections(kind);
        for collection in [DEFAULT, A] {
            world.set(collection, "k");
        }
        assert_eq!(world.get(A, "k"), Ok(0));
        assert_eq!(world.get(B, "k"), Err(Refusal::NotFound));
        let deleted = world.bucket.documents().delete(VB, key(A, "k"), Cas::ANY, world.bucket.now());
        assert!(deleted.is_ok());
        assert_eq!((world.get(A, "k"), world.get(DEFAULT, "k")), (Err(Refusal::NotFound), Ok(0)));
        assert_eq!(world.documents(), [(0, 1), (8, 0), (9, 0)]);
        world.check_counts();
        let totals = world.totals();
        let of = |id: CollectionId| totals.iter().find(|(of, _)| *of == id).expect("it is there").1.ops;
        assert_eq!((of(A).gets, of(A).stores, of(A).deletes), (2, 1, 1), "{kind:?}");
        assert_eq!((of(DEFAULT).gets, of(DEFAULT).stores, of(B).gets), (1, 1, 1), "{kind:?}");
        assert!(totals.iter().all(|(id, of)| (of.memory_bytes > 0) == (*id != B)));
    }
}

#[test]
fn an_unknown_collection_refuses_everything() {
    let world = World::with_collections(Kind::Files);
    let (bucket, now, unknown) = (&world.bucket, world.bucket.now(), key(NONE, "k"));
    let refused = Err(Refusal::UnknownCollection);
    assert_eq!(world.set_for(NONE, "k", 0).map(drop), refused);
    assert_eq!(bucket.documents().get(VB, unknown, now).map(drop), refused);
    assert_eq!(bucket.documents().peek(VB, unknown, now).map(drop), refused);
    assert_eq!(bucket.documents().peek_as_is(VB, unknown, now).map(drop), refused);
    assert_eq!(bucket.documents().touch(VB, unknown, 1, now).map(drop), refused);
    assert_eq!(bucket.documents().delete(VB, unknown, Cas::ANY, now).map(drop), refused);
    assert_eq!(bucket.documents().get_and_lock(VB, unknown, 1, now).map(drop), refused);
    assert_eq!(bucket.documents().unlock(VB, unknown, Cas(1), now), refused);
    let request = CounterRequest {
        key: unknown,
        increment: true,
        delta: 1,
        initial: Some(1),
        expiry: 0,
        preserve_expiry: false,
    };
    assert_eq!(bucket.documents().count(VB, &request, now).map(drop), refused);
}

#[test]
fn a_collections_max_ttl_comes_before_the_buckets() {
    let world = World::new(Kind::Files);
    world.bucket.settings().put(Key::MaxTtl, 1000);
    world.take(1, &[(DEFAULT, None), (A, Some(10)), (B, Some(0))]);
    let now_s = world.bucket.now().unix_s();
    for (collection, sent, expected) in [
        (DEFAULT, 0, now_s + 1000),
        (A, 0, now_s + 10),
        (A, 5, now_s + 5),
        (A, 500, now_s + 10),
        (B, 0, 0),
        (B, 5000, now_s + 5000),
    ] {
        world.set_for(collection, "k", sent).expect("stored");
        assert_eq!(world.get(collection, "k"), Ok(expected), "{collection} {sent}");
    }
    let touched = world.bucket.documents().touch(VB, key(A, "k"), 500, world.bucket.now());
    assert!(touched.is_ok());
    assert_eq!(world.get(A, "k"), Ok(now_s + 10));
    world.take(2, &[(DEFAULT, None), (A, Some(20)), (B, Some(0))]);
    world.set(A, "k");
    assert_eq!(world.get(A, "k"), Ok(now_s + 20));
}

#[test]
fn manifest_changes_wait_for_the_disk_like_others() {
    let (env, handles) = Env::sim(1);
    let mut config = BucketConfig::new("test", "/data/test".into());
    config.vbuckets = 64;
    config.quota_bytes = 8 << 20;
    let bucket = Bucket::open(config, env.clone(), journaled(&env)).expect("the disk works");
    let many: Vec<_> = (8..108).map(|id| (CollectionId(id), None)).collect();
    let all = [&[(DEFAULT, None)], &many[..]].concat();
    let mut most_bytes = 0;
    let refused = (1..100).find(|uid| {
        let collections = if uid % 2 == 1 {
            let shift = *uid as u32 * 100;
            all.iter()
                .map(|(id, ttl)| (if *id == DEFAULT { *id } else { CollectionId(id.0 + shift) }, *ttl))
                .collect()
        } else {
            vec![(DEFAULT, None)]
        };
        let before = bucket.memory().used_bytes();
        let changed = bucket.collections().set_manifest(manifest(*uid, &collections));
        most_bytes = most_bytes.max(bucket.memory().used_bytes() - before);
        matches!(changed, Err(ManifestRefusal::Full))
    });
    let uid = refused.expect("some change finds no room");
    let (used, quota) = (bucket.memory().used_bytes(), bucket.memory().quota_bytes());
    assert!(used <= quota + most_bytes, "{used} of {quota}");
    for _ in 0..50 {
        assert!(bucket.flushing().flush_all());
        handles.clock.advance(Duration::from_secs(2));
        while bucket.maintenance().keep_step() {}
        while bucket.compaction().compact_step() != Progress::Idle {}
    }
    assert!(bucket.memory().used_bytes() < quota / 2, "{} of {quota}", bucket.memory().used_bytes());
    assert!(
        bucket
            .collections()
            .set_manifest(manifest(uid + 1, &[(DEFAULT, None), (CollectionId(100_000), None)]))
            .is_ok()
    );
}

/// Each changed setting is an event of each vBucket, like a collection that is made.
#[test]
fn changed_settings_of_collections_wait_for_the_disk_too() {
    let (env, _handles) = Env::sim(1);
    let mut config = BucketConfig::new("test", "/data/test".into());
    config.vbuckets = 64;
    config.quota_bytes = 8 << 20;
    let bucket = Bucket::open(config, env.clone(), journaled(&env)).expect("the disk works");
    let with_ttl = |uid: u64| {
        let all: Vec<_> = (8..108).map(|id| (CollectionId(id), Some(uid as u32 + 1))).collect();
        manifest(uid, &[&[(DEFAULT, None)], &all[..]].concat())
    };
    let set = |uid| bucket.collections().set_manifest(with_ttl(uid));
    let refused = (1..200).find(|uid| matches!(set(*uid), Err(ManifestRefusal::Full)));
    let uid = refused.expect("some change finds no room");
    let (used, quota) = (bucket.memory().used_bytes(), bucket.memory().quota_bytes());
    assert!(used <= quota + quota / 2, "{used} of {quota}");
    // What only drops is taken even now.
    assert!(bucket.collections().set_manifest(manifest(uid, &[(DEFAULT, None)])).is_ok());
}

/// What only a larger quota would undo is refused; what makes room is not.
#[test]
fn collections_leave_room_for_documents_and_can_always_be_dropped() {
    let (env, _handles) = Env::sim(1);
    let mut config = BucketConfig::new("test", "/data/test".into());
    config.vbuckets = 64;
    config.quota_bytes = 8 << 20;
    let bucket = Bucket::open(config, env.clone(), journaled(&env)).expect("the disk works");
    let collections = |count: u32| {
        let named: Vec<_> = (8..8 + count).map(|id| (CollectionId(id), None)).collect();
        manifest(u64::from(count) + 1, &[&[(DEFAULT, None)], &named[..]].concat())
    };
    let (present, few, many) = (bucket.collections().manifest(), collections(100), collections(1_100));
    assert!(bucket.collections().check_quota(&present, &few).is_ok());
    let refused = bucket.collections().check_quota(&present, &many);
    assert!(
        matches!(
            refused,
            Err(ManifestRefusal::TooManyForQuota { collections: 1_101, scopes: 2, vbuckets: 64, .. })
        ),
        "{refused:?}"
    );
    assert!(bucket.collections().check_quota(&many, &few).is_ok(), "it makes room");
    bucket.collections().set_manifest(few).expect("there is room");
    let other = |quota_bytes| bucket.collections().check_other_quota(quota_bytes);
    assert!(
        other(1 << 20).is_ok() && matches!(other(900 << 10), Err(ManifestRefusal::TooManyForQuota { .. }))
    );
    bucket.settings().put(Key::MaxSize, 1);
    assert!(matches!(bucket.collections().set_manifest(collections(101)), Err(ManifestRefusal::Full)));
    bucket.collections().set_manifest(manifest(500, &[(DEFAULT, None)])).expect("it makes room");
}

#[test]
fn the_lists_of_collections_are_charged_and_given_back() {
    const COLLECTIONS: u32 = 300;
    let (env, handles) = Env::sim(1);
    let mut config = BucketConfig::new("test", "/data/test".into());
    config.vbuckets = 64;
    let bucket = Bucket::open(config, env.clone(), journaled(&env)).expect("the disk works");
    let other = || bucket.memory().account().exact()[Part::Other as usize] as usize;
    // What waits to be written would fill the share of the checkpoints.
    let change = |uid: u32, all: &[(CollectionId, Option<u32>)]| {
        bucket.collections().set_manifest(manifest(u64::from(uid), all)).expect("there is room");
        if uid.is_multiple_of(20) {
            assert!(bucket.flushing().flush_all());
            handles.clock.advance(Duration::from_secs(2));
            while bucket.maintenance().keep_step() {}
        }
    };
    let mut all = vec![(DEFAULT, None)];
    // With the scope of the others.
    change(1, &all);
    let before = other();
    for round in 0..3 {
        // One after the other, as applications make them.
        for n in 0..COLLECTIONS {
            all.push((CollectionId(8 + round * COLLECTIONS + n), None));
            change(2 * round * COLLECTIONS + n + 2, &all);
        }
        let charged = (other() - before) / (64 * COLLECTIONS as usize);
        assert!((64..192).contains(&charged), "{charged} bytes for a collection of a vBucket");
        for n in 0..COLLECTIONS {
            all.pop();
            change((2 * round + 1) * COLLECTIONS + n + 2, &all);
        }
        assert_eq!(other(), before, "nothing is kept for what is dropped");
    }
}

#[test]
fn manifests_follow_each_other() {
    let world = World::with_collections(Kind::Files);
    let refusal = |uid, collections: &[(CollectionId, Option<u32>)]| match world
        .bucket
        .collections()
        .set_manifest(manifest(uid, collections))
    {
        Err(ManifestRefusal::Successor(refusal)) => Some(refusal),
        Err(refusal) => panic!("{refusal}"),
        Ok(()) => None,
    };
    assert_eq!(refusal(1, &[(DEFAULT, None), (A, None), (B, None)]), None, "the same again");
    assert_eq!(refusal(1, &[(DEFAULT, None)]), Some(SuccessorRefusal::UidOutOfRange));
    assert_eq!(refusal(0, &[(DEFAULT, None)]), Some(SuccessorRefusal::UidOutOfRange));
    let high = world.bucket.with_vbucket(VB, |vb| vb.high_seqno());
    assert_eq!(high, Some(Seqno(3)), "a scope, two collections");
    // Numbers are never used twice.
    assert_eq!(refusal(2, &[(DEFAULT, None)]), None);
    let mut next = None;
    let same = world.bucket.collections().change_manifest(|present, ids| {
        next = Some((ids.scope, ids.collection));
        Ok::<_, ManifestRefusal>(present.clone())
    });
    assert!(same.is_ok());
    assert_eq!(next, Some((ScopeId(9), CollectionId(10))));
    let world = world.restart();
    let same = world.bucket.collections().change_manifest(|present, ids| {
        next = Some((ids.scope, ids.collection));
        Ok::<_, ManifestRefusal>(present.clone())
    });
    assert_eq!(same.expect("nothing changes").uid(), ManifestUid(2));
    assert_eq!(next, Some((ScopeId(9), CollectionId(10))));
}

#[test]
fn collections_are_there_after_a_restart() {
    for kind in ON_DISK {
        let world = World::with_collections(kind);
        for name in ["a", "b", "c"] {
            world.set(A, name);
        }
        world.set(DEFAULT, "a");
        assert!(world.bucket.flushing().flush_all());
        // Decided, but not on the disk of any vBucket.
        world.take(2, &[(DEFAULT, None), (A, Some(7))]);
        let mut world = world.restart();
        for _ in 0..2 {
            assert_eq!(world.bucket.collections().manifest().uid(), ManifestUid(2));
            let open = world.bucket.with_vbucket(VB, |vb| {
                let collections = vb.collections();
                assert_eq!(collections.uid(), ManifestUid(2));
                collections.open().map(|one| (one.id.0, one.max_ttl_s)).collect::<Vec<_>>()
            });
            assert_eq!(open, Some(vec![(0, None), (8, Some(7))]), "{kind:?}");
            assert_eq!(world.documents(), [(0, 1), (8, 3)], "{kind:?}");
            assert_eq!((world.get(A, "b"), world.get(B, "b")), (Ok(0), Err(Refusal::UnknownCollection)));
            world.check_counts();
            assert_eq!(world.bucket.collections().collection_seqno(VB, DEFAULT), Some(Seqno(7)));
            world.bucket.close().expect("the disk works");
            world = world.restart();
        }
    }
}

#[test]
fn what_is_dropped_is_gone_at_once_and_erased_later() {
    for kind in ALL {
        let world = World::with_collections(kind);
        for i in 0..1000 {
            world.set(A, &format!("k{i}"));
        }
        for i in 0..10 {
            world.set(DEFAULT, &format!("k{i}"));
        }
        world.bucket.documents().delete(VB, key(A, "k1"), Cas::ANY, world.bucket.now()).expect("deleted");
        if kind == Kind::FullEviction {
            assert!(world.bucket.flushing().flush_all());
            for i in 0..500 {
                assert_eq!(world.bucket.eviction().evict_whole(VB, key(A, &format!("k{}", 2 * i))), Ok(true));
            }
            assert_eq!(world.bucket.eviction().evict_whole(VB, key(DEFAULT, "k3")), Ok(true));
        }
        assert_eq!(world.documents(), [(0, 10), (8, 999), (9, 0)], "{kind:?}");
        world.take(2, &[(DEFAULT, None), (B, None)]);
        assert_eq!(world.get(A, "k2"), Err(Refusal::UnknownCollection));
        assert_eq!((world.documents(), world.stats_documents()), (vec![(0, 10), (9, 0)], 10), "{kind:?}");
        assert_eq!(world.dropped(), 1);
        world.erase();
        let stats = world.bucket.vbucket_stats(VB).expect("it is there");
        let evicted = u64::from(kind == Kind::FullEviction);
        assert_eq!((stats.documents, stats.tombstones, stats.table_items), (10, 0, 10 - evicted), "{kind:?}");
        assert_eq!(stats.evicted_documents, evicted);
        world.check_counts();
        if kind != Kind::Ephemeral {
            assert_eq!(world.bucket.disk_counts(VB).expect("it is read").documents, 10);
            let world = world.restart();
            assert_eq!((world.dropped(), world.stats_documents()), (0, 10), "{kind:?}");
            assert_eq!(world.get(DEFAULT, "k3"), Ok(0));
        }
    }
}

#[test]
fn what_is_dropped_stays_so_over_a_restart() {
    for kind in ON_DISK {
        let world = World::with_collections(kind);
        for i in 0..100 {
            world.set(A, &format!("k{i}"));
        }
        world.set(DEFAULT, "d");
        assert!(world.bucket.flushing().flush_all());
        world.take(2, &[(DEFAULT, None)]);
        assert!(world.bucket.flushing().flush_all());
        let world = world.restart();
        assert_eq!((world.dropped(), world.stats_documents()), (1, 1), "{kind:?}");
        assert_eq!(world.bucket.with_vbucket(VB, |vb| vb.table().len()), Some(1), "it is not loaded");
        world.erase();
        assert_eq!(world.bucket.disk_counts(VB).expect("it is read").documents, 1);
        // One that was never written to leaves nothing behind.
        world.take(3, &[(DEFAULT, None), (NONE, None)]);
        world.take(4, &[(DEFAULT, None)]);
        assert_eq!(world.dropped(), 0);
    }
}

#[test]
fn the_default_collection_may_go_and_come_back_empty() {
    for kind in ALL {
        let world = World::with_collections(kind);
        for i in 0..20 {
            world.set(DEFAULT, &format!("k{i}"));
        }
        world.set(A, "k1");
        if kind == Kind::FullEviction {
            assert!(world.bucket.flushing().flush_all());
            assert_eq!(world.bucket.eviction().evict_whole(VB, key(DEFAULT, "k2")), Ok(true));
        }
        world.take(2, &[(A, None), (B, None)]);
        assert_eq!(world.get(DEFAULT, "k1"), Err(Refusal::UnknownCollection));
        assert_eq!(world.set_for(DEFAULT, "k1", 0), Err(Refusal::UnknownCollection));
        assert_eq!((world.get(A, "k1"), world.stats_documents()), (Ok(0), 1));
        // What it held is still in memory and on disk, and must not come up again.
        world.take(3, &[(DEFAULT, None), (A, None), (B, None)]);
        assert_eq!(world.get(DEFAULT, "k1"), Err(Refusal::NotFound), "{kind:?}");
        assert_eq!(world.get(DEFAULT, "k2"), Err(Refusal::NotFound), "{kind:?}");
        let added = StoreRequest {
            key: key(DEFAULT, "k1"),
            body: b"new",
            datatype: Datatype::RAW,
            flags: 0,
            expiry: 0,
            mode: StoreMode::Add,
            cas: Cas::ANY,
            preserve_expiry: false,
        };
        assert!(world.bucket.documents().store(VB, &added, world.bucket.now()).is_ok(), "{kind:?}");
        assert_eq!(world.documents(), [(0, 1), (8, 1), (9, 0)], "{kind:?}");
        world.erase();
        assert_eq!(world.documents(), [(0, 1), (8, 1), (9, 0)], "{kind:?}");
        assert_eq!((world.get(DEFAULT, "k1"), world.stats_documents()), (Ok(0), 2));
        world.check_counts();
    }
}

#[test]
fn only_active_vbuckets_take_over_a_manifest_others_when_they_become_active() {
    let world = World::new(Kind::Journaled);
    world.bucket.roles().set_vbucket_state(VB, VbState::Replica, None).expect("set");
    world.take(1, &[(DEFAULT, None), (A, None)]);
    let has = |world: &World| world.bucket.with_vbucket(VB, |vb| vb.collections().is_open(A));
    assert_eq!(has(&world), Some(false));
    world.bucket.roles().set_vbucket_state(VB, VbState::Active, None).expect("set");
    assert_eq!(has(&world), Some(true));
    world.set(A, "k");
}
