//! A bucket that serves while it is being loaded.

mod common;

use base::env::Env;
use base::{Cas, Seqno, VbId, VbState};
use common::{VB, Watched, doc};
use engine::{Progress, Refusal, WarmupState};
use kvstore::Values;

const PLENTY: u64 = 256 << 20;

/// A bucket with documents in three vBuckets, opened again, nothing loaded.
fn stopped(seed: u64, documents: u64, quota_bytes: u64) -> Watched {
    let world = Watched::new(seed);
    for vb in [1, 3, 5] {
        for n in 0..documents {
            world.set_in(VbId(vb), &format!("k{n}"), &format!("value {n}").repeat(10)).expect("stored");
        }
    }
    world.bucket.documents().delete(VbId(1), doc("k0"), Cas::ANY, world.bucket.now()).expect("deleted");
    world.restart(quota_bytes)
}

fn read(world: &Watched, vb: u16, key: &str) -> Result<String, Refusal> {
    let found = world.bucket.documents().get(VbId(vb), doc(key), world.bucket.now())?;
    Ok(String::from_utf8_lossy(found.version.value()).into_owned())
}

#[test]
fn whoever_waits_for_a_vbucket_has_it_loaded_first() {
    let world = stopped(1, 10, PLENTY);
    assert_eq!(read(&world, 5, "k1"), Err(Refusal::Loading));
    assert_eq!(read(&world, 0, "k1"), Err(Refusal::NotFound), "a vBucket without a file has nothing to load");
    let waiting = world.bucket.loading().loaded(VbId(5)).expect("not loaded");
    let also = world.bucket.loading().loaded(VbId(5)).expect("not loaded");
    assert_eq!(world.bucket.loading().load_step(), Progress::Worked);
    assert_eq!(world.spy.scans.lock()[0], (VbId(5), Seqno(0), Values::Leave));
    assert_eq!((waiting.try_take(), also.try_take()), (Some(()), Some(())));
    assert!(world.bucket.loading().loaded(VbId(5)).is_none());
    assert_eq!(read(&world, 5, "k1"), Err(Refusal::NotResident), "metadata alone");
    assert_eq!(read(&world, 5, "none"), Err(Refusal::NotFound));
    assert_eq!(world.set_in(VbId(1), "k1", "new"), Err(Refusal::Loading));
    world.set_in(VbId(5), "k1", "new").expect("a loaded vBucket takes writes");
    assert_eq!(world.bucket.loading().load_step(), Progress::Worked);
    assert_eq!(world.bucket.loading().load_step(), Progress::Worked);
    assert_eq!(world.bucket.loading().load_step(), Progress::Idle);
    assert_eq!(read(&world, 5, "k1"), Ok("new".into()));
    world.check_account();
}

#[test]
fn what_needs_no_document_is_answered_at_once() {
    let world = stopped(2, 10, PLENTY);
    let stats = world.bucket.vbucket_stats(VbId(1)).expect("it is there");
    assert_eq!((stats.documents, stats.tombstones, stats.without_value), (9, 1, 9), "as the file says");
    assert_eq!((stats.high_seqno, stats.persisted_seqno), (Seqno(11), Seqno(11)));
    assert!(world.bucket.documents().observe_seqno(VbId(1), stats.uuid).is_ok());
    assert!(world.bucket.durability().persisted(VbId(1), Seqno(11)).expect("served").is_none());
    world.bucket.roles().set_vbucket_state(VbId(1), VbState::Replica, None).expect("it is there");
    assert!(world.bucket.flushing().flush_all());
    while world.bucket.loading().load_step() != Progress::Idle {}
    let loaded = world.bucket.vbucket_stats(VbId(1)).expect("it is there");
    assert_eq!((loaded.documents, loaded.tombstones), (9, 1));
    assert_eq!(loaded.state, VbState::Replica);
    assert_eq!(read(&world, 1, "k1"), Err(Refusal::NotMyVbucket));
    let now = world.bucket.now();
    assert_eq!(
        world.bucket.documents().get_replica(VbId(1), doc("k1"), now).err(),
        Some(Refusal::NotResident)
    );
}

#[test]
fn values_come_newest_first_and_vbuckets_take_turns() {
    let world = stopped(3, 600, PLENTY);
    assert_eq!(world.bucket.loading().warmup_stats().state, WarmupState::LoadingKeys);
    while world.bucket.loading().load_step() != Progress::Idle {}
    let stats = world.bucket.loading().warmup_stats();
    assert_eq!((stats.state, stats.keys, stats.estimated_keys), (WarmupState::LoadingValues, 1800, 1800));
    assert_eq!((stats.values, stats.estimated_values), (0, 1799));
    world.spy.scans.lock().clear();
    for _ in 0..3 {
        assert_eq!(world.bucket.loading().warm_step(), Progress::Worked);
    }
    let vbuckets: Vec<VbId> = world.spy.scans.lock().iter().map(|(vb, ..)| *vb).collect();
    assert_eq!(vbuckets, [VbId(1), VbId(3), VbId(5)]);
    assert!(read(&world, 3, "k599").is_ok() && read(&world, 5, "k599").is_ok());
    assert_eq!(read(&world, 3, "k0"), Err(Refusal::NotResident));
    while world.bucket.loading().warm_step() != Progress::Idle {}
    let froms: Vec<u64> =
        world.spy.scans.lock().iter().filter(|(vb, ..)| *vb == VB).map(|(_, from, _)| from.0).collect();
    assert!(froms.is_sorted_by(|a, b| a > b), "{froms:?}");
    assert_eq!(read(&world, 3, "k0"), Ok("value 0".repeat(10)));
    let stats = world.bucket.loading().warmup_stats();
    assert_eq!((stats.state, stats.values, stats.at_watermark), (WarmupState::Done, 1799, false));
    assert_eq!(world.bucket.stats().all().without_value, 0);
    world.check_account();
}

#[test]
fn values_stop_at_the_low_watermark_and_reads_go_on() {
    let world = stopped(4, 600, 300_000);
    while world.bucket.loading().load_step() != Progress::Idle {}
    while world.bucket.loading().warm_step() != Progress::Idle {}
    let stats = world.bucket.loading().warmup_stats();
    assert_eq!((stats.state, stats.at_watermark), (WarmupState::Done, true));
    assert!(stats.values > 100 && stats.values < 1700, "{stats:?}");
    let memory = world.bucket.memory();
    assert!(memory.used_bytes() < memory.low_watermark_bytes() + 1000);
    assert_eq!(world.settle("k0", || read(&world, 3, "k0")), Ok("value 0".repeat(10)));
    world.check_account();
}

#[test]
fn a_vbucket_that_cannot_be_read_is_dead_and_the_others_serve() {
    let world = stopped(5, 10, PLENTY);
    world.spy.damaged.lock().insert(VbId(1));
    let waiting = world.bucket.loading().loaded(VbId(1)).expect("not loaded");
    while world.bucket.loading().load_step() != Progress::Idle {}
    assert_eq!(waiting.try_take(), Some(()), "whoever waited looks again");
    assert_eq!(read(&world, 1, "k1"), Err(Refusal::NotMyVbucket));
    assert_eq!(world.bucket.state_of(VbId(1)), Some(VbState::Dead));
    assert_eq!(world.settle("k1", || read(&world, 3, "k1")), Ok("value 1".repeat(10)));
    assert_eq!(world.bucket.loading().warmup_stats().vbuckets_failed, 1);
    assert!(world.bucket.flushing().flush_all());
    world.check_account();
}

#[test]
fn a_stop_in_the_middle_keeps_everything() {
    let world = stopped(6, 10_000, PLENTY);
    let uuid = world.bucket.vbucket_stats(VB).expect("it is there").uuid;
    assert_eq!(world.bucket.loading().load_step(), Progress::Worked);
    let bucket = world.bucket.clone();
    *world.spy.in_scan.lock() = Some(Box::new(move || bucket.loading().stop_loaders()));
    assert_eq!(world.bucket.loading().load_step(), Progress::Worked, "it stops in the middle of the vBucket");
    assert_eq!(read(&world, 3, "k1"), Err(Refusal::Loading));
    let late = world.bucket.loading().loaded(VB).expect("not loaded");
    assert!(late.is_abandoned(), "nobody comes any more");
    assert_eq!(
        (world.bucket.loading().load_step(), world.bucket.loading().warm_step()),
        (Progress::Idle, Progress::Idle)
    );
    world.bucket.fetching().stop_fetchers();
    assert_eq!(world.bucket.fetching().fetch(VB, doc("k")).err(), Some(Refusal::Busy));
    let world = world.restart(PLENTY);
    assert_eq!(world.settle("k9999", || read(&world, 3, "k9999")), Ok("value 9999".repeat(10)));
    let again = world.bucket.vbucket_stats(VB).expect("it is there");
    assert_eq!((again.uuid, again.high_seqno, again.documents), (uuid, Seqno(10_000), 10_000));
}

#[test]
fn an_unclean_stop_begins_new_histories_before_anything_is_loaded() {
    let (env, handles) = Env::sim(7);
    let world = Watched::open(env, handles, PLENTY);
    let old = world.set("k", "v");
    assert!(world.bucket.flushing().flush_all());
    let Watched { env, handles, bucket, .. } = world;
    drop(bucket);
    let world = Watched::open(env, handles, PLENTY);
    let observed = world.bucket.documents().observe_seqno(VB, old.uuid).expect("the old history is known");
    assert_eq!(observed.old_history_end, Some(Seqno(1)));
    assert!(world.bucket.flushing().flush_all(), "the new history is written although nothing is loaded");
    assert_eq!(world.settle("k", || world.get("k")), Ok("v".into()));
}

#[test]
fn a_vbucket_that_is_deleted_while_it_is_loaded_stays_away() {
    let world = stopped(8, 10, PLENTY);
    let waiting = world.bucket.loading().loaded(VB).expect("not loaded");
    let bucket = world.bucket.clone();
    *world.spy.in_scan.lock() = Some(Box::new(move || {
        bucket.roles().set_vbucket_state(VB, VbState::Dead, None).expect("it is there");
        bucket.roles().delete_vbucket(VB).expect("it is dead").expect("the disk works");
        bucket.roles().set_vbucket_state(VB, VbState::Active, None).expect("made again");
    }));
    while world.bucket.loading().load_step() != Progress::Idle {}
    assert_eq!(waiting.try_take(), Some(()));
    assert_eq!(world.get("k1"), Err(Refusal::NotFound));
    assert_eq!(world.set("k1", "new").seqno, Seqno(1));
    while world.bucket.loading().warm_step() != Progress::Idle {}
    assert_eq!(world.get("k1"), Ok("new".into()));
    world.check_account();
}

#[test]
fn values_that_cannot_be_loaded_ahead_stop_nothing() {
    let world = stopped(9, 600, PLENTY);
    while world.bucket.loading().load_step() != Progress::Idle {}
    world.spy.damaged.lock().insert(VB);
    world.spy.unreadable.lock().insert("k0".into());
    while world.bucket.loading().warm_step() != Progress::Idle {}
    assert_eq!(world.bucket.loading().warmup_stats().state, WarmupState::Done);
    assert_eq!(world.bucket.state_of(VB), Some(VbState::Active));
    assert!(read(&world, 5, "k0").is_ok() && read(&world, 3, "k599").is_ok());
}
