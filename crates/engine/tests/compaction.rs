//! Compactions as a bucket runs them: when, what they leave out, and what becomes of it in memory.

mod common;

use std::sync::Arc;
use std::time::Duration;

use base::env::sim::{Call, Effect, Fault, On};
use base::env::{Env, SimHandles};
use base::{Cas, Seqno, VbId, VbState};
use common::stores::{self, files, journaled};
use common::{VB, World, doc};
use engine::{CompactOutcome, CompactRequest, Progress, Refusal, StoreMode};
use kvstore::KvStore;

const DAY: Duration = Duration::from_secs(24 * 3600);

fn open(env: Env, handles: SimHandles, store: fn(&Env) -> Arc<dyn KvStore>) -> World {
    stores::open(env, handles, store, |config| config.compact_min_waste_bytes = 16 << 10)
}

fn world(seed: u64) -> World {
    let (env, handles) = Env::sim(seed);
    open(env, handles, files)
}

fn everything() -> CompactRequest {
    CompactRequest { purge_before_s: Some(u32::MAX), ..CompactRequest::default() }
}

fn delete(world: &World, key: &str) {
    world.bucket.documents().delete(VB, doc(key), Cas::ANY, world.now()).expect("deleted");
}

fn tombstones(world: &World) -> u64 {
    world.bucket.vbucket_stats(VB).expect("it is there").tombstones
}

/// Asks for a compaction and has it done.
fn compact(world: &World, request: CompactRequest) -> CompactOutcome {
    let waiting = world.bucket.compaction().compact(VB, request).expect("none is under way");
    world.bucket.compaction().compact_step();
    waiting.try_take().expect("it was done")
}

#[test]
fn a_file_that_wastes_much_is_compacted_and_others_are_not() {
    let world = world(1);
    for n in 0..100 {
        world.set(&format!("k{n}"), &format!("value {n} ").repeat(50)).expect("stored");
    }
    assert!(world.bucket.flushing().flush_all());
    assert_eq!(world.bucket.compaction().compact_step(), Progress::Idle, "nothing is wasted yet");
    for round in 0..10 {
        for n in 0..100 {
            world.set(&format!("k{n}"), &format!("value {n} {round} ").repeat(50)).expect("stored");
        }
        assert!(world.bucket.flushing().flush_all());
    }
    let before = world.bucket.disk_counts(VB).expect("readable");
    assert_eq!(world.bucket.compaction().compact_step(), Progress::Worked);
    let after = world.bucket.disk_counts(VB).expect("readable");
    assert!(after.file_bytes * 2 < before.file_bytes && after.documents == 100);
    assert_eq!(world.bucket.compaction().compact_step(), Progress::Idle, "it is done");
    let stats = world.bucket.compaction().compaction_stats();
    assert_eq!((stats.runs, stats.failed, stats.running), (1, 0, None));
    assert_eq!((stats.before_bytes, stats.after_bytes), (before.file_bytes, after.file_bytes));
    let world = {
        let World { env, handles, bucket } = world;
        drop(bucket);
        open(env, handles, files)
    };
    assert_eq!(world.get("k7"), Ok("value 7 9 ".repeat(50)));
}

#[test]
fn old_tombstones_leave_disk_and_memory_together() {
    let world = world(2);
    for n in 0..1000 {
        world.set(&format!("k{n}"), "v").expect("stored");
    }
    (0..500).for_each(|n| delete(&world, &format!("k{n}")));
    world.handles.clock.advance(DAY);
    (500..510).for_each(|n| delete(&world, &format!("k{n}")));
    world.set("last", "v").expect("stored");
    assert!(world.bucket.flushing().flush_all());
    assert_eq!(tombstones(&world), 510);
    let young = world.now().unix_s() - 3600;
    let outcome =
        compact(&world, CompactRequest { purge_before_s: Some(young), ..CompactRequest::default() });
    assert_eq!(outcome, CompactOutcome::Done);
    assert_eq!(tombstones(&world), 10);
    let disk = world.bucket.disk_counts(VB).expect("readable");
    assert_eq!((disk.documents, disk.tombstones), (491, 10));
    let stats = world.bucket.vbucket_stats(VB).expect("it is there");
    assert_eq!(stats.purge_seqno, Seqno(1500));
    assert_eq!(world.bucket.compaction().compaction_stats().tombstones_purged, 500);
    world.bucket.roles().create_checkpoint(VB).expect("it is there");
    let documents = world.bucket.memory().account().exact()[base::Part::Documents as usize];
    assert_eq!(documents, stats.item_bytes as i64, "the account is right");
    // The key can be used again, with a revision beyond that of its tombstone.
    world.set("k1", "again").expect("stored");
    assert_eq!(world.get("k1"), Ok("again".into()));
    let found = world.bucket.documents().get(VB, doc("k1"), world.now()).expect("found");
    assert!(found.version.meta().rev_seqno.0 > 2);
}

#[test]
fn tombstones_beyond_a_seqno_stay() {
    let world = world(3);
    for key in ["a", "b", "c"] {
        world.set(key, "v").expect("stored");
    }
    ["a", "b"].iter().for_each(|key| delete(&world, key));
    world.set("last", "v").expect("stored");
    assert!(world.bucket.flushing().flush_all());
    let outcome = compact(&world, CompactRequest { purge_through: Some(Seqno(4)), ..everything() });
    assert_eq!((outcome, tombstones(&world)), (CompactOutcome::Done, 1));
    assert_eq!(world.bucket.disk_counts(VB).expect("readable").tombstones, 1);
    assert_eq!(world.bucket.vbucket_stats(VB).expect("there").purge_seqno, Seqno(4));
}

#[test]
fn what_was_written_again_meanwhile_stays() {
    let world = world(4);
    world.set("k", "v").expect("stored");
    delete(&world, "k");
    world.set("last", "v").expect("stored");
    assert!(world.bucket.flushing().flush_all());
    world.set("k", "again").expect("stored, not on disk yet");
    assert_eq!(compact(&world, everything()), CompactOutcome::Done);
    assert_eq!(world.get("k"), Ok("again".into()));
    assert!(world.bucket.flushing().flush_all());
    assert_eq!(world.bucket.disk_counts(VB).expect("readable").documents, 2);
}

#[test]
fn expired_documents_become_tombstones_with_seqnos_of_their_own() {
    let world = world(5);
    for n in 0..50 {
        world.store(&format!("short{n}"), "v", StoreMode::Set, Cas::ANY, 10).expect("stored");
    }
    world.set("long", "v").expect("stored");
    assert!(world.bucket.flushing().flush_all());
    world.set("short0", "changed since").expect("stored");
    world.handles.clock.advance(Duration::from_secs(60));
    assert_eq!(compact(&world, CompactRequest::default()), CompactOutcome::Done);
    assert_eq!(world.bucket.compaction().compaction_stats().documents_expired, 49);
    let stats = world.bucket.vbucket_stats(VB).expect("there");
    assert_eq!((stats.documents, stats.tombstones, stats.high_seqno), (2, 49, Seqno(101)));
    assert_eq!(world.bucket.op_counts().expirations, 49);
    assert!(world.bucket.flushing().flush_all());
    let disk = world.bucket.disk_counts(VB).expect("readable");
    assert_eq!((disk.documents, disk.tombstones), (2, 49));
    assert_eq!(world.get("short0"), Ok("changed since".into()));
}

#[test]
fn a_replica_expires_nothing_itself() {
    let world = world(6);
    world.store("short", "v", StoreMode::Set, Cas::ANY, 10).expect("stored");
    assert!(world.bucket.flushing().flush_all());
    world.bucket.roles().set_vbucket_state(VB, VbState::Replica, None).expect("set");
    world.handles.clock.advance(Duration::from_secs(60));
    assert_eq!(compact(&world, CompactRequest::default()), CompactOutcome::Done);
    assert_eq!(world.bucket.vbucket_stats(VB).expect("there").high_seqno, Seqno(1));
}

#[test]
fn who_asks_twice_is_told_to_wait() {
    let world = world(7);
    world.set("k", "v").expect("stored");
    assert!(world.bucket.flushing().flush_all());
    let first = world.bucket.compaction().compact(VB, everything()).expect("the first");
    assert_eq!(world.bucket.compaction().compact(VB, everything()).err(), Some(Refusal::Busy));
    assert_eq!(world.bucket.compaction().compact(VbId(99), everything()).err(), Some(Refusal::NotMyVbucket));
    assert_eq!(world.bucket.compaction().compact_step(), Progress::Worked);
    assert_eq!(first.try_take(), Some(CompactOutcome::Done));
    let empty = world.bucket.compaction().compact(VbId(1), everything()).expect("there is nothing to do");
    assert_eq!(world.bucket.compaction().compact_step(), Progress::Worked);
    assert_eq!(empty.try_take(), Some(CompactOutcome::Done));
    let left = world.bucket.compaction().compact(VB, everything()).expect("asked");
    world.bucket.compaction().stop_compactor();
    assert_eq!((left.try_take(), left.is_abandoned()), (None, true));
    assert_eq!(world.bucket.compaction().compact_step(), Progress::Idle);
}

#[test]
fn a_failure_is_told_and_the_file_left_alone_for_a_while() {
    let world = world(8);
    for round in 0..20 {
        world.set("k", &format!("{round} ").repeat(2000)).expect("stored");
        assert!(world.bucket.flushing().flush_all());
    }
    world.handles.disk.plan(Fault::for_ever(On::Kind(Call::Write), 1, Effect::IO_ERROR));
    assert_eq!(world.bucket.compaction().compact_step(), Progress::Failed);
    assert_eq!(world.bucket.compaction().compact_step(), Progress::Idle, "it is left alone");
    let asked = world.bucket.compaction().compact(VB, everything()).expect("asked");
    assert_eq!(world.bucket.compaction().compact_step(), Progress::Failed);
    assert_eq!(asked.try_take(), Some(CompactOutcome::Failed));
    assert_eq!(world.bucket.compaction().compaction_stats().failed, 2);
    world.handles.disk.heal();
    assert_eq!(world.bucket.compaction().compact_step(), Progress::Idle);
    world.handles.clock.advance(Duration::from_secs(3600));
    assert_eq!(world.bucket.compaction().compact_step(), Progress::Worked);
    assert_eq!(world.get("k"), Ok("19 ".repeat(2000)));
}

#[test]
fn compactions_and_the_journal() {
    let (env, handles) = Env::sim(9);
    let world = open(env, handles, journaled);
    for n in 0..300 {
        world.set(&format!("k{n}"), "v").expect("stored");
    }
    (0..200).for_each(|n| delete(&world, &format!("k{n}")));
    world.set("last", "v").expect("stored");
    assert!(world.bucket.flushing().flush_all());
    assert_eq!(compact(&world, everything()), CompactOutcome::Done);
    assert_eq!(tombstones(&world), 0);
    let World { env, handles, bucket } = world;
    drop(bucket);
    let world = open(env, handles, journaled);
    let stats = world.bucket.vbucket_stats(VB).expect("there");
    assert_eq!((stats.documents, stats.tombstones, stats.purge_seqno), (101, 0, Seqno(500)));
}
