//! Values that are not in memory: who waits for them, and what happens meanwhile.

mod common;

use std::time::Duration;

use base::env::{DiskCall, marked};
use base::{Cas, Datatype, ItemKind, NewVersion, RevSeqno, VbState, VersionMeta};
use common::{VB, Watched, doc};
use engine::{
    ByChance, End, Fetched, Progress, Refusal, StoreMode, StoreRequest, WithMetaRequest, blocked_threads,
    tell_blocked,
};

#[test]
fn an_evicted_value_comes_back_and_the_account_is_right() {
    let world = Watched::new(1);
    world.set("k", &"v".repeat(1000));
    let full = world.used();
    assert!(world.bucket.flushing().flush_all());
    assert_eq!(world.bucket.eviction().evict_value(VB, doc("k")), Ok(true));
    world.check_account();
    assert!(world.used() + 1000 <= full);
    assert_eq!(world.bucket.with_vbucket(VB, |vb| vb.counts().without_value), Some(1));
    assert_eq!(world.get("k"), Err(Refusal::NotResident));
    let fetch = world.bucket.fetching().fetch(VB, doc("k")).expect("few wait");
    assert!(fetch.try_take().is_none());
    assert_eq!(world.bucket.fetching().fetch_step(), Progress::Worked);
    assert!(matches!(fetch.try_take(), Some(Fetched::Look(None))));
    assert_eq!(world.get("k"), Ok("v".repeat(1000)));
    assert_eq!(world.bucket.fetching().fetch_step(), Progress::Idle);
    assert_eq!((world.used(), world.table_bytes()), (full, full));
    assert_eq!(world.bucket.fetching().fetch_stats().fetched, 1);
    let ops = world.bucket.op_counts();
    assert_eq!((ops.get_hits, ops.get_misses), (1, 0), "a read that has to wait is counted once");
}

#[test]
fn only_what_is_on_disk_and_free_leaves_memory() {
    let world = Watched::new(2);
    assert_eq!(world.bucket.eviction().evict_value(VB, doc("none")), Err(Refusal::NotFound));
    world.set("dirty", "v");
    assert_eq!(world.bucket.eviction().evict_value(VB, doc("dirty")), Ok(false));
    world.set("locked", "v");
    world.set("empty", "");
    assert!(world.bucket.flushing().flush_all());
    let lock =
        world.bucket.documents().get_and_lock(VB, doc("locked"), 10, world.bucket.now()).expect("locked");
    assert_eq!(world.bucket.eviction().evict_value(VB, doc("locked")), Ok(false));
    assert_eq!(world.bucket.eviction().evict_value(VB, doc("empty")), Ok(false));
    assert_eq!(world.bucket.eviction().evict_value(VB, doc("dirty")), Ok(true), "clean by now");
    assert_eq!(world.bucket.eviction().evict_value(VB, doc("dirty")), Ok(true), "out already");
    world.bucket.documents().unlock(VB, doc("locked"), lock.cas, world.bucket.now()).expect("unlocked");
    assert_eq!(world.bucket.eviction().evict_value(VB, doc("locked")), Ok(true));
    // The disk knows nothing of the CAS that the lock gave it.
    let found =
        world.settle("locked", || world.bucket.documents().get(VB, doc("locked"), world.bucket.now()));
    let found = found.expect("it is there");
    assert_eq!((found.cas, found.version.value()), (lock.cas, &b"v"[..]));
    drop((found, lock));
    world.check_account();
}

#[test]
fn readers_of_a_key_share_a_read_and_keys_of_a_vbucket_share_a_batch() {
    let world = Watched::new(3);
    for key in ["b", "a", "c"] {
        world.set_evicted(key, key);
    }
    let waiting: Vec<_> = ["b", "a", "b", "c", "b", "a"]
        .iter()
        .map(|key| world.bucket.fetching().fetch(VB, doc(key)).expect("few wait"))
        .collect();
    assert_eq!(world.bucket.fetching().fetch_stats().waiting, 6);
    assert_eq!(world.bucket.fetching().fetch_step(), Progress::Worked);
    assert_eq!(*world.spy.batches.lock(), [(VB, vec!["a".to_owned(), "b".to_owned(), "c".to_owned()])]);
    assert!(waiting.iter().all(|one| matches!(one.try_take(), Some(Fetched::Look(None)))));
    assert_eq!(["a", "b", "c"].map(|key| world.get(key)), ["a", "b", "c"].map(|value| Ok(value.to_owned())));
    assert_eq!(world.bucket.fetching().fetch_stats().waiting, 0);
}

#[test]
fn what_nobody_waits_for_any_more_is_not_read() {
    let world = Watched::new(4);
    world.set_evicted("a", "a");
    drop(world.bucket.fetching().fetch(VB, doc("a")));
    assert_eq!(world.bucket.fetching().fetch_step(), Progress::Idle);
    assert!(world.spy.batches.lock().is_empty());
    assert_eq!(world.bucket.fetching().fetch_stats().waiting, 0);
}

/// Does something while a value is being read, and returns what its reader finds then.
fn during_the_read(
    seed: u64,
    act: impl FnOnce(&Watched) + Send + 'static,
) -> (Watched, Result<String, Refusal>) {
    let world = Watched::new(seed);
    world.set_evicted("k", "old");
    let fetch = world.bucket.fetching().fetch(VB, doc("k")).expect("few wait");
    let other = Watched {
        env: world.env.clone(),
        handles: base::env::SimHandles::new(0),
        bucket: world.bucket.clone(),
        spy: world.spy.clone(),
    };
    *world.spy.after_read.lock() = Some(Box::new(move || act(&other)));
    assert_eq!(world.bucket.fetching().fetch_step(), Progress::Worked);
    assert!(matches!(fetch.try_take(), Some(Fetched::Look(None))));
    let got = world.get("k");
    world.check_account();
    (world, got)
}

#[test]
fn a_read_that_does_not_go_on_is_told_with_what_it_waits_for() {
    let world = Watched::new(30);
    world.set_evicted("k", "v");
    let fetch = world.bucket.fetching().fetch(VB, doc("k")).expect("few wait");
    let (bucket, clock) = (world.bucket.clone(), world.handles.clock.clone());
    // The hook runs in the fetcher's step.
    *world.spy.after_read.lock() = Some(Box::new(move || {
        let look = |seconds: u64| {
            let mut blocked = Vec::new();
            for _ in 0..=seconds / 5 {
                blocked = blocked_threads(&bucket);
                tell_blocked(&bucket, &blocked, false);
                clock.advance(Duration::from_secs(5));
            }
            blocked.into_iter().map(|one| (one.task, one.call, one.for_s)).collect::<Vec<_>>()
        };
        assert_eq!(look(115), []);
        assert_eq!(look(5), [("fetcher", None, 125)]);
        marked(DiskCall::Read, || {
            assert_eq!(look(5), [], "a call began");
            assert_eq!(look(5), [("fetcher", Some(DiskCall::Read), 15)]);
        });
        assert_eq!(look(5), []);
    }));
    assert_eq!(world.bucket.fetching().fetch_step(), Progress::Worked);
    assert!(matches!(fetch.try_take(), Some(Fetched::Look(None))));
    world.handles.clock.advance(Duration::from_secs(100));
    assert_eq!(blocked_threads(&world.bucket), []);
}

#[test]
fn a_write_during_the_read_wins() {
    let (_, got) = during_the_read(5, |world| assert_eq!(world.set("k", "new").seqno.0, 2));
    assert_eq!(got, Ok("new".into()));
    let (world, got) = during_the_read(6, |world| assert_eq!(world.set_evicted("k", "new").seqno.0, 2));
    assert_eq!(got, Err(Refusal::NotResident), "the reader looks again, and asks again");
    assert_eq!(world.settle("k", || world.get("k")), Ok("new".into()));
}

#[test]
fn a_deletion_during_the_read_wins() {
    let (_, got) = during_the_read(7, |world| {
        let now = world.bucket.now();
        world.bucket.documents().delete(VB, doc("k"), Cas::ANY, now).expect("deleted");
    });
    assert_eq!(got, Err(Refusal::NotFound));
}

#[test]
fn a_vbucket_that_is_made_anew_during_the_read_gets_nothing_of_the_old_one() {
    let (world, got) = during_the_read(8, |world| {
        world.bucket.roles().set_vbucket_state(VB, VbState::Dead, None).expect("it is there");
        world.bucket.roles().delete_vbucket(VB).expect("it is dead").expect("the disk works");
        world.bucket.roles().set_vbucket_state(VB, VbState::Active, None).expect("made again");
        assert_eq!(world.set_evicted("k", "new").seqno.0, 1);
    });
    assert_eq!(got, Err(Refusal::NotResident));
    assert_eq!(world.settle("k", || world.get("k")), Ok("new".into()));
}

#[test]
fn a_value_that_cannot_be_read_fails_its_readers_alone() {
    let world = Watched::new(9);
    for key in ["bad", "good"] {
        world.set_evicted(key, key);
    }
    world.spy.unreadable.lock().insert("bad".into());
    let waiting =
        ["bad", "good", "bad"].map(|key| world.bucket.fetching().fetch(VB, doc(key)).expect("few wait"));
    assert_eq!(world.bucket.fetching().fetch_step(), Progress::Failed);
    let [bad, good, also_bad] = waiting.map(|one| one.try_take());
    assert!(matches!((bad, also_bad), (Some(Fetched::Failed), Some(Fetched::Failed))));
    assert!(matches!(good, Some(Fetched::Look(None))));
    assert_eq!((world.get("good"), world.get("bad")), (Ok("good".into()), Err(Refusal::NotResident)));
    assert_eq!(world.bucket.fetching().fetch_stats().failed, 1);
    world.spy.unreadable.lock().clear();
    assert_eq!(world.settle("bad", || world.get("bad")), Ok("bad".into()));
}

#[test]
fn a_value_without_room_is_lent_and_goes_when_its_readers_have_it() {
    let (env, handles) = base::env::Env::sim(10);
    let world = Watched::open(env, handles, 100_000);
    for n in 0..80 {
        world.set(&format!("k{n}"), &"v".repeat(1000));
        assert!(world.bucket.flushing().flush_all());
    }
    assert_eq!(world.bucket.eviction().evict_value(VB, doc("k0")), Ok(true));
    let hollow = world.used();
    assert!(world.bucket.memory().is_above_high_watermark());
    let waiting = [0, 0].map(|_| world.bucket.fetching().fetch(VB, doc("k0")).expect("few wait"));
    assert_eq!(world.bucket.fetching().fetch_step(), Progress::Worked);
    let [first, second] = waiting.map(|one| one.try_take().expect("read"));
    assert!(matches!((&first, &second), (Fetched::Look(Some(_)), Fetched::Look(Some(_)))));
    assert_eq!(world.get("k0"), Ok("v".repeat(1000)));
    drop(first);
    assert_eq!(world.bucket.fetching().fetch_step(), Progress::Idle, "the other one still needs it");
    assert!(world.get("k0").is_ok());
    drop(second);
    assert_eq!(world.bucket.fetching().fetch_step(), Progress::Worked);
    assert_eq!(world.get("k0"), Err(Refusal::NotResident));
    assert_eq!((world.used(), world.table_bytes()), (hollow, hollow));
}

#[test]
fn large_values_are_read_in_parts_and_lent_a_few_at_a_time() {
    const MIB: usize = 1 << 20;
    let (env, handles) = base::env::Env::sim(13);
    let world = Watched::open(env, handles, 60 * MIB as u64);
    // The quota has room for a few of them, above the high watermark for none.
    for n in 0..9 {
        world.set_evicted(&format!("k{n}"), &"v".repeat(6 * MIB));
    }
    for n in 0..9 {
        let key = format!("full{n}");
        match world.set_in(VB, &key, &"v".repeat(6 * MIB)) {
            Ok(_) => assert!(world.bucket.flushing().flush_all()),
            Err(refusal) => assert_eq!(refusal, Refusal::OverQuota),
        }
    }
    let waiting: Vec<_> =
        (0..9).map(|n| world.bucket.fetching().fetch(VB, doc(&format!("k{n}"))).expect("few wait")).collect();
    world.spy.batches.lock().clear();
    assert_eq!(world.bucket.fetching().fetch_step(), Progress::Worked);
    let read: Vec<usize> = world.spy.batches.lock().iter().map(|(_, keys)| keys.len()).collect();
    assert!(
        read.len() < 9 && read.iter().all(|keys| *keys == 1),
        "{read:?}: one at a time, and not all of them"
    );
    let again = world.set_in(VB, "k0", "small");
    assert_eq!(again, Err(Refusal::OverQuota), "{} of {}", world.used(), world.bucket.memory().quota_bytes());
    let late = world.bucket.fetching().fetch(VB, doc("full0")).expect("few wait");
    assert_eq!(world.bucket.eviction().evict_value(VB, doc("full0")), Ok(true));
    assert_eq!(world.bucket.fetching().fetch_step(), Progress::Idle, "too much is lent");
    drop(waiting);
    assert_eq!(world.bucket.fetching().fetch_step(), Progress::Worked);
    while world.bucket.fetching().fetch_step() != Progress::Idle {}
    assert!(matches!(late.try_take(), Some(Fetched::Look(_))));
    world.check_account();
}

#[test]
fn metadata_are_enough_for_much() {
    let world = Watched::new(11);
    let now = || world.bucket.now();
    let store = |mode, cas| {
        let request = StoreRequest {
            key: doc("k"),
            body: b"new",
            datatype: Datatype::RAW,
            flags: 0,
            expiry: 0,
            mode,
            cas,
            preserve_expiry: false,
        };
        world.bucket.documents().store(VB, &request, now())
    };
    let old = world.set_evicted("k", "value");
    assert_eq!(store(StoreMode::Add, Cas::ANY).err(), Some(Refusal::Exists));
    assert_eq!(store(StoreMode::Replace, Cas(1)).err(), Some(Refusal::Exists));
    let seen = world.bucket.documents().peek(VB, doc("k"), now()).expect("served").expect("there");
    assert_eq!((seen.cas, seen.version.value_bytes()), (old.cas, 5));
    assert_eq!(seen.whole().err(), Some(Refusal::NotResident));
    drop(seen);
    assert_eq!(world.bucket.documents().unlock(VB, doc("k"), Cas(1), now()), Err(Refusal::NotLocked));
    store(StoreMode::Replace, old.cas).expect("stored");
    assert_eq!(world.get("k"), Ok("new".into()));
    world.set_evicted("k", "value");
    world
        .bucket
        .documents()
        .delete(VB, doc("k"), Cas::ANY, now())
        .expect("a plain document leaves a plain tombstone");
    world.set_evicted("k", "value");
    let meta = VersionMeta {
        cas: Cas(5),
        rev_seqno: RevSeqno(100),
        kind: ItemKind::Mutation,
        ..VersionMeta::default()
    };
    let request = WithMetaRequest {
        key: doc("k"),
        value: b"foreign",
        datatype: Datatype::RAW,
        meta,
        add: false,
        expected: Cas::ANY,
        force: false,
        regenerate_cas: false,
        late: None,
    };
    world.bucket.documents().apply_with_meta(VB, &request, now()).expect("it wins by revision");
    assert_eq!(world.get("k"), Ok("foreign".into()));
    assert!(world.spy.batches.lock().is_empty(), "nothing of this needed a value");
    world.check_account();
}

#[test]
fn values_are_asked_for_where_they_matter() {
    let world = Watched::new(12);
    let now = || world.bucket.now();
    world.set_evicted("k", "41");
    let join = world.bucket.documents().join(VB, doc("k"), b"!", Datatype::RAW, End::Back, Cas::ANY, now());
    let touch = world.bucket.documents().touch(VB, doc("k"), 100, now()).map(|_| ());
    let lock = world.bucket.documents().get_and_lock(VB, doc("k"), 10, now()).map(|_| ());
    assert_eq!(join.err(), Some(Refusal::NotResident));
    assert_eq!((touch, lock), (Err(Refusal::NotResident), Err(Refusal::NotResident)));
    assert!(matches!(
        world.bucket.documents().random_key(base::CollectionId::DEFAULT, now()),
        ByChance::NotResident(VB, _)
    ));
    world.set("other", "there");
    let chosen =
        (0..20).all(|_| match world.bucket.documents().random_key(base::CollectionId::DEFAULT, now()) {
            ByChance::Found(found) => found.version.key() == doc("other"),
            _ => false,
        });
    assert!(chosen, "what is in memory is preferred");
    let whole = NewVersion::new(base::Heap::shared(), VersionMeta::default(), doc("k"), &[b"v"]).publish();
    assert!(engine::Whole::of(whole).is_ok());
}
