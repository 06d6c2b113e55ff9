//! A full disk: changes are refused before anything changes, reads go on, and it heals by itself.

mod common;

use std::sync::Arc;

use base::env::sim::{Call, Effect, Fault, On};
use base::env::{Env, SimHandles};
use base::{Cas, Datatype, ItemKind, RevSeqno, Seqno, VersionMeta};
use common::{VB, World, doc};
use engine::{Bucket, BucketConfig, Progress, Refusal, StoreMode, WithMetaRequest};
use kvstore::{Couch, CouchConfig, Journaled, JournaledConfig, KvStore};

fn journaled(env: &Env) -> Arc<dyn KvStore> {
    let config = JournaledConfig { journal_bytes: 256 << 10, ..JournaledConfig::default() };
    Arc::new(Journaled::open(env.clone(), "/data/test".as_ref(), config).expect("the disk works"))
}

fn files(env: &Env) -> Arc<dyn KvStore> {
    let store = Couch::open(env.clone(), "/data/test".as_ref(), CouchConfig::default());
    Arc::new(store.expect("the disk works"))
}

fn world(env: Env, handles: SimHandles, store: fn(&Env) -> Arc<dyn KvStore>) -> World {
    let mut config = BucketConfig::new("test", "/data/test".into());
    (config.vbuckets, config.quota_bytes) = (8, 8 << 20);
    let bucket = Bucket::open(config, env.clone(), store(&env)).expect("the disk works");
    World { env, handles, bucket }
}

fn fill(world: &World) {
    world.handles.disk.plan(Fault::for_ever(On::Kind(Call::Write), 1, Effect::DISK_FULL));
    world.handles.disk.plan(Fault::for_ever(On::Kind(Call::SetLen), 1, Effect::DISK_FULL));
}

/// Changes of every kind are refused, and leave nothing behind.
fn assert_refuses(world: &World, cas: Cas) {
    let (bucket, now) = (&world.bucket, world.now());
    let before = (
        bucket.memory().account().exact()[base::Part::Documents as usize] as u64,
        bucket.with_vbucket(VB, |vb| vb.high_seqno()),
    );
    assert_eq!(world.set("k", "other").map(drop), Err(Refusal::DiskFull));
    assert_eq!(world.set("new", "other").map(drop), Err(Refusal::DiskFull));
    assert_eq!(world.store("k", "other", StoreMode::Replace, cas, 0).map(drop), Err(Refusal::DiskFull));
    assert_eq!(bucket.documents().delete(VB, doc("k"), Cas::ANY, now).map(drop), Err(Refusal::DiskFull));
    let meta = VersionMeta {
        cas: Cas(1 << 40),
        rev_seqno: RevSeqno(9),
        kind: ItemKind::Deletion,
        ..VersionMeta::default()
    };
    let foreign = WithMetaRequest {
        key: doc("k"),
        value: b"",
        datatype: Datatype::RAW,
        meta,
        add: false,
        expected: Cas::ANY,
        force: true,
        regenerate_cas: false,
        late: None,
    };
    assert_eq!(bucket.documents().apply_with_meta(VB, &foreign, now).map(drop), Err(Refusal::DiskFull));
    let after = (
        bucket.memory().account().exact()[base::Part::Documents as usize] as u64,
        bucket.with_vbucket(VB, |vb| vb.high_seqno()),
    );
    assert_eq!(before, after);
}

fn recovers(store: fn(&Env) -> Arc<dyn KvStore>) {
    let (env, handles) = Env::sim(1);
    let world = world(env, handles, store);
    let stored = world.set("k", "saved").expect("stored");
    assert!(world.bucket.flushing().flush_all());
    fill(&world);
    world.set("behind", "not saved yet").expect("nobody knows yet");
    let waiting =
        world.bucket.durability().persisted(VB, Seqno(2)).expect("few wait").expect("it is not on disk");
    let failed = (0..1000).find(|n| {
        // an append that fits into what the journal has prepared still works
        let _ = world.set("k", &format!("{n}").repeat(1000));
        world.bucket.flushing().flush_step() == Progress::Failed
    });
    assert!(failed.is_some());
    assert!(world.bucket.flushing().save_stats().is_disk_full);
    assert_refuses(&world, stored.cas);
    assert_eq!(world.get("behind"), Ok("not saved yet".into()));
    assert_eq!(world.bucket.flushing().flush_step(), Progress::Failed, "it keeps trying");
    let files = || world.env.disk.read_dir("/data/test".as_ref()).expect("a folder").len();
    let before = files();
    (0..20).for_each(|_| assert_eq!(world.bucket.flushing().flush_step(), Progress::Failed));
    assert!(files() <= before, "no attempt leaves a file: {before} files, then {}", files());
    assert_eq!(world.bucket.flushing().save_stats().times_full, 1);

    world.handles.disk.heal();
    assert!(world.bucket.flushing().flush_all());
    assert!(
        !world.bucket.flushing().save_stats().is_disk_full
            && !world.bucket.flushing().save_stats().is_failing
    );
    assert_eq!(waiting.try_take(), Some(()));
    world.set("after", "room").expect("there is room again");
    assert!(world.bucket.flushing().flush_all());
    let World { env, handles, bucket } = world;
    drop(bucket);
    let world = self::world(env, handles, store);
    assert_eq!(world.get("behind"), Ok("not saved yet".into()));
    assert_eq!(world.get("after"), Ok("room".into()));
}

#[test]
fn a_full_disk_heals_by_itself() {
    recovers(files);
}

#[test]
fn a_full_disk_heals_by_itself_with_a_journal() {
    recovers(journaled);
}

#[test]
fn overwriting_while_the_disk_is_full_does_not_grow() {
    for store in [files, journaled] {
        let (env, handles) = Env::sim(2);
        let world = world(env, handles, store);
        for n in 0..20 {
            world.set(&format!("k{n}"), "saved").expect("stored");
        }
        assert!(world.bucket.flushing().flush_all());
        fill(&world);
        let mut refused = 0;
        for round in 0..2000 {
            match world.set(&format!("k{}", round % 20), &format!("{round} ").repeat(500)) {
                Ok(_) => assert_eq!(refused, 0, "from the first refusal on"),
                Err(refusal) => {
                    assert_eq!(refusal, Refusal::DiskFull);
                    refused += 1;
                }
            }
            world.bucket.flushing().flush_step();
        }
        assert!(refused > 1000, "{refused}");
        let queued = world.bucket.stats().all().checkpoint_item_bytes;
        assert!(world.bucket.memory().used_bytes() + queued < 1 << 20);
        assert!(world.get("k3").is_ok());
    }
}

#[test]
fn what_has_expired_still_goes() {
    let (env, handles) = Env::sim(3);
    let world = world(env, handles, files);
    world.store("k", "short", StoreMode::Set, Cas::ANY, 10).expect("stored");
    assert!(world.bucket.flushing().flush_all());
    fill(&world);
    world.set("other", "v").expect("nobody knows yet");
    assert_eq!(world.bucket.flushing().flush_step(), Progress::Failed);
    world.handles.clock.advance(std::time::Duration::from_secs(20));
    assert_eq!(world.get("k"), Err(Refusal::NotFound));
}

#[test]
fn another_failure_refuses_nothing() {
    let (env, handles) = Env::sim(4);
    let world = world(env, handles, files);
    world.handles.disk.plan(Fault::for_ever(On::Kind(Call::Sync), 1, Effect::IO_ERROR));
    world.set("k", "v").expect("stored");
    assert_eq!(world.bucket.flushing().flush_step(), Progress::Failed);
    let stats = world.bucket.flushing().save_stats();
    assert!(stats.is_failing && !stats.is_disk_full && stats.failed_saves > 0);
    world.set("k", "w").expect("stored");
    world.handles.disk.heal();
    assert!(world.bucket.flushing().flush_all() && !world.bucket.flushing().save_stats().is_failing);
}
