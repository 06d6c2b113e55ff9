//! What leaves memory when it runs short, what stays, and who is told.

mod common;

use std::sync::atomic::Ordering;
use std::time::Duration;

use base::env::Env;
use base::{Cas, VbId, VbState};
use common::{VB, Watched, doc};
use engine::settings::Key;
use engine::{EvictionPolicy, Holder, Progress, Refusal};

const QUOTA: u64 = 200_000;
const VALUE: usize = 1000;

fn world(seed: u64) -> Watched {
    let (env, handles) = Env::sim(seed);
    let world = Watched::open(env, handles, QUOTA);
    world.bucket.maintenance().keep_step();
    world
}

fn value(n: usize) -> String {
    format!("{n:06}").repeat(VALUE / 6)
}

fn key(n: usize) -> String {
    format!("key-{n:04}")
}

/// Writes until the bucket is above the high watermark, and says how many documents that were.
fn fill(world: &Watched, vb: VbId) -> usize {
    fill_and(world, vb, || assert!(world.bucket.flushing().flush_all()))
}

/// The same, with something done after each document.
fn fill_and(world: &Watched, vb: VbId, each: impl Fn()) -> usize {
    for n in 0.. {
        if world.bucket.memory().is_above_high_watermark() {
            return n;
        }
        world.set_in(vb, &key(n), &value(n)).expect("there is room");
        each();
    }
    unreachable!("memory is finite")
}

fn is_resident(world: &Watched, vb: VbId, key: &str) -> bool {
    let hash = world.bucket.hash(doc(key));
    let found =
        world.bucket.with_vbucket(vb, |vb| vb.find(hash, doc(key)).ok().flatten().map(|v| v.is_resident()));
    found.flatten().expect("it is there")
}

fn residents(world: &Watched, vb: VbId, documents: usize) -> usize {
    (0..documents).filter(|n| is_resident(world, vb, &key(*n))).count()
}

fn frequency(world: &Watched, key: &str) -> u8 {
    let hash = world.bucket.hash(doc(key));
    let found = world.bucket.with_vbucket(VB, |vb| {
        vb.find(hash, doc(key)).ok().flatten().map(|v| v.frequency().load(Ordering::Relaxed))
    });
    found.flatten().expect("it is there")
}

/// Runs the housekeeper until nothing is due, with pauses in between.
fn keep(world: &Watched) {
    for _ in 0..50 {
        while world.bucket.maintenance().keep_step() {}
        world.handles.clock.advance(Duration::from_millis(100));
    }
}

#[test]
fn a_write_above_the_high_watermark_wakes_the_pager_and_the_cold_leave() {
    let world = world(1);
    let steps = |world: &Watched| world.bucket.maintenance().chore_stats()[1].steps;
    world.set("first", "v");
    let before = steps(&world);
    world.bucket.maintenance().keep_step();
    assert_eq!(steps(&world), before, "below the watermark nobody wakes it");
    let documents = fill(&world, VB);
    let hot = documents / 4;
    for _ in 0..30 {
        (0..hot).for_each(|n| assert_eq!(world.get(&key(n)), Ok(value(n))));
    }
    assert!(world.bucket.flushing().flush_all());
    world.set("above", &value(0));
    assert!(world.bucket.maintenance().keep_step(), "the write woke it");
    assert!(steps(&world) > before);
    let memory = world.bucket.memory();
    let (low, high) = (memory.low_watermark_bytes(), memory.high_watermark_bytes());
    assert!(world.used() <= low + (high - low) / 16, "{} of {low}", world.used());
    assert!(world.used() > low - (high - low), "{} of {low}: not more than needed", world.used());
    assert!((0..hot).all(|n| is_resident(&world, VB, &key(n))), "the hot ones stay");
    let stats = world.bucket.eviction().eviction_stats();
    assert!(stats.passes >= 1 && stats.evicted_values > 0 && stats.kept_hot > 0, "{stats:?}");
    assert_eq!(stats.evicted_documents, 0);
    let of_active = world.bucket.stats().of(VbState::Active).ops.ejects;
    assert_eq!(of_active, stats.ejects(), "they are counted by role, too");
    for n in 0..documents {
        assert_eq!(world.settle(&key(n), || world.get(&key(n))), Ok(value(n)));
    }
}

#[test]
fn what_is_not_on_disk_or_locked_stays() {
    let world = world(2);
    // What is not on disk has a share of the memory, here all of it.
    world.bucket.set_param("checkpoint_memory_ratio", "1").expect("a good value");
    world.bucket.maintenance().keep_step();
    let documents = fill_and(&world, VB, || {});
    keep(&world);
    assert_eq!(residents(&world, VB, documents), documents, "nothing of it is on disk");
    assert!(world.bucket.eviction().eviction_stats().kept_dirty > 0);
    assert!(world.bucket.flushing().flush_all());
    let now = world.bucket.now();
    for n in (0..documents).step_by(2) {
        world.bucket.documents().get_and_lock(VB, doc(&key(n)), 30, now).expect("locked");
    }
    world.set("above", &value(0));
    keep(&world);
    let stats = world.bucket.eviction().eviction_stats();
    assert!(stats.evicted_values > 0 && stats.kept_locked > 0, "{stats:?}");
    assert!((0..documents).step_by(2).all(|n| is_resident(&world, VB, &key(n))));
}

#[test]
fn replicas_go_first() {
    let world = world(3);
    let replica = VbId(5);
    let each = 60;
    for n in 0..each {
        world.set_in(VB, &key(n), &value(n)).expect("stored");
        world.set_in(replica, &key(n), &value(n)).expect("stored");
        assert!(world.bucket.flushing().flush_all());
    }
    world.bucket.roles().set_vbucket_state(replica, VbState::Replica, None).expect("there is such a vBucket");
    let more = (1000..1100).find(|n| {
        let is_above = world.bucket.memory().is_above_high_watermark();
        is_above
            || world.set_in(VbId(1), &key(*n), &value(*n)).is_err()
            || !world.bucket.flushing().flush_all()
    });
    assert!(more.is_some() && world.bucket.flushing().flush_all());
    world.set("above", &value(0));
    keep(&world);
    assert_eq!(residents(&world, VB, each), each, "there was enough in the replica");
    assert!(residents(&world, replica, each) < each);
}

#[test]
fn when_the_replicas_are_not_enough_active_ones_go_too() {
    let world = world(4);
    let replica = VbId(5);
    world.set_in(replica, &key(0), &value(0)).expect("stored");
    world.bucket.roles().set_vbucket_state(replica, VbState::Replica, None).expect("there is such a vBucket");
    let documents = fill(&world, VB);
    assert!(world.bucket.flushing().flush_all());
    world.set("above", &value(0));
    keep(&world);
    assert!(!is_resident(&world, replica, &key(0)));
    assert!(residents(&world, VB, documents) < documents);
    assert!(!world.bucket.memory().is_above_high_watermark());
}

#[test]
fn what_was_written_since_the_last_pass_is_spared_once() {
    let world = world(5);
    let old = fill(&world, VB);
    assert!(world.bucket.flushing().flush_all());
    world.set("above", &value(0));
    keep(&world);
    // Old documents are used more than the new ones.
    for _ in 0..4 {
        (0..old).filter(|n| is_resident(&world, VB, &key(*n))).for_each(|n| drop(world.get(&key(n))));
    }
    let passes = world.bucket.eviction().eviction_stats().passes;
    world.handles.clock.advance(Duration::from_millis(1));
    let mut young = Vec::new();
    for n in 1000.. {
        if world.bucket.memory().is_above_high_watermark() {
            break;
        }
        world.set(&key(n), &value(n));
        young.push(key(n));
        // What a flush lets go must not be what brings it back under the watermark.
        assert!(world.bucket.flushing().flush_all());
    }
    world.set("above", &value(1));
    while world.bucket.eviction().eviction_stats().passes == passes {
        assert!(world.bucket.maintenance().keep_step());
    }
    assert!(young.iter().all(|key| is_resident(&world, VB, key)));
    assert!(world.bucket.eviction().eviction_stats().kept_young > 0);
}

#[test]
fn a_frequency_survives_eviction_updates_and_locks() {
    let world = world(6);
    world.set("k", "v");
    assert_eq!(frequency(&world, "k"), base::INITIAL_FREQUENCY);
    (0..3).for_each(|_| drop(world.get("k")));
    let now = || world.bucket.now();
    let (fresh, raised) = (base::INITIAL_FREQUENCY, base::INITIAL_FREQUENCY + 3);
    assert_eq!(frequency(&world, "k"), raised);
    assert!(world.bucket.flushing().flush_all());
    assert_eq!(world.bucket.eviction().evict_value(VB, doc("k")), Ok(true));
    assert_eq!(frequency(&world, "k"), raised);
    assert_eq!(world.get("k"), Err(Refusal::NotResident));
    assert_eq!(frequency(&world, "k"), raised, "it is counted when its reader comes again");
    assert_eq!(world.settle("k", || world.get("k")), Ok("v".into()));
    assert_eq!(frequency(&world, "k"), raised + 1);
    world.set("k", "w");
    assert_eq!(frequency(&world, "k"), raised + 2, "a change is an access");
    world.bucket.documents().get_and_lock(VB, doc("k"), 10, now()).expect("locked");
    assert_eq!(frequency(&world, "k"), raised + 3);
    world.handles.clock.advance(Duration::from_secs(20));
    world.bucket.documents().delete(VB, doc("k"), Cas::ANY, now()).expect("deleted");
    world.set("k", "again");
    assert_eq!(frequency(&world, "k"), fresh, "another document begins anew");
}

#[test]
fn saturated_frequencies_decay() {
    let world = world(7);
    let documents = fill(&world, VB);
    assert!(world.bucket.flushing().flush_all());
    world.bucket.with_vbucket(VB, |vb| {
        vb.table().iter().for_each(|version| version.frequency().store(u8::MAX, Ordering::Relaxed));
    });
    world.bucket.set_param("item_freq_decayer_percent", "25").expect("set");
    world.set("above", &value(0));
    keep(&world);
    assert!(world.bucket.eviction().eviction_stats().decays > 0);
    assert!((0..documents).all(|n| frequency(&world, &key(n)) <= u8::MAX / 4));
}

#[test]
fn every_policy_does_what_it_says() {
    // fail_new_data: nothing goes.
    let world = world(8);
    world.bucket.settings().put(Key::EvictionPolicy, EvictionPolicy::FailNewData as u64);
    let documents = fill(&world, VB);
    assert!(world.bucket.flushing().flush_all());
    keep(&world);
    assert_eq!(residents(&world, VB, documents), documents);
    assert_eq!(world.bucket.eviction().eviction_stats().passes, 0);
    // auto_delete: documents of active vBuckets are deleted as if a client did.
    let replica = VbId(5);
    world.set_in(replica, "r", &value(0)).expect("stored");
    world.bucket.roles().set_vbucket_state(replica, VbState::Replica, None).expect("there is such a vBucket");
    let locked =
        world.bucket.documents().get_and_lock(VB, doc(&key(0)), 30, world.bucket.now()).expect("locked");
    let high_seqno = |vb| world.bucket.with_vbucket(vb, |vb| vb.high_seqno().0).expect("it is there");
    let (before, replica_before) = (high_seqno(VB), high_seqno(replica));
    world.bucket.settings().put(Key::EvictionPolicy, EvictionPolicy::AutoDelete as u64);
    keep(&world);
    let deleted = (0..documents).filter(|n| world.get(&key(*n)) == Err(Refusal::NotFound)).count() as u64;
    assert!(deleted > 0 && deleted < documents as u64);
    assert_eq!(world.bucket.eviction().eviction_stats().deleted_documents, deleted);
    assert_eq!(high_seqno(VB), before + deleted, "each has a seqno of its own");
    assert_eq!(high_seqno(replica), replica_before);
    assert!(world.bucket.documents().unlock(VB, doc(&key(0)), locked.cas, world.bucket.now()).is_ok());
    assert!(world.bucket.flushing().flush_all(), "and goes to disk");
    assert_eq!(world.get(&key(0)), Ok(value(0)));
}

#[test]
fn metadata_alone_above_the_watermark_lead_to_full_eviction_only_if_that_is_allowed() {
    for allowed in [false, true] {
        let world = world(9);
        world.bucket.set_param("auto_eviction_policy", &allowed.to_string()).expect("set");
        for n in 0.. {
            if world.bucket.memory().is_above_high_watermark() {
                break;
            }
            world.set_in(VB, &key(n), "").expect("there is room");
            assert!(world.bucket.flushing().flush_all());
        }
        world.set_in(VB, "above", "").expect("there is room");
        keep(&world);
        let expected = if allowed { EvictionPolicy::Full } else { EvictionPolicy::ValueOnly };
        assert_eq!(world.bucket.eviction_policy(), expected);
        // What the heap gave back may have brought it below the watermark again.
        let mut more = 0;
        while !allowed && !world.bucket.eviction().is_full_of_metadata() {
            assert!(more < 1_000, "the pager does not see that metadata alone fill the memory");
            world.set_in(VB, &format!("more-{more}"), "").expect("there is room");
            assert!(world.bucket.flushing().flush_all());
            keep(&world);
            more += 1;
        }
        assert_eq!(world.bucket.eviction().is_full_of_metadata(), !allowed);
        world.bucket.set_param("max_size", "1GiB").expect("set");
        assert!(!world.bucket.eviction().is_full_of_metadata(), "there is room again");
    }
}

#[test]
fn sixteen_readers_of_one_value_cause_one_read() {
    let world = world(10);
    world.set_evicted("k", "v");
    let waiting: Vec<_> = (0..16)
        .map(|_| {
            assert_eq!(world.get("k"), Err(Refusal::NotResident));
            world.bucket.fetching().fetch(VB, doc("k")).expect("few wait")
        })
        .collect();
    while world.bucket.fetching().fetch_step() != Progress::Idle {}
    assert_eq!(*world.spy.batches.lock(), [(VB, vec!["k".to_owned()])]);
    assert!(waiting.iter().all(|one| one.try_take().is_some()));
    (0..16).for_each(|_| assert_eq!(world.get("k"), Ok("v".into())));
    let ops = world.bucket.op_counts();
    assert_eq!((ops.get_not_resident, ops.get_hits), (16, 16));
}

#[test]
fn lock_holds_are_timed_by_who_holds() {
    let world = world(11);
    let holds = |holder| world.bucket.lock_times_of(holder).total();
    world.set("k", "v");
    let (before, flusher) = (holds(Holder::FrontEnd), holds(Holder::Flusher));
    (0..640).for_each(|_| assert!(world.get("k").is_ok()));
    assert_eq!(holds(Holder::FrontEnd), before + 10, "one in 64");
    assert!(world.bucket.flushing().flush_all());
    assert!(holds(Holder::Flusher) > flusher);
    fill(&world, VB);
    keep(&world);
    let times = world.bucket.lock_times();
    let (_, pager) = times.iter().find(|(holder, _)| *holder == Holder::Pager).expect("it is one of them");
    assert!(pager.total() > 0);
}
