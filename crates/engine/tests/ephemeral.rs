//! Buckets without a disk: what they keep, what they forget, and what streams read from them.

mod common;

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use base::env::sim::{Call, Effect, Fault, On};
use base::env::{Env, SimHandles};
use base::{Cas, Datatype, DurabilityLevel, ScopeId, Seqno, VbState, Version};
use common::{Lines, VB, doc, lines};
use engine::{
    Bucket, BucketConfig, BucketKind, Mutated, Progress, Refusal, Resumed, StoreMode, StoreRequest,
    StreamWanted, SyncOutcome,
};
use kvstore::{Snapshot, Values};
use proptest::prelude::*;
use vbucket::{Manifest, ManifestUid, ResumePoint, Scope};

struct World {
    env: Env,
    handles: SimHandles,
    bucket: Arc<Bucket>,
}

fn open(env: &Env, quota_bytes: u64) -> Arc<Bucket> {
    let mut config = BucketConfig::new("cache", "/data/cache".into());
    (config.vbuckets, config.kind, config.quota_bytes) = (8, BucketKind::Ephemeral, quota_bytes);
    Arc::new(Bucket::open_cold(config, env.clone(), Arc::new(kvstore::Nothing)).expect("nothing can fail"))
}

impl World {
    fn new(seed: u64) -> World {
        World::with_quota(seed, 256 << 20)
    }

    fn with_quota(seed: u64, quota_bytes: u64) -> World {
        let (env, handles) = Env::sim(seed);
        let bucket = open(&env, quota_bytes);
        World { env, handles, bucket }
    }

    fn try_set(&self, key: &str, value: &str) -> Result<Mutated, Refusal> {
        let request = StoreRequest {
            key: doc(key),
            body: value.as_bytes(),
            datatype: Datatype::RAW,
            flags: 0,
            expiry: 0,
            mode: StoreMode::Set,
            cas: Cas::ANY,
            preserve_expiry: false,
        };
        self.bucket.documents().store(VB, &request, self.bucket.now())
    }

    fn set(&self, key: &str, value: &str) -> Mutated {
        self.try_set(key, value).expect("stored")
    }

    fn delete(&self, key: &str) -> Mutated {
        self.bucket.documents().delete(VB, doc(key), Cas::ANY, self.bucket.now()).expect("deleted")
    }

    fn get(&self, key: &str) -> Option<String> {
        let found = self.bucket.documents().get(VB, doc(key), self.bucket.now()).ok()?;
        Some(String::from_utf8_lossy(found.version.value()).into_owned())
    }

    /// Lets seconds pass, and the housekeeper work.
    fn pass(&self, seconds: u64) {
        for _ in 0..seconds {
            self.handles.clock.advance(Duration::from_secs(1));
            self.bucket.maintenance().keep_step();
        }
    }

    /// Documents, tombstones, stale copies and the purge seqno.
    fn counts(&self) -> (u64, u64, u64, u64) {
        let stats = self.bucket.vbucket_stats(VB).expect("it is there");
        let list = stats.seq_list.expect("it has no disk");
        assert_eq!(list.items, stats.documents + stats.tombstones);
        (stats.documents, stats.tombstones, list.stale_items, stats.purge_seqno.0)
    }

    /// Everything is given back once the bucket is dropped.
    fn end(self) {
        let account = self.bucket.memory().account().clone();
        assert!(account.exact().iter().sum::<i64>() > 0);
        drop(Arc::into_inner(self.bucket).expect("nobody else holds it"));
        assert!(account.exact().iter().all(|bytes| *bytes == 0), "{:?}", account.exact());
    }
}

fn seqnos(versions: &[Version]) -> Vec<u64> {
    versions.iter().map(|version| version.meta().by_seqno.0).collect()
}

#[test]
fn nothing_is_kept_but_the_name_and_the_number_of_starts() {
    let world = World::new(1);
    let stored = world.set("k", "v");
    assert_eq!(world.get("k").as_deref(), Some("v"));
    assert_eq!(world.bucket.durability().persisted(VB, stored.seqno).err(), Some(Refusal::NoDisk));
    assert_eq!(world.bucket.compaction().compact(VB, Default::default()).err(), Some(Refusal::NoDisk));
    let observed = world.bucket.documents().observe_seqno(VB, stored.uuid).expect("its history");
    assert_eq!((observed.persisted_seqno, observed.high_seqno), (Seqno(0), stored.seqno));
    assert_eq!(world.bucket.flushing().flush_step(), Progress::Idle);
    assert_eq!(world.bucket.eviction().evict_value(VB, doc("k")), Ok(false));
    // threads that have nothing to do without a disk end at once
    world.bucket.flushing().run_flusher();
    world.bucket.flushing().run_filer();
    world.bucket.compaction().run_compactor();
    world.bucket.close().expect("there is nothing to write");
    let files = world.env.disk.read_dir(Path::new("/data/cache")).expect("its folder");
    assert_eq!(files, ["starts", "uuid", "uuid.copy"]);

    let again =
        World { bucket: open(&world.env, 256 << 20), env: world.env.clone(), handles: world.handles.clone() };
    assert_eq!(again.bucket.uuid(), world.bucket.uuid());
    assert_eq!(again.get("k"), None);
    assert_eq!(again.bucket.documents().observe_seqno(VB, stored.uuid).err(), Some(Refusal::OtherHistory));
    assert!(again.bucket.loading().warmup_stats().state == engine::WarmupState::Done);
}

/// Whatever call the disk refused it with, and however often: after a stop that says it was clean, what was served is
/// found.
#[test]
fn a_manifest_that_was_refused_does_not_come_into_force_after_a_clean_stop() {
    let calls = [Call::Open, Call::SetLen, Call::Write, Call::Sync, Call::Rename, Call::SyncDir, Call::Read];
    let mut refused = 0;
    for (call, nth) in calls.into_iter().flat_map(|call| (1..6).map(move |nth| (call, nth))) {
        let world = World::new(1);
        let before = world.bucket.collections().manifest();
        let scopes = before.scopes().cloned();
        let more = Scope { id: ScopeId(8), name: "s".to_owned() };
        let new = Manifest::new(ManifestUid(1), scopes.chain([more]), before.collections().cloned());
        world.handles.disk.plan(Fault::for_ever(On::Kind(call), nth, Effect::IO_ERROR));
        refused +=
            usize::from(world.bucket.collections().set_manifest(new.expect("a valid manifest")).is_err());
        let served = world.bucket.collections().manifest();
        let is_clean = world.bucket.close().is_ok();
        world.handles.disk.heal();
        if !is_clean {
            world.bucket.close().expect("the disk is well again");
        }
        assert_eq!(open(&world.env, 256 << 20).collections().manifest(), served, "{call:?} {nth}");
    }
    assert!(refused >= 6, "{refused}");
}

#[test]
fn tombstones_are_forgotten_when_they_are_old_enough() {
    let world = World::new(2);
    for key in ["a", "b", "c"] {
        world.set(key, "v");
    }
    world.bucket.maintenance().keep_step();
    world.delete("a");
    world.pass(30);
    world.delete("b");
    world.set("d", "v");
    world.pass(29);
    assert_eq!(world.counts(), (2, 2, 0, 0), "none is old enough");
    world.pass(1);
    assert_eq!(world.counts(), (2, 1, 0, 4), "the first one is");
    world.pass(60);
    assert_eq!(world.counts(), (2, 0, 0, 5));
    assert_eq!([world.get("c"), world.get("d")], [Some("v".into()), Some("v".into())]);
    world.end();
}

#[test]
fn age_and_interval_can_be_changed() {
    let world = World::new(3);
    let set = |name, value| world.bucket.set_param(name, value).expect("it is right");
    set("ephemeral_metadata_purge_interval", "0");
    world.set("a", "v");
    world.delete("a");
    world.set("b", "v");
    world.pass(1000);
    assert_eq!(world.counts(), (1, 1, 0, 0), "nobody looks");
    set("ephemeral_metadata_purge_interval", "10");
    set("ephemeral_metadata_purge_age", "2000");
    world.pass(995);
    assert_eq!(world.counts(), (1, 1, 0, 0));
    world.pass(20);
    assert_eq!(world.counts(), (1, 0, 0, 2));
}

#[test]
fn the_last_change_stays() {
    let world = World::new(4);
    world.set("a", "v");
    let deleted = world.delete("a");
    world.pass(200);
    assert_eq!(world.counts(), (0, 1, 0, 0));
    let mut range = world.bucket.streams().memory_range(VB, Seqno(0)).expect("few are open");
    assert_eq!(seqnos(&range.next(10, usize::MAX).expect("it is there")), [deleted.seqno.0]);
}

#[test]
fn a_range_stays_as_it_was_opened() {
    let world = World::new(5);
    for key in 0..1000 {
        world.set(&key.to_string(), "old");
    }
    world.delete("999");
    let mut range = world.bucket.streams().memory_range(VB, Seqno(0)).expect("few are open");
    let purge_seqno = range.purge_seqno();
    assert_eq!(range.state().expect("it is in memory").snap_end, 1001);
    assert!(
        range.get(doc("1")).is_err()
            && range.scan_keys(b"", Values::Read, &mut |_| ControlFlow::Break(())).is_err()
    );
    for key in 0..500 {
        world.set(&key.to_string(), "new");
    }
    world.pass(121);
    let (documents, tombstones, stale, purged) = world.counts();
    assert_eq!((documents, tombstones, stale, purged), (999, 0, 501, 1001));
    let stats = world.bucket.tombstones().purge_stats();
    assert_eq!((stats.tombstones, stats.stale_copies), (1, 0), "the range read needs them all");
    let first = range.next(300, usize::MAX).expect("it is there");
    assert_eq!(first.len(), 300);
    let mut rest = Vec::new();
    let mut take = |from, most| {
        let scanned = range.scan(Seqno(from), Values::Read, &mut |version| {
            if rest.len() == most {
                return ControlFlow::Break(());
            }
            rest.push(version);
            ControlFlow::Continue(())
        });
        scanned.expect("it is there");
    };
    // one at which a scan breaks off comes again
    take(301, 200);
    take(501, usize::MAX);
    let read: Vec<Version> = first.into_iter().chain(rest).collect();
    assert_eq!(seqnos(&read), (1..1000).chain([1001]).collect::<Vec<u64>>());
    assert!(read[..999].iter().all(|version| version.value() == b"old"));
    assert!(read[999].is_deleted() && range.is_done() && range.next(1, 1).expect("it is there").is_empty());
    assert_eq!((range.high_seqno(), range.purge_seqno(), purge_seqno), (Seqno(1001), Seqno(0), Seqno(0)));
    world.pass(1);
    assert_eq!(world.counts().2, 0, "nobody needs them any more");
    assert_eq!(world.bucket.tombstones().purge_stats().stale_copies, 501);
    let mut later = world.bucket.streams().memory_range(VB, Seqno(1001)).expect("few are open");
    assert_eq!(seqnos(&later.next(usize::MAX, usize::MAX).expect("it is there")).len(), 500);
    assert_eq!(later.purge_seqno(), Seqno(1001));
    drop((range, later, read));
    world.end();
}

#[test]
fn bytes_bound_a_slice() {
    let world = World::new(6);
    (0..100).for_each(|key| {
        world.set(&key.to_string(), &"v".repeat(1000));
    });
    let mut range = world.bucket.streams().memory_range(VB, Seqno(0)).expect("few are open");
    assert_eq!(range.next(usize::MAX, 0).expect("it is there").len(), 1);
    let some = range.next(usize::MAX, 10_000).expect("it is there").len();
    assert!((8..=10).contains(&some), "{some}");
    assert_eq!(range.next(0, usize::MAX).expect("it is there").len(), 1);
}

#[test]
fn a_range_ends_with_its_vbucket() {
    let world = World::new(7);
    (0..10).for_each(|key| {
        world.set(&key.to_string(), "v");
    });
    let mut range = world.bucket.streams().memory_range(VB, Seqno(0)).expect("few are open");
    assert_eq!(range.next(3, usize::MAX).expect("it is there").len(), 3);
    let uuid = world.bucket.with_vbucket(VB, |vb| vb.uuid()).expect("it is there");
    world.bucket.roles().set_vbucket_state(VB, VbState::Dead, None).expect("it is there");
    assert!(world.bucket.roles().delete_vbucket(VB).expect("it is dead").is_ok());
    assert_eq!(range.next(3, usize::MAX).err(), Some(Refusal::NotMyVbucket));
    world.bucket.roles().set_vbucket_state(VB, VbState::Active, None).expect("it is made anew");
    assert_eq!(range.next(3, usize::MAX).err(), Some(Refusal::NotMyVbucket));
    drop(range);
    assert_eq!(world.counts(), (0, 0, 0, 0));
    assert_ne!(world.bucket.with_vbucket(VB, |vb| vb.uuid()), Some(uuid));
    assert_eq!(world.set("k", "v").seqno, Seqno(1));
}

#[test]
fn a_replica_goes_back_to_nothing() {
    let world = World::new(8);
    (0..10).for_each(|key| {
        world.set(&key.to_string(), "v");
    });
    let back = |to| world.bucket.roles().rollback(VB, Seqno(to)).map(|result| result.expect("no disk fails"));
    assert_eq!(back(5), Err(Refusal::Invalid));
    world.bucket.roles().set_vbucket_state(VB, VbState::Replica, None).expect("it is there");
    assert_eq!(back(10), Ok(Seqno(10)), "there is nothing to forget");
    assert_eq!(world.counts().0, 10);
    assert_eq!(back(5), Ok(Seqno(0)));
    assert_eq!(world.counts(), (0, 0, 0, 0));
    assert_eq!(world.bucket.state_of(VB), Some(VbState::Replica));
}

#[test]
fn whoever_missed_a_purged_tombstone_goes_back() {
    let world = World::new(9);
    let uuid = world.set("a", "v").uuid;
    world.set("b", "v");
    world.delete("a");
    world.set("b", "w");
    let client = |seqno: u64| ResumePoint {
        start: Seqno(seqno),
        uuid,
        snapshot_start: Seqno(seqno),
        snapshot_end: Seqno(seqno),
        ..ResumePoint::default()
    };
    let resume =
        |seqno| match world.bucket.streams().resume_from_memory(VB, &client(seqno)).expect("it is there") {
            Resumed::Range(mut range) => Ok(seqnos(&range.next(10, usize::MAX).expect("it is there"))),
            Resumed::RollBack(to) => Err(to),
        };
    assert_eq!(resume(2), Ok(vec![3, 4]));
    let Ok(Resumed::Range(mut early)) = world.bucket.streams().resume_from_memory(VB, &client(2)) else {
        panic!("it stands well");
    };
    world.pass(121);
    assert_eq!(world.counts().3, 3);
    assert_eq!(seqnos(&early.next(10, usize::MAX).expect("it is there")), [3, 4], "it came in time");
    assert_eq!([resume(1), resume(2)], [const { Err(Seqno(0)) }; 2]);
    assert_eq!([resume(0), resume(3), resume(4)], [Ok(vec![4]), Ok(vec![4]), Ok(vec![])]);
    let stranger = ResumePoint { uuid: base::VbUuid(12345), ..client(4) };
    assert!(matches!(
        world.bucket.streams().resume_from_memory(VB, &stranger),
        Ok(Resumed::RollBack(Seqno(0)))
    ));
}

#[test]
fn a_full_bucket_refuses_and_loses_nothing() {
    let world = World::with_quota(10, 1 << 20);
    let value = "v".repeat(500);
    let mut stored = 0;
    let refused = loop {
        match world.try_set(&stored.to_string(), &value) {
            Ok(_) => stored += 1,
            Err(refusal) => break refusal,
        }
        world.bucket.maintenance().keep_step();
    };
    assert_eq!(refused, Refusal::OverQuota);
    world.pass(200);
    assert_eq!(world.counts().0, stored);
    assert!((0..stored).all(|key| world.get(&key.to_string()).as_deref() == Some(&value)));
    assert_eq!(world.try_set("more", &value), Err(Refusal::OverQuota));
    (0..stored / 2).for_each(|key| {
        world.delete(&key.to_string());
    });
    world.set("more", &value);
    world.pass(121);
    assert_eq!(world.counts(), (stored - stored / 2 + 1, 0, 0, stored + stored / 2));
    world.end();
}

#[test]
fn a_locked_document_is_held_once() {
    let world = World::new(12);
    world.set("a", &"v".repeat(10_000));
    let before = world.bucket.memory().used_bytes();
    let now = world.bucket.now();
    world.bucket.documents().get_and_lock(VB, doc("a"), 10, now).expect("nobody else locked it");
    let grown = world.bucket.memory().used_bytes() - before;
    assert!(grown < 1000, "{grown}");
    let mut range = world.bucket.streams().memory_range(VB, Seqno(0)).expect("few are open");
    assert_eq!(seqnos(&range.next(10, usize::MAX).expect("it is there")), [1]);
}

#[derive(Clone, Debug)]
enum Op {
    Set(u8),
    Delete(u8),
    Pass(u64),
    Open,
    Next(usize),
    Drop,
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        6 => (0..20_u8).prop_map(Op::Set),
        4 => (0..20_u8).prop_map(Op::Delete),
        2 => (1..50_u64).prop_map(Op::Pass),
        1 => Just(Op::Open),
        3 => (1..9_usize).prop_map(Op::Next),
        1 => Just(Op::Drop),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// Whatever is purged when, no document is lost, every range is a snapshot, and no byte stays behind.
    #[test]
    fn purges_lose_nothing(ops in prop::collection::vec(op(), 1..80)) {
        let world = World::new(13);
        let mut documents: BTreeMap<u8, u64> = BTreeMap::new();
        let mut ranges = std::collections::VecDeque::new();
        for op in ops {
            match op {
                Op::Set(key) => drop(documents.insert(key, world.set(&key.to_string(), "v").seqno.0)),
                Op::Delete(key) => if documents.remove(&key).is_some() {
                    world.delete(&key.to_string());
                },
                Op::Pass(seconds) => world.pass(seconds),
                Op::Open => {
                    let range = world.bucket.streams().memory_range(VB, Seqno(0)).expect("few are open");
                    ranges.push_back((range, documents.clone()));
                }
                Op::Next(items) => if let Some((range, expected)) = ranges.front_mut() {
                    for version in range.next(items, usize::MAX).expect("it is there") {
                        let key = String::from_utf8_lossy(version.key().key).parse().expect("a number");
                        let there = expected.remove(&key);
                        if !version.is_deleted() {
                            prop_assert_eq!(there, Some(version.meta().by_seqno.0));
                        } else {
                            prop_assert_eq!(there, None);
                        }
                    }
                    if range.is_done() {
                        prop_assert!(expected.is_empty());
                        ranges.pop_front();
                    }
                },
                Op::Drop => drop(ranges.pop_back()),
            }
            prop_assert_eq!(world.counts().0, documents.len() as u64);
        }
        ranges.clear();
        world.set("last", "v");
        world.pass(122);
        prop_assert_eq!(&world.counts().1, &0);
        prop_assert_eq!(&world.counts().2, &0);
        prop_assert!(documents.keys().all(|key| world.get(&key.to_string()).is_some()));
        world.end();
    }
}

const READING: engine::BackfillReading = engine::BackfillReading {
    values: Values::Read,
    by_key: None,
    is_urgent: false,
    with_prepares: false,
    with_past: false,
};

/// The whole way of a stream: the past from the list, what comes meanwhile from checkpoints, and no gap between them.
#[test]
fn a_stream_reads_the_list_then_memory_and_misses_nothing() {
    let world = World::new(14);
    let bucket = &world.bucket;
    (0..2000).for_each(|key| {
        world.set(&key.to_string(), &"v".repeat(500));
    });
    world.delete("7");
    let follower = engine::Follower::new(8, || {});
    let start = bucket
        .streams()
        .begin_stream(VB, &follower, &ResumePoint::default(), StreamWanted::Everything, true)
        .expect("from the start");
    let cursor = bucket.streams().join_memory(start.place, &"s".into(), Seqno(0)).expect("a place in memory");
    assert_eq!((start.high_seqno, cursor.from), (Seqno(2001), Seqno(2001)));
    world.set("8", "later");
    let backfill = bucket.streams().backfills().begin(VB, Seqno(0), READING, Box::new(Lines), &follower);
    assert_eq!(bucket.streams().backfills().step(), Progress::Worked);
    // what happens while it reads does not show
    (0..2000).for_each(|key| {
        world.set(&key.to_string(), "new");
    });
    world.delete("9");
    world.set("10", "last");
    world.pass(130);
    let mut read = Vec::new();
    let scope = loop {
        let taken = bucket.streams().backfills().take(&backfill, 100_000);
        assert!(!taken.has_failed);
        read.extend(lines(&taken).into_iter().map(|(seqno, _)| seqno));
        if taken.is_done {
            break taken.scope.expect("it has begun");
        }
        while bucket.streams().backfills().step() != Progress::Idle {}
    };
    assert_eq!((scope.high_seqno, scope.purge_seqno), (Seqno(2002), Seqno(0)));
    assert_eq!(read, (1..2003).filter(|seqno| ![8, 9].contains(seqno)).collect::<Vec<u64>>());
    let mut from_memory = std::collections::BTreeMap::new();
    while let engine::Changes::Range(range) =
        bucket.streams().take_changes(start.place, cursor.id, vbucket::RangeLimit::items(100))
    {
        let new = range.iter().filter(|version| version.meta().by_seqno > scope.high_seqno);
        from_memory.extend(new.map(|v| (v.meta().by_seqno.0, v.is_deleted())));
        bucket.streams().advance_stream(start.place, cursor.id, range.end());
    }
    assert_eq!(from_memory.len() as u64, 2000, "two of 2002 changes were replaced in the checkpoint");
    assert!(
        from_memory.get(&4003).is_some_and(|deleted| *deleted),
        "it was purged, and is in the checkpoint still"
    );
    bucket.streams().leave_memory(start.place, cursor.id);
    bucket.streams().unfollow(VB, &follower);
    drop(backfill);
    world.pass(2);
    assert_eq!(world.counts().2, 0);
    let missed = ResumePoint {
        start: Seqno(3000),
        uuid: start.failover[0].uuid,
        snapshot_start: Seqno(3000),
        snapshot_end: Seqno(3000),
        ..ResumePoint::default()
    };
    let begun = bucket.streams().begin_stream(VB, &follower, &missed, StreamWanted::Everything, true);
    assert_eq!(begun.err(), Some(engine::StreamRefusal::RollBack(Seqno(0))));
    world.end();
}

#[test]
fn sync_writes_need_no_disk_but_for_the_levels_that_ask_for_one() {
    let world = World::new(21);
    let two = engine::topology_from_json(&serde_json::json!([["n_0", "n_1"]])).expect("it is a topology");
    world.bucket.roles().set_vbucket_state(VB, VbState::Active, Some(two)).expect("there is such a vBucket");
    let write = |key: &str, level, timeout_ms| {
        let request = StoreRequest {
            key: doc(key),
            body: b"v",
            datatype: Datatype::RAW,
            flags: 0,
            expiry: 0,
            mode: StoreMode::Set,
            cas: Cas::ANY,
            preserve_expiry: false,
        };
        let durable = engine::Durable { level, timeout: Duration::from_millis(timeout_ms) };
        world.bucket.documents().durably(Some(durable)).store(VB, &request, world.bucket.now())
    };
    for level in [DurabilityLevel::MajorityAndPersistOnActive, DurabilityLevel::PersistToMajority] {
        assert_eq!(write("a", level, 1000), Err(Refusal::DurabilityInvalidLevel));
    }
    let quick = write("quick", DurabilityLevel::Majority, 10).expect("prepared");
    let slow = write("slow", DurabilityLevel::Majority, 1000).expect("prepared");
    world.handles.clock.advance(Duration::from_millis(10));
    world.bucket.durability().sync_write_step();
    assert_eq!((world.get("quick"), world.get("slow")), (None, None));
    world.bucket.durability().acknowledged(VB, "n_1", slow.seqno);
    let outcomes = [quick, slow].map(|mutated| mutated.pending.expect("it waited").try_take());
    assert_eq!(outcomes, [Some(SyncOutcome::Aborted), Some(SyncOutcome::Committed)]);
    assert_eq!((world.get("quick"), world.get("slow").as_deref()), (None, Some("v")));
    world.bucket.inspect(VB, |vb| {
        let list = vb.seq_list().expect("there is no disk").counts();
        // The abort and the document; their prepares have left.
        assert_eq!((list.items, list.stale_items, vb.high_seqno()), (2, 0, Seqno(4)));
    });
    let mut seen = Vec::new();
    let all = ResumePoint::default();
    let Ok(Resumed::Range(range)) = world.bucket.streams().resume_from_memory(VB, &all) else {
        panic!("all is in the list");
    };
    let scanned = range.scan(Seqno(0), Values::Read, &mut |version| {
        seen.push(version.meta().by_seqno);
        ControlFlow::Continue(())
    });
    scanned.expect("nothing can fail");
    assert_eq!(seen, [Seqno(4)]);
}
