//! Whole documents that leave memory: what is fetched and what is spared, what the disk's answer is worth when it
//! comes, and what is known about that which is not in memory.

mod common;

use std::time::Duration;

use base::env::{Env, SimHandles};
use base::{Cas, VbState};
use common::{VB, Watched, doc};
use engine::settings::Key;
use engine::{
    ByChance, CompactOutcome, CompactRequest, EvictionPolicy, Fetched, Progress, Refusal, Settings,
    StoreMode, StoreRequest, VbStats,
};

const QUOTA_BYTES: u64 = 256 << 20;

fn settings() -> Settings {
    let settings = Settings::default();
    settings.put(Key::EvictionPolicy, EvictionPolicy::Full as u64);
    settings
}

fn world(seed: u64) -> Watched {
    let (env, handles) = Env::sim(seed);
    Watched::open_with(env, handles, QUOTA_BYTES, &settings())
}

fn stats(world: &Watched) -> VbStats {
    world.bucket.vbucket_stats(VB).expect("it is there")
}

/// Documents, tombstones, and how many of each are out of memory.
fn counts(world: &Watched) -> [u64; 4] {
    let stats = stats(world);
    [stats.documents, stats.tombstones, stats.evicted_documents, stats.evicted_tombstones]
}

fn delete(world: &Watched, key: &str) -> Result<(), Refusal> {
    world.bucket.documents().delete(VB, doc(key), Cas::ANY, world.bucket.now()).map(|_| ())
}

fn evict(world: &Watched, key: &str) -> bool {
    assert!(world.bucket.flushing().flush_all());
    world.bucket.eviction().evict_whole(VB, doc(key)).expect("it is there")
}

fn set_expiring(world: &Watched, key: &str, seconds: u32) {
    let request = StoreRequest {
        key: doc(key),
        body: b"short",
        datatype: base::Datatype::RAW,
        flags: 0,
        expiry: seconds,
        mode: StoreMode::Set,
        cas: Cas::ANY,
        preserve_expiry: false,
    };
    world.bucket.documents().store(VB, &request, world.bucket.now()).expect("stored");
}

fn compact(world: &Watched, request: CompactRequest) {
    let waiting = world.bucket.compaction().compact(VB, request).expect("none is under way");
    while world.bucket.compaction().compact_step() != Progress::Idle {}
    assert_eq!(waiting.try_take(), Some(CompactOutcome::Done));
}

fn purge_all() -> CompactRequest {
    CompactRequest { purge_before_s: Some(u32::MAX), ..CompactRequest::default() }
}

/// What a fetch brings that the disk is asked for now.
fn fetch(world: &Watched, key: &str) -> Fetched {
    let waiting = world.bucket.fetching().fetch(VB, doc(key)).expect("few wait");
    assert_ne!(world.bucket.fetching().fetch_step(), Progress::Idle);
    waiting.try_take().expect("read")
}

fn reads(world: &Watched) -> usize {
    world.spy.batches.lock().len()
}

#[test]
fn a_document_leaves_whole_and_comes_back() {
    let world = world(1);
    world.set("k", &"v".repeat(1000));
    assert!(!world.bucket.eviction().evict_whole(VB, doc("k")).expect("it is there"), "it is dirty");
    assert!(world.bucket.flushing().flush_all());
    assert_eq!(world.bucket.eviction().evict_value(VB, doc("k")), Ok(true), "all of it goes");
    assert_eq!(counts(&world), [1, 0, 1, 0]);
    assert_eq!((stats(&world).without_value, stats(&world).item_bytes), (1, 0));
    assert!(stats(&world).filter_bytes > 0);
    assert_eq!(world.get("k"), Err(Refusal::NotResident));
    assert_eq!(world.bucket.op_counts().get_misses, 0, "nobody knows yet");
    assert_eq!(world.settle("k", || world.get("k")), Ok("v".repeat(1000)));
    assert_eq!((counts(&world), stats(&world).filter_bytes), ([1, 0, 0, 0], 0), "nothing is left to filter");
    world.check_account();
    world.end();
}

#[test]
fn the_filter_spares_the_disk() {
    let world = world(2);
    world.set("k", "v");
    assert!(evict(&world, "k"));
    for n in 0..100 {
        assert_eq!(world.settle("other", || world.get(&format!("other{n}"))), Err(Refusal::NotFound));
    }
    assert_eq!((reads(&world), counts(&world)), (0, [1, 0, 1, 0]));
    world.bucket.set_param("bfilter_enabled", "false").expect("a switch");
    world.set("l", "v");
    assert!(evict(&world, "l"));
    assert_eq!(world.get("other"), Err(Refusal::NotResident), "without a filter the disk is asked");
    assert_eq!(world.settle("other", || world.get("other")), Err(Refusal::NotFound));
    assert_eq!((reads(&world), stats(&world).filter_bytes), (1, 0));
    world.bucket.set_param("bfilter_enabled", "true").expect("a switch");
    assert_eq!(world.bucket.compaction().compact_step(), Progress::Worked, "a filter is made again");
    assert_eq!(world.bucket.compaction().compact_step(), Progress::Idle);
    assert_eq!(world.get("other"), Err(Refusal::NotFound));
    assert_eq!((world.get("k"), world.get("l")), (Err(Refusal::NotResident), Err(Refusal::NotResident)));
    world.end();
}

#[test]
fn every_operation_on_a_key_that_may_be_on_disk_is_refused_before_it_changes_anything() {
    let world = world(3);
    world.set("k", "1");
    delete(&world, "k").expect("deleted");
    assert!(evict(&world, "k"), "tombstones leave, too");
    assert_eq!(counts(&world), [0, 1, 0, 1]);
    let (bucket, now) = (&world.bucket, world.bucket.now());
    let before = (stats(&world).high_seqno, bucket.op_counts().conflicts, world.used());
    assert_eq!(world.set_in(VB, "k", "2").err(), Some(Refusal::NotResident));
    assert_eq!(delete(&world, "k"), Err(Refusal::NotResident));
    assert_eq!(bucket.documents().peek(VB, doc("k"), now).err(), Some(Refusal::NotResident));
    assert_eq!(bucket.documents().peek_as_is(VB, doc("k"), now).err(), Some(Refusal::NotResident));
    assert_eq!(bucket.documents().touch(VB, doc("k"), 0, now).err(), Some(Refusal::NotResident));
    assert_eq!(bucket.documents().get_and_lock(VB, doc("k"), 1, now).err(), Some(Refusal::NotResident));
    assert_eq!(bucket.documents().unlock(VB, doc("k"), Cas(1), now), Err(Refusal::NotResident));
    assert_eq!(bucket.eviction().evict_value(VB, doc("k")), Err(Refusal::NotResident));
    assert_eq!((stats(&world).high_seqno, bucket.op_counts().conflicts, world.used()), before);
    world.settle("k", || world.set_in(VB, "k", "2")).expect("stored");
    let found = bucket.documents().get(VB, doc("k"), now).expect("found");
    assert_eq!(found.version.meta().rev_seqno.0, 3, "the tombstone's revision was not lost");
    assert_eq!(counts(&world), [1, 0, 0, 0]);
}

#[test]
fn the_certainty_that_there_is_nothing_lasts_as_long_as_its_loan() {
    let world = world(4);
    world.bucket.set_param("bfilter_enabled", "false").expect("a switch");
    world.set("k", "v");
    assert!(evict(&world, "k"));
    let first = fetch(&world, "none");
    assert!(matches!(first, Fetched::Look(Some(_))));
    assert_eq!(world.get("none"), Err(Refusal::NotFound));
    let second = fetch(&world, "none");
    assert_eq!(reads(&world), 1, "the second reader shares what the first one found");
    drop(first);
    world.bucket.fetching().fetch_step();
    assert_eq!(world.get("none"), Err(Refusal::NotFound));
    drop(second);
    world.bucket.fetching().fetch_step();
    assert_eq!(world.get("none"), Err(Refusal::NotResident), "nobody remembers");
    assert_eq!(world.settle("none", || world.set_in(VB, "none", "now")).expect("stored").seqno.0, 2);
    world.check_account();
    world.end();
}

fn handle(world: &Watched) -> Watched {
    Watched {
        env: world.env.clone(),
        handles: SimHandles::new(0),
        bucket: world.bucket.clone(),
        spy: world.spy.clone(),
    }
}

/// Does something while the disk is asked for a key, and returns what came of it.
fn during_the_read(world: &Watched, key: &str, act: impl FnOnce(&Watched) + Send + 'static) -> Fetched {
    let other = handle(world);
    *world.spy.after_read.lock() = Some(Box::new(move || act(&other)));
    fetch(world, key)
}

#[test]
fn a_key_that_the_disk_is_asked_for_stays_when_it_is_written_meanwhile() {
    let world = world(5);
    world.bucket.set_param("bfilter_enabled", "false").expect("a switch");
    world.set("k", "v");
    assert!(evict(&world, "k"));
    // Nobody can write it without asking the disk too; whoever did is told the same.
    let held = during_the_read(&world, "new", |world| {
        let answer = world.bucket.fetching().fetch(VB, doc("new")).expect("it waits, too");
        assert_eq!(world.set_in(VB, "new", "x").err(), Some(Refusal::NotResident));
        assert!(answer.try_take().is_none());
    });
    world.set_in(VB, "new", "x").expect("known to be absent");
    assert!(!evict(&world, "new"), "who asked has not looked");
    assert_eq!(world.get("new"), Ok("x".into()));
    drop(held);
    world.bucket.fetching().fetch_step();
    assert!(evict(&world, "new"));
    assert_eq!(world.settle("new", || world.get("new")), Ok("x".into()));
}

#[test]
fn a_vbucket_that_is_made_anew_gets_nothing_of_the_old_one() {
    let world = world(6);
    world.set("k", "old");
    assert!(evict(&world, "k"));
    let held = during_the_read(&world, "k", |world| {
        world.bucket.roles().set_vbucket_state(VB, VbState::Dead, None).expect("it is there");
        world.bucket.roles().delete_vbucket(VB).expect("it is dead").expect("the disk works");
        world.bucket.roles().set_vbucket_state(VB, VbState::Active, None).expect("made again");
    });
    assert!(matches!(held, Fetched::Look(None)));
    assert_eq!((world.get("k"), counts(&world)), (Err(Refusal::NotFound), [0; 4]));
    world.end();
}

/// Nothing of the old file comes back, neither at once nor with a start that reads what the disk has.
#[test]
fn a_file_that_is_deleted_and_made_again_between_two_flushes_has_what_came_since() {
    let world = world(11);
    (0..20).for_each(|n| drop(world.set(&format!("old{n}"), "old")));
    assert!(world.bucket.flushing().flush_all());
    world.set("old0", "never written");
    let uuid = |world: &Watched| world.bucket.vbucket_stats(VB).expect("it is there").uuid;
    let before = uuid(&world);
    world.bucket.roles().set_vbucket_state(VB, VbState::Dead, None).expect("it is there");
    world.bucket.roles().delete_vbucket(VB).expect("it is dead").expect("the disk works");
    world.bucket.roles().set_vbucket_state(VB, VbState::Active, None).expect("made again");
    let again = world.set("new", "new");
    assert_eq!(again.seqno.0, 1, "its history begins again");
    assert_ne!(uuid(&world), before);
    assert!(world.bucket.flushing().flush_all());
    let world = world.restart(QUOTA_BYTES);
    world.load();
    assert_eq!(counts(&world)[0], 1);
    assert_eq!(world.settle("new", || world.get("new")), Ok("new".into()));
    assert_eq!(world.settle("old0", || world.get("old0")), Err(Refusal::NotFound));
    assert_eq!(world.settle("old7", || world.get("old7")), Err(Refusal::NotFound));
    world.end();
}

#[test]
fn a_tombstone_that_is_purged_while_it_is_read_does_not_come_back() {
    let world = world(7);
    for key in ["k", "l"] {
        world.set(key, "v");
        delete(&world, key).expect("deleted");
        assert!(evict(&world, key));
    }
    world.set("last", "v");
    assert!(evict(&world, "last"));
    let held = during_the_read(&world, "k", |world| compact(world, purge_all()));
    assert!(matches!(held, Fetched::Look(None)), "it is asked for again");
    assert_eq!(counts(&world), [1, 0, 1, 0], "both are gone");
    assert_eq!(world.settle("k", || world.get("k")), Err(Refusal::NotFound));
    world.settle("k", || world.set_in(VB, "k", "again")).expect("stored");
    let found = world.bucket.documents().get(VB, doc("k"), world.bucket.now()).expect("found");
    assert_eq!(
        found.version.meta().rev_seqno.0,
        5,
        "beyond the revision of what was purged: l began beyond k"
    );
}

#[test]
fn a_document_that_cannot_be_read_fails_its_readers_and_is_not_taken_for_absent() {
    let world = world(8);
    world.set("k", "v");
    assert!(evict(&world, "k"));
    world.spy.unreadable.lock().insert("k".into());
    assert!(matches!(fetch(&world, "k"), Fetched::Failed));
    assert_eq!(world.get("k"), Err(Refusal::NotResident));
    world.spy.unreadable.lock().clear();
    assert_eq!(world.settle("k", || world.get("k")), Ok("v".into()));
}

#[test]
fn without_room_a_document_is_lent_and_goes_whole() {
    let (env, handles) = Env::sim(9);
    let world = Watched::open_with(env, handles, 100_000, &settings());
    for n in 0..80 {
        world.set(&format!("k{n}"), &"v".repeat(1000));
        assert!(world.bucket.flushing().flush_all());
    }
    assert!(evict(&world, "k0"));
    assert!(world.bucket.memory().is_above_high_watermark());
    let held = fetch(&world, "k0");
    assert!(matches!(held, Fetched::Look(Some(_))));
    assert_eq!(world.get("k0"), Ok("v".repeat(1000)));
    drop(held);
    assert_eq!(world.bucket.fetching().fetch_step(), Progress::Worked);
    assert_eq!((world.get("k0"), counts(&world)), (Err(Refusal::NotResident), [80, 0, 1, 0]));
    world.end();
}

/// At the limit of memory: what the disk has is read and expires, and the client is not told to come again.
#[test]
fn an_expired_document_that_is_out_of_memory_is_not_found_when_memory_is_full() {
    let (env, handles) = Env::sim(12);
    let world = Watched::open_with(env, handles, 100_000, &settings());
    set_expiring(&world, "gone", 10);
    set_expiring(&world, "there", 1000);
    assert!(evict(&world, "gone") && evict(&world, "there"));
    let fill = |n: u32| {
        let key = format!("k{n}");
        world.settle(&key, || world.set_in(VB, &key, &"v".repeat(1000))).err()
    };
    assert_eq!((0..500).find_map(fill), Some(Refusal::OverQuota));
    world.handles.clock.advance(Duration::from_secs(20));
    assert_eq!(world.settle("gone", || world.get("gone")), Err(Refusal::NotFound));
    assert_eq!(world.settle("there", || world.get("there")), Ok("short".into()));
    let gone = world.settle("gone", || delete(&world, "gone"));
    assert_eq!(gone, Err(Refusal::NotFound), "what has expired cannot be deleted");
    world.end();
}

#[test]
fn a_start_loads_what_there_is_room_for_and_knows_of_the_rest() {
    let first = world(10);
    for n in 0..2000 {
        first.set(&format!("k{n}"), &format!("v{n}"));
    }
    (0..100).for_each(|n| delete(&first, &format!("k{n}")).expect("deleted"));
    let world = first.restart(100_000);
    world.load();
    let [documents, tombstones, evicted_documents, evicted_tombstones] = counts(&world);
    assert_eq!((documents, tombstones), (1900, 100));
    assert!(evicted_documents > 500 && evicted_documents < 1500, "{evicted_documents}");
    assert_eq!(evicted_tombstones, 100, "what was changed last did not fit");
    assert!(world.used() < 85_000, "{}", world.used());
    let warmup = world.bucket.loading().warmup_stats();
    assert_eq!((warmup.keys, warmup.at_watermark), (2000, true));
    world.bucket.settings().put(Key::MaxSize, QUOTA_BYTES);
    let misses = (0..500).filter(|n| world.get(&format!("none{n}")) != Err(Refusal::NotFound)).count();
    assert!(misses < 20, "{misses} of 500 would have asked the disk");
    for n in 0..2000 {
        let key = format!("k{n}");
        let expected = if n < 100 { Err(Refusal::NotFound) } else { Ok(format!("v{n}")) };
        assert_eq!(world.settle(&key, || world.get(&key)), expected);
    }
    assert_eq!(counts(&world), [1900, 100, 0, 0]);
    world.end();
}

#[test]
fn back_to_keeping_metadata_what_is_out_still_comes_back() {
    let world = world(11);
    for key in ["a", "b"] {
        world.set(key, "v");
    }
    assert!(evict(&world, "a"));
    world.bucket.set_param("item_eviction_policy", "value_only").expect("a policy");
    assert_eq!(world.bucket.eviction().evict_value(VB, doc("b")), Ok(true));
    assert_eq!(counts(&world), [2, 0, 1, 0], "of the other one the metadata stay");
    assert_eq!(world.settle("a", || world.get("a")), Ok("v".into()));
    assert_eq!(world.settle("b", || world.get("b")), Ok("v".into()));
    world.bucket.set_param("item_eviction_policy", "full_eviction").expect("a policy");
    assert_eq!(world.bucket.eviction().evict_value(VB, doc("b")), Ok(true));
    assert_eq!(counts(&world), [2, 0, 1, 0]);
}

#[test]
fn a_document_by_chance_comes_from_disk_if_nothing_is_in_memory() {
    let world = world(12);
    assert!(matches!(
        world.bucket.documents().random_key(base::CollectionId::DEFAULT, world.bucket.now()),
        ByChance::None
    ));
    for n in 0..50 {
        world.set(&format!("k{n}"), "v");
    }
    delete(&world, "k7").expect("deleted");
    (0..50).for_each(|n| assert!(evict(&world, &format!("k{n}"))));
    for _ in 0..20 {
        assert!(matches!(
            world.bucket.documents().random_key(base::CollectionId::DEFAULT, world.bucket.now()),
            ByChance::Evicted(VB)
        ));
        let waiting = world
            .bucket
            .fetching()
            .fetch(VB, base::DocKey { collection: base::CollectionId::DEFAULT, key: &[] })
            .expect("few wait");
        assert_eq!(world.bucket.fetching().fetch_step(), Progress::Worked);
        let held = waiting.try_take().expect("read");
        let ByChance::Found(found) =
            world.bucket.documents().random_key(base::CollectionId::DEFAULT, world.bucket.now())
        else {
            panic!("brought")
        };
        assert_eq!(found.version.value(), b"v");
        drop(held);
        assert_eq!(world.bucket.eviction().evict_whole(VB, found.version.key()), Ok(true));
    }
}

#[test]
fn a_compaction_expires_what_is_not_in_memory() {
    let world = world(13);
    for n in 0..20 {
        set_expiring(&world, &format!("short{n}"), 10);
        assert!(evict(&world, &format!("short{n}")));
    }
    world.set("long", "v");
    assert!(evict(&world, "long"));
    world.handles.clock.advance(Duration::from_secs(60));
    compact(&world, CompactRequest::default());
    assert_eq!(world.bucket.compaction().compaction_stats().documents_expired, 20);
    assert_eq!((counts(&world), stats(&world).high_seqno.0), ([1, 20, 1, 0], 41));
    assert!(world.bucket.flushing().flush_all());
    let disk = world.bucket.disk_counts(VB).expect("readable");
    assert_eq!((disk.documents, disk.tombstones), (1, 20));
}

#[test]
fn a_stale_filter_is_made_anew_and_denies_nothing() {
    let world = world(14);
    let key = |n: u32| format!("k{n}");
    for n in 0..12_000 {
        world.set(&key(n), "v");
    }
    assert!(world.bucket.flushing().flush_all());
    (0..12_000).for_each(|n| assert_eq!(world.bucket.eviction().evict_whole(VB, doc(&key(n))), Ok(true)));
    let large = stats(&world).filter_bytes;
    assert_eq!(world.bucket.compaction().compact_step(), Progress::Idle, "it is not stale");
    for n in 100..12_000 {
        assert!(world.settle(&key(n), || world.get(&key(n))).is_ok());
    }
    assert_eq!(counts(&world), [12_000, 0, 100, 0]);
    assert_eq!(world.bucket.compaction().compact_step(), Progress::Worked);
    assert_eq!(world.bucket.compaction().compact_step(), Progress::Idle);
    assert!(stats(&world).filter_bytes * 4 < large);
    assert_eq!(counts(&world), [12_000, 0, 100, 0]);
    (0..100).for_each(|n| assert_eq!(world.get(&key(n)), Err(Refusal::NotResident)));
    world.end();
}
